"""Turns of an event loop between what is recorded: as many pass again between the same outcomes when a run is resumed."""

from __future__ import annotations

import asyncio

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
