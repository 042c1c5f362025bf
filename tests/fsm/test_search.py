"""Searching by automata finds what `re` finds, where it finds it, and no pattern takes it long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.errors import ConstraintError
from lmc.fsm.search import finder, searcher
from tests.searching import search

PATTERNS = (
    "a",
    "ab|b",
    "[0-9]{2}",
    r"\w+\s",
    "(a|ab)c",
    "(?i:END)",
    "世+界",
    "[^a]b",
    "a.b",
    r"\n\n",
    "(aa|a)+b",
    "(?i)end",
    "(?x) a b # c",
    r"(?a)\w\s",
    "(?s)a.b",
    "(?x)(?i)E N",
)


@search(24, 200)
@given(st.sampled_from(PATTERNS), st.lists(st.text("ab01 c\nENDend世界é", max_size=4), max_size=6))
def test_it_finds_what_re_finds(pattern, pieces):
    found, state, text = searcher(pattern), 0, ""
    for piece in pieces:
        text += piece
        state = found.read(state, piece)
        expected = re.search(pattern, text)
        assert found.found(state) == (expected is not None)
        assert found.start(text) == (None if expected is None else expected.start())


def test_no_pattern_takes_it_long():
    found, text = searcher("(a+)+b|c"), "a" * 20_000
    before = time.process_time()
    assert not found.found(found.read(0, text))
    assert found.start(text + "c") == 20_000
    assert time.process_time() - before < 5, "re would need 2**20000 steps"


@pytest.mark.parametrize("pattern", ["a*", "", "^a", "a$", r"\bx", "(?=a)b", r"(a)\1", "(", "a)(?:b"])
def test_what_it_cannot_search_for_is_refused(pattern):
    with pytest.raises(ConstraintError):
        searcher(pattern)


def test_what_automata_cannot_search_for_is_left_to_a_matcher_that_gives_up():
    assert finder(r"^b|(?<=a)c")("xxac") == 3 and finder("a*")("bb") is None
    with pytest.raises(ConstraintError, match=r"stop_regex.*took longer than 0.2 s"):
        finder("^(?:a|aa)+$")("a" * 200 + "b")
