"""Instrumented functions do what the functions do: values, exceptions, order of evaluation, closures, tracebacks."""

# ruff: noqa  # the odd code is the point

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from lmc.frontend.hooks import hooks
from lmc.frontend.instrument import instrument
from lmc.frontend.source import CannotInstrument

LOG: list[Any] = []
LEVEL = 1


def note(x: Any) -> Any:
    LOG.append(x)
    return x


class Box:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def order(a: Any) -> Any:
    d = {note("k"): note(1), **{note("m"): 2}}
    d[note("i")] = note("v")
    x = note(1) if note(a) else note(2)
    return d, x, note(3) < note(4) < note(2) < note(9), note(0) or note(5) and note(6), [note(i) for i in range(2) if note(i)]


def order_of_methods(a: Any) -> Any:
    xs = [1, 2]
    text = f"{xs} {xs.pop()} {xs}"
    try:
        None.lower(note(a))
    except AttributeError as error:
        text += str(error)
    return text, "{}".format(note(a)), xs.append(xs.pop())


def targets(a: Any) -> Any:
    b = Box(n=1, xs=[1, 2])
    (x, [y, *z]), b.n, b.xs[0] = (1, "uvw"), 5, 6
    b.n += 2
    b.xs[note(0)] **= 2
    first, *rest = a, 2, 3
    rest.append(4)
    for i, (j, *k) in enumerate([(1, 2, 3), "xy"]):
        k.append(i)
    p = q = [a]
    p.append(1)
    del b.xs[0], first
    n: int = 3
    n: str
    return x, y, z, b.n, b.xs, rest, i, j, k, q, n


def comprehensions(a: Any) -> Any:
    pairs = [(i, j) for i in range(3) if i for j in range(i) if not j]
    table = {k: {v for v in range(3) if v != k} for k in range(2)}
    gen = (x * 2 for x in (y + 1 for y in range(3)))
    last = [m := i for i in range(3)]
    nested = [[z for z in range(w)] for w in range(3)]
    lazy = [(lambda: i) for i in range(2)]
    return pairs, table, list(gen), m, last, nested, [f() for f in lazy], sum(i if i > 1 else 0 for i in range(a)), [i for i in range(3) if i and i < 2]


def functions(a: Any) -> Any:
    total = 0

    def add(x: int, /, y: int = 2, *more: int, z: int, **named: int) -> int:
        """Adds."""
        nonlocal total
        total += x + y + z + sum(more) + sum(named.values())
        named["seen"] = 1
        return len(named)

    @functools.lru_cache
    def twice(x: int) -> int:
        return note(x) * 2

    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    add(a, z=1)
    add(1, 2, 3, 4, z=5, w=6)
    add(*[1, 2], **{"z": 3})
    return total, twice(3), twice(3), (lambda *xs, k=a: (xs, k))(1, 2), add.__doc__, fib(7)


def classes(a: Any) -> Any:
    class Base:
        count = LEVEL
        __hidden = 4

        def __init__(self, x: int) -> None:
            self.x = x
            self.__y = x + 1

        @property
        def y(self) -> int:
            return self.__y + self.__hidden

        @staticmethod
        def three() -> int:
            return 3

    class Child(Base):
        def __init__(self, x: int) -> None:
            super().__init__(x * 2)

        def __len__(self) -> int:
            return self.x

    c = Child(a)
    c.x += 1
    return c.x, c.y, c.three(), len(c), Child.count, isinstance(c, Base)


def exceptions(a: Any) -> Any:
    found = []
    for make in (lambda: 1 / 0, lambda: [][a], lambda: None.x, lambda: note(1)):
        try:
            make()
        except (ZeroDivisionError, IndexError) as error:
            found.append(str(error))
        except AttributeError:
            found.append("attribute")
            continue
        else:
            found.append("fine")
        finally:
            note("finally")
    try:
        try:
            raise KeyError(a) from ValueError("inner")
        finally:
            note("unwound")
    except KeyError as error:
        found.append(repr(error.__cause__))
    try:
        raise ExceptionGroup("both", [ValueError(1), TypeError(2)])
    except* ValueError as group:
        found.append(len(group.exceptions))
    except* TypeError:
        found.append("type")
    return found


def loops(a: Any) -> Any:
    out, n = [], 0
    while n < 5:
        n += 1
        if n == 2:
            continue
        if n == a:
            break
        out.append(n)
    else:
        out.append("else")
    for i in range(2):
        pass
    else:
        out.append(i)
    while (line := next(iter([""]), None)) and line:
        out.append(line)
    return out, n


def matches(a: Any) -> Any:
    def kind(x: Any) -> Any:
        match x:
            case 1 | 2:
                return "small"
            case [first, *rest] if rest:
                return first, rest
            case {"k": v, **more}:
                return v, more
            case Box(n=n):
                return n
            case str() as text:
                return text
            case None:
                return "none"
            case _:
                return "other"

    return [kind(x) for x in (a, 2, [1, 2], [1], {"k": 3, "l": 4}, Box(n=5), "t", None, 3.5)]


def strings(a: Any) -> Any:
    w = 6
    return f"{a!r:>{w}}|{a:0{w}.2f}|{{x}}|{'n'!s}|{a=}", "%s-%(x)s" % {"x": a} if False else "%d" % a, "a" "b", f"{f'{a}'}" + "c", b"x" + b"y"


def withs(a: Any) -> Any:
    class Scope:
        def __enter__(self) -> str:
            note("in")
            return "got"

        def __exit__(self, kind: Any, *rest: Any) -> bool:
            note(kind and kind.__name__)
            return kind is ValueError

    with Scope() as s, Scope():
        note(s)
        raise ValueError(a)
    return s


def scopes(a: Any) -> Any:
    global LEVEL
    LEVEL += a
    local = LEVEL
    LEVEL = 1
    return local, eval("a + local"), locals()["a"], (lambda: LEVEL)(), [a for a in "xy"], a


def operators(a: Any) -> Any:
    m = a
    m <<= 2
    m |= 1
    m ^= 7
    return -a, +a, ~a, not a, a**2, a // 2, a % 2, a @ a if False else a / 2, a >> 1, m, a is None, a is not None, a in [a], a not in (), [1, 2, 3][-1:0:-1], a if a > 1 else -1


FUNCTIONS = [order, order_of_methods, targets, comprehensions, functions, classes, exceptions, loops, matches, strings, withs, scopes, operators]


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    LOG.clear()
    try:
        value = fn(*args)
    except Exception as error:
        value = type(error), str(error)
    return value, list(LOG)


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("argument", [0, 1, 3])
def test_same_as_the_function(fn: Any, argument: int):
    assert outcome(instrument(fn, hooks), argument) == outcome(fn, argument)


def test_cells_and_defaults_are_shared():
    n = 1

    def up(by: int = 2, *, log: list[int] = []) -> int:  # noqa: B006
        log.append(by)
        return n + by + len(log)

    twin = instrument(up, hooks)
    assert twin() == 4
    n = 10
    assert (up(), twin(5)) == (14, 18)


def test_traceback_names_the_line_of_the_user():
    def fails(a: Any) -> Any:
        b = a
        return b["k"] + 1

    with pytest.raises(KeyError) as caught:
        instrument(fails, hooks)({})
    frame = next(f for f in traceback.extract_tb(caught.value.__traceback__) if f.name == "fails")
    assert (frame.filename, frame.lineno) == (__file__, fails.__code__.co_firstlineno + 2)


def generator(a: Any) -> Any:
    try:
        yield a
    except BaseException:
        print("end")


def runs_exec(a: Any) -> Any:
    exec("a = 1")
    return a


@pytest.mark.parametrize(("fn", "why"), [(generator, "`yield` inside of `try`"), (runs_exec, "exec"), (eval("lambda a: a"), "source")])
def test_what_cannot_be_instrumented_says_why(fn: Any, why: str):
    with pytest.raises(CannotInstrument, match=why):
        instrument(fn, hooks)


def test_threads_that_instrument_at_once_get_one_code():
    fn, found, ready = many_lines, list[Any](), threading.Barrier(8)

    def work() -> None:
        ready.wait()
        found.append(instrument(fn, hooks).__code__)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1


def many_lines(x: Any) -> Any:
    return [[y + 1 for y in x if y > z] for z in x if any(z < w for w in x)] or {y: (y, x[y]) for y in x}
