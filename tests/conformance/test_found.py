"""Programs as users write them that once meant something else when they were compiled, or were not compiled without need."""

from __future__ import annotations

import datetime
import operator
import string
from decimal import Decimal
from typing import Any

import pytest

from lmc import gen

from .harness import Case, case, cases, effect, leave, scripted

ITEMS = [{"q": q} for q in ("a", "bee gee", "c", "d")]  # answers that sort in several orders


def size(xs: list[Any]) -> int:
    effect("size", xs)
    return len(xs)


def weight(x: str) -> str:
    effect("weight", x)
    return x


@case(ITEMS)
def sorted_by_a_tool_then_left(s, q):
    s += q + gen("x", max_tokens=4)
    found = sorted([s["x"], "n", "c"], key=lambda w: weight(w))
    s += str(size(found))
    leave(s)


@case(ITEMS)
def sorted_by_a_tool_then_raises(s, q):
    s += q + gen("x", max_tokens=4)
    found = sorted([s["x"], "n", "c"], key=lambda w: weight(w))
    size(found)
    found += missing  # type: ignore[name-defined]  # noqa: F821


@case(ITEMS)
def sorted_in_place_by_a_tool_then_left(s, q):
    s += q + gen("x", max_tokens=4)
    found = [s["x"], "n", "c"]
    found.sort(key=lambda w: weight(w))
    s += str(size(found))
    leave(s)


@case(ITEMS)
def lists_of_calls_then_left(s, q):
    s += q + gen("x", max_tokens=4)
    found = [list(weight(w) for w in (s["x"], "n")), list(map(weight, (s["x"], "c"))), set(weight(w) for w in (s["x"], "c"))]
    s += str([size(sorted(one)) for one in found])
    leave(s)


@case(replays=0, backend=scripted(x="$name is $$5"))
def keyword_arguments_of_any_name(s, q):
    s += q + gen("x")
    s += string.Template(s["x"]).safe_substitute(name=q, fn="f", owner="o")
    s += "{name} {fn} {owner} {error}".format(name=s["x"], fn=q, owner=1, error=2)
    s += str(dict(name=s["x"], fn=q, owner=size([s["x"]])))


@case(replays=0, backend=scripted(x="2024-02-28"))
def class_methods_of_builtin_types(s, q):
    s += q + gen("x")
    day = datetime.date.fromisoformat(s["x"])
    s += f"{day:%d.%m.}" + str(int.from_bytes(s["x"].encode()[:2], "big")) + str(dict.fromkeys(s["x"][:2])) + str(Decimal.from_float(float(s["x"][:4])))
    if day > datetime.date(2024, 1, 1):
        s += gen("late")


@case(replays=0, backend=scripted(x="b=2;a=1"))
def getters_that_the_program_makes(s, q):
    s += q + gen("x")
    pairs = [p.split("=") for p in s["x"].split(";")]
    s += str(sorted(pairs, key=operator.itemgetter(1))) + str(sorted(pairs, key=operator.itemgetter(0), reverse=True))
    upper, ends = operator.methodcaller("upper"), operator.itemgetter(0, -1)
    s += upper(s["x"]) + "".join(ends(s["x"])) + operator.attrgetter("real.imag")(len(s["x"])).__str__()
    if pairs[0][0] == "b":
        s += gen("more")


CASES = cases(globals())


@pytest.mark.parametrize("name", CASES)
def test_means_the_same(name: str) -> None:
    one: Case = CASES[name]
    fast = one.check()
    if one.options.get("replays") == 0:
        assert not fast._said and fast.interpreted is None, fast._said
