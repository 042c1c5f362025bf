"""Statements, compiled to closures that take a frame and give a Signal: None to continue with the next statement, BREAK, CONTINUE or RETURN."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lmc.frontend.capture import objects
from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import Code, Eval, Frame, NotUnderstood, Scope, as_def
from lmc.frontend.capture.comprehensions import COMPREHENSIONS
from lmc.frontend.capture.domain import BREAK, CONTINUE, RETURN, Arm, BranchStatement, LoopStatement
from lmc.frontend.capture.expressions import RULES, Bind, bind_name, expression, of_value, target
from lmc.frontend.capture.scan import NO_EFFECTS, PossibleEffects
from lmc.frontend.capture.unknown import NOTHING, Abandoned, Deps, Raised, Undecided, Unknown, join
from lmc.frontend.capture.values import Closure
from lmc.frontend.scopes import Bindings


def block(nodes: Sequence[ast.stmt], scope: Scope) -> Eval:
    steps = [statement(n, scope) for n in nodes]
    if len(steps) == 1:
        return steps[0]

    def run(frame: Frame) -> Any:
        for step in steps:
            frame.ev.count(1)
            signal = step(frame)
            if signal is not None:
                return signal
        return None

    return run


def statement(node: ast.stmt, scope: Scope) -> Eval:
    """Compile a statement; one that is not supported is skipped, as if it were undecided whether it runs."""
    rule = STATEMENTS.get(type(node))
    try:
        if rule is not None:
            return rule(node, scope)
    except NotUnderstood:
        pass
    loc, of = scope.loc(node), PossibleEffects([node])
    site = BranchStatement(loc, Arm(lambda frame: frame.ev.havoc(frame, of, None), of, loc), Arm(lambda _: None, NO_EFFECTS, loc))

    def skip(frame: Frame) -> Any:
        return frame.ev.domain.branch(frame.ev, frame, Unknown(None), site)

    return skip


def arm(nodes: Sequence[ast.stmt], scope: Scope, run: Eval | None = None, loc: Any = None) -> Arm:
    """Return a block that may or may not run."""
    return Arm(run or block(nodes, scope), PossibleEffects(nodes), loc or scope.loc(nodes[0] if nodes else ast.Pass(lineno=0, col_offset=0)))


# -- assignments ---------------------------------------------------------------------------------------------------------


def _assign(node: ast.Assign, scope: Scope) -> Eval:
    value, binds = expression(node.value, scope), [target(t, scope) for t in node.targets]

    def run(frame: Frame) -> None:
        x = value(frame)
        for bind in binds:
            bind(frame, x)

    return run


def _annotated(node: ast.AnnAssign, scope: Scope) -> Eval:
    return (lambda _: None) if node.value is None else _assign(ast.copy_location(ast.Assign([node.target], node.value), node), scope)


def _augmented(node: ast.AugAssign, scope: Scope) -> Eval:
    name, fn = op.OPERATORS[type(node.op)]
    more, loc, to = expression(node.value, scope), scope.loc(node), node.target

    def changed(frame: Frame, old: Any) -> Any:
        x = more(frame)
        frame.ev.loc = loc
        return op.inplace(frame.ev, name, fn, old, x)

    if isinstance(to, ast.Name):
        load, bind = expression(ast.copy_location(ast.Name(to.id, ast.Load()), to), scope), target(to, scope)
        return lambda frame: bind(frame, changed(frame, load(frame)))
    whole, attribute = expression(to.value, scope), scope.mangled(to.attr) if isinstance(to, ast.Attribute) else ""
    part = expression(to.slice, scope) if isinstance(to, ast.Subscript) else lambda _: attribute

    def run(frame: Frame) -> None:
        ev, x, at = frame.ev, whole(frame), part(frame)
        if attribute:
            return ev.set_attribute(x, attribute, changed(frame, ev.attribute(x, attribute)))
        return op.set_item(ev, x, at, changed(frame, op.item(ev, x, at)))

    return run


def _delete(node: ast.Delete, scope: Scope) -> Eval:
    """Compile a deletion of a function's own names; in a function within another, or of anything else, none is supported."""
    names = [scope.mangled(x.id) for x in node.targets if isinstance(x, ast.Name) and scope.kind(x.id) == "local" and scope.parent is None]
    if len(names) < len(node.targets):
        raise NotUnderstood("del")
    loads = [expression(ast.copy_location(ast.Name(name, ast.Load()), node), scope) for name in names]

    def run(frame: Frame) -> None:
        for name, load in zip(names, loads, strict=True):
            load(frame)  # raises where it is unbound
            del frame.vars[name]

    return run


# -- branches and loops ----------------------------------------------------------------------------------------------


def _if(node: ast.If, scope: Scope) -> Eval:
    test, loc = expression(node.test, scope), scope.loc(node)
    site = BranchStatement(loc, arm(node.body, scope), arm(node.orelse, scope, loc=loc))
    then, orelse = site.then.run, site.orelse.run

    def run(frame: Frame) -> Any:
        known = op.truth(frame.ev, test(frame))
        if known is True:
            return then(frame)
        if known is False:
            frame.ev.outcome.passed[loc] += 1
            return orelse(frame)
        return frame.ev.domain.branch(frame.ev, frame, known, site)

    return run


def _match(node: ast.Match, scope: Scope) -> Eval:
    """Compile to an `if` for each case, as long as patterns do not take the subject apart."""
    scope.bindings.bound.update((_SUBJECT,))
    rest: list[ast.stmt] = []
    for case in reversed(node.cases):
        tests = [_test(case.pattern), *([case.guard] if case.guard else [])]
        always = len(tests) == 1 and isinstance(tests[0], ast.Constant)
        rest = case.body if always else [ast.copy_location(ast.If(ast.BoolOp(ast.And(), tests), case.body, rest), case.pattern)]
    subject = ast.copy_location(ast.Assign([ast.Name(_SUBJECT, ast.Store())], node.subject), node)
    return block([ast.fix_missing_locations(x) for x in (subject, *rest)], scope)


_SUBJECT = "@subject"
"""Name of what a `match` looks at."""


def _test(pattern: ast.pattern) -> ast.expr:
    """Return a pattern as a condition, which binds its names."""
    subject = ast.Name(_SUBJECT, ast.Load())
    match pattern:
        case ast.MatchValue(value):
            return ast.Compare(subject, [ast.Eq()], [value])
        case ast.MatchSingleton(value):
            return ast.Compare(subject, [ast.Is()], [ast.Constant(value)])
        case ast.MatchOr(patterns):
            return ast.BoolOp(ast.Or(), [_test(one) for one in patterns])
        case ast.MatchClass(cls, [], [], []):
            return ast.Call(ast.Constant(isinstance), [subject, cls], [])  # pyright: ignore[reportArgumentType]
        case ast.MatchAs(inner, name):
            binds = [ast.Compare(ast.NamedExpr(ast.Name(name, ast.Store()), subject), [ast.Is()], [subject])] if name else []
            tests = [*([_test(inner)] if inner else []), *binds]
            return ast.BoolOp(ast.And(), tests) if tests else ast.Constant(True)
        case _:
            raise NotUnderstood(type(pattern).__name__)


def _for(node: ast.For | ast.AsyncFor, scope: Scope) -> Eval:
    iterable, bind, body = expression(node.iter, scope), target(node.target, scope), arm(node.body, scope)
    turn = PossibleEffects([ast.For(node.target, ast.Constant(None), node.body, node.orelse)], node)  # its items are evaluated before it
    site = LoopStatement(scope.loc(node), bind, body, arm(node.orelse, scope, loc=scope.loc(node)), turn)

    def turns(frame: Frame, x: Any) -> Any:
        for item in op.iterate(frame.ev, x):
            bind(frame, item)
            signal = body.run(frame)
            if signal is not None and signal is not CONTINUE:
                return signal
        return None

    return _loop(site, iterable, turns)


def _while(node: ast.While, scope: Scope) -> Eval:
    test, body, loc = expression(node.test, scope), block(node.body, scope), scope.loc(node)
    turn = Arm(lambda frame: (test(frame), body(frame))[1], PossibleEffects(node.body), loc)
    site = LoopStatement(loc, None, turn, arm(node.orelse, scope, loc=loc), PossibleEffects([node]))
    endless = isinstance(node.test, ast.Constant)

    def turns(frame: Frame, _: Any) -> Any:
        ev = frame.ev
        while True:
            ev.count(1)
            if endless:
                ev.domain.turn(frame, site)
            if not op.decided(ev, test(frame)):
                return None
            signal = body(frame)
            if signal is not None and signal is not CONTINUE:
                return signal

    return _loop(site, lambda _: None, turns)


def _loop(site: LoopStatement, iterable: Eval, turns: Callable[[Frame, Any], Any]) -> Eval:
    """Compile the common part of loops: their exits, and the handling of undecided ones."""

    def run(frame: Frame) -> Any:
        ev, x = frame.ev, iterable(frame)
        frame.loops.append(site)
        try:
            signal = turns(frame, x)
        except Undecided as undecided:
            return ev.domain.loop(ev, frame, undecided.test if undecided.test is not None else x if isinstance(x, Unknown) else Unknown(undecided.deps), site)
        except Abandoned as abandoned:
            if abandoned.target is not site:
                raise
            ev.havoc(frame, site.effects, abandoned.deps)
            return None
        finally:
            frame.loops.pop()
        if signal is not None:
            return None if signal is BREAK else signal
        return site.orelse.run(frame)

    return run


def _returned(frame: Frame, x: Any) -> Any:
    frame.result = x
    return RETURN


# -- with, try, raise ------------------------------------------------------------------------------------------------


def _with(node: ast.With | ast.AsyncWith, scope: Scope) -> Eval:
    first, *rest = node.items
    body, loc = block(node.body if not rest else [ast.copy_location(type(node)(rest, node.body), node)], scope), scope.loc(node)
    value, bind = expression(first.context_expr, scope), target(first.optional_vars, scope) if first.optional_vars is not None else None

    def run(frame: Frame) -> Any:
        frame.ev.loc = loc
        manager = objects.manager(frame.ev, value(frame))
        entered = manager.enter()
        if bind is not None:
            bind(frame, entered)
        try:
            signal = body(frame)
        except (Raised, Abandoned, Undecided) as left:
            if manager.leave(left.value if isinstance(left, Raised) else None):
                return None
            raise
        manager.leave(None)
        return signal

    return run


def _try(node: ast.Try, scope: Scope) -> Eval:
    body, orelse, last = block(node.body, scope), block(node.orelse, scope), block(node.finalbody, scope)
    clauses = [
        (expression(h.type, scope) if h.type is not None else None, h.name, Arm(block(h.body, scope), PossibleEffects([h]), scope.loc(h)))
        for h in node.handlers
    ]

    def guarded(frame: Frame) -> Any:
        ev, risk, raised = frame.ev, len(frame.ev.risks), None
        ev.tries += bool(clauses)
        try:
            signal = body(frame)
        except Raised as error:
            signal, raised = None, error
        finally:
            ev.tries -= bool(clauses)
        if raised is not None:
            for kinds, name, handler in clauses:
                if kinds is None or ev.catches(kinds(frame), raised.value):
                    return _handled(frame, handler, name, raised.value)
            raise raised
        if ev.risks[risk:] and clauses:  # something unknown may have raised
            deps = join(NOTHING, *ev.risks[risk:])
            over = ev.domain.handlers(ev, frame, deps, [_of_unknown(handler, name, deps) for _, name, handler in clauses], scope.loc(node))
            signal = signal if over is None else over
        return signal if signal is not None else orelse(frame)

    if not node.finalbody:
        return guarded

    def run(frame: Frame) -> Any:
        try:
            signal = guarded(frame)
        except Raised:
            if (over := last(frame)) is not None:
                return over
            raise
        result = frame.result
        if (over := last(frame)) is not None:
            return over
        frame.result = result
        return signal

    return run


def _handled(frame: Frame, handler: Arm, name: str | None, error: Any) -> Any:
    """Run a handler with the exception that it handles, under its name if it has one."""
    handled = frame.ev.handled
    handled.append(error)
    if name is not None:
        frame.vars[name] = error
    try:
        return handler.run(frame)
    finally:
        handled.pop()
        frame.vars.pop(name or "", None)


def _of_unknown(handler: Arm, name: str | None, deps: Deps) -> Arm:
    return Arm(lambda frame: _handled(frame, handler, name, Unknown(deps)), handler.effects, handler.loc)


def _raise(node: ast.Raise, scope: Scope) -> Eval:
    value = expression(node.exc, scope) if node.exc is not None else None

    def run(frame: Frame) -> Any:
        ev = frame.ev
        if value is None:
            raise Raised(ev.handled[-1] if ev.handled else RuntimeError("No active exception to reraise"))
        raise Raised(objects.exception(ev, value(frame)))

    return run


def _assert(node: ast.Assert, scope: Scope) -> Eval:
    error = ast.Call(ast.Name("AssertionError", ast.Load()), [node.msg] if node.msg else [], [])
    raises = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Raise(error)], [])
    return _if(ast.fix_missing_locations(ast.copy_location(raises, node)), scope)


# -- definitions -----------------------------------------------------------------------------------------------------


def _closure(node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Eval:
    """Compile to a closure; its code is compiled when it is first made."""
    defaults = [expression(d, scope) for d in node.args.defaults]
    named = [(a.arg, expression(d, scope)) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
    made: list[Code] = []

    def run(frame: Frame) -> Any:
        if not made:
            inner = Scope(Bindings(node.body, node.args), scope, scope.file, class_name=scope.class_name)
            try:
                made.append(Code(node, inner, None, block(node.body, inner)))
            except NotUnderstood:
                return Unknown(None)
        return Closure(made[0], frame, node.name, tuple([d(frame) for d in defaults]), {k: d(frame) for k, d in named}, module=frame.module)

    return run


RULES.update({ast.Lambda: lambda node, scope: _closure(as_def(node), scope), **COMPREHENSIONS})


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Eval:
    made, bind = _closure(node, scope), bind_name(scope.mangled(node.name), scope.kind(node.name))
    decorators = [expression(d, scope) for d in node.decorator_list]

    def run(frame: Frame) -> None:
        wrap = [d(frame) for d in decorators]
        x = made(frame)
        for decorator in reversed(wrap):
            x = frame.ev.call(decorator, [x], {})
        bind(frame, x)

    return run


def _import(node: ast.Import | ast.ImportFrom, scope: Scope) -> Eval:
    """Compile an import of modules that are imported already: to import one here would run its code."""
    module = (node.module or "" if not node.level else "") if isinstance(node, ast.ImportFrom) else None
    found: list[tuple[Bind, str]] = []
    for alias in node.names:
        name = alias.asname or alias.name.split(".")[0]
        found.append((bind_name(scope.mangled(name), scope.kind(name)), name if module is None and not alias.asname else alias.name))

    def run(frame: Frame) -> None:
        for bind, name in found:
            held = sys.modules.get(name if module is None else module, Unknown(None))
            bind(frame, held if module is None else frame.ev.attribute(held, name))

    return run


def _signal(signal: str | None) -> Callable[[Any, Scope], Eval]:
    return lambda _node, _scope: lambda _frame: signal


STATEMENTS: dict[type[ast.AST], Callable[[Any, Scope], Eval]] = {
    ast.Delete: _delete, ast.Expr: of_value(lambda _frame, _x: None), ast.Assign: _assign, ast.AnnAssign: _annotated, ast.AugAssign: _augmented,
    ast.If: _if, ast.Match: _match, ast.For: _for, ast.AsyncFor: _for, ast.While: _while, ast.Return: of_value(_returned), ast.Break: _signal(BREAK),
    ast.Continue: _signal(CONTINUE), ast.Pass: _signal(None), ast.Global: _signal(None), ast.Nonlocal: _signal(None), ast.With: _with,
    ast.AsyncWith: _with, ast.Try: _try, ast.Raise: _raise, ast.Assert: _assert, ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function, ast.Import: _import, ast.ImportFrom: _import,
}  # fmt: skip
"""By the kind of a node."""
