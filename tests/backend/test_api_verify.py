"""Answers of servers that enforce no constraint: what of them is taken."""

from __future__ import annotations

import json

import pytest

from lmc.backend.api.verify import matching
from lmc.errors import SchemaWarning
from lmc.fsm.json_schema import compile_schema
from lmc.segments import Constraint


def test_what_is_checked_when_an_answer_ends_is_checked() -> None:
    compile_schema.cache_clear()  # it warns of a source that it does not know yet
    unique = Constraint("json_schema", json.dumps({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}))
    with pytest.warns(SchemaWarning, match="uniqueItems"):
        assert matching(unique, "[1, 2]") == "[1, 2]"
    assert matching(unique, "[1, 1]") is None


def test_schemas_that_recur_are_followed() -> None:
    tree = Constraint("json_schema", json.dumps({"type": "object", "properties": {"sub": {"$ref": "#"}}, "additionalProperties": False}))
    assert matching(tree, 'Here: {"sub": {"sub": {}}}') == '{"sub": {"sub": {}}}'
    assert matching(tree, '{"sub": {"other": {}}}') is None
