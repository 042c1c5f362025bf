"""Tasks that a journaled program begins: of its own coroutines, and of those of host code.

They are not effects: they begin again when the run is resumed. Their requests and calls are in the journal by
themselves, a coroutine of host code as if the program awaited it.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import types
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from lmc.contexts import having
from lmc.durable.call_records import arguments_digest
from lmc.durable.deferred import DeferredAwaitable, take_exception
from lmc.durable.effects import begins_tasks
from lmc.durable.reaches import attribute
from lmc.durable.records import Effect
from lmc.errors import Loc
from lmc.frontend.active import TASK, waiting_for_task
from lmc.frontend.host import RECORDING
from lmc.waiting import in_event_loop


@dataclass(eq=False, slots=True)
class Coming:
    """An awaitable of host code that a task awaits, from when the task is made until it has begun.

    task   number of the tasks of host code that the same task has made
    begun  number of its effect, and its known record, once its intent is written: when the first of such tasks begins
    """

    stream: str
    awaitable: Any
    loc: Loc | None
    task: int
    begun: tuple[int, Effect | None] | None = None


_THREAD: ContextVar[str] = ContextVar("lmc_journaled_thread", default="")
"""The path of callbacks by which a library runs the program here, on whatever thread."""


def here() -> int:
    """Return the number of the task or thread of the program that runs here: of the path by which the program has begun it, so that it has the same
    one when the run is resumed; 0 outside of any."""
    task, path = TASK.get(), _THREAD.get()
    return crc32(f"{path}{'' if task is None else task.label}".encode()) if task is not None or path else 0


def of_host() -> int:
    """Return the number of the tasks of host code that are made here, which begin in one order."""
    return crc32(b"host", here())


class Callbacks:
    """Numbers the functions of a run that it passes to libraries."""

    def __init__(self) -> None:
        self._made = Counter[int]()

    @property
    def none(self) -> bool:
        """Return whether there is none: then only the program's own thread, and tasks, make calls."""
        return not self._made

    def path(self) -> str:
        """Return the path of a function that is passed on here."""
        self._made[by := here()] += 1
        return f"{by}|{self._made[by]}|"

    def within(self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """In the block, a library calls a function with this path: with what it is given, since it may call it on several threads."""
        return having(_THREAD, f"{path}{arguments_digest(args, kwargs, [])}")


Wait = Callable[[Any], tuple[Coroutine[Any, Any, Any], Callable[[], None]]]
"""Awaits a coroutine of host code, with the journal; with a callback for when it has ended or never begins."""


class Tasks:
    """The tasks of one run, and the futures that gather them: they are its own, as are their methods."""

    began = False
    """Whether there was one."""

    def __init__(self) -> None:
        self._found = weakref.WeakKeyDictionary[asyncio.Future[Any], int]()
        self._made = itertools.count()
        self._on_threads = weakref.WeakKeyDictionary[Future[Any], int]()
        self._stopped = weakref.WeakSet[asyncio.Future[Any]]()
        self._of_host = weakref.WeakSet[asyncio.Future[Any]]()

    def __contains__(self, x: object) -> bool:
        return isinstance(x, asyncio.Future) and x in self._found

    def add(self, future: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """Count a future as a task of the run: of a function that it calls on another thread."""
        self._found[future] = next(self._made)
        return future

    def made_on_thread(self, future: Future[Any]) -> Future[Any]:
        """Number a future of a function that a pool of threads calls."""
        self._on_threads.setdefault(future, len(self._on_threads))
        return future

    def futures_in_order(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        """Return such futures in the order in which they were made, also of a set."""
        return sorted(dict.fromkeys(futures), key=lambda future: self._on_threads.get(future, -1))

    def own(self) -> list[asyncio.Future[Any]]:
        """Return the tasks of the program's own coroutines that are not over."""
        return [task for task in self._found if task not in self._of_host and not task.done()]

    def in_order(self, values: Iterable[Any]) -> list[asyncio.Future[Any]] | None:
        """Return tasks in the order in which they were made; None if others are among them."""
        found = [*dict.fromkeys(values)]
        return sorted(found, key=self._found.__getitem__) if all(x in self for x in found) else None

    def note_stopped(self) -> None:
        """Note that the journal ends the task that runs here."""
        if in_event_loop() and (task := asyncio.current_task()) is not None:
            self._stopped.add(task)

    def forget_stopped(self) -> None:
        """Let asyncio not report the errors of tasks that the journal has ended: the run has ended with one of them."""
        for task in self._stopped:
            if task.done():
                take_exception(task)

    def any_in(self, values: Sequence[Any]) -> bool:
        """Return whether a task is among values, or in a container among them, as `asyncio.wait` takes it, or a dict."""
        within = [x.values() if isinstance(x, dict) else x for x in values if isinstance(x, list | tuple | set | dict)]
        return any(x in self for x in itertools.chain(values, *within))

    def are_timed(self, values: Iterable[Any]) -> bool:
        """Return whether the order in which tasks among values, or in a container among them, finish depends on host
        code."""
        return any(isinstance(x, list | tuple | set) and any(y in self._of_host for y in x) for x in values)

    def begun(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_own: Callable[[Any], bool], wait: Wait) -> Any | None:
        """Return the result of a call that begins tasks, or gathers them. None for any other call.

        is_own  whether something is a coroutine of the program's
        """
        grouped = _is_method(fn, asyncio.TaskGroup, "create_task")
        if not (grouped or _begins(fn) or begins_tasks(fn)) or (not args and fn is not asyncio.gather):
            return None
        if args and not (grouped or any(is_own(x) or x in self or (_is_coroutine(x) and fn is not asyncio.wait_for) for x in args)):
            return None
        if grouped or _begins(fn):
            return self._begin(fn, args[0], kwargs, is_own, wait)
        with waiting_for_task() if fn is asyncio.wait_for else nullcontext():
            made = self.of_each(args, is_own, wait)
        found = fn(*[made[id(x)] for x in args], **kwargs)
        return self.add(found) if isinstance(found, asyncio.Future) else found

    def of_each(self, awaitables: Iterable[Any], is_own: Callable[[Any], bool], wait: Wait) -> dict[int, Any]:
        """Return the tasks of awaitables by the ids of these: duplicates count once. What is no awaitable stays what it is."""
        made = dict[int, Any]()
        for x in awaitables:
            if id(x) not in made:
                made[id(x)] = x if x in self or not inspect.isawaitable(x) else self._begin(asyncio.ensure_future, x, {}, is_own, wait)
        return made

    def _begin(self, fn: Any, awaitable: Any, kwargs: Mapping[str, Any], is_own: Callable[[Any], bool], wait: Wait) -> Any:
        """Make a task, or the equivalent awaitable. Hooks are on in the program's own coroutines, off in those of host
        code."""
        if awaitable in self:
            return awaitable
        if is_own(awaitable):
            task = fn(awaitable, **kwargs)
        else:
            waiting, ended = wait(awaitable)
            if isinstance(awaitable, types.CoroutineType):
                waiting.__name__ = awaitable.__name__  # by which the task is numbered
            try:
                with having(RECORDING, None):
                    task = fn(waiting, **kwargs)
            except BaseException:
                waiting.close()
                ended()
                raise
            task.add_done_callback(lambda _: ended())  # if it was cancelled before it began
            self._of_host.add(task)
        self._found[task], self.began = next(self._made), True
        return task


def _is_coroutine(x: Any) -> bool:
    """Return whether it is a coroutine, or the stand-in of one."""
    return isinstance(x, types.CoroutineType) or (isinstance(x, DeferredAwaitable) and x.kind == "coroutine")


def _begins(fn: Any) -> bool:
    return fn is asyncio.create_task or fn is asyncio.ensure_future or _is_method(fn, asyncio.AbstractEventLoop, "create_task")


def _is_method(fn: Any, cls: type, name: str) -> bool:
    return attribute(fn, "__name__") == name and isinstance(attribute(fn, "__self__"), cls)
