"""Recording of the calls and awaits of instrumented code: inspects each callee, makes its call again, follows it, or
answers it from the journal."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import csv
import functools
import inspect
import io
import json
import logging
import os
import pickle
import random
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, get_origin

from lmc.contexts import having
from lmc.durable import mutations, twins
from lmc.durable.call_records import name_of, shown_call
from lmc.durable.calls import warn
from lmc.durable.completion import OF_FUTURES, ManagedGroup, ManagedLock, ManagedTimeout, called_later
from lmc.durable.computing import ComputingSearch, returns_functions
from lmc.durable.dispatching import implementation, is_dispatching
from lmc.durable.effects import CallKind, begins_tasks, computes, is_idempotent, is_plain, kind_of, makes_coroutine
from lmc.durable.instrument import is_instrumented
from lmc.durable.iterators import LAZY, SharedIterator, drawn
from lmc.durable.library import KEPT, calls_in_process, constructs, is_kept, is_of_kept, passes_on, sets_up
from lmc.durable.own_code import is_own_awaitable, program_frame
from lmc.durable.own_waits import WAITED_FOR
from lmc.durable.reaches import attribute, class_names_language, contents, from_library, holds_language, inside, is_of_lmc, names_language, reaches, walk
from lmc.durable.run import RunJournal
from lmc.durable.stand_ins import CLOSING, RecordedClass, RecordedFunction, like
from lmc.errors import JournalError
from lmc.frontend import suspending
from lmc.frontend.expressions import caller_loc
from lmc.frontend.host import RECORDING, HostFunction
from lmc.frontend.source import as_written
from lmc.frontend.state import State
from lmc.frontend.tools import asked_for, call_tool, result_of
from lmc.limits import Limits

log = logging.getLogger("lmc.journal")


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
        if type(attribute(fn, "__self__")) in _PLAIN and (type(fn) is not types.MethodType or is_of_lmc(fn.__func__)):  # else a function of the user's
            return fn
        if attribute(fn, "__name__", "") == "__await__" and inspect.isawaitable(awaitable := attribute(fn, "__self__")):
            return self.awaited(awaitable).__await__  # of `yield from tool().__await__()`
        if type(fn) is types.MethodWrapperType and fn.__name__ == "__call__":  # of a function: `tool.__call__(x)`
            return self.callee(fn.__self__)
        known = self._callees.get(id(fn))
        if known is not None and known[0] is fn:
            return known[1]
        if type(fn) is functools.partial:
            return functools.partial(self.callee(fn.func), *fn.args, **fn.keywords)
        if isinstance(owner := attribute(fn, "__self__"), WAITED_FOR) and (ending := self.journal.effects.waits.ending(fn, owner)) is not fn:
            return ending
        if type(fn) is types.FunctionType and fn in OF_FUTURES:
            return lambda *args, **kwargs: OF_FUTURES[fn](self.journal, self.stream, caller_loc(), *args, **kwargs)
        if is_dispatching(fn):
            return lambda *args, **kwargs: self.callee(implementation(fn, args))(*args, **kwargs) if args else fn(**kwargs)
        if (origin := get_origin(fn)) is not None:  # `dict[str, int]()`
            found = self.callee(origin)
            return fn if found is origin else found
        kind = kind_of(self._as_written(fn))
        if isinstance(fn, type) and kind in (CallKind.AGAIN, CallKind.OWN) and not is_of_lmc(fn):
            self.based(fn)
            kind = CallKind.OWN if is_plain(fn) else kind
            bare = fn.__init__ is object.__init__ and fn.__new__ is object.__new__
            if kind is CallKind.AGAIN and not from_library(fn) and (bare or is_instrumented(attribute(fn.__init__, "__code__"))):
                return functools.partial(self._kept, fn)  # of a subclass of a library's
        if (isinstance(fn, type) and is_kept(fn)) or (isinstance(fn, types.MethodType) and _makes_future(fn)):
            return functools.partial(self._kept, fn)
        if isinstance(owner, asyncio.AbstractEventLoop) and attribute(fn, "__name__") in ("call_later", "call_at"):
            return lambda *args, **kwargs: self._passed_on(functools.partial(called_later, self.journal, fn), args, kwargs)
        if isinstance(fn, types.MethodType) and fn.__name__ == "run_in_executor" and isinstance(fn.__self__, asyncio.AbstractEventLoop):
            return functools.partial(self._run_in_executor, fn)
        if type(fn) is types.FunctionType and fn in _OF_THREADS:  # `Thread.__init__(self, …)`
            return lambda thread, *args, **kwargs: self.callee(types.MethodType(fn, thread))(*args, **kwargs)
        owner = attribute(fn, "__self__")
        if attribute(fn, "__name__") == "__init__" and owner is not None and not isinstance(owner, type) and not from_library(type(owner)):
            self.journal.effects.keep(owner)  # the program makes it: `super().__init__()` of a library's class
        if isinstance(owner, threading.Thread) and attribute(fn, "__func__") is threading.Thread.start and not from_library(type(owner)):
            return functools.partial(self._started, owner) if self.journal.effects.has_made(owner) else RecordedFunction(self, fn, CallKind.EITHER)
        if fn is contextlib.closing or fn is contextlib.aclosing:
            return lambda thing: CLOSING[fn](self, thing) if self.journal.effects.has_made(thing) else fn(thing)
        if type(fn) in (types.BuiltinFunctionType, types.FunctionType, type) and fn in _WRITING:
            return functools.partial(self._writes, fn)
        if type(fn) in (types.BuiltinFunctionType, types.FunctionType) and (fn in _COPYING or constructs(fn)):
            return functools.partial(self._copied, fn)
        if owner is not None and is_of_kept(fn, owner) and kind is not CallKind.PASSES_ON and self.journal.effects.has_made(owner):
            return (lambda *args, **kwargs: self._passed_on(fn, args, kwargs)) if passes_on(type(owner)) else fn
        if kind in (CallKind.EITHER, CallKind.MAKES_COROUTINE) and self._only_computes(fn):
            kind = CallKind.OWN
        found = fn if kind is CallKind.AGAIN else self.own(fn) if kind is CallKind.OWN else RecordedFunction(self, fn, kind)
        if isinstance(fn, types.FunctionType | type | HostFunction) and "<locals>" not in attribute(
            fn, "__qualname__", ""
        ):  # others would live longer than in Python
            self._callees[id(fn)] = fn, found
        return found

    def _as_written(self, fn: Any) -> Any:
        """Return a method that is instrumented in place, since a library's class calls it, without that, if the program's own call of it is an effect: one
        of an object that the program has not made, or that reads or changes what is outside."""
        function, owner = attribute(fn, "__func__", fn), attribute(fn, "__self__")
        code = as_written.get(id(attribute(function, "__code__")))
        if code is None or fn.__name__.startswith("__"):  # the latter for operators, which are no calls
            return fn
        if owner is not None and self.journal.effects.has_made(owner) and ComputingSearch(lambda _: True, type(owner)).only_computes(function):
            return fn
        written = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        return written if owner is None else types.MethodType(written, owner)

    def _kept(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        """Make an object of Python that lives in memory. Random numbers are the same again only if they have a seed."""
        made = self._passed_on(make, args, kwargs)
        if make is not random.Random or (args and args[0] is not None):
            self.journal.effects.keep(made)
        return made

    def _run_in_executor(self, run: Any, executor: Any, *args: Any) -> Any:
        """Have a function called on another thread, as by `submit`; a call on another process is an effect."""
        if executor is not None and not isinstance(executor, ThreadPoolExecutor):
            return self.made(run, CallKind.EITHER, (executor, *args), {})
        return self.journal.effects.tasks.add(self._passed_on(run, (executor, *args), {}))

    def _started(self, thread: threading.Thread) -> None:
        """Start a thread of a class of the program's: its `run` is the program's own code."""
        if not from_library(type(thread).run):
            run = self._within(self.own(thread.run))
            thread.run = lambda: (vars(thread).pop("run"), run())[1]
        thread.start()

    def _copied(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Copy an object, or make one without a constructor: the instances of the user's classes in it that it did not take over are the program's."""
        if args and constructs(fn) and not computes(type(args[0])):
            return self.made(fn, CallKind.EITHER, args, kwargs)
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
        if self.journal.effects.has_made(fn):
            function, owner = getattr(type(fn), "__call__", None), fn  # noqa: B004
        if not isinstance(function, types.FunctionType) or from_library(function):
            return False
        if owner is not None and self.journal.effects.has_made(owner):
            return ComputingSearch(lambda x: computes(x) or begins_tasks(x), type(owner)).only_computes(function)
        if returns_functions(function.__code__) and ComputingSearch(lambda _: True).only_computes(function):
            return True  # a factory of decorators: what its functions call is recorded when they are called
        if owner is not None and not (isinstance(owner, type) and is_plain(owner)):
            return False
        defines = any(isinstance(x, types.CodeType) and not x.co_name.startswith("<") for x in function.__code__.co_consts)
        search = ComputingSearch(computes, owner or object, known=not defines, made=defines or owner is not None, kept=KEPT)
        return search.only_computes(function) and search.made

    def __reduce__(self) -> str:
        """Refuse the functions that record their calls to a library that takes them apart to send them to another process."""
        raise JournalError("a function of a program was given to another process, where a journaled run cannot record what it calls: do this in a function "
                           "marked @lmc.host, whose result is recorded as a whole")  # fmt: skip

    def forget(self) -> None:
        """Release the program's objects at its end."""
        self._callees.clear()
        if self.journal.on_threads:
            self.journal.effects.threads.leave()

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
        if fn is asyncio.run and args and is_own_awaitable(args[0]):
            return fn(_on_own_loop(args[0]), *args[1:], **kwargs)
        task = self.journal.task(self.stream, fn, args, kwargs, caller_loc(), self._is_own)
        if task is not None:
            return task
        passed = (fn, *args, *kwargs.values())
        if kind is not CallKind.EFFECT and (reaches(passed) or self._waits_for_tasks(passed)) and not calls_in_process(fn, args, kwargs):
            return self._passed_language(fn, args, kwargs)
        if kind is CallKind.MAKES_COROUTINE or attribute(fn, "__self__") in self.journal.effects.tasks:
            with beyond_hooks():
                result = fn(*args, **kwargs)
            if is_idempotent(fn) or (
                fn is asyncio.to_thread and args and (is_idempotent(args[0]) or kind_of(args[0]) in (CallKind.AGAIN, CallKind.CALLS_BACK))
            ):
                self.journal.note_coroutine(result)
            return result
        return self._recorded(fn, args, kwargs)

    def _waits_for_tasks(self, passed: Sequence[Any]) -> bool:
        """Return whether a call of a function of the user's is passed tasks of the program, which it can only wait for, or cancel."""
        fn = attribute(passed[0], "__func__", passed[0])
        return isinstance(fn, types.FunctionType) and not from_library(fn) and self.journal.effects.tasks.any_in(passed[1:])

    def _recorded(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record an effect. Raises JournalError if it was passed the program's own coroutines."""
        moves = (again := sets_up(fn)) and fn.__name__ in ("chdir", "fchdir")
        if again:
            args = tuple([[*x] if isinstance(x, LAZY) else x for x in args])
        args, kwargs = tuple([drawn(x, self.going_on) for x in args]), {name: drawn(x, self.going_on) for name, x in kwargs.items()}
        made: list[bool] = []
        if (fn is eval or fn is exec) and len(args) == 1:
            frame = program_frame()
            call = lambda: fn(*args, frame.f_globals, frame.f_locals)
        elif moves:
            call = lambda: (fn(*args, **kwargs), os.getcwd())[1]  # known as the directory that it reached, which another process finds, too
        else:
            call = lambda: fn(*args, **kwargs)

        def make() -> tuple[bool, Any]:
            made.append(True)
            try:
                with beyond_hooks():
                    return True, call()
            except BaseException as error:  # raised again below
                return False, error

        loc = caller_loc()
        owner = fn if mutations.is_object(fn) else attribute(fn, "__self__")  # `model(x)` may change the model, as a method does
        if owner is None and attribute(fn, "__name__") == "__init__" and args and not from_library(type(args[0])):
            self.journal.effects.keep(args[0])  # as in `callee`, of `Parser.__init__(self)`
        of, given = (
            (fn.__func__, (owner, *args))
            if isinstance(attribute(fn, "__func__"), HostFunction)
            else (fn, (owner, *args) if mutations.is_object(owner) or self.journal.effects.has_made(owner) else args)
        )
        ok, value = self.journal.call(self.stream, self.state, of, given, kwargs, make, loc)
        if not made and any(map(is_own_awaitable, (*args, *kwargs.values()))):
            raise JournalError(
                f"{attribute(fn, '__qualname__', fn)}() was passed tasks of the program's own, and what they did to states is something "
                "which a journal cannot hold, so the run cannot be resumed behind it", loc=loc)  # fmt: skip
        if ok and again and not made:
            self._set_up_again(fn, args, kwargs, value if moves else None)
        if ok:
            return None if moves else value.items if isinstance(value, SharedIterator) else value
        try:
            raise value
        finally:
            del value  # or its traceback would hold itself

    def _set_up_again(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], directory: str | None) -> None:
        """Make a call whose result is known again, for what it does to the process."""
        try:
            with beyond_hooks():
                os.chdir(directory) if directory else fn(*args, **kwargs)
        except Exception as error:
            log.warning("%s(%s) set up the process, and cannot be made again in the resumed run: %r", name_of(fn), shown_call(args, kwargs), error)

    def _called_back(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that only computes, or stores functions: the functions passed to it are instrumented."""
        if fn is call_tool:  # under the name of the tool
            tool, given = asked_for(*args)
            return result_of(self.callee(tool)(**given))
        name = attribute(fn, "__name__", "")
        if with_classes := name in _TAKES_CLASSES:
            args = args if name in _BY_KEYWORD else _first_as_function(args)
            kwargs = {name: _as_function(x) for name, x in kwargs.items()}
        look = lambda x: _named(self.callee(x), x) if isinstance(x, _FUNCTIONS) or (with_classes and isinstance(x, type)) else x
        result = fn(*map(look, args), **{name: look(x) for name, x in kwargs.items()})
        if is_kept(type(result)):
            self.journal.effects.keep(result)
        return result

    def _passed_language(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
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
        for cls in {type(x) for x in _instances_in((attribute(fn, "__self__"), *args, *kwargs.values())) if not is_kept(type(x))}:
            twins.instrument_methods(self.journal, cls)
        result = self._passed_on(self._wrapper(fn), args, kwargs)
        if not isinstance(result, types.CoroutineType):
            return result
        through = _through(result)
        through.__name__ = result.__name__  # by which its task is numbered
        return through

    def _passed_on(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        called = args if attribute(fn, "__name__") in _ENTERS else _first_as_function(args)
        named = {name: self._given(x, _as_function(x) if name in _CALLED else x) for name, x in kwargs.items()}
        self.journal.effects.threads.leave()  # it may wait for what they do
        made = fn(*map(self._given, args, called), **named)
        if isinstance(made, types.GeneratorType) and isinstance(attribute(fn, "__self__"), ThreadPoolExecutor):
            return self._gone_through(made)
        return self.journal.effects.tasks.made_on_thread(made) if isinstance(made, Future) else made

    def _gone_through(self, results: Generator[Any, Any, Any]) -> Generator[Any]:
        """Yield what `pool.map` does, which waits for what threads do."""
        with contextlib.closing(results):
            self.journal.effects.threads.leave()
            for x in results:
                yield x
                self.journal.effects.threads.leave()

    def _given(self, x: Any, called: Any) -> Any:
        """Return what to pass to uninstrumented code for `x`, which that calls as the function `called`, if that is another object."""
        found = self.callback(called)
        return found if called is x else like(x, found)

    def callback(self, fn: Any) -> Any:
        """Return the function to pass to uninstrumented code: recorded wherever it is called, on other threads, too."""
        if isinstance(fn, type) and is_plain(fn) and not is_of_lmc(fn):
            return RecordedClass(self, fn)
        if not isinstance(fn, _FUNCTIONS):
            return fn
        found = self.callee(fn)
        if makes_coroutine(fn):
            path = self.journal.effects.callbacks.path()

            @functools.wraps(fn)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self.going_on(), self.journal.effects.callbacks.within(path, args, kwargs):
                    return await self.awaited(found(*args, **kwargs))

            return awaited
        return self._within(found, fn)

    def _within(self, found: Any, fn: Any = None) -> Any:
        """Return a function that a library is to call, with hooks on; under the name of `fn`."""
        path = self.journal.effects.callbacks.path()

        @functools.wraps(fn or found)
        def within(*args: Any, **kwargs: Any) -> Any:
            try:
                with self.going_on(), self.journal.effects.callbacks.within(path, args, kwargs):
                    return found(*args, **kwargs)
            finally:
                self.journal.effects.threads.leave()

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
        return twins.own(self.journal, self.callee, fn)

    def based(self, base: Any) -> Any:
        """Return what a class of the program's derives from, or is made by, with what Python calls of it by itself instrumented."""
        if isinstance(base, type):
            twins.instrument_members(self.journal, base)
        return base

    # -- awaits

    def awaited(self, x: Any) -> Any:
        """Return the replacement for an awaitable: itself, if it is the program's own."""
        self.journal.progress += 1
        found = self._await(x)
        timeouts = self.journal.effects.timeouts.of_this_task() if self.journal.is_timed else ()
        return self.journal.effects.within(timeouts, found, x) if timeouts else found

    def _await(self, x: Any) -> Any:
        if is_own_awaitable(x):
            return x
        if self.journal.waits_for_program(x):
            return self.journal.effects.waits.wait(x)
        loc = caller_loc()
        x = self.journal.wait(self.stream, x, loc)
        return _as_host(x if self.limits is None else self.limits.wait(x, loc))

    def _is_own(self, x: Any) -> bool:
        """Return whether awaiting something runs code of the program's own, or waits for it."""
        return is_own_awaitable(x) or self.journal.waits_for_program(x)

    def managed(self, x: Any) -> Any:
        """Return the replacement for a manager: itself, unless its methods are the program's own."""
        self.journal.progress += 1
        cls = type(x)
        if cls is asyncio.TaskGroup:
            return ManagedGroup(self.journal, x)
        if cls is asyncio.Timeout:
            return ManagedTimeout(self.journal, x)
        if cls in _LOCKS:
            return ManagedLock(self.journal, x)
        if isinstance(x, WAITED_FOR):
            return self.journal.effects.waits.managed(x)
        names = ("__enter__", "__exit__") if hasattr(cls, "__enter__") else ("__aenter__", "__aexit__")
        methods = [getattr(cls, name, None) for name in names]
        own = all(isinstance(m, types.FunctionType) and not is_instrumented(m.__code__) for m in methods) and not from_library(cls) and not is_of_lmc(cls)
        if not own or not (class_names_language(cls) or holds_language(x) or self.journal.effects.has_made(x)):
            return x
        enter, leave = [types.MethodType(twins.twin_of(self.journal, m), x) for m in methods]
        return type("Managed", (), dict(zip(names, (lambda _: enter(), lambda _, *error: leave(*error)), strict=True)))()

    def asked(self, question: str, schema: str) -> Any:
        return self.journal.asked(self.stream, question, schema, caller_loc())

    def decided(self, loc: str, test: str, answer: bool) -> None:
        self.journal.decided(loc, test, answer)

    def going_on(self) -> AbstractContextManager[Any]:
        """Turn hooks on within host code: the block runs the program's code."""
        return having(RECORDING, self)


_WRITING: Mapping[Any, tuple[int, str]] = {csv.writer: (0, "f"), csv.DictWriter: (0, "f"), print: (sys.maxsize, "file"), json.dump: (1, "fp")}
"""Functions that write to a file, with its place among their arguments."""


_LOCKS = (asyncio.Lock, asyncio.Semaphore, asyncio.BoundedSemaphore, asyncio.Condition)
_OF_THREADS = frozenset(x for cls in (threading.Thread, threading.Timer) for x in vars(cls).values() if isinstance(x, types.FunctionType))
_COPYING = frozenset({copy.copy, copy.deepcopy, pickle.loads, object.__new__})


def _instances_in(values: Sequence[Any]) -> Iterator[Any]:
    """Return the instances of the user's classes, and of kept ones, that values are or hold."""
    return (x for x in walk(values) if is_kept(type(x)) or not (isinstance(x, type) or from_library(type(x)) or is_of_lmc(type(x))))


def _as_function(fn: Any) -> Any:
    """Return an object that the user's class makes callable as the method that a call of it calls, and all else as it is."""
    own = not isinstance(fn, (*_FUNCTIONS, type)) and isinstance(getattr(type(fn), "__call__", None), types.FunctionType)  # noqa: B004
    return types.MethodType(type(fn).__call__, fn) if own and not (from_library(type(fn)) or is_of_lmc(type(fn))) else fn


def _first_as_function(args: Sequence[Any]) -> Sequence[Any]:
    """Return arguments, of which the first that is callable is called: `submit(tool, …)`, `call_later(1, tool)`."""
    first = next((i for i, x in enumerate(args) if callable(x)), len(args))
    return [_as_function(x) if i == first else x for i, x in enumerate(args)]


def _makes_future(fn: types.MethodType) -> bool:
    return fn.__name__ == "create_future" and isinstance(fn.__self__, asyncio.AbstractEventLoop)


def _named(found: Any, fn: Any) -> Any:
    """Return what is called in place of a function, with its name and signature: it may be kept, or looked at."""
    return functools.update_wrapper(found, fn) if isinstance(found, RecordedFunction) else found


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, HostFunction)
_ENTERS = frozenset({"enter_context", "enter_async_context", "push", "push_async_exit"})
"""Methods of a stack of managers that take one: it may be callable, as a decorator."""
_CALLED = frozenset({"target", "function", "fn", "func", "callback"})
"""Names of parameters for what is called."""
_PLAIN = frozenset({State, str, dict, set, int, float, bytes})
"""Types none of whose methods call a function passed to them."""
_TAKES_CLASSES = frozenset({
    "map", "filter", "sorted", "min", "max", "sort", "reduce", "starmap", "accumulate", "groupby", "merge", "nlargest", "nsmallest", "call", "loads", "sub",
    "callback",
})  # fmt: skip
"""Functions that call a class or another object passed to them as a function."""
_BY_KEYWORD = frozenset({"sorted", "min", "max", "sort", "merge"})
"""Of those the ones that take it by keyword alone."""


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


def beyond_hooks() -> AbstractContextManager[Any]:
    """Turn hooks off: the block runs host code."""
    return having(RECORDING, None)


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
