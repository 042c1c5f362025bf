"""Minimal automata over UTF-8 bytes: tree ─► NFA ─► DFA over character classes ─► minimal ─► bytes.

Determinising and minimising happen over the few classes of characters that a pattern distinguishes; only the minimal
automaton is lowered to bytes (utf8_lowering.py).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from lmc.errors import ConstraintError
from lmc.fsm.bounds import TooLarge
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.charset import Ranges, merged
from lmc.fsm.counted import unrolled
from lmc.fsm.minimise import DEAD, Table, minimal
from lmc.fsm.nodes import Chars, Concat, Counted, Node, NodeGraph, Repeat, Union, nodes_of
from lmc.fsm.utf8_lowering import lowered

MAX_STATES = 50_000  # over characters
MAX_WORK = 4_000_000  # states visited in the subset construction: a few seconds
SOON = 12_000  # the same, where there is an alternative: some 20 ms


def build(tree: Node, work: int = MAX_WORK) -> ByteDFA:
    """Return the minimal automaton of a tree; raises TooLarge, also when it takes more than `work`."""
    alphabet = Alphabet.of(tree)
    table, final = determinised(tree, alphabet, work)
    if not any(final):
        raise ConstraintError("no text matches this constraint")
    return lowered(*minimal(table, final), alphabet.segments)


def determinised(tree: Node, alphabet: Alphabet, work: int = MAX_WORK) -> tuple[Table, list[bool]]:
    """Return a tree's automaton over classes of characters; raises TooLarge."""
    return _determinised(_NFA.of(tree, alphabet, work))


# -- classes of characters -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alphabet:
    """The coarsest division of characters into classes that every set of the tree is a sum of.

    segments   (first, last, class), ascending; characters of no set are left out
    size       number of classes, which are numbered as they appear
    members    each set's classes
    """

    segments: tuple[tuple[int, int, int], ...]
    size: int
    members: dict[Chars, tuple[int, ...]]

    def ranges(self) -> list[Ranges]:
        """Return the characters of each class."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        for low, high, c in self.segments:
            found[c].append((low, high))
        return [merged(ranges) for ranges in found]

    @staticmethod
    def of(tree: Node) -> Alphabet:
        return Alphabet.of_all((tree,))

    @staticmethod
    def of_all(trees: Iterable[Node]) -> Alphabet:
        """Build from several trees together, which may name rules."""
        found = list(dict.fromkeys([node for node in nodes_of(trees) if isinstance(node, Chars)]))
        changes: dict[int, int] = defaultdict(int)  # at a character: the sets, as bits, that begin or have just ended
        for number, s in enumerate(found):
            for low, high in s.ranges:
                changes[low] ^= 1 << number
                changes[high + 1] ^= 1 << number
        cuts, inside = sorted(changes), 0
        names: dict[int, int] = {}
        segments: list[tuple[int, int, int]] = []
        for cut, after in itertools.pairwise(cuts):
            inside ^= changes[cut]
            if inside:
                segments.append((cut, after - 1, names.setdefault(inside, len(names))))
        members: list[list[int]] = [[] for _ in found]
        for bits, name in names.items():
            while bits:
                members[bits.bit_length() - 1].append(name)
                bits ^= 1 << bits.bit_length() - 1
        return Alphabet(tuple(segments), len(names), dict(zip(found, map(tuple, members))))


# -- tree to NFA ---------------------------------------------------------------------------------------------------


def is_nullable(tree: Node) -> bool:
    """Return whether the empty text is in its language."""
    if isinstance(tree, Concat):
        return all(map(is_nullable, tree.parts))
    if isinstance(tree, Union):
        return any(map(is_nullable, tree.arms))
    if isinstance(tree, Repeat):
        return tree.low == 0 or is_nullable(tree.body)
    if isinstance(tree, Counted):
        return tree.low == 0 and 0 in tree.graph.final
    return isinstance(tree, NodeGraph) and 0 in tree.final


def _nonempty(tree: Node) -> Node:
    """Return its language without the empty text where that is as simple a tree; else itself."""
    if not is_nullable(tree):
        return tree
    if isinstance(tree, Repeat):
        return Repeat(_nonempty(tree.body), 1, tree.high)
    if isinstance(tree, Union):
        return Union(tuple(_nonempty(arm) for arm in tree.arms))
    if isinstance(tree, Concat) and len(tree.parts) <= 3:  # all are nullable: the first nonempty one, then the rest
        parts = tree.parts
        return Union(tuple(Concat((_nonempty(p), *parts[i + 1 :])) for i, p in enumerate(parts)))
    return tree


class _NFA:
    """Thompson's automaton: a state reads one set of characters, or has empty moves."""

    def __init__(self, alphabet: Alphabet, work: int) -> None:
        self.work = work
        self.members = alphabet.members
        self.alphabet_size = alphabet.size
        self.free: list[list[int]] = []  # empty moves of each state
        self.reads: list[tuple[tuple[int, ...], int] | None] = []  # (classes, next state)
        self.start = self.end = 0
        self.turns: dict[int, tuple[Node, bool]] = {}  # by id of a repeat: one turn's body, and if required

    @staticmethod
    def of(tree: Node, alphabet: Alphabet, work: int) -> _NFA:
        nfa = _NFA(alphabet, work)
        nfa.start = nfa.state()
        nfa.end = nfa.add(tree, nfa.start)
        return nfa

    def state(self) -> int:
        if len(self.free) > min(8 * MAX_STATES, self.work):
            raise TooLarge
        self.free.append([])
        self.reads.append(None)
        return len(self.free) - 1

    def add(self, tree: Node, at: int) -> int:
        """Let `tree` be read from `at`, which reads nothing else; return the state after it."""
        if isinstance(tree, Chars):
            end = self.state()
            self.reads[at] = (self.members[tree], end)
            return end
        if isinstance(tree, Concat):
            for part in tree.parts:
                at = self.add(part, at)
            return at
        if isinstance(tree, Union):
            end = self.state()
            for arm in tree.arms:
                self.free[self.add(arm, self.branch(at))].append(end)
            return end
        if isinstance(tree, NodeGraph | Counted):
            return self.add_graph(unrolled(tree) if isinstance(tree, Counted) else tree, at)
        assert isinstance(tree, Repeat)
        return self.add_repeat(tree, at)

    def add_graph(self, tree: NodeGraph, at: int) -> int:
        hubs: dict[int, int] = defaultdict(self.state)
        self.free[at].append(hubs[0])
        for source, body, target in tree.edges:
            self.free[self.add(body, self.branch(hubs[source]))].append(hubs[target])
        end = self.state()
        for state in tree.final:
            self.free[hubs[state]].append(end)
        return end

    def add_repeat(self, tree: Repeat, at: int) -> int:
        if id(tree) not in self.turns:  # (x?){m,n} is x{0,n}: from every turn there would be empty moves to all later ones
            often = tree.high is not None and tree.high > 8 and is_nullable(tree.body)
            self.turns[id(tree)] = (_nonempty(tree.body), False) if often else (tree.body, True)
        body, needed = self.turns[id(tree)]
        low = tree.low if needed else 0
        for _ in range(low):
            at = self.add(body, at)
        end = self.state()
        if tree.high is None:
            loop = self.branch(at)
            self.free[self.add(body, self.branch(loop))].append(loop)
            self.free[loop].append(end)
            return end
        for _ in range(tree.high - low):  # nested, x(x(x)?)?: from every turn one path to the end
            self.free[at].append(end)
            at = self.add(body, self.branch(at))
        self.free[at].append(end)
        return end

    def branch(self, at: int) -> int:
        self.free[at].append(new := self.state())
        return new

    def closures(self) -> list[frozenset[int]]:
        """Return, for each state, the states that read, or end, within empty moves of it."""
        found: list[frozenset[int]] = []
        work = 0
        for state in range(len(self.free)):
            if not self.free[state]:
                found.append(frozenset((state,)))
                continue
            seen, todo = {state}, [state]
            while todo:
                for to in self.free[todo.pop()]:
                    if to not in seen:
                        seen.add(to)
                        todo.append(to)
            work += len(seen)
            if work > self.work:
                raise TooLarge
            found.append(frozenset(s for s in seen if s == self.end or self.reads[s] is not None))
        return found


def _determinised(nfa: _NFA) -> tuple[Table, list[bool]]:
    """Run the subset construction over classes: table [states, classes], final [states]."""
    closures = nfa.closures()
    start = closures[nfa.start]
    numbers: dict[frozenset[int], int] = {start: 0}
    order, rows = [start], list[list[int]]()
    work = 0
    for subset in order:
        work += len(subset)
        if work > nfa.work:
            raise TooLarge
        ways: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for state in subset:
            read = nfa.reads[state]
            if read is not None:
                ways[read[0]].append(read[1])
        row = [DEAD] * nfa.alphabet_size
        for classes, target in _per_class(ways, closures):
            number = numbers.get(target)
            if number is None:
                if len(numbers) >= min(MAX_STATES, nfa.work // 4):
                    raise TooLarge
                number = numbers[target] = len(order)
                order.append(target)
            for c in classes:
                row[c] = number
        rows.append(row)
    return rows, [nfa.end in s for s in order]


def _per_class(ways: dict[tuple[int, ...], list[int]], closures: list[frozenset[int]]) -> Iterable[tuple[tuple[int, ...], frozenset[int]]]:
    """Yield (classes, targets): overlapping sets are split."""
    if len(ways) == 1:
        [(classes, targets)] = ways.items()
        yield classes, frozenset().union(*(closures[t] for t in targets))
        return
    by_class: dict[int, list[int]] = defaultdict(list)
    for classes, targets in ways.items():
        for c in classes:
            by_class[c] += targets
    same: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for c, targets in by_class.items():
        same[tuple(targets)].append(c)
    for targets, classes in same.items():
        yield tuple(classes), frozenset().union(*(closures[t] for t in targets))
