"""Grammars without left recursion: rules that begin with themselves become loops, so that reading them always reads a character.

    sum: sum "+" term | term          sum: term ("+" term)*

The rules that can begin with each other are equations A = A·x | B·y | z, where z begins otherwise. Solved like those of
an automaton: A is every path from a z to A, each step reading the x or y that leads from one rule to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lmc.errors import ConstraintError, shown
from lmc.fsm.counted import unrolled
from lmc.fsm.grammar import cycles
from lmc.fsm.nodes import EMPTY, NOTHING, Chars, Concat, Counted, Node, NodeGraph, Ref, Repeat, Union, one_of, parts_of, reached, repeat, seq, trimmed

_MOST_EDGES = 200_000  # of the graphs of all such rules


def without_left_recursion(rules: Mapping[str, Node]) -> dict[str, Node]:
    """Return the same languages under the same names."""
    nullable = _nullable(rules)
    look = _Look(nullable)
    begins = {name: look.begins(body) for name, body in rules.items()}
    out = dict(rules)
    left = _MOST_EDGES
    for group in cycles(begins):
        split = _Splitter(rules, group, nullable, out)
        parts = {name: split.of(rules[name]) for name in group}
        index = {name: i for i, name in enumerate(sorted(group), 1)}
        edges = [(0, part.other, index[name]) for name, part in parts.items() if part.other != NOTHING]
        edges += [(index[head], tail, index[name]) for name, part in parts.items() for head, tail in part.heads]
        left -= len(group) * len(edges)
        if left < 0:
            raise ConstraintError(
                f"the rules that begin with each other, {shown(min(group))} and {len(group) - 1} more, need too large an automaton; use fewer"
            )
        for name, part in parts.items():
            graph = trimmed(edges, (index[name],))
            out[name] = one_of([graph, EMPTY]) if part.empty else graph
            out[_solid(name)] = graph
    return out


def _solid(rule: str) -> str:
    """Return the companion of a rule, equal except for the empty text."""
    return f"{rule} (not empty)"


@dataclass(frozen=True)
class _Parts:
    """A tree split into its texts that begin with a rule of the group, and their continuations; its nonempty texts that
    do not; and whether the empty text is one. The leading rule represents its nonempty texts."""

    heads: tuple[tuple[str, Node], ...]
    other: Node
    empty: bool

    def then(self, rest: Node) -> _Parts:
        return _Parts(tuple((head, seq(tail, rest)) for head, tail in self.heads), seq(self.other, rest), False)

    def or_(self, more: _Parts) -> _Parts:
        return _Parts(self.heads + more.heads, one_of([self.other, more.other]), self.empty or more.empty)


_NONE = _Parts((), NOTHING, False)


class _Splitter:
    """Splits trees of one group of rules; rules outside of it that may be empty get a companion in `out` that may not."""

    def __init__(self, rules: Mapping[str, Node], group: frozenset[str], nullable: frozenset[str], out: dict[str, Node]) -> None:
        self._rules, self._group, self._nullable, self._out = rules, group, nullable, out

    def of(self, tree: Node) -> _Parts:
        if isinstance(tree, Chars):
            return _Parts((), tree, False)
        if isinstance(tree, Ref):
            return self._of_rule(tree)
        if isinstance(tree, Union):
            found = _NONE
            for arm in tree.arms:
                found = found.or_(self.of(arm))
            return found
        if isinstance(tree, Concat):
            return self._of_parts(tree.parts)
        if isinstance(tree, Repeat):
            body = self.of(tree.body)
            low = 0 if body.empty else tree.low
            high = None if tree.high is None else tree.high - 1
            return replace(body.then(repeat(tree.body, max(low - 1, 0), high)), empty=low == 0)
        return self._of_graph(unrolled(tree) if isinstance(tree, Counted) else tree)

    def _of_rule(self, ref: Ref) -> _Parts:
        empty = ref.rule in self._nullable
        if ref.rule in self._group:
            return _Parts(((ref.rule, EMPTY),), NOTHING, empty)
        if not empty:
            return _Parts((), ref, False)
        name = _solid(ref.rule)
        if name not in self._out:
            self._out[name] = EMPTY  # named from inside: there already
            outside = _Splitter(self._rules, frozenset(), self._nullable, self._out)
            self._out[name] = outside.of(self._rules[ref.rule]).other
        return _Parts((), Ref(name), True)

    def _of_parts(self, parts: tuple[Node, ...]) -> _Parts:
        found = _NONE
        for i, part in enumerate(parts):
            first = self.of(part)
            found = found.or_(first.then(seq(*parts[i + 1 :])))
            if not first.empty:
                return found
        return replace(found, empty=True)

    def _of_graph(self, graph: NodeGraph) -> _Parts:
        """Return the parts of all edges that can be the first to read something."""
        found = _NONE
        seen, todo = {0}, [0]
        for state in todo:
            for source, body, to in graph.edges:
                if source != state:
                    continue
                first = self.of(body)
                found = found.or_(first.then(_from(graph, to)))
                if first.empty and to not in seen:
                    seen.add(to)
                    todo.append(to)
        return replace(found, empty=not seen.isdisjoint(graph.final))


def _from(graph: NodeGraph, state: int) -> NodeGraph:
    """Return the graph as read from one of its states on."""
    swap = {0: state, state: 0}
    return NodeGraph(
        tuple((swap.get(a, a), body, swap.get(b, b)) for a, body, b in graph.edges),
        frozenset(swap.get(s, s) for s in graph.final),
    )


def _nullable(rules: Mapping[str, Node]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    while True:
        look = _Look(found)
        more = frozenset(name for name, body in rules.items() if look.may_be_empty(body))
        if more == found:
            return found
        found = more


class _Look:
    """Visits trees whose nodes may be shared, each once; they must outlive this. `nullable`: rules that may be
    empty."""

    def __init__(self, nullable: frozenset[str]) -> None:
        self._nullable = nullable
        self._empty: dict[int, bool] = {}
        self._begins: dict[int, frozenset[str]] = {}

    def may_be_empty(self, tree: Node) -> bool:
        if id(tree) not in self._empty:
            self._empty[id(tree)] = self._may_be_empty(tree)
        return self._empty[id(tree)]

    def _may_be_empty(self, tree: Node) -> bool:
        if isinstance(tree, Chars):
            return False
        if isinstance(tree, Ref):
            return tree.rule in self._nullable
        if isinstance(tree, Concat):
            return all(map(self.may_be_empty, tree.parts))
        if isinstance(tree, Union):
            return any(map(self.may_be_empty, tree.arms))
        if isinstance(tree, Repeat):
            return tree.low == 0 or self.may_be_empty(tree.body)
        if isinstance(tree, Counted):
            return tree.low == 0 and 0 in tree.graph.final
        return not self._at_once(tree).isdisjoint(tree.final)

    def _at_once(self, graph: NodeGraph) -> set[int]:
        """Return states of a graph reached before anything is read."""
        free: dict[int, list[int]] = {}
        for source, body, to in graph.edges:
            if self.may_be_empty(body):
                free.setdefault(source, []).append(to)
        return reached((0,), free)

    def begins(self, tree: Node) -> frozenset[str]:
        """Return rules that a text of the tree may begin with."""
        if id(tree) not in self._begins:
            self._begins[id(tree)] = frozenset((tree.rule,)) if isinstance(tree, Ref) else frozenset().union(*map(self.begins, self._first(tree)))
        return self._begins[id(tree)]

    def _first(self, tree: Node) -> list[Node]:
        """Return the parts that a text may begin with."""
        if isinstance(tree, NodeGraph):
            at_once = self._at_once(tree)
            return [body for source, body, _ in tree.edges if source in at_once]
        if not isinstance(tree, Concat):
            return list(parts_of(tree))
        solid = next((i for i, part in enumerate(tree.parts) if not self.may_be_empty(part)), len(tree.parts))
        return list(tree.parts[: solid + 1])
