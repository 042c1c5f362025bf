"""A tokenizer's vocabulary: the bytes of its tokens, and which of them an automaton allows."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lmc.fsm.arrays import Arrays
from lmc.fsm.bytedfa import LONG
from lmc.fsm.charset import Ranges, lead_of
from lmc.fsm.lazy import Loop
from lmc.fsm.runs import Run
from lmc.fsm.trie import Trie

_MOST_RUNS = 64  # classes of characters
_MOST_ONE_BY_ONE = 400  # nodes of a trie
_byte = np.arange(256)
_begins_words = np.isin(_byte, list(b" \t")) | np.isin(_byte | 0x20, list(b"abcdefghijklmnopqrstuvwxyz"))  # behind anything
_ends_words = np.isin(_byte, list(b"0123456789")) | np.isin(_byte | 0x20, list(b"abcdefghijklmnopqrstuvwxyz"))


class Vocabulary:
    """The bytes of each token, and which tokens can be part of a text. Immutable; one for all constraints.

    tokens   the bytes of each id; b"" for an id that stands for no text. Those of `special` and `eos` are blanked here
    eos      ids that end an answer
    special  ids that no text contains, whatever their bytes spell
    size     number of logits, at least len(tokens); ids beyond the vocabulary are never allowed

    Tokens of up to LONG bytes are in a trie; the few above it are stepped one by one, so that the trie stays flat.
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
        ids = sorted((i for i in usable if len(self.tokens[i]) <= LONG), key=self.tokens.__getitem__)
        self._ids = np.array(ids, np.int64)
        self.trie, self._node_of_id = Trie.of([self.tokens[i] for i in ids])
        self._runs: dict[Ranges, Run] = {}
        self._long = _edges(sorted((self.tokens[i], i) for i in self.long_ids), 0)

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

    def spells_some(self, ranges: Ranges) -> bool:
        """Whether tokens have the bytes of some character of a class."""
        return any(self.alphabet[lead_of(low) : lead_of(high) + 1].any() for low, high in ranges) and bool(self.alphabet[0x80:0xC0].all())

    @cached_property
    def joins(self) -> bytes:
        """65536 flags: entry `a << 8 | b` is 1 if some token has byte b right behind byte a, or a tokenizer may cut what begins with
        b otherwise behind a. Elsewhere two texts are cut as each by itself: no token reaches over the border, and tokenizers that cut
        words first begin one at a letter or space behind anything but `'`, and at anything behind a letter or digit; but in `—'s` the `'`
        is the dash's, in `—"id` the `"`, in `٣123` the `12`, and in `'set` the `s` the apostrophe's."""
        text = np.frombuffer(b"".join(self.tokens), np.uint8).astype(np.int64)
        lengths = np.array([len(text) for text in self.tokens if text], np.int64)
        within = np.ones(len(text), bool)
        within[np.cumsum(lengths) - 1] = False  # the last byte of a token has the next one's behind it
        found = np.zeros(1 << 16, np.uint8)
        found[(text[:-1] << 8 | text[1:])[within[:-1]]] = 1
        found.reshape(256, 256)[np.ix_(~_ends_words, ~_begins_words)] = 1
        found.reshape(256, 256)[ord("'")] = 1
        return found.tobytes()

    def has_inside(self, text: bytes) -> bool:
        """Whether some token has `text`, which is UTF-8, behind its first byte: could reach over the whole of it from before."""
        at = self._joined.find(text, 1)
        while at > 0 and self._joined[at - 1] == 0xFF:
            at = self._joined.find(text, at + 1)
        return at > 0

    @cached_property
    def _joined(self) -> bytes:
        return b"\xff".join(self.tokens)  # a byte that UTF-8 does not have

    @cached_property
    def digest(self) -> str:
        """Equal for vocabularies whose automata are equal."""
        found = hashlib.blake2b(f"{self.size} {self.eos}".encode(), digest_size=16)
        found.update(np.array([len(text) for text in self.tokens], np.uint32).data)
        found.update(b"".join(self.tokens))
        return found.hexdigest()

    @property
    def spelled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For a device that steps tokens: (uint8, int32 [size], int32 [size]), the bytes of all ids one after another, where those
        of each begin, and how many they are."""
        lengths = np.zeros(self.size, np.int32)
        lengths[: len(self.tokens)] = [len(text) for text in self.tokens]
        begins = np.append(0, np.cumsum(lengths)[:-1]).astype(np.int32)
        return np.frombuffer(b"".join(self.tokens) or b"\0", np.uint8), begins, lengths

    @property
    def nbytes(self) -> int:
        runs = sum(run.nbytes for run in list(self._runs.values()))
        return self.trie.nbytes + self._ids.nbytes + self._node_of_id.nbytes + self._nodes.nbytes + runs

    @cached_property
    def _nodes(self) -> np.ndarray:
        """int64 [words * 32]: the trie's node of each id; the root for ids that are not in it."""
        nodes = np.zeros(self.words * 32, np.int64)
        nodes[self._ids] = self._node_of_id
        return nodes

    def walked(self, dfa: Arrays, state: int) -> Walked:
        """The tokens of up to LONG bytes that are legal from `state`."""
        found = _Found(self, dfa)
        todo = [(0, state)]
        while todo:
            node, at = todo.pop()
            if dfa.few(at) is not None:
                todo += found.few(node, at)
            elif (loop := dfa.loop(at)) is not None and (run := self.run(loop.again)).whole[node]:
                todo += found.run(node, at, loop, run)
            else:
                found.below.append((node, at))
        return found.walked(None if dfa.few(state) is not None else dfa.loop(state))

    def run(self, ranges: Ranges) -> Run:
        """Found once for each class of characters."""
        found = self._runs.get(ranges)
        if found is None:
            if len(self._runs) >= _MOST_RUNS:
                self._runs.clear()
            found = self._runs[ranges] = Run.of(ranges, self.trie, self._node_of_id, [(i, self.tokens[i]) for i in self.long_ids])
        return found

    @property
    def short_ids(self) -> np.ndarray:
        """The tokens of the trie, in the order of its texts."""
        return self._ids

    @cached_property
    def ends(self) -> np.ndarray:
        """int64 [nodes]: behind the last text of the trie that begins with that of a node."""
        trie = self.trie
        texts = np.bincount(self._node_of_id, minlength=len(trie.byte))
        for begin, end in reversed(list(itertools.pairwise(trie.level_ends))):
            texts += np.bincount(trie.parent[begin:end], texts[begin:end], len(texts)).astype(np.int64)
        return trie.begin + texts

    def flags(self, behind: np.ndarray) -> np.ndarray:
        """bool [words * 32]: the tokens of up to LONG bytes whose node in `behind`, of the trie, is legal."""
        return (behind >= 0)[self._nodes]

    def long_allowed(self, dfa: Arrays, state: int) -> list[int]:
        """The tokens above LONG bytes that are legal from `state`."""
        if not self._long:
            return []
        found: list[int] = []
        if (few := dfa.few(state)) is not None:
            legal = {byte for byte, _ in few}
            todo = [(state, edge) for edge in self._long if edge.text[0] in legal]
        elif (loop := dfa.loop(state := dfa.far(state, self.longest))) is not None:
            run = self.run(loop.again)
            within = run.entered(loop.entered)
            for i, first, until in run.long:
                if within[first] and (until < 0 or dfa.step(loop.state if until else state, self.tokens[i][until:]) >= 0):
                    found.append(i)
            todo = [(state, edge) for edge in self._long if not within[edge.text[0]]]
        else:
            todo = [(state, edge) for edge in self._long]
        while todo:
            at, (text, ids, edges) = todo.pop()
            if (end := dfa.step(at, text)) >= 0:
                found += ids
                todo += [(end, edge) for edge in edges]
        return sorted(found)

    def reach(self, dfa: Arrays, state: int, after: bytes = b"") -> tuple[np.ndarray, np.ndarray]:
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

    def reach_short(self, dfa: Arrays, state: int, after: bytes = b"") -> tuple[np.ndarray, np.ndarray]:
        """`reach`, of the tokens up to LONG bytes."""
        node = self.trie.find(after)
        if node is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int32)
        if not node:
            of_token = self.trie.walk(dfa, state)[self._node_of_id]
            legal = np.flatnonzero(of_token >= 0)
            return self._ids[legal], of_token[legal]
        return self.held(*self.trie.below(dfa, node, state))

    def held(self, nodes: np.ndarray, states: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of nodes of the trie, and of each the state of its node."""
        begins, ends = self._held.take(nodes), self._held.take(nodes + 1)  # tokens of equal bytes share a node
        counts = ends - begins
        at = np.arange(counts.sum()) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        return self._ids_by_node[at], np.repeat(np.broadcast_to(states, counts.shape), counts)

    @cached_property
    def _ids_by_node(self) -> np.ndarray:
        return self._ids[np.argsort(self._node_of_id, kind="stable")]

    @cached_property
    def _held(self) -> np.ndarray:
        """int64 [nodes + 1]: where the ids of each node begin in `_ids_by_node`."""
        return np.append(0, np.cumsum(np.bincount(self._node_of_id, minlength=len(self.trie.byte))))


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """The tokens of up to LONG bytes that are legal from a state.

    flags   bool [words * 32]
    nodes   of the trie that are legal, without those within the run of `loop`
    states  behind each of them
    """

    flags: np.ndarray
    nodes: np.ndarray
    states: np.ndarray
    loop: Loop | None = None


class _Found:
    """What `Vocabulary.walked` comes upon.

    inside  bool [texts of the trie]: those within runs
    legal   nodes, and the states behind them
    below   nodes, with their states, below which nothing was looked at
    """

    def __init__(self, vocabulary: Vocabulary, dfa: Arrays) -> None:
        self.vocabulary, self.trie, self.dfa = vocabulary, vocabulary.trie, dfa
        self.inside: np.ndarray | None = None
        self.legal: list[tuple[int, int]] = []
        self.below: list[tuple[int, int]] = []
        self.exits: list[tuple[np.ndarray, np.ndarray]] = []

    def few(self, node: int, state: int) -> list[tuple[int, int]]:
        """The legal nodes below a node, one by one."""
        if len(self.legal) > _MOST_ONE_BY_ONE:
            self.below.append((node, state))
            return []
        found = [(child, to) for byte, to in self.dfa.few(state) or () if (child := self.trie.child(node, byte)) >= 0]
        self.legal += found
        return found

    def run(self, node: int, state: int, loop: Loop, run: Run) -> list[tuple[int, int]]:
        """What is below a node whose state leads into a run; the legal nodes right below it that are not within the run."""
        trie, ends = self.trie, self.vocabulary.ends
        begin, end = trie.children(node)
        if begin == end:
            return []
        if self.inside is None:
            self.inside = np.zeros(len(run.inside), bool)
        first, last = int(trie.begin[begin]), int(ends[node])
        self.inside[first:last] = run.inside[first:last]
        row, again, within = self.dfa.row(state), self.dfa.row(loop.state), run.entered(loop.entered)
        low, high = run.exit_texts.searchsorted((first, last)).tolist()
        exits, bytes_ = run.exits[low:high], run.exit_bytes[low:high]
        leaves = (again[bytes_] >= 0) & ((exits < begin) | (exits >= end))  # children are not within the run from here on
        heads = trie.byte[begin:end]
        for child in (begin + np.flatnonzero(run.starts[heads] & ~within[heads])).tolist():
            a, b = int(trie.begin[child]), int(ends[child])
            self.inside[a:b] = False
            x, y = run.exit_texts.searchsorted((a, b)).tolist()
            leaves[x - low : y - low] = False
        self.exits.append((exits[leaves], again[bytes_[leaves]].astype(np.int64)))
        beside = np.flatnonzero((row[heads] >= 0) & ~within[heads])
        found = list(zip((begin + beside).tolist(), row[heads[beside]].tolist()))
        self.legal += found
        return found

    def walked(self, loop: Loop | None) -> Walked:
        """All of it, `below` looked at."""
        parts = [_pairs(self.legal), *self.exits]
        begin = [_pairs(self.below), *self.exits]
        parts.append(self.trie.from_all(self.dfa, *map(np.concatenate, zip(*begin))))
        nodes, states = map(np.concatenate, zip(*parts))
        flags = np.zeros(self.vocabulary.words * 32, bool)
        if self.inside is not None:
            flags[self.vocabulary.short_ids] = self.inside
        flags[self.vocabulary.held(nodes, 0)[0]] = True
        return Walked(flags, nodes, states, loop)


def _pairs(pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


class _Edge(NamedTuple):
    """Of a trie without nodes of one way: the bytes to the next node, the ids that end there, and the edges from it."""

    text: bytes
    ids: tuple[int, ...]
    edges: tuple[_Edge, ...]


def _edges(tokens: Sequence[tuple[bytes, int]], at: int) -> tuple[_Edge, ...]:
    """Of ascending tokens that have their first `at` bytes in common, all of them longer."""
    out: list[_Edge] = []
    for _, same in itertools.groupby(tokens, key=lambda token: token[0][at]):
        group = list(same)
        first, last = group[0][0], group[-1][0]
        end = next((n for n, (a, b) in enumerate(zip(first, last)) if a != b), len(first))
        ends = tuple(i for text, i in group if len(text) == end)
        out.append(_Edge(first[at:end], ends, _edges([t for t in group if len(t[0]) > end], end)))
    return tuple(out)
