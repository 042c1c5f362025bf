"""Generators of the program: a body runs in a greenlet of its own, so that each item is made on demand, and a `yield` may occur anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from greenlet import error, getcurrent, greenlet

from lmc.frontend.capture.code import Eval, Frame
from lmc.frontend.capture.unknown import Abandoned, Raised, Undecided


class GeneratorBody:
    """The running body of a generator: an iterator."""

    def __init__(self, frame: Frame, body: Eval) -> None:
        self._frame, self._body = frame, body
        self._steps: greenlet | None = None  # once its first item is taken

    def _begin(self) -> greenlet:
        steps = self._steps = greenlet(self._run)
        steps.gr_context = copy_context()
        self._frame.ev.generators.append(self)
        return steps

    def _run(self) -> None:
        try:
            self._body(self._frame)
        except Abandoned as abandoned:
            if abandoned.target is not self._frame:
                raise
            raise Undecided(abandoned.deps) from None

    def give(self, x: Any) -> None:
        """In the body: hand an item to who takes it."""
        raised = self._steps.parent.switch(x)  # pyright: ignore[reportOptionalMemberAccess]
        if raised:
            raise raised

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        steps, x = self._begin() if self._steps is None else self._steps, None
        if not steps.dead:
            steps.parent = getcurrent()
            x = steps.switch()
        if steps.dead:
            raise StopIteration
        return x

    def drop(self) -> None:
        """Nobody takes the rest: as Python closes a generator, its `finally` clauses are evaluated."""
        try:
            if self._steps:
                self._steps.parent = getcurrent()
                self._steps.switch(Raised(GeneratorExit()))
        except BaseException:  # a destructor raises nothing; if the evaluation has to stop, its next step raises again
            with suppress(error, ValueError):  # collected on another thread, or by itself, as it ends
                self.kill()

    def kill(self) -> None:
        """End it with the evaluation: nothing more of it is evaluated."""
        if self._steps:
            self._steps.parent = getcurrent()
            self._steps.throw()
