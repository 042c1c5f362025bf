"""Members of a constraint's language: a text that a regex matches, or that a JSON schema or a grammar allows; fixed by a
digest.

The languages are those of `lmc.fsm`, so the same sources are refused as by the runtime, and keywords mean the same.
Small and bounded: repeats stop after a few turns and recursion ends, so that answers stay readable.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from lmc.errors import ConstraintError, shown
from lmc.fsm.charset import Ranges
from lmc.fsm.counted import Counts
from lmc.fsm.nodes import Chars, Concat, Counted, Node, NodeGraph, Ref, Repeat, Union, parts_of
from lmc.fsm.regex import parse

if TYPE_CHECKING:
    from lmc.fsm.grammar import Grammar

_MORE = 3  # turns of a repeat beyond its minimum
_WIDE = 62  # characters beyond which a class counts as wide
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PRINTABLE = "".join(chr(c) for c in range(32, 127))


def dice(digest: bytes) -> random.Random:
    """Return a generator that only depends on the digest."""
    return random.Random(int.from_bytes(digest, "big"))


# -- regular expressions ---------------------------------------------------------------------------------------------


def sample_regex(source: str, digest: bytes) -> str:
    """Return a string of the language of `source`. Raises ConstraintError for sources outside the dialect of
    constraints."""
    tree = _tree(source)
    return tree.text(dice(digest)) if isinstance(tree, _Drawer) else _joined(_member(tree, dice(digest)))


_MOST = 300_000  # turns and characters of a text


def _joined(parts: Iterator[str]) -> str:
    """Join the parts of a text. Raises ConstraintError for one that is far too long, such as that of `minLength: 10**30`."""
    found = list(islice(parts, _MOST + 1))
    if len(found) > _MOST:
        raise ConstraintError(f"this constraint demands a text of more than {_MOST:,} characters, which the mock does not draw; script its answer")
    return "".join(found)


@lru_cache(maxsize=1024)
def _tree(source: str) -> Node | _Drawer:
    """Return a pattern's tree, or a drawer if it has graphs, to which look-around, word boundaries and line ends are
    compiled."""
    from lmc.fsm.grammar import Grammar

    tree = parse(source)
    return _Drawer(Grammar(tree, {})) if _has_graph(tree) else tree


def _has_graph(tree: Node) -> bool:
    return isinstance(tree, NodeGraph) or any(map(_has_graph, parts_of(tree)))


def _member(tree: Node, rng: random.Random) -> Iterator[str]:
    if isinstance(tree, Chars):
        often, any_ = _alphabet(tree.ranges)
        yield rng.choice(often if rng.random() < 0.8 else any_)
    elif isinstance(tree, Concat):
        for part in tree.parts:
            yield from _member(part, rng)
    elif isinstance(tree, Union):
        yield from _member(rng.choice(tree.arms), rng)
    else:
        assert isinstance(tree, Repeat)  # graphs have a drawer
        more = _MORE if tree.high is None else min(tree.high - tree.low, _MORE)
        for _ in range(tree.low + rng.randint(0, more)):
            yield ""  # a turn counts, even if its text is empty
            yield from _member(tree.body, rng)


@lru_cache(maxsize=4096)
def _alphabet(ranges: Ranges) -> tuple[str, str]:
    """Return the characters of a class to use most of the time, and those to use occasionally; both in the class.
    Printable ones if it has any; for a wide class mostly small letters."""
    shown = _within(ranges, _PRINTABLE)
    if not shown:
        low, high = ranges[0]
        shown = "".join(map(chr, range(low, min(high, low + _WIDE) + 1)))
    wide = sum(high - low + 1 for low, high in ranges) > _WIDE
    return (_within(ranges, _LETTERS) or shown) if wide else shown, shown


def _within(ranges: Ranges, characters: str) -> str:
    return "".join([c for c in characters if any(low <= ord(c) <= high for low, high in ranges)])


# -- JSON schemas and Lark grammars ----------------------------------------------------------------------------------

_DEPTH = 12  # nested rules beyond which the shortest derivation is taken
_STEPS = 40  # edges of an automaton, likewise
_LONG = 8  # turns of a repeat of a wide class: text
_CHOICES = 5_000  # of a text, likewise: each level of nested arrays has several of the next
_TRIES = 100  # texts drawn until one passes the checks beyond automata
_PLAIN = 0.9  # how often a wide class is taken over alternatives, such as escapes


def member_of(kind: str, source: str, digest: bytes) -> str:
    """Return a text of a constraint's language. Raises ConstraintError for a source that is invalid or cannot be
    enforced."""
    if kind == "regex":
        return sample_regex(source, digest)
    from lmc.fsm.sources import check_of

    drawer, check, rng = _drawer(kind, source), check_of(kind, source), dice(digest)
    for _ in range(_TRIES):
        text = drawer.text(rng)
        if check is None or check(text) is None:
            return text
    raise ConstraintError(
        f"{kind} {shown(source)}: none of {_TRIES} drawn texts passes what can only be checked when an answer ends (a warning named it); "
        "script the mock's answer"
    )


KINDS = frozenset(("regex", "json_schema", "ebnf", "lark", "structural_tag"))


@lru_cache(maxsize=256)
def _drawer(kind: str, source: str) -> _Drawer:
    from lmc.fsm.json_layout import one_line
    from lmc.fsm.sources import grammar_of

    return _Drawer(grammar_of(kind, one_line(source) if kind == "json_schema" else source))


@dataclass
class _Draw:
    """A text that is being drawn: its dice, and how many choices are left to them."""

    rng: random.Random
    left: int = _CHOICES

    def is_short(self, depth: int) -> bool:
        """Count a choice. Return whether it is to be the one that ends the text soonest."""
        self.left -= 1
        return depth > _DEPTH or self.left < 0


class _Drawer:
    """Derives texts of a grammar: at random at first, by the lowest derivation when it gets deep."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.heights: dict[str, float] = dict.fromkeys(grammar.rules, math.inf)  # of the lowest derivation
        self.ways: dict[int, _Ways] = {}  # by id of a graph
        self.counts: dict[int, Counts] = {}  # by id of a counted graph
        self.known: dict[int, float] = {}  # heights by id of a node
        lower = True
        while lower:
            lower = sum(map(self._lower, grammar.rules)) > 0
        if self.height(grammar.start) == math.inf:
            raise ConstraintError("no text matches this constraint")

    def text(self, rng: random.Random) -> str:
        return _joined(self.drawn(self.grammar.start, _Draw(rng), 0))

    def _lower(self, name: str) -> bool:
        """Update a rule's height; return whether it was lowered."""
        self.ways.clear()
        self.known.clear()
        before, self.heights[name] = self.heights[name], self.height(self.grammar.rules[name]) + 1
        return self.heights[name] < before

    def height(self, node: Node) -> float:
        """Return how many rules are nested in the lowest derivation; infinite if there is none yet."""
        if id(node) not in self.known:
            self.known[id(node)] = self._height(node)
        return self.known[id(node)]

    def _height(self, node: Node) -> float:
        if isinstance(node, Ref):
            return self.heights[node.rule]
        if isinstance(node, Concat):
            return max(map(self.height, node.parts), default=0)
        if isinstance(node, Union):
            return min(map(self.height, node.arms), default=math.inf)
        if isinstance(node, Repeat):
            return self.height(node.body) if node.low else 0
        return self.ways_of(node).height if isinstance(node, NodeGraph) else 0

    def ways_of(self, graph: NodeGraph) -> _Ways:
        if id(graph) not in self.ways:
            self.ways[id(graph)] = _Ways.of(graph, self.height)
        return self.ways[id(graph)]

    def drawn(self, node: Node, draw: _Draw, depth: int) -> Iterator[str]:
        if isinstance(node, Chars):
            yield from _member(node, draw.rng)
        elif isinstance(node, Ref):
            yield from self.drawn(self.grammar.rules[node.rule], draw, depth + 1)
        elif isinstance(node, Concat):
            for part in node.parts:
                yield from self.drawn(part, draw, depth)
        elif isinstance(node, Union):
            yield from self.drawn(self.arm(node.arms, draw, depth), draw, depth)
        elif isinstance(node, Repeat):
            for _ in range(self.turns(node, draw, depth)):
                yield ""
                yield from self.drawn(node.body, draw, depth)
        elif isinstance(node, Counted):
            yield from self.counted(node, draw, depth)
        else:
            yield from self.walked(node, draw, depth)

    def arm(self, arms: Sequence[Node], draw: _Draw, depth: int) -> Node:
        heights = [self.height(arm) for arm in arms]
        most = min(heights) if draw.is_short(depth) else max(h for h in heights if h < math.inf)
        kept = [arm for arm, height in zip(arms, heights, strict=True) if height <= most]
        wide = [arm for arm in kept if _is_wide(arm)]
        return draw.rng.choice(wide if wide and draw.rng.random() < _PLAIN else kept)

    def turns(self, node: Repeat, draw: _Draw, depth: int) -> int:
        if draw.is_short(depth) or self.height(node.body) == math.inf:
            return node.low
        most = _LONG if _is_wide(node.body) or (isinstance(node.body, Union) and any(map(_is_wide, node.body.arms))) else _MORE
        return node.low + draw.rng.randint(0, most if node.high is None else min(node.high - node.low, most))

    def walked(self, graph: NodeGraph, draw: _Draw, depth: int) -> Iterator[str]:
        ways, state, steps = self.ways_of(graph), 0, 0
        while True:
            short = draw.is_short(depth) or steps >= _STEPS
            if state in graph.final and (short or not ways.edges[state] or draw.rng.random() <= 0.3):
                return
            steps += 1
            edges = [e for e in ways.edges[state] if not short or ways.distance[e[1]] < ways.distance[state]]
            body, state = _edge(edges, draw.rng)
            yield from self.drawn(body, draw, depth)

    def counts_of(self, node: Counted) -> Counts:
        if id(node) not in self.counts:
            self.counts[id(node)] = Counts(node.graph, node.low, node.high)
        return self.counts[id(node)]

    def counted(self, node: Counted, draw: _Draw, depth: int) -> Iterator[str]:
        """As `walked`, by ways of so many edges."""
        counts, state, low, high = self.counts_of(node), 0, node.low, node.high
        while high != 0 and not (low == 0 and state in counts.final and (draw.is_short(depth) or draw.rng.random() < 0.3)):
            low, high = max(low - 1, 0), None if high is None else high - 1
            edges = [e for e in counts.edges.get(state, ()) if counts.lead_to_an_end(e[1], low, high)]
            if not edges:
                return
            body, state = _edge(edges, draw.rng)
            yield ""
            yield from self.drawn(body, draw, depth)


def _edge(edges: Sequence[tuple[Node, int]], rng: random.Random) -> tuple[Node, int]:
    """Return an edge to follow, more often one that reads any of many characters."""
    wide = [e for e in edges if _is_wide(e[0])]
    return rng.choice(wide if wide and rng.random() < _PLAIN else edges)


@dataclass(frozen=True, slots=True)
class _Ways:
    """Data of a graph: the edges that lead to an end by lowest derivations, the least number of edges left to it, and
    its height."""

    edges: Mapping[int, Sequence[tuple[Node, int]]]
    distance: Mapping[int, int]
    height: float

    @staticmethod
    def of(graph: NodeGraph, height: Callable[[Node], float]) -> _Ways:
        heights = [height(body) for _, body, _ in graph.edges]
        for most in [0, *sorted({h for h in heights if 0 < h < math.inf})]:
            usable = [edge for edge, h in zip(graph.edges, heights, strict=True) if h <= most]
            distance = dict.fromkeys(graph.final, 0)
            for far in range(1, len(usable) + 2):
                fresh = {a for a, _, b in usable if b in distance and a not in distance}
                if not fresh:
                    break
                distance |= dict.fromkeys(fresh, far)
            if 0 in distance:
                edges: dict[int, list[tuple[Node, int]]] = {state: [] for state in distance}
                for a, body, b in usable:
                    if a in distance and b in distance:
                        edges[a].append((body, b))
                return _Ways(edges, distance, most)
        return _Ways({}, {}, math.inf)


def _is_wide(node: Node) -> bool:
    return isinstance(node, Chars) and sum(high - low + 1 for low, high in node.ranges) > _WIDE
