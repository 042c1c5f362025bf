"""Observers of runs, requests, tools and batches while they happen: OpenTelemetry (lmc/integrations/otel.py) if `otel`
is set.

Without it, nothing is created, measured or imported. Everything that has something to tell imports this module, so it
imports none of them: what it passes on is typed where it comes from and in the observer.

    every request of every mode ──► submit ──► Backend
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from typing import Any, Protocol, TypeVar

from lmc.config import Settings, new_observer, settings

Headers = tuple[tuple[str, str], ...]
"""Context in which a trace continues elsewhere: names and values of HTTP headers (W3C Trace Context)."""


_Handle = TypeVar("_Handle", covariant=True)


class _Backend(Protocol[_Handle]):
    def submit(self, parent: Any, segments: Sequence[Any], hints: Any = None) -> _Handle: ...


class ObservedBatch(Protocol):
    """A running batch."""

    def item(self) -> AbstractContextManager[object]:
        """Enter an item that runs on this thread or task."""
        ...

    def end(self) -> None: ...


class Observer(Protocol):
    """Receives events from any thread."""

    def run(self, function: Any, state: Any) -> AbstractContextManager[object]:
        """Enter a program (a Function) that runs on this thread or task, with its State."""
        ...

    def batch(self, program: str, items: int) -> ObservedBatch:
        """Begin a batch."""
        ...

    def call(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """Return the result of a HostFunction, which `make` calls."""
        ...

    def awaiting(self, made: object) -> AbstractContextManager[object]:
        """Enter a journaled run's await of a call's result."""
        ...

    def submit(self, backend: Any, parent: Any, segments: Sequence[Any], hints: Any, before: Any) -> Any:
        """Hand a submission to its Backend. `before`: the Prompt that its segments end, if there is one."""
        ...

    def settle(self, result: Any, *, used: bool) -> None:
        """Record that a request made ahead, of which this is the Result, was the program's, or wasted."""
        ...

    def carry(self, context: Context) -> None:
        """Let work that runs in the otherwise empty `context`, made ahead, belong to the current trace."""
        ...

    def headers(self) -> Headers:
        """Return headers with which another process continues this trace."""
        ...

    def within(self, headers: Headers) -> AbstractContextManager[object]:
        """Continue a trace that another process began."""
        ...

    def served(self, method: str, route: str, path: str, headers: Mapping[str, str]) -> AbstractContextManager[Callable[[int], None]]:
        """Enter an HTTP request; yields the function that takes its status."""
        ...

    def flush(self) -> None:
        """Export what has ended."""
        ...


_observer: Observer | None = None
_seen: Settings | None = None


def observer() -> Observer | None:
    """Return the observer of the settings in force. Raises MissingPackageError if its package is not installed."""
    global _observer, _seen
    if _seen is not (now := settings()):
        _observer = (_observer or new_observer()) if now.otel else None
        _seen = now
    return _observer


def within(headers: Headers) -> AbstractContextManager[object]:
    """Continue a trace that another thread or process began."""
    watching = observer() if headers else None
    return nullcontext() if watching is None else watching.within(headers)


def awaiting(made: object) -> AbstractContextManager[object]:
    """Enter a journaled run's await of a host function's result."""
    watching = observer()
    return nullcontext() if watching is None else watching.awaiting(made)


def submit(backend: _Backend[_Handle], parent: Any, segments: Sequence[Any], hints: Any, before: Any = None) -> _Handle:
    """`backend.submit`, observed: every request goes through here."""
    watching = observer()
    return backend.submit(parent, segments, hints) if watching is None else watching.submit(backend, parent, segments, hints, before)
