"""Deterministic automata over bytes in flat memory: states whose rows are equal relative to their position share one.

    [0-9]{3}    0 ─[0-9]─► 1 ─[0-9]─► 2 ─[0-9]─► 3      next state less this state, by byte:
                                                        0, 1, 2   [0-9] ↦ +1            one row for all three
                                                        3         nothing

So a counted repeat costs its body once, and each count the numbers of its states. Code that handles one state at a time
is here and needs no packages; arrays.py has the same memory as arrays, to handle many at once.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from lmc.fsm.minimise import DEAD, Table

LONG = 16  # characters, and bytes of a token, that windows look ahead (arrays.py)
FEW_WAYS = 24  # legal bytes that are looked at one by one
FAR = -(1 << 30)  # in a row: the byte is not legal
NO_WAYS = array("i", [FAR]) * 256  # a row
_HIGH = 3 if sys.byteorder == "little" else 0  # which byte of four tells FAR from any distance
_FAR = 0xC0


class Walk:
    """Walking a byte automaton one state at a time, in the memory that ByteDFA describes."""

    def __init__(self, deltas: memoryview[int], rows: memoryview[int], final: memoryview[int]) -> None:
        self._deltas, self._rows, self._final = deltas, rows, final
        self._moves: dict[int, list[tuple[int, int]]] = {}  # by row

    @property
    def states(self) -> int:
        return len(self._final)

    def step(self, state: int, text: bytes) -> int:
        """Return the state after `text`, DEAD if it leaves the language."""
        rows, deltas = self._rows, self._deltas
        for byte in text:
            if state < 0:
                return DEAD
            state += deltas[rows[state] + byte]
        return state if state >= 0 else DEAD

    def after(self, state: int, byte: int) -> int:
        """Step by one byte."""
        return max(state + self._deltas[self._rows[state] + byte], DEAD)

    def accepts(self, text: bytes) -> bool:
        end = self.step(0, text)
        return end >= 0 and self.is_final(end)

    def is_final(self, state: int) -> bool:
        """Return whether the text so far is in the language."""
        return self._final[state] != 0

    def is_done(self, state: int) -> bool:
        """Return whether the text so far is in the language, and nothing may follow."""
        return self._final[state] != 0 and not self.ways_at(state)

    def ways_at(self, state: int) -> int:
        """Return the number of legal bytes."""
        return len(self._of_row(self._rows[state]))

    def begin(self) -> None:
        """Begin a step; here it needs no budget."""

    def moves(self, state: int) -> list[tuple[int, int]]:
        """Return (byte, next state) for the legal bytes, ascending."""
        return [(byte, state + delta) for byte, delta in self._of_row(self._rows[state])]

    def few(self, state: int) -> Mapping[int, int] | None:
        """Return `moves` by byte, where they are few."""
        return dict(self.moves(state)) if self.ways_at(state) <= FEW_WAYS else None

    def heads(self, state: int) -> Iterable[int] | None:
        """Return the bytes that may come next, where they are few."""
        return self.few(state)

    def _of_row(self, row: int) -> list[tuple[int, int]]:
        """Return (byte, delta) for the legal bytes, ascending."""
        moves = self._moves.get(row)
        if moves is None:
            deltas = self._deltas[row : row + 256].tolist()
            moves = self._moves[row] = [(byte, delta) for byte, delta in enumerate(deltas) if delta != FAR]
        return moves

    def forced(self, state: int) -> tuple[bytes, int]:
        """Return the common beginning of all legal texts from `state`, and the state after it; b"" where there is a
        choice."""
        rows, deltas, only, ends, out = self._rows, self._deltas, self._only, self._final, bytearray()
        while not ends[state] and (byte := only[rows[state] >> 8]) >= 0:  # ends: an end is within reach of every state
            out.append(byte)
            state += deltas[rows[state] + byte]
        return bytes(out), state

    @cached_property
    def _only(self) -> Sequence[int]:
        """Return, for each row, the only legal byte, -1 where there is none or a choice."""
        high = bytes(self._deltas.cast("B"))[_HIGH::4]
        rows = (high[at : at + 256] for at in range(0, len(high), 256))
        return [256 - len(row.lstrip(bytes([_FAR]))) if row.count(_FAR) == 255 else -1 for row in rows]

    def is_singular(self, state: int) -> bool:
        """Return whether exactly one byte is legal and the text may not end here (ending counts as a choice)."""
        return not self._final[state] and self._only[self._rows[state] >> 8] >= 0


class Characters(Protocol):
    """The automaton over classes of characters from which one over bytes was built."""

    @property
    def table(self) -> Table: ...

    def windows(self, ahead: Sequence[int]) -> array[int]:
        """Return `ArrayDFA.window` of the states over bytes, from that of the states of `table`."""
        ...


class ByteDFA(Walk):
    """Minimal, without dead states; equal languages have equal memory.

    deltas  int32 [(rows + 1) * 256]: by `row * 256 + byte` the next state less the present one, FAR where the byte is not
            legal; the last row is FAR throughout
    rows    int32 [states + 1]: of each state, its row times 256; the last is the dead row's, so that DEAD reads it
    final   bool [states]: the text so far is in the language
    So the next state is `max(state + deltas[rows[state] + byte], DEAD)`. 0 is the start; states are numbered in breadth-first
    order of characters, each before those inside a character that it is the first to need.
    """

    def __init__(self, deltas: memoryview[int], rows: memoryview[int], final: memoryview[int], characters: Characters) -> None:
        super().__init__(deltas, rows, final)
        self.deltas, self.rows, self.final, self.characters = deltas, rows, final, characters

    @property
    def nbytes(self) -> int:
        """Return its memory, with the windows that `ArrayDFA` adds."""
        return self.deltas.nbytes + self.rows.nbytes + 9 * self.states

    @property
    def forced_share(self) -> float:
        """Return the share of states that are singular."""
        often = Counter(zip(self.rows.tolist(), self.final.tolist()))
        only = self._only
        return sum(count for (row, end), count in often.items() if end == 0 and only[row >> 8] >= 0) / self.states


class RowTable:
    """Rows of an automaton under construction, each once."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, deltas: bytes) -> int:
        """Return the position of the memory of int32 [256] in `ByteDFA.deltas`."""
        return self._numbers.setdefault(deltas, len(self._numbers) << 8)

    def deltas(self) -> bytes:
        """Return the deltas of all rows, and the dead one after them."""
        return b"".join([*self._numbers, NO_WAYS.tobytes()])
