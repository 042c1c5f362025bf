"""Threads that prepare pictures, in order of request. They end when there is nothing to do, and do not keep a process
alive: at its end, what has not begun is dropped, as requests of texts are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_LINGERS = 1.0  # seconds that a thread waits for more


class PreparingThreads:
    """Up to `most` threads. Thread-safe."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Have `work` done, which raises nothing."""
        with self._changed:
            self._work.append(work)
            if len(self._work) > self._idle and len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._threads.add(thread)
                thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Let the threads end as soon as they have done what was submitted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, timeout: float) -> bool:
        """Wait until no thread is left; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, timeout)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work  # an idle thread keeps nothing alive

    def _next(self) -> Callable[[], None] | None:
        """Return the next work; None when it is time to end."""
        with self._changed:
            self._idle += 1
            there = self._changed.wait_for(lambda: self._work or self._closed, _LINGERS)
            self._idle -= 1
            if there and self._work:
                return self._work.popleft()
            self._threads.discard(threading.current_thread())
            self._changed.notify_all()
            return None
