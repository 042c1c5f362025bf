"""Prompts sent in another order than written: the moves of `aggressive=True`, applied where requests are submitted.

    Aggressive.moves ──► (address, line) of an ask → Move ──apply──► the text of Python's prompt, reordered

Python's own prompt stays as the program wrote it. Text that differs from the graph, or in which the end of an argument
is ambiguous (it contains the text after it), is sent as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lmc.passes.aggressive import Pieces
from lmc.runahead.text import Piece, between, flat, match
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
        lazy, greedy = (match(tail, self.written, self.rest, any_text) for any_text in (".*?", ".*"))  # arguments as short and as long as possible
        if lazy is None or greedy is None or lazy.regs != greedy.regs:  # there is no such reading, or several
            return tuple(tail)
        (_, behind), *arguments = lazy.regs[1:]
        spans = iter(arguments)
        sent = (between(tail, *next(spans)) if piece is None else (piece,) for piece in self.sent)
        return (*chain.from_iterable(sent), *between(tail, behind))
