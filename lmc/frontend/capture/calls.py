"""Calls: functions of the program, sub-programs, functions of the table, and unknown code."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmc.answers import parse as parse_answer
from lmc.frontend import primitives
from lmc.frontend.active import new_body, new_task, next_call, next_fork
from lmc.frontend.capture import operations as op
from lmc.frontend.capture import table
from lmc.frontend.capture.closures import closure_of
from lmc.frontend.capture.code import Evaluator, Frame, NotUnderstood
from lmc.frontend.capture.flow import CHANGING, SAYING
from lmc.frontend.capture.objects import instance
from lmc.frontend.capture.outside import LRU, PLAIN, any_of, is_plain
from lmc.frontend.capture.searching import STANDS_FOR
from lmc.frontend.capture.types import is_data, is_inert
from lmc.frontend.capture.unknown import MISSING, NOTHING, Abandoned, Deps, Raised, Stop, Undecided, Unknown, UnknownName, join, raised
from lmc.frontend.capture.values import BoundMethod, Closure, Coroutine, LazyItems, Manager, Object, Partial
from lmc.frontend.emitter import GatheredAnswers, Scoped, Stored
from lmc.frontend.expressions import Expr
from lmc.frontend.host import HostFunction
from lmc.frontend.interpreter import Function
from lmc.frontend.options import NO_OPTIONS, Options
from lmc.frontend.state import State, StateGroup

DEEPEST = 40
"""Most nested calls of functions of the program."""
_LATER = frozenset({Stored, Scoped, GatheredAnswers})  # variables of a state that are no answer of its own


def call(ev: Evaluator, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    known = table.FUNCTIONS.get(id(fn))
    if known is not None:
        return table.of_rule(ev, known[2], known[1], args, kwargs)
    rule = _CALLS.get(type(fn))
    if rule is not None:
        return rule(ev, fn, args, kwargs)
    if isinstance(fn, type):
        return _construct(ev, fn, args, kwargs)
    if type(fn) is Object and (own := ev.special(fn, "__call__")) is not None:
        return ev.call(own, args, kwargs)
    if isinstance(fn, Function):
        return sub_program(ev, fn, args, kwargs)
    if type(fn) in op.ATOMS or type(fn) in op.CONTAINERS:
        raise Raised(TypeError(f"{type(fn).__name__!r} object is not callable"))
    return ev.unknown_code(fn, args, kwargs)


def call_method(ev: Evaluator, x: Any, name: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Evaluate `x.name(*args, **kwargs)`."""
    if type(x) is types.ModuleType:
        known = ev.globals.get((id(vars(x)), name))
        return ev.call(ev.attribute(x, name) if known is None else known, args, kwargs)
    kind = STANDS_FOR.get(type(x), type(x))
    names = table.PURE_METHODS.get(kind)
    if names is not None and name in names:
        return _pure_method(ev, x, kind, name, args, kwargs)
    if name in table.METHODS.get(kind, ()):
        return table.call_container(ev, x, name, args, kwargs)
    if kind is State or kind is StateGroup:
        return ev.state_method(x, name, args, kwargs)
    if isinstance(x, Unknown):
        return _method_of_unknown(ev, x, name, args, kwargs)
    if isinstance(x, Function):
        return _program_method(ev, x, name, args, kwargs)
    found = ev.attribute(x, name)
    if type(found) is BoundMethod and found.receiver is x and found.function == name:
        return ev.unknown_code(x, [x, *args], kwargs)  # a method that is not in the table
    return ev.call(found, args, kwargs)


def call_settled(ev: Evaluator, kept: list[tuple[Any, ...]], callee: Any, method: str | None, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Evaluate a call whose arguments are constants and names of the module. `kept`: what a function of lmc's own made at this site, with it and its
    arguments, of which it makes the same again."""
    fn = callee if method is None else vars(callee).get(method) if type(callee) is types.ModuleType else None
    given = (fn, *args, *kwargs.values())
    (made,) = kept
    if len(made) == len(given) + 1 and all(map(operator.is_, made[1:], given)):
        return made[0]
    found = ev.call(callee, args, kwargs) if method is None else ev.call_method(callee, method, args, kwargs)
    if id(fn) in table.LANGUAGE and isinstance(found, Expr) and all(type(x) in op.ATOMS for x in given[1:]):
        kept[:] = [(found, *given)]
    return found


def _pure_method(ev: Evaluator, x: Any, kind: type, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kind is str and name == "join" and args:
        return _join(ev, x, args[0])
    if kind is str and name == "replace" and len(args) > 1 and type(args[0]) is type(args[1]) is str:
        op.fits(ev, x.count(args[0]) * len(args[1]))
    if kind is str and len(x) >> 12:
        ev.count(len(x) >> 12)
    if kind is str and name == "format":
        op.spec(x)
    return table.pure(ev, getattr(x, name), "." + name, args, kwargs)


def _join(ev: Evaluator, separator: str, items: Any) -> Any:
    try:
        found = op.all_of(ev, items)
    except Undecided as undecided:
        return ev.operation("join", (separator, items), undecided.deps)
    op.fits(ev, sum([len(item) for item in found if type(item) is str]))
    return op.apply(ev, "join", str.join, separator, found) if set(map(type, found)) <= {str} else op.of_known(ev, "join", str.join, separator, found)


def _method_of_unknown(ev: Evaluator, x: Unknown, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if x.of and (name in CHANGING or name in SAYING):
        ev.lose(x, x.deps, any_of((*args, *kwargs.values())))
    if x.deps is None:
        return ev.unknown_code(x, args, kwargs)
    deps = join(x.deps, *(op.need(ev, a) for a in (*args, *kwargs.values()) if type(a) not in (Closure, BoundMethod)))
    return ev.operation("." + name, (x, *args), deps)


# -- functions of the program


def call_function(ev: Evaluator, fn: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        closure = closure_of(ev, fn)
    except NotUnderstood:
        return ev.unknown_code(fn, args, kwargs)
    return apply(ev, closure, args, kwargs)


def apply(ev: Evaluator, fn: Closure, args: Sequence[Any], kwargs: Mapping[str, Any], program: State | None = None) -> Any:
    """Call a function of the program's; for a program, `program` is its state."""
    code = fn.code
    frame = Frame(ev, bind(fn, args, kwargs), fn.outer, code, fn.module)
    for name in code.writes_globals:
        ev.snapshot.changed.add((id(fn.module), name))
    frame.live = ev.frames.get(code.place)
    if code.is_generator:
        return LazyItems(ev, None, of=(frame, code.effects))
    if code.is_async and program is None:
        return Coroutine(lambda: ev.run_frame(frame), fn.name, of=(frame, code.effects))
    frame.is_program = program is not None
    return ev.run_frame(frame)


def run_frame(ev: Evaluator, frame: Frame) -> Any:
    code = frame.code
    assert code is not None
    ev.depth += 1
    if ev.depth > DEEPEST:
        raise Stop(f"{DEEPEST} calls within each other")
    try:
        code.body(frame)
    except Abandoned as abandoned:
        if abandoned.target is not frame:
            raise
        ev.havoc(frame, code.effects, abandoned.deps)
        frame.result, frame.undecided = None, abandoned.deps
    finally:
        ev.depth -= 1
    if frame.undecided is False:
        return frame.result
    return any_of((frame.result, *map(frame.peek, code.effects.scan.gives)), join(frame.undecided, op.need(ev, frame.result) or NOTHING))


# -- programs


def program(ev: Evaluator, fn: Function, state: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    outer, ev.current = ev.current, state
    try:
        func: Any = fn.func
        if type(func) is types.MethodType:
            receiver: Any = func.__self__  # if the method's object is evaluated already, that object
            args, func = [receiver if type(receiver) is Object else ev.adopt(receiver), state, *args], func.__func__
        else:
            args = [state, *args]
        if type(func) is not types.FunctionType:
            return op.awaited_or(ev.call(ev.adopt(func), args, kwargs))
        return op.awaited_or(apply(ev, closure_of(ev, func), args, kwargs, state))
    except NotUnderstood as error:
        raise Stop(str(error), fn.loc) from None
    finally:
        ev.current = outer


def sub_program(ev: Evaluator, fn: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return the state of a sub-program, at the addresses that the interpreter would give it."""
    caller = ev.current
    assert caller is not None
    arguments, given = fn.split(kwargs) if kwargs else ({}, {})
    given = {**fn.given, **given}
    unknown, options = [v.deps for v in given.values() if isinstance(v, Unknown)], NO_OPTIONS
    if given:
        plain = not unknown and all(op.need(ev, v) == NOTHING for k, v in given.items() if k != "backend")
        options = op.native(Options.of, given) if plain else None
    if options is not None and fn.bound:
        arguments = {**{k: ev.adopt(v) for k, v in fn.bound.items()}, **arguments}
    emitter = None if options is None else ev.emitter.nested(options)
    own_seed = given.get("seed") is not None
    stream = "" if own_seed else next_call(caller)
    if emitter is None:
        ev.blocked(join(NOTHING, *unknown) if unknown else None)
        return ev.unknown_code(fn, args, arguments)
    state = State(emitter, stream=stream, name=fn.name)
    caller.asked.append(state.asked)
    ev.states.append(state)
    certain, shifted = ev.certain, ev.shifted
    call = (fn, *[_contents(x) for x in (*args, *arguments.values())], *arguments)
    keeps = options is NO_OPTIONS and certain and not (shifted or ev.exploring or ev.tries) and MISSING not in call
    if keeps and _is_repeated(ev, call, state):
        return state
    recorded = lambda: (ev.certain, ev.shifted, len(ev.outcome.waits), len(ev.states), len(ev.made_tasks))
    before, since = recorded(), len(ev.changed)
    state.ret_value = _nested(ev, fn, state, args, arguments)
    fixed = type(state.ret_value) in PLAIN and not state.scopes and not any(type(x) in _LATER for x in state.variables.values())
    if keeps and fixed and recorded() == before and all(x is state for x in ev.changed[since:]):
        ev.snapshot.ended[stream] = call, state.ctx, [*state.asked], {**state.variables}, state.role, state.previous, state.types, state.ret_value
    if not ev.certain and certain:
        ev.certain, ev.shifted = certain, shifted  # whatever happens in it, its caller continues after it
    elif not own_seed:
        ev.shifted = shifted
    return state


def _contents(x: Any) -> Any:
    """Return what is the same of equal plain values; MISSING for any other."""
    kind = type(x)
    if kind in PLAIN:
        return kind, x
    return (kind, *x) if (kind is list or kind is tuple) and {str}.issuperset(map(type, x)) else MISSING


def _is_repeated(ev: Evaluator, call: tuple[Any, ...], state: State) -> bool:
    """Make the state of a sub-program what an earlier evaluation has made of it, if those requests are made; return whether it is."""
    called, ctx, asked, *more = ev.snapshot.ended.get(state.stream, (None, None, ()))
    if called != call or not ev.emitter.is_asked(state.stream, ctx, asked):
        return False
    variables, state.role, state.previous, state.types, state.ret_value = more
    state.ctx, state.ordinal, state.variables = ctx, len(asked), {**variables}
    state.asked += asked
    return True


def _nested(ev: Evaluator, fn: Function, state: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return program(ev, fn, state, args, kwargs)
    except Stop as stop:
        if stop.reason == "recursion" or ev.stops:
            raise
        ev.lose(state, None)  # it continues after the sub-program, of which nothing is known
        return Unknown(None)


def _program_method(ev: Evaluator, fn: Function, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name == "run":
        return sub_program(ev, fn, args, kwargs)
    if name == "arun":
        return Coroutine(lambda: sub_program(ev, fn, args, kwargs), name, calls=True)
    if name in ("bind", "options") and not args and all(op.need(ev, v) == NOTHING for v in kwargs.values()):
        return op.native(getattr(fn, name), **kwargs)
    return ev.unknown_code(fn, args, kwargs)


# -- lmc's own


def language(ev: Evaluator, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    atoms = op.ATOMS
    args = [x if type(x) in atoms else _said(ev, x) for x in args]
    kwargs = {k: x if type(x) in atoms else _said(ev, x) for k, x in kwargs.items()} if kwargs else kwargs
    if id(fn) in table.ASKS:
        if isinstance(kwargs.get("choices"), Unknown):
            kwargs["choices"] = (kwargs["choices"],)
        elif fn is primitives.select and len(args) > 1 and isinstance(args[1], Unknown):
            args[1] = (args[1],)
        inert = lambda x: x if type(x) in atoms or is_inert(x) else Unknown(None)  # else reading it would run code of the user's
        named = lambda x: UnknownName(x) if isinstance(x, Unknown) else x
        args = [*map(named, map(inert, args[:1])), *map(inert, args[1:])]
        kwargs = {k: named(inert(x)) if k == "name" else inert(x) for k, x in kwargs.items()}
    try:
        return op.native(getattr(fn, "__wrapped__", fn), *args, **kwargs)
    except Undecided as undecided:  # lmc looks at what it is
        if id(fn) in table.ASKS:
            ev.shifted = True
        return ev.operation(fn.__name__, (*args, *kwargs.values()), undecided.deps)


def _said(ev: Evaluator, x: Any) -> Any:
    """An argument of lmc's own functions: of a tool or schema of the program's, what it is outside."""
    if isinstance(x, Expr):
        return x
    if type(x) is Closure and x.own is not None:
        return x.own
    return Unknown(ev.lost[id(x)]) if ev.is_lost(x) else Unknown(None) if isinstance(x, (Object, Closure, BoundMethod, LazyItems)) else x


def _parsed(ev: Evaluator, x: Any, name: Any, dtype: Any = None) -> Any:
    """Return the object of a typed answer, once its text is known."""
    value = op.item(ev, x, name)
    asked = x.types.get(name) if dtype is None and not isinstance(name, Unknown) else dtype
    if isinstance(value, Unknown) or not isinstance(value, str) or asked is None or not is_data(asked):
        return Unknown(value.deps if isinstance(value, Unknown) else None)
    return ev.adopt(op.native(parse_answer, asked, value))


def state_method(ev: Evaluator, x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    own = _STATE_RULES.get(name)
    if own is not None:
        return own(ev, x, *args, **kwargs)
    if name == "each" and type(x) is StateGroup:
        body, *items = args or kwargs.values()
        made = [
            op.within(ev, f, lambda f=f, more=more: ev.call(body, [f, *more], {}), new_body(f))
            for f, *more in zip(x.states, *[op.iterate(ev, i) for i in items], strict=False)
        ]
        awaited = any(type(one) is Coroutine for one in made)  # of an `async def` body
        return Coroutine(lambda: [run() for run in [_body(ev, f, one) for f, one in zip(x.states, made, strict=False)]]) if awaited else made
    if ev.is_lost(x) and name in ("text", "messages", "error"):
        return Unknown(ev.lost[id(x)])
    if name == "get_meta_info" and len(args) == 1 and (deps := op.unread(ev, x, args[0])) != NOTHING:
        return ev.operation("." + name, (x, *args), deps)
    unknown = join(NOTHING, *(a.deps for a in (*args, *kwargs.values()) if isinstance(a, Unknown)))
    if name == "fork" and unknown != NOTHING:
        next_fork(x)
        ev.forked[id(x)] = unknown
        ev.blocked(unknown)
        return Unknown(unknown)
    if name not in _STATE_METHODS:
        found = ev.attribute(x, name)
        return ev.unknown_code(found, [x, *args], kwargs) if isinstance(found, BoundMethod) else ev.call(found, args, kwargs)
    if unknown != NOTHING and name not in ("user", "system", "assistant"):
        return ev.operation("." + name, (x, *args), unknown)
    found = op.native(op.native(getattr, x, name), *args, **kwargs)
    if name == "fork":
        ev.states.extend(found.states)
    return _entered(ev, x, found) if type(found).__name__ == "_GeneratorContextManager" else found


def _body(ev: Evaluator, fork: State, made: Any) -> Callable[[], Any]:
    """Return what runs an `async def` body of `forks.each`: all of them are tasks before the first one runs (lmc/frontend/each.py)."""
    task = None if ev.current is None else new_task(ev.current, "one")
    if task is not None:
        ev.made_tasks.append(task)
        task.fork = fork
    return lambda: op.within(ev, fork, lambda: op.awaited_or(made), task)


def _entered(ev: Evaluator, state: State, manager: Any) -> Manager:
    """A context manager of lmc's."""

    def enter() -> Any:
        entered = op.native(manager.__enter__)
        if isinstance(entered, State):
            ev.states.append(entered)
        return entered

    raised = lambda: (Exception, Exception())  # instead of the program's, which may be an outside one: its traceback changes
    return Manager(enter, lambda error: bool(op.native(manager.__exit__, *(None, None) if error is None else raised(), None)), (state,))


# -- unknown code


def unknown_code(ev: Evaluator, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Evaluate a call that cannot be followed: it may change its arguments."""
    ev.may_raise(None)
    ev.hand_over([fn, *args, *kwargs.values()] if isinstance(fn, Unknown) else [*args, *kwargs.values()])
    ev.shifted |= ev.may_ask_in([fn]) or (isinstance(fn, Unknown) and fn.deps is not None)  # as may a function chosen by an answer
    return ev.domain.call(ev, fn, args, kwargs)


def call_with_unknown(ev: Evaluator, callee: Any, method: str | None, args: list[Any], deps: Deps) -> Any:
    """Evaluate a call whose arguments, or even their number, are unknown."""
    ev.blocked(deps)
    ev.may_raise(deps)
    if id(callee) in table.ASKS or method in _ASKING:
        ev.shifted = True
    if isinstance(callee, Function) and ev.current is not None:
        next_call(ev.current)
    ev.hand_over([callee, *args], deps)
    return Unknown(deps)


def _host(ev: Evaluator, fn: HostFunction, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not fn.pure:
        return ev.unknown_code(fn, args, kwargs)
    deps = join(NOTHING, *[op.need(ev, a) for a in (*args, *kwargs.values())])
    if deps is None or deps:
        return ev.operation(fn.name, (*args, *kwargs.values()), deps)
    return ev.emitter.pure(fn, args, kwargs)


def _construct(ev: Evaluator, cls: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if issubclass(cls, BaseException) and cls.__module__ in ("builtins", "lmc.errors"):
        return op.native(cls, *args, **kwargs)
    if is_plain(cls):
        return instance(ev, cls, args, kwargs)
    return ev.unknown_code(cls, args, kwargs)


def bind(fn: Closure, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Bind the parameters of a call by name. Raises a TypeError for a wrong call."""
    if fn.binder is None:
        fn.binder = types.FunctionType(fn.code.binder, {"locals": locals}, fn.name, fn.defaults)
        fn.binder.__kwdefaults__ = dict(fn.kwdefaults)
    try:
        return fn.binder(*args, **kwargs)
    except TypeError:
        raise raised(TypeError) from None


_ASKING = frozenset({"gen", "select", "gen_int", "gen_string"})
_STATE_METHODS = frozenset("system user assistant var_scope fork copy get_meta_info text messages sync error join".split())
_STATE_RULES: Mapping[str, Any] = {
    "__iadd__": lambda ev, x, item: op.append(ev, "add", x, item), "parsed": lambda ev, x, *args, **kwargs: _parsed(ev, x, *args, **kwargs),
    **dict.fromkeys(("__getitem__", "get_var"), op.item), **dict.fromkeys(("__setitem__", "set_var"), op.set_item),
}  # fmt: skip


def _descriptor(ev: Evaluator, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args or not isinstance(args[0], (Unknown, fn.__objclass__)):
        raise raised(TypeError)
    return ev.call_method(args[0], fn.__name__, args[1:], kwargs)


_CALLS: dict[type, Any] = {
    Closure: apply,
    types.FunctionType: call_function,
    HostFunction: _host,
    BoundMethod: lambda ev, fn, args, kwargs: (
        ev.call_method(fn.receiver, fn.function, args, kwargs) if type(fn.function) is str else ev.call(fn.function, [fn.receiver, *args], kwargs)
    ),
    Partial: lambda ev, fn, args, kwargs: fn.call(args, kwargs),
    # if it makes requests, only the first call with equal arguments does
    LRU: lambda ev, fn, args, kwargs: ev.unknown_code(fn, args, kwargs) if ev.may_ask_in([fn]) else ev.call(fn.__wrapped__, args, kwargs),
    types.MethodType: lambda ev, fn, args, kwargs: ev.call(fn.__func__, [ev.adopt(fn.__self__), *args], kwargs),
    types.MethodDescriptorType: _descriptor,
    functools.partial: lambda ev, fn, args, kwargs: ev.call(
        fn.func, [*map(ev.adopt, fn.args), *args], {**{k: ev.adopt(v) for k, v in fn.keywords.items()}, **kwargs}
    ),
}
