"""Tokens within runs of one class of characters: computed once for each class and vocabulary, for all constraints with
such a run.

    inside of a JSON string     abc|def  é  世 …      legal whatever follows the string: `Run.ids`
                                abc"  def"  "         one tail, `"`, which is walked once for all of them: `Run.tail`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from lmc.fsm.arrays import distinct
from lmc.fsm.bytedfa import LONG
from lmc.fsm.charset import MAX_CHAR, Ranges
from lmc.fsm.trie import ByteTrie

_QUOTE = ord('"')
_FEW = 64  # tokens: sooner set one by one
MEDIUM = 2 * LONG  # bytes: few tokens have more


def packed(flags: np.ndarray) -> np.ndarray:
    """Return bool [words * 32], by id, as bits: uint32 [words], token i is bit i % 32 of word i // 32."""
    return np.packbits(flags, bitorder="little").view("<u4")


def bits_of(ids: Collection[int] | np.ndarray, words: int) -> np.ndarray:
    """Return the bits of tokens."""
    if len(ids) <= _FEW:
        bits = bytearray(4 * words)
        for i in ids.tolist() if isinstance(ids, np.ndarray) else ids:
            bits[i >> 3] |= 1 << (i & 7)
        return np.frombuffer(bits, "<u4")
    flags = np.zeros(words * 32, bool)
    flags[ids if isinstance(ids, np.ndarray) else list(ids)] = True
    return packed(flags)


_MOST_CLASSES = 64
_BEGUN = -1  # instead of a byte


class Tail:
    """A node of the trie of the rests of texts after a run: the tokens that end here, and its children by byte.

    depth   of the deepest node below it, if it is the root
    """

    __slots__ = ("depth", "ids", "ways")

    def __init__(self) -> None:
        self.depth = 0
        self.ids: list[int] = []
        self.ways: dict[int, Tail] = {}


@dataclass(frozen=True, eq=False)
class Texts:
    """The tokens of a vocabulary in the order of their texts, and the trie of these.

    tokens   the bytes of each id
    ids      int64 [texts]
    node_of  int64 [flags]: the node of each id, the root for one that is not in the trie
    long     ids of the tokens that are not in the trie
    longs    what is known of `long_in`
    """

    tokens: Sequence[bytes]
    trie: ByteTrie
    ids: np.ndarray
    node_of: np.ndarray
    long: Sequence[int]
    _members: dict[Ranges, Members] = field(default_factory=dict[Ranges, "Members"])
    longs: dict[Ranges, Long] = field(default_factory=dict[Ranges, "Long"])

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling.of(self.trie)

    @cached_property
    def nodes(self) -> np.ndarray:
        """The node of each text."""
        return self.node_of[self.ids]

    @cached_property
    def counts(self) -> np.ndarray:
        """The characters of each text, a last one that is only begun included."""
        return self.spelling.chars[self.nodes]

    @cached_property
    def begun(self) -> np.ndarray:
        """The texts that end inside of a character, ascending."""
        return np.flatnonzero((self.spelling.missing > 0)[self.spelling.symbol[self.nodes]])

    @property
    def words(self) -> int:
        """Return the length of a row."""
        return len(self.node_of) // 32

    def members(self, ranges: Ranges) -> Members:
        """Return which characters are in a class, found once."""
        return _kept(self._members, ranges, lambda: Members.of(ranges, self.spelling))

    def long_in(self, ranges: Ranges) -> Long:
        """Return the tokens of `long` as to a class, found once."""
        return _kept(self.longs, ranges, lambda: Long.of(ranges, self))

    @cached_property
    def long_ids(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of `long`, and the first byte of each."""
        return np.array(self.long), np.array([self.tokens[i][0] for i in self.long], np.uint8)

    @cached_property
    def long_trie(self) -> tuple[np.ndarray, ByteTrie]:
        """The tokens of `long` in the order of their texts, and the trie of these."""
        return self._trie_of(self.long)

    @cached_property
    def medium_trie(self) -> tuple[np.ndarray, ByteTrie]:
        """As `long_trie`, of tokens of up to MEDIUM bytes."""
        return self._trie_of([i for i in self.long if len(self.tokens[i]) <= MEDIUM])

    @cached_property
    def quoted_trie(self) -> tuple[np.ndarray, ByteTrie]:
        """As `long_trie`, of the other tokens that have a quote."""
        return self._trie_of([i for i in self.ids.tolist() if b'"' in self.tokens[i]])

    def _trie_of(self, ids: Iterable[int]) -> tuple[np.ndarray, ByteTrie]:
        ids = sorted(ids, key=self.tokens.__getitem__)
        return np.array(ids, np.int64), ByteTrie.of([self.tokens[i] for i in ids])

    @cached_property
    def long_spelling(self) -> Spelling:
        return Spelling.of(self.long_trie[1])


_Found = TypeVar("_Found")


def _kept(known: dict[Ranges, _Found], ranges: Ranges, find: Callable[[], _Found]) -> _Found:
    found = known.get(ranges)
    if found is None:
        if len(known) >= _MOST_CLASSES:
            known.clear()
        found = known[ranges] = find()
    return found


class Begun(NamedTuple):
    """Characters as far as their bytes are there: int64 [bytes that stand side by side].

    size, missing  how many bytes follow the first one, and how many of these are not there yet
    code           the bits so far
    first, last    the characters that it may be; none where the first is greater: of bytes that are not UTF-8
    """

    size: np.ndarray
    missing: np.ndarray
    code: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @staticmethod
    def none(count: int) -> Begun:
        return Begun(*np.zeros((5, count), np.int64))

    def take(self, at: np.ndarray) -> Begun:
        return Begun(*(part[at] for part in self))

    def behind(self, byte: np.ndarray) -> tuple[Begun, np.ndarray, np.ndarray]:
        """With one more byte each; where that begins a character, and where it does so within another one, so that both are none."""
        goes_on = (self.missing > 0) & (byte & 0xC0 == 0x80)
        follow = _FOLLOWING[byte]
        size = np.where(goes_on, self.size, np.maximum(follow, 0))
        missing = np.where(goes_on, self.missing - 1, size)
        code = np.where(goes_on, self.code << 6 | byte & 0x3F, byte & _PAYLOAD[byte])
        broken = ~goes_on & (self.missing > 0)
        none = broken | (~goes_on & (follow < 0))
        first = np.where(none, 1, np.maximum(code << 6 * missing, _LEAST[size]))
        last = np.where(none, 0, np.minimum((code + 1 << 6 * missing) - 1, MAX_CHAR))
        return Begun(size, missing, code, first, last), ~goes_on, broken


_FOLLOWING = np.repeat((0, -1, 1, 2, 3, -1), (0x80, 0x42, 0x1E, 0x10, 0x05, 0x0B))  # bytes behind a first one, -1 behind what is none
_PAYLOAD = np.repeat((0x7F, 0x3F, 0x1F, 0x0F, 0x07), (0x80, 0x40, 0x20, 0x10, 0x10))
_LEAST = np.array((0, 0x80, 0x800, 0x10000))  # character of so many bytes behind the first
_BYTES = Begun.none(256).behind(np.arange(256))[0]


@dataclass(frozen=True, eq=False)
class Spelling:
    """The segmentation of the texts of a trie's nodes into characters.

    symbol       int64 [nodes]: the number of what is there of its last character
    first, last  of each symbol, the characters that it may be; missing: bytes that are not there yet
    begins       of each node, the one at which its last character begins
    chars        of each node, how many characters it has, the last included
    """

    symbol: np.ndarray
    first: np.ndarray
    last: np.ndarray
    missing: np.ndarray
    begins: np.ndarray
    chars: np.ndarray

    @staticmethod
    def of(trie: ByteTrie) -> Spelling:
        nodes = len(trie.byte)
        found, begins, chars = Begun.none(nodes), np.arange(nodes), np.zeros(nodes, np.int64)
        at = 1
        for end in trie.level_ends[1:]:
            parent = trie.parent[at:end]
            here, starting, broken = found.take(parent).behind(trie.byte[at:end].astype(np.int64))
            for whole, part in zip(found, here):
                whole[at:end] = part
            own = starting & ~broken
            begins[at:end] = np.where(own, begins[at:end], begins[parent])
            chars[at:end] = chars[parent] + own
            at = end
        key = found.first << 32 | found.last << 2 | found.missing
        order = np.argsort(key, kind="stable")
        fresh = np.append(True, key[order[1:]] != key[order[:-1]])[:nodes]
        symbol = np.empty(nodes, np.int64)
        symbol[order] = np.cumsum(fresh) - 1
        each = order[fresh]
        return Spelling(symbol, found.first[each], found.last[each], found.missing[each], begins, chars)

    @cached_property
    def possible(self) -> np.ndarray:
        """bool [symbols]: it is of a character: neither broken, nor of a surrogate alone."""
        return (self.first <= self.last) & ((self.first < 0xD800) | (self.last > 0xDFFF))

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.symbol, self.first, self.last, self.missing, self.begins, self.chars))


class Members(NamedTuple):
    """The characters of a class, as to what is there of them.

    some    bool [symbols]: a symbol may be of the class
    single  bool [symbols]: it is not complete, and only one byte may come next
    firsts  bool [256]: bytes that characters of the class begin with
    """

    some: np.ndarray
    single: np.ndarray
    firsts: np.ndarray

    @staticmethod
    def of(ranges: Ranges, spelling: Spelling) -> Members:
        least, most = _members(ranges, spelling.first, spelling.last)
        bits = 6 * np.maximum(spelling.missing - 1, 0)
        single = (spelling.missing > 0) & (least >> bits == most >> bits) & (least <= most)
        return Members(least <= most, single, np.less_equal(*_members(ranges, *_BYTES[-2:])))


@dataclass(frozen=True, eq=False)
class Long:
    """Tokens that are not in the trie, as to a class or a kind of string: those that begin with one of `heads`.

    inside   int64 ids of those that are within it as a whole, a last character as far as it is there
    chars    uint8, of each of these, how many characters it has
    leaving  (id, first byte, bytes before it leaves, characters before that) of each of the others
    bits     of `inside`, as a row
    heads    bool [256]
    firsts   uint8, of each of `inside`, its first byte
    """

    inside: np.ndarray
    chars: np.ndarray
    leaving: Sequence[tuple[int, int, int, int]]
    bits: np.ndarray
    heads: np.ndarray
    firsts: np.ndarray

    @staticmethod
    def of(ranges: Ranges, texts: Texts) -> Long:
        (_, trie), spelling = texts.long_trie, texts.long_spelling
        members = Members.of(ranges, spelling)
        inside, leaves = _within(trie, spelling, 0, members.some)
        leaves = leaves[(trie.parent[leaves] > 0) | members.firsts[trie.byte[leaves]]]
        return Long.between(texts, inside, spelling.chars, leaves, spelling.begins[leaves], members.firsts)

    @staticmethod
    def between(texts: Texts, inside: np.ndarray, chars: np.ndarray, leaves: np.ndarray, begins: np.ndarray, heads: np.ndarray) -> Long:
        """inside, chars   of each node of `long_trie`
        leaves, begins  the highest nodes of that behind which texts have left, and where the characters begin with which they do
        """
        (ids, trie), leaving = texts.long_trie, list[tuple[int, int, int, int]]()
        for leaf, until, before in zip(leaves.tolist(), map(trie.depth, begins.tolist()), (chars[leaves] - 1).tolist()):
            below = ids[trie.begin[leaf] : trie.ends[leaf]].tolist()
            leaving += [(i, texts.tokens[i][0], until - 1, before) for i in below]
        held = trie.node_of[inside[trie.node_of]]
        within = ids[inside[trie.node_of]]
        firsts = np.array([texts.tokens[i][0] for i in within.tolist()], np.uint8)
        return Long(within, chars[held], leaving, bits_of(within, texts.words), heads, firsts)


@dataclass(frozen=True, eq=False)
class ClassRun:
    """Texts of a class of characters below a node of a vocabulary's trie.

    firsts  bool [256]: bytes that begin characters of the class and, in tokens below the node, no others. The other
            fields concern only tokens that begin with these
    bits    those that are prefixes of such texts, as a row; ids: the same
    chars   uint8, of each of `ids`: its number of characters, counting an incomplete last one
    begun   ids of those that end inside of a character, with only one legal next byte
    leaving how many leave the class after some of it, by the first byte that does, or may
    """

    texts: Texts
    firsts: np.ndarray
    begun: np.ndarray
    leaving: Mapping[int, int]
    bits: np.ndarray
    _exits: np.ndarray  # nodes where tokens leave the class
    _before: np.ndarray  # of each, the characters within it
    _node: int
    _short: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])  # `bits` by the most characters
    _tails: dict[tuple[int, int | None], Tail] = field(default_factory=dict[tuple[int, "int | None"], Tail])

    @staticmethod
    def of(ranges: Ranges, texts: Texts, node: int = 0) -> ClassRun:
        trie, spelling = texts.trie, texts.spelling
        members = texts.members(ranges)
        inside, leaves = _within(trie, spelling, node, members.some)
        firsts = members.firsts.copy()
        exits = distinct(spelling.begins[leaves[spelling.possible[spelling.symbol[leaves]]]])  # no text has the others
        upper = trie.parent[exits] == node
        mixed = exits[upper & firsts[trie.byte[exits]]].tolist()
        firsts[trie.byte[mixed]] = False
        exits = exits[~upper]
        begin, end = int(trie.begin[node]), int(trie.ends[node])
        flags = np.zeros(len(texts.node_of), bool) if node else inside.take(texts.node_of)  # the root, which is not inside, has those of no text
        if node:
            flags[texts.ids[begin:end]] = inside[texts.nodes[begin:end]]
        for child in mixed:
            first, last = int(trie.begin[child]), int(trie.ends[child])
            flags[texts.ids[first:last]] = False
            exits = exits[(trie.begin[exits] < first) | (trie.begin[exits] >= last)]
        begun = texts.begun[slice(*np.searchsorted(texts.begun, (begin, end)))]
        begun = texts.ids[begun[flags[texts.ids[begun]] & members.single[spelling.symbol[texts.nodes[begun]]]]]
        leaves = np.bincount(trie.byte[exits], trie.ends[exits] - trie.begin[exits], 256).astype(np.int64)
        leaving = {byte: int(leaves[byte]) for byte in np.flatnonzero(leaves).tolist()}
        behind = spelling.chars[node] if node else 0
        before = spelling.chars[exits] - 1 - behind
        return ClassRun(texts, firsts, begun, leaving, packed(flags), exits, before, node)

    @cached_property
    def ids(self) -> np.ndarray:
        return self._of_kept(self.texts.ids)

    @cached_property
    def chars(self) -> np.ndarray:
        behind = self.texts.spelling.chars[self._node] if self._node else 0
        return (self._of_kept(self.texts.counts) - behind).astype(np.uint8)

    def _of_kept(self, of_texts: np.ndarray) -> np.ndarray:
        below = slice(int(self.texts.trie.begin[self._node]), int(self.texts.trie.ends[self._node]))
        return of_texts[below][np.unpackbits(self.bits.view(np.uint8), bitorder="little")[self.texts.ids[below]] > 0]

    @property
    def nbytes(self) -> int:
        arrays = 9 * int(self.texts.trie.ends[self._node] - self.texts.trie.begin[self._node]) + self.begun.nbytes + 2 * self._exits.nbytes
        return arrays + (1 + len(self._short)) * self.bits.nbytes

    def up_to(self, chars: int) -> np.ndarray:
        """Return `bits`, of tokens of at most so many characters."""
        found = self._short.get(min(chars, LONG))  # which have no more
        if found is None:
            found = self._short[min(chars, LONG)] = bits_of(self.ids[self.chars <= chars], len(self.bits))
        return found

    def tail(self, byte: int, chars: int | None = None) -> Tail:
        """Return the rest of the tokens that leave the class by a byte, from that byte on; only of those that leave
        after so many characters."""
        found = self._tails.get((byte, chars))
        if found is None:
            found = self._tails[byte, chars] = tail_of(self.texts, self.exits(byte, chars))
        return found

    def begun_behind(self, chars: int) -> Tail:
        """As `tail`, of the tokens that end inside of a character behind so many: it may be one out of the class as well."""
        found = self._tails.get((_BEGUN, chars))
        if found is None:
            nodes, spelling = self.texts.node_of[self.ids[self.chars == chars + 1]], self.texts.spelling
            ends = distinct(spelling.begins[nodes[spelling.missing[spelling.symbol[nodes]] > 0]])
            found = self._tails[_BEGUN, chars] = tail_of(self.texts, ends)
        return found

    def in_string(self, low: int, high: int) -> Iterable[Tail]:
        """As for a StringRun, of a class of ASCII characters; without tokens that begin with the quote."""
        each = [None] if low <= 1 and high >= LONG else [chars for chars in self.turns(_QUOTE) if low <= chars <= high]
        return [tail for chars in each for tail in self.tail(_QUOTE, chars).ways.values()]

    @property
    def whole(self) -> np.ndarray:
        """As for a StringRun, of such a class."""
        return np.ones(len(self.ids), bool)

    def exits(self, byte: int, chars: int | None = None) -> np.ndarray:
        """Return, for `tail`, the nodes of the trie at which these tokens leave: each behind that byte."""
        return self._exits[(self.texts.trie.byte[self._exits] == byte) & (chars is None or self._before == chars)]

    def turns(self, byte: int) -> list[int]:
        """Return the numbers of characters that tokens have before they leave the class by a byte."""
        return np.flatnonzero(np.bincount(self._before[self.texts.trie.byte[self._exits] == byte])).tolist()


def _within(trie: ByteTrie, spelling: Spelling, upper: int, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bool [nodes], of those below `upper`: all of the text behind it is in the class, its last character as far as it goes; and the
    highest nodes of which that is not so.

    member  bool [symbols]: the class has what is there of a character
    """
    inside, children = np.zeros(len(trie.byte), bool), trie.children
    inside[upper] = True
    leaves = [np.zeros(0, np.int64)]
    begin, end = upper, upper + 1
    while True:
        begin, end = children(begin)[0], children(end - 1)[1]  # the nodes of a level below a node are neighbours
        above, here = inside.take(trie.parent[begin:end]), member.take(spelling.symbol[begin:end])
        stays = above & here
        leaves.append(begin + np.flatnonzero(above > here))
        if not stays.any():
            break
        inside[begin:end] = stays
        begin, end = begin + int(stays.argmax()), end - int(stays[::-1].argmax())
    inside[upper] = False
    return inside, np.concatenate(leaves)


def _members(ranges: Ranges, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest character of a class from `first` to `last`; the least is greater where there is none."""
    lows, highs = (np.array(ends, np.int64) for ends in zip(*ranges, (1 << 40, 1 << 40)))
    least = np.maximum(lows[np.searchsorted(highs[:-1], first)], first)
    most = np.minimum(highs[np.searchsorted(lows[:-1], last, "right") - 1], last)
    return least, np.where(last < lows[0], -1, most)


def tail_of(texts: Texts, exits: np.ndarray) -> Tail:
    """Return the rests of the texts at or below some nodes of the trie, from the last byte of these on."""
    found, trie = Tail(), texts.trie
    for exit_, begin, end in zip(exits.tolist(), trie.begin[exits].tolist(), trie.ends[exits].tolist()):
        at = trie.depth(exit_) - 1  # bytes before the exit's own
        for i in texts.ids[begin:end].tolist():
            _add(found, texts.tokens[i], at, i)
    return found


def _add(tail: Tail, text: bytes, at: int, token: int) -> None:
    tail.depth = max(tail.depth, len(text) - at)
    for byte in text[at:]:
        if (further := tail.ways.get(byte)) is None:
            further = tail.ways[byte] = Tail()
        tail = further
    tail.ids.append(token)
