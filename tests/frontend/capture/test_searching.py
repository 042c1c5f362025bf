"""Searches with regular expressions in an evaluation: they are made where they are quick whatever the pattern, and warn of nothing."""

from __future__ import annotations

import re
import warnings
from itertools import product
from typing import Any

import pytest

import lmc
from lmc.frontend.capture.searching import search
from lmc.frontend.capture.unknown import Raised, Undecided, Unknown
from tests.frontend.capture.recording import evaluate
from tests.searching import some

pytestmark = pytest.mark.unit

CATASTROPHES = [
    r"(a|a)*b", r"(a+)+b", r"(a|aa)+$b", r"(?:a*)*b", r"(?:\w+\s*)+:", r"(?:a?){60}b", r"(x+x+)+y|(?:a+a+)+b", r"(?:(?:a+)?)+b", r"(?i)(?:A|aa)+B",
    r"^(?:a+)*$(?<=b)", r"(?=(a+)+b)", r"(?:(?:(?=a)){0,3}a)+b", "(?x:(a+) # again\n +b)", r"(?x)(a|a) *b", "a?" * 60 + "a" * 60 + "b", "a*" * 20 + "b",
    "(a|a)" * 50 + "b",
]  # fmt: skip


@some(("pattern", "how"), product(CATASTROPHES, ("match", "search", "fullmatch")), 4)
def test_what_may_take_for_ever_ends(pattern: str, how: str) -> None:
    """With `re`, this test would not end."""
    try:
        found = search(getattr(re, how), how, [pattern, "a" * 60], {})
    except Undecided:
        return
    assert found is None


USUAL = [
    (r"(\w+)\[(.*?)\]", "Action: search[tea]"), (r"^\s*(\d+)[.)]\s+(.*)$", "12. a"), (r"\d+", "Score: 7 of 10, " * 50), (r"(?<=[.!?])\s+", "One. Two? " * 12),
    (r"\b[A-Z][a-z]+\b", "In Paris and Rome " * 30), (r"\s*[,;]\s*", "a , b;c, d" * 15), (r"(\w+)\s*:\s*(.*)", "a : b"), (r"\{.*\}", '{"a": 1} ' * 20),
    (r"<(\w+)>(.*?)</\1>", "<a>x</a> <b>"), (r"\n\n+", "one\n\n\ntwo" * 60), (r"[^\w\s]", "a, b. c!" * 100), (r"^(yes|no)\b", "yes, of course"),
    (r"(?P<name>\w+)?!", "so!"), (r"\W+", "a, b" * 100),
]  # fmt: skip


@some(("usual", "flags"), product(USUAL, (0, re.DOTALL, re.MULTILINE | re.IGNORECASE, re.ASCII)), 6)
def test_what_people_write_is_searched_by_re(usual: tuple[str, str], flags: int) -> None:
    pattern, text = usual
    spans = lambda found: [(m.span(), m.groups(), m.groupdict()) for m in found]
    for how in ("findall", "split"):
        assert search(getattr(re, how), how, [pattern, text], {"flags": flags}) == getattr(re, how)(pattern, text, flags=flags)
    assert spans(search(re.finditer, "finditer", [pattern, text, flags], {})) == spans(re.finditer(pattern, text, flags))
    assert search(re.compile(pattern, flags).sub, "sub", ["#", text], {"count": 3}) == re.compile(pattern, flags).sub("#", text, count=3)
    assert (found := search(re.search, "search", [pattern, text, flags], {})) is None or found.span() == re.search(pattern, text, flags).span()


@pytest.mark.parametrize("size, is_quick", [(3000, True), (4000, False)])
def test_how_long_a_text_may_be_depends_on_the_choices_of_the_pattern(size: int, is_quick: bool) -> None:
    find = lambda: search(re.findall, "findall", [r"\w+", "a" * size], {})
    if is_quick:
        assert find() == ["a" * size]
    else:
        with pytest.raises(Undecided):
            find()


def test_bytes_and_mistakes() -> None:
    assert search(re.findall, "findall", [rb"\w+", b"ab \xff cd"], {}) == [b"ab", b"cd"]
    for given in (["("], ["a", "b", "c", "d", "e"], []):
        with pytest.raises(Raised) as raised:
            search(re.compile if given == ["("] else re.search, "compile" if given == ["("] else "search", given, {})
        assert isinstance(raised.value.value, (re.error, TypeError))


@pytest.mark.parametrize(
    "how, given",
    [
        ("search", ["[[a]]", "a"]),
        ("sub", ["a", "b", "a", 1]),
        ("compile", ["[a--b]"]),
        ("match", ["(?:a{500}){500}", "a"]),
        ("sub", ["a", r"\q", "a"]),
    ],
)
def test_what_warns_or_fails_or_repeats_too_much_is_unknown(how: str, given: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Undecided):
            search(getattr(re, how), how, given, {})


# -- in an evaluation --------------------------------------------------------------------------------------------------


@lmc.function
def searches(s: Any, how: str) -> Any:
    s += "x" + lmc.gen("a", max_tokens=3)
    if how == "function":
        found = re.match("(a|aa)+$", "a" * 60 + "b")
    elif how == "method":
        found = re.compile("(a|aa)+$").match("a" * 60 + "b")
    elif how == "grows":
        found = ("a" * 10_000).replace("a", "b" * 1_000_000)
    else:
        found = re.findall(r"(\w+)=(\w+)", "a=1, b=2")
    s += f"{found}" + lmc.gen("b", max_tokens=3)
    return found


@pytest.mark.parametrize("how", ("function", "method"))
def test_an_evaluation_leaves_a_search_alone_that_may_not_end(how: str) -> None:
    """A worker of `lmc serve` once hung before its program began: it asked ahead, and met this."""
    asked, outcome = evaluate(searches, how=how)
    assert isinstance(outcome.value, Unknown)
    assert [each.prompt for each in asked] == ["x", None]


def test_an_evaluation_stops_where_more_would_take_long() -> None:
    asked, outcome = evaluate(searches, how="grows")
    assert outcome.reason.endswith("too large") and [each.prompt for each in asked] == ["x"]


def test_an_evaluation_searches_where_that_is_quick() -> None:
    _, outcome = evaluate(searches, how="quick")
    assert outcome.value == [("a", "1"), ("b", "2")]


@lmc.function
def matches(s: Any) -> Any:
    found = re.match(r"(?P<a>\w)(\w)?", "x")
    s += f"{found['a']} {found.group(2, 1)} {found.groupdict()} {found.span()} {isinstance(found, re.Match)}" + lmc.gen("b", max_tokens=3)
    return [m.start() for m in re.finditer("a", "bab")]


def test_a_match_is_what_it_is_in_python() -> None:
    asked, outcome = evaluate(matches)
    assert [each.prompt for each in asked] == ["x (None, 'x') {'a': 'x'} (0, 1) True"] and outcome.value == [1]
