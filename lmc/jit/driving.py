"""Calls and batches of a compiled program, driven to their ends: by an executor of their own, or on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from lmc.backend.base import Backend
from lmc.backend.executor import Execution
from lmc.backend.instructions import Run
from lmc.backend.loop import LoopExecution
from lmc.config import settings
from lmc.frontend import aio
from lmc.frontend.interpreter import ACTIVE
from lmc.frontend.options import Options
from lmc.frontend.state import State
from lmc.jit.owner import Owner
from lmc.jit.states import Root
from lmc.jit.streams import stream

Bound = inspect.BoundArguments


class Driver:
    """Drives the runs of one program. Journals of the options are open."""

    def __init__(self, owner: Owner) -> None:
        self.owner, self.function, self.stats = owner, owner.function, owner.stats

    # -- one call

    def call(self, bound: Bound, options: Options) -> State:
        """The state of a run; raises what the program raises."""
        if options.stream:
            return stream(self.owner, bound, options)
        if self.function.is_async:
            instead = f"await {self.function.name}.acall(…)"
            return aio.run_here(lambda: self.acall(bound, options), self.function.described, instead)
        root = self.function._state(options)
        if _is_journaled(root) or not self.owner.trees.captured():
            return self.function._finished(root, bound)
        with self.stats.during(1, _backend(root)):
            token = ACTIVE.set(root)
            try:
                (run,) = Execution(parallel=False).run(self._runs([root], [bound]))
            finally:
                ACTIVE.reset(token)
            self.owner.ended(run)
        return _result(run)

    async def acall(self, bound: Bound, options: Options) -> State:
        """The same on the running loop."""
        if options.stream:
            return stream(self.owner, bound, options)
        root = self.function._state(options)
        if _is_journaled(root):
            return await self.function._afinished(root, bound)
        (run,) = [run async for run in self._arun([root], [bound])]
        return _result(run)

    # -- a batch

    def batch(self, bound: list[Bound], numbers: Sequence[int], options: Options, progress: bool) -> Iterator[tuple[int, State]]:
        """Index and state of each item as soon as it is done."""
        if options.journal is not None:
            return enumerate(self.function._batch(bound, numbers, options, {"progress_bar": progress}))
        if self.function.is_async:
            return aio.iterate(lambda: self.abatch(bound, numbers, options, progress), f"lmc-{self.function.name}")
        if not self.owner.trees.captured():
            return enumerate(self.function._batch(bound, numbers, options, {"progress_bar": progress}))
        return self._batch(bound, numbers, options, progress)

    def _batch(self, bound: list[Bound], numbers: Sequence[int], options: Options, progress: bool) -> Iterator[tuple[int, State]]:
        roots = self.function._batch_states(numbers, options)
        execution = Execution(parallel=True, workers=_workers(len(bound)))
        with self.stats.during(len(bound), _backend(roots[0])), _counted(len(bound), progress) as finished:
            for run in execution.run(self._runs(roots, bound)):
                self.owner.ended(run)
                finished()
                yield run.root.index, _state_of(run)

    async def abatch(
        self, bound: list[Bound], numbers: Sequence[int], options: Options, progress: bool
    ) -> AsyncGenerator[tuple[int, State]]:
        """The same on the running loop."""
        if options.journal is not None:
            states = iter(self.function._batch(bound, numbers, options, {"progress_bar": progress}))
            for index in range(len(bound)):
                yield index, await asyncio.to_thread(next, states)
            return
        with _counted(len(bound), progress) as finished:
            roots = self.function._batch_states(numbers, options)
            async with contextlib.aclosing(self._arun(roots, bound)) as runs:
                async for run in runs:
                    finished()
                    yield run.root.index, _state_of(run)

    # -- runs

    def _runs(self, states: Sequence[State], bound: Sequence[Bound]) -> Iterator[Run]:
        for index, (state, arguments) in enumerate(zip(states, bound, strict=True)):
            self.owner.trees.parameters.complete(arguments)
            run = self.owner.begin(Root(state, arguments, index, len(states) > 1))
            run.more = index < len(states) - 1
            yield run

    async def _arun(self, states: list[State], bound: list[Bound]) -> AsyncGenerator[Run]:
        """Drives runs on the running loop."""
        with self.stats.during(len(bound), _backend(states[0])):
            self.owner.trees.captured()  # says why not
            execution = LoopExecution(on_loop=self.function.is_async, workers=_workers(len(bound)))
            async with contextlib.aclosing(execution.arun(self._runs(states, bound))) as runs:
                async for run in runs:
                    self.owner.ended(run)
                    yield run


def _backend(root: State) -> Backend:
    """Where the run of a live state runs."""
    return root.emitter.run.backend  # type: ignore[attr-defined]


def _is_journaled(root: State) -> bool:
    """Whether Python runs the program itself, because a journal is written of it."""
    return root.emitter.run.journal is not None  # type: ignore[attr-defined]


def _result(run: Run) -> State:
    """What a run that is over returns or raises to who called it."""
    if run.error is not None:
        raise run.error
    return run.result


def _state_of(run: Run) -> State:
    """The state of a run of a batch that is over; with `failure` if the program raised."""
    if run.error is not None and not isinstance(run.error, Exception | asyncio.CancelledError):
        raise run.error
    state: State = run.root.state if run.result is None else run.result
    if run.error is not None:
        state.failure = run.error
    return state


def _workers(programs: int) -> int:
    """Blocking host calls at once."""
    return settings().host_threads or max(64, min(256, programs))


@contextlib.contextmanager
def _counted(total: int, shown: bool) -> Iterator[Callable[[], Any]]:
    """What to call for each finished item; with a bar if it is to be shown."""
    if not shown:
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=total) as bar:
        yield bar.update
