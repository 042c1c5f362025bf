"""JSON as text: the texts of a value, of a string in a language, of a number within bounds. Trees for dfa.build.

One way to write each value, that of `json.dumps(value, ensure_ascii=False)`, so that sets of values are sets of texts.
Free strings and free numbers are the exception: any spelling of them that RFC 8259 allows, except half a surrogate
pair.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from lmc.fsm.algebra import automaton
from lmc.fsm.charset import MAX_CHAR, Ranges, without_surrogates
from lmc.fsm.counted import folded
from lmc.fsm.nodes import (
    ANY,
    NOTHING,
    Chars,
    Concat,
    Counted,
    Node,
    NodeGraph,
    Ref,
    Repeat,
    Union,
    one_of,
    parts_of,
    rebuilt,
    repeat,
    seq,
    text,
)
from lmc.fsm.regex import parse

# -- strings -------------------------------------------------------------------------------------------------------

_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_HALVES = re.compile("[\ud800-\udfff]")  # of pairs, alone: UTF-8 has none
_RAW: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, MAX_CHAR))
RAW_CHARS = Chars(without_surrogates(_RAW))
_HEX = Chars(((48, 57), (65, 70), (97, 102)))

ANY_TEXT = Repeat(ANY, 0, None)


@lru_cache(4096)
def string(value: str) -> Node:
    """Return the one text of a string."""
    return text(_HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(value, ensure_ascii=False)))


@lru_cache(1)
def free_string() -> Node:
    """Return every JSON string: all raw characters and all escapes."""
    return seq(text('"'), WITHIN_STRINGS[0], text('"'))


def _any_character() -> Node:
    d = Chars(((68, 68), (100, 100)))
    unit = one_of(
        [
            seq(Chars(((48, 57), (65, 67), (69, 70), (97, 99), (101, 102))), _HEX, _HEX, _HEX),
            seq(d, Chars(((48, 55),)), _HEX, _HEX),
            seq(d, parse("[89abAB]"), _HEX, _HEX, text("\\u"), d, parse("[c-fC-F]"), _HEX, _HEX),
        ]
    )
    escape = seq(text("\\"), one_of([parse(r'["\\/bfnrt]'), seq(text("u"), unit)]))
    return one_of([RAW_CHARS, escape])


def string_of(language: Node) -> Node:
    """Return the strings whose values are in a language of characters."""
    return seq(text('"'), _spelled(language), text('"'))


def _spelled(tree: Node) -> Node:
    if isinstance(tree, Chars):
        return _spelled_chars(tree.ranges)
    if isinstance(tree, NodeGraph):
        if tree.but is None:
            return _spelled_edges(tree if tree.open else folded(tree))
        if tree.among is None:
            return _spelled_edges(tree)
        edges = _spelled_edges(tree).edges
        among = _spelled(tree.among)
        return NodeGraph(edges, tree.final, tree.but, among) if type(among) is Repeat and type(among.body) is Chars else NodeGraph(edges, tree.final)
    if isinstance(tree, Counted):
        return Counted(_spelled_edges(tree.graph), tree.low, tree.high)
    return rebuilt(tree, list(map(_spelled, parts_of(tree))))


def _spelled_edges(graph: NodeGraph) -> NodeGraph:
    return NodeGraph(tuple([(a, _spelled(body), b) for a, body, b in graph.edges]), graph.final, graph.but, open=graph.open)


@lru_cache(4096)
def _spelled_chars(ranges: Ranges) -> Node:
    r"""A character out of a class, spelled one way. Controls as \u00XX only if nothing else is in the class: an answer that
    began to write another character as \u00e9 would have to go on with a control."""
    raw = tuple((max(a, low), min(b, high)) for a, b in ranges for low, high in _RAW if a <= high and b >= low)
    short = "".join(letter for char, letter in _SHORT.items() if any(a <= ord(char) <= b for a, b in ranges))
    arms: list[Node] = [Chars(without_surrogates(raw))] if raw else []
    if short:
        arms.append(seq(text("\\"), Chars(tuple(sorted((ord(c), ord(c)) for c in short)))))
    if not arms:
        arms = [text(f"\\u{c:04x}") for a, b in ranges for c in range(a, b + 1)]
    return one_of(arms)


WITHIN_STRINGS = tuple(Repeat(unit, 0, None) for unit in (_any_character(), _spelled_chars(ANY.ranges)))
"""What is between the quotes of a JSON string of any characters: however they are written, and each in one way, as where they are counted."""

# -- numbers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers between `low` and `high` (None: no bound), including the bounds unless `open`, multiples of `step`."""

    low: Decimal | None = None
    high: Decimal | None = None
    open_low: bool = False
    open_high: bool = False
    step: Decimal | None = None

    @property
    def free(self) -> bool:
        return self == FREE

    def both(self, other: Bounds) -> Bounds:
        """Return the bounds of numbers within both."""
        low, open_low = _tighter((self.low, self.open_low), (other.low, other.open_low), 1)
        high, open_high = _tighter((self.high, self.open_high), (other.high, other.open_high), -1)
        steps = [s for s in (self.step, other.step) if s is not None]
        step = _common_multiple(*steps) if len(steps) == 2 else max(steps, default=None)
        return Bounds(low, high, open_low, open_high, step)

    def contains(self, x: Decimal) -> bool:
        return (
            (self.low is None or x > self.low or (x == self.low and not self.open_low))
            and (self.high is None or x < self.high or (x == self.high and not self.open_high))
            and (self.step is None or Fraction(x) % Fraction(self.step) == 0)
        )

    def apart(self, other: Bounds) -> bool:
        """Return whether no number is within both, as far as bounds tell."""
        return any(
            a.high is not None and b.low is not None and (a.high < b.low or (a.high == b.low and (a.open_high or b.open_low)))
            for a, b in ((self, other), (other, self))
        )


FREE = Bounds()


def _common_multiple(a: Decimal, b: Decimal) -> Decimal:
    """Return the least common multiple, exactly: steps are decimals."""
    x, y = Fraction(a), Fraction(b)
    found = Fraction(math.lcm(x.numerator, y.numerator), math.gcd(x.denominator, y.denominator))
    with localcontext() as context:
        context.prec = 1000
        return Decimal(found.numerator) / Decimal(found.denominator)


def _tighter(a: tuple[Decimal | None, bool], b: tuple[Decimal | None, bool], sign: int) -> tuple[Decimal | None, bool]:
    if a[0] is None or b[0] is None:
        return b if a[0] is None else a
    if a[0] == b[0]:
        return a[0], a[1] or b[1]
    return a if (a[0] - b[0]) * sign > 0 else b


DIGITS = 15  # of a double: decimals of so many are distinct, so that bounds hold for the value that a reader parses
_FREE_INTEGER = parse(r"0|-?[1-9][0-9]*")
_FREE_NUMBER = parse(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,22})?([eE][+-]?[0-9]{1,2})?")  # as Python and JavaScript write doubles; models would write on


def integer(bounds: Bounds) -> Node:
    """Return integers within bounds; NOTHING if there are none."""
    return _FREE_INTEGER if bounds.free else _decimals(bounds, 0)


def number(bounds: Bounds) -> Node:
    """Return numbers within bounds. Bounded ones have no exponent and at most DIGITS significant digits near the
    bounds."""
    if bounds.free:
        return _FREE_NUMBER
    known = [x for x in (bounds.low, bounds.high, bounds.step) if x is not None]
    whole = max(max(x.adjusted() + 1, 1) for x in known)
    places = max(DIGITS - whole, *(_places(x) for x in known))
    if bounds.step is not None:
        places = _places(bounds.step)
    return _decimals(bounds, places)


def _places(x: Decimal) -> int:
    """Return the number of digits after the point."""
    exponent = x.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


@lru_cache(512)
def _decimals(bounds: Bounds, places: int) -> Node:
    """Return decimals of at most `places` digits after the point: those from zero up, and those below with their
    sign."""
    zero = Decimal(0)
    arms: list[Node] = []
    if bounds.high is None or bounds.high >= 0:
        low, open_low = (bounds.low, bounds.open_low) if bounds.low is not None and bounds.low >= 0 else (zero, False)
        arms.append(_magnitudes(Bounds(low, bounds.high, open_low, bounds.open_high, bounds.step), places))
    if bounds.low is None or bounds.low < 0:
        low, open_low = (-bounds.high, bounds.open_high) if bounds.high is not None and bounds.high < 0 else (zero, True)
        high = None if bounds.low is None else -bounds.low
        arms.append(seq(text("-"), _magnitudes(Bounds(low, high, open_low, bounds.open_low, bounds.step), places)))
    return one_of(arms)


@dataclass(frozen=True, slots=True)
class _DecimalState:
    """Reading state of a decimal: its position, and its comparison so far with the bounds' digits.

    whole    digits before the point, counted up to one more than the longest bound has
    places   digits after the point, -1 before the point
    low, high   -1, 0, 1: less than, equal to, greater than the digits of the bound read so far
    rest     of the digits read, as one integer, divided by the step's
    """

    whole: int
    places: int
    low: int
    high: int
    rest: int
    zero: bool = False  # a leading zero: only a point may follow


def _magnitudes(bounds: Bounds, places: int) -> Node:
    """Return decimals of at least zero, without a sign."""
    low, high = _digits(bounds.low), _digits(bounds.high)
    most = max(len(d[0]) for d in (low, high) if d is not None) + 1 if low or high else 1
    scale = max(places, _places(bounds.step)) if bounds.step is not None else 0
    step = int(bounds.step.scaleb(scale)) if bounds.step is not None else 1

    def step_by(at: _DecimalState, chars: str) -> _DecimalState | None:
        char = chars[0]
        if char == ".":
            if at.places >= 0 or not at.whole or not places:
                return None
            return _DecimalState(0, 0, _whole(at.low, at.whole, low), _whole(at.high, at.whole, high), at.rest)
        digit = int(char)
        rest = (at.rest * 10 + digit) % step
        if at.places >= 0:
            if at.places >= places:
                return None
            return _DecimalState(0, at.places + 1, _compared(at.low, digit, low, at.places, 1),
                       _compared(at.high, digit, high, at.places, 1), rest)  # fmt: skip
        if at.zero:
            return None
        whole = min(at.whole + 1, most)
        if high is not None and whole > len(high[0]):
            return None  # more digits than the bound has
        return _DecimalState(whole, -1, _compared(at.low, digit, low, at.whole, 0), _compared(at.high, digit, high, at.whole, 0),
                   rest, zero=digit == 0 and at.whole == 0)  # fmt: skip

    def is_final(at: _DecimalState) -> bool:
        if at.places == 0 or (at.places < 0 and not at.whole):
            return False
        done = max(at.places, 0)
        above = _whole(at.low, at.whole, low) if at.places < 0 else at.low
        below = _whole(at.high, at.whole, high) if at.places < 0 else at.high
        above, below = _ended(above, done, low), _ended(below, done, high)
        return (
            (low is None or above > 0 or (above == 0 and not bounds.open_low))
            and (high is None or below < 0 or (below == 0 and not bounds.open_high))
            and at.rest * 10 ** (scale - done) % step == 0
        )

    digits = _alike(low, high) if step == 1 else list("0123456789")
    return automaton(_DecimalState(0, -1, 0, 0, 0), step_by, is_final, [*digits, "."] if places else digits)


def _alike(*bounds: _Digits) -> list[str]:
    """Yield digits that compare equally with each digit of some bounds; 0 by itself."""
    marks = {0, *(int(digit) for bound in bounds if bound is not None for part in bound for digit in part)}
    groups: dict[tuple[int, ...], str] = {}
    for digit in range(10):
        key = tuple([(digit > mark) - (digit < mark) for mark in sorted(marks)])
        groups[key] = groups.get(key, "") + str(digit)
    return list(groups.values())


_Digits = tuple[str, str] | None  # of a bound: before the point and after it


def _digits(x: Decimal | None) -> _Digits:
    if x is None:
        return None
    whole, _, places = format(x.normalize(), "f").partition(".")
    return whole, places


def _compared(so_far: int, digit: int, bound: _Digits, index: int, part: int) -> int:
    if so_far or bound is None:
        return so_far
    expected = int(bound[part][index]) if index < len(bound[part]) else 0
    return (digit > expected) - (digit < expected)


def _whole(so_far: int, whole: int, bound: _Digits) -> int:
    """Return the comparison when all digits before the point are read: the longer one is greater."""
    if bound is None:
        return 0
    return (whole > len(bound[0])) - (whole < len(bound[0])) or so_far


def _ended(so_far: int, places: int, bound: _Digits) -> int:
    """Return the comparison at the end: the bound's remaining digits may make it the greater one."""
    if so_far or bound is None:
        return so_far
    return -1 if bound[1][places:].strip("0") else 0


# -- trees with references -----------------------------------------------------------------------------------------


def lengths(tree: Node) -> tuple[int, int | None]:
    """Return the fewest and the most characters of a tree's texts, or bounds of these; None is without bound."""
    if isinstance(tree, Chars):
        return 1, 1
    if isinstance(tree, NodeGraph | Ref):
        return 0, None
    if isinstance(tree, Counted):
        return tree.low, tree.high
    if isinstance(tree, Repeat):
        low, high = lengths(tree.body)
        return low * tree.low, None if high is None or (tree.high is None and high) else high * (tree.high or 0)
    parts = list(map(lengths, tree.parts if isinstance(tree, Concat) else tree.arms))
    together = sum if isinstance(tree, Concat) else max
    highs = [high for _, high in parts if high is not None]
    least = sum(low for low, _ in parts) if isinstance(tree, Concat) else min((low for low, _ in parts), default=0)
    return least, together(highs or [0]) if len(highs) == len(parts) else None


def limited(tree: Node, low: int, high: int | None) -> Node | None:
    """Return the texts of a tree of so many characters, if counts of its repeats can express that: of `a[bc]*` up to
    five characters are `a[bc]{0,4}`. None where more than one part of a sequence has texts of several lengths."""
    least, most = lengths(tree)
    if least >= low and (high is None or (most is not None and most <= high)):
        return tree
    if (high is not None and least > high) or (most is not None and most < low):
        return NOTHING
    if isinstance(tree, Union):
        arms = [limited(arm, low, high) for arm in tree.arms]
        return None if None in arms else one_of([arm for arm in arms if arm is not None])
    if isinstance(tree, Repeat):
        size, longest = lengths(tree.body)
        if size != longest or not size:
            return None
        turns = [n for n in (tree.high, None if high is None else high // size) if n is not None]
        fewest, many = max(tree.low, -(-low // size)), min(turns, default=None)
        return NOTHING if many is not None and many < fewest else repeat(tree.body, fewest, many)
    if not isinstance(tree, Concat):
        return None
    sizes = list(map(lengths, tree.parts))
    open_ = [i for i, (a, b) in enumerate(sizes) if a != b]
    if len(open_) != 1:
        return None
    [i], rest = open_, sum(a for a, b in sizes if a == b)
    part = limited(tree.parts[i], max(low - rest, 0), None if high is None else high - rest)
    return None if part is None else seq(*tree.parts[:i], part, *tree.parts[i + 1 :])
