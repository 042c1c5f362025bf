"""Functions that `functools.singledispatch` and `singledispatchmethod` make: what they call by the type of an argument is what is called."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Sequence
from typing import Any

from lmc.durable.reaches import attribute, contents


def is_dispatching(fn: types.FunctionType) -> bool:
    """Return whether a function is one of these."""
    return fn.__code__ in _DISPATCHING


def implementation(fn: types.FunctionType, args: Sequence[Any]) -> Any:
    """Return what one of them calls for these arguments."""
    held = dict(zip(fn.__code__.co_freevars, itertools.chain(*map(contents, fn.__closure__ or ())), strict=True))
    dispatch = held["dispatch"] if "dispatch" in held else held["self"].dispatcher.dispatch  # the latter up to Python 3.11
    found = dispatch(type(args[0]))
    return found.__get__(held["obj"], held["cls"]) if "obj" in held else found


class _Dispatches:
    @functools.singledispatchmethod
    def by_type(self, x: Any) -> None: ...


_DISPATCHING = frozenset(attribute(fn, "__code__") for fn in (functools.singledispatch(lambda x: x), _Dispatches().by_type))
