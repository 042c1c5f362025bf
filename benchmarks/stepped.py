"""Engines whose passes run when no program of a batch has anything else to do: counters that no race of two threads can change.

The programs of a batch take turns anyway (lmc/frontend/fibers.py, flights.py). Here the engine has its turn when all of them wait, and a wait
that is meant to last a moment before something is asked ahead is over at once: whether an evaluation pays is not measured, all are run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop
from typing import Any
from unittest.mock import patch

from lmc.backend.engine.engine import EngineCore
from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.local import LocalBackend
from lmc.frontend import flights
from lmc.frontend.fibers import Fiber, Fibers
from lmc.frontend.flights import BatchThread, Flights
from lmc.runahead.profile import Profile
from lmc.waiting import Signal, waiting_by


class SteppedCore(EngineCore):
    """Runs a pass when it is told to, in the thread that tells it."""

    def launch(self) -> None: ...

    def seconds(self) -> float:
        """As if a pass took 10 ms, so that what is kept for a run does not hang on how fast this machine is."""
        return self.scheduler.tally.passes / 100

    def _record(self, work: ModelPass, seconds: float, ended: float) -> None:
        """As if it took 10 ms: neither do the rows that the next one may have."""
        super()._record(work, 1 / 100, ended)

    def turn(self) -> bool:
        while not super().turn():
            if not self._pause:
                return False
            self.scheduler.held.give_up_leases()  # of runs that are away: all programs wait, so none comes back
        return True


@contextmanager
def stepped(engine: LocalBackend, made: type[SteppedCore] = SteppedCore) -> Iterator[Callable[[], None]]:
    """While open, batches on an idle `engine` drive its passes themselves. Their items all begin at once, and none may block.

    Gives what drives it to its end: answers that nothing in a program waits for may be outstanding behind a run.
    """
    threaded: Any = engine._core
    core = made(engine._scheduler, threaded._runner)
    driving = threading.Lock()
    give_way, next_item, sleep = Flights.give_way, Flights._next_item, Fibers._sleep

    def in_turns(wait: Callable[[Any, Signal, float | None], None]) -> Callable[[Any, Signal, float | None], None]:
        def waits(self: BatchThread | Fiber, signal: Signal, timeout: float | None) -> None:
            if timeout is None or not self.idle():  # others go first
                wait(self, signal, timeout)

        return waits

    def sleeps(self: Fibers[Any], until: float | None) -> None:
        if self._alarms:  # they are due before a pass, however long others took
            while self._alarms:
                _, number, fiber = heappop(self._alarms)
                self.wake(fiber, number, spare=True)
            return
        while not self._ready and core.turn():
            pass
        if not self._ready:
            sleep(self, until)

    def drive(self: Flights[Any]) -> None:
        with driving:
            while not self._turns and core.turn():
                pass

    def gives_way(self: Flights[Any], worker: BatchThread) -> None:
        give_way(self, worker)
        drive(self)

    def takes(self: Flights[Any], worker: BatchThread) -> int | None:
        index = next_item(self, worker)
        if index is None:  # it ends, and others may wait
            drive(self)
        return index

    def drain() -> None:
        while core.turn():
            pass

    class Here:
        """How the thread of the caller waits, on which a batch of one item runs."""

        pausing = False

        def wait(self, signal: Signal, timeout: float | None) -> None:
            if timeout is None:
                while not flights._room._taken and not signal.is_set() and core.turn():
                    pass
                signal.block()

        def idle(self) -> bool:
            return True

    in_batches = patch.multiple(Flights, give_way=gives_way, _next_item=takes)
    on_threads = patch.object(BatchThread, "wait", in_turns(BatchThread.wait))
    on_fibers = patch.object(Fiber, "wait", in_turns(Fiber.wait))
    hub = patch.multiple(Fibers, _sleep=sleeps, _ring=lambda self: None)
    timed = patch.object(core.scheduler.runs, "_now", core.seconds)
    at_once = patch.multiple(Profile, patience=0.0, affords=lambda self, seconds: True)
    with timed, at_once, waiting_by(Here()), on_threads, on_fibers, in_batches, hub, patch.object(flights._watch, "over"):
        engine._core = core
        try:
            yield drain
            drain()
        finally:
            engine._core = threaded
