"""Instrumented code: how it is told from other code, and what is known of it and of the variables that it shares."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Mapping, Sequence

from lmc.frontend.source import codes

HOOKS_NAME = "__lmc__"
"""The variable by which instrumented code knows its hooks."""

guarding: set[types.CodeType] = set()
"""Code of context managers whose `try` or `with` is around their `yield`."""

cleaning: set[types.CodeType] = set()
"""Code of other generator functions of which that is true: what it does at their end comes when Python chooses, if nobody runs them to it."""

_around: dict[types.CodeType, types.CodeType | None] = {}
"""Instrumented code, inner functions included, and the code of the function around it."""


def remember(code: types.CodeType, around: types.CodeType | None = None) -> None:
    """Code was instrumented; `around` is the code of the function that it stands in, if that was too."""
    _around[code] = around
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            remember(inner, code)


def is_instrumented(fn: types.FunctionType | types.CodeType) -> bool:
    """Whether a function's code went through here, by itself or inside of another function."""
    code = fn if isinstance(fn, types.CodeType) else fn.__code__
    return HOOKS_NAME in code.co_freevars or code in _around


def awaits(code: types.CodeType) -> bool:
    """Whether instrumented code may wait for anything but answers, that of its inner functions included."""
    return not all(_AWAITING.isdisjoint(inner.co_names) for inner in codes(code))


_AWAITING = frozenset({"awaited", "aiter", "aenter"})
"""Hooks of what may wait."""


# -- variables of closures -----------------------------------------------------------------------------------------


def stays(code: types.CodeType, name: str) -> bool:
    """Whether a variable that instrumented code closes over keeps what it has: no code ever stores it again."""
    owner = _around.get(code)
    while owner is not None and name not in owner.co_cellvars:
        owner = _around.get(owner)
    if owner is None or any(_stores(inner, name) for inner in codes(owner) if name in inner.co_freevars):
        return False
    arguments = owner.co_argcount + owner.co_kwonlyargcount + bool(owner.co_flags & inspect.CO_VARARGS) + bool(owner.co_flags & inspect.CO_VARKEYWORDS)
    stores = _stores(owner, name)
    if len(stores) + (name in owner.co_varnames[:arguments]) != 1:
        return False
    loops = [(i.argval, i.offset) for i in dis.get_instructions(owner) if "JUMP_BACKWARD" in i.opname]
    return not any(first <= at <= last for at in stores for first, last in loops)


def rebinds(code: types.CodeType, name: str) -> bool:
    """Whether a function, or one inside of it, stores a variable that it closes over."""
    return any(_stores(inner, name) for inner in codes(code) if name in inner.co_freevars)


def _stores(code: types.CodeType, name: str) -> Sequence[int]:
    """Where code stores or deletes a variable that is shared with inner functions."""
    return _all_stores(code).get(name, ())


@functools.lru_cache(maxsize=4096)
def _all_stores(code: types.CodeType) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = {}
    for i in dis.get_instructions(code):
        if i.opname in ("STORE_DEREF", "DELETE_DEREF"):
            found.setdefault(i.argval, []).append(i.offset)
    return found
