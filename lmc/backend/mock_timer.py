"""The clock by which mocks answer: functions called at given times, on one thread for all mocks of a process."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import traceback
from collections.abc import Callable

from lmc.forking import renew


class Timer:
    """Calls functions at given times: one thread for all mocks of a process, which begins with the first call."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._begin()
        renew(self._begin)  # in a child pending calls are the parent's, and so is the thread

    def _begin(self) -> None:
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._running = False

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call at `when`, by `monotonic()`."""
        with self._changed:
            heapq.heappush(self._due, (when, next(self._order), call))
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="lmc-mock", daemon=True).start()
            if self._due[0][2] is call:
                self._changed.notify()

    def _work(self) -> None:
        while True:
            call = self._next()
            try:
                call()
            except Exception:  # error in a reader's callback: shown, and the others still get their answers
                traceback.print_exc()
            del call  # a waiting thread keeps no mock alive

    def _next(self) -> Callable[[], object]:
        with self._changed:
            while True:
                wait = self._due[0][0] - self.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)


timer = Timer()
