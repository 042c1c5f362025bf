"""Comprehensions as the loops that they are: `[x for t in y if c]` is a `for` around an `if` around an `append`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import Eval, Frame, Scope
from lmc.frontend.capture.domain import Arm, LoopStatement
from lmc.frontend.capture.expressions import RULES, expression, target
from lmc.frontend.capture.scan import NO_EFFECTS, effects
from lmc.frontend.capture.statements import STATEMENTS, block
from lmc.frontend.capture.unknown import Undecided, Unknown
from lmc.frontend.capture.values import LazyItems
from lmc.frontend.scopes import Comprehension

_ITEMS, _FOUND = ".0", ".found"
"""Names of the outermost iterable, and of what the elements are added to: lost where it is undecided whether one belongs to it."""


class Comprehended:
    """A comprehension, compiled: its outermost iterable, and its loop, which adds elements to a `kind` by `method`. `site`: the loop as a graph shows it."""

    def __init__(self, node: Any, scope: Scope, kind: type[Any], method: str) -> None:
        loops: list[ast.comprehension] = node.generators
        bound = {x.id for loop in loops for x in ast.walk(loop.target) if isinstance(x, ast.Name)}
        inner, loc = Scope(Comprehension({*bound, _ITEMS, _FOUND}), scope, scope.file, class_name=scope.class_name), scope.loc(node)
        element, given = (node.key, ast.Dict([node.key], [node.value])) if kind is dict else (node.elt, node.elt)
        add = ast.Attribute(ast.Name(_FOUND, ast.Load()), method, ast.Load())
        leaf = ast.Call(add, [given], [])
        body: ast.stmt = _Append(leaf) if kind is list else ast.Expr(leaf)
        for loop in reversed(loops):
            for test in reversed(loop.ifs):
                body = ast.If(test, [body], [])
            body = ast.For(loop.target, ast.Name(_ITEMS, ast.Load()) if loop is loops[0] else loop.iter, [body], [])
        ast.fix_missing_locations(ast.copy_location(body, node))
        self.first, self.loop, done = expression(loops[0].iter, scope), block([body], inner), effects([body])
        self.scope = inner
        self.site = LoopStatement(loc, target(loops[0].target, inner), Arm(expression(element, inner), done, loc), Arm(lambda _: None, NO_EFFECTS, loc), done)

    def collected(self, frame: Frame, items: Any, kind: type[Any]) -> Any:
        """Return all elements; Unknown if it is undecided which they are: what may make requests is evaluated to the end."""
        ev, found = frame.ev, kind()
        inner = frame.inner({_ITEMS: items, _FOUND: found})
        inner.goes_on = lambda: ev.domain.skips and (ev.may_ask(inner, self.site.effects) or ev.may_ask_in([items]))
        try:
            if isinstance(items, Unknown):
                raise Undecided(items.deps)
            self.loop(inner)
        except Undecided as undecided:
            return ev.domain.comprehension(ev, frame, items if isinstance(items, Unknown) else Unknown(undecided.deps), self.site)
        return ev.operation(kind.__name__, (), ev.lost[id(found)]) if ev.is_lost(found) else found


class _Append(ast.Expr):
    """`.found.append(element)`, by a rule of its own: it is the most frequent."""


def _append(node: Any, scope: Scope) -> Eval:
    element = expression(node.value.args[0], scope)

    def run(frame: Frame) -> None:
        x, found, lost = element(frame), frame.vars[_FOUND], frame.ev.lost
        if not lost or id(found) not in lost:
            found.append(x)

    return run


def _comprehension(kind: type[Any], method: str) -> Callable[[Any, Scope], Eval]:
    def compiled(node: Any, scope: Scope) -> Eval:
        made = Comprehended(node, scope, kind, method)
        return lambda frame: made.collected(frame, made.first(frame), kind)

    return compiled


def _generator(node: ast.GeneratorExp, scope: Scope) -> Eval:
    made = Comprehended(node, scope, list, "append")
    lazily = cache(lambda: _one_by_one(node, made.scope))

    def run(frame: Frame) -> LazyItems:
        items = made.first(frame)
        taken = lambda: lazily()(frame.inner({_ITEMS: items}), 0)
        return LazyItems(frame.ev, taken, of=(frame, made.site.effects), sources=[items], whole=lambda: made.collected(frame, items, list))

    return run


def _one_by_one(node: ast.GeneratorExp, scope: Scope) -> Callable[[Frame, int], Iterator[Any]]:
    """Compile a generator expression whose items are made as they are taken: `items(frame, 0)`."""
    loops = [
        (expression(loop.iter if k else ast.Name(_ITEMS, ast.Load()), scope), target(loop.target, scope), [expression(test, scope) for test in loop.ifs])
        for k, loop in enumerate(node.generators)
    ]
    element = expression(node.elt, scope)

    def items(frame: Frame, k: int) -> Iterator[Any]:
        iterable, bind, tests = loops[k]
        for item in op.iterate(frame.ev, iterable(frame)):
            bind(frame, item)
            if all(op.decided(frame.ev, test(frame)) for test in tests):
                if loops[k + 1 :]:
                    yield from items(frame, k + 1)
                else:
                    yield element(frame)

    return items


RULES[ast.ListComp], RULES[ast.SetComp] = _comprehension(list, "append"), _comprehension(set, "add")
RULES[ast.DictComp], RULES[ast.GeneratorExp] = _comprehension(dict, "update"), _generator
STATEMENTS[_Append] = _append
