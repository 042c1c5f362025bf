"""Tokens within runs of one class of characters: found once for each class and vocabulary, whatever constraint has such a run.

    inside of a JSON string     abc|def  é  世 …      legal whatever stands behind the string: `Run.ids`
                                abc"  def"  "         one tail, `"`, which is followed once for all of them: `Run.tail`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.charset import Ranges, lead_of
from lmc.fsm.dfa import build
from lmc.fsm.regex import Chars, Repeat
from lmc.fsm.trie import Trie


class Tail:
    """A node of the trie of what is left of texts behind a run: the tokens that end here, and the nodes behind it by byte.

    depth   of the deepest node below it, where it is the root
    """

    __slots__ = ("depth", "ids", "ways")

    def __init__(self) -> None:
        self.depth = 0
        self.ids: list[int] = []
        self.ways: dict[int, Tail] = {}


@dataclass(frozen=True, eq=False)
class Texts:
    """The tokens of a vocabulary in the order of their texts, and the trie of these.

    tokens  the bytes of each id
    ids     int64 [texts]
    ends    int64 [nodes]: behind the last text that begins with that of a node
    at      the ids at some nodes
    flags   how many a row of flags has, by id
    """

    tokens: Sequence[bytes]
    trie: Trie
    ids: np.ndarray
    ends: np.ndarray
    at: Callable[[np.ndarray], np.ndarray]
    flags: int


@dataclass(frozen=True, eq=False)
class Run:
    """Texts of a class of characters behind a node of a vocabulary's trie.

    firsts  bool [256]: bytes that such a text begins with, aside of which no token below the node has a character that is not in the
            class. What follows is of tokens behind these alone
    flags   bool, by id: it is the beginning of such a text
    chars   uint8, by id: and has so many characters, or begins the last of them
    begun   ids of those that end inside of a character, of which one byte alone goes on
    leaving int64 [256]: how many leave the class behind some of it, by the byte that does, or begins the character that may
    long    of tokens that are not in the trie: (id, first byte, bytes within the class, characters within it)
    """

    ranges: Ranges
    texts: Texts
    firsts: np.ndarray
    flags: np.ndarray
    chars: np.ndarray
    begun: np.ndarray
    leaving: np.ndarray
    long: Sequence[tuple[int, int, int, int]]
    _exits: np.ndarray  # nodes at which tokens leave the class
    _before: np.ndarray  # of each, the characters within it
    _tails: dict[tuple[int, int | None], Tail] = field(default_factory=dict[tuple[int, "int | None"], Tail])
    _entered: dict[Ranges, np.ndarray] = field(default_factory=dict[Ranges, np.ndarray])

    @staticmethod
    def of(ranges: Ranges, texts: Texts, node: int, long: Iterable[tuple[int, bytes]]) -> Run:
        trie, dfa = texts.trie, ArrayDFA.of(build(Repeat(Chars(ranges), 0, None)))
        found = _below(dfa, trie, node)
        firsts = dfa.row(0) >= 0
        mixed = found.exits[firsts[trie.byte[found.exits]] & (trie.parent[found.exits] == node)]
        firsts[trie.byte[mixed]] = False
        clean = firsts[found.heads]
        inside, states = found.inside[clean], found.states[clean]
        left = firsts[found.exit_heads]
        exits = found.exits[left]
        leaving = np.bincount(trie.byte[exits], texts.ends[exits] - trie.begin[exits], 256).astype(np.int64)
        begun = inside[states > 0][dfa.singular[states[states > 0]]]
        parts = [(i, text[0], *_within(dfa, text)) for i, text in long]
        flags, chars = np.zeros(texts.flags, bool), np.zeros(texts.flags, np.uint8)
        for many in range(1, int(found.chars.max(initial=0)) + 1):
            ids = texts.at(inside[found.chars[clean] == many])
            flags[ids], chars[ids] = True, many
        return Run(ranges, texts, firsts, flags, chars, texts.at(begun), leaving, parts, exits, found.before[left])

    @property
    def nbytes(self) -> int:
        return 2 * self.flags.nbytes + self.begun.nbytes + self.leaving.nbytes + 2 * self._exits.nbytes + 100 * len(self.long)

    def tail(self, byte: int, chars: int | None = None) -> Tail:
        """What is left of the tokens that leave the class by a byte, from that byte on; of those alone that do behind so many characters."""
        found = self._tails.get((byte, chars))
        if found is None:
            found, trie = Tail(), self.texts.trie
            exits = self._exits[(trie.byte[self._exits] == byte) & (chars is None or self._before == chars)]
            for exit_ in exits.tolist():
                at = int(np.searchsorted(trie.level_ends, exit_, side="right")) - 1  # bytes before the exit's own
                for i in self.texts.ids[int(trie.begin[exit_]) : int(self.texts.ends[exit_])].tolist():
                    _add(found, self.texts.tokens[i], at, i)
            self._tails[byte, chars] = found
        return found

    def turns(self, byte: int) -> list[int]:
        """How many characters tokens have before they leave the class by a byte."""
        return np.flatnonzero(np.bincount(self._before[self.texts.trie.byte[self._exits] == byte])).tolist()

    def entered(self, ranges: Ranges) -> np.ndarray:
        """bool [256]: the first bytes of which all characters that are in one of `ranges` and the class are in both."""
        found = self._entered.get(ranges)
        if found is None:
            found = self.firsts.copy()
            for low, high in _differing(ranges, self.ranges):
                found[lead_of(low) : lead_of(high) + 1] = False
            self._entered[ranges] = found
        return found


class _Below(NamedTuple):
    """Nodes below one: those within a class, with the states behind them and how many characters they begin, and those at which a
    text leaves it or begins the character that may, with how many are before; of each, the byte right behind the upper node."""

    inside: np.ndarray
    states: np.ndarray
    chars: np.ndarray
    heads: np.ndarray
    exits: np.ndarray
    before: np.ndarray
    exit_heads: np.ndarray


def _below(dfa: ArrayDFA, trie: Trie, node: int) -> _Below:
    inside, exits = [np.zeros((4, 0), np.int64)], [np.zeros((3, 0), np.int64)]
    nodes, at, chars = np.array([node]), np.zeros(1, np.int64), np.zeros(1, np.int64)
    begins, heads = nodes, None  # of each node, the one at which its last character begins, and the first byte
    while total := int((counts := trie.count[nodes]).sum()):
        children = np.arange(total) + np.repeat(trie.first[nodes] - np.cumsum(counts) + counts, counts)
        text = trie.byte[children].astype(np.int64)
        before = np.repeat(at, counts)
        heads = text if heads is None else np.repeat(heads, counts)
        chars = np.repeat(chars, counts) + (before == 0)
        begins = np.where(before == 0, children, np.repeat(begins, counts))
        reached = dfa.following(before, text)
        legal = reached >= 0
        exits.append(np.stack([begins, chars - 1, heads])[:, ~legal])
        nodes, at, chars, begins, heads = children[legal], reached[legal], chars[legal], begins[legal], heads[legal]
        inside.append(np.stack([nodes, at, chars, heads]))
    found = np.concatenate(exits, axis=1)
    found = found[:, np.argsort(found[0], kind="stable")]
    once = np.append(True, found[0, 1:] != found[0, :-1])[: found.shape[1]]
    return _Below(*np.concatenate(inside, axis=1), *found[:, once])


def _add(tail: Tail, text: bytes, at: int, token: int) -> None:
    tail.depth = max(tail.depth, len(text) - at)
    for byte in text[at:]:
        tail = tail.ways.setdefault(byte, Tail())
    tail.ids.append(token)


def _within(dfa: ArrayDFA, text: bytes) -> tuple[int, int]:
    """How many bytes of a text are whole characters of the class, up to the first that is not; -1 if all that there is of it is. And
    how many characters these are."""
    state, whole, chars = 0, 0, 0
    for at, byte in enumerate(text):
        if state == 0:
            whole, chars = at, chars + 1
        state = dfa.step(state, bytes((byte,)))
        if state < 0:
            return whole, chars - 1
    return -1, chars


def _differing(a: Ranges, b: Ranges) -> Iterable[tuple[int, int]]:
    """Ranges of characters that are in one of both only."""
    if a == b:
        return
    ends = sorted(end for low, high in (*a, *b) for end in (low, high + 1))  # each changes whether it is in exactly one
    for low, high in zip(ends[::2], ends[1::2]):
        if low < high:
            yield low, high - 1
