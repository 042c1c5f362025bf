"""Arguments of a request, read where it is written: lists that change before and after, and what no run could accept."""

from __future__ import annotations

import dataclasses
import functools
import json
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


@case(LISTS)
def changed_before_the_interpreter_goes_on(s: Any, q: str, xs: list[str]) -> Any:
    s += q + lmc.gen("x", max_tokens=9, stop=xs)
    xs.append("a")
    return s["x"], id(s["x"]) * 0


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


@case(**OUTSIDE)
def list_of_the_outside_then_left(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=9, stop=STEPS)
    outside.add_step("a")
    return s["x"], id(s["x"]) * 0


@case(**OUTSIDE)
def choices_of_the_outside_then_left(s: Any, q: str) -> Any:
    s += q + lmc.select("x", choices=STEPS)
    outside.drop("one")
    return s["x"], id(s["x"]) * 0


@case()
def own_containers(s: Any, q: str) -> Any:
    stops: Any = {"z", "e"}
    ask = lmc.gen("x", max_tokens=9, stop=stops)
    s += q + ask
    stops.add("a")
    s += q + ask
    stops = ["u"]
    ask = lmc.gen("x", max_tokens=9, stop=stops)
    stops.append(s["x"][:1] or "e")
    s += q + ask
    return s["x"]


@case([{"q": q, "schema": {"type": "string"}, "bias": {1: 2}} for q in "ab"])
def dicts_given(s: Any, q: str, schema: Any, bias: Any) -> Any:
    first, second = lmc.gen("x", max_tokens=9, json_schema=schema), lmc.gen("y", max_tokens=9, logit_bias=bias)
    schema["enum"] = ["a"]
    s += q + first
    bias[3] = 4
    s += second
    schema.clear()
    return s["x"], s["y"], id(s["x"]) * 0


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


def spoil(xs: list[Any], x: Any) -> None:
    xs.append(x)


@case(GIVEN)
def spoilt_by_an_own_object_that_raises(s: Any, q: str, xs: list[Any]) -> Any:
    s += q + lmc.gen("x", max_tokens=9, stop=xs)
    record = Rows(xs)
    record.add(0)
    return record.shown


@case(GIVEN)
def spoilt_by_host_code_and_left(s: Any, q: str, xs: list[Any]) -> Any:
    s += q + lmc.gen("x", max_tokens=9, stop=xs)
    spoil(xs, 0)
    return s["x"], opaque(q) * 0


@case(GIVEN)
def grown_and_left_unread(s: Any, q: str, xs: list[Any]) -> Any:
    s += q + lmc.gen("x", max_tokens=9, stop=xs)
    xs.append("a")
    return opaque(q) * 0


@case(GIVEN)
def grown_between_asks_and_left(s: Any, q: str, xs: list[Any]) -> Any:
    forks = s.fork(3)
    for f in forks:
        f += q + lmc.gen("x", max_tokens=9, stop=xs)
        xs.append("aeiou"[len(xs)])
    return "".join(f["x"] for f in forks), opaque(q) * 0


@case(GIVEN)
def written_before_it_is_asked(s: Any, q: str, xs: list[Any]) -> Any:
    ask = lmc.gen("x", max_tokens=9, stop=xs)
    effect("between", q)
    xs[:] = ["a"]
    s += q + ask
    xs[:] = ["e"]
    s += ask
    return s["x"]


@case(GIVEN)
def written_and_never_asked(s: Any, q: str, xs: list[Any]) -> Any:
    lmc.gen("x", max_tokens=9, stop=xs)
    effect("after", q)
    return q


@case(GIVEN)
def asked_and_never_read(s: Any, q: str, xs: list[Any]) -> Any:
    (fork,) = s.fork(1)
    fork += lmc.gen("x", max_tokens=9, stop=xs)
    return q


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
def by_position(s: Any, q: str, xs: list[Any]) -> Any:
    s += q + lmc.gen("x", 9, None, None, xs) + lmc.gen_string("y", 9, None, xs)
    xs.append(0)
    return s["x"], opaque(q) * 0


@case(GIVEN)
def through_a_partial(s: Any, q: str, xs: list[Any]) -> Any:
    ask = functools.partial(lmc.gen, stop=xs, max_tokens=9)
    s += q + ask("x") + ask("y")
    xs.append(0)
    return opaque(q) * 0


@case(GIVEN)
def by_keywords_of_a_dict(s: Any, q: str, xs: list[Any]) -> Any:
    options = {"stop": xs, "max_tokens": 9}
    s += q + lmc.gen("x", **options) + lmc.gen("y", **options)
    xs.append(0)
    return opaque(q) * 0


@case(GIVEN)
def in_a_helper_and_a_sub_program(s: Any, q: str, xs: list[Any]) -> Any:
    asks = list(map(lambda stops: lmc.gen("x", max_tokens=9, stop=stops), [xs, [q, *xs]]))
    below = asking(xs)
    for ask in asks:
        s += q + ask
    xs.append(0)
    return below["c"], opaque(q) * 0


@lmc.function
def asking(s: Any, xs: list[Any]) -> None:
    s += "a" + lmc.gen("c", max_tokens=9, stop=xs)
    xs.append("e")


@case(GIVEN)
def in_messages(s: Any, q: str, xs: list[Any]) -> Any:
    with s.user():
        s += q
    s.assistant(lmc.gen("x", max_tokens=9, stop=xs) + lmc.gen("y", max_tokens=9, stop_regex=xs))
    xs.append(0)
    return opaque(q) * 0


@case(GIVEN)
def choices_given(s: Any, q: str, xs: list[Any]) -> Any:
    one, other = lmc.select("x", choices=xs), lmc.gen("y", choices=[q, *xs])
    xs.append(0)
    effect("between", q)
    s += q + one + other
    return s["x"], s["y"], opaque(q) * 0


@case([{"q": q, "x": x} for q, x in (("a", "z"), ("b", 2), ("c", None))])
def choices_of_a_value(s: Any, q: str, x: Any) -> Any:
    ask = lmc.select("x", ["e", json.loads(json.dumps(x))])
    effect("between", q)
    s += q + ask
    return s["x"]


@case(NUMBERS)
def number_of_tokens(s: Any, q: str, n: Any) -> Any:
    ask = lmc.gen("x", max_tokens=n, min_tokens=2)
    effect("between", q)
    s += q + ask
    return s["x"]


@case(NUMBERS)
def number_that_nobody_reads(s: Any, q: str, n: Any) -> Any:
    (fork,) = s.fork(1)
    fork += lmc.gen("x", max_tokens=n)
    return q


@case(NUMBERS)
def number_that_is_handled(s: Any, q: str, n: Any) -> Any:
    try:
        s += q + lmc.gen("x", max_tokens=n)
    except lmc.LmcError as error:
        effect("refused", str(error).splitlines()[0], q)
    return "x" in s


@case(NUMBERS)
def ways_to_choose(s: Any, q: str, n: Any) -> Any:
    ask = lmc.select("x", ["a", "e"], temperature=n)
    effect("between", q)
    s += q + ask + lmc.select("y", ["a", "e"], choices_method=n if n == "many" else "greedy_token_selection")
    return s["x"]


@case([{"q": q, "told": told} for q, told in (("a", [TOLD]), ("b", [3]), ("c", [TOLD, TOLD_AGAIN]))])
def tools_given(s: Any, q: str, told: list[Any]) -> Any:
    ask = lmc.gen("x", max_tokens=9, tools=told)
    told.append(TOLD)
    effect("between", q)
    s += q + ask
    return s["x"], opaque(q) * 0


@case([{"q": "a", "schema": {"type": "string"}, "bias": {1: 2}}, {"q": "b", "schema": [1], "bias": {1: 2}}, {"q": "c", "schema": {}, "bias": {"u": 2}}])
def dicts_that_are_spoilt(s: Any, q: str, schema: Any, bias: Any) -> Any:
    s += q + lmc.gen("x", max_tokens=9, json_schema=schema) + lmc.gen("y", max_tokens=9, logit_bias=bias)
    schema["type"] = bias["u"] = 3
    return opaque(q) * 0
