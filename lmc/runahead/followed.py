"""Sub-programs that earlier evaluations of a run have followed: called again at the same address with equal arguments, one makes the same requests.

One is kept if all that it did was to append, to make certain requests and to read answers: nothing around it changed, and what it leaves is immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from lmc.frontend.capture.code import Evaluator
from lmc.frontend.capture.unknown import Unknown
from lmc.frontend.state import State

_BOOKS = ("ctx", "ordinal", "forks", "calls", "tasks", "role", "previous", "types", "scopes")
_PLAIN = (str, int, float, bool, bytes, type(None))
Step = Callable[[Evaluator, bool], bool]
"""A request or a read: `step(ev, False)` says whether it would be the same in this evaluation, `step(ev, True)` does it."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An answer in an evaluation: its address, and its result if it was requested."""

    address: Any
    result: Any


@dataclass(frozen=True, slots=True)
class FollowedProgram:
    """What a sub-program was given, what it did, and its state and value afterwards."""

    fn: Any
    given: Hashable
    steps: Sequence[Step]
    state: Sequence[Any]
    variables: dict[str | None, Any]
    asked: Sequence[Any]
    value: Any


class FollowedPrograms:
    """What one evaluation knows of them, and adds to it.

    kept   those of the run, by their streams
    steps  of the one that is followed now, None for what cannot be repeated; None: none is
    """

    def __init__(self, kept: dict[str, FollowedProgram]) -> None:
        self.kept = kept
        self.steps: list[Step | None] | None = None

    def note(self, step: Step | None) -> None:
        if self.steps is not None:
            self.steps.append(step)

    def follow(self, ev: Evaluator, fn: Any, state: State, given: Any, evaluate: Callable[[], Any]) -> Any:
        """Return the value of a sub-program, by `evaluate` unless it was followed before."""
        if not ev.certain or ev.shifted or ev.exploring or ev.tries or (data := _plain(ev, given)) is None:
            self.note(None)
            return evaluate()
        key, around = (data, len(ev.snapshot.changed)), _around(ev)
        known = self.kept.get(state.stream)
        if known is not None and known.fn is fn and known.given == key and all(step(ev, False) for step in known.steps):
            for step in known.steps:
                step(ev, True)
                self.note(step)
            for name, x in zip(_BOOKS, known.state, strict=True):
                setattr(state, name, x)
            state.variables.update(known.variables)
            state.asked += known.asked
            return known.value
        outer, self.steps = self.steps, []
        try:
            value = evaluate()
            kept = None not in self.steps and ev.certain and not ev.shifted and around == _around(ev) and data == _plain(ev, given)
            if kept and all(_is_final(x) for x in (value, *state.variables.values(), *state.asked)):
                books, steps = [getattr(state, name) for name in _BOOKS], [*filter(None, self.steps)]
                self.kept[state.stream] = FollowedProgram(fn, key, steps, books, dict(state.variables), [*state.asked], value)
            return value
        finally:
            steps, self.steps = self.steps, outer
            for step in steps:
                self.note(step)


def _around(ev: Evaluator) -> Hashable:
    """Return the size of what a sub-program adds to if it does more than to append, to request and to read."""
    return tuple(map(len, (ev.snapshot.changed, ev.lost, ev.risks, ev.made_tasks, ev.tasks, ev.generators, ev.forked)))


def _is_final(x: Any) -> bool:
    return type(x) in _PLAIN or isinstance(x, Pending) or (isinstance(x, Unknown) and x.deps is not None)


def _plain(ev: Evaluator, x: Any) -> Hashable | None:
    """Return what equal data have in common; None for what is not data."""
    kind = type(x)
    if kind in _PLAIN:
        return kind, x
    if isinstance(x, Unknown):
        return kind, x.deps, x.begins, x.some
    if kind not in (list, tuple, dict) or ev.is_lost(x):
        return None
    parts = [_plain(ev, item) for item in ((*x, *x.values()) if kind is dict else x)]
    return None if None in parts else (kind, *parts)
