"""Ordinary Python that once meant something else in compiled programs: class bodies, builtins that go step by step, tracebacks, contexts."""

from __future__ import annotations

import collections
import contextvars
import copy
import enum
import functools
import itertools
import json
import math
import sys
import traceback
from dataclasses import InitVar, dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from lmc import gen

from .harness import Case, case, cases, effect, opaque

ITEMS = [{"q": q} for q in ("a", "bee gee", "c")]


# -- class bodies


@case()
def fields_of_dataclasses(s, q):
    s += q + gen("x", max_tokens=4)

    @dataclass
    class Found:
        text: str
        rows: list = field(default_factory=list)
        limit: int = field(default=4)

        def ask(self, st):
            st += self.text + gen("y", max_tokens=1)
            self.rows.append(st["y"])
            return self

    found = Found(s["x"]).ask(s).ask(s)
    return found.rows, found.limit, Found.limit, Found(q).rows, hasattr(Found, "rows")


class Suffixed:
    def __init__(self, text: str) -> None:
        effect("suffixed", text)
        self.text = text

    def __set_name__(self, owner: type, name: str) -> None:
        effect("named", name)

    def __get__(self, owner: Any, cls: Any = None) -> str:
        return self.text + ("-" if owner is None else owner.end)


def method(n: Any) -> Any:
    effect("method", n)
    return lambda self, x: (self.end, x, n)


@case()
def descriptors_that_tools_make(s, q):
    s += q + gen("x", max_tokens=4)

    class One:
        end = "w"
        text = Suffixed(s["x"])

    effect("made")
    return One().text, One.text


@case()
def methods_that_tools_make(s, q):
    s += q + gen("x", max_tokens=4)

    class One:
        end = "w"

    One.late = method(q)
    return One().late(s["x"])


@case()
def what_class_bodies_make_without_decorators(s, q):
    s += q + gen("x", max_tokens=4)

    class One:
        end = "w"
        size = len(s["x"])
        rows = s["x"].split()

        def __init__(self, z):
            self._z = z

        text = property(lambda self: self._z + "p", lambda self, v: setattr(self, "_z", v))
        kept = functools.cached_property(lambda self: self._z)
        twice = staticmethod(lambda x: x * 2)
        ended = classmethod(lambda cls, x: cls.end + x)

    class Kind(enum.Enum):
        A = enum.auto()
        B = enum.auto()

    one = One(s["x"])
    one.text = "new" + q
    return one.text, one.kept, one.twice(s["x"]), one.ended(q), one.size, one.rows, (Kind.B if q > "b" else Kind.A).name


@case()
def what_class_methods_make_then_left(s, q):
    class Person(BaseModel):
        name: str = "n"

    s += q + gen("x", max_tokens=4)
    one = Person.model_validate({"name": s["x"]})
    opaque(q)
    two = Person(name=one.name)
    return one == two, type(one) is Person, isinstance(one, Person)


# -- builtins that go step by step


@case(ITEMS[:2])
def steps_inside_of_other_calls_then_left(s, q):
    s += q + gen("x", max_tokens=3)
    x = s["x"][:2]
    rows, many = [], set(filter(str.isalpha, x))
    rows.extend(filter(str.isalpha, x))
    rows += filter(str.isspace, x)
    found = ["".join(filter(str.isalpha, x)), "".join(itertools.takewhile(str.isalpha, x)), "".join(itertools.dropwhile(str.isalpha, x)),
             "".join(itertools.filterfalse(str.isalpha, x)), ",".join(itertools.chain.from_iterable(x.split())), ",".join(map(str.upper, filter(None, x.split())))]  # fmt: skip
    found += [collections.Counter(filter(str.isalpha, x)), collections.deque(filter(str.isspace, x)), dict(filter(None, [(x, 1)])), math.prod(map(len, x.split()))]
    found += [" ".join(map(str, enumerate(x[:2], len(q)))), "".join(iter(lambda i=iter(q): next(i, "k"), "k")), [*filter(str.isspace, x)]]
    effect("found", rows, sorted(many))
    opaque(q)
    return found, rows, sorted(many)


@case(ITEMS)
def iterators_are_their_own_iterators(s, q):
    s += q + gen("x", max_tokens=4)
    steps, words = (w for w in s["x"].split()), iter(s["x"].split())
    same = iter(steps) is steps, iter(words) is words, iter(map(len, words)) is words
    first = next(iter(words), "none")
    opaque(q)
    return same, first, list(words), list(steps)


class Counts:
    """Counts like a number, and can be called: nobody may ask it while a program is traced."""

    def __index__(self) -> int:
        effect("index")
        return 2

    def __call__(self) -> int:
        return 3


def counts() -> Counts:
    effect("counts")
    return Counts()


@case()
def ranges_of_objects(s, q):
    n = counts()
    s += q + gen("x", max_tokens=2)
    for i in range(n):
        s += str(i)
    effect("then")
    return [*range(1, n)]


def kinds(q: str) -> Any:
    effect("kinds", q)
    return (int, str) if len(q) > 1 else str


@case(ITEMS)
def names_and_options_that_answers_give(s, q):
    class Own:
        a, b = 1, 2

        @property
        def length(self):
            effect("length")
            return len(q)

    s += q + gen("x", max_tokens=3)
    kind, n, own = kinds(q), len(q), Own()
    found = [isinstance(5, kind), isinstance(s["x"], kind), hasattr(own, q), hasattr(own, s["x"]), getattr(own, "length" if n > 1 else "a")]
    try:
        found.append(list(zip("ab", s["x"], strict=n > 0)))
    except ValueError as error:
        found.append(str(error))
    return found, list(itertools.product("ab", repeat=min(n, 2))), list(zip("ab", "cd", strict=n > 1))


# -- exceptions and instances of the program's own


@case(ITEMS * 2)
def classes_of_exceptions_are_the_same_in_each_trace(s, q):
    class Refused(Exception):
        code = 1

        def __init__(self, why, hint=None):
            super().__init__(why)
            self.hint = hint

        def __eq__(self, other):
            return isinstance(other, Refused) and self.args == other.args

        __hash__ = Exception.__hash__

        def twice(self):
            return super().__str__() + f"{self.hint}{self.code}"

    class Late(Refused, ValueError):
        code = 2

    def ask(t):
        s.__iadd__(t + gen("y", max_tokens=1))
        if s["y"] < "k":
            raise Late(s["y"], hint=q)
        if s["y"] < "s":
            raise Refused(s["y"])
        return s["y"]

    found = []
    for t in (q, "k", "z"):
        try:
            found.append(ask(t))
        except Late as error:
            found.append(error.twice())
        except Refused as error:
            try:
                raise RuntimeError(error.code) from error
            except RuntimeError as again:
                found.append(again.__cause__.hint)
    return found, issubclass(Late, Refused), issubclass(Refused, (Late, KeyError))


@case(ITEMS * 2)
def classes_of_exceptions_that_are_not(s, q):
    seen = []

    class Refused(Exception):
        count = 0

    class Counted(Refused):
        rows = []

        def __init__(self, why):
            super().__init__(why)
            seen.append(why)
            self.rows.append(q)

    def make(n):
        class One(Exception):
            code = n

        return One

    s += q + gen("x", max_tokens=2)
    for kind in (Refused, Counted):
        try:
            raise kind(s["x"])
        except Refused as error:
            Refused.count += 1
            seen.append((str(error), error.count))
    one, two = make(1), make(2)
    try:
        raise two
    except one:
        seen.append("one")
    except two as error:
        seen.append(error.code)
    return seen, Counted.rows, Refused.count


class Node:
    made = 0

    def __init__(self, name, parent=None):
        self.name, self.parent, self.kids = name, parent, []
        Node.made += 1

    @classmethod
    def parse(cls, text):
        first, *rest = text.split()
        node = cls(first)
        node.kids = [cls(name, node) for name in rest]
        return node

    def ask(self, st):
        st += self.name + gen("n", max_tokens=2)
        self.kids.append(Node(st["n"], self))
        return st["n"]

    def names(self):
        return [self.name, *[kid.names() for kid in self.kids]]


def no_nodes() -> None:
    Node.made = 0


@case(ITEMS, reset=no_nodes, outside=lambda: Node.made, batch=False)
def instances_from_class_methods_and_their_copies(s, q):
    node = Node.parse("a " + q)
    node.ask(s)
    deep, flat = copy.deepcopy(node), copy.copy(node)
    deep.ask(s)
    deep.kids[0].name = "deep"
    flat.name = "flat"
    flat.kids.append(Node("shared"))
    s += str(flat.names())
    return node.names(), deep.names(), deep.kids[-1].parent is deep, node.kids[0].parent is node, flat.kids is node.kids, type(deep) is Node


@case(ITEMS)
def copies_that_are_not_fields_alone(s, q):
    class Own:
        def __init__(self, x):
            self.x = x

        def __copy__(self):
            effect("copy", self.x)
            return Own(self.x + "c")

        def ask(self):
            s.__iadd__(self.x + gen("n", max_tokens=1))

    s += q + gen("x", max_tokens=2)
    one = Own(q)
    one.ask()
    if "a" in s["n"]:
        one.rows = json.loads("[[1]]")
        other = copy.deepcopy(one)
        other.rows[0].append(2)
        return one.rows, other.rows
    return copy.copy(one).x


@dataclass
class Record:
    text: str
    rows: list[str] = field(default_factory=lambda: ["first"])
    times: InitVar[int] = 2
    size: int = field(default=4, init=False)
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self, times: int) -> None:
        effect("post", self.text)
        self.more["n"] = self.text * times

    def ask(self, st: Any) -> Record:
        st += self.text + gen("n", max_tokens=2)
        self.more[st["n"]] = 1
        return self


@case(ITEMS)
def dataclasses_with_code(s, q):
    one, two = Record(q).ask(s), Record("k", [q], times=3).ask(s)
    two.rows.append(s["n"])
    try:
        Record(rows=[])  # type: ignore[call-arg]
    except TypeError as error:
        s += str(error)
    return one.rows, one.size, one.more, two.rows, two.more, Record.size, hasattr(one, "times"), one.text


@case(ITEMS, reset=no_nodes, batch=False)
def items_of_attributes_of_items(s, q):
    nodes = [Node(q), Node("b")]
    nodes[0].ask(s)
    nodes[0].kids[0].name = s["n"] + "!"
    nodes[0].kids[0].kids[:] = [nodes[1]]
    return nodes[0].names()


# -- tracebacks


def lines(error: BaseException) -> int:
    return len(traceback.format_exception(error))


@case()
def tracebacks_then_left(s, q):
    def refuse(v):
        raise ValueError(v)

    s += q + gen("x", max_tokens=2)
    seen = []
    try:
        refuse(s["x"])
    except ValueError as error:
        effect("lines", lines(error))
        opaque(q)
        seen += [lines(error), [f.name for f in traceback.extract_tb(error.__traceback__)], type(sys.exc_info()[1]).__name__, len(traceback.format_exc().splitlines())]
        last = error
    try:
        int(s["x"])
    except ValueError as error:
        seen += [lines(error), lines(last)]
    try:
        raise last
    except ValueError as error:
        seen.append([f.name for f in traceback.extract_tb(error.__traceback__)])
    return seen


# -- contexts


TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def tenant() -> str:
    effect("tenant", TENANT.get())
    return TENANT.get()


@case()
def context_variables_then_left(s, q):
    s += q + gen("x", max_tokens=2)
    token = TENANT.set(s["x"])
    before = tenant()
    opaque(q)
    s += TENANT.get() + tenant()
    TENANT.reset(token)
    return before, TENANT.get()


CASES = cases(globals())


@pytest.mark.parametrize("name", CASES)
def test_means_the_same(name: str) -> None:
    one: Case = CASES[name]
    one.check()


@dataclass
class Draft:
    rows: list
    parts: dict = field(default_factory=dict)


@case()
def copies_that_share(s, q):
    s += q + gen("x", max_tokens=2)
    draft = Draft([s["x"], [q]], {"k": [s["x"]]})
    near, far = copy.copy(draft), copy.deepcopy(draft)
    draft.rows[1].append("z")
    draft.parts["k"].append(q)
    return near.rows, near.parts, near.rows is draft.rows, far.rows, far.parts
