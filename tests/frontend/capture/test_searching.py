"""Searches with regular expressions in an evaluation: they find what `re` finds, end whatever the pattern, and warn of nothing."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

import lmc
from lmc.frontend.capture import searching
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


PROSE = (
    "Thought: I should look up the weather in Paris first.\nAction: search[weather in Paris, France]\nObservation: 12 °C, wind: 3 m/s; see "
    "https://example.org/a?b=1 .\n"
    * 20
)
CODE = "Here is the code:\n```python\n" + "def f(x):\n    return [y ** 2 for y in range(x)]  # squares\n" * 60 + "```\nIt prints 42.\n"
XML = "<answer><thought>" + "I think so. " * 100 + "</thought><score>7</score><label>good</label></answer>"
USUAL = [
    (r"(\w+)\[(.*)\]", PROSE), (r"Action:\s*(\w+)\[(.*?)\]", PROSE), (r"Action:\s*(.*?)\n+Observation:\s*(.*)", PROSE), (r"^\s*(\d+)[.)]\s+(.*)$", PROSE),
    (r"\d+", PROSE),
    (r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", PROSE), (r"(?<=[.!?])\s+", PROSE), (r"\b[A-Z][a-z]+\b", PROSE), (r"https?://[^\s]+", PROSE), (r"\s*[,;]\s*", PROSE),
    (r"(\w+)\s*:\s*(.*)", PROSE),
    (r"[\w.+-]+@[\w-]+\.[\w.-]+", PROSE), (r"```(?:\w+)?\n(.*?)```", CODE), (r"```python\s*(.*?)\s*```", CODE), (r"\{.*\}", CODE), (r"\((.*?)\)", CODE),
    (r"(?i)answer\s*(?:is|:)\s*(yes|no|maybe)", PROSE),
    (r"<thought>(.*?)</thought>.*?<score>(\d+)</score>.*?<label>(.*?)</label>", XML), (r"<(\w+)>(.*?)</\1>", XML), (r'"(?:[^"\\]|\\.)*"', CODE),
    (r"(?:\d{1,3},)*\d{1,3}", PROSE), (r"\n\n+", CODE),
    (r"(?P<day>\d{4}-\d{2}-\d{2})T?(?P<time>\d{2}:\d{2})?", PROSE), (r"[^\w\s]", PROSE), (r"^(yes|no)\b", "yes, of course"), (r"\W+", PROSE),
]  # fmt: skip



def test_short_searches_need_no_matcher_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes longer to load than they take."""
    monkeypatch.setattr(searching, "_interruptible", None)
    assert search(re.sub, "sub", [r"^\d+\.\s*", "", "1. a step"], {}) == "a step"
    assert search(re.fullmatch, "fullmatch", [r"\d{4}-\d\d-\d\d", "2024-01-11"], {}).span() == (0, 10)
    assert search(re.findall, "findall", [r"\w+", "so " * 100], {}) == ["so"] * 100


@some(("usual", "flags"), product(USUAL, (0, re.DOTALL, re.MULTILINE | re.IGNORECASE, re.ASCII)), 3)
def test_what_people_write_finds_what_re_finds(usual: tuple[str, str], flags: int) -> None:
    pattern, text = usual
    spans = lambda found: [(m.span(), m.groups(), m.groupdict()) for m in found]
    for how in ("findall", "split"):
        assert search(getattr(re, how), how, [pattern, text], {"flags": flags}) == getattr(re, how)(pattern, text, flags=flags)
    assert spans(search(re.finditer, "finditer", [pattern, text, flags], {})) == spans(re.finditer(pattern, text, flags))
    assert search(re.compile(pattern, flags).sub, "sub", [r"<\g<0>>", text], {"count": 3}) == re.compile(pattern, flags).sub(r"<\g<0>>", text, count=3)
    ours, own = (f and (f.span(), f.groups()) for f in (search(re.search, "search", [pattern, text, flags], {}), re.search(pattern, text, flags)))
    assert ours == own


def test_a_buffer_is_as_long_as_its_bytes() -> None:
    """It once had no length, and was searched with `re`: then this test would not end."""
    with suppress(Undecided):
        assert search(re.search, "search", [b"a?" * 60 + b"a" * 60 + b"b", bytearray(b"a" * 60)], {}) is None


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
        ("search", ["a{i<2}", "a"]),
        ("sub", ["a", "b", "a", 1]),
        ("compile", ["[a--b]"]),
        ("match", ["(?:a{500}){500}", "a"]),
        ("sub", ["a", r"\q", "a"]),
    ],
)
def test_what_means_something_else_or_warns_is_unknown(how: str, given: list[Any]) -> None:
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
