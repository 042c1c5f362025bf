"""Generators of the program: a body runs in a greenlet of its own, so that each item is made on demand, and a `yield` may occur anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

from greenlet import getcurrent, greenlet

from lmc.frontend.capture.code import Eval, Frame
from lmc.frontend.capture.unknown import Abandoned, Undecided


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
        self._steps.parent.switch(x)  # pyright: ignore[reportOptionalMemberAccess]

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

    def kill(self) -> None:
        """End it with the evaluation: nothing more of it is evaluated."""
        if self._steps:
            self._steps.parent = getcurrent()
            self._steps.throw()
