"""Forced tokens: tokens that need no sampling, because the constraint allows only one text.

A token is forced if the canonical encoding of the forced text contains it whatever legal text follows:

    forced text     {"order          legal: {"orderId": …, {"orderName": …
    its encoding    {" | order       if the vocabulary has orderId or orderName, `order` is not certain
    forced tokens   {"               the rest, the unstable tail, is left to the mask

So the run is the longest common prefix of the encodings of all legal texts from the state. Where these are few, they
are all encoded. Otherwise the boundaries within the forced text are tried, from the left: a boundary is unstable if
some token could begin there and reach beyond the forced text. That rests on one property of BPE: text between two
boundaries is encoded by itself. Legal texts of each kind of next character are encoded too, for pre-tokenizers that
look ahead.

That holds after text that was itself tokenized canonically. A model that samples under a mask may tokenize otherwise:

    sampled   "m          forced text     inister",
    canonical "|minister  no canonical encoding has a token after `m`, so nothing is certain there

Therefore a run counts only as far as the canonical encoding of the last sampled and the forced text has a cut between
the two and the same tokens after it (`behind`). Otherwise the model continues sampling under its mask until the cuts
agree again.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lmc.fsm.arrays import Arrays
from lmc.fsm.bytedfa import LONG
from lmc.fsm.completion import all_endings
from lmc.fsm.minimise import DEAD
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary

Encode = Callable[[str], Sequence[int]]

_FEW, _SHORT = 32, 2048  # legal texts that are all encoded, and bytes of these: following longer ones takes what a step may
_TRIED = 64  # tokens tried at a boundary before it is assumed unstable
_TAIL = 8  # tokens of lookbehind
_BEHIND = 2 * LONG  # bytes of an ending that are encoded to find where sampled and forced text meet
_OBJECT = 256  # bytes of a run or a text's objects, and its place in a dict
_KEPT = 4096  # most remembered seams, and endings

Tail = tuple[int, ...]
"""The last tokens of a text, back to the last position that no token can span."""


@dataclass(frozen=True, slots=True)
class ForcedRun:
    """Tokens that are certain from a state on, the state after them, and those after each of them."""

    tokens: tuple[int, ...]
    state: int
    path: tuple[int, ...] = ()


class ForcedTokens:
    """The forced run of each state, found once and shared by all sequences of the constraint.

    encode  the tokenizer's ids of plain text in the middle of a sequence, without special tokens

    The run is maximal: query it once after each sampled token, not again after a run.
    """

    def __init__(self, automaton: TokenAutomaton, encode: Encode) -> None:
        self.automaton, self.encode = automaton, encode
        self.seams = Seams(automaton.vocabulary, encode)
        self._runs: dict[int, ForcedRun] = {}
        self._texts: dict[int, list[bytes]] = {}  # by state: the texts that `behind` compares with
        self._endings = _Endings(automaton.dfa)

    def run(self, state: int) -> ForcedRun:
        """Return the run from `state` after canonically tokenized text; without tokens where there is a choice, and
        inside a character."""
        run = self._runs.get(state)
        if run is None:
            self.automaton.dfa.begin()
            tokens, path = self._certain(state), [state]
            for token in tokens:
                path.append(self.automaton.next(path[-1], token))
            run = self._runs[state] = ForcedRun(tokens, path[-1], tuple(path[1:]))
        return run

    @property
    def nbytes(self) -> int:
        """Return the memory of the runs found so far and of the texts that determine them, objects included. From any
        thread."""
        runs = sum(_OBJECT + 16 * len(run.tokens) for run in list(self._runs.values()))
        return runs + sum(_OBJECT + sum(map(len, texts)) for texts in list(self._texts.values()))

    def behind(self, recent: Sequence[int], state: int) -> tuple[int, ...]:
        """Return as much of the run from `state` as is certain after text whose last tokens are `recent`, however that
        was tokenized."""
        run = self.run(state).tokens
        if not run or not recent or not self.seams.may_join(recent[-1], run[0]):
            return run
        return self.seams.agreed(self.seams.tail(recent), state, run, lambda: self._legal(state))

    def prepare(self, state: int) -> ForcedRun:
        """Compute `run`, and everything else that `behind` needs, ahead of its use. From any thread."""
        run = self.run(state)
        if run.tokens:
            self._legal(state)
        return run

    def _legal(self, state: int) -> list[bytes]:
        """Return beginnings of legal texts from `state`: one if no token can span all of the forced text from before
        it, else one of each kind; as far beyond it as determines how it is tokenized."""
        texts = self._texts.get(state)
        if texts is None:
            text = self._forced_text(state)
            endings = self._endings.of_each_kind(self.automaton.dfa.step(state, text))
            several = len(text) < LONG and self.automaton.vocabulary.has_inside(text)
            begun = (_whole_characters(ending[:_BEHIND]) for ending in (endings if several else endings[:1]))
            texts = self._texts[state] = [text + ending for ending in begun]
        return texts

    def _forced_text(self, state: int) -> bytes:
        return _whole_characters(self.automaton.dfa.forced(state)[0])

    def _certain(self, state: int) -> tuple[int, ...]:
        text = self._forced_text(state)
        if not text:
            return ()
        end = self.automaton.dfa.step(state, text)
        few = all_endings(self.automaton.dfa, end, _FEW, _SHORT)
        if few is not None:
            return self._common([text + ending for ending in few])
        stable = self._common([text])
        stable = stable[: self._stable_boundaries(text, end, stable)]
        endings = self._endings.of_each_kind(end)
        if text.decode()[-1].isspace():  # whether it joins the next token depends on more
            endings += self._endings.beyond_ascii(end)
        samples = self._common([_whole_characters(text + ending) for ending in endings])
        return _common_prefix([stable, samples])

    def _common(self, texts: Sequence[bytes]) -> tuple[int, ...]:
        """Return the common prefix of the encodings of `texts`, except those that the tokenizer cannot spell; () if all
        are."""
        encodings = [(text, tuple(self.encode(text.decode()))) for text in texts]
        return _common_prefix([ids for text, ids in encodings if self.automaton.vocabulary.text(ids) == text])

    def _stable_boundaries(self, text: bytes, end: int, ids: tuple[int, ...]) -> int:
        """Return how many tokens of `ids`, the encoding of `text`, no legal continuation from `end` can change."""
        keep = len(ids)
        for at in range(max(0, len(text) - self.automaton.vocabulary.longest + 1), len(text)):
            longer = self.automaton.vocabulary.reach(self.automaton.dfa, end, text[at:])[0]
            if not len(longer):
                continue
            if text[at] & 0xC0 == 0x80:  # inside a character: the text before it cannot be encoded by itself
                return 0
            before = tuple(self.encode(text[:at].decode()))
            agreed = len(_common_prefix([before, ids]))
            if agreed < keep and self._one_is_canonical(text[:at], longer):
                keep = agreed
        return keep

    def _one_is_canonical(self, text: bytes, tokens: np.ndarray) -> bool:
        """Return whether some of `tokens` can follow `text` in a canonical encoding, whatever the cuts after that. In
        doubt, True."""
        for token in tokens[:_TRIED].tolist():
            whole = text + self.automaton.vocabulary.tokens[token]
            if whole != _whole_characters(whole) or tuple(self.encode(whole.decode()))[-1:] == (token,):
                return True
        return len(tokens) > _TRIED


def no_tokens() -> deque[int]:
    """Return the empty tail, for the last tokens of a text, as many as `Seams.tail` reads."""
    return deque(maxlen=_TAIL)


class Seams:
    """Seams between sampled tokens and the forced text after them. For one thread."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode) -> None:
        self.vocabulary, self.encode = vocabulary, encode
        self._tokens, self._joins = vocabulary.tokens, vocabulary.joins
        self._known: OrderedDict[tuple[Tail, object], tuple[int, ...]] = OrderedDict()

    def tail(self, recent: Sequence[int]) -> Tail:
        """Return the tail of a text whose last tokens are `recent`."""
        tail = tuple(recent)[-_TAIL:]
        begin = max(0, len(tail) - 1)
        while begin and self.may_join(tail[begin - 1], tail[begin]):
            begin -= 1
        return tail[begin:]

    def may_join(self, last: int, first: int) -> bool:
        """Return whether the text after the border between two tokens may be tokenized otherwise than by itself
        (`Vocabulary.joins`)."""
        before, behind = self._tokens[last], self._tokens[first]
        return not (before and behind) or self._joins[before[-1] << 8 | behind[0]] == 1

    def agreed(self, tail: Tail, place: object, run: tuple[int, ...], legal: Callable[[], Iterable[bytes]]) -> tuple[int, ...]:
        """Return as much of `run` as the canonical encodings of `tail` and each of the legal texts after it share;
        `place` identifies run and texts."""
        known = self._known.get((tail, place))
        if known is None:
            known = self._known[tail, place] = self._common(self.vocabulary.text(tail), run, legal())
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return known

    def _common(self, before: bytes, run: tuple[int, ...], texts: Iterable[bytes]) -> tuple[int, ...]:
        spelled = False
        for text in texts:
            if (cut := self.cut(before, text)) is not None:
                run, spelled = _common_prefix([run, cut]), True
                if not run:
                    break  # usually the first text decides
        return run if spelled else ()

    def cut(self, before: bytes, text: bytes) -> tuple[int, ...] | None:
        """Return the tokens of `text` in the encoding of both together, none if one of them spans the border; None for
        text that the tokenizer cannot spell."""
        try:
            ids = self.encode((before + text).decode())
        except UnicodeDecodeError:  # the tail begins inside a character
            return ()
        if self.vocabulary.text(ids) != before + text:
            return None
        lengths = itertools.accumulate((len(self._tokens[token]) for token in ids), initial=0)
        first = next((n for n, length in enumerate(lengths) if length == len(before)), len(ids))
        return tuple(ids[first:])


def _common_prefix(sequences: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if not sequences:
        return ()
    low, high = min(sequences), max(sequences)
    same = next((i for i, (a, b) in enumerate(zip(low, high)) if a != b), min(len(low), len(high)))
    return low[:same]


def _whole_characters(text: bytes) -> bytes:
    """Return the text without an incomplete character at the end; nothing if `text` begins inside one."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start]
    return text


# -- legal endings -------------------------------------------------------------------------------------------------


class _Endings:
    """Endings of texts that complete the answer from a state: as long as determines the tokenization before them."""

    def __init__(self, dfa: Arrays) -> None:
        self.dfa = dfa
        self._steps: dict[int, tuple[int, int]] = {}
        self._known: dict[tuple[int, int], bytes] = {}  # shortest endings
        dfa.prepare()

    def of_each_kind(self, state: int) -> list[bytes]:
        """Return a shortest ending through each kind of next character: letters, digits, spaces, marks, others."""
        row = self.dfa.row(state)
        kinds = {_kind(byte): byte for byte in np.flatnonzero(row >= 0).tolist()}
        endings = [bytes([byte]) + self._shortest(int(row[byte])) for byte in kinds.values()]
        return [b"", *endings] if self.dfa.is_final(state) else endings

    def beyond_ascii(self, state: int) -> list[bytes]:
        """Return a shortest ending through characters of each kind that tokenizers distinguish, spaces among them."""
        found = [char + self._shortest(at) for char in _RARE if (at := self.dfa.step(state, char)) != DEAD]
        leads = [byte for byte in np.flatnonzero(self.dfa.row(state) >= 0).tolist() if byte >= 0x80]
        some = leads if len(leads) <= len(_RARE) else []
        return found + [bytes([lead]) + self._shortest(self.dfa.step(state, bytes([lead]))) for lead in some]

    def _shortest(self, state: int, most: int = _BEHIND) -> bytes:
        """Return at most so many bytes of it."""
        if (known := self._known.get((state, most))) is not None:
            return known
        out, at = bytearray(), state
        while len(out) < most and not self.dfa.is_final(at):
            forced, at = self.dfa.forced(at)
            out += forced
            if not self.dfa.is_final(at):
                byte, at = self._step(at)
                out.append(byte)
        if len(self._known) >= _KEPT:
            self._known.clear()
        found = self._known[state, most] = bytes(out[:most])
        return found

    def _step(self, state: int) -> tuple[int, int]:
        """Step one byte nearer to the end; a plain letter where possible, for not every tokenizer has every control."""
        if state not in self._steps:
            row = self.dfa.row(state)
            ways = np.flatnonzero(row >= 0)
            byte = int(ways[(self.dfa.distances(row[ways]) << 8 | _ODDITY[ways]).argmin()])
            self._steps[state] = byte, int(row[byte])
        return self._steps[state]


def _kind(byte: int) -> str:
    char = chr(byte)
    if byte >= 0x80:
        return "other"
    if char.isalpha():
        return "A" if char.isupper() else "a"
    if char.isdigit():
        return "0"
    return char if char.isspace() or char == "'" else "." if char.isprintable() else "control"


def _oddity(byte: int) -> int:
    return {"a": 0, "A": 1, "0": 2, ".": 3, "control": 9}.get(_kind(byte), 4)


_RARE = tuple(char.encode() for char in "\u00a0\u0085\u2003\u2028\u3000éÉ²٣—😀世\u0301\u200d")
_ODDITY = np.array([_oddity(byte) for byte in range(256)])
