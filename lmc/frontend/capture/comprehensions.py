"""Comprehensions and generator expressions: one generator of Python's makes their elements as they are taken, or Python itself those that only compute."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import Eval, Frame, Scope
from lmc.frontend.capture.domain import Arm, BranchStatement, LoopStatement
from lmc.frontend.capture.expressions import Bind, expression, target
from lmc.frontend.capture.outside import PLAIN
from lmc.frontend.capture.scan import NO_EFFECTS, PossibleEffects
from lmc.frontend.capture.table import QUICK, are_small
from lmc.frontend.capture.unknown import NOTHING, Raised, Undecided, Unknown, join
from lmc.frontend.capture.values import LazyItems
from lmc.frontend.scopes import Comprehension

_ITEMS = ".0"
"""Name of the outermost iterable."""
_COMPUTING = (
    ast.Constant, ast.Name, ast.expr_context, ast.Tuple, ast.JoinedStr, ast.FormattedValue, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.In, ast.NotIn, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.IfExp, ast.Call, ast.Attribute,
)  # fmt: skip
"""Nodes that take no time on plain values, and make none that are much larger."""
_METHODS = frozenset("strip lstrip rstrip lower upper title capitalize split splitlines partition startswith endswith isdigit isalpha count find".split())
_ITERATED = op.CONTAINERS | op.VIEWS | {str}
MOST_READ = 4096
"""Items, and characters in them, that are left to Python at once."""


class Comprehended:
    """A comprehension, compiled: `first` gives its outermost iterable; `site` is its loop as a graph shows it."""

    def __init__(self, node: Any, scope: Scope) -> None:
        loops: list[ast.comprehension] = node.generators
        bound = {x.id for loop in loops for x in ast.walk(loop.target) if isinstance(x, ast.Name)}
        inner, loc = Scope(Comprehension({*bound, _ITEMS}), scope, scope.file, class_name=scope.class_name), scope.loc(node)
        element = ast.Tuple([node.key, node.value], ast.Load()) if isinstance(node, ast.DictComp) else node.elt
        self.first, self.element = expression(loops[0].iter, scope), expression(ast.copy_location(element, node), inner)
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
        self.computed = _computed(element, loops, scope)

    def elements(self, frame: Frame, k: int = 0) -> Iterator[Any]:
        """Yield the elements that its loops from the `k`th one on make."""
        iterable, bind, _, whole = self.loops[k]
        try:
            for item in op.iterate(frame.ev, iterable(frame)):
                bind(frame, item)
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
        if frame.goes_on is None or not frame.goes_on():
            raise Undecided(test.deps, test)
        frame.undecided = join(frame.undecided or NOTHING, test.deps)
        frame.ev.domain.branch(frame.ev, frame, test, site)

    def collected(self, frame: Frame, items: Any, kind: type[Any]) -> Any:
        """Return all elements; Unknown if it is undecided which they are: what may make requests is evaluated to the end."""
        ev, inner = frame.ev, frame.inner({_ITEMS: items})
        inner.goes_on = lambda: ev.domain.skips and (ev.may_ask(inner, self.site.effects) or ev.may_ask_in([items]))
        try:
            if isinstance(items, Unknown):
                raise Undecided(items.deps)
            if (found := self.computed(frame, items)) is None:
                found = [*self.elements(inner)]
        except Undecided as undecided:
            ev.left_off([items], undecided.deps)
            return ev.domain.comprehension(ev, frame, items if isinstance(items, Unknown) else Unknown(undecided.deps), self.site)
        try:
            if inner.undecided is not False:
                raise Undecided(inner.undecided)
            return found if kind is list else op.native(kind, found)
        except Undecided as undecided:
            return ev.operation(kind.__name__, (), undecided.deps)


def _computed(element: ast.expr, loops: list[ast.comprehension], scope: Scope) -> Callable[[Frame, Any], list[Any] | None]:
    """Compile what leaves a comprehension to Python: its elements, or None where that may run other code, take long, or touch something unknown."""
    nodes = [node for part in (loops[0].target, *loops[0].ifs, element) for node in ast.walk(part)]
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    callees = [node.func for node in nodes if isinstance(node, ast.Call)]
    called = {callee.id for callee in callees if isinstance(callee, ast.Name)}
    other = [node for node in nodes if not isinstance(node, _COMPUTING) or getattr(node, "keywords", None) or getattr(node, "format_spec", None)]
    other += [node for node in nodes if (isinstance(node, ast.Constant) and _size(node.value) > MOST_READ // 16) or getattr(node, "id", "") == "__debug__"]
    other += [node for node in nodes if isinstance(node, ast.Attribute) and (node not in callees or node.attr not in _METHODS)]
    if other or loops[1:] or loops[0].is_async or called & bound or not all(isinstance(callee, ast.Name | ast.Attribute) for callee in callees):
        return lambda _frame, _items: None
    names = sorted({node.id for node in nodes if isinstance(node, ast.Name)} - bound)
    loads = [(expression(ast.Name(name, ast.Load()), scope), name in called) for name in names]
    parameters = ast.arguments([], [ast.arg(name) for name in ("@", *names)], None, [], [], None, [])
    whole = ast.ListComp(element, [ast.comprehension(loops[0].target, ast.Name("@", ast.Load()), loops[0].ifs, 0)])
    made = eval(compile(ast.fix_missing_locations(ast.Expression(ast.Lambda(parameters, whole))), "<frozen comprehension>", "eval"))

    def run(frame: Frame, items: Any) -> list[Any] | None:
        if type(items) not in _ITERATED or op.known(frame.ev, items) != NOTHING or len(items) > MOST_READ:
            return None
        try:
            given = [(load(frame), is_called) for load, is_called in loads]
            small = all(id(x) in QUICK if is_called else are_small(None, (x,)) for x, is_called in given)
            if not small or _size(items if type(items) is str else (*items,)) > MOST_READ:
                return None
            frame.ev.count(len(items))
            return op.native(made, items, *[x for x, _ in given])
        except Raised:  # once more, at its place
            return None

    return run


def _size(x: Any) -> int:
    """Return how much there is to read in a plain value; too much for any other."""
    todo, found = [x], 0
    while todo and found <= MOST_READ:
        x = todo.pop()
        kind = type(x)
        if kind is tuple:
            todo.extend(x)
        found += 1 + (len(x) if kind in (str, tuple) else x.bit_length() >> 3 if kind is int else 0 if kind in PLAIN else MOST_READ)
    return found


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
