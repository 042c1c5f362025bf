"""Requests as clients send them: OpenAI's Responses and Anthropic's Messages by their official clients, fields that change nothing, and unknown ones."""

from __future__ import annotations

import json

import pytest

import lmc
from tests.serve.serving import HELLO, events, on_a_port, post, talking
from tests.serve.test_tools import CALLED, WEATHER, backend

pytestmark = pytest.mark.api
RESPONSES, MESSAGES, CHAT = "/v1/responses", "/v1/messages", "/v1/chat/completions"
FLAT = {"type": "function", **WEATHER["function"], "strict": False}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "x", "content": "-5"}
THEIRS = {"name": "weather", "description": "…", "input_schema": WEATHER["function"]["parameters"]}


@pytest.fixture
def openai():
    module = pytest.importorskip("openai")

    def make(mock):
        server = on_a_port(mock)
        return server, lambda url: module.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)

    return make


# -- Responses -----------------------------------------------------------------------------------------------------------


def test_a_response_is_the_chat_completion(openai):
    server, client = openai(lmc.Mock(lambda prompt, ask: "Good day."))
    with server as url, client(url) as asked:
        for given in (
            "Hello",
            [{"role": "user", "content": "Hello"}],
            [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        ):
            found = asked.responses.create(
                model="mock",
                input=given,
                instructions="Be kind.",
                reasoning={"effort": "low"},
                text={"verbosity": "low"},
                metadata={"a": "b"},
                user="u",
                store=False,
            )
            assert (found.output_text, found.status, found.object, found.metadata) == ("Good day.", "completed", "response", {"a": "b"})
            assert found.usage.output_tokens == 9 and found.usage.total_tokens == found.usage.input_tokens + 9
        cut = asked.responses.create(model="mock", input="Hello", max_output_tokens=4)
        assert (cut.output_text, cut.status, cut.incomplete_details.reason, cut.output[0].status) == ("Good", "incomplete", "max_output_tokens", "incomplete")


@pytest.mark.parametrize("calls", [False, True])
def test_a_response_has_the_log_probabilities_of_its_text(openai, calls):
    server, client = openai(backend([CALLED if calls else "Good day."] * 3))
    with server as url, client(url) as asked:
        how = {"model": "mock", "input": "x", "include": ["message.output_text.logprobs"], **({"tools": [FLAT]} if calls else {})}
        (part,) = asked.responses.create(**how, top_logprobs=2).output[0].content
        assert bytes(byte for token in part.logprobs for byte in token.bytes).decode() == part.text == ("Let me see." if calls else "Good day.")
        assert {len(token.top_logprobs) for token in part.logprobs} == {2}
        (alone,) = asked.responses.create(**how).output[0].content
        assert [token.logprob for token in alone.logprobs] == [token.logprob for token in part.logprobs] and not alone.logprobs[0].top_logprobs
        *_, last = found = list(asked.responses.create(**how, top_logprobs=2, stream=True))
        assert last.response.output[0].content[0].logprobs == part.logprobs
        (done,) = [event for event in found if event.type == "response.output_text.done"]
        assert [token.logprob for token in done.logprobs] == [token.logprob for token in part.logprobs]
        if not calls:
            deltas = [token for event in found if event.type == "response.output_text.delta" for token in event.logprobs]
            assert [token.logprob for token in deltas] == [token.logprob for token in part.logprobs]


def test_what_a_response_is_asked_with_reaches_the_model():
    mock = lmc.Mock()
    post(
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "Yes"}, {"type": "refusal", "refusal": ", but no."}]},
                {"role": "user", "content": "So?"},
            ],
            "instructions": "Kind.",
        },
        mock,
    )
    chat = lmc.Mock()
    post(
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "Kind."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Yes, but no."},
                {"role": "user", "content": "So?"},
            ]
        },
        chat,
    )
    assert [call.prompt for call in mock.call_log] == [call.prompt for call in chat.call_log]


def test_a_response_in_pieces(openai):
    server, client = openai(lmc.Mock(lambda prompt, ask: "Good day.", latency=0.01))
    with server as url, client(url) as asked:
        found = list(asked.responses.create(model="mock", input="Hello", stream=True))
        kinds = [e.type for e in found]
        assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
        assert kinds[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
        assert "".join(e.delta for e in found if e.type == "response.output_text.delta") == "Good day." == found[-1].response.output_text
        assert [e.sequence_number for e in found] == list(range(len(found)))
        *_, item, last = asked.responses.create(model="mock", input="Hello", max_output_tokens=4, stream=True)
        assert (item.item.status, last.type, last.response.output[0].status) == ("incomplete", "response.incomplete", "incomplete")
        with asked.responses.stream(model="mock", input="Hello") as stream:
            assert stream.get_final_response().output_text == "Good day."


@pytest.mark.parametrize("stream", (False, True))
def test_tools_of_a_response(openai, stream):
    server, client = openai(backend([CALLED, "Cold."]))
    with server as url, client(url) as asked:
        made = asked.responses.create(model="mock", input="Weather?", tools=[FLAT], stream=stream)
        found = list(made)[-1].response if stream else made
        text, call = found.output
        assert text.content[0].text.rstrip() == "Let me see." and (call.type, call.name, json.loads(call.arguments)) == (
            "function_call",
            "weather",
            {"city": "Oslo"},
        )
        given = [
            {"role": "user", "content": "Weather?"},
            *[item.model_dump() for item in found.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "-5"},
        ]
        assert asked.responses.create(model="mock", input=given, tools=[FLAT]).output_text == "Cold."


def test_a_response_with_a_schema(openai):
    server, client = openai(lmc.Mock())
    with server as url, client(url) as asked:
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
        found = asked.responses.create(model="mock", input="x", text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
        assert json.loads(found.output_text)["a"] in (True, False)


@pytest.mark.parametrize(
    ("field", "value"),
    (
        ("previous_response_id", "resp_1"),
        ("background", True),
        ("tools", [{"type": "web_search"}]),
        ("input", [{"type": "item_reference", "id": "x"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image"}]}]),
        ("input", [{"role": "user", "content": [{"type": ["input_text"], "text": "x"}]}]),
        ("prompt", {"id": "pmpt_1"}),
        ("odd", 1),
    ),
)
def test_what_a_response_cannot_have_is_refused(field, value):
    answer = post(RESPONSES, {"input": "x", field: value})
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("given", "param"),
    (
        ({"instructions": "Be kind.", "input": [{"role": "user", "content": "x"}, {"role": "king", "content": "x"}]}, "input.1.role"),
        ({"input": [{"type": "function_call_output", "call_id": 3, "output": "x"}]}, "input.0.tool_call_id"),
        ({"input": []}, "input"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": {"id": "conv_1"}}, "conversation"),
        ({"input": "x", "tools": [{"type": "function", "name": "no name"}]}, "tools.0.name"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}}, "text.format"),
    ),
)
def test_an_error_of_a_response_names_its_own_field(given, param):
    error = post(RESPONSES, given).json()["error"]
    assert (error["code"] == "unsupported") == ("not supported" in error["message"])
    assert (param in ("previous_response_id", "conversation")) == ("send the earlier items" in error["message"])
    assert error["param"] == param and (param == "text.format" or error["message"].startswith(f"{param}: "))


# -- Messages ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def anthropic():
    module = pytest.importorskip("anthropic")

    def make(mock, **limits):
        return on_a_port(mock, **limits), lambda url: module.Anthropic(base_url=url, api_key="k", max_retries=0)

    return make


def test_a_message_is_the_chat_completion(anthropic):
    server, client = anthropic(lmc.Mock(lambda prompt, ask: "Good day."), api_keys=("k",))
    with server as url, client(url) as asked:
        for content in ("Hello", [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]):
            found = asked.messages.create(
                model="mock",
                max_tokens=64,
                system="Be kind.",
                messages=[{"role": "user", "content": content}],
                metadata={"user_id": "u"},
                extra_body={"temperature": 0},
            )
            assert (found.content[0].text, found.stop_reason, found.role, found.usage.output_tokens) == ("Good day.", "end_turn", "assistant", 9)
        ask = lambda **how: asked.messages.create(model="mock", messages=[{"role": "user", "content": "Hello"}], **{"max_tokens": 64, **how})
        assert (ask(max_tokens=4).content[0].text, ask(max_tokens=4).stop_reason) == ("Good", "max_tokens")
        cut = ask(stop_sequences=[" day"])
        assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == ("Good", "stop_sequence", " day")


def test_a_text_of_a_message_has_no_field_that_is_null():
    """The AI SDK for JavaScript refuses the whole answer for one."""
    body = {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    whole = post(MESSAGES, body, lmc.Mock(lambda prompt, ask: "Good day.")).json()
    assert whole["content"] == [{"type": "text", "text": "Good"}]
    started = [event["content_block"] for event in events(post(MESSAGES, {**body, "stream": True}).text) if event["type"] == "content_block_start"]
    assert started == [{"type": "text", "text": ""}]


def test_an_answer_continues_the_assistants_message(anthropic):
    mock = backend(lambda prompt, ask: " yes")
    server, client = anthropic(mock)
    given = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": [{"type": "text", "text": "I say:"}]}]
    with server as url, client(url) as asked:
        found = asked.messages.create(model="mock", max_tokens=64, messages=given)
        assert (found.content[0].text, mock.call_log[0].prompt_text.rpartition("\n")[2]) == (" yes", "I say:")
        assert asked.messages.count_tokens(model="mock", messages=given).input_tokens == found.usage.input_tokens
    refused = post(MESSAGES, {"model": "mock", "max_tokens": 4, "messages": given, "tools": [THEIRS]}, mock)
    assert refused.status_code == 400 and "end with a user's message" in refused.json()["error"]["message"]


def test_a_message_in_pieces(anthropic):
    server, client = anthropic(lmc.Mock(lambda prompt, ask: "Good day.", latency=0.01))
    with server as url, client(url) as asked:
        with asked.messages.stream(model="mock", max_tokens=64, messages=[{"role": "user", "content": "Hello"}]) as stream:
            assert "".join(stream.text_stream) == "Good day."
            final = stream.get_final_message()
        assert (final.stop_reason, final.usage.output_tokens, final.content[0].text) == ("end_turn", 9, "Good day.")


@pytest.mark.parametrize("stream", (False, True))
def test_tools_of_a_message(anthropic, stream):
    server, client = anthropic(backend([CALLED, "Cold."]))
    with server as url, client(url) as asked:
        how = {"model": "mock", "max_tokens": 200, "tools": [THEIRS]}
        given = [{"role": "user", "content": "Weather?"}]
        if stream:
            with asked.messages.stream(messages=given, **how) as made:
                found = made.get_final_message()
        else:
            found = asked.messages.create(messages=given, **how)
        text, use = found.content
        assert (text.text.rstrip(), use.name, use.input, found.stop_reason) == ("Let me see.", "weather", {"city": "Oslo"}, "tool_use")
        given += [
            {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in found.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "-5"}]},
        ]
        assert asked.messages.create(messages=given, **how).content[0].text == "Cold."


def test_a_message_may_be_limited_to_one_call():
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    body = {"model": "mock", "max_tokens": 200, "messages": [{"role": "user", "content": "Weather?"}], "tools": [THEIRS], "tool_choice": choice}
    found = post("/v1/messages", body, backend([f"{CALLED}\n{CALLED}"])).json()
    assert [block["type"] for block in found["content"]] == ["text", "tool_use"]


COUNTED = (
    {},
    {"system": "Be kind.", "messages": [{"role": "user", "content": [{"type": "text", "text": "Où ça ?"}]}, {"role": "assistant", "content": "x"}] * 2},
    {"tools": [THEIRS], "tool_choice": {"type": "any"}},
    {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
)


def test_counted_tokens_are_those_of_the_request(anthropic):
    mock = backend(lambda prompt, ask: None if ask.constraint is not None else "Fine.")
    server, client = anthropic(mock)
    with server as url, client(url) as asked:
        for more in COUNTED:
            given = {"model": "mock", "messages": [{"role": "user", "content": "Hello"}], **more}
            how = {"extra_body": {"output_config": given.pop("output_config")}} if "output_config" in given else {}
            counted = asked.messages.count_tokens(**given, **how)
            assert counted.input_tokens == asked.messages.create(**given, max_tokens=200, **how).usage.input_tokens > 5
        assert len(mock.call_log) == len(COUNTED), "nothing is asked to count"


def test_counted_tokens_are_those_of_a_response(openai):
    mock = backend(lambda prompt, ask: None if ask.constraint is not None else "Fine.")
    server, client = openai(mock)
    with server as url, client(url) as asked:
        for given in ({"input": "Hello"}, {"input": [{"role": "user", "content": "Où ça ?"}], "instructions": "Be kind.", "tools": [FLAT]}):
            counted = asked.responses.input_tokens.count(model="mock", **given)
            assert counted.object == "response.input_tokens"
            assert counted.input_tokens == asked.responses.create(model="mock", **given).usage.input_tokens > 5
        assert len(mock.call_log) == 2, "nothing is asked to count"
    wrong = post(f"{RESPONSES}/input_tokens", {"input": [{"role": "user", "content": 3}]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input")


def test_what_cannot_be_counted_is_refused():
    path, given = f"{MESSAGES}/count_tokens", {"model": "mock", "messages": [{"role": "user", "content": "x"}]}
    for wrong, status in (({"max_tokens": 3}, 400), ({"messages": []}, 400), ({"model": "gpt-9"}, 404), ({"thinking": {"type": "enabled"}}, 400)):
        answer = post(path, {**given, **wrong})
        assert (answer.status_code, answer.json()["type"]) == (status, "error")
    elsewhere = lmc.OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key="k")
    refused = post(path, given, elsewhere)
    elsewhere.close()
    assert refused.status_code == 400 and "cannot count" in refused.json()["error"]["message"]


CLOSED = {"type": "object", "properties": {"digit": {"enum": [1, 2]}}, "required": ["digit"], "additionalProperties": False}


def test_a_message_is_of_the_schema_that_is_asked_for(anthropic):
    form = {"format": {"type": "json_schema", "schema": CLOSED}, "effort": "low"}
    server, client = anthropic(lmc.Mock())
    with server as url, client(url) as asked:
        how = {"model": "mock", "max_tokens": 64, "messages": [{"role": "user", "content": "Which?"}]}
        plain = asked.messages.create(**how, extra_body={"output_config": form})
        with asked.messages.stream(**how, extra_body={"output_config": form}) as stream:
            assert stream.get_final_message().content[0].text == plain.content[0].text
        assert json.loads(plain.content[0].text)["digit"] in (1, 2)
        with lmc.Anthropic("mock", base_url=url, api_key="k") as backend:

            @lmc.function
            def which(s):
                s += lmc.user("Which?") + lmc.assistant(lmc.gen("a", json_schema=CLOSED, max_tokens=64))
                return s["a"]

            assert json.loads(which.run(backend=backend).ret_value)["digit"] in (1, 2)
    wrong = post(MESSAGES, {**STREAMED[MESSAGES], "output_config": {"format": {"type": "json_schema", "schema": {"type": "what"}}}})
    assert wrong.status_code == 400 and "/type is 'what'" in wrong.json()["error"]["message"]
    for other in ({"format": {"type": "xml"}}, {"format": {"type": "json_schema"}}, {"odd": 1}):
        assert post(MESSAGES, {**STREAMED[MESSAGES], "output_config": other}).status_code == 400


def test_the_runner_of_tools_sends_whole_conversations_where_nothing_is_stored(anthropic):
    """Newer versions first ask the server to keep the conversation, and do without for this error's code."""
    asked = {**STREAMED[MESSAGES], "thread": {"type": "create"}}
    for lenient in (False, True):
        refused = post(MESSAGES, asked, lenient=lenient)
        assert refused.status_code == 400
        assert refused.json()["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    from anthropic import beta_tool

    @beta_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"Cold in {city}."

    server, client = anthropic(backend([CALLED, "It is cold."]))
    with server as url, client(url) as asking:
        how = {"model": "mock", "max_tokens": 200, "messages": [{"role": "user", "content": "How is the weather?"}]}
        *_, last = asking.beta.messages.tool_runner(**how, tools=[weather])
        assert last.content[0].text == "It is cold."


def test_a_strict_tool_of_a_message_is_called_with_what_its_schema_allows():
    mock = backend(lambda prompt, ask: None)
    for strict in (None, True):
        assert post(MESSAGES, {**STREAMED[MESSAGES], "tools": [{**THEIRS, "strict": strict}]}, mock).status_code == 200
    free, strict = (call.constraint for call in mock.call_log)
    assert free is None and strict is not None


def test_errors_of_messages_are_anthropics(anthropic):
    module = pytest.importorskip("anthropic")
    server, client = anthropic(lmc.Mock(), api_keys=("other",))
    with server as url, client(url) as asked, pytest.raises(module.AuthenticationError) as refused:
        asked.messages.create(model="mock", max_tokens=4, messages=[{"role": "user", "content": "x"}])
    assert refused.value.body["type"] == "error" and refused.value.body["error"]["type"] == "authentication_error"
    for field, value in (
        ("thinking", {"type": "enabled", "budget_tokens": 9}),
        ("tools", [{"type": "web_search_20250305", "name": "w"}]),
        ("odd", 1),
        ("model", "gpt-9"),
        ("temperature", 2),
    ):
        answer = post(MESSAGES, {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}], field: value})
        assert answer.status_code in (400, 404) and answer.json()["type"] == "error" and answer.json()["error"]["message"]
    for path in (f"{MESSAGES}/batches", f"{MESSAGES}/"):
        answer = post(path, {})
        assert answer.status_code == 404 and answer.json()["error"]["type"] == "not_found_error" and answer.json()["type"] == "error"


@pytest.mark.parametrize(
    ("given", "said"),
    (
        ({"tools": [THEIRS], "tool_choice": {"type": "king"}}, "tool_choice: its type is auto, any, none or tool, not 'king'"),
        ({"system": "Be kind.", "messages": [{"role": "user", "content": [TOOL_RESULT, TOOL_RESULT]}, {"role": "king", "content": "x"}]}, "messages.1.role: "),
        ({"tools": [{**THEIRS, "name": "no name"}]}, "tools.0.name: "),
        ({"stop_sequences": ["", ""]}, "stop"),
    ),
)
def test_an_error_of_a_message_names_its_own_field(given, said):
    answer = post(MESSAGES, {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}], **given}, backend(["x"]))
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(said)


def test_a_fault_in_the_middle_of_a_message_reaches_the_client(anthropic):
    """Anthropic's client ignores events without a name: the answer would look complete."""
    module = pytest.importorskip("anthropic")
    with (
        on_a_port(lmc.Mock(latency=60), timeout=0.5) as url,
        module.Anthropic(base_url=url, api_key="k", max_retries=0) as asked,
        pytest.raises(module.APIStatusError, match="longer than this server allows"),
    ):
        list(asked.messages.create(model="mock", max_tokens=4, messages=[{"role": "user", "content": "x"}], stream=True))


TOO_LONG = lmc.PromptTooLongError("messages: too long", param="messages")
ODD = lmc.ConstraintError("response_format: odd", param="response_format")
BROKEN = {
    TOO_LONG: ("context_length_exceeded", {RESPONSES: "input", CHAT: "messages", MESSAGES: "messages"}),
    ODD: (None, {RESPONSES: "text.format", CHAT: "response_format", MESSAGES: "output_config.format"}),
    lmc.BackendError("out of luck"): (None, dict.fromkeys((RESPONSES, CHAT, MESSAGES))),
}


@pytest.fixture(params=BROKEN, ids=lambda error: type(error).__name__)
def broken(request, monkeypatch):
    """Streams fail with an error behind their first piece."""
    from lmc.backend.results import UNSCORED
    from lmc.serve.asking import Grown, RequestedAnswers

    follow = RequestedAnswers.follow

    async def breaking(answers):
        async for grown in follow(answers):
            yield Grown(grown.index, "Go", UNSCORED, None)
            raise request.param

    monkeypatch.setattr(RequestedAnswers, "follow", breaking)
    return request.param


STREAMED = {
    RESPONSES: {"input": "x"},
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    MESSAGES: {"model": "mock", "max_tokens": 64, "messages": [{"role": "user", "content": "x"}]},
}


@pytest.mark.parametrize("path", STREAMED)
def test_an_error_in_a_stream_is_its_own_api_s(broken, path):
    code, fields = BROKEN[broken]
    answer = post(path, {**STREAMED[path], "stream": True}, lmc.Mock())
    assert answer.status_code == 200 and len(events(answer.text)) > 1
    *before, said = events(answer.text)
    message = broken.message.replace(broken.param, fields[path]) if broken.param else broken.message
    assert said["error"]["message"] == message
    if path == MESSAGES:
        assert said["type"] == "error" and set(said["error"]) == {"type", "message"}
    else:
        assert (said["error"]["param"], said["error"]["code"]) == (fields[path], code)
    if path == RESPONSES:
        assert (said["type"], said["code"], said["message"], said["param"]) == ("error", code, message, fields[path])
        assert said["sequence_number"] == len(before)
        assert answer.text.rpartition("event: ")[2].startswith("error\n")


def test_an_error_in_the_stream_of_a_response_reaches_the_client(openai, broken):
    module = pytest.importorskip("openai")
    server, client = openai(lmc.Mock())
    with server as url, client(url) as asked, pytest.raises(module.APIError) as raised:
        list(asked.responses.create(model="mock", input="Hello", stream=True))
    assert raised.value.param == BROKEN[broken][1][RESPONSES]


# -- what changes nothing, and what nobody knows -----------------------------------------------------------------------------


def test_fields_that_change_nothing_are_taken():
    plain = post(CHAT, {**HELLO, "seed": 1}).json()["choices"]
    assert (
        post(CHAT, {**HELLO, "seed": 1, "reasoning_effort": "low", "verbosity": "high", "user": "u", "metadata": {"a": "b"}, "store": True}).json()["choices"]
        == plain
    )
    newer = {"prompt_cache_retention": "24h", "prediction": {"type": "content", "content": "x"}, "modalities": ["text"]}
    assert post(CHAT, {**HELLO, "seed": 1, **newer}).json()["choices"] == plain
    theirs = {"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit"}, "client_metadata": {"a": "b"}}
    assert post(RESPONSES, {"input": "x", **theirs}).status_code == 200
    assert post(CHAT, {**HELLO, "modalities": ["text", "audio"]}).json()["error"]["param"] == "modalities.1"
    message = {**STREAMED[MESSAGES], "temperature": 0}
    theirs = {"thinking": {"type": "adaptive", "display": "omitted"}, "cache_control": {"type": "ephemeral"}, "user_profile_id": "u", "service_tier": "auto"}
    theirs["context_management"] = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert post(MESSAGES, {**message, **theirs}).json()["content"] == post(MESSAGES, message).json()["content"]
    shorter = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    assert "context_management: not supported" in post(MESSAGES, {**message, **shorter}).json()["error"]["message"]


@pytest.mark.parametrize("path", (CHAT, "/v1/completions", RESPONSES, MESSAGES))
def test_unknown_fields_are_refused_unless_the_server_is_lenient(path):
    bodies = {
        CHAT: HELLO,
        "/v1/completions": {"prompt": "x"},
        RESPONSES: {"input": "x"},
        MESSAGES: {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]},
    }
    body = {**bodies[path], "odd": {"a": 1}, "odder": 2}
    assert post(path, body).status_code == 400
    assert post(path, body, lenient=True).status_code == 200


def test_a_lenient_server_leaves_out_fields_of_parts_and_nothing_else():
    mock = lmc.Mock()
    message = {"role": "user", "content": [{"type": "text", "text": "Hello", "odd": 1}], "odd": [1]}
    assert post(CHAT, {"messages": [message]}, mock, lenient=True).status_code == 200
    other = lmc.Mock()
    post(CHAT, HELLO, other)
    assert [c.prompt for c in mock.call_log] == [c.prompt for c in other.call_log]
    unsupported = {"functions": [{"name": "f"}], "audio": {}, "messages": [{**message, "function_call": {"name": "f", "arguments": "{}"}}]}
    assert post(CHAT, unsupported, lenient=True).status_code == 200
    assert post(RESPONSES, {"input": "x", "prompt": {"id": "p"}, "moderation": {}}, lenient=True).status_code == 200
    assert post(MESSAGES, {**STREAMED[MESSAGES], "thinking": {"type": "enabled", "budget_tokens": 1024}}, lenient=True).status_code == 200
    assert post(CHAT, {"messages": [message], "temperature": "hot"}, lenient=True).status_code == 400, "what is known must be right"


@pytest.mark.parametrize(
    ("path", "own", "other"), ((RESPONSES, FLAT, {"type": "web_search"}), (MESSAGES, THEIRS, {"type": "web_search_20250305", "name": "web_search"}))
)
def test_a_lenient_server_leaves_out_tools_that_are_no_functions(path, own, other):
    mock = backend(["Fine."] * 2)
    body = {**STREAMED[path], "tools": [other, own, other]}
    assert post(path, body).json()["error"]["message"].startswith("tools: 'web_search")
    assert post(path, body, mock, lenient=True).status_code == 200
    prompt = mock.call_log[0].prompt_text
    assert '"name": "weather"' in prompt and "web_search" not in prompt
    assert post(path, {**body, "tools": [other]}, mock, lenient=True).status_code == 200
    wrong = post(path, {**body, "tools": [other, {**own, "name": "no name"}]}, mock, lenient=True)
    assert "tools.1.name: " in wrong.json()["error"]["message"], "its place in the request"


def test_an_unknown_field_with_the_name_of_a_type_is_an_error_and_no_endless_search():
    choice = {"type": "function", "function": {"name": "x"}, "odd": 1, "ToolChoice": {}}
    answer = post(CHAT, {**HELLO, "tool_choice": choice}, lenient=True)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice.ToolChoice")


def test_embeddings_are_a_clear_501():
    answer = post("/v1/embeddings", {"model": "mock", "input": "x"})
    assert answer.status_code == 501 and "embedding" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false", "the official clients ask again after a 5xx otherwise"


async def test_errors_of_messages_are_described_as_they_are():
    async with talking() as client:
        description, answer = (await client.get("/openapi.json")).json(), await client.post(MESSAGES, json={"messages": []})
    described = description["paths"][MESSAGES]["post"]["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
    assert set(described["required"]) == set(answer.json()) == {"type", "error"}
    assert set(described["properties"]["error"]["required"]) == set(answer.json()["error"])
