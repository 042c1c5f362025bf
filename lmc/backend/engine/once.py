"""What is made once a key and shared: by the thread that asks first, while others that want the same wait and the rest go on.

Bounded by weight: the least recently used go. What was handed out lives on with who has it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Once(Generic[K, V]):
    """A cache of made things. Thread-safe; its lock is never held while something is made.

    make    makes the value of a key; what it raises is raised to all who wait, and the next one tries again
    weigh   what a value counts, fixed when it comes in
    limit   of the weights of all together; the newest stays whatever it weighs
    gone    told of each that goes
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
        """It is made again when it is needed next."""
        with self._lock:
            found = self._made.pop(key, None)
            if found is not None:
                self._weight -= found[1]
        if found is not None:
            self._gone(key, found[0])

    def replace(self, key: K, value: V) -> None:
        """Put a better value in the place of one that is kept; nothing where it has gone meanwhile."""
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
        """What there is now."""
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
