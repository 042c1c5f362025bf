"""The time-outs of a journaled program (`asyncio.timeout`), and what it has called later (`call_later`): when one expires is in the journal, and when the run
is resumed it expires there again.

While the records of the resumed run last, the clock decides nothing: what took a while then is there at once, or has to wait for its turn. Behind them, the
time of each time-out begins.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from lmc.durable.tasks import here
from lmc.waiting import in_event_loop


class Timeouts:
    """Those of one run that are open, by the task that has entered them and their number in it."""

    def __init__(self) -> None:
        self.open: dict[tuple[int, ...], RecordedTimeout | RecordedTimer] = {}
        self.entered = Counter[int]()

    def expired(self) -> Sequence[int]:
        """Return the key of the outermost one that has expired, of this task if it has one, else of another, which may have cancelled it; nothing if
        none has."""
        expired, task = [timeout for timeout in self.open.values() if isinstance(timeout, RecordedTimeout) and timeout.expired()], here()
        for timeout in expired:
            timeout.write()
        found = [timeout.key for timeout in expired]
        return next((key for key in found if key[0] == task), next(iter(found), ()))

    def of_this_task(self) -> Sequence[RecordedTimeout]:
        """Return those that this task has entered."""
        if not self.open or not in_event_loop():
            return ()
        task = asyncio.current_task()
        return [timeout for timeout in self.open.values() if isinstance(timeout, RecordedTimeout) and timeout.task is task]

    def begin(self) -> None:
        """Let the time of those begin that the clock did not end, since the records of the run lasted."""
        for timeout in [*self.open.values()]:
            timeout.begin()


class RecordedTimeout(asyncio.Timeout):  # pyright: ignore[reportGeneralTypeIssues]  # final, since its library makes them by functions
    """One of them.

    key   the task of the program that has entered it, and its number in that;  task  the event loop's
    step  how many awaits that task has begun and ended in it: it expires again before the next one begins or ends
    """

    key: tuple[int, ...] = ()
    task: asyncio.Task[Any] | None = None
    step = 0
    _write: Callable[[list[Any]], None]
    _is_held: Callable[[], bool]
    _left: float | None = None
    _due: float | None = None
    _unwritten: list[Any] | None = None

    @classmethod
    def of(cls, timeout: asyncio.Timeout, key: tuple[int, ...], write: Callable[[list[Any]], None], is_held: Callable[[], bool]) -> RecordedTimeout:
        """Make one of a time-out that is about to be entered.

        write    writes a record;  is_held: returns whether these decide when it expires, and has `begin` called when they do not any more
        """
        timeout.__class__ = cls
        assert isinstance(timeout, RecordedTimeout)
        timeout.key, timeout.task, timeout._write, timeout._is_held = key, asyncio.current_task(), write, is_held
        return timeout

    def when(self) -> float | None:
        return self._due

    def reschedule(self, when: float | None) -> None:
        held = when is not None and self._is_held()
        super().reschedule(None if held else when)
        self._due, self._left = when, when - asyncio.get_running_loop().time() if when is not None and held else None

    def begin(self) -> None:
        """Let the clock decide from now on."""
        if self._left is not None and not self.expired():
            self._due, self._left = asyncio.get_running_loop().time() + self._left, None
            super().reschedule(self._due)

    def expire(self) -> None:
        """Expire now, as the journal says."""
        if not self.expired():
            super().reschedule(None)
            self._cancel()

    def _on_timeout(self) -> None:
        self._unwritten = ["o", *self.key, self.step]
        asyncio.get_running_loop().call_soon(self.write)  # before its task goes on, but behind what ends meanwhile
        self._cancel()

    def _cancel(self) -> None:
        super()._on_timeout()  # pyright: ignore[reportAttributeAccessIssue]

    def write(self) -> None:
        """Write that it has expired, once."""
        if (record := self._unwritten) is not None:
            self._unwritten = None
            self._write(record)


class RecordedTimer:
    """A call that the program has made of `call_later` or `call_at`; the handle that it gets."""

    def __init__(self, loop: asyncio.AbstractEventLoop, when: float, key: tuple[int, ...], call: Callable[[], Any]) -> None:
        self.key, self._loop, self._when, self._call, self._context = key, loop, when, call, copy_context()
        self._handle: asyncio.TimerHandle | None = None
        self._cancelled = self._is_over = False

    def enter(self, write: Callable[[list[Any]], None], is_held: Callable[[], bool], leave: Callable[[RecordedTimer], None]) -> None:
        """Let the time begin. `write`, `is_held`: as of a time-out; `leave`: called once it is over."""
        self._write, self._leave = write, leave
        self._left = self._when - self._loop.time()
        if not is_held():
            self.begin()

    def when(self) -> float:
        return self._when

    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        if not self._is_over:
            self._cancelled = True
            self._end()

    def begin(self) -> None:
        """Let the clock decide from now on."""
        if self._handle is None and not self._is_over:
            self._handle = self._loop.call_later(self._left, self._due)

    def expire(self) -> None:
        """Make the call now, as the journal says."""
        self._end()
        try:
            self._context.run(self._call)
        except Exception as error:  # as of any callback of the loop
            self._loop.call_exception_handler({"message": f"Exception in callback {self._call!r}", "exception": error, "handle": self})

    def _due(self) -> None:
        self._write(["o", *self.key, 0])
        self.expire()

    def _end(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._is_over = True
        self._leave(self)


def step(timeouts: Sequence[RecordedTimeout]) -> None:
    """Note that an await in them has begun or ended."""
    for timeout in timeouts:
        timeout.step += 1
