"""Grammars: named rules over trees that may name rules. Without recursion, or cut at a depth, one tree; as EBNF for servers.

rules ─► Grammar.tree() ─► dfa.build           the language is regular: an automaton, with forced tokens
              └ None ─► sources.lazily          it is not: an automaton built on demand
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lmc.errors import ConstraintError
from lmc.fsm.counted import unrolled
from lmc.fsm.json_styles import Style, Styles, is_mark, written
from lmc.fsm.nodes import NOTHING, Chars, Concat, Counted, Node, NodeGraph, Ref, Repeat, Union, parts_of, reached, rebuilt, trimmed

MAX_NODES = 400_000  # of a tree that rules are written into
_PASSES = 2  # over edges of a graph
_NO_NAMES: frozenset[str] = frozenset()
_Condition = tuple[Hashable, list[Hashable]]
_NONE, _SOME, _WHOLE = range(3)  # how much of a tree derives some text


@dataclass(frozen=True)
class Grammar:
    """A grammar: the texts that `start` derives. Every named rule is defined.

    styles   each text is written in one of them, where trees have marks (json_styles.py)
    """

    start: Node
    rules: Mapping[str, Node] = field(default_factory=dict[str, Node])
    styles: Sequence[Style] = ()

    @cached_property
    def survey(self) -> Survey:
        return Survey(self.start, self.rules)

    @property
    def recursive(self) -> frozenset[str]:
        """Return the recursive rules."""
        return self.survey.recursive

    @cached_property
    def written(self) -> Grammar:
        """Return a grammar without marks: a copy of all of it for each style."""
        return Grammar(*written(self.start, self.marks)) if self.styles else self

    @property
    def marks(self) -> Styles:
        return Styles(self.rules, self.recursive, self.survey.named, self.styles)

    def tree(self, depth: int | None = None, most: int | None = None) -> Node | None:
        """Return the grammar without references: None if it is recursive and no depth is given, or by far too large.

        most   nodes that it may have, MAX_NODES if it is not given
        depth  most nested recursive rules; deeper texts are not in the language
        """
        if self.recursive and depth is None:
            return None
        if (not self.rules and self.survey.places > (most or MAX_NODES)) or self._size(depth or 0) > (most or MAX_NODES):  # before it is written in each style
            return None
        if self.styles:
            return self.written.tree(depth, most)
        made: dict[tuple[str, int], Node] = {}

        def expanded(node: Node, left: int) -> Node:
            if isinstance(node, Ref):
                if (rule := self._entered(node, left)) is None:
                    return NOTHING
                if rule not in made:
                    made[rule] = expanded(self.rules[node.rule], rule[1])
                return made[rule]
            return node if isinstance(node, Counted) else rebuilt(node, [expanded(part, left) for part in parts_of(node)])

        for ref, left in self._inner(depth or 0):
            expanded(ref, left)
        return expanded(self.start, depth or 0)

    def _entered(self, ref: Ref, left: int) -> tuple[str, int] | None:
        """Return the rule that a reference leads to, and how many recursive ones may be entered within it; None if it
        is one too many."""
        left -= ref.rule in self.recursive
        return (ref.rule, left) if left >= 0 else None

    def _inner(self, depth: int) -> Iterator[tuple[Ref, int]]:
        """Return recursive rules from the innermost depth on: building them in this order avoids deep recursion."""
        return ((Ref(name), left) for left in range(1, depth + 1) for name in self.recursive)

    def _size(self, depth: int) -> int:
        """Return nodes of the tree, shared ones counted each time; for a far too large one, more than MAX_NODES."""
        made: dict[tuple[str, int], int] = {}
        known: dict[tuple[int, int], int] = {}  # by id

        def size(node: Node, left: int) -> int:
            if isinstance(node, Ref):
                if is_mark(node):
                    return 0  # at least
                if (rule := self._entered(node, left)) is None:
                    return 1
                if rule not in made:
                    made[rule] = size(self.rules[node.rule], rule[1])
                return made[rule]
            if isinstance(node, Repeat | Counted):
                return size(node.body if isinstance(node, Repeat) else node.graph, left) * max(1, node.high or node.low)
            if isinstance(node, Chars):
                return 1
            if (id(node), left) not in known:
                known[id(node), left] = 1 + sum([1 if type(part) is Chars else size(part, left) for part in parts_of(node)])
            return known[id(node), left]

        for ref, left in self._inner(depth):
            if (n := size(ref, left)) > MAX_NODES:
                return n
        return size(self.start, depth)

    def ebnf(self) -> str:
        """Return the grammar in xgrammar's EBNF; its start is `root`. Raises ConstraintError if it derives no text."""
        return _EbnfWriter(self.written.productive()).text()

    def productive(self) -> Grammar:
        """Return the grammar without unproductive parts. Raises ConstraintError if it derives no text."""
        if self.survey.whole:
            return self
        productive, known = self.survey.productive, dict[int, Node]()
        rules = {name: _within(body, productive, known) for name, body in self.rules.items() if name in productive}
        start = _within(self.start, productive, known)
        if start == NOTHING:
            raise ConstraintError("the grammar derives no text at all")
        return Grammar(start, rules, self.styles)


def cycles(ways: Mapping[str, frozenset[str]]) -> list[frozenset[str]]:
    """Return the sets of names that lead to each other, and to themselves (Tarjan); `ways`: those that each leads to."""
    found: list[frozenset[str]] = []
    number: dict[str, int] = {}
    least: dict[str, int] = {}  # of those on the path, the number of the first one that they lead to
    path: list[str] = []
    for start in ways:
        todo = [(start, iter(ways[start]))] if start not in number else []
        while todo:
            name, ahead = todo[-1]
            if name not in number:
                number[name] = least[name] = len(number)
                path.append(name)
            for to in ahead:
                if to in least:
                    least[name] = min(least[name], number[to])
                elif to in ways and to not in number:
                    todo.append((to, iter(ways[to])))
                    break
            else:
                todo.pop()
                if todo:
                    least[todo[-1][0]] = min(least[todo[-1][0]], least[name])
                if least[name] == number[name]:
                    group = path[path.index(name) :] if path[-1] != name else [name]
                    del path[-len(group) :]
                    for one in group:
                        del least[one]
                    if len(group) > 1 or name in ways[name]:
                        found.append(frozenset(group))
    return found


class Survey:
    """Properties of the parts of a grammar, found in one visit of each.

    named   by rule, the rules that it names, and marks; recursive: those that lead to themselves
    chars   the sets of characters in all trees
    parts   how many parts all trees have, shared ones counted once; places: and each time they are part of something else
    productive  the rules that derive some text
    whole   all parts of all trees do, and each state of a graph leads to an end
    """

    def __init__(self, start: Node, rules: Mapping[str, Node]) -> None:
        self._names: dict[int, frozenset[str]] = {}  # by id, of those that have some
        self._known: dict[int, int] = {}  # by id, where each rule derives some text: _NONE, _SOME or _WHOLE
        self._parts: list[Node] = []
        self._naming: list[Node] = []  # all within which rules are named
        self._needs: dict[int, Hashable] = {}  # by id, of those and references: what must derive some text
        least = min([self._visit(tree) for tree in (start, *rules.values())])
        self.named: Mapping[str, frozenset[str]] = {name: self._names.get(id(body), _NO_NAMES) for name, body in rules.items()}
        self.productive: Set[str] = rules.keys()
        self.recursive: frozenset[str] = frozenset[str]().union(*cycles(self.named))
        if least < _WHOLE or self.recursive:
            known = ((name, self._needed(body)) for name, body in rules.items() if self._derives(body))
            self.productive = rules.keys() & _derived([*self._conditions(), *known])
        self.whole = least == _WHOLE and len(self.productive) == len(rules)
        leaves = [start, *rules.values(), *dict(zip(map(id, self._parts), self._parts)).values()]
        self.parts, self.places = len(leaves), len(self._parts)
        self.chars: Sequence[Chars] = list(dict.fromkeys([leaf for leaf in leaves if type(leaf) is Chars]))

    def _visit(self, node: Node) -> int:
        """Return whether a tree derives no text, or some, or is whole, if each rule that it names does."""
        known, kind = self._known, type(node)
        if (found := known.get(id(node))) is not None:
            return found
        if type(node) is Chars:
            return _WHOLE
        if type(node) is Ref:
            self._names[id(node)] = frozenset((node.rule,))
            known[id(node)] = _WHOLE
            if not is_mark(node):
                self._needs[id(node)] = node.rule
            return _WHOLE
        parts = node.parts if type(node) is Concat else parts_of(node)
        self._parts += parts
        inner = [part for part in parts if type(part) is not Chars]  # most are characters
        least, most, names, needs = _WHOLE, _NONE if len(inner) == len(parts) else _WHOLE, list[frozenset[str]](), False
        for part in inner:
            key = id(part)
            if (found := known.get(key)) is None:
                found = self._visit(part)
            if found < least:
                least = found
            if found > most:
                most = found
            if (named := self._names.get(key)) is not None:
                names.append(named)
                needs = needs or key in self._needs
        if names:
            self._names[id(node)] = names[0] if len(names) == 1 else frozenset().union(*names)
        if needs:
            self._needs[id(node)] = id(node)
            self._naming.append(node)
        if type(node) is NodeGraph:
            least = self._of_graph(node, least)
        elif kind is Union:
            least = _NONE if not parts or not most else least or _SOME
        elif type(node) is Repeat and node.low == 0:
            least = least or _SOME
        known[id(node)] = least
        return least

    def _of_graph(self, node: NodeGraph, least: int) -> int:
        if node.but is not None:
            return least
        ends, passes = set(node.final), 0
        while least and passes < _PASSES:  # enough where most edges lead to later states
            for a, _, b in reversed(node.edges):
                if b in ends:
                    ends.add(a)
            passes += 1
        if not all(a in ends for a, _, _ in node.edges):
            before: dict[int, list[int]] = {}
            for a, body, b in node.edges:
                if self._derives(body):
                    before.setdefault(b, []).append(a)
            ends = reached(node.final, before)
        if 0 not in ends:
            return _NONE
        return least if least == _WHOLE and all(a in ends and b in ends for a, _, b in node.edges) else _SOME

    def _derives(self, node: Node) -> bool:
        return self._known.get(id(node), _WHOLE) > _NONE

    def _needed(self, node: Node) -> list[Hashable]:
        return [found] if (found := self._needs.get(id(node))) is not None else []

    def _conditions(self) -> Iterator[_Condition]:
        """Yield what derives some text if other things do: trees that name rules (by id), states of graphs, rules."""
        for node in self._naming:
            key = id(node)
            if isinstance(node, Union):
                yield from ((key, self._needed(arm)) for arm in node.arms if self._derives(arm))
            elif isinstance(node, NodeGraph) and node.but is None:
                yield key, [(key, 0)]
                yield from (((key, state), []) for state in node.final)
                yield from (((key, a), [(key, b), *self._needed(body)]) for a, body, b in node.edges if self._derives(body))
            elif isinstance(node, Repeat) and node.low == 0:
                yield key, []
            elif self._derives(node):
                yield key, [each for part in parts_of(node) for each in self._needed(part)]


def _derived(conditions: Iterable[_Condition]) -> set[Hashable]:
    """Return what follows from conditions: the first of each if all others do (Dowling and Gallier: in linear time)."""
    waiting, todo = dict[Hashable, list[list[Any]]](), list[Hashable]()  # what follows, and how many of the others are left
    for head, needed in conditions:
        todo += [] if needed else [head]
        entry = [head, len(needed)]
        for each in needed:
            waiting.setdefault(each, []).append(entry)
    found = set[Hashable]()
    while todo:
        if (at := todo.pop()) not in found:
            found.add(at)
            for entry in waiting.get(at, ()):
                entry[1] -= 1
                todo += [] if entry[1] else [entry[0]]
    return found


def _within(node: Node, rules: Set[str], known: dict[int, Node]) -> Node:
    """Return the texts of a tree that only use these rules: the same object where nothing changes. `known`: by id, of
    nodes that stay alive."""
    if isinstance(node, Chars | Counted):  # no rules are counted
        return node
    if isinstance(node, Ref):
        return node if node.rule in rules or is_mark(node) else NOTHING
    if id(node) in known:
        return known[id(node)]
    given = parts_of(node)
    parts = [part if type(part) is Chars else _within(part, rules, known) for part in given]
    found = rebuilt(node, parts)
    if isinstance(found, NodeGraph):
        kept = trimmed([edge for edge in found.edges if edge[1] != NOTHING], found.final)
        found = found if isinstance(kept, NodeGraph) and len(kept.edges) == len(found.edges) else kept
    known[id(node)] = found
    return found


class _EbnfWriter:
    """Writes EBNF: a rule for each rule, and one for each state of a graph."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.names: dict[str, str] = {}
        self.lines: list[str] = []
        self.graphs: dict[NodeGraph, str] = {}

    def text(self) -> str:
        start = self.node(self.grammar.start)
        for name, body in self.grammar.rules.items():
            written = self.node(body)
            self.lines.append(f"{self.name(name)} ::= {written}")
        return "\n".join([f"root ::= {start}", *self.lines]) + "\n"

    def name(self, rule: str) -> str:
        if rule not in self.names:
            plain = re.sub(r"[^A-Za-z0-9]+", "_", rule).strip("_")[-30:] or "rule"
            self.names[rule] = f"r{len(self.names)}_{plain}"
        return self.names[rule]

    def node(self, node: Node) -> str:
        if isinstance(node, Chars):
            return _literal([node]) if _is_literal(node) else _char_class(node)
        if isinstance(node, Ref):
            return self.name(node.rule)
        if isinstance(node, Concat):
            return self.concat(node)
        if isinstance(node, Union):
            return "(" + " | ".join(map(self.node, node.arms)) + ")"
        if isinstance(node, NodeGraph):
            return self.graph(node)
        if isinstance(node, Counted):
            return self.graph(unrolled(node))
        short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
        count = short or f"{{{node.low},{'' if node.high is None else node.high}}}"
        return f"({self.node(node.body)}){count}"

    def concat(self, node: Concat) -> str:
        out: list[str] = []
        literal: list[Chars] = []
        for part in node.parts:
            if isinstance(part, Chars) and _is_literal(part):
                literal.append(part)
                continue
            if literal:
                out.append(_literal(literal))
                literal = []
            out.append(self.node(part))
        if literal or not out:
            out.append(_literal(literal))
        return "(" + " ".join(out) + ")"

    def graph(self, node: NodeGraph) -> str:
        if node not in self.graphs:
            base = self.graphs[node] = f"g{len(self.graphs)}"
            states = {0, *node.final, *(s for a, _, b in node.edges for s in (a, b))}
            for state in sorted(states):
                arms = [f"{self.node(body)} {base}_{to}" for source, body, to in node.edges if source == state]
                if state in node.final:
                    arms.append('""')
                # every state leads to an end, or its rule would be empty
                self.lines.append(f"{base}_{state} ::= " + " | ".join(arms))
        return f"{self.graphs[node]}_0"


def _is_literal(node: Chars) -> bool:
    return len(node.ranges) == 1 and node.ranges[0][0] == node.ranges[0][1]


def _literal(parts: list[Chars]) -> str:
    return '"' + "".join(_char(p.ranges[0][0]) for p in parts) + '"'


def _char_class(node: Chars) -> str:
    return "[" + "".join(_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in node.ranges) + "]"


def _char(code: int) -> str:
    if code < 128 and (chr(code).isalnum() or chr(code) in " _,:{}()=<>.;"):
        return chr(code)
    # not \x: it reads every following hex digit
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
