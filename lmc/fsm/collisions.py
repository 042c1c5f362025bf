"""Terminals of Lark grammars that match the same text: a lexer takes it for one of them, an answer may be read as
either. The cost is bounded by the input: few patterns, with small automata that are quickly built.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice

from lmc.errors import ConstraintError
from lmc.fsm.algebra import both
from lmc.fsm.bounds import TooLarge, TransitionBudget
from lmc.fsm.completion import completion
from lmc.fsm.dfa import SOON, build
from lmc.fsm.lark_grammar import patterns_of
from lmc.fsm.nodes import NOTHING, Node
from lmc.fsm.regex import parse_part

_MOST_TERMINALS = 60
_MOST_STATES = 200  # of a terminal
_MOST_WORK = 20_000  # transitions of a pair


def collisions(source: str) -> Iterator[tuple[str, str, str]]:
    """Return two terminals that are regular expressions, and a text that both match; slow pairs are left out. Keywords
    win over names in every lexer, so they are skipped. Raises ConstraintError for an invalid grammar."""
    small = ((name, tree) for name, pattern in patterns_of(source).items() if (tree := _small(pattern)) is not None)
    for (a, tree_a), (b, tree_b) in combinations(islice(small, _MOST_TERMINALS), 2):
        try:
            if (common := both(tree_a, tree_b, TransitionBudget(_MOST_WORK))) != NOTHING:
                yield a, b, completion(build(common, SOON), "") or ""
        except TooLarge:
            continue


def _small(pattern: str) -> Node | None:
    try:
        tree = parse_part(pattern)
        return tree if build(tree, SOON).states <= _MOST_STATES else None
    except (ConstraintError, TooLarge):
        return None
