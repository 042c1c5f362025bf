"""Encoding: literal runs to token ids, each stretch once, and which tokens and strings end an answer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lmc.backend.engine.answer import Words
from lmc.chat import ChatTemplate
from lmc.prompt import Mark, Part, Special

NO_IDS = np.empty(0, np.int32)


class Vocabulary(Words, Protocol):
    """What the local backend needs of a tokenizer (engine/tokenizer.py is one)."""

    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos: bool
    vocab_size: int
    special_ids: frozenset[int]

    def decode(self, ids: Sequence[int], *, with_specials: bool = False) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...

    def id_of(self, special: str) -> int: ...

    def split_specials(self, text: str) -> tuple[Part, ...]: ...

    def blocks(self, text: str) -> list[str]: ...


class Encoder:
    """Encodes literal runs. Special tokens, and in long texts words, cut a run into stretches whose encodings do not
    depend on each other, so each stretch is remembered: siblings encode what they share once."""

    def __init__(self, words: Vocabulary, capacity: int = 16384) -> None:
        self._words, self._capacity = words, capacity
        self._known: OrderedDict[tuple[str, bool], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def encode(self, run: Sequence[Part], *, at_start: bool) -> np.ndarray:
        """[n] int32. `at_start`: nothing precedes the run; BOS is put there if the tokenizer's own rule says so."""
        words, found = self._words, list[np.ndarray]()
        empty = True
        stretches = literal(run)
        if at_start and words.add_bos and words.bos_token_id is not None and stretches:
            first = stretches[0]
            if not (isinstance(first, Special) and words.id_of(first.spelling) == words.bos_token_id):
                found.append(np.array([words.bos_token_id], np.int32))
        for stretch in stretches:
            for piece in (stretch,) if isinstance(stretch, Special) else self._words.blocks(stretch):
                ids = self._piece(piece, at_start and empty)
                empty = empty and not len(ids)
                found.append(ids)
        return np.concatenate(found) if found else NO_IDS

    def _piece(self, piece: str | Special, first: bool) -> np.ndarray:
        if isinstance(piece, Special):
            return np.array([self._words.id_of(piece.spelling)], np.int32)
        key = (piece, first)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        ids = np.asarray(self._words.encode((piece,), at_start=first), np.int32)
        with self._lock:
            self._known[key] = ids
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return ids

    def unstable(self, run: Sequence[Part]) -> int:
        """How many tokens at the end of the run may change when text is appended: those of its last word. A wrong
        guess costs work, never a wrong answer, because whoever asks encodes the whole run again."""
        stretches = literal(run)
        if not stretches or isinstance(stretches[-1], Special):
            return 0
        blocks = self._words.blocks(stretches[-1])
        ids = self._piece(blocks[-1], len(stretches) == len(blocks) == 1)
        for n in range(1, min(8, len(ids)) + 1):
            if self._words.token_bytes(int(ids[-n]))[:1].isspace():
                return n
        return min(8, len(ids))


def literal(run: Sequence[Part]) -> list[str | Special]:
    """A run without marks, adjacent strings joined, empty ones dropped."""
    out: list[str | Special] = []
    texts: list[str] = []
    for part in run:
        if isinstance(part, Special):
            if texts:
                out.append("".join(texts))
                texts = []
            out.append(part)
        elif not isinstance(part, Mark) and part:
            texts.append(part)
    if texts:
        out.append("".join(texts))
    return out


def template_stops(words: Vocabulary, template: ChatTemplate) -> tuple[frozenset[int], tuple[str, ...]]:
    """EOS and the template's stops: special tokens by id, the others by text."""
    ids = set(words.eos_token_ids)
    strings: list[str] = []
    for stop in template.stop:
        match words.split_specials(stop):
            case (Special(spelling),):
                ids.add(words.id_of(spelling))
            case _:
                strings.append(stop)
    return frozenset(ids), tuple(strings)
