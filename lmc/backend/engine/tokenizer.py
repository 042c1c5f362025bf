"""Tokens: literal parts to ids and ids to text. Plain text never becomes a special token."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from lmc.backend.engine import sentencepiece
from lmc.backend.engine.detokenizer import ByteDetokenizer, Detokenizer, StreamDetokenizer
from lmc.backend.engine.models.files import check_size
from lmc.backend.engine.tokenizer_rules import (
    check_charsmaps,
    check_growth,
    check_ids,
    check_rules,
    cuts_of,
    failed_in_library,
    is_legacy,
    parts_of,
    spec_of,
    without_prefix,
)  # fmt: skip
from lmc.errors import ModelLoadError, ProgramError
from lmc.fsm.canonical import Canonical, merges_of
from lmc.segments import Part, Special
from lmc.tracebacks import warn

_Found = TypeVar("_Found")


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-in character for each byte, inverted (openai/gpt-2, encoder.py)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


_BYTES = _byte_alphabet()


_BLOCK = 384  # characters after which a text is cut at the next word
_LONG = 1 << 14  # characters whose encoding is no business of other threads
_WORD = re.compile(r"(?<=\S) (?=[A-Za-z])")
_WORD_CUT = re.compile(r" (?<=\S )(?=[A-Za-z])")  # as above; the space comes first for a fast search
_WORDS_OF = 64  # characters: shorter texts are not split into words
_NEW_WORDS, _MOST_WORDS = 24, 1 << 16  # learned from one text, and cached in all
_LONGEST_WORD = 100  # characters of a cached word
_COMPOSED = 4  # characters that NFC makes one
_BEFORE = "aZé世0_.,:;!?'\"-)]}/\\#<>|🙂"  # characters before such a space: one of each kind that pre-tokenizers distinguish


class Tokenizer:
    """A vocabulary and its rules, over `tokenizers.Tokenizer`.

    `parse_special=True` restores the old behaviour in which a special token's spelling in plain text is that token.
    `limit`: number of tokens of the model. Special tokens beyond it are dropped; ModelLoadError for any other.
    """

    def __init__(
        self,
        raw: RawTokenizer,
        *,
        eos_token_ids: Sequence[int] = (),
        bos_token_id: int | None = None,
        add_bos: bool = False,
        parse_special: bool = False,
        limit: int | None = None,
    ) -> None:
        check_ids(raw, limit)
        check_growth(raw)
        check_rules(raw)
        if isinstance(raw.model, models.BPE):
            raw.model.dropout = None  # which is for training: the same text would have other tokens each time
        raw.no_padding()
        raw.no_truncation()
        raw.encode_special_tokens = not parse_special
        self.raw = raw
        self.eos_token_ids = tuple(eos_token_ids)
        self.bos_token_id = bos_token_id
        self.add_bos = add_bos  # a prompt without a template starts with BOS
        self.parse_special = parse_special
        self.vocab_size = raw.get_vocab_size(with_added_tokens=True)
        added = raw.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._added = {token.content: i for i, token in added.items() if limit is None or i < limit}
        spellings = sorted((added[i].content for i in self.special_ids), key=len, reverse=True)
        self._spelling = re.compile("|".join(map(re.escape, spellings))) if spellings and not parse_special else None
        self._warned: set[str] = set()
        self.prefixes_behind_specials = is_legacy(raw)  # which put a space before each stretch of text, not the first alone
        self._words: dict[str, list[int]] = {}  # ids of words after a space; keys that begin with one: of the text without it
        self._middle = without_prefix(raw)
        if self._middle is not raw:
            self._middle.encode_special_tokens = not parse_special

    # -- text to ids

    def encode(self, parts: Sequence[Part], *, at_start: bool = True) -> list[int]:
        """Encode literal parts to ids. Adjacent strings are one run, whatever marks lie between them; specials cut
        runs.

        `at_start=False`: the parts continue a sequence (matters to vocabularies that put a space before the first word
        only). An unknown special spelling raises ProgramError.
        """
        ids: list[int] = []
        run: list[str] = []
        first = at_start
        for part in parts:
            if isinstance(part, str):
                run.append(part)
            elif isinstance(part, Special):
                ids += self._encode_run(run, first)
                ids.append(self.id_of(part.spelling))
                run.clear()
                first = self.prefixes_behind_specials
        return ids + self._encode_run(run, first)

    def blocks(self, text: str) -> list[str]:
        """Cut a long text where the encodings of both sides are independent, at positions that depend only on the
        preceding text: texts with a common beginning have their first blocks in common."""
        found: list[str] = []
        start = 0
        while len(text) - start > _BLOCK and self._cuts_at_words:
            cut = _WORD.search(text, start + _BLOCK)
            if cut is None:
                break
            found.append(text[start : cut.start()])
            start = cut.start()
        return [*found, text[start:]]

    def last_cut(self, text: str, start: int, end: int) -> int:
        """Return the last position in (start, end) where encodings of both sides are independent; `start` if none."""
        if not self._cuts_at_words:
            return start
        at = end
        while (at := text.rfind(" ", start + 1, at)) > start:
            if _WORD.match(text, at):
                return at
        return start

    @cached_property
    def _cuts_at_words(self) -> bool:
        """Return whether nothing merges across a space between a word and a letter."""
        raw = self.raw
        if any(" " in spelling for spelling in self._added):
            return False
        if self.is_sentencepiece:
            return self._begins_words
        if raw.pre_tokenizer is None or not (raw.normalizer is None or type(raw.normalizer).__name__ == "NFC"):
            return False
        try:
            begins = (2 in {start for _, (start, _) in raw.pre_tokenizer.pre_tokenize_str(f"x{before} {after}b")} for before in _BEFORE for after in "aZ")
            return all(begins)
        except BaseException as error:
            if not failed_in_library(error):
                raise
            return False  # so it will not encode such a text

    @property
    def _begins_words(self) -> bool:
        """Return, for sentencepiece's BPE, whether spaces are at the beginning of pieces only, and text is not
        normalized."""
        raw = self.raw
        rules = [*parts_of(raw.normalizer, "normalizers"), *parts_of(raw.pre_tokenizer, "pretokenizers")]
        known = [rule["type"] in ("Prepend", "Metaspace") or rule.get("pattern") == {"String": " "} for rule in rules]
        if not isinstance(raw.model, models.BPE) or not all(known):
            return False
        inside = re.compile(f"[^{sentencepiece.SPACE}]{sentencepiece.SPACE}")
        return not any(inside.search(piece) for piece in raw.get_vocab(with_added_tokens=False))

    def _encode_run(self, run: list[str], first: bool) -> list[int]:
        text = "".join(run)
        if not text:
            return []
        if not self._warned:
            self._warn_about_specials(text)
        if len(text) < _WORDS_OF or not self._encodes_words:
            return self._encoded(text, first)
        words = _WORD_CUT.split(text)
        begins: list[int] = []
        if first and self._middle is not self.raw:
            begins = self._encoded(words.pop(0), True)
        else:
            words[0] = _as_word(words[0])
        try:
            return [*begins, *chain.from_iterable(map(self._words.__getitem__, words))]
        except KeyError:
            return [*begins, *rest] if (rest := self._learned(words)) is not None else self._encoded(text, first)

    def _learned(self, words: Sequence[str]) -> list[int] | None:
        """Return ids of words of which some are new; None: too many are, or one is too long to be kept."""
        known, new = self._words, 0
        for word in words:
            if word not in known:
                new += 1
                if new > _NEW_WORDS or len(word) > _LONGEST_WORD:
                    return None
                if len(known) >= _MOST_WORDS:  # other threads may be reading it
                    known = self._words = dict[str, list[int]]((word, known[word]) for word in words if word in known)
                known[word] = self._encoded(word[1:] if word[0] == " " else f" {word}", False)
        return list(chain.from_iterable([known[word] for word in words]))

    def _encoded(self, text: str, first: bool) -> list[int]:
        raw = self.raw if first else self._middle
        try:
            if len(text) >= _LONG:  # a megabyte takes half a second, in which `encode` holds the interpreter's lock
                return raw.encode_batch_fast([text], add_special_tokens=False)[0].ids
            return raw.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            if not failed_in_library(error):
                raise
            raise ProgramError(f"the model's tokenizer.json cannot encode a text of {len(text)} characters: {error}; use another tokenizer") from None

    @cached_property
    def _encodes_words(self) -> bool:
        """Return whether a text's encoding is that of its words, each by itself."""
        spaced = (token.lstrip or token.rstrip for token in self.raw.get_added_tokens_decoder().values() if self.parse_special or not token.special)
        return self._cuts_at_words and not any(spaced)

    def least(self, texts: Iterable[str]) -> int:
        """Return how many tokens texts in a row have at least, by their length; 0 if that is not known, since rules may drop characters."""
        if self._longest is None:
            return 0
        longest, lost = self._longest
        return sum(len(text) - sum(map(text.count, lost)) for text in texts) // longest

    @cached_property
    def _longest(self) -> tuple[int, Sequence[str]] | None:
        """The number of characters for which one token may stand, and characters that may have no token, since the vocabulary lacks
        their byte; it has the last one of each that has several."""
        raw = self.raw
        if cuts_of(raw) in (None, "none", "spaces") or not self._encodes_words or not _merges_characters(raw):
            return None
        known = raw.get_vocab()
        lacking = [byte for spelling, byte in _BYTES.items() if spelling not in known]
        if any(0x80 <= byte < 0xC0 for byte in lacking):
            return None
        return max(map(len, known)) * (1 if raw.normalizer is None else _COMPOSED), [chr(byte) for byte in lacking if byte < 0x80]

    def _warn_about_specials(self, text: str) -> None:
        if self._spelling is None or (found := self._spelling.search(text)) is None:
            return
        warn(
            f"text contains {found[0]!r}, a special token's spelling; it is encoded as ordinary text. "
            f"If the token is meant, write lmc.special({found[0]!r}), or set parse_special=True on the backend",
            once=self._warned,
        )

    def id_of(self, special: str) -> int:
        """Return the id of a special (or other added) token by its spelling."""
        try:
            return self._added[special]
        except KeyError:
            known = ", ".join(sorted(self._added)[:12]) or "none"
            raise ProgramError(f"this model has no special token {special!r}; it has: {known}") from None

    def spelling(self, token: int) -> str:
        """Return the token as the vocabulary spells it; a padding id of the model beyond the vocabulary is ""."""
        return self.raw.id_to_token(token) or ""

    def split_specials(self, text: str) -> tuple[Part, ...]:
        """Split a template's text into parts: special and other added tokens by spelling, the rest plain."""
        if not self._added:
            return (text,) if text else ()
        pieces = self._added_spelling.split(text)
        return tuple(Special(p) if i % 2 else p for i, p in enumerate(pieces) if p)

    @cached_property
    def _added_spelling(self) -> re.Pattern[str]:
        return re.compile("(" + "|".join(map(re.escape, sorted(self._added, key=len, reverse=True))) + ")")

    # -- ids to text

    def decode(self, ids: Iterable[int], *, with_specials: bool = False, at_start: bool = True) -> str:
        """Decode ids to text; special tokens are left out unless requested. `at_start=False`: something precedes them,
        so that a space before the first word belongs to the text."""
        if self.is_sentencepiece and not at_start:
            spoken = (self.token_bytes(i) for i in ids if with_specials or i not in self.special_ids)
            return b"".join(spoken).decode("utf-8", "replace")
        return self.raw.decode(list(ids), skip_special_tokens=not with_specials)

    def detokenizer(self) -> Detokenizer:
        """Return a fresh incremental decoder for continuing other tokens; special tokens are left out."""
        return ByteDetokenizer(self.spoken, self.wholes) if self.byte_level or self.is_sentencepiece else StreamDetokenizer(self.raw)

    @cached_property
    def byte_level(self) -> bool:
        """Return whether tokens are byte strings in GPT-2's alphabet."""
        return "ByteLevel" in spec_of(self.raw.decoder)

    @cached_property
    def is_sentencepiece(self) -> bool:
        """Return whether tokens are text with ▁ for a space, or single bytes."""
        spec = spec_of(self.raw.decoder)
        return '"ByteFallback"' in spec or '"Metaspace"' in spec

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; for a special token those of its spelling."""
        text = self.spelling(token)
        if self.byte_level:
            return _unspell(text)
        if token in self.special_ids:
            return text.encode()
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace(sentencepiece.SPACE, " ").encode()

    @cached_property
    def byte_table(self) -> tuple[bytes, ...]:
        """Return `token_bytes` of every id, special tokens as b""."""
        return tuple(b"" if i in self.special_ids else self.token_bytes(i) for i in range(self.vocab_size))

    def canonical(self, size: int) -> Canonical | None:
        """Return which tokens never follow each other in an encoding, of a model with `size` logits; None for
        tokenizers where that is unknown. Takes some tenths of a second."""
        raw = self.raw
        cuts = cuts_of(raw)
        if cuts is None or not _merges_characters(raw):
            return None
        model = json.loads(raw.model.__getstate__())
        if model.get("dropout"):
            return None
        merges = merges_of(model["vocab"], model["merges"])
        return Canonical(self.byte_table, merges, cuts, frozenset(raw.get_added_tokens_decoder()), size)

    @cached_property
    def spoken(self) -> Mapping[int, bytes]:
        """Return the text that each token adds; special tokens add nothing."""
        return _LookedUp(lambda token: b"" if token in self.special_ids else self.token_bytes(token))

    @cached_property
    def wholes(self) -> Mapping[int, str | None]:
        """Return the same as text, for tokens of whole characters; None for others."""
        return _LookedUp(self._whole)

    def _whole(self, token: int) -> str | None:
        try:
            return self.spoken[token].decode()
        except UnicodeDecodeError:
            return None

    # -- storage

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`."""
        path.write_text(self.raw.to_str(), encoding="utf-8")


class _LookedUp(dict[int, _Found]):
    """What is found of each token, once."""

    def __init__(self, find: Callable[[int], _Found]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, token: int) -> _Found:
        found = self[token] = self._find(token)
        return found


def _merges_characters(raw: RawTokenizer) -> bool:
    """Return whether the model is BPE over the characters of a text, as they are."""
    model = raw.model
    return isinstance(model, models.BPE) and not model.continuing_subword_prefix and not model.end_of_word_suffix


def _unspell(text: str) -> bytes:
    try:
        return bytes([_BYTES[c] for c in text])
    except KeyError:
        return text.encode()  # an added token outside the alphabet is itself


def _as_word(head: str) -> str:
    """Return the beginning of a text in the form of the word cache's keys."""
    return head[1:] if head[0] == " " and head[1:2].isascii() and head[1:2].isalpha() else f" {head}"


# -- from files ------------------------------------------------------------------------------------------------------


def from_file(path: Path, **options: Any) -> Tokenizer:
    """Load from `tokenizer.json`. Options are those of Tokenizer."""
    if path.exists():
        check_size(path)
    return _loaded(lambda: _read(path), str(path), "not a readable tokenizer.json", **options)


def _read(path: Path) -> RawTokenizer:
    data = path.read_bytes()
    check_charsmaps(data)
    return RawTokenizer.from_buffer(data)


def from_json(text: str, where: str, **options: Any) -> Tokenizer:
    """Load from the content of a `tokenizer.json`. Options are those of Tokenizer."""
    return _loaded(lambda: RawTokenizer.from_str(text), where, "its tokenizer is not readable", **options)


def _loaded(read: Callable[[], RawTokenizer], where: str, failed: str, **options: Any) -> Tokenizer:
    try:
        return Tokenizer(read(), **options)
    except ModelLoadError as error:
        raise ModelLoadError(f"{where}: {error}") from None
    except BaseException as error:
        if not isinstance(error, Exception) and not failed_in_library(error):
            raise
        raise ModelLoadError(f"{where}: {failed}: {error}") from error
