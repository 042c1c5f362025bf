"""Scopes of Python: the names that a function or a comprehension binds."""

from __future__ import annotations

import ast


class Bindings(ast.NodeVisitor):
    """Names a function binds itself, and those it declares global or nonlocal; does not enter inner scopes."""

    def __init__(self, node: ast.AST) -> None:
        self.bound: set[str] = set()
        self.global_: set[str] = set()
        self.nonlocal_: set[str] = set()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            self.bound.update(_arguments(node.args))
        for part in node.body if isinstance(node.body, list) else [node.body]:  # type: ignore[attr-defined]
            self.visit(part)
        self.bound -= self.global_ | self.nonlocal_

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bound.add(node.id)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.bound.add(node.name)
        for outer in node.decorator_list:
            self.visit(outer)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def _comprehension(self, node: ast.AST) -> None:
        for inner in ast.walk(node):  # a walrus binds in the function around the comprehension
            if isinstance(inner, ast.NamedExpr):
                self.bound.add(inner.target.id)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Global(self, node: ast.Global) -> None:
        self.global_.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.nonlocal_.update(node.names)

    def visit_alias(self, node: ast.alias) -> None:
        self.bound.add((node.asname or node.name).split(".")[0])

    def _visit_named(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.bound.add(node.name)
        self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = _visit_named

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.bound.add(node.rest)
        self.generic_visit(node)


class Comprehension:
    """The scope of a comprehension: its targets."""

    def __init__(self, bound: set[str]) -> None:
        self.bound, self.global_, self.nonlocal_ = bound, set[str](), set[str]()


def _arguments(args: ast.arguments) -> list[str]:
    found = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return found + [a.arg for a in (args.vararg, args.kwarg) if a is not None]
