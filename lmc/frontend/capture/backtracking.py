"""How long a regular expression may take: a bound on the work of Python's backtracking matcher, which nothing ends once it has begun.

The tree of `re`'s own parser is read from its end to its beginning. Where the next character decides whether a repetition goes on, there is one
way through a text (cf. one-unambiguous expressions, Brüggemann-Klein and Wood 1998); where it does not, the matcher tries every way as long as
what follows fails: as many as the text has places at which that may begin. How far a repetition gets is bounded by the longest run of its
characters in the text.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the trees of `re` are Any by nature)

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import groupby
from operator import or_
from typing import Any, NamedTuple

MOST_WORK = 5_000_000
"""Steps that may be taken where nobody waits for them: a tenth of a second."""
_SCAN = 1 / 16  # of a step: one more character of a repeated class
_WORD, _DIGIT, _SPACE, _OTHER = (1 << 128 + i for i in range(4))  # characters beyond ASCII, by what `\w`, `\d` and `\s` make of them
_ASCII, _BEYOND = (1 << 128) - 1, _WORD | _DIGIT | _SPACE | _OTHER
_ALL = _ASCII | _BEYOND
_re: Any = re
_op: Any = _re._constants


class _Rest(NamedTuple):
    """What stands behind a node: the characters that it may begin with, and whether it may fail."""

    first: int
    fails: bool


class _Found(NamedTuple):
    """A node with what stands behind it, tried at one place of the text.

    first, fails  of both together
    work          steps in the node
    ways          how often what stands behind it is tried
    empty         it may match nothing
    decided       the next character decides each choice in it
    size          its characters and assertions
    read          all characters that it may read
    """

    first: int
    fails: bool
    work: float = 1.0
    ways: float = 1.0
    empty: bool = False
    decided: bool = True
    size: int = 1
    read: int = 0


def work(pattern: str | bytes, flags: int, text: str | bytes, how: str) -> float:
    """Steps that `re.compile(pattern, flags)` takes at most with a text, by the name of its method. Raises what is wrong with the pattern."""
    most = _of_any(pattern, flags, 1 << len(text).bit_length(), how)
    if most <= MOST_WORK:
        return most
    tree = _parsed(pattern, flags)
    return _work(tree, _OneText(text, int(tree.state.flags)), len(text), how)


@lru_cache(1024)
def _of_any(pattern: str | bytes, flags: int, length: int, how: str) -> float:
    """The same for any text of that length, which is known at once where a pattern is used again and again."""
    tree = _parsed(pattern, flags)
    return _work(tree, _AnyText(length, int(tree.state.flags)), length, how)


def _work(tree: Any, reader: _Reader, length: int, how: str) -> float:
    found = reader.sequence(tree, _Rest(0, True) if how == "fullmatch" else _Rest(reader.alphabet, False))
    if how in ("match", "fullmatch"):
        return found.work
    return length + found.work * (length + 1 if found.empty else reader.occurrences(found.first))


@lru_cache(256)
def _parsed(pattern: str | bytes, flags: int) -> Any:
    return _re._parser.parse(pattern, flags & ~re.DEBUG)


class _Reader(ABC):
    """Reads the tree of a pattern. alphabet: characters of the text."""

    def __init__(self, length: int, flags: int, alphabet: int) -> None:
        self._length, self._flags, self.alphabet = length, flags, alphabet

    @abstractmethod
    def occurrences(self, characters: int) -> int:
        """How many places of the text have one of these characters, at most."""

    @abstractmethod
    def longest(self, characters: int) -> int:
        """Characters of the longest run of these in the text, at most."""

    def sequence(self, nodes: Any, rest: _Rest) -> _Found:
        work, ways, size, read, empty, decided, behind = 1.0, 1.0, 0, 0, True, True, rest
        for op, argument in reversed(list(nodes)):
            found = _RULES[op](self, op, argument, behind)
            work, ways, size, read = found.work + found.ways * work, found.ways * ways, size + found.size, read | found.read
            empty, decided, behind = empty and found.empty, decided and found.decided, _Rest(found.first, found.fails)
        return _Found(behind.first, behind.fails, work, ways if rest.fails else 1.0, empty, decided, size, read)

    # -- nodes

    def character(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        characters = self._characters(op, argument) & self.alphabet
        return _Found(characters, True, read=characters)

    def place(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        """`$` and the like: behind it comes the end of a line, or of the text."""
        ends = {_op.AT_END: 1 << ord("\n"), _op.AT_END_STRING: 0}
        return _Found(ends.get(argument, rest.first), True, empty=True)

    def look(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        """Looks ahead or behind once; there is no way back into it."""
        inner = self.sequence(argument[1], _Rest(self.alphabet, False))
        return _Found(rest.first, True, inner.work + 1, empty=True, decided=False, size=inner.size)

    def group(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        _, added, removed, nodes = argument
        before, self._flags = self._flags, (self._flags | added) & ~removed
        try:
            return self.sequence(nodes, rest)
        finally:
            self._flags = before

    def atomic(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        inner = self.sequence(argument, _Rest(rest.first, False))
        return inner._replace(fails=inner.fails or rest.fails, ways=1.0)

    def branch(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        return self._either([self.sequence(arm, rest) for arm in argument[1]], rest)

    def conditional(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        _, there, missing = argument
        return self._either([self.sequence(arm or (), rest) for arm in (there, missing)], rest)._replace(fails=True)

    def _either(self, arms: Sequence[_Found], rest: _Rest) -> _Found:
        first = read = 0
        apart = True
        for arm in arms:
            apart, first, read = apart and not first & arm.first, first | arm.first, read | arm.read
        ways = 1.0 if not rest.fails else max(arm.ways for arm in arms) if apart else sum(arm.ways for arm in arms)
        return _Found(
            first, all(arm.fails for arm in arms), 1 + sum(arm.work for arm in arms), ways, any(arm.empty for arm in arms),
            apart and all(arm.decided for arm in arms), sum(arm.size for arm in arms), read,
        )  # fmt: skip

    def reference(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        return _Found(self.alphabet, True, 1 + self._length * _SCAN, empty=True, read=self.alphabet)

    def failure(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        return _Found(0, True)

    def repeat(self, op: Any, argument: Any, rest: _Rest) -> _Found:
        low, high, nodes = int(argument[0]), int(argument[1]), argument[2]
        alone = self.sequence(nodes, _Rest(0, True))
        if alone.empty and high > 1:  # iterations that read nothing are ways, too
            return _Found(alone.first | rest.first, rest.fails or low > 0, math.inf, math.inf, True, False, alone.size, alone.read)
        most = min(high, max(low, self.longest(alone.read)) + 1)
        again = _Rest(alone.first | rest.first, rest.fails or low > 1)
        body = self.sequence(nodes, again if most > 1 else rest)
        first = alone.first | (rest.first if low == 0 or alone.empty else 0)
        decided = low == high or not (alone.empty or alone.first & rest.first)
        exits = 1.0 if decided or not rest.fails else min(max(1, most - low + 1), 1 + alone.empty + self.occurrences(rest.first))
        passes = _power(body.ways, most if rest.fails else max(0, low - 1))
        if len(nodes) == 1 and nodes[0][0] in _CHARACTERS:
            steps = 1 + most * _SCAN
        elif decided and body.decided:  # each character is read by one iteration
            steps = most * body.size + body.work
        else:
            steps = max(1, most) * passes * body.work
        found = _Found(first, rest.fails or low > 0, steps + exits, exits * passes, low == 0 or alone.empty, decided and body.decided, body.size, alone.read)
        return found._replace(ways=1.0) if op is _op.POSSESSIVE_REPEAT else found

    # -- characters

    def _characters(self, op: Any, argument: Any) -> int:
        """Those that a node takes, and perhaps more beyond ASCII."""
        if op is _op.ANY:
            return _ALL if self._flags & re.DOTALL else _ALL & ~(1 << ord("\n"))
        if op is _op.LITERAL:
            return self._literal(argument)
        if op is _op.NOT_LITERAL:
            return _ALL & ~(self._literal(argument) & _ASCII)
        some = whole = 0
        negated = False
        for kind, what in argument:
            if kind is _op.NEGATE:
                negated = True
            elif kind is _op.CATEGORY:
                some, whole = some | self._category(what), whole | self._category(what) & _BEYOND
            elif kind is _op.LITERAL:
                some |= self._literal(what)
            else:
                some |= self._range(*what)
        return _ALL & ~(some & _ASCII | whole) if negated else some

    def _literal(self, code: int) -> int:
        if not self._flags & re.IGNORECASE:
            return _bit(code)
        letter = chr(code)
        found = 0
        for each in (letter, letter.lower(), letter.upper(), letter.casefold()):
            if len(each) == 1:
                found |= _bit(ord(each))
        return found | (_WORD if letter in "ikIKsS" else 0)  # what is folded to one of these

    def _range(self, low: int, high: int) -> int:
        found = 0
        for code in range(low, min(high, 127) + 1):
            found |= self._literal(code)
        if high <= 127:
            return found
        return found | _BEYOND | (sum(1 << ord(letter) for letter in "ikIKsS") if self._flags & re.IGNORECASE else 0)

    def _category(self, category: Any) -> int:
        kind, negated = _CATEGORIES[category]
        plain = bool(self._flags & re.ASCII) or not self._flags & re.UNICODE
        within, beyond = _CLASSES[kind]
        found = (_PLAIN_SPACE if plain and kind == "s" else within) | (0 if plain else beyond)
        return _ALL & ~found if negated else found


class _AnyText(_Reader):
    """Of any text of a length."""

    def __init__(self, length: int, flags: int) -> None:
        super().__init__(length, flags, _ALL)

    def occurrences(self, characters: int) -> int:
        return self._length

    def longest(self, characters: int) -> int:
        return self._length


class _OneText(_Reader):
    """Of one text, by the characters that it has."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text = text.decode("latin-1") if isinstance(text, bytes) else text
        self._counts = Counter(self._text)
        self._bits = {letter: _bit(ord(letter)) for letter in self._counts}
        self._runs: dict[int, int] = {}
        super().__init__(len(text), flags, reduce(or_, self._bits.values(), 0))

    def occurrences(self, characters: int) -> int:
        return sum(count for letter, count in self._counts.items() if self._bits[letter] & characters)

    def longest(self, characters: int) -> int:
        found = self._runs.get(characters)
        if found is None:
            among = {letter for letter, bit in self._bits.items() if bit & characters}
            runs = (sum(1 for _ in run) for inside, run in groupby(self._text, among.__contains__) if inside)
            found = self._runs[characters] = len(self._text) if len(among) == len(self._bits) else max(runs, default=0)
        return found


def _bit(code: int) -> int:
    if code < 128:
        return 1 << code
    letter = chr(code)
    return _DIGIT if letter.isdecimal() else _SPACE if letter.isspace() else _WORD if letter.isalnum() else _OTHER


def _power(ways: float, times: int) -> float:
    if ways <= 1 or times <= 0:
        return 1.0
    return math.inf if times * math.log(ways) > 300 else ways**times


def _mask(holds: Callable[[str], bool]) -> int:
    return sum(1 << i for i in range(128) if holds(chr(i)))


_PLAIN_SPACE = _mask(lambda c: c in " \t\n\r\f\v")
_CLASSES: Mapping[str, tuple[int, int]] = {
    "w": (_mask(lambda c: c.isalnum() or c == "_"), _WORD | _DIGIT), "d": (_mask(str.isdecimal), _DIGIT), "s": (_mask(str.isspace), _SPACE),
}  # fmt: skip
_CATEGORIES: Mapping[Any, tuple[str, bool]] = {
    _op.CATEGORY_WORD: ("w", False), _op.CATEGORY_NOT_WORD: ("w", True), _op.CATEGORY_DIGIT: ("d", False),
    _op.CATEGORY_NOT_DIGIT: ("d", True), _op.CATEGORY_SPACE: ("s", False), _op.CATEGORY_NOT_SPACE: ("s", True),
}  # fmt: skip
_CHARACTERS = (_op.LITERAL, _op.NOT_LITERAL, _op.ANY, _op.IN)
_RULES: Mapping[Any, Callable[..., _Found]] = {
    **dict.fromkeys(_CHARACTERS, _Reader.character),
    **dict.fromkeys((_op.MAX_REPEAT, _op.MIN_REPEAT, _op.POSSESSIVE_REPEAT), _Reader.repeat),
    **dict.fromkeys((_op.ASSERT, _op.ASSERT_NOT), _Reader.look),
    _op.AT: _Reader.place, _op.SUBPATTERN: _Reader.group, _op.ATOMIC_GROUP: _Reader.atomic, _op.BRANCH: _Reader.branch,
    _op.GROUPREF: _Reader.reference, _op.GROUPREF_EXISTS: _Reader.conditional, _op.FAILURE: _Reader.failure,
}  # fmt: skip
"""A pattern with what is not here raises KeyError: it may take for ever, as far as is known."""
