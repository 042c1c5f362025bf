"""When Python looks through all its objects for garbage: seldom, while somebody would have to wait for it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Generator[None]:
    """Where millions of objects are made that are no garbage: looking for some again and again would take most of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def few_full_collections(least: int) -> Generator[None]:
    """Puts off the collector's passes through all objects, which take as long as making thousands of states: one for so many through
    the younger ones at least. What dies young is found as always. Of several at a time who wants the fewest is heard; thresholds that
    somebody sets meanwhile are left as they are."""
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
            return  # somebody's own
        young, middle, full = self._before
        self._ours = young, middle, max(full, *self._least) if self._least else full
        gc.set_threshold(*self._ours)


_wanted = _Wanted()
