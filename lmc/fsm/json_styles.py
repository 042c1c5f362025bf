"""Ways to write one JSON value: on one line, compact, or indented. A schema is compiled once, with marks where white space may stand;
each way is a copy of that tree.

    {"a":·[1,·2]}      one line     {"a": [1, 2]}
                       compact      {"a":[1,2]}
                       indented     {⏎  "a": [⏎    1,⏎    2⏎  ]⏎}

An answer may be written in any of them, and goes on as it began, so that what is forced still is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmc.fsm.grammar import Grammar
from lmc.fsm.json_text import one_of, refers, repeat, seq, text
from lmc.fsm.regex import EMPTY, Chars, Concat, Graph, Node, Ref, Repeat, Union

ITEM, KEY, OPEN, CLOSE = Ref("\0item"), Ref("\0key"), Ref("\0open"), Ref("\0close")
"""Marks: the comma, the colon, and what stands inside the brackets of what is not empty."""

_MARKS = frozenset(mark.rule for mark in (ITEM, KEY, OPEN, CLOSE))
_DEEPEST = 32  # steps of indentation where nesting has no bound


@dataclass(frozen=True)
class Style:
    """step: blanks a level, None for one line"""

    item: str
    key: str
    step: str | None = None

    def break_at(self, level: int | None) -> Node:
        """A new line at a level; None: at any."""
        if self.step is None:
            return EMPTY
        return seq(text("\n"), repeat(text(self.step), 0, _DEEPEST)) if level is None else text("\n" + self.step * level)


MODEL = (Style(", ", ": "), Style(",", ":"), Style(",", ": ", "  "), Style(",", ": ", "    "))


def written(grammar: Grammar, styles: Sequence[Style]) -> Grammar:
    """The grammar with its marks as each of the styles has them."""
    if refers(grammar.start).isdisjoint(_MARKS) and all(refers(body).isdisjoint(_MARKS) for body in grammar.rules.values()):
        return grammar
    marked = Grammar(grammar.start, {**grammar.rules, **dict.fromkeys(_MARKS, EMPTY)})
    rules: dict[str, Node] = {}
    return Grammar(one_of([_Writer(marked, style, f"{i}", rules).start() for i, style in enumerate(styles)]), rules)


class _Writer:
    """Copies a grammar in one style, its rules once for each level where they stand; those that recur once, for any level."""

    def __init__(self, grammar: Grammar, style: Style, name: str, rules: dict[str, Node]) -> None:
        self._grammar, self._style, self._name, self._rules = grammar, style, name, rules
        self._made: dict[tuple[int, int | None], Node] = {}
        self._todo: list[tuple[str, str, int | None]] = []

    def start(self) -> Node:
        found = self._node(self._grammar.start, 0)
        while self._todo:
            name, rule, level = self._todo.pop()
            self._rules[name] = self._node(self._grammar.rules[rule], level)
        return found

    def _node(self, node: Node, level: int | None) -> Node:
        if isinstance(node, Chars):
            return node
        if isinstance(node, Ref):
            return self._ref(node, level)
        key = id(node), level if self._style.step is not None else 0
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._copied(node, level)
        return found

    def _copied(self, node: Node, level: int | None) -> Node:
        if isinstance(node, Concat):
            return self._sequence(node, level)
        if isinstance(node, Union):
            return _same_or(node, arms := tuple([self._node(arm, level) for arm in node.arms]), node.arms) or Union(arms)
        if isinstance(node, Repeat):
            body = self._node(node.body, level)
            return node if body is node.body else Repeat(body, node.low, node.high)
        assert isinstance(node, Graph)
        edges = tuple([(a, self._node(body, level), b) for a, body, b in node.edges])
        return node if all(x[1] is y[1] for x, y in zip(edges, node.edges)) else Graph(edges, node.final)

    def _sequence(self, node: Concat, level: int | None) -> Node:
        parts: list[Node] = []
        for part in node.parts:
            if part is OPEN or part == OPEN:
                level = None if level is None else level + 1
                parts.append(self._style.break_at(level))
            elif part == CLOSE:
                level = None if level is None else level - 1
                parts.append(self._style.break_at(level))
            else:
                parts.append(self._node(part, level))
        return _same_or(node, tuple(parts), node.parts) or seq(*parts)

    def _ref(self, node: Ref, level: int | None) -> Node:
        if node == KEY:
            return text(self._style.key)
        if node == ITEM:
            return seq(text(self._style.item), self._style.break_at(level))
        if self._style.step is None:
            level = 0
        elif node.rule in self._grammar.recursive:
            level = None
        name = f"{node.rule}\0{self._name}\0{level}"
        if name not in self._rules:
            self._rules[name] = EMPTY  # until it is made
            self._todo.append((name, node.rule, level))
        return Ref(name)


def _same_or(node: Node, new: Sequence[Node], old: Sequence[Node]) -> Node | None:
    return node if all(a is b for a, b in zip(new, old)) else None
