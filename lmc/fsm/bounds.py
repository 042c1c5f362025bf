"""Bounds on the cost of compiling a constraint. Work is counted, never timed, so that a source is refused on every
machine or on none."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from lmc.constraints import MAX_SOURCE
from lmc.errors import ConstraintError, shown
from lmc.fsm.nodes import Node

MAX_WORK = 150_000  # transitions visited while languages are combined: about half a second


class TooLarge(Exception):
    """An automaton of too many states, or one that takes too long to find."""


@dataclass
class TransitionBudget:
    """The number of transitions that may still be visited for one constraint, with a cache of the languages computed
    for it.

    looks   schemas visited, and combined, so far
    """

    left: int = MAX_WORK
    looks: int = 0
    languages: dict[Hashable, Node] = field(default_factory=dict[Hashable, Node])

    def spend(self, transitions: int) -> None:
        self.left -= transitions
        if self.left < 0:
            raise TooLarge


def check_source(kind: str, source: str) -> None:
    """Raise ConstraintError for a source that is too long, naming its largest part if it has a name."""
    if len(source) > MAX_SOURCE:
        raise ConstraintError(
            f"{kind} {shown(source)} has {len(source):,} characters, and at most {MAX_SOURCE:,} are allowed{_largest(kind, source)}; "
            f"shorten it, or let a `select` choose among long lists"
        )


def _largest(kind: str, source: str) -> str:
    """Return where more than half of a source is."""
    if kind == "json_schema":
        try:
            pointer = _pointer(json.loads(source))
        except (ValueError, RecursionError):  # the parser will report it
            return ""
        return f"; most of it is at {pointer}" if pointer else ""
    if kind in ("ebnf", "lark"):
        longest = max(source.splitlines(), key=len, default="")
        return f"; its longest line is {shown(longest)}" if longest != source else ""
    return ""


def _pointer(value: Any) -> str:
    """Return a pointer to the smallest part that is more than half of a value."""
    whole, pointer = len(json.dumps(value)), ""
    while isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        step, part = max(items, key=lambda item: len(json.dumps(item[1])))
        if len(json.dumps(part)) * 2 <= whole:
            break
        pointer, value = f"{pointer}/{str(step).replace('~', '~0').replace('/', '~1')}", part
    return pointer
