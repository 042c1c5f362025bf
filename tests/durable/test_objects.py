"""Objects that a program makes: they are made again when a run is resumed, with what was done to them, and need not be data."""

from __future__ import annotations

import asyncio
import cmd
import contextlib
import contextvars
import copy
import csv
import difflib
import functools
import hashlib
import io
import json
import logging
import operator
import os
import pickle
import queue
import random
import sys
import threading
import types
from abc import ABCMeta
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from collections.abc import Iterator, MutableMapping, MutableSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import attrs
import pydantic
import pytest

import lmc
from lmc.durable import records
from lmc.durable.known import KnownEffects
from lmc.errors import JournalError
from tests.durable.resuming import CALLS, recorded, resumes_anywhere
from tests.searching import some

TOPIC = contextvars.ContextVar("TOPIC", default="none")
LOGGER = logging.getLogger("lmc-test")
Item = TypeVar("Item")


def tool(x: Any) -> str:
    CALLS.append(("tool", x))
    return f"<{x}>"


# -- classes of the program's own --------------------------------------------------------------------------------------


class Memory(Generic[Item]):
    """Knows nothing of lmc."""

    def __init__(self, most: int = 3) -> None:
        self.items: list[Any] = []
        self.most = most

    @classmethod
    def of(cls, text: str) -> Memory[Any]:
        made = cls(len(text))
        made.add(text)
        return made

    def add(self, item: Any) -> None:
        self.items = [*self.items, item][-self.most :]

    @property
    def text(self) -> str:
        return "|".join(map(str, self.items))


class Counter:
    n = 0

    def count(self) -> int:
        self.n += 1
        return self.n


class Node:
    __slots__ = ("children", "move", "parent", "state", "visits")

    def __init__(self, state: Any, parent: Node | None = None, move: str = "") -> None:
        self.state, self.parent, self.move, self.visits, self.children = state, parent, move, 0, list[Node]()
        if parent is not None:
            parent.children.append(self)

    def visit(self) -> int:
        self.visits += 1
        return self.visits if self.parent is None else self.parent.visit()


@dataclass
class Leaf:
    n: int = 0
    parent: Leaf | None = None
    children: list[Leaf] = field(default_factory=list)

    def grow(self) -> Leaf:
        self.children.append(Leaf(self.n + 1, self))
        return self.children[-1]


class Table(dict[str, Any]):
    """A container with methods of its own."""

    def put(self, name: str, value: Any) -> Table:
        self[name] = value
        return self


class Limit:
    """A manager whose end is a tool's call."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __enter__(self) -> Limit:
        self.left -= 1
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        tool(self.left)
        return kind is ValueError


class Grader:
    def __init__(self, scale: str) -> None:
        self.scale, self.given = scale, list[str]()

    @lmc.function
    def grade(self, s: Any, q: str) -> str:
        s += f"{self.scale} {q}" + lmc.gen("g", max_tokens=2)
        self.given.append(s["g"])
        return s["g"]


def remembering(x: str) -> Memory[Any]:
    made = Memory[Item](2)
    made.add(x.strip())
    LOGGER.info("remembers %s", x)
    return made


@lmc.function
def remembers(s: Any) -> Any:
    memory, counter, other, made = Memory(), Counter(), Memory.of("abc"), remembering(" x ")
    for i in range(2):
        s += f"{i} {memory.text}" + lmc.gen("a", max_tokens=3)
        memory.add(s["a"])
        counter.count()
        other.add(tool(s["a"]))
        made.add(counter.n)
    s += memory.text + other.text + made.text + lmc.gen("b", max_tokens=2)
    return memory.items, counter.n, other.items, made.items


@lmc.function
def fills_containers(s: Any) -> Any:
    table, frontier, found = Table(a=1), queue.PriorityQueue[Any](), []
    frontier.put((0, "q"))
    while not frontier.empty() and len(found) < 3:
        cost, text = frontier.get()
        s += f"{table.put('b', cost)} {text}" + lmc.gen("x", max_tokens=2)
        found.append(tool(s["x"]))
        table.update(last=s["x"])
        frontier.put((cost + 1, s["x"]))
    return dict(table), found


@lmc.function
def enters_and_leaves(s: Any) -> Any:
    limit = Limit(3)
    while limit.left:
        with limit:
            s += f"{limit.left}" + lmc.gen("x", max_tokens=2)
            if limit.left == 1:
                raise ValueError(s["x"])
    return s["x"]


class Door(contextlib.ContextDecorator):
    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> str:
        return tool(f"open {self.name}")

    def __exit__(self, *_: Any) -> None:
        tool(f"close {self.name}")

    async def __aenter__(self) -> str:
        return self.__enter__()

    async def __aexit__(self, *_: Any) -> None:
        self.__exit__()

    def close(self) -> None:
        CALLS.append(("Door.close", self.name))

    async def aclose(self) -> None:
        CALLS.append(("Door.aclose", self.name))


@lmc.function
def opens_doors(s: Any) -> Any:
    """By hand, and by the library."""
    first = Door("1")
    s += first.__enter__() + lmc.gen("a", max_tokens=2)
    with contextlib.ExitStack() as stack:
        stack.push(Door("2"))
        s += stack.enter_context(Door("3")) + lmc.gen("b", max_tokens=2)
        s["b"]
    Door.__exit__(first)
    with contextlib.closing(first) as same:
        return s["b"], same is first


@lmc.function
async def opens_doors_slowly(s: Any) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_exit(Door("1"))
        stack.push(Door("2"))
        s += await stack.enter_async_context(Door("3")) + stack.enter_context(Door("4")) + lmc.gen("a", max_tokens=2)
        s += tool(s["a"])
    async with contextlib.aclosing(Door("5")):
        s += lmc.gen("b", max_tokens=2)
    return s["b"]


@lmc.function
async def awaits_objects(s: Any) -> Any:
    """Of a class that the program defines, of which instances are functions."""

    class Slow:
        def __init__(self, mark: str) -> None:
            self.mark = mark

        async def __call__(self, x: str) -> str:
            return tool(x + self.mark)

    s += lmc.gen("a", max_tokens=2)
    slow = Slow("!")
    s += await slow(s["a"]) + lmc.gen("b", max_tokens=2)
    return await asyncio.gather(slow("c"), Slow("?")("d"))


@lmc.function
def grows_a_tree(s: Any) -> Any:
    root, leaf = Node(s), Leaf()
    for i, f in enumerate(s.fork(2)):
        f += f"{i}" + lmc.gen("move", max_tokens=2)
        child, below = Node(f, root, f["move"]), leaf.grow()
        child.visit()
        below.grow().n += int(tool(i)[1])
    s += f"{root.visits} {[c.move for c in root.children]}" + lmc.gen("a", max_tokens=2)
    return root.children[0].parent is root, leaf.children[1].children[0].n, leaf.children[0].parent is leaf


@dataclass
class Page:
    text: str
    notes: list[str] = field(default_factory=lambda: ["new"])
    links: list[Page] = field(default_factory=list)


def linked(page: Page, text: str) -> Page:
    CALLS.append(("linked", text))
    page.links.append(Page(text))
    return page.links[-1]


def last(page: Page) -> Page:
    CALLS.append(("last", len(page.links)))
    return page.links[-1]


@lmc.function
def keeps_what_tools_give_of_it(s: Any) -> Any:
    page = Page("q")
    found = linked(page, "r")
    s += page.text + lmc.gen("a", max_tokens=2)
    found.notes.append(s["a"])
    last(page).text += "!"
    s += f"{page}" + lmc.gen("b", max_tokens=2)
    return page.links[0] is found, page


@lmc.function
def calls_programs_of_its_objects(s: Any) -> Any:
    grader = Grader("A to F")
    found = [grader.grade(x).ret_value for x in "ab"]
    s += "".join(grader.given) + tool(found[0]) + lmc.gen("z", max_tokens=2)
    return grader.given == found


@lmc.function
def defines_a_model(s: Any) -> Any:
    class Found(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        kind: Literal["person", "place"] = pydantic.Field(description="what it is")
        tags: list[str] = pydantic.Field(default_factory=list, max_length=1)

        @pydantic.field_validator("kind")
        @classmethod
        def checked(cls, kind: str) -> str:
            return kind.lower()

    s += "q" + lmc.gen("found", dtype=Found, max_tokens=60)
    found = s.parsed("found", Found)
    s += tool(found.kind) + lmc.gen("z", max_tokens=2)
    return found.kind, Found(kind="place").model_dump()


def logged(level: int) -> Any:
    """A decorator of the user's that has nothing to do with lmc."""

    def decorate(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any) -> Any:
            LOGGER.log(level, fn.__name__)
            return fn(*args)

        return inner

    return decorate


@lmc.function
def decorates_inside(s: Any) -> Any:
    @logged(logging.DEBUG)
    def ask(x: str) -> str:
        s.__iadd__(x + lmc.gen("a", max_tokens=2))
        return s["a"]

    s += logged(logging.DEBUG)(tool)(ask("q")) + lmc.gen("b", max_tokens=2)
    return ask.__name__, operator.methodcaller("note", s["b"])(NOTES)


class Notes:
    def note(self, x: str) -> str:
        CALLS.append(("methodcaller", x))
        return x


NOTES = Notes()


# -- objects of Python that live in memory ----------------------------------------------------------------------------


@lmc.function
def draws_by_a_seed(s: Any) -> Any:
    numbers, names = random.Random(5), ["a", "b", "c", "d"]
    numbers.shuffle(names)
    s += f"{names} {numbers.choice(names)}" + lmc.gen("a", max_tokens=2)
    return names, tool(numbers.randint(0, 100)), numbers.sample(range(100), 3), random.Random(s["a"]).random()


def fills(space: types.SimpleNamespace) -> None:
    CALLS.append(("fills", 1))
    space.filled = ["by", "a tool"]


@lmc.function
def writes_in_memory(s: Any) -> Any:
    out, space = io.StringIO(), types.SimpleNamespace(n=1)
    rows = csv.writer(out)
    rows.writerow([1, tool("x")])
    fills(space)
    s += out.getvalue() + f"{space}" + lmc.gen("a", max_tokens=2)
    table = csv.DictWriter(out, ["a", "b"])
    table.writerow({"a": s["a"], "b": difflib.SequenceMatcher(None, "abc", "abd").ratio()})
    space.n += 1
    read = list(csv.DictReader(io.StringIO("k\nv\n")))
    return out.getvalue(), hashlib.sha256(s["a"].encode()).hexdigest(), space.filled, space.n, read


@dataclass
class Desk:
    out: io.StringIO = field(default_factory=io.StringIO)
    inbox: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue, init=False)

    def __post_init__(self) -> None:
        self.inbox.put("first")


@lmc.function
def has_fields_in_memory(s: Any) -> Any:
    desk, other = Desk(), Desk(io.StringIO("given"))
    desk.out.write("begun")
    desk.inbox.put(tool("x"))
    s += desk.out.getvalue() + lmc.gen("a", max_tokens=2)
    desk.out.write(s["a"])
    return desk.out.getvalue(), desk.inbox.get(timeout=1), desk.inbox.get(timeout=1), other.out.read()


def named() -> str:
    CALLS.append(("named",))
    return "a die"


@dataclass
class Dice:
    numbers: random.Random = field(default_factory=lambda: random.Random(5))
    late: random.Random = field(default_factory=lambda: random.Random(6), init=False)
    name: str = field(default_factory=named)
    rolls: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def roll(self, who: str) -> int:
        self.rolls[who].append(self.numbers.randrange(100) + self.late.randrange(100))
        return self.rolls[who][-1]


@lmc.function
def draws_from_a_field(s: Any) -> Any:
    dice, other = Dice(), Dice(random.Random(7), name="given")
    s += str(dice.roll("a")) + tool("x") + lmc.gen("a", max_tokens=2)
    s += str(dice.roll("b") + other.roll("b")) + lmc.gen("b", max_tokens=2)
    return dice.roll(tool(s["b"])), dice.name, other.name, dict(dice.rolls)


@lmc.function
def sets_context_variables(s: Any) -> Any:
    token = TOPIC.set("tea")

    def within() -> str:
        TOPIC.set("rain")
        s.__iadd__(TOPIC.get() + tool("in") + lmc.gen("a", max_tokens=2))
        return s["a"]

    try:
        context = contextvars.copy_context()
        found = context.run(within), context[TOPIC], TOPIC.get()
    finally:
        TOPIC.reset(token)
    s += TOPIC.get() + lmc.gen("b", max_tokens=2)
    return found, TOPIC.get()


@lmc.function
def works_on_threads(s: Any) -> Any:
    def work(f: Any, i: int) -> str:
        f += f"{i}" + lmc.gen("v", max_tokens=2)
        return tool(f["v"])

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, f, i) for i, f in enumerate(s.fork(2))]
        found = [future.result() for future in futures] + list(pool.map(tool, "xy"))
    made = defaultdict(functools.partial(tool, "d"), {"k": "v"})
    s += "".join(found) + made["k"] + made["other"] + lmc.gen("z", max_tokens=2)
    return found, dict(made)


class Shout:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __call__(self, x: str) -> str:
        CALLS.append(("Shout.__call__", x))
        return x + self.mark


@lmc.function
def calls_objects_on_threads(s: Any) -> Any:
    """One of the program, and one from outside."""
    found, shout = list[str](), Shout("!")
    s += lmc.gen("a", max_tokens=2)
    with ThreadPoolExecutor(1) as pool:
        found += [pool.submit(shout, s["a"]).result(), *pool.map(LOUD, "xy"), pool.submit(tool, "z").result()]
    thread = threading.Thread(target=shout, args=("t",))
    thread.start()
    thread.join()
    s += contextvars.copy_context().run(LOUD, "c") + lmc.gen("b", max_tokens=2)
    with contextlib.ExitStack() as stack:
        stack.callback(shout, "left")
        found += [*map(shout, "pq"), *sorted("ba", key=LOUD), max("ab", key=shout), functools.reduce(JOIN, "ab")]
    return found, s["b"]


class Join:
    def __call__(self, a: str, b: str) -> str:
        CALLS.append(("Join.__call__", a, b))
        return a + b


LOUD, JOIN = Shout("!!"), Join()


@lmc.function
def exits(s: Any) -> Any:
    s += lmc.gen("a", max_tokens=2)
    try:
        sys.exit(3)
    except SystemExit as left:
        return left.code, tool(s["a"])


class Folder:
    def __init__(self, name: Any = "new") -> None:
        self.name, self.files, self.within = name, list[str](), list[Folder]()

    def put(self, x: str) -> None:
        CALLS.append(("Folder.put", x))
        self.files.append(x)


@lmc.function
def copies_objects(s: Any) -> Any:
    folder = Folder("a")
    folder.within.append(Folder("b"))
    folder.put("one")
    shallow, deep, bare = copy.copy(folder), copy.deepcopy(folder), object.__new__(Folder)
    bare.files = []
    for n, other in enumerate((shallow, deep, deep.within[0], bare)):
        other.put(f"two {n}")
    s += "|".join(deep.files) + lmc.gen("a", max_tokens=2)
    shallow.put("three")
    return [x.files for x in (folder, shallow, deep, folder.within[0], deep.within[0], bare)], shallow.within is folder.within


@lmc.function
def makes_objects_by_the_library(s: Any) -> Any:
    shelves = defaultdict(Folder, {"given": Folder("given")})
    read = json.loads('{"x": 1}', object_hook=Folder)
    with ThreadPoolExecutor(1) as pool:
        found = [shelves["given"], shelves["new"], read, *pool.map(Folder, "ab"), operator.call(Folder, "c"), pool.submit(Folder, "d").result()]
    for n, folder in enumerate(found):
        folder.put(f"one {n}")
    s += str([folder.files for folder in found]) + repr(defaultdict(Folder)) + lmc.gen("a", max_tokens=2)
    found[-1].put("two")
    return [folder.files for folder in found]


class Settings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    level: int = 0

    def raise_to(self, level: int) -> None:
        CALLS.append(("Settings.raise_to", level))
        self.level = level
        self.more = level  # pyright: ignore[reportAttributeAccessIssue]


@lmc.function
def changes_models(s: Any) -> Any:
    settings = Settings(name="x")
    settings.raise_to(3)
    s += settings.model_dump_json(exclude_unset=True) + lmc.gen("a", max_tokens=2)
    settings.raise_to(4)
    return settings.model_dump(exclude_unset=True), sorted(settings.model_fields_set)


class Basket(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_assignment=True)
    count: int = 0
    _log: list[int] = pydantic.PrivateAttr(default_factory=list)

    def fill(self, more: int) -> None:
        CALLS.append(("Basket.fill", more))
        self._log.append(more)
        self.count += more

    @property
    def log(self) -> list[int]:
        return self._log


@lmc.function
def changes_private_attributes(s: Any) -> Any:
    basket = Basket(count=1)
    basket.fill(2)
    s += f"{basket} {basket.log}" + lmc.gen("a", max_tokens=2)
    basket.fill(3)
    return basket.count, basket.log, basket.model_fields_set


class Positive:
    """A descriptor whose values a constructor sets."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, x: Any, owner: Any = None) -> Any:
        return x.__dict__[self.name]

    def __set__(self, x: Any, value: int) -> None:
        if value < 0:
            raise ValueError(value)
        x.__dict__[self.name] = value


class Registered(type):
    def __init__(cls, name: str, bases: Any, fields: Any) -> None:
        super().__init__(name, bases, fields)
        cls.kind = name.lower()


class Account(MutableMapping[str, int], metaclass=type("Meta", (Registered, ABCMeta), {})):  # pyright: ignore[reportGeneralTypeIssues]
    """Of a metaclass, and with methods of a mixin."""

    balance = Positive()

    def __init__(self, balance: int) -> None:
        self.balance, self.entries = balance, dict[str, int]()

    def __getitem__(self, name: str) -> int:
        return self.entries[name]

    def __setitem__(self, name: str, value: int) -> None:
        self.entries[name] = value
        self.balance += value

    def __delitem__(self, name: str) -> None:
        del self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@lmc.function
def makes_accounts(s: Any) -> Any:
    account = Account(3)
    account.update(a=len(tool("a")))
    s += str(account.balance) + lmc.gen("a", max_tokens=2)
    account.setdefault("b", len(tool(s["a"])))
    try:
        account["c"] = -100
    except ValueError as error:
        s += str(error) + account.kind  # type: ignore[attr-defined]
    return account.balance, dict(account), account.pop("a")


class Letters(MutableSet[str]):
    """Its `|=` and `clear` are the mixin's, which call `add` and `discard`."""

    def __init__(self) -> None:
        self.known = dict[str, str]()

    def __contains__(self, x: object) -> bool:
        return x in self.known

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.known))

    def __len__(self) -> int:
        return len(self.known)

    def add(self, value: str) -> None:
        self.known[value] = tool(value)

    def discard(self, value: str) -> None:
        tool(f"no {self.known.pop(value)}")


@lmc.function
def writes_letters(s: Any) -> Any:
    letters = Letters()
    letters |= dict.fromkeys("ab").keys()
    s += "".join(letters) + lmc.gen("a", max_tokens=2)
    letters.add(s["a"])
    letters.clear()
    s += tool(len(letters)) + lmc.gen("b", max_tokens=2)
    return s["b"]


class Shelf(dict[str, str]):
    def get(self, key: str, default: Any = None) -> Any:
        CALLS.append(("Shelf.get", key))
        return super().get(key, default)


@lmc.function
def looks_on_shelves(s: Any) -> Any:
    """One of the program, and one from outside: what its own call of a method reads outside is in the journal, though a library's class has the method."""
    own = Shelf(a="1")
    s += str(SHELF.get("a")) + lmc.gen("a", max_tokens=2)
    s += own.get("a") + lmc.gen("b", max_tokens=2)
    return s["b"]


SHELF = Shelf()


class Span(contextlib.ContextDecorator):
    def __init__(self, into: list[Any]) -> None:
        self.into = into

    def __enter__(self) -> Span:
        self.into.append(len(self.into))
        return self

    def __exit__(self, *_: Any) -> None:
        self.into.append("out")


class Piped:
    """Functions within functions, as deep as it has parts."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __or__(self, other: Piped) -> Piped:
        return Piped(lambda x: other.fn(self.fn(x)))

    def __call__(self, x: str) -> str:
        return self.fn(x)


@lmc.function
def pipes(s: Any) -> Any:
    spans: list[Any] = []

    @Span(spans)
    def ask(x: str) -> str:
        s.__iadd__(x + lmc.gen("a", max_tokens=2))
        return s["a"]

    piped = Piped(tool) | Piped(ask) | Piped(str.upper) | Piped(tool)
    return piped("q"), piped("r"), spans


@dataclass
class Trail:
    last: deque[str] = field(default_factory=lambda: deque(maxlen=2))


@lmc.function
def makes_fields_by_functions(s: Any) -> Any:
    """That only compute, so they are in no journal."""
    trail = Trail()
    for x in "abc":
        s += x + lmc.gen("a", max_tokens=2)
        trail.last.append(tool(s["a"]))
    return trail


class Store(UserDict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key.lower(), tool(value))


class Window(UserList[str]):
    def append(self, item: str) -> None:
        super().append(item)
        del self.data[:-2]


@lmc.function
def wraps_containers(s: Any) -> Any:
    """By classes of `collections` that are made for it; what they are given first is stored as what they are given later."""
    store, window = Store({"Q": "first"}), Window()
    for x in "abc":
        s += x + lmc.gen("a", max_tokens=2)
        store[x.upper()] = s["a"]
        window.append(s["a"])
    store.update(D="last")
    return dict(store), list(window), len(window)


class Clerk:
    """Has a state, and tools that its methods call."""

    def __init__(self, s: Any) -> None:
        self.s, self.done = s, list[str]()

    def work(self, x: str) -> str:
        self.done.append(tool(x))
        self.s += x + lmc.gen("a", max_tokens=2)
        return self.s["a"]

    def __call__(self, x: str) -> str:
        return self.work(x + "!")


class Speaker(cmd.Cmd):
    """Python's class calls its methods by the names that a text has."""

    def __init__(self, s: Any) -> None:
        self.s, self.said = s, list[str]()

    def do_say(self, arg: str) -> None:
        self.said.append(tool(arg))
        self.s += arg + lmc.gen("a", max_tokens=2)


@lmc.function
def is_called_by_a_base_of_the_library(s: Any) -> Any:
    speaker = Speaker(s)
    for x in "ab":
        speaker.onecmd(f"say {x}")
    return speaker.said, s["a"]


@lmc.function
def is_used_by_the_library_as_more_than_a_function(s: Any) -> Any:
    clerk = Clerk(s)
    found = [operator.methodcaller("work", "a")(clerk), operator.methodcaller("__call__", "b")(clerk), clerk("c")]
    return found, clerk.done


def at_least_one(x: Any) -> int:
    return max(1, int(x))


class Meter(pydantic.BaseModel):
    used: int = 0
    seen: list[str] = pydantic.Field(default_factory=list)

    def __call__(self, x: str) -> int:
        CALLS.append(("Meter", x))
        self.used += 1
        self.seen.append(x)
        return self.used


@dataclass
class Gauge:
    used: int = 0

    def __call__(self, x: str) -> int:
        CALLS.append(("Gauge", x))
        self.used += 1
        return self.used


@lmc.function
def calls_models(s: Any) -> Any:
    """A call changes the object that is called."""
    meter, gauge = Meter(), Gauge()
    for x in "ab":
        s += f"{meter(x)} {gauge(x)}" + lmc.gen("a", max_tokens=2)
    return meter, gauge


class SlowMeter:
    def __init__(self) -> None:
        self.used = 0

    def __repr__(self) -> str:
        return f"{self.used} times"

    async def __call__(self, x: str) -> int:
        CALLS.append(("SlowMeter.__call__", x))
        self.used += 1
        return self.used


@lmc.function
async def awaits_calls_of_objects(s: Any) -> Any:
    meter = SlowMeter()
    for x in "ab":
        s += f"{await meter(x)}" + lmc.gen("a", max_tokens=2)
    return await asyncio.gather(meter(s["a"]), asyncio.create_task(meter("c"))), meter


class OfRun(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> Any:
        return f"{self.extra}: {msg}", kwargs


class Scopes(ChainMap[str, Any]):
    def value(self, name: str) -> Any:
        return self.get(name, "none")


@lmc.function
def extends_mappings_and_adapters(s: Any) -> Any:
    """Subclasses of Python's own classes, which have constructors written in Python."""
    loggers = [logging.LoggerAdapter(logging.getLogger("of a run"), {"run": 1}), OfRun(logging.getLogger("of a run"), {"run": 2})]
    scopes = Scopes({"a": 1})
    for logger in loggers:
        s += tool(scopes.value("b")) + lmc.gen("a", max_tokens=2)
        logger.info("%s", s["a"])
        scopes = scopes.new_child({"b": s["a"]})
    return scopes, len(scopes.maps)


async def slow_tool(x: str) -> str:
    CALLS.append(("slow_tool", x))
    await asyncio.sleep(0)
    return f"<{x}>"


class Pool:
    """Awaits what it is given, two at a time."""

    def __init__(self) -> None:
        self.done, self.room = list[str](), asyncio.Semaphore(2)

    async def one(self, coroutine: Any) -> str:
        async with self.room:
            self.done.append(await coroutine)
        return self.done[-1]

    async def all(self, *coroutines: Any) -> list[str]:
        return await asyncio.gather(*map(self.one, coroutines))


@lmc.function
async def awaits_in_a_pool(s: Any) -> Any:
    pool = Pool()
    s += await pool.one(slow_tool("q")) + lmc.gen("a", max_tokens=2)
    s += "".join(await pool.all(slow_tool("r"), slow_tool("s"), slow_tool(s["a"]))) + lmc.gen("b", max_tokens=2)
    return sorted(pool.done)


class Runner:
    """Has methods of the names of functions of asyncio that no run can call again: `asyncio.run`, `asyncio.wait_for`."""

    def __init__(self) -> None:
        self.done = list[str]()

    async def run(self, coroutine: Any) -> None:
        self.done.append(await coroutine)

    async def wait_for(self, *coroutines: Any) -> None:
        await asyncio.gather(*map(self.run, coroutines))

    async def all(self, *coroutines: Any) -> list[str]:
        await asyncio.gather(self.run(coroutines[0]), self.wait_for(*coroutines[1:]))
        return self.done


@lmc.function
async def awaits_in_a_runner(s: Any) -> Any:
    runner = Runner()
    s += "".join(await runner.all(slow_tool("r"), slow_tool("s"))) + lmc.gen("b", max_tokens=2)
    return runner.done


class Keeper:
    """Has an event, which has the event loop once a task has waited for it."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def wait(self) -> None:
        await self.opened.wait()

    async def note(self, x: str) -> str:
        CALLS.append(("Keeper.note", x))
        return x.upper()


@lmc.function
async def waits_for_an_event(s: Any) -> Any:
    keeper = Keeper()
    waiting = asyncio.create_task(keeper.wait())
    s += lmc.gen("a", max_tokens=2)
    await asyncio.sleep(0)
    s += await keeper.note(s["a"]) + lmc.gen("b", max_tokens=2)
    keeper.opened.set()
    await waiting
    return await keeper.note(s["b"])


def test_what_the_event_loop_holds_is_not_what_an_event_holds(tmp_path: Path) -> None:
    assert recorded(waits_for_an_event, tmp_path) == ["await Keeper.note"] * 2


class Intent:
    def missing(self) -> list[str]:
        return [name for name in self.__annotations__ if not hasattr(self, name)]


class Book(Intent):
    city: str
    day: str


class Cancel(Intent):
    city: str


@lmc.function
def finds_classes_by_their_base(s: Any) -> Any:
    kinds = {cls.__name__: cls for cls in Intent.__subclasses__() if Intent in cls.mro()}
    intent = kinds["Book"]()
    while missing := intent.missing():
        s += tool(missing[0]) + lmc.gen("a", max_tokens=2)
        setattr(intent, missing[0], s["a"])
    return [*kinds], vars(intent)


class Channel:
    """Passes words between tasks: its coroutines only compute."""

    def __init__(self) -> None:
        self._queue = asyncio.Queue[str](1)

    async def send(self, x: str) -> None:
        await self._queue.put(x)

    async def receive(self) -> str:
        return await self._queue.get()


@lmc.function
async def passes_words_between_tasks(s: Any) -> Any:
    channel, found = Channel(), list[str]()
    first, second = s.fork(2)

    async def send() -> None:
        nonlocal first
        for x in "abc":
            first += x + lmc.gen("a", max_tokens=2)
            await channel.send(first["a"])

    async def receive() -> None:
        nonlocal second
        for _ in range(3):
            second += tool(await channel.receive()) + lmc.gen("b", max_tokens=2)
            found.append(second["b"])

    await asyncio.gather(send(), receive())
    return found


@attrs.define
class Game:
    most: int = attrs.field(default=2, converter=attrs.Converter(at_least_one), validator=[attrs.validators.ge(1), attrs.validators.instance_of(int)])
    name: str = attrs.field(default=" g", converter=str.strip)
    words: list[str] = attrs.field(factory=list)
    moves: int = 0

    def move(self, x: str) -> None:
        CALLS.append(("Game.move", x))
        self.moves += 1
        self.words = [*self.words, x][-self.most :]


class Tally:
    __slots__ = ("count", "last", "words")

    def __init__(self) -> None:
        self.count, self.words = 0, list[str]()

    def add(self, x: str) -> None:
        CALLS.append(("Tally.add", x))
        self.count += 1
        self.last = x
        self.words = [*self.words, x][-2:]


class Named(Tally):
    """Has a dict, too."""

    def add(self, x: str) -> None:
        super().add(x)
        self.name = x.upper()


def adds(found: list[Tally], x: str) -> None:
    CALLS.append(("adds", x))
    for tally in found:
        tally.count += 1
        tally.words.append(x)


@lmc.function
def changes_slots(s: Any) -> Any:
    """Of an object, of one with a dict, and of those in a list; one is assigned later than others, and one is deleted."""
    found = [Tally(), Named()]
    for x in "abc":
        s += x + lmc.gen("a", max_tokens=2)
        found[0].add(s["a"])
        adds(found, s["a"])
    del found[0].last
    found[1].add(s["a"])
    return [(t.count, t.words, getattr(t, "last", None)) for t in found], vars(found[1])


@lmc.function
def makes_objects_of_attrs(s: Any) -> Any:
    game, shown = Game(most=0), attrs.asdict(Game())
    for x in "abc":
        s += x + lmc.gen("a", max_tokens=2)
        game.move(s["a"])
        game = attrs.evolve(game, name=f"{x} ")
    return game, shown, attrs.astuple(game)


def is_logged(_: Any, field: Any, x: Any) -> None:
    CALLS.append((field.name, x))


@attrs.define
class Logged:
    listed: int = attrs.field(default=1, validator=[attrs.validators.ge(1), is_logged])


@attrs.define
class LoggedOrNone:
    optional: int = attrs.field(default=1, validator=attrs.validators.optional(is_logged))


@attrs.define
class Converted:
    converted: int = attrs.field(default=1, converter=attrs.Converter(lambda x: CALLS.append(("converted", x)) or x))


@pytest.mark.parametrize("cls", [Logged, LoggedOrNone, Converted])
def test_what_attrs_calls_in_functions_of_its_own_is_not_called_again(cls: type, tmp_path: Path) -> None:
    """They were taken for attrs's, which only compute."""

    @lmc.function
    def program(s: Any) -> Any:
        made = cls()
        s += lmc.gen("a", max_tokens=2)
        return made

    CALLS.clear()
    for _ in range(2):
        assert program.run(backend=lmc.Mock(), journal=lmc.Journal(tmp_path / "j")).ret_value == cls()
        assert len(CALLS) == 2, "once by the program, and by the comparison"
        CALLS.pop()


PROGRAMS = [
    is_used_by_the_library_as_more_than_a_function, is_called_by_a_base_of_the_library, makes_objects_of_attrs, changes_slots,
    looks_on_shelves, writes_letters, wraps_containers, changes_private_attributes, makes_accounts, pipes, makes_fields_by_functions,
    copies_objects, makes_objects_by_the_library, changes_models, calls_models, awaits_calls_of_objects, passes_words_between_tasks,
    remembers, fills_containers, enters_and_leaves, grows_a_tree, calls_programs_of_its_objects,
    opens_doors, opens_doors_slowly, awaits_objects, keeps_what_tools_give_of_it, defines_a_model, decorates_inside, draws_by_a_seed, writes_in_memory,
    has_fields_in_memory, draws_from_a_field, sets_context_variables, calls_objects_on_threads, works_on_threads, exits, extends_mappings_and_adapters,
    finds_classes_by_their_base, awaits_in_a_pool, awaits_in_a_runner,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # in doubt there
@some("program", PROGRAMS, 3, ids=lambda p: p.name)
def test_objects_of_the_program_are_made_again(program: Any, tmp_path: Path) -> None:
    resumes_anywhere(program, {}, tmp_path, lambda: lmc.Mock(lambda prompt, ask: None if ask.name != "n" else "1"), doubtful=True)


def test_coroutines_of_objects_that_only_compute_or_await_are_no_effects(tmp_path: Path) -> None:
    assert recorded(passes_words_between_tasks, tmp_path / "words") == ["tool"] * 3
    assert recorded(awaits_in_a_pool, tmp_path / "pool") == ["await slow_tool"] * 4
    assert recorded(awaits_in_a_runner, tmp_path / "runner") == ["await slow_tool"] * 2


# -- what stays an effect --------------------------------------------------------------------------------------------------


class Tools:
    """Leaves something outside: its methods are tools."""

    def __init__(self) -> None:
        self.used = 0

    def search(self, x: str) -> str:
        self.used += 1
        CALLS.append(("Tools.search", x))
        return x.upper()

    def again(self, x: str) -> Tools:
        CALLS.append(("Tools.again", x))
        self.used += 1
        return self


@lmc.function
def has_tools(s: Any) -> Any:
    tools = Tools()
    s += tools.search("q") + lmc.gen("a", max_tokens=2)
    s += tools.again("r").search("r") + lmc.gen("b", max_tokens=2)
    return tools.used


@dataclass
class Logging:
    """Leaves something outside when it is made."""

    x: str

    def __post_init__(self) -> None:
        CALLS.append(("Logging", self.x))


@lmc.function
def replaces_fields(s: Any) -> Any:
    found = Logging("q")
    for _ in range(2):
        s += found.x + lmc.gen("a", max_tokens=2)
        found = replace(found, x=s["a"])
    return found


def test_a_copy_made_by_a_constructor_that_leaves_something_outside_is_recorded(tmp_path: Path) -> None:
    assert recorded(replaces_fields, tmp_path) == ["Logging", "replace", "replace"]


class Place:
    """Looks at what is outside, through modules by other names and by dotted ones."""

    def process(self) -> int:
        system = os
        return system.getpid()

    def is_there(self) -> bool:
        return os.path.exists(os.path.join("a", "b"))

    def joined(self) -> str:
        return os.path.join("a", "b")


@lmc.function
def looks_outside(s: Any) -> Any:
    place = Place()
    s += f"{place.process()} {place.is_there()} {place.joined()}" + lmc.gen("a", max_tokens=2)


def test_methods_that_look_outside_through_modules_are_recorded(tmp_path: Path) -> None:
    assert recorded(looks_outside, tmp_path) == ["Place.process", "Place.is_there"]


@pytest.mark.search
def test_methods_that_leave_something_outside_are_recorded_as_a_whole(tmp_path: Path) -> None:
    resumes_anywhere(has_tools, {}, tmp_path, doubtful=True)
    assert [e.name for e in records.read(tmp_path / "0").runs[0].effects.values()] == ["Tools.search", "Tools.again", "Tools.search"]


@lmc.function
def runs_code(s: Any) -> Any:
    names: dict[str, Any] = {}
    exec("def twice(x): return 2 * x", names)
    s += "q" + lmc.gen("a", max_tokens=2)
    return names["twice"](1)


def test_a_warning_says_what_is_no_data_in_what_a_call_has_changed(tmp_path: Path) -> None:
    with pytest.warns(lmc.JournalWarning, match="exec\\(\\) gave None, and a journal cannot hold what it did to a dict with a function in it: a run"):
        runs_code.run(backend=lmc.Mock(), journal=tmp_path / "j")


def test_what_a_tool_writes_to_an_outside_object_is_its_effect(tmp_path: Path) -> None:
    out = io.StringIO()

    @lmc.function
    def prints(s: Any) -> Any:
        s += "q" + lmc.gen("a", max_tokens=2)
        print(s["a"], file=out)
        out.write("more\n")
        return f"{s['a']}\nmore\n"

    for _ in range(2):
        assert out.getvalue() in ("", prints.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value)
    assert out.getvalue().count("\n") == 2


class Log:
    """Outside of the run, like an open file."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> None:
        self.lines.append(line)


LOG, INBOX = Log(), queue.Queue[str]()


@lmc.function
def writes_outside(s: Any, make: Any) -> Any:
    table = make(LOG)
    table.writerow({"a": 1})
    s += "q" + lmc.gen("a", max_tokens=2)
    return s["a"]


@pytest.mark.parametrize("make", (csv.writer, functools.partial(csv.DictWriter, fieldnames=["a"])))
def test_lines_of_a_table_outside_are_not_written_again(make: Any, tmp_path: Path) -> None:
    LOG.lines.clear()
    with pytest.warns(lmc.JournalWarning, match="cannot hold a"):
        writes_outside.run(make, backend=lmc.Mock(), journal=tmp_path / "j")
    with pytest.raises(JournalError, match="cannot be resumed"):
        writes_outside.run(make, backend=lmc.Mock(), journal=tmp_path / "j")
    assert len(LOG.lines) == 1


@lmc.function
def takes_work(s: Any) -> Any:
    s += INBOX.get(timeout=1) + lmc.gen("a", max_tokens=2)
    return s.text()


def test_what_comes_from_a_queue_outside_is_in_the_journal(tmp_path: Path) -> None:
    INBOX.put("first")
    found = takes_work.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value
    INBOX.put("second")
    assert takes_work.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value == found
    assert INBOX.get(timeout=1) == "second"


def test_a_run_keeps_no_objects_of_python_that_it_has_dropped() -> None:
    known = KnownEffects()
    for make in (io.StringIO, io.BytesIO, queue.SimpleQueue, queue.Queue, functools.partial(random.Random, 5), Memory):
        known.keep(make())
    assert not known.instances


class Slim:
    __slots__ = ("x",)


def test_a_run_keeps_few_objects_without_weak_references_that_it_has_dropped() -> None:
    known = KnownEffects()
    live = [Slim() for _ in range(10)]
    for slim in live:
        known.keep(slim)
    for _ in range(1000):
        known.keep(Slim())
    assert all(map(known.has_made, live)) and len(known.instances) < 150


def test_what_a_finalizer_makes_is_kept_too() -> None:
    """Finalizers of dropped objects run without the lock, which a call in them takes."""
    known, locked = KnownEffects(), list[bool]()

    class Final:
        __slots__ = ()

        def __del__(self) -> None:
            locked.append(known.lock.locked())

    for _ in range(200):
        known.keep(Final())
    assert locked and not any(locked)


def test_an_object_that_is_kept_twice_is_dropped_as_one() -> None:
    """By `object.__new__` in a class's own `__new__`, and as what its constructor gives."""
    known = KnownEffects()
    for _ in range(1000):
        slim = Slim()
        known.keep(slim)
        known.keep(slim)
    assert len(known.instances) < 150


@lmc.function
def copies_a_table_of_objects(s: Any) -> Any:
    table = defaultdict(Memory)
    _ = table["a"]
    s += lmc.gen("a", max_tokens=2)
    return len(copy.deepcopy(table)), len(pickle.loads(pickle.dumps(table)))


def test_a_table_that_makes_objects_is_copied_without_the_run(tmp_path: Path) -> None:
    """Its factory stands for the class of the program, and holds the run."""
    expected = copies_a_table_of_objects.run(backend=lmc.Mock()).ret_value
    for _ in range(2):
        assert copies_a_table_of_objects.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value == expected


class Ending:
    def __init__(self, x: str) -> None:
        self.x = x

    def __del__(self) -> None:
        noted(self.x)
        noted_once(self.x)


def noted(x: str) -> None:
    CALLS.append(("noted", x))


@lmc.host
def noted_once(x: str) -> None:
    CALLS.append(("noted_once", x))


@lmc.function
def drops_an_object(s: Any) -> Any:
    thing = Ending("a")
    s += "q" + lmc.gen("a", max_tokens=2)
    del thing
    s += "r" + lmc.gen("b", max_tokens=2)


def test_what_a_finalizer_does_is_repeated_unless_it_is_marked(tmp_path: Path) -> None:
    for again in (False, True):
        CALLS.clear()
        drops_an_object.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
        assert ([("noted", "a")] if again else [("noted", "a"), ("noted_once", "a")]) == CALLS
