"""`lmc serve` over a chat API: messages and tools reach it as such, its calls and refusals come back, its usage is charged, its secrets stay."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.backend.api.client import Patience
from lmc.serve.keys import Key, KeyLimits
from tests.api.http import Answer, Planted, Server
from tests.api.test_answers import chat
from tests.serve.serving import ByHand, events, running, talk, until

pytest.importorskip("openai")
pytestmark = pytest.mark.api

SECRET = "sk-very-secret-1234567890"
USAGE = {"prompt_tokens": 30, "completion_tokens": 5}
TOOL = {"type": "function", "function": {"name": "search", "description": "Looks", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}
CALL = {"id": "call_7", "type": "function", "function": {"name": "search", "arguments": '{"q": "tea"}'}}
SYSTEM_AND_USER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <|im_end|>"}]


def answered(finish: str = "stop", **message: Any) -> Any:
    whole, pieces = chat(finish=finish, usage=USAGE, **message)
    return lambda path, body: pieces if body.get("stream") else whole


def over(api: Server, work: Any, **limits: Any) -> Any:
    """`await work(client)` of a server over that API."""
    with lmc.OpenAI("m", base_url=f"{api.url}/v1", api_key=SECRET, patience=Patience(1, 60.0, 0.001, 0.002)) as backend:
        return talk(work, backend, **limits)


def ask(api: Server, path: str, **limits: Any) -> Any:
    body = limits.pop("body")
    return over(api, lambda client: client.post(path, json=body), **limits)


FORMS = {
    "chat": ("/v1/chat/completions", {"messages": SYSTEM_AND_USER}, lambda a: a["choices"][0]["message"]["content"],
        lambda a: (a["usage"]["prompt_tokens"], a["usage"]["completion_tokens"])),
    "responses": ("/v1/responses", {"model": "mock", "instructions": "Be brief.", "input": "Hello <|im_end|>"}, lambda a: a["output"][0]["content"][0]["text"],
        lambda a: (a["usage"]["input_tokens"], a["usage"]["output_tokens"])),
    "messages": ("/v1/messages", {"model": "mock", "system": "Be brief.", "messages": SYSTEM_AND_USER[1:], "max_tokens": 9}, lambda a: a["content"][0]["text"],
        lambda a: (a["usage"]["input_tokens"], a["usage"]["output_tokens"])),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stream", (False, True), ids=("whole", "stream"))
def test_messages_reach_the_api_and_what_it_reports_is_charged(form: str, stream: bool, tmp_path: Path) -> None:
    path, body, text, usage = FORMS[form]
    log = tmp_path / "log"
    with Server(answered(content="Good day.")) as api:
        async def work(client: Any) -> tuple[Any, str]:
            found = await client.post(path, json={**body, "stream": stream}, headers={"authorization": "Bearer k"})
            return found, (await client.get("/metrics", headers={"authorization": "Bearer k"})).text

        found, metrics = over(api, work, audit_log=log, api_keys=[Key.of("k", "kim", KeyLimits())])
        (seen,) = api.seen
    assert found.status_code == 200, found.text
    assert seen.body["messages"] == SYSTEM_AND_USER
    if stream:
        assert "Good day." in found.text and not any("error" in each for each in events(found.text))
    else:
        assert (text(found.json()), usage(found.json())) == ("Good day.", (30, 5))
    assert "lmc_prompt_tokens_total 30.0" in metrics and "lmc_completion_tokens_total 5.0" in metrics
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum(line.get("tokens", 0) + line.get("late_tokens", 0) for line in lines) == 35 and {line.get("key") for line in lines} <= {"kim", None}


@pytest.mark.parametrize("stream", (False, True), ids=("whole", "stream"))
def test_tools_reach_the_api_and_its_calls_come_back(stream: bool) -> None:
    body = {"messages": SYSTEM_AND_USER, "tools": [TOOL], "stream": stream}
    with Server(answered("tool_calls", content=None, tool_calls=[CALL])) as api:
        found = ask(api, "/v1/chat/completions", body=body)
        (seen,) = api.seen
    assert found.status_code == 200, found.text
    assert [tool["function"]["name"] for tool in seen.body["tools"]] == ["search"]
    choices = [c for event in events(found.text) if event != "[DONE]" for c in event["choices"]] if stream else found.json()["choices"]
    calls = [call for c in choices for call in (c["delta"] if stream else c["message"]).get("tool_calls") or ()]
    assert [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] == [("call_7", "search", {"q": "tea"})]
    assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", (False, True), ids=("whole", "stream"))
@pytest.mark.parametrize("written", ("tea", "[1]", '{"q": NaN}', '{"q": 1e400}'))
def test_arguments_that_are_no_object_are_in_one_where_they_must_be(written: str, stream: bool) -> None:
    tool = {"name": "search", "input_schema": {"type": "object"}}
    body = {"model": "mock", "max_tokens": 9, "messages": SYSTEM_AND_USER[1:], "tools": [tool], "stream": stream}
    with Server(answered("tool_calls", content=None, tool_calls=[{**CALL, "function": {"name": "search", "arguments": written}}])) as api:
        found = ask(api, "/v1/messages", body=body)
    assert found.status_code == 200, found.text
    given = [json.loads(e["delta"]["partial_json"]) for e in events(found.text) if "partial_json" in e.get("delta", {})] if stream else []
    assert (given or [block["input"] for block in found.json()["content"]]) == [{"arguments": written}]


def test_a_schema_beside_tools_reaches_the_api_and_calls_may_be_limited_to_one() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {}, "required": [], "additionalProperties": False}}}
    body = {"messages": SYSTEM_AND_USER, "tools": [TOOL], "response_format": form, "parallel_tool_calls": False}
    with Server(answered("tool_calls", content=None, tool_calls=[CALL, {**CALL, "id": "call_8"}])) as api:
        found = ask(api, "/v1/chat/completions", body=body)
        (seen,) = api.seen
    assert found.status_code == 200, found.text
    assert [call["id"] for call in found.json()["choices"][0]["message"]["tool_calls"]] == ["call_7"]
    assert seen.body["tools"] and seen.body["response_format"]["json_schema"]["schema"] == form["json_schema"]["schema"]


HALVES = [{"token": "�", "logprob": -0.5, "bytes": data, "top_logprobs": []} for data in ([0xF0, 0x9F], [0x98, 0x80])]


@pytest.mark.parametrize("stream", (False, True), ids=("whole", "stream"))
def test_a_token_that_is_half_a_character_has_its_bytes(stream: bool) -> None:
    """It was an internal error."""

    def handle(path: str, body: dict[str, Any]) -> Answer:
        said, scored = {"role": "assistant", "content": "\N{GRINNING FACE}"}, {"content": HALVES}
        choice = {"index": 0, "message": said, "delta": said, "logprobs": scored, "finish_reason": "stop"}
        return Answer({"choices": [choice], "usage": USAGE}, events=[{"choices": [choice]}] if body.get("stream") else None)

    with Server(handle) as api:
        found = ask(api, "/v1/chat/completions", body={"messages": SYSTEM_AND_USER, "logprobs": True, "stream": stream})
    choices = [c for event in events(found.text) if event != "[DONE]" for c in event["choices"]] if stream else found.json()["choices"]
    tokens = [token for c in choices for token in (c["logprobs"] or {"content": []})["content"]]
    assert [token["bytes"] for token in tokens] == [half["bytes"] for half in HALVES], found.text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stream", (False, True), ids=("whole", "stream"))
def test_an_answer_with_half_a_character_is_an_answer(form: str, stream: bool) -> None:
    path, body, text, _ = FORMS[form]
    with Server(answered(content="one \ud83d")) as api:
        found = ask(api, path, body={**body, "stream": stream})
    assert found.status_code == 200 and "error" not in found.text.replace('"error":null', ""), found.text
    assert "\ufffd" in found.text if stream else text(found.json()) == "one \ufffd"


def test_results_of_tools_reach_the_api() -> None:
    talked = [
        *SYSTEM_AND_USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_7", "content": '{"id": "x"}\nTea.'},
    ]
    with Server(answered(content="It is tea.")) as api:
        found = ask(api, "/v1/chat/completions", body={"messages": talked, "tools": [TOOL]})
        assert found.json()["choices"][0]["message"]["content"] == "It is tea.", found.text
        sent = api.seen[0].body["messages"]
        assert (
            sent[3] == talked[3]
            and sent[2]["tool_calls"][0]["id"] == "call_7"
            and json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]) == {"q": "tea"}
        )
        lost = ask(api, "/v1/chat/completions", body={"messages": [*talked[:3], {**talked[3], "tool_call_id": "other"}]})
        forced = ask(api, "/v1/chat/completions", body={"messages": SYSTEM_AND_USER, "tools": [TOOL], "tool_choice": "required"})
        assert [(each.status_code, each.json()["error"]["param"]) for each in (lost, forced)] == [(400, "messages"), (400, "tool_choice")]
        assert len(api.seen) == 1


@pytest.mark.parametrize("stream", (False, True), ids=("whole", "stream"))
@pytest.mark.parametrize("kind", ("refusal", "content_filter"))
def test_a_refusal_is_an_error_that_says_so(kind: str, stream: bool) -> None:
    said = answered(content=None, refusal="I cannot.") if kind == "refusal" else answered("content_filter", content="Half of")
    with Server(said) as api:
        found = ask(api, "/v1/chat/completions", body={"messages": SYSTEM_AND_USER, "stream": stream})
    error = [e for e in events(found.text) if "error" in e][-1]["error"] if stream else found.json()["error"]
    assert error["code"] == kind and found.status_code == (200 if stream else 502)
    assert stream or found.headers["x-should-retry"] == "false", "the official clients would ask, and pay, again"


def test_what_was_tried_again_here_is_not_tried_again_there() -> None:
    with Server(lambda path, body: Answer({"model": "m", "choices": []}, counted=False)) as api:
        found = ask(api, "/v1/chat/completions", body={"messages": SYSTEM_AND_USER})
        assert (found.status_code, found.headers["x-should-retry"], len(api.seen)) == (500, "false", 2)


def test_text_without_messages_is_refused_before_the_api_is_asked() -> None:
    with Server(answered(content="x")) as api:
        found = ask(api, "/v1/completions", body={"prompt": "Once"})
        assert (found.status_code, found.json()["error"]["code"], api.seen) == (400, "unsupported", [])


@pytest.mark.parametrize("stream", (False, True), ids=("whole", "stream"))
def test_a_secret_that_the_api_repeats_stays_here(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    echo = {"error": {"message": f"bad key Bearer {SECRET}", "type": "x", "param": SECRET, "code": SECRET}}
    with Server(answered(content="x"), plant=lambda n, path, body: Planted("status", 401, body=echo)) as api, caplog.at_level(logging.DEBUG):
        found = ask(api, "/v1/chat/completions", body={"messages": SYSTEM_AND_USER, "stream": stream})
        assert api.seen[0].headers["authorization"] == f"Bearer {SECRET}"
    assert "error" in found.text and "401" in found.text
    assert SECRET not in found.text + str(found.headers) + caplog.text


async def test_a_client_that_leaves_ends_what_the_api_was_asked() -> None:
    def plant(n: int, path: str, body: Any) -> Planted:
        return Planted("delay", seconds=60, until=lambda: api.open_connections == 0)

    with Server(answered(content="x"), plant=plant) as api, lmc.OpenAI("m", base_url=f"{api.url}/v1", api_key=SECRET) as backend:
        async with running(backend) as app:
            call = ByHand(app, "/v1/chat/completions", json.dumps({"messages": SYSTEM_AND_USER}).encode())
            await until(lambda: api.seen)
            call.leave()
            await call.task
            await until(lambda: api.open_connections == 0)
