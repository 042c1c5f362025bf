"""lmc.OpenAI: what is sent, what is made of what comes, and what is refused before anything is sent."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import threading
from enum import Enum
from typing import Literal

import jsonschema
import pytest

import lmc
from lmc.backend.api.bodies import growing_out_of_object, in_object, out_of_object
from lmc.backend.base import Backend, Handle
from lmc.segments import Gen, SamplingParams, Text
from tests.api.http import Answer, Planted, Server
from tests.api.openai_server import VLLM, refusal
from tests.api.text_model import TextModel
from tests.waiting import until

pytestmark = pytest.mark.api

CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@lmc.function
def ask(s, q, **given):
    s += lmc.user(q) + lmc.assistant(lmc.gen("a", **given))
    return s["a"]


def says(text):
    return TextModel(lambda prompt: text)


def test_it_is_a_backend(openai):
    backend, _ = openai(says("x"))
    assert isinstance(backend, Backend)
    handle = backend.submit(None, ())
    assert isinstance(handle, Handle)


def test_messages_are_what_the_program_wrote(openai):
    backend, server = openai(says("fine."))

    @lmc.function
    def program(s):
        s += lmc.system("Be brief.") + lmc.user("How are you?") + lmc.assistant(lmc.gen("a", max_tokens=9, stop=["\n", "END"]))
        s += lmc.user("Sure?") + lmc.assistant(lmc.gen("b", max_tokens=9, temperature=0))

    program.run(backend=backend, temperature=0.5, seed=3).sync()
    first, second = (s.body for s in server.seen)
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How are you?"}]
    assert first["stop"] == ["\n", "END"] and first["temperature"] == 0.5 and first["max_tokens"] == 9 and "seed" in first
    assert second["messages"][2] == {"role": "assistant", "content": "fine."}
    assert second["temperature"] == 0 and "stop" not in second and "seed" not in second


def test_text_models_get_the_template_s_text(openai):
    backend, server = openai(says(" fine"), False)
    assert ask("Q", backend=backend).ret_value == " fine"
    assert server.seen[0].body["prompt"] == "USER:Q\nASSISTANT:"


def test_openai_s_own_names(openai):
    """The API's own models take the newer name of the limit, and nothing that is the default."""
    backend, server = openai(says("x"), server="openai")
    ask("Q", max_tokens=7, backend=backend).sync()
    ask("Q", max_tokens=7, backend=backend).sync()
    assert {k: v for k, v in server.seen[0].body.items() if k not in ("messages", "seed", "prompt_cache_key")} == {"model": "m", "max_completion_tokens": 7}
    assert len({s.body["prompt_cache_key"] for s in server.seen}) == 1, "what begins alike goes to one cache"


def test_several_answers_and_log_probabilities(openai):
    backend, server = openai(TextModel())
    state = ask("Q", n=3, max_tokens=6, backend=backend, seed=1)
    assert len(state["a"]) == 3 and len(server.seen) == 1 and server.seen[0].body["n"] == 3
    for chat in (True, False):
        backend, _ = openai(says("ab"), chat)
        meta = ask("Q", return_logprob=True, temperature=0, backend=backend).get_meta_info("a")
        assert [t[2] for t in meta["output_token_logprobs"]] == ["a", "b"]
        assert all(t[0] < 0 for t in meta["output_token_logprobs"])


def test_more_than_four_stops_are_looked_for_here(openai):
    backend, server = openai(says("one; two"))
    state = ask("Q", stop=["0", "1", "2", "3", ";"], backend=backend)
    assert state["a"] == "one" and len(server.seen[0].body["stop"]) == 4
    assert state.get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": ";"}


def test_stop_regexes_are_looked_for_here(openai):
    backend, _ = openai(says("ab12cd"))
    assert ask("Q", stop_regex="[0-9]", backend=backend)["a"] == "ab"


# -- constraints


def test_a_schema_that_the_server_enforces(openai):
    backend, server = openai(TextModel())
    value = json.loads(ask("Q", json_schema=CLOSED, backend=backend).ret_value)
    assert isinstance(value["n"], int)
    sent = server.seen[0].body["response_format"]["json_schema"]
    assert sent["schema"] == CLOSED and sent["strict"] is True and len(server.seen) == 1


IGNORED = (  # what a server that ignores schemas answers, and what of it the program gets
    ("[1, 2]", "[1, 2]"), ("[\n  1,\n  2\n]\n", "[\n  1,\n  2\n]\n"), ("<think>[0]? No.</think>\n[1, 2]", "<think>[0]? No.</think>\n[1, 2]"),
    ('<think>So.</think>{"answer": [1]}', "<think>So.</think>[1]"), ("Here: ```json\n[1, 2]\n```", "[1, 2]"), ("yes", None),
    ('{"a": [1]}', None), ('["x"]', None), ("<think>[0]?</think>I do not know", None),
)  # fmt: skip


NOT_KEPT = r"test_openai.py:\d+: OpenAI\(m\) takes json_schema=.* and ignores it, or a part of it: {}; the last is "


@pytest.mark.parametrize(("answer", "value"), IGNORED)
def test_an_answer_of_a_server_that_ignores_schemas_is_within_them_all_the_same(openai, monkeypatch, answer, value):
    monkeypatch.setattr("tests.api.openai_server._constraint", lambda body: None)
    backend, server = openai(says(answer), attempts=3)
    if value is None:
        with pytest.raises(lmc.ConstraintError, match=NOT_KEPT.format("none of 3 answers is within it")):
            ask("Q", dtype=list[int], backend=backend, max_tokens=64)
    else:
        state = ask("Q", dtype=list[int], backend=backend, max_tokens=64)
        assert state["a"] == state.messages()[-1]["content"] == value
    assert len(server.seen) == (3 if value is None else 1)


MEANT = (  # schemas and answers of servers that enforce them, in forms that lmc's own automata do not write
    ({**CLOSED, "properties": {"n": {"type": "integer"}, "m": {"type": "string"}}, "required": ["n", "m"]}, '{"m" : "\\u00e9",\r\n\t"n": 1.0}'),
    ({"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/p"}, {"type": "null"}]}, "$defs": {"p": CLOSED}}, '[ {"n":1e2} , null]'),
    ({"type": "array", "items": {"type": "number", "multipleOf": 0.1, "minimum": 0}}, "[0.3, 1E-1, -0.0]"),
    ({**CLOSED, "properties": {"n": {"type": "string", "format": "uri"}}}, '{"n": "mailto:a@b.c"}'),
)  # fmt: skip


@pytest.mark.parametrize(("schema", "answer"), MEANT)
def test_an_answer_within_a_schema_is_taken_as_it_is_written(openai, monkeypatch, schema, answer):
    monkeypatch.setattr("tests.api.openai_server._constraint", lambda body: None)
    backend, server = openai(says(answer))
    state = ask("Q", json_schema=schema, backend=backend, max_tokens=64)
    assert state["a"] == answer and len(server.seen) == 1 and "constraint" not in state.get_meta_info("a")


@pytest.mark.parametrize(("answer", "shown"), (("[1, 2]", "[1, 2]"), ('<think>So.</think>{"answer": [1]}', "<think>So.</think>[1]"), ("It is [1, 2].", None)))
def test_an_answer_that_was_shown_as_it_came_is_not_asked_for_again(openai, monkeypatch, answer, shown):
    monkeypatch.setattr("tests.api.openai_server._constraint", lambda body: None)
    backend, server = openai(says(answer))
    stream = ask.run("Q", dtype=list[int], backend=backend, max_tokens=64, stream=True)
    if shown is None:
        with pytest.raises(lmc.ConstraintError, match=NOT_KEPT.format("the answer is not within it")):
            list(stream.text_iter("a"))
    else:
        assert "".join(stream.text_iter("a")) == stream["a"] == shown
    assert len(server.seen) == 1


def test_an_answer_within_an_ignored_schema_is_asked_for_again(openai, monkeypatch):
    monkeypatch.setattr("tests.api.openai_server._constraint", lambda body: None)
    pair = {"type": "object", "properties": {"n": {"type": "integer"}, "m": {"type": "null"}}, "required": ["n", "m"], "additionalProperties": False}
    answers = iter(("yes", "[true]", '[{"m": null, "n": 7.0}, null]'))
    backend, server = openai(TextModel(lambda prompt: next(answers)))
    state = ask("Q", json_schema={"type": "array", "items": {"anyOf": [pair, {"type": "null"}]}}, backend=backend, max_tokens=64)
    assert state["a"] == '[{"m": null, "n": 7.0}, null]' and state.get_meta_info("a")["constraint"] == {"enforced": "verified", "attempts": 3}
    assert all("response_format" in s.body for s in server.seen) and len({s.body["seed"] for s in server.seen}) == 3


def test_a_schema_that_lmc_cannot_read_is_left_to_the_server(openai, monkeypatch):
    schema = {**CLOSED, "properties": {"n": {"type": "string", "pattern": "(a)\\1"}}}
    monkeypatch.setattr("tests.api.openai_server._constraint", lambda body: None)
    backend, _ = openai(says('{"n": "aa"}'))
    assert ask("Q", json_schema=json.dumps(schema), backend=backend)["a"] == '{"n": "aa"}'


def test_a_schema_that_it_may_not_enforce_is_verified(openai):
    backend, server = openai(TextModel())
    state = ask("Q", json_schema=OPEN, backend=backend)
    assert isinstance(json.loads(state["a"])["n"], int) and "strict" not in server.seen[0].body["response_format"]["json_schema"]
    assert state.get_meta_info("a")["constraint"] == {"enforced": "verified", "attempts": 1}


TREE = {"$defs": {"leaf": {"type": "integer"}}, "type": "array", "items": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#"}]}, "minItems": 1, "maxItems": 2}
NO_OBJECTS = (
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    {"type": "integer"},
    {"enum": ["yes", 1, None]},
    {"anyOf": [CLOSED, {"type": "null"}]},
    TREE,
)


@pytest.mark.parametrize("api", ("chat", "responses"))
@pytest.mark.parametrize("schema", NO_OBJECTS, ids=("array", "integer", "enum", "union", "recursive"))
def test_a_schema_of_no_object_is_asked_for_as_a_property(openai, schema, api):
    """OpenAI refuses it; the program gets what is in the property."""
    backend, server = openai(TextModel(), server="openai", api=api)
    for seed in range(3):
        state = ask("Q", json_schema=schema, backend=backend, seed=seed, max_tokens=400)
        jsonschema.validate(json.loads(state["a"]), schema)
    sent = server.seen[0].body
    form = sent["response_format"]["json_schema"] if api == "chat" else sent["text"]["format"]
    assert form["strict"] is True and form["schema"]["required"] == ["answer"] and "$defs" not in form["schema"]["properties"]["answer"]
    assert '"answer"' not in state.text(), "the conversation goes on with the answer itself"


def test_references_to_the_root_lead_to_the_property():
    named = {
        "type": "array",
        "items": {"$ref": "#"},
        "properties": {"$ref": {"$ref": "#/items"}, "enum": {"enum": [{"$ref": "#"}]}},
        "definitions": {"x": {"$ref": "#/definitions/x"}},
    }
    assert in_object(named) == {
        "type": "object", "required": ["answer"], "additionalProperties": False, "definitions": {"x": {"$ref": "#/definitions/x"}},
        "properties": {"answer": {
            "type": "array", "items": {"$ref": "#/properties/answer"},
            "properties": {"$ref": {"$ref": "#/properties/answer/items"}, "enum": {"enum": [{"$ref": "#"}]}},
        }},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "answer"),
    (
        ('{"answer": [1, 2]}', "[1, 2]"), (' { "answer" :{"a": "}"} } \n', '{"a": "}"}'), ('{"answer": 12', "12"), ('{"answer": [1, {"a', '[1, {"a'),
        ('{"ans', ""), ("", ""),
        ("I cannot.", "I cannot."), ('{"answers": 1}', '{"answers": 1}'),
    ),
)  # fmt: skip
def test_an_answer_comes_out_of_its_property_also_while_it_grows(said, answer):
    assert out_of_object(said) == answer
    shown = [growing_out_of_object(said[:i]) for i in range(len(said) + 1)]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(shown)) and answer.startswith(shown[-1])


def test_a_stream_of_a_property_shows_the_answer(openai):
    backend, _ = openai(TextModel(), server="openai")
    stream = lmc.compile(ask).stream("Q", json_schema={"type": "array", "items": {"type": "string"}}, backend=backend)
    pieces = list(stream.text_iter("a"))
    assert "".join(pieces) == stream["a"] and isinstance(json.loads(stream["a"]), list) and len(pieces) > 1


def test_a_property_that_the_limit_cut_is_incomplete(opened):
    said = {"id": "1", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": '{"answer": [1, 2'}, "finish_reason": "length"}]}
    server = opened(Server(lambda path, body: Answer(said)))
    backend = opened(lmc.OpenAI("m", base_url=f"{server.url}/v1", api_key="none"))
    with pytest.raises(lmc.IncompleteAnswer) as raised:
        ask("Q", json_schema={"type": "array", "items": {"type": "integer"}}, backend=backend).text()
    assert raised.value.text == "[1, 2"


@pytest.mark.parametrize(
    ("answer", "regex", "value"), (("42", "[0-9]+", "42"), (" 42\n", "[0-9]+", "42"), ("42.", "[0-9]+", "42"), ("yes, I think", "(yes|no)s?", "yes"))
)
def test_a_regex_is_verified(openai, answer, regex, value):
    backend, _ = openai(says(answer))
    state = ask("Q", regex=regex, backend=backend)
    assert state["a"] == value and state.get_meta_info("a")["constraint"]["enforced"] == "verified"


class Mood(Enum):
    GOOD = "good"
    BAD = "don't like"


@pytest.mark.parametrize(
    ("dtype", "values"), ((Literal["good", "bad"], ("good", "bad")), (Mood, tuple(Mood)), (bool, (True, False)), (int, None), (float, None)),
    ids=("Literal", "Enum", "bool", "int", "float"),
)  # fmt: skip
def test_a_list_of_texts_and_a_number_are_enforced_by_a_schema(openai, dtype, values):
    backend, server = openai(TextModel())  # that enforces what it is sent
    state = ask("Q", dtype=dtype, max_tokens=12, backend=backend, seed=3)
    value = state.parsed("a", dtype)
    assert value in values if values is not None else type(value) is dtype
    assert state.get_meta_info("a")["constraint"] == {"enforced": "schema", "attempts": 1} and len(server.seen) == 1
    assert state.messages()[-1]["content"] == state["a"] and "{" not in state["a"]
    body = server.seen[0].body
    assert body["response_format"]["json_schema"]["strict"] and "stop" not in body and body["max_tokens"] == 28


def test_a_server_without_schemas_is_asked_for_a_text_of_a_list(openai):
    backend, server = openai(says("good, I think"), stand_in={"refuses": ("response_format",)})
    assert ask("Q", dtype=Literal["good", "bad"], backend=backend)["a"] == "good"
    assert ask("Q", dtype=Literal["good", "bad"], backend=backend)["a"] == "good"
    assert ["response_format" in s.body for s in server.seen] == [True, False, False]


REFUSALS = (
    (400, "This response_format type is unavailable now"), (422, "json_schema is unavailable now"),
    (400, "This model does not support response format `json_schema`"), (400, "response_format value as json_schema is enabled only for newer api versions"),
)  # fmt: skip


@pytest.mark.parametrize(("status", "message"), REFUSALS)
def test_a_server_that_refuses_schemas_in_its_own_words_is_asked_for_a_text(openai, status, message):
    backend, server = openai(says("good, I think"), stand_in={"refuses": {"response_format": refusal(status, message)}})
    for _ in range(2):
        assert ask("Q", dtype=Literal["good", "bad"], backend=backend)["a"] == "good"
    assert ["response_format" in s.body for s in server.seen] == [True, False, False]


def test_an_answer_that_is_never_within_its_constraint_fails_with_its_place(openai):
    backend, server = openai(says("no idea"), attempts=3)
    with pytest.raises(lmc.ConstraintError, match=r"test_openai.py:\d+: .*none of 3 answers is within it; the last is 'no idea'"):
        ask("Q", regex="[0-9]+", backend=backend).text()
    assert len(server.seen) == 3


@pytest.mark.parametrize("answer", ('{"n": 1', '[{"n":'))
def test_a_verified_schema_that_the_limit_cut_is_incomplete(opened, answer):
    said = {"id": "1", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "length"}]}
    server = opened(Server(lambda path, body: Answer(said)))
    backend = opened(lmc.OpenAI("m", base_url=f"{server.url}/v1", api_key="none", attempts=3))
    with pytest.raises(lmc.IncompleteAnswer, match=r"test_openai.py:\d+: .*raise max_tokens") as raised:
        ask("Q", json_schema=OPEN, backend=backend).text()
    assert raised.value.text == answer and len(server.seen) == 1


def test_it_is_asked_again_with_another_seed(openai):
    answers = iter(["what?", "hm", "17"])
    backend, server = openai(TextModel(lambda prompt: next(answers)))
    state = ask("Q", regex="[0-9]+", backend=backend, seed=1)
    assert state["a"] == "17" and state.get_meta_info("a")["constraint"]["attempts"] == 3
    assert len({s.body["seed"] for s in server.seen}) == 3
    assert state.usage.calls == 3 and state.usage.prompt_tokens == backend.spent().usage.prompt_tokens


def test_servers_that_enforce_regexes_are_told_them(openai):
    backend, server = openai(TextModel(), False, server="vllm")
    state = ask("Q", regex="[0-9]{3}", backend=backend)
    assert len(state["a"]) == 3 and server.seen[0].body["structured_outputs"] == {"regex": "[0-9]{3}"}


TAGS = ({"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}, {"structures": [], "triggers": []})


@pytest.mark.parametrize("tag", TAGS, ids=("a format", "the older form"))
@pytest.mark.parametrize("kind", ("vllm", "sglang"))
def test_a_structural_tag_is_written_as_its_server_reads_it(openai, kind, tag):
    """vLLM takes its text, SGLang an object with its type."""
    backend, server = openai(TextModel(), server=kind, stand_in={"extra": VLLM})
    ask("Q", structural_tag=tag, backend=backend)
    body = server.seen[0].body
    if kind == "vllm":
        assert json.loads(body["structured_outputs"]["structural_tag"]) == tag
    else:
        assert body["response_format"] == {"type": "structural_tag", **tag}


@pytest.mark.parametrize("server", ("vllm", "sglang"))
def test_what_a_model_s_own_configuration_would_change_is_sent(openai, server):
    """Servers take what is not sent from the model's generation_config.json: Qwen's says top_k=20 and repetition_penalty=1.05."""
    backend, seen = openai(TextModel(), server=server, stand_in={"extra": VLLM})

    @lmc.function
    def program(s):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=3) + lmc.gen("b", max_tokens=3, top_k=5))

    assert program.run(backend=backend)["b"]
    plain, chosen = [s.body for s in seen.seen]
    assert (plain["temperature"], plain["top_p"], plain["top_k"], plain["min_p"], plain["repetition_penalty"]) == (1, 1, -1, 0, 1)
    assert chosen["top_k"] == 5


# -- select


@pytest.mark.parametrize("method", lmc.ChoicesMethod)
def test_select_by_log_probabilities(openai, method):
    @lmc.function
    def program(s):
        s += "The sky is" + lmc.select("c", [" blue", " green", " black"], choices_method=method)

    model = TextModel()
    backend, server = openai(model, False)
    state = program.run(backend=backend)
    expected = program.run(backend=model.mock(backend.chat_template))["c"]
    assert state["c"] == expected and len(server.seen) == 1
    scores = state.get_meta_info("c")["normalized_prompt_logprobs"]
    assert scores == pytest.approx([sum(row) / len(row) for row in (model.row("The sky is", c) for c in (" blue", " green", " black"))])


@pytest.mark.parametrize("options", ({}, {"server": "vllm"}, {"select": "decisions"}), ids=("schema", "regex", "decisions"))
def test_select_in_a_chat(openai, options):
    @lmc.function
    def program(s):
        s += lmc.user("Yes or no?") + lmc.assistant(lmc.select("c", ["yes", "no", "no idea"]))

    if options == {"select": "decisions"} and not hasattr(__import__("openai").AsyncOpenAI, "decisions"):
        pytest.skip("this version of the openai package has no decisions")
    model = TextModel()
    backend, server = openai(model, True, stand_in={"extra": VLLM}, **options)
    state = program.run(backend=backend)
    if "server" not in options:  # a sampled regex is another draw than a score
        assert state["c"] == program.run(backend=model.mock(backend.chat_template))["c"]
    assert state["c"] in ("yes", "no", "no idea") and len(server.seen) == 1
    assert state.get_meta_info("c")["choice"]["by"] in ("constrained", "decisions")


def test_a_server_that_does_not_score_is_asked_for_the_choice(openai):
    @lmc.function
    def program(s):
        s += "Yes or no? " + lmc.select("c", ["yes", "no"])

    backend, server = openai(says("no, never"), False, stand_in={"refuses": ("echo",)})
    assert program.run(backend=backend)["c"] == "no" and program.run(backend=backend).get_meta_info("c")["choice"]["by"] == "verified"
    assert sum("echo" in s.body for s in server.seen) == 1, "learnt once"


def test_a_server_that_ignores_the_schema_of_a_choice_is_named(openai, monkeypatch):
    @lmc.function
    def program(s):
        s += lmc.user("Yes or no?") + lmc.assistant(lmc.select("c", ["yes", "no"]))

    monkeypatch.setattr("tests.api.openai_server._constraint", lambda body: None)
    backend, server = openai(says("maybe"))
    with pytest.raises(lmc.ConstraintError, match="asked for one of the choices by a schema, and answered 'maybe': it ignores schemas"):
        program.run(backend=backend)["c"]
    assert len(server.seen) == 1


def test_adapters_are_refused_before_anything_is_asked(openai):
    backend, server = openai(says("ab"))
    with pytest.raises(lmc.UnsupportedOpError, match=r"does not support gen with adapter='sql': adapters are for lmc.Engine"):
        ask("Q", adapter="sql", backend=backend)
    assert not server.seen


# -- what models refuse is learnt


@pytest.mark.parametrize("refused", ("max_tokens", "stop", "seed", "n"))
def test_parameters_that_can_be_done_without(openai, refused):
    backend, server = openai(says("ab; cd"), stand_in={"refuses": (refused,)})
    for _ in range(2):
        assert ask("Q", stop=";", n=2, max_tokens=5, backend=backend)["a"] == ["ab", "ab"]
    assert sum(refused in s.body for s in server.seen) == 1


def test_a_server_that_ignores_n_is_asked_for_one_answer_after_another(opened):
    server = opened(Server(lambda path, body: Answer({"model": "m", "choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}]})))
    backend = opened(lmc.OpenAI("m", base_url=f"{server.url}/v1"))
    for _ in range(2):
        assert ask("Q", n=3, max_tokens=5, backend=backend)["a"] == ["ab"] * 3
    assert [s.body.get("n") for s in server.seen] == [3, *[None] * 6]


def test_what_many_requests_learn_at_once(openai):
    backend, _ = openai(says("ab; cd"), stand_in={"refuses": ("stop", "seed")})
    states = lmc.compile(ask).batch([{"q": str(i), "stop": ";"} for i in range(8)], backend=backend)
    assert [s["a"] for s in states] == ["ab"] * 8


def test_a_parameter_that_changes_the_answer_is_not_dropped(openai):
    backend, server = openai(says("x"), stand_in={"refuses": ("temperature",)})
    with pytest.raises(lmc.BackendError, match=r"test_openai.py:\d+: OpenAI\(m\): gen 'a' failed: HTTP 400: .*temperature"):
        ask("Q", temperature=0.5, backend=backend).text()
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("given", "said"), (({"top_k": 3}, r"gen\(top_k=…\)"), ({"min_tokens": 2}, r"gen\(min_tokens=…\)"), ({"ebnf": 'root ::= "a"'}, r"gen\(ebnf=…\)"))
)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(openai, given, said):
    backend, server = openai(says("x"))
    with pytest.raises(lmc.UnsupportedOpError, match=said):
        ask("Q", **given, backend=backend)
    assert server.seen == []


def test_text_outside_of_messages_is_refused(openai):
    backend, server = openai(says("x"))

    @lmc.function
    def outside(s):
        s += "Q: " + lmc.user("x") + lmc.assistant(lmc.gen("a"))

    @lmc.function
    def in_user(s):
        s += lmc.user("x" + lmc.gen("a"))

    with pytest.raises(lmc.UnsupportedOpError, match="text outside of messages"):
        outside.run(backend=backend)
    with pytest.raises(lmc.UnsupportedOpError, match="answers in user messages"):
        in_user.run(backend=backend)
    assert server.seen == []


def test_a_message_that_is_begun(openai):
    """Servers that can go on with it; others get it as a message, and the meta info says so."""

    @lmc.function
    def program(s):
        s += lmc.user("Q") + lmc.assistant("A: " + lmc.gen("a", max_tokens=5))

    backend, server = openai(says("x"))
    state = program.run(backend=backend)
    assert state["a"] == "x" and state.get_meta_info("a")["begun"] == "sent as a message"
    assert server.seen[0].body["messages"][-1] == {"role": "assistant", "content": "A: "}
    backend, server = openai(says("x"), server="vllm")
    assert program.run(backend=backend)["a"] == "x"
    assert server.seen[0].body["continue_final_message"] is True and server.seen[0].body["add_generation_prompt"] is False


# -- streams, cancelling, what is left behind


@pytest.mark.parametrize("chat", (True, False), ids=("chat", "text"))
@pytest.mark.parametrize("compiled", (False, True), ids=("interpreted", "compiled"))
def test_streams(openai, chat, compiled):
    backend, server = openai(says("one two three four"), chat)
    call = lmc.compile(ask).stream if compiled else lambda **k: ask.run(stream=True, **k)
    state = call(q="Q", backend=backend, temperature=0)
    pieces = list(state.text_iter("a"))
    assert "".join(pieces) == "one two three four" and len(pieces) > 2
    assert server.seen[0].body["stream"] is True
    assert state.usage.completion_tokens == 18 == backend.spent().usage.completion_tokens


def test_nothing_is_streamed_that_nobody_watches(openai):
    backend, server = openai(says("x"))
    ask("Q", backend=backend).sync()
    assert "stream" not in server.seen[0].body


def test_submitting_does_not_wait(openai):
    backend, server = openai(says("x"), stand_in={"plant": lambda n, path, body: Planted("delay", seconds=30)})
    handle = backend.submit(None, _turn("a"))
    for _ in range(20):
        handle = backend.submit(handle, _turn("b"))
    assert not handle.results[0].done and len(server.seen) <= 1


def test_forks_and_batches_go_out_together(openai):
    all_there = lambda: len(server.seen) == 20
    backend, server = openai(says("x"), stand_in={"plant": lambda n, path, body: Planted("delay", seconds=60, until=all_there)})
    lmc.compile(ask).batch([{"q": str(i)} for i in range(20)], backend=backend)
    assert all_there() and backend.spent().retries == 0, "the first was answered when the last was there"


def test_concurrency_is_bounded(openai):
    at_once: list[int] = []
    backend, server = openai(
        says("x"), concurrency=3, stand_in={"plant": lambda n, path, body: at_once.append(server.open_connections) or Planted("delay", seconds=0.01)}
    )
    lmc.compile(ask).batch([{"q": str(i)} for i in range(12)], backend=backend)
    assert len(server.seen) == 12 and max(at_once) <= 3


def test_a_cancelled_request_ends_and_so_does_what_depends_on_it(openai):
    backend, server = openai(says("x"), stand_in={"plant": lambda n, path, body: Planted("delay", seconds=30)})
    first = backend.submit(None, _turn("a"))
    second = backend.submit(first, _turn("b"))
    until(lambda: server.seen)
    first.cancel()
    for handle in (first, second):
        with pytest.raises(lmc.CancelledError):
            handle.results[0].output()


def test_a_dropped_state_ends_its_request(openai):
    backend, server = openai(says("x"), stand_in={"plant": lambda n, path, body: Planted("delay", seconds=30)})
    handle = backend.submit(None, _turn("a"))
    until(lambda: server.seen)
    assert backend._loop.tasks
    del handle
    gc.collect()
    until(lambda: backend._loop.tasks <= 1, "a task is left")


def test_closing_leaves_nothing(openai):
    backend, server = openai(says("x"), stand_in={"plant": lambda n, path, body: Planted("delay", seconds=30) if n else None})
    ask("Q", backend=backend).sync()
    pending = backend.submit(None, _turn("a"))
    until(lambda: len(server.seen) >= 2)
    backend.close()
    backend.close()
    with pytest.raises(lmc.CancelledError):
        pending.results[0].output()
    with pytest.raises(lmc.BackendError, match="is closed"):
        backend.submit(None, _turn("b"))
    until(lambda: server.open_connections == 0, "a connection is left")
    assert [t.name for t in threading.enumerate() if t.name.startswith(("lmc-OpenAI", "asyncio_"))] == []


async def test_async_programs(openai):
    backend, _ = openai(says("x"))
    states = await asyncio.gather(*[lmc.compile(ask).acall(q=str(i), backend=backend) for i in range(5)])
    assert [s["a"] for s in states] == ["x"] * 5


def test_cost(openai):
    backend, _ = openai(says("abcd"), prices=lmc.Prices(prompt=1e6, completion=2e6))
    state = ask("abc", backend=backend)
    assert state.usage.prompt_tokens == 3 and backend.spent().cost == 3 + 2 * 4
    assert state.get_meta_info("a")["cost"] == 11 == backend.capabilities.prices.of(state.usage)
    with pytest.raises(lmc.BudgetExceeded):

        @lmc.function
        def twice(s):
            s += lmc.user("a") + lmc.assistant(lmc.gen()) + lmc.user("b") + lmc.assistant(lmc.gen())

        twice.run(backend=backend, budget=lmc.Budget(cost=5))


def _turn(name):
    from lmc.segments import Mark

    return (
        Text((Mark("user", "begin"), name, Mark("user", "end"), Mark("assistant", "begin"))),
        Gen(SamplingParams(), name=name),
        Text((Mark("assistant", "end"),)),
    )
