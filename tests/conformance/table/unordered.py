"""Objects that can change or are told apart by identity, where calls need no order."""

from __future__ import annotations

from typing import Any

import lmc
from lmc import gen
from tests.conformance.harness import case, effect


@lmc.host(ordered=False)
def size(rows: list[Any]) -> int:
    effect("size", len(rows))
    return len(rows)


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
