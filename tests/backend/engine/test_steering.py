"""Steering: an answer that nears its limit goes the shortest way to a legal end."""

import json

import pytest

import lmc

pytestmark = pytest.mark.model

FLAT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "size": {"type": "number"}},
    "required": ["name", "tags", "size"], "additionalProperties": False,
}  # fmt: skip
TREE = {"$ref": "#/$defs/T", "$defs": {"T": {
    "type": "object", "properties": {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
    "required": ["name", "parts"], "additionalProperties": False}}}  # fmt: skip


@lmc.function
def describe(s, schema, limit, **options):
    s += lmc.user("Describe a city as JSON.")
    s += lmc.assistant(lmc.gen("x", json_schema=schema, max_tokens=limit, **options))
    s += lmc.user("Its name?") + lmc.assistant(lmc.gen("y", max_tokens=2))
    return s.parsed("x")


@pytest.fixture(scope="module")
def engine(tiny_smollm2):
    with lmc.Engine(tiny_smollm2, device="cpu") as engine:
        yield engine
        engine.check()


@pytest.mark.parametrize("schema", [FLAT, TREE, {"type": "object"}], ids=["flat", "recursive", "any"])
@pytest.mark.parametrize("temperature", [0, 1.2])
def test_no_limit_cuts_an_answer(engine, schema, temperature):
    """From the shortest answer's length on."""
    items = [{"schema": schema, "limit": limit} for limit in range(20, 60, 13)]
    for item, state in zip(items, lmc.compile(describe, backend=engine).batch(items, temperature=temperature, seed=1)):
        meta = state.get_meta_info("x")
        assert isinstance(state.ret_value, dict) and meta["completion_tokens"] <= item["limit"]
        assert json.loads(state["x"]) == state.ret_value


def test_where_no_end_fits_the_read_raises(engine):
    with pytest.raises(lmc.IncompleteAnswer, match=r"test_steering.py:\d+.*cut at 5 tokens") as raised:
        describe.run(FLAT, 5, backend=engine, temperature=0)
    assert raised.value.text.startswith("{")


def test_steered_answers_say_that_the_limit_ended_them_and_prompts_go_on(engine):
    state = describe.run(TREE, 40, backend=engine, temperature=0)
    assert state.get_meta_info("x")["finish_reason"]["type"] == "length"
    assert state.messages()[1]["content"] == state["x"].strip()
    assert state["y"]


def test_log_probabilities_have_an_entry_for_each_token(engine):
    state = describe.run(TREE, 40, backend=engine, temperature=0, return_logprob=True)
    meta = state.get_meta_info("x")
    assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]


def test_regexes_end_where_sglang_ends_them(engine):
    @lmc.function
    def program(s):
        s += lmc.gen("x", regex='"[a-z ]{20,}"', max_tokens=4)
        return s["x"]

    assert program.run(backend=engine, temperature=0).get_meta_info("x")["completion_tokens"] == 4
