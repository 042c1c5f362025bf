"""Generators: statements that yield, compiled to generators of Python, so that each item is made when it is taken."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# (values of a program are Any by nature)

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import NotUnderstood, Scope
from lmc.frontend.capture.domain import BREAK, CONTINUE, RETURN
from lmc.frontend.capture.expressions import expression
from lmc.frontend.capture.statements import Handlers, managers_of, statement, target
from lmc.frontend.capture.values import Abandoned, Items, Raised, Undecided, Unknown

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Frame

Run = Callable[["Frame"], Generator[Any, Any, Any]]
"""Yields what the program yields; gives a Signal."""


def generator(body: Sequence[ast.stmt], scope: Scope) -> Run:
    """Compiles the body of a generator function; what it gives is the value of the generator."""
    run = _block(body, scope)

    def items(frame: Frame) -> Generator[Any, Any, Any]:
        try:
            signal = yield from run(frame)
        except Abandoned as abandoned:
            if abandoned.target is not frame:
                raise
            raise Undecided(abandoned.deps) from None
        return frame.result if signal is RETURN else None

    return items


def _yields(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return False
    return isinstance(node, ast.Yield | ast.YieldFrom) or any(map(_yields, ast.iter_child_nodes(node)))


def _block(nodes: Sequence[ast.stmt], scope: Scope) -> Run:
    steps = [(True, _statement(n, scope)) if _yields(n) else (False, statement(n, scope)) for n in nodes]

    def run(frame: Frame) -> Generator[Any, Any, Any]:
        for yields, step in steps:
            frame.ev.count(1)
            signal = (yield from step(frame)) if yields else step(frame)
            if signal is not None:
                return signal
        return None

    return run


def _statement(node: ast.stmt, scope: Scope) -> Run:
    rule = _RULES.get(type(node))
    if rule is None or not isinstance(getattr(node, "value", None), ast.Yield | ast.YieldFrom | None):
        return _first(node, scope)
    return rule(node, scope)


def _first(node: ast.stmt, scope: Scope) -> Run:
    """A statement in which a yield is evaluated before anything else that has effects: it is taken out, in front."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr):
        raise NotUnderstood(f"a yield in {type(node).__name__} at {scope.loc(node)}")
    name = f".yielded {node.lineno}"
    rest = copy.copy(node)
    rest.value, found = _taken_out(node.value, name)
    if found is None or _yields(rest):
        raise NotUnderstood(f"a yield inside of an expression at {scope.loc(node)}")
    scope.bindings.bound.add(name)
    value, then = _value(found, scope), statement(rest, scope)

    def run(frame: Frame) -> Generator[Any, Any, Any]:
        frame.vars[name] = yield from value(frame)
        return then(frame)

    return run


def _taken_out(node: Any, name: str) -> tuple[Any, ast.expr | None]:
    """An expression with the yield that it begins with replaced by a name, and that yield."""
    if isinstance(node, ast.Yield | ast.YieldFrom):
        return ast.copy_location(ast.Name(name, ast.Load()), node), node
    inner = _BEGINS.get(type(node))
    if inner is None:
        return node, None
    changed = copy.copy(node)
    part = getattr(node, inner)
    first, found = _taken_out(part[0] if isinstance(part, list) else part, name)
    setattr(changed, inner, [first, *part[1:]] if isinstance(part, list) else first)
    return changed, found


_BEGINS: Mapping[type[ast.AST], str] = {
    ast.BoolOp: "values", ast.BinOp: "left", ast.Compare: "left", ast.Attribute: "value", ast.Subscript: "value", ast.Call: "func", ast.IfExp: "test",
    ast.UnaryOp: "operand", ast.NamedExpr: "value", ast.Tuple: "elts", ast.List: "elts",
}  # fmt: skip
"""By kind of expression, the part that is evaluated first."""


def _value(node: ast.expr | None, scope: Scope) -> Run:
    """An expression that is a yield."""
    if isinstance(node, ast.Yield):
        value = expression(node.value, scope) if node.value is not None else None

        def one(frame: Frame) -> Generator[Any, Any, Any]:
            return (yield None if value is None else value(frame))

        return one
    if isinstance(node, ast.YieldFrom):
        inner = expression(node.value, scope)

        def several(frame: Frame) -> Generator[Any, Any, Any]:
            x = inner(frame)
            if type(x) is Items and x.generator is not None:
                return (yield from x.generator)
            yield from op.iterate(frame.ev, x)
            return None

        return several
    raise NotUnderstood(f"a yield inside of an expression at {scope.loc(node) if node is not None else ''}")


def _expression(node: ast.Expr, scope: Scope) -> Run:
    value = _value(node.value, scope)

    def run(frame: Frame) -> Generator[Any, Any, Any]:
        yield from value(frame)

    return run


def _assign(node: ast.Assign | ast.AnnAssign, scope: Scope) -> Run:
    value, binds = _value(node.value, scope), [target(t, scope) for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]

    def run(frame: Frame) -> Generator[Any, Any, Any]:
        x = yield from value(frame)
        for bind in binds:
            bind(frame, x)

    return run


def _return(node: ast.Return, scope: Scope) -> Run:
    value = _value(node.value, scope)

    def run(frame: Frame) -> Generator[Any, Any, Any]:
        frame.result = yield from value(frame)
        return RETURN

    return run


def _if(node: ast.If, scope: Scope) -> Run:
    test = expression(node.test, scope)
    then, orelse = _block(node.body, scope), _block(node.orelse, scope)

    def run(frame: Frame) -> Generator[Any, Any, Any]:
        known = op.truth(frame.ev, test(frame))
        if isinstance(known, Unknown):
            raise Undecided(known.deps)
        return (yield from (then if known else orelse)(frame))

    return run


def _for(node: ast.For, scope: Scope) -> Run:
    iterable, bind, body, orelse = expression(node.iter, scope), target(node.target, scope), _block(node.body, scope), _block(node.orelse, scope)

    def run(frame: Frame) -> Generator[Any, Any, Any]:
        items = op.iterate(frame.ev, iterable(frame))
        while True:
            more, item = op.take(frame.ev, items)
            if not more:
                return (yield from orelse(frame))
            bind(frame, item)
            signal = yield from body(frame)
            if signal is not None and signal is not CONTINUE:
                return None if signal is BREAK else signal

    return run


def _while(node: ast.While, scope: Scope) -> Run:
    test, body, orelse = expression(node.test, scope), _block(node.body, scope), _block(node.orelse, scope)

    def run(frame: Frame) -> Generator[Any, Any, Any]:
        while True:
            frame.ev.count(1)
            known = op.truth(frame.ev, test(frame))
            if isinstance(known, Unknown):
                raise Undecided(known.deps)
            if not known:
                return (yield from orelse(frame))
            signal = yield from body(frame)
            if signal is not None and signal is not CONTINUE:
                return None if signal is BREAK else signal

    return run


def _with(node: ast.With, scope: Scope) -> Run:
    items, body = managers_of(node, scope), _block(node.body, scope)

    def nested(frame: Frame, k: int) -> Generator[Any, Any, Any]:
        if k == len(items):
            return (yield from body(frame))
        value, bind = items[k]
        manager = frame.ev.manager(value(frame))
        entered = manager.enter()
        if bind is not None:
            bind(frame, entered)
        try:
            signal = yield from nested(frame, k + 1)
        except Raised as raised:
            if manager.leave(raised.value):
                return None
            raise
        except GeneratorExit as over:
            if not frame.ev.over:
                manager.leave(over)
            raise
        manager.leave(None)
        return signal

    return lambda frame: nested(frame, 0)


def _try(node: ast.Try, scope: Scope) -> Run:
    body, orelse, last = _block(node.body, scope), _block(node.orelse, scope), _block(node.finalbody, scope)
    handlers, bodies = Handlers(node, scope, bodies=False), [_block(h.body, scope) for h in node.handlers]

    def guarded(frame: Frame) -> Generator[Any, Any, Any]:
        try:
            signal = yield from body(frame)
        except Raised as raised:
            found = handlers.find(frame, raised.value)
            if found is None:
                raise
            name, k = found
            with frame.ev.handling(frame, name, raised.value):
                return (yield from bodies[k](frame))
        return signal if signal is not None else (yield from orelse(frame))

    def run(frame: Frame) -> Generator[Any, Any, Any]:
        try:
            signal = yield from guarded(frame)
        except Raised:
            over = yield from last(frame)
            if over is not None:
                return over
            raise
        except GeneratorExit:  # nobody takes the rest
            if not frame.ev.over:
                for _ in last(frame):
                    break
            raise
        over = yield from last(frame)
        return signal if over is None else over

    return run


_RULES: Mapping[type[ast.AST], Callable[[Any, Scope], Run]] = {
    ast.Expr: _expression, ast.Assign: _assign, ast.AnnAssign: _assign, ast.Return: _return, ast.If: _if, ast.For: _for, ast.While: _while, ast.With: _with,
    ast.Try: _try,
}  # fmt: skip
