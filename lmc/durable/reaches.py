"""Detection of a program's own functions: those that name lmc, or are passed a state. Their calls are recorded one by
one; a call of any other function as a whole."""

from __future__ import annotations

import asyncio
import dis
import functools
import linecache
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from lmc import codec, json_data
from lmc.code_origin import is_users
from lmc.errors import InDoubtEffect
from lmc.frontend.host import HostFunction
from lmc.frontend.source import codes

_DEPTH = 6
"""Depth to which fields are searched; containers and closures to any depth."""
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, types.FunctionType, types.MethodType, functools.partial})
_LANGUAGE = ("lmc.frontend.", "lmc.jit.", "lmc.runahead.")


def is_language(x: object) -> bool:
    """Return whether an object belongs to the language: a state, a group of forks, an expression, a program."""
    cls = x if isinstance(x, type) else type(x)
    return str(cls.__module__).startswith(_LANGUAGE) and cls.__module__ != HostFunction.__module__


def is_of_lmc(x: object) -> bool:
    """Return whether a function, class or module is a part of lmc."""
    module = x.__name__ if isinstance(x, types.ModuleType) else _module_of(x)
    return module == "lmc" or module.startswith("lmc.")


def looks_up(x: object) -> bool:
    """Return whether attributes of an object are looked up by code of the user's: a `__getattr__` or `__getattribute__`."""
    cls = type(x)
    return isinstance(getattr(cls, "__getattr__", None), types.FunctionType) or isinstance(cls.__getattribute__, types.FunctionType)


def attribute(x: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of an object as `getattr` does, but without running code of the user's."""
    if not looks_up(x):
        return getattr(x, name, default)
    try:
        return (type if isinstance(x, type) else object).__getattribute__(x, name)
    except AttributeError:
        return default


def _module_of(x: Any) -> str:
    """Return the name of the module in which a function or class is written: a wrapper's `__module__` may be another."""
    name = x.__globals__.get("__name__") if isinstance(x, types.FunctionType) else attribute(x, "__module__")
    return name if isinstance(name, str) else ""


def from_library(x: Any) -> bool:
    """Return whether a function or class is of an installed library or of Python itself, or a wrapper that a library
    has generated."""
    if isinstance(x, types.FunctionType) and hasattr(x, "__wrapped__") and (file := x.__code__.co_filename).startswith("<") and not linecache.getlines(file):
        return True
    module = sys.modules.get(_module_of(x))
    return module is not None and _is_library(module)


def _is_library(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None) or ""
    return module.__name__ != "__main__" and not (file and is_users(file))


def inside(x: Any) -> Iterator[Any]:
    """Yield the contents of an object: items, fields, closure cells, bound arguments. Not those of an event loop, which holds all that goes on: a lock or
    an event has it once a task has waited."""
    cls = type(x)
    if cls in (list, tuple, set, frozenset):
        yield from x
    elif isinstance(x, tuple):  # a named one
        yield from tuple.__iter__(x)  # pyright: ignore[reportUnknownArgumentType]
    elif cls is dict:
        yield from x.keys()
        yield from x.values()
    elif cls is types.FunctionType:
        for cell in x.__closure__ or ():
            yield from contents(cell)
        yield from (*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values())
    elif cls is types.MethodType:
        yield x.__self__
    elif cls is functools.partial:
        yield from (x.func, *x.args, *x.keywords.values())
    elif isinstance(x, BaseException):
        yield from x.args
    elif not isinstance(x, type | types.ModuleType | asyncio.AbstractEventLoop) and cls.__module__ not in ("builtins", "re") and not is_of_lmc(cls):
        fields = attribute(x, "__dict__")
        if type(fields) is dict:
            yield from fields.values()
        for name in slots_of(cls):
            try:
                yield object.__getattribute__(x, name)
            except AttributeError:  # not assigned
                continue


def walk(values: Iterable[Any], held: Callable[[Any], Iterable[Any]] = inside, depth: int = sys.maxsize, through: Collection[type] = ()) -> Iterator[Any]:
    """Yield values and, up to a depth, in which what is in `through` does not count, what they hold, each object once, the last first; no text, number or
    None."""
    left, seen = [(x, depth) for x in values if type(x) not in json_data.PLAIN], set[int]()
    while left:
        x, more = left.pop()
        if id(x) not in seen:
            seen.add(id(x))
            yield x
            less = more if type(x) in through else more - 1
            left += [(item, less) for item in held(x) if type(item) not in json_data.PLAIN] if more else ()


@functools.lru_cache(4096)
def slots_of(cls: type) -> tuple[str, ...]:
    """Return the names of the fields that a class has as `__slots__`."""
    return tuple(name for name, _ in codec.slot_members(cls) if not name.endswith("__"))


def contents(cell: types.CellType) -> tuple[Any, ...]:
    """Return what a cell of a closure holds: nothing before it is assigned to."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def holds_language(x: Any) -> bool:
    """Return whether an object contains a state, expression or program: through containers, and through fields up to a
    depth."""
    return any(map(is_language, walk([x], depth=_DEPTH, through=_CONTAINERS)))


def reaches(values: Iterable[Any]) -> bool:
    """Return whether a call's arguments contain anything of the language, or a function of the program's own."""
    return any(holds_language(x) or (isinstance(x, types.FunctionType) and names_language(x)) for x in values)


def names_language(fn: types.FunctionType, seen: set[int] | None = None) -> bool:
    """Return whether a function's code names lmc's primitives or, transitively, a function or class that does. A
    library's names none, but may be a wrapper of one that does."""
    seen = set() if seen is None else seen
    if id(fn) in seen:
        return False
    seen.add(id(fn))
    for name in () if from_library(fn) else _globals_in(fn.__code__):
        value = fn.__globals__.get(name)
        if isinstance(value, types.ModuleType) and not is_of_lmc(value) and not _is_library(value):
            if any(_names(vars(value).get(n), seen) for n in _names_in(fn.__code__)):
                return True
        elif value is not None and _names(value, seen):
            return True
    return any(_names(x, seen) for x in inside(fn) if isinstance(x, types.FunctionType | type) or is_language(x))


def names_doubt(fn: types.FunctionType) -> bool:
    """Return whether a function's code names InDoubtEffect, by whatever name, also in a tuple of exceptions, or was given it by a decorator or a default."""
    names = _names_in(fn.__code__)
    found = [*map(fn.__globals__.get, names), *inside(fn)]
    return InDoubtEffect.__name__ in names or any(x is InDoubtEffect or (type(x) is tuple and any(y is InDoubtEffect for y in x)) for x in found)


@functools.lru_cache(maxsize=4096)
def _globals_in(code: types.CodeType) -> frozenset[str]:
    """Return the names of the module that a function's code reads; an attribute may have the name of something else there."""
    return frozenset(x.argval for inner in codes(code) for x in dis.get_instructions(inner) if x.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")))


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> frozenset[str]:
    return frozenset(name for inner in codes(code) for name in inner.co_names)


def _names(value: Any, seen: set[int]) -> bool:
    if isinstance(value, HostFunction):
        return False
    if isinstance(value, types.ModuleType):
        return is_of_lmc(value)
    if is_language(value) or (callable(value) and is_of_lmc(value)):
        return True
    if isinstance(value, types.FunctionType):
        return names_language(value, seen)
    return isinstance(value, type) and class_names_language(value, seen)


def class_names_language(cls: type, seen: set[int] | None = None) -> bool:
    """Return whether a method of a class reaches the language."""
    seen = set() if seen is None else seen
    if cls.__module__ == "builtins" or id(cls) in seen or from_library(cls):
        return False
    seen.add(id(cls))
    methods = [getattr(member, "__func__", member) for base in cls.__mro__[:-1] for member in vars(base).values()]
    return any(isinstance(fn, types.FunctionType) and names_language(fn, seen) for fn in methods)
