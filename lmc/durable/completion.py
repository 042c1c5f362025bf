"""Which of several tasks, or futures of threads, ended first: the outcomes of `wait` and `as_completed`, of asyncio and `concurrent.futures`, are in the
journal, as numbers of tasks.

Whoever waits for tasks is told of their doubts, too."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import queue
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from time import monotonic
from typing import Any

from lmc.durable.call_records import ReachedCall
from lmc.durable.calls import JournaledCalls
from lmc.durable.deferred import drop, inner_of
from lmc.durable.tasks import here
from lmc.durable.timeouts import RecordedTimeout, RecordedTimer
from lmc.errors import InDoubtEffect, Interrupted, JournalError, Loc

Task = asyncio.Future[Any] | futures.Future[Any]


def waits_for_some(awaitable: Any) -> Sequence[Any] | None:
    """Return what `asyncio.wait` was given, if its coroutine is what is awaited."""
    inner = inner_of(awaitable)
    return [*inspect.getcoroutinelocals(inner)["fs"]] if isinstance(inner, types.CoroutineType) and inner.cr_code is _WAIT else None


async def some_of(journal: JournaledCalls, stream: str, awaitable: Any, tasks: Sequence[Task], loc: Loc | None) -> tuple[_InOrder, _InOrder]:
    """Await `asyncio.wait` for tasks of the run, in the order in which it has made them: those that had ended in an earlier execution, and the others."""
    held = inspect.getcoroutinelocals(inner_of(awaitable))
    try:
        journal.go_on()
        first = _FirstEnded(journal, stream, "await asyncio.wait", (len(tasks), held.get("timeout"), held.get("return_when")), tasks, loc)
        numbers = await first.known()
        if numbers is None:
            done, _ = await awaitable
            first.write(numbers := [i for i, task in enumerate(tasks) if task in done])
        done, pending = _divided(tasks, numbers)
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


def called_later(journal: JournaledCalls, call: Any, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> RecordedTimer:
    """Stand for `call_later` and `call_at` of a loop: what is called in which order is in the journal, as the expiry of time-outs."""
    effects, task, loop = journal.known_effects(), here(), call.__self__
    effects.timeouts.entered[task] += 1
    later = functools.partial(callback, *args) if context is None else functools.partial(context.run, callback, *args)
    timer = RecordedTimer(loop, when + loop.time() * (call.__name__ == "call_later"), (task, effects.timeouts.entered[task]), later)
    effects.timeouts.open[timer.key] = timer
    timer.enter(lambda record: journal.journal.put(journal.item, [*record, effects.turns.since_last()]), effects.holds_time, effects.leave)
    return timer


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


class _InOrder(set[Any]):
    """A set of tasks, which a program goes through in the order in which it has made them; a plain one has another order in each process."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = [*tasks]
        super().__init__(self._tasks)

    def __iter__(self) -> Iterator[Any]:
        return (task for task in self._tasks if task in self)

    def pop(self) -> Any:
        self.remove(first := next(iter(self)) if self else super().pop())  # raises KeyError
        return first


def _divided(tasks: Sequence[Task], numbers: Iterable[int]) -> tuple[_InOrder, _InOrder]:
    ended = {*numbers}
    return tuple(_InOrder(task for i, task in enumerate(tasks) if (i in ended) is there) for there in (True, False))  # type: ignore[return-value]


class _Futures:
    """Futures of threads that a program waits for."""

    def __init__(self, journal: JournaledCalls, stream: str, name: str, fs: Iterable[Any], timeout: float | None, args: Sequence[Any], loc: Loc | None) -> None:
        self.all = journal.effects.tasks.futures_in_order(fs)
        self._place = journal, stream, name, (len(self.all), timeout, *args), self.all, loc
        self._deadline = None if timeout is None else monotonic() + timeout
        self.ended, self._new = list[int](), queue.Queue[int]()
        self._next = journal.effects.waits.ending(self._new.get, self._new)
        for i, future in enumerate(self.all):
            future.add_done_callback(lambda _, i=i: self._new.put(i))

    def first(self, found: Callable[[], list[int]]) -> list[int]:
        """Return the numbers of those of an earlier execution, once they have ended here, or `found` of what has ended so far; that is asked until it finds
        some, all have ended, or it is late."""
        journal = self._place[0]
        journal.go_on()
        first = _FirstEnded(*self._place)
        if (numbers := first.recorded()) is not None:
            while not {*numbers} <= {*self.ended}:
                self.ended.append(self._next())
            journal.effects.take_turn(first.effect)
            return numbers
        with contextlib.suppress(queue.Empty):
            while not (numbers := found()) and len(self.ended) < len(self.all):
                self.ended.append(self._next(timeout=None if self._deadline is None else max(0.0, self._deadline - monotonic())))
        journal.effects.take_turn(None)
        first.write(numbers := numbers or found() or [*self.ended], suspended=False)
        return numbers


def wait_for_futures(
    journal: JournaledCalls, stream: str, loc: Loc | None, fs: Iterable[Any], timeout: float | None = None, return_when: str = futures.ALL_COMPLETED
) -> tuple[Any, Any]:
    """Stand for `concurrent.futures.wait`."""
    waited = _Futures(journal, stream, "wait", fs, timeout, (return_when,), loc)

    def found() -> list[int]:
        failed = return_when == futures.FIRST_EXCEPTION and any(not f.cancelled() and f.exception() for f in (waited.all[i] for i in waited.ended))
        return sorted(waited.ended) if failed or return_when == futures.FIRST_COMPLETED else []

    return futures._base.DoneAndNotDoneFutures(*_divided(waited.all, waited.first(found)))  # pyright: ignore[reportPrivateUsage]


def completed_futures(journal: JournaledCalls, stream: str, loc: Loc | None, fs: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
    """Stand for `concurrent.futures.as_completed`."""
    waited, given = _Futures(journal, stream, "as_completed", fs, timeout, (), loc), list[int]()
    while len(given) < len(waited.all):
        numbers = waited.first(lambda: [i for i in waited.ended if i not in given][:1])
        if not numbers or numbers[0] in given:
            raise TimeoutError(f"{len(waited.all) - len(given)} (of {len(waited.all)}) futures unfinished")
        given.append(numbers[0])
        yield waited.all[numbers[0]]


OF_FUTURES: Mapping[Any, Callable[..., Any]] = {futures.wait: wait_for_futures, futures.as_completed: completed_futures}


class _FirstEnded:
    """The record of which of several tasks had ended when the program went on."""

    def __init__(self, journal: JournaledCalls, stream: str, name: str, args: Sequence[Any], tasks: Sequence[Task], loc: Loc | None) -> None:
        self._journal, self._tasks, self._call = journal, tasks, ReachedCall(stream, name, args, {}, loc)
        self._recorded, self.effect = journal.come_to(self._call)

    def recorded(self) -> list[int] | None:
        """Return the numbers of those of an earlier execution; None if it is not known."""
        if self.effect is None or self.effect.outcome is None:
            return None
        _, numbers = self._journal.known_result(self.effect, (), None)
        if not isinstance(numbers, list) or not all(type(i) is int and 0 <= i < len(self._tasks) for i in numbers):
            raise self._journal.lost(f"{self._call.name}: a result that lmc did not write: {numbers!r:.80}")
        return numbers

    async def known(self) -> list[int] | None:
        """As `recorded`, once these have ended here, too."""
        numbers = self.recorded()
        if numbers is None or self.effect is None:
            return None
        if ended := [self._tasks[i] for i in numbers]:
            await asyncio.wait(ended)  # pyright: ignore[reportArgumentType]  # those of asyncio
        await self._journal.effects.in_turn(self.effect)
        return numbers

    def write(self, numbers: list[int], *, suspended: bool = True) -> None:
        """Write them, unless one has ended because the run does: then it ends again, or not, when the run is resumed."""
        if any(_ends_run(self._tasks[i]) for i in numbers):
            return
        number = self._journal.intend(self._recorded, self._call) if self.effect is None else self.effect.number
        self._journal.write_outcome(number, self._call, None, (True, numbers), suspended=suspended)


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
