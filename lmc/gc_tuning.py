"""GC tuning: fewer full collections, and shorter ones between them, while a caller would have to wait for them."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

_PARTS = 1  # young collections between two of the middle generation
_SMALLER = 4  # times are parts smaller than Python's, and so the longest wait for one


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
    ones, as Python collects by default. What dies young is collected as always, but in smaller parts: a collection of the middle
    generation would take as long as making a hundred states. Of several concurrent blocks the largest `least` applies;
    thresholds that other code sets meanwhile are left alone."""
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
        self._ours = _shortened(*self._before, max(self._least)) if self._least else self._before
        gc.set_threshold(*self._ours)


def _shortened(young: int, middle: int, full: int, least: int) -> tuple[int, int, int]:
    """Return thresholds with which full collections are as rare as wanted, and those of the middle generation as short as can be."""
    full = max(full, least)
    if middle <= _PARTS or sys.version_info >= (3, 14):  # from there on, the second threshold says how much of the old generation is scanned
        return young, middle, full
    return -(-young // _SMALLER), _PARTS, full * (middle + 1) * _SMALLER // (_PARTS + 1)


_wanted = _Wanted()
