"""Which calls of host code are effects, to be written down, and how they are named and told apart; the others are made again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import enum
import functools
import inspect
import os
import random
import re
import sys
import threading
import time
import types
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from lmc import codec
from lmc.frontend import hostops, raising, reach
from lmc.frontend.again import Again
from lmc.frontend.handed import Drawn
from lmc.frontend.host import HostFunction
from lmc.frontend.own import copied_by_code
from lmc.frontend.tools import asked_for, call_tool


def _copied_by_python(x: Any, fn: Any) -> bool:
    """Whether a copy of an object runs no code of its classes."""
    found, left = dict[int, Any](), [x]
    while left:
        one = left.pop()
        if id(one) in found:
            continue
        found[id(one)] = one
        if type(one).__module__ != "builtins" and copied_by_code(type(one)):
            return False
        left += reach.inside(one) if fn is copy.deepcopy else ()
    return True


def called(fn: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """The function that a call comes to, and its arguments: behind operations of graphs, partials, methods that are marked, and `call_tool`."""
    args = tuple(args)
    if fn is raising.handling:
        _, fn, *rest = args
        args = tuple(rest)
    if fn is hostops.OPERATIONS["py.call_method"]:
        owner, name, *rest = args
        if type(owner) in _OWN_DATA or (method := getattr(owner, name, None)) is None:
            return fn, args, kwargs
        fn, args = method, tuple(rest)
    elif fn is hostops.OPERATIONS["py.call"]:
        fn, *rest = args
        args = tuple(rest)
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    if isinstance(fn, types.MethodType) and isinstance(fn.__func__, HostFunction):  # compiled, it is called with its owner
        fn, args = fn.__func__, (fn.__self__, *args)
    if fn is call_tool and _holds_tools(args):
        try:
            tool, given = asked_for(args[0], args[1])
        except Exception:  # as the call does, which then calls nothing
            return fn, args, kwargs
        return called(tool, (), given)
    return fn, args, kwargs


def _holds_tools(args: tuple[Any, ...]) -> bool:
    """Whether what `call_tool` is handed can be looked through, and once more."""
    return len(args) == 2 and isinstance(args[1], list | tuple)


def foreign(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]] | None:
    """The function and the arguments of a call that does something outside of the run, or None for one that is made again.

    Made again: what computes with the run's own values (methods of text, lists, dicts and the like, library functions that only read, what
    is marked `lmc.pure`), what makes exceptions and coroutines, and what enters and leaves a `with`.
    """
    fn, args, kwargs = called(fn, args, kwargs)
    if fn is hostops.OPERATIONS["py.call_method"]:
        owner, name, *rest = args
        if type(owner) not in _OWN_DATA:
            return None  # raises
        return None if not _calls_back(name, rest, kwargs) else (getattr(owner, name), (owner, *rest), kwargs)
    if fn is call_tool and _holds_tools(args):
        return None  # calls nothing, and raises
    if isinstance(fn, HostFunction):
        return None if fn.pure or inspect.iscoroutinefunction(fn.fn) else (fn, args, kwargs)
    if isinstance(fn, type) and issubclass(fn, BaseException):
        return None
    owner = getattr(fn, "__self__", None)
    if type(owner) in _OWN_DATA and owner is not None:
        return None if not _calls_back(getattr(fn, "__name__", ""), args, kwargs) else (fn, (owner, *args), kwargs)
    if isinstance(owner, BaseException | types.AsyncGeneratorType):  # whose methods only make what is awaited
        return None
    if reach.is_own(fn) or reach.is_language(fn) or reach.is_language(owner) or _is_of_lmc(fn):
        return None
    if getattr(fn, "__name__", "") in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
        return None
    if (isinstance(fn, type) and fn in _OWN_DATA) or isinstance(fn, types.MethodWrapperType | types.WrapperDescriptorType):
        return None
    if _is_builtin_tool(fn, owner) and not _calls_something(args, kwargs):
        return None
    if (fn is copy.copy or fn is copy.deepcopy) and len(args) == 1 and not kwargs and _copied_by_python(args[0], fn):
        return None  # a copy shares what it does not make anew, which that of a journal would not
    if any(fn is made for made in _MADE_AGAIN) or type(owner) in _TURNS:  # `in` would ask an object's `__eq__`
        return None
    name = getattr(fn, "__name__", "")
    if getattr(fn, "__module__", None) == "builtins" and name not in _OUTSIDE and not _calls_back(name, args, kwargs):
        return None
    if _only_makes_data(fn) or _is_of_pydantic(fn):
        return None
    if _makes_coroutine(fn) or ((hostops.pure_function(fn) is not None or _only_computes(fn)) and not _calls_something(args, kwargs)):
        return None
    return fn, (owner, *args) if codec.is_object(owner) else args, kwargs


_OWN_DATA = codec.DATA | {memoryview, type({}.keys()), type({}.values()), type({}.items()), re.Pattern, re.Match}
_OUTSIDE = frozenset({"print", "input", "open", "breakpoint", "exec", "eval", "__import__", "exit", "quit"})
"""Builtins that do something outside of the run, or may."""
_TURNS = frozenset({asyncio.Lock, asyncio.Semaphore, asyncio.BoundedSemaphore, asyncio.Timeout, asyncio.TaskGroup, type(threading.Lock()), type(threading.RLock()),
                    threading.Semaphore, threading.BoundedSemaphore})  # fmt: skip
"""What a run's own tasks and threads take turns by: entered and left again, it ends as it was."""
_MADE_AGAIN = (functools.partial, functools.wraps, functools.update_wrapper, asyncio.timeout, asyncio.timeout_at, asyncio.get_running_loop,
               asyncio.get_event_loop, threading.Lock, threading.RLock, *_TURNS)  # fmt: skip
_CHANGE_NOTHING = frozenset({
    asyncio.sleep, *[getattr(time, n) for n in ("sleep", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")],
    datetime.date.today, datetime.datetime.now, *[getattr(datetime.datetime, n) for n in ("today", "utcnow")], uuid.uuid1, uuid.uuid4, os.getenv, os.getcwd, os.urandom,
    *[getattr(random, n) for n in ("random", "randint", "randrange", "choice", "choices", "sample", "shuffle", "uniform", "gauss", "getrandbits")],
})  # fmt: skip
"""Functions of Python that only wait, look at the clock or draw lots: where nobody knows whether they were called, they are called again."""
AWAITED_AGAIN = frozenset(
    fn.__code__ for fn in (hostops.anext_step, hostops.turns, hostops.aenter, hostops.aexit, asyncio.Lock.acquire, asyncio.Semaphore.acquire)
)
"""The code of coroutines that only iterate or wait, or enter and leave a `with`."""
WAIT_FOR = asyncio.wait_for.__code__
SORTS = (sorted, min, max, list.sort)
_COMPUTING: Mapping[str, str] = {
    "ast": "literal_eval",
    "base64": "b64encode b64decode standard_b64encode standard_b64decode urlsafe_b64encode urlsafe_b64decode b32encode b32decode b16encode b16decode "
              "b85encode b85decode a85encode a85decode",
    "binascii": "hexlify unhexlify crc32",
    "difflib": "get_close_matches",
    "fnmatch": "fnmatch fnmatchcase filter translate",
    "html": "escape unescape",
    "os.path": "join split splitext splitdrive basename dirname isabs normcase normpath commonpath commonprefix",
    "shlex": "quote join",
    "textwrap": "wrap",
    "unicodedata": "normalize category name lookup combining bidirectional east_asian_width decimal digit numeric",
    "urllib.parse": "quote quote_plus quote_from_bytes unquote unquote_plus unquote_to_bytes urlencode urljoin urlparse urlsplit urlunparse urlunsplit "
                    "urldefrag parse_qs parse_qsl",
    "zlib": "crc32 adler32",
}  # fmt: skip
"""Functions of Python that only compute with what they are handed, besides those that `hostops` knows: no files, no clock, no state, no generators. By name, because importing
them here would cost every program."""
_MODULES_OF: Mapping[str, Sequence[str]] = {
    name: [module for module, names in _COMPUTING.items() if name in names.split()] for names in _COMPUTING.values() for name in names.split()
}
_MAKE_DATES = frozenset({
    datetime.date.fromisoformat, datetime.date.fromordinal, datetime.date.fromisocalendar, datetime.time.fromisoformat,
    datetime.datetime.fromisoformat, datetime.datetime.fromordinal, datetime.datetime.fromisocalendar, datetime.datetime.combine,
})  # fmt: skip
_CALL_BACK = frozenset({"sort", "sub", "subn", "sorted", "min", "max", "map", "filter", "iter"})
"""Methods of data and builtins that call a function they are handed. The others hold it or look at it."""
_OPERATIONS = frozenset(map(id, hostops.OPERATIONS.values()))


def _is_builtin_tool(fn: Any, owner: Any) -> bool:
    """Whether it is a method of data named by its class, such as `str.lower`, or one of Python's iterators and operators."""
    if getattr(fn, "__objclass__", None) in _OWN_DATA:
        return True
    module = getattr(owner if isinstance(owner, type) else fn, "__module__", None)
    return module in ("itertools", "operator", "_operator")


def _only_computes(fn: Any) -> bool:
    """Whether it is a function of Python whose result depends on its arguments alone, and that changes nothing."""
    if type(fn) not in (types.FunctionType, types.BuiltinFunctionType, type(_cached)):
        return False
    if type(fn) is types.BuiltinFunctionType and fn in _MAKE_DATES:
        return True
    return any(getattr(sys.modules.get(module), fn.__name__, None) is fn for module in _MODULES_OF.get(fn.__name__, ()))


@functools.lru_cache
def _cached() -> None:
    """Of the type that such functions have: `urlsplit` is one."""


def _only_makes_data(fn: Any) -> bool:
    """Whether it is a class whose constructor keeps what it is handed, as Python wrote it: of a dataclass, a named tuple, an enum."""
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
    """Whether it validates, copies or shows data as pydantic does; what a program's own validators do is done again."""
    cls = fn if isinstance(fn, type) else None
    if cls is not None:
        init = getattr(cls.__init__, "__module__", "")
        return init == "pydantic.type_adapter" or (init == "pydantic.main" and hasattr(cls, "__pydantic_fields__"))
    return getattr(fn, "__module__", None) in ("pydantic.main", "pydantic.type_adapter")


def _is_of_lmc(fn: Any) -> bool:
    return id(fn) in _OPERATIONS


def _calls_back(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return name in _CALL_BACK and _calls_something(args, kwargs)


def _calls_something(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(a, types.FunctionType | types.MethodType | functools.partial | HostFunction) for a in (*args, *kwargs.values()))


def _makes_coroutine(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn)


def is_idempotent(fn: Any) -> bool:
    if isinstance(fn, types.FunctionType | types.BuiltinFunctionType | types.MethodType) and fn in _CHANGE_NOTHING:
        return True
    if type(getattr(fn, "__self__", None)) in (random.Random, random.SystemRandom):
        return True
    fn = getattr(fn, "__func__", fn)
    return isinstance(fn, HostFunction) and fn.idempotent


def name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None) or getattr(fn, "name", None) or type(fn).__qualname__
    return str(name).replace("<locals>.", "")


def awaited_call(awaitable: Any) -> tuple[str, Sequence[Any], Mapping[str, Any]]:
    """What an awaitable that nobody has awaited is a call of: name and arguments."""
    if isinstance(awaitable, Again):
        return awaitable.of
    held = inspect.getcoroutinelocals(awaitable) if isinstance(awaitable, types.CoroutineType) else {}
    if isinstance(awaitable, types.CoroutineType) and awaitable.cr_code in _CALLING and "args" in held:
        return name_of(held.get("func", awaitable)), held["args"], held["kwargs"]
    return name_of(awaitable), (), held


_CALLING = frozenset({HostFunction.awaited.__code__, asyncio.to_thread.__code__})
"""The code of coroutines that call what they are handed."""


def arguments_digest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """A check of a call's arguments: of what is not data, its class."""
    return crc32(codec.to_bytes([*map(data_or_class, args), [[k, data_or_class(v)] for k, v in kwargs.items()]]))


def data_or_class(x: Any) -> Any:
    try:
        return codec.encode(x) if type(x) not in (set, frozenset) else sorted(map(repr, x))  # the order of a set is the process's
    except codec.NotData:
        return {codec.TAG: ["object", kind_of(x)]}


def kind_of(x: Any) -> str:
    """The class of an object, also of one that something else stands for."""
    return x.kind if isinstance(x, Again) else type(x.items if isinstance(x, Drawn) else x).__qualname__


def shown_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call's arguments, for people."""
    text = ", ".join([*[_short(a) for a in args], *[f"{k}={_short(v)}" for k, v in kwargs.items()]])
    return text if len(text) <= 120 else text[:117] + "…"


def _short(x: Any) -> str:
    if type(x) is str and len(x) > 80:
        return repr(x[:77] + "…")
    return _repr(x) if type(x) in _ATOMS else f"{_repr(x):.80}"


def _repr(x: Any) -> str:
    """Never that of an object of the host, whose `__repr__` could do anything."""
    try:
        if type(x) in _ATOMS or (type(x) in (list, tuple, dict, set) and codec.encode(x) is not None):
            return repr(x)
    except (codec.NotData, ValueError):  # a number of more digits than Python writes
        pass
    return f"<{kind_of(x)}>"


_ATOMS = (str, int, float, bool, bytes, type(None))
