"""Pages for people behind a key: a browser asks for it, and no other page can use what the browser sends."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import lmc
from lmc.serve.keys import Key, KeyLimits, digest_of
from tests.serve.serving import HELLO, talking

pytestmark = pytest.mark.api

KEYS = [Key("all", digest_of("the-key"), KeyLimits()), Key("few", digest_of("few-key"), KeyLimits(programs=frozenset({"other"})))]
HTML = {"accept": "text/html"}


@lmc.function
def greet(s: Any) -> Any:
    s += "Hello" + lmc.gen("text", max_tokens=4)
    return s["text"]


def basic(said: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(said.encode()).decode()}"}


async def test_every_page_asks_for_the_key(tmp_path) -> None:
    async with talking(programs=[greet], api_keys=KEYS, journals=tmp_path) as client:
        for path in ("/", "/docs", "/runs"):
            for headers in ({}, basic(":wrong"), basic("the-key"), {"authorization": "Basic ="}, {"authorization": "Basic the-key"}):
                refused = await client.get(path, headers={**HTML, **headers})
                assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic "), headers
                assert "greet" not in refused.text
            for headers in (basic(":the-key"), basic("ann:the-key"), {"authorization": "Bearer the-key"}):
                assert (await client.get(path, headers={**HTML, **headers})).status_code == 200
        for path in ("/metrics", "/openapi.json", "/v1/models", "/runs/programs", "/programs/greet/runs"):
            assert (refused := await client.get(path)).status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
            assert (await client.get(path, headers=basic(":the-key"))).status_code == 200
        assert (await client.post("/programs/greet", json={}, headers=basic(":the-key"))).status_code == 200
        assert (await client.post("/programs/greet", json={}, headers=basic(":few-key"))).status_code == 403


async def test_a_page_of_another_origin_cannot_use_what_the_browser_has() -> None:
    async with talking(api_keys=KEYS) as client:
        for origin, status in (("http://test", 200), ("http://test:81", 401), ("http://evil", 401), ("null", 401)):
            headers = {**basic(":the-key"), "origin": origin}
            assert (await client.post("/v1/chat/completions", json=HELLO, headers=headers)).status_code == status, origin
        for site, status in (("same-origin", 200), ("none", 200), ("same-site", 401), ("cross-site", 401)):
            headers = {**basic(":the-key"), "sec-fetch-site": site, "origin": "https://behind.a.proxy"}
            assert (await client.post("/v1/chat/completions", json=HELLO, headers=headers)).status_code == status, site
        elsewhere = {"authorization": "Bearer the-key", "origin": "http://evil"}
        assert (await client.post("/v1/chat/completions", json=HELLO, headers=elsewhere)).status_code == 200, "no browser adds a key by itself"
