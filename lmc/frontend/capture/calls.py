"""Calls: functions of the program, sub-programs, functions of the table, and unknown code."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from enum import EnumMeta
from typing import TYPE_CHECKING, Any

from lmc.answers import parse as parse_answer
from lmc.frontend import primitives
from lmc.frontend.active import TASK, TaskOfRun, new_body, new_task, next_call, next_fork
from lmc.frontend.capture import operations as op
from lmc.frontend.capture import table
from lmc.frontend.capture.code import NotUnderstood, code_of
from lmc.frontend.capture.outside import LRU, is_plain, is_plain_enum
from lmc.frontend.capture.searching import STANDS_FOR
from lmc.frontend.capture.types import is_data, is_inert
from lmc.frontend.capture.values import (
    NOTHING,
    Abandoned,
    BoundMethod,
    Closure,
    Coroutine,
    Deps,
    LazyItems,
    Manager,
    NotFollowed,
    Object,
    Partial,
    Raised,
    Stop,
    Undecided,
    Unknown,
    join,
    raised,
)
from lmc.frontend.host import HostFunction
from lmc.frontend.interpreter import Function
from lmc.frontend.options import Options
from lmc.frontend.primitives import Expr
from lmc.frontend.state import State, StateGroup

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Evaluation, Frame

DEEPEST = 40
"""Most nested calls of functions of the program."""


class CallEvaluator:
    """Part of an Evaluation: results of calls."""

    def call(self: Evaluation, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate `fn(*args, **kwargs)`."""
        known = table.FUNCTIONS.get(id(fn))
        if known is not None:
            return self.of_rule(known[2], known[1], args, kwargs)
        rule = _CALLS.get(type(fn))
        if rule is not None:
            return rule(self, fn, args, kwargs)
        if isinstance(fn, type):
            return self._construct(fn, args, kwargs)
        if isinstance(fn, Unknown):
            return self.unknown_code(fn, args, kwargs)
        if type(fn) is LRU:
            return self.cached(fn.__wrapped__, args, kwargs)
        if isinstance(fn, Object) and (own := self.special(fn, "__call__")) is not None:
            return self.call(own, args, kwargs)
        if isinstance(fn, Function):
            return self.sub_program(fn, args, kwargs)
        if type(fn) in op.ATOMS or type(fn) in op.CONTAINERS:
            raise Raised(TypeError(f"{type(fn).__name__!r} object is not callable"))
        return self.unknown_code(fn, args, kwargs)

    def of_rule(self: Evaluation, rule: table.Rule, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of a rule of the table; an operation if something undecided matters to it."""
        try:
            return rule(self, args, kwargs)
        except Undecided as undecided:
            self.left_off([*args, *kwargs.values()], undecided.deps)
            return self.operation(name, (*args, *kwargs.values()), undecided.deps)
        except IndexError:
            raise raised(TypeError) from None

    def call_method(self: Evaluation, x: Any, name: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate `x.name(*args, **kwargs)`."""
        kind = STANDS_FOR.get(type(x), type(x))
        names = table.PURE_METHODS.get(kind)
        if names is not None and name in names:
            return self._pure_method(x, kind, name, args, kwargs)
        if name in table.METHODS.get(kind, ()):
            return table.call_container(self, x, name, args, kwargs)
        if kind is State or kind is StateGroup:
            return self._state_method(x, name, args, kwargs)
        if isinstance(x, Unknown):
            return self._method_of_unknown(x, name, args, kwargs)
        if isinstance(x, Function):
            return self._program_method(x, name, args, kwargs)
        found = self.attribute(x, name)
        if type(found) is BoundMethod and found.receiver is x and found.function == name:
            return self.unknown_code(x, [x, *args], kwargs)  # a method that is not in the table
        return self.call(found, args, kwargs)

    def _pure_method(self: Evaluation, x: Any, kind: type, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if kind is str and name == "join" and args:
            return self._join(x, args[0])
        if kind is str and name == "replace" and len(args) > 1 and type(args[0]) is type(args[1]) is str:
            op.fits(x.count(args[0]) * len(args[1]))
        if kind is str and name == "format":
            op.spec(x)
        return table.pure(self, getattr(x, name), "." + name, args, kwargs)

    def _join(self: Evaluation, separator: str, items: Any) -> Any:
        try:
            found = op.all_of(self, items)
        except Undecided as undecided:
            return self.operation("join", (separator, items), undecided.deps)
        op.fits(sum([len(item) for item in found if type(item) is str]))
        deps = join(NOTHING, *(op.need(self, item) for item in found if type(item) is not str))
        return self.operation("join", (separator, found), deps) if deps is None or deps else op.native(separator.join, found)

    def _method_of_unknown(self: Evaluation, x: Unknown, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if x.deps is None:
            return self.unknown_code(x, args, kwargs)
        deps = join(x.deps, *(op.need(self, a) for a in (*args, *kwargs.values()) if type(a) not in (Closure, BoundMethod)))
        return self.operation("." + name, (x, *args), deps)

    # -- functions of the program

    def closure_of(self: Evaluation, fn: types.FunctionType) -> Closure:
        """Return a function of the outside as one of the program's. Raises NotUnderstood."""
        known = self._functions.get(id(fn))
        if known is not None:
            return known
        made = self._functions[id(fn)] = Closure(code_of(fn), None, fn.__name__, (), {}, module=fn.__globals__, own=fn)
        if fn.__closure__:
            made.outer = self.frame({}, None, None, fn.__globals__)
            made.outer.cells = dict(zip(fn.__code__.co_freevars, fn.__closure__, strict=True))
            for name, cell in made.outer.cells.items():
                try:
                    held = self.snapshot.first((id(cell), ""), cell.cell_contents)
                except ValueError:
                    continue  # not bound yet
                made.outer.vars[name] = Unknown(None) if id(cell) in self.snapshot.changed else self.adopt(held)
        made.defaults = tuple([self.adopt(d) for d in fn.__defaults__ or ()])
        made.kwdefaults = {k: self.adopt(v) for k, v in (fn.__kwdefaults__ or {}).items()}
        return made

    def call_function(self: Evaluation, fn: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function of the outside."""
        try:
            closure = self.closure_of(fn)
        except NotUnderstood:
            if fn.__code__ is _MANAGER_CODE:
                return table.manager_of(self, self.call(self.adopt(fn.__wrapped__), args, kwargs))  # pyright: ignore[reportFunctionMemberAccess]
            return self.unknown_code(fn, args, kwargs)
        return self.apply(closure, args, kwargs)

    def cached(self: Evaluation, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function behind `functools.cache`: unknown code if it may make requests, which only the first call with equal arguments does."""
        if self.may_ask_in([fn]):
            self.shifted = True
            return self.unknown_code(fn, args, kwargs)
        return self.apply(fn, args, kwargs) if type(fn) is Closure else self.call(fn, args, kwargs)

    def apply(self: Evaluation, fn: Closure, args: Sequence[Any], kwargs: Mapping[str, Any], program: State | None = None) -> Any:
        """Call a function of the program's; for a program, `program` is its state."""
        code = fn.code
        frame = self.frame(bind(fn, args, kwargs), fn.outer, code, fn.module)
        frame.first = args[0] if args else None
        for name in code.writes_globals:
            self.snapshot.changed.add((id(fn.module), name))
        frame.live = self.frames.get(code.place)
        if code.is_generator:
            from lmc.frontend.capture.generators import GeneratorBody  # imports greenlets

            frame.generator = GeneratorBody(frame)
            self.generators.append(frame.generator)
            return LazyItems(self, frame.generator, frame.generator, of=(frame, code.effects))
        if code.is_async and program is None:
            return Coroutine(lambda: self._run(frame), fn.name)
        frame.is_program = program is not None
        return self._run(frame)

    def _run(self: Evaluation, frame: Frame) -> Any:
        code = frame.code
        assert code is not None
        self.depth += 1
        if self.depth > DEEPEST:
            raise Stop(f"{DEEPEST} calls within each other")
        try:
            code.body(frame)
        except Abandoned as abandoned:
            if abandoned.target is not frame:
                raise
            self.havoc(frame, code.effects, abandoned.deps)
            return Unknown(abandoned.deps)
        except NotFollowed:
            if frame.is_program:
                raise
            self.havoc(frame, code.effects, None)
            return self.unknown_code(None, [*frame.vars.values()], {})
        finally:
            self.depth -= 1
        return frame.result if frame.undecided is False else Unknown(join(frame.undecided, op.need(self, frame.result) or NOTHING))

    # -- programs

    def program(self: Evaluation, fn: Function, state: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of a program's function."""
        outer, self.current = self.current, state
        try:
            func: Any = fn.func
            if type(func) is types.MethodType:
                receiver: Any = func.__self__  # if the method's object is evaluated already, that object
                args, func = [receiver if isinstance(receiver, Object) else self.adopt(receiver), state, *args], func.__func__
            else:
                args = [state, *args]
            if type(func) is not types.FunctionType:
                return self.awaited_or(self.call(self.adopt(func), args, kwargs))
            return self.awaited_or(self.apply(self.closure_of(func), args, kwargs, state))
        except NotUnderstood as error:
            raise Stop(str(error), fn.loc) from None
        finally:
            self.current = outer

    def sub_program(self: Evaluation, fn: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the state of a sub-program, at the addresses that the interpreter would give it."""
        caller = self.current
        assert caller is not None
        arguments, given = fn.split(kwargs)
        given = {**fn.given, **given}
        unknown = [v.deps for v in given.values() if isinstance(v, Unknown)]
        plain = all(op.need(self, v) == NOTHING for k, v in given.items() if k != "backend")
        options = _NO_OPTIONS if not given else op.native(Options.of, given) if plain and not unknown else None
        if options is not None and fn.bound:
            arguments = {**{k: self.adopt(v) for k, v in fn.bound.items()}, **arguments}
        emitter = None if options is None else self.emitter.nested(options)
        own_seed = given.get("seed") is not None
        stream = "" if own_seed else next_call(caller)
        if emitter is None:
            self.shifted = True
            self.blocked(join(NOTHING, *unknown) if unknown else None)
            return self.unknown_code(fn, args, arguments)
        state = State(emitter, stream=stream, name=fn.name)
        caller.asked.append(state.asked)
        self.states.append(state)
        certain, shifted = self.certain, self.shifted
        state.ret_value = self._nested(fn, state, args, arguments)
        if not self.certain and certain:
            self.certain, self.shifted = certain, shifted  # whatever happens in it, its caller continues after it
        elif not own_seed:
            self.shifted = shifted
        return state

    def _nested(self: Evaluation, fn: Function, state: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return self.program(fn, state, args, kwargs)
        except Stop as stop:
            if stop.reason == "recursion" or self.stops:
                raise
            self.lose(state, None)  # it continues after the sub-program, of which nothing is known
            return Unknown(None)

    def _program_method(self: Evaluation, fn: Function, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name == "run":
            return self.sub_program(fn, args, kwargs)
        if name == "arun":
            return Coroutine(lambda: self.sub_program(fn, args, kwargs), name, calls=True)
        if name in ("bind", "options") and not args and all(op.need(self, v) == NOTHING for v in kwargs.values()):
            return op.native(getattr(fn, name), **kwargs)
        self.shifted = True
        return self.unknown_code(fn, args, kwargs)

    # -- lmc's own

    def language(self: Evaluation, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        args, kwargs = [self._said(x) for x in args], {k: self._said(x) for k, x in kwargs.items()}
        if id(fn) in table.ASKS:
            name = args[0] if args else kwargs.get("name")
            if isinstance(name, Unknown):  # a variable of the state
                self.shifted = True
                return name
            if isinstance(kwargs.get("choices"), Unknown):
                kwargs["choices"] = (kwargs["choices"],)
            elif fn is primitives.select and len(args) > 1 and isinstance(args[1], Unknown):
                args[1] = (args[1],)
            inert = lambda x: x if is_inert(x) else Unknown(None)  # else reading it would run code of the user's
            args, kwargs = [*map(inert, args)], {k: inert(x) for k, x in kwargs.items()}
        try:
            return op.native(fn, *args, **kwargs)
        except Undecided as undecided:  # lmc looks at what it is
            if id(fn) in table.ASKS:
                self.shifted = True
            return self.operation(fn.__name__, (*args, *kwargs.values()), undecided.deps)

    def _said(self: Evaluation, x: Any) -> Any:
        """An argument of lmc's own functions: of a tool or schema of the program's, what it is outside."""
        if type(x) is Closure and x.own is not None:
            return x.own
        return Unknown(self.lost[id(x)]) if self.is_lost(x) else Unknown(None) if isinstance(x, (Object, Closure, BoundMethod, LazyItems)) else x

    def _parsed(self: Evaluation, x: Any, name: Any, dtype: Any = None) -> Any:
        """Return the object of a typed answer, once its text is known."""
        value = op.item(self, x, name)
        asked = x.types.get(name) if dtype is None and not isinstance(name, Unknown) else dtype
        if isinstance(value, Unknown) or not isinstance(value, str) or asked is None or not is_data(asked):
            return Unknown(value.deps if isinstance(value, Unknown) else None)
        return self.adopt(op.native(parse_answer, asked, value))

    def _state_method(self: Evaluation, x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        own = _STATE_RULES.get(name)
        if own is not None:
            return own(self, x, *args, **kwargs)
        if name == "each" and type(x) is StateGroup:
            body, *items = args or kwargs.values()
            made = [
                self._within(f, lambda f=f, more=more: self.call(body, [f, *more], {}), new_body(f))
                for f, *more in zip(x.states, *[op.iterate(self, i) for i in items], strict=False)
            ]
            awaited = any(type(one) is Coroutine for one in made)  # of an `async def` body
            return Coroutine(lambda: [run() for run in [self._body(f, one) for f, one in zip(x.states, made, strict=False)]]) if awaited else made
        if self.is_lost(x) and name in ("text", "messages", "get_meta_info", "error"):
            return Unknown(self.lost[id(x)])
        unknown = join(NOTHING, *(a.deps for a in (*args, *kwargs.values()) if isinstance(a, Unknown)))
        if name == "fork" and unknown != NOTHING:
            next_fork(x)
            self.forked[id(x)] = unknown
            self.blocked(unknown)
            return Unknown(unknown)
        if name not in _STATE_METHODS:
            return self.call(self.attribute(x, name), args, kwargs)
        if unknown != NOTHING and name not in ("user", "system", "assistant"):
            return self.operation("." + name, (x, *args), unknown)
        found = op.native(getattr(x, name), *args, **kwargs)
        if name == "fork":
            self.states.extend(found.states)
        return self._entered(found) if type(found).__name__ == "_GeneratorContextManager" else found

    def _body(self: Evaluation, fork: State, made: Any) -> Callable[[], Any]:
        """Return what runs an `async def` body of `forks.each`: all of them are tasks before the first one runs (lmc/frontend/each.py)."""
        task = None if self.current is None else new_task(self.current, "one")
        if task is not None:
            self.made_tasks.append(task)
            task.fork = fork
        return lambda: self._within(fork, lambda: self.awaited_or(made), task)

    def _within(self: Evaluation, state: State, run: Callable[[], Any], task: TaskOfRun | None = None) -> Any:
        """Run a task, or a body of `forks.each`: sub-programs inherit from this state."""
        outer, self.current, token = self.current, state, TASK.set(task or TASK.get())
        try:
            return run()
        finally:
            self.current = outer
            TASK.reset(token)

    def _entered(self: Evaluation, manager: Any) -> Manager:
        """A context manager of lmc's."""

        def enter() -> Any:
            entered = op.native(manager.__enter__)
            if isinstance(entered, State):
                self.states.append(entered)
            return entered

        raised = lambda: (Exception, Exception())  # instead of the program's, which may be an outside one: its traceback changes
        return Manager(enter, lambda error: bool(op.native(manager.__exit__, *(None, None) if error is None else raised(), None)))

    # -- unknown code

    def unknown_code(self: Evaluation, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Evaluate a call that cannot be followed: it may change its arguments."""
        if self.tries:
            self.risks.append(None)
        self.hand_over([*args, *kwargs.values()])
        self.shifted |= isinstance(fn, Unknown) and fn.deps is not None  # a function chosen by an answer may make requests
        return self.domain.call(self, fn, args, kwargs)

    def hand_over(self: Evaluation, values: Sequence[Any], depth: int = 0) -> None:
        """Pass these values to unknown code: all that is mutable in them is unknown from now on."""
        for x in values:
            kind = type(x)
            if kind in op.ATOMS or isinstance(x, (Unknown, Expr)):
                continue
            if kind is Closure:
                self.called_elsewhere(x)
            elif kind is BoundMethod:
                self.hand_over([x.receiver, x.function], depth + 1)
            if depth < 4 and (kind in op.CONTAINERS or kind in op.VIEWS or isinstance(x, Object)) and not self.is_lost(x):
                held = x.attributes.values() if isinstance(x, Object) else x.values() if kind in op.MAPPINGS else x
                self.hand_over([i for i in held if type(i) not in op.ATOMS], depth + 1)
            self.lose(x, None)

    def called_elsewhere(self: Evaluation, fn: Any, deps: Deps = None) -> None:
        """Assume that a function may have been called, if it is one of the program's."""
        if (callee := self._callee(fn)) is not None:
            code, frame = callee
            self.havoc(frame, code.effects, deps)
            for name in code.nonlocals:
                frame.store(name, Unknown(deps), "outer")

    def left_off(self: Evaluation, values: Sequence[Any], deps: Deps) -> None:
        """Assume that these iterators may have gone on, and these functions may have been called, in native code that stopped at something undecided."""
        for x in values:
            if type(x) is LazyItems and not x.over:
                x.abandon(deps)
            elif type(x) is BoundMethod:
                self.hand_over([x.receiver, x.function])
            else:
                self.called_elsewhere(x)

    def call_with_unknown(self: Evaluation, callee: Any, method: str | None, args: list[Any], deps: Deps) -> Any:
        """Evaluate a call whose arguments, or even their number, are unknown."""
        self.blocked(deps)
        if id(callee) in table.ASKS or method in _ASKING:
            self.shifted = True
        if isinstance(callee, Function) and self.current is not None:
            next_call(self.current)
        if isinstance(callee, (State, StateGroup)):
            self.lose(callee, deps)
        else:
            self.hand_over([callee, *args])
        return Unknown(deps)

    def spread(self: Evaluation, kwargs: dict[str, Any], x: Any) -> None:
        """Add `**x`."""
        if (deps := op.known(self, x)) != NOTHING:
            raise Undecided(deps)
        if type(x) not in op.MAPPINGS or any(type(k) is not str or k in kwargs for k in x):
            raise raised(TypeError)
        kwargs.update(x)

    def _host(self: Evaluation, fn: HostFunction, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not fn.pure:
            return self.unknown_code(fn, args, kwargs)
        deps = join(NOTHING, *(op.need(self, a) for a in (*args, *kwargs.values())))
        if deps is None or deps:
            return self.operation(fn.name, (*args, *kwargs.values()), deps)
        found = self.emitter.pure(fn, table.deep_copy(self, args), table.deep_copy(self, kwargs))
        return found if isinstance(found, Unknown) else table.deep_copy(self, found) if op.need(self, found) == NOTHING else self.adopt(found)

    # -- awaiting

    def awaited(self: Evaluation, x: Any) -> Any:
        """Evaluate `await x`."""
        self.run_tasks()
        if type(x) is Coroutine:
            return x.result()
        if isinstance(x, Unknown):
            return x
        raise Raised(TypeError(f"object {type(x).__name__} can't be used in 'await' expression"))

    def awaited_or(self: Evaluation, x: Any) -> Any:
        return x.result() if type(x) is Coroutine else x

    def run_tasks(self: Evaluation) -> None:
        """Run the tasks that were made, as the program would when it next awaits something."""
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.settle()

    def task(self: Evaluation, x: Any) -> Any:
        """Return what a call that takes an awaitable as a task gives: of a coroutine, a task with addresses of its own."""
        if type(x) is not Coroutine or x.name is None or (state := self.current) is None:
            return x
        task, run = new_task(state, x.name, calls=x.calls), x.begin
        self.made_tasks.append(task)
        x.begin, x.name = run and (lambda: self._within(state, run, task)), None
        return x

    def _construct(self: Evaluation, cls: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if issubclass(cls, BaseException) and cls.__module__ in ("builtins", "lmc.errors"):
            return op.native(cls, *args, **kwargs)
        if is_plain(cls):
            return self.instance(cls, args, kwargs)
        if type(cls) is EnumMeta and is_plain_enum(cls):
            return op.apply(self, "enum", lambda x: self.adopt(cls(x)), *args)
        return self.unknown_code(cls, args, kwargs)


def bind(fn: Closure, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Bind the parameters of a call by name. Raises a TypeError for a wrong call."""
    binder = types.FunctionType(fn.code.binder, {"locals": locals}, fn.name, fn.defaults)
    binder.__kwdefaults__ = dict(fn.kwdefaults)
    try:
        return binder(*args, **kwargs)
    except TypeError:
        raise raised(TypeError) from None


_MANAGER_CODE = contextlib.contextmanager(iter).__code__  # pyright: ignore[reportFunctionMemberAccess, reportDeprecated]
_NO_OPTIONS = Options()
_ASKING = frozenset({"gen", "select", "gen_int", "gen_string"})
_STATE_METHODS = frozenset("system user assistant var_scope fork copy get_meta_info text messages sync error join".split())
_STATE_RULES: Mapping[str, Any] = {
    "__iadd__": lambda ev, x, item: op.append(ev, "add", x, item), "parsed": lambda ev, x, *args, **kwargs: ev._parsed(x, *args, **kwargs),
    **dict.fromkeys(("__getitem__", "get_var"), op.item), **dict.fromkeys(("__setitem__", "set_var"), op.set_item),
}  # fmt: skip


def _descriptor(ev: Evaluation, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args or not isinstance(args[0], (Unknown, fn.__objclass__)):
        raise raised(TypeError)
    return ev.call_method(args[0], fn.__name__, args[1:], kwargs)


_CALLS: dict[type, Any] = {
    Closure: lambda ev, fn, args, kwargs: ev.cached(fn, args, kwargs) if fn.is_cached else ev.apply(fn, args, kwargs),
    types.FunctionType: lambda ev, fn, args, kwargs: ev.call_function(fn, args, kwargs),
    BoundMethod: lambda ev, fn, args, kwargs: (
        ev.call_method(fn.receiver, fn.function, args, kwargs) if type(fn.function) is str else ev.call(fn.function, [fn.receiver, *args], kwargs)
    ),
    Partial: lambda ev, fn, args, kwargs: fn.call(args, kwargs),
    HostFunction: lambda ev, fn, args, kwargs: ev._host(fn, args, kwargs),
    types.MethodType: lambda ev, fn, args, kwargs: ev.call(fn.__func__, [ev.adopt(fn.__self__), *args], kwargs),
    types.MethodDescriptorType: _descriptor,
    functools.partial: lambda ev, fn, args, kwargs: ev.call(
        fn.func, [*map(ev.adopt, fn.args), *args], {**{k: ev.adopt(v) for k, v in fn.keywords.items()}, **kwargs}
    ),
}
