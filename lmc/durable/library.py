"""Python's library as a journal knows it: what only computes, what waits, what is made again with what was done to it, and what has effects."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import csv
import dataclasses
import datetime
import decimal
import functools
import hashlib
import importlib
import inspect
import io
import logging
import os
import pickle
import queue
import random
import re
import string
import sys
import threading
import time
import types
import uuid
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import Any

from lmc import codec
from lmc.durable.reaches import attribute, from_library

CACHED = type(functools.lru_cache(lambda: None))
"""The type of functions with a cache, such as `urlsplit`."""
BUILTINS = frozenset({types.BuiltinFunctionType, type(re.compile("").finditer), types.MethodDescriptorType, types.ClassMethodDescriptorType})
DESCRIPTORS = frozenset({types.MethodWrapperType, types.WrapperDescriptorType})
CALL_LATER = frozenset({"add_done_callback", "call_soon", "call_soon_threadsafe", "call_later", "call_at"})
"""Methods of event loops and futures that have a function called."""
MANAGING = frozenset({"__enter__", "__exit__", "__aenter__", "__aexit__"})
MANAGERS = {
    contextlib.contextmanager(lambda: (x for x in ())).__code__: contextlib.contextmanager,
    contextlib.asynccontextmanager(lambda: (x async for x in ())).__code__: contextlib.asynccontextmanager,  # type: ignore[arg-type]
}
"""Decorators that make managers of generator functions, by the code of the manager factory."""
LOOKING = frozenset({"inspect", "annotationlib", "logging", "traceback", "typing", "warnings", "_py_warnings", "_warnings"})
"""Modules whose functions look at the calling line, at frames or at functions passed to them, so that nothing may stand in between; a resumed run calls them
again."""
BEGINS_TASKS = frozenset({asyncio.gather, asyncio.create_task, asyncio.ensure_future, asyncio.wait_for, asyncio.shield})


OWN_DATA = codec.DATA | {memoryview, types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()), re.Pattern, re.Match, string.Template}
OUTSIDE = frozenset({"print", "input", "open", "breakpoint", "exec", "eval", "__import__", "exit", "quit"})
"""Builtins with effects outside of the run, or possible ones."""
TURNS = frozenset({
    asyncio.Lock, asyncio.Semaphore, asyncio.BoundedSemaphore, asyncio.Timeout, asyncio.TaskGroup, type(threading.Lock()), type(threading.RLock()),
    threading.Semaphore, threading.BoundedSemaphore, Future,
})  # fmt: skip
"""Synchronization of a run's own tasks and threads: after entering and leaving, its state is unchanged."""
KEPT = frozenset({
    random.Random, io.StringIO, io.BytesIO, queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue, threading.Event, threading.Condition,
    threading.Barrier, asyncio.Event, asyncio.Condition, asyncio.Barrier, asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue, asyncio.Future,
    logging.LoggerAdapter,
})  # fmt: skip
"""Classes of Python whose objects are made again with what a program has done to them: those that it has made itself."""
_KEPT_BASES = KEPT - {random.Random}
"""Those of them from which a program may derive its own: a generator's seed is not known then."""
_KEPT_OF: Mapping[str, str] = {
    "_struct": "Struct", "argparse": "ArgumentParser", "calendar": "Calendar HTMLCalendar TextCalendar",
    "configparser": "ConfigParser RawConfigParser", "graphlib": "TopologicalSorter", "hmac": "HMAC",
    "json.decoder": "JSONDecoder", "json.encoder": "JSONEncoder", "string": "Formatter", "textwrap": "TextWrapper",
}  # fmt: skip
"""More of them, which may be given functions to call, by module and name: importing them here would cost every program."""
_FILES = frozenset({"read", "write", "read_file", "print_help", "print_usage"})
"""Methods of those that read or write outside of the run."""


def is_kept(cls: type) -> bool:
    return cls in KEPT or passes_on(cls)


def passes_on(cls: type) -> bool:
    return cls.__qualname__ in _KEPT_OF.get(cls.__module__, "").split()


def is_of_numpy(fn: Any) -> bool:
    """Return whether a call only computes on arrays and numbers of numpy, and changes at most these: of a function, a method, or a class of them."""
    name, owner = attribute(fn, "__name__", ""), attribute(fn, "__self__")
    if not isinstance(name, str):
        return False
    if isinstance(fn, type):
        return codec.is_scalar(fn) or (fn.__module__ == "numpy" and name in ("ndarray", "dtype"))
    if name in _OUTSIDE_OF_NUMPY:
        return False
    if codec.is_array(owner) or codec.is_scalar(type(owner)):
        return True
    of_module = getattr(sys.modules.get("numpy"), name, None) is fn
    return of_module and (attribute(fn, "__module__") == "numpy" or type(fn).__module__ == "numpy")


_OUTSIDE_OF_NUMPY = frozenset(
    "load save savez savez_compressed loadtxt savetxt genfromtxt fromfile fromregex tofile dump dumps seterr seterrcall setbufsize set_printoptions "
    "show_config show_runtime info errstate printoptions".split()
)


def is_element(cls: type) -> bool:
    return cls.__qualname__ == "Element" and cls.__module__ == "xml.etree.ElementTree"


def crosses_processes(cls: type) -> bool:
    """Return whether objects of a class of Python have functions called in other processes, or carry them there: process pools, processes, their queues."""
    names = [(base.__module__, base.__qualname__) for base in cls.__mro__]
    own = any(module.startswith("multiprocessing.") or module in _PROCESS_POOLS for module, _ in names)
    return own and not any(module.startswith("multiprocessing.dummy") or name in _OF_THREAD_POOLS for module, name in names)


def calls_in_process(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call is that of an event loop which has a pool of processes call a function."""
    return attribute(fn, "__name__") == "run_in_executor" and crosses_processes(type(args[0] if args else kwargs.get("executor")))


_PROCESS_POOLS = frozenset({"concurrent.futures.process", "concurrent.futures.interpreter"})
_OF_THREAD_POOLS = frozenset({"ThreadPool", "ApplyResult", "IMapIterator"})
"""Classes of `multiprocessing.pool` whose objects, those of a ThreadPool, may hold what is the program's."""


def is_of_kept(fn: Any, owner: object) -> bool:
    """Return whether a method of such an object, or one that it has of a mixin, stays within it."""
    of_base = not _KEPT_BASES.isdisjoint(type(owner).__mro__) and (type(fn) in BUILTINS or from_library(attribute(fn, "__func__", fn)))
    return type(owner) in KEPT or of_base or attribute(fn, "__module__") == "collections.abc" or (passes_on(type(owner)) and fn.__name__ not in _FILES)


MADE_AGAIN = frozenset({
    copy.copy, copy.deepcopy, functools.partial, functools.wraps, functools.update_wrapper, asyncio.timeout, asyncio.timeout_at,
    asyncio.get_running_loop, asyncio.get_event_loop, asyncio.current_task, asyncio.iscoroutine, asyncio.iscoroutinefunction, asyncio.isfuture,
    hashlib.new, importlib.import_module, threading.current_thread, threading.main_thread, threading.Lock, threading.RLock, sys._getframe,  # pyright: ignore[reportPrivateUsage]
    sys.exc_info, sys.exception, sys.exit, inspect.currentframe, inspect.stack, inspect.getgeneratorstate, contextvars.copy_context,
    contextvars.ContextVar, types.SimpleNamespace, csv.writer, csv.reader, ThreadPoolExecutor, as_completed, wait, warnings.catch_warnings,
    decimal.localcontext, decimal.getcontext, decimal.setcontext, decimal.Context, threading.local, random.SystemRandom, *KEPT, *TURNS,
})  # fmt: skip
PICKLES = frozenset({pickle.dumps, pickle.dump})
"""They find a function by its name, so no stand-in may be in its place."""
IN_MEMORY = frozenset({contextvars.ContextVar, type(hashlib.sha256()), type(csv.writer(io.StringIO())), type(csv.reader(()))})
"""Types of objects that a program makes again, with what it has done to them."""
RANDOM = frozenset({random.Random, random.SystemRandom})
CHANGE_NOTHING = frozenset({
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
    "attrs": "asdict astuple evolve fields has",
    "base64": "b64encode b64decode standard_b64encode standard_b64decode urlsafe_b64encode urlsafe_b64decode b32encode b32decode b16encode b16decode "
              "b85encode b85decode a85encode a85decode",
    "binascii": "hexlify unhexlify crc32",
    "calendar": "isleap leapdays monthrange timegm weekday",
    "codecs": "decode encode",
    "difflib": "get_close_matches",
    "email.utils": "formataddr getaddresses parseaddr parsedate_to_datetime",
    "fnmatch": "fnmatch fnmatchcase filter translate",
    "hmac": "new digest compare_digest",
    "html": "escape unescape",
    "ipaddress": "ip_address ip_interface ip_network",
    "json": "loads dumps",
    "os.path": "join split splitext splitdrive basename dirname isabs normcase normpath commonpath commonprefix",
    "pprint": "pformat",
    "re": "compile escape search match prefixmatch fullmatch sub subn findall finditer split",  # from CPython 3.15 on `match` is called the other
    "shlex": "join quote split",
    "string": "capwords",
    "struct": "calcsize iter_unpack pack unpack unpack_from",
    "textwrap": "wrap dedent indent shorten fill",
    "time": "mktime strptime",
    "tomllib": "loads",
    "unicodedata": "normalize category name lookup combining bidirectional east_asian_width decimal digit numeric",
    "urllib.parse": "quote quote_plus quote_from_bytes unquote unquote_plus unquote_to_bytes urlencode urljoin urlparse urlsplit urlunparse urlunsplit "
                    "urldefrag parse_qs parse_qsl",
    "uuid": "uuid3 uuid5",
    "xml.sax.saxutils": "escape quoteattr unescape",
    "xml.etree.ElementTree": "XML XMLID fromstring fromstringlist tostring tostringlist SubElement Comment indent iselement",
    "zlib": "adler32 compress crc32 decompress",
}  # fmt: skip
"""Python functions that only compute with their arguments: no files, no clock, no state. By name, because importing
them here would cost every program."""
COMPUTE = frozenset(
    "_bisect _heapq _operator _functools _hashlib abc ast bisect cmath collections contextlib csv dataclasses difflib "
    "enum functools heapq itertools math operator statistics typing weakref zoneinfo".split()
)
"""Modules whose functions and classes all do so, or define something."""
_SET_UP: Mapping[str, str] = {
    "asyncio": "set_event_loop set_event_loop_policy",
    "atexit": "register unregister",
    "codecs": "register register_error",
    "csv": "field_size_limit register_dialect unregister_dialect",
    "dotenv": "load_dotenv",
    "gc": "disable enable freeze set_threshold unfreeze",
    "locale": "setlocale",
    "logging.config": "dictConfig fileConfig",
    "mimetypes": "add_type",
    "numpy": "set_printoptions seterr",
    "os": "chdir fchdir umask putenv unsetenv",
    "pandas": "reset_option set_option",
    "resource": "setrlimit",
    "signal": "alarm pthread_sigmask setitimer siginterrupt signal",
    "socket": "setdefaulttimeout",
    "sys": "set_int_max_str_digits setprofile setrecursionlimit setswitchinterval settrace",
    "threading": "setprofile settrace stack_size",
    "time": "tzset",
}
"""Functions that set up the process for what a program does next: nothing of that outlives the process. Those that only read, or act, do not belong here."""


def _by_name(table: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    return {name: [module for module, names in table.items() if name in names.split()] for names in table.values() for name in names.split()}


_COMPUTING_BY_NAME, _SET_UP_BY_NAME = _by_name(_COMPUTING), _by_name(_SET_UP)
_SET_UP_OF = {
    type(os.environ): frozenset({"clear", "pop", "setdefault", "update"}),
    asyncio.AbstractEventLoop: frozenset({"add_signal_handler", "remove_signal_handler", "set_debug", "set_default_executor", "set_exception_handler"}),
}
"""Methods that do so, by the class of their object."""
_MAKE_DATES = frozenset({
    datetime.date.fromisoformat, datetime.date.fromordinal, datetime.date.fromisocalendar, datetime.time.fromisoformat,
    datetime.datetime.fromisoformat, datetime.datetime.fromordinal, datetime.datetime.fromisocalendar, datetime.datetime.combine,
})  # fmt: skip
CALL_BACK = frozenset({"sort", "sub", "subn", "sorted", "min", "max", "map", "filter", "iter"})
"""Methods of data and builtins that call a function passed to them. The others store or inspect it."""


def constructs(fn: Any) -> bool:
    """Return whether a function makes another object of its first argument's class, by calling that: a copy with some fields replaced."""
    return fn is dataclasses.replace or fn is getattr(sys.modules.get("attrs"), "evolve", dataclasses.replace)


def only_computes(fn: Any) -> bool:
    """Return whether it is a function of Python, or of attrs, whose result depends only on its arguments, and that changes nothing."""
    if type(fn) not in (types.FunctionType, types.BuiltinFunctionType, CACHED):
        return False
    if fn.__module__ in COMPUTE or (type(fn) is types.BuiltinFunctionType and fn in _MAKE_DATES):
        return True
    return _is_in(_COMPUTING_BY_NAME, fn)


def sets_up(fn: Any) -> bool:
    """Return whether it changes the process: its directory, its environment, its signals. A resumed run has to do that again, besides knowing the result."""
    owner = attribute(fn, "__self__")
    if any(isinstance(owner, cls) and fn.__name__ in names for cls, names in _SET_UP_OF.items()):
        return True
    return type(fn) in (types.FunctionType, types.BuiltinFunctionType) and _is_in(_SET_UP_BY_NAME, fn)


def _is_in(modules: Mapping[str, Sequence[str]], fn: Any) -> bool:
    name = fn.__name__.removeprefix("_path_")  # from CPython 3.13 on, os.path.normpath is posix._path_normpath
    return any(getattr(sys.modules.get(module), name, None) is fn for module in modules.get(name, ()))
