"""The tokens of a vocabulary within JSON strings that may be any, escapes included: found once for all constraints, so that no state
within such a string is made.

    {"name": "│     abc  é  \\n  \\u00      legal whatever follows the string: `StringRun.bits`
                    abc", "  "}            legal if what is behind the quote is, which is looked at once for all of them: `StringRun.tail`
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.dfa import build
from lmc.fsm.json_text import WITHIN_STRING, optional, seq, text
from lmc.fsm.runs import Long, Tail, Texts, bits_of, packed, tail_of

_QUOTE = ord('"')
_UP_TO_QUOTE = re.compile(rb'(?:[^"\\]|\\.)*', re.DOTALL)


@lru_cache(1)
def _automaton() -> tuple[ArrayDFA, int]:
    """Of what is between the quotes and the second one, and the state behind that; state 0 is between two characters, as no other is."""
    found = ArrayDFA.of(build(seq(WITHIN_STRING, optional(text('"')))))
    return found, found.after(0, _QUOTE)


@dataclass(frozen=True, eq=False)
class StringRun:
    """Tokens below a node of a vocabulary's trie, from where the string is between two of its characters.

    bits     of those that do not leave the string, as a row
    begun    ids of these behind which only one byte is legal
    long     of tokens that are not in the trie, if the node is the root
    """

    bits: np.ndarray
    begun: np.ndarray
    long: Long
    _texts: Texts
    _exits: np.ndarray  # nodes of the trie, each behind a quote

    @staticmethod
    def of(texts: Texts, node: int = 0) -> StringRun:
        dfa, behind = _automaton()
        nodes, states = texts.trie.below(dfa, node, 0)
        begin, end = int(texts.trie.begin[node]), int(texts.ends[node])
        within = nodes[states != behind]
        held, ids = texts.nodes[begin:end], texts.ids[begin:end]
        at = np.searchsorted(within, held)
        kept = np.append(within, -1)[at] == held
        flags = np.zeros(len(texts.node_of), bool)
        flags[ids[kept]] = True
        begun = ids[kept][dfa.are_singular(states[states != behind][at[kept]])]
        return StringRun(packed(flags), begun, Long() if node else _long(dfa, texts), texts, nodes[states == behind])

    @cached_property
    def tail(self) -> Tail:
        """The rest of the tokens that leave the string, from its quote on."""
        return tail_of(self._texts, self._exits)

    @cached_property
    def long_bits(self) -> np.ndarray:
        """The tokens of `long.inside`."""
        return bits_of(self.long.inside, len(self.bits))

    @property
    def nbytes(self) -> int:
        return 2 * self.bits.nbytes + self.begun.nbytes + self._exits.nbytes + 100 * len(self.long.leaving)


def _long(dfa: ArrayDFA, texts: Texts) -> Long:
    inside, leaving = list[int](), list[tuple[int, int, int, int]]()
    for i in texts.long:
        token = texts.tokens[i]
        match = _UP_TO_QUOTE.match(token)
        assert match is not None
        if token[match.end() : match.end() + 1] == b'"' and dfa.step(0, match[0]) == 0:
            leaving.append((i, token[0], match.end(), 0))
        elif dfa.step(0, token) >= 0:
            inside.append(i)
    return Long(np.array(inside, np.int64), leaving=leaving)
