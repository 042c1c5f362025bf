"""Deterministic automata over bytes as arrays: states whose rows differ only by where they stand share one.

    [0-9]{3}    0 ─[0-9]─► 1 ─[0-9]─► 2 ─[0-9]─► 3      next state less this state, by byte:
                                                        0, 1, 2   [0-9] ↦ +1            one row for all three
                                                        3         nothing

So a counted repeat costs its body once, and each count the numbers of its states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lmc.fsm.minimise import DEAD, numbered, to_the_end

FAR = -(1 << 30)  # in a row: the byte is not legal
_LARGE = 2000  # states from which on looking for the ends takes longer than a step may
LONG = 16  # characters, and bytes of a token, that windows look ahead


@dataclass(frozen=True, eq=False)
class ByteDFA:
    """Minimal, without dead states; equal languages have equal arrays.

    deltas  int32 [(rows + 1) * 256]: by `row * 256 + byte` the next state less the present one, FAR where the byte is not
            legal; the last row is FAR throughout
    rows    int32 [states + 1]: of each state, its row times 256; the last is the dead row's, so that DEAD reads it
    final   bool [states]: the text so far is in the language
    window  int64 [states]: states of one window go on with the same texts of up to LONG characters
    So the next state is `max(state + deltas[rows[state] + byte], DEAD)`. 0 is the start; states are numbered in breadth-first
    order of characters, each before those inside a character that it is the first to need.
    """

    deltas: np.ndarray
    rows: np.ndarray
    final: np.ndarray
    window: np.ndarray

    @staticmethod
    def of(table: np.ndarray, final: np.ndarray) -> ByteDFA:
        """From a table [states, 256] of next states."""
        shared = Rows()
        deltas = np.where(table >= 0, table - np.arange(len(table))[:, None], FAR).astype(np.int32)
        rows = np.array([shared.number(row) for row in deltas], np.int32)
        return shared.automaton(rows, final, windows(table))

    @cached_property
    def table(self) -> np.ndarray:
        """int64 [states, 256]: the next state, DEAD where the byte is not legal. 1 KiB a state: for small automata."""
        return self.following(np.arange(self.states)[:, None], np.arange(256)[None])

    @property
    def states(self) -> int:
        return len(self.final)

    @property
    def nbytes(self) -> int:
        return self.deltas.nbytes + self.rows.nbytes + self.final.nbytes + self.window.nbytes

    def following(self, states: np.ndarray, text: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """int64: the state behind each of `states` and the byte beside it, DEAD where that is not legal; DEAD stays."""
        return np.maximum(self.deltas.take(self._places.take(states) + text) + states, DEAD, out=out)

    @cached_property
    def _places(self) -> np.ndarray:
        """`rows` as what indexes without being converted."""
        return self.rows.astype(np.int64)

    def row(self, state: int) -> np.ndarray:
        """[256]: the state behind each byte, DEAD where it is not legal."""
        at = self.rows[state]
        return np.maximum(self.deltas[at : at + 256] + np.int32(state), DEAD)

    def step(self, state: int, text: bytes) -> int:
        """The state after `text`, DEAD if it leaves the language."""
        rows, deltas = self._rows, self._deltas
        for byte in text:
            if state < 0:
                return DEAD
            state += deltas[rows[state] + byte]
        return state if state >= 0 else DEAD

    def accepts(self, text: bytes) -> bool:
        end = self.step(0, text)
        return end >= 0 and bool(self.final[end])

    def begin(self) -> None:
        """A step begins; here it needs no budget."""

    def is_final(self, state: int) -> bool:
        """The text so far is in the language."""
        return self._ends[state] != 0

    def are_final(self, states: np.ndarray) -> np.ndarray:
        return self.final[states]

    def is_done(self, state: int) -> bool:
        """The text so far is in the language, and nothing may follow."""
        return self._done[state] != 0

    @cached_property
    def _done(self) -> bytes:
        return (self.final & (self.ways[self.rows[:-1] >> 8] == 0)).tobytes()  # quicker to read one by one

    def ways_at(self, state: int) -> int:
        """How many bytes are legal."""
        return int(self.ways[self.rows[state] >> 8])

    def distances(self, states: np.ndarray) -> np.ndarray:
        """Bytes from each state to the nearest end."""
        return self._distances[states]

    @cached_property
    def _distances(self) -> np.ndarray:
        return to_the_end(*self.edges, self.final)

    def prepare(self) -> None:
        """Finds what takes long of a large automaton now, and not in a step that others wait for."""
        if self.states > _LARGE and self.forces_characters:
            _ = self._distances

    def window_of(self, state: int) -> int:
        return int(self.window[state])

    def representative(self, state: int) -> int:
        """A state of the same window."""
        return state

    def split(self, state: int) -> tuple[int, int] | None:
        """There are no rules within rules."""
        return None

    @cached_property
    def _rows(self) -> memoryview:
        return self.rows.data  # much quicker than the array to read one by one

    @cached_property
    def _deltas(self) -> memoryview:
        return self.deltas.data

    @cached_property
    def ways(self) -> np.ndarray:
        """int [rows + 1]: how many bytes are legal."""
        return (self.deltas.reshape(-1, 256) != FAR).sum(axis=1)

    @cached_property
    def singular(self) -> np.ndarray:
        """bool [states]: exactly one byte is legal and the text may not end here (final counts as a way on)."""
        return (self.ways == 1)[self.rows[:-1] >> 8] & ~self.final

    def forced(self, state: int) -> tuple[bytes, int]:
        """What every legal text from `state` goes on with, and the state behind it; b"" where there is a choice."""
        rows, deltas, only, ends, out = self._rows, self._deltas, self._only, self._ends, bytearray()
        while not ends[state] and (byte := only[rows[state] >> 8]) >= 0:  # ends: an end is within reach of every state
            out.append(byte)
            state += deltas[rows[state] + byte]
        return bytes(out), state

    @cached_property
    def _only(self) -> list[int]:
        """Of each row the only legal byte, -1 where there is none or another."""
        legal = self.deltas.reshape(-1, 256) != FAR
        return np.where(self.ways == 1, legal.argmax(axis=1), -1).tolist()

    @cached_property
    def _ends(self) -> memoryview:
        return self.final.data

    @property
    def forces_characters(self) -> bool:
        """Whether some state that is not inside a character is singular."""
        inside = (self.deltas.reshape(-1, 256)[:, 0x80:0xC0] != FAR).any(axis=1)
        return bool((self.singular & ~inside[self.rows[:-1] >> 8]).any())

    @cached_property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """(sources, targets) int64: each pair of neighbours at least once."""
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


class Rows:
    """Rows of an automaton that is being made, each once."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._rows: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._rows)

    def number(self, deltas: np.ndarray) -> int:
        """Where int32 [256] is in `ByteDFA.deltas`."""
        found = self._numbers.setdefault(deltas.tobytes(), len(self._rows) << 8)
        if found == len(self._rows) << 8:
            self._rows.append(deltas)
        return found

    def automaton(self, rows: np.ndarray, final: np.ndarray, window: np.ndarray) -> ByteDFA:
        deltas = np.concatenate([*self._rows, np.full(256, FAR, np.int32)])
        return ByteDFA(deltas, np.append(rows, len(self._rows) << 8).astype(np.int32), final, window)


def windows(table: np.ndarray) -> np.ndarray:
    """int64 [states], of a table [states, symbols]: equal for states from which the same texts of up to LONG symbols are legal.

    Rounds of partition refinement over signatures hashed to 64 bits; symbols beside each other that no state tells apart
    are taken as one. In `[a-z]{1,200}` all but the last LONG states are equal.
    """
    states = len(table)
    weights = _random(max(table.shape[1], states + 1)) | np.uint64(1)
    table = table[:, np.append(True, (table[:, 1:] != table[:, :-1]).any(axis=0))[: table.shape[1]]]
    block = np.zeros(states + 1, np.int64)
    block[-1] = 1  # DEAD
    blocks = 1
    for _ in range(LONG):
        signature = (weights[block[table]] * weights[: table.shape[1]]).sum(axis=1)
        _, block[:-1] = numbered(signature)
        found = int(block[:-1].max()) + 1
        block[-1] = found
        if found == blocks:
            break
        blocks = found
    return block[:-1]


def _random(count: int) -> np.ndarray:
    """uint64 [count], the same every time: splitmix64. (numpy.random takes longer to import than compiling takes.)"""
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
