"""Canonical text: the pairs of tokens that a BPE tokenizer may put next to each other.

    sampled   "m          the tokenizer writes `minister` as one token, and never `m` before `in`: a model restricted to
    refused   in  inister legal tokens alone may do so, and continues after text it has never seen

A sequence of tokens is the encoding of its text if each pair of neighbours is that of theirs (Berglund and van der
Merwe 2023; Vieira et al. 2025). So a row of refused tokens belongs to the last token alone:

    a        its right parts, from the whole inwards:  minister, ister, er, r      each there until a merge of some rank takes it
    b        its left parts                            s, st, …
    refused  b, if some right part of a and some left part of b are merged before either is taken by its own token

Tokenizers cut texts before they merge. A pair is refused only if no cut can be between its tokens whatever surrounds them,
so each text keeps its canonical encoding; `Cuts` knows this of the usual patterns.
"""

from __future__ import annotations

import unicodedata
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Cuts = Literal["none", "spaces", "gpt2", "gpt2-digits", "llama3"]
"""Pre-tokenization, the cuts a tokenizer makes before it merges: not at all; before each space; by GPT-2's pattern; by
single digits, then GPT-2's pattern; by the pattern of Llama 3 and Qwen."""

_KEPT = 4096  # rows
_PAIRS = 1 << 16  # most remembered pairs
_NEVER = 1 << 30  # a rank after all others
_NONE = (-1, -1, -1)

_ODD, _LETTER, _DIGIT, _SPACE, _BREAK, _BLANK, _MARK, _BEHIND_QUOTE, _WITHIN = range(9)
"""Classes of a token's first and last characters. _BEHIND_QUOTE: letters that may end `'s` or `'ll`, after which a word
may begin; _WITHIN: an incomplete character; _ODD: unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class NonCanonical:
    """Tokens that are never canonical after one. ids: ascending; bits: uint32 [words], token i is bit i % 32 of word i
    // 32."""

    ids: np.ndarray
    bits: np.ndarray

    @staticmethod
    def of(merged: np.ndarray, cuttable: np.ndarray) -> NonCanonical:
        """Build from both bool [size]: the tokens merged with it, and those with a possible cut in between."""
        flags = np.zeros((len(merged) + 31) // 32 * 32, bool)
        np.greater(merged, cuttable, out=flags[: len(merged)])
        row = NonCanonical(np.flatnonzero(flags), np.packbits(flags, bitorder="little").view("<u4"))
        row.ids.flags.writeable = row.bits.flags.writeable = False
        return row


class Canonical:
    """The pairs of one tokenizer. Thread-safe.

    tokens  bytes of each id, b"" for an id without text
    merges  (left, right, result) by rank
    added   ids that the tokenizer finds in a text before it cuts it
    size    of the vocabulary, including logits without a token
    """

    def __init__(self, tokens: Sequence[bytes], merges: Sequence[tuple[int, int, int]], cuts: Cuts, added: frozenset[int], size: int) -> None:
        self._ranks: dict[tuple[int, int], int] = {}
        self._parts: dict[int, tuple[int, int, int]] = {}  # of merged tokens: left, right, rank
        kept = self._read(merges)
        self._behind = _Side(kept, self._parts, size)
        self._before = _Side(
            [(right, left, made, rank) for left, right, made, rank in kept], {t: (b, a, rank) for t, (a, b, rank) in self._parts.items()}, size, first=1
        )
        self._firsts, self._last = _kinds(tokens, size, added)
        self._first, self._lasts = np.array(self._firsts, np.int8), np.array(self._last, np.int8)
        self._cuttable = _cuttable(cuts)
        self._rows: OrderedDict[int, NonCanonical] = OrderedDict()
        self._columns: OrderedDict[int, NonCanonical] = OrderedDict()
        self._pairs: dict[tuple[int, int], bool] = {}

    def allows(self, before: int, token: int) -> bool:
        """Return whether some canonical text has `token` after `before`. In doubt, True."""
        if self._cuttable[self._last[before]][self._firsts[token]]:
            return True
        key = before, token
        found = self._pairs.get(key)
        if found is None:
            if len(self._pairs) >= _PAIRS:
                self._pairs.clear()
            found = self._pairs[key] = not self._merge(before, token, _NEVER)
        return found

    def refused(self, before: int) -> NonCanonical:
        """Return the tokens that `allows` refuses after `before`."""
        found = self._rows.get(before)
        if found is None:
            cuttable = np.array(self._cuttable[self._last[before]])[self._first]
            found = self._rows[before] = NonCanonical.of(self._behind.merged(before), cuttable)
            _forget(self._rows)
        return found

    def refused_before(self, token: int) -> NonCanonical:
        """Return the tokens after which `allows` refuses `token`."""
        found = self._columns.get(token)
        if found is None:
            cuttable = np.array(self._cuttable)[:, self._firsts[token]][self._lasts]
            found = self._columns[token] = NonCanonical.of(self._before.merged(token), cuttable)
            _forget(self._columns)
        return found

    @property
    def nbytes(self) -> int:
        rows = sum(row.ids.nbytes + row.bits.nbytes for row in (*self._rows.copy().values(), *self._columns.copy().values()))
        return rows + 200 * len(self._ranks) + 100 * len(self._pairs)

    # -- reading merges ------------------------------------------------------------------------------------------------

    def _read(self, merges: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
        """Return (left, right, made, rank): merges of tokens made before. For a token that several merges make, the one
        used when its text is encoded is kept as its parts."""
        ways: dict[int, int] = {}
        for _, _, made in merges:
            ways[made] = ways.get(made, 0) + 1
        ranks, parts = self._ranks, self._parts
        kept: list[tuple[int, int, int, int]] = []
        for rank, (left, right, made) in enumerate(merges):
            if (left in ways and left not in parts) or (right in ways and right not in parts) or (left, right) in ranks:
                continue
            if made not in parts and (ways[made] == 1 or not self._merge(left, right, rank)):
                parts[made] = left, right, rank
            ranks[left, right] = rank
            kept.append((left, right, made, rank))
        return kept

    def _merge(self, a: int, b: int, until: int) -> bool:
        """Return whether a merge across the border of two tokens happens before rank `until`."""
        ranks, parts = self._ranks, self._parts
        there = until
        while True:  # the right parts of a
            other, its = b, until
            while True:  # the left parts of b
                rank = ranks.get((a, other))
                if rank is not None and rank < there and rank <= its and rank < until:
                    return True
                found = parts.get(other)
                if found is None:
                    break
                other, _, its = found
            found = parts.get(a)
            if found is None:
                return False
            _, a, there = found


class _Side:
    """The tokens that are merged with an adjacent one, found all at once.

    The tokens that have one as an outer part (for a token on the right: its left parts) follow it in one order, by the
    rank that consumes it. So a merge of (a part of the one, an outer part) refuses that outer part and a span after it.

    kept   (of the one, of the other, made, rank) of each merge, ascending
    parts  of each token: its outer part, its inner part, rank
    first  1 if a merge comes before others of its rank to its right: of equal ranks, the left one is done first
    """

    def __init__(self, kept: Sequence[tuple[int, int, int, int]], parts: Mapping[int, tuple[int, int, int]], size: int, first: int = 0) -> None:
        self._size, self._first = size, first
        self._inner = {token: (inner, rank) for token, (_, inner, rank) in parts.items()}
        under = [1] * size  # number of tokens with this one as an outer part, itself included
        for token in sorted(parts, key=lambda token: -parts[token][2]):
            under[parts[token][0]] += under[token]
        place, free = [0] * size, [0] * size
        at = 0
        for token in range(size):
            if token not in parts:
                place[token], free[token] = at, at + 1
                at += under[token]
        begins: list[int] = []
        for _, other, made, rank in kept:
            if not first:
                begins.append(free[other])
            if (of := parts.get(made, _NONE))[2] == rank:
                outer = of[0]
                place[made], free[made] = free[outer], free[outer] + 1
                free[outer] += under[made]
            if first:
                begins.append(free[other])
        self._token_at = np.zeros(size, np.int64)
        self._token_at[place] = np.arange(size)
        ones, others, _, ranks = np.array(kept, np.int64).reshape(-1, 4).T
        order = np.argsort(ones, kind="stable")  # and by rank
        self._bounds = np.searchsorted(ones[order], np.arange(size + 1)).tolist()
        self._ranks = ranks[order]
        there = np.array(place)[others[order]]
        self._spans = np.stack([there, there + 1, np.array(begins, np.int64)[order], there + np.array(under)[others[order]]])

    def merged(self, one: int) -> np.ndarray:
        """Return bool [size]: the tokens that are merged with it before they are complete."""
        pieces: list[np.ndarray] = []
        until = _NEVER
        while True:
            begin, end = self._bounds[one], self._bounds[one + 1]
            if until != _NEVER:
                end = begin + int(np.searchsorted(self._ranks[begin:end], until + self._first))
            pieces.append(self._spans[:, begin:end])
            if (inner := self._inner.get(one)) is None:
                break
            one, until = inner
        own, behind, low, high = np.concatenate(pieces, axis=1)
        steps = np.bincount(np.concatenate([own, low]), minlength=self._size + 1) - np.bincount(np.concatenate([behind, high]), minlength=self._size + 1)
        found = np.zeros(self._size, bool)
        found[self._token_at[np.cumsum(steps[:-1]) > 0]] = True
        return found


def _forget(rows: OrderedDict[int, NonCanonical]) -> None:
    while len(rows) > _KEPT:
        rows.popitem(last=False)


# -- cuts of texts -----------------------------------------------------------------------------------------------


_QUOTED = (b"s", b"t", b"m", b"d", b"re", b"ve", b"ll")


def _kinds(tokens: Sequence[bytes], size: int, added: frozenset[int]) -> tuple[list[int], list[int]]:
    """Return the class of each token's first and last character."""
    known: dict[str, int] = {}
    first, last = [_ODD] * size, [_ODD] * size
    for token, text in enumerate(tokens):
        if not text or token in added:
            continue
        if text.isascii():
            spelled = text.decode()
            head, tail = spelled[0], spelled[-1]
        else:
            head, tail = _ends(text)
        if head:
            first[token] = _kind(head, known)
        if not tail:
            last[token] = _WITHIN if is_begun(text) else _ODD
        else:
            last[token] = _kind(tail, known)
            if last[token] == _LETTER and _may_end_quote(text.lower()):
                last[token] = _BEHIND_QUOTE
    return first, last


def _kind(char: str, known: dict[str, int]) -> int:
    kind = known.get(char)
    if kind is None:
        category = unicodedata.category(char)
        if char in "\r\n":
            kind = _BREAK
        elif char.isspace():
            kind = _SPACE if char == " " else _BLANK
        else:
            kind = {"L": _LETTER, "N": _DIGIT, "C": _MARK if category == "Cc" else _ODD}.get(category[0], _MARK)
        known[char] = kind
    return kind


def _ends(text: bytes) -> tuple[str, str]:
    """Return the first and the last character, "" where it is incomplete."""
    size = 1 if text[0] < 0x80 else 2 if text[0] < 0xE0 else 3 if text[0] < 0xF0 else 4
    begin = next((at for at in range(len(text) - 1, max(-1, len(text) - 5), -1) if text[at] & 0xC0 != 0x80), 0)
    return _character(text[:size]), _character(text[begin:])


def _character(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return ""


def is_begun(text: bytes) -> bool:
    """Return whether the text ends within a character that begins in it."""
    for size, least in ((1, 0xC2), (2, 0xE0), (3, 0xF0)):
        if len(text) >= size and text[-size] >= least:
            return True
        if text[-1] & 0xC0 != 0x80:
            return False
    return False


def _may_end_quote(text: bytes) -> bool:
    return any(text.endswith(b"'" + tail) or tail.endswith(text) for tail in _QUOTED)


def _cuttable(cuts: Cuts) -> list[list[bool]]:
    """Return [last class of one token][first class of the next]: whether a text may be cut between the two."""
    may = np.ones((9, 9), bool)
    may[_WITHIN] = False
    if cuts == "none":
        may[1:] = False
    elif cuts == "spaces":
        may[1:, 1:] = False
        may[:_WITHIN, _SPACE] = True
    else:
        may[_LETTER, _LETTER] = may[_SPACE, _LETTER] = may[_SPACE, _MARK] = may[_MARK, _MARK] = False
        if cuts == "gpt2":
            may[_DIGIT, _DIGIT] = may[_SPACE, _DIGIT] = False
        if cuts == "llama3":
            may[_BREAK, _BREAK] = False
    return may.tolist()


def merges_of(vocab: Mapping[str, int], merges: Sequence[str | Sequence[str]]) -> list[tuple[int, int, int]]:
    """Return (left, right, made) as ids, from a model's merges as they are written."""
    found: list[tuple[int, int, int]] = []
    for merge in merges:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        found.append((vocab[left], vocab[right], vocab[left + right]))
    return found
