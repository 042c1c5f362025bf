"""Arguments of a request, read where it is written: lists that change before and after, and what no run could accept."""

from __future__ import annotations

import dataclasses
from typing import Any

import lmc
from tests.conformance import outside
from tests.conformance.harness import case, effect, opaque
from tests.conformance.outside import STEPS

OUTSIDE = {"reset": outside.reset, "outside": outside.look, "batch": False}  # items of a batch would share it
LISTS = [{"q": q, "xs": ["z"]} for q in "abc"]


@case(LISTS)
def changed_before_it_is_asked(s: Any, q: str, xs: list[str]) -> Any:
    ask = lmc.gen("x", max_tokens=9, stop=xs)
    xs.append("a")
    s += q + ask
    return s["x"]


@case(LISTS, temperature=0)
def changed_between_equal_asks(s: Any, q: str, xs: list[str]) -> Any:
    s += q
    a, b = s.fork(2)
    a += lmc.gen("x", max_tokens=9, stop=xs)
    xs.append("a")
    b += lmc.gen("x", max_tokens=9, stop=xs)
    return a["x"], b["x"]


@case(**OUTSIDE, journal=False)
def list_of_the_outside(s: Any, q: str) -> Any:
    s += q + lmc.gen("w", max_tokens=9, stop=STEPS)
    outside.add_step("e")
    s += lmc.gen("x", max_tokens=9, stop=STEPS)
    outside.add_step("a")
    s += lmc.gen("y", max_tokens=9, stop=STEPS)
    return s["x"]


@case([{"q": q, "options": {"max_tokens": 9, "stop": [stop]}} for q, stop in (("a", "z"), ("b", 1))])
def by_keywords_of_an_argument(s: Any, q: str, options: dict[str, Any]) -> Any:
    ask = lmc.gen("x", **options)
    options["stop"].append("e")
    effect("between", q)
    s += q + ask
    options["stop"].append(0)
    return s["x"], opaque(q) * 0


@case([{"q": "a", "regex": "[ab]+"}, {"q": "b", "regex": None}, {"q": "c", "regex": "("}])
def two_constraints(s: Any, q: str, regex: str | None) -> Any:
    s += q + lmc.gen("x", max_tokens=3, dtype=int if q == "b" else None, regex=regex)
    ask = lmc.gen("x", max_tokens=3, dtype=int, regex=regex)
    effect("between", q)
    s += ask
    return s["x"]


TOLD = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


TOLD_AGAIN = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


NUMBERS = [{"q": q, "n": n} for q, n in (("a", 3), ("b", -5), ("c", "many"))]
"""The last two are no number of tokens, temperature or way to choose."""


GIVEN: list[dict[str, Any]] = [{"q": "a", "xs": ["z"]}, {"q": "b", "xs": [1]}, {"q": "c", "xs": ["z", "e"]}]
"""The list of the second one is no list of texts."""


@dataclasses.dataclass
class Rows:
    rows: list[Any]

    def add(self, x: Any) -> None:
        self.rows.append(x)


@case(GIVEN)
def spoilt_by_an_own_object_that_raises(s: Any, q: str, xs: list[Any]) -> Any:
    s += q + lmc.gen("x", max_tokens=9, stop=xs)
    record = Rows(xs)
    record.add(0)
    return record.shown


@case(GIVEN)
def refused_and_handled(s: Any, q: str, xs: list[Any]) -> Any:
    try:
        s += q + lmc.gen("x", max_tokens=9, stop=xs)
    except lmc.LmcError as error:
        effect("refused", str(error).splitlines()[0], q)
        xs[:] = ["a"]
        s += q + lmc.gen("x", max_tokens=9, stop=xs)
    return s["x"]


@case(GIVEN)
def choices_given(s: Any, q: str, xs: list[Any]) -> Any:
    one, other = lmc.select("x", choices=xs), lmc.gen("y", choices=[q, *xs])
    xs.append(0)
    effect("between", q)
    s += q + one + other
    return s["x"], s["y"], opaque(q) * 0


@case(NUMBERS)
def number_of_tokens(s: Any, q: str, n: Any) -> Any:
    ask = lmc.gen("x", max_tokens=n, min_tokens=2)
    effect("between", q)
    s += q + ask
    return s["x"]


@case([{"q": q, "told": told} for q, told in (("a", [TOLD]), ("b", [3]), ("c", [TOLD, TOLD_AGAIN]))])
def tools_given(s: Any, q: str, told: list[Any]) -> Any:
    ask = lmc.gen("x", max_tokens=9, tools=told)
    told.append(TOLD)
    effect("between", q)
    s += q + ask
    return s["x"], opaque(q) * 0
