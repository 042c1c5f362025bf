"""Single-flight cache: the first thread that needs a key makes its value, while others with the same key wait and the
rest continue.

Bounded by weight: the least recently used are evicted. A value in use outlives its eviction.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """A cache. Thread-safe; its lock is never held while a value is made.

    make    makes the value of a key; its exception is raised to all waiters, and the next caller tries again
    weigh   weight of a value, fixed on insertion
    limit   of the total weight; the newest stays whatever its weight
    gone    called with each evicted value
    """

    def __init__(
        self,
        make: Callable[[K], V],
        weigh: Callable[[V], int],
        limit: int,
        gone: Callable[[K, V], None] = lambda key, value: None,
    ) -> None:
        self._make, self._weigh, self._limit, self._gone = make, weigh, limit, gone
        self._made: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._making: dict[K, Future[V]] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V:
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key][0]
            making = self._making.get(key)
            if mine := making is None:
                making = self._making[key] = Future()
        if mine:
            self._fill(key, making)
        return making.result()

    def forget(self, key: K) -> None:
        """Drop a key; it is made again when needed."""
        with self._lock:
            found = self._made.pop(key, None)
            if found is not None:
                self._weight -= found[1]
        if found is not None:
            self._gone(key, found[0])

    def clear(self) -> None:
        """Drop all keys."""
        for key, _ in self.items():
            self.forget(key)

    def replace(self, key: K, value: V) -> None:
        """Replace a cached value by a better one; do nothing if it was evicted meanwhile."""
        weight = self._weigh(value)
        with self._lock:
            if key not in self._made:
                return
            self._weight += weight - self._made[key][1]
            self._made[key] = value, weight
            gone = self._shrunk()
        for old, left in gone:
            self._gone(old, left)

    def items(self) -> list[tuple[K, V]]:
        """Return the current items."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._made.items()]

    def _fill(self, key: K, making: Future[V]) -> None:
        try:
            value = self._make(key)
            weight = self._weigh(value)
        except BaseException as error:  # `get` raises it, to all
            with self._lock:
                del self._making[key]
            making.set_exception(error)
            return
        with self._lock:
            del self._making[key]
            self._made[key] = value, weight
            self._weight += weight
            gone = self._shrunk()
        making.set_result(value)
        for old, left in gone:
            self._gone(old, left)

    def _shrunk(self) -> list[tuple[K, V]]:
        gone: list[tuple[K, V]] = []
        while self._weight > self._limit and len(self._made) > 1:
            key, (value, weight) = self._made.popitem(last=False)
            self._weight -= weight
            gone.append((key, value))
        return gone
