"""Prompts sent in another order than written: the moves of `aggressive=True`, applied where requests are submitted.

    Aggressive.moves ──► (address, line) of an ask → Move ──apply──► the text of Python's prompt, reordered

Python's own prompt stays as the program wrote it. Text that differs from the graph, or in which the end of an argument
is ambiguous (it contains the text after it), is sent as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lmc.passes.aggressive import Pieces
from lmc.runahead.text import Piece, between, encoded, flat, source
from lmc.segments import Given


@dataclass(frozen=True)
class Move:
    """One prompt's beginning as written and as sent. Arguments are None; they keep their order among each other.

    rest  the pieces between it and the first request
    """

    written: tuple[Piece, ...]
    sent: tuple[Piece, ...]
    rest: tuple[Piece, ...]

    @staticmethod
    def of(written: Pieces, sent: Pieces, rest: Pieces) -> Move:
        return Move(flat([written]), flat([sent]), flat([rest]))

    def apply(self, tail: Sequence[object]) -> tuple[Any, ...]:
        """Return a prompt's parts since its beginning in sending order. Answers from a journal are among them."""
        answers = next((i for i, part in enumerate(tail) if part.__class__ is Given), len(tail))
        return (*self._sent(tail[:answers]), *tail[answers:])

    def _sent(self, tail: Sequence[object]) -> tuple[Any, ...]:
        text, parts = encoded(tail)
        lazy, greedy = (pattern.fullmatch(text) for pattern in self._patterns)
        if lazy is None or greedy is None or lazy.regs != greedy.regs:
            return tuple(tail)
        (_, behind), *arguments = lazy.regs[1:]
        spans = iter(arguments)
        found: list[Any] = []
        for piece in self.sent:
            if piece is not None:
                found.append(piece)
                continue
            argument = between(parts, *next(spans))
            if argument is None:
                return tuple(tail)
            found += argument
        rest = between(parts, behind, len(text))
        return tuple(tail) if rest is None else (*found, *rest)

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """Return patterns of the same text with arguments as short and as long as possible: if both match equally, the reading is unique."""

        lazy, greedy = (f"({source(self.written, f'({text})')}){source(self.rest, text)}" for text in (".*?", ".*"))
        return re.compile(lazy, re.DOTALL), re.compile(greedy, re.DOTALL)
