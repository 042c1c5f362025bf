"""Twelve programs that are killed at every point, and the world that they change: a file with a line for each effect that happened."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmc

WORLD = Path()
"""The file of the world. Set by whoever runs a program."""
point: Callable[[str], None] = lambda name: None
"""Called where a process may be killed, with the point's name."""


def happened() -> list[str]:
    """Return the changes made to the world, in order."""
    return WORLD.read_text().splitlines() if WORLD.exists() else []


def change(what: str) -> str:
    """An effect: a line in the world, and a receipt."""
    point(f"before {what}")
    file = os.open(WORLD, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{what}\n".encode())
    os.close(file)
    point(f"behind {what}")
    return f"receipt of {what}"


def pay(whom: str) -> str:
    return change(f"pay {whom}")


def collect(x: str, into: list[str]) -> int:
    into.append(change(f"collect {x}"))
    return len(into)


def asked_world(x: str) -> Any:
    return lmc.Done(f"receipt of send {x}") if f"send {x}" in happened() else None


@lmc.host(check=asked_world)
def send(x: str) -> str:
    return change(f"send {x}")


def _sends_at_times(x: str) -> str:
    """Fails at first, half of the times behind the effect."""
    tried = sum(line == f"tried {x}" for line in happened())
    if tried < 2:
        with WORLD.open("a") as file:
            file.write(f"tried {x}\n")
        point(f"tried {x}")
        raise ConnectionError("before anything was sent")
    if x.endswith("!"):
        change(f"send {x}")
        raise ConnectionError("behind the effect")
    return change(f"send {x}")


flaky = lmc.host(_sends_at_times, check=asked_world, retry=lmc.Retry(3, wait=0))


async def _sends_later(x: str) -> str:
    await asyncio.sleep(0)
    return change(f"send {x}")


async def _sends_later_at_times(x: str) -> str:
    await asyncio.sleep(0)
    return _sends_at_times(x)


flaky_later = lmc.host(_sends_later_at_times, check=asked_world, retry=lmc.Retry(3, wait=0))
later = lmc.host(_sends_later, check=asked_world)


async def awaited(x: str) -> str:
    await asyncio.sleep(0)
    return change(f"awaited {x}")


def refuse(x: str) -> str:
    change(f"refuse {x}")
    raise ValueError(f"no {x}")


@lmc.function
def plain(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    first = pay("alice")
    s += first + lmc.gen("b", max_tokens=3)
    return s["a"], s["b"], pay("bob")


@lmc.function
def collects(s: Any, q: str) -> Any:
    found: list[str] = []
    for word in q.split():
        s += word + lmc.gen("a", max_tokens=2)
        s += str(collect(word, found))
    return found


@lmc.function
def checks(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    return [send("one"), s["a"], send("two")]


@lmc.function
def retries(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    return [flaky("a"), flaky("b!"), s["a"]]


@lmc.function
def handles(s: Any, q: str) -> Any:
    s += q
    for x in "ab":
        try:
            s += refuse(x)
        except ValueError as error:
            s += str(error) + lmc.gen(x, max_tokens=2)
    return s["a"], s["b"], pay("carol")


@lmc.function
def sub(s: Any, x: str) -> Any:
    s += x + lmc.gen("a", max_tokens=2)
    return s["a"] + pay(x)


@lmc.function
def forks(s: Any, q: str) -> Any:
    s += q
    branches = s.fork(2)
    for f, x in zip(branches, ["left", "right"], strict=True):
        f += x + lmc.gen("t", max_tokens=2)
        f += pay(x)
    one = sub.run("one").ret_value
    return [f["t"] for f in branches], one, sub.run("two").ret_value


@lmc.function
def asks(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    if lmc.interrupt(f"send {q}?", bool):
        s += send(q) + lmc.gen("b", max_tokens=2)
    return lmc.interrupt("to whom?"), s["b"], pay("dave")


@lmc.function
async def awaits(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    one = await awaited("one")
    s += one + lmc.gen("b", max_tokens=2)
    return one, await later("three"), s["b"]


@lmc.function
async def gathers(s: Any, q: str) -> Any:
    s += q
    one, two = await asyncio.gather(later("one"), later("two"))
    s += one + two + lmc.gen("a", max_tokens=2)
    async with asyncio.TaskGroup() as group:
        three, four = group.create_task(later("three")), group.create_task(flaky_later("four"))
    return s["a"], three.result(), four.result()


@lmc.function
def each(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    s += pay(q) + lmc.gen("b", max_tokens=2)
    return s["b"]


async def shelve(x: str, into: list[str]) -> int:
    await asyncio.sleep(0)
    into.append(change(f"shelve {x}"))
    await asyncio.sleep(0)
    return len(into)


@lmc.function
async def shares(s: Any, q: str) -> Any:
    """Tasks whose tools change one list."""
    found: list[str] = []

    async def work(f: Any, x: str) -> None:
        f += x + lmc.gen("a", max_tokens=2)
        await shelve(x, found)
        f += lmc.gen("b", max_tokens=2)
        collect(x, found)

    await asyncio.gather(*map(work, s.fork(2), "xy"))
    return sorted(found)


@lmc.function
def shares_on_threads(s: Any, q: str) -> Any:
    found: list[str] = []

    def work(f: Any, x: str) -> None:
        f += x + lmc.gen("a", max_tokens=2)
        collect(f"{x}1", found)
        collect(f"{x}2", found)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, s.fork(2), "xy"))
    return sorted(found)


@dataclass(frozen=True)
class Killed:
    """A program with what it is called with: one run, or a batch."""

    program: Any
    items: tuple[str, ...] = ("x y z",)

    @property
    def name(self) -> str:
        return self.program.name

    def run(self, journal: Path | None, backend: Any) -> Any:
        """Run it, and return its result. Raises the exception that ends it, in a batch the first."""
        options: dict[str, Any] = {"backend": backend, "seed": 1, **({} if journal is None else {"journal": journal})}
        if len(self.items) == 1:
            return lmc.compile(self.program)(self.items[0], **options).ret_value
        states = lmc.compile(self.program).batch([{"q": q} for q in self.items], errors="return", **options)
        for state in states:
            if state.failure is not None:
                raise state.failure
        return [state.ret_value for state in states]


PROGRAMS = [*map(Killed, (plain, collects, checks, retries, handles, forks, asks, awaits, gathers, shares, shares_on_threads)), Killed(each, ("p", "q", "r"))]
