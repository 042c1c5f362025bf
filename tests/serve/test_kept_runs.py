"""Runs with an id in worker processes: asked, answered, resumed, left by their clients, killed; what a tool did is never lost and never done twice unasked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.serve import workers as crew
from lmc.serve.app import create_app
from lmc.serve.workers import WorkerOptions
from lmc.userfiles import load_program
from tests.backend.gated import Gated
from tests.serve.serving import ByHand, settings, until

pytestmark = [pytest.mark.api, pytest.mark.skipif(not hasattr(os, "killpg"), reason="workers need process groups")]

FILE = '''
import os, time
import lmc

@lmc.host
def pay(to, marks):
    """Begins, waits until somebody lets it, and has paid."""
    with open(f"{marks}/begun", "a") as file:
        file.write(f"{os.getpid()}\\n")
    while not os.path.exists(f"{marks}/go"):
        if os.path.exists(f"{marks}/spin"):
            open(f"{marks}/spins", "w").close()
            while True:
                pass
        time.sleep(0.005)
    with open(f"{marks}/paid", "a") as file:
        file.write(to + "\\n")
    return f"paid {to}"

@lmc.function
def order(s, to: str, marks: str):
    s += f"Pay {to}?" + lmc.gen("a", max_tokens=3)
    if not lmc.interrupt(f"Pay {to}?", bool):
        return "not paid"
    done = pay(to, marks)
    s += done + lmc.gen("b", max_tokens=3)
    return done, os.getpid()
'''


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "orders.py").write_text(FILE)
    return f"{tmp_path / 'orders.py'}:order"


@asynccontextmanager
async def server(target: str, folder: Path, backend: Any = None, count: int = 1, **limits: Any):
    app = create_app(
        lmc.Mock() if backend is None else backend, settings(journals=folder / "runs", **limits), [load_program(target)], workers=WorkerOptions([target], count)
    )
    async with app.router.lifespan_context(app):
        yield app


def post(app: Any, path: str, **body: Any) -> ByHand:
    path, _, query = path.partition("?")
    call = ByHand(app, path, json.dumps(body).encode())
    call.scope["query_string"] = query.encode()
    return call


async def asked(app: Any, path: str, **body: Any) -> tuple[int | None, Any]:
    call = post(app, path, **body)
    await call.task
    return call.status, json.loads(call.text)


def begun(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "begun").read_text().split()] if (folder / "begun").exists() else []


def status(folder: Path) -> str:
    return lmc.Journal(folder / "runs" / "order" / "r1").runs()[0].status


ANSWER = "/programs/order/runs/r1/answers"


async def begin(app: Any, folder: Path) -> None:
    code, found = await asked(app, "/programs/order?run=r1", to="Ann", marks=str(folder))
    assert code == 202 and found["questions"][0]["question"] == "Pay Ann?", found


async def test_a_run_is_asked_answered_and_resumed_by_other_servers(target: str, tmp_path: Path) -> None:
    async with server(target, tmp_path) as app:
        await begin(app, tmp_path)
    (tmp_path / "go").touch()
    mock = lmc.Mock()
    async with server(target, tmp_path, mock, 2) as app:
        assert (await asked(app, ANSWER, answer="yes"))[0] == 400
        code, found = await asked(app, ANSWER, answer=True)
        assert code == 200 and found["run"] == "r1" and found["return_value"][0] == "paid Ann", found
        assert found["return_value"][1] != os.getpid() and len(mock.call_log) == 1, "in a worker, and the first answer is known"
        again = await asked(app, "/programs/order?run=r1", to="Ann", marks=str(tmp_path))
        assert again[1]["return_value"][0] == "paid Ann"
        other = await asked(app, "/programs/order?run=r1", to="Bob", marks=str(tmp_path))
        assert other[0] == 409 and "other arguments" in other[1]["error"]["message"]
    assert (tmp_path / "paid").read_text() == "Ann\n" and status(tmp_path) == "finished"


async def test_a_journal_that_a_worker_cannot_write_is_no_fault_of_the_request(target: str, tmp_path: Path) -> None:
    workers = tmp_path / "limited.py"
    workers.write_text(FILE + "\nimport resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n")  # of each file that a worker writes
    options = WorkerOptions([f"{workers}:order"], 1)
    app = create_app(lmc.Mock(), settings(journals=tmp_path / "runs"), [load_program(target)], workers=options)
    async with app.router.lifespan_context(app):
        code, found = await asked(app, "/programs/order?run=r1", to="Ann", marks=str(tmp_path))
    assert code == 500 and found["error"]["message"] == "journal='r1': File too large" and found["error"]["type"] == "server_error", found


async def test_a_client_that_leaves_does_not_leave_a_doubt_behind(target: str, tmp_path: Path) -> None:
    """The call that goes on is waited for, longer than a program that computes."""
    async with server(target, tmp_path) as app:
        await begin(app, tmp_path)
        call = post(app, ANSWER, answer=True)
        await until(lambda: begun(tmp_path), 60)
        call.leave()
        await call.task
        await asyncio.sleep(crew.GRACE * 1.5)  # what computes would be killed by now
        assert status(tmp_path) == "in doubt"  # as long as it goes on
        busy = post(app, "/programs/order?run=r1", to="Ann", marks=str(tmp_path))  # the only worker is not free yet
        (tmp_path / "go").touch()
        await busy.task
        assert busy.status == 200 and json.loads(busy.text)["return_value"] == ["paid Ann", begun(tmp_path)[0]], busy.text
    assert (tmp_path / "paid").read_text() == "Ann\n" and len(begun(tmp_path)) == 1


async def test_a_journal_has_one_writer(target: str, tmp_path: Path) -> None:
    async with server(target, tmp_path, count=2) as app:
        await begin(app, tmp_path)
        first = post(app, ANSWER, answer=True)
        await until(lambda: begun(tmp_path), 60)
        code, found = await asked(app, "/programs/order?run=r1", to="Ann", marks=str(tmp_path))
        assert (code, found["error"]["code"]) == (409, "journal") and "in use" in found["error"]["message"]
        (tmp_path / "go").touch()
        await first.task
        assert first.status == 200, first.text
    assert (tmp_path / "paid").read_text() == "Ann\n"


@pytest.mark.parametrize("how", ("spins", "is killed"))
async def test_a_call_that_is_killed_is_in_doubt_until_a_person_decides(target: str, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "KEPT", 1.0)
    async with server(target, tmp_path) as app:
        await begin(app, tmp_path)
        call = post(app, ANSWER, answer=True)
        await until(lambda: begun(tmp_path), 60)
        if how == "spins":
            (tmp_path / "spin").touch()
            await until((tmp_path / "spins").exists, 60)
            call.leave()
            await call.task
        else:
            os.kill(begun(tmp_path)[0], signal.SIGKILL)
            await call.task
            assert call.status == 500 and "SIGKILL" in call.text
        (tmp_path / "go").touch()
        (tmp_path / "spin").unlink(missing_ok=True)
        code, found = await asked(app, "/programs/order?run=r1", to="Ann", marks=str(tmp_path))
        assert (code, found["error"]["code"]) == (409, "in_doubt"), found
        assert not (tmp_path / "paid").exists()
        lmc.Journal(tmp_path / "runs" / "order" / "r1").retry()
        code, found = await asked(app, "/programs/order?run=r1", to="Ann", marks=str(tmp_path))
        assert code == 200 and found["return_value"][0] == "paid Ann"
    assert (tmp_path / "paid").read_text() == "Ann\n"


async def test_in_the_servers_own_process_a_call_may_end_as_well(target: str, tmp_path: Path) -> None:
    backend = Gated(behind=1)  # what is asked behind the call is not answered: the run cannot end before it hears that its client has left
    app = create_app(backend, settings(journals=tmp_path / "runs"), [load_program(target)])
    async with app.router.lifespan_context(app):
        await begin(app, tmp_path)
        call = post(app, ANSWER, answer=True)
        await until(lambda: begun(tmp_path), 60)
        call.leave()
        await call.task
        (tmp_path / "go").touch()
        await until(lambda: status(tmp_path) == "cut off", 60)
        backend.open()
        end = time.monotonic() + 60
        while (found := await asked(app, "/programs/order?run=r1", to="Ann", marks=str(tmp_path)))[0] == 409:  # its journal is being closed
            assert time.monotonic() < end
        assert found[1]["return_value"][0] == "paid Ann", found
    assert (tmp_path / "paid").read_text() == "Ann\n" and len(begun(tmp_path)) == 1
