"""Waiting: the one way in which a program's own thread or task waits for what another thread does, an answer above all.

A thread blocks, the step of an async task is suspended (lmc/frontend/suspending.py), and the worker of a batch lets another
program go on meanwhile (lmc/frontend/batches.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

T = TypeVar("T")


class Waiter(Protocol):
    """What a thread does while it waits.

    pausing  it waits for a moment in which none of the others should go on either
    """

    pausing: bool

    def wait(self, signal: Signal, timeout: float | None) -> None:
        """Return when `signal` is set, or after `timeout` seconds, and then not before those whose signals are set."""
        ...

    def idle(self) -> bool:
        """Whether nobody else could use the time of this thread, which may compute something that is of use later."""
        ...


_lock = threading.Lock()  # guards all signals; held for a few instructions only
_here = threading.local()
_suspend: Callable[[Signal, float | None], bool] | None = None
reading: set[object] = set()
"""Tasks that wait for an answer inside of one of their steps."""


class Signal:
    """An event that is set from any thread, and for which one thread or task at a time waits."""

    __slots__ = ("_flag", "_wake")

    def __init__(self) -> None:
        self._flag = False
        self._wake: Callable[[], object] | None = None

    def set(self) -> None:
        with _lock:
            self._flag = True
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False if `timeout` seconds passed first."""
        if not self._flag and not (_suspend is not None and _suspend(self, timeout)):
            waiter: Waiter | None = getattr(_here, "waiter", None)
            if waiter is None:
                self.block(timeout)
            else:
                waiter.wait(self, timeout)
        return self._flag

    def block(self, timeout: float | None = None) -> None:
        """Wait with the whole thread."""
        woken = threading.Lock()
        woken.acquire()
        if not self.on_set(woken.release):
            woken.acquire(timeout=-1 if timeout is None else timeout)

    def on_set(self, wake: Callable[[], object]) -> bool:
        """Call `wake` when it is set, in the thread that sets it; True, without a call, if it is set already."""
        with _lock:
            if not self._flag:
                self._wake = wake
            return self._flag


def idle() -> bool:
    """Whether no other program of this thread's batch is ready to run."""
    waiter: Waiter | None = getattr(_here, "waiter", None)
    return waiter is None or waiter.idle()


def pause(wait: Callable[[], T]) -> T:
    """Wait by `wait` for a moment in which no other program of this thread's batch should go on either: they would compete for the same."""
    waiter: Waiter | None = getattr(_here, "waiter", None)
    if waiter is None:
        return wait()
    waiter.pausing = True
    try:
        return wait()
    finally:
        waiter.pausing = False


async def is_set(signal: Signal) -> None:
    """Wait until a signal is set, without holding the running loop."""
    import asyncio  # heavy, and only async code is here

    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def woken() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(finish)

    if not signal.on_set(woken):
        await done


@contextmanager
def waiting_by(waiter: Waiter) -> Generator[None]:
    """In the block, this thread waits by `waiter`."""
    outer = getattr(_here, "waiter", None)
    _here.waiter = waiter
    try:
        yield
    finally:
        _here.waiter = outer


def suspends_by(suspend: Callable[[Signal, float | None], bool]) -> None:
    """From now on, `suspend` is asked first to wait: it returns False where there is no task that it could suspend."""
    global _suspend
    _suspend = suspend
