"""The tokens of a vocabulary within JSON strings of any characters, escapes included: found once for all constraints, so that no state
within such a string is made.

    {"name": "│     abc  é  \\n  \\u00      legal whatever follows the string: `StringRun.up_to`
                    abc", "  "}            legal if what is behind the quote is, which is looked at once for all of them: `StringRun.tail`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.bytedfa import LONG
from lmc.fsm.dfa import build
from lmc.fsm.json_text import WITHIN_STRINGS
from lmc.fsm.nodes import optional, seq, text
from lmc.fsm.runs import Long, Tail, Texts, bits_of, tail_of
from lmc.fsm.trie import ByteTrie

_QUOTE = ord('"')


@dataclass(frozen=True, eq=False)
class StringRun:
    """Tokens below a node of a vocabulary's trie, from where a string is between two of its characters.

    bits     of those that do not leave the string, as a row; ids: the same; chars: of each the characters, a last one that is only begun
             included
    whole    bool, of each: no character is only begun; begun: ids of those behind which only one byte is legal
    long     of tokens that are not in the trie, if the node is the root
    """

    bits: np.ndarray
    ids: np.ndarray
    chars: np.ndarray
    whole: np.ndarray
    begun: np.ndarray
    long: Long | None
    _texts: Texts
    _exits: np.ndarray  # nodes of the trie, each behind a quote
    _before: np.ndarray  # of each, the characters before the quote
    _held: np.ndarray  # of each of `ids`, its place among the texts
    _single: np.ndarray  # bool, of each: only one byte is legal behind it
    _short: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])  # `bits` by the most characters
    _tails: dict[tuple[int, int], Tail] = field(default_factory=dict[tuple[int, int], Tail])

    @staticmethod
    def of(kind: int, texts: Texts, node: int = 0) -> StringRun:
        """kind   of `json_text.WITHIN_STRINGS`"""
        dfa, behind = _automaton(kind)
        nodes, states, chars = _followed(kind, texts.trie, node)
        within, left = np.flatnonzero(states != behind), np.flatnonzero(states == behind)
        begin, end = int(texts.trie.begin[node]), int(texts.trie.ends[node])
        held = texts.nodes[begin:end]
        at = np.searchsorted(nodes[within], held)
        kept = np.append(nodes[within], -1)[at] == held
        at = within[at[kept]]
        long = None if node else _long(kind, texts)
        return StringRun._made(
            texts, begin + np.flatnonzero(kept), chars[at], states[at] == 0, dfa.are_singular(states[at]), long, nodes[left], chars[left] - 1
        )

    @staticmethod
    def _made(
        texts: Texts, held: np.ndarray, chars: np.ndarray, whole: np.ndarray, single: np.ndarray, long: Long | None, exits: np.ndarray, before: np.ndarray
    ) -> StringRun:
        ids = texts.ids[held]
        return StringRun(bits_of(ids, texts.words), ids, chars, whole, ids[single], long, texts, exits, before, held, single)

    def below(self, node: int) -> StringRun:
        """Of a run from the root, return that from a node whose text is whole characters, written as they are."""
        texts, trie = self._texts, self._texts.trie
        begin, end = int(trie.begin[node]), int(texts.trie.ends[node])
        first, last = np.searchsorted(self._held, (begin, end)).tolist()
        at = slice(first + np.count_nonzero(texts.nodes[self._held[first:last]] == node), last)  # tokens that end there come first
        behind, begins = int(texts.spelling.chars[node]), trie.begin[self._exits]
        left = (begins >= begin) & (begins < end) & (self._exits > node)
        return self._made(
            texts, self._held[at], self.chars[at] - behind, self.whole[at], self._single[at], None, self._exits[left], self._before[left] - behind
        )

    def up_to(self, chars: int) -> np.ndarray:
        """Return `bits`, of tokens of at most so many characters; not to be written to."""
        if chars >= LONG:  # which have no more
            return self.bits
        found = self._short.get(chars)
        if found is None:
            found = self._short[chars] = bits_of(self.ids[self.chars <= chars], len(self.bits))
        return found

    def in_string(self, low: int, high: int) -> Iterable[Tail]:
        """Return the rest of the tokens that leave the string, behind its quote, which is behind `low` to `high` characters."""
        low, high = min(low, LONG), min(high, LONG)
        found = self._tails.get((low, high))
        if found is None:
            found = self._tails[low, high] = tail_of(self._texts, self._exits[(self._before >= low) & (self._before <= high)])
        return found.ways.values()

    @property
    def nbytes(self) -> int:
        return (2 + len(self._short)) * self.bits.nbytes + 26 * len(self.ids) + 16 * len(self._exits) + 100 * (len(self.long.leaving) if self.long else 0)


@lru_cache
def _automaton(kind: int) -> tuple[ArrayDFA, int]:
    """Of what is between the quotes and the second one, and the state behind that; state 0 is between two characters, as no other is."""
    found = ArrayDFA.of(build(seq(WITHIN_STRINGS[kind], optional(text('"')))))
    return found, found.after(0, _QUOTE)


def _followed(kind: int, trie: ByteTrie, node: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the legal nodes below one, ascending, with their states and characters; a quote counts as one."""
    found = [(np.zeros(0, np.int64),) * 3]
    above, behind, count = np.array([node]), np.zeros(1, np.int64), np.zeros(1, np.int64)
    for nodes, states in trie.follow(_automaton(kind)[0], above, behind):
        parent = np.searchsorted(above, trie.parent[nodes])
        count = count[parent] + (behind[parent] == 0)
        above, behind = nodes, states
        found.append((nodes, states, count))
    nodes, states, chars = (np.concatenate(parts) for parts in zip(*found))
    return nodes, states, chars


def _long(kind: int, texts: Texts) -> Long:
    _, trie = texts.long_trie
    nodes, states, chars = _followed(kind, trie, 0)
    left = states == _automaton(kind)[1]
    inside, of_nodes = np.zeros(len(trie.byte), bool), np.zeros(len(trie.byte), np.int64)
    inside[nodes], of_nodes[nodes] = ~left, chars
    return Long.between(texts, inside, of_nodes, nodes[left], nodes[left], np.ones(256, bool))
