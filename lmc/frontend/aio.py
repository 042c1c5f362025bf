"""Async programs: awaitables of the hooks, reads that do not hold the event loop, and loops of our own.

A program that is `async def` runs as a coroutine: the interpreter's on a loop of its own or the caller's, a compiled
one's host calls in one task of their run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, TypeVar

from lmc.backend.results import Result
from lmc.errors import ProgramError
from lmc.frontend.expressions import caller_loc
from lmc.prompt import Prompt
from lmc.waiting import Signal, in_event_loop, is_set

T = TypeVar("T")


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether calling `fn` gives a coroutine."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


def being_cancelled() -> bool:
    """Return whether the running task is being cancelled; otherwise a CancelledError is the program's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def settled(answer: Result) -> None:
    """Wait for an answer without holding the loop; do not raise its error."""
    if answer.done:
        return
    there = Signal()
    answer.on_done(lambda _: there.set())
    await is_set(there)


async def after(answers: list[Result], read: Callable[[], T]) -> T:
    """Return `read()` once the answers have arrived."""
    for answer in answers:
        await settled(answer)
    return read()


def unanswered_in(ctx: Any) -> list[Result]:
    """Return the answers that reading a prompt would wait for; nothing while tracing."""
    return [answer for answer in ctx.answers() if not answer.done] if isinstance(ctx, Prompt) else []


async def on_thread(work: Callable[[], None]) -> None:
    """Run a function on a thread. What it raises is raised here: a future would make another TimeoutError of one, and cannot hold a StopIteration."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised again below
            raised.append(error)

    await asyncio.to_thread(run)
    if raised:
        raise raised.pop()  # or its traceback would hold itself


# -- loops -----------------------------------------------------------------------------------------------------------


def run_here(make: Callable[[], Coroutine[Any, Any, T]], described: str, instead: str) -> T:
    """Run a coroutine on a new loop of the calling thread. Raises ProgramError where a loop is running already."""
    if in_event_loop():
        raise ProgramError(f"{described} is async, and an event loop is running here: write `{instead}`", loc=caller_loc())
    return asyncio.run(make())


def iterate(make: Callable[[], AsyncIterator[T]], name: str) -> Generator[T]:
    """Iterate over an async iterator, which runs on a loop and a thread of its own until it ends or is abandoned.

    It runs in a copy of the caller's context. Nothing is left running when this iterator is closed.
    """
    found: deque[tuple[bool, Any]] = deque()
    changed = Signal()
    started: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = queue.SimpleQueue()

    async def pump() -> None:
        task = asyncio.current_task()
        assert task is not None
        started.put((asyncio.get_running_loop(), task))
        items = make()
        try:
            async for item in items:
                found.append((True, item))
                del item
                changed.set()
        finally:
            await items.aclose()  # type: ignore[attr-defined]  # async generators

    def work() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(pump())
        except BaseException as raised:  # raised again where the items are taken
            error = raised
        found.append((False, error))
        changed.set()

    thread = threading.Thread(target=copy_context().run, args=(work,), name=name, daemon=True)
    thread.start()
    try:
        while True:
            if not found:
                changed.clear()
                if not found:
                    changed.wait()
                continue
            more, item = found.popleft()
            if more:
                yield item
                del item
            elif item is not None:
                raise item
            else:
                return
    finally:
        if thread.is_alive():
            loop, task = started.get()
            with contextlib.suppress(RuntimeError):  # the loop has just been closed: nothing is left to stop
                loop.call_soon_threadsafe(task.cancel)
            thread.join()
