"""Generators of the program: a body runs in a greenlet of its own, so that each item is made when it is taken, and a `yield` may stand anywhere."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# (values of a program are Any by nature)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from greenlet import error, getcurrent, greenlet

from lmc.frontend.capture.values import Abandoned, Items, Raised, Undecided

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Frame


class Body:
    """The running body of a generator, an iterator with `send`, `throw` and `close`; what it returns is in the StopIteration."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._steps = greenlet(self._run)
        self._steps.gr_context = copy_context()

    def _run(self, given: tuple[Any, Raised | None]) -> tuple[bool, Any]:
        frame, (_, raised) = self._frame, given
        if raised is not None:
            raise raised
        try:
            frame.code.body(frame)  # type: ignore[union-attr]
        except Abandoned as abandoned:
            if abandoned.target is not frame:
                raise
            raise Undecided(abandoned.deps) from None
        return False, frame.result

    def give(self, x: Any) -> Any:
        """In the body: hand an item to who takes it; return what is sent."""
        value, raised = self._steps.parent.switch((True, x))  # type: ignore[union-attr]
        if raised is not None:
            raise raised
        return value

    def give_all(self, x: Any) -> Any:
        """In the body: `yield from x`."""
        if type(x) is not Items or x.generator is None:
            from lmc.frontend.capture.operations import iterate

            for item in iterate(self._frame.ev, x):
                self.give(item)
            return None
        sent: tuple[Any, Raised | None] = (None, None)
        while True:
            try:
                item = x.generator.resume(*sent)
            except StopIteration as over:
                return over.value
            try:
                sent = self.give(item), None
            except Raised as raised:
                sent = None, raised

    # -- from outside

    def resume(self, value: Any, raised: Raised | None = None) -> Any:
        """Run up to the next item."""
        steps = self._steps
        if steps.dead:
            raise raised if raised is not None else StopIteration
        steps.parent = getcurrent()
        more, x = steps.switch((value, raised))
        if not more:
            raise StopIteration(x)
        return x

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.resume(None)

    def send(self, value: Any) -> Any:
        return self.resume(value)

    def throw(self, raised: Raised) -> Any:
        return self.resume(None, raised)

    def close(self) -> None:
        """As Python closes a generator: its `finally` clauses are evaluated."""
        if not self._steps:  # it has not begun, or has ended
            return
        try:
            self.resume(None, Raised(GeneratorExit()))
        except StopIteration:
            pass
        except Raised as raised:
            if not isinstance(raised.value, GeneratorExit):
                raise

    def drop(self) -> None:
        """Nobody takes the rest."""
        try:
            self.close()
        except BaseException:  # a destructor raises nothing; where the evaluation has to stop, its next step says so again
            with suppress(error):  # collected on another thread
                self.kill()

    def kill(self) -> None:
        """The evaluation is over: nothing more of it is evaluated."""
        if self._steps:
            self._steps.parent = getcurrent()
            self._steps.throw()


__all__ = ["Body"]
