"""The bound on what a regular expression costs: above what a matcher by the book needs, and low for what people write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lmc
from lmc.frontend.capture.backtracking import MOST_WORK, work
from lmc.frontend.capture.values import Unknown
from tests.searching import search

from .recording import evaluate

pytestmark = pytest.mark.unit

CATASTROPHES = [
    r"(a|a)*b", r"(a+)+b", r"(a|aa)+$b", r"(?:a*)*b", r"(?:\w+\s*)+:", r"(?:a?){60}b", r"(x+x+)+y|(?:a+a+)+b", r"(?:(?:a+)?)+b", r"(?i)(?:A|aa)+B", r"^(?:a+)*$(?<=b)", r"(?=(a+)+b)", r"(?:(?:(?=a)){0,3}a)+b",
]  # fmt: skip


@pytest.mark.parametrize("pattern", CATASTROPHES)
@pytest.mark.parametrize("how", ("match", "search", "fullmatch"))
def test_what_may_take_for_ever_is_seen(pattern: str, how: str) -> None:
    assert work(pattern, 0, "a" * 60, how) > 1e9


PROSE = "Thought: I should look up the weather in Paris first.\nAction: search[weather in Paris, France]\nObservation: 12 °C, wind: 3 m/s; see https://example.org/a?b=1 .\n" * 20
CODE = "Here is the code:\n```python\n" + "def f(x):\n    return [y ** 2 for y in range(x)]  # squares\n" * 60 + "```\nIt prints 42.\n"
XML = "<answer><thought>" + "I think so. " * 100 + "</thought><score>7</score><label>good</label></answer>"
USUAL = [
    (r"(\w+)\[(.*)\]", PROSE), (r"Action:\s*(\w+)\[(.*?)\]", PROSE), (r"Action:\s*(.*?)\n+Observation:\s*(.*)", PROSE), (r"^\s*(\d+)[.)]\s+(.*)$", PROSE), (r"\d+", PROSE),
    (r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", PROSE), (r"(?<=[.!?])\s+", PROSE), (r"\b[A-Z][a-z]+\b", PROSE), (r"https?://[^\s]+", PROSE), (r"\s*[,;]\s*", PROSE), (r"(\w+)\s*:\s*(.*)", PROSE),
    (r"[\w.+-]+@[\w-]+\.[\w.-]+", PROSE), (r"```(?:\w+)?\n(.*?)```", CODE), (r"```python\s*(.*?)\s*```", CODE), (r"\{.*\}", CODE), (r"\((.*?)\)", CODE), (r"(?i)answer\s*(?:is|:)\s*(yes|no|maybe)", PROSE),
    (r"<thought>(.*?)</thought>.*?<score>(\d+)</score>.*?<label>(.*?)</label>", XML), (r"<(\w+)>(.*?)</\1>", XML), (r'"(?:[^"\\]|\\.)*"', CODE), (r"(?:\d{1,3},)*\d{1,3}", PROSE), (r"\n\n+", CODE),
    (r"(?P<day>\d{4}-\d{2}-\d{2})T?(?P<time>\d{2}:\d{2})?", PROSE), (r"[^\w\s]", PROSE), (r"^(yes|no)\b", "yes, of course"), (r"\W+", PROSE),
]  # fmt: skip


@pytest.mark.parametrize("pattern, text", USUAL)
@pytest.mark.parametrize("flags", (0, re.DOTALL, re.MULTILINE | re.IGNORECASE))
def test_what_people_write_is_quick(pattern: str, text: str, flags: int) -> None:
    assert work(pattern, flags, text, "findall") <= MOST_WORK


def test_bytes_flags_and_mistakes() -> None:
    assert work(rb"(?:\w+\s)+", 0, b"ab " * 20, "match") < 1e4 < work(rb"(?:\w+\s?)+!", 0, b"ab " * 20, "match")
    assert work(r".*\n", re.DOTALL, "x\n" * 9, "match") > work(r".*\n", 0, "x\n" * 9, "match")
    with pytest.raises(KeyError):  # flags of a group: not bounded
        work(r"(?s:.)*\n", 0, "x", "match")
    with pytest.raises(re.error):
        work("(", 0, "", "match")


# -- against a matcher by the book ----------------------------------------------------------------------------------------


Tree = Any  # a character class, or (kind, …)


def merged(tree: Tree) -> Tree:
    """The same as `re` reads it: arms that are one class each are one class together."""
    match tree:
        case ("seq", *parts):
            parts = [*map(merged, parts)]
            return parts[0] if len(parts) == 1 else ("seq", *parts)
        case ("or", *arms):
            arms = [*map(merged, arms)]
            return "".join(arms) if all(isinstance(arm, str) for arm in arms) else ("or", *arms)
        case ("repeat", body, *rest):
            return ("repeat", merged(body), *rest)
        case _:
            return tree


def written(tree: Tree) -> str:
    match tree:
        case ("seq", *parts):
            return "".join(map(written, parts))
        case ("or", *arms):
            return f"(?:{'|'.join(map(written, arms))})"
        case ("repeat", body, low, high, lazy):
            return f"(?:{written(body)}){{{low},{'' if high is None else high}}}{'?' if lazy else ''}"
        case _:
            return f"[{tree}]"


class TooLong(Exception):
    pass


def steps(tree: Tree, text: str, full: bool) -> int:
    """Characters and choices that are looked at until it matches, or cannot."""
    count = 0

    def run(node: Tree, at: int, then: Callable[[int], bool]) -> bool:
        nonlocal count
        count += 1
        if count > 200_000:
            raise TooLong
        match node:
            case ("seq", *parts):
                def following(i: int, at: int) -> bool:
                    return then(at) if i == len(parts) else run(parts[i], at, lambda end: following(i + 1, end))

                return following(0, at)
            case ("or", *arms):
                return any(run(arm, at, then) for arm in arms)
            case ("repeat", body, low, high, lazy):
                def iterate(done: int, at: int) -> bool:
                    again = lambda: (high is None or done < high) and run(body, at, lambda end: (end > at or done < low) and iterate(done + 1, end))
                    out = lambda: done >= low and then(at)
                    return out() or again() if lazy and done >= low else again() or out()

                return iterate(0, at)
            case _:
                return at < len(text) and text[at] in node and then(at + 1)

    run(tree, 0, lambda end: not full or end == len(text))
    return count


CLASSES = st.sampled_from(["a", "b", "c", "ab", "bc", "abc"])
TREES = st.recursive(
    CLASSES,
    lambda inner: st.one_of(
        st.builds(lambda parts: ("seq", *parts), st.lists(inner, min_size=0, max_size=3)),
        st.builds(lambda arms: ("or", *arms), st.lists(inner, min_size=2, max_size=3)),
        st.builds(lambda body, low, more, lazy: ("repeat", body, low, None if more is None else low + more, lazy), inner, st.integers(0, 2), st.sampled_from([None, None, 0, 1, 3]), st.booleans()),
    ),
    max_leaves=7,
)


@search(40, 300)
@example(("repeat", ("repeat", ("seq",), 0, None, False), 0, 0, False), "", False)
@given(TREES, st.text("abc", max_size=10), st.booleans())
def test_the_bound_holds(tree: Tree, text: str, full: bool) -> None:
    bound = work(written(tree), 0, text, "fullmatch" if full else "match")
    try:
        found = steps(merged(tree), text, full)
    except (TooLong, RecursionError):
        found = 200_000
    assert found <= 100 * (bound + 1)  # a step of the bound is one of `re`, which looks at several nodes in it


# -- an evaluation -----------------------------------------------------------------------------------------------------


@lmc.function
def searches(s: Any, how: str) -> Any:
    s += "x" + lmc.gen("a", max_tokens=3)
    if how == "function":
        found = re.match("(a|a)*b", "a" * 60)
    elif how == "method":
        found = re.compile("(a|a)*b").search("a" * 60)
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
