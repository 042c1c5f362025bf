"""Waiting: the one way for a program's thread or task to wait for another thread's work, above all for an answer.

A thread blocks, the step of an async task is suspended (lmc/frontend/suspending.py), and the worker of a batch lets another
program go on meanwhile (lmc/frontend/batches.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Protocol, TypeVar

from lmc import forking
from lmc.contexts import having

T = TypeVar("T")


class Waiter(Protocol):
    """A thread's policy while it waits.

    pausing  it waits for a moment in which no other program should run either
    """

    pausing: bool

    def wait(self, signal: Signal, timeout: float | None) -> None:
        """Return once `signal` is set, or `timeout` seconds have passed and no program whose signal is set is left to run."""
        ...

    def idle(self) -> bool:
        """Return whether no other program could use this thread's time, so that it may compute something of later
        use."""
        ...


class Meter(Protocol):
    """Counts the running programs, and those of them that wait for an event. Thread-safe."""

    def begins(self, programs: int) -> None: ...

    def ends(self, programs: int) -> None: ...

    def parks(self) -> None: ...

    def wakes(self) -> None: ...


metered: ContextVar[Meter | None] = ContextVar("metered", default=None)
"""Counts the waits of the program that runs here; None: they are not counted."""


class TurnLimit:
    """Programs that a meter counts: at most `limit` of `count` at once, until each is `done`, or all are given up."""

    def __init__(self, meter: Meter | None, limit: int, count: int) -> None:
        self._meter, self._left, self._counted = meter, count, min(limit, count)
        self._lock = threading.Lock()
        if meter is not None:
            meter.begins(self._counted)

    def done(self) -> None:
        """Count one as ended; another one begins in its place, if there is one."""
        if self._meter is None:
            return
        with self._lock:
            self._left -= 1
            over = self._counted - min(self._counted, self._left)
            self._counted -= over
        if over:
            self._meter.ends(over)

    def give_up(self) -> None:
        """Stop counting the remaining ones; idempotent."""
        with self._lock:
            over, self._counted, self._left = self._counted, 0, 0
        if self._meter is not None and over:
            self._meter.ends(over)


@contextmanager
def running(meter: Meter | None) -> Generator[None]:
    """Run one program in the block, whose waits `meter` counts."""
    if meter is None:
        yield
        return
    meter.begins(1)
    try:
        with having(metered, meter):
            yield
    finally:
        meter.ends(1)


_lock = threading.Lock()  # guards all signals; held for a few instructions only
_here = threading.local()


def _wait_alone() -> None:
    """In a child of fork(), let its thread wait by itself: those that it would let go on are the parent's."""
    _here.waiter = None


forking.renew(_wait_alone)

_suspend: Callable[[Signal, float | None], bool] | None = None
reading: set[object] = set()
"""Tasks that wait for an answer within one of their steps."""


class Signal:
    """An event that is set from any thread, with one thread or task at a time waiting for it."""

    __slots__ = ("_flag", "_meter", "_wake")

    def __init__(self) -> None:
        self._flag = False
        self._wake: Callable[[], object] | None = None
        self._meter: Meter | None = None  # counts its waiter

    def set(self) -> None:
        with _lock:
            self._flag = True
            wake, self._wake = self._wake, None
            meter, self._meter = self._meter, None
        if meter is not None:
            meter.wakes()  # before the waiter runs: from here on it no longer counts as waiting
        if wake is not None:
            wake()

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False if `timeout` seconds passed first."""
        if not self._flag:
            meter = metered.get() if timeout is None else None  # a waiter with a timeout does something afterwards
            if meter is None:
                self._wait(timeout)
            else:
                with parked(self, meter):
                    self._wait(timeout)
        return self._flag

    def _wait(self, timeout: float | None) -> None:
        if not (_suspend is not None and _suspend(self, timeout)):
            waiter: Waiter | None = getattr(_here, "waiter", None)
            if waiter is None:
                self.block(timeout)
            else:
                waiter.wait(self, timeout)

    def block(self, timeout: float | None = None) -> None:
        """Block the whole thread until it is set."""
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


@contextmanager
def parked(signal: Signal, meter: Meter | None) -> Generator[None]:
    """Count, in the block, a program as waiting for a signal until that is set."""
    if meter is None:
        yield
        return
    with _lock:
        waits = not signal._flag
        if waits:
            signal._meter = meter
            meter.parks()
    try:
        yield
    finally:
        with _lock:
            left, signal._meter = signal._meter, None
        if left is not None:  # the wait ended, though the signal is not set
            left.wakes()


def idle() -> bool:
    """Return whether no other program of this thread's batch is ready to run."""
    waiter: Waiter | None = getattr(_here, "waiter", None)
    return waiter is None or waiter.idle()


def pause(wait: Callable[[], T]) -> T:
    """Wait by `wait` for a moment in which no other program of this thread's batch should run either: they would
    compete for the same resource."""
    waiter: Waiter | None = getattr(_here, "waiter", None)
    if waiter is None:
        return wait()
    waiter.pausing = True
    try:
        return wait()
    finally:
        waiter.pausing = False


def in_event_loop() -> bool:
    """Return whether an event loop is running on this thread."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def is_set(signal: Signal) -> None:
    """Wait until a signal is set, without holding the running loop."""
    import asyncio  # heavy, and only async code is here

    loop = asyncio.get_running_loop()
    done = loop.create_future()
    meter = metered.get()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def woken() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(finish)

    if not signal.on_set(woken):
        with parked(signal, meter):
            await done


@contextmanager
def waiting_by(waiter: Waiter) -> Generator[None]:
    """Let this thread, in the block, wait by `waiter`."""
    outer = getattr(_here, "waiter", None)
    _here.waiter = waiter
    try:
        yield
    finally:
        _here.waiter = outer


def suspends_by(suspend: Callable[[Signal, float | None], bool]) -> None:
    """Register `suspend`, to be tried first for every wait: it returns False if there is no task that it could
    suspend."""
    global _suspend
    _suspend = suspend
