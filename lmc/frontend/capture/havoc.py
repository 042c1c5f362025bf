"""Havoc: what code that is skipped may change, followed through its names and calls, and whether it may make requests."""

from __future__ import annotations

import ast
import functools
import types
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.closures import closure_of
from lmc.frontend.capture.code import Code, Evaluator, Frame, NotUnderstood
from lmc.frontend.capture.flow import CHANGING, LATER, SAYING, CallFlow, Flow, Origins, Scan, result_of
from lmc.frontend.capture.objects import class_attribute, implicit_methods
from lmc.frontend.capture.outside import LRU, any_of, is_plain
from lmc.frontend.capture.scan import PossibleEffects
from lmc.frontend.capture.table import ASKS, CHANGES, METHODS, PURE_METHODS, is_known
from lmc.frontend.capture.unknown import Deps, GivenParts, Unknown
from lmc.frontend.capture.values import BoundMethod, Closure, Coroutine, LazyItems, Manager, Object, Partial, is_exception
from lmc.frontend.expressions import GenExpr, ReasoningExpr, SelectExpr, Seq
from lmc.frontend.host import HostFunction
from lmc.frontend.interpreter import Function
from lmc.frontend.state import State, StateGroup

Read = dict[str, Any]
"""Values by name."""
Callee = tuple[Code, Frame, int]
_ASKING_METHODS = frozenset({"run", "arun", "each", "run_batch", "batch", "acall", "bind", "options", "__iadd__"})
_MOST_ENTERED = 32
"""Functions that are followed from code that is skipped; what further ones get is lost."""
_MOST_NAMED = 64
"""Most items of a container that are named one by one where a value may be one of them, and not the container instead."""
_MOST_COPIED = 8
"""Most objects of those that another may have been given that are named one by one: or each may be given more than the one before."""
_FUNCTIONS = frozenset({Closure, types.FunctionType, BoundMethod, Partial, LRU, type})
_HOLD_NOTHING = frozenset({*op.ATOMS, State, StateGroup, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, HostFunction, Function})
_USELESS = _HOLD_NOTHING | {Closure}
_PLAIN_METHODS = op.CONTAINERS | {State, StateGroup}
_CHANGED_IN_PLACE = (_PLAIN_METHODS | {Object}) - {tuple, frozenset}
_KNOWN_METHODS = CHANGING.union(SAYING, *PURE_METHODS.values(), *METHODS.values(), ("text", "messages", "get_meta_info", "get_var", "sync", "error"))


def havoc(ev: Evaluator, frame: Frame, effects: PossibleEffects, deps: Deps) -> None:
    """Assume that code with these effects may have run: its bindings and changes are unknown, and whether it made requests."""
    scan = effects.scan
    if scan.calls or scan.loads:
        ev.may_raise(deps)
    bound = dict[str, Any].fromkeys(scan.bound)
    if not (scan.is_quiet and all(_is_inert(frame.peek(name)) for name in scan.names - scan.bound - scan.binds)):
        losses = Losses(ev)
        read, flow = losses.run(frame, effects)
        bound = {name: losses.value(read, origins) for name, origins in flow.bound.items()}
        losses.apply(deps)
    for name, x in bound.items():
        held = frame.peek(name)
        if name not in scan.bound and type(held) in _CHANGED_IN_PLACE:
            continue  # augmented assignment changes some objects, and rebinds the name of others
        either = any_of((x, held), deps)
        for kind in _kinds(frame.code, scan, name):
            (frame if name in frame.vars else frame.function).store(name, either, kind)


def _kinds(code: Code | None, scan: Scan, name: str) -> Sequence[str]:
    """Return where a name lives that a part of code, or a function in it, may bind."""
    if code is None:
        return ["local"]
    kinds = {"local": code.bound, "global": code.writes_globals | scan.globals, "outer": code.nonlocals | (scan.nonlocals - code.bound)}
    return [kind for kind, names in kinds.items() if name in names] or ["local"]


def hand_over(ev: Evaluator, values: Iterable[Any], deps: Deps = None) -> None:
    """Pass these values to code that may do anything with them: functions may have been called, and all that is mutable is unknown from now on."""
    if values := [x for x in values if type(x) not in op.ATOMS and (type(x) is not Unknown or x.of)]:
        losses = Losses(ev)
        losses.hand(values)
        losses.apply(deps)


def left_off(ev: Evaluator, values: Sequence[Any], deps: Deps) -> None:
    """Native code stopped at something undecided: Python goes on with these iterators, functions and objects."""
    functions = [x for x in values if type(x) in _FUNCTIONS]
    used = [x for x in values if type(x) not in _USELESS and (type(x) is not Unknown or x.of)]
    if used or functions:
        losses = Losses(ev)
        losses.use(used, values, functions)
        losses.apply(deps)


def may_ask(ev: Evaluator, frame: Frame, effects: PossibleEffects) -> bool:
    """Return whether code with these effects may make requests."""
    for call in effects.scan.calls:
        if id(fn := _resolved(ev, frame.peek, call.func)) in ASKS or isinstance(fn, Function):
            return True
    losses = Losses(ev)
    losses.run(frame, effects)
    return losses.asks


class Losses:
    """What code that may or may not run changes: the objects that it reaches, followed through its names, calls and their results."""

    def __init__(self, ev: Evaluator) -> None:
        self.ev = ev
        self._lost: dict[int, Any] = {}
        self._given: dict[int, tuple[Unknown, dict[int, Any]]] = {}
        self._stores: list[Callable[[Deps], None]] = []
        self._followed: set[Any] = set()
        self._attributes: set[str] = set()
        self._entered = 0
        self.asks = False

    def apply(self, deps: Deps) -> None:
        ev = self.ev
        if self.asks:
            ev.shifted = True
            ev.blocked(deps)
        if self._entered:
            ev.may_raise(deps)
        for store in self._stores:
            store(deps)
        for x in self._lost.values():
            ev.lose(x, deps)
        for given, holders in self._given.values():
            for x in holders.values():
                ev.lose(x, deps)
            ev.give(holders.values(), given)
            ev.count(len(holders) >> 4)

    def lose(self, x: Any, given: Unknown | None = None, stores: Iterable[str] = ()) -> None:
        """Lose an object, which may be given this to hold, of a class or module the attributes with these names; of an unknown one, all that it may be."""
        if type(x) is Unknown:
            for one in self._reach(x.of):
                self.lose(one, given, stores)
        elif isinstance(x, (type, types.ModuleType)):
            of = () if given is None else given.of
            self._stores += [lambda deps, name=name: self.ev.set_attribute(x, name, Unknown(deps, of=of)) for name in stores]
        elif type(x) is not tuple and type(x) not in op.ATOMS:
            (self._lost if given is None else self._given.setdefault(id(given), (given, {}))[1])[id(x)] = x

    def run(self, frame: Frame, effects: PossibleEffects) -> tuple[Read, Flow]:
        """Lose what code with these effects may change in a frame; return what its names are, and where values in it come from."""
        scan, own, code = effects.scan, frame.vars, frame.code
        local = code.bound if code is not None and (frame.outer is None or frame.outer.code is not code) else ()
        read: Read = {name: own[name] if name in own else None if name in local else frame.peek(name) for name in scan.names}
        if LATER in read:
            read[LATER] = self.ev.later.setdefault((id(frame), id(effects)), Coroutine(None, of=(frame, effects.later)))
        self._attributes |= scan.attributes
        pure = [call for call in scan.roots if type(fn := _resolved(self.ev, read.get, call.func)) is HostFunction and fn.pure]
        flow = scan.flow(frozenset(map(result_of, pure)))
        held = [(to, False, given) for to, found in flow.held if (given := any_of([self.value(read, found)])).of]
        for (whole, inside), states, given in ((flow.changed, False, None), (flow.said, True, None), *held):
            for name in whole:
                self.lose(read[name], given, scan.stores)
            parts = [part for name in inside if type(x := read[name]) not in op.ATOMS for part in self._parts(x)]
            for x in self._reach(parts) if parts else ():
                if states or type(x) not in (State, StateGroup):
                    self.lose(x, given, scan.stores)
        whole, inside = flow.items
        for x in (*(read[name] for name in whole), *(part for name in inside if type(of := read[name]) not in op.ATOMS for part in self._parts(of))):
            if type(x) is defaultdict:
                self.lose(x)
        for call in flow.calls:
            self._call(read, call)
        if scan.appends and not self.asks and any(type(read[name]) in (State, StateGroup) for name in scan.appends):
            self.asks = any(isinstance(x, (GenExpr, SelectExpr, ReasoningExpr, Seq)) for x in read.values())
        used = [x for name in scan.loads if type(x := read[name]) not in _USELESS and (type(x) is not Unknown or x.of)]
        functions = [x for name in scan.given if type(x := read[name]) in _FUNCTIONS]
        if used or functions:
            self.use(used, [x for x in read.values() if type(x) not in op.ATOMS], functions)
        if scan.reads_frame:
            self.hand([x for each in frame.around() for x in each.vars.values()])
        return read, flow

    def value(self, read: Read, origins: Origins) -> Any:
        """Return what a value with these origins is; one of which that is not known, with what it may be or be a part of."""
        whole, inside = origins
        parts: list[Any] = []
        for name in inside:
            if type(of := read[name]) not in op.ATOMS and not op.ATOMS.issuperset(map(type, held := self._parts(of))):
                parts += held if len(held) <= _MOST_NAMED else (of,)
        if len(whole) == 1 and not parts:
            return read[next(iter(whole))]
        return any_of([*(read[name] for name in whole), *parts]) if whole or parts else None

    # -- calls

    def _call(self, read: Read, call: CallFlow) -> None:
        ev, func = self.ev, call.node.func
        fn: Any = None if call.root is None else read[call.root] if not call.method else _resolved(ev, read.get, func)
        if id(fn) in ASKS or isinstance(fn, Function) or (call.method in _ASKING_METHODS and (fn is None or type(fn) is BoundMethod)):
            self.asks = True
        if call.method and type(fn) is BoundMethod and type(fn.function) is str and type(fn.receiver) is not Function:
            return  # a method of a builtin type or of lmc's: what that changes is seen by its name
        if type(fn) is HostFunction and fn.pure:
            return
        if fn is not None and is_known(fn):
            for key, origins in call.args if id(fn) in CHANGES else ():
                if key in (0, None):
                    self.lose(self.value(read, origins), any_of([self.value(read, found) for at, found in call.args if at != key]))
            return
        of = self.value(read, call.fn) if fn is None else fn
        if type(of) in op.ATOMS and call.method in _KNOWN_METHODS:
            return
        given = [(key, self.value(read, origins)) for key, origins in call.args]
        values = [x for _, x in given if type(x) not in op.ATOMS]
        if isinstance(fn, Function) and type(fn.func) is types.FunctionType:
            fn, given = fn.func, [(0, None), *((key + 1 if type(key) is int else key, x) for key, x in given)]
        made = isinstance(fn, type) and is_plain(fn)
        if fn is None or (type(fn) is Unknown and fn.of):
            self._call_any(call, of, given, values)
        elif type(fn) is Partial or (type(fn) is BoundMethod and type(fn.function) is str):
            self.use((), values, [fn])
        elif (callee := callee_of(ev, fn)) is not None:
            self._enter(callee, given)
        elif not made:
            self.hand(values)
        if made:
            self._call_all([BoundMethod(one, any_of(values)) for one in implicit_methods(fn)], given)

    def _call_any(self, call: CallFlow, of: Any, given: Sequence[Any], values: list[Any]) -> None:
        """Call what is not known, but what it may be part of: of a method, what has it."""
        func, reached = call.node.func, self._reach([of])
        methods = [_member(self.ev, x, call.method) for x in reached if type(x) not in _PLAIN_METHODS] if call.method else reached
        entered = self._call_all(methods, given)
        if type(func) is ast.Call:
            self.hand([of, *values])
        elif not (entered or type(func) is ast.Lambda or call.method in _KNOWN_METHODS):
            self.hand(values)

    def _call_all(self, functions: Sequence[Any], given: Sequence[Any]) -> int:
        """Enter those that are functions of the program's; return how many."""
        every, callees = any_of([x for _, x in given]), [(fn, callee) for fn in functions if (callee := callee_of(self.ev, fn)) is not None]
        self.ev.count(len(callees) >> 1)
        for fn, callee in callees:
            self._enter(callee, [(None, any_of((every, *fn.of)) if type(fn) is Partial else every)])
        later = [x for x in functions if type(x) is Coroutine]
        for one in later:
            self._run_later(one)
        return len(callees) + len(later)

    def _run_later(self, x: Coroutine) -> None:
        if x.of is not None and (key := tuple(map(id, x.of))) not in self._followed:
            self._followed.add(key)
            self.run(*x.of)

    def _enter(self, callee: Callee, given: Sequence[tuple[int | str | None, Any]]) -> None:
        """Follow a function of the program's with these arguments, by position or name; None: any."""
        code, inner, shift = callee
        scan = code.effects.scan
        if scan.is_quiet and all(type(inner.peek(name)) in _HOLD_NOTHING for name in scan.names - code.bound - scan.binds):
            return
        if any(key is None for key, _ in given) or code.rest:
            every = any_of([x for _, x in given])
            names = (*code.rest, *(name for name in code.names if name not in code.positional[:shift] and any(key is None for key, _ in given)))
            inner.vars.update(dict.fromkeys(names, every))
        for key, x in given:
            name = key if type(key) is not int else code.positional[key + shift] if key + shift < len(code.positional) else None
            if name is not None:
                inner.vars[str(name)] = x
        key = id(code), *((name, frozenset(map(id, x.of)) if type(x) is Unknown else id(x)) for name, x in inner.vars.items())
        if key in self._followed:
            return
        self._followed.add(key)
        if self._entered >= _MOST_ENTERED:
            self.asks = True
            return self.lose(any_of(inner.vars.values()))
        self._entered += 1
        read, flow = self.run(inner, code.effects)
        for names, kind in ((scan.nonlocals - code.bound, "outer"), (scan.globals, "global")):
            for name in names:
                x = self.value(read, flow.bound[name])
                self._stores.append(lambda deps, name=name, kind=kind, x=x: inner.store(name, any_of((x, inner.peek(name)), deps), kind))

    # -- values

    def use(self, values: Sequence[Any], operands: Sequence[Any], functions: Sequence[Any]) -> None:
        """Use values by operators, builtins and iteration, and call functions."""
        methods, ev = [*functions], self.ev
        for x in self._reach(values) if ev.iterating or any(map(implicit_methods, ev.classes)) else ():
            if type(x) is LazyItems:
                self.lose(x)
            elif type(x) is Object:
                methods += [BoundMethod(fn, x) for fn in implicit_methods(x.cls)]
        for x in functions:
            if type(x) is BoundMethod and type(x.function) is str and (x.function in CHANGING or x.function in SAYING):
                self.lose(x.receiver)
        if methods:
            self._call_all(methods, [(None, x) for x in operands])

    def hand(self, values: list[Any]) -> None:
        """Pass values to code that may do anything with them."""
        for x in self._reach(values):
            self.lose(x)
            if type(x) is Coroutine:
                self._run_later(x)
            elif isinstance(x, Function):
                self.asks = True
            if type(x) is Object or type(x) in _FUNCTIONS:
                methods = [BoundMethod(fn, x) for fn in implicit_methods(x.cls)] if type(x) is Object else []
                self._call_all([x, *methods], [(None, one) for one in values])

    def _reach(self, roots: Iterable[Any]) -> list[Any]:
        """Return these values and all that they hold."""
        todo, seen, atoms, steps = [*roots], dict[int, Any](), op.ATOMS, 0
        while todo:
            x = todo.pop()
            if type(x) in atoms or (key := id(x)) in seen:
                continue
            seen[key] = x
            parts = self._parts(x)
            if parts and not atoms.issuperset(map(type, parts)):
                todo += parts
                steps += len(parts)
        self.ev.count((len(seen) + steps) >> 5)
        return [x for x in seen.values() if type(x) is not Unknown and type(x) is not GivenParts]

    def _parts(self, x: Any) -> Collection[Any]:
        """Return what a value holds or may hold, or a function gives that is not passed to it."""
        found, given = self._contents(x), self.ev.given.get(id(x)) if self.ev.given else None
        return found if given is None else [*found, *(given.of if len(given.of) <= _MOST_COPIED else (given,))]

    def _contents(self, x: Any) -> Collection[Any]:
        kind = type(x)
        if kind in op.MAPPINGS:
            return x.values()
        if kind in op.CONTAINERS or kind in op.VIEWS:
            return x
        if kind is Object:
            held = [*x.attributes.values(), *(x.args if is_exception(x) else ()), *(class_attribute(self.ev, x.cls, name) for name in _held(x.cls))]
            held += [self.ev.given[id(one)] for one in x.cls.__mro__ if id(one) in self.ev.given] if self.ev.given else ()
            return held + [x] * bool(implicit_methods(x.cls)) + [x.cls] * ("__class__" in self._attributes)
        if kind in (Unknown, GivenParts, Partial, Manager):
            return x.of
        if kind is StateGroup:
            return x.states
        if kind in _HOLD_NOTHING and kind not in (types.FunctionType, types.ModuleType, type):
            return ()
        if kind is BoundMethod:
            return (x.receiver,) if type(x.function) is str else (x.receiver, x.function)
        if kind is LazyItems:
            return x.holds()
        if kind is types.ModuleType:
            return [self.ev.attribute(x, name) for name in self._attributes if name in vars(x)]
        if isinstance(x, type):
            return [class_attribute(self.ev, x, name) for name in _held(x)] if is_plain(x) else ()
        if kind in (Closure, types.FunctionType) and (callee := callee_of(self.ev, x)) is not None:
            return [callee[1].peek(name) for name in callee[0].effects.scan.gives]
        return x.args if isinstance(x, BaseException) else ()


def _is_inert(x: Any) -> bool:
    """Return whether a value holds nothing that using it may change."""
    kind = type(x)
    return kind in op.ATOMS or (not x.of if kind is Unknown else kind in (types.BuiltinFunctionType, type) and x.__module__ == "builtins")


@functools.lru_cache(4096)
def _held(cls: type) -> Sequence[str]:
    """Return the names of a plain class's attributes that may be changed in place."""
    held = {name: type(x) for one in cls.__mro__[:-1] if one.__module__ != "builtins" for name, x in vars(one).items()}
    return [name for name, kind in held.items() if kind in op.CONTAINERS or is_plain(kind)]


def may_ask_in(ev: Evaluator, values: Iterable[Any]) -> bool:
    """Return whether going through these iterators, or calling these functions, may make requests."""
    asks = lambda callee: callee is not None and ev.may_ask(callee[1], callee[0].effects)
    return any(isinstance(x, Function) or (type(x) is LazyItems and x.may_ask()) or asks(callee_of(ev, x)) for x in values)


def may_skip(ev: Evaluator, frame: Frame, target: Any) -> bool:
    """Return whether a loop, or the helper function of a frame, may be skipped as a whole: it makes no requests."""
    if target is frame:
        return not frame.is_program and frame.code is not None and not ev.may_ask(frame, frame.code.effects)
    return not ev.may_ask(frame, target.effects)


def callee_of(ev: Evaluator, fn: Any) -> Callee | None:
    """Return the code of a function of the program's, a frame around it, and how many arguments that has already; None for what is none."""
    receiver: Any = None
    if type(fn) is Partial:
        return callee_of(ev, fn.of[0]) if fn.of else None
    if type(fn) is LRU:
        fn = fn.__wrapped__
    elif type(fn) is BoundMethod:
        fn, receiver = fn.function, fn.receiver
    elif type(fn) is Object:
        fn, receiver = class_attribute(ev, fn.cls, "__call__"), fn
    elif isinstance(fn, type) and is_plain(fn):
        fn = class_attribute(ev, fn, "__init__")
    if type(fn) is types.FunctionType and not is_known(fn):
        try:
            fn = closure_of(ev, fn)
        except NotUnderstood:
            return None
    if type(fn) is not Closure:
        return None
    names = fn.code.positional[:1] if receiver is not None else ()
    given = {**dict.fromkeys(names, receiver), **dict(zip(fn.code.positional[::-1], fn.defaults[::-1])), **fn.kwdefaults}
    return fn.code, Frame(ev, given, fn.outer, fn.code, fn.module), len(names)


def _resolved(ev: Evaluator, peek: Callable[[str], Any], node: ast.expr) -> Any:
    """Return a call's function, as far as it is known without evaluating anything; None if it is not."""
    if type(node) is ast.Name:
        return peek(node.id)
    return _member(ev, _resolved(ev, peek, node.value), node.attr) if type(node) is ast.Attribute else None


def _member(ev: Evaluator, x: Any, name: str) -> Any:
    """Return an attribute of a value to call, as far as it is known without evaluating anything; None if it is not."""
    if type(x) is Object and name not in x.attributes:
        found = class_attribute(ev, x.cls, name)
        return BoundMethod(found, x) if isinstance(found, (Closure, types.FunctionType)) else found
    if type(x) is Object:
        return x.attributes[name]
    if type(x) is types.ModuleType:
        return ev.attribute(x, name) if name in x.__dict__ or (x.__name__ == "lmc" and name in dir(x)) else None
    if type(x) in op.ATOMS or type(x) in _PLAIN_METHODS or isinstance(x, Function):
        return BoundMethod(name, x)
    if isinstance(x, type) and is_plain(x):
        return class_attribute(ev, x, name)
    return x if isinstance(x, Unknown) else None
