"""Layout of JSON instances: separators between values, and the one text of a value.

As `json.dumps(value, ensure_ascii=False)` writes: on one line, compact or indented, unless the schema's root says
otherwise under `x-lmc`.
"""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lmc.fsm.json_shapes import wrong
from lmc.fsm.json_styles import CLOSE, ITEM, KEY, MODEL, OPEN, Style
from lmc.fsm.json_text import string
from lmc.fsm.nodes import EMPTY, NOTHING, Concat, Node, NodeGraph, one_of, seq, text
from lmc.fsm.regex import parse

WHITESPACE = ("model", "compact", "any")
OPTIONS = "x-lmc"  # a keyword at the root: layout of instances


@dataclass(frozen=True)
class Layout:
    """Separators between values.

    open, close  padding inside of brackets; gap: in empty ones
    additional   objects and arrays that say nothing of further properties and items may have them
    styles       in which the tree is written, where item, key, open and close are marks (json_styles.py)
    """

    item: Node
    key: Node
    open: Node
    close: Node
    gap: Node
    depth: int | None
    strict: bool
    styles: tuple[Style, ...]
    additional: bool

    @staticmethod
    def of(root: Any) -> Layout:
        given, at = root.get(OPTIONS, {}) if isinstance(root, dict) else {}, f"/{OPTIONS}"
        if not isinstance(given, dict) or set(given) - {"whitespace", "separators", "depth", "strict", "additional"}:
            raise wrong(at, f"takes whitespace, separators, depth, strict and additional, not {json.dumps(given, default=str)}")
        kind, depth, strict, additional = (given.get("whitespace", "model"), given.get("depth"), given.get("strict", False), given.get("additional", False))
        if kind not in WHITESPACE:
            raise wrong(f"{at}/whitespace", f"is one of {', '.join(map(json.dumps, WHITESPACE))}")
        if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 1):
            raise wrong(f"{at}/depth", "takes a whole number from 1 up")
        for option in ("strict", "additional"):
            if not isinstance(given.get(option, False), bool):
                raise wrong(f"{at}/{option}", "must be true or false")
        styles: tuple[Style, ...] = ()
        if "separators" in given:
            if "whitespace" in given:
                raise wrong(f"{at}/separators", "and whitespace say the same; give one of them")
            comma, colon = _separators(given["separators"], f"{at}/separators")
            marks = text(comma), text(colon), EMPTY, EMPTY, EMPTY
        elif kind == "compact":
            marks = text(","), text(":"), EMPTY, EMPTY, EMPTY
        elif kind == "any":
            gap = parse(r"[ \n\t]*")
            marks = seq(gap, text(","), gap), seq(gap, text(":"), gap), gap, gap, gap
        else:
            marks, styles = (ITEM, KEY, OPEN, CLOSE, EMPTY), MODEL if depth is None else MODEL[:1]
        return Layout(*marks, depth, strict, styles, additional)

    def values(self, values: Sequence[Any]) -> Node:
        """Return the texts of several values; arrays, and objects, share what they begin with."""
        found = [self.value(v) for v in values if not isinstance(v, list | dict) or not v]
        for marks, same in (
            ("[]", [[(None, item) for item in v] for v in values if isinstance(v, list) and v]),
            ("{}", [list(v.items()) for v in values if isinstance(v, dict) and v]),
        ):
            if same:
                found.append(self.bracketed(marks, self._beginnings(same) if len(same) > 1 else self.listed([self._part(*part) for part in same[0]])))
        return one_of(found)

    def _part(self, key: str | None, value: Any) -> Node:
        """Return the text of an item, or of a member."""
        return self.value(value) if key is None else self.member(string(key), self.value(value))

    def _beginnings(self, sequences: Sequence[Sequence[tuple[str | None, Any]]]) -> Node:
        """Return a graph with a state for each beginning of several of the sequences, and one behind the first part of each that no other
        one has: what follows that is one text. Their parts: keys, of objects, and values."""
        made: dict[tuple[bool, str], Node] = {}

        def part(index: int, at: int) -> Node:
            if (node := made.get((index > 0, written[at][index]))) is None:
                node = self._part(*parts[at][index])
                node = made[index > 0, written[at][index]] = seq(self.item, node) if index else node
            return node

        written, parts = zip(*sorted([(list(map(repr, parts)), parts) for parts in sequences], key=operator.itemgetter(0)))
        shared = [0, *itertools.starmap(_shared, itertools.pairwise(written)), 0]
        edges: list[tuple[int, Node, int]] = []
        final: set[int] = set()
        states = itertools.count(1)
        path: list[int] = []
        for at, texts in enumerate(written):
            del path[shared[at] :]
            alone = min(max(shared[at], shared[at + 1]) + 1, len(texts))
            for index in range(len(path), alone):
                edges.append((path[-1] if path else 0, part(index, at), to := next(states)))
                path.append(to)
            if rest := [part(index, at) for index in range(alone, len(texts))]:
                edges.append((path[-1], Concat(tuple(rest)) if len(rest) > 1 else rest[0], to := next(states)))
                final.add(to)
            else:
                final.add(path[-1])
        return NodeGraph(tuple(edges), frozenset(final))

    def value(self, value: Any) -> Node:
        """Return the one text of a value; of a number with a point also that of an equal integer, as in instances of 2.0."""
        if isinstance(value, str):
            return string(value)
        if isinstance(value, list):
            return self.bracketed("[]", self.listed([self.value(v) for v in value]))
        if isinstance(value, dict):
            return self.bracketed("{}", self.listed([self.member(string(k), self.value(v)) for k, v in value.items()]))
        if isinstance(value, Decimal):
            written = [str(value), *([str(int(value))] if value == value.to_integral_value() else [])]
            return one_of([text(digits) for digits in dict.fromkeys(written)])
        return text(json.dumps(value))

    def listed(self, parts: Sequence[Node]) -> Node:
        return seq(*(p if i == 0 else seq(self.item, p) for i, p in enumerate(parts)))

    def bracketed(self, marks: str, inner: Node) -> Node:
        if inner == EMPTY:
            return seq(text(marks[0]), self.gap, text(marks[1]))
        return seq(text(marks[0]), self.open, inner, self.close, text(marks[1]))

    def maybe_empty(self, marks: str, inner: Node, *, empty: bool) -> Node:
        """Return brackets around some parts, NOTHING if there are none; or, if they may be `empty`, around nothing."""
        return one_of([self.bracketed(marks, EMPTY) if empty else NOTHING, self.bracketed(marks, inner)])

    def member(self, key: Node, value: Node) -> Node:
        return seq(key, self.key, value)


def _separators(given: Any, at: str) -> tuple[str, str]:
    if not isinstance(given, list) or len(given) != 2 or not all(isinstance(s, str) and s.strip(" \n\t\r") == mark for s, mark in zip(given, ",:")):
        raise wrong(at, 'is like [", ", ": "]: the comma and the colon, with white space around them')
    return given[0], given[1]


def one_line(source: str) -> str:
    """Return a schema whose instances are written on one line, unless it sets its own layout; invalid JSON unchanged,
    to be refused when it is compiled."""
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError):
        return source
    if not isinstance(schema, dict):
        schema = {"allOf": [schema]}
    given = schema.get(OPTIONS, {})
    if not isinstance(given, dict) or "separators" in given or given.get("whitespace", "model") != "model":
        return source
    options = {k: v for k, v in given.items() if k != "whitespace"}
    return json.dumps({**schema, OPTIONS: {**options, "separators": [", ", ": "]}}, ensure_ascii=False)


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many parts two sequences share from the beginning."""
    return next((at for at, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))
