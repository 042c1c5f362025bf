"""Streams: compiled runs that others watch, each on a thread of its own until it is over or nobody watches it any more."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import weakref

from lmc.backend.executor import Execution
from lmc.backend.instructions import Run
from lmc.backend.loop import LoopExecution
from lmc.errors import ParameterError, ProgramError
from lmc.frontend.interpreter import ACTIVE, watch
from lmc.frontend.options import Options
from lmc.frontend.primitives import caller_loc
from lmc.frontend.state import State
from lmc.frontend.streaming import Mirror, on_abandoned
from lmc.jit.owner import Owner
from lmc.jit.states import Root


def stream(owner: Owner, bound: inspect.BoundArguments, options: Options) -> State:
    """A state that follows a run, which begins now. Raises for programs with `outputs`, and runs with a journal."""
    if owner.planner.outputs is not None:
        raise ProgramError(
            f"{owner.function.described} was compiled with outputs={list(owner.planner.outputs)}, so it has no text to stream; compile it without",
            loc=caller_loc(),
        )
    if options.journal is not None:
        raise ParameterError("journal= of a stream: a stream is not journaled; leave journal= out, or call the program", loc=caller_loc())
    own = owner.function._state(options)
    state, _ = watch(own)
    run = _Stream(owner, Root(own, bound, 0, False, weakref.ref(state)))
    on_abandoned(state, run.stop)
    name = f"lmc-{owner.function.name}"
    threading.Thread(target=contextvars.copy_context().run, args=(run.work,), name=name, daemon=True).start()
    return state


class _Stream:
    """A run that is watched."""

    def __init__(self, owner: Owner, root: Root) -> None:
        self.owner, self.root = owner, root
        self._stopped = threading.Event()
        self._driven: tuple[Execution, Run] | None = None

    def stop(self) -> None:
        """From any thread."""
        self._stopped.set()
        self.root.live.cancel()
        if self._driven is not None:
            execution, run = self._driven
            execution.stop(run)

    def work(self) -> None:
        """Drives the run to its end, and says so to who watches it."""
        with self.owner.stats.during(1, self.root.live.run.backend):
            error, result = self._outcome()
        mirror = self.root.state.progress
        assert isinstance(mirror, Mirror)
        mirror.finish(error, result)

    def _outcome(self) -> tuple[BaseException | None, State | None]:
        """What the run raised; what it returned, if that is not its own state."""
        token = ACTIVE.set(self.root.state)
        try:
            run = asyncio.run(self._adrive()) if self.owner.function.is_async else self._drive()
            self.owner.ended(run)
            return run.error, None if run.result is self.root.state else run.result
        except BaseException as raised:  # handed to whoever reads the state
            return raised, None
        finally:
            ACTIVE.reset(token)

    def _drive(self) -> Run:
        execution = Execution(parallel=False)
        (run,) = execution.run(iter([self._begun(execution)]))
        return run

    async def _adrive(self) -> Run:
        execution = LoopExecution(on_loop=True)
        async with contextlib.aclosing(execution.arun(iter([self._begun(execution)]))) as runs:
            (run,) = [run async for run in runs]
        return run

    def _begun(self, execution: Execution) -> Run:
        self.root.arguments.apply_defaults()
        run = self.owner.begin(self.root)
        self._driven = execution, run
        if self._stopped.is_set():
            execution.stop(run)
        return run
