"""Answers as servers and what stands before them write them, byte by byte: no text is cut off silently, no request hangs, and an error at the
user's line says what to do."""

from __future__ import annotations

import asyncio
import base64
import datetime
import gzip
import ipaddress
import json
import os
import socket
import ssl
import sys
import threading
from email.utils import format_datetime
from urllib.parse import urlsplit

import pytest

import lmc
from lmc.backend.api.client import Patience
from lmc.backend.api.exchange import HttpRequest
from lmc.backend.api.http1 import HttpWire
from lmc.backend.api.network import Access, proxy_of
from lmc.backend.api.rates import retry_after
from lmc.backend.api.sse import EventSource
from tests import waiting
from tests.api import test_lists as lists
from tests.api.raw_server import KINDS, TEXT, RawServer, answered, api, head, sse, streamed, streams, whole, writes

pytestmark = pytest.mark.api

QUICK = Patience(retries=2, timeout=20.0, first_delay=0.001, longest_delay=0.01)


def backend_of(kind: str, url: str, model: str = "m", **options):
    options = {"patience": QUICK, **options}
    if kind == "openai":
        pytest.importorskip("openai")
        return lmc.OpenAI(model, base_url=f"{url}/v1", api_key="sk-of-a-test-0123", **options)
    if kind == "anthropic":
        pytest.importorskip("anthropic")
        return lmc.Anthropic(model, base_url=url, api_key="sk-of-a-test-0123", **options)
    return {"sglang": lmc.SGLang, "vllm": lmc.VLLM}[kind](url, chat_template="chatml", **options)


@lmc.function
def asking(s, q="x"):
    s += lmc.user("About " + q) + lmc.assistant(lmc.gen("a", max_tokens=40, temperature=0))
    return s["a"]


def growing(backend) -> str:
    return "".join(asking.run(backend=backend, stream=True).text_iter("a"))


@pytest.fixture(params=KINDS)
def talk(request, opened):
    """A backend whose server answers so; its kind is `talk.kind`."""

    def make(answer, **options):
        server = opened(api(request.param, answer))
        make.server = server
        return opened(backend_of(request.param, server.url, **options))

    make.kind = request.param
    return make


def said(call) -> str:
    """The message of the error that a call raises, which is at the user's line."""
    with pytest.raises(lmc.LmcError) as raised:
        call()
    assert "test_raw_answers.py" in str(raised.value)
    return str(raised.value)


# -- streams -----------------------------------------------------------------------------------------------------------


def _pretty(kind):
    return b"".join(b"data: " + json.dumps(event, indent=1).replace("\n", "\ndata: ").encode() + b"\n\n" for event in streamed(kind))


STREAMS = {
    "CR LF": lambda kind: sse(kind, streamed(kind), "\r\n"),
    "CR": lambda kind: sse(kind, streamed(kind), "\r"),
    "comments": lambda kind: b": hello\n\n" + sse(kind, streamed(kind)).replace(b"data:", b": ping\n\ndata:"),
    "pings": lambda kind: b'event: ping\ndata: {"type": "ping"}\n\n' + sse(kind, streamed(kind)),
    "empty data": lambda kind: b"data:\n\ndata: \n\n" + sse(kind, streamed(kind)),
    "a byte order mark": lambda kind: b"\xef\xbb\xbf" + sse(kind, streamed(kind)),
    "no space": lambda kind: sse(kind, streamed(kind)).replace(b"data: ", b"data:"),
    "several lines of data": _pretty,
    "no empty lines": lambda kind: sse(kind, streamed(kind)).replace(b"\n\n", b"\n"),
    "without [DONE]": lambda kind: sse(kind, streamed(kind), done=False),
    "without [DONE] and its last line's end": lambda kind: sse(kind, streamed(kind), done=False)[:-2],
}


@pytest.mark.parametrize("size", (0, 1), ids=("whole", "bytes"))
@pytest.mark.parametrize("form", STREAMS)
def test_streams_are_read_in_every_form(talk, form, size):
    backend = talk(streams(STREAMS[form](talk.kind), size))
    assert growing(backend) == TEXT
    spent = backend.spent()
    assert (spent.attempts, spent.unreported, spent.usage.prompt_tokens, spent.usage.completion_tokens) == (1, 0, 5, 3)


def test_line_separators_of_unicode_end_no_line(talk):
    text = "one \u2028 two \x85 \u2029 three"
    backend = talk(streams(sse(talk.kind, streamed(talk.kind, text))))
    assert growing(backend) == text


def test_bytes_that_are_no_text_are_no_answer(talk):
    data = sse(talk.kind, streamed(talk.kind)).replace("é".encode(), b"\xe9")
    backend = talk(streams(data))
    assert "failed after 3 attempts: the answer is not JSON" in said(lambda: growing(backend))


def test_a_stream_that_is_left_open_behind_its_answer_is_not_waited_for(talk, monkeypatch):
    monkeypatch.setattr("lmc.backend.api.client._BEHIND", 0.01)

    async def answer(request, writer):
        writer.write(head(content_type="text/event-stream") + sse(talk.kind, streamed(talk.kind), done=False))
        await writer.drain()
        await asyncio.Event().wait()

    backend = talk(answer)
    assert growing(backend) == TEXT
    assert len(talk.server.of("POST")) == 1 and backend.spent().usage.completion_tokens == 3
    monkeypatch.setattr("lmc.backend.api.client._BEHIND", 3600.0)
    assert growing(backend) == TEXT, "the server is known to leave them open"
    assert len(talk.server.of("POST")) == 2


@pytest.mark.parametrize("rest", (b"", b'data: {"usa'), ids=("its end", "an event"))
def test_a_stream_that_breaks_behind_its_answer_is_not_asked_for_again(talk, rest):
    """It would be billed twice: only its usage may be missing."""
    events = streamed(talk.kind)
    behind = {"openai": 1, "anthropic": 1, "sglang": 0, "vllm": 1}[talk.kind]

    async def answer(request, writer):
        writer.write(head(content_type="text/event-stream", transfer_encoding="chunked"))
        data = sse(talk.kind, events[: len(events) - behind], done=False) + rest
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        return False  # without the end of its chunks

    backend = talk(answer)
    assert growing(backend) == TEXT
    spent = backend.spent()
    reported = talk.kind in ("anthropic", "sglang")  # in the event that ends the answer
    assert len(talk.server.of("POST")) == spent.attempts == 1 and spent.unreported == (not reported)
    assert not any(server["failures"] for server in backend.server_info().get("servers", ()))


LISTS = {
    "sglang": ("text", lambda i: {"index": i, **answered("sglang", f"answer {i}")}),
    "vllm": ("prompt", lambda i: {**(found := answered("vllm", f"answer {i}")), "choices": [{**found["choices"][0], "index": i}]}),
}


@pytest.mark.parametrize("how", ("open", "broken"))
@pytest.mark.parametrize("kind", LISTS)
def test_a_list_ends_with_its_last_answer(opened, monkeypatch, kind, how):
    """Whatever its stream does then: its server is not set aside."""
    monkeypatch.setattr("lmc.backend.api.client._BEHIND", 0.01)
    field, event = LISTS[kind]

    async def answer(request, writer):
        prompts = request.body[field]
        if isinstance(prompts, str):
            writer.write(whole(json.dumps(answered(kind)).encode()))
            return True
        data = sse(kind, [event(i) for i in range(len(prompts))], done=False)
        writer.write(head(content_type="text/event-stream", transfer_encoding="chunked") + f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
        if how == "open":
            await asyncio.Event().wait()
        return False

    server = opened(api(kind, answer))
    backend = opened(backend_of(kind, server.url))
    lists.asking.run("x", backend=backend)
    lists.together(backend, 5)
    states = lmc.compile(lists.asking).batch(lists.ITEMS[:5], backend=backend, temperature=0)
    assert [state.ret_value for state in states] == [f"answer {i}" for i in range(5)]
    waiting.until(lambda: not backend._loop.tasks)
    assert backend.server_info()["servers"][0]["failures"] == 0 and backend.spent().attempts == len(server.of("POST")) + 4


CUT = {
    "before its end": lambda kind: sse(kind, streamed(kind)[: -1 if kind == "sglang" else -2], done=False),
    "and [DONE]": lambda kind: sse(kind, streamed(kind)[:1]),
    "within an event": lambda kind: sse(kind, streamed(kind)[: -1 if kind in ("openai", "vllm") else None], done=False)[:-40],
}


@pytest.mark.parametrize("how", CUT)
def test_a_stream_that_is_cut_is_no_answer(talk, how):
    backend = talk(streams(CUT[how](talk.kind)))
    message = said(lambda: growing(backend))
    assert "failed after 3 attempts: the stream ended before the answer did" in message or "the stream broke off within an event" in message
    assert backend.spent().attempts == 3


@pytest.mark.parametrize("text", ("two", "one"), ids=("another", "less"))
def test_a_stream_is_not_continued_by_an_answer_that_is_not_what_was_shown(talk, text):
    """However long it is: what was shown would not be what the program reads."""

    async def answer(request, writer):
        begun = sse(talk.kind, streamed(talk.kind)[: 3 if talk.kind == "anthropic" else 1], done=False)
        return await streams(begun if request.number == 0 else sse(talk.kind, streamed(talk.kind, text)))(request, writer)

    backend = talk(answer)
    assert "the model's next answer is another one" in said(lambda: growing(backend))
    assert backend.spent().attempts == 2


def test_a_piece_of_another_answer_is_not_taken_for_one_of_this(opened):
    other = {"id": "1", "model": "m", "choices": [{"index": 1, "delta": {"content": "two"}, "finish_reason": None}]}
    events = streamed("openai")
    server = opened(api("openai", streams(sse("openai", [*events[:1], other, *events[1:]]))))
    assert "pieces of several answers, where one was asked for" in said(lambda: growing(opened(backend_of("openai", server.url))))


def test_a_piece_without_a_text_is_what_a_filter_says_of_it(opened):
    """Azure's, where it runs beside the stream."""
    filtered = {"id": "", "model": "", "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 9}}]}
    events = streamed("openai")
    server = opened(api("openai", streams(sse("openai", [*events[:2], filtered, events[2], filtered, *events[3:]]))))
    assert growing(opened(backend_of("openai", server.url))) == TEXT


def _chunks(*deltas):
    """The events of a stream, from the deltas of its pieces."""
    found = [{"id": "1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in (*found, *streamed("openai")[-2:]))


def test_a_character_whose_halves_come_apart_is_one(opened):
    """They were two halves in the answer, which nothing can print."""
    server = opened(api("openai", streams(_chunks({"content": "one \ud83d"}, {"content": "\ude00 two"}))))
    assert growing(opened(backend_of("openai", server.url))) == "one \N{GRINNING FACE} two"


CALLED = {"name": "f", "arguments": "{}"}
SAME_INDEX = ({"index": 0, "id": "a", "function": CALLED}, {"index": 0, "id": "b", "function": CALLED})
NO_INDEX = ({"id": "a", "function": {"name": "f", "arguments": ""}}, {"function": {"arguments": "{}"}}, {"id": "b", "function": CALLED})


@pytest.mark.parametrize("pieces", [SAME_INDEX, NO_INDEX], ids=["same", "none"])
def test_calls_are_told_apart_where_the_server_does_not_number_them(opened, pieces):
    @lmc.function
    def calling(s):
        s += lmc.user("Call.") + lmc.assistant(lmc.gen("a", tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]))
        list(s.text_iter("a"))
        return [(call["id"], call["name"], call["arguments"]) for call in s.get_meta_info("a")["tool_calls"]]

    server = opened(api("openai", streams(_chunks(*[{"tool_calls": [piece]} for piece in pieces]))))
    assert calling.run(backend=opened(backend_of("openai", server.url)), stream=True).ret_value == [("a", "f", {}), ("b", "f", {})]


ERRORS = {
    "of vLLM": (b'data: {"error": {"message": "the engine died", "type": "InternalServerError", "code": 500}}\n\n', 500),
    "of vLLM, older": (b'data: {"object": "error", "message": "the engine died", "type": "BadRequestError", "code": 400}\n\ndata: [DONE]\n\n', 400),
    "of OpenAI": (b'data: {"error": {"message": "the engine died", "type": "invalid_request_error", "code": "x"}}\n\n', 400),
    "as text": (b'data: {"error": "the engine died"}\n\n', 500),
    "by its event": (b'event: error\ndata: {"message": "the engine died"}\n\n', 500),
}


@pytest.mark.parametrize("form", ERRORS)
def test_an_error_in_a_stream_is_named(talk, form):
    data, status = ERRORS[form]
    backend = talk(streams(sse(talk.kind, streamed(talk.kind)[:1], done=False) + data))
    tries = 3 if status >= 500 else 1
    assert f"failed{' after 3 attempts' if tries > 1 else ''}: HTTP {status}: the engine died" in said(lambda: growing(backend))
    assert len(talk.server.of("POST")) == backend.spent().attempts == tries


RESPONSE = {"id": "1", "object": "response", "model": "m", "status": "failed", "output": [], "usage": None}
FAILED = {
    "an event": ("error", {"code": "context_length_exceeded", "message": "Your input is beyond it", "param": "input"}, 1, "HTTP 400: Your input"),
    "an event of the server's": ("error", {"code": "server_error", "message": "It died", "param": None}, 3, "HTTP 500: It died"),
    "its failure": ("response.failed", {"response": {**RESPONSE, "error": {"code": "invalid_prompt", "message": "No"}}}, 1, "HTTP 400: No"),
    "its rate": ("response.failed", {"response": {**RESPONSE, "error": {"code": "rate_limit_exceeded", "message": "Slow"}}}, 3, "HTTP 429: Slow"),
}


@pytest.mark.parametrize("form", FAILED)
def test_a_response_that_fails_is_tried_again_by_its_code(opened, form):
    pytest.importorskip("openai")
    kind, fields, tries, expected = FAILED[form]
    server = opened(api("openai", streams(f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': 0, **fields})}\n\n".encode())))
    backend = opened(backend_of("openai", server.url, api="responses"))
    assert expected in said(lambda: growing(backend))
    assert len(server.of("POST")) == backend.spent().attempts == tries


def test_events_are_read_without_waiting_for_what_follows():
    source = EventSource()
    assert list(source.feed(b'data: {"a": 1}\r\r')) == [{"a": 1}]
    assert list(source.feed(b'\ndata: {"a"')) == [] and list(source.feed(b": 2}\r")) == []
    assert list(source.feed(b"\n\r\n")) == [{"a": 2}]
    assert list(source.feed(b"data: [DONE]\n")) == [] and source.ended and list(source.feed(b'data: {"a": 3}\n\n')) == []


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", (False, True), ids=("whole", "streamed"))
@pytest.mark.parametrize("finish", ("error", "abort"))
def test_an_answer_that_a_fault_has_cut_is_no_answer(talk, finish, stream):
    body = answered(talk.kind, finish=finish)
    backend = talk(streams(sse(talk.kind, streamed(talk.kind, finish=finish))) if stream else writes(whole(json.dumps(body).encode())))
    message = said(lambda: growing(backend) if stream else asking.run(backend=backend).text())
    assert "failed after 3 attempts: " in message and ("the server ended the answer with" in message or "aborted" in message)
    assert backend.spent().attempts == len(talk.server.of("POST")) == 3


def test_a_filtered_answer_in_a_batch_raises(talk):
    backend = talk(writes(whole(json.dumps(answered(talk.kind, finish="content_filter")).encode())))
    states = lmc.compile(asking).batch([{"q": "a"}, {"q": "b"}], backend=backend, errors="return")
    assert all(isinstance(state.error(), lmc.Filtered | lmc.Refused) for state in states)


@pytest.mark.parametrize("stream", (False, True), ids=("whole", "streamed"))
def test_usage_that_is_null_is_not_reported(talk, stream):
    backend = talk(streams(sse(talk.kind, streamed(talk.kind, usage=None))) if stream else writes(whole(json.dumps(answered(talk.kind, usage=None)).encode())))
    assert (growing(backend) if stream else asking.run(backend=backend).ret_value) == TEXT
    assert (backend.spent().attempts, backend.spent().unreported) == (1, 1)


@pytest.mark.parametrize("body", ({"error": {"message": "the upstream died"}}, {"error": "the upstream died"}), ids=("object", "text"))
def test_an_error_with_a_status_of_success_is_named(talk, body):
    backend = talk(writes(whole(json.dumps(body).encode())))
    assert "failed after 3 attempts: the answer is an error: the upstream died" in said(lambda: asking.run(backend=backend).text())


# -- statuses ----------------------------------------------------------------------------------------------------------


def test_a_redirection_is_not_followed(talk, opened):
    """The host that it leads to was not named, and would be sent the prompt and the key."""
    elsewhere = opened(api(talk.kind, writes(whole(json.dumps(answered(talk.kind)).encode()))))
    backend = talk(writes(head("307 Temporary Redirect", location=f"{elsewhere.url}/v2", content_length=0)))
    message = said(lambda: asking.run(backend=backend).text())
    assert f"HTTP 307: it redirects to {elsewhere.url}/v2; no redirection is followed: give the URL that it leads to" in message
    assert not elsewhere.seen and len(talk.server.of("POST")) == backend.spent().attempts == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    (
        ("401 Unauthorized", dict(zip(KINDS, ("api_key=… or OPENAI_API_KEY", "api_key=… or ANTHROPIC_API_KEY", "api_key=…", "api_key=…"), strict=True))),
        ("407 Proxy Authentication Required", dict.fromkeys(KINDS, "HTTPS_PROXY=http://user:password@host:port")),
    ),
)
def test_what_is_refused_for_good_is_sent_once_and_says_what_to_set(talk, status, expected):
    backend = talk(writes(whole(b'{"error": {"message": "no"}}', status)))
    assert said(lambda: asking.run(backend=backend).text()).splitlines()[0].endswith(expected[talk.kind])
    assert len(talk.server.of("POST")) == backend.spent().attempts == 1


def test_a_wrong_key_fails_a_whole_batch_at_once(opened):
    """Members of a list that was refused for its key are not sent again, one by one."""
    server = opened(api("sglang", writes(whole(b'{"error": {"message": "no"}}', "401 Unauthorized"))))
    backend = opened(backend_of("sglang", server.url))
    states = lmc.compile(asking).batch([{"q": str(i)} for i in range(20)], backend=backend, errors="return")
    assert all("HTTP 401" in str(state.error()) for state in states)
    assert len(server.of("POST")) < 5 and backend.spent().attempts == 20


@pytest.mark.parametrize(
    "message",
    (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 200010 tokens. Please reduce the length of the messages.",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "You passed 5000 input tokens and requested 40 output tokens. However, the model's context length is only 4096 tokens",
        "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 9040 tokens",
        "the request exceeds the available context size. try increasing the context size or enable context shift: 9000 tokens, context window 4096",
    ),
    ids=("OpenAI", "Anthropic", "vLLM", "SGLang", "SGLang's chat", "llama.cpp"),
)
def test_a_prompt_beyond_the_context_is_one_error_whatever_the_server(talk, message):
    backend = talk(writes(whole(json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode(), "400 Bad Request")))
    with pytest.raises(lmc.PromptTooLongError, match=r"test_raw_answers.py:\d+: .*shorten the prompt, lower max_tokens, or take a model with a longer context"):
        asking.run(backend=backend).text()


@pytest.mark.parametrize(
    ("listed", "expected"),
    (
        (["gpt-5-mini", "gpt-5", "claude-9", "claude-8", *map(str, range(9))], "; the server has 'gpt-5-mini', 'gpt-5'"),
        (["llama"], "; the server has 'llama'"),
        ([*map(str, range(20))], "; none of the server's 20 models has a name like it"),
        (["gpt5-mini"], ""),
    ),
)
@pytest.mark.parametrize("kind", ("openai", "anthropic"))
def test_a_model_that_is_missing_names_those_that_are_like_it(opened, kind, listed, expected):
    async def reply(request, writer):
        if request.method == "GET":
            writer.write(whole(json.dumps({"data": [{"id": name, "type": "model"} for name in listed], "has_more": False}).encode()))
        else:
            writer.write(whole(b'{"error": {"message": "no such model", "type": "not_found_error"}}', "404 Not Found"))
        return True

    server = opened(RawServer(reply))
    backend = opened(backend_of(kind, server.url, model="gpt5-mini"))
    states = lmc.compile(asking).batch([{"q": str(i)} for i in range(5)], backend=backend, errors="return")
    for state in states:
        assert str(state.error()).splitlines()[0].endswith(f"HTTP 404: no such model{expected}")
    assert len(server.of("GET")) == 1, "a batch asks once"


def test_a_date_says_when_requests_are_taken_again():
    now = datetime.datetime.now(datetime.UTC)
    later, before = (format_datetime(now + datetime.timedelta(seconds=s), usegmt=True) for s in (90, -90))
    assert retry_after({"retry-after": before}) == 0
    assert retry_after({"retry-after": "-9999 Jan 5 12:00 99999999999999999999"}) is None
    assert retry_after({"retry-after": later, "date": before}) == 180, "by the server's clock"
    assert retry_after({"retry-after": "7"}) == 7 and retry_after({"retry-after": "soon"}) is retry_after({}) is retry_after({"retry-after": "nan"}) is None


# -- HTTP --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ("sglang", "vllm"))
def test_a_compressed_answer_is_named(opened, kind):
    data = gzip.compress(json.dumps(answered(kind)).encode())
    server = opened(api(kind, writes(whole(data, content_encoding="gzip"))))
    backend = opened(backend_of(kind, server.url))
    assert "the answer is compressed (gzip), which was not asked for" in said(lambda: asking.run(backend=backend).text())
    assert {request.headers["accept-encoding"] for request in server.of("POST")} == {"identity"}


@pytest.mark.parametrize("kind", ("sglang", "vllm"))
def test_a_compressed_refusal_keeps_its_status(opened, kind):
    server = opened(api(kind, writes(whole(gzip.compress(b"{}"), status="401 Unauthorized", content_encoding="gzip"))))
    backend = opened(backend_of(kind, server.url))
    assert "HTTP 401" in said(lambda: asking.run(backend=backend).text())
    assert len(server.of("POST")) == 1, "no key is right at another attempt"


@pytest.mark.parametrize("kind", ("sglang", "vllm"))
def test_answers_with_two_lengths_are_none(opened, kind):
    data = json.dumps(answered(kind)).encode()
    server = opened(api(kind, writes(f"HTTP/1.1 200 OK\r\ncontent-length: {len(data)}\r\ncontent-length: 5\r\n\r\n".encode() + data)))
    backend = opened(backend_of(kind, server.url))
    assert "the answer is not HTTP: two lengths" in said(lambda: asking.run(backend=backend).text())


def test_http_1_0_is_answered_on_a_connection_of_its_own(talk):
    backend = talk(writes(whole(json.dumps(answered(talk.kind)).encode(), version="1.0")))
    for _ in range(2):
        assert asking.run(backend=backend).ret_value == TEXT
    first, second = talk.server.of("POST")
    assert first.connection != second.connection and backend.spent().attempts == 2


def test_a_connection_that_the_server_closed_meanwhile_is_not_used():
    """Its end has arrived, and the loop has not looked at it: what was sent then would be lost, and count as an attempt."""
    ended = threading.Event()

    async def answer(request, writer):
        writer.write(whole(b"{}"))
        await writer.drain()
        if request.number == 0:
            writer.close()
            await writer.wait_closed()
            ended.set()
        return request.number > 0

    async def main(server):
        wire = HttpWire(server.url, Access())
        await wire.post(HttpRequest("/", {}))
        assert ended.wait(60)  # while nothing of this loop runs
        await wire.post(HttpRequest("/", {}))
        await wire.close()

    with RawServer(answer) as server:
        asyncio.run(main(server))
        assert [request.connection for request in server.seen] == [1, 2]


def test_a_stream_is_read_to_its_end_behind_done():
    """Its connection is used again, and the loop has no generator to close."""
    left = list[str]()

    async def answer(request, writer):
        writer.write(whole(b'data: {"a": 1}\n\ndata: [DONE]\n\n', content_type="text/event-stream"))
        return True

    async def main(server):
        sys.set_asyncgen_hooks(finalizer=lambda generator: left.append(generator.__qualname__))
        wire = HttpWire(server.url, Access())
        for _ in range(2):
            assert [received.body async for received in wire.stream(HttpRequest("/", {}))] == [{"a": 1}]
        await wire.close()

    with RawServer(answer) as server:
        asyncio.run(main(server))
        assert [request.connection for request in server.seen] == [1, 1] and not left


@pytest.mark.parametrize("kind", ("sglang", "vllm"))
def test_a_new_connection_that_is_closed_without_an_answer_is_an_attempt(opened, kind):
    async def silent(request, writer):
        return False

    server = opened(api(kind, silent))
    backend = opened(backend_of(kind, server.url))
    assert "failed after 3 attempts: the server closed the connection before its answer was whole" in said(lambda: asking.run(backend=backend).text())
    assert len(server.of("POST")) == backend.spent().attempts == backend.spent().unreported == 3


def test_ipv6(opened):
    for kind in KINDS:
        try:
            server = opened(api(kind, writes(whole(json.dumps(answered(kind)).encode())), host="::1"))
        except AssertionError:
            pytest.skip("no IPv6 on this machine")
        assert asking.run(backend=opened(backend_of(kind, server.url))).ret_value == TEXT


@pytest.mark.parametrize("kind", ("sglang", "vllm"))
def test_a_host_that_is_no_ascii_is_looked_up_by_its_domain_name(kind):
    with pytest.raises(lmc.BackendError, match=r"server at http://xn--bcher-kva\.invalid:80: "):
        backend_of(kind, "http://bücher.invalid:80")


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """An authority's certificate, and keys of servers with certificates of it: good, expired, of another host; and one that signed itself."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder, now, day = tmp_path_factory.mktemp("certificates"), datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    named = lambda name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    pem = serialization.Encoding.PEM

    def made(name, key, issuer, signing, until, *extensions):
        """All that Python 3.13 and newer insist on."""
        builder = x509.CertificateBuilder().subject_name(named(name)).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - 9 * day).not_valid_after(until)
        identified = x509.SubjectKeyIdentifier.from_public_key(key.public_key()), x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
        for extension in (*identified, *extensions):
            builder = builder.add_extension(extension, critical=isinstance(extension, (x509.BasicConstraints, x509.KeyUsage)))
        return builder.sign(signing, hashes.SHA256())

    authority = ec.generate_private_key(ec.SECP256R1())
    signs = x509.KeyUsage(*[i in (0, 5, 6) for i in range(9)])  # it signs, certificates and lists of revoked ones too
    root = made("authority", authority, named("authority"), authority, now + 9 * day, x509.BasicConstraints(True, None), signs)
    (folder / "authority.pem").write_bytes(root.public_bytes(pem))
    here = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    other = x509.SubjectAlternativeName([x509.DNSName("other.example")])
    for name, names, until, own in (("good", here, 9, False), ("expired", here, -1, False), ("other", other, 9, False), ("self", here, 9, True)):
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = made(name, key, named(name) if own else root.subject, key if own else authority, now + until * day, names)
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / f"{name}.pem").write_bytes(private + leaf.public_bytes(pem))
    return folder


def secure(kind, certificates, name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / f"{name}.pem")
    return api(kind, writes(whole(json.dumps(answered(kind)).encode())), tls=context)


UNTRUSTED = {
    "good": "unable to get local issuer certificate; if it is right, name a file with its authority's certificate: SSL_CERT_FILE=…",
    "self": "self-signed certificate; if it is right, name a file with its authority's certificate: SSL_CERT_FILE=…",
    "expired": "certificate has expired",
    "other": "IP address mismatch, certificate is not valid for '127.0.0.1'",
}


@pytest.mark.parametrize("name", UNTRUSTED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_that_is_not_valid_is_said_once(opened, monkeypatch, certificates, kind, name):
    if name != "good":
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "authority.pem"))
    else:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    server = opened(secure(kind, certificates, name))
    with pytest.raises(lmc.BackendError) as raised, backend_of(kind, server.url, patience=Patience(retries=9, first_delay=60.0)) as backend:
        asking.run(backend=backend).text()
    assert f"its certificate is not valid here: {UNTRUSTED[name]}" in str(raised.value)
    assert server.seen == []


@pytest.mark.parametrize("kind", KINDS)
def test_certificates_of_an_authority_that_the_environment_names(opened, monkeypatch, certificates, kind):
    server = opened(secure(kind, certificates, "good"))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "authority.pem"))
    assert asking.run(backend=opened(backend_of(kind, server.url))).ret_value == TEXT
    for missing in (certificates / "none.pem", __file__):
        monkeypatch.setenv("SSL_CERT_FILE", str(missing))
        with pytest.raises(lmc.ParameterError, match=r"SSL_CERT_FILE='.*' has no certificates that can be read \(PEM\)"):
            backend_of(kind, server.url)


@pytest.mark.parametrize("kind", ("sglang", "vllm"))
def test_verify_names_an_authority_or_nothing(opened, monkeypatch, certificates, kind):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    for name, verify in (("good", str(certificates / "authority.pem")), ("expired", False)):
        server = opened(secure(kind, certificates, name))
        assert asking.run(backend=opened(backend_of(kind, server.url, verify=verify))).ret_value == TEXT
    with pytest.raises(lmc.ParameterError, match=r"verify='/none' has no certificates"):
        backend_of(kind, server.url, verify="/none")


# -- proxies -----------------------------------------------------------------------------------------------------------


class Proxy:
    """Forwards to this machine, whatever host is wanted; `userinfo`: it wants that. `asked`: its requests."""

    def __init__(self, userinfo: str = "") -> None:
        self.asked: list[str] = []
        self._wanted = f"basic {base64.b64encode(userinfo.encode()).decode()}".lower() if userinfo else ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.at = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            data = b""
            while b"\r\n\r\n" not in data:
                if not (piece := connection.recv(1 << 16)):
                    return
                data += piece
            told, _, rest = data.partition(b"\r\n\r\n")
            first, *lines = told.decode().split("\r\n")
            method, target, _ = first.split(" ")
            self.asked.append(f"{method} {target}")
            if self._wanted and f"proxy-authorization: {self._wanted}" not in told.decode().lower():
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            at = urlsplit(f"//{target}" if method == "CONNECT" else target)
            with socket.create_connection(("127.0.0.1", at.port or 80)) as server:
                if method == "CONNECT":
                    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    server.sendall("\r\n".join([f"{method} {at.path} HTTP/1.1", *lines, "", ""]).encode() + rest)
                back = threading.Thread(target=self._copy, args=(server, connection), daemon=True)
                back.start()
                self._copy(connection, server)
                back.join(60)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one of them is gone


@pytest.fixture
def no_proxies(monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("name", ("HTTP_PROXY", "http_proxy", "ALL_PROXY"))
@pytest.mark.parametrize("kind", KINDS)
def test_requests_go_by_the_environment_s_proxy(opened, no_proxies, kind, name):
    server = opened(api(kind, writes(whole(json.dumps(answered(kind)).encode()))))
    proxy = opened(Proxy("tom:hunter 2"))
    no_proxies.setenv(name, f"http://tom:hunter%202@{proxy.at}")
    url = server.url.replace("127.0.0.1", "nowhere.invalid")
    assert asking.run(backend=opened(backend_of(kind, url))).ret_value == TEXT
    assert proxy.asked and len(proxy.asked) == len(server.seen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_that_does_not_let_requests_through_is_named(opened, no_proxies, certificates, kind):
    server = opened(secure(kind, certificates, "good"))
    proxy = opened(Proxy("tom:hunter2"))
    for at, expected in ((f"http://{proxy.at}", "407 Proxy Authentication Required"), ("http://eve:secret-of-eve@127.0.0.1:9", "")):
        no_proxies.setenv("HTTPS_PROXY", at)
        with pytest.raises(lmc.BackendError) as raised, backend_of(kind, server.url) as backend:
            asking.run(backend=backend).text()
        assert expected in str(raised.value) and f"by the proxy http://{at.rpartition('@')[2].removeprefix('http://')}" in str(raised.value)
        assert "secret-of-eve" not in str(raised.value)
    assert server.seen == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_of_an_unsupported_kind_is_refused_at_once(no_proxies, kind):
    pytest.importorskip("httpx")
    no_proxies.setenv("ALL_PROXY", "gopher://127.0.0.1:9")
    with pytest.raises(lmc.ParameterError, match=r"the proxy that the environment names .* cannot be used"):
        backend_of(kind, "http://10.0.0.1:1")


@pytest.mark.parametrize(
    ("url", "unproxied", "direct"),
    (
        ("http://10.1.2.3:80", "10.0.0.0/8", True),
        ("http://11.1.2.3:80", "10.0.0.0/8, fd00::/8", False),
        ("http://[fd00::1]:80", "10.0.0.0/8, fd00::/8", True),
        ("http://host.example", ".example", True),
        ("http://user:pass@host.example:80", "host.example", True),
        ("http://host.example", "*", True),
        ("http://host.example", "other", False),
    ),
)
def test_where_no_proxy_is_used(no_proxies, url, unproxied, direct):
    no_proxies.setenv("HTTP_PROXY", "proxy.example:3128")
    no_proxies.setenv("NO_PROXY", unproxied)
    assert proxy_of(url) == (None if direct else "http://proxy.example:3128")
