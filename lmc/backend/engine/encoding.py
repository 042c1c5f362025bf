"""Encoding: literal runs to token ids, each stretch once, and the tokens and strings that end an answer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lmc.backend.engine.prompt_pictures import Placed, PromptPicture, written
from lmc.chat import ChatTemplate
from lmc.errors import ParameterError
from lmc.segments import Mark, Part, Special

if TYPE_CHECKING:
    from lmc.backend.engine.detokenizer import Detokenizer

NO_IDS = np.empty(0, np.int32)
_WHOLE = 192  # characters: a shorter piece is not worth a cut
_MOST_BEGUN = 1 << 16


class TokenizerProtocol(Protocol):
    """The tokenizer interface that the local backend needs (engine/tokenizer.py implements it)."""

    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos: bool
    vocab_size: int
    special_ids: frozenset[int]
    prefixes_behind_specials: bool  # the vocabulary's leading space before a text also follows special tokens

    def least(self, texts: Iterable[str]) -> int: ...

    def encode(self, parts: Sequence[Part], *, at_start: bool = True) -> list[int]: ...

    def detokenizer(self) -> Detokenizer: ...

    def decode(self, ids: Sequence[int], *, with_specials: bool = False, at_start: bool = True) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...

    def id_of(self, special: str) -> int: ...

    def split_specials(self, text: str) -> tuple[Part, ...]: ...

    def blocks(self, text: str) -> list[str]: ...

    def last_cut(self, text: str, start: int, end: int) -> int: ...


def _encoded(words: TokenizerProtocol, text: str, at_start: bool) -> Sequence[int]:
    try:
        return words.encode((text,), at_start=at_start)
    except (TypeError, UnicodeEncodeError):
        half = next((c for c in text if "\ud800" <= c <= "\udfff"), None)
        if half is None:
            raise
        raise ParameterError(
            f"the prompt has {half!r}, half of a surrogate pair, which is not a character and has no tokens; "
            'where text is decoded, errors="replace" leaves none'
        ) from None


class Encoder:
    """Encodes literal runs. Special tokens, and in texts words, cut a run into pieces with independent encodings, so
    each piece is cached: siblings encode shared text once.

    capacity    characters of cached pieces; the least recently used are evicted
    embedded    tokens of the model; a tokenizer's files may have more
    """

    def __init__(self, words: TokenizerProtocol, capacity: int = 1 << 23, embedded: int | None = None) -> None:
        self._words, self._capacity = words, capacity
        self._embedded = words.vocab_size if embedded is None else embedded
        self._known: OrderedDict[tuple[str, bool], np.ndarray] = OrderedDict()
        self._held = 0  # characters
        self._begun = set[int]()  # first blocks of texts that were encoded as one, hashed
        self._lock = threading.Lock()

    def encode(self, run: Sequence[Part | Placed], *, at_start: bool) -> np.ndarray:
        """Encode to [n] int32. `at_start`: nothing precedes the run; BOS is put there if the tokenizer's own rule says
        so."""
        words, found = self._words, list[np.ndarray]()
        first = at_start
        stretches = cut_texts(run)
        if at_start and words.add_bos and words.bos_token_id is not None and stretches:
            begins = stretches[0]
            if not (isinstance(begins, Special) and words.id_of(begins.spelling) == words.bos_token_id):
                found.append(np.array([words.bos_token_id], np.int32))
        for stretch in stretches:
            for piece in self._pieces(stretch) if isinstance(stretch, list) else (stretch,):
                ids = self._piece(piece, first)
                first = (first and not len(ids)) or (not isinstance(piece, str) and words.prefixes_behind_specials)
                found.append(ids)
        return np.concatenate(found) if found else NO_IDS

    def _pieces(self, texts: Sequence[str]) -> list[str]:
        """Return the joined texts, cut at the last word before each of them begins: the part before it is a piece that
        others have too, however long it is."""
        if len(texts) == 1 or sum(map(len, texts)) < _WHOLE:
            return ["".join(texts)]
        whole = "".join(texts)
        found: list[str] = []
        start = end = 0
        for text in texts[:-1]:
            end += len(text)
            if end - start < _WHOLE:
                continue
            cut = self._words.last_cut(whole, start, end)
            if cut > start:
                found.append(whole[start:cut])
                start = cut
        return [*found, whole[start:]]

    def _piece(self, piece: str | Special | PromptPicture, first: bool) -> np.ndarray:
        if isinstance(piece, PromptPicture):
            return np.full(piece.count, piece.number, np.int32)
        if isinstance(piece, Special):
            return self.checked(np.array([self._words.id_of(piece.spelling)], np.int32))
        key = (piece, first)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        blocks = self._words.blocks(piece)
        if len(blocks) > 1 and self._begins_like_another(blocks[0], first):
            ids = np.concatenate([self._piece(block, first and i == 0) for i, block in enumerate(blocks)])
        else:
            found = _encoded(self._words, piece, first)
            ids = np.asarray(found, np.int32)
            if found and max(found) >= self._embedded:
                self.checked(ids)
        self._remember(key, ids)
        return ids

    def _begins_like_another(self, block: str, first: bool) -> bool:
        """Return whether a text with this first block was encoded before: then its blocks are worth keeping."""
        begun, key = self._begun, hash((block, first))
        if key in begun:
            return True
        if len(begun) >= _MOST_BEGUN:
            begun.clear()
        begun.add(key)
        return False

    def checked(self, ids: np.ndarray) -> np.ndarray:
        """Return the ids. Raises ParameterError for one that the model does not know."""
        if len(ids) and (last := int(ids.max())) >= self._embedded:
            spelling = self._words.decode([last], with_specials=True)
            raise ParameterError(f"the prompt has {spelling!r}, token {last}, but the model knows only {self._embedded} tokens")
        return ids

    def _remember(self, key: tuple[str, bool], ids: np.ndarray) -> None:
        with self._lock:
            if key in self._known:
                return  # by another thread
            self._known[key] = ids
            self._held += len(key[0])
            while self._held > self._capacity:
                (text, _), _ = self._known.popitem(last=False)
                self._held -= len(text)

    def unstable(self, run: Sequence[Part | Placed]) -> int:
        """Return how many tokens at the end of the run may change when text is appended: those of its last word. A
        wrong guess costs work, never correctness, because callers encode the whole run again."""
        stretches = literal(run)
        if not stretches or not isinstance(last := stretches[-1], str):
            return 0
        blocks = self._words.blocks(last)
        ids = self._piece(blocks[-1], len(stretches) == len(blocks) == 1)
        for n in range(1, min(8, len(ids)) + 1):
            if self._words.token_bytes(int(ids[-n]))[:1].isspace():
                return n
        return min(8, len(ids))


def cut_texts(run: Sequence[Part | Placed]) -> list[list[str] | Special | PromptPicture]:
    """Return a run without marks: special tokens and pictures, and the texts between them; empty ones dropped."""
    out: list[list[str] | Special | PromptPicture] = []
    texts: list[str] = []
    for part in written(run):
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, Mark):
            if texts:
                out.append(texts)
                texts = []
            out.append(part)
    if texts:
        out.append(texts)
    return out


def literal(run: Sequence[Part | Placed]) -> list[str | Special | PromptPicture]:
    """Return the same with adjacent texts joined."""
    return ["".join(stretch) if isinstance(stretch, list) else stretch for stretch in cut_texts(run)]


def template_stops(words: TokenizerProtocol, template: ChatTemplate) -> tuple[frozenset[int], tuple[str, ...]]:
    """Return EOS and the template's stops: special tokens by id, the others by text."""
    ids = set(words.eos_token_ids)
    strings: list[str] = []
    for stop in template.stop:
        match words.split_specials(stop):
            case (Special(spelling),):
                ids.add(words.id_of(spelling))
            case _:
                strings.append(stop)
    return frozenset(ids), tuple(strings)
