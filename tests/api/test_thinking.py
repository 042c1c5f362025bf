"""Extended thinking on Anthropic's API: beside tools, over turns, in streams; its blocks go back as they came."""

from __future__ import annotations

import pytest

import lmc
from lmc.backend.api.anthropic_bodies import cacheable, turns
from tests.api.conftest import QUICK, fake_litellm
from tests.api.http import Answer
from tests.api.test_responses import on_and_on
from tests.api.test_tools import agent, script
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api

pytest.importorskip("anthropic")

THINKING = {"thinking": {"type": "enabled", "budget_tokens": 50}}


def kinds(seen):
    return [[b["type"] for b in m["content"]] if isinstance(m["content"], list) else m["role"] for m in seen.body["messages"]]


@pytest.mark.parametrize("stream", (False, True))
def test_thinking_goes_back_with_its_calls(anthropic, stream):
    backend, server = anthropic(TextModel(lambda prompt: "Fine." if "well known" in prompt else script(prompt)), extra_body=THINKING)
    call = lmc.compile(on_and_on, backend=backend).stream if stream else on_and_on.run
    state = call("tea", **({} if stream else {"backend": backend}), max_new_tokens=100)
    if stream:
        assert "Fine." in "".join(state.text_iter())
    assert state.ret_value == ("Fine.", "3 bytes to think about.")
    assert kinds(server.seen[1]) == ["user", ["thinking", "tool_use"], ["tool_result"]]
    for asked in server.seen[2:]:
        assert kinds(asked) == ["user", ["thinking", "tool_use"], ["tool_result"], ["thinking", "text"], "user"]


def test_an_agent_thinks_between_its_calls(anthropic):
    backend, server = anthropic(TextModel(script), extra_body=THINKING)
    assert agent("tea", backend=backend).ret_value == "It is 7."
    assert kinds(server.seen[2]) == ["user", ["thinking", "tool_use", "tool_use"], ["tool_result", "tool_result"], ["thinking", "tool_use"], ["tool_result"]]


def test_what_goes_with_thinking_and_what_does_not(anthropic):
    backend, server = anthropic(TextModel(), extra_body=THINKING)

    @lmc.function
    def program(s, limit, **given):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=limit, **given))

    with pytest.raises(lmc.ParameterError, match=r"test_thinking.py:\d+: gen\(max_tokens=50\): thinking has 50 of them"):
        program(50, backend=backend)
    with pytest.raises(lmc.UnsupportedOpError, match=r"with extended thinking"):
        program(100, temperature=0.5, backend=backend)
    assert not server.seen

    @lmc.function
    def choice(s, warmth):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=60))
        s += lmc.user("Sure?") + lmc.assistant(lmc.select("sure", ["yes", "no"], temperature=warmth))
        return s["sure"]

    for warmth in (0.0, 1.0):
        assert choice(warmth, backend=backend).ret_value in ("yes", "no")
    assert ["thinking" in seen.body for seen in server.seen] == [True, False] * 2


@lmc.function
def choosing(s):
    s += lmc.user("Sure?") + lmc.assistant(lmc.select("sure", ["yes", "no"], temperature=1.0))
    return s["sure"]


def test_a_choice_is_made_without_adaptive_thinking(anthropic):
    backend, server = anthropic(TextModel(), extra_body={"thinking": {"type": "adaptive"}})
    assert choosing(backend=backend).ret_value in ("yes", "no")
    assert ["thinking" in seen.body for seen in server.seen] == [False]


def test_a_model_that_thinks_unasked_has_room_for_it_before_a_choice(anthropic):
    backend, server = anthropic(TextModel(), extra_body={"thinking": {"type": "adaptive"}})
    handle = server.handle

    def thinks(path, body):
        answer = handle(path, body)
        thought = {"type": "thinking", "thinking": "Hm. " * 200, "signature": "s"}
        if body["max_tokens"] > 800:
            return Answer({**answer.body, "content": [thought, *answer.body["content"]]})
        return Answer({**answer.body, "content": [thought], "stop_reason": "max_tokens"})

    server.handle = thinks
    assert choosing(backend=backend).ret_value in ("yes", "no")
    assert choosing(backend=backend).ret_value in ("yes", "no")
    assert [seen.body["max_tokens"] > 800 for seen in server.seen] == [False, True, True], "what it learned it knows"


def test_marks_end_whole_messages_with_thoughts_among_them():
    thought = [
        {"type": "thinking", "thinking": "Hm. " * 500, "signature": "s"},
        {"type": "text", "text": "Then"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {}},
    ]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    closed = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "Then", "thinking_blocks": thought, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "7"},
        {"role": "user", "content": "Go on."}, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": ""},
    ]  # fmt: skip
    body = {"system": "Be brief.", "messages": turns(closed[1:])}
    prompt = cacheable(body, closed, 1.0)
    blocks = lambda n: 1 + sum(len(m["content"]) if isinstance(m["content"], list) else 1 for m in turns(closed[1:n]))
    assert prompt.messages == tuple(blocks(n) - 1 for n in range(1, len(closed) + 1))
    assert prompt.tokens[2] - prompt.tokens[1] == 2000, "what was thought is read, too"


def test_blocks_in_their_order_and_texts_that_the_program_made():
    thought, hidden = {"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}
    text, call = {"type": "text", "text": "So:", "citations": None}, {"type": "tool_use", "id": "c1", "name": "f", "input": {"q": 1}}
    came = [thought, text, hidden, call, {**call, "id": "c2"}]
    asked = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"q": 1}'}}
    plain = {"type": "text", "text": "So:"}
    (message,) = turns([{"role": "assistant", "content": "So:", "tool_calls": [asked], "thinking_blocks": came}])
    assert message["content"] == [thought, plain, hidden, call]
    (message,) = turns([{"role": "assistant", "content": "No:", "tool_calls": [asked], "thinking_blocks": came}])
    assert message["content"] == [thought, hidden, {**plain, "text": "No:"}, call]


def test_litellm_s_thinking_goes_back(opened, monkeypatch):
    """LiteLLM's thinking_blocks arrive, at once and in pieces."""
    seen = []
    blocks = [{"type": "thinking", "thinking": "Hm, so.", "signature": "s"}]

    async def answer(body):
        seen.append(body)
        pieces = [{"type": "thinking", "thinking": "Hm, ", "signature": None}, {"type": "thinking", "thinking": "so.", "signature": "s"}]
        if not body.get("stream"):
            return Answer({"choices": [{"index": 0, "message": {"content": "Yes.", "thinking_blocks": blocks}, "finish_reason": "stop"}]})
        deltas = [{"thinking_blocks": [piece]} for piece in pieces] + [{"content": "Yes."}]
        events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas] + [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
        return Answer({}, events=events)

    fake_litellm(monkeypatch, answer)
    backend = opened(lmc.LiteLLM("m", patience=QUICK))

    @lmc.function
    def twice(s):
        for name in ("a", "b"):
            s += lmc.user("Q") + lmc.assistant(lmc.gen(name, max_tokens=9))
        return s["b"]

    assert twice(backend=backend).ret_value == "Yes."
    state = twice.run(backend=backend, stream=True)
    assert "Yes." in "".join(state.text_iter())
    assert [body["messages"][1]["thinking_blocks"] for body in seen if len(body["messages"]) > 1] == [blocks, blocks]
