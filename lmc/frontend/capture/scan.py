"""Possible effects of parts of a program, from their source: names bound, objects changed, calls, exits."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lmc.frontend.capture.flow import Scan
from lmc.frontend.scopes import Bindings


@dataclass(frozen=True)
class PossibleEffects:
    """Possible effects of a part of a program.

    names    names that it binds, other than by augmented assignment
    appends  targets of augmented assignment: it changes their objects, or rebinds them
    calls    calls that it makes
    loads    names that it reads
    exits    exits that control may take: "return", "break", "continue", "raise"
    leaves   the exit that it always takes, if any
    yields   whether it may give an item of a generator
    """

    nodes: Sequence[ast.AST]
    over: ast.For | ast.AsyncFor | ast.comprehension | None
    names: frozenset[str]
    appends: frozenset[str]
    calls: tuple[ast.Call, ...]
    loads: frozenset[str]
    exits: frozenset[str]
    leaves: str | None
    yields: bool

    @cached_property
    def scan(self) -> Scan:
        """Return what it binds and changes, with the sources of the values."""
        return Scan(self.nodes, self.loads, self.over)


def effects(nodes: Sequence[ast.AST], over: ast.For | ast.AsyncFor | ast.comprehension | None = None) -> PossibleEffects:
    """Return the combined effects of statements or expressions; of those of a loop `over` items that are evaluated before."""
    found = _Scan(nodes)
    return PossibleEffects(
        tuple(nodes), over, frozenset(found.bound), frozenset(found.appends), tuple(found.calls), frozenset(found.loads),
        frozenset(found.exits), _leaves(nodes), found.yields,
    )  # fmt: skip


NO_EFFECTS = PossibleEffects((), None, frozenset(), frozenset(), (), frozenset(), frozenset(), None, False)


class _Scan(Bindings):
    """Also goes into comprehensions, lambdas and functions, which may be called here: the names that those bind are their own."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self.appends, self.loads, self.exits, self.calls = set[str](), set[str](), set[str](), list[ast.Call]()
        self.loops, self.yields = 0, False
        super().__init__(ast.Module(list(nodes), []))  # pyright: ignore[reportArgumentType]

    def visit_Name(self, node: ast.Name) -> None:
        (self.loads if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.bound.add(node.name)
        for part in (*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else [*node.args.defaults, *filter(None, node.args.kw_defaults)])):
            self.visit(part)
        names, exits, yields = set(self.bound), set(self.exits), self.yields
        for part in (*(node.keywords if isinstance(node, ast.ClassDef) else ()), *node.body):  # that of a class runs at once
            self.visit(part)
        self.bound, self.exits, self.yields = names, exits, yields

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = ast.NodeVisitor.generic_visit

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        pass  # what it binds elsewhere is an effect, too

    visit_Nonlocal = visit_Global

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self.appends.add(node.target.id)
            self.loads.add(node.target.id)
        else:
            self.visit(node.target)

    def visit_Call(self, node: ast.Call) -> None:
        self.calls.append(node)
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
