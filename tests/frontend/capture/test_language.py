"""Evaluations follow classes, generators, coroutines, managers, exceptions, forks, sub-programs, pure functions."""

# ruff: noqa: UP031, UP032 (programs are written as people write them)

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import itertools
import sys
from typing import Any

import pytest

import lmc
from lmc.frontend.capture import operations
from lmc.frontend.capture.code import place_of
from lmc.runahead.frames import frames
from tests.frontend.capture.comparing import run_evaluation, run_python
from tests.frontend.capture.recording import evaluate


@lmc.function
def child(s, tip, k=1):
    s += lmc.user(tip) + lmc.assistant(lmc.gen("c", max_tokens=k))
    return s["c"]


def shouted(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        return fn(*args, **kwargs).upper()

    return inner


@shouted
def loud(s, t):
    s += t + lmc.gen("l")
    return s["l"]


@functools.cache
def squared(n):
    return n * n


class Agent:
    def __init__(self, s, name):
        self.s, self.name, self.log = s, name, []

    @property
    def last(self):
        return self.log[-1] if self.log else ""

    def ask(self, t):
        self.s += f"{self.name}: {t}" + lmc.gen("a", max_tokens=3)
        self.log.append(self.s["a"])
        return self.last


class Careful(Agent):
    def ask(self, t):
        return super().ask(t + "?") + super().ask("sure?")


@dataclasses.dataclass
class Note:
    text: str
    tags: list = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, text):
        return cls(text, ["x"])


class Wrong(ValueError):
    def __init__(self, why):
        super().__init__(why)
        self.why = why


@lmc.pure
def looked_up(q):
    return [f"ctx for {q}"]


@lmc.function
def classes(s, q):
    agent, other = Careful(s, "A"), Agent(s.fork(1)[0], "B")
    note = Note.of(agent.ask(q))
    note.tags.append(other.ask(note.text))
    s += str(note) + lmc.gen("end")
    return note.tags, len(agent.log)


@lmc.function
def generators(s, q):
    out = [child(p)["c"] for p in q.split(".")]
    numbered = (f"{i}{x}" for i, x in enumerate(out))
    s += next(numbered) + lmc.gen("x")
    s += ",".join(numbered) + lmc.gen("y")


@lmc.function
async def coroutines(s, q):
    async def one(f, t):
        f += t + lmc.gen("p", max_tokens=2)
        return f["p"]

    said = await asyncio.gather(*[one(f, f"{q}{i}") for i, f in enumerate(s.fork(3))])
    more = await child.arun(said[0])
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(f, q)) for f in s.fork(2)]
    s += " ".join(said) + more["c"] + "".join([await t for t in tasks]) + lmc.gen("z")


@lmc.function
def managers(s, q):
    with s.user(), s.var_scope("v"):
        s += q + lmc.gen("g")
    with contextlib.suppress(KeyError), contextlib.nullcontext("PART") as name:
        s += name + lmc.gen("h")
        {}["x"]
    with s.copy() as f:
        f += lmc.gen("inner")
    s += s["v"] + s["inner"][0] + lmc.gen("end")


@lmc.function
def exceptions(s, q):
    try:
        n = int(child(q)["c"])
    except ValueError as error:
        n = len(str(error)) % 3
    try:
        raise Wrong(f"{n}")
    except (KeyError, Wrong) as error:
        s += error.why + lmc.gen("x")
    else:
        s += "never"
    finally:
        s += "!" + lmc.gen("y")


@dataclasses.dataclass
class Point:
    x: int = 0
    y: str = ""


@lmc.function
def forks(s, q):
    group = s.fork(3)
    group += lambda i: f"{q}{i}" + lmc.gen("x", max_tokens=4)
    best = max(group, key=lambda f: (len(f["x"]), f["x"]))
    best += lmc.gen("more")
    group.join()
    s += str(sorted(s["x"])) + best["more"] + lmc.gen("end")


@lmc.function
def sub_programs(s, q):
    first = child.run(tip=q, temperature=0.5)
    second = child.bind(k=3)(q + first["c"])
    third = child(q, seed=3)
    fourth = child.options(temperature=0.25, seed=4)(q)
    s += fourth["c"]
    s += first.text() + second.ret_value + third["c"] + loud(s, q) + lmc.gen("x")
    return squared(4)


@lmc.function
def recursive(s, q, depth=3):
    if not depth:
        return child(q).ret_value
    left, right = (recursive(q + side, depth - 1) for side in "lr")
    s += f"{left.ret_value}{right.ret_value}" + lmc.gen("m")
    return s["m"]


@lmc.function
def pure(s, q):
    for word in q.split():
        s += looked_up(word)[0] + lmc.gen("x", max_tokens=2)


@lmc.function
def containers(s, q):
    seen, counts, out = set(), {}, []
    for word in q.split():
        new = [x for x in child(word)["c"] if x not in seen]
        seen |= set(new)
        for x in new:
            counts[x] = counts.get(x, 0) + 1
        out += sorted(new, reverse=True)
    s += f"{len(seen)} {sorted(counts.items())!r:.40} {''.join(out)}" + lmc.gen("x")


@lmc.function
def closures(s, q):
    n, k = 0, [1]

    def ask(t, *, times=1):
        nonlocal n
        n += times
        k[0] *= 2
        return child(f"{n}{t}").ret_value

    twice = functools.partial(ask, times=2)
    s += ask(q) + twice(q) + str((n, k, (m := n + 1), m)) + lmc.gen("x")


class Programs:
    def __init__(self):
        self.greeting = "hello "

    def greet(self, s, q):
        s += self.greeting + q + lmc.gen("x")
        return s["x"]


@lmc.function
def streams(s, q):
    s += lmc.gen("x", n=2, max_tokens=2)
    s["x"].append("own")
    s.set_var("y", len(s["x"]))
    if "x" in s and "nothing" not in s:
        s += str(s["y"]) + lmc.select("z", choices=[q, "b"]) + lmc.gen(dtype=int)


@lmc.function
def matches(s, q):
    for x in (q, "k", 2, None, True, "", 2.5):
        match x:
            case "k" | "l" as found:
                s += found + lmc.gen("a", max_tokens=2)
            case 2:
                s += "two" + lmc.gen("b", max_tokens=2)
            case str() as found if found:
                s += found + "!" + lmc.gen("c", max_tokens=2)
            case None:
                s += "none"
            case str() | float():
                s += f"{x}"
            case other:
                s += f"{other}" + lmc.gen("d", max_tokens=2)
    s += lmc.gen("e", max_tokens=2)
    match s["e"]:
        case "a":
            s += "A" + lmc.gen("f", max_tokens=2)
        case k:
            s += k + lmc.gen("f", max_tokens=2)


@lmc.function
def named_by_answers(s, q):
    s += q + lmc.gen("a", max_tokens=2) + lmc.gen("n", max_tokens=2)
    s += "<" + lmc.gen(s["n"], max_tokens=2) + lmc.select(name=s["n"] + "2", choices=["x", "y"]) + ">"
    s += s["a"] + lmc.gen("b", max_tokens=2)
    s += s["b"] + s[s["n"]] + lmc.gen("c", max_tokens=2)
    if s["n"] in s and "nothing" not in s and "d" not in s:
        s += lmc.separate_reasoning(lmc.gen(s["n"], max_tokens=2), "qwen3")
    forks = s.fork(2)
    for f in forks:
        f += lmc.gen("d", max_tokens=2) + lmc.gen(s["n"], max_tokens=2)
    forks.join()
    s += str(s["d"]) + str(s.get_meta_info("b") is None) + lmc.gen("e", max_tokens=2)


PROGRAMS = {k: v for k, v in list(globals().items()) if isinstance(v, lmc.Function) and k != "child"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_answers_known_gives_what_python_asks(name: str):
    program: Any = PROGRAMS[name]
    python = run_python(program, {"q": "one two. three"})
    assert python.error is None
    asked, outcome = run_evaluation(program, {"q": "one two. three"}, python.answers)
    assert asked == python.asked and outcome.stopped_at is None and not outcome.waits


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_some_answers_the_others_are_holes_or_right(name: str):
    program: Any = PROGRAMS[name]
    python = run_python(program, {"q": "one two. three"})
    prompts = {(address, prompt) for address, _, prompt in python.asked}
    for k in range(len(python.asked)):
        known = {address: python.answers[address] for address, _, _ in python.asked[:k]}
        asked, _ = run_evaluation(program, {"q": "one two. three"}, known)
        assert len(asked) >= min(k + 1, len(python.asked))
        assert {(a, p) for a, _, p in asked[: k + 1]} <= prompts | {(a, None) for a, _ in prompts}


@dataclasses.dataclass
class Shown:
    n: int

    def __str__(self):
        return f"<{self.n}>"

    def __add__(self, other):
        return "sum"


class Reflected(Shown):
    def __radd__(self, other):
        return "reflected"


class Fault(KeyError):
    pass


@lmc.function
def called_natively(s, q):
    s += q + "%s" % Shown(1) + lmc.gen("a")
    s += "{!s}".format(Shown(2)) + lmc.gen("b")
    s += Shown(1) + Reflected(2)
    s += lmc.gen("c")
    s += "%s" % Fault("k") + lmc.gen("d")


def test_what_native_code_would_call_is_unknown_and_not_guessed():
    python = run_python(called_natively, {"q": "q"})
    asked, _ = run_evaluation(called_natively, {"q": "q"}, python.answers)
    assert len(asked) == len(python.asked) == 4
    assert all(prompt in (None, pythons) for (*_, prompt), (*_, pythons) in zip(asked, python.asked, strict=True))


def test_a_method_as_a_program():
    program = lmc.function(Programs().greet)
    asked, outcome = evaluate(program, {"x": "hi"}, q="you")
    assert [a.prompt for a in asked] == ["hello you"] and outcome.value == "hi" and outcome.stopped_at is None


def opened(path):
    return open(path).read()


@lmc.function
def resumed(s, g):
    plan = opened(g)
    s += "Plan: " + plan + lmc.gen("ok", max_tokens=4)
    for step in plan.splitlines():
        child(step)
    s += lmc.gen("z")


def test_locals_that_are_bound_once_are_read_from_pythons_frame():
    asked, _ = evaluate(resumed, g="/dev/null")
    assert [(a.name, a.prompt) for a in asked] == [("ok", None), ("z", None)]
    live = {"plan": "a\nb", "step": "b"}  # `step` is bound in a loop
    asked, _ = evaluate(resumed, options={"frames": {place_of(resumed.func.__code__): live}}, g="/dev/null")
    assert [(a.name, a.prompt) for a in asked] == [
        ("ok", "Plan: a\nb"),
        ("c", "[user:a][assistant:"),
        ("c", "[user:b][assistant:"),
        ("z", "Plan: a\nb{('', 0)}"),
    ]


@lmc.function
def shared_with_inner_functions(s, g):
    plan, changed = opened(g), opened(g)

    def change():
        nonlocal changed
        changed = opened(g)

    child(changed)
    change()
    [child(plan + step) for step in "ab"]


def read_from_a_frame():
    shared, found, running = "shared", [], {}
    with frames(running):
        held = running[place_of(read_from_a_frame.__code__)]
        found += [held and held.get("shared", None) for _ in "x" if shared]
    return found


def test_a_local_that_inner_functions_read_is_read_from_pythons_frame_too():
    """A comprehension is one up to CPython 3.11. What an inner function may bind anew is not bound once."""
    assert read_from_a_frame() == ["shared"]
    code = shared_with_inner_functions.func.__code__
    asked, _ = evaluate(shared_with_inner_functions, options={"frames": {place_of(code): {"plan": "p", "changed": "old"}}}, g="/dev/null")
    assert [a.prompt for a in asked] == [None, "[user:pa][assistant:", "[user:pb][assistant:"]


def read_beside_its_own_look():
    shared, running = "shared", {}
    with frames(running):
        held = running.get(place_of(read_beside_its_own_look.__code__))
        return held and held.get("shared", None), locals()["shared"]


def test_a_function_that_may_hold_its_locals_is_read_where_reading_changes_nothing_for_it():
    """Up to CPython 3.12 it would see the one dict that each read brings up to date; from 3.13 on `locals()` is a copy."""
    assert read_beside_its_own_look() == ("shared" if sys.version_info >= (3, 13) else None, "shared")


@lmc.function
def looking(s, q):
    found = opened(q)
    FRAMES.append({place_of(sys._getframe().f_code): sys._getframe().f_locals})
    s += found + lmc.gen("x")
    s += (FRAMES[-1] and "") or lmc.gen("y")


FRAMES: list[Any] = []


def test_frames_of_a_function_that_runs_now_serve():
    """Their locals are a dict up to CPython 3.12, and a view from 3.13 on."""
    bound = {"q": __file__}
    python = run_python(looking, bound)
    asked, _ = run_evaluation(looking, bound, {}, frames=FRAMES.pop())
    assert asked[0] == python.asked[0] and asked[0][2].startswith('"""Evaluations follow classes')


@lmc.function
def handed(s, q):
    items, kept = [1], [2]
    opened(items)
    s += str(kept) + lmc.gen("x")
    s += str(items) + lmc.gen("y")


def test_what_unknown_code_is_handed_is_unknown():
    asked, _ = evaluate(handed, {"x": "X"}, q="q")
    assert [(a.name, a.prompt) for a in asked] == [("x", "[2]"), ("y", None)]


@lmc.function
def each(s, q):
    def body(f):
        f += q + lmc.gen("x")
        return f["x"]

    return s.fork(2).each(body)


@lmc.function
async def each_with_items(s, q):
    async def body(f, what, n):
        f += q + what + lmc.gen("x", max_tokens=n)
        return f["x"]

    return await s.fork(2).each(body, ["!", "?"], [1, 2])


def test_each_pairs_its_items_and_awaits_async_bodies():
    asked, outcome = evaluate(each_with_items, {"x": "X"}, q="q")
    assert [(a.address, a.prompt) for a in asked] == [(("/0.0", 0), "q!"), (("/0.1", 0), "q?")] and outcome.value == ["X", "X"]


def test_each():
    asked, outcome = evaluate(each, {"x": "X"}, q="q")
    assert [a.address for a in asked] == [("/0.0", 0), ("/0.1", 0)] and outcome.value == ["X", "X"]


def no_ask(text):
    if "a" in text:
        return "early"
    return text


@lmc.function
def helper_exits(s, q):
    kind = no_ask(child(q)["c"])
    s += "next" + lmc.gen("x")
    s += kind + lmc.gen("y")


def test_an_undecided_return_of_a_helper_that_asks_nothing_keeps_certainty():
    asked, _ = evaluate(helper_exits, q="q")
    assert [(a.name, a.certain, a.prompt is None) for a in asked] == [("c", True, False), ("x", True, False), ("y", True, True)]


@lmc.function
def early_child(s, q):
    s += q + lmc.gen("a")
    if s["a"] == "no":
        return
    s += lmc.gen("b")


@lmc.function
def over_children(s, qs):
    for q in qs:
        early_child(q)


def test_an_undecided_return_of_a_sub_program_keeps_its_callers_certainty():
    asked, _ = evaluate(over_children, qs=["p", "q"])
    assert [(a.name, a.certain) for a in asked] == [("a", True), ("b", False), ("a", True), ("b", False)]


class Desk:
    def __init__(self, names):
        self.names = names


def put(found, names, value):
    for name in names:
        setattr(found, name, value)
    return found


@lmc.function
def around_pure(s, q):
    desk = Desk(["x", "y"])
    while child(q)["c"] != "enough":
        looked_up(desk.names)
    s += put(desk, desk.names, q).y + lmc.gen("end")


def test_a_pure_function_in_skipped_code_changes_none_of_its_arguments():
    asked, outcome = evaluate(around_pure, q="q")
    assert (asked[-1].name, asked[-1].prompt) == ("end", "q") and outcome.raised is None


@lmc.host
def taken(found):
    found.append("more")


@lmc.function
def of_pure(s, q):
    desk = Desk(["x", "y"])
    while child(q)["c"] != "enough":
        found = looked_up(desk.names)
        taken(found)
        setattr(Desk([]), found[0], desk)
    s += desk.names[0] + lmc.gen("end")


def test_skipped_code_changes_nothing_by_what_pure_functions_give_or_objects_are_given_to_hold():
    asked, outcome = evaluate(of_pure, q="q")
    assert (asked[-1].name, asked[-1].prompt) == ("end", "x") and outcome.raised is None


@lmc.function
def skipped_handler(s, q):
    try:
        n = int(child(q)["c"])
    except ValueError:
        return None
    s += f"{n}" + lmc.gen("x")


def test_a_handler_that_may_run_and_leaves_ends_certainty():
    asked, _ = evaluate(skipped_handler, q="q")
    assert [(a.name, a.certain) for a in asked] == [("c", True), ("x", False)]


@lmc.function
def endless(s, q):
    while True:
        q += "x"


def test_limits_stop_an_evaluation():
    _, outcome = evaluate(endless, options={"budget": 1000}, q="q")
    assert "1000 steps" in outcome.reason and outcome.stopped_at is not None and outcome.stopped_at.line > 0

    @lmc.function
    def large(s, q):
        s += lmc.gen("x")
        return f"{1:999999999}", q * 10**9, 2**10**9

    @lmc.function
    def rounded(s, q):
        s += lmc.gen("x")
        return round(5, -(10**9))

    for program in (large, rounded):
        asked, outcome = evaluate(program, q="q")
        assert len(asked) == 1 and "too large" in outcome.reason


@lmc.function
def goes_on(s, way):
    found, many = [], 10**9
    if way == "extend":
        found.extend(range(many))
    elif way == "append":
        found += range(many)
    elif way == "slice":
        found[:] = range(many)
    elif way == "iterator":
        found.extend(itertools.count())
    elif way == "generator":
        found.extend(x for x in itertools.cycle([1]))
    elif way == "in":
        found = -1 in itertools.count()
    elif way == "set":
        found = {1}.union(map(abs, itertools.count()))
    elif way == "star":
        found = [*range(many)]
    elif way == "unpacked":
        found, *_ = range(many)
    elif way == "text in":
        found = "1" in range(many)
    elif way == "itself":
        found.append(1)
        for _ in range(40):
            found.extend(found)
    elif way == "lists":
        for _ in range(1000):
            found.append([1] * 200_000)
    elif way == "texts":
        for _ in range(1000):
            found.append("a" * 1_000_000)
    elif way == "methods":
        for _ in range(1000):
            ("a" * 1_000_000).upper()
    else:
        found = sum(range(many)) + max(range(many))
    s += lmc.gen("x")


WAYS = ["extend", "append", "slice", "iterator", "generator", "in", "set", "star", "unpacked", "sum", "text in", "itself", "lists", "texts", "methods"]


@pytest.mark.parametrize("way", WAYS)
def test_native_code_stays_within_the_budget(way):
    _, outcome = evaluate(goes_on, way=way)
    assert outcome.reason == "50000 steps"


def test_pausing():
    asked, outcome = evaluate(endless, options={"paused": lambda: True}, q="q")
    assert outcome.paused and not asked


def retrying(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        for attempt in range(3):
            try:
                return fn(*args, **kwargs)
            except ValueError:
                if attempt == 2:
                    raise
        return None

    return inner


@lmc.function
@retrying
def decorated(s, q):
    s += q + lmc.gen("n", max_tokens=2)
    return int(s["n"])


def test_a_decorated_program_is_followed_through_its_decorator():
    asked, outcome = evaluate(decorated, {("", 0): "x", ("", 1): "7"}, q="q")
    assert [(a.address, a.prompt) for a in asked] == [(("", 0), "q"), (("", 1), "qxq")] and outcome.value == 7
    asked, _ = evaluate(decorated, q="q")
    assert [a.certain for a in asked] == [True]


@lmc.function
def early_stop(s, rows):
    for row in rows:
        if child(row)["c"] == "stop":
            break
    s += lmc.gen("x")


def test_an_undecided_continue_in_a_loop_that_asks_nothing_keeps_certainty():
    @lmc.function
    def program(s, rows):
        s += "a" + lmc.gen("first")
        for row in rows:
            kept = []
            for word in row.split():
                if word in s["first"]:
                    continue
                kept.append(word)
            child(row)
        s += str(kept) + lmc.gen("x")

    asked, _ = evaluate(program, rows=["a b", "c"])
    assert [(a.name, a.certain, a.prompt is None) for a in asked] == [("first", True, False), ("c", True, False), ("c", True, False), ("x", True, True)]


def test_an_undecided_break_in_a_loop_that_asks_ends_certainty():
    asked, _ = evaluate(early_stop, rows=["a", "b"])
    assert [(a.name, a.certain) for a in asked] == [("c", True), ("c", False), ("x", False)]
    asked, _ = evaluate(early_stop, {("/c0", 0): "on"}, rows=["a", "b"])
    assert [(a.name, a.certain) for a in asked] == [("c", True), ("c", True), ("x", False)]


@lmc.function
def picky(s, q):
    a = child(q)
    s += ("long" if len(a["c"]) > 3 else "short") + lmc.gen("x")
    s += (a["c"] or "none") + lmc.gen("y")
    s += "end" + lmc.gen("z")


def test_undecided_expressions_are_holes():
    asked, outcome = evaluate(picky, q="q")
    assert [(x.prompt is None, x.certain, x.shifted) for x in asked] == [(False, True, False)] + 3 * [(True, True, False)]
    assert frozenset({("/c0", 0)}) in outcome.waits


@lmc.function
def catches_all(s, q):
    try:
        found = [x for x in q if x == "a"]
    except Exception:
        found = []
    s += f"{found}" + lmc.gen("x")


def test_a_fault_of_the_evaluator_is_no_exception_of_the_program(monkeypatch):
    """Much of it runs below native code, whose exceptions are the program's."""
    assert evaluate(catches_all, q="abc")[0][0].prompt == "['a']"
    monkeypatch.setattr(operations, "apply", None)
    with pytest.raises(TypeError):
        evaluate(catches_all, q="abc")


@lmc.function
def skips(s, q, way):
    found = text = "none"
    if way == "groups":
        try:
            q.index("z")
        except* ValueError:
            found = text = "some"
    elif way == "patterns":
        match {"k": q}:
            case {"k": "x", **found}:
                text = "some"
    else:
        match [q]:
            case [first] if first:
                s += first + lmc.gen("x")
    s += q + lmc.gen("a")
    s += f"{text}{found}" + lmc.gen("b")


def test_a_request_whose_name_is_unknown_has_its_address_and_may_be_any_variable():
    """`a` may be the answer before `b`, and `d` of the forks the one after it."""
    asked, outcome = evaluate(named_by_answers, {("", 0): "1", ("", 2): "3", ("", 3): "x", ("", 4): "4", ("", 5): "5", ("", 6): "6"}, q="q")
    assert outcome.stopped_at is None
    names = [("a", True), ("n", True), (None, True), (None, True), ("b", False), ("c", False)]
    first = [(a.address, a.name if isinstance(a.name, str) else None, a.prompt is not None, a.shifted) for a in asked[:6]]
    assert first == [(("", i), name, known, False) for i, (name, known) in enumerate(names)]
    assert [(a.address, a.prompt) for a in asked[6:]] == [(("/0.0", 0), None), (("/0.0", 1), None), (("/0.1", 0), None), (("/0.1", 1), None), (("", 6), None)]


@pytest.mark.parametrize("way, expected", [("groups", [True, False, False]), ("patterns", [True, False, False]), ("asks", [True, True, True])])
def test_a_statement_that_is_not_supported_is_skipped(way: str, expected: list[bool]):
    asked, outcome = evaluate(skips, q="q", way=way)
    certain, shifted, *_ = expected
    assert [(a.name, a.certain, a.shifted) for a in asked] == [("a", certain, shifted), ("b", certain, shifted)] and outcome.stopped_at is None
    assert asked[0].prompt == (None if shifted else "q") and asked[1].prompt is None


@lmc.function
def left_to_python(s, q, way):
    def asks():
        for x in "ab":
            s.__iadd__(f"<{x}>" + lmc.gen("x", max_tokens=2))
            yield s["x"]

    def changes():
        for x in "ab":
            kept.append(x)
            yield x

    kept = []
    found = next({"asks": asks, "changes": changes}[way]())
    s += f"{found}" + lmc.gen("y", max_tokens=2)
    s += f"{kept}" + lmc.gen("z", max_tokens=2)


@pytest.mark.parametrize("way, shifted", [("asks", True), ("changes", False)])
def test_what_a_generator_may_do_is_unknown_where_an_item_is_taken(way: str, shifted: bool):
    asked, _ = evaluate(left_to_python, {"y": "Y"}, q="q", way=way)
    assert [(a.name, a.prompt, a.shifted) for a in asked] == [("y", None, shifted), ("z", None, shifted)]


@dataclasses.dataclass(order=True)
class Ranked:
    rank: int
    name: str
    secret: str = dataclasses.field(default="", repr=False, compare=False)


@lmc.function
def compares_objects(s):
    s += f"{max(Ranked(1, 'a'), Ranked(2, 'b', 'x'))} {Ranked(1, 'a') == Ranked(1, 'a', 'x')} {'{.name}'.format(Ranked(1, 'a'))}" + lmc.gen("x")


def test_dataclasses_compare_and_show_their_fields():
    python = run_python(compares_objects, {})
    asked, outcome = run_evaluation(compares_objects, {}, python.answers)
    assert outcome.raised is None and asked == python.asked


class Vector:
    def __init__(self, *parts):
        self.parts = list(parts)

    def __iadd__(self, more):
        self.parts.append(more)
        return self

    def __imul__(self, times):
        self.parts *= times
        return self

    def __neg__(self):
        return Vector(*[-part for part in self.parts])

    def __abs__(self):
        return sum(map(abs, self.parts))

    def __divmod__(self, by):
        return self.parts[0] // by, self.parts[0] % by

    def __round__(self, digits=0):
        return len(self.parts) + digits


@lmc.function
def changes_objects(s, items):
    v = kept = Vector(3)
    for item in items:
        v += len(child(item)["c"])
    v *= 2
    s += f"{v is kept} {len(v.parts)} {(-v).parts[0]}" + lmc.gen("end")
    s += f"{divmod(v, 2)} {round(v)} {abs(Vector(-1, 2))}" + lmc.gen("more")


@pytest.mark.parametrize("known", [0, 3])
def test_what_operators_of_objects_make_is_unknown(known):
    """An operator that the evaluator did not pass on was a TypeError of the program's, behind which nothing is asked."""
    python = run_python(changes_objects, {"items": ["a", "bc", "d"]})
    asked, outcome = run_evaluation(changes_objects, {"items": ["a", "bc", "d"]}, dict(list(python.answers.items())[:known]))
    prompts = [prompt for _, _, prompt in python.asked]
    assert outcome.raised is None and [prompt for _, _, prompt in asked] == [*prompts[:3], None, None]


@lmc.function
def compares_keys(s, q):
    a, b = {"x": 1, "y": [q]}, {"y": 2, "z": 3}
    common, seen = a.keys() & b.keys(), {"x"}
    answer = child(q)["c"]
    table = {"k": answer, "l": q}
    s += (
        f"{sorted(common)} {sorted(b.keys() - seen)} {a.keys() >= seen} {a.items() > {('x', 1)}} {len(table.items())} {'k' in list(table.keys())} {a.keys()}"
        + lmc.gen("end")
    )
    for key, value in table.items():
        child(key + value)


@pytest.mark.parametrize("known", [0, 4])
def test_views_of_dicts_are_sets(known):
    """They were lists, whose `&` was a TypeError of the program's."""
    python = run_python(compares_keys, {"q": "one"})
    asked, outcome = run_evaluation(compares_keys, {"q": "one"}, python.answers if known else {})
    assert outcome.raised is None and [p for _, _, p in asked if p is not None] == [p for i, (_, _, p) in enumerate(python.asked) if known or i != 2]


class Holder:
    def __init__(self, s):
        self.s = s

    def go(self, text):
        self.s += text + lmc.gen("held")


@lmc.function
def copies_an_object(s, q):
    copied = copy.copy(Holder(s))
    copied.go(q)
    s += "end" + lmc.gen("x")


def test_what_a_copy_shares_is_unknown_behind_it():
    asked, _ = run_evaluation(copies_an_object, {"q": "q"}, {})
    assert [prompt for _, _, prompt in asked] == [None]
