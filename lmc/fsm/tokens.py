"""Token automata: the tokens that a constraint allows in each state, and the next states.

A state is a state of the byte automaton, at a token boundary. Rows are built when a state is first reached and shared by
all sequences of the constraint; states that differ only in a count that no single token can exhaust share one row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lmc.errors import ConstraintError
from lmc.fsm.arrays import ArrayDFA, Arrays, LazyArrays
from lmc.fsm.bytedfa import FAR
from lmc.fsm.lazy import LazyDFA, Machine
from lmc.fsm.minimise import DEAD
from lmc.fsm.runs import Tail, bits_of
from lmc.fsm.vocabulary import NO_LONG, LongAllowed, Vocabulary, along


@dataclass(frozen=True, eq=False)
class AutomatonTables:
    """A token automaton as plain arrays, for the disk and for a device.

    dfa     over bytes; a device walks `dfa.deltas` over the bytes of the sampled token (`Vocabulary.spelled`)
    rows    by `dfa.window`, those built so far: uint32 [words], the allowed tokens of up to LONG bytes, token i is bit i % 32 of
            word i // 32. Longer tokens and EOS are not in them
    """

    dfa: ArrayDFA
    rows: Mapping[int, np.ndarray]


FEW = 8192  # most allowed tokens worth listing: visiting them takes no longer than visiting all
FEW_REFUSED = 8192  # refused tokens up to which closing them one by one is faster than adding a mask


class TokenRow:
    """The tokens that are allowed next. Read-only and shared: states with equal rows have the same one.

    bits      uint32 [words]: token i is bit i % 32 of word i // 32
    few       ids in ascending order, if at most FEW
    refused   the ids that are not allowed, if at most FEW_REFUSED
    size      of the vocabulary: bits beyond it are 0. Given instead of the lists, which are then made when they are first asked for
    """

    __slots__ = ("_few", "_refused", "_size", "bits")

    def __init__(self, bits: np.ndarray, few: np.ndarray | None = None, refused: np.ndarray | None = None, size: int | None = None) -> None:
        bits.flags.writeable = False
        self.bits, self._few, self._refused, self._size = bits, few, refused, size

    @property
    def few(self) -> np.ndarray | None:
        self.list_ids()
        return self._few

    @property
    def refused(self) -> np.ndarray | None:
        self.list_ids()
        return self._refused

    def list_ids(self) -> None:
        """Make the lists now."""
        if (size := self._size) is None:
            return
        flags = np.unpackbits(self.bits.view(np.uint8), bitorder="little").view(bool)[:size]
        count = int(np.count_nonzero(flags))
        few = flags.nonzero()[0] if count <= FEW else None
        refused = (~flags).nonzero()[0] if size - count <= FEW_REFUSED else None
        for array in (few, refused):
            if array is not None:
                array.flags.writeable = False
        self._few, self._refused = few, refused
        self._size = None  # last: other threads read the lists from here on

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.bits, self._few, self._refused) if a is not None)


class TokenAutomaton:
    """A byte automaton over a vocabulary. Thread-safe.

    known   rows built so far, by state

    Raises ConstraintError if the vocabulary lacks the bytes of every legal text.
    """

    start = 0

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        lazy = isinstance(machine, LazyDFA)
        self._begin(LazyArrays(machine) if lazy else _spellable(ArrayDFA.of(machine), vocabulary), {}, vocabulary)

    @classmethod
    def restored(cls, tables: AutomatonTables, vocabulary: Vocabulary) -> TokenAutomaton:
        """Restore from the tables of an automaton over the same vocabulary."""
        made = cls.__new__(cls)
        made._begin(tables.dfa, tables.rows, vocabulary)
        return made

    def _begin(self, dfa: Arrays, rows: Mapping[int, np.ndarray], vocabulary: Vocabulary) -> None:
        self.dfa, self.vocabulary = dfa, vocabulary
        self._lock = threading.Lock()
        self.known: dict[int, TokenRow] = {}
        self._short: dict[int, np.ndarray] = dict(rows)  # by window: the tokens of up to LONG bytes
        self._restored = len(rows)
        self._long: dict[int, LongAllowed] = {}
        self._rules: dict[int, _InRule] = {}  # by window of the state of a rule by itself
        self._rows: dict[tuple[int, LongAllowed, tuple[int, ...]], TokenRow] = {}  # by window, long tokens and EOS: all tokens
        self._walking: dict[int, threading.Lock] = {}  # by window, whose row a thread builds

    def next(self, state: int, token: int) -> int:
        """Return the state after a token, DEAD if it is not allowed. EOS stays in its state."""
        tokens = self.vocabulary.tokens
        if token < len(tokens) and (text := tokens[token]):
            self.dfa.begin()
            return self.dfa.step(state, text)
        return state if token in self.vocabulary.eos and self.is_final(state) else DEAD

    def is_final(self, state: int) -> bool:
        """Return whether the text so far is in the language."""
        return self.dfa.is_final(state)

    def is_done(self, state: int) -> bool:
        """Return whether the text so far is in the language, and nothing may follow."""
        return self.dfa.is_done(state)

    def row(self, state: int) -> TokenRow:
        """Return the allowed tokens, EOS where the text may end. Raises ConstraintError if no token of the vocabulary
        is allowed here."""
        row = self.known.get(state)
        if row is None:
            self.dfa.begin()
            row = self._spelled(state, self._row_of(state))
        return row

    def _row_of(self, state: int) -> TokenRow:
        """Return the row of a state, which may have no token: of one of several parts the tokens of each of them."""
        if (row := self.known.get(state)) is not None:
            return row
        if not (parts := self.dfa.parts(state)):
            return self._made(state, lambda: self._legal(self.dfa.representative(state)))
        bits = np.zeros(self.vocabulary.words, np.uint32)
        for part in parts:
            row = self._row_of(part)
            bits |= row.bits
            if row.bits.any():
                self.known.setdefault(part, row)
        return TokenRow(bits, size=self.vocabulary.size)

    def _spelled(self, state: int, row: TokenRow) -> TokenRow:
        """Keep the row of a state if it has a token."""
        if not row.bits.any():
            raise ConstraintError(
                f"the model's vocabulary has no token that begins with {_bytes_of(self.dfa, state)}, which alone may follow here; allow other characters"
            )
        return self.known.setdefault(state, row)

    def mask(self, state: int) -> np.ndarray:
        """Return the bits of `row`."""
        return self.row(state).bits

    def build(self, state: int) -> np.ndarray:
        """Build the row of a state ahead of its use; return int64: the states that prefixes of its tokens lead to, the
        most frequent first. Raises ConstraintError as `row` does."""
        self.dfa.begin()
        walked = self.vocabulary.trie.walk(self.dfa, state)
        self._spelled(state, self._made(state, lambda: self.vocabulary.bits(walked))).list_ids()
        often = np.bincount(walked + 1, minlength=1)[1:]  # without DEAD
        reached = np.flatnonzero(often)
        return reached[np.argsort(-often[reached], kind="stable")]

    def targets(self, state: int) -> np.ndarray:
        """Return the state after every token: int32 [size], DEAD where none. Computed each time, for tables of a device
        and for tests."""
        ids, ends = self.vocabulary.reach(self.dfa, state)
        row = np.full(self.vocabulary.size, DEAD, np.int32)
        row[ids] = ends
        if self.is_final(state):
            row[list(self.vocabulary.eos)] = state
        return row

    def tables(self) -> AutomatonTables | None:
        """Return the current tables; None for an automaton built on demand."""
        if isinstance(self.dfa, LazyArrays):
            return None
        with self._lock:
            return AutomatonTables(self.dfa, dict(self._short))

    @property
    def rows_built(self) -> int:
        """Return the number of walks through the vocabulary so far; restored rows needed none."""
        return len(self._short) - self._restored

    @property
    def nbytes(self) -> int:
        """Return the memory of the tables so far; the vocabulary counts its own."""
        with self._lock:
            rows = list({id(row): row for row in [*self._rows.values(), *list(self.known.values())]}.values())
            bits = {id(bits): bits.nbytes for bits in [*self._short.values(), *(row.bits for row in rows)]}
            lists = sum(row.nbytes - row.bits.nbytes for row in rows)
            lists += sum(rule.bits.nbytes + rule.ends.nbytes for rule in list(self._rules.values()))
        return self.dfa.nbytes + sum(bits.values()) + lists

    def _legal(self, state: int) -> np.ndarray:
        """Return the bits of the tokens of up to LONG bytes that are legal from `state`."""
        if (kind := self.dfa.covered(state)) is not None:
            return self.vocabulary.covered(self.dfa, state, kind)
        split = self.dfa.split(state)
        if split is None:
            return self.vocabulary.walked(self.dfa, state).bits
        rule, behind = split
        inside = self._in_rule(self.dfa.representative(rule))
        if not len(inside.ends) and not inside.tails:
            return inside.bits
        nodes, _ = self.vocabulary.trie.from_all(self.dfa, inside.ends, np.full(len(inside.ends), behind))
        found = self.vocabulary.held(nodes, 0)[0].tolist()
        found += [i for tail, _ in along(self.dfa, [(tail, behind) for tail in inside.tails]) for i in tail.ids]
        return inside.bits | bits_of(found, self.vocabulary.words)

    def _in_rule(self, state: int) -> _InRule:
        if (found := self._rules.get(state)) is None:
            walked = self.vocabulary.walked(self.dfa, state)
            nodes, states = walked.nodes
            ends = nodes[states >= 0]
            ends = ends[self.dfa.are_final(states[states >= 0])]
            tails = [tail for found in walked.tails for tail, end in found if tail.ways and self.dfa.is_final(end)]
            if any(running.may_end(self.dfa) or (tails and running.apart) for running in walked.runs):
                tails.clear()
                behind = self.vocabulary.trie.walk(self.dfa, state)
                ends = np.flatnonzero(behind >= 0)
                ends = ends[self.dfa.are_final(behind[ends])]
            ends = ends[self.vocabulary.trie.count[ends] > 0]
            if self.dfa.is_final(state):
                ends = np.append(0, ends)
            found = self._rules[state] = _InRule(walked.bits, ends, tails)
        return found

    def _made(self, state: int, walk: Callable[[], np.ndarray]) -> TokenRow:
        """Build the row of a state that has none yet; `walk` computes the legal tokens of up to LONG bytes if its
        window has no row. No lock is held meanwhile: a thread that needs another row does not wait for this one."""
        vocabulary, window = self.vocabulary, self.dfa.window_of(state)
        long = self._long_allowed(state)
        ends = vocabulary.eos if self.is_final(state) else ()
        made = self._rows.get((window, long, ends))
        if made is None:
            bits = self._walked(window, walk)
            if long.whole is not None:
                bits = bits | long.whole.bits
            if long.others or ends:
                bits = bits | bits_of(long.others + ends, vocabulary.words)
            made = TokenRow(bits, size=vocabulary.size)
        with self._lock:
            return self._rows.setdefault((window, long, ends), made)  # states with equal rows have the same one

    def _long_allowed(self, state: int) -> LongAllowed:
        """Return the tokens above LONG bytes that are legal from a state, found once for all that only longer texts tell from it."""
        heads = self.dfa.heads(self.dfa.representative(state)) if self.vocabulary.long_heads else ()
        if heads is not None and self.vocabulary.long_heads.isdisjoint(heads):
            return NO_LONG
        state = self.dfa.far(state, self.vocabulary.longest)
        found = self._long.get(state)
        if found is None:
            found = self._long[state] = self.vocabulary.long_allowed(self.dfa, state)
        return found

    def _walked(self, window: int, walk: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the row of a window, built by one thread: others that want the same wait."""
        with self._lock:
            if (row := self._short.get(window)) is not None:
                return row
            making = self._walking.setdefault(window, threading.Lock())
        with making:  # who waited finds the row, or meets the error himself
            if (row := self._short.get(window)) is None:
                row = walk()
                with self._lock:
                    self._short[window] = row
                    self._walking.pop(window, None)
        return row


class _InRule(NamedTuple):
    """The state of a rule by itself: the bits of legal tokens of up to LONG bytes, and nodes of the trie, and tails after runs, at
    which the rule may end."""

    bits: np.ndarray
    ends: np.ndarray
    tails: Sequence[Tail]


def _bytes_of(dfa: Arrays, state: int) -> str:
    ways = np.flatnonzero(dfa.row(state) >= 0)
    return "byte " + ", ".join(f"0x{byte:02x}" for byte in ways[:8]) + (", …" if len(ways) > 8 else "")


def _spellable(dfa: ArrayDFA, vocabulary: Vocabulary) -> ArrayDFA:
    """Return the automaton without transitions into states that only bytes of no token leave; states keep their
    numbers."""
    here = vocabulary.alphabet
    closed = ~(dfa.deltas.reshape(-1, 256)[:, here] != FAR).any(axis=1)  # rows
    if not (closed[dfa.rows[:-1] >> 8] & ~dfa.final).any():
        return dfa
    table = dfa.table
    while True:
        stuck = ~((table[:, here] >= 0).any(axis=1) | dfa.final)
        if stuck[0]:
            raise ConstraintError(f"the model's vocabulary cannot spell any legal text: {_lacking(dfa, here)}")
        into = np.append(stuck, False)[table] & here  # DEAD reads the last
        if not into.any():
            return ArrayDFA.of_table(table, dfa.final)
        table = np.where(into, DEAD, table)


def _lacking(dfa: ArrayDFA, here: np.ndarray) -> str:
    missing = np.flatnonzero((dfa.deltas.reshape(-1, 256) != FAR).any(axis=0) & ~here)
    return "no token has byte " + ", ".join(f"0x{byte:02x}" for byte in missing[:8].tolist())
