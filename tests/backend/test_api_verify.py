"""Answers of servers that enforce no constraint: what of them is taken."""

from __future__ import annotations

import json

import pytest

from lmc.backend.api.verify import answer_in, as_schema, check, keeps, matching
from lmc.constraints import REGEX_FLOAT, REGEX_INT
from lmc.errors import ConstraintError, SchemaWarning
from lmc.fsm.json_schema import compile_schema
from lmc.segments import Constraint


def test_what_is_checked_when_an_answer_ends_is_checked() -> None:
    compile_schema.cache_clear()  # it warns of a source that it does not know yet
    unique = Constraint("json_schema", json.dumps({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}))
    with pytest.warns(SchemaWarning, match="uniqueItems"):
        check(unique)
    assert matching(unique, "[1, 2]") == "[1, 2]"
    assert matching(unique, "[1, 1]") is None


@pytest.mark.parametrize(
    ("regex", "text", "answer"),
    [
        (REGEX_INT, "42.", "42"), (REGEX_INT, "42, I think", "42"), (REGEX_INT, "1,000", None), (REGEX_INT, "3.5", None), (REGEX_INT, "8/10", "8"),
        (REGEX_FLOAT, "3.5.", "3.5"), (REGEX_FLOAT, "1.5e-3", None), (REGEX_FLOAT, "3.5cm", None), ("[a-z]+", "foo-1", "foo"),
    ],
)
def test_an_answer_ends_within_no_number(regex: str, text: str, answer: str | None) -> None:
    assert matching(Constraint("regex", regex), text) == answer


@pytest.mark.parametrize(
    ("regex", "text", "answer"),
    [
        ("(?i)yes|no", "Yes, I do", "Yes"), (r"\p{L}+", "été.", "été"), (r"(?u)\w+", "é!", "é"), ("(?x) a b  # two", "ab", "ab"), (r"\w+", "é", None),
        ("a*", "b", None), ("(a|aa)+b", "a" * 99, None), ("(a|aa)+b", " " + "a" * 99 + "b?", "a" * 99 + "b"),
    ],
)  # fmt: skip
def test_a_regex_means_what_it_means_elsewhere_and_takes_no_time(regex: str, text: str, answer: str | None) -> None:
    """`re` refused the first ones, and searched for the last ones for years."""
    check(Constraint("regex", regex))
    assert matching(Constraint("regex", regex), text) == answer


@pytest.mark.parametrize(
    ("regex", "says"), [(r"(a)\1", "position 3"), ("a" * 300_000, "300,000 characters"), ("(" * 900 + "a" + ")" * 900, "nested too deep")]
)
def test_a_regex_of_no_constraint_is_refused_before_a_server_is_asked(regex: str, says: str) -> None:
    with pytest.raises(ConstraintError, match=says):
        check(Constraint("regex", regex))


@pytest.mark.parametrize("number", [0.1 + 0.2, 1 / 3 * 1e-3, -1e-9])
def test_a_float_as_python_writes_it_is_a_number(number: float) -> None:
    text = json.dumps([number])
    assert matching(Constraint("json_schema", '{"type": "array"}'), text) == text


@pytest.mark.parametrize(
    ("regex", "texts"),
    [
        ("(True|False)", ["True", "False"]), ("yes|no|yes", ["yes", "no"]), (r"(?:don\'t\ know|a\|b)", ["don't know", "a|b"]), ("(|a)", ["", "a"]),
        ("[0-9]+", None), (r"a|b\d", None), ("a|b.", None), ("(a|b", None), ("(a)|(b)", None), ("", None),
    ],
)
def test_a_list_of_texts_is_an_enum(regex: str, texts: list[str] | None) -> None:
    schema = as_schema(Constraint("regex", regex))
    assert (None if schema is None else json.loads(schema.source)["properties"]["answer"]["enum"]) == texts


def test_numbers_are_numbers_in_json() -> None:
    for regex, kind in ((REGEX_INT, "integer"), (REGEX_FLOAT, "number")):
        schema = as_schema(Constraint("regex", regex))
        assert schema is not None and json.loads(schema.source)["properties"]["answer"] == {"type": kind}
    assert [answer_in(Constraint("regex", kind), '{"answer": 5.0}') for kind in (REGEX_INT, REGEX_FLOAT)] == ["5", "5.0"]
    beyond = f'{{"answer": 1e{10**19}}}'  # what Decimal holds
    assert answer_in(Constraint("regex", REGEX_FLOAT), beyond) == beyond
    said = ['{"answer": 42}', '{"answer": 1.5e-3}', '{ "answer" : "a b" }', '{"answer": true}', '{"answer": 1e99999999}', "42", "[1]"]
    assert [answer_in(Constraint("regex", REGEX_FLOAT), text) for text in said] == ["42", "0.0015", "a b", "True", '{"answer": 1e99999999}', "42", "[1]"]


def test_schemas_that_recur_are_followed() -> None:
    tree = Constraint("json_schema", json.dumps({"type": "object", "properties": {"sub": {"$ref": "#"}}, "additionalProperties": False}))
    assert matching(tree, 'Here: {"sub": {"sub": {}}}') == '{"sub": {"sub": {}}}'
    assert matching(tree, '{"sub": {"other": {}}}') is None


@pytest.mark.parametrize(
    ("schema", "text", "answer"),
    [
        ({"type": "string", "format": "uri"}, '"mailto:a@b.c".', '"mailto:a@b.c"'), ({"type": "string", "format": "date"}, '"2024-13-01"', None),
        ({"properties": {"n": {"type": "integer"}}, "type": "object"}, '{"m": null, "n": 1.0}', '{"m": null, "n": 1.0}'), ({"type": "integer"}, "1.5", None),
    ],
)  # fmt: skip
def test_a_schema_means_the_same_as_where_a_server_enforces_it(schema: object, text: str, answer: str | None) -> None:
    assert matching(Constraint("json_schema", json.dumps(schema)), text) == answer


@pytest.mark.parametrize(
    ("schema", "text", "kept"),
    [
        ({"type": "string", "minLength": "3"}, '"abc"', True), ({"type": "object", "properties": ["a"]}, "{}", True), ({"multipleOf": 0}, "3", True),
        ({"anyOf": {"a": {}}}, "3", True), ({"type": "string", "minLength": "3"}, "3", False), ({"minimum": 0}, "NaN", False),
    ],
)  # fmt: skip
def test_an_answer_is_taken_as_it_is_where_its_schema_cannot_be_read(schema: object, text: str, kept: bool) -> None:
    """Servers take schemas that are none, and write what is no JSON."""
    assert keeps(Constraint("json_schema", json.dumps(schema)), text, cut=False, shown=False) is kept
