"""Sets of characters as sorted code-point ranges: the algebra, Python's classes, and case folding as `re` does it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

MAX_CHAR = 0x10FFFF
MAX_BMP = 0xFFFF  # of the first plane
SURROGATES = (0xD800, 0xDFFF)  # no UTF-8 text has them

Ranges = tuple[tuple[int, int], ...]  # inclusive, ascending, with gaps between


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the same characters, sorted, without overlaps and without adjacent ranges."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    at = 0
    for low, high in merged(ranges):
        if at < low:
            out.append((at, low - 1))
        at = high + 1
    if at <= MAX_CHAR:
        out.append((at, MAX_CHAR))
    return tuple(out)


def without_surrogates(ranges: Ranges) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in ranges:
        if low < SURROGATES[0]:
            out.append((low, min(high, SURROGATES[0] - 1)))
        if high > SURROGATES[1]:
            out.append((max(low, SURROGATES[1] + 1), high))
    return tuple(out)


def lead_of(char: int) -> int:
    """Return the first byte of a character in UTF-8."""
    return char if char < 0x80 else 0xC0 | char >> 6 if char < 0x800 else 0xE0 | char >> 12 if char < 0x10000 else 0xF0 | char >> 18


# -- classes -------------------------------------------------------------------------------------------------------

_ASCII: dict[str, Ranges] = {
    "d": ((48, 57),),
    "s": ((9, 13), (32, 32)),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
}


def ascii_class(letter: str) -> Ranges:
    """Return `\\d`, `\\s` or `\\w` under re.ASCII."""
    return _ASCII[letter]


@lru_cache
def unicode_class(letter: str) -> Ranges:
    """Return `\\d`, `\\s` or `\\w` by this Python's Unicode tables; computed by `re` itself, once."""
    return tuple((m.start(), m.end() - 1) for m in re.finditer(rf"\{letter}+", _characters()))


_PLANES = 4  # the first ones: no class has a character beyond (asserted in the tests, for every Python's tables)


@lru_cache(1)
def _characters() -> str:
    """Return those of the first planes; NUL, which is in no class, in place of surrogates."""
    codes = bytearray(4 * (_PLANES << 16))  # UTF-32, filled column by column: a `chr` for each takes twenty times as long
    codes[0::4] = bytes(range(256)) * (_PLANES << 8)
    codes[1::4] = b"".join(bytes([high]) * 256 for high in range(256)) * _PLANES
    codes[2::4] = b"".join(bytes([plane]) * 65536 for plane in range(_PLANES))
    first, last = SURROGATES
    codes[4 * first : 4 * last + 4] = bytes(4 * (last - first + 1))
    return codes.decode("utf-32-le")


# -- case ----------------------------------------------------------------------------------------------------------


def fold_ascii(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the set with the other case of every ASCII letter, as under re.IGNORECASE | re.ASCII."""
    ranges = list(ranges)
    extra: list[tuple[int, int]] = []
    for low, high in ranges:
        for first, shift in ((65, 32), (97, -32)):
            a, b = max(low, first), min(high, first + 25)
            if a <= b:
                extra.append((a + shift, b + shift))
    return merged(ranges + extra)


def written(pair: tuple[int, int]) -> str:
    """Return a character or range as it is written in a class of a regex."""
    low, high = pair
    return f"\\U{low:08x}" if low == high else f"\\U{low:08x}-\\U{high:08x}"


@lru_cache(1024)  # letters of literals recur
def fold_as_re(members: tuple[tuple[int, int], ...], inner: str, flags: int) -> Ranges:
    """The class of `members`, written `inner` between brackets, as `re` has it under `flags` and re.IGNORECASE: asked of `re` itself, character
    by character, for it has a mind of its own beyond the first plane. (`(?i)[𐐀i]` does not match 𐐀, while `(?i)[𐐀]` and
    `(?i)[𐐨i]` do; `(?ai)[a-𐐀]` matches 𐐨.)"""
    if not inner:
        return ()
    same = set(re.findall(f"[{inner}]", _cased(), flags | re.IGNORECASE))
    lost = set(re.findall(f"[{inner}]", _cased(), flags)) - same
    kept = complement([*complement(members), *_ranges_of(lost)]) if lost else members
    return merged([*kept, *_ranges_of(same)])


def _ranges_of(chars: Iterable[str]) -> list[tuple[int, int]]:
    return [(ord(c), ord(c)) for c in chars]


@lru_cache(1)
def _cased() -> str:
    """Return all characters that folding can affect. None lies beyond the second plane."""
    every = _characters()[:0x20000]
    blocks = [every[at : at + 256] for at in range(0, len(every), 256)]
    touched = [block for block in blocks if block.lower() != block or block.upper() != block]
    return "".join(c for c in "".join(touched) if c.lower() != c or c.upper() != c)


# -- categories ----------------------------------------------------------------------------------------------------

_NAMES = {
    "letter": "L", "uppercaseletter": "Lu", "lowercaseletter": "Ll", "titlecaseletter": "Lt", "modifierletter": "Lm", "otherletter": "Lo",
    "casedletter": "LC", "mark": "M", "nonspacingmark": "Mn", "spacingmark": "Mc", "enclosingmark": "Me", "number": "N", "decimalnumber": "Nd", "digit": "Nd",
    "letternumber": "Nl", "othernumber": "No", "punctuation": "P", "punct": "P", "symbol": "S", "mathsymbol": "Sm", "currencysymbol": "Sc",
    "modifiersymbol": "Sk", "othersymbol": "So", "separator": "Z", "spaceseparator": "Zs", "lineseparator": "Zl", "paragraphseparator": "Zp", "other": "C",
    "control": "Cc", "format": "Cf", "unassigned": "Cn", "privateuse": "Co", "connectorpunctuation": "Pc", "dashpunctuation": "Pd", "openpunctuation": "Ps",
    "closepunctuation": "Pe", "initialpunctuation": "Pi", "finalpunctuation": "Pf", "otherpunctuation": "Po",
}  # fmt: skip


def category(name: str) -> Ranges | None:
    """Return the characters of a general category of Unicode, by its short or long name; None for an unknown name."""
    wanted = _NAMES.get(name.replace("_", "").replace(" ", "").lower(), name)
    if wanted == "LC":
        wanted = ("Lu", "Ll", "Lt")
    found = merged(r for short, ranges in _categories().items() if short.startswith(wanted) for r in ranges)
    return found or None


_TAGS = 0xE0000, 0xE0FFF  # beyond the first planes, nothing else is assigned but what is for private use


@lru_cache(1)
def _categories() -> dict[str, list[tuple[int, int]]]:
    """Compute the categories. Those that are alike in every Python's tables (asserted in the tests) are not looked up."""
    found: dict[str, list[tuple[int, int]]] = {}
    first, last = SURROGATES
    known = _characters()
    _add_categories(found, 0, known[:first])
    found["Cs"] = [SURROGATES]
    _add_categories(found, last + 1, known[last + 1 :])
    found["Cn"].append((len(known), _TAGS[0] - 1))
    _add_categories(found, _TAGS[0], "".join(map(chr, range(_TAGS[0], _TAGS[1] + 1))))
    found["Cn"].append((_TAGS[1] + 1, 0xEFFFF))
    for begin in (0xF0000, 0x100000):
        found["Co"].append((begin, begin + 0xFFFD))
        found["Cn"].append((begin + 0xFFFE, begin + 0xFFFF))
    return found


def _add_categories(found: dict[str, list[tuple[int, int]]], begin: int, characters: str) -> None:
    for run in re.finditer(r"(..)\1*", "".join(map(unicodedata.category, characters))):
        found.setdefault(run[1], []).append((begin + run.start() // 2, begin + run.end() // 2 - 1))
