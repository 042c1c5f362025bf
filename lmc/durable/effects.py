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
import copy
import csv
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import inspect
import io
import operator
import os
import pathlib
import queue
import random
import re
import string
import sys
import threading
import time
import types
import typing
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import Any

from lmc import codec
from lmc.durable.computing import ComputingSearch
from lmc.durable.instrument import is_instrumented
from lmc.durable.iterators import LAZY
from lmc.durable.reaches import (
    attribute,
    class_names_language,
    from_library,
    holds_language,
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


def kind_of(fn: Any) -> CallKind:
    """Return the treatment of a call of `fn`, which is no partial."""
    cls = type(fn)
    if cls is types.FunctionType:
        return _of_function(fn)
    if isinstance(fn, type):
        return _of_class(fn)
    if cls is types.MethodType:
        return _of_method(fn)
    if cls in _BUILTINS:
        return _of_builtin(fn)
    if isinstance(fn, HostFunction):
        return CallKind.CALLS_BACK if fn is call_tool else CallKind.AGAIN if fn.pure else CallKind.MAKES_COROUTINE if makes_coroutine(fn) else CallKind.EFFECT
    if is_language(fn) or cls in _DESCRIPTORS:
        return CallKind.AGAIN
    if cls is type(_cached):
        return _of_cached(fn)
    if cls.__module__ in _COMPUTE and cls is not operator.methodcaller:
        return CallKind.CALLS_BACK
    call = vars(cls).get("__call__") or getattr(cls, "__call__", None)  # noqa: B004
    return CallKind.OWN if isinstance(call, types.FunctionType) and not from_library(cls) and (names_language(call) or holds_language(fn)) else CallKind.EITHER


def _of_function(fn: types.FunctionType) -> CallKind:
    if is_instrumented(fn.__code__):
        return CallKind.AGAIN
    if is_of_lmc(fn) or fn.__module__ in _LOOKING:
        return CallKind.AGAIN
    if fn in BEGINS_TASKS:
        return CallKind.MAKES_COROUTINE if makes_coroutine(fn) else CallKind.EITHER
    if fn.__code__ in MANAGERS:
        return CallKind.OWN if not from_library(fn.__wrapped__) else CallKind.AGAIN  # type: ignore[attr-defined]
    if fn in _CHANGE_NOTHING and not makes_coroutine(fn):
        return CallKind.EFFECT
    if fn in _MADE_AGAIN:
        return CallKind.AGAIN
    if _is_of_pydantic(fn) or _only_computes(fn):
        return CallKind.CALLS_BACK
    if not from_library(fn) and (names_language(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)):
        return CallKind.OWN
    return CallKind.MAKES_COROUTINE if makes_coroutine(fn) else CallKind.EITHER


def _of_cached(fn: Any) -> CallKind:
    """Return the treatment of a function with a cache: that of the function, which the cache may spare."""
    within = fn.__wrapped__
    if _only_computes(fn) or is_instrumented(getattr(within, "__code__", None)):
        return CallKind.AGAIN
    return CallKind.EITHER if isinstance(within, types.FunctionType) and not names_language(within) else CallKind.CALLS_BACK


def _of_class(cls: type) -> CallKind:
    if cls in (collections.defaultdict, threading.Thread, threading.Timer):
        return CallKind.PASSES_ON
    if (
        issubclass(cls, BaseException | pathlib.PurePath)
        or cls in _OWN_DATA
        or cls in _MADE_AGAIN
        or passes_on(cls)
        or is_of_lmc(cls)
        or _only_makes_data(cls)
        or _is_of_pydantic(cls)
    ):
        return CallKind.AGAIN
    if cls.__module__ == "builtins" and cls not in (map, filter):
        return CallKind.AGAIN
    if cls.__module__ == "builtins" or cls.__module__ in _COMPUTE:
        return CallKind.CALLS_BACK
    if from_library(cls) or not _is_called_as_type(cls):
        return CallKind.EITHER
    if cls.__init__ is object.__init__ and cls.__new__ is object.__new__:
        return CallKind.AGAIN
    if isinstance(cls.__init__, types.FunctionType) and is_instrumented(cls.__init__.__code__):
        return CallKind.AGAIN
    return CallKind.OWN if class_names_language(cls) or (is_plain(cls) and _is_made_by_the_run(cls)) else CallKind.EITHER


def computes(x: Any) -> bool:
    """Return whether a call is made again, without or with the calls in it classified."""
    return kind_of(x) in (CallKind.AGAIN, CallKind.CALLS_BACK, CallKind.PASSES_ON, CallKind.OWN)


def _is_made_by_the_run(cls: type) -> bool:
    """Return whether a constructor may be gone into: it leaves the outside alone, or what else it calls is recorded."""
    if dataclasses.is_dataclass(cls):
        post = getattr(cls, "__post_init__", None)
        return post is None or (isinstance(post, types.FunctionType) and ComputingSearch(computes, cls).only_computes(post))
    init = cls.__init__
    if not isinstance(init, types.FunctionType):
        return any(init is base.__init__ for base in cls.__mro__ if base in _OWN_DATA)
    return not init.__code__.co_filename.startswith("<") and ComputingSearch(lambda _: True, cls).only_computes(init)


def is_plain(cls: type) -> bool:
    """Return whether a class is one of the user's whose instances are made as `type` and `object`, or a container, make
    them."""
    return (
        _is_called_as_type(cls)
        and any(cls.__new__ is base.__new__ for base in cls.__mro__ if base in _EMPTY_BASES or base in _OWN_DATA)
        and not from_library(cls)
        and all(base in _EMPTY_BASES or base in _OWN_DATA or not from_library(base) or _is_mixin(base) for base in cls.__mro__)
    )


def _is_called_as_type(cls: type) -> bool:
    return type(cls).__call__ is type.__call__ and (type(cls) in (type, abc.ABCMeta) or not from_library(type(cls)))


_EMPTY_BASES = (object, abc.ABC, typing.Generic, typing.Protocol)


def _is_mixin(cls: type) -> bool:
    """Return whether a class of Python's library only adds methods to others: `Mapping`, `ContextDecorator`."""
    return cls.__module__ in ("collections.abc", "contextlib") and not {"__init__", "__new__", "__init_subclass__"} & vars(cls).keys()


def _of_method(fn: types.MethodType) -> CallKind:
    owner, function = fn.__self__, fn.__func__
    if fn.__name__ in _CALL_LATER and isinstance(owner, asyncio.AbstractEventLoop | asyncio.Future | Future):
        return CallKind.PASSES_ON
    if type(owner) in (threading.Thread, threading.Timer):
        return CallKind.AGAIN
    if not isinstance(function, types.FunctionType):
        return kind_of(function)  # such as of a marked function
    if is_instrumented(function.__code__) or fn.__name__ in _MANAGING:
        return CallKind.AGAIN
    if isinstance(owner, StateGroup):
        return CallKind.CALLS_BACK
    if isinstance(owner, ThreadPoolExecutor | contextlib.AsyncExitStack):
        return CallKind.PASSES_ON
    if (
        is_language(owner)
        or is_of_lmc(type(owner))
        or is_of_lmc(function)
        or (isinstance(owner, BaseException) and from_library(function))
        or type(owner) in _TURNS
        or type(owner) in _OWN_DATA
    ):
        return CallKind.EITHER if isinstance(owner, asyncio.TaskGroup) else CallKind.AGAIN
    if _is_of_pydantic(fn) or _is_of_pydantic(function):
        return CallKind.CALLS_BACK
    if fn in _CHANGE_NOTHING or type(owner) in _RANDOM:
        return CallKind.EFFECT
    if isinstance(owner, BaseException):
        return CallKind.OWN
    found = _of_function(function)
    if found is CallKind.EITHER and not from_library(function) and (holds_language(owner) or (isinstance(owner, type) and class_names_language(owner))):
        return CallKind.OWN
    return found


def _of_builtin(fn: Any) -> CallKind:
    owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
    if name in _CALL_LATER and isinstance(owner, asyncio.Future):
        return CallKind.PASSES_ON
    if fn in _CHANGE_NOTHING or type(owner) in _RANDOM:
        return CallKind.EFFECT
    if type(owner) is contextvars.Context:
        return CallKind.PASSES_ON
    if name == "__new__" or isinstance(owner, property):
        return CallKind.AGAIN
    if type(owner) in _IN_MEMORY:
        return CallKind.AGAIN
    if owner is not None and not _OWN_DATA.isdisjoint(type(owner).__mro__):
        return CallKind.CALLS_BACK if name in _CALL_BACK else CallKind.AGAIN
    if isinstance(owner, (BaseException, types.AsyncGeneratorType, types.CoroutineType, type(_cached), *LAZY)) or type(owner) in _TURNS or name in _MANAGING:
        return CallKind.AGAIN
    if getattr(fn, "__objclass__", None) in _OWN_DATA or (isinstance(owner, type) and (owner in _OWN_DATA or owner.__module__ in _COMPUTE)):
        return CallKind.CALLS_BACK
    if fn.__module__ == "builtins":
        return CallKind.EFFECT if name in _OUTSIDE else CallKind.CALLS_BACK if name in _CALL_BACK else CallKind.AGAIN
    if fn in _MADE_AGAIN or fn.__module__ in _LOOKING:
        return CallKind.AGAIN
    return CallKind.CALLS_BACK if _only_computes(fn) else CallKind.EITHER


_BUILTINS = frozenset({types.BuiltinFunctionType, type(re.compile("").finditer), types.MethodDescriptorType, types.ClassMethodDescriptorType})
_DESCRIPTORS = frozenset({types.MethodWrapperType, types.WrapperDescriptorType})
_CALL_LATER = frozenset({"add_done_callback", "call_soon", "call_soon_threadsafe", "call_later", "call_at"})
"""Methods of event loops and futures that have a function called."""
_MANAGING = frozenset({"__enter__", "__exit__", "__aenter__", "__aexit__"})
MANAGERS = {
    contextlib.contextmanager(lambda: (x for x in ())).__code__: contextlib.contextmanager,
    contextlib.asynccontextmanager(lambda: (x async for x in ())).__code__: contextlib.asynccontextmanager,  # type: ignore[arg-type]
}
"""Decorators that make managers of generator functions, by the code of the manager factory."""
_LOOKING = frozenset({"inspect", "annotationlib", "logging", "traceback", "typing", "warnings", "_py_warnings", "_warnings"})
"""Modules whose functions look at the calling line, at frames or at functions passed to them, so that nothing may stand in between; a resumed run calls them
again."""
BEGINS_TASKS = frozenset({asyncio.gather, asyncio.create_task, asyncio.ensure_future, asyncio.wait_for, asyncio.shield})


_OWN_DATA = codec.DATA | {memoryview, types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()), re.Pattern, re.Match, string.Template}
_OUTSIDE = frozenset({"print", "input", "open", "breakpoint", "exec", "eval", "__import__", "exit", "quit"})
"""Builtins with effects outside of the run, or possible ones."""
_TURNS = frozenset({
    asyncio.Lock, asyncio.Semaphore, asyncio.BoundedSemaphore, asyncio.Timeout, asyncio.TaskGroup, type(threading.Lock()), type(threading.RLock()),
    threading.Semaphore, threading.BoundedSemaphore, Future,
})  # fmt: skip
"""Synchronization of a run's own tasks and threads: after entering and leaving, its state is unchanged."""
KEPT = frozenset({
    random.Random, io.StringIO, io.BytesIO, queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue, threading.Event, threading.Condition,
    threading.Barrier, asyncio.Event, asyncio.Condition, asyncio.Barrier, asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue, asyncio.Future,
})  # fmt: skip
"""Classes of Python whose objects are made again with what a program has done to them: those that it has made itself."""
_KEPT_OF: Mapping[str, str] = {
    "argparse": "ArgumentParser", "configparser": "ConfigParser RawConfigParser", "graphlib": "TopologicalSorter", "hmac": "HMAC",
    "json.decoder": "JSONDecoder", "json.encoder": "JSONEncoder", "string": "Formatter",
}  # fmt: skip
"""More of them, which may be given functions to call, by module and name: importing them here would cost every program."""
_FILES = frozenset({"read", "write", "read_file", "print_help", "print_usage"})
"""Methods of those that read or write outside of the run."""


def is_kept(cls: type) -> bool:
    return cls in KEPT or passes_on(cls)


def passes_on(cls: type) -> bool:
    return cls.__qualname__ in _KEPT_OF.get(cls.__module__, "").split()


def is_of_kept(fn: Any, owner: object) -> bool:
    """Return whether a method of such an object, or one that it has of a mixin, stays within it."""
    return type(owner) in KEPT or attribute(fn, "__module__") == "collections.abc" or (passes_on(type(owner)) and fn.__name__ not in _FILES)


_MADE_AGAIN = frozenset({
    copy.copy, copy.deepcopy, functools.partial, functools.wraps, functools.update_wrapper, asyncio.timeout, asyncio.timeout_at,
    asyncio.get_running_loop, asyncio.get_event_loop, threading.Lock, threading.RLock, sys._getframe,  # pyright: ignore[reportPrivateUsage]
    sys.exc_info, sys.exception, sys.exit, inspect.currentframe, inspect.stack, inspect.getgeneratorstate, contextvars.copy_context,
    contextvars.ContextVar, types.SimpleNamespace, csv.writer, csv.reader, ThreadPoolExecutor, as_completed, wait, warnings.catch_warnings,
    decimal.localcontext, decimal.getcontext, decimal.setcontext, decimal.Context, threading.local, random.SystemRandom, *KEPT, *_TURNS,
})  # fmt: skip
_IN_MEMORY = frozenset({contextvars.ContextVar, type(hashlib.sha256()), type(csv.writer(io.StringIO())), type(csv.reader(()))})
"""Types of objects that a program makes again, with what it has done to them."""
_RANDOM = frozenset({random.Random, random.SystemRandom})
_CHANGE_NOTHING = frozenset({
    asyncio.sleep, *[getattr(time, n) for n in ("sleep", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")],
    datetime.date.today, datetime.datetime.now, *[getattr(datetime.datetime, n) for n in ("today", "utcnow")], uuid.uuid1, uuid.uuid4,
    os.getenv, os.getcwd, os.urandom,
    *[getattr(random, n) for n in ("random", "randint", "randrange", "choice", "choices", "sample", "shuffle", "uniform", "gauss", "getrandbits")],
})  # fmt: skip
"""Python functions that only wait, read the clock or draw random numbers: called again if it is not known whether they
were called."""
AWAITED_AGAIN = frozenset(fn.__code__ for fn in (asyncio.Lock.acquire, asyncio.Semaphore.acquire))
"""Code of coroutines that only wait for their turn."""
WAITING = frozenset(fn.__code__ for fn in (
    asyncio.Queue.get, asyncio.Queue.put, asyncio.Queue.join, asyncio.Event.wait, asyncio.Condition.wait, asyncio.Condition.wait_for, asyncio.Barrier.wait,
))  # fmt: skip
"""Code of coroutines that only wait for what the program does, if it has made their object."""
_COMPUTING: Mapping[str, str] = {
    "ast": "literal_eval",
    "base64": "b64encode b64decode standard_b64encode standard_b64decode urlsafe_b64encode urlsafe_b64decode b32encode b32decode b16encode b16decode "
              "b85encode b85decode a85encode a85decode",
    "binascii": "hexlify unhexlify crc32",
    "difflib": "get_close_matches",
    "fnmatch": "fnmatch fnmatchcase filter translate",
    "hmac": "new digest compare_digest",
    "html": "escape unescape",
    "json": "loads dumps",
    "os.path": "join split splitext splitdrive basename dirname isabs normcase normpath commonpath commonprefix",
    "re": "compile escape search match fullmatch sub subn findall finditer split",
    "shlex": "quote join",
    "string": "capwords",
    "textwrap": "wrap dedent indent shorten fill",
    "unicodedata": "normalize category name lookup combining bidirectional east_asian_width decimal digit numeric",
    "urllib.parse": "quote quote_plus quote_from_bytes unquote unquote_plus unquote_to_bytes urlencode urljoin urlparse urlsplit urlunparse urlunsplit "
                    "urldefrag parse_qs parse_qsl",
    "zlib": "crc32 adler32",
}  # fmt: skip
"""Python functions that only compute with their arguments: no files, no clock, no state. By name, because importing
them here would cost every program."""
_COMPUTE = frozenset(
    {
        "_bisect",
        "_heapq",
        "_operator",
        "_functools",
        "_hashlib",
        "abc",
        "ast",
        "bisect",
        "cmath",
        "collections",
        "contextlib",
        "csv",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "heapq",
        "itertools",
        "math",
        "operator",
        "statistics",
        "typing",
        "weakref",
        "zoneinfo",
    }
)
"""Modules whose functions and classes all do so, or define something."""
_MODULES_OF: Mapping[str, Sequence[str]] = {
    name: [module for module, names in _COMPUTING.items() if name in names.split()] for names in _COMPUTING.values() for name in names.split()
}
_MAKE_DATES = frozenset({
    datetime.date.fromisoformat, datetime.date.fromordinal, datetime.date.fromisocalendar, datetime.time.fromisoformat,
    datetime.datetime.fromisoformat, datetime.datetime.fromordinal, datetime.datetime.fromisocalendar, datetime.datetime.combine,
})  # fmt: skip
_CALL_BACK = frozenset({"sort", "sub", "subn", "sorted", "min", "max", "map", "filter", "iter"})
"""Methods of data and builtins that call a function passed to them. The others store or inspect it."""


def _only_computes(fn: Any) -> bool:
    """Return whether it is a Python function whose result depends only on its arguments, and that changes nothing."""
    if type(fn) not in (types.FunctionType, types.BuiltinFunctionType, type(_cached)):
        return False
    if fn.__module__ in _COMPUTE or (type(fn) is types.BuiltinFunctionType and fn in _MAKE_DATES):
        return True
    name = fn.__name__.removeprefix("_path_")  # from CPython 3.13 on, os.path.normpath is posix._path_normpath
    return any(getattr(sys.modules.get(module), name, None) is fn for module in _MODULES_OF.get(name, ()))


@functools.lru_cache
def _cached() -> None:
    """Sample of the type of such functions: `urlsplit` is one."""


def _only_makes_data(fn: Any) -> bool:
    """Return whether it is a class whose constructor only stores its arguments, as generated by Python: a dataclass, a
    named tuple, an enum."""
    if not isinstance(fn, type):
        return False
    if issubclass(fn, enum.Enum):
        return not issubclass(fn, enum.Flag) and fn._missing_.__func__ is vars(enum.Enum)["_missing_"].__func__  # type: ignore[attr-defined]
    if fn.__bases__ == (tuple,):
        return hasattr(fn, "_fields")
    if not dataclasses.is_dataclass(fn) or type(fn) is not type or hasattr(fn, "__post_init__") or fn.__new__ is not object.__new__:
        return False
    made = [f.default_factory for f in dataclasses.fields(fn) if f.default_factory is not dataclasses.MISSING]
    return fn.__init__.__code__.co_filename == "<string>" and all(isinstance(f, type) and f in _OWN_DATA for f in made)


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
            functions = [getattr(member, "__func__", member)] if name.startswith("__") and name not in called else []
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


_SEEN = frozenset({"__init__", "__new__", "__call__", "__del__", *_MANAGING})
"""Methods called by the program or a constructor; and one that the garbage collector calls, at any time."""
_CONSTRUCTORS = frozenset({"__init__", "__new__"})


def makes_coroutine(fn: Any) -> bool:
    fn = fn.fn if isinstance(fn, HostFunction) else fn
    return not looks_up(fn) and inspect.iscoroutinefunction(fn)


def is_idempotent(fn: Any) -> bool:
    if isinstance(fn, types.FunctionType | types.BuiltinFunctionType | types.MethodType) and fn in _CHANGE_NOTHING:
        return True
    if type(attribute(fn, "__self__")) in _RANDOM:
        return True
    fn = attribute(fn, "__func__", fn)
    return isinstance(fn, HostFunction) and fn.idempotent
