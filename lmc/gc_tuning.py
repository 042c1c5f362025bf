"""GC tuning: fewer full collections while a caller would have to wait for them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Generator[None]:
    """Disable collection in a block that makes millions of objects, none of them garbage: repeated scans would dominate
    the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def few_full_collections(least: int) -> Generator[None]:
    """Put off full collections, which take as long as making thousands of states: at most one for every `least` younger
    ones. What dies young is collected as always. Of several concurrent blocks the largest `least` applies; thresholds
    that other code sets meanwhile are left alone."""
    _wanted.add(least)
    try:
        yield
    finally:
        _wanted.remove(least)


class _Wanted:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._least = threading.Lock(), list[int]()
        self._before = self._ours = (0, 0, 0)

    def add(self, least: int) -> None:
        with self._lock:
            if not self._least:
                self._before = self._ours = gc.get_threshold()
            self._least.append(least)
            self._set()

    def remove(self, least: int) -> None:
        with self._lock:
            self._least.remove(least)
            self._set()

    def _set(self) -> None:
        if gc.get_threshold() != self._ours:
            return  # set by other code
        young, middle, full = self._before
        self._ours = young, middle, max(full, *self._least) if self._least else full
        gc.set_threshold(*self._ours)


_wanted = _Wanted()
