"""Which of several tasks ended first: the outcomes of `asyncio.wait` and `asyncio.as_completed` are in the journal, as numbers of tasks.

Whoever waits for tasks is told of their doubts, too."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import types
from collections.abc import Coroutine, Generator, Iterator, Sequence
from typing import Any

from lmc.durable.call_records import ReachedCall
from lmc.durable.calls import JournaledCalls
from lmc.durable.deferred import drop, inner_of
from lmc.durable.tasks import here
from lmc.durable.timeouts import RecordedTimeout
from lmc.errors import InDoubtEffect, Interrupted, JournalError, Loc

Task = asyncio.Future[Any]


def waits_for_some(awaitable: Any) -> Sequence[Any] | None:
    """Return what `asyncio.wait` was given, if its coroutine is what is awaited."""
    inner = inner_of(awaitable)
    return [*inspect.getcoroutinelocals(inner)["fs"]] if isinstance(inner, types.CoroutineType) and inner.cr_code is _WAIT else None


async def some_of(journal: JournaledCalls, stream: str, awaitable: Any, tasks: Sequence[Task], loc: Loc | None) -> tuple[set[Task], set[Task]]:
    """Await `asyncio.wait` for tasks of the run, in the order in which it has made them: those that had ended in an earlier execution, and the others."""
    held = inspect.getcoroutinelocals(inner_of(awaitable))
    try:
        journal.go_on()
        first = _FirstEnded(journal, stream, "await asyncio.wait", (len(tasks), held.get("timeout"), held.get("return_when")), tasks, loc)
        numbers = await first.known()
        if numbers is None:
            done, pending = await awaitable
            first.write([i for i, task in enumerate(tasks) if task in done])
        else:
            done = {tasks[i] for i in numbers}
            pending = {*tasks} - done
    finally:
        drop(awaitable)  # where it was not awaited
    note_doubts(journal, [task.exception() for task in done if not task.cancelled()])
    return done, pending


def note_doubts(journal: JournaledCalls, told: Any) -> None:
    """Note doubts that tasks of the run ended with, where the program is told of them: by an error, or among results."""
    for error in _errors_in(told):
        if isinstance(error, InDoubtEffect):
            journal.stops_at(error)


@contextlib.contextmanager
def telling(journal: JournaledCalls) -> Generator[None]:
    """Note doubts that an error of the block tells the program of."""
    try:
        yield
    except (InDoubtEffect, BaseExceptionGroup) as error:
        note_doubts(journal, error)
        raise


class ManagedGroup:
    """Manages a group of tasks, whose end tells the program of their doubts."""

    def __init__(self, journal: JournaledCalls, group: asyncio.TaskGroup) -> None:
        self._journal, self._group = journal, group

    async def __aenter__(self) -> asyncio.TaskGroup:
        return await self._group.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        with telling(self._journal):
            await self._group.__aexit__(*error)


class ManagedLock:
    """Manages a lock of asyncio's, or a semaphore, whose turn may not come where the run is in doubt."""

    def __init__(self, journal: JournaledCalls, lock: asyncio.Lock | asyncio.Semaphore | asyncio.Condition) -> None:
        self._effects, self._lock = journal.effects, lock

    async def __aenter__(self) -> None:
        await self._effects.waits.wait(self._lock.acquire())

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


class ManagedTimeout:
    """Manages a time-out, whose expiry is in the journal: when the run is resumed it expires in the same order."""

    def __init__(self, journal: JournaledCalls, timeout: asyncio.Timeout) -> None:
        self._effects, self._timeout = journal.known_effects(), timeout
        self._write = lambda record: journal.journal.put(journal.item, [*record, self._effects.turns.since_last()])

    async def __aenter__(self) -> asyncio.Timeout:
        effects, task = self._effects, here()
        effects.timeouts.entered[task] += 1
        self._entered = entered = RecordedTimeout.of(self._timeout, (task, effects.timeouts.entered[task]), self._write, effects.holds_time)
        effects.timeouts.open[entered.key] = entered
        effects.give_turns()
        return await entered.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        try:
            if error[0] is None:
                await self._effects.expired_again([self._entered])
        except asyncio.CancelledError as late:
            error = type(late), late, late.__traceback__
        self._entered.write()
        self._effects.leave(self._entered)
        return await self._entered.__aexit__(*error)


async def in_time(journal: JournaledCalls, awaitable: Any) -> Any:
    """Await `asyncio.wait_for` of what the program itself does, as Python does since 3.12."""
    waits = inner_of(awaitable)
    held = inspect.getcoroutinelocals(waits)
    if held["timeout"] is None or held["timeout"] <= 0:
        return await awaitable
    waits.close()
    async with ManagedTimeout(journal, asyncio.timeout(held["timeout"])):
        return await journal.effects.within(journal.effects.timeouts.of_this_task(), held["fut"])


class CompletedTasks:
    """Stands for `asyncio.as_completed`."""

    def __init__(self, journal: JournaledCalls, stream: str, tasks: Sequence[Task], timeout: float | None, loc: Loc | None) -> None:
        self._place = journal, stream, "await asyncio.as_completed", (len(tasks), timeout), tasks, loc
        self._tasks, self._left, self._given, self._late = tasks, set(range(len(tasks))), 0, False
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._ended: asyncio.Queue[int] = asyncio.Queue()
        for i, task in enumerate(tasks):
            task.add_done_callback(lambda _, i=i: self._ended.put_nowait(i))

    def __iter__(self) -> CompletedTasks:
        return self

    def __next__(self) -> Coroutine[Any, Any, Any]:
        if self._given == len(self._tasks):
            raise StopIteration
        self._given += 1
        return self._result()

    def __aiter__(self) -> CompletedTasks:
        return self

    async def __anext__(self) -> Task:
        if self._given == len(self._tasks):
            raise StopAsyncIteration
        self._given += 1
        return await self._next()

    async def _result(self) -> Any:
        task = await self._next()
        with telling(self._place[0]):
            return task.result()

    async def _next(self) -> Task:
        self._place[0].go_on()
        first = _FirstEnded(*self._place)
        numbers = await first.known()
        if numbers is None:
            numbers = await self._live()
            first.write(numbers)
        if not numbers:
            raise TimeoutError
        self._left.difference_update(numbers)
        return self._tasks[numbers[0]]

    async def _live(self) -> list[int]:
        """Return the number of the next task that ends; none if it is late."""
        try:
            async with asyncio.timeout_at(self._deadline):
                while not self._late:
                    if (number := await self._ended.get()) in self._left:
                        return [number]
        except TimeoutError:
            self._late = True
        return []


class _FirstEnded:
    """The record of which of several tasks had ended when the program went on."""

    def __init__(self, journal: JournaledCalls, stream: str, name: str, args: Sequence[Any], tasks: Sequence[Task], loc: Loc | None) -> None:
        self._journal, self._tasks, self._call = journal, tasks, ReachedCall(stream, name, args, {}, loc)
        self._recorded, self._known = journal.come_to(self._call)

    async def known(self) -> list[int] | None:
        """Return the numbers of those of an earlier execution, once these have ended here, too; None if it is not known."""
        if self._known is None or self._known.outcome is None:
            return None
        _, numbers = self._journal.known_result(self._known, (), None)
        if not isinstance(numbers, list) or not all(type(i) is int and 0 <= i < len(self._tasks) for i in numbers):
            raise self._journal.lost(f"{self._call.name}: a result that lmc did not write: {numbers!r:.80}")
        if ended := [self._tasks[i] for i in numbers]:
            await asyncio.wait(ended)
        await self._journal.effects.in_turn(self._known)
        return numbers

    def write(self, numbers: list[int]) -> None:
        """Write them, unless one has ended because the run does: then it ends again, or not, when the run is resumed."""
        if any(_ends_run(self._tasks[i]) for i in numbers):
            return
        number = self._journal.intend(self._recorded, self._call) if self._known is None else self._known.number
        self._journal.write_outcome(number, self._call, None, (True, numbers), suspended=True)


def _ends_run(task: Task) -> bool:
    return not task.cancelled() and any(isinstance(x, InDoubtEffect | Interrupted | JournalError) for x in _errors_in(task.exception()))


def _errors_in(told: Any) -> Iterator[BaseException]:
    """Yield the errors that what the program is told has, also in groups and lists of results."""
    if isinstance(told, BaseExceptionGroup) or type(told) is list:
        for x in told.exceptions if isinstance(told, BaseExceptionGroup) else told:
            yield from _errors_in(x)
    elif isinstance(told, BaseException):
        yield told


_WAIT = asyncio.wait.__code__
