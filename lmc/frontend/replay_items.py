"""What a replay goes through and takes apart: what was iterated before comes from the record, the rest from the same iterator."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from lmc.frontend import hostops
from lmc.frontend.hostops import Shape
from lmc.frontend.keys import Key, inner_key
from lmc.frontend.own import NOT_OWN
from lmc.frontend.replay_record import ReplayRecord


class ReplayItems(ReplayRecord):
    """A replay that knows iteration, unpacking and f-strings."""

    def star(self, value: Any, *callee: Any) -> Iterable[Any]:
        return hostops.starred(value if self.tells_of_length(value) else self._recorded_iter(1, self.own_items(value)), callee)

    def own_items(self, value: Any) -> Iterable[Any]:
        items = self.own_iter(value)
        return value if items is NOT_OWN else items

    def fstring(self, *parts: Any) -> str:
        return "".join([p if isinstance(p, str) else self._formatted(i, p) for i, p in enumerate(parts)])

    def _formatted(self, index: int, part: tuple[Any, str, str]) -> str:
        part = self.own_format(part)
        key = (self.tick, index + 1, 0)
        return self._answer(key) if key in self.record else hostops.OPERATIONS["py.format"](*part)

    def iter(self, value: Any, shape: Shape | None = None) -> Iterable[Any]:
        value = self.own_items(value)
        items = self._recorded_iter(1, value)
        return items if shape is None or items is value else self._unpacked_items(self.tick, items, shape)

    def _unpacked_items(self, tick: int, items: Iterable[Any], shape: Shape) -> Iterator[Any]:
        for index, item in enumerate(items, 1):
            key = (tick, 1, -index)
            yield self._flat(self._answer(key), shape) if key in self.record else self._inside(item, shape, key)

    def unpack(self, value: Any, shape: Shape) -> Any:
        return self._inside(self.own_items(value), shape, (self.tick, 1, 0))

    def _inside(self, value: Any, shape: Shape, key: Key) -> Any:
        """A container of the program with those of its items that were unpacked before as they were then."""
        if not any(isinstance(s, tuple) for s in shape) or not (isinstance(value, tuple | list) and len(value) == len(shape)):
            return value
        return tuple([self._inner(v, s, inner_key(key, i)) if isinstance(s, tuple) else v for i, (v, s) in enumerate(zip(value, shape, strict=True))])

    def _inner(self, value: Any, shape: Shape, key: Key) -> Any:
        return self._flat(self._answer(key), shape) if key in self.record else self._inside(value, shape, key)

    def _recorded_iter(self, which: int, value: Any) -> Any:
        """Iterates `value`; what was iterated before comes from the record, the rest from the same iterator."""
        tick = self.tick
        if (tick, which, 0) in self.record:
            return self._continue(tick, which, self._answer((tick, which, 0)))
        if self.tree is not None and tick <= self.first and id(value) in self.tree.steady and self.tree.steady[id(value)][0] is value:
            return self._continue_steady(tick, which, value, self.tree.steady[id(value)][1])
        return value

    def _continue_steady(self, tick: int, which: int, container: Any, content: tuple[Any, ...]) -> Iterator[Any]:
        """An outside container: as it was while nothing foreign had run, as recorded, and then as it is."""
        for index in itertools.count():
            key = (tick, which, index + 1)
            if key in self.record:
                more, item = self._answer(key)
            else:
                now = type(container)(content) if self.count < self.first else container
                more = index < len(now)
                item = tuple(now)[index] if more else None
            if not more:
                return
            yield item

    def _continue(self, tick: int, which: int, iterator: Iterator[Any]) -> Iterator[Any]:
        step = 1
        while (tick, which, step) in self.record:
            more, item = self._answer((tick, which, step))
            if not more:
                return
            yield item
            step += 1
        yield from iterator
