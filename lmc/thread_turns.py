"""Turns of Python's threads: short while one of them works for a device or another process, which waits for it.

Each time that a thread releases the interpreter's lock it waits for another's turn to end, 5 ms by default (measured;
docs/performance.md).
"""

from __future__ import annotations

import sys
import threading

from lmc.forking import renew

TURN = 0.0005
"""Switch interval in seconds while turns are short, and the least time that an engine's loop leaves to submitters, if its
device does not make it wait as long."""


class _ShortTurns:
    """Limits turns while any block of it is entered. Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._blocks, self._before = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, TURN))
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0 and abs(sys.getswitchinterval() - TURN) < 1e-6:  # no other code has set another
                sys.setswitchinterval(self._before)

    def forked(self) -> None:
        """End all blocks in a child of fork(), which has none of the threads that entered them."""
        self._lock, blocks, self._blocks = threading.Lock(), self._blocks, min(self._blocks, 1)
        if blocks:
            self.__exit__()


short_turns = _ShortTurns()
renew(short_turns.forked)
