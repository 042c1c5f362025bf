"""The trie of a select's choices: common prefixes of continuations are computed once, in one pass with the rest.

" Paris is"                 a node is a token after its path, scored by the row before it
" Paris was"                a row is a node that others follow; leaves need none
" London"                   rows lie depth first, so a run of them is a span of a pass

    prompt ─┬─ Paris ─┬─ is          nodes 4, rows 1 ( Paris)
            │         └─ was
            └─ London
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TOP = -1  # in place of a row: the sequence's last one before the choices


@dataclass(frozen=True, slots=True)
class Continuation:
    """A continuation to score. Its tokens see `base` tokens of the prompt and each other; the last needs no row."""

    base: int
    ids: np.ndarray  # [n ≥ 1] int32; ids[0] is scored by the row at base - 1, and not at all when base is 0

    @property
    def rows(self) -> int:
        return len(self.ids) - 1


Ask = tuple[int, int]  # a node, and its token to score


@dataclass(frozen=True, slots=True)
class ChoiceTrie:
    """Branches as one tree. A row's parent comes before it."""

    ids: np.ndarray  # [rows] int32
    parents: tuple[int, ...]  # by row: the row before it, or TOP
    positions: tuple[int, ...]  # by row, its position in its sequence; at TOP the length of the prompt it sees
    asks: tuple[tuple[Ask, ...], ...]  # by row: the nodes after it
    first: tuple[Ask, ...]  # nodes that the prompt's last row scores
    nodes: int
    places: tuple[tuple[int, ...], ...]  # by branch: its nodes
    rows: tuple[tuple[int, ...], ...]  # by branch: its rows

    def run(self, first: int) -> int:
        """Return how many rows from `first` on follow each other."""
        end = first + 1
        while end < len(self.parents) and self.parents[end] == end - 1:
            end += 1
        return end - first

    def above(self, row: int) -> list[int]:
        """Return the rows that `row` sees besides the prompt and itself, in order."""
        found: list[int] = []
        while (row := self.parents[row]) != TOP:
            found.append(row)
        return found[::-1]

    def prompt_length(self, row: int) -> int:
        """Return how much of the prompt `row` sees."""
        return self.positions[row] - len(self.above(row))


def trie(branches: Sequence[Continuation]) -> ChoiceTrie:
    """Merge the branches' common prefixes."""
    tokens: list[int] = []
    parents: list[int] = []  # nodes
    positions: list[int] = []
    places: list[tuple[int, ...]] = [()] * len(branches)
    path: list[int] = []
    base = -1
    listed = [branch.ids.tolist() for branch in branches]
    for i in sorted(range(len(branches)), key=lambda i: (branches[i].base, listed[i])):  # depth first
        shared = _common([tokens[node] for node in path], listed[i]) if branches[i].base == base else 0
        base = branches[i].base
        del path[shared:]
        if own := listed[i][shared:]:
            nodes = range(len(tokens), len(tokens) + len(own))
            parents += (path[-1] if path else TOP, *nodes[:-1])
            positions += range(base + shared, base + len(listed[i]))
            path += nodes
            tokens += own
        places[i] = tuple(path)
    inner = sorted(set(parents) - {TOP})
    row_of = {TOP: TOP, **{node: row for row, node in enumerate(inner)}}
    asks: list[list[Ask]] = [[] for _ in inner]
    first: list[Ask] = []
    for node, parent in enumerate(parents):
        if parent != TOP:
            asks[row_of[parent]].append((node, tokens[node]))
        elif positions[node]:
            first.append((node, tokens[node]))
    return ChoiceTrie(
        ids=np.array([tokens[node] for node in inner], np.int32),
        parents=tuple(row_of[parents[node]] for node in inner),
        positions=tuple(positions[node] for node in inner),
        asks=tuple(map(tuple, asks)),
        first=tuple(first),
        nodes=len(tokens),
        places=tuple(places),
        rows=tuple(tuple(row_of[node] for node in place[:-1]) for place in places),
    )


NO_CHOICES = trie(())


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
