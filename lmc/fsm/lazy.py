"""Byte automata whose states are built when they are reached: for languages whose whole automaton is too large, or that
recur.

    set of terms (terms.py) ─ a character ─► set of terms          a state, known by its set
                └ first byte of several ─► inside of a character ─► …

Two budgets hold whatever the source: the work of steps, of one and on average, and the memory of all states together. Exceeding one raises
a ConstraintError, for the answer that needed it.

The stack below the rule being read matters only where that rule can end: `split` separates the two, so that rows are
built once for each rule's state (tokens.py), at any depth.
"""

from __future__ import annotations

import mmap
import sys
import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from lmc.errors import ConstraintError
from lmc.fsm.bytedfa import FAR, FEW_WAYS, LONG, ByteDFA
from lmc.fsm.charset import Ranges
from lmc.fsm.dfa import Alphabet
from lmc.fsm.grammar import Grammar
from lmc.fsm.minimise import DEAD
from lmc.fsm.terms import Classes, Term, TermFrame, Terms
from lmc.fsm.utf8_lowering import Above, Shapes
from lmc.fsm.words import WordRange

MOST_FORMS = 24_000  # visited in one step, if those before it have left as many: some 0.1 s
FORMS_A_STEP = 1_000  # visited in each step on average: real schemas need up to 100
MOST_A_STEP = 10_000  # the same, of constraints with many parts, each of which may be what comes next
_OF_A_PART = 6  # visited at most where each is: three times, in two styles
MOST_ROWS = 48_000  # a KiB each, of one constraint
WORN_ROWS = 12_000  # from which on new answers get a new automaton
UNMADE = -1  # a place
UNKNOWN = 2  # whether a text may end
WIDE = 16  # ASCII characters that stay in a state, from which on a loop pays off
_SEVERAL = 3  # names
_MOST_PARTS = 32  # terms
_QUOTE = ord('"')
NO_LIMIT = 1 << 40  # turns: more than any text has
_LONGEST_RUN = 4096  # bytes of forced text that are computed at once

_NO_WAYS = array("i", (DEAD,)) * 256
_PLAIN = bytes({*range(0x20, 0x80)} - {*b'"\\'})  # of a string

_Set = tuple[Term, ...]  # as `Terms.joined` orders them: the same sets in the same order, wherever in memory terms are
_Ranges = tuple[int, ...]  # first byte, last byte and target of each range of legal ones, ascending: Python collects no garbage in one tuple of numbers

Name = tuple[str, Term, int]
"""A text, a term that may begin with it, and which of `Terms.names` of that term it is, if it has several."""


class _Inner(NamedTuple):
    """Inside of a character: the content of a node of a shape, and the states its leaves lead to."""

    node: int
    leads: tuple[int, ...]


class SelfLoop(NamedTuple):
    """The state in which most texts stay: `again` are the characters that loop on `state`."""

    state: int
    again: Ranges


class Turns(NamedTuple):
    """A repeat being read: `low` to `high` turns are left, NO_LIMIT if there may be any number of them, and `unbounded` is the state where
    none is required and any number allowed. `state` is in that repeat: the one asked about, or the one that a first turn of it leads to."""

    low: int
    high: int
    unbounded: int
    state: int


class OpenString(NamedTuple):
    """A string being read, of any characters or of a class of ASCII ones: its kind (`json_text.WITHIN_STRINGS`) or the class, the fewest and
    the most characters left, NO_LIMIT if there may be any number of them, the state behind its quote, rests of texts, with the quote of
    each, that something else is behind (names that a key may not be, or that properties have), and the characters that no escape or
    other byte is needed for."""

    kind: int | Ranges
    low: int
    high: int
    behind: int
    but: Sequence[bytes]
    plain: bytes


class LazyDFA:
    """States are numbers, as in a ByteDFA: 0 is the start, DEAD none. Thread-safe.

    grammar  is not left-recursive, and each of its rules derives some text

    sets    the classes of characters of the grammar

    places  int64 [more than states]: by state, where its row begins; UNMADE if it is not built. The last one, which DEAD reads, is 0, of
            the dead row
    rows    int32 [more than rows * 256]: by `place + byte` the next state
    ends    [more than states]: whether the text so far is in the language; UNKNOWN until that is asked
    arrays.py reads these as they are: `places` and `ends` are replaced by longer ones when they are full, and never resized; `rows` has room
    for MOST_ROWS from the beginning, and takes memory as far as rows are built.
    """

    def __init__(self, grammar: Grammar) -> None:
        marks = grammar.marks
        alphabet = Alphabet.of_all((*grammar.survey.chars, *marks.texts))
        self._classes, self.sets = alphabet.size, tuple(chars.ranges for chars in alphabet.members)
        self._shapes = Shapes(alphabet.segments)
        self._widths = [0] * alphabet.size  # ASCII characters of each class
        for low, high, c in alphabet.segments:
            self._widths[c] += max(min(high, 0x7F) - low + 1, 0)
        self._terms = Terms(alphabet.members, marks)
        self._lock = threading.RLock()
        self._wide = min(_OF_A_PART * grammar.survey.parts, MOST_A_STEP)  # visited in a step in which any part may come next
        self._numbers: dict[_Set | _Inner, int] = {}
        self._contents: list[_Set | _Inner] = []
        self.places, self.ends = array("q", bytes(8 * 256)), bytearray(256)
        self.rows = _memory(MOST_ROWS * 256)
        self.rows[:256] = _NO_WAYS
        self._made = 1
        self._windows: dict[tuple[int, frozenset[tuple[TermFrame, ...]]], int] = {}  # by length and frames, representatives
        self._representatives: dict[int, dict[int, int]] = defaultdict(dict)  # by length and state
        self._strings: dict[int, OpenString | None] = {}
        self._turnings: dict[int, bytes] = {}
        self._covered: dict[int, int | None] = {}
        self._furthers: dict[tuple[int, int], int] = {}  # by state and characters
        self._named: dict[int, Sequence[Name]] = {}  # `names`
        self._moves: dict[int, _Ranges] = {}  # of states whose row is built
        self._few: dict[int, Mapping[int, int] | None] = {}
        self._patterns: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # of those over characters, `_ways`
        self._characters: dict[tuple[tuple[int, ...], int], Ranges] = {}
        self._alone: dict[Classes, tuple[int, ...]] = {}  # patterns
        self._halves: dict[tuple[int, tuple[int, ...]], tuple[_Ranges, array[int]]] = {}  # by `Above.number` and the states behind its leaves
        self._splits: dict[int, tuple[int, int] | None] = {}
        self._number(self._terms.of(grammar.start))

    # -- the interface of a ByteDFA -----------------------------------------------------------------------------------

    @property
    def states(self) -> int:
        """Return the number of states so far."""
        return len(self._contents)

    @property
    def nbytes(self) -> int:
        return 1024 * self._made + 8 * len(self.places) + 400 * len(self._contents)

    @property
    def is_worn(self) -> bool:
        """Return whether it has grown so large that new answers had better use a new one."""
        return self._made > WORN_ROWS

    @property
    def forms_a_step(self) -> int:
        """Return how many continuations a step may visit on average."""
        return max(FORMS_A_STEP, self._wide)

    def begin(self) -> None:
        """Begin a step: its budget is what those before it have left, and what each may spend."""
        terms = self._terms
        left = MOST_FORMS if terms.limit is None else max(terms.limit - terms.spent, 0) + self.forms_a_step
        terms.limit = terms.spent + min(left, MOST_FORMS)

    def step(self, state: int, text: bytes) -> int:
        """Return the state after `text`, DEAD if it leaves the language."""
        places, rows, at, end = self.places, self.rows, 0, len(text)
        while at < end and state >= 0:
            if (place := places[state]) == UNMADE:
                state, at = self._leap(state, text, at)
                places = self.places
            else:
                state = rows[place + text[at]]
                at += 1
        return state

    def _leap(self, state: int, text: bytes, at: int) -> tuple[int, int]:
        """Return the state behind as much of a text as is soon seen, and where in the text that is: no state is made within a name, or
        within a string of any characters."""
        if (string := self.string(state)) is not None:
            left = text[at:].lstrip(string.plain)
            begin, at = at, len(text) - len(left)
            chars = at - begin
            if chars > string.high:
                return DEAD, len(text)
            if left and left[0] == _QUOTE:
                if (known := text[begin : at + 1]) in string.but:
                    return self.behind_string(state, known), at + 1
                return string.behind if chars >= string.low else DEAD, at + 1
            if chars:
                return self._within(state, text[begin:at]) if string.but else self._further(state, chars), at
        if at + 1 < len(text):
            if (literal := self.literal(state)) is not None:
                known, chars = literal
                rest = text[at : at + len(known)]
                if rest == known:
                    return self.beyond(state, chars), at + len(known)
                if not known.startswith(rest):
                    return DEAD, len(text)
                if known[len(rest)] & 0xC0 != 0x80:  # between two characters
                    return self.beyond(state, len(rest.decode())), len(text)
            elif names := self.names(state):
                return self._along_names(names, text, at)
        if (turning := self._turnings.get(state)) is None:
            turning = self._turnings[state] = self._find_turning(self._contents[state])
        if turning and (chars := len(text) - at - len(text[at:].lstrip(turning))):
            return self._turned_by(state, chars), at + chars
        return self.rows[self.place(state) + text[at]], at + 1

    def _find_turning(self, content: _Set | _Inner) -> bytes:
        """Return the ASCII characters that do nothing but to count in a state: text of these needs no states within it."""
        classes = () if isinstance(content, _Inner) or len(content) != 1 else self._terms.turning(content[0])
        return bytes([char for low, high, c in self._shapes.segments if c in classes for char in range(low, min(high, 0x7F) + 1)]) if classes else b""

    def _turned_by(self, state: int, chars: int) -> int:
        """Return the state behind so many characters of `_find_turning`."""
        with self._lock:
            self._terms.pay(1)
            found = self._terms.turned_by(self._set(state)[0], chars)
            return DEAD if found is None else self._number((found,))

    def _along_names(self, names: Sequence[Name], text: bytes, at: int) -> tuple[int, int]:
        for depth, byte in enumerate(text[at:]):
            names = [name for name in names if ord(name[0][depth]) == byte]
            if not names:
                return DEAD, len(text)
            if len(names[0][0]) == depth + 1:  # the first one is the shortest
                return self.behind_names(names, depth + 1), at + depth + 1
        return self.behind_names(names, len(text) - at), len(text)

    def after(self, state: int, byte: int) -> int:
        """Step by one byte, from a state that is not DEAD."""
        at = self.place(state)
        return self.rows[at + byte]

    def accepts(self, text: bytes) -> bool:
        """Return whether it accepts a text; each byte is a step of its own to the budget."""
        state = 0
        for at in range(len(text)):
            self.begin()
            state = self.step(state, text[at : at + 1])
        return state >= 0 and self.is_final(state)

    def is_final(self, state: int) -> bool:
        end = self.ends[state]
        if end == UNKNOWN:
            content = self._contents[state]
            with self._lock:
                end = self.ends[state] = not isinstance(content, _Inner) and any(map(self._terms.is_final, content))
        return end != 0

    def is_done(self, state: int) -> bool:
        return self.is_final(state) and not self._ranges(state)

    def ways_at(self, state: int) -> int:
        """Return the number of legal bytes."""
        ranges = self._ranges(state)
        return sum(ranges[1::3]) - sum(ranges[::3]) + len(ranges) // 3

    def moves(self, state: int) -> list[tuple[int, int]]:
        """Return (byte, next state) for the legal bytes, ascending."""
        return [(byte, to) for first, last, to in _threes(self._ranges(state)) for byte in range(first, last + 1)]

    def few(self, state: int) -> Mapping[int, int] | None:
        """Return `moves` by byte, where they are few."""
        if state not in self._few:
            self._few[state] = dict(self.moves(state)) if self.ways_at(state) <= FEW_WAYS else None
        return self._few[state]

    def heads(self, state: int) -> Iterable[int] | None:
        """Return the bytes that may come next, where they are few: without a row where that is soon seen."""
        if (literal := self.literal(state)) is not None:
            return literal[0][:1]
        if names := self.names(state):
            return {ord(text[0]) for text, *_ in names}
        return None if self.string(state) is not None else self.few(state)

    def _ranges(self, state: int) -> _Ranges:
        if self.places[state] == UNMADE:
            self.place(state)
        return self._moves[state]

    def forced(self, state: int) -> tuple[bytes, int]:
        """As for a ByteDFA; of a very long text, or one that takes more than half of what a step may, its beginning."""
        out, terms = bytearray(), self._terms
        enough = None if terms.limit is None else (terms.limit + terms.spent) // 2
        while not self.is_final(state) and len(out) < _LONGEST_RUN and (enough is None or not out or terms.spent <= enough):
            if self.string(state) is not None or self.ways_at(state) != 1:
                break
            [(byte, state)] = self.moves(state)
            out.append(byte)
        return bytes(out), state

    def place(self, state: int) -> int:
        """Return where in `rows` the row of a state begins; build it if needed."""
        at = self.places[state]
        if at == UNMADE:
            with self._lock:
                at = self._make(state)
        return at

    def known_row(self, state: int) -> memoryview[int] | None:
        """Return [256]: the state after each byte; None if that is not built."""
        at = self.places[state]
        return None if at == UNMADE else self.rows[at : at + 256]

    def distance(self, state: int) -> int:
        """Return the bytes to the nearest end."""
        content = self._contents[state]
        if not isinstance(content, _Inner):
            return min(map(self._terms.least, content))
        return min(map(self.distance, content.leads)) + self._shapes.depth(content.node)

    def representative(self, state: int, length: int = LONG) -> int:
        """Return a state that allows the same texts of up to `length` bytes; the same one for all equivalent ones."""
        known = self._representatives[length]
        found = known.get(state)
        if found is None and (self.names(state) or ((string := self.string(state)) is not None and string.but)):
            found = known[state] = state  # comparing many texts takes longer than finding a row
        if found is None:
            with self._lock:
                found = known[state] = self._represent(state, length)
        return found

    def _represent(self, state: int, length: int) -> int:
        """Of those that allow the same texts the first one met is taken, if no count of it is out of reach, else one without such counts:
        its states ahead would be as many as turns."""
        content, terms = self._contents[state], self._terms
        if isinstance(content, _Inner):
            return self._number(_Inner(content.node, tuple([self.representative(leaf, length) for leaf in content.leads])))
        near = {term: terms.near(term, length) for term in content}
        key = length, frozenset(near.values())
        found = self._windows.get(key)
        if found is None:
            is_near = all(terms.begins_with(*pair) for pair in near.items())
            found = state if is_near else self._number(terms.joined(map(terms.stacked, near.values())))
            self._windows[key] = found
        return found

    def literal(self, state: int) -> tuple[bytes, int] | None:
        """Text that alone may follow for a while, and its characters, where that is seen without making the states within it: so a
        token that goes on with a name needs none of them."""
        content = self._contents[state]
        if isinstance(content, _Inner):
            return None
        texts: list[str] = []
        for term in content:
            text = self._terms.literal(term)
            if len(text) < 2:
                return None
            texts.append(text)
        first, last, same = min(texts), max(texts), 0
        while same < len(first) and first[same] == last[same]:
            same += 1
        return (first[:same].encode(), same) if same > 1 else None

    def beyond(self, state: int, chars: int) -> int:
        """The state behind so many characters of `literal`."""
        content = self._set(state)
        return self._joined(len(content), (self._terms.beyond(term, chars) for term in content))

    def string(self, state: int) -> OpenString | None:
        """Return what a state is in if it is within a string of any characters, between two of them, and nothing else. No state within
        such a string need be made."""
        if state not in self._strings:
            self._strings[state] = self._find_string(self._contents[state])
        return self._strings[state]

    def _find_string(self, content: _Set | _Inner) -> OpenString | None:
        if isinstance(content, _Inner):
            return None
        strings = {term: found for term in content if (found := self._terms.string(term)) is not None}
        kinds = {found[:3] for found in strings.values()}
        if len(kinds) != 1:
            return None
        [(kind, low, high)] = kinds
        but = {name for found in strings.values() for name in found.but}
        plain = _PLAIN if isinstance(kind, int) else bytes([char for first, last in kind for char in range(first, last + 1)])
        for term in [term for term in content if term not in strings]:
            names = self._named_in(term)
            if names is None or any(len(name) - 1 > (NO_LIMIT if high is None else high) or name[:-1].encode().strip(plain) for name in names):
                return None
            but.update(names)
        behind = self._joined(0, [found.behind for found in strings.values()])
        return OpenString(kind, low, NO_LIMIT if high is None else high, behind, tuple([name.encode() for name in sorted(but)]), plain)

    def behind_string(self, state: int, text: bytes) -> int:
        """Return the state behind one of the texts that `string` is but."""
        known, terms = text.decode(), self._terms

        def behind(term: Term) -> Iterable[Term]:
            if (string := terms.string(term)) is None:
                return [terms.beyond(term, len(known), at, at) for at, name in enumerate(self._named_in(term) or ()) if name == known]
            return (string.behind,) if known not in string.but and len(text) > string.low else ()

        content = self._set(state)
        return self._joined(len(content), chain.from_iterable(map(behind, content)))

    def _within(self, state: int, text: bytes) -> int:
        """Return the state behind characters of a string that may be any but some, and before its quote."""
        known, terms = text.decode(), self._terms

        def behind(term: Term) -> Iterable[Term]:
            if terms.string(term) is not None:
                return (terms.behind_key(term, known),)
            same = [at for at, name in enumerate(self._named_in(term) or ()) if name.startswith(known)]
            return (terms.beyond(term, len(known), same[0], same[-1]),) if same else ()

        content = self._set(state)
        return self._joined(len(content), chain.from_iterable(map(behind, content)))

    def _further(self, state: int, chars: int) -> int:
        """Return the state behind so many more characters of a string, which may have as many."""
        string, content = self.string(state), self._set(state)
        assert string is not None
        if (string.low, string.high) == (0, NO_LIMIT):
            return state
        if (found := self._furthers.get((state, chars))) is None:
            low, high = max(string.low - chars, 0), None if string.high == NO_LIMIT else string.high - chars
            found = self._furthers[state, chars] = self._joined(len(content), (self._terms.turned(term, low, high) for term in content))
        return found

    def names(self, state: int) -> Sequence[Name]:
        """Return the texts, ASCII and ascending, that alone may follow, where they are several: the names of optional properties. No state
        within them is made."""
        known = self._named.get(state)
        if known is None:
            known = self._named[state] = self._find_names(self._contents[state])
        return known

    def _find_names(self, content: _Set | _Inner) -> Sequence[Name]:
        found: list[Name] = []
        for term in () if isinstance(content, _Inner) else content:
            names = self._terms.names(term)
            if not names:
                if len(content) == 1:
                    return ()
                text = self._terms.literal(term)
                if len(text) < 2:
                    return ()
                names = (text,)
            if not all(map(str.isascii, names)):
                return ()
            found += [(text, term, at) for at, text in enumerate(names)]
        return sorted(found, key=_text_of) if len(found) >= _SEVERAL else ()

    def covered(self, state: int) -> int | None:
        """Return the kind of string any characters of which may follow, however many, and up to the first quote nothing else, in a state that
        is more than a `string`. Of its tokens only those with a quote need states."""
        if state not in self._covered:
            content = self._contents[state]
            with self._lock:
                self._covered[state] = None if isinstance(content, _Inner) or self.string(state) is not None else self._terms.covered(content)
        return self._covered[state]

    def parts(self, state: int) -> Sequence[int]:
        """Return two states whose texts are together those of one that many characters may follow: one within names and strings of any
        others, no state within which is made, and one of all else; () where there are none, or its tokens are sooner found at once. A
        token is legal from a state if it is from one of its parts."""
        content = self._contents[state]
        if isinstance(content, _Inner) or not 1 < len(content) <= _MOST_PARTS or self.covered(state) is not None:
            return ()
        if self.literal(state) is not None or self.names(state) or self.string(state) is not None or not any(map(self._is_wide, content)):
            return ()
        parts: dict[bool, list[Term]] = {}
        for term in content:
            is_known = ((string := self._terms.string(term)) is not None and bool(string.but)) or self._named_in(term) is not None
            parts.setdefault(is_known, []).append(term)
        if len(parts) == 1:
            return ()
        with self._lock:
            return [self._number(tuple(terms)) for terms in parts.values()]

    def _is_wide(self, term: Term) -> bool:
        if self._terms.literal(term) or self._terms.names(term):
            return False
        widths = self._widths
        return sum([widths[c] for classes, _ in self._terms.forms(term) for c in classes]) > FEW_WAYS

    def _named_in(self, term: Term) -> Sequence[str] | None:
        """Return the names that a term is in, as far as they are not written, with the quote behind each; None of a key that is neither
        free nor a name, of which nothing is known."""
        names = self._terms.names(term) or (self._terms.literal(term, None),)
        is_known = all(name.isascii() and name and name.find('"') == len(name) - 1 and "\\" not in name for name in names)
        return names if is_known else None

    def behind_names(self, names: Sequence[Name], chars: int) -> int:
        """Return the state behind so many characters, which they share, of all of `names` that have these."""
        firsts: dict[Term, int] = {}
        lasts: dict[Term, int] = {}
        for _, term, at in names:
            firsts.setdefault(term, at)
            lasts[term] = at
        return self._joined(len(names), (self._terms.beyond(term, chars, first, lasts[term]) for term, first in firsts.items()))

    def words(self, state: int) -> WordRange | None:
        """Return the words, all ASCII, that alone may follow, where a state is in a list of them."""
        content = self._contents[state]
        if isinstance(content, _Inner):
            return None
        for term in content:
            if type(term.frame.node) is not WordRange:
                return None  # as for most states
        return self._terms.words(content)

    def behind_words(self, state: int, words: WordRange | None) -> int:
        """Return the state in which `words` of a state are so far; None: behind one."""
        return self._joined(0, (self._terms.behind_words(term, words) for term in self._set(state)))

    def loop(self, state: int) -> SelfLoop | None:
        """Return the loop in which most texts from `state` continue, if one state absorbs most characters: within a
        string, say."""
        to = self._mostly(state)
        if to < 0 or sum([last - first + 1 for first, last, again in _threes(self._ranges(to)) if again == to]) < WIDE:
            return None
        return SelfLoop(to, self._leading(to, to)) if state in self._patterns else None

    def _mostly(self, state: int) -> int:
        """Return the state that at least WIDE characters lead to; DEAD if there is none."""
        often: Counter[int] = Counter()
        for first, last, to in _threes(self._ranges(state)):
            if first < 0x80:
                often[to] += last - first + 1
        to = max(often, key=often.__getitem__, default=DEAD)
        return to if often[to] >= WIDE else DEAD

    def turns(self, state: int) -> Turns | None:
        """Return the repeat whose turn begins at a state, or behind its first character, if that is all of the state and its turns are
        counted."""
        if (found := self._turns(state)) is not None or (to := self._mostly(state)) < 0 or (found := self._turns(to)) is None:
            return found
        loop = self.loop(found.unbounded)
        if loop is None or self._patterns.get(state) is None or self._leading(state, to) != loop.again:
            return None
        return Turns(found.low + 1, found.high + 1, found.unbounded, to)

    def _turns(self, state: int) -> Turns | None:
        repeat = self._repeat(state)
        if repeat is None or (left := self._terms.turns_left(repeat)) is None or left == (0, None):
            return None
        (low, high), unbounded = left, self._turned(repeat, 0, None)
        if self._mostly(unbounded) != unbounded or (high is not None and self._may_go_on(repeat, unbounded)):
            return None
        return Turns(low, NO_LIMIT if high is None else high, unbounded, state)

    def _may_go_on(self, repeat: Term, unbounded: int) -> bool:
        """Return whether what is behind a repeat may begin with its characters: then a text may have more of them than turns are left."""
        again = self._leading(unbounded, unbounded)
        begins = {c for classes, _ in self._terms.forms(repeat.rest) for c in classes}
        return any(c in begins and low <= last and first <= high for low, high, c in self._shapes.segments for first, last in again)

    def turned(self, state: int, low: int, high: int) -> int:
        """Return the same state with so many turns left."""
        repeat = self._repeat(state)
        assert repeat is not None
        return self._turned(repeat, low, high if high < NO_LIMIT // 2 else None)

    def _repeat(self, state: int) -> Term | None:
        content = self._contents[state]
        if isinstance(content, _Inner) or len(content) != 1:
            return None
        [term] = content
        return term if self._terms.turns_left(term) is not None else None

    def _turned(self, repeat: Term, low: int, high: int | None) -> int:
        with self._lock:
            return self._number((self._terms.turned(repeat, low, high),))

    def _leading(self, state: int, to: int) -> Ranges:
        """Return the characters that lead from a state over characters to another."""
        targets, pattern = self._patterns[state]
        leaf = targets.index(to)
        found = self._characters.get((pattern, leaf))
        if found is None:
            found = self._characters[pattern, leaf] = self._shapes.characters(pattern, leaf)
        return found

    def split(self, state: int) -> tuple[int, int] | None:
        """Return the state of the rule being read by itself, and the one after that rule; None where it is in no rule,
        or in several at once. A text is legal from `state` if it is from the first, or continues from the second where
        the first may end."""
        if state not in self._splits:
            with self._lock:
                self._splits[state] = self._split(self._contents[state])
        return self._splits[state]

    def _split(self, content: _Set | _Inner) -> tuple[int, int] | None:
        if isinstance(content, _Inner):
            return None
        marks = {term.mark for term in content}
        mark = marks.pop()
        if marks or mark is None or any(term is mark or not self._terms.may_return(term) for term in content):
            return None
        above = self._number(self._terms.joined(map(self._terms.above, content)))
        return above, self._number((mark.rest,))

    # -- building states ---------------------------------------------------------------------------------------------

    def _set(self, state: int) -> _Set:
        """Return the terms of a state that is not inside of a character."""
        content = self._contents[state]
        assert not isinstance(content, _Inner)
        return content

    def _joined(self, looks: int, terms: Iterable[Term]) -> int:
        """Return the state of terms that took so many looks to find, DEAD of none."""
        with self._lock:
            self._terms.pay(looks)
            found = self._terms.joined(terms)
            return self._number(found) if found else DEAD

    def _number(self, content: _Set | _Inner) -> int:
        found = self._numbers.get(content)
        if found is None:
            found = self._numbers[content] = len(self._contents)
            self._contents.append(content)
            if found + 1 == len(self.places):
                self.places = self.places[:-1] + array("q", bytes(8 * (found + 2)))
                self.ends = self.ends + bytes(len(self.ends))
            self.ends[found] = UNKNOWN
            self.places[found] = UNMADE
        return found

    def _make(self, state: int) -> int:
        """Build the row of a state if it has none."""
        at = self.places[state]
        if at != UNMADE:
            return at
        if self._made >= MOST_ROWS:
            raise ConstraintError(
                f"the answer has met {MOST_ROWS:,} states of its constraint, which are all that are kept; use smaller repeats or less nesting"
            )
        content = self._contents[state]
        above: tuple[_Ranges, array[int]] | None = None
        if not isinstance(content, _Inner):
            targets, pattern = self._patterns[state] = self._ways(content)
            runs, rest = self._shapes.halves(pattern)
            if rest.runs:
                above = self._above(rest, targets)
        else:
            targets, runs = content.leads, self._shapes.inside(content.node)
        moves = [(first, last, targets[ref] if isinstance(ref, int) else self._inner(ref, targets)) for first, last, ref in runs]
        at = self._made << 8
        rows = self.rows
        rows[at : at + 256] = _NO_WAYS
        for first, last, to in moves:
            if first == last:
                rows[at + first] = to
            else:
                rows[at + first : at + last + 1] = array("i", (to,)) * (last - first + 1)
        if above is not None:
            rows[at + 0x80 : at + 0x100] = above[1]
        self._moves[state] = tuple(chain.from_iterable(moves)) + (above[0] if above is not None else ())
        self._made += 1
        self.places[state] = at
        return at

    def _above(self, above: Above, targets: tuple[int, ...]) -> tuple[_Ranges, array[int]]:
        """The half of a row behind ASCII, and its memory: the same for all states that lead to the same ones from there."""
        key = above.number, tuple([targets[leaf] for leaf in above.leaves])
        found = self._halves.get(key)
        if found is None:
            moves = [(first, last, targets[ref] if isinstance(ref, int) else self._inner(ref, targets)) for first, last, ref in above.runs]
            memory = array("i", (DEAD,)) * 0x80
            for first, last, to in moves:
                memory[first - 0x80 : last - 0x7F] = array("i", (to,)) * (last - first + 1)
            found = self._halves[key] = tuple(chain.from_iterable(moves)), memory
        return found

    def _pattern_of(self, classes: Classes) -> tuple[int, ...]:
        """Return the pattern in which only these classes are legal."""
        found = self._alone.get(classes)
        if found is None:
            pattern = [FAR] * self._classes
            for c in classes:
                pattern[c] = 0
            found = self._alone[classes] = tuple(pattern)
        return found

    def _inner(self, ref: tuple[int, tuple[int, ...]], targets: tuple[int, ...]) -> int:
        return self._number(_Inner(ref[0], tuple([targets[leaf] for leaf in ref[1]])))

    def _ways(self, content: _Set) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the states that a set leads to, and for each class the index of its target, or FAR."""
        by_classes: dict[Classes, list[Term]] = {}
        forms = self._terms.forms
        for term in content:
            for classes, behind in forms(term):
                if (same := by_classes.get(classes)) is None:
                    by_classes[classes] = [behind]
                else:
                    same.append(behind)
        self._terms.pay(len(content))
        if len(by_classes) == 1:
            [(only, terms)] = by_classes.items()
            return (self._number(self._terms.joined(terms)),), self._pattern_of(only)
        if not by_classes:
            return (), (FAR,) * self._classes
        widest = max(by_classes, key=lambda classes: (len(classes), classes))
        pattern = list(self._pattern_of(widest))
        others: dict[int, list[Term]] = defaultdict(list)  # by class, of those that others than the widest set have
        for classes, terms in by_classes.items():
            if classes is not widest:
                for c in classes:
                    others[c] += terms
        main, shared = by_classes[widest], 0
        by_terms: dict[tuple[Term, ...], list[int]] = defaultdict(list)
        for c in sorted(others):
            if pattern[c] != FAR:
                shared += 1
                others[c] += main
            by_terms[tuple(others[c])].append(c)
        targets: dict[int, int] = {}  # by state, its leaf: numbered alike wherever the classes are divided alike
        if shared < len(widest):
            targets[self._number(self._terms.joined(main))] = 0
        for terms, classes in by_terms.items():
            leaf = targets.setdefault(self._number(self._terms.joined(terms)), len(targets))
            for c in classes:
                pattern[c] = leaf
        return tuple(targets), tuple(pattern)


def _threes(ranges: _Ranges) -> Iterator[tuple[int, int, int]]:
    return zip(ranges[::3], ranges[1::3], ranges[2::3])


def _memory(count: int) -> memoryview[int]:
    """Return so many int32. The system provides a page when something is first written to it, so none is ever copied to grow."""
    flags = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}  # a forked process has its own
    return memoryview(mmap.mmap(-1, 4 * count, **flags)).cast("i")


def _text_of(name: Name) -> str:
    return name[0]


Machine = ByteDFA | LazyDFA
"""Machines that follow texts: a whole automaton, or one built on demand."""
