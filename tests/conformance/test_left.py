"""Programs of the kinds that capture leaves to the interpreter, or once did: they mean the same, and the reason is said."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import heapq
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

import lmc
from lmc.backend.mock import Mock
from tests.conformance.harness import Case, case, cases, effect, opaque, scripted

JSON = '{"a": [1, {"b": "x"}], "c": {"d": [true, null, "y"]}}'


@case(ahead=False)  # what it reads depends on how long answers take
def text_of_a_state(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    shown = f"{s}"
    return shown == str(s) == repr(s), s["a"] in shown, "%s" % (s,) == shown, "{}".format(s) == shown


@case()
def states_that_are_printed(s: Any, q: str) -> Any:
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += q + str(i) + lmc.gen("a", max_tokens=3)
    effect("forks", [f"{f!r:.20}" for f in forks], str(s)[:10])
    return s


@case()
def subclasses_that_register(s: Any, q: str) -> Any:
    kinds: dict[str, Any] = {}

    class Base:
        def __init_subclass__(cls, tag: str = "", **rest: Any) -> None:
            super().__init_subclass__(**rest)
            kinds[tag or cls.__name__] = cls
            effect("made", cls.__name__)

        def go(self, t: Any) -> str:
            t += self.word + lmc.gen("x", max_tokens=3)
            return t["x"]

    class One(Base, tag="first"):
        word = "one"

    class Two(Base):
        word = "two" + q

    s += q + lmc.gen("k", max_tokens=2)
    return [kinds[k]().go(s) for k in sorted(kinds)]


class Scored:
    def __init__(self, state: Any, score: int) -> None:
        self.state, self.score = state, score

    def __lt__(self, other: Scored) -> bool:
        return self.score < other.score


@case()
def ordered_by_their_own(s: Any, q: str) -> Any:
    found = []
    for i, f in enumerate(s.fork(3)):
        f += f"{q}{i}" + lmc.gen("a", max_tokens=3)
        found.append(Scored(f, len(f["a"].strip()) * (-1) ** i))
    best = sorted(found)
    heap: list[Scored] = []
    for one in found:
        heapq.heappush(heap, one)
    lowest = heapq.heappop(heap)
    s += best[0].state["a"] + lowest.state["a"] + max(found).state["a"]
    return [x.score for x in best], [x.score for x in heapq.nsmallest(2, found)]


@case(backend=scripted(labels=['["x"]', '["y"]'] * 9, one=["p", "q"] * 9))
def types_written_inside(s: Any, q: str) -> Any:
    options = ["p", "q"]
    s += q + lmc.gen("labels", dtype=list[Literal["x", "y"]])
    s += lmc.gen("one", dtype=Literal["p", "q"]) + lmc.gen("two", choices=options)
    return json.loads(s["labels"]), s["one"]


@case()
def deques_of_states(s: Any, q: str) -> Any:
    todo = collections.deque(s.fork(3))
    done = []
    while todo:
        f = todo.popleft()
        f += q + lmc.gen("a", max_tokens=2)
        done.append(f["a"])
        if len(done) == 2:
            todo.appendleft(s)
            todo.rotate(1)
    return done, s.text()


@case()
def heaps_of_states(s: Any, q: str) -> Any:
    heap: list[Any] = []
    for i, f in enumerate(s.fork(3)):
        f += f"{q}{i}" + lmc.gen("a", max_tokens=3)
        heapq.heappush(heap, (len(f["a"].strip()), f["a"], i, f))
    score, _, i, best = heapq.heappop(heap)
    best += lmc.gen("b", max_tokens=2)
    s += best["b"]
    return score, i, len(heap)


@case()
def searches_best_first(s: Any, q: str) -> Any:
    count = itertools.count()
    heap: list[Any] = [(0, next(count), s)]
    seen = []
    while len(heap) < 3:
        cost, _, best = heapq.heappop(heap)
        seen.append(cost)
        for f in best.fork(2):
            f += q + lmc.gen("v", regex="[0-9]")
            heapq.heappush(heap, (-int(f["v"]), next(count), f))
    return seen, heapq.heappushpop(heap, (5, next(count), s))[0], heapq.heapreplace(heap, (6, next(count), s))[0], [x[0] for x in heap]


@case()
def ranks_states(s: Any, q: str) -> Any:
    forks = s.fork(4)
    forks += lambda i: f"{i}" + lmc.gen("v", regex="[0-9][0-9]")
    ranked = sorted(zip([f["v"] for f in forks], range(4), forks), reverse=True)
    score, _, worst = min((f["v"], i, f) for i, f in enumerate(forks))
    heap = [(f["v"], i, f) for i, f in enumerate(forks)]
    heapq.heapify(heap)
    s += ranked[0][2]["v"] + worst["v"]
    return score, [i for _, i, _ in heap], [f["v"] for f in heapq.nlargest(2, forks, key=lambda f: f["v"])], heapq.nsmallest(1, heap)[0][1]


def without(*names: str) -> Any:
    """A mock that fails to answer what has these names."""
    return lambda: Mock(fault=lambda ask, _: lmc.BackendError(f"no {ask.name}") if ask.name in names else None)


def looks_for_errors(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    if s.error() is not None:
        effect("at once", str(s.error()))
        return None
    forks = s.fork(2)
    forks += lmc.gen("b", max_tokens=2) + lmc.gen("c", max_tokens=2)
    errors = [f.error() for f in forks]
    effect([str(e) for e in errors])
    s += lmc.gen("d", max_tokens=2)
    if isinstance(s.error(), lmc.BackendError):
        raise s.error()
    return [f["b"] for f, e in zip(forks, errors) if not e]


looks_for_none = case()(looks_for_errors)
looks_for_the_first = case(backend=without("a"), batch=False)(looks_for_errors)
looks_for_one_of_forks = case(backend=without("c"))(looks_for_errors)
looks_for_the_last = case(backend=without("d"), batch=False)(looks_for_errors)


@case()
def orders_states(s: Any, q: str) -> Any:
    """A state has no place before another one, and Python says so only when it comes to that."""
    forks = s.fork(3)
    forks += lmc.gen("v", regex="[01]")
    try:
        return [score for score, _ in sorted((f["v"], f) for f in forks)]
    except TypeError as error:
        return str(error)


@case()
def chains_of_states(s: Any, q: str) -> Any:
    first, second = s.fork(2), s.fork(1)
    out = []
    for f in itertools.chain(first, second, [s]):
        f += q + lmc.gen("a", max_tokens=2)
        out.append(f["a"])
    for f, g in itertools.zip_longest(first, second):
        out.append((f["a"], g["a"] if g is not None else None))
    return out, [x["a"] for x in itertools.islice(itertools.cycle(first), 3)]


SETTINGS: dict[str, Any] = {"k": "outside", "deep": {"n": [1]}}


@case(backend=scripted(j=['{"k": {"n": 1}, "z": [2]}'] * 9))
def dicts_that_take_in_others(s: Any, q: str) -> Any:
    s += q + lmc.gen("j", max_tokens=60)
    loaded = json.loads(s["j"])
    merged = {"first": 1, **loaded, "k2": loaded["k"], **SETTINGS, s["j"][:3]: q}
    merged["k2"]["n"] += 1
    more = {**merged, "z": merged["z"] + [3], q: s["j"]}
    more["z"].append(4)
    effect("merged", {**more, "last": None})
    s += ",".join(more)
    return loaded, merged, more, merged["deep"] is SETTINGS["deep"], "first" in {**more}


@case()
def merges_what_is_no_mapping(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    effect("before")
    return {**{"x": 1}, **json.loads(f"[{len(s['a'])}]"), s["a"]: 1}


@case()
def merges_and_changes(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    rows: list[Any] = [1]
    d = {"rows": rows, s["a"]: rows}
    e = {**d, q: rows}
    rows.append(s["a"])
    e[q].append(2)
    effect("rows", e)
    return d, e, rows, e["rows"] is rows


@case()
def dicts_by_answers(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3) + lmc.gen("b", max_tokens=3)
    d = {"k": [1], "x": 2}
    d = {**d, s["a"]: s["b"], "k": [s["a"]]}
    e = d | {s["b"]: 1}
    d[s["a"]] = "changed"
    return d, e, list(d), d["k"] is e["k"], {s["a"]: s}[s["a"]] is s


def walk(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: walk(v) for k, v in x.items()}
    if isinstance(x, list):
        return [walk(v) for v in x]
    return f"<{x}>"


def walk_with(s: Any, x: Any, depth: int = 0) -> int:
    if isinstance(x, dict):
        return sum(walk_with(s, v, depth + 1) for k, v in sorted(x.items()))
    if isinstance(x, list):
        return sum([walk_with(s, v, depth + 1) for v in x])
    s += f"{x}@{depth}" + lmc.gen("w", max_tokens=1)
    return 1


@case(backend=scripted(j=[JSON] * 9))
def walks_over_json(s: Any, q: str) -> Any:
    s += q + lmc.gen("j", max_tokens=60)
    parsed = json.loads(s["j"])

    def leaves(x: Any) -> Any:
        match x:
            case {"b": inner}:
                return [inner]
            case dict():
                return [y for v in x.values() for y in leaves(v)]
            case list():
                return [y for v in x for y in leaves(v)]
            case _:
                return [x]

    count = walk_with(s, parsed)
    parsed["c"]["e"] = count
    return walk(parsed), leaves(parsed), count


@lmc.function
def child(s: Any, tip: str) -> Any:
    s += "tip " + tip + lmc.gen("x", max_tokens=4)
    return s["x"]


@lmc.function
def parent(s: Any, tip: str, temperature: float = 0.5) -> Any:
    s += "parent" + lmc.gen("y", max_tokens=3, top_p=None)
    inner = child(tip=tip, stop="e", top_p=0.7)
    f = s.fork(1)[0]
    f += lmc.gen("z", max_tokens=3, top_k=4, temperature=0.1) + lmc.gen("i", dtype=int) + lmc.select("c", ["u", "v"])
    return inner["x"] + f["z"], temperature


@case()
def children_with_sampling(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    one = parent.run(tip=s["a"], top_k=7, stop=("q", "z"), temperature=0.25)
    two = parent(q, frequency_penalty=0.5, ignore_eos=True)
    three = child(tip="t", temperature=0, stop=None)
    one += lmc.gen("more", max_tokens=3)
    s += two["y"] + three["x"] + one["more"] + lmc.gen("z", max_tokens=2)
    return one.ret_value, two.ret_value, three.text()


@case()
def leaves_behind_sampling(s: Any, q: str) -> Any:
    one = parent.run(tip=q, top_k=7, stop="q")
    effect("one", one.ret_value)
    opaque(q)
    two = parent.run(tip=q, top_k=5)
    s += one["y"] + two["y"]
    effect("two", two.ret_value)


@case()
def children_with_sampling_that_is_left(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    effect("before", s["a"])
    try:
        child(tip="x", temperature=-1)
    except lmc.ParameterError as error:
        s += error.message[:20]
    counted = child(tip="y", max_new_tokens=2, n=2, temperature=len(s["a"]) / 10)
    effect("after", counted["x"])
    return child(tip="z", top_p=0.5)


@case()
def children_with_options(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    one = child.run(tip=s["a"], temperature=0.3, max_new_tokens=2)
    two = child(tip=one["x"], seed=5)
    bound = child.bind(tip="bound")
    three = bound()
    s += two["x"] + three["x"] + lmc.gen("z", max_tokens=2)
    return one.ret_value, two.text()


@case()
def batches_inside(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    states = child.run_batch([{"tip": s["a"]}, {"tip": "b"}], temperature=0)
    s += "".join(c["x"] for c in states) + lmc.gen("z", max_tokens=2)
    for c in child.run_batch([("t",), (q,)], generator_style=True):
        s += c["x"]
    return [c.ret_value for c in states]


FAST = lmc.compile(child)
MADE: dict[str, Any] = {"lmc": lmc}
exec("def made(s, tip):\n    s += tip + lmc.gen('x', max_tokens=3)\nasync def later(s, tip):\n    s += tip + lmc.gen('x', max_tokens=3)", MADE)
made, later = lmc.function(MADE["made"]), lmc.function(MADE["later"])


class Callable:
    __name__ = "callable"

    def __call__(self, s: Any, tip: str) -> None:
        s += tip + lmc.gen("x", max_tokens=2)


called = lmc.function(Callable())


@case()
def children_without_source(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    effect("before", s["a"])
    s += made(tip=q, top_p=0.5)["x"] + called.run(tip=s["a"])["x"]
    effect("after")


@case()
async def async_children_without_source(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    effect("before", s["a"])
    s += (await later.arun(tip=q))["x"] + made(tip=s["a"])["x"]
    effect("after")


@case()
def compiled_inside(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    states = FAST.batch([{"tip": s["a"]}, {"tip": "b"}], seed=3)
    one = FAST(tip="one", seed=4)
    s += "".join(c["x"] for c in states) + one["x"] + lmc.gen("z", max_tokens=2)
    return one.ret_value


class Session:
    def __init__(self, name: str) -> None:
        self.name = name

    async def __aenter__(self) -> Session:
        effect("open", self.name)
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        await asyncio.sleep(0)
        effect("close", self.name, kind and kind.__name__)
        return kind is KeyError

    async def get(self, q: str) -> str:
        effect("get", q)
        await asyncio.sleep(0)
        return f"<{self.name}:{q}>"


@case()
async def sessions(s: Any, q: str) -> Any:
    async with Session("outer") as one, Session(q) as two:
        s += await one.get(q) + lmc.gen("a", max_tokens=3)
        async with Session("inner") as three:
            s += await three.get(s["a"])
            raise KeyError(s["a"])
        s += await two.get(s["a"]) + lmc.gen("b", max_tokens=3)
    return s["b"]


@case()
async def early_out_of_sessions(s: Any, q: str) -> Any:
    for i in range(3):
        async with Session(f"{q}{i}") as one:
            s += await one.get(q) + lmc.gen("a", max_tokens=3)
            if i == 1:
                return s["a"], await one.get("end")


@contextlib.asynccontextmanager
async def turn(s: Any, name: str) -> AsyncIterator[str]:
    s += f"<{name}>"
    try:
        yield name + s.text()[:2]
    finally:
        s += f"</{name}>"
        effect("left", name)


@case()
async def managers_of_the_program(s: Any, q: str) -> Any:
    async with turn(s, q) as t:
        s += t + lmc.gen("a", max_tokens=3)
    try:
        async with turn(s, "again"):
            raise ValueError(s["a"])
    except ValueError as error:
        s += str(error)
    return s["a"]


@case()
async def locks(s: Any, q: str) -> Any:
    lock, room = asyncio.Lock(), asyncio.Semaphore(2)
    s += q
    async with lock:
        s += lmc.gen("a", max_tokens=2)
        async with room:
            s += s["a"] + str(lock.locked())
    return lock.locked()


@case(ahead=False)  # what it reads depends on how long answers take
async def tasks_of_states(s: Any, q: str) -> Any:
    s += q

    async def ask(f: Any, i: int) -> str:
        f += f"{i}" + lmc.gen("a", max_tokens=3)
        effect("asked", i)
        await asyncio.sleep(0)
        effect("answered", i, f["a"])
        return f["a"]

    forks = s.fork(3)
    tasks = [asyncio.create_task(ask(f, i)) for i, f in enumerate(forks)]
    effect("made")
    s += "main" + await tasks[1]
    async with asyncio.TaskGroup() as group:
        more = [group.create_task(ask(f, i + 3)) for i, f in enumerate(forks)]
    done = [await t for t in asyncio.as_completed(tasks)]
    return sorted(done), [t.result() for t in more]


@pytest.mark.parametrize("name", cases(globals()))
def test_means_the_same_in_every_execution(name: str) -> None:
    one: Case = cases(globals())[name]
    one.check()
