"""Possible effects of parts of a program, from their source: names bound, objects changed, calls, exits. All are looked for when they are first needed."""

from __future__ import annotations

import ast
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
        found = Scan(self.nodes, self.over)
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
