"""Forced tokens by definition: what every canonical encoding of every legal text begins with, by writing them all out."""

from __future__ import annotations

from lmc.fsm import forced
from lmc.fsm.forced import ForcedTokens
from lmc.fsm.regex import compile_regex
from lmc.fsm.tokens import TokenAutomaton
from tests.fsm.small_vocabulary import small

TOOL = r'\{"tool": "(search|finish)", "arguments": \{"order(Id|Name)": "\w{1,20}"\}\}'
CHARACTER_TEXT = """{
    "name": "Harry Potter",
    "house": "Gryffindor",
    "blood status": "Half-blood",
    "occupation": "student",
    "wand": {
        "wood": "Holly",
        "length": 11.0
    },
    "alive": "Alive",
    "patronus": "Stag"
}"""

FINITE = [
    r'\{"order(Id|Name)": (1|12|yes)\}',
    r'"(yes|no)"(: 1)?',
    r"order(Id|Name|s)?",
    r"the(n| cat| and)",
    r"世界(和平|大战)",
    r"  {0,3}x",
    r'\{"grade": "[AB]\+?"\}',
    r"a constant, clear and clean",
    r'yes":  no"|yes": "no"',
    r"é(é|世|😀)",
]


def forced_tokens(pattern: str, which=small) -> ForcedTokens:
    vocabulary, encode = which()
    return ForcedTokens(TokenAutomaton(compile_regex(pattern), vocabulary), encode)


def endings(f: ForcedTokens, state: int, longest: int) -> list[bytes]:
    """All legal texts from `state` up to a length."""
    dfa, found, todo = f.automaton.dfa, [], [(state, b"")]
    while todo:
        at, text = todo.pop()
        if dfa.final[at]:
            found.append(text)
        if len(text) < longest:
            todo += [(int(t), text + bytes([b])) for b, t in enumerate(dfa.table[at]) if t >= 0]
    return found


def by_definition(f: ForcedTokens, state: int, longest: int = 40) -> tuple[int, ...]:
    """The longest common prefix of the encodings of all legal texts, within the forced text; none inside a character."""
    text = f.automaton.dfa.forced(state)[0]
    if text and text[0] & 0xC0 == 0x80:
        return ()
    encodings = [tuple(f.encode(ending.decode())) for ending in endings(f, state, longest)]
    common = forced._common_prefix(encodings)
    while len(b"".join(f.automaton.vocabulary.tokens[t] for t in common)) > len(text):
        common = common[:-1]
    return common
