"""Runs that ask people, through the server: kept under an id, answered, resumed; also by a server that knows nothing but the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import lmc
from lmc.serve.keys import Key, KeyLimits, digest_of
from tests.browser import CHROMIUM, MISSING, browser
from tests.serve.serving import on_a_port, post, talk, talking

pytestmark = pytest.mark.api

SENT: list[str] = []


def send(x: str) -> str:
    SENT.append(x)
    return f"sent {x}"


@lmc.function
def mail(s: Any, to: str) -> Any:
    s += f"To {to}:" + lmc.gen("text", max_tokens=4)
    if not lmc.interrupt(f"Send to {to}?", bool):
        return "not sent"
    return send(to), lmc.interrupt("A note?")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SENT.clear()


def test_a_run_asks_and_goes_on_with_the_answers_in_other_servers(tmp_path: Path) -> None:
    how: dict[str, Any] = {"programs": [mail], "journals": tmp_path}
    first = post("/programs/mail?run=a1&seed=1", {"to": "Ann"}, **how)
    asked = first.json()
    assert first.status_code == 202 and asked["status"] == "waiting" and not SENT
    assert [(q["question"], q["schema"]) for q in asked["questions"]] == [("Send to Ann?", '{"type": "boolean"}')]
    again = post("/programs/mail?run=a1", {"to": "Ann"}, **how)  # asked again: the same question, and no model is
    assert again.status_code == 202 and again.json()["questions"] == asked["questions"]

    mock = lmc.Mock()
    wrong = post("/programs/mail/runs/a1/answers", {"answer": "yes"}, **how)
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "answer" and not SENT
    assert wrong.json()["error"]["message"] == "\"yes\" is not an answer to 'Send to Ann?': / must satisfy 'type': \"boolean\""
    second = post("/programs/mail/runs/a1/answers", {"answer": True}, mock, **how)
    assert second.status_code == 202 and second.json()["questions"][0]["question"] == "A note?" and SENT == ["Ann"]
    third = post("/programs/mail/runs/a1/answers", {"answer": "thanks"}, mock, **how)
    assert (third.status_code, third.json()["return_value"], third.json()["run"]) == (200, ["sent Ann", "thanks"], "a1") and SENT == ["Ann"]
    assert not mock.call_log
    assert talk(lambda client: client.get("/programs/mail/runs"), **how).json()["runs"][0]["status"] == "finished"
    late = post("/programs/mail/runs/a1/answers", {"answer": "x"}, **how)
    assert late.status_code == 409 and "no question" in late.json()["error"]["message"]


def test_a_folder_that_cannot_be_made_and_a_full_disk_are_no_fault_of_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmc.durable import room

    (tmp_path / "file").touch()
    none = post("/programs/mail?run=a", {"to": "Ann"}, programs=[mail], journals=tmp_path / "file" / "runs")
    assert none.status_code == 500 and "its folder for them cannot be made" in none.json()["error"]["message"]

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room, "_allocate", full)
    kept = post("/programs/mail?run=a", {"to": "Ann"}, programs=[mail], journals=tmp_path)
    assert kept.status_code == 507 and "No space left on device" in kept.json()["error"]["message"]


def test_a_journal_that_cannot_be_begun_is_no_fault_of_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmc.durable import files

    write = files.write_all
    how: dict[str, Any] = {"programs": [mail], "journals": tmp_path / "runs"}
    for code, status in ((28, 507), (5, 500)):
        monkeypatch.setattr(files, "write_all", lambda file, data, code=code: (_ for _ in ()).throw(OSError(code, "The disk says no")))
        begun = post("/programs/mail?run=a", {"to": "Ann"}, **how)
        assert begun.status_code == status and begun.json()["error"]["message"].endswith("journal='a': The disk says no")
        status = talk(lambda client: client.get("/programs/mail/runs/a"), **how)
        assert status.json()["status"] == "unreadable" and str(tmp_path) not in status.text
    monkeypatch.setattr(files, "write_all", write)
    assert post("/programs/mail?run=a", {"to": "Ann"}, **how).status_code == 202, "it begins when there is room again"


def test_a_run_that_is_killed_before_its_first_record_is_cut_off(tmp_path: Path) -> None:
    how: dict[str, Any] = {"programs": [mail], "journals": tmp_path}
    post("/programs/mail?run=a", {"to": "Ann"}, **how)
    journal = tmp_path / "mail" / "a" / "journal"
    journal.write_bytes(journal.read_bytes().partition(b"\n")[0] + b"\n")
    journal.with_name("journal.synced").write_bytes(b"")
    assert [r["status"] for r in talk(lambda client: client.get("/programs/mail/runs"), **how).json()["runs"]] == ["cut off"]
    early = post("/programs/mail/runs/a/answers", {"answer": True}, **how)
    assert early.status_code == 409 and early.json()["error"]["message"] == "a: no question waits for an answer"
    assert post("/programs/mail?run=a", {"to": "Ann"}, **how).json()["status"] == "waiting"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    how: dict[str, Any] = {"programs": [mail], "journals": tmp_path / "runs"}
    assert post("/programs/mail?run=../x", {"to": "Ann"}, **how).status_code == 400
    assert post("/programs/mail?run=x", {"to": "Ann"}, programs=[mail]).status_code == 400  # no --journals
    assert post("/programs/mail/batch?run=x", {"items": [{"to": "Ann"}]}, **how).status_code == 400
    assert post("/programs/mail/runs/none/answers", {"answer": True}, **how).status_code == 404
    assert talk(lambda client: client.get("/programs/mail/runs"), **how).json() == {"runs": []}
    assert not (tmp_path / "x").exists()
    post("/programs/mail?run=b", {"to": "Ann"}, **how)
    other = post("/programs/mail?run=b", {"to": "Bob"}, **how)
    assert other.status_code == 409 and "other arguments: those of the run have changed" in other.json()["error"]["message"]
    unnamed = post("/programs/mail", {"to": "Ann"}, **how)
    assert unnamed.status_code == 500 and "under lmc serve --journals with an id (?run=ID)" in unnamed.json()["error"]["message"]
    (tmp_path / "runs" / "mail" / "c").mkdir()
    (tmp_path / "runs" / "mail" / "c" / "journal").write_bytes(b"no journal\n")
    broken = post("/programs/mail?run=c", {"to": "Ann"}, **how)
    listed = talk(lambda client: client.get("/programs/mail/runs"), **how)
    assert broken.status_code == 409 and [run["status"] for run in listed.json()["runs"]] == ["waiting", "unreadable"]
    for told in (other, broken, listed):
        assert str(tmp_path) not in told.text, "folders are the server's own"


def test_an_effect_in_doubt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(x: str) -> str:
        SENT.append(x)
        raise SystemExit

    how: dict[str, Any] = {"programs": [mail], "journals": tmp_path}
    post("/programs/mail?run=c", {"to": "Ann"}, **how)
    monkeypatch.setitem(globals(), "send", ends)
    ends.__qualname__ = "send"
    post("/programs/mail/runs/c/answers", {"answer": True}, **how)
    assert SENT == ["Ann"]
    found = post("/programs/mail?run=c", {"to": "Ann"}, **how)
    assert (found.status_code, found.json()["error"]["code"]) == (409, "in_doubt") and SENT == ["Ann"]
    lmc.Journal(tmp_path / "mail" / "c").resolve("sent by hand")
    assert post("/programs/mail?run=c", {"to": "Ann"}, **how).json()["questions"][0]["question"] == "A note?"


async def test_runs_belong_to_those_who_may_run_the_program_and_the_page_holds_nothing(tmp_path: Path) -> None:
    keys = [Key("all", digest_of("all"), KeyLimits()), Key("few", digest_of("few"), KeyLimits(programs=frozenset({"other"})))]
    async with talking(programs=[mail], journals=tmp_path, api_keys=keys) as client:
        await client.post("/programs/mail?run=secret", json={"to": "Ann"}, headers={"authorization": "Bearer all"})
        for path in ("/programs/mail/runs", "/programs/mail/runs/secret"):
            assert (await client.get(path)).status_code == 401
            assert (await client.get(path, headers={"authorization": "Bearer few"})).status_code == 403
            assert "Send to Ann?" in (await client.get(path, headers={"authorization": "Bearer all"})).text
        assert (await client.get("/runs/programs", headers={"authorization": "Bearer few"})).json() == {"programs": []}
        assert (await client.get("/runs")).status_code == 401
        page = await client.get("/runs", headers={"authorization": "Bearer few"})
        assert page.status_code == 200 and "text/html" in page.headers["content-type"]
        assert "Ann" not in page.text and "secret" not in page.text and "mail" not in page.text


_WAIT = """new Promise(done => { const look = () => document.body.textContent.includes(WANTED) && done(true);
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true}); look(); })"""


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_a_person_answers_on_the_page(tmp_path: Path) -> None:
    keys = [Key("all", digest_of("the-key"), KeyLimits())]
    with on_a_port(programs=[mail], journals=tmp_path / "runs", api_keys=keys) as url, browser(tmp_path / "profile") as tab:
        asked = httpx.post(f"{url}/programs/mail?run=p1", json={"to": "<b>Ann</b>"}, headers={"authorization": "Bearer the-key"})
        assert asked.status_code == 202

        def sees(text: str) -> None:
            assert tab.value(_WAIT.replace("WANTED", repr(text)))

        tab.visit(url.replace("//", "//ann:the-key@"))  # as if a person had typed it
        tab.visit(f"{url}/runs")
        sees("Send to <b>Ann</b>?")  # as text
        tab.value("[...document.querySelectorAll('section button')].find(b => b.textContent === 'Yes').click()")
        sees("A note?")
        assert SENT == ["<b>Ann</b>"]
        tab.value("document.querySelector('textarea').value = 'thanks'; document.querySelector('section button').click()")
        sees('It is over: ["sent <b>Ann</b>","thanks"]')
        assert all(request.startswith((url, "data:")) for request in tab.requests)
    assert lmc.Journal(tmp_path / "runs" / "mail" / "p1").runs()[0].status == "finished"
