"""Tools over an API: what is sent, calls in answers, results as messages; interpreted, compiled, as a batch and as a stream."""

from __future__ import annotations

import json
import re

import pytest

import lmc
from lmc.backend.api.anthropic_bodies import EventAssembler, answer_of
from lmc.backend.api.streams import UNWATCHED
from tests.api.text_model import TextModel
from tests.api.view import views
from tests.conformance.harness import conform, differences, run

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
    """Two calls, then another one with what they gave, then words; whether a template writes the messages or not."""
    prompt = prompt.removesuffix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")
    if prompt.endswith("7"):
        return "It is 7."
    if "well known" in prompt:
        return json.dumps({"name": "add", "arguments": {"a": 3, "b": 4}})
    asked = prompt.rpartition("<|im_start|>user\n")[2]
    return json.dumps([{"name": "search", "arguments": {"query": asked}}, {"name": "add", "arguments": {"a": 1, "b": 2}}])


class OneMind(TextModel):
    """Chooses the same whatever the prompt."""

    def row(self, before: str, text: str) -> list[float]:
        return super().row("", text)


def answers(asked):
    """The bodies of requests about answers, not to measure."""
    bodies = [body for _, body in asked()]
    return [b for b in bodies if b.get("max_tokens", 0) > 4 or "max_output_tokens" in b or b.get("sampling_params", {}).get("max_new_tokens")]


@lmc.function
def thoughtful(s, q):
    """Tools, and behind their results a select, forks and gens without tools; a message begun before a gen with tools."""
    s += lmc.system("You have tools.") + lmc.user(q)
    s += lmc.assistant(lmc.gen("first", tools=TOOLS, max_tokens=200))
    for call in s.get_meta_info("first")["tool_calls"]:
        s += lmc.tool_result(call, lmc.call_tool(call, TOOLS))
    s += lmc.assistant(lmc.gen("second", max_tokens=60)) + lmc.user("Sure?")
    s += lmc.assistant(lmc.select("sure", ["yes", "no"]))
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += lmc.user(f"View {i}") + lmc.assistant(lmc.gen("view", max_tokens=12, temperature=0))
    s += lmc.user(" / ".join(f["view"] for f in forks)) + lmc.assistant(lmc.gen("last", tools=TOOLS, max_tokens=200))
    return s["sure"], [f["view"] for f in forks], s["last"], len(s.get_meta_info("last")["tool_calls"])


@pytest.mark.parametrize("program", (agent, thoughtful), ids=lambda p: p.name)
def test_every_api_gives_what_the_mock_gives(anywhere, program):
    model = OneMind(script if program is agent else lambda prompt: "Fine." if "well known" in prompt else script(prompt))
    backend, asked = anywhere(model)
    for q in ("tea", "the sea"):
        expected = run(program.run, {"q": q}, lambda: None, {"backend": model.mock(backend.chat_template), "temperature": 0})
        for call in (program.run, lmc.compile(program)):
            seen = run(call, {"q": q}, lambda: None, {"backend": backend, "temperature": 0})
            seen.metas = expected.metas
            assert _without_ids(seen) == _without_ids(expected), differences(seen, expected)
    assert all("tools" in body for body in answers(asked)) or program is thoughtful


def _without_ids(seen):
    """The ids of calls depend on how long the prompt is, which a server writes in its own way."""
    return re.sub(r"call_\d+_", "call_", f"{seen}")


def test_calls_in_a_stream(anywhere):
    backend, asked = anywhere(TextModel(script))
    state = lmc.compile(agent, backend=backend).stream("tea", temperature=0)
    assert "It is 7." in "".join(state.text_iter()) and state.ret_value == "It is 7."
    assert any(body.get("stream") for body in answers(asked))


def test_a_stream_comes_in_pieces(anywhere):
    @lmc.function
    def program(s):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=40))

    backend, _ = anywhere(TextModel(lambda prompt: "one two three four"))
    state = program.run(backend=backend, stream=True, temperature=0)
    pieces = list(state.text_iter("a"))
    assert "".join(pieces) == "one two three four" and len(pieces) > 2 and state.usage.completion_tokens > 2
    assert state.get_meta_info("a")["finish_reason"]["type"] == "stop"


def test_tools_and_sampling_go_over_together(anywhere):
    @lmc.function
    def several(s, q):
        s += lmc.user(q) + lmc.assistant(lmc.gen("a", tools=TOOLS, max_tokens=99, n=2, stop="END"))
        return [len(meta["tool_calls"]) for meta in s.get_meta_info("a")]

    backend, _ = anywhere(TextModel(script))
    assert several("tea", backend=backend, temperature=0).ret_value == [2, 2]
    assert several("7", backend=backend, temperature=0.5).ret_value == [0, 0]


def test_data_that_spells_a_role_is_warned_of(remote, monkeypatch):
    monkeypatch.setattr("lmc.backend.api.tokens._warned", set())
    backend, _, _ = remote(TextModel(script))
    with pytest.warns(UserWarning, match=r"text contains <\|im_start\|>"):
        agent("x<|im_start|>", backend=backend, temperature=0).text()


def test_tools_are_for_messages(anywhere):
    @lmc.function
    def outside(s, q):
        s += q + lmc.gen("a", tools=TOOLS)

    backend, asked = anywhere(TextModel(script))
    with pytest.raises(lmc.UnsupportedOpError, match=r"test_tools.py:\d+"):
        outside("tea", backend=backend).text()
    assert not answers(asked)


def test_executions_agree(openai):
    backend, server = openai(TextModel(script))
    conform(agent, [{"q": "tea"}, {"q": "the sea"}, {"q": "7"}], backend=views(backend, server))


def test_what_goes_over(openai):
    backend, server = openai(TextModel(script))
    state = agent("tea", backend=backend, temperature=0)
    assert state.ret_value == "It is 7." and state.usage.calls == 3 == len(server.seen)
    (tool, _) = server.seen[0].body["tools"]
    assert tool == {"type": "function", "function": {
        "name": "search", "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["query"],
            "additionalProperties": False},
    }}  # fmt: skip
    user, asked, found, summed = server.seen[1].body["messages"]
    assert user == {"role": "user", "content": "tea"} and asked["role"] == "assistant" and not asked["content"]
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in asked["tool_calls"]] == [
        ("search", {"query": "tea"}),
        ("add", {"a": 1, "b": 2}),
    ]
    assert found == {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "tea is well known."}
    assert summed["content"] == "3" and state.messages()[:4] == server.seen[1].body["messages"]


def test_a_choice_of_tools_goes_with_tools_alone(openai):
    backend, server = openai(OneMind(lambda prompt: "Fine." if "well known" in prompt else script(prompt)), extra_body={"tool_choice": "auto"})
    thoughtful("tea", backend=backend, temperature=0).text()
    assert [("tool_choice" in s.body) == ("tools" in s.body) for s in server.seen] == [True] * len(server.seen)


def test_a_choice_of_anthropic_s_tools_goes_with_tools_alone(anthropic):
    backend, _ = anthropic(OneMind(lambda prompt: "Fine." if "well known" in prompt else script(prompt)), extra_body={"tool_choice": {"type": "auto"}})
    assert thoughtful("tea", backend=backend, temperature=0).ret_value[2:] == ("Fine.", 0)

    @lmc.function
    def plain(s):
        s += lmc.user("tea") + lmc.assistant(lmc.gen("a", max_tokens=9))

    assert plain(backend=backend, temperature=0)["a"]


def test_what_anthropic_s_own_tools_say_in_a_stream_is_no_call():
    pieces = EventAssembler(UNWATCHED, lambda body: answer_of(body, tools=True))
    for event in (
        {"type": "content_block_start", "index": 0, "content_block": {"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Fine."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ):
        pieces.add(event)
    text, _, extra = pieces.result()
    assert text == "Fine." and extra["tool_calls"] == [] and extra["blocks"][0]["name"] == "web_search"


def test_vllm_is_told_that_tools_are_strict_where_it_must_call_one(vllm):
    model = TextModel(lambda prompt: "Fine.")
    for choice, strict in ((None, None), ("auto", None), ("required", True), ({"type": "function", "function": {"name": "add"}}, True)):
        backend, _, server = vllm(model, **({"extra_body": {"tool_choice": choice}} if choice else {}))
        agent("tea", backend=backend, temperature=0).text()
        assert [tool["function"].get("strict") for tool in server.seen[-1].body["tools"]] == [strict, strict]


def test_models_of_text_have_no_tools(openai):
    backend, server = openai(TextModel(), False)
    with pytest.raises(lmc.UnsupportedOpError, match=r"gen\(tools=…\)"):
        agent("tea", backend=backend)
    assert not server.seen
