"""Tools over an API: what is sent, calls in answers, results as messages; interpreted, compiled, as a batch and as a stream."""

from __future__ import annotations

import json

import pytest

import lmc
from tests.api.text_model import TextModel
from tests.api.view import views
from tests.conformance.harness import conform

pytestmark = pytest.mark.api


def search(query: str, limit: int = 3) -> str:
    """Looks something up."""
    return f"{query} is well known."


def add(a: int, b: int) -> int:
    return a + b


TOOLS = [search, add]


@lmc.function
def agent(s, q):
    s += lmc.user(q)
    for _ in range(5):
        s += lmc.assistant(lmc.gen("answer", tools=TOOLS, max_tokens=200))
        calls = s.get_meta_info("answer")["tool_calls"]
        if not calls:
            break
        for call in calls:
            s += lmc.tool_result(call, lmc.call_tool(call, TOOLS))
    return s["answer"]


def script(prompt: str) -> str:
    """Two calls, then another one with what they gave, then words."""
    if prompt.endswith("7"):
        return "It is 7."
    if "well known" in prompt:
        return json.dumps({"name": "add", "arguments": {"a": 3, "b": 4}})
    return json.dumps([{"name": "search", "arguments": {"query": prompt}}, {"name": "add", "arguments": {"a": 1, "b": 2}}])


def test_executions_agree(openai):
    backend, server = openai(TextModel(script))
    fast = conform(agent, [{"q": "tea"}, {"q": "the sea"}, {"q": "7"}], backend=views(backend, server))
    assert not fast.stats.replays


def test_what_goes_over(openai):
    backend, server = openai(TextModel(script))
    state = agent("tea", backend=backend, temperature=0)
    assert state.ret_value == "It is 7." and state.usage.calls == 3 == len(server.seen)
    (tool, _) = server.seen[0].body["tools"]
    assert tool == {"type": "function", "function": {
        "name": "search", "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["query"], "additionalProperties": False},
    }}  # fmt: skip
    user, asked, found, summed = server.seen[1].body["messages"]
    assert user == {"role": "user", "content": "tea"} and asked["role"] == "assistant" and not asked["content"]
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in asked["tool_calls"]] == [("search", {"query": "tea"}), ("add", {"a": 1, "b": 2})]
    assert found == {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "tea is well known."}
    assert summed["content"] == "3" and state.messages()[:4] == server.seen[1].body["messages"]


def test_calls_in_a_stream(openai):
    backend, server = openai(TextModel(script))
    state = lmc.compile(agent, backend=backend).stream("tea", temperature=0)
    assert "It is 7." in "".join(state.text_iter()) and state.ret_value == "It is 7."
    assert any(seen.body.get("stream") for seen in server.seen)


def test_models_of_text_have_no_tools(openai):
    backend, server = openai(TextModel(), False)
    with pytest.raises(lmc.UnsupportedOpError, match=r"gen\(tools=…\)"):
        agent("tea", backend=backend)
    assert not server.seen
