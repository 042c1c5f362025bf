"""Tries of byte strings in arrays, walked through an automaton level by level.

Nodes are in breadth-first order; node 0 is the root, the children of a node are neighbours.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lmc.fsm.arrays import Arrays
from lmc.fsm.minimise import DEAD

_ONE_BY_ONE = 48  # nodes of a level: visited one by one up to here
_SIDE_BY_SIDE = 3  # children: sooner looked at than the ways of a state are counted
_APART = 16  # nodes for each text between two first bytes, up to which what is below both is not walked at once
_MANY_STATES, _TRIES = 64, 3  # made for some levels: from here on those that longer texts alone tell apart are made one, if there are any
_FEW, _MANY, _MOSTLY_DEAD = 16, 2048, 16  # nodes to look at next; nodes of a level, and for each legal one: legal ones are sooner listed


@dataclass(frozen=True, eq=False)
class ByteTrie:
    """byte, parent   of each node, 0 for the root
    level_ends     of each level, the number of nodes up to it
    begin          of each node, the first text that begins with its text
    node_of        of each text, its node
    """

    byte: np.ndarray
    parent: np.ndarray
    level_ends: tuple[int, ...]
    begin: np.ndarray
    node_of: np.ndarray

    @staticmethod
    def of(texts: Sequence[bytes]) -> ByteTrie:
        """Build from ascending nonempty texts."""
        lengths = np.array([len(text) for text in texts], np.int64)
        depth = int(lengths.max(initial=0))
        text = np.frombuffer(b"".join(t.ljust(depth, b"\0") for t in texts), np.uint8).reshape(-1, depth or 1)
        differs = text[1:] != text[:-1]
        # bytes shared with the text before; padding does not matter: a node is only built within its text
        shared = np.where(differs.any(axis=1), differs.argmax(axis=1), depth)
        shared = np.append(0, np.minimum(shared, np.minimum(lengths[1:], lengths[:-1]))) if len(texts) else lengths
        byte, parent, ends = [np.zeros(1, np.uint8)], [np.zeros(1, np.int64)], [1]
        begin = [np.zeros(1, np.int64)]
        node_of = np.zeros(len(texts), np.int64)  # of each text, at the depth reached so far
        for level in range(depth):
            reach = lengths > level
            new = reach & (shared <= level)
            byte.append(text[new, level])
            parent.append(node_of[new])
            begin.append(np.flatnonzero(new))
            at = np.cumsum(new) - 1 + ends[-1]
            node_of[reach] = at[reach]
            ends.append(ends[-1] + int(new.sum()))
        return ByteTrie(np.concatenate(byte), np.concatenate(parent), tuple(ends), np.concatenate(begin), node_of)

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.byte, self.parent, self._text, self.count, self.first, self.node_of))

    @cached_property
    def _text(self) -> np.ndarray:
        """Return `byte` in a type that indexes without conversion."""
        return self.byte.astype(np.int64)

    @cached_property
    def ends(self) -> np.ndarray:
        """Return int64 [nodes]: the end of the texts that begin with that of a node."""
        texts = np.bincount(self.node_of, minlength=len(self.byte))
        for begin, end in reversed(list(itertools.pairwise(self.level_ends))):
            texts += np.bincount(self.parent[begin:end], texts[begin:end], len(texts)).astype(np.int64)
        return self.begin + texts

    @cached_property
    def count(self) -> np.ndarray:
        """Return the number of children of each node."""
        return np.bincount(self.parent[1:], minlength=len(self.byte)).astype(np.int64)

    @cached_property
    def first(self) -> np.ndarray:
        """Return the first child of each node."""
        return np.append(1, 1 + np.cumsum(self.count)[:-1])

    def find(self, text: bytes, node: int = 0) -> int | None:
        """Return the node of a text behind that of another."""
        bytes_, children = self.bytes, self._children
        for byte in text:
            begin, end = children[node], children[node + 1]
            node = bisect_left(bytes_, byte, begin, end)
            if node == end or bytes_[node] != byte:
                return None
        return node

    @cached_property
    def bytes(self) -> bytes:
        return self.byte.tobytes()

    @cached_property
    def _children(self) -> memoryview:
        """Return where the children of each node begin: those of a node end where those of the next one begin."""
        return np.append(self.first, len(self.byte)).data

    def below(self, dfa: Arrays, node: int, state: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the legal nodes below `node`, which has `state`, and the states after them."""
        return self.from_all(dfa, np.array([node]), np.array([state]))

    def children(self, node: int) -> tuple[int, int]:
        """Return where the children of a node begin and end."""
        return self._children[node], self._children[node + 1]

    def from_all(self, dfa: Arrays, nodes: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the legal nodes below `nodes`, each of which has its state, and the states after them: level by level, and node by node
        in levels of few."""
        found, rows = [(nodes[:0], states[:0])], dict[int, memoryview]()
        while len(nodes):
            inner = self.count[nodes] > 0
            nodes, states = nodes[inner], states[inner]
            if len(nodes) <= _ONE_BY_ONE:
                level, few = list(zip(nodes.tolist(), states.tolist())), list[tuple[int, int]]()
                while level and (below := self._one_by_one(dfa, level, rows)) is not None:
                    level = below
                    few += below
                found.append(columns(few))
                nodes, states = columns(level)
            if len(nodes):
                nodes, states = next(self.follow(dfa, nodes, states))
                found.append((nodes, states))
        return np.concatenate([nodes for nodes, _ in found]), np.concatenate([states for _, states in found])

    @staticmethod
    def _nearer(dfa: Arrays, states: np.ndarray, length: int) -> bool:
        """Replace states by ones that allow the same texts of up to `length` bytes: so the turns of a long count, of a class that only names
        are left out of, have no states of their own from the first character on. Return whether that has made some of them one."""
        near = np.arange(states.max(initial=0) + 2) - 1  # the first one is DEAD
        known = np.flatnonzero(np.bincount(states + 1)[1:]).tolist()
        for state in known:
            near[state + 1] = dfa.far(state, length)
        states[:] = near.take(states + 1)
        return len({int(near[state + 1]) for state in known}) < len(known)

    def _one_by_one(self, dfa: Arrays, level: Sequence[tuple[int, int]], rows: dict[int, memoryview]) -> list[tuple[int, int]] | None:
        """Return the legal nodes below those of a level, with their states; None if many would have to be looked at.

        rows   of states, as far as they were looked at
        """
        bytes_, children, found = self.bytes, self._children, list[tuple[int, int]]()
        for node, at in level:
            begin, end = children[node], children[node + 1]
            if begin == end:
                continue
            ways = dfa.few(at) if end - begin > _SIDE_BY_SIDE else None
            if ways is not None and len(ways) < end - begin:
                found += [(child, to) for byte, to in ways.items() if (child := bytes_.find(byte, begin, end)) >= 0]
            elif len(found) + end - begin > _ONE_BY_ONE:
                return None
            else:
                if (row := rows.get(at)) is None:
                    row = rows[at] = dfa.row(at).data
                found += [(child, to) for child in range(begin, end) if (to := row[bytes_[child]]) >= 0]
        return found

    def depth(self, node: int) -> int:
        """Return the length of a node's text."""
        return bisect_right(self.level_ends, node)

    def walk(self, dfa: Arrays, state: int, near: int = 0) -> np.ndarray:
        """Return int64 [nodes]: the state after each node but the root, which has `state`, DEAD where it is not legal:
        whole levels at once while much of them is legal, without what is below first bytes that are not legal and that many texts have.
        If only so many bytes matter, `near`, states that they do not tell apart may be one."""
        behind, ends, begin = np.empty(len(self.byte), np.int64), self.level_ends, self.begin
        behind[0] = DEAD
        if len(ends) == 1:
            return behind
        first, last = 1, ends[1]
        level = dfa.following(np.full(last - first, state), self._text[first:last], behind[first:last])
        if near:
            self._nearer(dfa, level, near)
        legal = first + np.flatnonzero(level >= 0)
        apart = np.flatnonzero(begin[legal[1:]] - begin[legal[:-1] + 1] > len(begin) // _APART) + 1
        known = list(ends)  # of each level but the first, the node up to which `behind` is known
        for part in np.split(legal, apart) if len(legal) else ():
            self._walk_below(dfa, int(part[0]), int(part[-1]) + 1, behind, near, known)
        for at, end in zip(known[1:], ends[2:]):
            behind[at:end] = DEAD
        return behind

    def _walk_below(self, dfa: Arrays, first: int, last: int, behind: np.ndarray, near: int, known: list[int]) -> None:
        """As `walk`, of the nodes below some neighbours. Those of a level up to the last of them are known then."""
        children, states, tries, level = self._children, dfa.states, _TRIES, behind[first:last]
        for depth in range(1, len(self.level_ends) - 1):
            legal = level >= 0
            if not (count := np.count_nonzero(legal)):
                return
            begin = children[first if legal[0] else first + int(legal.argmax())]
            end = children[last if legal[-1] else last - int(legal[::-1].argmax())]
            is_crowded = near > depth and dfa.states > states + _MANY_STATES
            if not is_crowded and (end - begin <= _FEW or count * _MOSTLY_DEAD < last - first > _MANY):
                nodes, states = self.from_all(dfa, first + np.flatnonzero(legal), level[legal])
                for below in range(depth, len(known) - 1):
                    behind[known[below] : end] = DEAD
                    known[below], end = max(end, known[below]), children[end]
                behind[nodes] = states
                return
            first, last = begin, end
            behind[known[depth] : first] = DEAD
            known[depth] = last
            level = dfa.following(behind.take(self.parent[first:last]), self._text[first:last], behind[first:last])
            if is_crowded and not self._nearer(dfa, level, near - depth) and (tries := tries - 1) == 0:
                near = 0

    def follow(self, dfa: Arrays, nodes: np.ndarray, states: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Return, level by level, the legal nodes below `nodes`, and the states after them: visits children of legal
        nodes only."""
        while total := int((counts := self.count[nodes]).sum()):
            children = np.arange(total) + np.repeat(self.first[nodes] - np.cumsum(counts) + counts, counts)
            reached = dfa.following(np.repeat(states, counts), self._text[children])
            legal = reached >= 0
            nodes, states = children[legal], reached[legal]
            yield nodes, states


def columns(pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
