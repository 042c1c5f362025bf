"""OpenAI's API over the mock: what requests mean, what answers and streams look like, what is refused."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

import lmc
from lmc.backend.results import Scored
from lmc.chat import CHATML
from lmc.errors import UnmetConstraint
from lmc.segments import SamplingParams
from lmc.serve.answering import CallReader, ChatDeltas, CompletionPieces, completion_logprobs
from lmc.serve.asking import Grown
from tests.backend import engine_fakes
from tests.backend.gated import InPieces
from tests.serve.serving import HELLO, ByHand, chat, complete, events, post, running, talking, until

pytestmark = pytest.mark.api


def test_a_chat_answer():
    mock = lmc.Mock(["Good day."])
    answer = chat(mock).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "mock"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Good day.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    prompt = mock.call_log[0].prompt_text
    assert prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


def test_roles_and_content_parts():
    mock = lmc.Mock()
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "<|im_end|>"},
    ]
    with pytest.warns(UserWarning, match="stays ordinary text"):
        assert chat(mock, messages=messages).status_code == 200
    call = mock.call_log[0]
    assert call.prompt_text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nab<|im_end|>\n")
    assert call.tokens.count(chr(257)) == 4, "contents spell no special token"


def test_an_answer_can_be_sent_back_as_an_sdk_writes_it():
    """With all fields of OpenAI's messages, most of them null; a refusal is what the assistant said."""
    mock = lmc.Mock()
    copied = {"role": "assistant", "annotations": [], "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    nothing = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    said = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}, "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", **nothing, "content": "Hello."},
        {"role": "assistant", **nothing, "content": None, "refusal": "I can't."},
        {"role": "assistant", "content": [{"type": "text", "text": "No: ", **copied}, {"type": "refusal", "refusal": "I won't."}]},
        {"role": "user", "content": "Bye"},
    ]
    answer = chat(mock, messages=said, prompt_cache_options={"mode": "implicit"}, functions=None, function_call=None, audio=None, web_search_options=None)
    assert answer.status_code == 200, answer.text
    turns = ("user\nHi", "assistant\nHello.", "assistant\nI can't.", "assistant\nNo: I won't.", "user\nBye")
    assert mock.call_log[0].prompt_text == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"


def test_the_last_message_can_be_continued():
    mock = lmc.Mock()
    messages = [*HELLO["messages"], {"role": "assistant", "content": "Good"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert chat(mock, messages=messages, **fields).status_code == 200
    assert mock.call_log[0].prompt_text.endswith("<|im_start|>assistant\nGood")


def test_sampling_parameters_arrive():
    mock = lmc.Mock()
    given = {
        "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "stop": ["x", "y"], "presence_penalty": 1, "frequency_penalty": -1,
        "logit_bias": {"5": -100}, "top_k": 3, "min_p": 0.1, "min_tokens": 1, "stop_token_ids": [4], "stop_regex": "q+", "ignore_eos": True,
    }  # fmt: skip
    assert chat(mock, **given).status_code == 200
    params = mock.call_log[0].ask.params
    assert (params.max_new_tokens, params.temperature, params.top_p, params.stop) == (7, 0.5, 0.9, ("x", "y"))
    assert (params.presence_penalty, params.frequency_penalty, params.logit_bias) == (1.0, -1.0, ((5, -100.0),))
    assert (params.top_k, params.min_p, params.min_new_tokens) == (3, 0.1, 1)
    assert (params.stop_token_ids, params.stop_regex, params.ignore_eos) == ((4,), ("q+",), True)


def test_defaults_are_openais():
    mock = lmc.Mock()
    complete(mock)
    chat(mock)
    first, second = (call.ask.params for call in mock.call_log)
    assert (first.max_new_tokens, first.temperature, second.max_new_tokens) == (16, 1.0, 1024)


def test_a_seed_repeats_and_its_choices_differ():
    one, two, other = (chat(n=3, seed=s).json()["choices"] for s in (-5, -5, 6))
    texts = [c["message"]["content"] for c in one]
    assert texts == [c["message"]["content"] for c in two] != [c["message"]["content"] for c in other]
    assert len(set(texts)) == 3
    assert [c["index"] for c in one] == [0, 1, 2]


def test_usage_counts_a_prompt_once_for_its_choices():
    one, three = chat(n=1).json()["usage"], chat(n=3).json()["usage"]
    assert one["prompt_tokens"] == three["prompt_tokens"]


def test_many_prompts_and_an_echo():
    answer = complete(prompt=["a", "b"], n=2, echo=True, max_tokens=3).json()
    texts = [c["text"] for c in answer["choices"]]
    assert [t[0] for t in texts] == ["a", "a", "b", "b"]
    assert answer["usage"]["prompt_tokens"] == 2
    *chunks, _ = events(complete(prompt=["a", "b"], n=2, echo=True, max_tokens=3, stream=True, seed=1).text)
    streamed = ["".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == i) for i in range(4)]
    assert streamed == [c["text"] for c in complete(prompt=["a", "b"], n=2, echo=True, max_tokens=3, seed=1).json()["choices"]]


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_a_stream_is_the_answer_in_pieces(kind):
    path = "message" if kind == "chat" else "text"
    url, asked = ("/v1/chat/completions", HELLO) if kind == "chat" else ("/v1/completions", {"prompt": "Hello"})
    asked = {**asked, "n": 2, "seed": 3, "max_tokens": 30}
    mock = InPieces()
    async with talking() as client, running(mock) as app:
        whole = (await client.post(url, json=asked)).json()
        call = ByHand(app, url, json.dumps({**asked, "stream": True, "stream_options": {"include_usage": True}}).encode())
        await until(lambda: mock.waiting == 2 and mock.begin())
        before = call.text
        await until(lambda: call.text != before)
        mock.open()
        await call.task
    assert (b"content-type", b"text/event-stream; charset=utf-8") in call.sent[0]["headers"]
    *chunks, last, done = events(call.text)
    assert done == "[DONE]"
    assert last["choices"] == []
    # what was cached is what the first request left
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({c["id"] for c in chunks}) == 1
    texts, ends = ["", ""], ["", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "") if kind == "chat" else choice["text"]
        ends[choice["index"]] += choice["finish_reason"] or ""
    assert texts == [c[path]["content"] if kind == "chat" else c[path] for c in whole["choices"]]
    assert ends == [c["finish_reason"] for c in whole["choices"]]
    assert len(chunks) > 2, "it came in pieces"


def test_log_probabilities():
    (choice,) = chat(logprobs=True, top_logprobs=2, max_tokens=4).json()["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(t["token"] for t in content) == choice["message"]["content"]
    assert all(t["logprob"] < 0 and bytes(t["bytes"]).decode() == t["token"] for t in content)
    assert all(len(t["top_logprobs"]) == 2 for t in content)
    (choice,) = complete(logprobs=2, echo=True, max_tokens=4).json()["choices"]
    scored = choice["logprobs"]
    assert "".join(scored["tokens"]) == choice["text"]
    assert scored["token_logprobs"][0] is None
    assert scored["text_offset"][1:3] == [1, 2]
    assert scored["top_logprobs"][0] is None
    (choice,) = complete(logprobs=0, max_tokens=4).json()["choices"]
    scored = choice["logprobs"]
    assert scored["top_logprobs"] == [{token: logprob} for token, logprob in zip(scored["tokens"], scored["token_logprobs"], strict=True)]
    scored, _ = completion_logprobs(Scored(((-3.0, 1, "b"),), (((-1.0, 0, "a"),),)), lambda token, text: list(text.encode()))
    assert scored["top_logprobs"] == [{"a": -1.0, "b": -3.0}], "the token itself is among them"


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_a_streams_chunks_have_the_log_probabilities_of_their_own_text(kind):
    ask, scored = (chat, {"logprobs": True, "top_logprobs": 2}) if kind == "chat" else (complete, {"logprobs": 2})
    mock = lmc.Mock(latency=0.1)
    fields = {**scored, "n": 2, "seed": 3, "max_tokens": 30, "stop": ["zz"]}
    whole = ask(mock, **fields).json()["choices"]
    found: list[list[Any]] = [[], []]
    for chunk in events(ask(mock, **fields, stream=True).text)[:-1]:
        (choice,) = chunk["choices"]
        text = choice["delta"].get("content", "") if kind == "chat" else choice["text"]
        tokens = listed(choice["logprobs"])
        assert "".join(token for token, *_ in tokens) == text
        found[choice["index"]] += tokens
    assert found == [listed(choice["logprobs"]) for choice in whole], "nothing is lost, doubled or out of order"


def test_a_server_without_a_tokenizer_gives_no_tokens():
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        refused = post(path, body)
        assert refused.status_code == 400 and "does not have its model's tokenizer" in refused.json()["error"]["message"]


class Brief(engine_fakes.FakeRunner):
    """Says "b" and ends."""

    def next(self, context, noise, allowed):
        return engine_fakes.EOS if context[-1] == ord("b") else ord("b")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [({}, None), ({"stop_token_ids": [ord("b")]}, ord("b")), ({"stop_token_ids": [engine_fakes.EOS]}, engine_fakes.EOS), ({"stop": "b"}, "b")],
)
@pytest.mark.parametrize("ask", [chat, complete])
def test_the_reason_of_a_stop_is_what_the_request_named(ask, fields, reason, stream):
    """None at the model's end of text, as vLLM's."""
    with engine_fakes.backend(runs=Brief)[0] as engine:
        answer = ask(engine, **fields, stream=stream)
    body = events(answer.text)[-2] if stream else answer.json()
    assert [(c["finish_reason"], c["stop_reason"]) for c in body["choices"]] == [("stop", reason)]


@pytest.mark.parametrize(("fields", "reason"), [({}, None), ({"stop": "b"}, "b"), ({"stop_regex": "b+"}, "b")])
def test_the_end_of_text_of_a_template_is_no_stop_of_the_request(fields, reason):
    ended = SimpleNamespace(name="plain", stop=("b",), begin=CHATML.begin, end=CHATML.end)
    with engine_fakes.backend(runs=Brief)[0] as engine:
        engine.chat_template = ended
        (choice,) = chat(engine, **fields).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_a_piece_has_the_log_probabilities_of_its_text_before_the_answer_is_complete(kind):
    spelled: Any = lambda token, text: list(text.encode())
    pieces = ChatDeltas(0, CallReader(None), spelled, SamplingParams()) if kind == "chat" else CompletionPieces(0, spelled, SamplingParams())
    for entry in ((-1.0, 0, "Go"), (-2.0, 1, "od"), (-3.0, 2, ".")):
        made = pieces.more(Grown(0, entry[2], Scored((entry,), ((entry,),)), None))
        (choice,) = made if isinstance(made, list) else [made]
        assert [found[:2] for found in listed(choice["logprobs"])] == [(entry[2], entry[0])]


def listed(logprobs: Any) -> list[Any]:
    """(token, log-probability, alternatives[, offset in the text]) in either API's form."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return [(t["token"], t["logprob"], t["top_logprobs"]) for t in logprobs["content"]]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return list(zip(*(logprobs[name] or [] for name in names), strict=True))


def test_tokens_that_are_parts_of_a_character_begin_where_it_does():
    parts = [b"\xc3", b"\x9c", b"n", b" \xf0\x9f", b"\x98\x80", b" x"]
    scored = Scored(tuple((-1.0, i, part.decode("utf-8", "replace")) for i, part in enumerate(parts)), ())
    told, begun = completion_logprobs(scored, lambda token, text: list(parts[token]))
    assert (told["text_offset"], begun) == ([0, 0, 1, 2, 3, 4], len(b"".join(parts).decode()))


def test_a_stream_that_ends_with_its_usage_says_so_from_the_start():
    """As OpenAI's: null until the last chunk, which has no choices; the same numbers as the whole answer, stop strings included."""
    mock = lmc.Mock(["one two STOP three"] * 3, latency=0.05)
    whole = chat(mock, stop=["STOP"]).json()
    assert whole["choices"][0]["message"]["content"] == "one two "
    *chunks, last, _ = events(chat(mock, stop=["STOP"], stream=True, stream_options={"include_usage": True}).text)
    assert [c["usage"] for c in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == len("one two ")
    assert all("usage" not in c for c in events(chat(mock, stop=["STOP"], stream=True).text)[:-1])


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"guided_json": SCHEMA},
        {"json_schema": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_json_by_a_schema(fields):
    found = json.loads(chat(**fields).json()["choices"][0]["message"]["content"])
    assert list(found) == ["a"]
    assert isinstance(found["a"], int)


@pytest.mark.parametrize("fields", [{"regex": "[xy]{3}"}, {"guided_regex": "[xy]{3}"}, {"structured_outputs": {"regex": "[xy]{3}"}}])
def test_a_regex(fields):
    assert re.fullmatch("[xy]{3}", complete(**fields).json()["choices"][0]["text"])


@pytest.mark.parametrize("fields", [{"guided_choice": ["a.b", "c+"]}, {"structured_outputs": {"choice": ["a.b", "c+"]}}])
def test_a_choice(fields):
    assert complete(**fields).json()["choices"][0]["text"] in ("a.b", "c+")


BAD = {
    "no JSON": ("{", None, "JSON"),
    "no object": ("[]", None, "object"),
    "no messages": ({}, "messages", "required"),
    "empty messages": ({"messages": []}, "messages", "at least 1"),
    "unknown field": ({**HELLO, "temprature": 1}, "temprature", "did you mean 'temperature'"),
    "unknown field within": ({"messages": [{"role": "user", "content": "", "reasoning": "x"}]}, "messages.0.reasoning", "unknown parameter; leave it out"),
    "unknown role": ({"messages": [{"role": "king", "content": ""}]}, "messages.0.role", "system"),
    "no content": ({"messages": [{"role": "user"}]}, "messages", "content"),
    "audio": (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}]},
        "messages.0.content",
        "takes text and image_url",
    ),
    "a list of types": ({"messages": [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}]}, "messages.0.content.0.type", "'text', 'image_url' or"),
    "a refusal without words": ({"messages": [{"role": "assistant", "content": [{"type": "refusal"}]}]}, "messages.0.content", "must have the field refusal"),
    "functions": ({**HELLO, "functions": [{"name": "f"}]}, "functions", "not supported by this server; leave it out"),
    "an earlier call of the first kind": (
        {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]},
        "messages.0.function_call",
        "not supported by this server; leave it out",
    ),
    "a search": ({**HELLO, "web_search_options": {}}, "web_search_options", "not supported by this server; leave it out"),
    "wrong type": ({**HELLO, "temperature": "1"}, "temperature", "number"),
    "too hot": ({**HELLO, "temperature": 3}, "temperature", "less than or equal to 2"),
    "not a number": ('{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', None, ""),
    "half a character": (r'{"messages": [{"role": "user", "content": "\ud800"}]}', None, ""),
    "too many": ({**HELLO, "n": 999}, "n", "at most 128"),
    "zero": ({**HELLO, "n": 0}, "n", "1"),
    "long choices": ({**HELLO, "guided_choice": ["x" * 99] * 2561}, "guided_choice", "has 256,099 characters, and at most 256,000 are allowed"),
    "bad regex": ({**HELLO, "regex": "("}, "regex", "not a valid regular expression"),
    "deep regex": ({**HELLO, "regex": "(" * 3000 + "a" + ")" * 3000}, "regex", "nested too deep"),
    "empty salt": ({**HELLO, "cache_salt": ""}, "cache_salt", "at least 1"),
    "bad schema": ({**HELLO, "guided_json": {"type": "nonsense"}}, "guided_json", "nonsense"),
    "bad format": ({**HELLO, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}, "response_format", "nonsense"),
    "bad structure": ({**HELLO, "structured_outputs": {"regex": "a{99999}"}}, "structured_outputs.regex", "10000"),
    "empty stops": ({**HELLO, "stop": ["", ""]}, "stop", "empty"),
    "bad stop regex": ({**HELLO, "stop_regex": "("}, "stop_regex", "not a valid regular expression"),
    "irregular stop regex": ({**HELLO, "regex": "a", "stop_regex": r"(a)\1"}, "stop_regex", "back-references"),
    "min beyond max": ({**HELLO, "min_tokens": 9, "max_tokens": 5}, "min_tokens", "more than max_tokens"),
    "two constraints": ({**HELLO, "regex": "a", "guided_choice": ["b"]}, "guided_choice", "exclude each other"),
    "empty choice": ({**HELLO, "guided_choice": []}, "guided_choice", "at least one"),
    "bad grammar": ({**HELLO, "ebnf": "root ::= other"}, "ebnf", "other"),
    "penalty": ({**HELLO, "repetition_penalty": 1.1}, "repetition_penalty", "not supported by this server; leave it out"),
    "template's arguments": ({**HELLO, "chat_template_kwargs": {"thinking": False}}, "chat_template_kwargs.thinking", "not a variable of a chat template"),
    "template's odd arguments": ({**HELLO, "chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs.a b", "match pattern"),
    "usage in each piece": (
        {**HELLO, "stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats", "not supported by this server",
    ),
    "usage without stream": ({**HELLO, "stream_options": {"include_usage": True}}, "stream_options", "stream"),
    "lonely top_logprobs": ({**HELLO, "top_logprobs": 3}, "top_logprobs", "logprobs"),
    "lonely tool_choice": ({**HELLO, "tool_choice": "auto"}, "tool_choice", "tools"),
    "tools": ({**HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "chat template"),
    "two limits": ({**HELLO, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "differ"),
    "nothing to continue": ({**HELLO, "continue_final_message": True}, "continue_final_message", "assistant"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused_with_the_place(name):
    body, param, said = BAD[name]
    mock = lmc.Mock()
    response = post("/v1/chat/completions", body, mock)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]
    if param is not None:
        assert error["param"] == param
    assert mock.call_log == [], "nothing was asked"


@pytest.mark.parametrize("stream", (False, True))
def test_what_the_backend_refuses_is_a_400_with_the_place(stream):
    long = lmc.Mock(fault=lambda ask, i: lmc.PromptTooLongError("long"))
    strict = lmc.Mock(fault=lambda ask, i: lmc.ConstraintError("strict"))
    for ask, mock, param in ((chat, long, "messages"), (complete, long, "prompt"), (chat, strict, "guided_regex"), (complete, strict, "guided_regex")):
        answer = ask(mock, guided_regex="a", stream=stream)
        error = events(answer.text)[-1]["error"] if answer.status_code == 200 else answer.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_an_answer_that_breaks_a_constraint_is_no_fault_of_the_request():
    answer = chat(lmc.Mock(fault=lambda ask, i: UnmetConstraint("the answer is not valid")), regex="a")
    assert answer.status_code == 502 and answer.json()["error"] == {
        "message": "the answer is not valid", "type": "server_error", "param": None, "code": "unmet_constraint",
    }  # fmt: skip


def test_what_routers_write_into_requests_is_taken():
    """As vllm-router 0.1.17 forwards them; other values of these would change answers and are refused."""
    added = {"no_stop_trim": False, "ignore_eos": False, "skip_special_tokens": True, "return_hidden_states": False, "stream": False}
    assert complete(**added, echo=False).status_code == 200
    reasoning = {"separate_reasoning": True, "stream_reasoning": True, "include_reasoning": True}
    assert chat(**added, **reasoning, continue_final_message=False, logprobs=False).status_code == 200
    assert complete(no_stop_trim=True).status_code == 400
    assert complete(skip_special_tokens=False).status_code == 400


async def test_models():
    async with talking() as client:
        every = (await client.get("/v1/models")).json()
        assert [m["id"] for m in every["data"]] == ["mock"]
        assert (await client.get("/v1/models/mock")).json()["id"] == "mock"
        missing = await client.get("/v1/models/other/name")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"
        assert (await client.post("/v1/completions", json={"model": "other", "prompt": "x"})).status_code == 404
        assert (await client.get("/v1/nothing")).json()["error"]["type"] == "not_found_error"
        wrong = await client.get("/v1/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "path, meant",
    [
        ("/chat/completions", "; did you mean /v1/chat/completions (a base URL that ends with /v1)?"),
        ("/v1/v1/messages", "; did you mean /v1/messages (a base URL without /v1)?"),
        ("/v1/chat/completion", "; did you mean /v1/chat/completions?"),
        ("/nothing", ""),
    ],
)
def test_a_path_that_is_not_there_names_the_one_that_is(path, meant):
    assert post(path, {}).json()["error"]["message"] == f"POST {path}: not found{meant or ';'} GET /openapi.json says what there is"


async def test_a_fault_of_the_backend_is_a_500_that_names_it_and_says_nothing_of_ours():
    def fault(ask, number):
        return lmc.BackendError("the model fell over") if number == 0 else RuntimeError("secret") if number == 1 else None

    mock = lmc.Mock(fault=fault)
    async with talking(mock) as client:
        first = await client.post("/v1/completions", json={"prompt": "x"})
        assert (first.status_code, first.json()["error"]["message"]) == (500, "the model fell over")
        second = await client.post("/v1/completions", json={"prompt": "x"})
        assert second.status_code == 500
        assert "secret" not in second.text
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200


def test_one_failing_prompt_cancels_the_others():
    mock = lmc.Mock(latency=lambda ask: 5.0, fault=lambda ask, n: lmc.BackendError("no") if n == 1 else None)
    response = complete(mock, prompt=["a", "b", "c"])
    assert response.status_code == 500
    assert not mock._pending


async def test_metrics_count_requests_and_tokens():
    async with talking() as client:
        await client.post("/v1/completions", json={"prompt": "four", "max_tokens": 2})
        await client.post("/v1/completions", json={"prompt": 4})
        text = (await client.get("/metrics")).text
        assert 'lmc_requests_total{endpoint="completions",status="200"} 1.0' in text
        assert 'lmc_requests_total{endpoint="completions",status="400"} 1.0' in text
        assert 'lmc_request_seconds_count{endpoint="completions"} 1.0' in text, "a refused request has no latency"
        assert "lmc_prompt_tokens_total 4.0" in text
        assert "lmc_completion_tokens_total 2.0" in text
        assert "lmc_backend_calls_total 1.0" in text
        assert "lmc_requests_in_flight 1.0" in text  # this one
