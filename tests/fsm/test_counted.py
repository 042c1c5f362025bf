"""Patterns beside lengths, followed with counters: the languages of their products, rows that many counts share."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lmc.fsm import counted as counted_module
from lmc.fsm.algebra import both, minimised, without
from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.bounds import TooLarge, TransitionBudget
from lmc.fsm.counted import counted, folded
from lmc.fsm.dfa import build
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.lazy import LazyDFA
from lmc.fsm.nodes import ANY, NOTHING, NodeGraph, repeat
from lmc.fsm.regex import parse
from lmc.fsm.sources import begun
from lmc.fsm.tokens import TokenAutomaton
from tests.fsm.patterns import regexes
from tests.fsm.small_vocabulary import legal, small, stepped
from tests.fsm.test_lazy import check_distances, check_same_language
from tests.searching import search


def check(pattern: str, low: int, high: int | None, most: int = 3000) -> None:
    language = parse(pattern)
    expected = both(language, repeat(ANY, low, high))
    found = counted(minimised(language, TransitionBudget()), low, high)
    if expected == NOTHING:
        assert found == NOTHING
        return
    check_same_language(build(expected), LazyDFA(Grammar(found)), most)
    check_same_language(build(found), LazyDFA(Grammar(expected)), most)  # written out, too


@pytest.mark.parametrize(
    ("pattern", "low", "high"),
    [("(ab)*|c", 0, 5), (r"[a-z]+@[a-z]+(\.[a-z]+)*", 3, 9), ("(aaa)*b?", 4, 11), ("a*b*c", 2, None), ("(ab|cde)*", 3, 30), ("é+x?|y{3,9}", 2, 6),
        ("(aa)*", 3, 3),
     ("(aa)*", 4, 4), (".*x.*", 1, 4), ("(aa|aaaaa)*", 3, None), ("", 0, 0), ("a|bb", 0, 1)],
)  # fmt: skip
def test_the_language_is_that_of_the_product(pattern, low, high):
    check(pattern, low, high)


@search(18, 400)
@given(regexes, st.integers(0, 5), st.integers(0, 6) | st.none())
def test_the_language_of_any_regex_beside_any_length(pattern, low, more):
    language = parse(pattern)
    assume(language != NOTHING)
    check(pattern, low, None if more is None else low + more, 400)


@pytest.mark.parametrize(("pattern", "low", "high"), [("(ab|cde)*é?", 3, 9), ("é*(abc)*", 4, None), (r"[a-z]+@[a-z]+(\.[a-zé]+)*", 5, 12)])
def test_the_distance_to_an_end_is_exact_in_bytes(pattern, low, high):
    language = parse(pattern)
    made = LazyDFA(Grammar(counted(minimised(language, TransitionBudget()), low, high)))
    whole = ArrayDFA.of(build(both(language, repeat(ANY, low, high))))
    check_distances(made, whole, random.Random(pattern))


def schema(low: int, high: int) -> dict[str, object]:
    return {"type": "string", "pattern": r"^[^@\s]+@[^@\s]+\.(com|gov\.uk)$", "minLength": low, "maxLength": high}


def test_a_pattern_beside_a_long_length_is_no_automaton_of_a_state_for_each_count():
    """It was: 120 ms of compiling, and hundreds of states for a mask."""
    source = json.dumps({"type": "object", "properties": {"to": schema(5, 254), "from": schema(5, 2540)}})
    vocabulary, _ = small()
    made = TokenAutomaton(begun("json_schema", source), vocabulary)
    assert not compile_schema(source).notes.later
    made.mask(made.dfa.step(made.start, b'{"to": "name'))
    assert made.dfa.states < 120
    rows = made.rows_built
    for count in range(5, 150):  # as far as the end is out of reach
        made.mask(made.dfa.step(made.start, b'{"to": "' + b"n" * count))
    assert made.rows_built <= rows + 12


@pytest.mark.parametrize(("low", "high"), [(0, 12), (7, 9), (5, 254), (40, 300)])
def test_rows_are_the_tokens_that_can_be_stepped(low, high):
    vocabulary, _ = small()
    made = TokenAutomaton(begun("json_schema", json.dumps(schema(low, high))), vocabulary)
    for text in (
        b'"',
        b'"n',
        b'"name@',
        b'"name@or',
        b'"name@order.c',
        b'"name@order.com',
        b'"' + b"n" * (high - 6),
        b'"' + b"n" * (high - 9) + b"@a.c",
        b'"' + "né".encode() * 3,
    ):
        state = made.dfa.step(made.start, text)
        if state >= 0:
            assert legal(made, state) == stepped(made, state), text


def test_counts_that_take_too_long_are_refused():
    with pytest.raises(TooLarge):
        counted(minimised(parse("(abc|defgh)*(x|y)"), TransitionBudget()), 0, 1_000_000)
    with pytest.raises(TooLarge):
        counted(minimised(parse("(" + "a" * 97 + ")*"), TransitionBudget()), 0, 30_000)


FOLDED = ["a{1,40}", "x(a|b){3,50}y", "(a{9}b|c)*", "a{0,30}(b|c)?", "[ab]{4,20}c{7}|d", "(b?a{12})*a"]


@pytest.mark.parametrize("pattern", FOLDED)
def test_states_that_are_alike_but_for_a_count_are_one_repeat(pattern, monkeypatch):
    monkeypatch.setattr(counted_module, "_FEWEST", 3)
    for language in (minimised(parse(pattern), TransitionBudget()), without(repeat(ANY, 0, None), parse(pattern))):
        assert isinstance(language, NodeGraph)
        found = folded(language)
        assert len(found.edges) < len(language.edges)
        check_same_language(build(language), LazyDFA(Grammar(found)), 3000)
        check_same_language(build(found), LazyDFA(Grammar(language)), 3000)


@search(20, 400)
@given(regexes)
def test_folded_states_of_any_regex_read_the_same_texts(pattern):
    language = parse(pattern)
    assume(language != NOTHING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted_module, "_FEWEST", 2)
        for graph in (minimised(language, TransitionBudget()), without(repeat(ANY, 0, None), language)):
            if graph != NOTHING:
                assert isinstance(graph, NodeGraph)
                check_same_language(build(graph), LazyDFA(Grammar(folded(graph))), 400)
