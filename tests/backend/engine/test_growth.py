"""A constraint's first answers, followed in an automaton that is made while it is used, beside later ones, which have the whole one: the
same tokens are allowed, forced and refused, and the same ends are taken."""

from __future__ import annotations

import functools
import json
import random

import pytest

from lmc.backend.engine import automaton
from lmc.backend.engine.automaton import AutomatonMatcher, ConstraintCompiler
from lmc.backend.engine.steering import Steering
from lmc.fsm.arrays import ArrayDFA, LazyArrays
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.canonical_rows import CanonicalRows
from lmc.fsm.forced import ForcedTokens
from lmc.fsm.sources import begun, machine_of
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from lmc.segments import Constraint
from tests.fsm.schemas import SCHEMAS
from tests.fsm.test_canonical import canonical_of, encode, words
from tests.searching import apart

NAMES = [f"{'pre' * (i % 3)}name{i * 7 % 90}{'tion' * (i % 2)}" for i in range(90)]
MORE = {
    "words": {"enum": NAMES},  # more states behind one than are looked at for dead ends
    "keys": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "names": {"const": "é"}},
        "additionalProperties": {"type": "integer"},
        "maxProperties": 4,
    },
    "lengths": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": 2, "maxLength": 40},
            "b": {"type": "string", "maxLength": 18},
            "c": {"type": "string", "minLength": 1},
        },
    },
    "classes": {"type": "array", "items": {"type": "string", "pattern": '^[a-zA-Zéß世]+(-[^"x\\\\]*)?$'}, "minItems": 1},
    "ends": {"enum": ["é", "ab", "世界", "abc"]},
}
EVERY = {**{name: schema for name, (schema, _, _) in SCHEMAS.items()}, **MORE}


@functools.cache
def tokenizer():
    of = words("gpt2", 500)
    vocabulary = Vocabulary(of.byte_table, (0,), (), of.vocab_size)
    ids = {of.byte_table[i]: i for i in range(1, of.vocab_size)}
    return of, vocabulary, canonical_of(of, of.vocab_size), ids


def matcher_of(machine) -> AutomatonMatcher:
    of, vocabulary, canonical, ids = tokenizer()
    made = TokenAutomaton(machine, vocabulary)

    def encoded(text: str):
        return encode(of, text)

    return AutomatonMatcher(made, ForcedTokens(made, encoded), steering=Steering(made, encoded, ids), canonical=CanonicalRows(made, canonical))


@pytest.mark.parametrize("name", [*list(SCHEMAS)[::72], *MORE])
def test_an_answer_is_the_same_however_it_is_followed(name):
    check_same(name, answers=1)


@apart
@pytest.mark.parametrize("name", EVERY)
def test_every_answer_is_the_same_however_it_is_followed(name):
    check_same(name, answers=6)


def check_same(name: str, answers: int) -> None:
    source = json.dumps(EVERY[name])
    whole = machine_of("json_schema", source)
    if not isinstance(whole, ByteDFA):
        pytest.skip("has no small whole automaton")
    lazy = begun("json_schema", source)
    rng = random.Random(name)
    for _ in range(answers):
        first, later = matcher_of(lazy), matcher_of(whole)
        left = rng.choice([20, 60, 200])
        while left and not first.done:
            assert list(first.bits) == list(later.bits)
            assert first.complete == later.complete
            token = rng.choice([i for i in range(tokenizer()[0].vocab_size) if first.bits[i // 32] >> (i % 32) & 1])
            if token == 0:
                break
            assert first.allows(token) and later.allows(token)
            end = first.end_before(token, left)
            assert end == later.end_before(token, left)
            for m in (first, later):
                m.accept(token if end is None else end[0]) if end != () else None
            if end == ():
                break
            forced = first.forced()
            assert forced == later.forced()
            for m in (first, later):
                m.accept_forced(forced) if forced else None
            left = max(0, left - 1 - len(forced))
        assert first.done == later.done


def compiler() -> ConstraintCompiler:
    of, *_ = tokenizer()
    return ConstraintCompiler(of.byte_table, (), 0, of.vocab_size)


def test_the_second_request_has_the_whole_automaton_and_the_first_goes_on():
    made, constraint = compiler(), Constraint("json_schema", json.dumps(MORE["keys"]))
    made.check(constraint, None)
    first = made.matcher(constraint)
    assert isinstance(first._automaton.dfa, LazyArrays)
    made.check(constraint, None)
    later = made.matcher(constraint)
    assert isinstance(later._automaton.dfa, ArrayDFA)
    for token in encode(tokenizer()[0], '{"name": "x", "z": 1}'):
        assert first.allows(token) and later.allows(token)
        first.accept(token), later.accept(token)
    assert first.complete and later.complete
    assert made.info().automata == 1 and made.info().lazy == 0


def test_nobody_looks_twice_for_a_whole_automaton_that_there_is_not(monkeypatch):
    looked: list[str] = []
    real = automaton.machine_of
    monkeypatch.setattr(automaton, "machine_of", lambda kind, source: looked.append(source) or real(kind, source))
    made, constraint = compiler(), Constraint("json_schema", "{}")
    for _ in range(4):
        made.check(constraint, None)
        assert isinstance(made.matcher(constraint)._automaton.dfa, LazyArrays)
    assert len(looked) == 1


def test_a_regex_has_its_whole_automaton_at_once():
    made, constraint = compiler(), Constraint("regex", "[ab]{2}")
    made.check(constraint, None)
    assert isinstance(made.matcher(constraint)._automaton.dfa, ArrayDFA)


def test_a_string_of_a_length_that_no_answer_reaches_is_begun():
    made, constraint = compiler(), Constraint("json_schema", json.dumps({"type": "string", "minLength": 32767, "maxLength": 32767}))
    made.check(constraint, None)
    matcher = matcher_of(begun("json_schema", constraint.source))
    for token in encode(tokenizer()[0], '"abc abc'):
        assert matcher.end_before(token, 100) is None  # no end fits: the answer goes on, and is cut
        assert matcher.allows(token)
        matcher.accept(token)
        matcher.forced()
    assert matcher._automaton.dfa.lazy.states < 1000


def test_an_end_of_many_bytes_is_seen_from_afar():
    """Of what is made while it is used, too: 60 properties have to follow."""
    names = [f"property{i}" for i in range(60)]
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}, **{n: {"type": "string"} for n in names}}, "required": names}
    matcher = matcher_of(begun("json_schema", json.dumps(schema)))
    end = matcher._steering.end(0)
    assert len(end) > 300 and matcher.horizon > len(end)
    for token in encode(tokenizer()[0], '{"property0":"'):
        matcher.accept(token)
    letter = encode(tokenizer()[0], "e")[0]
    left = len(matcher._steering.end(matcher.state)) + 1
    assert matcher.end_before(letter, left + 9) is None
    assert matcher.end_before(letter, left) is not None
