"""The text of a prompt since its last answer, compared with the graph's version: pieces with any text between them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
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


_OTHER = "\U0010ffff"
"""The character of a part that is neither text nor in the graph, such as an excerpt."""


def match(tail: Sequence[Any], head: tuple[Piece, ...], rest: tuple[Piece, ...], any_text: str = ".*?") -> re.Match[str] | None:
    """Match a prompt's parts with the pieces `head`, group 1 with a group for each None in it, and `rest`. A part that is not text is one character."""
    pattern, codes = _pattern(head, rest, any_text)
    text = [part if part.__class__ is str else codes.get(Image if isinstance(part, Image) else part, _OTHER) for part in tail]
    return pattern.fullmatch("".join(text))


@lru_cache(maxsize=1024)
def _pattern(head: tuple[Piece, ...], rest: tuple[Piece, ...], any_text: str) -> tuple[re.Pattern[str], Mapping[object, str]]:
    """Return a pattern of pieces, and the private characters of those that are not text."""
    others = dict.fromkeys(piece for piece in (*head, *rest) if piece is not None and not isinstance(piece, str))
    codes: dict[object, str] = {piece: chr(0x100000 + i) for i, piece in enumerate(others)}

    def source(pieces: Sequence[Piece], any_text: str) -> str:
        return "".join([any_text if p is None else re.escape(p if isinstance(p, str) else codes[p]) for p in pieces])

    return re.compile(f"({source(head, f'({any_text})')}){source(rest, any_text)}", re.DOTALL), codes


def between(parts: Sequence[Any], start: int, end: int = sys.maxsize) -> tuple[Any, ...]:
    """Return the parts between two indices of their text."""
    found: list[object] = []
    begins = 0
    for part in parts:
        ends = begins + (len(part) if part.__class__ is str else 1)
        if (low := max(start, begins)) < (high := min(end, ends)):
            found.append(part[low - begins : high - begins] if part.__class__ is str else part)
        begins = ends
    return tuple(found)


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
