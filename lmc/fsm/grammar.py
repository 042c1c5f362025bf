"""Grammars: named rules over trees that may name rules. Without recursion, or cut at a depth, one tree; as EBNF for servers.

    rules ─► Grammar.tree() ─► dfa.build           the language is regular: an automaton, with forced tokens
                  └ None ─► sources.lazily          it is not: an automaton that is made while it is used
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from lmc.errors import ConstraintError
from lmc.fsm.json_text import one_of, refers, repeat, seq
from lmc.fsm.regex import NOTHING, Chars, Concat, Graph, Node, Ref, Repeat, Union, parts_of
from lmc.fsm.terms import NEVER, least_of_rules

MAX_NODES = 400_000  # of a tree that rules are written into


@dataclass(frozen=True)
class Grammar:
    """What `start` derives. Every rule that a rule names is there."""

    start: Node
    rules: Mapping[str, Node]

    @cached_property
    def recursive(self) -> frozenset[str]:
        """Rules that lead to themselves."""
        ways = {name: refers(body) for name, body in self.rules.items()}

        def reached(name: str) -> set[str]:
            seen: set[str] = set()
            todo = [name]
            while todo:
                for to in ways[todo.pop()] - seen:
                    seen.add(to)
                    todo.append(to)
            return seen

        return frozenset(name for name in self.rules if name in reached(name))

    def tree(self, depth: int | None = None, most: int | None = None) -> Node | None:
        """The grammar without references: None if it is recursive and no depth is given, or by far too large.

        most   nodes that it may have, MAX_NODES if it is not given
        depth  how often recursive rules may be entered within each other; what lies deeper is not in the language
        """
        if self.recursive and depth is None:
            return None
        if self._size(depth or 0) > (most or MAX_NODES):
            return None
        made: dict[tuple[str, int], Node] = {}

        def expanded(node: Node, left: int) -> Node:
            if isinstance(node, Ref):
                if (rule := self._entered(node, left)) is None:
                    return NOTHING
                if rule not in made:
                    made[rule] = expanded(self.rules[node.rule], rule[1])
                return made[rule]
            if isinstance(node, Concat):
                return seq(*(expanded(p, left) for p in node.parts))
            if isinstance(node, Union):
                return one_of([expanded(a, left) for a in node.arms])
            if isinstance(node, Repeat):
                return repeat(expanded(node.body, left), node.low, node.high)
            if isinstance(node, Graph):
                return Graph(tuple((a, expanded(b, left), c) for a, b, c in node.edges), node.final)
            return node

        for ref, left in self._inner(depth or 0):
            expanded(ref, left)
        return expanded(self.start, depth or 0)

    def _entered(self, ref: Ref, left: int) -> tuple[str, int] | None:
        """The rule that a reference leads to, and how many recursive ones may be entered within it; None if it is one too many."""
        left -= ref.rule in self.recursive
        return (ref.rule, left) if left >= 0 else None

    def _inner(self, depth: int) -> Iterator[tuple[Ref, int]]:
        """Recursive rules from the innermost depth on: who takes them in turn meets no deep recursion."""
        return ((Ref(name), left) for left in range(1, depth + 1) for name in self.recursive)

    def _size(self, depth: int) -> int:
        """Nodes of the tree, what is shared counted each time; of one that has by far too many, more than MAX_NODES."""
        made: dict[tuple[str, int], int] = {}
        known: dict[tuple[int, int], int] = {}  # by id

        def size(node: Node, left: int) -> int:
            if isinstance(node, Ref):
                if (rule := self._entered(node, left)) is None:
                    return 1
                if rule not in made:
                    made[rule] = size(self.rules[node.rule], rule[1])
                return made[rule]
            if isinstance(node, Repeat):
                return size(node.body, left) * max(1, node.high or node.low)
            if isinstance(node, Chars):
                return 1
            if (id(node), left) not in known:
                known[id(node), left] = 1 + sum(size(part, left) for part in parts_of(node))
            return known[id(node), left]

        for ref, left in self._inner(depth):
            if (n := size(ref, left)) > MAX_NODES:
                return n
        return size(self.start, depth)

    def ebnf(self) -> str:
        """The grammar in xgrammar's EBNF; its start is `root`. Raises ConstraintError if it derives no text."""
        return _Writer(self.productive()).text()

    def productive(self) -> Grammar:
        """Without what derives no text. Raises ConstraintError if all of it derives none."""
        productive = self._productive
        known: dict[int, Node] = {}
        rules = {name: _within(body, productive, known) for name, body in self.rules.items() if name in productive}
        start = _within(self.start, productive, known)
        if start == NOTHING:
            raise ConstraintError("the grammar derives no text at all")
        return Grammar(start, rules)

    @cached_property
    def _productive(self) -> frozenset[str]:
        """Rules that derive some text."""
        return frozenset(name for name, least in least_of_rules(self.rules).items() if least < NEVER)


def _within(node: Node, rules: frozenset[str], known: dict[int, Node]) -> Node:
    """The texts of a tree that only use these rules: the same object where nothing changes. `known`: by id, of nodes that live on."""
    if isinstance(node, Chars):
        return node
    if isinstance(node, Ref):
        return node if node.rule in rules else NOTHING
    if id(node) in known:
        return known[id(node)]
    if isinstance(node, Graph):
        found = _graph_within(node, rules, known)
    else:
        parts = [_within(part, rules, known) for part in parts_of(node)]
        if all(a is b for a, b in zip(parts, parts_of(node))):
            found = node
        elif isinstance(node, Repeat):
            found = repeat(parts[0], node.low, node.high)
        else:
            found = seq(*parts) if isinstance(node, Concat) else one_of(parts)
    known[id(node)] = found
    return found


def _graph_within(node: Graph, rules: frozenset[str], known: dict[int, Node]) -> Node:
    edges = [(a, body, b) for a, n, b in node.edges if (body := _within(n, rules, known)) != NOTHING]
    before: dict[int, list[int]] = {}
    for a, _, b in edges:
        before.setdefault(b, []).append(a)
    alive, todo = set(node.final), list(node.final)
    for state in todo:
        for a in before.get(state, ()):
            if a not in alive:
                alive.add(a)
                todo.append(a)
    if 0 not in alive:
        return NOTHING
    kept = tuple((a, n, b) for a, n, b in edges if a in alive and b in alive)
    if len(kept) == len(node.edges) and all(x[1] is y[1] for x, y in zip(kept, node.edges)):
        return node
    return Graph(kept, node.final)


class _Writer:
    """Writes EBNF: a rule for each rule, and one for each state of a graph."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.names: dict[str, str] = {}
        self.lines: list[str] = []
        self.graphs: dict[Graph, str] = {}

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
        if isinstance(node, Graph):
            return self.graph(node)
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

    def graph(self, node: Graph) -> str:
        if node not in self.graphs:
            base = self.graphs[node] = f"g{len(self.graphs)}"
            states = {0, *node.final, *(s for a, _, b in node.edges for s in (a, b))}
            for state in sorted(states):
                arms = [f"{self.node(body)} {base}_{to}" for source, body, to in node.edges if source == state]
                if state in node.final:
                    arms.append('""')
                # every state has a way to an end, or its rule would be empty
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
    # not \x: it reads as many hex digits as there are
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
