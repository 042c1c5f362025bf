"""Functions of the library as an evaluation follows them: like the program's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def kept(test: Callable[[Any], Any] | None, items: Iterable[Any]) -> Iterator[Any]:
    """Evaluate `filter(test, items)`."""
    return (x for x in items if (x if test is None else test(x)))
