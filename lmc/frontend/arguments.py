"""The arguments of a run as a list of values, and back: what a trace takes as parameters.

A parameter of the program is one value. `*args` is one for each item, and `**kwargs` one for each of its names, in order:
how many there are, and what they are called, belongs to the trace; what they hold does not.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (arguments are Any by nature)

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any


class Parameters:
    """The parameters of a program behind its state."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature
        self._state, *self._own = signature.parameters.values()
        self.open = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in self._own)
        """Whether calls may differ in how many arguments they have."""
        self._fixed = tuple(p.name for p in self._own)

    def complete(self, bound: inspect.BoundArguments) -> None:
        """Applies the defaults of what a call does not give."""
        if len(bound.arguments) <= len(self._own):
            bound.apply_defaults()

    def values(self, bound: inspect.BoundArguments) -> list[Any]:
        """What a call gives, defaults applied, one by one."""
        given = bound.arguments
        if not self.open:
            return list(given.values())[1:]
        return [value for p in self._own for value in _spread(p, given[p.name])]

    def names(self, bound: inspect.BoundArguments) -> tuple[str, ...]:
        """The names of `values`: `args.0` for an item of `*args`, `kwargs.k` for a name of `**kwargs`."""
        if not self.open:
            return self._fixed
        return tuple(name for p in self._own for name in _names(p, bound.arguments[p.name]))

    def shape(self, bound: inspect.BoundArguments) -> tuple[str, ...]:
        """What tells the calls apart that differ in more than values; empty for a program without star parameters."""
        if not self.open:
            return ()
        stars = [(p, bound.arguments[p.name]) for p in self._own]
        return tuple(x for p, given in stars for x in (
            ("*", str(len(given))) if p.kind is p.VAR_POSITIONAL else ("**", *given) if p.kind is p.VAR_KEYWORD else ()))  # fmt: skip

    def filled(self, bound: inspect.BoundArguments, values: Iterable[Any]) -> inspect.BoundArguments:
        """A call of the shape of `bound` with other values."""
        rest = iter(values)
        given = {self._state.name: None, **{p.name: _gathered(p, bound.arguments[p.name], rest) for p in self._own}}
        return inspect.BoundArguments(self.signature, given)  # type: ignore[arg-type]  # a dict is ordered


def _spread(p: inspect.Parameter, given: Any) -> Iterable[Any]:
    return given if p.kind is p.VAR_POSITIONAL else given.values() if p.kind is p.VAR_KEYWORD else (given,)


def _names(p: inspect.Parameter, given: Any) -> Iterable[str]:
    if p.kind is p.VAR_POSITIONAL:
        return [f"{p.name}.{i}" for i in range(len(given))]
    if p.kind is p.VAR_KEYWORD:
        return [f"{p.name}.{key if key.isidentifier() else i}" for i, key in enumerate(given)]
    return [p.name]


def _gathered(p: inspect.Parameter, given: Any, rest: Iterator[Any]) -> Any:
    if p.kind is p.VAR_POSITIONAL:
        return tuple([next(rest) for _ in given])
    if p.kind is p.VAR_KEYWORD:
        return {key: next(rest) for key in given}
    return next(rest)
