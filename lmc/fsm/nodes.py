"""Trees of regular languages over character sets: what regexes, schemas and grammars are compiled to before automata."""

from __future__ import annotations

from dataclasses import dataclass

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
