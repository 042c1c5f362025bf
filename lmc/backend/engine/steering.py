"""Steering: an answer near its limit takes the shortest path to a legal end, so that the limit never cuts it.

limit 12   {"name": "Ada Lovelace, who was …       sampled, while a legal end still fits after it
           {"name": "Ada Love", "age": 0}           a sample that would leave no room is replaced by that end
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.dfa import DEAD
from lmc.fsm.forced import Encode
from lmc.fsm.tokens import TokenAutomaton

KINDS = frozenset({"json_schema", "structural_tag"})
"""Constraints whose answers are steered. Those of regexes and grammars are cut like SGLang's, with a note."""

_SLACK = 2  # tokens by which an end may grow when text is forced before it
_IN_FLIGHT = 8  # tokens before the horizon at which the host takes over from a device that samples ahead of it
_ANY = 1 << 30  # tokens: an automaton built on demand has no bound on shortest ends
_LONGEST = 4096  # bytes of an end: as many blocking steps
_KEPT = 4096  # ends that are remembered


class Steering:
    """The shortest ends of one token automaton, for all answers to a constraint. For the scheduler's thread.

    horizon  tokens within which an end always fits: with more left, nothing needs to be checked
    """

    def __init__(self, automaton: TokenAutomaton, encode: Encode | None, ids: Mapping[bytes, int]) -> None:
        """Set up; `ids` has the token of each text, for texts that `encode` would cut in a way that the automaton does
        not allow."""
        self._automaton, self._dfa, self._encode, self._ids = automaton, automaton.dfa, encode, ids
        self.horizon = int(self._dfa.to_the_end().max()) + _SLACK + _IN_FLIGHT if isinstance(self._dfa, ArrayDFA) else _ANY
        self._ends: dict[int, tuple[int, ...] | None] = {}

    def fits(self, state: int, left: int) -> bool:
        """Return whether an end surely fits into `left` tokens after a state."""
        left -= _SLACK
        return 0 <= self._dfa.distance(state) <= left or self.end_within(state, left) is not None

    def end_within(self, state: int, left: int) -> tuple[int, ...] | None:
        """Return a shortest end after a state; None if it has more tokens than are left, or is too long to search
        for."""
        if self._dfa.distance(state) > min(left * self._automaton.vocabulary.longest, _LONGEST):
            return None
        end = self.end(state)
        return end if end is not None and len(end) <= left else None

    def end(self, state: int) -> tuple[int, ...] | None:
        """Return tokens of a shortest end after a state; None if the vocabulary cannot spell it."""
        if state not in self._ends:
            if len(self._ends) >= _KEPT:
                self._ends.clear()
            self._ends[state] = self._spelled(state, self._shortest(state))
        return self._ends[state]

    def _shortest(self, state: int) -> bytes:
        out, at = bytearray(), state
        while not self._automaton.is_final(at):
            self._dfa.begin()
            row = self._dfa.row(at)
            ways = np.flatnonzero(row >= 0)
            byte = int(ways[self._dfa.distances(row[ways]).argmin()])
            out.append(byte)
            at = int(row[byte])
        return bytes(out)

    def _spelled(self, state: int, text: bytes) -> tuple[int, ...] | None:
        canonical = self._canonical(text)
        if canonical is not None and self._leads_to_an_end(state, canonical):
            return canonical
        found: list[int] = []
        at = 0
        while at < len(text):
            for until in range(min(len(text), at + 16), at, -1):
                token = self._ids.get(text[at:until])
                if token is not None and (behind := self._automaton.next(state, token)) != DEAD:
                    found.append(token)
                    state, at = behind, until
                    break
            else:
                return None
        return tuple(found)

    def _canonical(self, text: bytes) -> tuple[int, ...] | None:
        try:
            return None if self._encode is None else tuple(self._encode(text.decode()))
        except UnicodeDecodeError:  # it begins inside a character
            return None

    def _leads_to_an_end(self, state: int, tokens: tuple[int, ...]) -> bool:
        for token in tokens:
            state = self._automaton.next(state, token)
            if state == DEAD:
                return False
        return self._automaton.is_final(state)
