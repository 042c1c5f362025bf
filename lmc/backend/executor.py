"""The executor: drives runs of planned graphs, one or many at once, without a thread per program or fork.

A run walks its path block by block. Each op executes as soon as its operands are there and program order allows it:
what the model is asked goes out early, what can be seen from outside (effects, exceptions) keeps the program's order.
Where the graph does not go on, the owner of the run extends it, or takes the run over.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import Context
from typing import Any

from lmc.backend import recording
from lmc.backend.base import Result
from lmc.backend.branches import ask_ahead, settle, waste
from lmc.backend.instructions import RETURNED, STOPPED, HostCall, Instruction, Run, Switch, Terminator, cancel, unpin
from lmc.backend.pool import HostPool, HostThread, Work, replaced
from lmc.config import log, logs
from lmc.errors import CancelledError

RAISED_BY_PROGRAMS = (Exception, asyncio.CancelledError)
"""What a program may raise, and what it can catch of what its tools raise; anything else ends the whole execution."""
Done = tuple[Sequence[Any], tuple[bool, Any]]
"""A host call that is over: its arguments, and (True, result) or (False, exception)."""


_PATIENCE = 0.2
"""Seconds that a wait may hide a signal."""


class Execution:
    """Drives a set of runs to their ends in the calling thread.

    parallel  host calls that may block run on a pool, so that they do not hold up other runs
    workers   how many of them at once
    """

    def __init__(self, *, parallel: bool, workers: int = 64) -> None:
        self.parallel, self.workers = parallel, workers
        self._events: queue.SimpleQueue[tuple[Run, Instruction | None, Done | None]] = queue.SimpleQueue()
        self._pool: HostPool | None = None
        self._holding: dict[Run, HostThread] = {}  # runs that are inside a `with` of the host, or were
        self._before_with: deque[tuple[Run, Work]] = deque()  # runs that will be
        self._unfinished: dict[Run, None] = {}
        self._stopped = False
        self._logs = logs("host")

    def run(self, runs: Iterator[Run]) -> Iterator[Run]:
        """Gives each run when it is over: with `result`, or with `error` if the program raised."""
        try:
            for run in runs:
                self._unfinished[run] = None
                over = self._advanced(run)
                if over is not None:
                    yield over
                while not self._events.empty():
                    over = self._handle(*self._events.get())
                    if over is not None:
                        yield over
            while self._unfinished:
                over = self._handle(*self._next())
                if over is not None:
                    yield over
        finally:
            self.close()

    def _next(self) -> tuple[Run, Instruction | None, Done | None]:
        if not self._events.empty():
            return self._events.get()
        with replaced():
            while True:
                try:
                    return self._events.get(timeout=_PATIENCE)
                except queue.Empty:  # a Ctrl-C that came just before the wait is raised now
                    continue

    def stop(self, run: Run) -> None:
        """From any thread: nobody watches a run any more, so the execution ends."""
        self._stopped = True
        self._events.put((run, STOPPED, None))

    def check(self) -> None:
        if self._stopped:
            raise CancelledError("nobody watches the run any more")

    def close(self) -> None:
        """Cancels what is not finished: an exception or an abandoned iteration leaves no request and no queued host call.

        A host call that is running cannot be stopped: it runs on in its thread, and its result is dropped.
        """
        for run in self._unfinished:
            cancel(run)
            settle(run, ())
            run.owner.cancel(run)
        self._unfinished.clear()
        for thread in self._holding.values():
            thread.close()
        self._holding.clear()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _handle(self, run: Run, instruction: Instruction | None, done: Done | None) -> Run | None:
        """What happened to a run; gives it when it is over, as what is below does."""
        if run not in self._unfinished:
            return None
        if instruction is STOPPED:
            self.check()
        if instruction is None:  # a replay on the pool is over
            return self._over(run)
        run.busy.discard(instruction)
        if done is not None:
            assert isinstance(instruction, HostCall)
            return self._called(run, instruction, *done)
        if run.taken:
            return None
        run.more = not self._events.empty()
        if instruction is RETURNED:
            return self._answered(run)
        return self._failed(run) if run.failure is not None else self._advanced(run)

    # what instructions need

    def wait(self, run: Run, instruction: Instruction, answer: Result) -> bool:
        """Executes the instruction again when the answer is there."""
        run.busy.add(instruction)

        def notify(result: Result) -> None:
            if result.done:
                self._events.put((run, instruction, None))

        answer.on_change(notify)
        return False

    def start(self, run: Run, instruction: HostCall, args: list[Any]) -> bool:
        """Runs a host call on the pool."""
        context = self._context(run)
        if instruction.unordered:
            context = context.copy()  # no two calls may be in one at once
        run.busy.add(instruction)
        run.inflight += 1

        def work() -> None:
            recorder = recording.recorder
            if recorder is None:
                outcome = self._outcome(run, instruction, context, args)
            else:
                outcome = recorder.timed(run.number, instruction.fn, instruction.loc, lambda: self._outcome(run, instruction, context, args))
            self._events.put((run, instruction, (args, outcome)))

        if not instruction.within:
            self.pool.submit(work)
        elif run.thread is not None or len(self._holding) < self.workers:
            self._thread(run).submit(work)
        else:
            self._before_with.append((run, work))
        return False

    def _context(self, run: Run) -> Context:
        """The context of what the run calls on other threads: it keeps the context variables that its calls set."""
        if run.context is None:
            run.context = run.owner.context(run)
        return run.context

    def _thread(self, run: Run) -> HostThread:
        """The run's own thread: what it entered there, such as a lock, it leaves there, whatever other runs wait for."""
        if run.thread is None:
            run.thread = self._holding[run] = HostThread()
        return run.thread

    def _end_thread(self, run: Run) -> None:
        if run.thread is None:
            return
        del self._holding[run]
        run.thread.close()
        run.thread = None
        while self._before_with and len(self._holding) < self.workers:
            waiting, work = self._before_with.popleft()
            if waiting in self._unfinished:
                self._thread(waiting).submit(work)

    def _outcome(self, run: Run, instruction: HostCall, context: Context | None, args: list[Any]) -> tuple[bool, Any]:
        if self._logs:
            log("host", f"{instruction.shown(args)} begins")
        try:
            outcome = instruction.made(run, context, args)
        except BaseException as error:  # SystemExit and the like end the run, and are raised to the caller
            outcome = False, error
        if self._logs:
            ok, value = outcome
            log("host", f"{instruction.shown(args)} {'returned' if ok else 'raised'} {value!r:.60}")
        return outcome

    def _called(self, run: Run, instruction: HostCall, args: Sequence[Any], outcome: tuple[bool, Any]) -> Run | None:
        """A host call on the pool is over."""
        run.inflight -= 1
        ok, value = outcome
        if not ok and not isinstance(value, RAISED_BY_PROGRAMS) and not instruction.catches:
            run.taken, run.error = True, value
            cancel(run)
            return self._over(run)
        try:
            instruction.settle(run, args, outcome)
        except RAISED_BY_PROGRAMS as error:
            run.failure = run.failure or error
        if run.failure is not None:
            return self._failed(run)
        run.pending.remove(instruction)
        return self._advanced(run)

    @property
    def pool(self) -> HostPool:
        if self._pool is None:
            self._pool = HostPool(self.workers)
        return self._pool

    # one run

    def _advanced(self, run: Run) -> Run | None:
        raised, over = None, False
        try:
            over = self._advance(run)
        except Exception as error:  # of the program, or TakeOver: the interpreter goes on from the record
            self.check()
            raised = error
        if raised is not None:  # outside of `except`, so that what the interpreter raises does not name it as its context
            run.failure = raised
            return self._failed(run)
        return self._answered(run) if over else None

    def _answered(self, run: Run) -> Run | None:
        """The program returned. In a batch the run is over when what it asked is answered too, so that nobody waits for it."""
        if self.parallel:
            for _, _, prompt in run.answers.values():
                answer = prompt.result
                if answer is not None and not answer.done:
                    self.wait(run, RETURNED, answer)
                    return None
        elif run.error is not None:
            cancel(run)  # nobody can read what it asked
        return self._over(run)

    def _advance(self, run: Run) -> bool:
        """Executes all that can be executed now, in program order; True when the run is over."""
        env, busy, mask = run.env, run.busy, run.mask
        todo: Sequence[Instruction] = run.pending
        kept: list[Instruction] = []
        held = 0  # marks of the unfinished instructions so far
        i = 0
        while i < len(todo):
            instruction = todo[i]
            i += 1
            ready = not (instruction.waits & held & mask or instruction in busy) and instruction.has_operands(env)
            if ready and isinstance(instruction, Terminator):
                if kept and instruction.drains:
                    kept.append(instruction)
                    break
                following = instruction.follow(run)
                if following is None:
                    return True
                if run.guesses:
                    settle(run, following)
                todo, i = following, 0
                continue
            if ready and instruction.execute(run, self):
                continue
            kept.append(instruction)
            held |= instruction.marks
            if run.branches and instruction.__class__ is Switch:
                ask_ahead(run, instruction)  # type: ignore[arg-type]
        run.pending = kept
        return False

    def _failed(self, run: Run) -> Run | None:
        """The program raised, or left the graph: once running host calls are settled, the interpreter goes on."""
        if run.inflight:
            return None
        run.taken = True
        if not self.parallel:
            self._replay(run)
            return self._over(run)
        self._start_replay(run)
        return None

    def _start_replay(self, run: Run) -> None:
        context = self._context(run)

        def work() -> None:
            try:
                context.run(self._replay, run)
            except BaseException as error:  # SystemExit and the like are raised to the caller
                run.error = error
            self._events.put((run, None, None))

        (self.pool if run.thread is None else run.thread).submit(work)

    def _replay(self, run: Run) -> None:
        try:
            run.result = run.owner.replay(run)
        except Exception as error:
            run.error = error
            cancel(run)  # nobody can read what it asked

    def _over(self, run: Run) -> Run:
        del self._unfinished[run]
        self._end_thread(run)
        unpin(run)
        for instruction in list(run.guesses):
            waste(run, instruction)
        run.pending, run.env = [], []
        return run
