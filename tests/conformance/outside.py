"""A module that the conformance programs use from outside: tools, helpers with and without a state, and things that change."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import lmc
from tests.conformance.harness import effect

LIMIT = 3
MODE = "a"
STEPS = ["one", "two", "three"]
TABLE = {"x": "first", "y": "second"}
SEEN: list[Any] = []
IDS = itertools.count()


def reset() -> None:
    global LIMIT, MODE, IDS
    LIMIT, MODE, IDS = 3, "a", itertools.count()
    STEPS[:] = ["one", "two", "three"]
    TABLE.clear()
    TABLE.update({"x": "first", "y": "second"})
    SEEN.clear()
    counted.calls = METER.n = 0
    Settings.level = 1
    Settings.note = None


def look() -> Any:
    return LIMIT, MODE, list(STEPS), dict(TABLE), list(SEEN), counted.calls, Settings.level, Settings.note, METER.n


class Settings:
    level = 1
    note: Any = None


class Meter:
    """Is read through code of its own."""

    n = 0

    @property
    def now(self) -> int:
        effect("now", self.n)
        return self.n

    def tick(self) -> int:
        effect("tick", self.n)
        self.n += 1
        return self.n

    def __iter__(self) -> Iterator[str]:
        return (f"{self.tick()}" for _ in range(2))


METER = Meter()


def set_limit(n: int) -> None:
    global LIMIT
    effect("limit", n)
    LIMIT = n


def set_mode(mode: str) -> None:
    global MODE
    effect("mode", mode)
    MODE = mode


def tool(x: Any, *run: str) -> str:
    """As with the tools below: `run` says to whose effects this one belongs."""
    effect("tool", x, *run)
    return f"<{x}>"


def shout(x: str, *run: str) -> str:
    effect("shout", x, *run)
    return x.upper() + "!"


def words(x: str, *run: str) -> list[str]:
    effect("words", x, *run)
    return x.split()


def quiet(x: str) -> str:
    """Does nothing but answer; capture cannot know."""
    return x[::-1]


def bag(x: str, *run: str) -> Any:
    effect("bag", x, *run)
    return (a for a in x.split()[:2])


def lookup(x: str, *run: str) -> dict[str, str]:
    effect("lookup", x, *run)
    return {x[:1]: x, "k": "found"}


def fill(x: str, out: list[str], *run: str) -> None:
    effect("fill", x, out, *run)
    out.append(x)


def size(xs: list[Any], *run: str) -> int:
    effect("size", xs, *run)
    return len(xs)


def guarded(x: str, run: str, fn: Any) -> str:
    effect("guarded", fn(x), run)
    return fn(x)


def relay(fn: Any, x: str) -> None:
    effect("relay", x)
    fn(x)


@contextlib.contextmanager
def section(x: str, *run: str) -> Iterator[str]:
    effect("enter", x, *run)
    try:
        yield x + "+"
    except IndexError:
        effect("swallowed", x, *run)
    finally:
        effect("leave", x, *run)


def keep(xs: list[Any]) -> int:
    effect("keep", xs)
    SEEN.append(xs)
    return len(xs)


def flaky(x: str, *run: str) -> str:
    effect("flaky", x, *run)
    if "a" in x:
        raise ValueError(f"bad {x}")
    return x + "?"


def counted(x: str) -> str:
    effect("counted", x)
    counted.calls += 1
    return f"{x}{counted.calls}"


counted.calls = 0


def drop(x: str) -> None:
    effect("drop", x)
    STEPS.remove(x)


def add_step(x: str) -> None:
    effect("add", x)
    STEPS.append(x)


def ask(s: Any, question: str, name: str = "a", **more: Any) -> str:
    s += lmc.user(question) + lmc.assistant(lmc.gen(name, max_tokens=6, **more))
    return s[name]


TOOLS = {"shout": shout, "tool": tool}
