"""Compressed automata: the same language, chains fused, and what they look like."""

from __future__ import annotations

import re
from html import escape
from xml.etree import ElementTree

import pytest
from hypothesis import given

from lmc.fsm.compress import chain_label, class_label, compress
from lmc.fsm.draw import to_dot, to_html, to_text
from lmc.fsm.regex import compile_regex
from tests.fsm.patterns import JUDGE, regexes
from tests.searching import search


def test_figure_4_of_the_paper_as_text():
    """arXiv 2312.07104, figure 4: constant text is one edge; the end is reached with and without a sign."""
    assert to_text(compress(compile_regex(JUDGE))).splitlines() == [
        "33 states, 9 after compression; 10 edges, 4 of them chains; the next byte is forced in 85% of the states",
        r""">     0 -- '{"summary": "'    -> 13""",
        r"""     13 -- [\t-\r 0-9A-Z_a-z] -> 14""",
        r"""     14 -- [\t-\r 0-9A-Z_a-z] -> 14""",
        r"""     14 -- [.]                -> 15""",
        r"""     15 -- '", "grade": "'    -> 28""",
        r"""     28 -- [A-D]              -> 29""",
        r"""     29 -- ["]                -> 30""",
        r"""     29 -- [+\-]              -> 31""",
        r"""     30 -- "}"                -> 32*""",
        r"""     31 -- '"}'               -> 32*""",
        " *   32    (nothing may follow)",
    ]


def test_chains_may_end_inside_a_character():
    text, _ = compile_regex("世界(和平|大战)").forced(0)
    assert text == "世界".encode() + b"\xe5"


@search(7, 200)
@given(regexes)
def test_the_language_stays_and_every_chain_is_maximal(pattern):
    dfa = compile_regex(pattern)
    fsm = compress(dfa)
    for edge in fsm.edges:
        assert bool(edge.chain) == dfa.is_singular(edge.source)
        assert not (edge.chain and dfa.is_singular(edge.target))
        assert all(dfa.step(edge.source, text) == edge.target for text in ([edge.chain] if edge.chain else [bytes((byte,)) for byte in edge.any_of]))
    for state in fsm.states:
        firsts = b"".join(edge.any_of or edge.chain[:1] for edge in fsm.edges if edge.source == state)
        assert sorted(firsts) == [byte for byte, _ in dfa.moves(state)]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (class_label(b"-0123]ab"), r"[\-0-3\]ab]"),
        (class_label(b"\n \x80\x81\x82\xff"), r"[\n \x80-\x82\xff]"),
        (chain_label('"é\n'.encode() + b"\xe4"), "'\"é\\n\\xe4'"),
    ],
)
def test_labels(label, expected):
    assert label == expected


def test_dot_quotes_its_labels():
    dot = to_dot(compress(compile_regex(r'"\\[xy]')))
    assert r"""  "0" -> "2" [label="'\"\\'", penwidth=2];""" in dot
    assert '"3" [shape=doublecircle];' in dot


def test_html_is_well_formed_and_escaped():
    page = to_html(compress(compile_regex("<b>(&x|y)*")), "<b>(&x|y)*")
    ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    assert "&lt;b&gt;(&amp;x|y)*</h1>" in page and "<b>" not in page


def test_long_ways_back_are_within_the_drawing():
    page = to_html(compress(compile_regex("([ab]{30}c)*")), "")
    chain = chain_label(b"c")
    top = int(re.search(r'viewBox="0 (-?\d+)', page)[1])
    back = re.search(r"<path d='M(\d+) (\d+)Q(\d+) (-?\d+) ", page[page.index(f"<title>{escape(chain)}") :])
    crest = (int(back[2]) + int(back[4])) / 2  # of a curve between equal heights
    assert top < crest < 0
