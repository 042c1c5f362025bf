"""Functions, classes and closures of the program that a tool defines anew while it runs ."""

from __future__ import annotations

import sys
from typing import Any

from lmc import gen
from tests.conformance.harness import Case, case, effect

HERE = sys.modules[__name__]


def old_note(s: Any, t: Any) -> Any:
    s += "old " + t
    return gen("x", max_tokens=3)


def new_note(s: Any, t: Any) -> Any:
    s += "new " + t
    s += gen("z", max_tokens=2)
    effect("in the new one")
    return gen("x", max_tokens=3)


class OldNode:
    def __init__(self, s: Any) -> None:
        self.s = s

    def go(self) -> None:
        self.s += "old" + gen("x", max_tokens=2)


class NewNode(OldNode):
    def go(self) -> None:
        self.s += "new" + gen("x", max_tokens=2)


note, Node = old_note, OldNode


def reset() -> None:
    global note, Node
    note, Node = old_note, OldNode


def tool(x: Any) -> str:
    effect("tool", x)
    return f"<{x}>"


def rebind(when: Any = True) -> None:
    global note, Node
    effect("rebind", when)
    if when:
        note, Node = new_note, NewNode


@case(reset=reset, batch=False)
def rebound_at_times(s, q):
    tool(q)
    s += note(s, q)
    rebind(q == "b")
    for i in range(3):
        s += note(s, str(i))
        tool(i)
    return s["x"]


@case(reset=reset, batch=False)
def a_class_is_rebound(s, q):
    tool(q)
    Node(s).go()
    rebind()
    Node(s).go()
    return s["x"]


@case(reset=reset, batch=False)
def by_the_program_itself(s, q):
    global note
    tool(q)
    s += note(s, q)
    note = new_note
    s += note(s, q)


def stored_in_a_closure() -> Case:
    def first(s: Any) -> Any:
        s += "first" + gen("x", max_tokens=2)

    def second(s: Any) -> Any:
        s += "second" + gen("x", max_tokens=2)

    helper = first

    def store(fn: Any) -> None:
        nonlocal helper
        effect("store")
        helper = fn

    def put_back() -> None:
        nonlocal helper
        helper = first

    @case([{"q": "a"}, {"q": "b"}], reset=put_back, batch=False)
    def program(s, q):
        tool(q)
        helper(s)
        store(second)
        helper(s)
        helper(s)

    return program


a_closure_variable_that_a_tool_stores = stored_in_a_closure()
