"""Expressions and assignment targets, compiled to closures that take a frame and give or bind a value."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from lmc.errors import Loc
from lmc.frontend.capture import objects
from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import Eval, Evaluator, Frame, NotUnderstood, Scope
from lmc.frontend.capture.domain import Arm, BranchStatement
from lmc.frontend.capture.scan import NO_EFFECTS, PossibleEffects
from lmc.frontend.capture.unknown import MISSING, NOTHING, Deps, Raised, Undecided, Unknown, join, raised
from lmc.frontend.state import StateGroup

Bind = Callable[[Frame, Any], None]


def expression(node: ast.expr, scope: Scope) -> Eval:
    rule = RULES.get(type(node))
    if rule is None:
        raise NotUnderstood(f"{type(node).__name__} at {scope.loc(node)}")
    return rule(node, scope)


def _name(node: ast.Name, scope: Scope) -> Eval:
    name, kind = scope.mangled(node.id), scope.kind(node.id)
    if kind == "local":

        def local(frame: Frame) -> Any:
            try:
                return frame.vars[name]
            except KeyError:
                raise Raised(UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")) from None

        return local
    if kind == "outer":
        return lambda frame: frame.outer_value(name)

    def read(frame: Frame) -> Any:
        found = frame.ev.globals.get((id(frame.module), name), MISSING)
        return found if found is not MISSING else frame.ev.global_value(frame.module, name)

    return read


# -- text ------------------------------------------------------------------------------------------------------------


def _joined(node: ast.JoinedStr, scope: Scope) -> Eval:
    loc = scope.loc(node)
    parts: list[Any] = [part.value if isinstance(part, ast.Constant) else _part(part, scope, loc) for part in node.values]

    def run(frame: Frame) -> Any:
        found = [part if part.__class__ is str else part(frame) for part in parts]
        unknown = [text.deps for text in found if text.__class__ is not str]
        if unknown:
            frame.ev.loc = loc
            return frame.ev.operation("fstring", found, join(*unknown))
        text = "".join(found)
        if len(text) >> 12:
            frame.ev.count(len(text) >> 12)
        return text

    return run


def _part(part: Any, scope: Scope, loc: Loc) -> Eval:
    value, conversion = expression(part.value, scope), chr(part.conversion) if part.conversion > 0 else ""
    how = expression(part.format_spec, scope) if part.format_spec is not None else None

    def run(frame: Frame) -> Any:
        x, spec = value(frame), "" if how is None else how(frame)
        if x.__class__ is str and not conversion and how is None:
            return x
        frame.ev.loc = loc
        return op.formatted(frame.ev, x, conversion, spec)

    return run


# -- operators -------------------------------------------------------------------------------------------------------


def _of_two(left: Eval, right: Eval, loc: Loc, rule: Callable[..., Any], *how: Any) -> Eval:
    """Compile to `rule(evaluation, *how, a, b)` of two values."""

    def run(frame: Frame) -> Any:
        a, b = left(frame), right(frame)
        frame.ev.loc = loc
        return rule(frame.ev, *how, a, b)

    return run


def _binary(node: ast.BinOp, scope: Scope) -> Eval:
    return _of_two(expression(node.left, scope), expression(node.right, scope), scope.loc(node), op.binary, *op.OPERATORS[type(node.op)])


def _unary(node: ast.UnaryOp, scope: Scope) -> Eval:
    operand, (name, fn) = expression(node.operand, scope), op.OPERATORS[type(node.op)]

    def run(frame: Frame) -> Any:
        x = operand(frame) if name != "not" else op.truth(frame.ev, operand(frame))
        return Unknown(None) if name == "invert" and type(x) is bool else op.apply(frame.ev, name, fn, x)  # which warns

    return run


def _compare(node: ast.Compare, scope: Scope) -> Eval:
    """Compile a comparison; a chain as a boolean operator, of which each further operand may or may not run."""
    first, *rest = node.comparators
    if rest:
        held = ast.copy_location(ast.Name(f"@{first.lineno}:{first.col_offset}", ast.Load()), first)
        scope.function.bindings.bound.update((held.id,))
        once = ast.copy_location(ast.NamedExpr(ast.Name(held.id, ast.Store()), first), first)
        pairs: list[ast.expr] = [ast.Compare(node.left, node.ops[:1], [once]), ast.Compare(held, node.ops[1:], rest)]
        return _boolean(ast.copy_location(ast.BoolOp(ast.And(), [ast.copy_location(pair, node) for pair in pairs]), node), scope)
    return _of_two(expression(node.left, scope), expression(first, scope), scope.loc(node), op.compare, *op.OPERATORS[type(node.ops[0])])


def _boolean(node: ast.BoolOp, scope: Scope) -> Eval:
    """Compile a boolean operator, with a branch for each operand: the following operands may or may not run."""
    *values, last = node.values
    run, rest = expression(last, scope), [last]
    for value in reversed(values):
        behind = Arm(run, PossibleEffects(rest), scope.loc(rest[0]))
        arms = (None, behind) if isinstance(node.op, ast.Or) else (behind, None)
        run = _choice(expression(value, scope), *arms, scope.loc(value))
        rest.insert(0, value)
    return run


def _conditional(node: ast.IfExp, scope: Scope) -> Eval:
    then, orelse = (Arm(expression(x, scope), PossibleEffects([x]), scope.loc(x)) for x in (node.body, node.orelse))
    return _choice(expression(node.test, scope), then, orelse, scope.loc(node))


def _choice(test: Eval, then: Arm | None, orelse: Arm | None, loc: Loc) -> Eval:
    """Compile a choice by the truth of a value; an arm that is None gives that value itself."""

    def run(frame: Frame) -> Any:
        x = test(frame)
        known = op.truth(frame.ev, x)
        if known is True or known is False:
            arm = then if known else orelse
            return x if arm is None else arm.run(frame)
        itself = Arm(lambda _: x, NO_EFFECTS, loc)
        return frame.ev.domain.choice(frame.ev, frame, known, BranchStatement(loc, then or itself, orelse or itself))

    return run


# -- displays --------------------------------------------------------------------------------------------------------


def _items(nodes: Sequence[ast.expr], scope: Scope) -> Callable[[Frame], tuple[list[Any], Deps]]:
    """Compile the items of a display or the arguments of a call: they, with those that are starred and unknown as one, of which the dependencies tell."""
    if len(nodes) == 1 and not isinstance(nodes[0], ast.Starred):
        only = expression(nodes[0], scope)
        return lambda frame: ([only(frame)], NOTHING)
    parts = [(isinstance(n, ast.Starred), expression(n.value if isinstance(n, ast.Starred) else n, scope)) for n in nodes]

    def run(frame: Frame) -> tuple[list[Any], Deps]:
        found, deps = list[Any](), NOTHING
        for starred, part in parts:
            x = part(frame)
            try:
                found += op.each_of(frame.ev, x) if starred else (x,)
            except Undecided as undecided:
                found.append(x)
                deps = join(deps, undecided.deps)
            except Raised as error:
                raise raised(TypeError) if type(error.value) is TypeError else error from None
        return found, deps

    return run


def _display(make: Callable[[list[Any]], Any]) -> Callable[[Any, Scope], Eval]:
    def compiled(node: Any, scope: Scope) -> Eval:
        items, name = _items(node.elts, scope), type(node).__name__.lower()

        def run(frame: Frame) -> Any:
            found, deps = items(frame)
            try:
                if deps == NOTHING:
                    return op.native(make, found)
            except Undecided as undecided:
                deps = undecided.deps
            return frame.ev.operation(name, found, deps)

        return run

    return compiled


def _dict(node: ast.Dict, scope: Scope) -> Eval:
    pairs = [(expression(k, scope) if k is not None else None, expression(v, scope)) for k, v in zip(node.keys, node.values, strict=True)]

    def run(frame: Frame) -> Any:
        ev, found = frame.ev, dict[Any, Any]()
        values = [(key and key(frame), value(frame)) for key, value in pairs]
        try:
            for (key, _), (k, x) in zip(pairs, values, strict=True):
                if key is not None:
                    op.native(found.__setitem__, k, x)
                elif (deps := op.known(ev, x)) != NOTHING:
                    raise Undecided(deps)
                else:
                    op.native(found.update, x)
        except Undecided as undecided:
            return ev.operation("dict", [part for pair in values for part in pair], undecided.deps)
        return found

    return run


def _slice(node: ast.Slice, scope: Scope) -> Eval:
    parts = [x or ast.copy_location(ast.Constant(None), node) for x in (node.lower, node.upper, node.step)]
    return _call(ast.copy_location(ast.Call(ast.Constant(slice), parts, []), node), scope)  # pyright: ignore[reportArgumentType]


# -- items, attributes, calls ------------------------------------------------------------------------------------------


def _subscript(node: ast.Subscript, scope: Scope) -> Eval:
    return _of_two(expression(node.value, scope), expression(node.slice, scope), scope.loc(node), op.item)


def _attribute(node: ast.Attribute, scope: Scope) -> Eval:
    value, name, loc = expression(node.value, scope), scope.mangled(node.attr), scope.loc(node)

    def run(frame: Frame) -> Any:
        x, frame.ev.loc = value(frame), loc
        return frame.ev.attribute(x, name)

    return run


def _call(node: ast.Call, scope: Scope) -> Eval:
    loc, called = scope.loc(node), node.func.id if isinstance(node.func, ast.Name) else ""
    if called == "super" and not node.args:
        return objects.super_of
    if called in ("locals", "globals", "vars", "eval", "exec") and not node.args:
        return lambda _: Unknown(None)
    args = _items(node.args, scope)
    named = [(k.arg, expression(k.value, scope)) for k in node.keywords]
    receiver = method = fn = None
    if isinstance(node.func, ast.Attribute):
        receiver, method = expression(node.func.value, scope), scope.mangled(node.func.attr)
    else:
        fn = expression(node.func, scope)
    nodes = [*node.args, *[k.value if k.arg else node for k in node.keywords]]
    settled = bool(nodes) and all(isinstance(x, ast.Constant) or (isinstance(x, ast.Name) and scope.kind(x.id) == "global") for x in nodes)
    kept: list[tuple[Any, ...]] | None = [()] if settled else None

    def run(frame: Frame) -> Any:
        ev = frame.ev
        callee = receiver(frame) if receiver is not None else fn(frame)  # pyright: ignore[reportOptionalCall]
        given, deps = args(frame)
        kwargs: dict[str, Any] = {}
        for name, value in named:
            x = value(frame)
            if name is not None:
                kwargs[name] = x
            elif (unknown := op.known(ev, x)) != NOTHING:
                given.append(x)
                deps = join(deps, unknown)
            else:
                op.spread(kwargs, x)
        ev.loc = loc
        if deps != NOTHING:
            return ev.call_with_unknown(callee, method, [*given, *kwargs.values()], deps)
        if kept is not None:
            return ev.call_settled(kept, callee, method, given, kwargs)
        if receiver is None:
            return ev.call(callee, given, kwargs)
        return ev.call_method(callee, method, given, kwargs)

    return run


def of_value(fn: Callable[[Frame, Any], Any]) -> Callable[[Any, Scope], Eval]:
    """Compile a node with one value: `fn(frame, value)`."""

    def compiled(node: Any, scope: Scope) -> Eval:
        value = expression(node.value or ast.Constant(None), scope)
        return lambda frame: fn(frame, value(frame))

    return compiled


def _walrus(node: ast.NamedExpr, scope: Scope) -> Eval:
    value, name = expression(node.value, scope), node.target.id
    kind = scope.function.kind(name)

    def run(frame: Frame) -> Any:
        x = value(frame)
        frame.function.store(name, x, kind)
        return x

    return run


# -- binding ---------------------------------------------------------------------------------------------------------


def target(node: ast.expr, scope: Scope) -> Bind:
    """Compile an assignment target: `bind(frame, value)`."""
    if isinstance(node, ast.Name):
        return bind_name(scope.mangled(node.id), scope.kind(node.id))
    if isinstance(node, ast.Tuple | ast.List):
        return _bind_items(node, scope)
    if isinstance(node, ast.Subscript):
        value, at = expression(node.value, scope), expression(node.slice, scope)
        return lambda frame, x: op.set_item(frame.ev, value(frame), at(frame), x)
    if isinstance(node, ast.Attribute):
        value, name = expression(node.value, scope), scope.mangled(node.attr)
        return lambda frame, x: frame.ev.set_attribute(value(frame), name, x)
    raise NotUnderstood(f"{type(node).__name__} at {scope.loc(node)}")


def bind_name(name: str, kind: str) -> Bind:
    local = kind == "local"

    def bind(frame: Frame, x: Any) -> None:
        if local and (frame.live is None or not isinstance(x, Unknown)):
            frame.vars[name] = x
        else:
            frame.store(name, x, kind)

    return bind


def _bind_items(node: ast.Tuple | ast.List, scope: Scope) -> Bind:
    targets = [target(e.value if isinstance(e, ast.Starred) else e, scope) for e in node.elts]
    star = next((i for i, e in enumerate(node.elts) if isinstance(e, ast.Starred)), None)

    def bind(frame: Frame, x: Any) -> None:
        ev = frame.ev
        try:
            items = _unpacked(ev, x, len(targets), star)
        except Undecided as undecided:
            for i, one in enumerate(targets):
                one(frame, ev.operation("unpack" if i != star else "rest", (x, i), undecided.deps))
            return
        for one, item in zip(targets, items, strict=True):
            one(frame, item)

    return bind


def _unpacked(ev: Evaluator, x: Any, n: int, star: int | None) -> list[Any]:
    try:
        items = op.iterate(ev, x)
    except Raised:
        raise raised(TypeError) from None
    found = list(items if star is not None else islice(items, n + 1))  # of what has no end, one too many
    if star is None and len(found) == n:
        return found
    if type(x) is StateGroup and type(x.states) is not list:  # forks of unknown number
        raise Undecided(NOTHING)
    if star is None or len(found) < n - 1:
        raise raised(ValueError)
    after = len(found) - (n - star - 1)
    return [*found[:star], found[star:after], *found[after:]]


RULES: dict[type[ast.AST], Callable[[Any, Scope], Eval]] = {
    ast.Constant: lambda node, _scope: lambda _frame, value=node.value: value, ast.Name: _name, ast.JoinedStr: _joined, ast.BinOp: _binary,
    ast.UnaryOp: _unary, ast.Compare: _compare, ast.BoolOp: _boolean, ast.IfExp: _conditional, ast.Dict: _dict, ast.Slice: _slice,
    ast.Subscript: _subscript, ast.Attribute: _attribute, ast.Call: _call, ast.Await: of_value(lambda frame, x: op.awaited(frame.ev, x)),
    ast.NamedExpr: _walrus, ast.List: _display(list), ast.Tuple: _display(tuple), ast.Set: _display(set),
}  # fmt: skip
"""By the kind of a node; lambdas and comprehensions contain statements (statements.py, comprehensions.py)."""
