"""Pins of prefixes shared by all runs of a program, kept in its backends between the runs: bounded, the least recently
used is dropped.

    Program ──► Pins ──► (backend, constant beginning) ──► handle: its KV is pinned until `close`, or until eviction
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from lmc.backend.base import Backend, Handle

LIMIT = 16
"""Most prefixes that one program keeps pinned: it has one for each list of argument types, branch and backend."""


class Pins:
    """Pinned prompts by backend and text. Thread-safe. Dropping it ends all pins, as `close` does."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._held: OrderedDict[tuple[Backend, Hashable], Handle] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, backend: Backend, text: Hashable, prefill: Callable[[], Handle]) -> Handle:
        """Return the pinned handle of a text; `prefill` makes it when there is none, or when the backend has dropped
        it."""
        key = (backend, text)
        with self._lock:
            handle = self._held.get(key)
            if handle is not None and backend.holds(handle):
                self._held.move_to_end(key)
                return handle
            handle = self._held[key] = prefill()
            gone = self._held.popitem(last=False) if len(self._held) > self.limit else None
        if gone is not None:
            (where, _), oldest = gone
            where.release(oldest)
        return handle

    def close(self) -> None:
        """End all pins. Later requests pin again."""
        with self._lock:
            held, self._held = self._held, OrderedDict()
        for (backend, _), handle in held.items():
            backend.release(handle)
