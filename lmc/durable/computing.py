"""Detection of functions that only compute: a journaled run goes into those that make objects of the user's classes, and
into methods of the objects that it has made. So objects need not be data, and one that two of them hold stays one."""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import inspect
import logging
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from lmc import codec
from lmc.durable.reaches import from_library, is_language
from lmc.frontend.source import codes

_CONSTANTS = (str, int, float, complex, bool, bytes, type(None), type(Ellipsis), frozenset, range, enum.Enum, re.Pattern, typing.TypeVar, logging.Logger)
"""Types of outside variables that code may read. What it logs is logged again."""
_MEMBERS = (types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType, types.GetSetDescriptorType)
_METHODS_OF_DATA = frozenset(name for cls in (*codec.DATA, re.Match, re.Pattern) for name in dir(cls))


@dataclass
class ComputingSearch:
    """Whether code calls, by name, only what computes, and reads no outside variable that can change.

    computes  whether a callable does; functions of the user's of which it is not known are searched
    cls       class whose members the code's attributes may be
    known     whether methods of other objects, which are inspected when they are called, must be such of data
    made      whether the code makes objects of the user's classes, or of those in `kept`
    coroutines  whether making a coroutine computes: the code is called, and what it gives is not awaited
    """

    computes: Callable[[Any], bool]
    cls: type = object
    known: bool = False
    made: bool = False
    kept: frozenset[type] = frozenset()
    coroutines: bool = False
    _seen: set[types.FunctionType] = field(default_factory=set[types.FunctionType])

    def only_computes(self, fn: types.FunctionType) -> bool:
        if fn in self._seen or (self.coroutines and inspect.iscoroutinefunction(fn)):
            return True
        self._seen.add(fn)
        names = _names(fn.__code__)
        if names.rebinds or set(fn.__code__.co_freevars) - {"__class__"}:
            return False
        values = {name: fn.__globals__.get(name, getattr(builtins, name, None)) for name in names.variables}
        of_modules = [x for path in names.paths for x in _of_modules(values[path[0]], path[1:], names.attributes)]
        return (
            all(map(self._value, values.values()))
            and all(not callable(x) or self._value(x) for x in of_modules)
            and all(map(self._member, names.attributes))
            and (not self.known or all(self._is_known(path[-1], values[path[0]] if path[1:] else None, of_modules) for path in names.methods))
        )

    def _is_known(self, name: str, of: Any, of_modules: list[Any]) -> bool:
        if isinstance(of, logging.Logger) and hasattr(logging.Logger, name):
            return True
        return name in _METHODS_OF_DATA or hasattr(self.cls, name) or any(getattr(x, "__name__", None) == name for x in of_modules)

    def _member(self, name: str) -> bool:
        """Return whether a member of the class, if there is one, only computes, or is a constant."""
        found = next((vars(base)[name] for base in self.cls.__mro__ if name in vars(base)), None)
        functions = [found.fget, found.fset] if isinstance(found, property) else [getattr(found, "__func__", getattr(found, "func", found))]
        if hasattr(type(found), "__set__") and not from_library(type(found)):  # a descriptor of the user's
            functions = [getattr(type(found), name, None) for name in ("__get__", "__set__", "__delete__")]
        return all(self.only_computes(f) if isinstance(f, types.FunctionType) else _is_constant(f) or isinstance(f, _MEMBERS) for f in functions)

    def _value(self, x: Any) -> bool:
        if isinstance(x, types.ModuleType) or is_language(x) or _is_constant(x):
            return True
        self.made = self.made or (isinstance(x, type) and (x in self.kept or not from_library(x)))
        return callable(x) and (self.computes(x) or (isinstance(x, types.FunctionType) and not from_library(x) and self.only_computes(x)))


def _of_modules(x: Any, path: tuple[str, ...], attributes: set[str]) -> Iterator[Any]:
    """Yield what a dotted name says of modules; of one that it ends at, which may have another name from there on, whatever of it the code may name."""
    for name in path:
        if not isinstance(x, types.ModuleType) or name not in vars(x):
            return
        x = vars(x)[name]
        yield x
    if isinstance(x, types.ModuleType):
        yield from (vars(x)[name] for name in attributes if name in vars(x))


def _is_constant(x: Any) -> bool:
    return isinstance(x, _CONSTANTS) or (type(x) is tuple and all(map(_is_constant, x)))


@dataclass
class _Names:
    """Outside variables of code, with the attributes that it reads of them (`os.path.join`); all its attributes, the methods that it calls, behind what they
    are of if that is an outside variable (`LOGGER.info`), and whether it rebinds outside variables."""

    variables: set[str] = field(default_factory=set[str])
    paths: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    attributes: set[str] = field(default_factory=set[str])
    methods: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    rebinds: bool = False


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> _Names:
    found, path = _Names(), ()
    for step in chain.from_iterable(map(dis.get_instructions, codes(code))):
        if step.opname == "EXTENDED_ARG":
            continue
        before, path = path, ()
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.variables.add(step.argval)
            path = (step.argval,)
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found.rebinds = True
        elif step.opcode in dis.hasname:
            found.attributes.add(step.argval)
            path = (*before, step.argval) if before else ()
            if step.opname == "LOAD_METHOD" or "NULL|self" in step.argrepr.split():  # from CPython 3.12 on
                found.methods.add(path or (step.argval,))
        if before and len(path) <= len(before):
            found.paths.add(before)
    return found


def returns_functions(code: types.CodeType) -> bool:
    """Return whether code gives functions that it defines, and nothing else, as a factory of decorators does."""
    inner = {x.co_name for x in code.co_consts if isinstance(x, types.CodeType)}
    ends = [before for before, step in pairwise(dis.get_instructions(code)) if step.opname.startswith("RETURN_") and step.opname != "RETURN_GENERATOR"]
    return bool(ends) and all(x.opname in _DEFINES or (x.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and x.argval in inner) for x in ends)


_DEFINES = ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE")
