"""Completing what was cut off: the shortest text that leads into the language, and none where nothing does."""

import json

from hypothesis import given
from hypothesis import strategies as st

from lmc.fsm.completion import completion
from lmc.fsm.regex import compile_regex
from lmc.fsm.sources import automaton_of
from tests.searching import search

WORDS = compile_regex(r"(red|blue!|é{2,3})( and (red|x))*")
PEOPLE = automaton_of("json_schema", json.dumps({
    "type": "array",
    "items": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"],
              "additionalProperties": False},
}))  # fmt: skip


def test_examples():
    assert completion(WORDS, "") == "red"
    assert completion(WORDS, "red") == ""
    assert completion(WORDS, "bl") == "ue!"
    assert completion(WORDS, "é") == "é"
    assert completion(WORDS, "red an") == "d x"
    assert completion(WORDS, "green") is None
    assert completion(PEOPLE, '[{"name": "An') == '", "age": 0}]'


@search(15, 100)
@given(st.integers(0, 60))
def test_every_cut_of_a_member_is_completed_to_a_member(cut):
    text = '[{"name": "A\\nß", "age": -12}, {"name": "", "age": 0}]'
    assert PEOPLE.accepts(text.encode())
    whole = text[:cut] + completion(PEOPLE, text[:cut])
    assert PEOPLE.accepts(whole.encode())
    json.loads(whole)
    assert len(whole) <= max(len(text), cut)
