"""How JSON instances are written: what stands between values, and the one text of a value.

What `json.dumps(value, ensure_ascii=False)` writes, unless the schema's root says otherwise under `x-lmc`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lmc.fsm.json_shapes import wrong
from lmc.fsm.json_text import seq, string, text
from lmc.fsm.regex import EMPTY, Node, parse

OPTIONS = "x-lmc"  # a keyword at the root: how instances are written


@dataclass(frozen=True)
class Layout:
    """What stands between values. `gap`: what may stand at every place where JSON allows white space."""

    item: Node
    key: Node
    gap: Node
    depth: int | None
    strict: bool = False

    @staticmethod
    def of(root: Any) -> Layout:
        given = root.get(OPTIONS, {}) if isinstance(root, dict) else {}
        at = f"/{OPTIONS}"
        if not isinstance(given, dict) or set(given) - {"whitespace", "separators", "depth", "strict"}:
            raise wrong(at, f"takes whitespace, separators, depth and strict, not {json.dumps(given, default=str)}")
        separators = given.get("separators", [", ", ": "])
        if (
            not isinstance(separators, list)
            or len(separators) != 2
            or not all(isinstance(s, str) and s.strip(" \n\t\r") == mark for s, mark in zip(separators, ",:"))
        ):
            raise wrong(f"{at}/separators", 'is like [", ", ": "]: the comma and the colon, with white space around them')
        kind, depth = given.get("whitespace", "fixed"), given.get("depth")
        if kind not in ("fixed", "flexible"):
            raise wrong(f"{at}/whitespace", '"fixed" or "flexible"')
        if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 1):
            raise wrong(f"{at}/depth", "takes a whole number from 1 up")
        strict = given.get("strict", False)
        if not isinstance(strict, bool):
            raise wrong(f"{at}/strict", "must be true or false")
        if kind == "fixed":
            return Layout(text(separators[0]), text(separators[1]), EMPTY, depth, strict)
        if "separators" in given:
            raise wrong(f"{at}/separators", 'goes with "whitespace": "fixed"')
        gap = parse(r"[ \n\t]*")
        return Layout(seq(gap, text(","), gap), seq(gap, text(":"), gap), gap, depth, strict)

    def value(self, value: Any) -> Node:
        """The one text of a value."""
        if isinstance(value, str):
            return string(value)
        if isinstance(value, list):
            return self.bracketed("[]", self.listed([self.value(v) for v in value]))
        if isinstance(value, dict):
            return self.bracketed("{}", self.listed([self.member(string(k), self.value(v)) for k, v in value.items()]))
        return text(str(value) if isinstance(value, Decimal) else json.dumps(value))

    def listed(self, parts: Sequence[Node]) -> Node:
        return seq(*(p if i == 0 else seq(self.item, p) for i, p in enumerate(parts)))

    def bracketed(self, marks: str, inner: Node) -> Node:
        gap = self.gap
        return seq(text(marks[0]), gap, text(marks[1])) if inner == EMPTY else seq(text(marks[0]), gap, inner, gap, text(marks[1]))

    def member(self, key: Node, value: Node) -> Node:
        return seq(key, self.key, value)
