"""Automata over bytes whose states are made when they are reached: for languages whose whole automaton is too large, or that recur.

    set of terms (terms.py) ─ a character ─► set of terms          a state, known by its set
                └ first byte of several ─► inside of a character ─► …

Two budgets hold whatever the source: what one step may look at, and what all states together may take. Who exceeds them gets a
ConstraintError, for the answer that needed it.

What a stack has below the rule that is being read matters only where that rule can end: `split` tells the two apart, so that rows
are found once for each rule's state (tokens.py), however deep it stands.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from lmc.errors import ConstraintError
from lmc.fsm.bytedfa import FAR, ByteDFA
from lmc.fsm.dfa import Alphabet
from lmc.fsm.minimise import DEAD
from lmc.fsm.regex import Node
from lmc.fsm.spread import Shapes
from lmc.fsm.terms import Classes, Term, Terms

MOST_FORMS = 60_000  # looked at in one step: some 0.1 s
MOST_ROWS = 48_000  # a KiB each, of one constraint
WORN_ROWS = 12_000  # from which on new answers begin anew
_LONGEST_RUN = 4096  # bytes of forced text that are looked at at once

_Set = frozenset[Term]
_Inner = tuple[int, tuple[int, ...]]  # content of a node of a shape, and the states its leaves lead to


class LazyDFA:
    """States are numbers, as of a ByteDFA: 0 is the start, DEAD none. Thread-safe.

    rules      of a grammar that is not left-recursive and of which each rule derives some text
    """

    def __init__(self, start: Node, rules: Mapping[str, Node], recursive: frozenset[str]) -> None:
        alphabet = Alphabet.of_all((start, *rules.values()))
        self._classes = alphabet.size
        self._shapes = Shapes(alphabet.segments())
        self._terms = Terms(rules, recursive, alphabet.members)
        self._lock = threading.RLock()
        self._numbers: dict[_Set | _Inner, int] = {}
        self._contents: list[_Set | _Inner] = []
        self._final: list[bool] = []
        self._slots = np.zeros(256, np.int32)  # [states + 1]: the row of state - 1; 0 the dead one's, 1 one that is not made
        self._rows = np.full((64, 256), DEAD, np.int32)
        self._made = 2
        self._following: dict[_Set, dict[Classes, _Set]] = {}
        self._representatives: dict[int, int] = {}
        self._splits: dict[int, tuple[int, int] | None] = {}
        self._number(frozenset((self._terms.of(start),)))

    # -- what a ByteDFA has, too -----------------------------------------------------------------------------------

    @property
    def states(self) -> int:
        """So far."""
        return len(self._contents)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._slots.nbytes + 400 * len(self._contents)

    @property
    def is_worn(self) -> bool:
        """So much of it was made that new answers had better begin with a new one."""
        return self._made > WORN_ROWS

    def begin(self) -> None:
        """A step begins: it has all of its budget."""
        self._terms.limit = self._terms.spent + MOST_FORMS

    def following(self, states: np.ndarray, text: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """int64: the state behind each of `states` and the byte beside it, DEAD where that is not legal; DEAD stays."""
        slots = self._slots.take(states + 1)
        if (slots == 1).any():
            with self._lock:
                for state in np.flatnonzero(np.bincount(states[slots == 1])).tolist():
                    self._row(state)
                slots = self._slots.take(states + 1)
        found = self._rows.reshape(-1).take(slots.astype(np.int64) * 256 + text)
        if out is None:
            return found.astype(np.int64)
        out[...] = found
        return out

    def row(self, state: int) -> np.ndarray:
        """[256]: the state behind each byte, DEAD where it is not legal."""
        slot = int(self._slots[state + 1])
        if slot == 1:
            with self._lock:
                slot = self._row(state)
        return self._rows[slot]

    def step(self, state: int, text: bytes) -> int:
        """The state after `text`, DEAD if it leaves the language."""
        for byte in text:
            if state < 0:
                return DEAD
            state = int(self.row(state)[byte])
        return state

    def accepts(self, text: bytes) -> bool:
        """Each byte is a step of its own to the budget."""
        state = 0
        for byte in text:
            self.begin()
            state = int(self.row(state)[byte])
            if state < 0:
                return False
        return self.is_final(state)

    def is_final(self, state: int) -> bool:
        return self._final[state]

    def are_final(self, states: np.ndarray) -> np.ndarray:
        which, at = np.unique(states, return_inverse=True)
        return np.array([self._final[state] for state in which.tolist()], bool)[at]

    def is_done(self, state: int) -> bool:
        return self._final[state] and not self.ways_at(state)

    def ways_at(self, state: int) -> int:
        """How many bytes are legal."""
        return int(np.count_nonzero(self.row(state) >= 0))

    def forced(self, state: int) -> tuple[bytes, int]:
        """As of a ByteDFA; of a very long text, its beginning."""
        out = bytearray()
        while not self._final[state] and len(out) < _LONGEST_RUN:
            ways = np.flatnonzero(self.row(state) >= 0)
            if len(ways) != 1:
                break
            out.append(int(ways[0]))
            state = int(self.row(state)[ways[0]])
        return bytes(out), state

    def distances(self, states: np.ndarray) -> np.ndarray:
        """At least the bytes from each state to the nearest end; some byte leads to a state that is nearer."""
        return np.array([self._distance(self._contents[state]) for state in states.tolist()], np.int64)

    def prepare(self) -> None:
        """Nothing of it is known before it is reached."""

    def _distance(self, content: _Set | _Inner) -> int:
        if isinstance(content, frozenset):
            return 4 * min(term.least for term in content)
        leaves = [self._distance(self._contents[leaf]) for leaf in content[1]]
        return min(leaves) + self._shapes.depth(content[0])

    def representative(self, state: int) -> int:
        """A state that goes on with the same texts of up to LONG bytes; the same one for all that are alike."""
        found = self._representatives.get(state)
        if found is None:
            with self._lock:
                found = self._representatives[state] = self._capped(self._contents[state])
        return found

    def window_of(self, state: int) -> int:
        return self.representative(state)

    def _capped(self, content: _Set | _Inner) -> int:
        if isinstance(content, frozenset):
            return self._number(self._terms.joined(map(self._terms.capped, content)))
        return self._number((content[0], tuple([self.representative(leaf) for leaf in content[1]])))

    def split(self, state: int) -> tuple[int, int] | None:
        """The state of the rule that is being read by itself, and the one behind that rule; None where it is in no rule, or in
        several at once. A text is legal from `state` if it is from the first, or goes on from the second where the first may end."""
        if state not in self._splits:
            with self._lock:
                self._splits[state] = self._split(self._contents[state])
        return self._splits[state]

    def _split(self, content: _Set | _Inner) -> tuple[int, int] | None:
        if not isinstance(content, frozenset):
            return None
        marks = {term.mark for term in content}
        mark = marks.pop()
        if marks or mark is None or any(term is mark for term in content):
            return None
        assert mark.rest is not None
        above = self._number(self._terms.joined(map(self._terms.above, content)))
        return above, self._number(frozenset((mark.rest,)))

    # -- making states ---------------------------------------------------------------------------------------------

    def _number(self, content: _Set | _Inner) -> int:
        found = self._numbers.get(content)
        if found is None:
            found = self._numbers[content] = len(self._contents)
            self._contents.append(content)
            self._final.append(isinstance(content, frozenset) and any(map(self._terms.is_final, content)))
            if found + 2 > len(self._slots):
                self._slots = np.concatenate([self._slots, np.zeros(len(self._slots), np.int32)])
            self._slots[found + 1] = 1
        return found

    def _row(self, state: int) -> int:
        """Makes the row of a state if it has none."""
        slot = int(self._slots[state + 1])
        if slot != 1:
            return slot
        if self._made >= MOST_ROWS:
            raise ConstraintError(f"the answer has met {MOST_ROWS:,} states of its constraint, which are all that are kept; use smaller repeats or less nesting")
        content = self._contents[state]
        row = np.full(256, DEAD, np.int32)
        if isinstance(content, frozenset):
            targets, pattern = self._ways(content)
            for first, last, ref in self._shapes.runs(pattern):
                row[first : last + 1] = targets[ref] if isinstance(ref, int) else self._inner(ref, targets)
        else:
            for first, last, ref in self._shapes.inside(content[0]):
                row[first : last + 1] = content[1][ref] if isinstance(ref, int) else self._inner(ref, content[1])
        slot = self._made
        if slot >= len(self._rows):
            self._rows = np.concatenate([self._rows, np.full((len(self._rows), 256), DEAD, np.int32)])
        self._rows[slot] = row
        self._made += 1
        self._slots[state + 1] = slot
        return slot

    def _inner(self, ref: tuple[int, tuple[int, ...]], targets: tuple[int, ...]) -> int:
        return self._number((ref[0], tuple([targets[leaf] for leaf in ref[1]])))

    def _ways(self, content: _Set) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The states that a set leads to, and of each class which of them, or FAR."""
        by_classes: dict[Classes, list[Term]] = defaultdict(list)
        forms = self._terms.forms
        for term in content:
            for classes, behind in forms(term):
                by_classes[classes].append(behind)
        self._terms.pay(len(content))
        targets: dict[int, int] = {}  # by state, its leaf
        pattern = [FAR] * self._classes
        for classes, terms in _apart(by_classes):
            state = self._number(self._terms.joined(terms))
            leaf = targets.setdefault(state, len(targets))
            for c in classes:
                pattern[c] = leaf
        names: dict[int, int] = {}  # leaves numbered as they appear: states whose ways are divided alike have one pattern
        divided = tuple([FAR if leaf == FAR else names.setdefault(leaf, len(names)) for leaf in pattern])
        states = list(targets)
        return tuple([states[leaf] for leaf in names]), divided


def _apart(by_classes: Mapping[Classes, list[Term]]) -> Iterable[tuple[Iterable[int], Iterable[Term]]]:
    """(classes, where they lead): sets that overlap are taken apart."""
    if len(by_classes) == 1:
        yield from by_classes.items()
        return
    by_class: dict[int, list[Term]] = defaultdict(list)
    for classes, terms in by_classes.items():
        for c in classes:
            by_class[c] += terms
    same: dict[tuple[Term, ...], list[int]] = defaultdict(list)
    for c, terms in by_class.items():
        same[tuple(terms)].append(c)
    for terms, classes in same.items():
        yield classes, terms


Machine = ByteDFA | LazyDFA
"""What follows texts: a whole automaton, or one that is made while it is used."""
