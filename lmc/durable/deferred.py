"""Stand-ins for awaitables of host code in a resumed run."""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmc.durable.snapshots import CallSnapshot
from lmc.errors import InDoubtEffect, JournalError, Loc
from lmc.frontend import tools
from lmc.frontend.host import HostFunction

MadeBy = tuple[str, Sequence[Any], Mapping[str, Any]]
"""The call that awaiting something counts as: name and arguments; of a coroutine that an effect has returned, that effect's name and number."""


@dataclass(frozen=True)
class MadeAwaitable:
    """An awaitable that an effect has returned.

    of       the call that awaiting a coroutine counts as;  given: the function, and what it was given
    reached  what the call was given, if it is none: it may change that by itself
    """

    awaitable: Any
    name: str
    of: MadeBy | None
    given: Sequence[Any]
    reached: CallSnapshot | None
    loc: Loc | None


class DeferredAwaitable:
    """Stands for the awaitable that a call returned, in a resumed run: the call is made again if it is awaited after
    all.

    given       the function, and what it was given
    kind        its type's name
    of          the call that awaiting it counts as
    doubt       error raised then: a task, or the call itself, may have done something. None if it may be made again
    idempotent  whether an await begun earlier may begin again
    called      methods of it that are in the journal, or by which the program has cancelled a task
    """

    def __init__(
        self,
        call: Callable[[], tuple[bool, Any]],
        given: Sequence[Any],
        kind: str,
        of: MadeBy,
        doubt: Callable[[], InDoubtEffect | JournalError] | None,
        *,
        idempotent: bool,
    ) -> None:
        self.kind, self.of, self.doubt, self.idempotent, self.called = kind, of, doubt, idempotent, set[str]()
        self.given, self._call, self._made = given, call, list[Any]()

    def __getattr__(self, name: str) -> Any:
        """Return a method, whose call is in the journal too, but for `cancel` of a task."""
        return self._cancel if name == "cancel" and self.kind == "Task" else DeferredMethod(self, name)

    def _cancel(self, msg: Any = None) -> bool:
        self.called.add("cancel")
        return True

    def __await__(self) -> Generator[Any, None, Any]:
        return (yield from self.made().__await__())

    def made(self) -> Any:
        """Make the call now and return its result. Raises InDoubtEffect if it may have done something before."""
        if self.doubt is not None:
            raise self.doubt()
        if not self._made:
            ok, value = self._call()
            if not ok:
                raise value
            if "cancel" in self.called:
                value.cancel()
            self._made.append(value)
        return self._made[0]

    def drop(self) -> None:
        for x in (*self.given, *self._made):
            drop(x)


class DeferredMethod:
    """A method of the awaitable that `DeferredAwaitable` represents. Not a function, so that it is not mistaken for one
    of the program's."""

    def __init__(self, of: DeferredAwaitable, name: str) -> None:
        self.of, self.name = of, name
        self.__name__ = self.__qualname__ = f"{of.kind}.{name}"
        self.__module__ = "asyncio"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.of.made(), self.name)(*args, **kwargs)


WAIT_FOR = asyncio.wait_for.__code__


def drop(awaitable: Any) -> None:
    """Close an awaitable that will not be awaited."""
    if isinstance(awaitable, types.CoroutineType):
        inner = inner_of(awaitable)
        if inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
            held = inspect.getcoroutinelocals(awaitable) if awaitable.cr_code is WAIT_FOR else {}
            awaitable.close()
            drop(held.get("fut"))
        if inner is not awaitable:
            drop(inner)
    elif isinstance(awaitable, asyncio.Future):
        awaitable.cancel()
        awaitable.add_done_callback(take_exception)
    elif isinstance(awaitable, DeferredAwaitable):
        awaitable.drop()


def take_exception(future: asyncio.Future[Any]) -> None:
    """Take what a future raises that nobody waits for, so that asyncio does not report it."""
    if not future.cancelled():
        future.exception()


def inner_of(awaitable: Any) -> Any:
    """Return the awaitable inside a coroutine of lmc's own."""
    while isinstance(awaitable, types.CoroutineType) and awaitable.cr_frame is not None and awaitable.cr_code is _LATER:
        awaitable = awaitable.cr_frame.f_locals["result"]
    return awaitable


_LATER = tools.later.__code__
AROUND_HOST_CODE = frozenset({_LATER, HostFunction.awaited.__code__})
"""Code of lmc's coroutines that await host code's awaitables."""
