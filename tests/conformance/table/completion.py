"""Which of several tasks ended first: `asyncio.wait` and `asyncio.as_completed`, of tools and of helpers that ask."""

from __future__ import annotations

import asyncio
from typing import Any

from lmc import gen
from tests.conformance.harness import case, effect
from tests.conformance.shared import by_name


async def fetch(x: Any, turns: int) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    effect("fetch", x)
    if x == "bad":
        raise LookupError(x)
    return f"<{x}>"


@case(backend=by_name)
async def waits_for_all_and_for_errors(s, q):
    tasks = [asyncio.create_task(fetch(x, n)) for n, x in enumerate(("a", "bad", "c"), 1)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    s += q + f"{[i for i, task in enumerate(tasks) if task in done]}" + gen("a", max_tokens=2)
    await asyncio.wait(pending or tasks)
    found = [task.exception() or task.result() for task in tasks]
    s += f"{found}" + gen("b", max_tokens=2)
    return len(done), [str(x) for x in found]


@case(backend=by_name)
async def waits_for_some_time(s, q):
    tasks = [asyncio.create_task(fetch("x", 1)), asyncio.create_task(asyncio.sleep(3600))]
    done, pending = await asyncio.wait(tasks, timeout=0.01)
    for task in pending:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    s += q + f"{len(done)}{found!r}" + gen("a", max_tokens=2)
    return s["a"], tasks[1].cancelled()


@case(backend=by_name)
async def takes_helpers_as_they_end(s, q):
    async def work(i, f):
        f += f"{q}{i}" + gen("n", max_tokens=2)
        if i == 1:
            raise ValueError(f["n"])
        return i, f["n"], await fetch(i, i)

    got = []
    for ended in asyncio.as_completed({asyncio.create_task(work(i, f)) for i, f in enumerate(s.fork(3))}, timeout=60):
        try:
            got.append(await ended)
        except ValueError as error:
            got.append(str(error))
    late = asyncio.as_completed([asyncio.sleep(3600)], timeout=0.001)
    try:
        await next(iter(late))
    except TimeoutError:
        got.append("late")
    s += f"{len(got)}" + gen("end", max_tokens=2)
    return sorted(map(str, got))
