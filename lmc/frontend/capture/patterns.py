"""Patterns of `match` as expressions: a `case` is an `if` whose test binds what the pattern captures."""

from __future__ import annotations

import ast
from typing import Any

from lmc.frontend.capture.code import NotUnderstood

SUBJECT = "__match_subject__"
"""The name under which a `match` keeps its subject."""
_SELF = frozenset("bool bytearray bytes dict float frozenset int list set str tuple".split())
"""Classes whose one positional pattern is the value itself."""


def as_ifs(node: ast.Match) -> list[ast.stmt]:
    """Return the statements that a `match` is equivalent to."""
    rest: list[ast.stmt] = []
    for case in reversed(node.cases):
        test: ast.expr = ast.parse(_test(case.pattern, SUBJECT), mode="eval").body
        for part in ast.walk(test):
            ast.copy_location(part, case.pattern)  # pyright: ignore[reportArgumentType]
        if case.guard is not None:
            test = ast.BoolOp(ast.And(), [test, case.guard])
        rest = [_at(case.pattern, ast.If(test, case.body, rest))]
    return [_at(node, ast.Assign([ast.Name(SUBJECT, ast.Store())], node.subject)), *rest]


def _at(place: Any, made: Any) -> Any:
    return ast.fix_missing_locations(ast.copy_location(made, place))


def _test(node: ast.pattern, x: str) -> str:
    """Return the source of the test whether the value of `x` matches."""
    match node:
        case ast.MatchValue():
            return f"{x} == {ast.unparse(node.value)}"
        case ast.MatchSingleton():
            return f"{x} is {node.value}"
        case ast.MatchOr():
            return " or ".join([f"({_test(p, x)})" for p in node.patterns])
        case ast.MatchAs():
            return _all([] if node.pattern is None else [_test(node.pattern, x)], _bind(node.name, x))
        case ast.MatchMapping():
            keys = list(map(ast.unparse, node.keys))
            parts = [_test(p, f"{x}[{key}]") for key, p in zip(keys, node.patterns, strict=True)]
            rest = f"{{k: {x}[k] for k in {x} if k not in [{', '.join(keys)}]}}"
            return _all([f"isinstance({x}, dict)", *(f"{key} in {x}" for key in keys), *parts], _bind(node.rest, rest))
        case ast.MatchClass():
            cls = ast.unparse(node.cls)
            given = [x if cls in _SELF else f"getattr({x}, {cls}.__match_args__[{i}])" for i in range(len(node.patterns))]
            return _all(
                [f"isinstance({x}, {cls})", *map(_test, node.patterns, given), *(_test(p, f"{x}.{a}") for a, p in zip(node.kwd_attrs, node.kwd_patterns))]
            )
        case ast.MatchSequence():
            count, star = len(node.patterns), next((i for i, p in enumerate(node.patterns) if isinstance(p, ast.MatchStar)), None)
            tests = [f"isinstance({x}, (list, tuple))", f"len({x}) == {count}" if star is None else f"len({x}) >= {count - 1}"]
            for i, part in enumerate(node.patterns):
                if isinstance(part, ast.MatchStar):
                    tests.append(_bind(part.name, f"list({x}[{i}:{i + 1 - count or ''}])"))
                else:
                    tests.append(_test(part, f"{x}[{i if star is None or i < star else i - count}]"))
            return _all(tests)
        case _:
            raise NotUnderstood(type(node).__name__)


def _all(tests: list[str], *more: str) -> str:
    return " and ".join([f"({test})" for test in (*tests, *more) if test != "True"]) or "True"


def _bind(name: str | None, x: str) -> str:
    return "True" if name is None else f"(({name} := {x}), True)[1]"
