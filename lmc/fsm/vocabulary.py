"""A tokenizer's vocabulary as a trie in arrays, walked through an automaton level by level."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from lmc.fsm.dfa import DEAD, ByteDFA

LONG = 16  # bytes; the few tokens above it are stepped one by one, so that the trie stays flat


class Vocabulary:
    """The bytes of each token, and which tokens can be part of a text. Immutable; one for all constraints.

    tokens   the bytes of each id; b"" for an id that stands for no text. Those of `special` and `eos` are blanked here
    eos      ids that end an answer
    special  ids that no text contains, whatever their bytes spell
    size     number of logits, at least len(tokens); ids beyond the vocabulary are never allowed

    The trie's nodes are in breadth-first order; node 0 is the root, the children of a node are neighbours.
    """

    def __init__(
        self, tokens: Sequence[bytes], eos: Iterable[int], special: Iterable[int] = (), size: int | None = None
    ) -> None:
        self.eos = tuple(sorted(set(eos)))
        closed = {*special, *self.eos}
        self.tokens = tuple(b"" if i in closed else text for i, text in enumerate(tokens))
        self.size = max(len(self.tokens), max(self.eos, default=-1) + 1) if size is None else size
        if self.size < len(self.tokens) or any(i >= self.size for i in self.eos):
            raise ValueError(
                f"a vocabulary of {len(self.tokens)} tokens and EOS {self.eos} does not fit {self.size} logits"
            )
        usable = [i for i, text in enumerate(self.tokens) if text]
        self.longest = max((len(self.tokens[i]) for i in usable), default=0)
        self.long_ids = tuple(i for i in usable if len(self.tokens[i]) > LONG)
        self._long_heads = frozenset(self.tokens[i][:n] for i in self.long_ids for n in range(len(self.tokens[i])))
        self._build([i for i in usable if len(self.tokens[i]) <= LONG])

    @property
    def words(self) -> int:
        """Length of a mask row: 32 tokens a word."""
        return (self.size + 31) // 32

    def text(self, ids: Iterable[int]) -> bytes:
        return b"".join([self.tokens[i] for i in ids])

    @cached_property
    def alphabet(self) -> np.ndarray:
        """bool [256]: bytes that occur in some token."""
        found = np.zeros(256, bool)
        found[list(set(b"".join(self.tokens)))] = True
        return found

    @cached_property
    def joins(self) -> bytes:
        """65536 flags: entry `a << 8 | b` is 1 if some token has byte b right behind byte a. Only there can a token reach
        over the border between two texts."""
        text = np.frombuffer(b"".join(self.tokens), np.uint8).astype(np.int64)
        lengths = np.array([len(text) for text in self.tokens if text], np.int64)
        within = np.ones(len(text), bool)
        within[np.cumsum(lengths) - 1] = False  # the last byte of a token has the next one's behind it
        found = np.zeros(1 << 16, np.uint8)
        found[(text[:-1] << 8 | text[1:])[within[:-1]]] = 1
        return found.tobytes()

    @cached_property
    def digest(self) -> str:
        """Equal for vocabularies whose automata are equal."""
        found = hashlib.blake2b(f"{self.size} {self.eos}".encode(), digest_size=16)
        found.update(np.array([len(text) for text in self.tokens], np.uint32).data)
        found.update(b"".join(self.tokens))
        return found.hexdigest()

    @cached_property
    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """For a device that steps tokens: (uint8 [size, longest], int32 [size]), the bytes of each id and how many."""
        table, lengths = np.zeros((self.size, self.longest), np.uint8), np.zeros(self.size, np.int32)
        for i, text in enumerate(self.tokens):
            table[i, : len(text)] = np.frombuffer(text, np.uint8)
            lengths[i] = len(text)
        return table, lengths

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self._byte, self._first, self._count, self._parent, self._ids, self._node_of_id))

    def _build(self, ids: list[int]) -> None:
        ids.sort(key=self.tokens.__getitem__)
        lengths = np.array([len(self.tokens[i]) for i in ids], np.int64)
        depth = int(lengths.max(initial=0))
        text = np.frombuffer(b"".join(self.tokens[i].ljust(depth, b"\0") for i in ids), np.uint8).reshape(
            -1, depth or 1
        )
        differs = text[1:] != text[:-1]
        # bytes shared with the token before; padding needs no care, for a node is only made within its token
        shared = np.where(differs.any(axis=1), differs.argmax(axis=1), depth)
        shared = np.append(0, np.minimum(shared, np.minimum(lengths[1:], lengths[:-1]))) if len(ids) else lengths
        byte, parent, nodes = [np.zeros(1, np.uint8)], [np.zeros(1, np.int64)], 1
        node_of = np.zeros(len(ids), np.int64)  # of each token, at the depth reached so far
        for level in range(depth):
            reach = lengths > level
            new = reach & (shared <= level)
            byte.append(text[new, level])
            parent.append(node_of[new])
            at = np.cumsum(new) - 1 + nodes
            node_of[reach] = at[reach]
            nodes += int(new.sum())
        parents = np.concatenate(parent)[1:]
        self._levels_end = np.cumsum([len(level) for level in byte])
        self._parent = np.append(0, parents)
        self._byte = np.concatenate(byte)
        self._count = np.bincount(parents, minlength=nodes).astype(np.int64)
        self._first = np.append(1, 1 + np.cumsum(self._count)[:-1])
        self._ids = np.array(ids, np.int64)
        self._node_of_id = node_of

    def reach(self, dfa: ByteDFA, state: int, after: bytes = b"") -> tuple[np.ndarray, np.ndarray]:
        """Tokens that begin with `after` and whose rest, not empty, is legal from `state`: (ids, states behind them)."""
        short = self.reach_short(dfa, state, after)
        if after not in self._long_heads:
            return short
        long = [
            (i, end)
            for i in self.long_ids
            if self.tokens[i].startswith(after) and (end := dfa.step(state, self.tokens[i][len(after) :])) >= 0
        ]
        if not long:
            return short
        ids, ends = np.array(long).T
        return np.concatenate([short[0], ids]), np.concatenate([short[1], ends.astype(np.int32)])

    def reach_short(self, dfa: ByteDFA, state: int, after: bytes = b"") -> tuple[np.ndarray, np.ndarray]:
        """`reach`, of the tokens up to LONG bytes."""
        node = self._find(after)
        if node is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int32)
        behind = np.full(len(self._byte), DEAD, np.int32)
        if node == 0:
            self._walk_wide(dfa, state, behind)
        else:
            self._walk(dfa, np.array([node]), np.array([state], np.int32), behind)
        of_token = behind[self._node_of_id]
        legal = np.flatnonzero(of_token >= 0)
        return self._ids[legal], of_token[legal]

    def _find(self, text: bytes) -> int | None:
        node = 0
        for byte in text:
            first = int(self._first[node])
            children = self._byte[first : first + int(self._count[node])]
            at = int(np.searchsorted(children, byte))
            if at == len(children) or children[at] != byte:
                return None
            node = first + at
        return node

    def _walk(self, dfa: ByteDFA, nodes: np.ndarray, states: np.ndarray, behind: np.ndarray) -> None:
        """Writes the state behind every legal node below `nodes`: looks at the children of legal nodes only."""
        while total := int((counts := self._count[nodes]).sum()):
            children = np.arange(total) + np.repeat(self._first[nodes] - np.cumsum(counts) + counts, counts)
            reached = dfa.table[np.repeat(states, counts), self._byte[children]]
            legal = reached >= 0
            nodes, states = children[legal], reached[legal]
            behind[nodes] = states

    def _walk_wide(self, dfa: ByteDFA, state: int, behind: np.ndarray) -> None:
        """`_walk` from the root: whole levels at once as long as much of them is legal."""
        flat = dfa.flat
        behind[0] = state
        begin = 1
        for end in self._levels_end[1:].tolist():
            # DEAD as a parent reads from the row at the end, which is dead throughout
            index = behind[self._parent[begin:end]].astype(np.int64) << 8
            index |= self._byte[begin:end]
            level = behind[begin:end] = flat[index]
            nodes = np.flatnonzero(level >= 0)
            if len(nodes) * 4 < len(level):
                self._walk(dfa, nodes + begin, level[nodes], behind)
                break
            begin = end
        behind[0] = DEAD
