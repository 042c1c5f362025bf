"""Turns: of an event loop, as many of which pass again between the same outcomes when a run is resumed; and of the threads of a program, one of which at a
time goes on with what became known, in the order of the journal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

FEW_TURNS = 8
"""More turns than these are not counted: what came before has had its effect, then."""


class TurnCounter:
    """Counts the turns since the last outcome that its task, suspended, has waited for."""

    def __init__(self) -> None:
        self._turns = FEW_TURNS
        self._loop: asyncio.AbstractEventLoop | None = None

    def since_last(self) -> int:
        """Return how many there were, and begin to count those since the outcome that comes now."""
        loop = asyncio.get_running_loop()
        turns = self._turns if loop is self._loop else FEW_TURNS
        self._turns = 0
        if turns == FEW_TURNS:
            self._loop = loop
            loop.call_soon(self._count, loop)
        return turns

    def _count(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is self._loop:
            self._turns += 1
            if self._turns < FEW_TURNS:
                loop.call_soon(self._count, loop)


class ThreadTurns:
    """Who of a program's threads goes on with an outcome or an answer that has become known: until it calls, requests or waits again, or ends, no other one
    does. So what it did with that, as to a queue, a list or a future, comes before what others do with what became known later, and again when the run is
    resumed."""

    def __init__(self) -> None:
        self._has: int | None = None
        self._changed = threading.Condition()

    def take(self, is_first: Callable[[], bool], progress: Callable[[], int]) -> None:
        """Wait for the turn of this thread: nobody has it, and nothing comes before. If it does not come, as the one that has it waits for this one in a
        library's code, or what comes before is not reached, it is left out."""
        with self._changed:
            self._leave()
            before = progress()
            while self._has is not None or not is_first():
                if not self._changed.wait(STILL) and before == (before := progress()):
                    break
            self._has = threading.get_ident()

    def leave(self) -> None:
        """Let another thread go on: this one has come to its next call, request or wait."""
        if self._has is not None:
            with self._changed:
                self._leave()

    def look(self) -> None:
        """Let those that wait see whether they are first now."""
        with self._changed:
            self._changed.notify_all()

    def _leave(self) -> None:
        if self._has == threading.get_ident():
            self._has = None
            self._changed.notify_all()


STILL = 0.2
"""Seconds without progress of the program after which a turn that does not come is left out."""
