"""Long lists of words, read as a trie of which only what is met is made. In ascending order, words with one beginning are neighbours:

bean, bear, beat, bee      be│an be│ar be│at be│e      the range 0 to 4, behind 2 letters
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lmc.fsm.nodes import Chars, Concat, Node, Union

_FEWEST = 32  # arms from which on a union of words is read as a list
_CLASSES = 0xF0000  # from here on letters stand for classes of several characters


class WordRange(NamedTuple):
    """Words `low` to `high` of a list, each behind its first `depth` letters, which are the same. `is_ascii`: all words of the list."""

    texts: Sequence[str]
    low: int
    high: int
    depth: int
    is_ascii: bool

    @property
    def may_end(self) -> bool:
        return len(self.texts[self.low]) == self.depth

    @property
    def is_ended(self) -> bool:
        return self.may_end and self.high == self.low + 1

    def ahead(self) -> Iterator[tuple[str, WordRange]]:
        """Yield the letters that may follow, and the words behind each."""
        texts, at, high, depth, is_ascii = self
        beginning = texts[at][:depth]
        at += self.may_end
        while at < high:
            letter = texts[at][depth]
            end = bisect_left(texts, beginning + chr(ord(letter) + 1), at, high)
            yield letter, WordRange(texts, at, end, depth + 1, is_ascii)
            at = end

    def beyond(self, letters: int) -> WordRange:
        return self._replace(depth=self.depth + letters)

    @property
    def literal(self) -> str:
        """Return letters that are the next ones of all of the words, as far as they are characters."""
        first, last, same = self.texts[self.low], self.texts[self.high - 1], self.depth
        while same < len(first) and first[same] == last[same] and ord(first[same]) < _CLASSES:
            same += 1
        return first[self.depth : same]

    @property
    def fewest(self) -> int:
        """Return the letters of a shortest one."""
        return min(map(len, self.texts[self.low : self.high])) - self.depth


def listed(words: Sequence[str]) -> WordRange:
    """Return ascending words."""
    return WordRange(words, 0, len(words), 0, all(map(str.isascii, words)))


def are_letters(word: str) -> bool:
    """Return whether each character stands for itself in a list."""
    return max(word) < chr(_CLASSES)


class WordLists:
    """The lists of one grammar. A letter is a character, or stands for a class of characters."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Node, WordRange | None]] = {}  # by id
        self._letters: dict[Chars, str] = {}
        self._classes: list[Chars] = []

    def of(self, node: Node) -> WordRange | None:
        """Return the words of a union, if they are many and nothing else."""
        if type(node) is not Union or len(node.arms) < _FEWEST:
            return None
        found = self._known.get(id(node))
        if found is None:
            found = self._known[id(node)] = node, self._of(node)
        return found[1]

    def _of(self, node: Union) -> WordRange | None:
        found: set[str] = set()
        known: dict[int, str] = {}  # by id: most are the same nodes again
        for arm in node.arms:
            word = ""
            for part in arm.parts if type(arm) is Concat else (arm,):
                if (letter := known.get(id(part))) is None:
                    if type(part) is not Chars:
                        return None
                    letter = known[id(part)] = self._letter(part)
                word += letter
            found.add(word)
        return listed(sorted(found))

    def _letter(self, chars: Chars) -> str:
        ranges = chars.ranges
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1] < _CLASSES:
            return chr(ranges[0][0])
        found = self._letters.get(chars)
        if found is None:
            found = self._letters[chars] = chr(_CLASSES + len(self._classes))
            self._classes.append(chars)
        return found

    def chars(self, letter: str) -> Chars:
        return self._classes[ord(letter) - _CLASSES] if ord(letter) >= _CLASSES else Chars(((ord(letter), ord(letter)),))
