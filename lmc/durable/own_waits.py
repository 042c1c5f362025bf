"""Waits of a program for what it does itself: the result of a future, an event, an item of a queue.

Where that comes to a call in doubt or asks a person, in a callback or a task, nothing sets the future any more, and the wait ends with the doubt, or the
question, instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from copy import copy
from typing import Any, Protocol

from lmc.errors import InDoubtEffect, Interrupted


class RunProgress(Protocol):
    """How far a run is: running calls of host code, and how many known effects the program has reached."""

    busy: int
    recalled: int


class OwnWaits:
    """The waits of one run. They end when it is in doubt or has asked a person, no call is being made, and the program has reached no known effect for
    some turns of its loop."""

    def __init__(self) -> None:
        self._open: set[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = set()
        self._why: InDoubtEffect | Interrupted | None = None

    async def wait(self, awaitable: Awaitable[Any], run: RunProgress) -> Any:
        """Await what the program itself ends. Raises InDoubtEffect or Interrupted where it does not."""
        wait = asyncio.get_running_loop(), asyncio.timeout(None)
        try:
            async with wait[1]:
                self._open.add(wait)
                self.look(run)
                return await awaitable
        except TimeoutError:
            if not wait[1].expired() or self._why is None:
                raise
            raise copy(self._why) from None
        finally:
            self._open.discard(wait)

    def end(self, why: InDoubtEffect | Interrupted, run: RunProgress) -> None:
        """Let them end with what stops the run. From any thread."""
        self._why = self._why or why
        self.look(run)

    def look(self, run: RunProgress) -> None:
        """See whether they end, now or after some turns of their loops: a call has ended. From any thread."""
        if self._why is not None:
            for loop, timeout in [*self._open]:
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    loop.call_soon_threadsafe(self._turn, (loop, timeout), run, 0, -1)

    def _turn(self, wait: tuple[asyncio.AbstractEventLoop, asyncio.Timeout], run: RunProgress, turns: int, recalled: int) -> None:
        if wait not in self._open or run.busy:  # the end of a call looks again
            return
        loop, timeout = wait
        if run.recalled != recalled:
            turns = 0
        if turns < TURNS:
            loop.call_soon(self._turn, wait, run, turns + 1, run.recalled)
        else:
            self._open.discard(wait)  # the end of another call may be looking, too
            timeout.reschedule(loop.time())


TURNS = 16
"""Turns of the event loop within which a task of a group, and of nested groups, reaches its next recorded effect."""
