"""Programs that a capture scheme gets silently wrong: effects while tracing or twice, frozen reads, aliases, stale guards.

Each ends, or may be made to end, in the interpreter (`leave`), so that what happened before must answer from the record.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import lmc
from tests.searching import some

from . import outside
from .harness import case, cases, conform, effect, opaque, scripted
from .outside import tool

OUTSIDE = {"reset": outside.reset, "outside": outside.look, "batch": False}  # items of a batch would share it


# -- what was read at the beginning --------------------------------------------------------------------------------------


@case(**OUTSIDE, backend=scripted(x=["a", "rare", "a", "rare"]))
def global_changed_then_new_arm(s: Any, q: str) -> Any:
    limit = outside.LIMIT
    outside.set_limit(9)
    for _ in range(2):
        s += q + lmc.gen("x", max_tokens=4)
        if len(s["x"]) > 2:
            s += f"limit {limit}"
    return limit


def test_new_arm_reads_what_the_run_began_with():
    program = global_changed_then_new_arm.program
    fast = lmc.compile(program)
    for answer in ("a", "rare", "seldom", "a"):
        outside.reset()
        want = program.run(q="q", backend=scripted(x=answer)()).text()
        for _ in range(2):
            outside.reset()
            assert fast(q="q", backend=scripted(x=answer)()).text() == want


@case(**OUTSIDE)
def attributes_of_functions_and_classes(s: Any, q: str) -> Any:
    first = outside.counted.calls, outside.Settings.level, outside.Settings.note
    a = outside.counted(q)
    outside.Settings.level += 1
    outside.Settings.note = a
    b = outside.counted(a)
    s += a + b + str(outside.counted.calls) + lmc.gen("x", max_tokens=3)
    return first, outside.Settings.level, outside.Settings.note, opaque(s["x"]) * 0


def test_guards_of_class_and_function_attributes():
    program = attributes_of_functions_and_classes.program
    fast = lmc.compile(program)
    for level in (1, 5, 1):
        seen = []
        for run in (program.run, fast, fast):
            outside.reset()
            outside.Settings.level, outside.counted.calls = level, level
            seen.append(run(q="a", backend=lmc.Mock(), seed=1).ret_value)
        assert seen[0] == seen[1] == seen[2]


def numbered() -> Any:
    for i in itertools.count():
        effect("number", i)
        yield i


NUMBERS = numbered()


def test_outside_generator():
    @lmc.function
    def program(s: Any, q: str) -> Any:
        first = next(NUMBERS)
        s += q + lmc.gen("x", max_tokens=3)
        return first, next(NUMBERS)

    global NUMBERS
    NUMBERS = numbered()
    fast = lmc.compile(program, backend=lmc.Mock())
    assert [fast(q="a").ret_value for _ in range(3)] == [(0, 1), (2, 3), (4, 5)]


# -- code of the program that hooks do not see ------------------------------------------------------------------------------


class Box:
    def __init__(self, s: Any, x: Any) -> None:
        self.s, self._x = s, x

    @property
    def x(self) -> Any:
        effect("get")
        return self._x

    @x.setter
    def x(self, value: Any) -> None:
        effect("set", value)
        self._x = value

    def __eq__(self, other: object) -> bool:
        effect("eq")
        return isinstance(other, Box)

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        effect("bool")
        return True

    def __getitem__(self, i: int) -> Any:
        effect("item", i)
        return [self._x, 1][i]

    def __iter__(self) -> Any:
        effect("iter")
        return iter([1, 2])

    def __add__(self, other: Any) -> str:
        effect("add")
        return f"+{other}"

    def __str__(self) -> str:
        effect("str")
        return "box"

    def __call__(self, q: str) -> str:
        self.s += q + lmc.gen("c", max_tokens=2)
        return self.s["c"]

    def __enter__(self) -> Any:
        effect("enter")
        return self

    def __exit__(self, *args: Any) -> None:
        effect("exit")

    def __len__(self) -> int:
        effect("len")
        return 2


def taken_apart(x: Any, y: Any) -> Any:
    return x


USES = {
    "property": lambda b: b.x,
    "setter": lambda b: setattr(b, "x", 3),
    "eq": lambda b: b == b,
    "in": lambda b: b in [1, b],
    "bool": lambda b: bool(b),
    "item": lambda b: b[0],
    "iter": lambda b: [x for x in b],
    "list": lambda b: list(b),
    "add": lambda b: b + 1,
    "str": lambda b: str(b),
    "format": lambda b: f"{b}",
    "len": lambda b: len(b),
    "unpack": lambda b: taken_apart(*b),
    "not": lambda b: not b,
    "or": lambda b: (b or 1) is b,
    "hasattr": lambda b: hasattr(b, "x"),
    "getattr": lambda b: getattr(b, "x", 0),
    "any": lambda b: any(b),
    "join": lambda b: ",".join(map(str, b)),
    "max": lambda b: max([b], default=0) is b,
    "sum": lambda b: sum(b),
    "percent": lambda b: "%s" % b,
    "sorted": lambda b: sorted(b),
    "call": lambda b: b("t"),
    "if": lambda b: 1 if b else 2,
    "print": lambda b: print(b),
    "dict": lambda b: {b: 1}[b],
}
"""Why those are not captured that are not."""


@some("use", USES, 3)
def test_methods_that_python_calls(use: str):
    fn = USES[use]

    @lmc.function
    def called_by_python(s: Any, q: str) -> Any:
        s += q + lmc.gen("x", max_tokens=3)
        box = Box(s, s["x"])
        return repr(fn(box)) if use != "max" else fn(box)

    conform(called_by_python, [{"q": "a"}])


def test_methods_that_python_calls_on_constants():
    @lmc.function
    def program(s: Any, q: str) -> Any:
        box = Box(s, 5)
        effect("made")
        with box as b:
            found = [b.x, b == box, b[0], b + 1]
        box.x = 7
        s += q + lmc.gen("x", max_tokens=3)
        return found, box.x

    conform(program, [{"q": "a"}])


# -- functions that the program hands out -----------------------------------------------------------------------------------


def numbered_item(i: int) -> Any:
    effect("item", i)
    return f"{i}"


@case()
def forks_from_a_function(s: Any, q: str) -> Any:
    forks = s.fork(2)
    forks += numbered_item
    forks += lambda i: tool(i) + lmc.gen("x", max_tokens=2)
    return [f["x"] for f in forks], opaque(q) * 0


def two_makers(prefix: str) -> Any:
    def say(s: Any, q: str) -> str:
        s += prefix + q + lmc.gen("x", max_tokens=3)
        return prefix + s["x"]

    return say


FIRST, SECOND = two_makers("1"), two_makers("2")


# -- objects that change ----------------------------------------------------------------------------------------------------


@case()
def sample_list_changes(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3, n=2)
    xs = s["x"]
    xs.append("mine")
    s["k"] = xs
    xs.append("more")
    return s["x"], s["k"], len(s["x"]), s["x"] is xs


# -- exceptions -------------------------------------------------------------------------------------------------------------


@case()
def error_keeps_role(s: Any, q: str) -> Any:
    try:
        with s.assistant():
            s += lmc.gen("x", max_tokens=3)
            outside.flaky("a" + s["x"])
    except ValueError:
        s += lmc.user("sorry")
    with s.assistant():
        s += lmc.gen("y", max_tokens=3)
    return len(s.messages())


# -- sub-programs, scopes ------------------------------------------------------------------------------------------------------


@case(temperature=0.7)
def forks_then_left(s: Any, q: str) -> Any:
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += f"{i}" + q + lmc.gen("x", max_tokens=3)
        effect("fork", i)
    best = max(forks, key=lambda f: f["x"])
    n = opaque(best["x"]) * 0
    inner = best.fork(2)
    inner += lmc.gen("y", max_tokens=3)
    inner.join()
    s += "".join(best["y"]) + lmc.gen("z", max_tokens=3)
    return n, best["y"], s["z"]


CASES = cases(dict(globals()))


@pytest.mark.parametrize("name", CASES)
def test_trap(name: str):
    CASES[name].check()
