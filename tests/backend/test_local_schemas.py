"""Schemas, grammars and dtypes on a model: what is answered is what was asked for."""

import json
import re
from enum import Enum
from typing import Literal

import pytest

import lmc
from tests.fsm.schemas import SCHEMAS
from tests.fsm.test_json_schema import is_valid, validator

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine(tiny_smollm2):
    with lmc.Engine(tiny_smollm2, max_tokens=4096) as engine:
        yield engine


def ask(engine, prompt="Answer: ", **constraint):
    @lmc.function
    def program(s):
        s += prompt + lmc.gen("x", max_tokens=200, temperature=1.0, seed=3, **constraint)

    state = program.run(backend=engine)
    return state["x"], state.get_meta_info("x")


NAMES = ["person", "sentiment", "tool call", "character", "invoice", "enum with escapes", "patternProperties and named", "a tuple",
         "uniqueItems between", "oneOf with a discriminator", "allOf of patterns", "date-time", "cents", "as pydantic writes it",
         "keys with one beginning", "compact", "a tree, cut", "lengths", "uuid", "ipv4", "if a kind then", "if then else", "dependentSchemas",
         "contains in a bounded array", "maxContains", "not an enum", "not of a property"]  # fmt: skip


@pytest.mark.filterwarnings("ignore:text contains")
def test_answers_are_instances(engine):
    """All at once."""

    @lmc.function
    def program(s, name):
        s += "Answer: " + lmc.gen("x", max_tokens=200, temperature=1.0, seed=3, json_schema=SCHEMAS[name][0])

    for name, state in zip(NAMES, program.run_batch([{"name": name} for name in NAMES], backend=engine)):
        if state.get_meta_info("x")["finish_reason"]["type"] == "stop":
            assert is_valid(validator(SCHEMAS[name][0]), state["x"]), (name, state["x"])
        else:
            assert state.get_meta_info("x")["finish_reason"]["type"] == "length" and len(state["x"]) > 50, name


def test_keys_and_braces_are_forced(engine):
    """`{"label": "` and `", "score": ` of a schema are not sampled."""
    schema = SCHEMAS["sentiment"][0]
    state = lmc.function(lambda s: s.__iadd__("Review: great!\n" + lmc.gen("x", json_schema=schema))).run(backend=engine)
    assert json.loads(state["x"])["label"] in ("positive", "neutral", "negative")
    assert state.usage.forced_tokens >= 5, state.usage


def test_a_recursive_schema_is_forced_too(engine):
    schema = {"type": "object", "properties": {"value": {"type": "integer", "minimum": 1, "maximum": 9},
              "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}}, "required": ["value", "children"]}  # fmt: skip

    @lmc.function
    def program(s):
        s += "A tree: " + lmc.gen("x", json_schema=schema, max_tokens=300, temperature=0)

    state = program.run(backend=engine)
    if state.get_meta_info("x")["finish_reason"]["type"] == "stop":
        assert is_valid(validator(schema), state["x"])
    assert re.match(r'\{\s*"value": ?[1-9]', state["x"]) and state.usage.forced_tokens >= 2, state.usage


def test_a_lark_grammar(engine):
    text, _ = ask(engine, lark='start: "move " DIRECTION " by " DIGIT\nDIRECTION: "north" | "south"\n%import common.DIGIT')
    assert text[:-1] in ("move north by ", "move south by ") and text[-1].isdigit()


def test_a_recursive_lark_grammar(engine):
    text, meta = ask(engine, lark='start: "(" start ")" | /[a-z]{1,3}/')
    if meta["finish_reason"]["type"] == "stop":
        depth = len(text) - len(text.lstrip("("))
        assert text.endswith(")" * depth) and text.strip("()").isalpha()


def test_a_structural_tag(engine):
    call = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<call>", "end": "</call>",
           "content": {"type": "json_schema", "json_schema": call}}}  # fmt: skip
    text, _ = ask(engine, structural_tag=tag)
    assert text in ('<call>{"city": "Paris"}</call>', '<call>{"city": "Rome"}</call>')


class Size(Enum):
    SMALL = "small"
    LARGE = 'la"rge'


def test_dtypes(engine):
    pydantic = pytest.importorskip("pydantic")

    class Car(pydantic.BaseModel):
        make: str = pydantic.Field(max_length=8)
        year: int = pydantic.Field(ge=1990, le=2030)
        size: Size
        owner: str | None = pydantic.Field(default=None, max_length=4)
        tags: list[Literal["new", "used"]] = pydantic.Field(max_length=2)

    text, _ = ask(engine, dtype=Car)
    assert 1990 <= Car.model_validate_json(text).year <= 2030
    assert ask(engine, dtype=Size)[0] in ("small", 'la"rge')
    assert ask(engine, dtype=Literal["yes", "no"])[0] in ("yes", "no")
    numbers, _ = ask(engine, dtype=list[Literal[1, 2]], json_schema=None)
    assert set(json.loads(numbers)) <= {1, 2}


@pytest.mark.parametrize("constraint",
    [{"json_schema": {"type": "string", "maxLen": 3, "x-lmc": {"strict": True}}}, {"lark": "start: A\nA.2: /a/"}, {"lark": "start: b"},
                                        {"structural_tag": {"type": "structural_tag", "format": {"type": "token", "token": 1}}}])  # fmt: skip
def test_what_cannot_be_enforced_is_refused_where_the_program_asks(engine, constraint):
    with pytest.raises(lmc.errors.ConstraintError) as caught:
        ask(engine, **constraint)
    assert caught.value.loc is not None and caught.value.loc.file.endswith("test_local_schemas.py")
