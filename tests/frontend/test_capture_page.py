"""The table of docs/capture.md: what is captured, what the interpreter finishes, and what it runs from the start."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import enum
import heapq
import inspect
import json
import re
import threading
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

import lmc
from lmc import Mock, assistant, gen, select, user

PAGE = Path(__file__).parent.parent.parent / "docs" / "capture.md"
ROWS: dict[str, Any] = {}
"""What a row of the table says → a program that does that."""


def row(what: str) -> Any:
    def enter(fn: Any) -> Any:
        ROWS[what] = fn
        return fn

    return enter


def tool(x: Any) -> list[str]:
    return [str(x), "two"]


@row("`if`, `while`, `for`, `break`, `else` on answers and on what tools return")
def control_flow(s, q):
    while len(s.text()) < 30:
        s += q + gen("x", max_tokens=4)
        if s["x"].strip():
            continue
        break
    else:
        s += "!"
    for item in tool(s["x"]):
        s += item


@row("string methods, f-strings, `%`, `.format`, slices, chained comparisons, `in`")
def strings(s, q):
    s += q + gen("x", max_tokens=8)
    s += f"{s['x'].strip()!r:>12} " + "%s-" % (s["x"],) + "{}".format(s["x"][1:3])  # noqa: UP031
    return 0 <= len(s["x"]) < 99 and q in s.text()


@row("`select` and branches on it, explored ahead")
def branch(s, q):
    s += q + select("x", ["a", "b"])
    if s["x"] == "a":
        s += gen("y", max_tokens=2)


@row("forks, nested forks, both joins, `copy`, scopes, roles as blocks")
def forks(s, q):
    with s.user():
        s += q
    outer = s.fork(2)
    for f in outer:
        inner = f.fork(2)
        inner += lambda i: str(i) + gen("x", max_tokens=2)
        inner.join("concate_and_append")
    outer.join()
    with s.copy() as draft, draft.var_scope("note"):
        draft += gen("y", max_tokens=2)


@row("helpers that take states, return expressions or close over the state; recursion")
def helpers(s, q):
    def deeper(state, n):
        state += str(n) + gen("x", max_tokens=2)
        return deeper(state, n - 1) if n else state["x"]

    def turn(question):
        return user(question) + assistant(gen("y", max_tokens=2))

    s += turn(q)
    return deeper(s, 2)


@lmc.function
def child(s, tip):
    s += tip + gen("x", max_tokens=2)


@row("calls of other programs, also with `temperature`, `top_p`, `stop` and the like")
def sub_program(s, q):
    a, b = child(tip=q), child(tip=q + "!", temperature=0.2)
    s += a["x"] + b["x"]


@row("those with `seed`, `n`, `max_new_tokens`, `backend`, `budget`; `run_batch` and compiled programs inside of a program")
def sub_program_of_its_own(s, q):
    s += child(tip=q, seed=3)["x"] + gen("y", max_tokens=2)
    s += "".join(c["x"] for c in child.run_batch([{"tip": q}]))


@dataclasses.dataclass
class Note:
    text: Any
    marks: list[Any] = dataclasses.field(default_factory=list)

    def show(self) -> Any:
        return f"{self.text}:{len(self.marks)}"


class Pair(NamedTuple):
    state: Any
    text: Any


@row("classes, dataclasses, named tuples and dicts of your own that hold states or answers")
def own_classes(s, q):
    s += q + gen("x", max_tokens=2)
    note = Note(s["x"])
    pair, held = Pair(s, q), {"state": s}
    held["state"] += pair.text + gen("y", max_tokens=2)
    note.marks.append(s["x"])
    s += note.show()


@row("lists, dicts, sets and comprehensions that the program makes")
def containers(s, q):
    s += q + gen("x", max_tokens=4)
    found = [c.upper() for c in s["x"].split()] + [q]
    more = {"b": q}
    table = {"a": s["x"], **more}
    s += ",".join(sorted(table)) + str(len({*found})) + table["a"]


@row("`sorted`, `max`, `min`, `any`, `all`, `sum`, `zip`, `enumerate`, `map`, `filter` over answers")
def builtins(s, q):
    group = s.fork(3)
    group += gen("x", max_tokens=3)
    best = max(group, key=lambda f: len(f["x"]))
    s += best["x"] + str(any("a" in f["x"] for f in group)) + "".join(f["x"] for f in sorted(group, key=lambda f: f["x"]))
    s += str(sum(map(len, [f["x"] for f in group])))


@row("sorting of tuples that hold states (`max((score, i, fork) for …)`), heaps of them (`heapq`)")
def ranks(s, q):
    forks = s.fork(2)
    forks += q + gen("v", max_tokens=2)
    heap = sorted((f["v"], i, f) for i, f in enumerate(forks))
    heapq.heappush(heap, ("", 2, s))
    s += heapq.heappop(heap)[0]


@row("tools, `json.loads`, `re`, any function of a library: as host calls")
def host_calls(s, q):
    s += q + gen("x", max_tokens=4)
    s += json.loads('{"a": "b"}')["a"] + "".join(re.findall("[a-z]", s["x"])) + tool(s["x"])[1]


@row("globals, closures and defaults, read and written")
def outside(s, q, marks=("!",)):
    global COUNT
    COUNT += 1
    s += q + marks[0] + gen("x", max_tokens=2)


COUNT = 0


@row("unpacking, star arguments, walrus, conditional expressions, `match` on values")
def syntax(s, q):
    s += q + gen("x", max_tokens=3)
    first, *rest = (s["x"], q, q)
    if (n := len(first)) > 1:
        s += str(n)
    match first[:1]:
        case "a" | "b":
            s += "early"
        case _:
            s += "late"
    return tool(*[rest[0]])


@row("returning a state: its own, a fork, a sub-program's, some of them in a tuple")
def returned(s, q):
    f = s.fork(2)
    f += q + gen("x", max_tokens=2)
    return s, f[0], child(tip=q)


async def slow_tool(x: Any) -> str:
    return f"{x}?"


@row("`async def` with awaited tools, run by `acall` or `abatch`")
async def awaits(s, q):
    s += q + gen("x", max_tokens=2)
    s += await slow_tool(s["x"])


async def later(n: int) -> Any:
    for i in range(n):
        yield i


async def turns(s: Any, n: int) -> Any:
    for _ in range(n):
        s += gen("t", max_tokens=2)
        yield s["t"]


async def turn_later(f: Any) -> str:
    f += "turn " + gen("t", max_tokens=2)
    return await slow_tool(f["t"])


@row("`async for`, async comprehensions, helpers and generators; tools that are gathered")
async def iterates_later(s, q):
    s += q + await turn_later(s)
    async for i in later(2):
        s += f"{i}"
    texts = [t async for t in turns(s, 2)] + await asyncio.gather(slow_tool(1), slow_tool(2))
    s += "".join(texts)


@row("`await asyncio.gather(ask(f1), ask(f2))` of helpers that ask and compute, or of programs")
async def gathers_what_asks(s, q):
    async def ask(f):
        f += q + gen("v", max_tokens=3)
        return f["v"].strip()

    s += " ".join(await asyncio.gather(*[ask(f) for f in s.fork(2)]))


@row("tasks that use a state and await tools, branch on answers or have effects; `create_task` and a `TaskGroup` of any that use one")
async def gathers_states(s, q):
    s += q
    return await asyncio.gather(*[turn_later(f) for f in s.fork(2)])


@row("`async with` of a library's manager: sessions, locks, `asyncio.timeout`, a `TaskGroup` of tools")
async def enters_later(s, q):
    s += q + gen("x", max_tokens=2)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(slow_tool(q))
        s += await slow_tool(s["x"])
    s += task.result()


@contextlib.asynccontextmanager
async def section(s, name):
    s += f"<{name}>"
    yield name
    s += f"</{name}>"


class Sitting:
    def __init__(self, s):
        self.s = s

    async def __aenter__(self):
        self.s += await slow_tool("open")
        return self.s

    async def __aexit__(self, *error):
        self.s += await slow_tool("close")


@row("`async with` of an `@asynccontextmanager`, or a class, of your own that uses a state")
async def enters_its_own(s, q):
    async with section(s, q), Sitting(s) as t:
        t += gen("x", max_tokens=2)


@row("what a time-out or a failing task cancels")
async def is_cancelled(s, q):
    s += q + gen("x", max_tokens=2)
    try:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(1)
    except TimeoutError:
        s += "late"


@row("`try`, `except`, `finally` around what does not raise")
def tries(s, q):
    s += q + gen("x", regex="[0-9]", max_tokens=2)
    try:
        n = int(s["x"])
    except ValueError:
        n = 0
    finally:
        s += "done"
    return n


@row("`try` whose handler runs")
def handlers(s, q):
    s += q + gen("x", regex="[a-z]", max_tokens=2)
    try:
        return int(s["x"])
    except ValueError as error:
        s += "no number" + gen("y", max_tokens=2)
        return str(error)


@row("`raise` of an exception that leaves the program")
def raises(s, q):
    s += q + gen("x", max_tokens=2)
    if s["x"]:
        raise ValueError("no")


@row("`with` of your own or a library's context manager")
def managers(s, q):
    s += q + gen("x", max_tokens=2)
    with LOCK:
        s += tool(s["x"])[0]


LOCK = threading.Lock()


@row("a generator expression or generator function over states")
def generators(s, q):
    def steps():
        for i in range(2):
            s.__iadd__(str(i) + gen("x", max_tokens=2))
            yield s["x"]

    return "".join(steps())


@row("`match` with patterns for sequences, mappings and classes")
def patterns(s, q):
    s += q + gen("x", max_tokens=2)
    match json.loads('{"kind": "list", "items": [1, 2]}'):
        case {"kind": "list", "items": [first, *_]}:
            s += str(first)
        case _:
            s += "?"


@row("`separate_reasoning`")
def reasoning(s, q):
    s += q + lmc.separate_reasoning(gen("x", max_tokens=8), model_type="qwen3")


@row("`n > 1`, log-probabilities and other meta info")
def meta(s, q):
    s += q + gen("x", n=2, max_tokens=2) + gen("y", max_tokens=2, return_logprob=True)
    return s["x"], s.get_meta_info("y")["completion_tokens"]


@row("`s.error()` inside the program")
def error(s, q):
    s += q + gen("x", max_tokens=2)
    if s.error() is None:
        s += "fine"


@row("`s.usage` inside the program")
def usage(s, q):
    s += q + gen("x", max_tokens=2)
    return s.usage.calls


class Thoughts:
    def __init__(self, s):
        self.s = s

    @property
    def last(self):
        return self.s["x"]

    def __iadd__(self, text):
        self.s += text + gen("x", max_tokens=2)
        return self

    def __iter__(self):
        return iter([self.last, "end"])


@row("operators, properties, iteration and `__getattr__` of your own classes that hold states")
def protocols(s, q):
    thoughts = Thoughts(s)
    thoughts += q
    return thoughts.last, list(thoughts)


class Scored:
    def __init__(self, s):
        self.s = s

    def __lt__(self, other):
        return self.s["x"] < other.s["x"]

    def __enter__(self):
        return self

    def __exit__(self, cls, error, traceback):
        return cls is ValueError


@row("`sorted`, `max`, `min` by your own `__lt__` and `__gt__`; a tool's exception that your own `__exit__` handles")
def ordered_and_forgiven(s, q):
    group = s.fork(3)
    group += q + gen("x", regex="[a-z]{2}")
    least = min([Scored(f) for f in group])
    with least:
        int(least.s["x"])
    return [one.s["x"] for one in sorted([Scored(f) for f in group])]


class Branch:
    def __init__(self, s, name):
        self.s, self.name, self.notes = s, name, []

    @classmethod
    def of(cls, s):
        return cls(s, "first")

    def ask(self, text):
        self.s += text + gen("x", max_tokens=2)
        self.notes.append(self.s["x"])
        return self.notes[-1]


@row("class methods that make such instances; `copy.copy` of them, `copy.deepcopy` of those without states")
def made_and_copied(s, q):
    branch = Branch.of(s)
    branch.ask(q)
    other = copy.copy(branch)
    other.name = other.ask("b")
    del branch.s
    deep = copy.deepcopy(branch)
    deep.notes.append(q)
    return branch.notes, deep.notes, other.name


@row("enums and models of Pydantic that the program makes, from what constants say")
def levels(s, q):
    class Level(enum.Enum):
        LOW = "low"
        HIGH = "high"

    class Verdict(BaseModel):
        level: Level
        why: str = ""

    s += q + gen("x", dtype=Level)
    verdict = Verdict(level=Level(s["x"]))
    s += "high" if verdict.level is Level.HIGH else "low"
    return verdict.model_dump_json()


@row("exceptions of classes that the program makes")
def own_exceptions(s, q):
    class Again(Exception):
        pass

    def ask():
        s.__iadd__(q + gen("x", max_tokens=2))
        raise Again(s["x"])

    for _ in range(2):
        try:
            ask()
        except Again as error:
            s += str(error)


@row("`match` on a named tuple that holds a state; its `_replace`")
def matched_pair(s, q):
    s += q + gen("x", max_tokens=2)
    match Pair(s, q):
        case Pair(state, text):
            state += text


@row("a class statement whose base has an `__init_subclass__`")
def registers(s, q):
    class Base:
        def __init_subclass__(cls):
            cls.name = cls.__name__

    class Inner(Base):
        pass

    s += q + Inner.name + gen("x", max_tokens=2)


@row("classes and functions that the program makes, and attributes that it gives them (`inner.calls += 1`)")
def definitions(s, q):
    class Box:
        n = 0

    def inner():
        inner.calls += 1
        Box.n += 2

    inner.calls = 0
    s += q + gen("x", max_tokens=2)
    inner()
    return Box.n, inner.calls


@row("an instance of a class with a `__del__` of its own")
def ends(s, q):
    class Session:
        def __del__(self):
            tool("closed")

    s += q + gen("x", max_tokens=2)
    Session()
    return s["x"]


@row("an exception of such a class, one of whose methods changes the class or a variable of the program; an enum in which it stores something")
def counted_exceptions(s, q):
    class Again(Exception):
        count = 0

        def __init__(self, why):
            super().__init__(why)
            Again.count += 1

    s += q + gen("x", max_tokens=2)
    return Again(s["x"]).count


@row("a class that the program makes, handed to a tool; `repr()`, `print()` or `f\"{s}\"` of a state")
def shown(s, q):
    s += q + gen("x", max_tokens=2)
    return len(s["x"]), len(f"{s}") > 0


@row("`hash()` of answers")
def hashes(s, q):
    s += q + gen("x", max_tokens=2)
    return hash(s["x"]) * 0


@row("`id()` of anything")
def identities(s, q):
    s += q + gen("x", max_tokens=2)
    return id(s["x"]) * 0


@row("a list the program made, handed to a tool that may keep it")
def handed(s, q):
    s += q + gen("x", max_tokens=2)
    found = [s["x"]]
    KEPT.append(found)
    found.append(q)
    return len(found)


KEPT: list[Any] = []


@row("a callback that closes over an answer, handed to a library")
def callbacks(s, q):
    s += q + gen("x", max_tokens=2)
    answer = s["x"]
    return re.sub("a", lambda m: answer, "banana")


@row("a callback that stores its variables, or reaches a state, handed to a library")
def counting_callbacks(s, q):
    s += q + gen("x", max_tokens=2)
    n = 0

    def count(m):
        nonlocal n
        n += 1
        return str(n)

    return re.sub("a", count, "banana"), n


@row("`with` of a `@contextmanager` function of your own that uses a state, also with `try` around its `yield`")
def own_managers(s, q):
    @contextlib.contextmanager
    def turn():
        try:
            with s.user():
                yield q
        finally:
            s.__iadd__("-")

    with turn() as text:
        s += text
    s += gen("x", max_tokens=2)


def cleaned_up(s):
    try:
        s += gen("x", max_tokens=2)
        yield s["x"]
    finally:
        s += "-"


@row("a generator function with `yield` inside of `try` or `with`, run to its end by `for`, `list`, `tuple`, `set`, `sorted`, `sum`, `join` or `*`")
def run_to_its_end(s, q):
    s += q
    for x in cleaned_up(s):
        s += x
    return list(cleaned_up(s)), "".join(cleaned_up(s)), [*cleaned_up(s)]


@row("one that is left before its end, kept under a name, or called by another generator")
def left_early(s, q):
    s += q
    for _ in cleaned_up(s):
        break


@row("one that is async or catches `BaseException`, and a manager that does")
def catches_all(s, q):
    def steps():
        try:
            s.__iadd__(gen("x", max_tokens=2))
            yield s["x"]
        except BaseException:
            raise

    s += q
    return list(steps())


@row("`*args`, `**kwargs` as parameters of the program")
def many(s, *args, **kwargs):
    s += args[0] + "".join(kwargs) + gen("x", max_tokens=2)


def shout(x: Any) -> Any:
    return x + gen("x", max_tokens=2)


def define_shout() -> None:
    global shout
    shout = lambda x: x.upper() + gen("x", max_tokens=2)


@row("a function or class of the module that a tool defines anew while the program runs")
def defined_anew(s, q):
    s += shout(q)
    define_shout()
    s += shout(q)


@row("`yield` in the program itself")
def yields(s, q):
    s += q + gen("x", max_tokens=2)
    yield s["x"]


@row("`eval` of a text that names a state or a list of the program")
def evaluates_a_list(s, q):
    s += q + gen("x", max_tokens=2)
    found = [1]  # noqa: F841
    return eval("len(found)")


@row("`exec`, `globals()`")
def execs(s, q):
    s += q + gen("x", max_tokens=2)
    exec("pass")


@row("`eval(text)`, `locals()`")
def evals(s, q):
    s += q + gen("x", regex="[1-9]\\+[1-9]", max_tokens=4)
    s += str(eval(s["x"])) + str(len(locals())) + "{q}".format(**locals())


namespace: dict[str, Any] = {"gen": gen}
exec("def no_source(s, q):\n    s += q + gen('x', max_tokens=2)", namespace)
row("a function without source (made by `exec`, a `functools.partial`, a builtin)")(namespace["no_source"])


@row("a state, or an expression, as an argument")
def handed_a_state(s, q):
    s += q.text() if isinstance(q, lmc.State) else q


def outcome(program: Any) -> str:
    """Whether compiled runs of a program are "captured", "finished by the interpreter", or run in the "interpreter"."""
    mock = Mock()
    fast = lmc.compile(lmc.function(program), backend=mock)
    argument = child(tip="tip", backend=mock) if program is handed_a_state else "q"
    with warnings.catch_warnings(), contextlib.suppress(ValueError):
        warnings.simplefilter("ignore")
        for _ in range(2):
            asyncio.run(fast.acall(argument)) if inspect.iscoroutinefunction(program) else fast(argument)
    if fast.interpreted is not None or (program is handed_a_state and fast._notices.said):
        return "interpreter"
    return "finished by the interpreter" if fast.stats.replays else "captured"


def table() -> dict[str, str]:
    """The rows of the page's table."""
    return dict(re.findall(r"^\| (.+) \| (captured|finished by the interpreter|interpreter) \|$", PAGE.read_text(), re.MULTILINE))


def test_the_table_has_every_program():
    assert table().keys() == ROWS.keys()


@pytest.mark.parametrize("what", ROWS)
def test_the_table_is_right(what):
    assert table()[what] == outcome(ROWS[what]), "change the row in docs/capture.md"


if __name__ == "__main__":  # prints the table as it is now
    for what, program in ROWS.items():
        print(f"| {what} | {outcome(program)} |")
