"""UTF-8 lowering: from an automaton over characters to one over bytes.

States with the same partition of characters (which ones go together, not where they lead) have one shape: the trie over
the bytes of their characters, with numbered leaves. It is built once; a state fills in the targets of its leaves:

    shape of [a-zé]     a-z ─► 0, \\xc3 ─► · ─\\xa9─► 0         [a-zé]{1,50}: the same for 50 states
    of a state          a-z ─► 7, \\xc3 ─► 8 ─\\xa9─► 7

Inner nodes of equal content and targets are one state, whichever states need them, so the result is minimal if the
automaton over characters is.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmc.fsm.bounds import TooLarge
from lmc.fsm.bytedfa import FAR, NO_WAYS, ByteDFA, RowTable
from lmc.fsm.charset import Ranges, merged
from lmc.fsm.minimise import Table

MAX_ROWS = 50_000  # a KiB each
MAX_SPREAD = 1_000_000  # states over bytes; some 17 bytes each


_Leaf = int  # a number of a shape's leaves
_Inner = tuple[int, tuple[_Leaf, ...]]  # a node's content, and its leaves here
_Ref = _Leaf | _Inner
Runs = tuple[tuple[int, int, _Ref], ...]  # (first, last, target), ascending, neighbours with one target merged
Segments = tuple[tuple[int, int, _Leaf], ...]  # of characters: (first, last, leaf)


def lowered(table: Table, final: Sequence[bool], segments: Sequence[tuple[int, int, int]]) -> ByteDFA:
    """Return the automaton over bytes of a minimal one over classes of characters.

    segments   (first, last, class), ascending, of all characters of any class; classes are numbered as they appear
    """
    states = _in_order(table, Shapes(segments))
    numbers = _Numbers(states)
    rows, ends = array("i", bytes(4 * numbers.total)), bytearray(numbers.total)
    known: dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    shared = RowTable()
    for here, state in zip(numbers.start, states):
        ends[here] = final[state.old]
        leads = tuple([numbers.start[t] - here for t in state.targets])
        nodes = numbers.of(state)
        relative = tuple([node - here for node in nodes])
        name = (id(state.shape), leads, relative)
        if (found := known.get(name)) is None:
            found = known[name] = [shared.number(row) for row in state.shape.filled(leads, relative)]
            if len(shared) > MAX_ROWS:
                raise TooLarge
        rows[here] = found[0]
        for node, row in zip(nodes, found[1:]):
            rows[node] = row
    rows.append(len(shared) << 8)
    deltas = memoryview(shared.deltas()).cast("i")
    return ByteDFA(deltas, memoryview(rows), memoryview(bytes(ends)), _Spread(table, states, numbers))


# -- states over characters, in order --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _CharState:
    """A state over characters: its number in the table, its shape, and the new numbers of the states its leaves lead to."""

    old: int
    shape: _Shape
    targets: tuple[int, ...]


def _in_order(table: Table, shapes: Shapes) -> list[_CharState]:
    """Return states breadth-first, by characters."""
    numbers, order, out = {0: 0}, [0], list[_CharState]()
    for old in order:
        leaves: dict[int, int] = {}
        pattern = tuple([FAR if t < 0 else leaves.setdefault(t, len(leaves)) for t in table[old]])
        for target in leaves:
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
        out.append(_CharState(old, shapes.of(pattern), tuple([numbers[t] for t in leaves])))
    return out


class _Numbers:
    """Numbers of the states over bytes: a state over characters, then the inner ones that it is the first to need."""

    def __init__(self, states: Sequence[_CharState]) -> None:
        self.start: list[int] = []
        self.total = 0
        self._known: dict[tuple[int, ...], dict[int, int]] = {}  # by targets, by content
        for state in states:
            self.start.append(self.total)
            self.total += 1
            for group, _ in state.shape.groups:
                self._add(group.contents, self._known.setdefault(group.targets(state), {}))
            if self.total > MAX_SPREAD:
                raise TooLarge

    def _add(self, contents: tuple[int, ...], known: dict[int, int]) -> None:
        fresh = contents if not known else [c for c in contents if c not in known]
        known.update(zip(fresh, range(self.total, self.total + len(fresh))))
        self.total += len(fresh)

    def of(self, state: _CharState) -> list[int]:
        """Return the numbers of the nodes of its shape."""
        out: list[int] = []
        for group, _ in state.shape.groups:
            out += map(self._known[group.targets(state)].__getitem__, group.contents)
        return out


@dataclass(frozen=True, slots=True)
class _Spread:
    """The UTF-8 lowering of an automaton over characters: `bytedfa.Characters`."""

    table: Table
    states: Sequence[_CharState]
    numbers: _Numbers

    def windows(self, ahead: Sequence[int]) -> array[int]:
        """Return the windows: a state over characters has its own; an inner one that of its node's content and the
        following windows."""
        out = array("q", bytes(8 * self.numbers.total))
        inside = _Windows(max(ahead, default=0) + 1)
        for here, state in zip(self.numbers.start, self.states):
            out[here] = ahead[state.old]
            if state.shape.size:
                behind = [ahead[self.states[target].old] for target in state.targets]
                found = [w for group, _ in state.shape.groups for w in inside.of(group, tuple([behind[leaf] for leaf in group.leaves]))]
                for node, window in zip(self.numbers.of(state), found):
                    out[node] = window
        return out


class _Windows:
    """Windows of inner states, each continuation once."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._known: dict[tuple[int, ...], dict[int, int]] = {}
        self._whole: dict[tuple[int, tuple[int, ...]], list[int]] = {}

    def of(self, group: _Group, behind: tuple[int, ...]) -> list[int]:
        key = id(group), behind
        if key not in self._whole:
            known = self._known.setdefault(behind, {})
            for content in group.contents:
                if content not in known:
                    known[content] = self._next
                    self._next += 1
            self._whole[key] = [known[content] for content in group.contents]
        return self._whole[key]


# -- shapes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Nodes of a shape that lead to the same leaves."""

    leaves: tuple[_Leaf, ...]
    contents: tuple[int, ...]

    def targets(self, state: _CharState) -> tuple[int, ...]:
        return tuple([state.targets[leaf] for leaf in self.leaves])


class _Shape:
    """The trie of a state's characters: the row of the state itself, and its nodes group by group."""

    def __init__(self, row: Runs, contents: Sequence[Runs]) -> None:
        found: dict[_Inner, Runs] = {}
        todo = [row]
        for runs in todo:
            for *_, ref in runs:
                if not isinstance(ref, int) and ref not in found:
                    found[ref] = _renamed(contents[ref[0]], ref[1])
                    todo.append(found[ref])
        by_leaves: dict[tuple[_Leaf, ...], list[int]] = {}
        for content, leaves in found:
            by_leaves.setdefault(leaves, []).append(content)
        self.size = len(found)
        self.groups: list[tuple[_Group, slice]] = []
        at = 1
        for leaves, held in by_leaves.items():
            self.groups.append((_Group(leaves, tuple(held)), slice(at, at + len(held))))
            at += len(held)
        nodes = [(content, leaves) for leaves, held in by_leaves.items() for content in held]
        at_node: dict[_Ref, int] = {node: i for i, node in enumerate(nodes, 1)}
        behind = 1 + self.size
        self._rows = [
            [(first, last, behind + ref if isinstance(ref, int) else at_node[ref]) for first, last, ref in runs]
            for runs in (row, *(found[node] for node in nodes))
        ]

    def filled(self, leads: Sequence[int], nodes: Sequence[int]) -> Iterator[bytes]:
        """Return the memory of int32 [256] of a state at position 0, then of its nodes, at positions `nodes`: FAR where
        nothing is legal. Leaves lead to `leads`."""
        places = (0, *nodes, *leads)
        for here, runs in zip(places, self._rows):
            row = NO_WAYS[:]
            for first, last, to in runs:
                row[first : last + 1] = array("i", (places[to] - here,)) * (last - first + 1)
            yield row.tobytes()


def _renamed(runs: Runs, leaves: Sequence[_Leaf] | dict[_Leaf, _Leaf]) -> Runs:
    return tuple([(a, b, leaves[ref] if isinstance(ref, int) else (ref[0], tuple([leaves[i] for i in ref[1]]))) for a, b, ref in runs])


class Above(NamedTuple):
    """The half of a row behind ASCII; `leaves` are all that it leads to, `number` is another one for each."""

    number: int
    runs: Runs
    leaves: tuple[_Leaf, ...]


class Shapes:
    """Builds the shape of each partition of the classes, once; inner nodes of all shapes have one numbering of
    contents."""

    _LENGTHS = ((0x80, 0x7FF, 0xC0, 1), (0x800, 0xFFFF, 0xE0, 2), (0x10000, 0x10FFFF, 0xF0, 3))

    def __init__(self, segments: Sequence[tuple[int, int, int]]) -> None:
        self.segments = segments
        self._ascii = [(low, min(high, 0x7F), c) for low, high, c in segments if low < 0x80]
        self._above = [(max(low, 0x80), high, c) for low, high, c in segments if high >= 0x80]
        self._high = tuple(dict.fromkeys(c for *_, c in self._above))  # classes
        self._shapes: dict[tuple[int, ...], _Shape] = {}
        self._halves: dict[tuple[int, ...], tuple[Runs, Above]] = {}
        self._aboves: dict[tuple[int, ...], Above] = {}  # by leaves of `_high`
        self._held: list[Runs] = []  # contents of inner nodes, with leaves in order of appearance
        self._depths: list[int] = []
        self._contents: dict[Runs, int] = {}
        self._made: dict[tuple[int, Segments], _Inner] = {}

    def of(self, pattern: tuple[int, ...]) -> _Shape:
        """pattern   of each class its leaf, or FAR"""
        if pattern not in self._shapes:
            self._shapes[pattern] = _Shape(self.runs(pattern), self._held)
        return self._shapes[pattern]

    def runs(self, pattern: tuple[int, ...]) -> Runs:
        """Return the row of a state: the target of each byte."""
        below, above = self.halves(pattern)
        return (*below, *above.runs)

    def halves(self, pattern: tuple[int, ...]) -> tuple[Runs, Above]:
        """`runs`, of ASCII and of what begins other characters: the latter once for all patterns that do not differ there."""
        found = self._halves.get(pattern)
        if found is None:
            key = tuple([pattern[c] for c in self._high])
            above = self._aboves.get(key)
            if above is None:
                above = self._aboves[key] = Above(len(self._aboves), *self._row(_characters(self._above, pattern)))
            found = self._halves[pattern] = _characters(self._ascii, pattern), above
        return found

    def characters(self, pattern: tuple[int, ...], leaf: int) -> Ranges:
        """Return the characters that lead to a leaf."""
        return merged((low, high) for low, high, c in self.segments if pattern[c] == leaf)

    def inside(self, content: int) -> Runs:
        """Return the row of an inner node."""
        return self._held[content]

    def depth(self, content: int) -> int:
        """Return how many bytes of a character an inner node waits for."""
        return self._depths[content]

    def _row(self, segments: Segments) -> tuple[Runs, tuple[_Leaf, ...]]:
        """Return the edges by the first bytes of characters, and all leaves below them."""
        row: list[tuple[int, int, _Ref]] = []
        for low, high, lead, more in self._LENGTHS:
            part = [(max(a, low), min(b, high), t) for a, b, t in segments if a <= high and b >= low]
            if part:
                row += [(lead | first, lead | last, t) for first, last, t in self._blocks(part, more)]
        return _joined(row), tuple(dict.fromkeys(t for *_, t in segments))

    def _blocks(self, segments: Iterable[tuple[int, int, _Leaf]], more: int) -> Iterable[tuple[int, int, _Ref]]:
        """Return runs of the next byte, whose characters continue for `more` bytes after it."""
        if not more:
            return segments
        bits = 6 * more
        size = 1 << bits
        out: list[tuple[int, int, _Ref]] = []
        partial: dict[int, list[tuple[int, int, _Leaf]]] = {}
        for low, high, target in segments:
            first, last = low >> bits, high >> bits
            for block in dict.fromkeys((first, last)):
                base = block << bits
                a, b = max(low, base) - base, min(high, base + size - 1) - base
                if a > 0 or b < size - 1:
                    partial.setdefault(block, []).append((a, b, target))
            whole_first = first + (low > first << bits)
            whole_last = last - (high < (last + 1 << bits) - 1)
            if whole_first <= whole_last:
                out.append((whole_first, whole_last, self._node(((0, size - 1, target),), more)))
        out += [(block, block, self._node(tuple(part), more)) for block, part in partial.items()]
        return out

    def _node(self, segments: Segments, more: int) -> _Inner:
        """Return the node that waits for the last `more` bytes of a character."""
        key = (more, segments)
        if key not in self._made:
            runs = _joined((0x80 | a, 0x80 | b, t) for a, b, t in self._blocks(segments, more - 1))
            leaves = dict.fromkeys(leaf for *_, ref in runs for leaf in ((ref,) if isinstance(ref, int) else ref[1]))
            number = {leaf: i for i, leaf in enumerate(leaves)}
            held = _renamed(runs, number)
            if held not in self._contents:
                self._contents[held] = len(self._held)
                self._held.append(held)
                self._depths.append(more)
            self._made[key] = self._contents[held], tuple(leaves)
        return self._made[key]


def _characters(segments: Iterable[tuple[int, int, int]], pattern: tuple[int, ...]) -> Segments:
    """Return runs of characters with one leaf."""
    return _joined((low, high, pattern[c]) for low, high, c in segments if pattern[c] != FAR)  # type: ignore[return-value]


def _joined(runs: Iterable[tuple[int, int, _Ref]]) -> Runs:
    out: list[tuple[int, int, _Ref]] = []
    for first, last, target in sorted(runs, key=lambda run: run[0]):
        if out and out[-1][2] == target and out[-1][1] + 1 == first:
            out[-1] = (out[-1][0], last, target)
        else:
            out.append((first, last, target))
    return tuple(out)
