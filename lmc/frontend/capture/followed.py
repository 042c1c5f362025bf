"""Functions of the library as an evaluation follows them: like the program's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def kept(test: Callable[[Any], Any] | None, items: Iterable[Any]) -> Iterator[Any]:
    """Evaluate `filter(test, items)`."""
    return (x for x in items if (x if test is None else test(x)))


def left_out(test: Callable[[Any], Any] | None, items: Iterable[Any]) -> Iterator[Any]:
    """Evaluate `itertools.filterfalse(test, items)`."""
    return (x for x in items if not (x if test is None else test(x)))


def chained(iterables: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """Evaluate `itertools.chain.from_iterable(iterables)`."""
    return (x for items in iterables for x in items)
