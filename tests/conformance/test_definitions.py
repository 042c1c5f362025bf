"""Functions and classes that a program makes, and what else is of one run alone: their attributes, its texts, its containers."""

from __future__ import annotations

import enum
import functools
import inspect
import typing
from dataclasses import dataclass
from typing import Any

import pytest

import lmc
from lmc import gen
from tests.conformance.harness import Case, case, cases, conform, effect, opaque

SHARED: list[Any] = []
KEPT: list[Any] = []


class Settings:
    level = 1
    names: list[str] = []  # noqa: RUF012


class Registered:
    def __init_subclass__(cls) -> None:
        effect("subclass", cls.__name__)


def keeps(x: Any) -> None:
    effect("keeps", x.__name__)


def changes(x: Any) -> None:
    x.n = getattr(x, "n", 4) + 1


def shows(x: Any) -> str:
    return f"{inspect.signature(x)} {typing.get_type_hints(x)} {x.__doc__} {x.__name__} {sorted(x.__dict__)}"


# classes


@case()
def class_with_an_answer(s, q):
    s += q + gen("g", max_tokens=2)
    x = s["g"]

    class K:
        y = x

    K.y += "m"
    return K.y


@case()
def class_with_a_list(s, q):
    class K:
        z = [1]  # noqa: RUF012

    s += q + gen("g", max_tokens=2)
    K.z.append(q)
    K.n = q
    return K.z, K.n, K().z, getattr(K, "m", "none"), hasattr(K, "n")


@case()
def class_counted_by_its_instances(s, q):
    class K:
        z = []  # noqa: RUF012
        n = 0

        def add(self, x):
            self.z.append(x)
            K.c = len(self.z)
            type(self).n += 1
            self.__class__.n += self.n

        @classmethod
        def last(cls):
            cls.n += 1
            return cls.z[-1]

    k = K()
    for i in range(3):
        s += f"{i}" + gen("g", max_tokens=2)
        k.add(s["g"])
    del K.z[0]
    return K.c, K.n, K().z, k.last(), K.last(), K.n


@case()
def class_without_methods(s, q):
    class K:
        n = 0

    k = K()
    s += q + gen("g", max_tokens=2)
    K.n += 1
    k.n += 1
    k.x = s["g"]
    del K.n
    return k.n, k.x, hasattr(K, "n"), hasattr(K(), "n")


@case()
def class_of_an_outside_class(s, q):
    class K(Settings):
        pass

    s += q + gen("g", max_tokens=2)
    K.level += 1
    K.names.append(s["g"])
    return K.level, Settings.level, list(Settings.names), K().level


@case()
def class_of_its_own_class(s, q):
    class A:
        seen = []  # noqa: RUF012
        n = 1

    class B(A):
        pass

    s += q + gen("g", max_tokens=2)
    B.seen.append(s["g"])
    B.n += 1
    setattr(A, "m", q)  # noqa: B010
    return A.seen, A.n, B.n, B.m, getattr(B, "m", 1)


@case()
def class_that_is_registered(s, q):
    s += q + gen("g", max_tokens=2)

    class K(Registered):
        n = 1

    return K.n


@case()
def class_handed_to_a_tool(s, q):
    class K:
        n = 0

    s += q + gen("g", max_tokens=2)
    keeps(K)
    changes(K)
    return K.n


@case()
def class_handed_with_what_it_holds(s, q):
    class K:
        n = q

    s += q + gen("g", max_tokens=2)
    K.m = s["g"]
    keeps(K)
    effect("is", K.n, K.m)
    return K.m


@case()
def class_in_a_loop(s, q):
    made = []
    for i in range(2):

        class K:
            n = i

        s += gen("g", max_tokens=2)
        K.n += len(s["g"])
        made.append(K)
    return [K.n for K in made]


@case()
def class_that_is_an_enum(s, q):
    class Mood(enum.Enum):
        GOOD = 1
        BAD = 2

    s += q + gen("g", max_tokens=2)
    mood = Mood.GOOD if "a" in s["g"] else Mood.BAD
    return mood.name, mood is Mood.GOOD, Mood.BAD.value


@case()
def class_that_is_a_dataclass(s, q):
    @dataclass
    class Row:
        text: str
        n: int = 3

    s += q + gen("g", max_tokens=2)
    row, other = Row(s["g"]), Row(q, 5)
    Row.n += 1
    return row.text, row.n, other.n, Row.n, Row.__annotations__


@case()
def class_that_is_an_exception(s, q):
    class Stop(Exception):
        code = 3

    s += q + gen("g", max_tokens=2)
    Stop.code += 1
    try:
        raise Stop(s["g"])
    except Stop as error:
        return str(error), error.code, Stop.code


@case()
def class_by_its_name(s, q):
    class K:
        class Inner:
            pass

    s += q + gen("g", max_tokens=2)
    return K.__qualname__, K.Inner.__qualname__, repr(K), (lambda: 1).__qualname__


@case()
def class_with_a_property(s, q):
    class K:
        _n = 1

        @property
        def n(self):
            return self._n

        @n.setter
        def n(self, x):
            K._n = x

        @staticmethod
        def twice():
            K._n *= 2
            return K._n

    k = K()
    s += q + gen("g", max_tokens=2)
    k.n = len(s["g"])
    return k.n, K.twice(), k.twice(), K._n


# functions


@case()
def function_with_a_counter(s, q):
    def f():
        f.n += 1
        s.__iadd__(gen("g", max_tokens=2))
        return f.n

    f.n = 0
    f()
    f()
    return f.n, f()


@case()
def function_with_attributes(s, q):
    def f():
        return 1

    f.n = 0
    f.n += 1
    f.seen = [q]
    s += q + gen("g", max_tokens=2)
    f.seen.append(s["g"])
    setattr(f, "t", s["g"])  # noqa: B010
    had = hasattr(f, "t"), getattr(f, "u", 4)
    del f.t
    return f.n, f.seen, had, hasattr(f, "t"), f.__name__


@case()
def function_without_the_attribute(s, q):
    def f():
        return 1

    s += q + gen("g", max_tokens=2)
    return f.n + len(s["g"])


@case()
def lambda_with_a_counter(s, q):
    f = lambda t: t + str(f.n)  # noqa: E731
    f.n = 1
    s += q + gen("g", max_tokens=2)
    f.n += 1
    f.up = lambda t: t.upper()
    return f(s["g"]), f.up(q)


@case()
def decorator_that_counts(s, q):
    def counted(fn):
        @functools.wraps(fn)
        def inner(*args):
            inner.calls += 1
            return fn(*args)

        inner.calls = 0
        return inner

    @counted
    def ask(t):
        s.__iadd__(t + gen("g", max_tokens=2))
        return s["g"]

    @counted
    def plain(t):
        return t * 2

    ask(q)
    ask("b")
    return ask.calls, plain(q), plain.calls, ask.__name__


def outer_counted(fn):
    def inner(*args):
        inner.calls += 1
        return fn(*args)

    inner.calls = 0
    return inner


@case()
def decorator_of_the_outside(s, q):
    @outer_counted
    def ask(t):
        s.__iadd__(t + gen("g", max_tokens=2))
        return s["g"]

    ask(q)
    ask("b")
    return ask.calls


@case()
def function_handed_with_what_it_holds(s, q):
    def f():
        return 1

    f.n = q
    s += q + gen("g", max_tokens=2)
    keeps(f)
    f.n += "x"
    return f.n


@case()
def function_that_is_kept_after(s, q):
    def f():
        return 1

    keeps(f)
    s += q + gen("g", max_tokens=2)
    f.n = s["g"]
    effect("n", f.n)
    return f.n


@case()
def function_dict(s, q):
    def f():
        return 1

    f.n = q
    s += q + gen("g", max_tokens=2)
    f.__dict__["m"] = s["g"]
    return f.m, f.n, sorted(f.__dict__)


@case()
def function_that_a_tool_changes(s, q):
    def f():
        return 1

    s += q + gen("g", max_tokens=2)
    changes(f)
    changes(f)
    f.n += 1
    f.m = s["g"]
    f.__dict__["k"] = q
    found = f.n, hasattr(f, "n"), hasattr(f, "z"), getattr(f, "z", 3), f.m, f.__name__, sorted(f.__dict__)
    del f.n
    return found, hasattr(f, "n")


@case()
def function_that_a_tool_changes_before_a_replay(s, q):
    def f():
        return last

    def g():
        return f() + "!"

    s += q + gen("g", max_tokens=2)
    last = s["g"]
    many = [lambda i=i: i for i in range(2)]
    for x in (f, g, *many):
        changes(x)
        KEPT.append(x)
    opaque(q)
    found = [x in KEPT for x in (f, g, *many)]
    return f.n, g(), found, [(m(), m.n) for m in many]


def registered(x: Any) -> Any:
    effect("registered", x.__name__)
    KEPT.append(x.__name__)
    return x


@case()
def decorator_of_the_outside_with_an_effect(s, q):
    effect("first")

    @registered
    def f(x):
        return x + "!"

    s += f(q) + gen("g", max_tokens=2)
    return f(s["g"]), f.__name__


@case()
def decorator_that_remembers(s, q):
    @functools.lru_cache
    def f(x):
        effect("f", x)
        return x + "!"

    @outer_counted
    def g(x):
        return f(x)

    s += g(q) + gen("g", max_tokens=2)
    return f(q), g(s["g"]), f.cache_info().hits, g.calls


@case()
def decorators_that_the_host_makes(s, q):
    @registered
    @dataclass(frozen=True)
    class K:
        text: str

    @functools.lru_cache(maxsize=3)
    def f(x):
        s.__iadd__(x + gen("g", max_tokens=2))
        return s["g"]

    return K(f(q)).text, f(q), f.cache_info().hits


@case()
def function_that_counts_after_a_tool(s, q):
    def f():
        f.n += 1
        return f.n

    s += q + gen("g", max_tokens=2)
    changes(f)
    f()
    effect("called", f.n)
    try:
        return f(), f.m
    except AttributeError as error:
        return f.n, str(error)


@case()
def function_that_a_tool_looks_at(s, q):
    def f(a: int, b: str = "x", *, c: "list[int]" = 3) -> bool:
        "Says so."
        return q

    @functools.wraps(f)
    def g(*args):
        return f(*args)

    s += q + gen("g", max_tokens=2)
    return shows(f), shows(g), shows(lambda x: x), f.__annotations__


# what the program puts into its own objects from outside stays the outside's


@case()
def outside_list_in_an_instance(s, q):
    class K:
        pass

    k = K()
    k.x = SHARED
    s += q + gen("g", max_tokens=2)
    k.x.append(s["g"])
    k.x += [q]
    return list(SHARED)


@case()
def outside_list_in_containers(s, q):
    L, D = [SHARED], {"x": SHARED}
    s += q + gen("g", max_tokens=2)
    L[0].append(s["g"])
    D["x"].append(q)
    D.get("x").append(1)
    D.setdefault("x", []).append(2)
    (SHARED,)[0].append(3)
    L.pop().append(4)
    D.pop("x").append(5)
    return list(SHARED)


@case()
def outside_list_in_a_variable(s, q):
    s.set_var("k", SHARED)
    s["l"] = SHARED
    s += q + gen("g", max_tokens=2)
    s["k"].append(s["g"])
    s.get_var("l").append(q)
    return list(SHARED)


@lmc.function
def gives_shared(s, t):
    s += t
    return SHARED


@case()
def outside_list_from_a_program(s, q):
    s += q + gen("g", max_tokens=2)
    gives_shared(q).ret_value.append(s["g"])
    return list(SHARED)


@case()
def outside_list_in_definitions(s, q):
    class K:
        x = SHARED

    def f():
        pass

    f.x = SHARED
    s += q + gen("g", max_tokens=2)
    K.x.append(s["g"])
    K().x.append(q)
    f.x.append(1)
    return list(SHARED)


# states as text, containers that hold themselves, the length that Python asks for


@case()
def state_as_text(s, q):
    s += q + gen("g", max_tokens=2)
    word = s["g"]
    return f"{s}|{word}"


@case()
def state_by_its_repr(s, q):
    s += q + gen("g", max_tokens=2)
    word, other = s["g"], s.fork(2)
    return word, repr(s), str(s), "%s" % s, "{}".format(s), repr([s]), repr(other)  # noqa: UP031, UP032


@case()
def list_that_holds_itself(s, q):
    L = [q]
    L.append(L)
    s += q + gen("g", max_tokens=2)
    L.append(s["g"])
    return len(L), L[1][1][2], L in [q], str(L), f"{L}"


@case()
def dict_that_holds_itself(s, q):
    D = {"q": q}
    D["d"] = D
    s += q + gen("g", max_tokens=2)
    effect("size", len(D["d"]["d"]), s["g"])
    return f"{D}"


@case()
def list_that_holds_itself_and_a_constant(s, q):
    L = [1]
    L.append(L)
    s += q + gen("g", max_tokens=2)
    return len(L), 1 in L, repr(L), s["g"]


class Sized:
    def __init__(self, s):
        self.s, self.asked = s, 0

    def __iter__(self):
        yield from "ab"

    def __len__(self):
        self.asked += 1
        effect("len")
        return 2


class Plain:
    def __init__(self, s):
        self.s, self.items = s, ["a", "b"]

    def __iter__(self):
        return iter(self.items)

    def __len__(self):
        return len(self.items)


@case()
def length_that_is_asked_for(s, q):
    a = Sized(s)
    s += q + gen("g", max_tokens=2)
    L = [*a]
    L.extend(a)
    L += a
    L = [*L, *list(a), *tuple(a), *sorted(a)]
    return L, a.asked, {*a}, set(a)


@case()
def length_that_is_only_looked_at(s, q):
    a = Plain(s)
    s += q + gen("g", max_tokens=2)
    return [*a], list(a), sorted(a), s["g"]


def reset() -> None:
    SHARED.clear()
    Settings.level, Settings.names = 1, []


@pytest.mark.parametrize("name", CASES := cases(globals()))
def test_as_interpreted(name: str) -> None:
    one: Case = CASES[name]
    conform(one.program, one.items, reset=reset, outside=lambda: (SHARED, Settings.level, Settings.names), **{"batch": "outside" not in name, **one.options})
