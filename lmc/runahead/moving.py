"""Prompts sent in another order than written: the moves of `aggressive=True`, applied where requests are submitted.

    graph before the aggressive pass ──moves──► (address, line) of an ask → Move ──apply──► the text of Python's prompt, reordered

Python's own prompt stays as the program wrote it. Text that differs from the graph, or in which the end of an argument
is ambiguous (it contains the text after it), is sent as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lmc.ir.core import Graph, Op, Operand, Value
from lmc.ir.ops import address as address_of
from lmc.ir.ops import trait
from lmc.passes.aggressive import Aggressive, first_texts
from lmc.runahead.text import Piece, between, encoded, flat, source
from lmc.segments import Given

Place = tuple[Any, tuple[str, int] | None]
"""Address and line of a request."""


@dataclass(frozen=True)
class Move:
    """One prompt's beginning as written and as sent. Arguments are None; they keep their order among each other.

    rest  the pieces between it and the first request
    """

    written: tuple[Piece, ...]
    sent: tuple[Piece, ...]
    rest: tuple[Piece, ...]

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


def moves(graph: Graph, rewrite: Aggressive) -> Mapping[Place, Move]:
    """Return the moves before each request of a graph on which the aggressive pass would run next."""
    first = first_texts(graph)
    found: dict[Place, Move] = {}
    for op in graph.ops():
        if trait(op) != "samples":
            continue
        behind = _behind(graph, op, first)
        if behind is None:
            continue
        text, rest = behind
        written = text.operands[1:]
        sent, _ = rewrite.moved(written, last=first[text.results[0]])
        if sent != written:
            line = None if op.loc is None else (op.loc.file, op.loc.line)
            found[address_of(op), line] = Move(flat([_pieces(written)]), flat([_pieces(sent)]), flat([rest]))
    return found


def _pieces(operands: Sequence[Operand]) -> tuple[Any, ...]:
    return tuple(None if isinstance(x, Value) else x for x in operands)


def _behind(graph: Graph, ask: Op, first: Mapping[Value, bool]) -> tuple[Op, tuple[Any, ...]] | None:
    """Return the first text of the prompt that a request extends, and the pieces between it and the first request; None if there are several."""
    pieces: list[Any] = []
    node: Operand = ask.operands[0]
    while isinstance(node, Value):
        made = graph.producer.get(node)
        if made is None:  # text added by arms or turns is not known here
            texts = set(_texts(graph, node, first, set()))
            if len(texts) != 1 or (text := texts.pop()) is None:
                return None
            return graph.producer[text], (None, *reversed(pieces))
        if trait(made) == "samples":  # it matters if that answer is known from a journal
            return _behind(graph, made, first)
        if made.kind != "append":
            return None
        if node in first:
            return made, tuple(reversed(pieces))
        pieces += reversed(_pieces(made.operands[1:]))
        node = made.operands[0]
    return None


def _texts(graph: Graph, node: Operand, first: Mapping[Value, bool], seen: set[Operand]) -> Iterator[Value | None]:
    """Return the first texts that a prompt may begin with; None for another beginning, or one with an answer after it."""
    while isinstance(node, Value) and node not in seen:
        seen.add(node)
        if node in first:
            yield node
            return
        made = graph.producer.get(node)
        if made is None:
            for feeding in graph.feeds.get(node, ()):
                yield from _texts(graph, feeding, first, seen)
            if not graph.feeds.get(node):
                yield None
            return
        if made.kind == "append":
            node = made.operands[0]
        elif trait(made) == "samples":  # after an answer the prompt has a handle, and nothing moves: it may begin with any text
            return
        else:
            yield None
            return
