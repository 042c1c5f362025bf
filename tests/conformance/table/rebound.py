"""A function of the program that a tool defines anew while it runs."""

from __future__ import annotations

from typing import Any

from lmc import gen
from tests.conformance.harness import case, effect


def old_note(s: Any, t: Any) -> Any:
    s += "old " + t
    return gen("x", max_tokens=3)


def new_note(s: Any, t: Any) -> Any:
    s += "new " + t
    s += gen("z", max_tokens=2)
    effect("in the new one")
    return gen("x", max_tokens=3)


note = old_note


def reset() -> None:
    global note
    note = old_note


def tool(x: Any) -> str:
    effect("tool", x)
    return f"<{x}>"


def rebind(when: Any) -> None:
    global note
    effect("rebind", when)
    if when:
        note = new_note


@case(reset=reset, batch=False)
def rebound_at_times(s, q):
    tool(q)
    s += note(s, q)
    rebind(q == "b")
    for i in range(3):
        s += note(s, str(i))
        tool(i)
    return s["x"]
