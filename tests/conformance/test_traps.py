"""Programs that a capture scheme gets silently wrong: effects while tracing or twice, frozen reads, aliases, stale guards.

Each ends, or may be made to end, in the interpreter (`leave`), so that what happened before must answer from the record.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

import lmc

from . import outside
from .harness import case, cases, conform, effect, opaque, scripted
from .outside import STEPS, TABLE, tool

OUTSIDE = {"reset": outside.reset, "outside": outside.look, "batch": False}  # items of a batch would share it


# -- what was read at the beginning --------------------------------------------------------------------------------------


@case(**OUTSIDE)
def global_changed_then_left(s: Any, q: str) -> Any:
    limit = outside.LIMIT
    s += f"{limit}" + q
    outside.set_limit(7)
    s += lmc.gen("x", max_tokens=4)
    n = opaque(s["x"]) * 0
    return limit + n, outside.LIMIT


@case(**OUTSIDE)
def outside_lists_taken_apart(s: Any, q: str) -> Any:
    a, *b = STEPS
    outside.drop("one")
    c, d = STEPS
    s += q + lmc.gen("x", max_tokens=3)
    (e, f), (g, *h) = [s["x"].split("a", 1), ("b", s["x"], "c")] if s["x"].count("a") else [("u", "v"), ("b", s["x"])]
    return a, b, c, d, e, f, g, h, opaque(q) * 0


COUNT = 0


def _zero() -> None:
    global COUNT
    COUNT = 0


@case(reset=_zero, outside=lambda: COUNT, batch=False)
def counter_then_left(s: Any, q: str) -> Any:
    global COUNT
    COUNT += 1
    s += f"{COUNT}" + lmc.gen("x", max_tokens=4)
    COUNT += len(s["x"])
    return COUNT + opaque(s["x"]) * 0


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
def list_shrinks_while_iterated(s: Any, q: str) -> Any:
    seen = []
    for step in STEPS:
        s += step + lmc.gen("x", max_tokens=2)
        seen.append(step)
        if step == "two":
            outside.drop("one")
    return seen, opaque(q) * 0


@case(**OUTSIDE)
def list_grows_at_its_end(s: Any, q: str) -> Any:
    seen = []
    for step in STEPS:
        s += step + lmc.gen("x", max_tokens=2)
        seen.append(step)
        if step == "three":
            outside.add_step("four")
    return seen


@case(**OUTSIDE)
def list_read_before_and_after(s: Any, q: str) -> Any:
    before = len(STEPS), STEPS[0], ", ".join(STEPS), list(STEPS), "one" in STEPS, [x.upper() for x in STEPS], TABLE["x"], sorted(TABLE)
    outside.drop("one")
    s += q + lmc.gen("x", max_tokens=2) + str(before)
    after = len(STEPS), STEPS[0], ", ".join(STEPS), "one" in STEPS, [x.upper() for x in STEPS]
    return before, after, opaque(s["x"]) * 0


@case(**OUTSIDE)
def slice_of_an_outside_list(s: Any, q: str) -> Any:
    seen = []
    for step in STEPS[:2]:
        if outside.LIMIT > 3:
            seen.append("high")
        seen.append(step + lmc_x(s, q))
        outside.set_limit(5)
    return seen, opaque(q) * 0


def lmc_x(s: Any, q: str) -> str:
    s += q + lmc.gen("x", max_tokens=2)
    return s["x"]


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


@case(**OUTSIDE)
def outside_iterator(s: Any, q: str) -> Any:
    a = next(outside.IDS)
    s += f"{a}" + lmc.gen("x", max_tokens=3)
    b = next(outside.IDS)
    for i in outside.IDS:
        if i > b + 2:
            break
    return a, b, i


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
LEFT = {
    "unpack": "whose __len__", "list": "whose __len__", "hasattr": "asks whether", "getattr": "asks whether", "percent": "hands a Box",
    "sorted": "whose __len__", "print": "hands a Box", "dict": "hands a Box",
}  # fmt: skip
"""Why those are not captured that are not."""


@pytest.mark.parametrize("use", USES)
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


@case()
def closures_over_a_loop(s: Any, q: str) -> Any:
    out = []
    for i in range(3):
        def check(x: str) -> str:
            return f"{i}:{x}"

        out.append(outside.apply(check, "a"))
    out += [outside.apply(lambda x, k=k: f"{k}/{x}", "b") for k in range(3)]
    s += q + "".join(out) + lmc.gen("x", max_tokens=2)
    return out


@case()
def functions_with_effects(s: Any, q: str) -> Any:
    def loud(m: Any) -> str:
        effect("loud", m.group())
        return m.group().upper()

    s += q + lmc.gen("x", max_tokens=8)
    fixed = re.sub("[ab]", loud, "abc")
    free = re.sub("[aeiou]", loud, s["x"])
    again = re.sub("[aeiou]", loud, s["x"])
    loaded = json.loads('{"a": 1}', object_hook=lambda d: effect("hook") or d)
    effect("end")
    return fixed, free, again, loaded, sorted("ba", key=tool), max("ab", key=tool), list(map(tool, "ab")), functools.reduce(reducer, [1, 2, 3])


def reducer(a: int, b: int) -> int:
    effect("reduce", a, b)
    return a + b


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


@case()
def one_code_two_closures(s: Any, q: str) -> Any:
    return FIRST(s, q), SECOND(s, q), FIRST(s, q)


# -- objects that change ----------------------------------------------------------------------------------------------------


@case(backend=scripted(x='[[], [1], {"k": []}]'))
def decided_on_then_changed(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=30)
    data = json.loads(s["x"])
    found = [any(data[:1]), all(data), [bool(d) for d in data], sum(data[:2], []), max(data[:2]), sorted(data[:2])]
    texts = f"{data[0]}", str(data), len(data[0]), data[0] == [], not data[0], json.dumps(data), data[:1]
    data[0].append(5)
    data[2]["k"].append(data[0])
    s += str(data)
    return found, texts, data, opaque(q) * 0


@case(backend=scripted(x='[["a", 1], ["b", 2]]'))
def unpacked_then_changed(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=30)
    data = json.loads(s["x"])
    seen = []
    for name, n in data:
        seen.append((name, n))
        data[0][1] = 9
    first, *rest = data
    rest.append("r")
    data.append("end")
    (a, b), *_ = data
    return seen, first, rest, data, a, b, opaque(q) * 0


@case(backend=scripted(x="key"))
def groups_are_new_dicts(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=30)
    m = re.match(r"(?P<a>\w)(?P<b>\w+)", s["x"])
    one, two = m.groupdict(), m.groupdict()
    one["a"] = "changed"
    words = re.compile(r"\w").findall(s["x"])
    words.append("more")
    other = re.compile(r"\w").findall(s["x"])
    pieces = s["x"].split("e")
    pieces[0] = "p"
    return one, two, words, other, pieces, s["x"].split("e"), one["a"]


@case()
def messages_are_new_lists(s: Any, q: str) -> Any:
    s += lmc.user(q) + lmc.assistant(lmc.gen("x", max_tokens=3))
    a, b = s.messages(), s.messages()
    a.append("more")
    s += lmc.user(str(len(a)) + str(len(b)))
    return len(s.messages()), a[-1], a is b


@case(backend=scripted(x=["no", "42 a"]), batch=False)
def order_of_evaluation(s: Any, q: str) -> Any:
    found = []
    for _ in range(2):
        s += q + lmc.gen("x", max_tokens=5)
        table: dict[str, str] = {}
        table[tool("key")] = tool("value")
        xs = s["x"].split()
        found.append(f"{xs} {xs.pop()} {xs}")
        m = re.search(r"\d+", s["x"])
        try:
            found.append(m.group(int(tool("0")[1])))
        except AttributeError:
            effect("no match")
    return found


@case(**OUTSIDE)
def aliases(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    row = [s["x"]]
    grid = [row, row]
    table = {"r": row}
    grid[0].append("b")
    table["r"] += ["c"]
    copy = list(row)
    copy.append("d")
    outside.keep(grid)
    row.append("e")
    return row, grid, table, copy, grid[0] is grid[1], outside.SEEN[-1] is grid


@case(**OUTSIDE)
def containers_that_python_makes(s: Any, q: str) -> Any:
    def named(**kw: Any) -> Any:
        outside.grow(kw.setdefault("l", []), len(kw))
        outside.keep([kw])
        kw["more"] = 1
        return kw

    first, *rest = ["a", "b"]
    outside.grow(rest, "c")
    unnamed = (lambda **kw: outside.keep([kw]) and kw)(z=2)
    unnamed["y"] = 3
    match ["x", "y", {"k": 1}]:
        case ["x", *others]:
            outside.grow(others, "z")
    s += q + lmc.gen("x", max_tokens=3)
    return first, rest, named(a=1), unnamed, others, outside.SEEN[0][0] is unnamed


@case()
def values_deep_inside(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    deep: Any = s["x"]
    for _ in range(9):
        deep = [deep]
    try:
        return json.dumps(deep), str(deep)
    except TypeError:
        return "wrong"


@case()
def sample_list_changes(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3, n=2)
    xs = s["x"]
    xs.append("mine")
    s["k"] = xs
    xs.append("more")
    return s["x"], s["k"], len(s["x"]), s["x"] is xs


@dataclass
class Pair:
    a: Any
    b: Any = None


@case()
def dataclasses_of_the_program(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    p = Pair(s, s["x"])
    other = Pair(s, "c")
    text = f"{other.b}" + str(Pair("u", "v"))
    return p == Pair(s, s["x"]), p == other, text, p.b in ["a", p.b]


@case()
def tuples_of_the_outside(s: Any, q: str) -> Any:
    a = (STEPS, 1) == (["one"], 1), str((STEPS, TABLE)), "%s" % (STEPS,), [STEPS] == [["x"]], json.dumps([STEPS])
    effect("between")
    return a, q


# -- exceptions -------------------------------------------------------------------------------------------------------------


@case()
def error_in_a_constant(s: Any, q: str) -> Any:
    found = []
    for make in (lambda: int("x"), lambda: [][0], lambda: {}["k"], lambda: "a" + 1, lambda: None.x, lambda: 1 / 0, lambda: len(5), lambda: next(iter([]))):
        try:
            found.append(make())
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    s += q + lmc.gen("x", max_tokens=2)
    return found


@case()
def finally_and_return(s: Any, q: str) -> Any:
    def inner() -> str:
        try:
            s.__iadd__(q + lmc.gen("x", max_tokens=3))
            return s["x"]
        finally:
            effect("finally")
            s.__iadd__("!")

    try:
        try:
            return inner() + str(int("z"))
        except ValueError as error:
            raise KeyError("outer") from error
    except KeyError as error:
        return type(error.__cause__).__name__
    finally:
        effect("end")


@case()
def bare_except(s: Any, q: str) -> Any:
    n = 0
    while n < 3:
        n += 1
        try:
            s += q + lmc.gen("x", max_tokens=2)
            if "a" in s["x"]:
                continue
            if "e" in s["x"]:
                break
            s += tool(s["x"])
        except:  # noqa: E722
            effect("never")
        else:
            effect("else", n)
        finally:
            effect("finally", n)
    return n


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


@lmc.function
def child(s: Any, tip: str) -> str:
    s += tip + lmc.gen("c", max_tokens=3)
    effect("child", s["c"])
    return s["c"]


@case(temperature=0.7)
def children_then_left(s: Any, q: str) -> Any:
    a = child(tip=q)
    s += a.ret_value + lmc.gen("x", max_tokens=3)
    b = child(tip=s["x"])
    n = opaque(s["x"]) * 0
    c = child(tip="last")
    return n, b["c"], c.text(), a.ret_value


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
