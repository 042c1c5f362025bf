"""Signing in with a key: a browser gets a session, in a cookie that no script can read and that no other page can use."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import lmc
from lmc.serve import app as app_module
from lmc.serve import keys as keyrings
from lmc.serve.keys import Key, KeyLimits, Keyring, digest_of
from tests.serve.serving import HELLO, ByHand, running, talk, until

pytestmark = pytest.mark.api

KEYS = [Key("all", digest_of("the-key"), KeyLimits()), Key("few", digest_of("few-key"), KeyLimits(programs=frozenset({"other"})))]
HTML = {"accept": "text/html"}
PAGES = ("/", "/docs", "/runs")


@lmc.function
def greet(s: Any) -> Any:
    s += "Hello" + lmc.gen("text", max_tokens=4)
    return s["text"]


async def signed_in(client: Any, key: str = "the-key") -> str:
    answer = await client.post("/login", json={"key": key})
    assert answer.status_code == 200 and "key" not in answer.text
    return answer.headers["set-cookie"]


def test_every_page_is_behind_the_key(tmp_path) -> None:
    async def look(client: Any) -> None:
        for path in PAGES:
            for headers in (HTML, {**HTML, "authorization": "Bearer wrong"}, {**HTML, "cookie": "lmc-session-80=wrong"}):
                form = await client.get(path, headers=headers)
                assert form.status_code == 401 and 'id="form"' in form.text and 'id="found"' not in form.text and 'id="cards"' not in form.text
            assert 'id="form"' not in (await client.get(path, headers={**HTML, "authorization": "Bearer the-key"})).text
        await signed_in(client)
        for path in PAGES:
            page = await client.get(path, headers=HTML)
            assert page.status_code == 200 and 'id="out"' in page.text
        for path in ("/metrics", "/openapi.json", "/v1/models", "/runs/programs", "/programs/greet/runs"):
            assert (await client.get(path)).status_code == 200
        assert (await client.post("/programs/greet", json={})).status_code == 200
        assert (await client.post("/logout", json={})).status_code == 200
        assert (await client.get("/docs", headers=HTML)).status_code == (await client.get("/metrics")).status_code == 401

    talk(look, programs=[greet], api_keys=KEYS, journals=tmp_path)


def test_a_session_that_was_ended_is_no_one_any_more() -> None:
    async def look(client: Any) -> None:
        session = (await signed_in(client)).partition(";")[0]
        await client.post("/logout", json={})
        client.cookies.clear()
        assert (await client.get("/metrics", headers={"cookie": session})).status_code == 401

    talk(look, api_keys=KEYS)


def test_the_cookie_is_for_this_server_alone_and_has_no_key() -> None:
    async def look(client: Any) -> None:
        name, *attributes = (await signed_in(client)).split("; ")
        assert name.startswith("lmc-session-") and "the-key" not in name and digest_of("the-key") not in name
        assert sorted(attributes) == ["HttpOnly", f"Max-Age={12 * 3600}", "Path=/", "SameSite=Strict"]
        client.base_url = "https://test"
        assert "Secure" in (await signed_in(client)).split("; ")

    talk(look, api_keys=KEYS)


def test_a_page_of_another_origin_cannot_use_a_session() -> None:
    """SameSite keeps a cookie from other sites; another port of this machine is the same site."""

    async def look(client: Any) -> None:
        await signed_in(client)
        for origin, status in (("http://test", 200), ("http://test:81", 401), ("http://evil", 401), ("null", 401)):
            assert (await client.post("/v1/chat/completions", json=HELLO, headers={"origin": origin})).status_code == status, origin
        for site, status in (("same-origin", 200), ("none", 200), ("same-site", 401), ("cross-site", 401)):
            headers = {"sec-fetch-site": site, "origin": "https://behind.a.proxy"}
            assert (await client.post("/v1/chat/completions", json=HELLO, headers=headers)).status_code == status, site
        kept = dict(client.cookies)
        form = await client.post("/login", content="key=the-key", headers={"content-type": "application/x-www-form-urlencoded"})
        assert form.status_code == 415 and dict(client.cookies) == kept

    talk(look, api_keys=KEYS)


def test_a_session_may_what_its_key_may() -> None:
    async def look(client: Any) -> None:
        await signed_in(client, "few-key")
        assert (await client.post("/programs/greet", json={})).status_code == 403
        assert (await client.post("/v1/chat/completions", json=HELLO)).status_code == 200
        assert (await client.post("/programs/greet", json={}, headers={"authorization": "Bearer the-key"})).status_code == 200, "a key goes before it"
        assert (await client.post("/programs/greet", json={}, headers={"authorization": "Bearer wrong"})).status_code == 401

    talk(look, programs=[greet], api_keys=KEYS)


def test_what_is_no_key_begins_no_session(tmp_path) -> None:
    log = tmp_path / "audit"

    async def look(client: Any) -> None:
        for body, status in (
            ({"key": "wrong-key"}, 401),
            ({"key": ""}, 401),
            ({"key": 5}, 400),
            ({}, 400),
            ({"key": "the-key", "x": 1}, 400),
            ({"key": "x" * 20_000}, 413),
        ):
            answer = await client.post("/login", json=body)
            assert answer.status_code == status and "set-cookie" not in answer.headers and "wrong-key" not in answer.text, body
        await signed_in(client)

    talk(look, api_keys=KEYS, audit_log=log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines if line["path"] == "/login"] == [401, 401, 400, 400, 400, 413, 200]
    assert "the-key" not in log.read_text() and "wrong-key" not in log.read_text()


def test_who_has_no_key_takes_no_room_from_those_who_have_one() -> None:
    async def main() -> None:
        async with running(api_keys=KEYS, max_requests=2) as app:
            half = [ByHand(app, path, None) for path in ("/login", "/logout") for _ in range(17)]
            for each in half:
                each.incoming.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
            await until(lambda: sum(each.status == 429 for each in half) == 2)
            asked = ByHand(app, "/v1/chat/completions", json.dumps(HELLO).encode(), {"authorization": "Bearer the-key"})
            await asked.task
            assert asked.status == 200
            half[0].incoming.put_nowait({"type": "http.request", "body": b" " * (1 << 14), "more_body": True})
            await half[0].task
            assert half[0].status == 413, "before the rest of it is read"
            for each in half:
                each.leave()
                await each.task

    asyncio.run(main())


def test_a_sign_in_has_little_time_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_SIGN_IN_TIMEOUT", 0.01)

    async def main() -> None:
        async with running(api_keys=KEYS) as app:
            half = ByHand(app, "/login", None)
            await half.task
            assert half.status == 408

    asyncio.run(main())


def test_without_keys_nobody_signs_in() -> None:
    async def look(client: Any) -> None:
        assert (await client.get("/docs", headers=HTML)).status_code == 200
        assert (await client.post("/login", json={"key": "x"})).status_code == 404

    talk(look)


def test_sessions_end_and_are_so_many_at_most(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(keyrings, "_SESSIONS", 3)
    ring = Keyring(KEYS, lambda: now[0])
    sessions = [ring.sign_in("the-key") for _ in range(4)]
    assert [ring.of_session(each or "") is not None for each in sessions] == [False, True, True, True]
    assert ring.sign_in("wrong") is None and ring.of_session("") is None
    now[0] = 12 * 3600.0
    assert not any(ring.of_session(each or "") for each in sessions)
