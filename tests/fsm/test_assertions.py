"""Look-around, word boundaries, line ends and Unicode's categories: the languages of Python's `re`, text by text."""

from __future__ import annotations

import itertools
import re
import unicodedata

import pytest

from lmc.errors import ConstraintError
from lmc.fsm import charset
from lmc.fsm.grammar import Grammar
from lmc.fsm.regex import compile_regex, parse
from lmc.fsm.sources import lazily, machine_of
from tests.searching import some

PATTERNS = [
    r"\ba+\b", r"a\b-?", r"(\ba\b[ -]?)+", r"a\Ba", r"[a ]*\B[a ]*", r"(?:\b|-)a*\b", r"a*\b-\ba",
    r"(?=a).*", r"(?!a).*", r"(?=.*b)(?=.*a)[ab]+", r"(?!.*aa)[ab]*", r"(?!.*b$)[ab]*", r"(?=ab$)[ab]*", r"a(?!b)[ab]?", r"(a(?=b)|b)*", r"(a(?!a))*b?",
    r"[ab]*(?<=a)", r"[ab]*(?<!a)b?", r"(?<=a)b|b", r"a(?<=a)b", r"(b(?<!ab))*a*", r"([ab](?<=ab|ba))?a*", r"(?=a|b)(?!b)[ab]{1,3}", r"a(?=.{2}$)[ab]*",
    r"(?m)(^a+\n?)*", r"(?m)a$\n^b", r"(?m)[a\n]*$[b\n]*", r"(?m:^a$)\n?", r"\Aa\Z|(?m)b".replace("(?m)", ""), r"(?s)(?=.*\n).*",
    r"$^", r"a$\n?", r"a\Z\n?", r"(a|$)\n?", r"(^a|b)*", r"(a|b\Z)*", r"([ab]$)*|-", r"^\^?[$]?a(b|a$|^b)$", r"(a|^)b(\Z|a)", r"(?!a$|b)[ab]*",
    r"(?=a$|b)[ab]*", r"(?!(a|b$))[ab]*",
    r"(?P<x>a)\bb?(?P<y>-)?", r"(?i)(?=A)[ab]*", r"(?!)|a", r"(?=)a",
]  # fmt: skip
LETTERS = "ab -\n"


@some("pattern", PATTERNS, 2)
def test_texts_are_those_of_re(pattern):
    dfa = compile_regex(pattern)
    slow = lazily(Grammar(parse(pattern)))
    for text in map("".join, itertools.chain.from_iterable(itertools.product(LETTERS, repeat=n) for n in range(5))):
        if not text and r"\B" in pattern:
            continue  # Pythons before 3.14 have no \B in an empty text
        expected = re.fullmatch(pattern, text, re.ASCII) is not None
        assert dfa.accepts(text.encode()) == expected, repr(text)
        assert slow.accepts(text.encode()) == expected, repr(text)


@pytest.mark.parametrize(
    "pattern", [r"\ba", r"^a\b|b$", r"(?m)^a$", r"a(?!b)", r"(?<!a)b", r"^(?!.*b).*$", r"(?<=a)(?=b)", r"(a|^)b($|a)", r"a(^|$| )", r"-?(^a|b$)-?"]
)
def test_matches_are_found_where_re_finds_them(pattern):
    """As of `pattern` in a schema."""
    found = lazily(Grammar(parse(pattern, search=True)))
    for text in map("".join, itertools.chain.from_iterable(itertools.product(LETTERS, repeat=n) for n in range(4))):
        if "$" in pattern and text.endswith("\n") and "(?m)" not in pattern:
            continue  # our $ is the end alone
        expected = re.search(pattern, text, re.ASCII | (re.DOTALL if "(?!.*" in pattern and "\n" not in text else 0)) is not None
        assert found.accepts(text.encode()) == expected, repr(text)


@some(
    ("pattern", "of"),
    [
        (r"\p{L}", "L"),
        (r"\p{Lu}", "Lu"),
        (r"\p{Letter}", "L"),
        (r"\pN", "N"),
        (r"\p{Uppercase_Letter}", "Lu"),
        (r"[\p{Nd}_]", "Nd"),
        (r"\p{P}", "P"),
        (r"\p{Currency Symbol}", "Sc"),
    ],
    2,
)
def test_categories(pattern, of):
    dfa, other = (
        compile_regex(pattern),
        compile_regex(pattern.replace(r"\p", r"[^\p").replace("[[", "[") + "]" if "[" not in pattern else pattern.replace("[", "[^")),
    )
    for code in [*range(0x250), *range(0x250, 0x30000, 61)]:
        if 0xD800 <= code <= 0xDFFF:
            continue
        char = chr(code)
        expected = unicodedata.category(char).startswith(of) or (char == "_" and "_]" in pattern)
        assert dfa.accepts(char.encode()) == expected and other.accepts(char.encode()) != expected, hex(code)


def test_each_character_is_in_its_category_alone():
    """Those that are not looked up, too."""
    found = sorted((low, high, short) for short, ranges in charset._categories().items() for low, high in ranges)
    assert [low for low, *_ in found] == [0, *(high + 1 for _, high, _ in found[:-1])] and found[-1][1] == charset.MAX_CHAR
    assert all(set(map(unicodedata.category, map(chr, range(low, high + 1)))) == {short} for low, high, short in found)


def test_negated_categories_and_escapes():
    assert compile_regex(r"\P{L}+").accepts(b"12") and not compile_regex(r"\P{L}+").accepts(b"1a")
    assert compile_regex(r"\p{^L}").accepts(b"1")
    assert charset.category("Latin") is None
    with pytest.raises(ConstraintError, match="not a general category"):
        compile_regex(r"\p{Greek}")


def test_what_is_refused_says_so():
    for pattern, why in [
        (r"(?=a(?!b))a", "within look-around"),
        (r"a(?=b)", "matches nothing"),
        (r"(?=.*a.{40}b).*", "too large an automaton"),
        ("a^b", "matches nothing"),
        (r"(?=^a)a", "or an anchor within look-around"),
    ]:
        with pytest.raises(ConstraintError, match=why):
            machine_of("regex", pattern)
