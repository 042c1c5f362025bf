"""Comprehensions and generator expressions: one generator of Python's makes their elements as they are taken."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import Eval, Frame, Scope
from lmc.frontend.capture.domain import Arm, BranchStatement, LoopStatement
from lmc.frontend.capture.expressions import Bind, expression, target
from lmc.frontend.capture.scan import NO_EFFECTS, PossibleEffects
from lmc.frontend.capture.unknown import NOTHING, Undecided, Unknown, join
from lmc.frontend.capture.values import LazyItems
from lmc.frontend.scopes import Comprehension

_ITEMS = ".0"
"""Name of the outermost iterable."""


class Comprehended:
    """A comprehension, compiled: `first` gives its outermost iterable; `site` is its loop as a graph shows it."""

    def __init__(self, node: Any, scope: Scope) -> None:
        loops: list[ast.comprehension] = node.generators
        bound = {x.id for loop in loops for x in ast.walk(loop.target) if isinstance(x, ast.Name)}
        inner, loc = Scope(Comprehension({*bound, _ITEMS}), scope, scope.file, class_name=scope.class_name), scope.loc(node)
        element = ast.copy_location(ast.Tuple([node.key, node.value], ast.Load()), node) if isinstance(node, ast.DictComp) else node.elt
        self.first, self.element = expression(loops[0].iter, scope), expression(element, inner)
        nothing = Arm(lambda _: None, NO_EFFECTS, loc)
        self.loops: list[tuple[Eval, Bind, list[tuple[Eval, BranchStatement]], BranchStatement]] = []
        for k, loop in enumerate(loops):
            behind = [PossibleEffects([*loop.ifs[j + 1 :], *loops[k + 1 :], element]) for j in range(len(loop.ifs))]
            arms = [Arm(lambda frame, k=k, j=j: deque(self._turn(frame, k, j + 1), 0), found, loc) for j, found in enumerate(behind)]
            every = PossibleEffects([loop.target, *loop.ifs, *loops[k + 1 :], element], loop)
            whole = BranchStatement(loc, Arm(lambda _: None, every, loc), nothing)
            tests = [(expression(test, inner), BranchStatement(loc, arm, nothing)) for test, arm in zip(loop.ifs, arms, strict=True)]
            iterable = expression(loop.iter, inner) if k else lambda frame: frame.vars[_ITEMS]
            self.loops.append((iterable, target(loop.target, inner), tests, whole))
        done = self.loops[0][3].then.effects
        self.site = LoopStatement(loc, self.loops[0][1], Arm(self.element, done, loc), nothing, done)

    def elements(self, frame: Frame, k: int = 0) -> Iterator[Any]:
        """Yield the elements that its loops from the `k`th one on make."""
        iterable, bind, tests, whole = self.loops[k]
        simple = not tests and k + 1 == len(self.loops)
        try:
            for item in op.iterate(frame.ev, iterable(frame)):
                bind(frame, item)
                if simple:
                    yield self.element(frame)
                else:
                    yield from self._turn(frame, k, 0)
        except Undecided as undecided:
            self._goes_on(frame, Unknown(undecided.deps), whole)

    def _turn(self, frame: Frame, k: int, j: int) -> Iterator[Any]:
        """Yield what the present item of a loop gives, behind its first `j` conditions."""
        for test, site in self.loops[k][2][j:]:
            known = op.truth(frame.ev, test(frame))
            if known is not True:
                if known is not False:
                    self._goes_on(frame, known, site)
                return
        if self.loops[k + 1 :]:
            yield from self.elements(frame, k + 1)
        else:
            yield self.element(frame)

    @staticmethod
    def _goes_on(frame: Frame, test: Unknown, site: BranchStatement) -> None:
        """Go on behind elements of which it is undecided whether they belong to it, if the others may make requests."""
        if frame.goes_on is None or not frame.goes_on(frame):
            raise Undecided(test.deps, test)
        frame.undecided = join(frame.undecided or NOTHING, test.deps)
        frame.ev.domain.branch(frame.ev, frame, test, site)

    def collected(self, frame: Frame, items: Any, kind: type[Any]) -> Any:
        """Return all elements; Unknown if it is undecided which they are: what may make requests is evaluated to the end."""
        ev = frame.ev
        if isinstance(items, Unknown):
            ev.left_off([items], items.deps)
            return ev.domain.comprehension(ev, frame, items, self.site)
        inner = frame.inner({_ITEMS: items})
        inner.goes_on = lambda inner: ev.domain.skips and (ev.may_ask(inner, self.site.effects) or ev.may_ask_in([items]))  # no cycle of objects
        try:
            found = [*self.elements(inner)]
        except Undecided as undecided:
            ev.left_off([items], undecided.deps)
            return ev.domain.comprehension(ev, frame, Unknown(undecided.deps, of=(items,)), self.site)
        try:
            if inner.undecided is not False:
                raise Undecided(inner.undecided)
            return found if kind is list else op.native(kind, found)
        except Undecided as undecided:
            return ev.operation(kind.__name__, (), undecided.deps)


def _comprehension(kind: type[Any]) -> Callable[[Any, Scope], Eval]:
    def compiled(node: Any, scope: Scope) -> Eval:
        made = Comprehended(node, scope)
        return lambda frame: made.collected(frame, made.first(frame), kind)

    return compiled


def _generator(node: ast.GeneratorExp, scope: Scope) -> Eval:
    made = Comprehended(node, scope)

    def run(frame: Frame) -> LazyItems:
        items = made.first(frame)
        taken, whole = lambda: made.elements(frame.inner({_ITEMS: items})), lambda: made.collected(frame, items, list)
        return LazyItems(frame.ev, taken, of=(frame, made.site.effects), sources=[items], whole=whole)

    return run


COMPREHENSIONS: dict[type[ast.AST], Callable[[Any, Scope], Eval]] = {
    ast.ListComp: _comprehension(list), ast.SetComp: _comprehension(set), ast.DictComp: _comprehension(dict), ast.GeneratorExp: _generator,
}  # fmt: skip
