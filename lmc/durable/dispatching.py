"""Functions that `functools.singledispatch` and `singledispatchmethod` make: what they call by the type of an argument is what is called."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Sequence
from typing import Any

from lmc.durable.reaches import attribute, contents


def is_dispatching(fn: Any) -> bool:
    """Return whether a function is one of these."""
    return fn.__code__ in _DISPATCHING if type(fn) is types.FunctionType else type(fn) is _METHOD


def implementation(fn: Any, args: Sequence[Any]) -> Any:
    """Return what one of them calls for these arguments."""
    if type(fn) is types.FunctionType:
        held = dict(zip(fn.__code__.co_freevars, itertools.chain(*map(contents, fn.__closure__ or ())), strict=True))
    else:
        held = {name: attribute(fn, f"_{name}") for name in ("dispatch", "obj", "cls")}
    dispatch = held["dispatch"] if "dispatch" in held else held["self"].dispatcher.dispatch  # the latter up to Python 3.12
    found = dispatch(args[0].__class__)
    return found.__get__(held["obj"], held["cls"]) if "obj" in held else found


class _Dispatches:
    @functools.singledispatchmethod
    def by_type(self, x: Any) -> None: ...


_METHOD = type(_Dispatches().by_type)
"""A class of its own from Python 3.14 on."""
_DISPATCHING = frozenset(attribute(fn, "__code__") for fn in (functools.singledispatch(lambda x: x), _Dispatches().by_type))
