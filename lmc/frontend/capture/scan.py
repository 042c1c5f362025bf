"""Possible effects of parts of a program, from their source: names bound, objects changed, calls, exits. All are looked for when they are first needed."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from time import thread_time

from lmc.frontend.capture.flow import FUNCTIONS, Loop, Scan

_REPEATED = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_EXITS = {ast.Return: "return", ast.Raise: "raise", ast.Break: "break", ast.Continue: "continue"}


spent = 0.0
"""CPU seconds spent compiling functions and looking through them so far: approximate, counted without a lock."""


class PossibleEffects:
    """Possible effects of statements or expressions; of those of a loop `over` items that are evaluated before."""

    def __init__(self, nodes: Sequence[ast.AST], over: Loop | None = None) -> None:
        self.nodes, self.over = nodes, over

    @cached_property
    def scan(self) -> Scan:
        """Return what it binds, changes and calls, with the sources of the values."""
        global spent
        began = thread_time()
        found = Scan(self.nodes, self.over, *bindings(self.nodes))
        spent += thread_time() - began
        return found

    @cached_property
    def later(self) -> PossibleEffects:
        """Return those of the functions in it, which may run later; of functions themselves."""
        functions = [node for node, _ in own(self.nodes) if isinstance(node, FUNCTIONS)]
        return self if {*functions} == {*self.nodes} else PossibleEffects(functions)

    @cached_property
    def exits(self) -> frozenset[str]:
        """Return the exits that control may take: "return", "break", "continue", "raise"."""
        found = {(_EXITS.get(type(node)), in_loop) for node, in_loop in own(self.nodes)}
        return frozenset(kind for kind, in_loop in found if kind in ("return", "raise") or (kind and not in_loop))

    @cached_property
    def leaves(self) -> str | None:
        """Return the exit that it always takes, if any."""
        return _leaves(self.nodes)


NO_EFFECTS = PossibleEffects(())


def own(nodes: Iterable[ast.AST]) -> list[tuple[ast.AST, bool]]:
    """Return the nodes of a part of a program, without the bodies of functions in it, and whether each is in one of its loops."""
    found, todo = list[tuple[ast.AST, bool]](), [(node, False) for node in nodes]
    while todo:
        node, in_loop = todo.pop()
        found.append((node, in_loop))
        if isinstance(node, FUNCTIONS):
            inner = [] if isinstance(node, ast.Lambda) else [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        else:
            inner = ast.iter_child_nodes(node)
        once = getattr(node, "orelse", ())
        todo += [(x, in_loop or (isinstance(node, _REPEATED) and x not in once)) for x in inner]
    return found


def bindings(nodes: Iterable[ast.AST]) -> tuple[Counter[str], Counter[str]]:
    """Return the names that a part of a program binds, and the targets of augmented assignment, and how often; in a loop, or otherwise: at least twice."""
    names, appends, targets = Counter[str](), Counter[str](), set[ast.AST]()
    for node, in_loop in own(nodes):
        match node:
            case ast.AugAssign(ast.Name() as target):
                targets.add(target)
            case ast.Name(name, ast.Store()):
                (appends if node in targets else names)[name] += 2 if in_loop else 1
            case ast.alias(name, asname):
                names[(asname or name).split(".")[0]] += 2
            case (
                ast.Name(name, ast.Del()) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name) | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name)) | ast.MatchStar(str(name)) | ast.MatchMapping(rest=str(name))
            ):  # fmt: skip
                names[name] += 2
            case _:
                pass
    return names, appends


def bound_once(body: Sequence[ast.AST], parameters: Sequence[str]) -> frozenset[str]:
    """Return the names of a function bound by one statement outside of loops: their value in its frame is final."""
    inner = {name for node in body for part in ast.walk(node) if isinstance(part, ast.Nonlocal) for name in part.names}
    return frozenset(name for name, n in sum(bindings(body), Counter(parameters)).items() if n == 1) - inner


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
