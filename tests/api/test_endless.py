"""Servers whose answer never ends: no more of it is read than any answer has, and nobody asks again."""

from __future__ import annotations

import asyncio
import json
import zlib

import pytest

import lmc
from lmc.backend.api import http1, wire
from lmc.backend.api.client import Patience
from lmc.backend.api.exchange import Endless, Fault, HttpRequest
from lmc.backend.api.http1 import HttpWire
from lmc.backend.api.network import Access
from lmc.backend.api.proxied import ProxiedWire
from tests.api.raw_server import RawRequest, RawServer, Reply, whole

pytestmark = pytest.mark.api

MOST = 1 << 20
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
EVENT = {
    "id": "x",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "more "}, "finish_reason": None}],
}
SAID = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "more "}}
ZEROS = zlib.compressobj(9, zlib.DEFLATED, 31)
BOMB = ZEROS.compress(bytes(1 << 26)) + ZEROS.flush(zlib.Z_SYNC_FLUSH)
WHOLE = {  # the head of an answer, and what is sent again and again
    "until it closes": (HEAD + b"connection: close\r\n\r\n", b"x" * 65536),
    "in chunks": (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
    "in a long chunk": (HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffff\r\n", b"x" * 65536),
    "announced": (HEAD + b"content-length: 1000000000000\r\n\r\n", b"x" * 65536),
    "an error": (HEAD.replace(b"200 OK", b"500 Oh") + b"connection: close\r\n\r\n", b"x" * 65536),
}
STREAMS = {
    "a line": (STREAM, b"data: " + b"x" * 65536),
    "events": (STREAM, b"".join(f"data: {json.dumps(EVENT)}\n\n".encode() for _ in range(64))),
    "nothing": (STREAM, b": still there\n\n" * 1000),
}


def talks(head: bytes, piece: bytes, pause: float = 0.0) -> Reply:
    """Answer each request with a head, and then with the same piece, and a pause, as long as the client reads."""

    async def reply(request: RawRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return reply


def talker(head: bytes, piece: bytes) -> RawServer:
    return RawServer(talks(head, piece))


@pytest.fixture(autouse=True)
def little(monkeypatch):
    monkeypatch.setattr(http1, "MOST_BYTES", MOST)
    monkeypatch.setattr(wire, "MOST_BYTES", MOST)


WIRES = {"own": lambda url: HttpWire(url, Access()), "proxied": lambda url: ProxiedWire(url, Access(), None, timeout=60, connections=1)}


def asked(server, make, streamed):
    async def work():
        made = make(server.url)
        try:
            if not streamed:
                return await made.post(HttpRequest("/", {}))
            async for _ in made.stream(HttpRequest("/", {})):
                pass
        finally:
            await made.close()

    return asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize("make", WIRES)
@pytest.mark.parametrize("answer", [*WHOLE, *STREAMS])
def test_no_more_is_read_than_an_answer_has(opened, make, answer):
    server = opened(talker(*(WHOLE | STREAMS)[answer]))
    with pytest.raises(Endless, match="more than 1,048,576 bytes") as raised:
        asked(server, WIRES[make], answer in STREAMS)
    assert not raised.value.transient


@pytest.mark.parametrize(
    "head",
    [HEAD + b"transfer-encoding: chunked\r\n\r\n-5\r\n", HEAD + b"content-length: -5\r\n\r\n", HEAD + b"content-length: many\r\n\r\n"],
    ids=["chunk", "length", "word"],
)
def test_sizes_that_are_none_are_no_http(opened, head):
    with pytest.raises(Fault, match="not HTTP"):
        asked(opened(talker(head, b"x" * 1000)), WIRES["own"], False)


@pytest.mark.parametrize(
    "endless",
    [b"", HEAD + b"x: ", HEAD + b"transfer-encoding: chunked\r\n\r\n5;", HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nx: "],
    ids=["line", "header", "chunk's head", "trailer"],
)
def test_what_is_around_a_body_has_an_end(opened, endless):
    with pytest.raises(Fault, match="has no end"):
        asked(opened(talker(endless, b"x" * 1000)), WIRES["own"], False)


@pytest.mark.parametrize("answer", ["until it closes", "in chunks", "events", "a line", "a bomb"])
@pytest.mark.parametrize("kind", ["OpenAI", "Anthropic"])
def test_a_program_gets_an_error_at_its_line(opened, kind, answer):
    head, piece = {**WHOLE, **STREAMS, "a bomb": (HEAD + b"content-encoding: gzip\r\nconnection: close\r\n\r\n", BOMB)}[answer]
    if kind == "Anthropic" and answer == "events":
        begun = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        head += f"event: content_block_start\ndata: {json.dumps(begun)}\n\n".encode()
        piece = b"".join(f"event: content_block_delta\ndata: {json.dumps(SAID)}\n\n".encode() for _ in range(64))
    server = opened(talker(head, piece))
    patience = Patience(3, 60.0, 0.001, 0.01)
    pytest.importorskip(kind.lower())
    options = {"base_url": server.url, "api_key": "a-key-of-mine", "patience": patience}
    backend = opened(lmc.OpenAI("m", True, **options) if kind == "OpenAI" else lmc.Anthropic("m", **options))

    @lmc.function
    def program(s):
        s += lmc.user("x") + lmc.assistant(lmc.gen("a", max_tokens=8))
        return s["a"]

    streamed = answer in STREAMS
    with pytest.raises(lmc.BackendError, match=r"test_endless.py:\d+: .*more than 1,048,576 bytes"):
        if streamed:
            "".join(program.run(backend=backend, stream=True).text_iter("a"))
        else:
            program.run(backend=backend).text()
    assert len(server.seen) == 1
    assert backend.spent().unreported == 1


DRIPPING = {"its body": (HEAD + b"content-length: 10000000\r\n\r\n", b" "), "its headers": (HEAD, b"x", 0.001)}


@pytest.mark.parametrize("slow", DRIPPING)
@pytest.mark.parametrize("proxied", [False, True], ids=["directly", "by a proxy"])
@pytest.mark.parametrize("kind", [lmc.SGLang, lmc.VLLM])
def test_what_a_server_says_of_itself_is_there_in_time(opened, monkeypatch, kind, proxied, slow):
    """However slowly it comes: each byte is in time."""
    monkeypatch.setattr("lmc.backend.api.server_info._PATIENCE", 0.1)
    server = opened(RawServer(talks(*DRIPPING[slow])))
    url = "http://10.0.0.1:1" if proxied else server.url
    if proxied:
        monkeypatch.setenv("HTTP_PROXY", server.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(lmc.BackendError, match=rf"server at {url}: .*(no whole answer within 0.1 s|timed out)"):  # as where the machine pauses
        kind(url)


@pytest.mark.parametrize(("seconds", "endless"), ((0.1, DRIPPING["its body"]), (2.0, STREAMS["nothing"])), ids=("slowly", "fast"))
def test_a_list_of_models_that_does_not_end_is_not_waited_for(opened, monkeypatch, seconds, endless):
    pytest.importorskip("openai")
    monkeypatch.setattr("lmc.backend.api.sdk.CONNECT", seconds)
    sent = list[int]()

    async def reply(request, writer):
        if request.method == "POST":
            writer.write(whole(b'{"error": {"message": "there is no model m"}}', "404 Not Found"))
            return True
        begin, piece = endless
        writer.write(begin)
        while True:
            writer.write(piece)
            await writer.drain()
            sent.append(len(piece))
            await asyncio.sleep(0)

    backend = opened(lmc.OpenAI("m", True, base_url=opened(RawServer(reply)).url, api_key="a-key-of-mine"))

    @lmc.function
    def program(s):
        s += lmc.user("x") + lmc.assistant(lmc.gen("a", max_tokens=8))
        return s["a"]

    with pytest.raises(lmc.BackendError, match=r"test_endless.py:\d+: .*there is no model m"):
        program.run(backend=backend).text()
    assert sum(sent) < 32 * MOST, "what was read, and what the connection holds"
