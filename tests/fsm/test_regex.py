"""The dialect: what is refused, and where."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import warnings

import pytest

from lmc.errors import ConstraintError
from lmc.fsm import regex
from lmc.fsm.charset import _PLANES, MAX_CHAR, _cased, complement, merged, unicode_class
from lmc.fsm.grammar import Grammar
from lmc.fsm.lazy import LazyDFA
from lmc.fsm.nodes import EMPTY, Chars, Concat, Repeat, Union
from lmc.fsm.regex import parse
from tests.searching import some

REFUSED = {
    r"[(?=](?!x(?=y))": ("within look-around", 5),
    r"(a)\1": ("back-references", 3),
    r"(?P<x>a)(?P=x)": ("back-references", 8),
    r"(a)(?(1)b|c)": ("conditional groups", 3),
    r"[*+]a*+b": ("possessive", 6),
    r"(?>a)b": ("atomic", 0),
    r"ab{2}c{12345}": ("a repeat of more than 10000", 6),
    r"[^\s\S]": ("without characters", 0),
    r"(a|[^]\w]?|b[^\w\W])c": ("without characters", 12),
    r"\n[\d]\ud800": ("without characters", 6),
}
INVALID = {r"(a": 0, r"a)": 1, r"[b-a]": 1, r"*a": 0, r"a{3,2}": 2, r"[a": 0, r"\q": 0}


@pytest.mark.parametrize(("pattern", "why", "position"), [(p, *w) for p, w in REFUSED.items()])
def test_what_is_not_regular_is_refused_with_its_position(pattern, why, position):
    with pytest.raises(ConstraintError) as caught:
        parse(pattern)
    assert why in str(caught.value) and f"at position {position}\n    {pattern}\n    {' ' * position}^" in str(caught.value)


@pytest.mark.parametrize(("pattern", "position"), INVALID.items())
def test_an_invalid_regex_names_the_position(pattern, position):
    with pytest.raises(ConstraintError, match=f"invalid regex .* at position {position}\n"):
        parse(pattern)


def test_a_pattern_of_many_lines_has_no_caret():
    with pytest.raises(ConstraintError, match="at position 5; rewrite") as caught:
        parse("a\n(a)\\1")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pattern, at", [("[[:alpha:]]", 1), (r"\[x[^[:^space:]a]+", 5), ("[_[:alnum:]]+", 2), (r"[a][]\]0-9[:upper:]]", 10)])
def test_a_posix_class_is_refused_where_python_reads_other_characters(pattern, at):
    with pytest.raises(ConstraintError, match=f"has the POSIX class .* at position {at}\n"):
        parse(pattern)


@pytest.mark.parametrize(
    "pattern, same",
    [
        ("(?x)a # [[:alpha:]] or\nb", "ab"),
        ("(?x)a#[[:alpha:]]", "a"),
        ("a(?#[[:alpha:]])b", "ab"),
        ("(?x:(a)#[[:alpha:]]\n)b", "ab"),
        (r"(?x)a\# # [[:digit:]]", "a#"),
    ],
)
def test_a_posix_class_in_a_comment_is_none(pattern, same):
    assert parse(pattern) == parse(same)


@pytest.mark.parametrize(
    "pattern", ["a#[[:alpha:]]", "(?x)(?-x:#[[:alpha:]])", "(?x:a#)\n)#[[:alpha:]]", "(?x)[#][[:alpha:]]", "a(?#()#[[:alpha:]]", r"(?x)\#[[:alpha:]]"]
)
def test_a_posix_class_behind_what_is_no_comment_is_refused(pattern):
    with pytest.raises(ConstraintError, match="has the POSIX class"):
        parse(pattern)


@pytest.mark.parametrize("pattern", ["[[a]", "[[:]", "[[:a:]", "[ab[:x:]", "[^[:-]", "[+--]", "[a&&b]", "[a||b]", "[a~~b]"])
def test_what_python_may_read_as_several_classes_some_day_is_one_without_a_warning(pattern):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chars = parse(pattern)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matched = [chr(c) for c in range(128) if re.fullmatch(pattern, chr(c))]
    assert isinstance(chars, Chars) and matched == [chr(c) for c in range(128) if any(low <= c <= high for low, high in chars.ranges)]


def test_threads_that_parse_at_once_leave_the_filters_of_warnings_as_they_were(monkeypatch):
    parser, first = regex._parser, threading.Event()
    begun, over = threading.Event(), threading.Event()

    def parse_slowly(pattern, flags):
        if first.is_set():
            begun.set()
            over.wait(10)
        else:
            first.set()
            other.start()
            begun.wait(0.1)
        return original(pattern, flags)

    original, filters, other = parser.parse, warnings.filters[:], threading.Thread(target=parse, args=("[[b]",))
    monkeypatch.setattr(parser, "parse", parse_slowly)
    parse("[[a]")
    over.set()
    other.join()
    assert warnings.filters == filters


def test_a_schemas_pattern_with_a_posix_class_is_read_as_javascript_reads_it():
    assert parse("^[[:alpha:]]$", search=True) == parse(r"^[\[:alph]\]$", search=True)


def test_errors_can_be_printed():
    """Also of half a surrogate pair, which no terminal takes."""
    for pattern in ("x\ud800", "(\ud800"):
        with pytest.raises(ConstraintError, match=r"at position [01]") as caught:
            parse(pattern)
        assert str(caught.value).isprintable()


def test_trees():
    a, b = Chars(((97, 97),)), Chars(((98, 98),))
    assert parse("") == parse("a{0}") == EMPTY
    assert parse("^a$") == a
    assert parse("(?:a|bb)") == Union((a, Concat((b, b))))
    assert parse("a{2,}?b?") == Concat((Repeat(a, 2, None), Repeat(b, 0, 1)))
    assert parse("(?i)A") == Chars(((65, 65), (97, 97)))
    assert parse(r"\d") == Chars(((48, 57),))


def test_classes_are_ascii_unless_the_pattern_asks():
    assert parse(r"\w") == parse(r"(?u:(?a:\w))")
    assert parse(r"(?u)\d") == Chars(unicode_class("d")) == parse(r"(?u:\d)") != parse(r"\d")
    assert parse(r"(?u:\d)\d") == Concat((parse(r"(?u)\d"), parse(r"\d"))) == parse(r"(?s)(?u:\d)\d")  # of a group, not of all


def test_no_class_has_a_character_beyond_the_planes_that_are_looked_at():
    beyond = "".join(map(chr, range(_PLANES << 16, MAX_CHAR + 1)))
    assert re.search(r"[\w\s]", beyond) is None  # a digit is a \w
    every = [chr(code) for code in range(0x20000)]
    assert _cased() == "".join(c for c in every if c.lower() != c or c.upper() != c)


def test_compiling_imports_nothing_that_takes_longer():
    heavy = "{'numpy.ma', 'numpy.random'}"
    code = rf"import sys; from lmc.fsm.regex import compile_regex; compile_regex(r'(?iu)[\w\s]{{1,9}}é'); print({heavy} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("ranges", [[], [(0, 0x10FFFF)], [(5, 9), (10, 12), (7, 8)], [(0, 3), (9, 9)]])
def test_the_complement_of_the_complement_is_the_set(ranges):
    assert complement(complement(ranges)) == merged(ranges)


@pytest.mark.parametrize(
    "inner",
    ["k", "s", "ß", "İ", "ǆ", "σ", "a-z", "é-ÿ", "𐐀", "𐐨", "𐐀i", "𐐨i", "𐐀-𐐁i", "a-𐐀", "^s𐐀-𐐨-", r"𐐀\d", r"^\W𐐨"],
)
@pytest.mark.parametrize("flags", ["i", "iu"])
def test_case_is_that_of_re(inner, flags):
    """Beyond the first plane it matters what else is in a class, in re and so here."""
    node = parse(f"(?{flags})[{inner}]")
    assert isinstance(node, Chars)
    pattern = re.compile(f"(?{flags})[{inner}]", 0 if "u" in flags else re.ASCII)
    for code in [*range(0x600), *range(0x1E00, 0x2200), *range(0xFB00, 0xFB10), *range(0x103F0, 0x10460)]:
        assert any(a <= code <= b for a, b in node.ranges) == bool(pattern.fullmatch(chr(code))), hex(code)


WORDS = "|".join(f"{a}{b}{i}" for i in range(9) for a in "ab-" for b in ("", "c", " d", "ef", "gh", "gi", "ghi", "_"))


@some(
    ("pattern", "lists"),
    [(WORDS, 1), (f"({WORDS})", 1), (f"x(?:{WORDS}){{2,3}}y|({WORDS})*z", 1), (f"(({WORDS})", 1), (f"({WORDS})|a^b", 1), (f"\\\\({WORDS})", 1),
     (f"[({WORDS})]+", 0), (f"[^({WORDS})x]", 0), (f"({WORDS}", 0), (f"\\({WORDS})", 0), (f"(?i)({WORDS})", 0)],
    2,
)  # fmt: skip
def test_many_words_are_read_as_python_reads_them(pattern, lists, monkeypatch):
    """Without its parser, where nothing around them changes what they mean."""
    tried = ["a0", "bghi8", "xa0bc1y", "xa0y", "z", "a0-gi5z", "(a|", "q", "A0", "a00", ""]

    def read() -> object:
        try:
            return [LazyDFA(Grammar(parse(pattern))).accepts(text.encode()) for text in tried]
        except ConstraintError as error:
            return str(error)

    found = read()
    assert len(regex._without_words(pattern)[1]) == lists
    monkeypatch.setattr(regex, "_LONG", 10**9)
    assert read() == found
