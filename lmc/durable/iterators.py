"""Iterators that the program made and host code advances: how far is in the journal."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any


class SharedIterator:
    """An iterator that the program made, passed to host code: producing its items runs in the program, and is counted.

    within  context in which an item is made: the program's hooks are on
    taken   items so far, including its end;  None if something else was done to it
    """

    def __init__(self, items: Iterator[Any], within: Callable[[], AbstractContextManager[Any]]) -> None:
        self.items, self.within = items, within
        self.taken: int | None = 0

    def __iter__(self) -> SharedIterator:
        return self

    def __next__(self) -> Any:
        if self.taken is not None:
            self.taken += 1
        with self.within():
            return next(self.items)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.items, name)
        self.taken = None  # `send` or `close` of a generator
        return found

    def take(self, count: int) -> None:
        """Advance as far as host code did in an earlier execution of the run, which has its outcome recorded."""
        for _ in range(count):
            with suppress(Exception):  # StopIteration, or the error raised into the call then, which has handled or raised it
                next(self.items)


LAZY = (
    types.GeneratorType, map, filter, zip, enumerate, itertools.islice, itertools.chain, itertools.zip_longest, itertools.pairwise,
    itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.starmap, itertools.product, type(iter(int, 0)),
)  # fmt: skip
"""Iterators that the program makes and host code would advance."""


def drawn(x: Any, within: Callable[[], AbstractContextManager[Any]]) -> Any:
    """Return the replacement of a value passed to host code: a counted iterator, or the value itself."""
    return SharedIterator(x, within) if isinstance(x, LAZY) else x


ITERATORS = tuple({type(iter(x)) for x in ([], (), "", b"", {}, {}.values(), {}.items(), set[Any](), range(0), range(1 << 70))}
                  | {type(reversed(x)) for x in ([], (), range(0), {}, {}.values(), {}.items())})  # fmt: skip
"""Python's iterators of containers, which know how many items are left."""
