"""Waits of a program for what it does itself: the result of a future, an event, an item of a queue, in a task or on a thread.

Where that comes to a call in doubt, asks a person or ends the run, in a callback, a task or a thread, nothing sets the future any more, and the wait ends
with the doubt, the question or the error instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
import types
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from math import inf
from time import monotonic
from typing import Any, Protocol

from lmc.durable.turns import ThreadTurns
from lmc.errors import InDoubtEffect, Interrupted, JournalError
from lmc.frontend.host import RECORDING


class RunProgress(Protocol):
    """How far a run is: running calls of host code, and how many known effects the program has reached."""

    busy: int
    recalled: int
    threads: ThreadTurns


class OwnWaits:
    """The waits of one run. They end when it is in doubt, has asked a person or ends with an error, and no call is being made; those in a task once the
    program has reached no known effect for some turns of its loop."""

    def __init__(self, run: RunProgress) -> None:
        self._run = run
        self._open: set[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = set()
        self._queuing, self._queues = threading.Lock(), dict[int, deque[threading.Event]]()
        self._why: InDoubtEffect | Interrupted | JournalError | None = None

    async def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Await what the program itself ends. Raises what stops the run where it does not."""
        wait = asyncio.get_running_loop(), asyncio.timeout(None)
        try:
            async with wait[1]:
                self._open.add(wait)
                self.look()
                return await awaitable
        except TimeoutError:
            if not wait[1].expired() or self._why is None:
                raise
            raise copy(self._why) from None
        finally:
            self._open.discard(wait)

    def end(self, why: InDoubtEffect | Interrupted | JournalError) -> None:
        """Let them end with what stops the run. From any thread."""
        self._why = self._why or why
        self.look()

    def look(self) -> None:
        """See whether those in tasks end, now or after some turns of their loops: a call has ended. From any thread."""
        if self._why is None:
            return
        for loop, timeout in [*self._open]:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._turn, (loop, timeout), 0, -1)

    def _turn(self, wait: tuple[asyncio.AbstractEventLoop, asyncio.Timeout], turns: int, recalled: int) -> None:
        if wait not in self._open or self._run.busy:  # the end of a call looks again
            return
        loop, timeout = wait
        if self._run.recalled != recalled:
            turns = 0
        if turns < TURNS:
            loop.call_soon(self._turn, wait, turns + 1, self._run.recalled)
        else:
            self._open.discard(wait)  # the end of another call may be looking, too
            timeout.reschedule(loop.time())

    # -- on threads

    def ending(self, fn: Any, owner: Any) -> Any:
        """Return a method of what a thread waits for, so that its wait ends."""
        for part in (owner, *getattr(owner, "__dict__", {}).values()):
            if type(part) is threading.Condition:
                part.__class__ = OwnCondition
        of_python = not isinstance(fn, types.MethodType) or fn.__func__ is threading.Thread.join
        polled = _POLLED.get(fn.__name__) if of_python else None
        return fn if polled is None else functools.partial(polled, self, fn)

    def managed(self, x: Any) -> Any:
        """Return the manager to enter in place of one that a thread waits for."""
        self.ending(x.__enter__, x)
        if isinstance(x, ThreadPoolExecutor):
            return OwnPool(self._run.threads.leave, x)
        return OwnLock(self.ending(x.acquire, x), x) if isinstance(x, _LOCKS) else x

    def until(self, has_come: Callable[[float], bool], timeout: float | None) -> bool:
        """Wait on a thread for what `has_come`, which waits for so many seconds, returns True for; return False after `timeout` seconds. Others go on
        meanwhile, unless it is there at once."""
        end, seconds = inf if timeout is None else monotonic() + timeout, 0.0
        while not has_come(seconds):
            self._run.threads.leave()
            self._check()
            if (seconds := min(_POLL, end - monotonic())) <= 0:
                return False
        return True

    def _check(self) -> None:
        if self._why is not None and not self._run.busy:
            raise copy(self._why)

    def acquire(self, fn: Callable[[bool, float], bool], blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire a lock. The threads of the program do it in the order in which they have come to it, which is the same one when the run is resumed."""
        lock: Any = fn.__self__  # type: ignore[attr-defined]
        if not blocking or (timeout <= 0 and timeout != -1) or (isinstance(lock, _LOCKS[1]) and lock._is_owned()):  # type: ignore[attr-defined]
            return fn(blocking, timeout)
        is_first = threading.Event()
        with self._queuing:
            queued = self._queues.setdefault(id(lock), deque())
            queued.append(is_first)
            queued[0].set()
        try:
            return self.until(lambda seconds: is_first.wait(seconds) and fn(True, seconds), None if timeout == -1 else timeout)
        finally:
            with self._queuing:
                queued.remove(is_first)
                if queued:
                    queued[0].set()
                else:
                    del self._queues[id(lock)]

    def get(self, fn: Callable[[bool, float | None], Any], block: bool = True, timeout: float | None = None) -> Any:
        """Get an item of a SimpleQueue."""
        if not block or (timeout is not None and timeout <= 0):
            return fn(block, timeout)
        items = list[Any]()

        def has_come(seconds: float) -> bool:
            with contextlib.suppress(queue.Empty):
                items.append(fn(True, seconds))
            return bool(items)

        if not self.until(has_come, timeout):
            raise queue.Empty
        return items[0]

    def join(self, fn: Callable[[float | None], None], timeout: float | None = None) -> None:
        """Wait for the end of a thread."""
        thread: threading.Thread = fn.__self__  # type: ignore[attr-defined]
        self.until(lambda seconds: (fn(seconds), not thread.is_alive())[1], timeout)
        self._check()  # it may have ended because the run does


class OwnCondition(threading.Condition):
    """A condition that a program waits for, also within a queue, an event, a semaphore, a barrier or a future."""

    def wait(self, timeout: float | None = None) -> bool:
        recorder: Any = RECORDING.get()
        if recorder is None or not self._is_owned():  # type: ignore[attr-defined]
            return super().wait(timeout)
        waiter, has_come = threading.Lock(), False
        waiter.acquire()
        self._waiters.append(waiter)  # type: ignore[attr-defined]  # as Python's own does; it keeps its place among them, however long this lasts
        saved = self._release_save()  # type: ignore[attr-defined]
        try:
            has_come = recorder.journal.effects.waits.until(functools.partial(waiter.acquire, True), timeout)
            return has_come
        finally:
            self._acquire_restore(saved)  # type: ignore[attr-defined]
            if waiter in self._waiters:  # type: ignore[attr-defined]
                self._waiters.remove(waiter)  # type: ignore[attr-defined]
            elif not has_come:
                self.notify()  # another one, in its place


class OwnLock:
    """Manages a lock of threads."""

    def __init__(self, acquire: Callable[[], bool], lock: Any) -> None:
        self._acquire, self._lock = acquire, lock

    def __enter__(self) -> bool:
        return self._acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class OwnPool:
    """Manages a pool of threads, for whose calls it waits at its end."""

    def __init__(self, leave: Callable[[], None], pool: ThreadPoolExecutor) -> None:
        self._leave, self._pool = leave, pool

    def __enter__(self) -> ThreadPoolExecutor:
        return self._pool.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        self._leave()
        return self._pool.__exit__(*error)


_LOCKS = (type(threading.Lock()), type(threading.RLock()))
WAITED_FOR = (
    *_LOCKS, queue.SimpleQueue, threading.Thread, threading.Condition, threading.Event, threading.Semaphore, threading.Barrier, queue.Queue, Future,
    ThreadPoolExecutor,
)  # fmt: skip
"""Types of what a thread waits for."""
_POLLED = {"acquire": OwnWaits.acquire, "get": OwnWaits.get, "join": OwnWaits.join}
"""Methods of locks, of a SimpleQueue and of threads, which have no condition."""
_POLL = 0.05
"""Seconds after which a wait on a thread looks whether the run ends: what it waits for may be shared with others, whom a notification would wake."""
TURNS = 16
"""Turns of the event loop within which a task of a group, and of nested groups, reaches its next recorded effect."""
