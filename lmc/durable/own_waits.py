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
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
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
        self._blocked = list[threading.Condition]()
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
        """See whether they end, those in tasks now or after some turns of their loops: a call has ended. From any thread."""
        if self._why is None:
            return
        for loop, timeout in [*self._open]:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._turn, (loop, timeout), 0, -1)
        for condition in [*self._blocked] if not self._run.busy else ():  # each on a thread: this one, or one that waits, may have its lock
            threading.Thread(target=_notify, args=(condition,), name="lmc-journal-wake", daemon=True).start()

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

    @contextlib.contextmanager
    def blocked(self, condition: threading.Condition) -> Generator[None]:
        """In the block, in which it has the lock of a condition, a thread waits for that."""
        self._blocked.append(condition)
        try:
            self._check()
            yield
            self._check()
        finally:
            self._blocked.remove(condition)

    def _check(self) -> None:
        self._run.threads.leave()
        if self._why is not None and not self._run.busy:
            raise copy(self._why)

    def acquire(self, fn: Callable[[bool, float], bool], blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire a lock."""
        if not blocking or timeout != -1:
            return fn(blocking, timeout)
        while not fn(True, _POLL):
            self._check()
        return True

    def get(self, fn: Callable[[bool, float | None], Any], block: bool = True, timeout: float | None = None) -> Any:
        """Get an item of a SimpleQueue."""
        while block and timeout is None:
            with contextlib.suppress(queue.Empty):
                return fn(True, _POLL)
            self._check()
        return fn(block, timeout)

    def join(self, fn: Callable[[float | None], None], timeout: float | None = None) -> None:
        """Wait for the end of a thread."""
        fn(_POLL if timeout is None else timeout)
        self._check()
        while timeout is None and fn.__self__.is_alive():  # type: ignore[attr-defined]
            fn(_POLL)
            self._check()


class OwnCondition(threading.Condition):
    """A condition that a program waits for, also within a queue, an event, a semaphore, a barrier or a future."""

    def wait(self, timeout: float | None = None) -> bool:
        recorder: Any = RECORDING.get()
        with contextlib.nullcontext() if recorder is None else recorder.journal.effects.waits.blocked(self):
            return super().wait(timeout)


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


def _notify(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()


_LOCKS = (type(threading.Lock()), type(threading.RLock()))
WAITED_FOR = (
    *_LOCKS, queue.SimpleQueue, threading.Thread, threading.Condition, threading.Event, threading.Semaphore, threading.Barrier, queue.Queue, Future,
    ThreadPoolExecutor,
)  # fmt: skip
"""Types of what a thread waits for."""
_POLLED = {"acquire": OwnWaits.acquire, "get": OwnWaits.get, "join": OwnWaits.join}
"""Methods of locks, of a SimpleQueue and of threads, in which nothing but time can end a wait."""
_POLL = 0.05
"""Seconds after which these look whether the run ends."""
TURNS = 16
"""Turns of the event loop within which a task of a group, and of nested groups, reaches its next recorded effect."""
