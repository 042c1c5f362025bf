"""Syntax trees: copied, placed, and asked what the code they stand for may do."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, TypeVar

Node = TypeVar("Node", bound=ast.AST)

# -- made and changed ----------------------------------------------------------------------------------------------


def copied(node: Any) -> Any:
    """A syntax tree of its own. What has no place, such as `Load()`, is the same everywhere and stays so."""
    if isinstance(node, list):
        return [copied(x) for x in node]
    if not isinstance(node, ast.AST) or not node._fields:
        return node
    new = node.__class__.__new__(node.__class__)
    vars(new).update({name: copied(value) for name, value in vars(node).items()})
    return new


def load(name: str, at: ast.AST) -> ast.expr:
    """A variable that is read, at the place of `at`."""
    return ast.copy_location(ast.Name(name, ast.Load()), at)


def store(name: str, at: ast.AST) -> ast.expr:
    """A variable that is stored, at the place of `at`."""
    return ast.copy_location(ast.Name(name, ast.Store()), at)


def keep(name: str, value: ast.expr) -> ast.expr:
    """`(name := value)`"""
    return ast.NamedExpr(ast.Name(name, ast.Store()), value)


def assign(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    """`name = value`"""
    return placed(ast.Assign([ast.Name(name, ast.Store())], value), at)


def called(name: str, at: ast.AST) -> ast.expr:
    """`name()`, of a builtin."""
    return placed(ast.Call(ast.Name(name, ast.Load()), [], []), at)


def parameters(*names: str) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def placed(node: Node, at: ast.AST) -> Node:
    """A new node, and whatever below it has no place, at the place of `at`."""
    return ast.fix_missing_locations(ast.copy_location(node, at))


def place_new(node: ast.AST, at: ast.AST) -> None:
    """The same, where what has a place has nothing below it that has none; faster."""
    ast.copy_location(node, at)
    for child in ast.iter_child_nodes(node):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            place_new(child, at)


def without_type_params(node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Type parameters (Python 3.12 and later) mean nothing at run time and would wrap the function in a scope of their own."""
    if "type_params" in ast.FunctionDef._fields:
        setattr(node, "type_params", [])  # noqa: B010  # not a field in Python 3.11


def shape(target: ast.expr) -> Any:
    """The shape of a target: a tuple of the parts' where it unpacks, "*" for what is starred, None for anything else."""
    if isinstance(target, ast.Tuple | ast.List):
        return tuple(shape(e) for e in target.elts)
    return "*" if isinstance(target, ast.Starred) else None


def unstarred(target: Any) -> Any:
    """A target with names in place of starred names."""
    if isinstance(target, ast.Starred):
        return target.value
    if isinstance(target, ast.Tuple | ast.List):
        target.elts = [unstarred(e) for e in target.elts]
    return target


def is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


# -- what code does ------------------------------------------------------------------------------------------------


def may_run(node: ast.AST) -> bool:
    """Whether evaluating an expression may run code that can be seen from outside."""
    return any(isinstance(n, ast.Call | ast.Await) for n in ast.walk(node))


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's own body, inner functions excluded."""
    left = list(ast.iter_child_nodes(node))[::-1]
    while left:
        child = left.pop()
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            left += list(ast.iter_child_nodes(child))[::-1]


def cleaned_up(node: ast.AST) -> Iterator[ast.AST]:
    """Each `yield` in a function's own body that code of the function still follows if it is never resumed."""
    for part in _own_nodes(node):
        if isinstance(part, ast.Try | ast.TryStar | ast.With | ast.AsyncWith):
            yield from (n for n in _own_nodes(part) if isinstance(n, ast.Yield | ast.YieldFrom))


def ends_when_left(node: ast.AST) -> bool:
    """Whether no exception that is thrown into a generator, of whatever class, lets it go on to another `yield`."""
    for part in _own_nodes(node):
        if isinstance(part, ast.ExceptHandler):
            caught = ast.walk(part.type) if part.type is not None else [ast.Name("BaseException")]
            if any(getattr(n, "id", getattr(n, "attr", "")) in ("BaseException", "GeneratorExit") for n in caught):
                return False
        if isinstance(part, ast.Try | ast.TryStar):
            last = [n for stmt in part.finalbody for n in (stmt, *_own_nodes(stmt))]
            if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in last):
                return False
    return True
