"""What a replay awaits, goes through and enters of async code."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import AsyncIterator
from typing import Any

from lmc.frontend import aio, hostops
from lmc.frontend.coroutines import (
    as_host,
    beyond_hooks,
    is_own_coroutine,
    is_own_generator,
    is_turn_of_own_generator,
    waits_for_answers,
)
from lmc.frontend.hostops import Shape
from lmc.frontend.keys import GATHERED, Key
from lmc.frontend.managers import AsyncManaged, is_own_async_manager
from lmc.frontend.primitives import caller_loc
from lmc.frontend.replay_items import ReplayItems


class ReplayAsync(ReplayItems):
    """A replay that knows async code."""

    def callm_awaited(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(owner, types.ModuleType):
            return self.call_awaited(self.getattr(owner, name), *args, **kwargs)
        return self.callm(owner, name, *args, **kwargs)

    def call_awaited(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.last > self.tick:  # the graph ran them too; else they are tasks like any other
            found = aio.gathering(fn, args, kwargs, waits_for_answers)
            if found is not None:
                return found
        return self.call(fn, *args, **kwargs)

    def awaited(self, value: Any) -> Any:
        """What the program awaits. Hooks in what host code runs meanwhile are not the program's own."""
        if isinstance(value, aio.Gathering):
            return self._gathered(value, (self.tick, GATHERED, 0))
        if is_own_coroutine(value) or isinstance(value, aio.Ready) or is_turn_of_own_generator(value):
            return value
        if self.limits is not None and inspect.isawaitable(value):
            value = self.limits.wait(value, caller_loc())
        return as_host(value) if isinstance(value, types.CoroutineType) else value

    async def _gathered(self, gathering: aio.Gathering, key: Key) -> Any:
        results = await gathering.in_order(lambda: self.count >= self.last, beyond_hooks)
        return self._answer(key) if key in self.record else results

    def aiter(self, value: Any, shape: Shape | None = None) -> Any:
        tick = self.tick
        if (tick, 1, 0) in self.record:
            value = self._answer((tick, 1, 0))
        if self.limits is not None and not is_own_generator(value):
            value = aio.timed_items(value, self.limits, caller_loc())
        if (tick, 1, 0) in self.record:
            return self._continue_async(tick, value, shape)
        return value if shape is None or tick > self.last or not is_own_generator(value) else self._unpacked_later(tick, value, shape)

    async def _unpacked_later(self, tick: int, items: AsyncIterator[Any], shape: Shape) -> AsyncIterator[Any]:
        index = 0
        async for item in items:
            index += 1
            key = (tick, 1, -index)
            yield self._flat(self._answer(key), shape) if key in self.record else self._inside(item, shape, key)

    def aenter(self, manager: Any) -> Any:
        if not (hasattr(type(manager), "__aenter__") and hasattr(type(manager), "__aexit__")):
            return manager  # Python says what is missing
        return manager if is_own_async_manager(manager) else AsyncManaged(manager, self.dispatch, self.is_dead)

    def aentered(self, manager: Any) -> Any:
        if self.own_async(manager, "__aenter__"):
            return self.call(type(manager).__aenter__, manager)
        return self._managing(super().aentered(manager))

    def aleft(self, manager: Any, error: BaseException | None) -> Any:
        if self.own_async(manager, "__aexit__"):
            return self.call(type(manager).__aexit__, manager, None if error is None else type(error), error, error and error.__traceback__)
        return self._managing(super().aleft(manager, error))

    def _managing(self, coroutine: Any) -> Any:
        return as_host(coroutine if self.limits is None else self.limits.wait(coroutine, caller_loc()))

    async def _continue_async(self, tick: int, iterator: Any, shape: Shape | None) -> AsyncIterator[Any]:
        for step in itertools.count(1):
            if (tick, 1, step) in self.record:
                more, item = self._answer((tick, 1, step))
            else:
                more, item = await hostops.anext_step(iterator)
            if not more:
                return
            key = (tick, 1, -step)
            yield self._flat(self._answer(key), shape) if shape is not None and key in self.record else item
