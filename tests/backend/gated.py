"""A mock whose answers wait at a gate: shows which requests are with the backend at once, without measuring time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from lmc.backend.mock import Mock
from lmc.backend.mock_prompt import tokens_of
from lmc.backend.mock_timer import timer
from lmc.backend.results import Scored
from lmc.errors import BackendError

PATIENCE = 60.0
"""Seconds after which a held request fails: only against hangs, no test that passes gets there."""


class Gated(Mock):
    """The gate opens when `together` requests wait at it, when `asked` are there with those that wait for an answer before them, or by `open()`; what
    comes later passes at once, and so do the first `behind` requests.

    A program that waits for one answer before it asks for the next never opens it: what waits then fails, with an
    error that says how many were there.
    """

    def __init__(self, together: int | None = None, answers: Any = None, *, behind: int = 0, asked: int | None = None) -> None:
        super().__init__(answers, latency=1e-3)
        self._asked = asked
        self._together, self._behind = together, behind
        self._held: list[Callable[[], object]] = []
        self._passing = set[Any]()
        self._gate = threading.Lock()
        self._opened = False

    @property
    def waiting(self) -> int:
        """Requests held now."""
        return len(self._held)

    @property
    def opened(self) -> bool:
        """Whether requests pass at once by now."""
        return self._opened

    def submit(self, *request: Any, **hints: Any) -> Any:
        handle = super().submit(*request, **hints)
        if self._asked is not None and len(self._pending) >= self._asked:
            self.open()
        return handle

    def open(self) -> None:
        with self._gate:
            self._opened = True
        self.answer()

    def answer(self) -> None:
        """Let what is asked by now pass, also where it waits for an answer before it; what comes later is held again."""
        with self._gate:
            self._passing, held, self._held = {*self._passing, *self._pending}, self._held, []
        for answer in held:
            answer()

    def _later(self, handle: Any, *rest: Any) -> None:
        later = self._pass
        with self._gate:
            self._behind -= 1
            held = not self._opened and self._behind < 0 and handle not in self._passing
            if held:
                self._held.append(lambda: later(handle, *rest))
            full = self._together is not None and len(self._held) >= self._together
        if not held:
            later(handle, *rest)
        elif full:
            self.open()
        else:
            timer.at(time.monotonic() + PATIENCE, lambda: self._give_up(handle))

    def _pass(self, handle: Any, *rest: Any) -> None:
        super()._later(handle, *rest)

    def _give_up(self, handle: Any) -> None:
        if not (self._opened or self._closed):
            wanted = "it was not opened" if self._together is None else f"it opens at {self._together}"
            self._fail(handle, BackendError(f"only {self.waiting} requests were at the gate at once; {wanted}"))


class InTurn(Gated):
    """Answers the first requests in an order of their numbers: each once the program has asked again behind the one before. The later ones are answered
    when as many as the first have come."""

    def __init__(self, order: Sequence[int], answers: Any = None) -> None:
        super().__init__(2 * len(order), answers)
        self._order, self._came = order, 0

    def _later(self, handle: Any, *rest: Any) -> None:
        super()._later(handle, *rest)
        with self._gate:
            self._came += 1
            turn = self._came - len(self._order)
            answer = self._held[self._order[turn]] if 0 <= turn < len(self._order) else None
        if answer is not None:
            answer()


class InPieces(Gated):
    """Answers a third when `begin()` is called, and the rest behind the gate."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._first: dict[Any, tuple[str, Scored]] = {}

    def begin(self) -> bool:
        """Show a third of the answers that somebody reads as they grow; return whether there are any."""
        read = [result for result in self._first if result._watchers]
        for result in read:
            result.feed(*self._first.pop(result))
        return bool(read)

    def _later(self, handle: Any, *rest: Any) -> None:
        result, output, *_ = rest
        begun = output.texts[0][: len(output.texts[0]) // 3]
        self._first[result] = begun, Scored.of(output.metas[0]).cut(0, len(tokens_of(begun)))
        super()._later(handle, *rest)

    def _pass(self, handle: Any, *rest: Any) -> None:
        *answer, delay = rest
        timer.at(timer.monotonic() + delay, lambda: self._arrive(handle, *answer))
