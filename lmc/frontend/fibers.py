"""Programs in flight on one thread: each item is a fiber (a greenlet), which holds no thread while it waits for an answer.

For programs of which everything is known that they call (lmc/frontend/closed.py): what blocks, or holds a lock while it
waits, needs a thread of its own (lmc/frontend/flights.py).
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing
from contextvars import copy_context
from typing import Generic, TypeVar

from greenlet import getcurrent, greenlet

from lmc.frontend.flights import LINGER, Outcome, outcome_of, result_of
from lmc.waiting import Meter, Signal, TurnLimit, is_set, metered, waiting_by

R = TypeVar("R")


class Fiber:
    """A fiber's waiter (lmc.waiting.Waiter): the hub runs other fibers until the awaited signal is set."""

    __slots__ = ("_fibers", "_switch", "parked", "pausing")

    def __init__(self, fibers: Fibers[object], run: Callable[[], None]) -> None:
        self._fibers = fibers
        self._switch = greenlet(run).switch
        self.parked = 0  # the number of the wait it is parked in, or 0
        self.pausing = False

    def wait(self, signal: Signal, timeout: float | None) -> None:
        number = self._fibers.parks(self)
        if signal.on_set(lambda: self._fibers.wake(self, number)):
            self.parked = 0
            return
        if timeout is not None:
            self._fibers.alarm(self, number, timeout)
        self._switch = getcurrent().switch  # it may wait in a greenlet of its own, such as a generator of an evaluation
        self._fibers.hub.switch()

    def idle(self) -> bool:
        return self._fibers.idle()

    def resume(self) -> None:
        """Run it until it waits or ends. In the hub."""
        with waiting_by(self):
            self._switch()


class Fibers(Generic[R]):
    """Runs `work(i)` for i < count, at most `limit` at once, in copies of the context in which it was made (cf. Flights).

    here   the consuming thread does nothing else until it has the last result, so it runs the fibers
    meter  counts them; None: the meter of the program that makes them, if any
    """

    def __init__(self, work: Callable[[int], R], count: int, *, limit: int, name: str, here: bool, meter: Meter | None = None) -> None:
        self._work, self._count, self._limit, self._name, self._here = work, count, limit, name, here
        self._context = copy_context()
        self.hub: greenlet
        self._running = self._next = self._waits = 0
        self._stopped = False
        self._alarms: list[tuple[float, int, Fiber]] = []
        self._done: deque[Outcome[R]] = deque()
        self._lock = threading.Lock()  # guards the next three
        self._ready: deque[Fiber] = deque()  # their signals are set
        self._spare: dict[Fiber, None] = {}  # whose waits timed out: they come last, the latest first, whose answer is furthest away
        self._asleep = False
        self._bell = Signal()  # wakes the hub
        self._share = TurnLimit(meter or metered.get(), limit, count)

    # -- results

    def results(self, stop: Callable[[], object]) -> Generator[tuple[int, R]]:
        """Yield index and result of each item as soon as it is done; raises the exceptions of `work`.

        When it is abandoned, nothing more begins, and `stop` ends the running ones.
        """
        if self._here:
            with closing(self._run(stop)) as done:
                yield from map(result_of, done)
            return
        found, changed, over = self._on_thread(stop)
        try:
            for _ in range(self._count):
                while not found:
                    changed.wait()
                    changed.clear()
                yield result_of(found.popleft())
        finally:
            self._end(stop)
            over.wait(LINGER)

    async def aresults(self, stop: Callable[[], object]) -> AsyncGenerator[tuple[int, R]]:
        """As `results`, without blocking the running loop."""
        found, changed, _ = self._on_thread(stop)
        try:
            for _ in range(self._count):
                while not found:
                    await is_set(changed)
                    changed.clear()
                yield result_of(found.popleft())
        finally:
            self._end(stop)

    def _on_thread(self, stop: Callable[[], object]) -> tuple[deque[Outcome[R]], Signal, Signal]:
        """Run them on another thread; return the results, a signal for new results, and a signal for the end."""
        found: deque[Outcome[R]] = deque()
        changed, over = Signal(), Signal()

        def serve() -> None:
            try:
                for done in self._run(stop):
                    found.append(done)
                    changed.set()
            finally:
                over.set()

        threading.Thread(target=serve, name=self._name, daemon=True).start()
        return found, changed, over

    def _end(self, stop: Callable[[], object]) -> None:
        """Begin no further item and end the running ones. From any thread."""
        self._stopped = True
        self._share.give_up()
        if self._running:
            stop()
        self._bell.set()

    # -- the hub

    def _run(self, stop: Callable[[], object]) -> Generator[Outcome[R]]:
        """Yield each item's outcome as soon as it is known. All fibers run in the greenlet that consumes it."""
        try:
            while self._turn():
                while self._done:
                    yield self._done.popleft()
        finally:
            self._end(stop)
            until = time.monotonic() + LINGER
            while self._running and time.monotonic() < until and self._turn(until):
                pass

    def _turn(self, until: float | None = None) -> bool:
        """Let one fiber run, or wait for one that can, no longer than `until`. Return False if none is left."""
        self.hub = getcurrent()
        if self._alarms:
            self._ring()
        if self._ready:
            self._ready.popleft().resume()
        elif self._next < self._count and self._running < self._limit and not self._stopped:
            self._next += 1
            self._running += 1
            self._start(self._next - 1)
        elif self._spare:
            self._spared().resume()
        elif not self._running:
            return False
        else:
            self._sleep(until)
        return True

    def _start(self, index: int) -> None:
        def run() -> None:
            done = outcome_of(self._work, index, self._context.copy())
            self._running -= 1
            self._share.done()
            self._done.append(done)

        Fiber(self, run).resume()  # type: ignore[arg-type]

    def _sleep(self, until: float | None) -> None:
        """Wait until a fiber is woken, or the next alarm is due."""
        with self._lock:
            if self._ready:
                return
            self._asleep = True
        if self._alarms:
            until = min(self._alarms[0][0], until or self._alarms[0][0])
        self._bell.wait(None if until is None else max(0.0, until - time.monotonic()))
        self._bell.clear()
        self._asleep = False

    def _ring(self) -> None:
        """Resume fibers whose waits timed out when no other can run."""
        now = time.monotonic()
        while self._alarms and self._alarms[0][0] <= now:
            _, number, fiber = heapq.heappop(self._alarms)
            self.wake(fiber, number, spare=True)

    def _spared(self) -> Fiber:
        with self._lock:
            if self._ready:  # just now
                return self._ready.popleft()
            fiber, _ = self._spare.popitem()
            fiber.parked = 0
        return fiber

    # -- fibers that wait

    def parks(self, fiber: Fiber) -> int:
        """Park a fiber; return the number of the wait."""
        self._waits += 1
        fiber.parked = self._waits
        return self._waits

    def alarm(self, fiber: Fiber, number: int, timeout: float) -> None:
        heapq.heappush(self._alarms, (time.monotonic() + timeout, number, fiber))

    def wake(self, fiber: Fiber, number: int, *, spare: bool = False) -> None:
        """Make a fiber ready: its signal is set, or (`spare`) its wait timed out. From any thread."""
        with self._lock:
            if fiber.parked != number:
                return
            if spare:  # until its signal is set
                self._spare[fiber] = None
            else:
                fiber.parked = 0
                self._spare.pop(fiber, None)
                self._ready.append(fiber)
            ring, self._asleep = self._asleep, False
        if ring:
            self._bell.set()

    def idle(self) -> bool:
        """Return whether no fiber is ready to run, and no more items may begin."""
        return not self._ready and (self._next >= self._count or self._running >= self._limit)
