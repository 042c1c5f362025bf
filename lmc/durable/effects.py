"""Classification of a program's calls: effects, which are recorded under a name and checksum, and others, which are
made again.

Made again: computations on the run's own values (methods of text, lists, dicts and the like, Python functions that only
compute, functions marked `lmc.pure`), constructors of exceptions, data and coroutines, and entering and leaving a
`with`.
"""

from __future__ import annotations

import abc
import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import inspect
import logging
import operator
import pathlib
import threading
import types
import typing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lmc.durable.computing import ComputingSearch
from lmc.durable.instrument import is_instrumented
from lmc.durable.iterators import LAZY
from lmc.durable.library import (
    BEGINS_TASKS,
    BUILTINS,
    CACHED,
    CALL_BACK,
    CALL_LATER,
    CHANGE_NOTHING,
    COMPUTE,
    DESCRIPTORS,
    IN_MEMORY,
    LOOKING,
    MADE_AGAIN,
    MANAGERS,
    MANAGING,
    OUTSIDE,
    OWN_DATA,
    PICKLES,
    RANDOM,
    TURNS,
    crosses_processes,
    is_element,
    is_of_numpy,
    only_computes,
    passes_on,
    sets_up,
)
from lmc.durable.reaches import (
    attribute,
    class_names_language,
    from_library,
    holds_language,
    inside,
    is_language,
    is_of_lmc,
    looks_up,
    names_language,
)
from lmc.frontend.host import HostFunction
from lmc.frontend.state import StateGroup
from lmc.frontend.tools import call_tool


class CallKind(enum.Enum):
    """The treatment of a call."""

    AGAIN = "made again, and nothing that it calls is an effect"
    CALLS_BACK = "made again; the functions passed to it are classified in turn"
    PASSES_ON = "made again; the functions passed to it are recorded wherever it has them called"
    OWN = "of the program's own: made again, with each call in it classified"
    EITHER = "an effect, unless it is passed a state or a function of the program's own"
    MAKES_COROUTINE = "it acts when awaited, unless it is passed a state"
    EFFECT = "recorded"


def kind_of(fn: Any, within: Sequence[type] = ()) -> CallKind:
    """Return the treatment of a call of `fn`, which is no partial.

    within  classes of which it is being found out whether making them computes: they do if the rest of what they call does
    """
    cls = type(fn)
    if is_of_numpy(fn):
        return CallKind.CALLS_BACK
    if cls is types.FunctionType:
        return _of_function(fn)
    if isinstance(fn, type):
        return _of_class(fn, within)
    if cls is types.MethodType:
        return _of_method(fn)
    if cls in BUILTINS:
        return _of_builtin(fn)
    if isinstance(fn, HostFunction):
        return CallKind.CALLS_BACK if fn is call_tool else CallKind.AGAIN if fn.pure else CallKind.MAKES_COROUTINE if makes_coroutine(fn) else CallKind.EFFECT
    if is_language(fn) or cls in DESCRIPTORS:
        return CallKind.AGAIN
    if cls is CACHED:
        return _of_cached(fn)
    if cls.__module__ in COMPUTE and cls is not operator.methodcaller:
        return CallKind.CALLS_BACK
    call = vars(cls).get("__call__") or getattr(cls, "__call__", None)  # noqa: B004
    if not isinstance(call, types.FunctionType) or from_library(cls):
        return CallKind.EITHER
    if is_instrumented(call.__code__):
        return CallKind.AGAIN
    if names_language(call) or holds_language(fn):
        return CallKind.OWN
    return CallKind.MAKES_COROUTINE if makes_coroutine(call) else CallKind.EITHER


def _of_function(fn: types.FunctionType) -> CallKind:
    if is_instrumented(fn.__code__):
        return CallKind.AGAIN
    if is_of_lmc(fn) or fn.__module__ in LOOKING:
        return CallKind.AGAIN
    if fn in BEGINS_TASKS:
        return CallKind.MAKES_COROUTINE if makes_coroutine(fn) else CallKind.EITHER
    if fn.__code__ in MANAGERS:
        return CallKind.OWN if not from_library(fn.__wrapped__) else CallKind.AGAIN  # type: ignore[attr-defined]
    if fn in CHANGE_NOTHING and not makes_coroutine(fn):
        return CallKind.EFFECT
    if fn in MADE_AGAIN:
        return CallKind.AGAIN
    if _is_of_pydantic(fn) or only_computes(fn):
        return CallKind.CALLS_BACK
    if not from_library(fn) and (names_language(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)):
        return CallKind.OWN
    return CallKind.MAKES_COROUTINE if makes_coroutine(fn) else CallKind.EITHER


def _of_cached(fn: Any) -> CallKind:
    """Return the treatment of a function with a cache: that of the function, which the cache may spare."""
    within = fn.__wrapped__
    if only_computes(fn) or is_instrumented(getattr(within, "__code__", None)):
        return CallKind.AGAIN
    return CallKind.EITHER if isinstance(within, types.FunctionType) and not names_language(within) else CallKind.CALLS_BACK


def _of_class(cls: type, within: Sequence[type]) -> CallKind:
    if any(cls is one for one in within):
        return CallKind.AGAIN
    within = (*within, cls)
    if cls is collections.defaultdict or cls in _THREADS:
        return CallKind.PASSES_ON
    if from_library(cls) and crosses_processes(cls):
        return CallKind.EFFECT
    if (
        issubclass(cls, BaseException | pathlib.PurePath)
        or cls in OWN_DATA
        or cls in MADE_AGAIN
        or passes_on(cls)
        or is_element(cls)
        or is_of_lmc(cls)
        or _only_makes_data(cls, within)
        or _is_of_pydantic(cls)
    ):
        return CallKind.AGAIN
    if cls.__module__ == "builtins" and cls not in (map, filter):
        return CallKind.AGAIN
    if cls.__module__ == "builtins" or cls.__module__ in COMPUTE:
        return CallKind.CALLS_BACK
    if from_library(cls) or not _is_called_as_type(cls):
        return CallKind.EITHER
    if cls.__init__ is object.__init__ and cls.__new__ is object.__new__:
        return CallKind.AGAIN
    if isinstance(cls.__init__, types.FunctionType) and is_instrumented(cls.__init__.__code__):
        return CallKind.AGAIN
    return CallKind.OWN if class_names_language(cls) or (is_plain(cls) and _is_made_by_the_run(cls, within)) else CallKind.EITHER


def computes(x: Any, within: Sequence[type] = ()) -> bool:
    """Return whether a call is made again, without or with the calls in it classified."""
    return kind_of(x, within) in (CallKind.AGAIN, CallKind.CALLS_BACK, CallKind.PASSES_ON, CallKind.OWN)


def _is_made_by_the_run(cls: type, within: Sequence[type]) -> bool:
    """Return whether a constructor may be gone into: it leaves the outside alone, or what else it calls is recorded."""
    if dataclasses.is_dataclass(cls):
        post = getattr(cls, "__post_init__", None)
        return post is None or (isinstance(post, types.FunctionType) and _search(cls, within).only_computes(post))
    if "__attrs_attrs__" in vars(cls):
        return all(_attrs_calls_only(fn, cls, within) for fn in _called_by_attrs(cls))
    init = cls.__init__
    if not isinstance(init, types.FunctionType):
        return any(init is base.__init__ for base in cls.__mro__ if base in OWN_DATA)
    if any(init is base.__init__ for base in (*_OF_PYTHON, *_THREADS)):
        return True
    return not init.__code__.co_filename.startswith("<") and ComputingSearch(lambda _: True, cls).only_computes(init)


def _called_by_attrs(cls: type) -> Iterator[Any]:
    """Yield what the constructor that attrs has generated calls."""
    for field in vars(cls)["__attrs_attrs__"]:
        yield from (field.validator, field.converter, getattr(field.default, "factory", None))
    yield from (vars(cls).get(f"__attrs_{when}_init__") for when in ("pre", "post"))


def _search(cls: type, within: Sequence[type]) -> ComputingSearch:
    return ComputingSearch(functools.partial(computes, within=within), cls)


def _attrs_calls_only(fn: Any, cls: type, within: Sequence[type]) -> bool:
    """Return whether a function that attrs calls computes, and nothing else: also one of a list of validators, or in a converter of attrs."""
    if isinstance(fn, types.FunctionType):
        return _search(cls, within).only_computes(fn)
    if type(fn) in BUILTINS:
        return computes(fn)
    if str(type(fn).__module__).startswith("attr."):
        held = [x for part in inside(fn) for x in (part if isinstance(part, tuple) else (part,))]
        called = [x for x in held if callable(x) and not (isinstance(x, type) and hasattr(fn, "type"))]  # `instance_of` calls none
        return all(_attrs_calls_only(x, cls, within) for x in called if not any(y is fn for y in inside(x)))  # a converter's own function calls what it holds
    return fn is None or fn in OWN_DATA


def is_plain(cls: type) -> bool:
    """Return whether a class is one of the user's whose instances are made as `type` and `object`, or a container, make
    them."""
    return (
        _is_called_as_type(cls)
        and any(cls.__new__ is base.__new__ for base in cls.__mro__ if base in _EMPTY_BASES or base in OWN_DATA)
        and not from_library(cls)
        and all(base in _MADE_OF or base in OWN_DATA or not from_library(base) or _is_mixin(base) for base in cls.__mro__)
    )


def _is_called_as_type(cls: type) -> bool:
    return type(cls).__call__ is type.__call__ and (type(cls) in (type, abc.ABCMeta) or not from_library(type(cls)))


_OF_PYTHON = (collections.ChainMap, collections.UserDict, collections.UserList, collections.UserString, logging.LoggerAdapter)
_EMPTY_BASES = (object, abc.ABC, typing.Generic, typing.Protocol)
_THREADS = (threading.Thread, threading.Timer)
_MADE_OF = (*_EMPTY_BASES, *_OF_PYTHON, *_THREADS)


def _is_mixin(cls: type) -> bool:
    """Return whether a class of Python's library only adds methods to others: `Mapping`, `ContextDecorator`."""
    return cls.__module__ in ("collections.abc", "contextlib") and not {"__init__", "__new__", "__init_subclass__"} & vars(cls).keys()


def _of_method(fn: types.MethodType) -> CallKind:
    owner, function = fn.__self__, fn.__func__
    if fn.__name__ in CALL_LATER and isinstance(owner, asyncio.AbstractEventLoop | asyncio.Future | Future):
        return CallKind.PASSES_ON
    if type(owner) in _THREADS or (isinstance(owner, _THREADS) and is_plain(type(owner)) and from_library(function)):
        return CallKind.PASSES_ON if fn.__name__ == "__init__" else CallKind.AGAIN
    if not isinstance(function, types.FunctionType):
        return kind_of(function)  # such as of a marked function
    if is_instrumented(function.__code__) or fn.__name__ in MANAGING:
        return CallKind.AGAIN
    if isinstance(owner, StateGroup):
        return CallKind.CALLS_BACK
    if from_library(function) and crosses_processes(type(owner)):
        return CallKind.EFFECT  # what another process calls cannot be recorded one by one
    if isinstance(owner, ThreadPoolExecutor | contextlib.AsyncExitStack):
        return CallKind.PASSES_ON
    known = is_language(owner) or is_of_lmc(type(owner)) or isinstance(owner, BaseException) or type(owner) in TURNS or type(owner) in OWN_DATA
    if is_of_lmc(function) or (known and from_library(function)):
        return CallKind.EITHER if isinstance(owner, asyncio.TaskGroup) else CallKind.AGAIN
    if _is_of_pydantic(fn) or _is_of_pydantic(function):
        return CallKind.CALLS_BACK
    if fn in CHANGE_NOTHING or type(owner) in RANDOM:
        return CallKind.EFFECT
    if isinstance(owner, BaseException):
        return CallKind.OWN
    found = _of_function(function)
    if found is CallKind.EITHER and not from_library(function) and (holds_language(owner) or (isinstance(owner, type) and class_names_language(owner))):
        return CallKind.OWN
    return found


def _of_builtin(fn: Any) -> CallKind:
    owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
    if name in CALL_LATER and isinstance(owner, asyncio.Future):
        return CallKind.PASSES_ON
    if fn in CHANGE_NOTHING or fn in PICKLES or type(owner) in RANDOM:
        return CallKind.EFFECT
    if type(owner) is contextvars.Context:
        return CallKind.PASSES_ON
    if name == "__new__" or isinstance(owner, property) or (type in type(owner).__mro__ and name in vars(type)):  # `Base.__subclasses__`
        return CallKind.AGAIN
    if type(owner) in IN_MEMORY or is_element(type(owner)):
        return CallKind.AGAIN
    if owner is not None and not OWN_DATA.isdisjoint(type(owner).__mro__):
        return CallKind.CALLS_BACK if name in CALL_BACK else CallKind.AGAIN
    of_tasks = (asyncio.Task, types.AsyncGeneratorType, types.CoroutineType)
    if isinstance(owner, (BaseException, *of_tasks, CACHED, *LAZY)) or type(owner) in TURNS or name in MANAGING:
        return CallKind.AGAIN
    if getattr(fn, "__objclass__", None) in OWN_DATA or (isinstance(owner, type) and (owner in OWN_DATA or owner.__module__ in COMPUTE)):
        return CallKind.CALLS_BACK
    module = getattr(fn, "__module__", None)  # unbound methods of C have none
    if module == "builtins":
        return CallKind.EFFECT if name in OUTSIDE else CallKind.CALLS_BACK if name in CALL_BACK else CallKind.AGAIN
    if fn in MADE_AGAIN or module in LOOKING:
        return CallKind.AGAIN
    return CallKind.CALLS_BACK if only_computes(fn) else CallKind.EITHER


def _only_makes_data(fn: Any, within: Sequence[type]) -> bool:
    """Return whether it is a class whose constructor only stores its arguments, as generated by Python: a dataclass, a
    named tuple, a typed dict, an enum."""
    if not isinstance(fn, type):
        return False
    if typing.is_typeddict(fn):
        return True
    if issubclass(fn, enum.Enum):
        missing: Any = getattr(fn._missing_, "__func__", fn._missing_)
        return from_library(missing) or _search(fn, within).only_computes(missing)
    if fn.__bases__ == (tuple,):
        return hasattr(fn, "_fields")
    if not dataclasses.is_dataclass(fn) or type(fn) is not type or hasattr(fn, "__post_init__") or fn.__new__ is not object.__new__:
        return False
    made = [f.default_factory for f in dataclasses.fields(fn) if f.default_factory is not dataclasses.MISSING]
    return fn.__init__.__code__.co_filename == "<string>" and all(isinstance(f, type) and f in OWN_DATA for f in made)


def _is_of_pydantic(fn: Any) -> bool:
    """Return whether it defines, validates, copies or shows data as pydantic does; a program's own validators run again."""
    if isinstance(fn, type):
        init = getattr(fn.__init__, "__module__", "")
        return fn.__module__ in _PYDANTIC or init == "pydantic.type_adapter" or (init == "pydantic.main" and hasattr(fn, "__pydantic_fields__"))
    return getattr(fn, "__module__", None) in _PYDANTIC


_PYDANTIC = frozenset(f"pydantic.{name}" for name in "main type_adapter fields config types functional_validators functional_serializers".split())


def called_by_python(cls: type) -> Iterator[types.FunctionType]:
    """Yield the functions of a class of the user's, of its metaclass and its descriptors, that Python calls by itself:
    those of operators, iteration, properties and the like."""
    constructed = (*inspect.getmro(type(cls)), *(inspect.getmro(cls) if issubclass(cls, BaseException | type) else ()))  # by Python, and not by `own`
    left, seen = [*inspect.getmro(cls), *constructed], set[type]()
    while left:
        base = left.pop()
        if base in seen or from_library(base) or is_of_lmc(base):
            continue
        seen.add(base)
        called = _SEEN - _CONSTRUCTORS if base in constructed else _SEEN
        for name, member in vars(base).items():
            by_python = name.startswith("__") or any(hasattr(overridden, name) for overridden in inspect.getmro(base) if from_library(overridden))
            functions = [getattr(member, "__func__", member)] if by_python and name not in called else []
            if isinstance(member, property):
                functions = [member.fget, member.fset, member.fdel]
            elif isinstance(member, functools.cached_property):
                functions = [member.func]
            elif hasattr(type(member), "__get__"):
                left += inspect.getmro(type(member))
            yield from (fn for fn in functions if isinstance(fn, types.FunctionType) and not from_library(fn) and not _is_of_dataclass(fn, base))


def _is_of_dataclass(fn: types.FunctionType, cls: type) -> bool:
    """Return whether Python has generated a method for a dataclass."""
    return fn.__code__.co_filename == "<string>" and dataclasses.is_dataclass(cls)


_SEEN = frozenset({"__init__", "__new__", "__call__", "__del__"})
"""Methods called by the program or a constructor; and one that the garbage collector calls, at any time."""
_CONSTRUCTORS = frozenset({"__init__", "__new__"})


def begins_tasks(fn: Any) -> bool:
    """Return whether a function of asyncio's only makes tasks of what it is given, whose calls are recorded one by one."""
    return isinstance(fn, types.FunctionType) and fn in BEGINS_TASKS


def makes_coroutine(fn: Any) -> bool:
    fn = fn.fn if isinstance(fn, HostFunction) else fn
    return not looks_up(fn) and inspect.iscoroutinefunction(fn)


def only_makes_coroutine(fn: Any) -> bool:
    """Return whether a function that has given a coroutine does no more than make it, so that it may be called for another one."""
    function, owner = attribute(fn, "__func__", fn), attribute(fn, "__self__")
    function = function.fn if isinstance(function, HostFunction) else function
    if not isinstance(function, types.FunctionType | type):
        function, owner = getattr(type(fn), "__call__", None), fn  # noqa: B004
    search = ComputingSearch(lambda x: computes(x) or makes_coroutine(x), type(owner), known=True, coroutines=True)
    return isinstance(function, types.FunctionType) and not from_library(function) and search.only_computes(function)


def is_idempotent(fn: Any) -> bool:
    if isinstance(fn, types.FunctionType | types.BuiltinFunctionType | types.MethodType) and fn in CHANGE_NOTHING:
        return True
    if type(attribute(fn, "__self__")) in RANDOM or sets_up(fn):
        return True
    fn = attribute(fn, "__func__", fn)
    return isinstance(fn, HostFunction) and fn.idempotent
