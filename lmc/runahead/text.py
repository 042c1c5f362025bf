"""The text of a prompt since its last answer, compared with the graph's version: pieces with any text between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from lmc.segments import Image, Mark, Special

Piece = str | Special | Mark | type[Image] | None
"""A part of a prompt's text as far as it is known; None: any text; Image: any image."""


def flat(pieces: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Join adjacent text, so that it does not matter how it was cut."""
    joined: list[Any] = []
    for _, alike in groupby((x for part in pieces for x in part if x != ""), type):
        run: list[Any] = list(alike)
        joined += ["".join(run)] if isinstance(run[0], str) else [None] if run[0] is None else run
    return tuple(joined)


@lru_cache(maxsize=1024)
def pattern(text: tuple[Piece, ...], rest: tuple[Piece, ...]) -> re.Pattern[str]:
    """Return a pattern of texts that begin with the pieces `text`, its group 1, and end with `rest`."""
    return re.compile(f"({source(text, '.*?')}){source(rest, '.*?')}", re.DOTALL)


def source(pieces: Iterable[Piece], any_text: str) -> str:
    """Return the source of a pattern of pieces."""
    return "".join([any_text if p is None else re.escape(code(p)) for p in pieces])


def code(part: object) -> str:
    """Encode a part as text to search: special tokens, marks and images as strings unlikely to occur in text."""
    if isinstance(part, str):
        return part
    if part is Image or isinstance(part, Image):
        return "\0i\0"
    return f"\0s{part.spelling}\0" if isinstance(part, Special) else f"\0m{part.edge} {part.role}\0" if isinstance(part, Mark) else "\0?\0"


def encoded(tail: Sequence[object]) -> tuple[str, list[tuple[int, object]]]:
    """Return the text to search, and each part with the index at which it ends there."""
    text, parts, at = "", list[tuple[int, object]](), 0
    for part in tail:
        piece = code(part)
        at += len(piece)
        text += piece
        parts.append((at, part))
    return text, parts


def divided(parts: Sequence[tuple[int, object]], at: int) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Return the parts before and after an index; None if it falls into a part that is not text."""
    head, rest = between(parts, 0, at), between(parts, at, parts[-1][0] if parts else 0)
    return None if head is None or rest is None else (head, rest)


def between(parts: Sequence[tuple[int, object]], start: int, end: int) -> tuple[Any, ...] | None:
    """Return the parts between two indices; None if one falls into a part that is not text."""
    found: list[object] = []
    begins = 0
    for ends, part in parts:
        low, high = max(start, begins), min(end, ends)
        if low < high:
            if (low, high) == (begins, ends):
                found.append(part)
            elif isinstance(part, str):
                found.append(part[low - begins : high - begins])
            else:
                return None
        begins = ends
    return tuple(found)


def is_literal(parts: Iterable[object]) -> bool:
    """Return whether the parts are text and images alone, special tokens and marks included."""
    return all(isinstance(part, str | Special | Mark | Image) for part in parts)


def without(tail: Sequence[object], head: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Return the text `head` and the parts that follow it in `tail`; None if the tail begins differently. It does not matter how either is cut."""
    rest = [part for part in reversed(tail) if part.__class__ is not str or part]  # the next one last
    for wanted in head:
        if wanted.__class__ is not str:
            if not rest or rest.pop() != wanted:
                return None
            continue
        while wanted:
            part: Any = rest.pop() if rest else None
            if part.__class__ is not str or not (part.startswith(wanted) or wanted.startswith(part)):
                return None
            wanted, left = wanted[len(part) :], part[len(wanted) :]
            if left:
                rest.append(left)
    return head, tuple(rest[::-1])
