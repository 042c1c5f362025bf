"""Forced tokens: certain whatever legal text follows, against the definition where it can be enumerated."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from lmc.fsm import forced
from lmc.fsm.forced import ForcedTokens
from lmc.fsm.regex import compile_regex, parse
from lmc.fsm.sources import begun
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from tests.fsm.forced_oracle import FINITE, TOOL, by_definition, forced_tokens
from tests.fsm.patterns import ASCII, CHARACTER, JUDGE, regexes, word_of
from tests.fsm.small_vocabulary import byte_alphabet, small, smollm2
from tests.searching import search

ORDER = r'\{"order(Id|Name)": "\w+"\}'


def texts(f: ForcedTokens, state: int = 0) -> list[bytes]:
    return [f.automaton.vocabulary.tokens[t] for t in f.run(state).tokens]


def merging(*merges: str) -> tuple[Vocabulary, forced.Encode]:
    """A BPE over printable ASCII with the given tokens, the first merged first; without a pre-tokenizer."""
    tokens = [b"</s>", *(bytes([b]) for b in range(32, 127)), *(m.encode() for m in merges)]
    ids = {text: i for i, text in enumerate(tokens)}

    def encode(text: str) -> list[int]:
        parts = [c.encode() for c in text]
        while pairs := [a + b for a, b in pairwise(parts) if ids.get(a + b, 0) > 95]:
            best = min(pairs, key=lambda p: ids[p])
            at = next(i for i in range(len(parts)) if b"".join(parts[i : i + 2]) == best)
            parts[at : at + 2] = [best]
        return [ids[p] for p in parts]

    return Vocabulary(tokens, [0]), encode


def at_character_boundaries(f: ForcedTokens) -> list[int]:
    dfa = f.automaton.dfa
    inside = {int(t) for row in dfa.table for b, t in enumerate(row) if t >= 0 and b >= 0x80}
    return [state for state in range(dfa.states) if state == 0 or state not in inside]


@pytest.mark.parametrize("pattern", FINITE)
def test_runs_are_those_of_the_definition(pattern):
    f = forced_tokens(pattern)
    for state in at_character_boundaries(f):
        assert f.run(state).tokens == by_definition(f, state), state


@pytest.mark.parametrize("pattern", FINITE)
def test_without_enumerating_runs_are_not_longer_than_the_definition_allows(pattern, monkeypatch):
    monkeypatch.setattr(forced, "_FEW", 0)
    f = forced_tokens(pattern)
    for state in at_character_boundaries(f):
        run, most = f.run(state).tokens, by_definition(f, state)
        assert run == most[: len(run)], state


@search(6, 200)
@given(
    st.lists(st.text("ab:\"", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.text("ab:\"", min_size=2, max_size=3), min_size=1, max_size=5, unique=True),
)  # fmt: skip
def test_runs_are_those_of_the_definition_on_any_small_vocabulary(words, merges):
    vocabulary, encode = merging(*merges)
    pattern = f"b:(?:{'|'.join(words)})b"
    f = ForcedTokens(TokenAutomaton(compile_regex(pattern), vocabulary), encode)
    for state in range(f.automaton.dfa.states):
        assert f.run(state).tokens == by_definition(f, state)


@search(9, 200)
@given(st.sampled_from(["order", '"', 'the"', ' "', "  ", "yes", '{"', "世"]), regexes)
def test_no_legal_text_contradicts_a_run(head, rest):
    pattern = "".join(f"[{c}]" for c in head) + rest
    f, rng, tree = forced_tokens(pattern), random.Random(rest), parse(pattern)
    run = f.run(0).tokens
    for _ in range(12):
        assert tuple(f.encode(word_of(tree, rng)))[: len(run)] == run


# -- behind text that a model cut in its own way -------------------------------------------------------------------------


def walked(f: ForcedTokens, rng: random.Random, most: int = 60) -> int:
    """Goes through random allowed tokens and the runs behind them; each run must be that of every canonical encoding of the
    whole text. Returns how many of the runs of a state were not taken, since the text before them was cut otherwise."""
    tokens, dfa = f.automaton.vocabulary.tokens, f.automaton.dfa
    state, tail, text, refused = 0, (), b"", 0
    for _ in range(most):
        run = f.behind(tail, state)
        assert run == f.run(state).tokens[: len(run)]
        refused += len(run) < len(f.run(state).tokens)
        if run:
            forced_text = f._forced_text(state)
            for ending in f._endings.of_each_kind(dfa.step(state, forced_text)):
                cut = f.seams.cut(text, legal := forced_text + ending)
                assert cut is None or cut[: len(run)] == run, (text, legal)
        for token in run or [any_token(f, state, rng)]:
            state, tail, text = f.automaton.next(state, token), f.seams.tail((*tail, token)), text + tokens[token]
        if f.automaton.is_done(state) or (f.automaton.is_final(state) and rng.random() < 0.2):
            break
    assert dfa.step(0, text) == state
    return refused


def any_token(f: ForcedTokens, state: int, rng: random.Random) -> int:
    """An allowed token, often one that a tokenizer would hardly take."""
    ids = f.automaton.vocabulary.reach(f.automaton.dfa, state)[0].tolist()
    short = [i for i in ids if len(f.automaton.vocabulary.tokens[i]) <= 2]
    return rng.choice(short if short and rng.random() < 0.5 else ids)


@pytest.mark.parametrize("pattern", [*FINITE, CHARACTER, TOOL, "a[b-y]{2}constant and the end(!|[?] ?)"])
def test_runs_behind_any_cut_are_those_of_every_canonical_encoding(pattern):
    f, rng = forced_tokens(pattern), random.Random(pattern)
    for _ in range(8):
        walked(f, rng)


@search(4, 100)
@given(
    st.lists(st.text("ab:\"", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("ab:\"", min_size=2, max_size=3), min_size=1, max_size=5, unique=True),
    st.randoms(use_true_random=False),
)
def test_runs_behind_any_cut_on_any_small_vocabulary(words, merges, rng):
    vocabulary, encode = merging(*merges)
    f = ForcedTokens(TokenAutomaton(compile_regex(f"[ab]:(?:{'|'.join(words)})b"), vocabulary), encode)
    for _ in range(4):
        walked(f, rng)


def test_behind_half_a_word_nothing_is_certain():
    """A model that began `minister` with a token that nobody would begin it with goes on by itself."""
    vocabulary, encode = merging("in", "is", "te", "min", "minis", "ter", "minister")
    f = ForcedTokens(TokenAutomaton(compile_regex('(minister|auror)", "wand'), vocabulary), encode)
    spelled = [vocabulary.tokens.index(t) for t in (b"m", b"in")]
    state, tail = f.automaton.dfa.step(0, b"min"), f.seams.tail(spelled[:2])
    assert f.run(state).tokens and tail == tuple(spelled) and f.behind(tail, state) == ()
    rest = encode("ister")
    for token in rest:
        tail = f.seams.tail((*tail, token))
    state = f.automaton.dfa.step(state, b"ister")
    assert f.behind(tail, state) == f.run(state).tokens == tuple(encode('", "wand'))  # no token reaches over the r


WORDS = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def cutting_words(how: str, text: str):
    """A byte-level vocabulary trained on a text whose words are cut first."""
    raw = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS[how]), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator([text] * 3, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    byte_of = {char: byte for byte, char in byte_alphabet().items()}
    tokens = [bytes(byte_of[c] for c in raw.id_to_token(i)) for i in range(raw.get_vocab_size())]
    return Vocabulary([*tokens, b""], [len(tokens)]), lambda t: raw.encode(t, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("how", "before", "forced_text", "taken"),
    [
        ("GPT-2", "—", "'s end", b"'s"),
        ("Llama 3", "😀", '"id end', b'"id'),
        ("Llama 3", "٣", "123 end", b"123"),
        ("Llama 3", "—", "\n \n end", b"\n \n"),
        ("Llama 3", "'", "set end", b"set"),
    ],
)
def test_a_run_is_not_certain_where_words_are_cut_by_what_stands_before(how, before, forced_text, taken):
    """No token reaches over the border, and yet the text behind it is cut otherwise."""
    vocabulary, encode = cutting_words(how, f"cat{forced_text}")
    assert taken in vocabulary.tokens and vocabulary.tokens[encode(forced_text)[0]] == taken
    f = ForcedTokens(TokenAutomaton(compile_regex(f"(a|{before}){re.escape(forced_text)}"), vocabulary), encode)
    for first in ("a", before):
        state, recent = f.automaton.dfa.step(0, first.encode()), encode(first)
        run = f.behind(recent, state)
        assert tuple(encode(first + forced_text)[len(recent) :])[: len(run)] == run
        assert bool(run) == (first == "a")


def test_spaces_before_what_may_be_one_more_are_not_certain():
    """Also of those that are not ASCII: what follows decides how many spaces go with it."""
    vocabulary, encode = cutting_words("GPT-2", "x \n")
    assert b" \n" in vocabulary.tokens
    for class_ in ("\u200d\u3000", "\u2003\u200d", "\u3000😀", "a\u00a0"):
        f = ForcedTokens(TokenAutomaton(compile_regex(rf"x \n[{class_}]{{1,50}}"), vocabulary), encode)
        run = f.run(0).tokens
        for char in class_:
            assert tuple(encode(f"x \n{char}"))[: len(run)] == run


@pytest.mark.model
def test_a_longer_token_behind_spaces_that_are_cut_by_it_is_seen():
    """The line end is one token at the end of a text and two before a quote."""
    head = 'aId\r\n"'
    f = forced_tokens(head + r"[\u00a0\u3000é—😀]{1,50}  x", smollm2)
    run = f.run(0).tokens
    assert run and all(tuple(f.encode(f"{head}{char}  x"))[: len(run)] == run for char in "é—😀")


# -- traps ------------------------------------------------------------------------------------------------------------


def test_order_before_orderId_is_not_certain():
    tokens = ("or", "de", "orde", "order", "Id", "orderId")
    f = ForcedTokens(TokenAutomaton(compile_regex("_order(Id|Name)+x*"), merging(*tokens)[0]), merging(*tokens)[1])
    assert texts(f) == [b"_"]
    f = ForcedTokens(
        TokenAutomaton(compile_regex("_order(Id|Name)+x*"), merging(*tokens[:5])[0]), merging(*tokens[:5])[1]
    )
    assert texts(f) == [b"_", b"order"]


def test_nothing_is_forced_inside_a_character():
    f = forced_tokens("世a*")
    assert f.run(f.automaton.dfa.step(0, "世".encode()[:1])).tokens == ()


def test_a_tokenizer_that_changes_the_text_forces_nothing():
    vocabulary, encode = small()
    f = ForcedTokens(TokenAutomaton(compile_regex("ORDER"), vocabulary), lambda text: encode(text.lower()))
    assert f.run(0).tokens == ()


def test_each_state_is_encoded_once():
    vocabulary, encode = small()
    asked: list[str] = []
    f = ForcedTokens(TokenAutomaton(compile_regex(CHARACTER), vocabulary), lambda t: (asked.append(t), encode(t))[1])
    f.run(0)
    count = len(asked)
    f.run(0)
    assert len(asked) == count > 0


# -- on the small model's vocabulary ------------------------------------------------------------------------------------

SPACED = [
    r"x  +y",
    r"don't|doesn't do",
    r'"a": ("x y"|"x z")+',
    r"\n\n[A-Z]\w+:  \d{1,4}",
    r"- [a-z ]{3,20}\n- [a-z ]{3,20}\n",
    r'"[^"]{3,30}"(: [0-9]+)?',
    r"世界[一-龥]{1,5}。",
]


def passes_per_token(f: ForcedTokens, text: str) -> float:
    """Sampled tokens over all tokens, following the canonical encoding of `text`; forced runs must be part of it."""
    ids, at, state, sampled = f.encode(text), 0, 0, 0
    while at < len(ids):
        run = f.run(state)
        assert tuple(ids[at : at + len(run.tokens)]) == run.tokens
        at, state = at + len(run.tokens), run.state
        if at < len(ids):
            state, at, sampled = f.automaton.next(state, ids[at]), at + 1, sampled + 1
    assert f.automaton.is_final(state)
    return sampled / max(1, len(ids))


@pytest.mark.model
def test_no_forced_run_is_outside_of_the_canonical_encoding():
    """Over more than a thousand random answers."""
    vocabulary, encode = smollm2()
    followed = 0
    for pattern in [*ASCII, *FINITE, TOOL, ORDER, *SPACED]:
        f, rng, tree = forced_tokens(pattern, smollm2), random.Random(pattern), parse(pattern)
        for text in (word_of(tree, rng) for _ in range(14)):
            if b"".join(vocabulary.tokens[t] for t in encode(text)) == text.encode():  # it lacks some bytes
                passes_per_token(f, text)
                followed += 1
    assert followed > 1000


@pytest.mark.model
def test_no_forced_run_behind_any_cut_is_outside_of_the_canonical_encoding():
    """Over answers drawn at random under their masks, which no tokenizer would cut so."""
    refused = 0
    for pattern in [*FINITE, *SPACED, CHARACTER, JUDGE, TOOL, ORDER]:
        f, rng = forced_tokens(pattern, smollm2), random.Random(pattern)
        refused += sum(walked(f, rng) for _ in range(8))
    assert refused > 30


def test_the_memory_of_runs_is_that_of_what_was_found():
    vocabulary, encode = merging("on")
    f = ForcedTokens(TokenAutomaton(compile_regex(ORDER), vocabulary), encode)
    assert f.nbytes == 0
    f.run(0)
    once = f.nbytes
    f.run(0)
    assert f.nbytes == once > 0
    f.prepare(0)
    assert f.nbytes > once


def test_long_endings_are_not_followed_for_a_run():
    """Those of sixty nested objects, in each layout, took more than a step may, and the answer failed."""
    levels = {str(i): {"type": "object", "properties": {"n": {"$ref": f"#/$defs/{i + 1}"}}, "required": ["n"]} for i in range(60)}
    schema = {"$ref": "#/$defs/0", "$defs": {**levels, "60": {"const": 1}}}
    vocabulary, encode = small()
    automaton = TokenAutomaton(begun("json_schema", json.dumps(schema)), vocabulary)
    runs, state = ForcedTokens(automaton, encode), 0
    for token in encode('{"n": {"n": '):
        runs.prepare(state)
        state = automaton.next(state, token)
    assert vocabulary.text(runs.run(state).tokens).decode() == '{"n": ' * 58 + "1" + "}" * 60
