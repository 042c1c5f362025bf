"""The mutable state of an evaluation: copied before an arm or a turn, restored for the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import ItemsView, Iterator, KeysView
from typing import Any

from lmc.frontend.active import TaskOfRun
from lmc.frontend.capture.code import Evaluator, Frame
from lmc.frontend.capture.outside import ATOMS
from lmc.frontend.capture.unknown import MISSING, Unknown
from lmc.frontend.capture.values import BoundMethod, Closure, Object
from lmc.frontend.emitter import GatheredAnswers, Scoped, Stored
from lmc.frontend.state import State, StateGroup

_NUMBERS = ("forks", "calls", "tasks")
_BOOKS = ("ctx", "ordinal", *_NUMBERS, "role", "previous", "types", "scopes", "_value")
"""Attributes of a state that change as it goes on; those of a task."""


class Heap:
    """All mutable objects that a frame reaches, with their contents when this was made."""

    def __init__(self, evaluation: Evaluator, frame: Frame) -> None:
        self.held: dict[int, tuple[Any, Any]] = {}
        todo: list[Any] = [evaluation.states, evaluation.lost, [each.vars for each in frame.around()], tuple(evaluation.globals.values())]
        todo += evaluation.made_tasks
        while todo:
            x = todo.pop()
            if id(x) in self.held or type(x) in ATOMS or isinstance(x, Unknown):
                continue
            todo.extend(self._take(x))

    def _take(self, x: Any) -> Iterator[Any]:
        """Copy the contents of `x`, and yield the objects to visit in it."""
        match x:
            case State():
                self.held[id(x)] = x, {name: getattr(x, name) for name in _BOOKS}
                yield from (x.variables, *x.scopes.values(), x._value)
            case TaskOfRun():
                self.held[id(x)] = x, {name: getattr(x, name) for name in _NUMBERS}
            case dict():
                self.held[id(x)] = x, dict(x)
                yield from x.values()
            case list() | deque() | set():
                self.held[id(x)] = x, list(x)
                yield from x
            case tuple() | frozenset() | KeysView() | ItemsView():
                yield from x
            case Object():
                yield x.attributes
            case StateGroup():
                yield x.states
            case Closure():
                yield x.attributes
                if x.outer is not None:
                    yield [each.vars for each in x.outer.around()]
            case BoundMethod():
                yield from (x.receiver, x.function)
            case Stored():
                yield x.value
            case GatheredAnswers():
                yield from x.items
            case Scoped():
                self.held[id(x)] = x, {"until": x.until}
            case _:
                return

    def restore(self) -> None:
        """Restore everything."""
        for x, held in self.held.values():
            match x:
                case State() | TaskOfRun() | Scoped():
                    for name, value in held.items():
                        setattr(x, name, value)
                case dict() | set():
                    x.clear()
                    x.update(held)
                case _:
                    x.clear()
                    x.extend(held)

    def of(self, x: Any) -> Any:
        """Return the saved contents of an object; MISSING if it was not reached."""
        return self.held.get(id(x), (None, MISSING))[1]
