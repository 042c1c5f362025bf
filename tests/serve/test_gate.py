"""Keys, room, size and time: what every request passes, and what clients that leave, stall or dawdle cost."""

from __future__ import annotations

import asyncio
import json

import pytest

import lmc
from tests.backend.gated import Gated
from tests.serve.serving import HELLO, HOUR, ByHand, FakeTime, events, post, running, talking, until

pytestmark = pytest.mark.api

CHAT = "/v1/chat/completions"
BODY = json.dumps(HELLO).encode()
STREAM = json.dumps({**HELLO, "stream": True}).encode()


async def test_keys():
    keys = frozenset({"k1", "k2"})
    async with talking(api_keys=keys) as client:
        assert (await client.get("/health")).status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            assert (await client.get(path)).status_code == 401
        for given in ("Bearer k3", "k1", "Basic k1", "Bearer", "Bearer \xff"):
            refused = await client.post(CHAT, json=HELLO, headers={"Authorization": given.encode("latin-1")})
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        for given in ({"Authorization": "Bearer k2"}, {"x-api-key": "k2"}):  # the second as Anthropic's clients send it
            assert (await client.post(CHAT, json=HELLO, headers=given)).status_code == 200


@lmc.function
def hidden(s):
    return "x"


async def test_without_a_key_nobody_learns_which_routes_there_are():
    async with talking(programs=[hidden], api_keys={"k1"}, hosts=frozenset({"test"})) as client:
        for path in ("/programs/hidden", "/programs/nope", "/nothing", "/v1/chat/completions"):
            for method in ("GET", "DELETE", "OPTIONS"):
                refused = await client.request(method, path, headers={"x-request-id": "mine"})
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key"), (method, path)
                assert refused.headers["x-request-id"] == "mine" and "allow" not in refused.headers
                assert (await client.request(method, path, headers={"host": "evil.org"})).status_code == 421
        client.headers["authorization"] = "Bearer k1"
        wrong, missing = await client.get("/programs/hidden"), await client.get("/programs/nope")
        assert (wrong.status_code, wrong.headers["allow"], wrong.json()["error"]["type"]) == (405, "POST", "invalid_request_error")
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
        assert (await client.put("/programs/nope")).status_code == 404
        assert all(answer.headers["x-request-id"].startswith("req_") for answer in (wrong, missing))


def test_a_large_body_is_refused_before_it_is_read():
    response = post(CHAT, b"x" * 101, max_body=100)
    assert (response.status_code, response.json()["error"]["type"]) == (413, "invalid_request_error")


async def test_a_large_body_without_a_length_is_refused_when_it_is_too_much():
    async with running(max_body=100) as app:
        call = ByHand(app, CHAT, None)
        for _ in range(3):
            call.incoming.put_nowait({"type": "http.request", "body": b"x" * 60, "more_body": True})
        await call.task
        assert call.status == 413


async def test_more_requests_than_there_is_room_for_are_refused_at_once():
    mock = lmc.Mock(latency=60)
    async with running(mock, max_requests=2) as app:
        inside = [ByHand(app, CHAT, BODY) for _ in range(2)]
        await until(lambda: len(mock.call_log) == 2)
        third = ByHand(app, CHAT, BODY)
        await third.task
        assert third.status == 429
        assert (b"retry-after", b"1") in third.sent[0]["headers"]
        for call in inside:
            call.leave()
            await call.task
        mock._latency = lambda _: 0.001
        fourth = ByHand(app, CHAT, BODY)
        await fourth.task
        assert fourth.status == 200, "room is given back"


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_a_client_that_leaves_cancels_its_request(body):
    mock = lmc.Mock(latency=60)
    async with running(mock) as app:
        call = ByHand(app, CHAT, body)
        await until(lambda: mock._pending)
        call.leave()
        await call.task
        await until(lambda: not mock._pending)
        assert b'lmc_requests_total{endpoint="chat",status="499"} 1.0' in app.state.metrics.text()


async def test_a_client_that_leaves_while_it_sends():
    async with running() as app:
        call = ByHand(app, CHAT, None)
        call.leave()
        await call.task
        assert call.sent == []


async def test_an_answer_that_takes_too_long_is_a_504_and_is_cancelled(time_limits):
    mock = lmc.Mock(latency=60)
    async with running(mock, timeout=HOUR) as app:
        whole, stream = ByHand(app, CHAT, BODY), ByHand(app, CHAT, STREAM)
        await until(lambda: stream.sent and len(mock.call_log) == 2)
        time_limits.end()
        await asyncio.gather(whole.task, stream.task)
        assert whole.status == 504
        assert stream.status == 200, "it had begun"
        assert events(stream.text)[-1]["error"]["type"] == "timeout_error"
        assert stream.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        assert not mock._pending


async def test_a_client_that_does_not_read_is_let_go(time_limits):
    mock = Gated()
    async with running(mock, timeout=HOUR) as app:
        call = ByHand(app, CHAT, STREAM)
        await until(lambda: call.sent)
        call.blocked.set()
        mock.open()
        await until(lambda: call.stuck)
        time_limits.end()
        async with asyncio.timeout(60):
            await call.task
        assert call.sent[-1].get("more_body", True), "cut off: the server closes the connection"


async def test_a_fault_in_the_middle_of_a_stream_is_its_last_event():
    mock = lmc.Mock(latency=60)
    async with running(mock) as app:
        call = ByHand(app, CHAT, STREAM)
        await until(lambda: mock._pending and call.sent)
        for handle in list(mock._pending):
            mock._fail(handle, lmc.BackendError("out of luck"))
        await call.task
        assert [said["error"]["message"] for said in events(call.text)] == ["out of luck"], "and nothing comes before the first token"


MESSAGE = json.dumps({"model": "mock", "max_tokens": 8, **HELLO, "stream": True}).encode()


@pytest.mark.parametrize(
    ("path", "body", "ping"),
    [
        (CHAT, STREAM, ": keep-alive\n\n"),
        ("/v1/completions", b'{"prompt": "Hello", "stream": true}', ": keep-alive\n\n"),
        ("/v1/responses", b'{"input": "Hello", "stream": true}', ": keep-alive\n\n"),
        ("/v1/messages", MESSAGE, 'event: ping\ndata: {"type":"ping"}\n\n'),
    ],
    ids=["chat", "completions", "responses", "messages"],
)
async def test_a_silent_stream_gets_signs_of_life_before_its_first_token(path, body, ping, monkeypatch):
    mock, time = Gated(), FakeTime(monkeypatch)
    async with running(mock) as app:
        call = ByHand(app, path, body)
        await until(lambda: call.status == 200)
        for n in range(1, 4):
            assert call.text == ping * (n - 1), "and none before it is due"
            time.pass_(15)
            await until(lambda n=n: call.text == ping * n)
        mock.open()
        await call.task
        answer = call.text.removeprefix(ping * 3)
        assert ping not in answer and events(answer)


async def test_a_sign_of_life_that_cannot_be_sent_ends_the_stream(monkeypatch):
    mock, time = Gated(), FakeTime(monkeypatch)
    async with running(mock) as app:
        call = ByHand(app, CHAT, STREAM)
        await until(lambda: call.status == 200 and mock.waiting)
        call.broken = OSError("the connection is lost")
        time.pass_(15)
        await until(call.task.done)
        assert call.task.exception() is call.broken and not mock._pending


async def test_a_stream_that_is_not_silent_gets_no_signs_of_life(monkeypatch):
    mock, time = lmc.Mock(latency=60), FakeTime(monkeypatch)
    async with running(mock, ping_interval=30) as app:
        call = ByHand(app, CHAT, STREAM)
        await until(lambda: mock._pending and call.sent)
        time.pass_(20)
        (handle,) = mock._pending
        handle.results[0].feed("Hel")
        await until(lambda: '"Hel"' in call.text)
        time.pass_(20)
        handle.results[0].feed("lo")
        await until(lambda: '"lo"' in call.text)
        assert "keep-alive" not in call.text
        time.pass_(30)
        await until(lambda: "keep-alive" in call.text)
        call.leave()
        await call.task
