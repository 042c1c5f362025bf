"""Values of context variables, set for a block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def having(variable: ContextVar[T], value: T) -> Generator[T]:
    """Set a context variable in the block, and yield its value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
