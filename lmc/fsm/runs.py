"""Tokens within runs of one class of characters: found once for each class and vocabulary, whatever constraint has such a run.

    inside of a JSON string     abc|def  é  世 …      legal whatever stands behind the string: `Run.flags`
                                abc"  ",  \\n …        leave the run: only the tokens below these are followed, `Run.exits`
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.charset import Ranges, lead_of
from lmc.fsm.dfa import build
from lmc.fsm.regex import Chars, Repeat
from lmc.fsm.trie import Trie


@dataclass(frozen=True, eq=False)
class Run:
    """Texts of a class of characters, in one vocabulary.

    inside  bool [texts of the trie]: it is the beginning of such a text
    whole   bool [nodes] of the trie: the node's text is such a text
    starts  bool [256]: bytes that such a text begins with
    firsts  those aside of which tokens have characters that are not in the class
    begun   nodes that end inside of a character, of which one byte alone goes on
    exits   nodes at which a text leaves the class: the byte that does, or begins the character that may
    exit_bytes, exit_texts  of each exit: its byte, and the first text of the trie that begins with it, ascending
    long    of tokens that are not in the trie: (id, first byte, bytes within the class)
    """

    ranges: Ranges
    inside: np.ndarray
    whole: np.ndarray
    starts: np.ndarray
    firsts: np.ndarray
    begun: np.ndarray
    exits: np.ndarray
    exit_bytes: np.ndarray
    exit_texts: np.ndarray
    long: Sequence[tuple[int, int, int]]
    _entered: dict[Ranges, np.ndarray] = field(default_factory=dict[Ranges, np.ndarray])

    @staticmethod
    def of(ranges: Ranges, trie: Trie, nodes: np.ndarray, long: Iterable[tuple[int, bytes]]) -> Run:
        """nodes   of the texts of the trie"""
        dfa = ArrayDFA.of(build(Repeat(Chars(ranges), 0, None)))
        behind = trie.walk(dfa, 0)
        behind[0] = 0
        before = behind[trie.parent]
        left = behind < 0
        exits = left & (before == 0)
        lost = np.flatnonzero(left & (before > 0))  # inside a character: what begins it is the exit
        while len(lost):
            lost = trie.parent[lost]
            begins = behind[trie.parent[lost]] == 0
            exits[lost[begins]] = True
            lost = lost[~begins]
        starts = dfa.row(0) >= 0
        firsts = starts.copy()
        firsts[trie.byte[exits & ~left]] = False
        found = np.flatnonzero(exits)
        found = found[np.argsort(trie.begin[found], kind="stable")]
        begun = np.flatnonzero(behind > 0)
        begun = begun[dfa.singular[behind[begun]]]
        parts = [(i, text[0], _within(dfa, text)) for i, text in long]
        return Run(ranges, (behind >= 0)[nodes], behind == 0, starts, firsts, begun, found, trie.byte[found], trie.begin[found], parts)

    @property
    def nbytes(self) -> int:
        return self.inside.nbytes + self.whole.nbytes + 17 * len(self.exits) + 100 * len(self.long)

    def entered(self, ranges: Ranges) -> np.ndarray:
        """bool [256]: the first bytes of which all characters that are in one of `ranges` and the class are in both."""
        found = self._entered.get(ranges)
        if found is None:
            found = self.firsts.copy()
            for low, high in _differing(ranges, self.ranges):
                found[lead_of(low) : lead_of(high) + 1] = False
            self._entered[ranges] = found
        return found


def _within(dfa: ArrayDFA, text: bytes) -> int:
    """How many bytes of a text are whole characters of the class, up to the first that is not; -1 if all that there is of it is."""
    state, whole = 0, 0
    for at, byte in enumerate(text):
        if state == 0:
            whole = at
        state = dfa.step(state, bytes((byte,)))
        if state < 0:
            return whole
    return -1


def _differing(a: Ranges, b: Ranges) -> Iterable[tuple[int, int]]:
    """Ranges of characters that are in one of both only."""
    if a == b:
        return
    ends = sorted(end for low, high in (*a, *b) for end in (low, high + 1))  # each changes whether it is in exactly one
    for low, high in zip(ends[::2], ends[1::2]):
        if low < high:
            yield low, high - 1
