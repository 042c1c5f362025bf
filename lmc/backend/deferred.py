"""Deferred requests, made when their answer is needed: one without a known reader costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from lmc.backend.base import Handle
from lmc.backend.results import Output, Result


class Deferred(Result):
    """An answer that is requested when it is waited for, read or watched."""

    __slots__ = ("_lock", "_submit", "handle")

    def __init__(self, submit: Callable[[], Handle]) -> None:
        super().__init__()
        self._submit: Callable[[], Handle] | None = submit
        self._lock = threading.RLock()
        self.handle: Handle | None = None

    @property
    def begun(self) -> bool:
        """Return whether it was requested."""
        return self._submit is None

    def begin(self) -> Handle | None:
        """Make the request, if it was not made; return the backend's handle, or None if it refused, which is then this
        answer's error."""
        with self._lock:
            submit, self._submit = self._submit, None
            if submit is not None:
                try:
                    self.handle = submit()
                except Exception as error:  # raised when the answer is read
                    self.fail(error)
        if submit is not None and self.handle is not None:
            self.handle.results[0].on_done(self._follow)
        return self.handle

    def _follow(self, answer: Result) -> None:
        self._complete(answer.answer, answer.error)

    def on_done(self, notify: Callable[[Result], None]) -> None:
        self.begin()
        super().on_done(notify)

    def wait(self, timeout: float | None = None) -> bool:
        self.begin()
        return super().wait(timeout)

    def output(self) -> Output:
        self.begin()
        return super().output()

    def stream(self) -> Iterator[str]:
        self.begin()
        return super().stream()


def is_asked(answer: Result) -> bool:
    """Return whether an answer was requested, or will be without being read."""
    return answer.__class__ is not Deferred or answer.begun  # type: ignore[attr-defined]


class DeferredHandle:
    """The prompt with a deferred answer: extending it makes the request."""

    __slots__ = ("__weakref__", "_result", "results")

    def __init__(self, result: Deferred) -> None:
        self._result = result
        self.results: Sequence[Result] = (result,)

    def begin(self) -> Handle:
        """Return the backend's own handle. Raises the backend's refusal of the request."""
        handle = self._result.begin()
        if handle is None:
            assert self._result.error is not None
            raise self._result.error
        return handle

    def cancel(self) -> None:
        """Cancel the request, if it was made."""
        if self._result.handle is not None:
            self._result.handle.cancel()
