"""Tasks that a journaled program begins: of its own coroutines, and in a `TaskGroup` those of host code, too.

They are no effects: they begin again when the run is taken up. What they ask and call is in the journal by itself, a coroutine of host code as if
the program awaited it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from lmc.frontend.again import drop
from lmc.frontend.values import active

Wait = Callable[[Any], Coroutine[Any, Any, Any]]


class Tasks:
    """The tasks of one run, and the futures that gather them: they are its own, as are their methods."""

    def __init__(self) -> None:
        self._found = weakref.WeakSet[asyncio.Future[Any]]()

    def __contains__(self, x: object) -> bool:
        return isinstance(x, asyncio.Future) and x in self._found

    def any_in(self, values: Iterable[Any]) -> bool:
        """Whether one is among values, or in a container among them, as `asyncio.wait` takes it."""
        return any(x in self or (isinstance(x, list | tuple | set) and any(y in self for y in x)) for x in values)

    def begun(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_own: Callable[[Any], bool], wait: Wait) -> Any | None:
        """What a call gives that begins tasks of the program's own, or a task of a `TaskGroup`. None for any other call.

        is_own  whether something is a coroutine of the program's
        wait    what awaits a coroutine of host code, with the journal
        """
        grouped = _is_method(fn, asyncio.TaskGroup, "create_task")
        if not args or not (grouped or ((_is_one(fn, _COMBINE) or _begins(fn)) and any(is_own(x) or x in self for x in args))):
            return None
        if grouped or _begins(fn):
            return self._begin(fn, args[0], kwargs, is_own, wait)
        made = [x if x in self or not inspect.isawaitable(x) else self._begin(asyncio.ensure_future, x, {}, is_own, wait) for x in args]
        found = fn(*made, **kwargs)
        if isinstance(found, asyncio.Future):
            self._found.add(found)
        return found

    def _begin(self, fn: Any, awaitable: Any, kwargs: Mapping[str, Any], is_own: Callable[[Any], bool], wait: Wait) -> Any:
        """A task, or what else there is to await. Hooks in the program's own coroutines are on, those in host code are not."""
        if awaitable in self:
            return awaitable
        if is_own(awaitable):
            task = fn(awaitable, **kwargs)
        else:
            token = active.set(None)
            try:
                task = fn(wait(awaitable), **kwargs)
            finally:
                active.reset(token)
            task.add_done_callback(lambda _: drop(awaitable))  # if it was cancelled before it began
        self._found.add(task)
        return task


def _begins(fn: Any) -> bool:
    return _is_one(fn, (asyncio.create_task, asyncio.ensure_future)) or _is_method(fn, asyncio.AbstractEventLoop, "create_task")


def _is_one(fn: Any, functions: Sequence[Any]) -> bool:
    return any(fn is known for known in functions)  # `in` would ask an object's `__eq__`


def _is_method(fn: Any, cls: type, name: str) -> bool:
    return getattr(fn, "__name__", "") == name and isinstance(getattr(fn, "__self__", None), cls)


_COMBINE = (asyncio.gather, asyncio.wait_for, asyncio.shield)
"""What awaits the awaitables among its arguments."""
