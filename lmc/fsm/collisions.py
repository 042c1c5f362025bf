"""Terminals of Lark grammars that match the same text: a lexer takes it for one of them, an answer may be read as
either.

interegular, which Lark uses for this too, decides about pairs. Its cost is bounded by its input: few patterns, with
small automata that are quickly built.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from lmc.errors import ConstraintError
from lmc.fsm.bounds import TooLarge
from lmc.fsm.dfa import SOON, build
from lmc.fsm.lark_grammar import patterns_of
from lmc.fsm.regex import parse_part

_MOST_TERMINALS = 60
_MOST_STATES = 200  # of a terminal
_SECONDS = 0.2  # for an example


def collisions(source: str) -> Iterator[tuple[str, str, str]]:
    """Return two terminals that are regular expressions, and a text that both match; slow pairs are left out. Keywords
    win over names in every lexer, so they are skipped. Raises ConstraintError for an invalid grammar."""
    from interegular import Comparator

    small = ((name, pattern) for name, pattern in patterns_of(source).items() if _is_small(pattern))
    comparator = Comparator({name: found for name, pattern in islice(small, _MOST_TERMINALS) if (found := _parsed(pattern)) is not None})
    for a, b in comparator.check():
        try:
            yield a, b, comparator.get_example_overlap(a, b, max_time=_SECONDS).main_text
        except ValueError:  # none was found in time
            continue


def _parsed(pattern: str) -> Any | None:
    """Parse a pattern as interegular does; None for one that it does not support."""
    from interegular import InvalidSyntax, Unsupported, parse_pattern

    try:
        return parse_pattern(pattern)
    except (InvalidSyntax, Unsupported):
        return None


def _is_small(pattern: str) -> bool:
    try:
        return build(parse_part(pattern), SOON).states <= _MOST_STATES
    except (ConstraintError, TooLarge):
        return False
