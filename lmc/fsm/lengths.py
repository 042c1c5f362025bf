"""Lengths of shortest texts: the distance to the end, needed by answers near a limit and forced runs. Computed on
demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmc.fsm.counted import NEVER, Counts
from lmc.fsm.json_styles import At, Styles, is_mark
from lmc.fsm.nodes import Chars, Concat, Counted, Node, NodeGraph, Ref, Repeat, Union


class ShortestLengths:
    """Bytes of the shortest text of each node of a grammar at its position. Nodes are identified by their ids, so they are kept
    alive. Each rule derives some text."""

    def __init__(self, styles: Styles) -> None:
        self._styles = styles
        self._known: dict[tuple[int, At | None], int] = {}
        self._of_rules: dict[tuple[str, At | None], int] = {}
        self._sums: dict[tuple[int, At | None], list[int]] = {}
        self._ends: dict[tuple[int, At | None], Mapping[int, int]] = {}

    def of(self, node: Node, at: At | None) -> int:
        if isinstance(node, Chars):
            return bytes_of(node)
        if isinstance(node, Ref) and not is_mark(node):
            return self._of_rule(node.rule, self._styles.within(node.rule, at))
        at = at if isinstance(node, Ref) else self._styles.inside(node, at)
        found = self._known.get((id(node), at))
        if found is None:
            found = self._known[id(node), at] = min(self._of(node, at), NEVER)
        return found

    def _of(self, node: Node, at: At | None) -> int:
        if isinstance(node, Repeat):
            return node.low * self.of(node.body, at) if node.low else 0
        if isinstance(node, Union):
            return min((self.of(arm, at) for arm in node.arms), default=NEVER)
        if isinstance(node, NodeGraph):
            return self.to_the_end(node, at).get(0, NEVER)
        if isinstance(node, Counted):
            return Counts(node.graph, node.low, node.high).least_bytes(lambda body: self.of(body, at), 0, node.low, node.high)
        assert isinstance(node, Concat | Ref)
        return self.behind(node, at)[0]

    def behind(self, node: Concat | Ref, at: At | None) -> list[int]:
        """Return, for each part of a sequence, the length of it and all parts after it."""
        found = self._sums.get((id(node), at))
        if found is None:
            found = [0]
            for part, place in reversed(self._styles.parts(node, at)):
                found.append(min(found[-1] + self.of(part, place), NEVER))
            found.reverse()
            self._sums[id(node), at] = found
        return found

    def to_the_end(self, graph: NodeGraph, at: At | None) -> Mapping[int, int]:
        """Return the length for each state of a graph that leads to an end."""
        found = self._ends.get((id(graph), at))
        if found is None:
            found = self._ends[id(graph), at] = _to_the_end(graph, [self.of(body, at) for _, body, _ in graph.edges])
        return found

    def _of_rule(self, rule: str, at: At | None) -> int:
        if (rule, at) not in self._of_rules:
            if rule in self._styles.recursive:
                self._find_recursive(at)
            else:
                for each in (rule,) if at else self._leading_to(rule):
                    self._of_rules[each, at] = self.of(self._styles.rules[each], at)
        return self._of_rules[rule, at]

    def _leading_to(self, rule: str) -> Sequence[str]:
        """Return the rules without marks that one needs and that are not known, each behind those that it names: chains of them are longer than
        calls may be nested."""
        found: list[str] = []
        todo, seen = [(rule, False)], set[str]()
        while todo:
            name, is_last = todo.pop()
            if is_last:
                found.append(name)
            elif name in self._styles.rules and name not in seen and name not in self._styles.recursive and (name, None) not in self._of_rules:
                seen.add(name)
                todo += [(name, True), *((inner, False) for inner in self._styles.named[name])]
        return found

    def _find_recursive(self, at: At | None) -> None:
        """Compute all recursive rules in one style: from above, until nothing becomes shorter, once in their order and once in the other
        one, as most name rules that come before them, or behind."""
        places = [(rule, self._styles.within(rule, at)) for rule in self._styles.rules if rule in self._styles.recursive]
        self._of_rules.update(dict.fromkeys(places, NEVER - 1))  # some text, however long
        changed = True
        while changed:
            changed = False
            places.reverse()
            trial = ShortestLengths(self._styles)  # its results for other rules hold for this turn only
            trial._of_rules.update(self._of_rules)
            for rule, place in places:
                if (least := trial.of(self._styles.rules[rule], place)) < self._of_rules[rule, place]:
                    self._of_rules[rule, place] = trial._of_rules[rule, place] = least
                    changed = True


def bytes_of(node: Chars) -> int:
    """Return the length of the shortest character of a class."""
    first = node.ranges[0][0] if node.ranges else NEVER
    return 1 + (first >= 0x80) + (first >= 0x800) + (first >= 0x10000) if first < NEVER else NEVER


def _to_the_end(graph: NodeGraph, lengths: list[int]) -> Mapping[int, int]:
    far = dict.fromkeys(graph.final, 0)
    changed = True
    while changed:
        changed = False
        for (source, _, to), length in zip(reversed(graph.edges), reversed(lengths)):
            if to in far and far[to] + length < far.get(source, NEVER):
                far[source], changed = far[to] + length, True
    return far
