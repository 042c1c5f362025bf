"""Byte automata as arrays, for code that handles many states at once: token tables, tries, devices. Needs numpy, a
dependency of the engine.

The memory of a ByteDFA or a LazyDFA is used directly; for a ByteDFA, windows are computed too:

    [a-z]{1,200}    of 201 states the first 184 are equal for LONG characters: one window, so one row of allowed tokens
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from lmc.fsm.bytedfa import FAR, LONG, ByteDFA, RowTable, Walk
from lmc.fsm.lazy import UNKNOWN, UNMADE, LazyDFA
from lmc.fsm.minimise import DEAD

_LARGE = 2000  # number of states from which on finding the ends takes longer than a step may


class ArrayDFA(Walk):
    """An automaton as ByteDFA describes it.

    deltas  int32 [(rows + 1) * 256]
    rows    int32 [states + 1]
    final   bool [states]
    window  int64 [states]: states of one window allow the same texts of up to LONG characters
    """

    def __init__(self, deltas: np.ndarray, rows: np.ndarray, final: np.ndarray, window: np.ndarray) -> None:
        super().__init__(deltas.data, rows.data, final.data)  # much faster than the arrays for single reads
        self.deltas, self.rows, self.final, self.window = deltas, rows, final, window

    @staticmethod
    def of(dfa: ByteDFA) -> ArrayDFA:
        window = dfa.characters.windows(windows(np.array(dfa.characters.table, np.int32)).tolist())
        return ArrayDFA(np.frombuffer(dfa.deltas, np.int32), np.frombuffer(dfa.rows, np.int32), np.frombuffer(dfa.final, bool), np.array(window))

    @staticmethod
    def of_table(table: np.ndarray, final: np.ndarray) -> ArrayDFA:
        """Build from a table [states, 256] of next states."""
        shared = RowTable()
        deltas = np.where(table >= 0, table - np.arange(len(table))[:, None], FAR).astype(np.int32)
        rows = [shared.number(row.tobytes()) for row in deltas]
        rows.append(len(shared) << 8)
        return ArrayDFA(np.frombuffer(shared.deltas(), np.int32), np.array(rows, np.int32), final, windows(table))

    @cached_property
    def table(self) -> np.ndarray:
        """Return int64 [states, 256]: the next state, DEAD where the byte is not legal. 1 KiB a state: for small
        automata."""
        return self.following(np.arange(self.states)[:, None], np.arange(256)[None])

    @property
    def nbytes(self) -> int:
        return self.deltas.nbytes + self.rows.nbytes + self.final.nbytes + self.window.nbytes

    def following(self, states: np.ndarray, text: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return int64: the state after each of `states` and its byte, DEAD where that is not legal; DEAD stays."""
        return np.maximum(self.deltas.take(self._places.take(states) + text) + states, DEAD, out=out)

    @cached_property
    def _places(self) -> np.ndarray:
        """Return `rows` in a type that indexes without conversion."""
        return self.rows.astype(np.int64)

    def row(self, state: int) -> np.ndarray:
        """Return [256]: the state after each byte, DEAD where it is not legal."""
        at = self.rows[state]
        return np.maximum(self.deltas[at : at + 256] + np.int32(state), DEAD)

    @cached_property
    def ways(self) -> np.ndarray:
        """Return int [rows + 1]: the number of legal bytes."""
        return (self.deltas.reshape(-1, 256) != FAR).sum(axis=1)

    def is_done(self, state: int) -> bool:
        return self._done[state] != 0

    @cached_property
    def _done(self) -> bytes:
        return (self.final & (self.ways[self.rows[:-1] >> 8] == 0)).tobytes()  # faster for single reads

    def are_final(self, states: np.ndarray) -> np.ndarray:
        return self.final[states]

    def window_of(self, state: int) -> int:
        return int(self.window[state])

    def representative(self, state: int) -> int:
        """Return a state of the same window."""
        return state

    def _unsought(self, state: int) -> None:
        """Return None: shortcuts that need fewer states and rows are not looked for, since states are there, and rows are built ahead of
        answers, and kept."""

    known_row = split = loop = turns = literal = string = covered = words = _unsought

    def _none(self, state: int) -> tuple[()]:
        return ()

    names = parts = _none

    def _beyond_none(self, *_: object) -> int:
        raise AssertionError("no state has a shortcut")

    turned = beyond = behind_string = behind_words = behind_names = _beyond_none

    def far(self, state: int, length: int) -> int:
        """Return a state that allows the same texts of up to `length` bytes."""
        return state

    def distance(self, state: int) -> int:
        """Return the number of bytes from a state to the nearest end."""
        return int(self._distances[state])

    def distances(self, states: np.ndarray) -> np.ndarray:
        """Return the number of bytes from each state to the nearest end."""
        return self._distances[states]

    @cached_property
    def _distances(self) -> np.ndarray:
        return self.to_the_end()

    def prepare(self) -> None:
        """Compute slow properties of a large automaton now, not in a step that others wait for."""
        if self.states > _LARGE and self.forces_characters:
            _ = self._distances

    @cached_property
    def singular(self) -> np.ndarray:
        """Return bool [states]: `is_singular` of each."""
        return (self.ways == 1)[self.rows[:-1] >> 8] & ~self.final

    def are_singular(self, states: np.ndarray) -> np.ndarray:
        """Return bool: `is_singular` of each state."""
        return self.singular[states]

    @cached_property
    def _only(self) -> list[int]:
        legal = self.deltas.reshape(-1, 256) != FAR
        return np.where(self.ways == 1, legal.argmax(axis=1), -1).tolist()

    @property
    def forces_characters(self) -> bool:
        """Return whether some state that is not inside a character is singular."""
        inside = (self.deltas.reshape(-1, 256)[:, 0x80:0xC0] != FAR).any(axis=1)
        return bool((self.singular & ~inside[self.rows[:-1] >> 8]).any())

    def to_the_end(self) -> np.ndarray:
        """Return int [states]: bytes from each state to the nearest end, computed one distance at a time."""
        sources, targets = self._edges
        before = sources[np.argsort(targets, kind="stable")]
        counts = np.bincount(targets, minlength=self.states)
        begins = np.cumsum(counts) - counts
        distance = np.full(self.states, -1)
        here, at = np.flatnonzero(self.final), 0
        while len(here):
            distance[here] = at
            many = counts[here]
            found = before[np.arange(many.sum()) + np.repeat(begins[here] - np.cumsum(many) + many, many)]
            here = distinct(found[distance[found] < 0])
            at += 1
        return distance

    @property
    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (sources, targets) int64: each pair of neighbours at least once."""
        deltas = self.deltas.reshape(-1, 256)
        first = deltas != FAR
        first[:, 1:] &= deltas[:, 1:] != deltas[:, :-1]
        row, byte = np.nonzero(first)
        counts = np.bincount(row, minlength=len(deltas))
        begins = np.cumsum(counts) - counts
        rows = self.rows[:-1] >> 8
        sources = np.repeat(np.arange(self.states), counts[rows])
        at = np.arange(len(sources)) - np.repeat(np.cumsum(counts[rows]) - counts[rows], counts[rows])
        return sources, sources + deltas[row, byte][begins[rows][sources] + at]


class LazyArrays:
    """An automaton built on demand: `LazyDFA`, with access to many rows at once. Thread-safe.

    Its methods of one state are those of the LazyDFA.
    """

    def __init__(self, lazy: LazyDFA) -> None:
        self.lazy, self._rows = lazy, np.frombuffer(lazy.rows, np.int32)
        self.begin, self.step, self.accepts, self.forced, self.moves = lazy.begin, lazy.step, lazy.accepts, lazy.forced, lazy.moves
        self.after, self.turns, self.turned, self.known_row = lazy.after, lazy.turns, lazy.turned, lazy.known_row
        self.distance, self.is_final, self.is_done, self.ways_at, self.few = lazy.distance, lazy.is_final, lazy.is_done, lazy.ways_at, lazy.few
        self.heads, self.covered = lazy.heads, lazy.covered
        self.representative, self.split, self.loop, self.far = lazy.representative, lazy.split, lazy.loop, lazy.representative
        self.window_of, self.literal, self.beyond = lazy.representative, lazy.literal, lazy.beyond
        self.string, self.behind_string, self.parts = lazy.string, lazy.behind_string, lazy.parts
        self.words, self.behind_words, self.names, self.behind_names = lazy.words, lazy.behind_words, lazy.names, lazy.behind_names

    @property
    def states(self) -> int:
        """Return the number of states so far."""
        return self.lazy.states

    @property
    def nbytes(self) -> int:
        return self.lazy.nbytes

    @property
    def is_worn(self) -> bool:
        return self.lazy.is_worn

    def following(self, states: np.ndarray, text: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """As for an ArrayDFA."""
        at = np.frombuffer(self.lazy.places, np.int64).take(states)
        if at.min(initial=0) < 0:
            for state in np.flatnonzero(np.bincount(states[at == UNMADE])).tolist():
                self.lazy.place(state)
            at = np.frombuffer(self.lazy.places, np.int64).take(states)
        at += text
        found = self._rows.take(at)
        if out is None:
            return found.astype(np.int64)
        out[...] = found
        return out

    def row(self, state: int) -> np.ndarray:
        """Return [256]: the state after each byte, DEAD where it is not legal."""
        at = self.lazy.place(state)
        return self._rows[at : at + 256]

    def are_final(self, states: np.ndarray) -> np.ndarray:
        found = np.frombuffer(self.lazy.ends, np.uint8)[states]
        if (found == UNKNOWN).any():
            found = np.array([self.lazy.is_final(state) for state in states.tolist()], bool)
        return found != 0

    def are_singular(self, states: np.ndarray) -> np.ndarray:
        """As for an ArrayDFA."""
        known = {state: self.ways_at(state) == 1 and not self.is_final(state) for state in set(states.tolist())}
        return np.array([known[state] for state in states.tolist()], bool)

    def distances(self, states: np.ndarray) -> np.ndarray:
        """Return the number of bytes from each state to the nearest end."""
        return np.array([self.lazy.distance(state) for state in states.tolist()], np.int64)

    def prepare(self) -> None:
        """Do nothing: a state is unknown before it is reached."""


Arrays = ArrayDFA | LazyArrays
"""Automata that token tables are built from: a whole one, or one built on demand."""


def windows(table: np.ndarray) -> np.ndarray:
    """Return int64 [states], of a table [states, symbols]: equal for states from which the same texts of up to LONG
    symbols are legal.

    Rounds of partition refinement over signatures hashed to 64 bits; adjacent symbols that no state distinguishes are
    merged. In `[a-z]{1,200}` all but the last LONG states are equal.
    """
    states = len(table)
    weights = _random(max(table.shape[1], states + 1)) | np.uint64(1)
    table = table[:, np.append(True, (table[:, 1:] != table[:, :-1]).any(axis=0))[: table.shape[1]]]
    block = np.zeros(states + 1, np.int64)
    block[-1] = 1  # DEAD
    blocks = 1
    for _ in range(LONG):
        signature = (weights[block[table]] * weights[: table.shape[1]]).sum(axis=1)
        block[:-1] = _numbered(signature)
        found = int(block[:-1].max()) + 1
        block[-1] = found
        if found == blocks:
            break
        blocks = found
    return block[:-1]


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the values in ascending order, each once. (numpy's `unique` imports numpy.ma on its first call, which
    takes longer than compiling.)"""
    ordered = np.sort(values, axis=None)
    return ordered[_differs_from_before(ordered)]


def _numbered(values: np.ndarray) -> np.ndarray:
    """Number the values: equal ones have equal numbers, from 0 up in ascending order: int64."""
    order = np.argsort(values, kind="stable")
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.cumsum(_differs_from_before(values[order])) - 1
    return numbers


def _differs_from_before(ordered: np.ndarray) -> np.ndarray:
    return np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]


def _random(count: int) -> np.ndarray:
    """Return uint64 [count], the same every time: splitmix64. (Importing numpy.random takes longer than compiling.)"""
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
