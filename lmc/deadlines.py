"""Deadlines of runs: one thread that ends them all, and awaits that end with them."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
import weakref
from typing import Generic, Protocol, TypeVar

from lmc import waiting


class Timed(Protocol):
    """Anything that has a deadline."""

    def expire(self) -> None:
        """End it: its time is over."""
        ...

    @property
    def is_known(self) -> bool:
        """Return whether the program has seen that its time is over."""
        ...


T = TypeVar("T", bound=Timed)

_SOON = 1e-3  # seconds


class TimedAwait(Generic[T]):
    """An await of a task, ended when the run's time is over."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "programs run in tasks"
        self._task, self._loop, self._before = task, asyncio.get_running_loop(), task.cancelling()
        self._late: T | None = None
        self._ended = False

    def end_soon(self, limits: T) -> None:
        """End the await soon. From any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, limits)

    def _end(self, limits: T) -> None:
        if self._ended or self._late is not None:
            return
        if self._task in waiting.reading:  # its read is about to fail
            self._loop.call_later(_SOON, self._unless_known, limits)
            return
        self._late = limits
        self._task.cancel()

    def _unless_known(self, limits: T) -> None:
        if self._task in waiting.reading or not limits.is_known:
            self._end(limits)

    def over(self) -> T | None:
        """Mark the await as ended. Return whose deadline ended it, if one did and nothing else has cancelled the task
        (cf. asyncio.Timeout)."""
        late, self._late, self._ended = self._late, None, True
        return late if late is not None and self._task.uncancel() <= self._before else None


class Deadlines:
    """Ends runs at their deadline: one thread for all, which lives while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[Timed]]] = []
        self._order = itertools.count()
        self._running = False

    def at(self, when: float, limits: Timed) -> None:
        with self._changed:
            heapq.heappush(self._due, (when, next(self._order), weakref.ref(limits, self._wake)))
            self._changed.notify()
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="lmc-clock", daemon=True).start()

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify()

    def _work(self) -> None:
        while (limits := self._next()) is not None:
            limits.expire()
            del limits

    def _next(self) -> Timed | None:
        with self._changed:
            while self._due:
                when, _, ref = self._due[0]
                limits = ref()
                left = when - time.monotonic()
                if limits is None or left <= 0:
                    heapq.heappop(self._due)
                    if limits is not None:
                        return limits
                    continue
                del limits  # a waiting clock keeps no run alive
                self._changed.wait(left)  # woken when one is removed, which may be the earliest
            self._running = False
            return None
