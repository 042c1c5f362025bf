"""Search for the first match of a regex in a growing text, in time linear in the text for any pattern.

`re` backtracks: `(a+)+b` takes it twice as long with every further `a`, which rules it out for untrusted patterns.

    contains   .* pattern .*           read forwards, a piece at a time: whether there is a match by now
    before     .* pattern, reversed    read backwards: every position where a match begins, the first of them last
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from lmc.errors import ConstraintError, shown
from lmc.fsm.bounds import TooLarge
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.dfa import build, is_nullable
from lmc.fsm.nodes import ANY, Concat, Node, Repeat, Union
from lmc.fsm.regex import parse_part


@dataclass(frozen=True, slots=True)
class Searcher:
    """A pattern's two automata; shared by all searches for it."""

    contains: ByteDFA
    before: ByteDFA

    def read(self, state: int, text: str) -> int:
        """Return the state of `contains` after more text; begin with 0."""
        return self.contains.step(state, text.encode("utf-8", "replace"))

    def found(self, state: int) -> bool:
        """Return whether the text so far has a match."""
        return self.contains.is_final(state)

    def start(self, text: str) -> int | None:
        """Return where the first match begins; None if there is none."""
        state, first = 0, None
        for at in range(len(text) - 1, -1, -1):
            state = self.before.step(state, text[at].encode("utf-8", "replace"))
            if self.before.is_final(state):
                first = at
        return first


def _split(pattern: str) -> tuple[str, str]:
    """Return a pattern's flags, which hold for all of it, and the rest. Classes are Unicode's unless it says `(?a)`."""
    given = re.match(r"(?:\(\?[aimsux]+\))*", pattern)
    assert given is not None
    letters = set(given[0]) - set("(?)")
    body = pattern[given.end() :] + ("\n" if "x" in letters else "")  # after a comment that ends the pattern
    return f"(?{''.join(sorted(letters if 'a' in letters else letters | {'u'}))})", body


@lru_cache(maxsize=256)
def searcher(pattern: str) -> Searcher:
    """Return the searcher of a pattern in Python's dialect, Unicode classes included. Raises ConstraintError for a
    pattern that is not regular, has anchors, matches the empty text, or needs too large an automaton."""
    flags, body = _split(pattern)
    parse_part(pattern)  # by itself: it must be valid without the added brackets
    tree = parse_part(f"{flags}(?:{body})")
    if is_nullable(tree):
        raise ConstraintError(f"regex {shown(pattern)} matches the empty text, which is everywhere")
    within = parse_part(f"{flags}(?s:.*)(?:{body})(?s:.*)")  # refuses anchors, which are not at an end here
    try:
        return Searcher(build(within), build(Concat((Repeat(ANY, 0, None), _reversed(tree)))))
    except TooLarge:
        raise ConstraintError(f"regex {shown(pattern)} needs too large an automaton; use smaller repeats") from None


def finder(pattern: str) -> Callable[[str], int | None]:
    """Return a function that takes a growing text at each step and returns where its first nonempty match begins. A copy of it goes on by itself.
    Patterns that automata cannot search for are left to a matcher that backtracks; the function then raises ConstraintError if that takes long."""
    found = _searcher_of(pattern)
    if found is None:
        return partial(_backtracking, _interruptible(pattern))
    return _Incremental(found)


@lru_cache(maxsize=256)
def _searcher_of(pattern: str) -> Searcher | None:
    try:
        return searcher(pattern)
    except ConstraintError:
        return None


class _Incremental:
    def __init__(self, of: Searcher) -> None:
        self._of, self._state, self._read = of, 0, 0

    def __call__(self, text: str) -> int | None:
        self._state, self._read = self._of.read(self._state, text[self._read :]), len(text)
        return self._of.start(text) if self._of.found(self._state) else None


_LONGEST = 0.2
"""Seconds of a search that backtracks: the others of an engine wait for it."""


def _backtracking(pattern: Any, text: str) -> int | None:
    try:
        match = pattern.search(text, timeout=_LONGEST)
    except TimeoutError:
        raise ConstraintError(
            f"stop_regex={shown(pattern.pattern)}: a search in the answer took longer than {_LONGEST:g} s; leave out nested repeats such as (a+)+, or anchors "
            "and look-around, without which its time does not depend on the pattern"
        ) from None
    return match.start() if match and match[0] else None


@lru_cache(maxsize=256)
def _interruptible(pattern: str) -> Any:
    import regex

    try:
        return regex.compile(pattern)
    except regex.error as error:  # in corners its dialect is not that of `re`
        raise ConstraintError(f"stop_regex {shown(pattern)} cannot be searched for: {error}") from None


def _reversed(tree: Node) -> Node:
    """Return the texts of `tree`, read backwards."""
    if isinstance(tree, Concat):
        return Concat(tuple(map(_reversed, reversed(tree.parts))))
    if isinstance(tree, Union):
        return Union(tuple(map(_reversed, tree.arms)))
    return Repeat(_reversed(tree.body), tree.low, tree.high) if isinstance(tree, Repeat) else tree
