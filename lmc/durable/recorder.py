"""Recording of the calls and awaits of instrumented code: inspects each callee, makes its call again, follows it, or
answers it from the journal."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import csv
import dataclasses
import functools
import gc
import inspect
import io
import json
import pickle
import random
import sys
import threading
import types
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any, get_origin

from lmc.durable import mutations
from lmc.durable.calls import warn
from lmc.durable.computing import ComputingSearch, returns_functions
from lmc.durable.deferred import AROUND_HOST_CODE, inner_of
from lmc.durable.effects import CallKind, called_by_python, computes, is_idempotent, is_plain, kind_of, makes_coroutine
from lmc.durable.instrument import instrument, is_instrumented, twin
from lmc.durable.iterators import drawn
from lmc.durable.library import KEPT, MANAGERS, is_kept, is_of_kept, passes_on
from lmc.durable.reaches import attribute, class_names_language, contents, from_library, holds_language, inside, is_of_lmc, names_language, reaches
from lmc.durable.run import RunJournal
from lmc.errors import JournalError
from lmc.frontend import suspending
from lmc.frontend.expressions import caller_loc
from lmc.frontend.host import RECORDING, HostFunction
from lmc.frontend.state import State
from lmc.frontend.tools import asked_for, call_tool, result_of
from lmc.limits import Limits


class Recorder:
    """Records one program of a journaled run: its calls by the program's stream."""

    def __init__(self, journal: RunJournal, state: State, limits: Limits | None) -> None:
        self.journal, self.state, self.stream = journal, state, state.stream
        self.limits = limits if limits is not None and limits.timed else None
        self._callees: dict[int, tuple[Any, Any]] = {}

    # -- calls

    def callee(self, fn: Any) -> Any:
        """Return the replacement for `fn` in a call: itself, its instrumented twin, or a wrapper that records the
        call."""
        self.journal.progress += 1
        if type(attribute(fn, "__self__")) in _PLAIN:
            return fn
        if attribute(fn, "__name__", "") == "__await__" and inspect.isawaitable(awaitable := attribute(fn, "__self__")):
            return self.awaited(awaitable).__await__  # of `yield from tool().__await__()`
        known = self._callees.get(id(fn))
        if known is not None and known[0] is fn:
            return known[1]
        if type(fn) is functools.partial:
            return functools.partial(self.callee(fn.func), *fn.args, **fn.keywords)
        if (origin := get_origin(fn)) is not None:  # `dict[str, int]()`
            found = self.callee(origin)
            return fn if found is origin else found
        kind = kind_of(fn)
        if isinstance(fn, type) and kind in (CallKind.AGAIN, CallKind.OWN) and not is_of_lmc(fn):
            self.instrument_members(fn)
            kind = CallKind.OWN if is_plain(fn) else kind
        if (isinstance(fn, type) and is_kept(fn)) or (isinstance(fn, types.MethodType) and _makes_future(fn)):
            return functools.partial(self._kept, fn)
        if type(fn) in (types.BuiltinFunctionType, types.FunctionType, type) and fn in _WRITING:
            return functools.partial(self._writes, fn)
        if type(fn) in (types.BuiltinFunctionType, types.FunctionType) and fn in _COPYING:
            return functools.partial(self._copied, fn)
        owner = attribute(fn, "__self__")
        if owner is not None and is_of_kept(fn, owner) and kind is not CallKind.PASSES_ON and self.journal.effects.has_made(owner):
            return (lambda *args, **kwargs: self._passed_on(fn, args, kwargs)) if passes_on(type(owner)) else fn
        if kind is CallKind.EITHER and isinstance(fn, types.FunctionType | types.MethodType) and self._only_computes(fn):
            kind = CallKind.OWN
        found = fn if kind is CallKind.AGAIN else self.own(fn) if kind is CallKind.OWN else _Call(self, fn, kind)
        if isinstance(fn, types.FunctionType | type | HostFunction) and "<locals>" not in attribute(
            fn, "__qualname__", ""
        ):  # others would live longer than in Python
            self._callees[id(fn)] = fn, found
        return found

    def _kept(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        """Make an object of Python that lives in memory. Random numbers are the same again only if they have a seed."""
        made = self._passed_on(make, args, kwargs)
        if make is not random.Random or (args and args[0] is not None):
            self.journal.effects.keep(made)
        return made

    def _copied(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Copy an object, or make one without a constructor: the instances of the user's classes in it that it did not take over are the program's."""
        made = fn(*args, **kwargs)
        old = {id(x) for x in _instances_in(args)}
        for x in _instances_in([made]):
            if id(x) not in old:
                self.journal.effects.keep(x)
        return made

    def _writes(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what writes to a file, or makes a writer: an effect unless the file is in memory of the run, or it would be written again."""
        at, name = _WRITING[fn]
        to = args[at] if at < len(args) else kwargs.get(name) or (sys.stdout if fn is print else None)
        known = isinstance(to, io.StringIO) and self.journal.effects.has_made(to)
        return fn(*args, **kwargs) if known else self.made(fn, CallKind.EFFECT, args, kwargs)

    def _only_computes(self, fn: Any) -> bool:
        """Return whether a call only computes on objects that the program makes: a method of one, or what makes one, or a
        function."""
        function, owner = attribute(fn, "__func__", fn), attribute(fn, "__self__")
        if not isinstance(function, types.FunctionType) or from_library(function):
            return False
        if owner is not None and self.journal.effects.has_made(owner):
            return ComputingSearch(computes, type(owner)).only_computes(function)
        if returns_functions(function.__code__) and ComputingSearch(lambda _: True).only_computes(function):
            return True  # a factory of decorators: what its functions call is recorded when they are called
        if owner is not None and not (isinstance(owner, type) and is_plain(owner)):
            return False
        defines = any(isinstance(x, types.CodeType) and not x.co_name.startswith("<") for x in function.__code__.co_consts)
        search = ComputingSearch(computes, owner or object, known=not defines, made=defines or owner is not None, kept=KEPT)
        return search.only_computes(function) and search.made

    def forget(self) -> None:
        """Release the program's objects at its end."""
        self._callees.clear()

    def call(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call of a marked function from uninstrumented code."""
        kind = kind_of(fn)
        made = self.made(fn, kind, args, kwargs)
        return self.awaited(made) if kind is CallKind.MAKES_COROUTINE else made

    def made(self, fn: Any, kind: CallKind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call of any function but the program's own, by its kind; return the result."""
        if kind is CallKind.CALLS_BACK:
            return self._called_back(fn, args, kwargs)
        if kind is CallKind.PASSES_ON:
            return self._passed_on(fn, args, kwargs)
        if fn is asyncio.run and args and _is_own_awaitable(args[0]):
            return fn(_on_own_loop(args[0]), *args[1:], **kwargs)
        task = self.journal.task(self.stream, fn, args, kwargs, caller_loc(), self._is_own)
        if task is not None:
            return task
        if kind is not CallKind.EFFECT and reaches((fn, *args, *kwargs.values())):
            return self._handed_language(fn, args, kwargs)
        if kind is CallKind.MAKES_COROUTINE or attribute(fn, "__self__") in self.journal.effects.tasks:
            with beyond_hooks():
                result = fn(*args, **kwargs)
            if is_idempotent(fn) or (
                fn is asyncio.to_thread and args and (is_idempotent(args[0]) or kind_of(args[0]) in (CallKind.AGAIN, CallKind.CALLS_BACK))
            ):
                self.journal.note_coroutine(result)
            return result
        return self._recorded(fn, args, kwargs)

    def _recorded(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record an effect. Raises JournalError if it was passed the program's own coroutines."""
        args, kwargs = tuple([drawn(x, self.going_on) for x in args]), {name: drawn(x, self.going_on) for name, x in kwargs.items()}
        made: list[bool] = []
        if (fn is eval or fn is exec) and len(args) == 1:
            frame = program_frame()
            call = lambda: fn(*args, frame.f_globals, frame.f_locals)
        else:
            call = lambda: fn(*args, **kwargs)

        def make() -> tuple[bool, Any]:
            made.append(True)
            try:
                with beyond_hooks():
                    return True, call()
            except BaseException as error:  # raised again below
                return False, error

        loc, owner = caller_loc(), attribute(fn, "__self__")
        of, given = (
            (fn.__func__, (owner, *args))
            if isinstance(attribute(fn, "__func__"), HostFunction)
            else (fn, (owner, *args) if mutations.is_object(owner) or self.journal.effects.has_made(owner) else args)
        )
        ok, value = self.journal.call(self.stream, self.state, of, given, kwargs, make, loc)
        if not made and any(map(_is_own_awaitable, (*args, *kwargs.values()))):
            raise JournalError(
                f"{attribute(fn, '__qualname__', fn)}() was passed tasks of the program's own, and what they did to states is something "
                "which a journal cannot hold, so the run cannot be resumed behind it", loc=loc)  # fmt: skip
        if ok:
            return value
        try:
            raise value
        finally:
            del value  # or its traceback would hold itself

    def _called_back(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that only computes, or stores functions: the functions passed to it are instrumented."""
        if fn is call_tool:  # under the name of the tool
            tool, given = asked_for(*args)
            return result_of(self.callee(tool)(**given))
        with_classes = attribute(fn, "__name__", "") in _TAKES_CLASSES
        look = lambda x: _named(self.callee(x), x) if isinstance(x, _FUNCTIONS) or (with_classes and isinstance(x, type)) else x
        result = fn(*map(look, args), **{name: look(x) for name, x in kwargs.items()})
        if is_kept(type(result)):
            self.journal.effects.keep(result)
        return result

    def _handed_language(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call that is passed a state or a function of the program: of one more of the program's own functions,
        or of a library's, which is made again."""
        function = attribute(fn, "__func__", fn)
        if isinstance(function, HostFunction):
            return self._recorded(fn, args, kwargs)
        if isinstance(function, types.FunctionType) and not from_library(function):
            return self.own(fn)(*args, **kwargs)
        if isinstance(fn, type) and not from_library(fn):
            return self.own(fn)(*args, **kwargs)
        call = getattr(type(fn), "__call__", None)  # noqa: B004
        if isinstance(call, types.FunctionType) and not from_library(type(fn)) and not isinstance(fn, type | types.FunctionType | types.MethodType):
            return self.own(fn)(*args, **kwargs)
        result = self._passed_on(self._wrapper(fn), args, kwargs)
        if not isinstance(result, types.CoroutineType):
            return result
        through = _through(result)
        through.__name__ = result.__name__  # by which its task is numbered
        return through

    def _passed_on(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return fn(*map(self.callback, args), **{name: self.callback(x) for name, x in kwargs.items()})

    def callback(self, fn: Any) -> Any:
        """Return the function to pass to uninstrumented code: recorded wherever it is called, on other threads, too."""
        if isinstance(fn, type) and is_plain(fn) and not is_of_lmc(fn):
            return _Constructor(self, fn)
        if not isinstance(fn, _FUNCTIONS):
            return fn
        found, path = self.callee(fn), self.journal.effects.callbacks.path()
        if makes_coroutine(fn):

            @functools.wraps(fn)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self.going_on(), self.journal.effects.callbacks.within(path, args, kwargs):
                    return await self.awaited(found(*args, **kwargs))

            return awaited

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            with self.going_on(), self.journal.effects.callbacks.within(path, args, kwargs):
                return found(*args, **kwargs)

        return within

    def _wrapper(self, fn: Any) -> Any:
        """Return a library's function with what it holds of the program's own recorded, as a decorator's wrapper does
        the function that it wraps: in its closure and its defaults."""
        if isinstance(fn, types.MethodType):
            return types.MethodType(self._wrapper(fn.__func__), fn.__self__)
        if not isinstance(fn, types.FunctionType):
            return fn
        within = attribute(fn, "__wrapped__")
        if isinstance(within, types.FunctionType) and all(x is not within for x in inside(fn)) and self._leaves_traces(within):
            warn(f"a library's decorator hides {within.__qualname__}(): what it calls is called again when the run is resumed. Leave the decorator away, or "
                 "mark what it calls @lmc.host, which records it wherever it is called", caller_loc())  # fmt: skip
        look = lambda x: self.callback(x) if x is not fn and reaches((x,)) else x
        closure = [cell if not (held := contents(cell)) or look(*held) is held[0] else types.CellType(look(*held)) for cell in fn.__closure__ or ()]
        made = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__ and tuple(map(look, fn.__defaults__)), tuple(closure))
        made.__kwdefaults__ = fn.__kwdefaults__ and {name: look(x) for name, x in fn.__kwdefaults__.items()}
        made.__qualname__ = fn.__qualname__
        return made

    def _leaves_traces(self, fn: types.FunctionType) -> bool:
        """Return whether a function of the program does more than compute."""
        return names_language(fn) and not ComputingSearch(computes).only_computes(fn)

    # -- functions of the program's own

    def own(self, fn: Any) -> Any:
        if isinstance(fn, types.FunctionType):
            manager = MANAGERS.get(fn.__code__)
            return self._twin(fn) if manager is None else manager(self._twin(fn.__wrapped__))  # type: ignore[attr-defined]
        if isinstance(fn, types.MethodType):
            return types.MethodType(self._twin(fn.__func__), fn.__self__)
        return self._constructor(fn) if isinstance(fn, type) else types.MethodType(self._twin(type(fn).__call__), fn)

    def _twin(self, fn: Any) -> types.FunctionType:
        return fn if is_instrumented(fn.__code__) else twin(fn, self.journal.deciding)

    def instrument_members(self, cls: type) -> None:
        """Instrument what Python calls by itself of a class, in place: no call of the program's could be replaced by a
        twin. Raises JournalError if there is no source, unless it only computes."""
        if cls in _with_members or from_library(cls):
            return
        for fn in called_by_python(cls):
            try:
                instrument(fn, self.journal.deciding)
            except JournalError:
                if not ComputingSearch(computes, cls).only_computes(fn):
                    raise
        _with_members.add(cls)

    def _constructor(self, cls: type) -> Callable[..., Any]:
        """Return a function that makes instances of a class as `type` does, with its `__init__` instrumented."""
        self.instrument_members(cls)
        init = cls.__init__

        def make(*args: Any, **kwargs: Any) -> Any:
            if type(cls).__call__ is not type.__call__:
                return cls(*args, **kwargs)
            instance = object.__new__(cls) if cls.__new__ is object.__new__ and cls.__init__ is not object.__init__ else cls.__new__(cls, *args, **kwargs)
            if cls not in type(instance).__mro__:
                return instance
            self.journal.effects.keep(instance)
            if not isinstance(init, types.FunctionType) or from_library(init):
                init(instance, *args, **kwargs)
            elif not init.__code__.co_filename.startswith("<"):
                self._twin(init)(instance, *args, **kwargs)
            else:
                self._generated(init, cls)(instance, *args, **kwargs)
            return instance

        return make

    def _generated(self, init: types.FunctionType, cls: Any) -> Callable[..., None]:
        """Return the `__init__` that Python has generated for a dataclass with the calls of its default factories recorded."""
        factories = [f.default_factory for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
        look = lambda x: self.callee(x) if any(x is factory for factory in factories) and not _only_makes_data(x) else x
        closure = [types.CellType(*map(look, contents(cell))) for cell in init.__closure__ or ()]
        made = types.FunctionType(init.__code__, init.__globals__, init.__name__, init.__defaults__, tuple(closure))
        made.__kwdefaults__ = init.__kwdefaults__
        return made

    # -- awaits

    def awaited(self, x: Any) -> Any:
        """Return the replacement for an awaitable: itself, if it is the program's own."""
        self.journal.progress += 1
        if self._is_own(x):
            return x
        loc = caller_loc()
        x = self.journal.wait(self.stream, x, loc)
        return _as_host(x if self.limits is None else self.limits.wait(x, loc))

    def _is_own(self, x: Any) -> bool:
        """Return whether awaiting something runs code of the program's own, or waits for it."""
        return _is_own_awaitable(x) or self.journal.waits_for_program(x)

    def managed(self, x: Any) -> Any:
        """Return the replacement for a manager: itself, unless its methods are the program's own."""
        self.journal.progress += 1
        cls = type(x)
        names = ("__enter__", "__exit__") if hasattr(cls, "__enter__") else ("__aenter__", "__aexit__")
        methods = [getattr(cls, name, None) for name in names]
        own = all(isinstance(m, types.FunctionType) and not is_instrumented(m.__code__) for m in methods) and not from_library(cls) and not is_of_lmc(cls)
        if not own or not (class_names_language(cls) or holds_language(x) or self.journal.effects.has_made(x)):
            return x
        enter, leave = [types.MethodType(self._twin(m), x) for m in methods]
        return type("Managed", (), dict(zip(names, (lambda _: enter(), lambda _, *error: leave(*error)), strict=True)))()

    def asked(self, question: str, schema: str) -> Any:
        return self.journal.asked(self.stream, question, schema, caller_loc())

    def decided(self, loc: str, test: str, answer: bool) -> None:
        self.journal.decided(loc, test, answer)

    @contextlib.contextmanager
    def going_on(self) -> Generator[None]:
        """Turn hooks on within host code: the block runs the program's code."""
        token = RECORDING.set(self)
        try:
            yield
        finally:
            RECORDING.reset(token)


class _Call:
    """Replaces a function in a call that must be inspected."""

    __slots__ = ("__dict__", "fn", "kind", "recorder")

    def __init__(self, recorder: Recorder, fn: Any, kind: CallKind) -> None:
        self.recorder, self.fn, self.kind = recorder, fn, kind

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.recorder.made(self.fn, self.kind, args, kwargs)

    def __str__(self) -> str:
        """Return Python's name of the function, for calls that it rejects."""
        name, module = attribute(self.fn, "__qualname__"), attribute(self.fn, "__module__")
        return str(self.fn) if name is None else f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


_WRITING: Mapping[Any, tuple[int, str]] = {csv.writer: (0, "f"), csv.DictWriter: (0, "f"), print: (sys.maxsize, "file"), json.dump: (1, "fp")}
"""Functions that write to a file, with its place among their arguments."""


_COPYING = frozenset({copy.copy, copy.deepcopy, dataclasses.replace, pickle.loads, object.__new__})
_PLAIN_DATA = frozenset({str, int, float, bool, bytes, type(None)})


def _instances_in(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the instances of the user's classes, and of kept ones, that values are or hold."""
    left, seen = [*values], set[int]()
    while left:
        x = left.pop()
        if id(x) in seen or type(x) in _PLAIN_DATA:
            continue
        seen.add(id(x))
        if is_kept(type(x)) or not (isinstance(x, type) or from_library(type(x)) or is_of_lmc(type(x))):
            yield x
        left += inside(x)


def _only_makes_data(fn: Any) -> bool:
    search = ComputingSearch(computes, kept=KEPT)
    return isinstance(fn, types.FunctionType) and search.only_computes(fn) and not search.made


def _makes_future(fn: types.MethodType) -> bool:
    return fn.__name__ == "create_future" and isinstance(fn.__self__, asyncio.AbstractEventLoop)


_with_members = weakref.WeakSet[type]()
"""Classes of the user's whose members that Python calls by itself are instrumented."""


class _Constructor:
    """Replaces a class that is passed to uninstrumented code, which makes instances: the program's, like those that it makes."""

    __slots__ = ("cls", "recorder")

    def __init__(self, recorder: Recorder, cls: type) -> None:
        self.recorder, self.cls = recorder, cls

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with self.recorder.going_on():
            return self.recorder.callee(self.cls)(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.cls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cls, name)  # such as its name, in messages

    def __copy__(self) -> _Constructor:
        return self

    def __deepcopy__(self, memo: object) -> _Constructor:
        return self  # as a class, which is never copied: not the run, and its journal's file

    def __reduce__(self) -> Any:
        return _class_itself, (self.cls,)


def _class_itself(cls: type) -> type:
    return cls


def _named(found: Any, fn: Any) -> Any:
    """Return what is called in place of a function, with its name and signature: it may be kept, or looked at."""
    return functools.update_wrapper(found, fn) if isinstance(found, _Call) else found


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, HostFunction)
_PLAIN = frozenset({State, str, dict, set, int, float, bytes})
"""Types none of whose methods call a function passed to them."""
_TAKES_CLASSES = frozenset({
    "map", "filter", "sorted", "min", "max", "sort", "reduce", "starmap", "accumulate", "groupby", "merge", "nlargest", "nsmallest", "call", "loads", "sub",
})  # fmt: skip
"""Functions that call a class passed to them as a function."""


@contextlib.contextmanager
def recording(fn: Callable[..., Any], described: str, journal: RunJournal, state: State, limits: Limits | None) -> Generator[Callable[..., Any]]:
    """Yield the function of a program instrumented, while it runs in a journaled run with `state`. Raises JournalError
    if it cannot be."""
    recorder = Recorder(journal, state, limits)
    if not state.stream:
        journal.thread = threading.get_ident()
    function = fn.__func__ if isinstance(fn, types.MethodType) else fn
    if not isinstance(function, types.FunctionType):
        raise JournalError(f"{described} cannot be journaled: it is not a function with a source, but a {type(fn).__name__}")
    found = recorder.own(function)
    if isinstance(fn, types.MethodType):
        found = types.MethodType(found, fn.__self__)
    try:
        with recorder.going_on():
            yield found
    finally:
        recorder.forget()


def program_frame() -> types.FrameType:
    """Return the frame of the program, which calls this through lmc's frames."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


@contextlib.contextmanager
def beyond_hooks() -> Generator[None]:
    """Turn hooks off: the block runs host code."""
    token = RECORDING.set(None)
    try:
        yield
    finally:
        RECORDING.reset(token)


async def _as_host(awaitable: Awaitable[Any]) -> Any:
    with beyond_hooks():
        return await awaitable


async def _on_own_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine of the program on a loop that it runs by itself."""
    suspending.prepare()
    return await coroutine


async def _through(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a library's coroutine that runs the program's own functions."""
    return await coroutine


# -- the program's own objects ---------------------------------------------------------------------------------------

_PACKAGE = __file__.rsplit("durable", 1)[0]


def is_own_coroutine(x: Any) -> bool:
    """Return whether something is a coroutine of the program's own functions, or of programs."""
    x = inner_of(x)
    if not isinstance(x, types.CoroutineType):
        return False
    return is_instrumented(x.cr_code) or x.cr_code in _STACKING or (x.cr_code.co_filename.startswith(_PACKAGE) and x.cr_code not in AROUND_HOST_CODE)


def _is_own_awaitable(x: Any) -> bool:
    """Return whether awaiting something runs code of the program's own: its coroutine or asynchronous generator, or an
    object with an `__await__` of its own."""
    if type(x).__name__ == "anext_awaitable":  # of `anext(…, default)`
        return any(map(_is_own_awaitable, gc.get_referents(x)))
    method = getattr(type(x), "__await__", None)
    return is_own_coroutine(x) or _is_turn_of_own_generator(x) or (isinstance(method, types.FunctionType) and is_instrumented(method.__code__))


_STACKING = frozenset(fn.__code__ for fn in vars(contextlib.AsyncExitStack).values() if inspect.iscoroutinefunction(fn))
_MANAGING = frozenset(
    getattr(contextlib._AsyncGeneratorContextManager, name).__code__  # pyright: ignore[reportPrivateUsage]
    for name in ("__aenter__", "__aexit__")
)


def _is_own_generator(x: Any) -> bool:
    return isinstance(x, types.AsyncGeneratorType) and is_instrumented(x.ag_code)


def _is_turn_of_own_generator(x: Any) -> bool:
    """Return whether something advances an async generator of the program's own: the result of `anext` or `asend`, or
    its manager's methods."""
    if isinstance(x, types.CoroutineType):
        return x.cr_code in _MANAGING and _is_own_generator(getattr(inspect.getcoroutinelocals(x).get("self"), "gen", None))
    return type(x).__name__ in ("async_generator_asend", "async_generator_athrow") and any(map(_is_own_generator, gc.get_referents(x)))
