"""Detokenizers: token ids in, text out, one at a time, and never half a character."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from tokenizers import Tokenizer as RawTokenizer
from tokenizers.decoders import DecodeStream


class Detokenizer(Protocol):
    """Ids in, text out, one at a time; never half a character. Forked with the sequence."""

    def push(self, token: int) -> str:
        """Return the text that is certain now, "" while a character is incomplete."""
        ...

    def push_all(self, tokens: Iterable[int]) -> list[str]:
        """Return the same for each of several."""
        ...

    def flush(self) -> str:
        """Return the text of an unfinished character at the end; the detokenizer is empty afterwards."""
        ...

    def fork(self) -> Detokenizer: ...


class ByteDetokenizer:
    """Detokenizer for vocabularies whose tokens are bytes: collects them and returns whole characters.

    spoken  the bytes that each token adds; a special one none
    wholes  the same as text, for tokens of whole characters; None for others
    """

    __slots__ = ("_pending", "_spoken", "_wholes")

    def __init__(self, spoken: Mapping[int, bytes], wholes: Mapping[int, str | None], pending: bytes = b"") -> None:
        self._spoken, self._wholes, self._pending = spoken, wholes, pending

    def push(self, token: int) -> str:
        data = self._pending + self._spoken[token]
        if data.isascii():
            self._pending = b""
            return data.decode()
        keep = _incomplete_tail(data)
        self._pending = data[len(data) - keep :]
        return data[: len(data) - keep].decode("utf-8", "replace")

    def push_all(self, tokens: Iterable[int]) -> list[str]:
        wholes, found = self._wholes, list[str]()
        for token in tokens:
            piece = None if self._pending else wholes[token]
            found.append(self.push(token) if piece is None else piece)
        return found

    def flush(self) -> str:
        text, self._pending = self._pending.decode("utf-8", "replace"), b""
        return text

    def fork(self) -> ByteDetokenizer:
        return ByteDetokenizer(self._spoken, self._wholes, self._pending)


def _incomplete_tail(data: bytes) -> int:
    """Return how many bytes at the end begin a character that could still be completed (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        lead = data[-back]
        if lead < 0x80:
            return 0
        if lead >= 0xC0:
            size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return back if back < size and _may_continue(data[-back:]) else 0
    return 0


def _may_continue(head: bytes) -> bool:
    """Return whether these bytes are a proper prefix of some UTF-8 character (by the decoder itself)."""
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


class StreamDetokenizer:
    """Detokenizer for other vocabularies (WordPiece): the library's own stream."""

    __slots__ = ("_held", "_ids", "_raw", "_stream")

    def __init__(self, raw: RawTokenizer) -> None:
        self._raw, self._stream, self._ids, self._held = raw, DecodeStream(skip_special_tokens=True), [], ""

    def push(self, token: int) -> str:
        self._ids.append(token)
        text = self._stream.step(self._raw, token) or ""
        self._held += text
        return text

    def push_all(self, tokens: Iterable[int]) -> list[str]:
        return [self.push(token) for token in tokens]

    def flush(self) -> str:
        whole = self._raw.decode(self._ids, skip_special_tokens=True)
        rest = whole[len(self._held) :] if whole.startswith(self._held) else ""
        self._stream, self._ids, self._held = DecodeStream(skip_special_tokens=True), [], ""
        return rest

    def fork(self) -> StreamDetokenizer:
        other = StreamDetokenizer(self._raw)
        other._ids, other._held = list(self._ids), self._held
        for token in self._ids:
            other._stream.step(self._raw, token)
        return other
