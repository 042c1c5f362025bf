"""Clients that people use, against a server with a port: the official openai package, curl, and a generated test."""

from __future__ import annotations

import json
import shutil
import subprocess

import pydantic
import pytest

import lmc
from tests.serve.serving import events, on_a_port, post
from tests.serve.test_programs import PROGRAMS
from tests.serve.test_tools import CALLED, WEATHER
from tests.serve.test_tools import backend as tool_model

pytestmark = pytest.mark.api

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def url():
    with on_a_port(lmc.Mock(latency=0.01), PROGRAMS) as url:
        yield url


@pytest.fixture
def client(url):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_official_clients_chat(client):
    ask = client.chat.completions.create
    chat = ask(model="mock", messages=MESSAGES, n=2, seed=1, logprobs=True, top_logprobs=1)
    assert len(chat.choices) == 2
    for choice in chat.choices:
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
        assert all(len(token.top_logprobs) == 1 for token in choice.logprobs.content)
    one = ask(model="mock", messages=MESSAGES, seed=1)
    assert one.choices[0].message.content == ask(model="mock", messages=MESSAGES, seed=1).choices[0].message.content
    assert one.choices[0].message.content != ask(model="mock", messages=MESSAGES, seed=2).choices[0].message.content
    assert ask(model="mock", messages=MESSAGES, max_completion_tokens=3).usage.completion_tokens == 3
    whole = ask(model="mock", messages=MESSAGES, seed=1)
    stop = whole.choices[0].message.content[4:6]
    cut = ask(model="mock", messages=MESSAGES, seed=1, stop=["never", stop])
    assert cut.choices[0].finish_reason == "stop"
    assert stop not in cut.choices[0].message.content


def test_the_official_clients_streams(client):
    ask = client.chat.completions.create
    options = {"model": "mock", "messages": MESSAGES, "n": 2, "seed": 1, "logprobs": True}
    whole = ask(**options)
    *chunks, last = list(ask(**options, stream=True, stream_options={"include_usage": True}))
    for index, choice in enumerate(whole.choices):
        own = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert "".join(piece.delta.content or "" for piece in own) == choice.message.content
        assert [token for piece in own if piece.logprobs for token in piece.logprobs.content] == choice.logprobs.content
        assert [piece.finish_reason for piece in own if piece.finish_reason] == [choice.finish_reason]
    assert all(chunk.usage is None for chunk in chunks)
    assert (last.choices, last.usage.prompt_tokens) == ([], whole.usage.prompt_tokens)
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    with client.chat.completions.stream(**options) as events:  # the SDK puts the pieces together
        final = events.get_final_completion()
    for ours, theirs in zip(whole.choices, final.choices, strict=True):
        assert theirs.message.content == ours.message.content
        assert theirs.logprobs.content == ours.logprobs.content


def test_the_official_clients_completions(client):
    done = client.completions.create(model="mock", prompt=["a", "b"], max_tokens=5, extra_body={"regex": "[ab]{5}"})
    assert {c.text.strip("ab") for c in done.choices} == {""}
    options = {"model": "mock", "prompt": "a", "seed": 4, "logprobs": 1}
    whole = client.completions.create(**options).choices[0]
    pieces = [chunk.choices[0] for chunk in client.completions.create(**options, stream=True)]
    assert "".join(piece.text for piece in pieces) == whole.text
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [x for piece in pieces for x in getattr(piece.logprobs, name)] == getattr(whole.logprobs, name)


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_the_official_clients_structured_outputs(client):
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {}, "additionalProperties": False}}}
    assert client.chat.completions.create(model="mock", messages=MESSAGES, response_format=shape).choices[0].message.content == "{}"
    found = client.chat.completions.create(model="mock", messages=MESSAGES, response_format={"type": "json_object"}).choices[0].message.content
    assert isinstance(json.loads(found), dict)
    parsed = client.chat.completions.parse(model="mock", messages=MESSAGES, response_format=Person)
    assert isinstance(parsed.choices[0].message.parsed, Person)


def test_the_official_clients_tools():
    openai = pytest.importorskip("openai")
    mock = tool_model([CALLED, CALLED, "Cold."])
    with on_a_port(mock) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        first = client.chat.completions.create(model="mock", messages=MESSAGES, tools=[WEATHER], tool_choice="auto").choices[0]
        assert first.finish_reason == "tool_calls"
        (call,) = first.message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        with client.chat.completions.stream(model="mock", messages=MESSAGES, tools=[WEATHER]) as events:
            streamed = events.get_final_completion().choices[0]
        assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
        turns = [*MESSAGES, first.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "-3"}]
        assert client.chat.completions.create(model="mock", messages=turns, tools=[WEATHER]).choices[0].message.content == "Cold."
    assert "-3" in mock.call_log[-1].prompt_text


def test_the_official_clients_errors(client):
    openai = pytest.importorskip("openai")
    assert [m.id for m in client.models.list()] == ["mock"]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="mock", messages=MESSAGES, temperature=9)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
    with (
        on_a_port(api_keys=frozenset({"right"})) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as wrong,
        pytest.raises(openai.AuthenticationError),
    ):
        wrong.models.list()


SCORED = {"logprobs": True, "top_logprobs": 1}
TYPED = [  # a request, and the types of its answer, whole and in pieces
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 2, **SCORED}, "openai.types.chat", "ChatCompletion", "ChatCompletionChunk"),
    ("/v1/chat/completions", {"messages": MESSAGES, "tools": [WEATHER]}, "openai.types.chat", "ChatCompletion", "ChatCompletionChunk"),
    ("/v1/completions", {"prompt": "Hello", "logprobs": 2}, "openai.types", "Completion", None),  # whose type has no pieces, which OpenAI's API gives it for
    ("/v1/responses", {"input": "Hello", "top_logprobs": 1}, "openai.types.responses", "Response", "ResponseStreamEvent"),
    ("/v1/responses", {"input": "Hello", "tools": [{"type": "function", **WEATHER["function"]}]}, "openai.types.responses", "Response", "ResponseStreamEvent"),
    ("/v1/messages", {"model": "mock", "messages": MESSAGES, "max_tokens": 9}, "anthropic.types", "Message", "RawMessageStreamEvent"),
]


@pytest.mark.parametrize(("path", "body", "module", "whole", "piece"), TYPED)
def test_every_answer_has_all_that_the_types_of_the_official_clients_demand(path, body, module, whole, piece):
    """These clients check nothing, so that what is missing is missing in a program."""
    types = pytest.importorskip(module)
    answers = [CALLED] * 2 if "tools" in body else ["Good day."] * 4
    taken = pydantic.TypeAdapter(getattr(types, whole)).validate_python(post(path, body, tool_model(answers)).json(), strict=True)
    assert pydantic.TypeAdapter(getattr(types, whole)).dump_python(taken, warnings="error")
    if piece is not None:
        one = pydantic.TypeAdapter(getattr(types, piece))
        pieces = [one.validate_python(e, strict=True) for e in events(post(path, {**body, "stream": True}, tool_model(answers)).text) if e != "[DONE]"]
        assert len(pieces) > 1


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "text"])
def test_our_own_client(url, chat):
    """A program over the server as over any API, with log-probabilities of an answer that is streamed."""
    pytest.importorskip("openai")

    @lmc.function
    def ask(s):
        gen = lmc.gen("a", max_tokens=12, return_logprob=True, return_text_in_logprobs=True)
        s += lmc.user("Hello") + lmc.assistant(gen) if chat else "Hello" + gen

    backend = lmc.OpenAI("mock", base_url=f"{url}/v1", api_key="none", is_chat_model=chat)
    try:
        whole, streamed = ask.run(backend=backend, temperature=0), ask.run(backend=backend, temperature=0, stream=True)
        assert "".join(streamed.text_iter("a")) == whole["a"]
        tokens = whole.get_meta_info("a")["output_token_logprobs"]
        assert "".join(text for _, _, text in tokens) == whole["a"]
        assert streamed.get_meta_info("a")["output_token_logprobs"] == tokens
    finally:
        backend.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(url):
    def curl(*args: str) -> str:
        return subprocess.run(
            ["curl", "-sS", "--max-time", "20", "-H", "Content-Type: application/json", *args], capture_output=True, text=True, check=True
        ).stdout

    body = json.dumps({"messages": MESSAGES})
    assert json.loads(curl(f"{url}/v1/chat/completions", "-d", body))["object"] == "chat.completion"
    assert curl("-N", f"{url}/v1/chat/completions", "-d", json.dumps({"messages": MESSAGES, "stream": True})).rstrip().endswith("data: [DONE]")
    assert "event: done" in curl("-N", f"{url}/programs/greet/stream", "-d", '{"name": "Ann"}')
    assert curl("-o", "/dev/null", "-w", "%{http_code}", f"{url}/v1/chat/completions", "-d", "{") == "400"
    assert curl("-o", "/dev/null", "-w", "%{http_code}", f"{url}/health") == "200"


def test_every_answer_is_what_the_description_says():
    """Generated requests, good and bad: no 5xx but those that programs raise, and every answer fits the schema."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    from lmc.serve.app import create_app
    from tests.serve.serving import settings as limits

    app = create_app(lmc.Mock(), limits(max_tokens=8), [p for p in PROGRAMS if p.name != "broken"])
    tried: list[int] = []
    for found in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():

        @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
        @given(case=found.ok().as_strategy())
        def check(case):
            # fields may exclude each other, and 5.0 is no integer here: a schema does not say that
            tried.append(case.call_and_validate(excluded_checks=[positive_data_acceptance]).status_code)

        check()
    assert tried.count(200) > 20
    assert tried.count(400) > 5
