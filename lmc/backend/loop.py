"""The executor on an event loop: drives runs without holding the loop, and lets async programs await there.

The instructions of all runs execute on the loop, between its other work. A program that is `async def` has one task a
run: its host calls, what they give to await, and its replay happen in that task, one after another, so that to them it
is the program. The loop gets a turn where the program awaits and nowhere else, so tasks that it starts do not overtake it.
Host calls of other programs run on the pool.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextvars import Context
from time import perf_counter
from types import CoroutineType
from typing import Any

from lmc.backend import recording
from lmc.backend.base import TakeOver
from lmc.backend.executor import Done, Execution
from lmc.backend.instructions import INTERRUPTED, RETURNED, Awaiting, HostCall, Instruction, Run, cancel

Event = tuple[Run, Instruction | None, Done | None]


class _Events:
    """What happened on any thread, for the one task that drives the runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._found = deque[Event]()
        self._some = asyncio.Event()

    def put(self, event: Event) -> None:
        self._found.append(event)
        if not self._loop.is_closed():  # a late answer to a run that was cancelled
            self._loop.call_soon_threadsafe(self._some.set)

    def get(self) -> Event:
        return self._found.popleft()

    def empty(self) -> bool:
        return not self._found

    async def wait(self) -> None:
        while not self._found:
            self._some.clear()
            await self._some.wait()


class LoopExecution(Execution):
    """Drives a set of runs to their ends on the running loop.

    on_loop  the program is async: its host calls happen on the loop
    """

    def __init__(self, *, on_loop: bool, workers: int = 64) -> None:
        super().__init__(parallel=True, workers=workers)
        self.on_loop = on_loop
        self._events: Any = _Events()
        self._tasks: dict[Run, _RunTask] = {}
        self._finished = deque[Run]()  # in their own tasks
        self._broken: BaseException | None = None  # what ended one of those tasks, and ends the execution

    async def arun(self, runs: Iterator[Run]) -> AsyncGenerator[Run]:
        """Gives each run when it is over, as `run` does. Closing it, or cancelling the task, ends all that is not over."""
        try:
            for run in runs:
                self._unfinished[run] = None
                over = self._advanced(run)
                if over is not None:
                    yield over
                await asyncio.sleep(0)
                for over in self._handled():
                    yield over
            while self._unfinished:
                await self._events.wait()
                for over in self._handled():
                    yield over
        finally:
            self.close()
            await self._ended()

    def _handled(self) -> Iterator[Run]:
        while not self._events.empty():
            event = self._events.get()
            if self._broken is not None:
                raise self._broken
            over = self._handle(*event)
            if over is not None:
                yield over
            while self._finished:
                yield self._finished.popleft()

    def _go_on(self, run: Run, instruction: HostCall, done: Done) -> None:
        """What follows a host call, at once and in the task of the run."""
        try:
            over = self._handle(run, instruction, done)
        except BaseException as error:  # raised where the runs are driven
            over, self._broken = None, error
        if over is not None:
            self._finished.append(over)
        if over is not None or self._broken is not None:
            self._events.put((run, None, None))  # there is something to see

    def close(self) -> None:
        for run in self._unfinished:
            if run in self._tasks:
                self._tasks[run].cancel()
            _close_unawaited(run.env)
        while not self._events.empty():
            done = self._events.get()[2]
            _close_unawaited([] if done is None else [done[1][1]])
        super().close()

    async def _ended(self) -> None:
        """Waits for the runs' tasks, which are ending."""
        tasks = [task.task for task in self._tasks.values()]
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def _task(self, run: Run) -> _RunTask:
        task = self._tasks.get(run)
        if task is None:
            task = self._tasks[run] = _RunTask(run.owner.context(run), lambda: self._events.put((run, INTERRUPTED, None)))
            if run.journal is not None and not run.stream:  # a sub-program's may be a task that the program began
                run.journal.drives(task.task, asyncio.current_task())
        return task

    def _handle(self, run: Run, instruction: Instruction | None, done: Done | None) -> Run | None:
        if instruction is not INTERRUPTED:
            return super()._handle(run, instruction, done)
        if run not in self._unfinished or run.taken or RETURNED in run.busy:
            return None
        run.failure = run.failure or TakeOver("raises CancelledError while it waits for an answer")
        return self._failed(run)

    def _over(self, run: Run) -> Run:
        task = self._tasks.pop(run, None)
        if task is not None:
            task.end()
        return super()._over(run)

    # -- what happens in the task of a run

    def start(self, run: Run, instruction: HostCall, args: list[Any]) -> bool:
        if not self.on_loop or instruction.unordered:
            return super().start(run, instruction, args)
        run.busy.add(instruction)
        run.inflight += 1

        async def work() -> None:
            began = perf_counter()
            outcome = await self._awaited(run, instruction, args)
            if recording.recorder is not None:
                recording.recorder.called(run.number, instruction.fn, instruction.loc, began)
            self._go_on(run, instruction, (args, outcome))

        self._task(run).do(work)
        return False

    async def _awaited(self, run: Run, instruction: HostCall, args: list[Any]) -> tuple[bool, Any]:
        outcome = self._outcome(run, instruction, None, args)
        if not outcome[0] or not isinstance(instruction, Awaiting):
            return outcome
        try:
            awaitable = outcome[1]
            if run.journal is not None and instruction.effect:
                awaitable = run.journal.wait(run.stream, awaitable, instruction.loc)
            if run.limits is not None and run.limits.timed:
                awaitable = run.limits.wait(awaitable, instruction.loc)
            return True, await awaitable
        except BaseException as error:  # SystemExit and the like end the run, and are raised to the caller
            return False, error

    def _start_replay(self, run: Run) -> None:
        if not self.on_loop:
            return super()._start_replay(run)

        async def work() -> None:
            self._task(run).interrupt()
            try:
                run.result = await run.owner.areplay(run)
            except BaseException as error:  # SystemExit and the like are raised to the caller
                run.error = error
                cancel(run)
            self._events.put((run, None, None))

        self._task(run).do(work)


def _close_unawaited(values: Iterable[Any]) -> None:
    """Coroutines that were made and will not be awaited any more."""
    for value in values:
        if isinstance(value, CoroutineType) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            value.close()


class _RunTask:
    """The task of one run: does what it is given, one thing after another.

    The program may have itself cancelled, by `asyncio.timeout` for instance. If that happens while nothing is awaited here, because the run waits for
    an answer, `interrupted` is called, and the interpreter goes on: `interrupt` raises it there, where the program awaits.
    """

    def __init__(self, context: Context, interrupted: Callable[[], None]) -> None:
        self._interrupted = interrupted
        self._reason: tuple[Any, ...] | None = None
        self._work = asyncio.Queue[Callable[[], Awaitable[None]] | None]()
        self._cancelled = False
        self.task = asyncio.get_running_loop().create_task(self._serve(), context=context)

    def do(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work.put_nowait(work)

    def end(self) -> None:
        """Ends the task once it has nothing to do."""
        self._work.put_nowait(None)

    def cancel(self) -> None:
        """Cancels what it is doing; it does nothing more."""
        self._cancelled = True
        self.task.cancel()

    def interrupt(self) -> None:
        """In the task: what cancelled it while it had nothing to do cancels what it awaits next."""
        if self._reason is not None:
            self.task.cancel(*self._reason)
            self.task.uncancel()  # it is counted already
            self._reason = None

    async def _serve(self) -> None:
        while not self._cancelled:
            try:
                work = await self._work.get()
            except asyncio.CancelledError as error:
                if self._cancelled:
                    raise
                self._reason = error.args
                self._interrupted()
                continue
            if work is None:
                return
            await work()
