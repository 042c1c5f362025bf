"""Ordinary Python that once meant something else in compiled programs: class bodies, builtins that go step by step, tracebacks, contexts."""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import itertools
import math
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from lmc import gen

from .harness import Case, case, cases, effect, leave

ITEMS = [{"q": q} for q in ("a", "bee gee", "c")]


# -- class bodies


@case(replays=0)
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


@case(leaves="makes something of the host that gives instances something else")
def descriptors_that_tools_make(s, q):
    s += q + gen("x", max_tokens=4)

    class One:
        end = "w"
        text = Suffixed(s["x"])

    effect("made")
    return One().text, One.text


@case(leaves="makes something of the host that gives instances something else")
def methods_that_tools_make(s, q):
    s += q + gen("x", max_tokens=4)

    class One:
        end = "w"

    One.late = method(q)
    return One().late(s["x"])


@case(replays=0)
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
    return one.text, one.kept, one.twice(s["x"]), one.ended(q), one.size, one.rows, Kind(len(q) % 2 + 1).name


@case(leaves="the program did something else than before|hands the class|^$")
def what_class_methods_make_then_left(s, q):
    class Person(BaseModel):
        name: str = "n"

    s += q + gen("x", max_tokens=4)
    one = Person.model_validate({"name": s["x"]})
    leave(q)
    two = Person(name=one.name)
    return one == two, type(one) is Person, isinstance(one, Person)


# -- builtins that go step by step


@case(ITEMS)
def steps_inside_of_other_calls_then_left(s, q):
    s += q + gen("x", max_tokens=6)
    x, rows, many = s["x"], [], set(filter(str.isalpha, s["x"]))
    rows.extend(filter(str.isalpha, x))
    rows += filter(str.isspace, x)
    found = ["".join(filter(str.isalpha, x)), "".join(itertools.takewhile(str.isalpha, x)), "".join(itertools.dropwhile(str.isalpha, x)),
             "".join(itertools.filterfalse(str.isalpha, x)), ",".join(itertools.chain.from_iterable(x.split())), ",".join(map(str.upper, filter(None, x.split())))]  # fmt: skip
    found += [collections.Counter(filter(str.isalpha, x)), collections.deque(filter(str.isspace, x)), dict(filter(None, [(x, 1)])), math.prod(map(len, x.split()))]
    found += [" ".join(map(str, enumerate(x[:2], len(q)))), "".join(iter(lambda i=iter(q): next(i, "k"), "k")), [*filter(str.isspace, x)]]
    effect("found", rows, sorted(many))
    leave(q)
    return found, rows, sorted(many)


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


@case(leaves="counts by a Counts, which runs code")
def ranges_of_objects(s, q):
    n = counts()
    s += q + gen("x", max_tokens=2)
    for i in range(n):
        s += str(i)
    effect("then")
    return [*range(1, n)]


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
        leave(q)
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
    leave(q)
    s += TENANT.get() + tenant()
    TENANT.reset(token)
    return before, TENANT.get()


CASES = cases(globals())


@pytest.mark.parametrize("name", CASES)
def test_means_the_same(name: str) -> None:
    one: Case = CASES[name]
    one.check()
