"""Threads for host calls that may block: a bounded number at work, and one more for each that waits in a run of its own."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

IDLE = 5.0
"""Seconds after which a thread without work ends."""

Work = Callable[[], None]


class HostPool:
    """Runs work on at most `size` threads, started when they are needed. Work must not raise.

    The threads are daemons: what is cut off (Ctrl-C in the middle of a batch) does not keep the process alive.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()  # guards the rest
        self._todo: deque[Work] = deque()
        self._threads = self._idle = self._waiting = 0
        self._closed = False

    def submit(self, work: Work) -> None:
        with self._changed:
            if self._closed:
                return
            self._todo.append(work)
            self._staff()

    def close(self) -> None:
        """Work that has not begun never begins; threads end when they are done with theirs."""
        with self._changed:
            self._closed = True
            self._todo.clear()
            self._changed.notify_all()

    def _staff(self) -> None:
        """Wakes or starts a thread for the work there is."""
        if self._idle:
            self._changed.notify()
        if len(self._todo) > self._idle and self._threads - self._waiting < self.size:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"lmc-host_{next(_numbers)}", daemon=True).start()

    def _serve(self) -> None:
        _here.pool = self
        while (work := self._next()) is not None:
            work()
            del work  # an idle thread keeps nothing alive

    def _next(self) -> Work | None:
        with self._changed:
            surplus = self._threads - self._waiting > self.size  # one that waited works again
            if not self._todo and not self._closed and not surplus:
                self._idle += 1
                self._changed.wait_for(lambda: self._todo or self._closed, IDLE)
                self._idle -= 1
            if self._todo and not surplus:
                return self._todo.popleft()
            self._threads -= 1
            return None

    @contextmanager
    def _replaced(self) -> Generator[None]:
        with self._changed:
            self._waiting += 1
            if self._todo:
                self._staff()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1


class HostThread:
    """One thread that does what it is given in turn, until it is closed: for what must not change threads."""

    def __init__(self) -> None:
        self._todo = queue.SimpleQueue[Work | None]()
        threading.Thread(target=self._serve, name=f"lmc-with_{next(_numbers)}", daemon=True).start()

    def submit(self, work: Work) -> None:
        self._todo.put(work)

    def close(self) -> None:
        """Ends the thread when it is done with what it has."""
        self._todo.put(None)

    def _serve(self) -> None:
        while (work := self._todo.get()) is not None:
            work()
            del work


_here = threading.local()
_numbers = itertools.count()


@contextmanager
def replaced() -> Generator[None]:
    """While a host call waits for a run of its own, another thread takes its place in the pool it runs on, if it does."""
    pool: HostPool | None = getattr(_here, "pool", None)
    if pool is None:
        yield
        return
    with pool._replaced():  # pyright: ignore[reportPrivateUsage]
        yield
