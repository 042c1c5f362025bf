"""OpenAI's Responses API: the same programs, the same answers; what it lacks is made up for or refused."""

from __future__ import annotations

import json

import pytest

import lmc
from tests.api.test_conformance import turns
from tests.api.test_tools import agent, script
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
    kinds = [item.get("type", item.get("role")) for item in server.seen[1].body["input"]]
    assert kinds == ["user", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert agent.run("tea", backend=backend, temperature=0, stream=True).ret_value == "It is 7."


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
