"""Twins of the program's own functions and classes: called in their place, with the calls that they make recorded.

`callee`, in all of these, gives the replacement of a function in a call (recorder.py).
"""

from __future__ import annotations

import dataclasses
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from lmc.durable.computing import ComputingSearch
from lmc.durable.effects import called_by_python, computes
from lmc.durable.instrument import instrument, is_instrumented, twin
from lmc.durable.library import KEPT, MANAGERS
from lmc.durable.reaches import contents, from_library, is_of_lmc, names_doubt
from lmc.durable.run import RunJournal
from lmc.errors import JournalError

Callee = Callable[[Any], Any]

_with_members, _with_methods = weakref.WeakSet[type](), weakref.WeakSet[type]()
"""Classes of the user's whose members that Python calls by itself are instrumented, and those with all their methods."""


def own(journal: RunJournal, callee: Callee, fn: Any) -> Any:
    """Return the replacement of a function, method, class or callable object of the program's own."""
    if isinstance(fn, types.FunctionType):
        manager = MANAGERS.get(fn.__code__)
        return twin_of(journal, fn) if manager is None else manager(twin_of(journal, fn.__wrapped__))  # type: ignore[attr-defined]
    if isinstance(fn, types.MethodType):
        return types.MethodType(twin_of(journal, fn.__func__), fn.__self__)
    return _constructor(journal, callee, fn) if isinstance(fn, type) else types.MethodType(twin_of(journal, type(fn).__call__), fn)


def twin_of(journal: RunJournal, fn: Any) -> types.FunctionType:
    """Return a function of the program's own with its calls recorded."""
    journal.handles_doubts = journal.handles_doubts or names_doubt(fn)
    return fn if is_instrumented(fn.__code__) else twin(fn, journal.deciding)


def instrument_members(journal: RunJournal, cls: type) -> None:
    """Instrument what Python calls by itself of a class, in place: no call of the program's could be replaced by a
    twin. Raises JournalError if there is no source, unless it only computes."""
    if cls in _with_members or from_library(cls):
        return
    for fn in called_by_python(cls):
        try:
            instrument(fn, journal.deciding)
        except JournalError:
            if not ComputingSearch(computes, cls).only_computes(fn):
                raise
    _with_members.add(cls)


def instrument_methods(journal: RunJournal, cls: type) -> None:
    """Instrument all methods of a class of the user's, in place: uninstrumented code calls some of them by their names."""
    instrument_members(journal, cls)
    if cls in _with_methods:
        return
    members = [getattr(member, "__func__", member) for base in cls.__mro__ if not (from_library(base) or is_of_lmc(base)) for member in vars(base).values()]
    for fn in members:
        if isinstance(fn, types.FunctionType) and not from_library(fn) and not fn.__code__.co_filename.startswith("<"):
            instrument(fn, journal.deciding)
    _with_methods.add(cls)


def _constructor(journal: RunJournal, callee: Callee, cls: type) -> Callable[..., Any]:
    """Return a function that makes instances of a class as `type` does, with its `__init__` instrumented."""
    instrument_members(journal, cls)
    init, new = cls.__init__, cls.__new__
    if isinstance(new, types.FunctionType) and not from_library(new) and not new.__code__.co_filename.startswith("<"):
        new = twin_of(journal, new)

    def make(*args: Any, **kwargs: Any) -> Any:
        if type(cls).__call__ is not type.__call__:
            return cls(*args, **kwargs)
        instance = object.__new__(cls) if new is object.__new__ and cls.__init__ is not object.__init__ else new(cls, *args, **kwargs)
        if cls not in type(instance).__mro__:
            return instance
        journal.effects.keep(instance)
        if isinstance(instance, threading.Thread) and from_library(init):
            callee(types.MethodType(init, instance))(*args, **kwargs)
        elif not isinstance(init, types.FunctionType) or from_library(init):
            init(instance, *args, **kwargs)
        elif not init.__code__.co_filename.startswith("<"):
            twin_of(journal, init)(instance, *args, **kwargs)
        else:
            _generated(callee, init, cls)(instance, *args, **kwargs)
        return instance

    return make


def _generated(callee: Callee, init: types.FunctionType, cls: Any) -> Callable[..., None]:
    """Return the `__init__` that Python has generated for a dataclass with the calls of its default factories recorded."""
    factories = [f.default_factory for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    look = lambda x: callee(x) if any(x is factory for factory in factories) and not _only_makes_data(x) else x
    closure = [types.CellType(*map(look, contents(cell))) for cell in init.__closure__ or ()]
    made = types.FunctionType(init.__code__, init.__globals__, init.__name__, init.__defaults__, tuple(closure))
    made.__kwdefaults__ = init.__kwdefaults__
    return made


def _only_makes_data(fn: Any) -> bool:
    search = ComputingSearch(computes, kept=KEPT)
    return isinstance(fn, types.FunctionType) and search.only_computes(fn) and not search.made
