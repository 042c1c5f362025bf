"""Engines whose passes run when a program has nothing else to do: counters that no race of two threads can change.

The executor and the engine take turns in one thread: whatever can be asked is asked before the next pass of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lmc.backend.executor import Execution

from lmc.backend.engine.engine import EngineCore
from lmc.backend.local import LocalBackend
from lmc.jit import driving


class SteppedCore(EngineCore):
    """Runs a pass when it is told to, in the thread that tells it."""

    def launch(self) -> None: ...


@contextmanager
def stepped(engine: LocalBackend) -> Iterator[Callable[[], None]]:
    """While open, compiled runs on an idle `engine` drive its passes themselves, and host calls run one after another.

    Gives what drives it to its end: answers that nothing in a program waits for may be outstanding behind a run.
    """
    threaded: Any = engine._core
    core = SteppedCore(engine._scheduler, threaded._runner)

    class InTurns(Execution):
        def __init__(self, *, parallel: bool, workers: int = 64) -> None:
            super().__init__(parallel=False, workers=workers)

        def _next(self) -> Any:
            while self._events.empty() and core.turn():
                pass
            return super()._next()

    def drain() -> None:
        while core.turn():
            pass

    engine._core, driving.Execution = core, InTurns
    try:
        yield drain
        drain()
    finally:
        engine._core, driving.Execution = threaded, Execution
