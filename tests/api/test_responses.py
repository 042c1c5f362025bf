"""OpenAI's Responses API: the same programs, the same answers; what it lacks is made up for or refused."""

from __future__ import annotations

import asyncio
import json

import pytest

import lmc
from lmc.backend.api import responses
from tests.api.raw_server import RawServer, whole
from tests.api.test_conformance import turns
from tests.api.test_tools import TOOLS, agent, script
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api


def paths(server):
    return [seen.path.removeprefix("/v1") for seen in server.seen]


@pytest.mark.parametrize("options", ({"api": "responses"}, {"stand_in": {"only_responses": True}}), ids=("asked for", "found out"))
def test_answers_are_those_of_chat(openai, options):
    chat, _ = openai(TextModel(), server="openai", speculate=False)
    backend, server = openai(TextModel(), server="openai", speculate=False, **options)
    for q in ("cats", "the sea"):
        expected = turns(q, backend=chat, temperature=0)
        for call in (turns.run, lmc.compile(turns)):
            state = call(q, backend=backend, temperature=0)
            assert state.messages() == expected.messages() and state.ret_value == expected.ret_value
    spent, answered = backend.spent(), [seen.reported for seen in server.seen if seen.reported]
    assert spent.usage.prompt_tokens == sum(u["input_tokens"] for u in answered) and spent.usage.completion_tokens == sum(u["output_tokens"] for u in answered)
    assert paths(server).count("/chat/completions") == ("api" not in options)
    (schema,) = {json.dumps(seen.body["text"]["format"]["schema"]) for seen in server.seen if "properties\": {\"k\"" in json.dumps(seen.body.get("text", ""))}
    assert json.loads(schema)["required"] == ["k"]


@pytest.mark.parametrize("stream", (False, True), ids=("whole", "stream"))
def test_all_that_are_on_their_way_when_it_is_found_out_go_there(opened, stream):
    pytest.importorskip("openai")
    found = {"id": "r", "model": "m", "status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}]}

    async def reply(request, writer):
        if request.path.endswith("/responses"):
            event = {"type": "response.completed", "response": found}
            data = f"data: {json.dumps(event)}\n\n" if request.body.get("stream") else json.dumps(found)
            writer.write(whole(data.encode(), content_type="text/event-stream" if stream else "application/json"))
            return True
        while len(server.of("POST")) < 2:
            await asyncio.sleep(0.001)
        writer.write(whole(b'{"error": {"message": "This model is only supported in v1/responses and not in v1/chat/completions."}}', "404 Not Found"))
        return True

    server = opened(RawServer(reply))
    backend = opened(lmc.OpenAI("m", base_url=server.url + "/v1", api_key="a-key-of-mine"))

    @lmc.function
    def one(s, q):
        s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=8))

    states = [one.run(q, backend=backend, stream=stream) for q in "xy"]
    assert [state["a"] for state in states] == ["Yes."] * 2
    assert sorted(paths(server)) == ["/chat/completions"] * 2 + ["/responses"] * 2


@pytest.mark.parametrize("stand_in", ({}, {"only_responses": True}))
def test_streams(openai, stand_in):
    backend, server = openai(TextModel(lambda prompt: "one two three four"), server="openai", api=None if stand_in else "responses", stand_in=stand_in)

    @lmc.function
    def one(s):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=40))

    state = one.run(backend=backend, stream=True, temperature=0)
    assert list(state.text_iter("a"))[:2] == ["one ", "two "] and state["a"] == "one two three four"
    assert state.usage.completion_tokens == 18 and server.seen[-1].body["stream"]


def test_tools(openai):
    backend, server = openai(TextModel(script), server="openai", api="responses")
    state = agent("tea", backend=backend, temperature=0)
    assert state.ret_value == "It is 7." and set(paths(server)) == {"/responses"}
    assert ["include" in seen.body for seen in server.seen] == [True, False, False, False], "that it does not reason is found out once"
    assert kinds(server.seen[2]) == ["user", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert agent.run("tea", backend=backend, temperature=0, stream=True).ret_value == "It is 7."


def kinds(seen):
    return [item.get("type", item.get("role")) for item in seen.body["input"]]


@lmc.function
def on_and_on(s, q):
    """An agent whose conversation goes on, with a fork, behind its tools; one of two calls gets no result."""
    s += lmc.user(q) + lmc.assistant(lmc.gen("first", tools=TOOLS, max_tokens=200))
    calls = s.get_meta_info("first")["tool_calls"]
    s += lmc.tool_result(calls[0], lmc.call_tool(calls[0], TOOLS))
    s += lmc.assistant(lmc.gen("second", max_tokens=100))
    for f in s.fork(2):
        f += lmc.user("Sure?") + lmc.assistant(lmc.gen("sure", max_tokens=100))
        f.sync()
    return s["second"], s.get_meta_info("first")["reasoning"]


@pytest.mark.parametrize("stream", (False, True))
def test_reasoning_goes_back_as_it_came(openai, stream):
    backend, server = openai(
        TextModel(lambda prompt: "Fine." if "well known" in prompt else script(prompt)), server="openai", api="responses", stand_in={"reasons": True}
    )
    call = lmc.compile(on_and_on, backend=backend).stream if stream else on_and_on.run
    state = call("tea", **({} if stream else {"backend": backend}))
    if stream:
        assert "Fine." in "".join(state.text_iter())
    assert state.ret_value == ("Fine.", "3 bytes to think about.")
    assert kinds(server.seen[1]) == ["user", "reasoning", "function_call", "function_call_output"]
    for asked in server.seen[2:]:
        assert kinds(asked) == ["user", "reasoning", "function_call", "function_call_output", "reasoning", "message", "user"]
    assert all(item["encrypted_content"].startswith("sealed") for seen in server.seen for item in seen.body["input"] if item.get("type") == "reasoning")
    assert all(seen.body["include"] == ["reasoning.encrypted_content"] and seen.body["store"] is False for seen in server.seen)


@pytest.mark.parametrize("stop, more", ((" two", ""), (None, ", so to speak")))
def test_reasoning_is_left_out_where_the_program_says_something_else(openai, stop, more):
    @lmc.function
    def other(s):
        s += lmc.user("tea") + lmc.assistant(lmc.gen("a", max_tokens=60, stop=stop) + more)
        s += lmc.user("And?") + lmc.assistant(lmc.gen("b", max_tokens=60))
        return s["a"], s["b"]

    backend, server = openai(TextModel(lambda prompt: "one two three"), server="openai", api="responses", stand_in={"reasons": True})
    assert other(backend=backend).ret_value[0] == ("one" if stop else "one two three")
    assert kinds(server.seen[1]) == ["user", "assistant", "user"]


def test_reasoning_is_in_the_journal(openai, tmp_path):
    """A run that is resumed goes on with the reasoning that its first part had."""
    backend, server = openai(
        TextModel(lambda prompt: "Fine." if "well known" in prompt else script(prompt)), server="openai", api="responses", stand_in={"reasons": True}
    )
    broken = True

    @lmc.function
    def agent(s, q):
        s += lmc.user(q) + lmc.assistant(lmc.gen("first", tools=TOOLS, max_tokens=200))
        for call in s.get_meta_info("first")["tool_calls"]:
            s += lmc.tool_result(call, lmc.call_tool(call, TOOLS))
        if broken:
            raise KeyboardInterrupt
        s += lmc.assistant(lmc.gen("second", max_tokens=100))
        return s["second"]

    fast = lmc.compile(agent, backend=backend)
    with pytest.raises(KeyboardInterrupt):
        fast("tea", journal=tmp_path / "runs", ahead="off")
    broken, before = False, len(server.seen)
    assert fast("tea", journal=tmp_path / "runs", ahead="off").ret_value == "Fine."
    assert len(server.seen) == before + 1
    assert kinds(server.seen[-1]) == ["user", "reasoning", "function_call", "function_call", "function_call_output", "function_call_output"]


def test_what_else_goes_over(openai):
    """Choices of tools, calls in parallel or not, effort, verbosity, a schema, a tier, an image: as this API has them."""
    extra = {"tool_choice": {"type": "function", "function": {"name": "add"}}, "parallel_tool_calls": False, "reasoning_effort": "low", "verbosity": "low"}
    found = responses.asked({
        "model": "m", "messages": [{"role": "user",
            "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}},
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}], "service_tier": "flex", **extra,
    })  # fmt: skip
    assert found["tool_choice"] == {"type": "function", "name": "add"} and found["parallel_tool_calls"] is False
    assert found["reasoning"] == {"effort": "low"} and found["service_tier"] == "flex"
    assert found["text"] == {"verbosity": "low", "format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}}
    assert found["tools"] == [{"type": "function", "strict": False, "name": "add", "parameters": {}}]
    assert found["input"][0]["content"] == [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
    backend, server = openai(
        TextModel(script), server="openai", api="responses", service_tier="flex", extra_body={"parallel_tool_calls": True, "tool_choice": "auto"}
    )
    state = agent("tea", backend=backend, temperature=0)
    assert state.ret_value == "It is 7." and {seen.body["service_tier"] for seen in server.seen} == {"flex"}
    assert [("parallel_tool_calls" in seen.body) == ("tools" in seen.body) for seen in server.seen] == [True] * len(server.seen)


def test_a_limit_ends_an_answer(openai):
    backend, _ = openai(TextModel(lambda prompt: "one two three four"), server="openai", api="responses")

    @lmc.function
    def one(s, limit):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=limit))

    ends = [one(limit, backend=backend).get_meta_info("a")["finish_reason"]["type"] for limit in (7, 40)]
    assert ends == ["length", "stop"]


def test_what_it_lacks_is_refused(openai):
    backend, server = openai(TextModel(), server="openai", api="responses")
    with pytest.raises(lmc.BackendError, match="no 'frequency_penalty'"):
        turns("x", backend=backend, frequency_penalty=0.5).text()
    assert not server.seen
    with pytest.raises(lmc.ParameterError, match="api='batch'"):
        lmc.OpenAI("m", api="batch")
