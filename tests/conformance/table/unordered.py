"""Objects that can change or are told apart by identity, where calls need no order."""

from __future__ import annotations

from typing import Any

import lmc
from lmc import gen
from tests.conformance.harness import case, effect, opaque


@lmc.host(ordered=False)
def size(rows: list[Any]) -> int:
    effect("size", len(rows))
    return len(rows)


@lmc.host(ordered=False)
def same(x: Any) -> Any:
    return x


@case()
def unordered_calls_see_what_was_changed_before(s, q):
    s += q + gen("x", max_tokens=2)
    rows = [1]
    first = size(rows)
    rows.append(s["x"])
    second = size(rows)
    held = {"rows": rows}
    held["rows"].append(q)
    return first, second, size(rows)


@case()
def unordered_calls_of_equal_objects_then_left(s, q):
    s += q + gen("x", max_tokens=2)
    one, two = [s["x"]], [s["x"]]
    a, b, c = same(one), same(two), same(one)
    opaque(s)
    a.append("a")
    return a is one, b is two, a is c, one, two
