"""/health tells the truth: while the model is loaded, after a failed or stuck pass, when the engine has ended, at the end; and drain ends with 503s."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time

import httpx
import pytest

import lmc
from lmc.backend.base import Health
from lmc.serve import main, supervisor
from lmc.serve.app import create_app
from lmc.serve.main import listen, serve
from tests import waiting
from tests.serve.serving import HELLO, ByHand, events, running, settings, supervised, talk, talking, until
from tests.serve.test_process import wait_until_it_ends

pytestmark = pytest.mark.api
CHAT = "/v1/chat/completions"
BODY, STREAM = json.dumps(HELLO).encode(), json.dumps({**HELLO, "stream": True}).encode()


class Told(lmc.Mock):
    """A mock that says of itself what it is told to."""

    told = Health()

    def health(self):
        return self.told


@pytest.mark.parametrize("state", ("failed", "stuck", "ended", "closed"))
async def test_a_backend_that_does_not_answer_is_a_503_and_the_process_lives(state):
    mock = Told()
    async with talking(mock, api_keys=frozenset({"k"})) as client:
        for path in ("/health", "/health/ready", "/health/live"):
            assert (await client.get(path)).json() == {"status": "ok", "version": lmc.__version__}
        mock.told = Health(state, "a reason")
        for path in ("/health", "/health/ready"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["status"], answer.json()["reason"]) == (503, state, "a reason")
        assert (await client.get("/health/live")).status_code == 200
        mock.told = Health()
        assert (await client.get("/health")).status_code == 200


async def test_a_backend_that_does_not_say_how_it_is_is_stuck(monkeypatch):
    from lmc.serve import health

    monkeypatch.setattr(health, "_PATIENCE", 0.05)
    release = threading.Event()

    class Silent(lmc.Mock):
        def health(self):
            release.wait(60)
            return Health()

    async with talking(Silent()) as client:
        answer = await client.get("/health")
        release.set()
        assert (answer.status_code, answer.json()["status"]) == (503, "stuck")


def test_a_closed_backend_is_not_ready():
    mock = lmc.Mock()
    mock.close()
    assert talk(lambda client: client.get("/health"), mock).json()["status"] == "closed"


class Serving:
    """`serve` on a thread, whose backend opens when it is told to."""

    def __init__(self, backend, **how):
        self.go, self.outcome, self.ready = threading.Event(), [], []
        self.where = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.where.getsockname()[1]}"

        def open_backend():
            assert self.go.wait(60)
            if isinstance(backend, Exception):
                raise backend
            return backend

        def run():
            try:
                self.outcome.append(serve(open_backend, settings(), (), self.where, ready=self.ready.append, **{"drain": 1} | how))
            except Exception as error:
                self.outcome.append(error)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def get(self, path):
        for _ in range(12_000):
            try:
                return httpx.get(self.url + path, timeout=20)
            except httpx.ConnectError:
                time.sleep(0.005)
        raise AssertionError("nobody listens")


def test_while_the_model_is_loaded_everything_is_a_503():
    backend = Told()
    serving = Serving(backend, until_broken=True)
    assert (serving.get("/health/live").status_code, serving.get("/health/live").json()["status"]) == (200, "starting")
    for path in ("/health", "/health/ready"):
        assert (serving.get(path).status_code, serving.get(path).json()["status"]) == (503, "starting")
    answer = httpx.post(serving.url + CHAT, json=HELLO, timeout=20)
    assert (answer.status_code, answer.json()["error"]["type"], answer.headers["retry-after"]) == (503, "overloaded_error", "1")
    assert answer.headers["x-request-id"].startswith("req_") and serving.get("/health").headers["x-request-id"].startswith("req_")
    assert httpx.post(f"{serving.url}/v1/messages", json=HELLO, timeout=20).json()["type"] == "error", "as Anthropic's errors"
    assert serving.ready == []
    serving.go.set()
    waiting.until(lambda: serving.ready)
    assert serving.get("/health").status_code == 200 and httpx.post(serving.url + CHAT, json=HELLO, timeout=20).status_code == 200
    backend.told = Health("ended", "the device is gone")  # and a server that may be restarted ends
    serving.thread.join(60)
    assert serving.outcome == [backend.told]


def test_a_model_that_does_not_load_ends_the_server_with_its_error():
    error = lmc.ModelLoadError("no such model")
    serving = Serving(error)
    serving.go.set()
    serving.thread.join(60)
    assert serving.outcome == [error]


async def test_drain_ends_what_is_not_answered_with_503s():
    """Whole answers and streams; what is answered in time is answered."""
    mock = lmc.Mock(latency=60)
    async with running(mock) as app:
        whole, stream = ByHand(app, CHAT, BODY), ByHand(app, CHAT, STREAM)
        await until(lambda: len(mock.call_log) == 2 and stream.sent)
        app.state.entrance.close(0.05)
        late = ByHand(app, "/health", None)
        late.scope["method"] = "GET"
        await asyncio.gather(whole.task, stream.task, late.task)
        error = json.loads(whole.text)["error"]
        assert (whole.status, error["type"], set(error)) == (503, "overloaded_error", {"message", "type", "param", "code"})
        assert "shutting down" in error["message"]
        assert stream.status == 200 and events(stream.text)[-1]["error"]["type"] == "overloaded_error"
        assert (late.status, json.loads(late.text)["status"]) == (503, "draining")
        assert not mock._pending, "what was asked is cancelled"


def test_a_second_signal_ends_what_is_running_with_503s(monkeypatch, caplog):
    servers, make = [], main.DrainingServer
    monkeypatch.setattr(main, "DrainingServer", lambda *args, **how: servers.append(make(*args, **how)) or servers[0])
    mock, answers = lmc.Mock(latency=3600), []
    serving = Serving(mock, drain=3600)
    serving.go.set()
    waiting.until(lambda: serving.ready)
    asking = threading.Thread(target=lambda: answers.append(httpx.post(serving.url + CHAT, json=HELLO, timeout=60)), daemon=True)
    asking.start()
    waiting.until(lambda: mock.call_log)
    servers[0].handle_exit(signal.SIGINT, None)
    waiting.until(lambda: "Ctrl-C ends them now" in caplog.text)
    assert "1 request is running and may take 3600 s" in caplog.text and not answers
    servers[0].handle_exit(signal.SIGINT, None)
    asking.join(60)
    serving.thread.join(60)
    assert answers[0].status_code == 503 and "shutting down" in answers[0].text and serving.outcome == [None]


def test_a_long_drain_is_not_shown_in_the_log_as_a_frozen_server(monkeypatch):
    armed: list[float] = []
    monkeypatch.setattr(main.faulthandler, "dump_traceback_later", lambda seconds, **how: armed.append(seconds))
    app = create_app(lmc.Mock(), settings(), [])
    server = main.DrainingServer(app, app.state.entrance, drain=3600)
    server.should_exit = True
    server.run(sockets=[listen("127.0.0.1", 0)])
    assert armed == [3600 + main._FROZEN]


# -- restarting ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal
import lmc
from lmc.backend.base import Health
from lmc.backend.mock import Mock

@lmc.function
def who(s):
    return os.getpid()

@lmc.function
def dies(s):
    os.kill(os.getpid(), signal.SIGKILL)

@lmc.function
def breaks(s):
    Mock.health = lambda self: Health("ended", "CUDA error")
"""


def test_a_worker_that_is_killed_or_broken_is_replaced(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    targets = [f"{tmp_path}/program.py:{name}" for name in ("who", "dies", "breaks")]
    with supervised(*targets) as (process, url, said):
        first = url()
        pids = [httpx.post(f"{first}/programs/who", json={}, timeout=20).json()["return_value"]]
        for harm, reason in (("dies", "signal SIGKILL"), ("breaks", "a broken engine")):
            try:
                httpx.post(f"{first}/programs/{harm}", json={}, timeout=20)
            except httpx.HTTPError:
                assert harm == "dies"
            assert url() == first, "the socket stays"
            assert f"ended with {reason}; starting another" in "".join(said)
            pids.append(httpx.post(f"{first}/programs/who", json={}, timeout=20).json()["return_value"])
        assert len({*pids, process.pid}) == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_worker_ends_when_its_supervisor_is_killed(tmp_path):
    """It went on, and held the socket."""
    (tmp_path / "program.py").write_text(PROGRAM)
    with supervised(f"{tmp_path}/program.py:who") as (process, read, _):
        url = read()
        assert httpx.post(f"{url}/programs/who", json={}, timeout=20).json()["return_value"] != process.pid
        process.kill()
        assert process.stderr.read().count("Traceback") == 0, "to its end, which is the worker's, too"
        wait_until_it_ends(url)


def test_a_worker_that_ends_at_once_is_not_replaced_for_ever(capfd):
    with listen("127.0.0.1", 0) as where:
        said = list[str]()
        before = signal.getsignal(signal.SIGTERM)
        status = supervisor.supervise(["-c", f"raise SystemExit({supervisor.BROKEN})"], where, said.append, clock=lambda: 0.0)
        assert status == 1 and "giving up" in said[-1] and len(said) == 5
        assert supervisor.supervise(["-c", "raise SystemExit(2)"], where, said.append) == 2 and len(said) == 5
        assert signal.getsignal(signal.SIGTERM) is before
