"""Trees of regular languages over character sets: what regexes, schemas and grammars are compiled to before automata."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from typing import TypeVar

from lmc.errors import ConstraintError
from lmc.fsm import charset
from lmc.fsm.charset import Ranges


@dataclass(frozen=True, slots=True)
class Chars:
    """One character in `ranges` (none of them a surrogate)."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concat:
    """Parts one after another; without parts, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Union:
    """Any one of the arms."""

    arms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`body`, `low` to `high` times; `high` None is without bound."""

    body: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class NodeGraph:
    """Paths from state 0 to a state of `final`, reading each edge's node: a form without regex syntax.

    edges   (from, node read, to)
    final   states where the text may end
    but     its texts are all but these, which are ASCII: a trie of them, whose last state is behind what is none of them
    among   its texts are all of this but those
    open    states, known to be deterministic, from where any characters lead on to an end
    """

    edges: tuple[tuple[int, Node, int], ...]
    final: frozenset[int]
    but: tuple[str, ...] | None = None
    among: Repeat | None = None
    open: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Counted:
    """The texts of the ways through a graph that have `low` to `high` edges; `high` None is without bound (counted.py)."""

    graph: NodeGraph
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a rule of a grammar (grammar.py) by name; not part of a regular expression."""

    rule: str


_T = TypeVar("_T", bound=Hashable)
Node = Chars | Concat | Union | Repeat | NodeGraph | Counted | Ref
EMPTY = Concat(())
NOTHING = Union(())  # no text at all
ANY = Chars(((0, charset.SURROGATES[0] - 1), (charset.SURROGATES[1] + 1, charset.MAX_CHAR)))


def parts_of(tree: Node) -> tuple[Node, ...]:
    """Return the direct children."""
    if isinstance(tree, Chars | Ref):
        return ()
    return (
        (tree.body,) if isinstance(tree, Repeat)
        else tuple(body for _, body, _ in tree.edges) if isinstance(tree, NodeGraph)
        else tree.parts if isinstance(tree, Concat)
        else (tree.graph,) if isinstance(tree, Counted)
        else tree.arms
    )  # fmt: skip


def nodes_of(trees: Iterable[Node]) -> Iterator[Node]:
    """Yield all nodes of trees, one that several share once. The trees must stay alive meanwhile."""
    seen: set[int] = set()
    todo = list(trees)
    while todo:
        tree = todo.pop()
        if id(tree) not in seen:
            seen.add(id(tree))
            yield tree
            todo.extend(reversed(parts_of(tree)))


# -- building trees ------------------------------------------------------------------------------------------------


def text(literal: str) -> Node:
    return _literal(literal) if len(literal) == 1 else Concat(tuple(map(_literal, literal)))


@lru_cache(4096)
def _literal(char: str) -> Chars:
    if "\ud800" <= char <= "\udfff":
        raise ConstraintError(f"{char!r}, half of a surrogate pair, cannot be written in UTF-8")
    return Chars(((ord(char), ord(char)),))


def seq(*parts: Node) -> Node:
    kept: list[Node] = []
    for part in parts:
        if isinstance(part, Concat):
            kept += part.parts
        elif isinstance(part, Union) and not part.arms:
            return NOTHING
        else:
            kept.append(part)
    return kept[0] if len(kept) == 1 else Concat(tuple(kept))


def one_of(arms: Sequence[Node]) -> Node:
    named = {a if isinstance(a, Chars | Ref) else id(a): a for a in arms if a != NOTHING}  # trees by id: hashing one is slow
    kept = tuple(named.values())
    return kept[0] if len(kept) == 1 else Union(kept)


def repeat(body: Node, low: int, high: int | None) -> Node:
    if body == NOTHING or high == 0:
        return EMPTY if low == 0 else NOTHING
    return Repeat(body, low, high)


def optional(body: Node) -> Node:
    return repeat(body, 0, 1)


def rebuilt(tree: Node, parts: Sequence[Node]) -> Node:
    """Return a tree with other direct children: the same object if they are its own."""
    if isinstance(tree, Chars | Ref) or all(map(is_, parts, parts_of(tree))):
        return tree
    if isinstance(tree, Concat):
        return seq(*parts)
    if isinstance(tree, Union):
        return one_of(parts)
    if isinstance(tree, Repeat):
        return repeat(parts[0], tree.low, tree.high)
    if isinstance(tree, NodeGraph):
        return NodeGraph(tuple([(a, part, b) for (a, _, b), part in zip(tree.edges, parts)]), tree.final)
    [graph] = parts
    assert isinstance(graph, NodeGraph)
    return Counted(graph, tree.low, tree.high)


# -- graphs --------------------------------------------------------------------------------------------------------


def reached(start: Iterable[_T], ways: Mapping[_T, Iterable[_T]]) -> set[_T]:
    """Return what can be reached, the start included; `ways`: what each leads to."""
    found = set(start)
    todo = list(found)
    while todo:
        for to in ways.get(todo.pop(), ()):
            if to not in found:
                found.add(to)
                todo.append(to)
    return found


def trimmed(edges: Sequence[tuple[int, Node, int]], final: Collection[int]) -> Node:
    """Return the graph of the edges that lead to an end; NOTHING if state 0 leads to none."""
    before: dict[int, list[int]] = {}
    for a, _, b in edges:
        before.setdefault(b, []).append(a)
    alive = reached(final, before)
    kept = tuple([edge for edge in edges if edge[0] in alive and edge[2] in alive])
    return NodeGraph(kept, frozenset(final)) if 0 in alive else NOTHING
