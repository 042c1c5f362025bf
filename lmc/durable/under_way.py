"""The calls of a run that are being made at the same time: what changes meanwhile of objects that they share is the change of one of them."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from lmc.durable.records import Effect
from lmc.durable.snapshots import CallSnapshot, RedoneChanges


class CallsUnderWay:
    """They look at what they share at the same moments, when one of them begins, goes on, pauses or ends, and one of them claims what has changed."""

    def __init__(self) -> None:
        self._calls: list[CallSnapshot] = []
        self._redone: dict[int, RedoneChanges] = {}
        self.lock = threading.RLock()  # a finalizer may make a call

    @contextmanager
    def making(self, reached: CallSnapshot) -> Generator[None]:
        """In the block a call is made: what others change meanwhile is not its change."""
        with self.lock:
            for other in self._calls:
                other.overlapped = reached.overlapped = True
            self._settle(reached)
            reached.look()
            self._calls.append(reached)
        try:
            yield
        finally:
            with self.lock:
                self._calls.remove(reached)

    def claim(self, reached: CallSnapshot) -> None:
        """Note what a call has changed since it began or went on; others have not."""
        with self.lock:
            if not reached.is_empty:
                reached.claim()
                for other in self._calls:
                    if other.whole and other is not reached:
                        other.look_like(reached)

    def _settle(self, reached: CallSnapshot) -> None:
        """Let calls on threads claim what they have changed so far of what another is given."""
        for other in self._calls:
            if other.whole and other is not reached and other.shares(reached):
                self.claim(other)

    def redo(self, reached: CallSnapshot, known: Effect, decode: Callable[[Any], Any]) -> None:
        """Make the changes of a known call again."""
        assert known.outcome is not None
        with self.lock:
            self._settle(reached)
            reached.restore(known.outcome[2], decode, None if known.call.ordered else self._redone, known.ended)
            if self._calls:
                reached.look()
                for other in self._calls:
                    other.look_like(reached)

    @types.coroutine
    def steps(self, awaitable: Any, reached: CallSnapshot) -> Generator[Any, Any, Any]:
        """Await something, and note what its own steps change: between them the program and others go on."""
        steps, value, error = awaitable.__await__(), None, None
        while True:
            with self.lock:
                self._settle(reached)
                reached.claim(own=False)
            try:
                given = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                self.claim(reached)
            try:
                value, error = (yield given), None
            except BaseException as raised:  # raised in what is awaited
                error = raised

    def has_asked(self) -> None:
        """Note that host code has asked for an answer in a state of the run."""
        for reached in self._calls:
            reached.asked = True
