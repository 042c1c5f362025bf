"""The prompts of a graph as a tree: what extends what, where, and which of them several requests extend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lmc.ir.analysis import ctx_children
from lmc.ir.core import Graph, Op, Value
from lmc.ir.ops import trait

Place = tuple[str, int]
"""Label of a block and index of an op in it; the terminator's is the number of ops."""


@dataclass(frozen=True)
class Tree:
    """The prompts of a graph as a tree: the ops extending each, their positions, and the distance to the first
    requests.

    reach  for each prompt the last op in each block between it and the first requests of its branches, inclusive
    asks   for each op that extends a prompt, the blocks with the first requests after it
    """

    graph: Graph
    children: Mapping[Value, tuple[Op, ...]]
    place: Mapping[int, Place]
    number: Mapping[str, int]
    reach: Mapping[Value, Mapping[str, int]]
    asks: Mapping[int, frozenset[str]]

    @staticmethod
    def of(graph: Graph) -> Tree:
        children = ctx_children(graph)
        place = {id(op): (b.label, i) for b in graph.blocks for i, op in enumerate((*b.ops, b.terminator))}
        reach: dict[Value, dict[str, int]] = {}
        behind_of: dict[Value, frozenset[str]] = {}
        asks: dict[int, frozenset[str]] = {}
        for value in reversed(list(children)):  # ops that extend a prompt come after it
            last = reach[value] = {}
            behind: frozenset[str] = frozenset()
            for op in children[value]:
                label, index = place[id(op)]
                last[label] = max(index, last.get(label, -1))
                if _is_ask(op):
                    asks[id(op)] = frozenset((label,))
                    behind |= asks[id(op)]
                    continue
                below = prompt_of(op)
                for label, index in reach[below].items():
                    last[label] = max(index, last.get(label, -1))
                asks[id(op)] = behind_of[below]
                behind |= behind_of[below]
            behind_of[value] = behind
        number = {b.label: i for i, b in enumerate(graph.blocks)}
        return Tree(graph, children, place, number, reach, asks)


@dataclass(frozen=True)
class Fork:
    """A prompt that several requests extend.

    home   label of the block that defines it
    chars  expected characters that each branch would submit again
    last   for each block the index of the last op that needs it pinned: its extensions, up to and including each
           branch's first requests
    width  for each block from home to those: the most branches that make requests on one path through it
    """

    value: Value
    home: str
    chars: int
    last: Mapping[str, int]
    extended: frozenset[str]
    width: Mapping[str, int]

    @staticmethod
    def of(tree: Tree, value: Value, chars: int) -> Fork:
        home = tree.place[id(tree.graph.producer[value])][0]
        branches = tree.children[value]
        extended = frozenset(tree.place[id(op)][0] for op in branches)
        last = tree.reach[value]
        return Fork(value, home, chars, last, extended, _width(tree, home, last, branches))

    def places(self, graph: Graph, defined: int) -> Iterator[Place]:
        """Yield where to prefill: as early as the first block that extends the prompt allows, once on each path that
        gains."""
        stack = [self.home]
        while stack:
            block = graph.block[stack.pop()]
            if block.label not in self.extended and block.terminator.then is None:
                stack.extend(succ for succ in reversed(block.successors) if succ in self.width)
            elif self.width[block.label] >= 2:
                yield block.label, defined + 1 if block.label == self.home else 0


def _width(tree: Tree, home: str, last: Mapping[str, int], branches: Sequence[Op]) -> Mapping[str, int]:
    above, labels = tree.graph.predecessor, {home}
    for label in last:
        while label not in labels:
            labels.add(label)
            label = above[label]
    own: dict[str, set[tuple[int, int]]] = {label: set() for label in labels}  # branches that ask in a block, twice in a loop
    for i, op in enumerate(branches):
        for label in tree.asks[id(op)]:
            turns = 1 if tree.graph.loop_around(label) == tree.graph.loop_around(home) else 2
            own[label].update((i, turn) for turn in range(turns))
    down = sorted(labels, key=lambda label: tree.number[label])
    best: dict[str, set[tuple[int, int]]] = {}  # from a block on, along the path on which most branches make requests
    for label in reversed(down):
        then = tree.graph.block[label].terminator.then
        arms = [best[succ] for succ in tree.graph.block[label].successors if succ in best and succ != then]
        best[label] = own[label] | max(arms, key=len, default=set[tuple[int, int]]()) | best.get(then or "", set[tuple[int, int]]())
    for label in down[1:]:
        best[label] |= own[above[label]]
        own[label] |= own[above[label]]
    return {label: len(found) for label, found in best.items()}


def _is_ask(op: Op) -> bool:
    return trait(op) == "samples" and not op.attr("lazy")


def asked_from(graph: Graph) -> Mapping[Value, bool]:
    """Return, for each prompt, whether a request extends it or one of its extensions."""
    asked = dict.fromkeys(ctx_children(graph), False)
    while True:
        before = sum(asked.values())
        for block in reversed(graph.blocks):
            for op in reversed(block.ops):
                if _is_ask(op) or any(asked.get(v, False) for v in op.results):
                    asked.update((v, True) for v in op.uses if v.type == "ctx")
            for param in block.params:
                if asked.get(param, False):
                    asked.update((v, True) for v in graph.feeds[param] if isinstance(v, Value))
        if sum(asked.values()) == before:
            return asked


def prompt_of(op: Op) -> Value:
    """Return the prompt defined by an op that extends one."""
    return next(v for v in op.results if v.type == "ctx")
