"""Exceptions and the objects in them, made again without running code of a program, and what stands for parts that are no data."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from lmc.errors import JournalError


class Lost:
    """Stands for a part of an exception that is no data. Whatever is done with it, but `is`, raises JournalError: it would be something else than it was.

    kind  name of its class
    """

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def _refuse(self, *_: Any) -> Any:
        raise JournalError(f"a part of an exception, a {self.kind}, is no data, and so not in the journal; read it in a function of your own that catches the "
                           "exception, and let that return what is needed of it")  # fmt: skip

    __getattr__ = __str__ = __repr__ = __format__ = __bool__ = __eq__ = __hash__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse  # type: ignore[assignment]
    __iter__ = __len__ = __contains__ = __getitem__ = __call__ = __int__ = __float__ = __index__ = __add__ = __radd__ = _refuse


def made(cls: Any, args: Iterable[Any]) -> Any:
    """Make an exception of a class, as yet without attributes."""
    base: Any = next(c for c in cls.__mro__ if c.__module__ == "builtins")  # its constructor runs no code of a program
    values = tuple(args)
    error = base.__new__(cls, *values)
    base.__init__(error, *values)
    return error


def set_attribute(x: Any, name: str, value: Any) -> None:
    """Set an attribute of an exception, or of another object, without a property or a descriptor that its class has for it."""
    holder = next((vars(c)[name] for c in type(x).__mro__ if name in vars(c)), None)
    if isinstance(holder, types.MemberDescriptorType):
        holder.__set__(x, value)
    else:
        x.__dict__[name] = value


def is_simple(cls: type) -> bool:
    """Return whether the objects of a class are their attributes and nothing else, as pickle too would take them."""
    return (
        all(getattr(cls, name, None) is getattr(object, name, None) for name in _OF_OBJECT)
        and cls.__dictoffset__ != 0
        and not any(isinstance(member, types.MemberDescriptorType) for base in cls.__mro__ for member in vars(base).values())
    )


_OF_OBJECT = (
    "__new__", "__getattribute__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__del__",
)  # fmt: skip
