"""Async programs: tools, tasks, gathered helpers, limits and cancellation, whatever is awaited and however it ends."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import AsyncIterator
from typing import Any

import lmc
from tests.conformance.harness import case, effect

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


async def search(q: str) -> str:
    effect("search", q)
    await asyncio.sleep(0)
    return f"found {q}"


def plain(q: str) -> str:
    effect("plain", q)
    return q.upper()


async def turn(s: Any, text: str) -> str:
    s += text + lmc.gen("t", max_tokens=6)
    effect("turn", s["t"])
    return await search(s["t"])


@case()
async def tasks_of_tools(s: Any, q: str) -> Any:
    task = asyncio.create_task(search(q))
    s += lmc.gen("a", max_tokens=4)
    s += await task
    return await asyncio.wait_for(search(s["a"]), timeout=60)


async def named(n: int) -> AsyncIterator[str]:
    for i in range(n):
        yield "n" * i


@lmc.function
async def inner(s: Any, tip: str) -> Any:
    s += "tip " + tip + lmc.gen("x", max_tokens=5)
    return await search(s["x"])


@lmc.function
def inner_sync(s: Any, tip: str) -> Any:
    s += "tip " + tip + lmc.gen("x", max_tokens=5)
    return s["x"]


class Tools:
    async def look(self, q: str) -> str:
        effect("look", q)
        await asyncio.sleep(0)
        return q[::-1]


TOOLS = Tools()


@case()
async def awaits_on_one_side_of_or(s: Any, q: str) -> Any:
    s += q
    return (q == "a" and await search("x")) or await search("y"), 1 < len(await search(q)) < 100


async def steps(name: str) -> str:
    effect("first", name)
    await asyncio.sleep(0)
    effect("second", name)
    return name


@case()
async def tasks_take_turns_where_the_program_awaits(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    task = asyncio.create_task(steps(s["a"]))
    effect("the task has not begun")
    s += await steps(q) + await task + lmc.gen("b", max_tokens=2)
    later = asyncio.gather(steps("one"), steps(s["b"]))
    effect("nor have these", len(s["b"]))
    s += "".join(await later)


@case()
async def cancels_what_has_not_begun(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    task = asyncio.create_task(steps(s["a"]))
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    s += type(outcome).__name__


async def judges(s: Any, name: str) -> str:
    s += f"judge {name}:" + lmc.gen("v", max_tokens=4)
    return s["v"].strip().upper()


@lmc.function
async def inner_asks(s: Any, tip: str) -> Any:
    s += "tip " + tip + lmc.gen("x", max_tokens=5)
    return s["x"]


@case()
async def gathers_sub_programs(s: Any, q: str) -> Any:
    children = await asyncio.gather(*[inner_asks.arun(tip=q + str(i)) for i in range(3)])
    s += "|".join(c["x"] for c in children) + lmc.gen("z", max_tokens=2)
    return [c.ret_value for c in children]


@case()
async def fails_while_gathering(s: Any, q: str) -> Any:
    async def fails(f: Any, i: int) -> Any:
        f += f"{i}" + lmc.gen("n", max_tokens=3)
        loaded = json.loads(f"[{i}]")
        loaded.append({"a": len, "b": int}[q](f["n"] + "x"))
        return loaded

    forks = s.fork(3)
    both = await asyncio.gather(fails(forks[0], 1), judges(forks[1], "1"), return_exceptions=True)
    s += str(both[1])
    try:
        return await asyncio.gather(judges(forks[0], "2"), fails(forks[1], 2), fails(forks[2], 3)), len(both)
    except ValueError as error:
        s += f"{error}"[:12] + "".join(f.text() for f in forks)
    return await asyncio.gather(fails(s, 4))


async def notes(s: Any, q: str) -> str:
    s += lmc.gen("a", max_tokens=3)
    effect("note", s["a"])
    TENANT.set(q)
    return TENANT.get()


@case()
async def gather_of_helpers_with_effects(s: Any, q: str) -> Any:
    """They come in the tasks' order, and context variables are each task's own."""
    s += q + await search(q)
    found = await asyncio.gather(*[notes(f, q + str(i)) for i, f in enumerate(s.fork(2))])
    return found, TENANT.get(), await search("x")


@case()
async def helpers_that_wait_for_each_other(s: Any, q: str) -> Any:
    """One after the other, they would wait for ever."""
    ready = asyncio.Event()

    async def first() -> str:
        await ready.wait()
        s.set_var("first", "done")
        return "first"

    async def second() -> str:
        await search(q)
        s.set_var("second", "done")
        ready.set()
        return "second"

    return await asyncio.wait_for(asyncio.gather(first(), second()), 60)


@case()
async def times_out(s: Any, q: str) -> Any:
    s += lmc.gen("a", max_tokens=3)
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)
    except TimeoutError:
        s += "late"
    try:
        await asyncio.wait_for(asyncio.sleep(30), timeout=0.01)
    except TimeoutError:
        s += " again"
    return await search(q)


@case()
async def task_group(s: Any, q: str) -> Any:
    async with asyncio.TaskGroup() as group:
        one = group.create_task(search(q))
        two = group.create_task(turn(s, q))
    return one.result(), two.result()


@case()
async def is_cancelled_by_its_own_tool(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    if q != "b":
        task = asyncio.create_task(asyncio.sleep(30))
        await asyncio.sleep(0)
        task.cancel("by the program")
        await task
    return s["a"]


@case()
async def forgets_to_await_later(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    await search(s["a"])
    inner(tip=q)
