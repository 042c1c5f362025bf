"""Havoc: knowledge that an evaluation loses at code that it skips, and whether such code may make requests."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.closures import closure_of
from lmc.frontend.capture.code import Code, Evaluator, Frame, NotUnderstood
from lmc.frontend.capture.objects import class_attribute, special_methods
from lmc.frontend.capture.outside import LRU, is_plain
from lmc.frontend.capture.scan import PossibleEffects, root
from lmc.frontend.capture.table import ASKS, CHANGING, is_known
from lmc.frontend.capture.unknown import Deps, Unknown
from lmc.frontend.capture.values import BoundMethod, Closure, LazyItems, Object, Partial
from lmc.frontend.expressions import Expr, GenExpr, ReasoningExpr, SelectExpr, Seq
from lmc.frontend.host import HostFunction
from lmc.frontend.interpreter import Function
from lmc.frontend.state import State, StateGroup

_ASKING_METHODS = frozenset({"run", "arun", "each", "run_batch", "batch", "acall", "bind", "options", "__iadd__"})
_DEEPEST = 4
_MOST_FUNCTIONS = 64
"""Items of a container that is looked through for functions."""


def havoc(ev: Evaluator, frame: Frame, effects: PossibleEffects, deps: Deps) -> None:
    """Assume that code with these effects may have run: its bindings and changes are unknown, and whether it made requests."""
    if effects.calls or effects.loads:
        ev.may_raise(deps)
    if ev.may_ask(frame, effects):
        ev.shifted = True
        ev.blocked(deps)
    for change in _changes(ev, frame, effects):
        change(deps)
    for x in [x for x in map(frame.peek, effects.loads) if type(x) is LazyItems]:  # it may have taken some of its items
        ev.lose(x, deps)
    for name in effects.names | effects.appends:
        held = None if name in effects.names else frame.peek(name)  # augmented assignment changes some objects, and rebinds the name of others
        if not isinstance(held, (State, StateGroup, Object)) and type(held) not in op.CONTAINERS - {tuple, frozenset}:
            code, holder = frame.code, frame if name in frame.vars else frame.function
            holder.store(name, Unknown(deps), "global" if code and name in code.writes_globals else "outer" if code and name in code.nonlocals else "local")


def _changes(ev: Evaluator, frame: Frame, effects: PossibleEffects, depth: int = 0) -> Iterator[Callable[[Deps], None]]:
    """Yield what loses the objects that code with these effects may change, and the names of others that it may bind."""
    lost = set(effects.touched)
    for call in effects.calls:
        fn = _resolved(ev, frame, call.func)
        callee, named = callee_of(ev, fn), [(k.arg, k.value) for k in call.keywords]
        if callee is None:
            changed = [*call.args, *(x for _, x in named)] if id(fn) in CHANGING or _is_opaque(fn) else []
        else:
            code, inner = callee
            receiver = call.func.value if isinstance(fn, BoundMethod) and isinstance(call.func, ast.Attribute) else call.func
            given = [receiver, *call.args] if isinstance(fn, (BoundMethod, type, Object)) else call.args
            changed = [arg for parameter, arg in (*zip(code.positional, given, strict=False), *named) if parameter in code.effects.touched]
            if depth < _DEEPEST:
                for names, kind in ((code.nonlocals, "outer"), (code.writes_globals, "global")):
                    yield from [lambda deps, inner=inner, name=name, kind=kind: inner.store(name, Unknown(deps), kind) for name in names]
                yield from _changes(ev, inner, code.free_effects, depth + 1)
        lost.update(filter(None, map(root, changed)))
    for x in map(frame.peek, lost):
        if x is not None and type(x) not in op.ATOMS:
            yield lambda deps, x=x: ev.lose(x, deps)


def may_ask(ev: Evaluator, frame: Frame, effects: PossibleEffects, depth: int = 0) -> bool:
    """Return whether code with these effects may make requests."""
    for call in effects.calls:
        fn = _resolved(ev, frame, call.func)
        if id(fn) in ASKS or isinstance(fn, Function):
            return True
        if isinstance(call.func, ast.Attribute) and call.func.attr in _ASKING_METHODS and (fn is None or isinstance(fn, BoundMethod)):
            return True
        if _callee_asks(ev, fn, depth):
            return True
        given = call.args if _is_opaque(fn) else [] if isinstance(call.func, (ast.Name, ast.Attribute)) else [call.func]
        if any(_asks_if_used(ev, frame.peek(x.id), depth, whole=True) for part in given for x in ast.walk(part) if isinstance(x, ast.Name)):
            return True
    appended = any(isinstance(frame.peek(name), (State, StateGroup)) for name in effects.appends)
    held = [x for x in map(frame.peek, effects.loads) if type(x) not in op.ATOMS]
    return (appended and any(map(_asks, held))) or any(_asks_if_used(ev, x, depth) for x in held)


def _callee_asks(ev: Evaluator, fn: Any, depth: int) -> bool:
    """Return whether calling a function may make requests."""
    callee = callee_of(ev, fn)
    if callee is None or depth >= _DEEPEST:
        return False
    code, inner = callee
    of = id(code), tuple(map(id, inner.vars.values()))
    known = ev.asks.get(of)
    if known is None:
        ev.asks[of] = False  # while it is visited: a recursion adds nothing
        known = ev.asks[of] = ev.may_ask(inner, code.effects, depth + 1)
    return known


def _asks_if_used(ev: Evaluator, x: Any, depth: int, *, whole: bool = False, inside: int = 0) -> bool:
    """Return whether code that has a value may make requests by calling it, or functions in it, or by operators; `whole`: or by its methods and attributes."""
    kind = type(x)
    if kind in op.CONTAINERS and len(x) <= _MOST_FUNCTIONS and inside < _DEEPEST and not ev.is_lost(x):
        return any(_asks_if_used(ev, i, depth, whole=whole, inside=inside + 1) for i in (x.values() if kind in op.MAPPINGS else x) if type(i) not in op.ATOMS)
    if kind is not Object or inside >= _DEEPEST:
        return kind is not type and _callee_asks(ev, x, depth)
    return any(_callee_asks(ev, BoundMethod(fn, x), depth) for fn in _implicit(x.cls)) or (
        whole and any(_asks_if_used(ev, i, depth, whole=True, inside=inside + 1) for i in x.attributes.values() if type(i) not in op.ATOMS)
    )


@functools.lru_cache(4096)
def _implicit(cls: type) -> Sequence[Any]:
    """Return the functions of a class that Python calls for operators and attributes."""
    held = {name: item for one in reversed(cls.__mro__[:-1]) for name, item in vars(one).items()}
    properties = [item.fget for item in held.values() if isinstance(item, property)]
    return (*special_methods(cls), *properties, *(item.func for item in held.values() if isinstance(item, functools.cached_property)))


def may_ask_in(ev: Evaluator, values: Iterable[Any]) -> bool:
    """Return whether going through these iterators, or calling these functions, may make requests."""
    asks = lambda callee: callee is not None and ev.may_ask(callee[1], callee[0].effects)
    return any(isinstance(x, Function) or (type(x) is LazyItems and x.may_ask()) or asks(callee_of(ev, x)) for x in values)


def may_skip(ev: Evaluator, frame: Frame, target: Any) -> bool:
    """Return whether a loop, or the helper function of a frame, may be skipped as a whole: it makes no requests."""
    if target is frame:
        return not frame.is_program and frame.code is not None and not ev.may_ask(frame, frame.code.effects)
    return not ev.may_ask(frame, target.effects)


def callee_of(ev: Evaluator, fn: Any) -> tuple[Code, Frame] | None:
    """Return the code of a function of the program's, and a frame around it; None for what is none."""
    receiver: Any = None
    if type(fn) is Partial:
        return callee_of(ev, fn.of[0]) if fn.of else None
    if type(fn) is LRU:
        fn = fn.__wrapped__
    elif isinstance(fn, BoundMethod):
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
    return fn.code, Frame(ev, dict.fromkeys(names, receiver), fn.outer, fn.code, fn.module)


def _resolved(ev: Evaluator, frame: Frame, node: ast.expr) -> Any:
    """Return a call's function, as far as it is known without evaluating anything; None if it is not."""
    if isinstance(node, ast.Name):
        return frame.peek(node.id)
    if isinstance(node, ast.Attribute):
        base = _resolved(ev, frame, node.value)
        if isinstance(base, types.ModuleType):
            return ev.attribute(base, node.attr)
        if type(base) is Object:
            found = class_attribute(ev, base.cls, node.attr)
            return BoundMethod(found, base) if isinstance(found, (Closure, types.FunctionType)) else base.attributes.get(node.attr, found)
        if isinstance(base, (State, StateGroup, Function)):
            return BoundMethod(node.attr, base)
        if isinstance(base, Unknown):
            return base
    return None


def _is_opaque(fn: Any) -> bool:
    """Return whether nothing is known of a function that exists, so that it may change its arguments."""
    if isinstance(fn, Unknown):
        return fn.deps is None
    if isinstance(fn, HostFunction):
        return not fn.pure
    return fn is not None and not is_known(fn) and not isinstance(fn, (type, Function, BoundMethod, Object))


def _asks(x: Any) -> bool:
    if isinstance(x, Seq):
        return any(map(_asks, x.items))
    return isinstance(x, (GenExpr, SelectExpr, ReasoningExpr)) or (isinstance(x, Unknown) and x.deps is None and isinstance(x, Expr))
