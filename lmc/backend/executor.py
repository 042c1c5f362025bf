"""The executor: drives runs of planned graphs, one or many at once, without a thread per program or fork.

A run walks its path block by block. Each op executes as soon as its operands are there and program order allows it:
what the model is asked goes out early, what can be seen from outside (effects, exceptions) keeps the program's order.
Where the graph does not go on, the owner of the run extends it, or takes the run over.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lmc.backend.base import Result
from lmc.backend.instructions import RETURNED, HostCall, Instruction, Run, Terminator, cancel, unpin


class Execution:
    """Drives a set of runs to their ends in the calling thread.

    parallel  host calls that may block run on a pool, so that they do not hold up other runs
    """

    def __init__(self, *, parallel: bool, workers: int = 64) -> None:
        self.parallel, self.workers = parallel, workers
        self._events: queue.SimpleQueue[tuple[Run, Instruction | None]] = queue.SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None
        self._unfinished: dict[Run, None] = {}

    def run(self, runs: Iterator[Run]) -> Iterator[Run]:
        """Gives each run when it is over: with `result`, or with `error` if the program raised."""
        try:
            for run in runs:
                self._unfinished[run] = None
                yield from self._advanced(run)
                while not self._events.empty():
                    yield from self._handle(*self._events.get())
            while self._unfinished:
                yield from self._handle(*self._events.get())
        finally:
            self.close()

    def close(self) -> None:
        """Cancels what is not finished; an exception or an abandoned iteration leaves nothing running."""
        for run in self._unfinished:
            cancel(run)
        self._unfinished.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _handle(self, run: Run, instruction: Instruction | None) -> Iterator[Run]:
        if run not in self._unfinished:
            return
        if instruction is None:  # a replay on the pool is over
            yield from self._over(run)
            return
        run.busy.discard(instruction)
        if run.taken:
            return
        if instruction is RETURNED:
            yield from self._answered(run)
            return
        if run.failure is not None:
            yield from self._failed(run)
            return
        if isinstance(instruction, HostCall):  # done on the pool; a read is executed again instead
            run.pending.remove(instruction)
        yield from self._advanced(run)

    # what instructions need

    def wait(self, run: Run, instruction: Instruction, answer: Result) -> bool:
        """Executes the instruction again when the answer is there."""
        run.busy.add(instruction)

        def notify(result: Result) -> None:
            if result.done:
                self._events.put((run, instruction))

        answer.on_change(notify)
        return False

    def start(self, run: Run, instruction: HostCall, args: list[Any]) -> bool:
        """Runs a host call on the pool."""
        if run.context is None:
            run.context = run.owner.context(run)
        run.busy.add(instruction)
        run.inflight += 1

        def work() -> None:
            try:
                outcome = instruction.call(run, args)
            except BaseException as error:  # SystemExit and the like end the run, and are raised to the caller
                run.taken, run.error = True, error
                self._events.put((run, None))
                return
            run.inflight -= 1
            self._settle(run, instruction, outcome)
            self._events.put((run, instruction))

        self.pool.submit(work)
        return False

    def _settle(self, run: Run, instruction: HostCall, outcome: tuple[bool, Any]) -> None:
        try:
            instruction.settle(run, *outcome)
        except Exception as error:
            run.failure = run.failure or error

    @property
    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="lmc-host")
        return self._pool

    # one run

    def _advanced(self, run: Run) -> Iterator[Run]:
        try:
            over = self._advance(run)
        except Exception as error:  # of the program, or TakeOver: the interpreter goes on from the record
            run.failure = error
            yield from self._failed(run)
            return
        if over:
            yield from self._answered(run)

    def _answered(self, run: Run) -> Iterator[Run]:
        """The program returned. In a batch the run is over when what it asked is answered too, so that nobody waits for it."""
        if self.parallel:
            for _, _, prompt in run.answers.values():
                answer = prompt.result
                if answer is not None and not answer.done:
                    self.wait(run, RETURNED, answer)
                    return
        yield from self._over(run)

    def _advance(self, run: Run) -> bool:
        """Executes all that can be executed now, in program order; True when the run is over."""
        env, busy = run.env, run.busy
        todo: Sequence[Instruction] = run.pending
        kept: list[Instruction] = []
        held = 0  # marks of the unfinished instructions so far
        i = 0
        while i < len(todo):
            instruction = todo[i]
            i += 1
            ready = not (instruction.waits & held or instruction in busy) and instruction.has_operands(env)
            if ready and isinstance(instruction, Terminator):
                if kept and instruction.drains:
                    kept.append(instruction)
                    break
                following = instruction.follow(run)
                if following is None:
                    return True
                todo, i = following, 0
                continue
            if ready and instruction.execute(run, self):
                continue
            kept.append(instruction)
            held |= instruction.marks
        run.pending = kept
        return False

    def _failed(self, run: Run) -> Iterator[Run]:
        """The program raised, or left the graph: once running host calls are settled, the interpreter goes on."""
        if run.inflight:
            return
        run.taken = True
        if not self.parallel:
            self._replay(run)
            yield from self._over(run)
        else:

            def work() -> None:
                try:
                    self._replay(run)
                except BaseException as error:  # SystemExit and the like are raised to the caller
                    run.error = error
                self._events.put((run, None))

            self.pool.submit(work)

    def _replay(self, run: Run) -> None:
        try:
            run.result = run.owner.replay(run)
        except Exception as error:
            run.error = error
            cancel(run)  # nobody can read what it asked

    def _over(self, run: Run) -> Iterator[Run]:
        del self._unfinished[run]
        unpin(run)
        run.pending, run.env = [], []
        yield run
