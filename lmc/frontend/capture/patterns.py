"""Patterns of `match` as expressions: a `case` is an `if` whose test binds what the pattern captures."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from lmc.frontend.capture.code import NotUnderstood

SUBJECT = ".subject"
"""The name under which a `match` keeps its subject; no program has it."""
_SELF = frozenset("bool bytearray bytes dict float frozenset int list set str tuple".split())
"""Classes whose one positional pattern is the value itself."""


def as_ifs(node: ast.Match) -> list[ast.stmt]:
    """Return the statements that a `match` is equivalent to."""
    subject = _name(SUBJECT)
    rest: list[ast.stmt] = []
    for case in reversed(node.cases):
        test = _test(case.pattern, subject)
        if case.guard is not None:
            test = ast.BoolOp(ast.And(), [test, case.guard])
        rest = [_at(case.pattern, ast.If(test, case.body, rest))]
    return [_at(node, ast.Assign([ast.Name(SUBJECT, ast.Store())], node.subject)), *rest]


def _at(place: Any, made: Any) -> Any:
    return ast.fix_missing_locations(ast.copy_location(made, place))


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _call(name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(_name(name), list(args), [])


def _all(*tests: ast.expr) -> ast.expr:
    known = [t for t in tests if not (isinstance(t, ast.Constant) and t.value is True)]
    return ast.BoolOp(ast.And(), known) if len(known) > 1 else known[0] if known else ast.Constant(True)


def _bind(name: str | None, x: ast.expr) -> ast.expr:
    if name is None:
        return ast.Constant(True)
    bound = ast.NamedExpr(ast.Name(name, ast.Store()), x)
    return ast.Subscript(ast.Tuple([bound, ast.Constant(True)], ast.Load()), ast.Constant(1), ast.Load())


def _test(node: ast.pattern, x: ast.expr) -> ast.expr:
    rule = _RULES.get(type(node))
    if rule is None:
        raise NotUnderstood(type(node).__name__)
    return rule(node, x)


def _sequence(node: ast.MatchSequence, x: ast.expr) -> ast.expr:
    count, star = len(node.patterns), next((i for i, p in enumerate(node.patterns) if isinstance(p, ast.MatchStar)), None)
    length = ast.Compare(_call("len", x), [ast.Eq() if star is None else ast.GtE()], [ast.Constant(count - (star is not None))])
    tests: list[ast.expr] = []
    for i, part in enumerate(node.patterns):
        behind = i - count  # from the end
        if isinstance(part, ast.MatchStar):
            upper = ast.Constant(behind + 1) if behind + 1 else None
            tests.append(_bind(part.name, _call("list", ast.Subscript(x, ast.Slice(ast.Constant(i), upper), ast.Load()))))
        else:
            at = ast.Constant(i if star is None or i < star else behind)
            tests.append(_test(part, ast.Subscript(x, at, ast.Load())))
    return _all(_call("isinstance", x, ast.Tuple([_name("list"), _name("tuple")], ast.Load())), length, *tests)


def _mapping(node: ast.MatchMapping, x: ast.expr) -> ast.expr:
    if node.rest is not None:
        raise NotUnderstood("a pattern with a rest of a mapping")
    tests = [ast.Compare(key, [ast.In()], [x]) for key in node.keys]
    parts = [_test(p, ast.Subscript(x, key, ast.Load())) for key, p in zip(node.keys, node.patterns, strict=True)]
    return _all(_call("isinstance", x, _name("dict")), *tests, *parts)


def _class(node: ast.MatchClass, x: ast.expr) -> ast.expr:
    if node.patterns and not (isinstance(node.cls, ast.Name) and node.cls.id in _SELF):
        raise NotUnderstood("a pattern of positional attributes")
    named = [_test(p, ast.Attribute(x, name, ast.Load())) for name, p in zip(node.kwd_attrs, node.kwd_patterns, strict=True)]
    return _all(_call("isinstance", x, node.cls), *(_test(p, x) for p in node.patterns), *named)


def _as(node: ast.MatchAs, x: ast.expr) -> ast.expr:
    return _all(ast.Constant(True) if node.pattern is None else _test(node.pattern, x), _bind(node.name, x))


_RULES: Mapping[type[ast.AST], Callable[[Any, ast.expr], ast.expr]] = {
    ast.MatchValue: lambda node, x: ast.Compare(x, [ast.Eq()], [node.value]),
    ast.MatchSingleton: lambda node, x: ast.Compare(x, [ast.Is()], [ast.Constant(node.value)]),
    ast.MatchOr: lambda node, x: ast.BoolOp(ast.Or(), [_test(p, x) for p in node.patterns]),
    ast.MatchSequence: _sequence, ast.MatchMapping: _mapping, ast.MatchClass: _class, ast.MatchAs: _as,
}  # fmt: skip
