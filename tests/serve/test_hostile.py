"""Requests that nobody should send, to a server with a port: each gets its 4xx, holds nobody up and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

import lmc
from lmc.fsm.json_schema import compile_schema
from lmc.serve.main import Connection
from lmc.serve.openai_protocol import CompletionRequest
from tests.backend.gated import Gated
from tests.serve.serving import HELLO, HOUR, events, on_a_port
from tests.serve.test_programs import PROGRAMS
from tests.waiting import until

pytestmark = pytest.mark.api


@lmc.function
def tagged(s, names: list[str] | None = None):
    s += "x" + lmc.gen("t", max_tokens=1)


LONG = 24 << 20  # characters: more than the buffers of a connection hold


@lmc.function
def long(s):
    return "x" * LONG


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def url():
    with on_a_port(lmc.Mock(latency=0.001), [*PROGRAMS, tagged], max_body=1 << 20) as url:
        yield url
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200, "and it is still there"
        until(lambda: "lmc_requests_in_flight 1.0" in httpx.get(f"{url}/metrics", timeout=60).text)  # this one


@contextmanager
def raw(url: str):
    """A connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as made:
        yield made


def head(path: str, length: int, *more: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", "Content-Type: application/json", *more, "", ""]).encode()


def rest_of(connection: socket.socket) -> bytes:
    """Return all that comes until the server closes."""
    found = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            found += data
    return found


def status_of(connection: socket.socket) -> int | None:
    """Of the answer, if there is one before the connection breaks. The server may go on reading, so that the client sees it."""
    with suppress(ConnectionResetError):
        line = connection.makefile("rb").readline()
        return int(line.split()[1]) if line else None
    return None


BODIES = {
    "nothing": (b"", 400),
    "no JSON": (b"{{{{", 400),
    "no UTF-8": (b'{"prompt": "\xff\xfe"}', 400),
    "a NUL": (b'{"prompt": "\x00"}', 400),
    "half a character": (rb'{"prompt": "\udc00"}', 400),
    "very deep": (b"[" * 100_000, 400),
    "a long number": (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", 400),
    "infinity": (b'{"prompt": "x", "temperature": 1e999}', 400),
    "NaN": (b'{"prompt": "x", "temperature": NaN}', 400),
    "a list": (b'[{"prompt": "x"}]', 400),
    "null": (b"null", 400),
    "twice": (b'{"prompt": "x"}{"prompt": "x"}', 400),
    "no prompt": (b"{}", 400),
    "prompt null": (b'{"prompt": null}', 400),
    "prompt number": (b'{"prompt": 5}', 400),
    "no prompts": (b'{"prompt": []}', 400),
    "nested prompts": (b'{"prompt": [[[1]]]}', 400),
    "mixed prompts": (b'{"prompt": ["a", 1]}', 400),
    "negative ids": (b'{"prompt": [-1]}', 400),
    "n 0": (b'{"prompt": "x", "n": 0}', 400),
    "n -1": (b'{"prompt": "x", "n": -1}', 400),
    "n 1.5": (b'{"prompt": "x", "n": 1.5}', 400),
    "n true": (b'{"prompt": "x", "n": true}', 400),
    "many answers": (b'{"prompt": ["x", "y"], "n": 100}', 400),
    "negative max_tokens": (b'{"prompt": "x", "max_tokens": -5}', 400),
    "huge max_tokens": (b'{"prompt": "x", "max_tokens": 99999999999999999999}', 400),
    "text for a number": (b'{"prompt": "x", "max_tokens": "5"}', 400),
    "negative temperature": (b'{"prompt": "x", "temperature": -0.1}', 400),
    "top_p 0": (b'{"prompt": "x", "top_p": 0}', 400),
    "top_p 2": (b'{"prompt": "x", "top_p": 2}', 400),
    "top_k -2": (b'{"prompt": "x", "top_k": -2}', 400),
    "min_tokens beyond": (b'{"prompt": "x", "min_tokens": 50, "max_tokens": 5}', 400),
    "logprobs 99": (b'{"prompt": "x", "logprobs": 99}', 400),
    "stop of numbers": (b'{"prompt": "x", "stop": [1]}', 400),
    "bad stop regex": (b'{"prompt": "x", "stop_regex": "("}', 400),
    "a stop regex that needs backtracking": (rb'{"prompt": "x", "stop_regex": "(a)\\1"}', 400),
    "many stop regexes": (json.dumps({"prompt": "x", "stop_regex": ["a"] * 17}).encode(), 400),
    "a deep schema as text": (json.dumps({"prompt": "x", "json_schema": "[" * 100_000}).encode(), 400),
    "a deep grammar": (json.dumps({"prompt": "x", "lark": "start: " + "(" * 2000 + '"a"' + ")" * 2000}).encode(), 400),
    "a grammar that reads files": (json.dumps({"prompt": "x", "lark": "start: X\n%import secret.X"}).encode(), 400),
    "a long schema": (json.dumps({"prompt": "x", "json_schema": {"enum": [f"{i:x}" * 9 for i in range(8000)]}}).encode(), 400),
    "bias of words": (b'{"prompt": "x", "logit_bias": {"word": 1}}', 400),
    "strange bias": (b'{"prompt": "x", "logit_bias": {"5": 1e9}}', 400),
    "unknown model": (b'{"model": "gpt-9", "prompt": "x"}', 404),
    "a model's long name": (json.dumps({"model": "x" * 100_000, "prompt": "x"}).encode(), 404),
    "a long parameter": (json.dumps({"prompt": "x", "y" * 100_000: 1}).encode(), 400),
    "a model's path": (b'{"model": "../../etc/passwd", "prompt": "x"}', 404),
    "an empty prompt": (b'{"prompt": ""}', 200),
    "no tokens": (b'{"prompt": "x", "max_tokens": 0}', 200),
    "an empty stop": (b'{"prompt": "x", "stop": ""}', 200),
    "unicode": ('{"prompt": "\u202e🙂 e\u0301 \u4e16 <|im_end|>"}'.encode(), 200),
}


@pytest.mark.filterwarnings("ignore:.*ordinary text")
@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_answered_with_its_status(url, name):
    body, status = BODIES[name]
    response = httpx.post(url + COMPLETIONS, content=body, headers={"content-type": "application/json"}, timeout=20)
    assert response.status_code == status, response.text
    assert len(response.text) < 10_000, "what was sent is not sent back"
    if status != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
        assert error["message"]
        assert "Traceback" not in response.text
        assert "/lmc/" not in response.text


def test_millions_of_wrong_values_are_not_listed(url):
    """Each would be an error of some 400 bytes, and to list them takes minutes, on the event loop."""
    unknown = {"prompt": "x", **{f"k{i}": 1 for i in range(50_000)}}
    assert httpx.post(url + COMPLETIONS, json=unknown, timeout=20).json()["error"]["message"].startswith("50,000 values")
    for wrong, place in (({"prompt": [-1] * 50_000}, "prompt.0"), ({"prompt": "x", "stop": [1] * 50_000}, "stop.0")):
        error = httpx.post(url + COMPLETIONS, json=wrong, timeout=20).json()["error"]
        assert (error["param"], error["message"].partition(":")[0]) == (place, place)
    assert "at most 4096 items" in httpx.post(url + COMPLETIONS, json={"prompt": ["x"] * 5000}, timeout=20).json()["error"]["message"]
    error = httpx.post(f"{url}/programs/tagged", json={"names": [1] * 50_000}, timeout=20).json()["error"]
    assert error["param"] == "names.0"


def test_a_large_body_is_read_while_others_are_answered(monkeypatch):
    reading, release, parse = threading.Event(), threading.Event(), CompletionRequest.model_validate_json

    def parsed(body):
        reading.set()
        assert release.wait(60)
        return parse(body)

    monkeypatch.setattr(CompletionRequest, "model_validate_json", parsed)
    with on_a_port() as url, ThreadPoolExecutor() as pool:
        asked = pool.submit(httpx.post, url + COMPLETIONS, json={"prompt": "x" * 100_000, "max_tokens": 1}, timeout=60)
        try:
            assert reading.wait(20)
            assert httpx.get(f"{url}/v1/models", timeout=20).status_code == 200
        finally:
            release.set()
        assert asked.result().status_code == 200


def test_an_empty_conversation_is_an_answer_or_a_400(url):
    for messages in ([{"role": "user", "content": ""}], [{"role": "assistant", "content": ""}], [{"role": "system", "content": "x"}]):
        assert httpx.post(url + CHAT, json={"messages": messages}, timeout=20).status_code == 200
    assert httpx.post(url + CHAT, json={"messages": []}, timeout=20).status_code == 400


def test_paths_lead_nowhere_else(url):
    paths = (
        "/../../etc/passwd",
        "/v1/models/../../../etc/passwd",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "//etc/passwd",
        "/programs/../health%00",
        "/%ff",
    )
    for path in paths:
        with raw(url) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = rest_of(connection)
        assert b" 404 " in answer.partition(b"\r\n")[0], (path, answer)
        assert b"root:" not in answer


def test_a_whole_address_is_a_target_and_its_host_counts():
    with on_a_port(lmc.Mock(), hosts=frozenset({"here"})) as url:
        for target, host, status in (
            ("http://here/v1/models?x=1", "there", 200), ("HTTPS://here:80/health/live", "there", 200), ("http://here?x=1", "here", 200),
            ("http://there/v1/models", "here", 421), ("http://me@here/v1/models", "here", 404), ("http://", "here", 404), ("ftp://here/", "here", 404),
        ):  # fmt: skip
            with raw(url) as connection:
                connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                assert status_of(connection) == status, target


def test_empty_lines_before_a_request_are_passed_over(url):
    body = b'{"prompt": "x"}'
    with raw(url) as connection:
        for sent in (b"\r", b"\n", b"\r\n\n" + head(COMPLETIONS, len(body)) + body + b"\r\n"):
            connection.sendall(sent)
        assert status_of(connection) == 200
        for close in ("keep-alive", "close"):
            connection.sendall(f"\r\nGET /health/live HTTP/1.1\r\nHost: x\r\nConnection: {close}\r\n\r\n".encode())
        assert rest_of(connection).count(b"HTTP/1.1 200 OK") == 2


def test_what_is_no_http_is_refused(url):
    for sent in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n"):
        with raw(url) as connection:
            with suppress(ConnectionError):
                connection.sendall(sent)
            if not sent.endswith(b"\n\r\n") and not sent.endswith(b"\r\n\r\n"):
                connection.shutdown(socket.SHUT_WR)
            answer = rest_of(connection)
        assert answer == b"" or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
        if sent.startswith(b"hello"):
            error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            assert (error["type"], error["message"]) == ("invalid_request_error", "this is no request of HTTP/1.1: illegal request line")
            assert b"x-request-id: req_" in answer


def test_headers_that_are_too_long_are_said_to_be(url):
    with raw(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000)
        answer = rest_of(connection)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n") and b"its line and headers are too long" in answer


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n",
        b"POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Type: application/json\r\nX: %d\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["length first", "coding first", "HTTP/1.0"],
)
def test_a_request_of_two_lengths_is_refused_and_what_follows_is_no_request(url, head):
    body = b'{"prompt": "x", "max_tokens": 1}'
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with raw(url) as connection:
        connection.sendall(head % len(chunked) + chunked + b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = rest_of(connection)
    assert answers.startswith(b"HTTP/1.1 400 ") and answers.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answers.lower()


def test_a_websocket_is_not_offered(url, caplog):
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    for path, status in (("/v1/models", 200), (CHAT, 405)):
        with raw(url) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n\r\n".encode())
            assert status_of(connection) == status
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_a_body_that_comes_byte_by_byte_is_read_or_given_up():
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    with on_a_port(body_timeout=60.0) as url, raw(url) as connection:
        connection.sendall(head(COMPLETIONS, len(body), "Connection: close"))
        for byte in body:
            connection.sendall(bytes([byte]))
        assert status_of(connection) == 200
    with on_a_port(body_timeout=0.2) as url, raw(url) as connection:
        connection.sendall(head(COMPLETIONS, len(body)) + body[:-1])
        assert status_of(connection) == 408


def test_a_head_that_never_ends_is_given_up(monkeypatch):
    from lmc.serve import main

    monkeypatch.setattr(main, "_PATIENCE", 3600)
    made, connect, mock = list[Any](), main.Connection.connection_made, Gated()
    monkeypatch.setattr(main.Connection, "connection_made", lambda self, transport: made.append(self) or connect(self, transport))
    with on_a_port(mock) as url, raw(url) as patient, raw(url) as begun, raw(url) as silent:
        patient.sendall(head(COMPLETIONS, 15) + b'{"prompt": "x"}')
        begun.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        until(lambda: len(made) == 3 and mock.waiting and any(connection.conn.trailing_data[0] for connection in made))
        late = [connection for connection in made if connection._late is not None]
        for connection in late:  # as if the hour had passed
            connection.loop.call_soon_threadsafe(connection.transport.close)
        assert rest_of(silent) == rest_of(begun) == b"" and len(late) == 2
        mock.open()
        assert status_of(patient) == 200, "an answer may take longer"


@pytest.mark.parametrize(
    "first",
    [
        b"GET /health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", head(CHAT, 1 << 30), head("/nothing", 100_000),
        b"GET / HTTP/9\r\n\r\n",
        head(CHAT, 1, "Expect: 100-continue").replace(b"Content-Length: 1", b"Transfer-Encoding: chunked") + b"1\r\n{\r\nno length\r\n",
    ],
    ids=["GET", "413", "404", "no request", "no chunk"],
)  # fmt: skip
def test_a_body_that_goes_on_behind_its_answer_is_given_up(monkeypatch, caplog, first):
    from lmc.serve import main

    monkeypatch.setattr(main, "_PATIENCE", 1)
    with on_a_port() as url, raw(url) as connection:
        connection.sendall(first)
        assert status_of(connection) in (200, 400, 404, 413)
        until(lambda: is_reset(connection))
    assert "failed" not in caplog.text


@pytest.mark.parametrize(
    ("first", "status"),
    [(head(CHAT, 1 << 23, "Connection: close"), 413), (head("/nothing", 1 << 23, "Connection: close"), 404), (b"GET / HTTP/1.1\r\nHost: x\r\nx: ", 431)],
    ids=["413", "404", "431"],
)
def test_who_is_still_sending_can_read_the_answer_that_closes_the_connection(first, status):
    """As Python's urllib, which closes each: while bytes are not read, the system takes an answer back."""
    with on_a_port(max_body=1 << 20) as url, raw(url) as connection:
        connection.sendall(first + b"x" * (1 << 23))
        assert status_of(connection) == status
        rest_of(connection)


def test_only_so_many_clients_that_are_still_sending_are_waited_for(monkeypatch):
    from lmc.serve import main

    monkeypatch.setattr(main, "_CLOSING", 2)
    monkeypatch.setattr(main, "_PATIENCE", 3600)
    with on_a_port() as url, raw(url) as first, raw(url) as second, raw(url) as third:
        for connection in (first, second, third):
            connection.sendall(b"GET / HTTP/9\r\n\r\n")
            assert status_of(connection) == 400
        until(lambda: is_reset(first))
        assert not is_reset(second) and not is_reset(third)
    until(lambda: not main.Connection._closing)


def test_as_many_are_ended_as_come_too_many_in_one_turn_of_the_loop(monkeypatch):
    from lmc.serve import main

    heard, sent, receive = list[bytes](), threading.Event(), main.Connection.data_received

    def received(self, data):
        heard.append(data)
        if data == b"HTTP/9\r\n\r\n":
            sent.wait()
        receive(self, data)

    monkeypatch.setattr(main, "_CLOSING", 1)
    monkeypatch.setattr(main, "_PATIENCE", 3600)
    monkeypatch.setattr(main.Connection, "data_received", received)
    with on_a_port() as url, raw(url) as first, raw(url) as second, raw(url) as third, raw(url) as fourth:
        clients = (first, second, third, fourth)
        for client in clients:
            client.sendall(b"GET / ")
        until(lambda: len(heard) == 4)
        for client in clients:
            client.sendall(b"HTTP/9\r\n\r\n")
        sent.set()  # the others are read in one turn behind the first
        until(lambda: sum(map(is_reset, clients)) == 3)


def unread(url: str, sent: bytes) -> tuple[bytes, socket.socket]:
    """Send a request, and read nothing of the answer but its first bytes."""
    host, port = url.removeprefix("http://").split(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(20)
    made.connect((host, int(port)))
    made.sendall(sent)
    return made.recv(12), made


def is_reset(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"x")
    except ConnectionError:
        return True
    time.sleep(0.05)
    return False


@pytest.mark.parametrize("more", ["", "Connection: close"], ids=["kept", "closed"])
def test_an_answer_that_nobody_reads_is_given_up(monkeypatch, more):
    from lmc.serve import main

    monkeypatch.setattr(main, "_PATIENCE", 1)
    with on_a_port(programs=[long]) as url:
        first, connection = unread(url, head("/programs/long", 2, *([more] if more else [])) + b"{}")
        with connection:
            assert first == b"HTTP/1.1 200"
            until(lambda: is_reset(connection))


@pytest.mark.parametrize(
    ("left", "ended"),
    [
        ([1 << 20, 900_000, 800_000, 0], False),
        ([100, 0], False),
        ([0], False),
        ([1 << 20, (1 << 20) - 100], True),
        ([1 << 20, 900_000, 900_000], True),
        ([100, 100], True),
    ],
)
def test_an_answer_that_is_read_slowly_arrives(left, ended):
    class Loop:
        def call_later(self, seconds, look, *told):
            self.look = partial(look, *told)
            return SimpleNamespace(cancel=lambda: None)

    class Transport:
        ended = False

        def get_write_buffer_size(self):
            return left[0]

        def is_closing(self):
            return True

        def abort(self):
            self.ended = True

    loop = Loop()
    connection = Connection(uvicorn.Config(lambda *_: None, log_config=None), ServerState(), {}, loop)
    connection.transport = Transport()
    connection.on_response_complete()
    while len(left) > 1:
        left.pop(0)
        loop.look()
    assert connection.transport.ended == ended


@pytest.mark.parametrize(
    "second", [b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["answer", "error"]
)
def test_who_sends_more_and_reads_no_answer_is_given_up_without_a_word(time_limits, caplog, second):
    with on_a_port(programs=[long], timeout=HOUR) as url:
        first, connection = unread(url, (head("/programs/long", 2) + b"{}") + second)
        with connection:
            assert first == b"HTTP/1.1 200"
            time_limits.end()
            until(lambda: is_reset(connection))
    assert "ASGI callable" not in caplog.text


def test_a_body_that_is_no_http_behind_its_answer_ends_the_connection(caplog):
    with on_a_port() as url, raw(url) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.sendall(b"no length\r\n")
        assert b"HTTP/1.1" not in rest_of(connection)
    assert "Fatal error" not in caplog.text


def test_a_body_that_is_complete_behind_its_answer_costs_no_connection(monkeypatch):
    from lmc.serve import main

    monkeypatch.setattr(main, "_PATIENCE", 3600)
    with on_a_port() as url, raw(url) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
            answer = b""
            while b'"ok"' not in answer:
                answer += connection.recv(1 << 16)
            connection.sendall(b"xx")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/programs/greet", "/programs/greet/stream"])
def test_a_connection_that_breaks_cancels_what_was_asked(path, stream):
    mock = lmc.Mock(latency=lambda ask: 60)
    body = {"prompt": "x", "n": 3, "stream": stream} if path == COMPLETIONS else {**HELLO, "stream": stream} if path == CHAT else {"name": "x"}
    data = json.dumps(body).encode()
    with on_a_port(mock, PROGRAMS) as url:
        with raw(url) as connection:
            connection.sendall(head(path, len(data)) + data)
            until(lambda: mock._pending)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset, not a goodbye
        until(lambda: not mock._pending)
        until(lambda: "lmc_requests_in_flight 1.0" in httpx.get(f"{url}/metrics", timeout=60).text)


def test_two_hundred_requests_at_once_are_all_answered_with_their_own():
    mock = lmc.Mock(latency=lambda ask: 0.05)

    async def work(url):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
            bodies = [{"prompt": f"number {i}", "regex": f"{i}", "stream": i % 2 == 0} for i in range(200)]
            return await asyncio.gather(*[client.post(COMPLETIONS, json=body) for body in bodies])

    with on_a_port(mock) as url:
        found = asyncio.run(work(url))
    for i, response in enumerate(found):
        assert response.status_code == 200
        answers = events(response.text)[:-1] if i % 2 == 0 else [response.json()]
        assert "".join(answer["choices"][0]["text"] for answer in answers) == str(i)
    assert len(mock.call_log) == 200


def test_constraints_that_take_long_to_compile_keep_nobody_else_waiting(monkeypatch):
    release, submit = threading.Event(), lmc.Mock.submit

    def submitted(self, parent, segments, hints=None):
        if segments[-1].constraint is not None:
            assert release.wait(60)
        return submit(self, parent, segments, hints)

    monkeypatch.setattr(lmc.Mock, "submit", submitted)

    async def work(url):
        async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None), timeout=30) as client:
            slow = [asyncio.ensure_future(client.post(COMPLETIONS, json={"prompt": "x", "regex": f"{i}"})) for i in range(30)]
            try:
                async with asyncio.timeout(60):
                    while "lmc_requests_in_flight 31.0" not in (await client.get("/metrics")).text:
                        await asyncio.sleep(0.01)
                assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200
                assert not any(each.done() for each in slow)
            finally:
                release.set()
            return [answer.json()["choices"][0]["text"] for answer in await asyncio.gather(*slow)]

    with on_a_port() as url:
        assert asyncio.run(work(url)) == [str(i) for i in range(30)]


def test_schemas_of_clients_leave_no_trace_in_the_process(recwarn):
    from lmc.serve.main import _remember_no_warnings_about_schemas

    _remember_no_warnings_about_schemas()
    before = len(globals().get("__warningregistry__", {}))
    for i in range(20):
        compile_schema(json.dumps({"type": "string", f"odd {i}": 1}))
    assert sum("odd" in str(warning.message) for warning in recwarn) == 20 and len(globals().get("__warningregistry__", {})) <= before + 1


FEW_FILES = """
import resource
import lmc
from lmc.serve.main import listen, serve
from lmc.serve.settings import ServerSettings

hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

def none():
    raise lmc.BackendError("no model")

try:
    serve(none, ServerSettings(("m",)), [], listen("127.0.0.1", 0), drain=1)
except lmc.BackendError:
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard), resource.getrlimit(resource.RLIMIT_NOFILE)
    print("served")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a limit of POSIX's")
def test_a_server_takes_as_many_connections_as_the_system_allows():
    done = subprocess.run([sys.executable, "-c", FEW_FILES], capture_output=True, text=True, timeout=60)
    assert done.stdout == "served\n", done.stderr
