"""Recognising: a hand-written text is in a constraint's language, or begins one that is."""

from __future__ import annotations

import json

import pytest

from lmc.errors import SchemaWarning
from lmc.fsm import recognise
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.recognise import allows, begins
from lmc.fsm.sources import machine_of

NESTED = 'start: "a" | "(" start ")" | start "+" start'
TREE = json.dumps(
    {
        "$ref": "#/$defs/t",
        "$defs": {
            "t": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "sub": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
                "required": ["n"],
                "additionalProperties": False,
            }
        },
    }
)


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
        ("ebnf", 'root ::= "a" root? "b"', "aabb", True, True),
        ("ebnf", 'root ::= "a" root? "b"', "aab", False, True),
        ("ebnf", 'root ::= "a" root? "b"', "ba", False, False),
        ("regex", "(a|b)*a(a|b){20}", "a" * 21, True, True),
        ("regex", "(a|b)*a(a|b){20}", "b" * 21, False, True),
    ],
)  # fmt: skip
def test_texts_of_languages_with_and_without_an_automaton(kind, source, text, whole, open):
    assert (allows(kind, source, text), begins(kind, source, text)) == (whole, open)


def test_what_only_a_whole_text_shows_is_looked_at():
    compile_schema.cache_clear()  # it warns of a source that it does not know yet
    schema = json.dumps({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    with pytest.warns(SchemaWarning, match="uniqueItems"):
        assert allows("json_schema", schema, "[1, 2]")
    assert not allows("json_schema", schema, "[1, 1]") and begins("json_schema", schema, "[1, 1")


def test_half_a_character_is_no_text():
    assert not allows("regex", "(?s:.)*", "\ud800") and allows("regex", "(?s:.)*", "\U0001f600")


def test_an_automaton_is_built_once_for_all_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock has thousands of answers to one regex. One that is built on demand is shared until it is worn."""
    recognise._machine_of.cache_clear()
    built: list[str] = []
    monkeypatch.setattr(recognise, "machine_of", lambda kind, source: built.append(source) or machine_of(kind, source))
    for text in ("yes", "no", "yes"):
        assert allows("regex", "yes|no|once", text) and begins("regex", "yes|no|once", text[:1])
    assert built == ["yes|no|once"]
    assert allows("lark", NESTED, "(a)") and allows("lark", NESTED, "a+a")
    assert built.count(NESTED) == 1
    monkeypatch.setattr("lmc.fsm.lazy.WORN_ROWS", 0)
    assert allows("lark", NESTED, "(a)") and built.count(NESTED) == 2
