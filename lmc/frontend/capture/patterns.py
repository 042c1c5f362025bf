"""Patterns of `match` as expressions: a `case` of values is an `if` whose test binds what the pattern captures."""

from __future__ import annotations

import ast
from typing import Any

from lmc.frontend.capture.code import NotUnderstood

SUBJECT = "__match_subject__"
"""The name under which a `match` keeps its subject."""


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
            test = "True" if node.pattern is None else f"({_test(node.pattern, x)})"
            return test if node.name is None else f"{test} and (({node.name} := {x}), True)[1]"
        case _:
            raise NotUnderstood(type(node).__name__)
