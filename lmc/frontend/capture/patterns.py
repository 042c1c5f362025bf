"""Patterns of `match`, compiled: `matches(frame, subject)` is True, False or Unknown, and binds what it captures."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# (values of a program are Any by nature)

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import NotUnderstood, Scope
from lmc.frontend.capture.expressions import expression
from lmc.frontend.capture.values import Object, Unknown

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Frame

Matches = Callable[["Frame", Any], Any]


def pattern(node: ast.pattern, scope: Scope) -> Matches:
    rule = _RULES.get(type(node))
    if rule is None:
        raise NotUnderstood(f"{type(node).__name__} at {scope.loc(node)}")
    return rule(node, scope)


def _value(node: ast.MatchValue, scope: Scope) -> Matches:
    value = expression(node.value, scope)
    return lambda frame, x: op.truth(frame.ev, op.compare(frame.ev, "eq", operator.eq, x, value(frame)))


def _singleton(node: ast.MatchSingleton, scope: Scope) -> Matches:
    value = node.value
    return lambda frame, x: op.compare(frame.ev, "is", operator.is_, x, value)


def _sequence(node: ast.MatchSequence, scope: Scope) -> Matches:
    star = next((i for i, p in enumerate(node.patterns) if isinstance(p, ast.MatchStar)), None)
    parts = [_star(p, scope) if isinstance(p, ast.MatchStar) else pattern(p, scope) for p in node.patterns]
    least = len(parts) - (star is not None)

    def run(frame: Frame, x: Any) -> Any:
        if isinstance(x, Unknown) or frame.ev.is_lost(x):
            return Unknown(x.deps if isinstance(x, Unknown) else frame.ev.lost[id(x)])
        if type(x) not in (list, tuple) and type(x).__name__ != "deque":
            return False
        items = list(x)
        if len(items) < least or (star is None and len(items) > least):
            return False
        if star is not None:
            after = len(items) - (least - star)
            items = [*items[:star], items[star:after], *items[after:]]
        return _all(frame, parts, items)

    return run


def _all(frame: Frame, parts: list[Matches], items: list[Any]) -> Any:
    unknown: Any = None
    for part, item in zip(parts, items, strict=True):
        known = part(frame, item)
        if known is False:
            return False
        if known is not True:
            unknown = known
    return True if unknown is None else unknown


def _bound(name: str | None, scope: Scope) -> Matches:
    if name is None:
        return lambda _frame, _x: True
    kind = scope.kind(name)

    def run(frame: Frame, x: Any) -> bool:
        frame.store(name, x, kind)
        return True

    return run


def _star(node: ast.MatchStar, scope: Scope) -> Matches:
    return _bound(node.name, scope)


def _as(node: ast.MatchAs, scope: Scope) -> Matches:
    bind = _bound(node.name, scope)
    if node.pattern is None:
        return bind
    inner = pattern(node.pattern, scope)

    def run(frame: Frame, x: Any) -> Any:
        known = inner(frame, x)
        return bind(frame, x) if known is True else known

    return run


def _or(node: ast.MatchOr, scope: Scope) -> Matches:
    parts = [pattern(p, scope) for p in node.patterns]

    def run(frame: Frame, x: Any) -> Any:
        for part in parts:
            known = part(frame, x)
            if known is not False:
                return known
        return False

    return run


def _mapping(node: ast.MatchMapping, scope: Scope) -> Matches:
    keys, parts, rest = [expression(k, scope) for k in node.keys], [pattern(p, scope) for p in node.patterns], _bound(node.rest, scope)

    def run(frame: Frame, x: Any) -> Any:
        ev = frame.ev
        if isinstance(x, Unknown) or ev.is_lost(x):
            return Unknown(x.deps if isinstance(x, Unknown) else ev.lost[id(x)])
        if type(x) not in op.MAPPINGS:
            return False
        wanted = [k(frame) for k in keys]
        if any(k not in x for k in wanted):
            return False
        known = _all(frame, parts, [x[k] for k in wanted])
        if known is True and node.rest is not None:
            rest(frame, {k: v for k, v in x.items() if k not in wanted})
        return known

    return run


def _class(node: ast.MatchClass, scope: Scope) -> Matches:
    cls, parts = expression(node.cls, scope), [pattern(p, scope) for p in node.patterns]
    names, named = node.kwd_attrs, [pattern(p, scope) for p in node.kwd_patterns]

    def run(frame: Frame, x: Any) -> Any:
        ev, kind = frame.ev, cls(frame)
        known = ev.is_instance(x, kind)
        if known is not True:
            return known
        if parts and kind in _ITSELF:
            return parts[0](frame, x)
        positional = ev.match_args(x, len(parts)) if type(x) is Object else None if parts else ()
        if positional is None:
            return Unknown(None)
        return _all(frame, [*parts, *named], [ev.attribute(x, name) for name in (*positional, *names)])

    return run


_ITSELF = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
_RULES: Mapping[type[ast.AST], Callable[[Any, Scope], Matches]] = {
    ast.MatchValue: _value, ast.MatchSingleton: _singleton, ast.MatchSequence: _sequence, ast.MatchAs: _as, ast.MatchOr: _or, ast.MatchMapping: _mapping,
    ast.MatchClass: _class,
}  # fmt: skip
