"""Byte automata: the language is that of `re.fullmatch`, and the automaton is minimal."""

from __future__ import annotations

import random
import re
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given

from lmc.errors import ConstraintError
from lmc.fsm import arrays, dfa, regex
from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.dfa import DEAD
from lmc.fsm.regex import compile_regex, parse
from tests.fsm.patterns import (
    CHARACTER,
    HAND_WRITTEN,
    JUDGE,
    LETTERS,
    NAMES,
    flagged_regexes,
    mutated,
    regexes,
    word_of,
)
from tests.searching import APART, search, some


def in_arrays(pattern: str) -> ArrayDFA:
    return ArrayDFA.of(compile_regex(pattern))


compiled = lru_cache(in_arrays)


def flags_of(pattern: str) -> int:
    return 0 if re.match(r"\(\?i?u\)", pattern) else re.ASCII


def words(pattern: str, n: int) -> list[str]:
    rng = random.Random(pattern)
    tree = parse(pattern)
    inside = [word_of(tree, rng) for _ in range(n)]
    near = [mutated(word, rng) for word in inside for _ in range(2)]
    return ["", *inside, *near, *("".join(rng.choices(LETTERS, k=rng.randint(1, 3))) for _ in range(n))]


def check_language(pattern: str, n: int) -> None:
    automaton, reference = compiled(pattern), re.compile(pattern, flags_of(pattern))
    for word in words(pattern, n):
        assert automaton.accepts(word.encode()) == bool(reference.fullmatch(word)), word


def random_text(automaton: ArrayDFA, rng: random.Random) -> bytes:
    """A text on random ways through the automaton, ended as soon as it may after a while."""
    state, out = 0, bytearray()
    while not (automaton.final[state] and (rng.random() < 0.2 or len(out) > 30)):
        ways = np.flatnonzero(automaton.table[state] >= 0)
        if not len(ways) or len(out) > 400:
            break
        out.append(rng.choice(ways.tolist()))
        state = automaton.table[state, out[-1]]
    return bytes(out) if automaton.final[state] else b""


def check_words_of_the_automaton(pattern: str, n: int) -> None:
    automaton, reference = compiled(pattern), re.compile(pattern, flags_of(pattern))
    rng = random.Random(pattern)
    for _ in range(n):
        text = random_text(automaton, rng)
        if text or automaton.final[0]:
            assert reference.fullmatch(text.decode()), text  # decodes: whole characters, no surrogates


def equivalent_states(automaton: ArrayDFA) -> int:
    """The number of classes of equivalent states, by the textbook's rounds."""
    block = np.unique(automaton.final, return_inverse=True)[1].reshape(-1)
    while True:
        after = np.append(block, -1)[automaton.table]
        _, refined = np.unique(np.column_stack([block, after]), axis=0, return_inverse=True)
        if refined.max() == block.max():
            return int(refined.max()) + 1
        block = refined.reshape(-1)


COUNTED = [
    r"(?u)\w{1,4}", r"(?u)[\w\s]{2,3}", r"(?u)x\w{2}é?", r"(?u)(\w{1,3} ){1,2}", r"(?u)\W{0,2}\d{3}", r"(?iu)[a-zé]{2,3}!",
    r"(?u)\w{1,3}|\w\s{2}", r"(?u)(é|\w\d){2,3}", ".{2,3}", "([^é]|éa){1,3}",
]  # fmt: skip


@some("pattern", [*HAND_WRITTEN, *COUNTED], 5)
def test_the_language_is_that_of_fullmatch_and_the_automaton_minimal(pattern):
    check_language(pattern, 25)
    check_words_of_the_automaton(pattern, 10)
    automaton = compiled(pattern)
    assert an_end_is_within_reach_of_every_state(automaton)
    assert automaton.states >= 100 or equivalent_states(automaton) == automaton.states, "not minimal"


def an_end_is_within_reach_of_every_state(automaton: ArrayDFA) -> bool:
    alive = automaton.final.copy()
    while True:
        grown = alive | np.append(alive, False)[automaton.table].any(axis=1)
        if (grown == alive).all():
            return bool(alive.all())
        alive = grown


@search(8, 400)
@given(regexes)
def test_any_regex_has_the_language_of_fullmatch_and_a_minimal_automaton(pattern):
    check_language(pattern, 6)
    check_words_of_the_automaton(pattern, 3)
    automaton = compiled(pattern)
    assert equivalent_states(automaton) == automaton.states


@search(15, 600)
@given(flagged_regexes)
def test_any_regex_with_classes_and_case_has_the_language_of_fullmatch(pattern):
    check_language(pattern, 6)
    check_words_of_the_automaton(pattern, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(a|b)*", "(a*b*)*"),
        ("abc|abd|ab", "ab[cd]?"),
        ("a{2,4}", "aaa?a?"),
        ("(?i)ab", "[aA][Bb]"),
        ("[^a]", r"[\x00-`b-\U0010ffff]"),
        ("x+x+", "xx+"),
    ],
)
def test_equal_languages_have_equal_tables(one, other):
    a, b = compile_regex(one), compile_regex(other)
    assert (a.deltas, a.rows, a.final) == (b.deltas, b.rows, b.final)


@pytest.mark.parametrize(
    ("pattern", "states"),
    [(r"[\w\s]{1,200}", 201), (NAMES, 26), (JUDGE, 33), ("[a-z]{1,2000}", 2001), ("世界(和平|大战)", 17), (".", 9),
     ("(a?){0,1000}", 1001), ("(a?){1000}", 1001), ("(?:|a){9,1000}", 1001)],
)
def test_sizes(pattern, states):
    assert compile_regex(pattern).states == states


@pytest.mark.parametrize(
    ("pattern", "states", "rows"),
    [(r"[\w\s]{1,200}", 201, 2), ("[0-9]{3}é{900}", 1804, 4)],
)
def test_counts_share_their_rows(pattern, states, rows):
    automaton = compile_regex(pattern)
    assert (automaton.states, len(automaton.deltas) // 256 - 1) == (states, rows)


@pytest.mark.parametrize("count", [50, 400])
def test_counted_unicode_words_have_the_rows_of_one_character(count):
    rows = compile_regex(r"(?u)\w").states  # how many they are depends on Python's version of Unicode
    automaton = compile_regex(rf"(?u)\w{{1,{count}}}")
    assert (automaton.states, len(automaton.deltas) // 256 - 1) == (count * (rows - 1) + 1, rows)


@pytest.mark.parametrize("pattern", [*COUNTED[::2], CHARACTER])
def test_a_table_and_the_rows_are_the_same_automaton(pattern):
    automaton = compiled(pattern)
    again = ArrayDFA.of_table(automaton.table, automaton.final)
    assert np.array_equal(again.table, automaton.table) and np.array_equal(again.rows, automaton.rows)
    sources, targets = automaton._edges
    pairs = {(s, int(t)) for s, row in enumerate(automaton.table) for t in row if t >= 0}
    assert pairs == set(zip(sources.tolist(), targets.tolist()))
    assert all(automaton.row(s).tolist() == row.tolist() for s, row in enumerate(automaton.table[:50]))


@pytest.mark.parametrize("pattern", [*COUNTED[::3], CHARACTER, JUDGE])
def test_one_state_at_a_time_says_what_the_arrays_say(pattern):
    one, many = compile_regex(pattern), compiled(pattern)
    for state in range(min(300, one.states)):
        legal = np.flatnonzero(many.table[state] >= 0)
        assert one.moves(state) == [(byte, int(many.table[state, byte])) for byte in legal.tolist()]
        assert one.is_singular(state) == many.is_singular(state) == bool(many.singular[state])
        assert one.forced(state) == many.forced(state)
    assert one.forced_share == pytest.approx(many.singular.mean())


@pytest.mark.parametrize("pattern", [*COUNTED, CHARACTER])
def test_states_of_one_window_allow_the_same_texts(pattern):
    automaton = compiled(pattern)
    exact = arrays.windows(automaton.table)
    for window in np.unique(automaton.window):
        assert len(set(exact[automaton.window == window].tolist())) == 1


def test_only_whole_characters_are_read():
    automaton = compile_regex(".")
    for bad in (
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xff",
        b"\x80",
    ):
        assert automaton.step(0, bad) == DEAD
    assert not automaton.accepts("世".encode()[:2])


def test_what_grows_too_large_is_refused(monkeypatch):
    for module in (dfa, regex):
        monkeypatch.setattr(module, "MAX_STATES", 500)
    with pytest.raises(ConstraintError, match="more than 500 states"):
        compile_regex("(a|b)*a(a|b){20}")
    with pytest.raises(ConstraintError, match="more than 500 states"):
        compile_regex("((((a{9}){9}){9}){9}){9}")


@pytest.mark.parametrize(
    "pattern, same",
    [
        (r"(a?){0,12}", r"a{0,12}"), (r"(a?){9,12}", r"a{0,12}"), (r"(a*){12}b", r"a*b"), (r"(?:|a){11}", r"a{0,11}"),
        (r"(a?b?){0,9}", r"(ab|a|b){0,9}"), (r"(a?b?c?){9}", r"(abc|ab|ac|bc|a|b|c){0,9}"), (r"(a?|b*){9,10}", r"(a|b+){0,10}"),
        (r"(a{0,2}){0,9}", r"a{0,18}"), (r"(a?b){9}", r"(ab|b){9}"),
    ],
)  # fmt: skip
def test_a_repeat_of_what_may_be_empty_is_one_of_what_is_not(pattern, same):
    assert np.array_equal(in_arrays(pattern).table, in_arrays(same).table)


@pytest.mark.parametrize("pattern", [pytest.param(r"(a*){0,9999}", marks=APART), pytest.param(r"(a?b?c?d?e?){0,3000}", marks=APART), r".*a.{0,3000}"])
def test_what_would_take_for_ever_is_refused(pattern, monkeypatch):
    monkeypatch.setattr("lmc.fsm.dfa.MAX_STATES", 5_000)
    with pytest.raises(ConstraintError, match="too large an automaton"):
        compile_regex(pattern)
