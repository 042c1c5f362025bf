"""Possible effects of parts of a program, from their source: names bound, objects changed, calls, exits."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MUTATING = frozenset({
    "append", "extend", "insert", "pop", "remove", "clear", "add", "update", "setdefault", "sort", "discard", "popleft", "appendleft", "reverse",
    "popitem", "extendleft", "rotate", "intersection_update", "difference_update", "symmetric_difference_update", "subtract", "move_to_end",
    "join", "user", "assistant", "system", "fork", "set_var", "each", "write", "__iadd__", "__setitem__", "__next__", "send", "copy", "var_scope",
})  # fmt: skip
"""Methods that change what they are called on (by name: of lists, dicts, sets, states …)."""


@dataclass(frozen=True, slots=True)
class PossibleEffects:
    """Possible effects of a part of a program.

    names    names that it binds, other than by augmented assignment
    touched  names whose objects it may change in place
    appends  targets of augmented assignment: it changes their objects, or rebinds them
    calls    calls that it makes
    loads    names that it reads
    exits    exits that control may take: "return", "break", "continue", "raise"
    leaves   the exit that it always takes, if any
    yields   whether it may give an item of a generator
    """

    names: frozenset[str]
    touched: frozenset[str]
    appends: frozenset[str]
    calls: tuple[ast.Call, ...]
    loads: frozenset[str]
    exits: frozenset[str]
    leaves: str | None
    yields: bool


def effects(nodes: Sequence[ast.AST]) -> PossibleEffects:
    """Return the combined effects of statements or expressions."""
    found = _Scan()
    for node in nodes:
        found.visit(node)
    inside = [x for node in nodes for x in ast.walk(node)]
    bound = [(x.targets, x.value) for x in inside if isinstance(x, ast.Assign)] + [([x.target], x.iter) for x in inside if isinstance(x, ast.For)]
    parts = [(to.id, whole) for targets, value in bound for to in targets if isinstance(to, ast.Name) and (whole := root(value))]
    while more := {whole for part, whole in parts if part in found.touched} - found.touched:  # other names of its objects, or of what holds them
        found.touched |= more
    return PossibleEffects(
        frozenset(found.names), frozenset(found.touched), frozenset(found.appends), tuple(found.calls), frozenset(found.loads),
        frozenset(found.exits), _leaves(nodes), found.yields,
    )  # fmt: skip


NO_EFFECTS = PossibleEffects(frozenset(), frozenset(), frozenset(), (), frozenset(), frozenset(), None, False)


class _Scan(ast.NodeVisitor):
    def __init__(self) -> None:
        self.names, self.touched, self.appends, self.loads, self.exits = set[str](), set[str](), set[str](), set[str](), set[str]()
        self.calls: list[ast.Call] = []
        self.loops = 0
        self.yields = False

    def visit_Name(self, node: ast.Name) -> None:
        (self.loads if isinstance(node.ctx, ast.Load) else self.names).add(node.id)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.names.add(node.name)
        for part in (*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else [*node.args.defaults, *filter(None, node.args.kw_defaults)])):
            self.visit(part)

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._function(node)
        names = set(self.names)
        for part in (*node.keywords, *node.body):  # which runs at once
            self.visit(part)
        self.names = names  # those that it binds are the class's

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)  # it may be called here

    def visit_alias(self, node: ast.alias) -> None:
        self.names.add((node.asname or node.name).split(".")[0])

    def _named(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.names.add(node.name)
        self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = _named

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.names.update([node.rest] if node.rest else [])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        name = root(node.target)
        if name is not None:
            self.touched.add(name)
            if isinstance(node.target, ast.Name):
                self.appends.add(name)
                self.loads.add(name)
        self.visit(node.value)
        if not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def visit_Subscript(self, node: ast.Subscript | ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load) and (name := root(node)) is not None:
            self.touched.add(name)
        self.generic_visit(node)

    visit_Attribute = visit_Subscript

    def visit_Call(self, node: ast.Call) -> None:
        self.calls.append(node)
        fn = node.func
        if isinstance(fn, ast.Attribute) and fn.attr in MUTATING and (name := root(fn.value)) is not None:
            self.touched.update([name] if fn.attr != "fork" or isinstance(fn.value, ast.Name) else [])  # a state that an object holds keeps its prompt
        self.generic_visit(node)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self.loops += 1
        self.generic_visit(node)
        self.loops -= 1

    visit_For = visit_AsyncFor = visit_While = _loop

    def _exit(self, node: ast.Return | ast.Raise | ast.Break | ast.Continue) -> None:
        if isinstance(node, ast.Return | ast.Raise) or not self.loops:
            self.exits.add(type(node).__name__.lower())
        self.generic_visit(node)

    visit_Return = visit_Raise = visit_Break = visit_Continue = _exit

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> None:
        self.yields = True
        self.generic_visit(node)

    visit_Yield = visit_YieldFrom = _yield


def root(node: ast.AST) -> str | None:
    """Return the name that a chain of attributes and items begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _leaves(nodes: Sequence[ast.AST]) -> str | None:
    if not nodes:
        return None
    last = nodes[-1]
    if isinstance(last, ast.Return | ast.Raise | ast.Break | ast.Continue):
        return type(last).__name__.lower()
    if isinstance(last, ast.If):
        ways = {_leaves(last.body), _leaves(last.orelse)}
        return None if None in ways else ways.pop() if len(ways) == 1 else "return"
    return _leaves(last.body) if isinstance(last, ast.With | ast.AsyncWith) else None


def bound_once(body: Sequence[ast.AST], parameters: Sequence[str]) -> frozenset[str]:
    """Return the names of a function bound by one statement outside of loops: their value in its frame is final."""
    count, looped = Counter(parameters), set[str]()

    def walk(node: ast.AST, in_loop: bool) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            count[node.name] += 1
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            count[node.id] += 2 if isinstance(node.ctx, ast.Del) else 1
            looped.update([node.id] if in_loop else [])
        elif not isinstance(node, ast.Lambda):
            for child in ast.iter_child_nodes(node):
                walk(child, in_loop or isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.comprehension))

    for node in body:
        walk(node, False)
    inner = {name for node in body for part in ast.walk(node) if isinstance(part, ast.Nonlocal) for name in part.names}
    return frozenset(name for name, n in count.items() if n == 1) - looped - inner
