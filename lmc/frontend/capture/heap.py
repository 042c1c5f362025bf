"""What an evaluation can change: copied before an arm or a turn, put back for the next one, compared where they go on together."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# (values of an evaluation are Any by nature)

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lmc.frontend.capture.outside import ATOMS
from lmc.frontend.capture.values import Closure, Method, Object, Unknown
from lmc.frontend.emitter import Gathered, Scoped, Stored
from lmc.frontend.state import State, StateGroup

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Evaluation, Frame

MISSING = object()
_BOOKS = ("ctx", "ordinal", "forks", "calls", "role", "previous", "_value")
"""Attributes of a state that change as it goes on."""
Slot = tuple[Any, Any]
"""An object that holds something, and the key, index or attribute under which it does."""


class Heap:
    """Everything that a frame reaches and that can change, with what it held when this was made. Globals are read when they are first
    needed, so which names of them were read is no change."""

    def __init__(self, evaluation: Evaluation, frame: Frame) -> None:
        self.held: dict[int, tuple[Any, Any]] = {}
        todo: list[Any] = [evaluation.states, evaluation.lost, _variables(frame), tuple(evaluation._globals.values())]
        while todo:
            x = todo.pop()
            if id(x) in self.held or type(x) in ATOMS or isinstance(x, Unknown):
                continue
            todo.extend(self._take(x))

    def _take(self, x: Any) -> Iterator[Any]:
        """Copies what `x` holds, and gives what is to be looked at in it."""
        match x:
            case State():
                self.held[id(x)] = x, {name: getattr(x, name) for name in _BOOKS}
                yield from (x.variables, x.scopes, x._value)
            case dict():
                self.held[id(x)] = x, dict(x)
                yield from x.values()
            case list() | deque() | set():
                self.held[id(x)] = x, list(x)
                yield from x
            case tuple() | frozenset():
                yield from x
            case Object():
                yield x.attributes
            case StateGroup():
                yield x.states
            case Closure():
                yield x.attributes
                if x.outer is not None:
                    yield _variables(x.outer)
            case Method():
                yield from (x.receiver, x.function)
            case Stored():
                yield x.value
            case Gathered():
                yield from x.items
            case Scoped():
                self.held[id(x)] = x, {"until": x.until}
            case _:
                return

    def restore(self) -> None:
        """Puts everything back."""
        for x, held in self.held.values():
            match x:
                case State() | Scoped():
                    for name, value in held.items():
                        setattr(x, name, value)
                case dict() | set():
                    x.clear()
                    x.update(held)
                case _:
                    x.clear()
                    x.extend(held)

    def of(self, x: Any) -> Any:
        """What an object held; MISSING if it was not reached."""
        return self.held.get(id(x), (None, MISSING))[1]

    def changed(self, later: Heap) -> Iterator[Slot]:
        """Where another value is held later. Of lists whose length is another one and of sets, the whole (key MISSING)."""
        for x, held in self.held.values():
            now = later.of(x)
            if now is MISSING:
                continue
            if isinstance(held, dict):
                names: Mapping[Any, Any] = held
                for name in dict.fromkeys([*names, *now]):
                    if not same(names.get(name, MISSING), now.get(name, MISSING)):
                        yield x, name
            elif isinstance(x, set) or len(held) != len(now):
                if len(held) != len(now) or any(not same(a, b) for a, b in zip(held, now, strict=True)):
                    yield x, MISSING
            else:
                yield from ((x, i) for i, (a, b) in enumerate(zip(held, now, strict=True)) if not same(a, b))


def _variables(frame: Frame) -> list[Any]:
    """The names of a frame and of those around it."""
    found: list[Any] = []
    outer: Frame | None = frame
    while outer is not None:
        found.append(outer.vars)
        outer = outer.outer
    return found


def same(a: Any, b: Any) -> bool:
    """Whether two values are known to be one."""
    if a is b:
        return True
    if isinstance(a, Unknown) and isinstance(b, Unknown):
        return a.note is not None and a.note == b.note
    return type(a) is type(b) and type(a) in ATOMS and a == b and repr(a) == repr(b)


def get(slot: Slot, default: Any = MISSING) -> Any:
    """What is held there now."""
    x, key = slot
    if isinstance(x, State | Scoped):
        return getattr(x, key)
    if isinstance(x, dict):
        return x.get(key, default)
    return x[key]


def put(slot: Slot, value: Any) -> None:
    x, key = slot
    if isinstance(x, State | Scoped):
        setattr(x, key, value)
    else:
        x[key] = value
