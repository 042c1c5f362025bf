"""Coroutines that ask: gathered forks, limits, tasks that fail, queues, asynchronous generators, awaitables of one's own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from lmc import gen
from tests.conformance.harness import case, effect
from tests.conformance.shared import achild, by_name


@case(backend=by_name)
async def gathered_forks(s, q):
    s += q

    async def work(f, i):
        f += f"{i}" + gen("x", max_tokens=2)
        await asyncio.sleep(0)
        f += f["x"] + gen("y", max_tokens=2)
        return f["y"]

    found = await asyncio.gather(*(work(f, i) for i, f in enumerate(s.fork(3))))
    s += "|".join(found) + gen("z", max_tokens=2)
    return found, s["z"]


@case(backend=by_name)
async def tasks_and_errors(s, q):
    async def number(f):
        f += q + gen("bad", max_tokens=2)
        return int(f["bad"])

    tasks = [asyncio.create_task(number(f)) for f in s.fork(2)]
    found = await asyncio.gather(*tasks, return_exceptions=True)
    s += str([type(x).__name__ for x in found]) + gen("z", max_tokens=2)
    if all(isinstance(x, Exception) for x in found):
        raise found[0]
    return sum(x for x in found if isinstance(x, int))


@case(backend=by_name)
async def async_generators(s, q):
    async def pages(n):
        for i in range(n):
            yield await achild.arun(f"{q}{i}")

    found = [p.ret_value async for p in pages(3)]
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(effect, "closed")
        s += " ".join(found) + gen("z", max_tokens=2)
    return found


@case(backend=by_name)
async def workers_of_a_queue(s, q):
    todo: asyncio.Queue[int] = asyncio.Queue()
    forks, done = s.fork(4), dict[int, str]()
    for i in range(4):
        todo.put_nowait(i)

    async def worker() -> None:
        while not todo.empty():
            i = todo.get_nowait()
            forks[i] += f"{q}{i}" + gen("a", max_tokens=3)
            await asyncio.sleep(0)
            done[i] = forks[i]["a"]
            todo.task_done()

    await asyncio.gather(worker(), worker())
    await todo.join()
    s += str(sorted(done.items())) + gen("z", max_tokens=2)
    return sorted(done.items())


@case(backend=by_name)
async def generators_that_are_closed(s, q):
    async def pages(n: int) -> Any:
        for i in range(n):
            try:
                yield (await achild.arun(f"{q}{i}")).ret_value
            finally:
                effect("page", i)

    several = pages(3)
    first = await anext(several)
    await several.aclose()
    s += " ".join([first, *[p async for p in pages(2)]]) + gen("z", max_tokens=2)
    return first, s["z"]


async def fetch(x: Any) -> str:
    await asyncio.sleep(0)
    effect("fetch", x)
    return f"({x})"


class Pages:
    def __init__(self, s: Any, n: int) -> None:
        self.s, self.n, self.at = s, n, 0

    def __aiter__(self) -> Pages:
        return self

    async def __anext__(self) -> str:
        if self.at >= self.n:
            raise StopAsyncIteration
        self.at += 1
        self.s += f"p{self.at}" + await fetch(self.at) + gen("a", max_tokens=2)
        return self.s["a"]


class Later:
    def __init__(self, s: Any) -> None:
        self.s = s

    def __await__(self) -> Any:
        got = yield from fetch("later").__await__()
        self.s += got + gen("b", max_tokens=2)
        return self.s["b"]


@case(backend=by_name)
async def awaitables_of_ones_own(s, q):
    async def asks(n):
        try:
            for i in range(n):
                s.__iadd__(f"{i}" + gen("a", max_tokens=2))
                if got := (yield s["a"]):
                    s.__iadd__(f"({got})")
        finally:
            s.__iadd__("end")

    s += q
    several = asks(3)
    out = [await anext(several), await several.asend("hi"), await anext(asks(0), "none")]
    await several.aclose()
    out += [x async for x in Pages(s, 2)] + [await Later(s), await anext(Pages(s, 0), "none")]
    future = asyncio.get_running_loop().create_future()
    future.set_result(await fetch("set"))
    return out, await future, await asyncio.gather(Later(s), fetch("b")), await asyncio.wait_for(anext(asks(1)), 5)


async def in_turns(x: Any, turns: int) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    effect("turns", x)
    return f"{x}{turns}"


@case(backend=by_name)
async def stops_what_goes_on_beside_it(s, q):
    """What the task has done by then follows from the turns that the program's own awaits take."""
    done = []

    async def beside():
        try:
            for i in range(100):
                done.append(await in_turns(i, 2))
        finally:
            done.append("stopped")

    async def idle():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            done.append("never ended")
            raise

    tasks = [asyncio.create_task(beside()), asyncio.create_task(idle())]
    await asyncio.sleep(0)
    s += q + await in_turns("main", 7) + gen("a", max_tokens=2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    s += f"{done}" + gen("z", max_tokens=2)
    return done, s["z"]
