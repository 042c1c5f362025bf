"""Ways to write one JSON value: on one line, compact, or indented. A schema is compiled once, with marks where white
space may stand; each way interprets that tree: `Styles` the parts that are reached, `written` all of it.

    {"a":·[1,·2]}      one line     {"a": [1, 2]}
                       compact      {"a":[1,2]}
                       indented     {⏎  "a": [⏎    1,⏎    2⏎  ]⏎}

An answer may be written in any of them, and continues as it began, so that forced text stays forced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmc.fsm.nodes import (
    EMPTY,
    Chars,
    Concat,
    Node,
    NodeGraph,
    Ref,
    one_of,
    parts_of,
    reached,
    rebuilt,
    repeat,
    seq,
    text,
)

ITEM, KEY, OPEN, CLOSE = Ref("\0item"), Ref("\0key"), Ref("\0open"), Ref("\0close")
"""Marks: the comma, the colon, and the padding inside non-empty brackets."""

_MARKS = frozenset(mark.rule for mark in (ITEM, KEY, OPEN, CLOSE))
_DEEPEST = 32  # steps of indentation where nesting has no bound


@dataclass(frozen=True)
class Style:
    """step: blanks a level, None for one line"""

    item: str
    key: str
    step: str | None = None

    def break_at(self, level: int | None) -> Node:
        """Return a new line at a level; None: at any."""
        if self.step is None:
            return EMPTY
        return seq(text("\n"), repeat(text(self.step), 0, _DEEPEST)) if level is None else text("\n" + self.step * level)

    def mark(self, mark: Ref, level: int | None) -> Node:
        """Return the text of a mark; for brackets, after which the level has changed."""
        if mark == KEY:
            return text(self.key)
        return seq(text(self.item), self.break_at(level)) if mark == ITEM else self.break_at(level)


MODEL = (Style(", ", ": "), Style(",", ":"), Style(",", ": ", "  "), Style(",", ": ", "    "))


At = tuple[int, int | None]
"""Position of a part of a tree: its style, and its level of indentation (None: at any; 0 on one line)."""


class Styles:
    """The marks of a grammar in its styles, resolved a sequence at a time. Nodes are identified by their ids, so they
    are kept alive.

    rules, recursive   of the grammar
    named              by rule, the rules that it names, and marks
    """

    def __init__(self, rules: Mapping[str, Node], recursive: frozenset[str], named: Mapping[str, frozenset[str]], styles: Sequence[Style]) -> None:
        self.rules, self.recursive, self.named, self._styles = rules, recursive, named, styles
        self._marked: dict[int, bool] = {}
        self._parts: dict[tuple[int, At | None], Sequence[tuple[Node, At | None]]] = {}
        self._written: dict[tuple[str, int, int | None], Sequence[tuple[Node, At | None]]] = {}  # marks
        self._with_marks = _leading_to(_MARKS, named) if styles else frozenset[str]()

    @property
    def starts(self) -> Sequence[At | None]:
        """Return the position of the start, in each style."""
        return [(i, 0) for i in range(len(self._styles))] or [None]

    @property
    def texts(self) -> Sequence[Node]:
        """Return texts with all the characters that marks may contain."""
        return [text(style.item + style.key + "\n" + (style.step or "")) for style in self._styles]

    def inside(self, node: Node, at: At | None) -> At | None:
        """Return the position of a node; None if no mark is in it, so that it is the same anywhere."""
        return at if at is not None and self._has_marks(node) else None

    def _has_marks(self, node: Node) -> bool:
        if isinstance(node, Chars):
            return False
        if isinstance(node, Ref):
            return node.rule in self._with_marks
        found = self._marked.get(id(node))
        if found is None:
            found = False
            for part in () if isinstance(node, NodeGraph) and node.but is not None else parts_of(node):  # no mark is in a key
                if type(part) is not Chars and self._has_marks(part):
                    found = True
                    break
            self._marked[id(node)] = found
        return found

    def within(self, rule: str, at: At | None) -> At | None:
        """Return the position of the body of a rule that is named at a position."""
        if at is None or rule not in self._with_marks:
            return None
        style, _ = at
        return (style, None) if rule in self.recursive and self._styles[style].step is not None else at

    def parts(self, node: Concat | Ref, at: At | None) -> Sequence[tuple[Node, At | None]]:
        """Return the parts of a sequence, marks written out, and the position of each. A mark by itself is a sequence
        of one."""
        found = self._parts.get((id(node), at))
        if found is None:
            found = self._parts[id(node), at] = self._opened((node,) if isinstance(node, Ref) else node.parts, at)
        return found

    def _opened(self, parts: Sequence[Node], at: At | None) -> Sequence[tuple[Node, At | None]]:
        if at is None:
            return [(part, None) for part in parts]
        number, level = at
        style = self._styles[number]
        found: list[tuple[Node, At | None]] = []
        for part in parts:
            if type(part) is Chars:
                found.append((part, None))
            elif type(part) is Ref and part.rule in _MARKS:
                if level is not None and style.step is not None:
                    level += (part.rule == OPEN.rule) - (part.rule == CLOSE.rule)
                found += self._mark(part, number, level)
            else:
                found.append((part, self.inside(part, (number, level))))
        return found

    def _mark(self, mark: Ref, number: int, level: int | None) -> Sequence[tuple[Node, At | None]]:
        key = mark.rule, number, level
        if (found := self._written.get(key)) is None:
            found = self._written[key] = [(node, None) for node in _flat(self._styles[number].mark(mark, level))]
        return found


def _flat(node: Node) -> Sequence[Node]:
    return node.parts if isinstance(node, Concat) else (node,)


def is_mark(node: Ref) -> bool:
    return node.rule in _MARKS


def _leading_to(wanted: frozenset[str], ways: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the rules from which one of `wanted` is reachable, and `wanted`; `ways` are the rules that each names."""
    before: dict[str, list[str]] = {}
    for name, named in ways.items():
        for other in named:
            before.setdefault(other, []).append(name)
    return frozenset(reached(wanted, before))


def written(start: Node, styles: Styles) -> tuple[Node, Mapping[str, Node]]:
    """Return a start and its rules with their marks written in each of the styles."""
    writer = _Writer(styles)
    return one_of([writer.node(start, at) for at in styles.starts]), writer.finished()


class _Writer:
    """Copies a grammar, its rules once for each position where they occur; those without marks are kept."""

    def __init__(self, styles: Styles) -> None:
        self._styles, self._rules = styles, {name: body for name, body in styles.rules.items() if styles.within(name, (0, 0)) is None}
        self._made: dict[tuple[int, At], Node] = {}
        self._todo: list[tuple[str, str, At]] = []

    def finished(self) -> Mapping[str, Node]:
        while self._todo:
            name, rule, at = self._todo.pop()
            self._rules[name] = self.node(self._styles.rules[rule], at)
        return self._rules

    def node(self, node: Node, at: At | None) -> Node:
        if isinstance(node, Ref) and not is_mark(node):
            return self._ref(node, self._styles.within(node.rule, at))
        if (at := self._styles.inside(node, at)) is None:
            return node
        if (found := self._made.get((id(node), at))) is None:
            if isinstance(node, Concat | Ref):
                found = seq(*[self.node(*part) for part in self._styles.parts(node, at)])
            else:
                found = rebuilt(node, [self.node(part, at) for part in parts_of(node)])
            self._made[id(node), at] = found
        return found

    def _ref(self, node: Ref, at: At | None) -> Ref:
        if at is None:
            return node
        name = f"{node.rule}\0{at[0]}\0{at[1]}"
        if name not in self._rules:
            self._rules[name] = EMPTY  # until it is made
            self._todo.append((name, node.rule, at))
        return Ref(name)
