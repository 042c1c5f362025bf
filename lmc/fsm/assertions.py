"""Zero-width assertions of a regex: look-around, word boundaries, line ends.

    \\b\\w+\\b(?!x)…      tree    ⟨b⟩ \\w+ ⟨b⟩ ⟨!x⟩ …          each is a mark, a character of its own
    ⟨b⟩ is broken by     \\w ⟨b⟩ \\w …                       a language of texts with marks
    the meaning          the tree minus the texts that break a mark, and without the marks

So any regular language may be looked for, ahead or behind, anywhere in a pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lmc.fsm.algebra import both, without
from lmc.fsm.charset import MAX_CHAR, Ranges, complement, without_surrogates
from lmc.fsm.nodes import EMPTY, NOTHING, Chars, Concat, Node, NodeGraph, Repeat, Union, parts_of, rebuilt

MOST = 64  # most marks of one pattern


@dataclass(frozen=True)
class Assertion:
    """kind: `ahead` and `behind` look for `of`, `not_…` for its absence; `boundary` and `inside` have a character of `of`, which is Chars, on
    one side only, or on both or none; `line_start` and `line_end`"""

    kind: Literal["ahead", "not_ahead", "behind", "not_behind", "boundary", "inside", "line_start", "line_end"]
    of: Node = EMPTY
    to_the_end: bool = False  # a lookahead must match all of the rest


def mark(index: int) -> Chars:
    """Return the mark of an assertion in a tree, by its number."""
    code = MAX_CHAR + 1 + index
    return Chars(((code, code),))


def resolved(tree: Node, assertions: Sequence[Assertion]) -> Node:
    """Return the texts of a tree where all assertions hold; NOTHING if there is none. Raises TooLarge."""
    marks = Chars(((MAX_CHAR + 1, MAX_CHAR + len(assertions)),))
    whole = Chars((*without_surrogates(((0, MAX_CHAR),)), marks.ranges[0]))
    broken = _Violations(whole, Repeat(marks, 0, None))
    anything = Repeat(whole, 0, None)
    for index, assertion in enumerate(assertions):
        tree = both(tree, without(anything, broken.of(assertion, mark(index))))
        if tree == NOTHING:
            return NOTHING
    assert isinstance(tree, NodeGraph)
    return _unmarked(tree)


class _Violations:
    """Texts in which an assertion does not hold at one of its marks."""

    def __init__(self, whole: Chars, marks: Node) -> None:
        self._anything, self._marks = Repeat(whole, 0, None), marks
        self._known: dict[tuple[int, bool], Node] = {}

    def of(self, assertion: Assertion, at: Chars) -> Node:
        kind, looked, anything, marks = assertion.kind, assertion.of, self._anything, self._marks
        if kind in ("ahead", "not_ahead"):
            found = Concat((self._spread(looked, before=True), marks if assertion.to_the_end else anything))
            return Concat((anything, at, found if kind == "not_ahead" else without(anything, found)))
        if kind in ("behind", "not_behind"):
            found = Concat((anything, self._spread(looked, before=False)))
            return Concat((found if kind == "not_behind" else without(anything, found), at, anything))
        if kind == "line_start":
            return Concat((anything, _others(((10, 10),)), marks, at, anything))
        if kind == "line_end":
            return Concat((anything, at, marks, _others(((10, 10),)), anything))
        assert isinstance(looked, Chars)
        others = _others(looked.ranges)
        word_before, word_behind = Concat((anything, looked, marks)), Concat((marks, looked, anything))
        none_before = Union((marks, Concat((anything, others, marks))))
        none_behind = Union((marks, Concat((marks, others, anything))))
        pairs = ((word_before, word_behind), (none_before, none_behind)) if kind == "boundary" else ((word_before, none_behind), (none_before, word_behind))
        return Union(tuple([Concat((before, at, behind)) for before, behind in pairs]))

    def _spread(self, node: Node, *, before: bool) -> Node:
        """Return a tree with any marks before, or after, each of its characters."""
        if isinstance(node, Chars):
            return Concat((self._marks, node) if before else (node, self._marks))
        key = id(node), before
        if key not in self._known:
            self._known[key] = rebuilt(node, [self._spread(part, before=before) for part in parts_of(node)])
        return self._known[key]


def _others(ranges: Ranges) -> Chars:
    return Chars(without_surrogates(complement(ranges)))


def _unmarked(tree: NodeGraph) -> NodeGraph:
    edges: list[tuple[int, Node, int]] = []
    for source, body, target in tree.edges:
        assert isinstance(body, Chars)
        kept = tuple((low, min(high, MAX_CHAR)) for low, high in body.ranges if low <= MAX_CHAR)
        if kept:
            edges.append((source, Chars(kept), target))
        if body.ranges[-1][1] > MAX_CHAR:
            edges.append((source, EMPTY, target))
    return NodeGraph(tuple(edges), tree.final)
