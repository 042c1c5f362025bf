"""Scopes of Python: the names that a function or a comprehension binds."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable


class Bindings(ast.NodeVisitor):
    """Names that a function, or a part of one, binds itself; does not enter inner scopes.

    bound    how often it binds a name: by other than an assignment, or in a loop, at least twice; parameters are bound once
    appends  how often by augmented assignment
    global_, nonlocal_  names that it declares so, which are not among those bound
    """

    def __init__(self, nodes: Iterable[ast.AST], args: ast.arguments | None = None) -> None:
        self.bound, self.appends = Counter(_arguments(args) if args is not None else ()), Counter[str]()
        self.global_, self.nonlocal_ = set[str](), set[str]()
        self._in_loop = False
        for node in nodes:
            self.visit(node)
        for name in self.global_ | self.nonlocal_:
            del self.bound[name]

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bound[node.id] += 1 + (self._in_loop or isinstance(node.ctx, ast.Del))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.appends[node.target.id] += 1 + self._in_loop
        self.generic_visit(node)

    def _visit_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        outer = self._in_loop
        for part in ast.iter_child_nodes(node):
            self._in_loop = outer or part not in node.orelse
            self.visit(part)
        self._in_loop = outer

    visit_For = visit_AsyncFor = visit_While = _visit_loop

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.bound[node.name] += 2
        for outer in (*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else (node.args,))):
            self.visit(outer)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)

    def _comprehension(self, node: ast.AST) -> None:
        for inner in ast.walk(node):  # a walrus binds in the function around the comprehension
            if isinstance(inner, ast.NamedExpr):
                self.bound[inner.target.id] += 2

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Global(self, node: ast.Global) -> None:
        self.global_.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.nonlocal_.update(node.names)

    def visit_alias(self, node: ast.alias) -> None:
        self.bound[(node.asname or node.name).split(".")[0]] += 2

    def _visit_named(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self.bound[name] += 2
        self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = visit_MatchMapping = _visit_named


class Comprehension:
    """The scope of a comprehension: its targets."""

    def __init__(self, bound: set[str]) -> None:
        self.bound, self.global_, self.nonlocal_ = bound, set[str](), set[str]()


def _arguments(args: ast.arguments) -> list[str]:
    found = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return found + [a.arg for a in (args.vararg, args.kwarg) if a is not None]
