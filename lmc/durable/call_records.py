"""How a call is known in a journal: its name, checksums of its arguments, and what people are shown of them.

Nothing here calls code of a program: an object that is no data is its class.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from lmc import codec, json_data
from lmc.durable import mutations
from lmc.durable.changes import steadily
from lmc.durable.deferred import DeferredAwaitable
from lmc.durable.iterators import SharedIterator
from lmc.durable.reaches import attribute
from lmc.errors import Loc
from lmc.frontend.expressions import an
from lmc.frontend.host import HostFunction


def name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = attribute(fn, "__qualname__") or attribute(fn, "name") or type(fn).__qualname__
    return str(name).replace("<locals>.", "")


def a_result(cls: str) -> str:
    """Return a result of which only the class is known, as messages call it."""
    return "None" if cls == "NoneType" else an(cls)


def awaited_call(awaitable: Any) -> tuple[str, Sequence[Any], Mapping[str, Any]]:
    """Return the call that an awaitable which was never awaited represents: name and arguments."""
    if isinstance(awaitable, DeferredAwaitable):
        return awaitable.of
    held = inspect.getcoroutinelocals(awaitable) if isinstance(awaitable, types.CoroutineType) else {}
    if isinstance(awaitable, types.CoroutineType) and awaitable.cr_code in _CALLING and "args" in held:
        return name_of(held.get("func", awaitable)), held["args"], held["kwargs"]
    return name_of(awaitable), (), held


_CALLING = frozenset({HostFunction.awaited.__code__, asyncio.to_thread.__code__})
"""Code of coroutines that call a function passed to them."""


def arguments_digest(args: Sequence[Any], kwargs: Mapping[str, Any], changeable: list[Any]) -> int:
    """Return a checksum of a call's arguments, but for the contents of what can change, which is added to `changeable`."""
    return crc32(json_data.to_bytes([*[_fixed(x, changeable) for x in args], [[k, _fixed(v, changeable)] for k, v in kwargs.items()]]))


def _fixed(x: Any, changeable: list[Any]) -> Any:
    if json_data.is_plain(x):
        return x
    if mutations.can_change(x):
        changeable.append(x)
        return {codec.TAG: ["object", class_of(x)]}
    if isinstance(x, tuple):
        return [class_of(x), *[_fixed(item, changeable) for item in tuple.__iter__(x)]]
    if dataclasses.is_dataclass(x) and not isinstance(x, type):  # a frozen one
        return [class_of(x), *[_fixed(value, changeable) for _, value in mutations.fields_of(x)]]
    return data_or_class(x)


def contents_digest(x: Any) -> int:
    """Return a checksum of the contents of what can change."""
    return steadily(lambda: crc32(json_data.to_bytes(data_or_class(x))))


def data_or_class(x: Any) -> Any:
    """Return a value as data; for non-data, its class."""
    if type(x) in (set, frozenset) and all(type(item) in _ATOMS for item in x):
        return sorted(map(repr, x))  # their order is per process
    try:
        return codec.encode(x)
    except codec.NotData:
        return {codec.TAG: ["object", class_of(x)]}


def class_of(x: Any) -> str:
    """Return the class of an object, also of one that has a stand-in."""
    return x.kind if isinstance(x, DeferredAwaitable) else type(x.items if isinstance(x, SharedIterator) else x).__qualname__


class ReachedCall(NamedTuple):
    """A call that a program makes.

    stream   of the program;  loc  where it makes it
    ordered  whether it is made where the program makes it, not ahead of order
    task     number of the task that makes it; None: of the one that runs here
    """

    stream: str
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    loc: Loc | None
    ordered: bool = False
    task: int | None = None

    @property
    def shown(self) -> str:
        """Return its arguments, for people."""
        return shown_call(self.args, self.kwargs)


def shown_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a call's arguments, for people."""
    text = ", ".join([*[_short(a) for a in args], *[f"{k}={_short(v)}" for k, v in kwargs.items()]])
    return text if len(text) <= 120 else text[:117] + "…"


def _short(x: Any) -> str:
    if type(x) is str and len(x) > 80:
        return repr(x[:77] + "…")
    return _repr(x) if type(x) in _ATOMS else f"{_repr(x):.80}"


def _repr(x: Any) -> str:
    """Return a repr, but never by calling `__repr__` of a host object, which could do anything."""
    try:
        if type(x) in _ATOMS or (type(x) in (list, tuple, dict, set) and codec.encode(x) is not None):
            return repr(x)
    except (codec.NotData, ValueError):  # a number with more digits than Python prints
        pass
    return f"<{class_of(x)}>"


_ATOMS = (str, int, float, bool, bytes, type(None))
