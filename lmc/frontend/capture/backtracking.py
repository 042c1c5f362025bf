"""Cost bounds of regular expressions: the work of Python's backtracking matcher, which cannot be interrupted once it
runs.

The tree of `re`'s own parser is read from left to right. What stands behind a repetition is tried once for each length that the repetition may
have: as often as the longest run of its characters in the text allows, or once where the next character decides whether it goes on (cf.
one-unambiguous expressions, Brüggemann-Klein and Wood 1998). The bounds of nodes one after another multiply.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

MOST_WORK = 5_000_000
"""Most steps of a match that nothing waits for: a tenth of a second."""
_SCAN = 1 / 16  # of a step: one more character of a repeated class
_re: Any = re
_op: Any = _re._constants
First = frozenset[str] | None
"""The characters that something may begin with; None: any, or nothing."""


class _Bound(NamedTuple):
    """Steps in a node, and how often what stands behind it is tried."""

    steps: float
    ways: float = 1.0


@lru_cache(256)
def work(pattern: str | bytes, flags: int, text: str | bytes, how: str) -> float:
    """Steps that `re.compile(pattern, flags)` takes at most with a text, by the name of its method. Raises what is wrong with the pattern, and
    KeyError for what is not known here: it may take for ever."""
    tree, matchers = _parsed(pattern, flags)
    reader = _Reader(text.decode("latin-1") if isinstance(text, bytes) else text, int(tree.state.flags), matchers)
    nodes = list(tree)
    if how == "fullmatch":
        found = reader.sequence(nodes, frozenset())
        return found.steps + found.ways
    last = next((i for i in range(len(nodes), 0, -1) if _may_fail(nodes[i - 1])), 0)  # behind it all is tried once, as nothing leads back
    steps = reader.sequence(nodes[:last], reader.first(nodes[last:], None)).steps + reader.sequence(nodes[last:], None).steps
    return steps if how == "match" else len(text) + steps * (reader.occurrences(reader.first(nodes, None)) + 1)


def _may_fail(node: Any) -> bool:
    op, argument = node
    if op is _op.SUBPATTERN:
        return any(map(_may_fail, argument[3]))
    return not (op in (_op.MAX_REPEAT, _op.MIN_REPEAT) and argument[0] == 0)


@lru_cache(256)
def _parsed(pattern: str | bytes, flags: int) -> tuple[Any, dict[int, Any]]:
    """Return the tree of a pattern, and the matchers of its nodes for one character by their ids, made on first use."""
    return _re._parser.parse(pattern, flags & ~re.DEBUG), {}


class _Reader:
    """Reads the tree of a pattern for one text."""

    def __init__(self, text: str, flags: int, matchers: dict[int, Any]) -> None:
        self._text, self._flags, self._matchers, self._counts = text, flags, matchers, Counter(text)
        self._taken: dict[int, frozenset[str]] = {}  # by id of a node

    def occurrences(self, characters: First) -> int:
        """Return an upper bound on the number of positions of the text with one of these characters."""
        return len(self._text) if characters is None else sum(self._counts[letter] for letter in characters)

    def longest(self, characters: frozenset[str]) -> int:
        """Characters of the longest run of these in the text."""
        return max((sum(1 for _ in run) for inside, run in groupby(self._text, characters.__contains__) if inside), default=0)

    def taken(self, node: Any) -> frozenset[str]:
        """The characters of the text that a node for one character takes."""
        found = self._taken.get(id(node))
        if found is None:
            match = self._matchers.get(id(node))
            if match is None:
                state = _re._parser.State()
                state.flags = self._flags
                match = self._matchers[id(node)] = _re._compiler.compile(_re._parser.SubPattern(state, [node]), self._flags).match
            found = self._taken[id(node)] = frozenset([letter for letter in self._counts if match(letter)])
        return found

    def first(self, nodes: Sequence[Any], after: First) -> First:
        """Return the characters that nodes may begin with; `after`: those that may follow them."""
        for i, (op, argument) in enumerate(nodes):
            if op in _CHARACTERS:
                return self.taken(nodes[i])
            if op is _op.SUBPATTERN:
                return self.first([*argument[3], *nodes[i + 1 :]], after)
            if op is _op.BRANCH:
                return _union(self.first([*arm, *nodes[i + 1 :]], after) for arm in argument[1])
            if op in (_op.MAX_REPEAT, _op.MIN_REPEAT):
                body = self.first(argument[2], None)
                return body if argument[0] > 0 else _union((body, self.first(nodes[i + 1 :], after)))
            if op is not _op.AT:
                return None
            if argument in _ENDS:
                return _ENDS[argument]
        return after

    def sequence(self, nodes: Sequence[Any], after: First) -> _Bound:
        steps = ways = 1.0
        for i, (op, argument) in enumerate(nodes):
            found = _RULES[op](self, argument, self.first(nodes[i + 1 :], after))
            steps, ways = steps + ways * found.steps, ways * found.ways
        return _Bound(steps, ways)

    def look(self, argument: Any, _: First) -> _Bound:
        """Handle lookahead and lookbehind, tried once: there is no backtracking into them."""
        return _Bound(self.sequence(argument[1], None).steps)

    def group(self, argument: Any, after: First) -> _Bound:
        if argument[1] or argument[2]:
            raise KeyError("flags of a group")
        return self.sequence(argument[3], after)

    def branch(self, argument: Any, after: First) -> _Bound:
        arms = [self.sequence(arm, after) for arm in argument[1]]
        apart = _are_apart([self.first(arm, after) for arm in argument[1]])
        return _Bound(1 + sum(arm.steps for arm in arms), (max if apart else sum)(arm.ways for arm in arms))

    def reference(self, _argument: Any, _after: First) -> _Bound:
        return _Bound(1 + len(self._text) * _SCAN)

    def repeat(self, argument: Any, after: First) -> _Bound:
        low, high, nodes = int(argument[0]), int(argument[1]), list(argument[2])
        if high == 0:
            return _Bound(1)
        first = self.first(nodes, None)
        decided = low == high or _are_apart([first, after])
        if len(nodes) == 1 and nodes[0][0] in _CHARACTERS:
            most = min(high, self.longest(self.taken(nodes[0])))
            return _Bound(1 + 2 * most * _SCAN, 1.0 if decided else max(0, min(most - low, self.occurrences(after))) + 1.0)
        width = argument[2].getwidth()[0]
        if width == 0 and high > 1:  # iterations that read nothing are ways, too
            return _Bound(math.inf, math.inf)
        body = self.sequence(nodes, _union((first, after)))
        most = min(high, len(self._text) // max(width, 1) + 1)
        passes = body.ways**most if body.ways == 1 or most * math.log(body.ways) < 300 else math.inf
        return _Bound(1 + most * passes * body.steps, passes * (1 if decided else max(0, most - low) + 1))


def _union(parts: Any) -> First:
    found: frozenset[str] = frozenset()
    for part in parts:
        if part is None:
            return None
        found |= part
    return found


def _are_apart(parts: Sequence[First]) -> bool:
    """Return whether no two of them share a character."""
    return None not in parts and sum(map(len, parts)) == len(frozenset[str]().union(*parts))  # type: ignore[arg-type]


_ENDS = {_op.AT_END: frozenset("\n"), _op.AT_END_STRING: frozenset[str]()}
"""Characters that may follow `$` and `\\Z`, apart from the end of the text."""
_CHARACTERS = (_op.LITERAL, _op.NOT_LITERAL, _op.ANY, _op.IN)
_RULES: Mapping[Any, Callable[..., _Bound]] = {
    **dict.fromkeys(_CHARACTERS, lambda *_: _Bound(1)), **dict.fromkeys((_op.MAX_REPEAT, _op.MIN_REPEAT), _Reader.repeat),
    **dict.fromkeys((_op.ASSERT, _op.ASSERT_NOT), _Reader.look), _op.AT: lambda *_: _Bound(1), _op.SUBPATTERN: _Reader.group, _op.BRANCH: _Reader.branch,
    _op.GROUPREF: _Reader.reference,
}  # fmt: skip
