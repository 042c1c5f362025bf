"""The server's pages in a real browser: what it does now, its API to be tried; behind the key, at every width, in both schemes."""

from __future__ import annotations

import http.client
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import lmc
from lmc.serve.keys import Key, KeyLimits, digest_of
from tests.browser import CHROMIUM, MISSING, browser
from tests.serve.serving import on_a_port, talk, talking
from tests.test_pictures import FAINT, WIDE

pytestmark = pytest.mark.api

KEYS = [Key("all", digest_of("the-key"), KeyLimits())]
HEADERS = {"authorization": "Bearer the-key"}
_WAIT = """new Promise(done => { const look = () => (WANTED) && done(true);
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true}); look(); })"""


BROKEN = """[...document.querySelectorAll(".small td, .small th")].flatMap(cell => [...cell.childNodes].filter(n => n.nodeType === 3).flatMap(n =>
    [...n.data.matchAll(/\\S+/g)].filter(w => { const r = document.createRange(); r.setStart(n, w.index); r.setEnd(n, w.index + w[0].length);
        return r.getClientRects().length > 1; }).map(w => w[0])))"""
"""Words of a table that are broken into lines."""


@lmc.function
def greet(s: Any, name: str) -> Any:
    """Greets somebody."""
    s += f"Hello {name}:" + lmc.gen("text", max_tokens=4)
    return s["text"]


BEGAN = threading.Event()


@lmc.function
def waits(s: Any) -> None:
    """Waits until it is cancelled."""
    BEGAN.set()
    while True:
        time.sleep(0.01)


class Full(lmc.Mock):
    """A mock that says what an engine says of itself."""

    def server_info(self) -> dict[str, Any]:
        held = {"slots": 1000, "free_slots": 250, "evictable_tokens": 250, "waiting": 3, "running": 2, "programs": {"<b>greet</b>": 400}}
        return {**super().server_info(), **held}


async def test_an_address_for_people_and_programs() -> None:
    async with talking(programs=[greet], api_keys=KEYS) as client:
        data = await client.get("/")
        assert data.status_code == 401
        data = await client.get("/", headers=HEADERS)
        assert data.json()["name"] == "lmc" and "/docs" in data.json()["pages"] and "/runs" not in data.json()["pages"]
        for path in ("/", "/docs"):
            page = await client.get(path, headers={"accept": "text/html,*/*", **HEADERS})
            assert page.status_code == 200 and page.headers["content-type"].startswith("text/html") and page.headers["cache-control"] == "no-store"
            assert "greet" not in page.text and "mock" not in page.text


def test_metrics_have_memory_by_program() -> None:
    text = talk(lambda client: client.get("/metrics"), Full()).text
    assert 'lmc_engine_program_tokens{program="<b>greet</b>"} 400.0' in text


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_the_live_page_and_the_api_to_be_tried(tmp_path: Path) -> None:
    with on_a_port(Full(), programs=[greet, waits], api_keys=KEYS) as url, browser(tmp_path / "profile") as tab:
        for _ in range(3):
            httpx.post(f"{url}/programs/greet", json={"name": "Ann"}, headers=HEADERS).raise_for_status()
        httpx.post(f"{url}/programs/greet", json={"nobody": 1}, headers=HEADERS)
        client = http.client.HTTPConnection(url.removeprefix("http://"))
        client.request("POST", "/programs/waits", b"{}", {**HEADERS, "content-type": "application/json"})
        BEGAN.wait()
        client.close()  # it leaves, and nothing was refused
        while 'status="499"' not in httpx.get(f"{url}/metrics", headers=HEADERS).text:
            time.sleep(0.01)

        def until(what: str) -> None:
            assert tab.value(_WAIT.replace("WANTED", what))

        tab.visit(url.replace("//", "//ann:the-key@"))  # as if a person had typed it
        tab.visit(url)
        until("document.querySelector('#requests') && document.querySelector('#endpoints td')")
        assert tab.value("[document.cookie, sessionStorage.length, localStorage.length]") == ["", 0, 0], "no script can read the key"
        shown = tab.value("Object.fromEntries([...document.querySelectorAll('.card')].map(c => [c.id, c.textContent]))")
        assert "5 so far" in shown["requests"] and "3 waiting" in shown["queue"] and "1 request refused" in shown["errors"]
        assert tab.value("document.querySelector('#memory').textContent").endswith("<b>greet</b>400"), "names are text"
        assert tab.value("[...document.querySelectorAll('#memory .bar i')].map(i => i.style.width)") == ["50%", "25%"]
        rows = tab.value("[...document.querySelectorAll('#endpoints tr')].map(row => [...row.querySelectorAll('td')].slice(0, 4).map(c => c.textContent))")
        assert rows[-2:] == [["program greet", "4", "1", "0"], ["program waits", "1", "0", "0"]]

        for path, ready in (("/", "document.querySelector('#endpoints td')"), ("/docs", "document.querySelectorAll('.operation').length > 9")):
            for scheme in ("light", "dark"):
                for width in (400, 1600):
                    with tab.width(width):
                        tab.visit(url + path, scheme)
                        until(ready)
                        assert tab.value("document.documentElement.scrollWidth") <= width
                        assert tab.value(WIDE) == [] and tab.value(FAINT) == [] and tab.complaints == []
                        assert tab.value(BROKEN) == []
        tab.visit(url)
        until("document.querySelector('#requests polyline')?.getAttribute('points')")
        assert (
            tab.value(
                "[...document.querySelectorAll('.card polyline')].filter(line => !line.getAttribute('points').split(' ').at(-1).startsWith('120.0,')).length"
            )
            == 0
        ), "the newest on the right"
        tab.visit(f"{url}/docs")
        until("document.querySelectorAll('.operation').length > 9")
        assert all(request.startswith((url, "data:")) for request in tab.requests)

        tab.value("document.querySelector('.operation summary').click()")
        until("document.querySelector('.operation textarea')")
        assert tab.value("JSON.parse(document.querySelector('.operation textarea').value)") == {"name": "Hello"}
        assert "curl" in tab.value("document.querySelector('.operation .curl').textContent")
        tab.value("document.querySelector('.operation button').click()")
        until("document.querySelector('.operation [role=status]').textContent.startsWith('200')")
        assert tab.value("JSON.parse(document.querySelector('.operation .answer').textContent).variables.text")
        tab.value("$('search').value = 'messages'; $('search').oninput()")
        found = tab.value("[...document.querySelectorAll('.operation:not([hidden]) code')].map(c => c.textContent)")
        assert found == ["/v1/messages", "/v1/messages/count_tokens"]


@lmc.function
def refund(s: Any, order: str) -> Any:
    s += f"Refund {order}?" + lmc.gen("why", max_tokens=4)
    fine = lmc.interrupt(f"Refund the order {order}? " + "It is a long story. " * 20, bool)
    return fine, lmc.interrupt("Which reason?", {"enum": ["late", "x" * 80]})


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_questions_of_runs_can_be_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with on_a_port(lmc.Mock(), programs=[refund], journals=tmp_path / "runs") as url, browser(tmp_path / "profile") as tab:

        def until(what: str) -> None:
            assert tab.value(_WAIT.replace("WANTED", what))

        tab.visit(f"{url}/runs")
        until("$('said').textContent.includes('No run waits for an answer.')")
        assert httpx.post(f"{url}/programs/refund?run=order-{'7' * 40}", json={"order": "A"}).status_code == 202
        damaged = tmp_path / "runs" / "refund" / "damaged" / "journal"
        damaged.parent.mkdir()
        damaged.write_bytes(b"no journal")
        for scheme in ("light", "dark"):
            for width in (400, 1600):
                with tab.width(width):
                    tab.visit(f"{url}/runs", scheme)
                    until("document.querySelectorAll('.card').length == 2")
                    assert tab.value("document.documentElement.scrollWidth") <= width
                    assert tab.value(WIDE) == [] and tab.value(FAINT) == [] and tab.complaints == []
        assert "damaged" in tab.value("$('found').textContent")
        tab.value("[...document.querySelectorAll('button')].find(b => b.textContent == 'Yes').click()")
        until("$('said').textContent.includes('It has another question.')")
        tab.value("[...document.querySelectorAll('button')].find(b => b.textContent == 'late').click()")
        until("$('said').textContent.includes('It is over: [true,\"late\"]')")
    assert "failed" not in caplog.text, "waiting for a person is no failure"
