"""Prompts inside the mock: strings of one character per token, cheap to extend, hash and match."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from lmc import videos
from lmc.images import digest, read
from lmc.segments import Image, Part, Special

# -- tokens ----------------------------------------------------------------------------------------------------------

KNOWN_SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_FIRST_HASHED = 0xE000  # above the surrogates: ids are characters


@lru_cache(maxsize=1024)
def special_id(spelling: str) -> int:
    """Return the token id of a special token: the same in every process, and never that of a byte."""
    if spelling in KNOWN_SPECIALS:
        return 256 + KNOWN_SPECIALS.index(spelling)
    return _FIRST_HASHED + zlib.crc32(spelling.encode()) % (0x110000 - _FIRST_HASHED)


def tokens_of(text: str) -> str:
    """Return text as a string of one character per token, which for ASCII is the text itself."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("latin-1")


def encode(parts: Iterable[Part]) -> tuple[int, ...]:
    """Return token ids of literal parts."""
    return tuple(map(ord, "".join(map(part_tokens, parts))))


def part_tokens(part: Part) -> str:
    if isinstance(part, str):
        return tokens_of(part)
    return chr(special_id(part.spelling)) if isinstance(part, Special) else ""


def image_tokens(digest: bytes) -> str:
    """Return four tokens of the hash of an image's file or address."""
    numbers = (int.from_bytes(digest[at : at + 4], "big") for at in range(0, 16, 4))
    return "".join(chr(_FIRST_HASHED + number % (0x110000 - _FIRST_HASHED)) for number in numbers)


@dataclass(frozen=True, slots=True)
class SeenImage:
    """An image as the mock sees it: its file, or its web address, and tokens derived from its content."""

    content: bytes | str
    tokens: str


def seen_image(image: Image) -> SeenImage:
    """Read an image as chat APIs do; raise at its location for an invalid one."""
    seen = read(image) if image.frames is None else videos.read(image)
    return SeenImage(seen.source, image_tokens(digest(seen)))


LONG = 1024
"""Tokens from which on a prompt keeps its hash for its extensions; below, the hash object costs more than hashing."""


class MockNode:
    """A prompt: its last piece after its parent's. Token string, text and hash are made on demand."""

    __slots__ = ("_hash", "_text", "answered", "counted", "length", "parent", "piece", "shown")

    def __init__(self, parent: MockNode | None, piece: str, shown: str) -> None:
        """Create a node; `piece` as tokens, `shown` as a person reads it."""
        self.parent, self.piece, self.shown = parent, piece, shown
        self.length: int = len(piece) + (parent.length if parent is not None else 0)
        self.answered: int = parent.answered if parent is not None else 0  # length up to the end of the last answer
        self._hash: Any = None
        self._text: str | None = None
        self.counted: PrefixCounter | None = None  # where it ends in the tree in which it was counted

    @property
    def hash(self) -> Any:
        """Return a hash of the tokens; copy before use."""
        if self._hash is not None:
            return self._hash
        pieces: list[str] = []
        node: MockNode | None = self
        while node is not None and node._hash is None:
            pieces.append(node.piece)
            node = node.parent
        made = blake2b(digest_size=32) if node is None else node._hash.copy()
        made.update("".join(pieces[::-1]).encode("utf-8", "surrogatepass"))
        if self.length >= LONG:
            self._hash = made
        return made

    @property
    def tokens(self) -> str:
        pieces: list[str] = []
        node: MockNode | None = self
        while node is not None:
            pieces.append(node.piece)
            node = node.parent
        return "".join(pieces[::-1])

    @property
    def text(self) -> str:
        if self._text is None:
            shown: list[str] = []
            node: MockNode | None = self
            while node is not None and node._text is None:
                shown.append(node.shown)
                node = node.parent
            start = "" if node is None else node._text or ""
            self._text = start + "".join(shown[::-1])
        return self._text


class MockPicture(MockNode):
    """A picture after its parent's prompt."""

    __slots__ = ("content",)

    def __init__(self, parent: MockNode, piece: str, content: bytes | str) -> None:
        super().__init__(parent, piece, "")
        self.content = content  # its file, or its web address


def images_of(prompt: MockNode) -> list[bytes | str]:
    """Return the pictures in a prompt, in order."""
    found: list[bytes | str] = []
    node: MockNode | None = prompt
    while node is not None:
        if isinstance(node, MockPicture):
            found.append(node.content)
        node = node.parent
    return found[::-1]


ROOT = MockNode(None, "", "")


_numbers = itertools.count()


class PrefixCounter:
    """Prompts seen so far: a radix tree, to count what a prefix cache would have had.

    A node represents one token string for the life of the tree: splitting an edge adds a new node in its middle.
    """

    __slots__ = ("_edges", "_number")

    def __init__(self, number: int | None = None) -> None:
        """Create a node; `number` of its tree; None makes a new one."""
        self._edges: dict[str, tuple[str, PrefixCounter]] = {}
        self._number = next(_numbers) if number is None else number

    def count(self, prompt: MockNode) -> int:
        """Return the length of the longest prefix of a prompt in the tree; insert all of it."""
        pieces: list[str] = []
        node, start, number = prompt, self, self._number
        while node.parent is not None:  # the root is shared by all mocks
            counted = node.counted
            if counted is not None and counted._number == number:
                start = counted
                break
            pieces.append(node.piece)
            node = node.parent
        known, end = start._insert("".join(pieces[::-1]))
        if prompt.parent is not None:
            prompt.counted = end
        return node.length + known

    def _insert(self, tokens: str) -> tuple[int, PrefixCounter]:
        """Return how much of `tokens` continues from here already, and where it ends; insert all of it."""
        node, at, number = self, 0, self._number
        while at < len(tokens):
            edge = node._edges.get(tokens[at])
            if edge is None:
                end = PrefixCounter(number)
                node._edges[tokens[at]] = tokens[at:], end
                return at, end
            label, child = edge
            if not tokens.startswith(label, at):
                shared = _common(label, tokens[at : at + len(label)])
                end = middle = PrefixCounter(number)
                middle._edges[label[shared]] = label[shared:], child
                node._edges[label[0]] = label[:shared], middle
                at += shared
                if at < len(tokens):
                    end = PrefixCounter(number)
                    middle._edges[tokens[at]] = tokens[at:], end
                return at, end
            node, at = child, at + len(label)
        return at, node


def _common(a: str, b: str) -> int:
    """Return the length of the common prefix, by bisection: comparing slices is faster than a loop."""
    if a == b[: len(a)]:
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
