"""The engine's compiler: matchers of what Python's `re.fullmatch(…, re.ASCII)` matches, token by token, and errors with their place."""

from __future__ import annotations

import random
import re

import pytest

from lmc.backend.engine.automaton import ConstraintCompiler
from lmc.errors import ConstraintError, Loc
from lmc.segments import Constraint
from tests.fsm.patterns import ASCII
from tests.searching import some

REGEXES = [*ASCII, r"\(?up", r"[-+]?[0-9]*\.?[0-9]+[ \n]*", r"(?i)[a-c]x[^k]"]
LETTERS = "aAbBcCxyYzZ019_-+. \n\t\r\x0b\\\"'/{}[]()|^$*?,:é世界和平大战😀kK\u212a\u00a0٣"


def samples(pattern: str) -> list[str]:
    rng = random.Random(pattern)
    seeds = ["", "yes", "NO", "abc", "True", '"a b"', "ab", "+1.5", "世界和平", '{"grade": "A", "why": "x y"}', "é\x41\t\\"]
    out = list(seeds)
    for _ in range(80):
        word = rng.choice(seeds) if rng.random() < 0.5 else ""
        for _ in range(rng.randint(0, 4)):
            at = rng.randint(0, len(word))
            word = word[:at] + rng.choice(LETTERS) + word[at + rng.randint(0, 1) :]
        out.append(word)
    return out


EOS = 256
SPECIAL = 257
TABLE = [bytes([i]) for i in range(256)] + [b"</s>", b"<|im_start|>"]


@pytest.fixture(scope="module")
def compiler():
    return ConstraintCompiler(TABLE, {EOS, SPECIAL}, EOS, 260)


def allowed(matcher) -> set[int]:
    words = matcher.bits
    found = {i for i in range(260) if words[i // 32] >> (i % 32) & 1}
    assert found == {i for i in range(260) if matcher.allows(i)}
    return found


def accepts(compiler, pattern: str, text: str) -> bool:
    matcher = compiler.matcher(Constraint("regex", pattern))
    for byte in text.encode():
        if matcher.done or byte not in allowed(matcher):
            return False
        matcher.accept(byte)
    return matcher.complete


@some("pattern", REGEXES, 16)
def test_the_matcher_accepts_what_python_matches(compiler, pattern):
    for text in samples(pattern):
        assert accepts(compiler, pattern, text) == bool(re.fullmatch(pattern, text, re.ASCII)), text


def test_done_only_when_nothing_may_follow(compiler):
    matcher = compiler.matcher(Constraint("regex", "ab?"))
    matcher.accept(ord("a"))
    assert matcher.complete and not matcher.done and allowed(matcher) == {ord("b"), EOS}
    matcher.accept(ord("b"))
    assert matcher.done


def test_special_tokens_are_never_allowed(compiler):
    schema = Constraint("json_schema", '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}')
    matcher = compiler.matcher(schema)
    for byte in b'{"a": "x':
        assert SPECIAL not in allowed(matcher)
        matcher.accept(byte)
    assert SPECIAL not in allowed(matcher) and ord('"') in allowed(matcher)


def test_grammars_are_compiled_once(compiler, monkeypatch):
    compiler.check(Constraint("regex", "once+"), None)
    monkeypatch.setattr("lmc.fsm.sources.build", lambda *_: pytest.fail("compiled again"))
    compiler.matcher(Constraint("regex", "once+"))


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        (Constraint("regex", "a(b"), "position 1"),
        (Constraint("json_schema", "{oops"), "not JSON"),
        (Constraint("json_schema", "[1]"), "must be a JSON object"),
        (Constraint("ebnf", "root ::= "), "ebnf"),
        (Constraint("lark", "start: A"), "A"),
        (Constraint("structural_tag", "{}"), "structural_tag: / must be"),
    ],
)
def test_errors_name_the_place(compiler, constraint, says):
    with pytest.raises(ConstraintError, match=says) as caught:
        compiler.check(constraint, Loc("judge.py", 7, 4))
    assert caught.value.loc == Loc("judge.py", 7, 4)


def test_a_grammar_of_no_text_is_refused_when_it_is_compiled(compiler):
    with pytest.raises(ConstraintError, match="derives no text") as caught:
        compiler.check(Constraint("ebnf", 'root ::= root "a"\n'), Loc("p.py", 9))
    assert caught.value.loc == Loc("p.py", 9)
