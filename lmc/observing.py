"""Who observes runs, requests, tools and batches while they happen: OpenTelemetry (lmc/integrations/otel.py), where `otel` is set.

Nobody does, as a rule: then nothing is made, measured or imported for it.

    every request of every mode ──► submit ──► Backend
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from lmc.config import Settings, new_observer, settings

if TYPE_CHECKING:
    from lmc.backend.base import Backend, Handle, Hints, Result
    from lmc.frontend.host import HostFunction
    from lmc.frontend.interpreter import Function
    from lmc.frontend.state import State
    from lmc.prompt import Prompt, Segment

Headers = tuple[tuple[str, str], ...]
"""Where a trace goes on elsewhere: names and values of HTTP headers (W3C Trace Context)."""


class ObservedBatch(Protocol):
    """A batch that runs."""

    def item(self) -> AbstractContextManager[object]:
        """An item runs within this, on this thread or task."""
        ...

    def end(self) -> None: ...


class Observer(Protocol):
    """Is told of what happens, from any thread."""

    def run(self, function: Function, state: State) -> AbstractContextManager[object]:
        """A program runs within this, on this thread or task."""
        ...

    def batch(self, program: str, items: int) -> ObservedBatch:
        """A batch begins."""
        ...

    def call(self, fn: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """Return what a host function gives, which `make` calls."""
        ...

    def awaiting(self, made: object) -> AbstractContextManager[object]:
        """A journaled run awaits within this what a call gave."""
        ...

    def submit(self, backend: Backend, parent: Any, segments: Sequence[Segment], hints: Hints | None, before: Prompt | None) -> Handle:
        """Hand a submission to its backend. `before`: the prompt that its segments end, if there is one."""
        ...

    def settle(self, result: Result, *, used: bool) -> None:
        """A request that was made ahead was the program's, or in vain."""
        ...

    def carry(self, context: Context) -> None:
        """Let what runs in an empty context belong to what runs here. It is made ahead."""
        ...

    def headers(self) -> Headers:
        """With which another process goes on with what runs here."""
        ...

    def within(self, headers: Headers) -> AbstractContextManager[object]:
        """Go on with what another process began."""
        ...

    def served(self, method: str, route: str, path: str, headers: Mapping[str, str]) -> AbstractContextManager[Callable[[int], None]]:
        """A request of HTTP is answered within this; gives what is to be told its status."""
        ...

    def flush(self) -> None:
        """Export what has ended."""
        ...


_observer: Observer | None = None
_seen: Settings | None = None


def observer() -> Observer | None:
    """Who observes, by the settings in force. Raises MissingPackageError where its package is not installed."""
    global _observer, _seen
    if _seen is not (now := settings()):
        _observer = (_observer or new_observer()) if now.otel else None
        _seen = now
    return _observer


def within(headers: Headers) -> AbstractContextManager[object]:
    """Where what another thread or process began goes on."""
    watching = observer() if headers else None
    return nullcontext() if watching is None else watching.within(headers)


def awaiting(made: object) -> AbstractContextManager[object]:
    """Where a journaled run awaits what a call of a host function gave."""
    watching = observer()
    return nullcontext() if watching is None else watching.awaiting(made)


def submit(backend: Backend, parent: Any, segments: Sequence[Segment], hints: Hints | None, before: Prompt | None = None) -> Handle:
    """`backend.submit`, observed: every request goes through here."""
    watching = observer()
    return backend.submit(parent, segments, hints) if watching is None else watching.submit(backend, parent, segments, hints, before)
