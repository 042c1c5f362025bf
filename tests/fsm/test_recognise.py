"""Recognising: a hand-written text is in a grammar's language, or begins one that is."""

from __future__ import annotations

import json
import random

import pytest

from lmc.fsm.dfa import build
from lmc.fsm.grammar import Grammar
from lmc.fsm.recognise import _Reader, allows, begins
from lmc.fsm.regex import parse
from tests.fsm.patterns import HAND_WRITTEN, mutated, word_of

NESTED = 'start: "a" | "(" start ")" | start "+" start'
TREE = json.dumps({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"n": {"type": "integer"}, "sub": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "required": ["n"], "additionalProperties": False}}})


@pytest.mark.parametrize(
    ("kind", "source", "text", "whole", "open"),
    [
        ("regex", "yes|no", "yes", True, True),
        ("regex", "yes|no", "ye", False, True),
        ("regex", "yes|no", "yo", False, False),
        ("lark", NESTED, "((a))+a+(a)", True, True),
        ("lark", NESTED, "((a)+a", False, True),
        ("lark", NESTED, "(a))", False, False),
        ("lark", NESTED, "a+b", False, False),
        ("json_schema", TREE, '{"n": 1, "sub": [{"n": 2}, {"n": 3, "sub": []}]}', True, True),
        ("json_schema", TREE, '{"n": 1, "sub": [{"n": 2}, {"n"', False, True),
        ("json_schema", TREE, '{"n": 1, "sub": [{"m": 2}]}', False, False),
    ],
)  # fmt: skip
def test_texts_of_languages_with_and_without_an_automaton(kind, source, text, whole, open):
    assert (allows(kind, source, text), begins(kind, source, text)) == (whole, open)


@pytest.mark.parametrize("pattern", HAND_WRITTEN)
def test_it_agrees_with_the_automaton(pattern):
    rng, tree = random.Random(pattern), parse(pattern)
    dfa = build(tree)
    for _ in range(5):
        text = word_of(tree, rng)
        for near in (text, text[: len(text) // 2], mutated(text, rng)):
            if len(near) <= 60:
                reader = _Reader(Grammar(tree, {}), near)
                state = dfa.step(0, near.encode())
                assert reader.whole == (state >= 0 and dfa.is_final(state)), near
                assert (reader.whole or reader.open) == (state >= 0), near
