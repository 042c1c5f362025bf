"""Programs in worker processes: those that do not end are killed and replaced, others go on, and nothing stays with the engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

import lmc
from lmc.serve import workers
from lmc.serve.app import create_app
from lmc.serve.keys import Key, KeyLimits
from lmc.serve.workers import WorkerOptions
from lmc.userfiles import load_program
from tests import waiting
from tests.backend import engine_fakes
from tests.backend.gated import Gated, InPieces
from tests.serve.serving import HOUR, ByHand, events, metric, settings, until
from tests.serve.test_process import PROGRAM as SLOW
from tests.serve.test_process import served, wait_until_it_ends

try:
    import uvloop
except ImportError:
    uvloop = None

pytestmark = [pytest.mark.api, pytest.mark.skipif(not hasattr(os, "killpg"), reason="workers need process groups")]

FILE = '''
import asyncio, ctypes, os, re, subprocess, sys, threading, time
import lmc

def touch(marker):
    with open(marker + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.replace(marker + ".new", marker)

@lmc.function
def fine(s, name: str):
    s += name + lmc.gen("a", max_tokens=6)
    s += "more" + lmc.gen("b", max_tokens=6)
    return {"process": os.getpid(), "a": s["a"]}

@lmc.function
def wild(s, how: str, marker: str):
    s += "x" + lmc.gen("a", max_tokens=3)
    s += "y" + lmc.gen("open", max_tokens=3000)      # nobody reads it: an open request
    forks = s.fork(2)
    for f in forks:
        f += lmc.gen("branch", max_tokens=3000)
    s["a"]
    touch(marker)
    if how == "spin":
        while True:
            pass
    if how == "stubborn":
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
    if how == "number":
        10 ** 10 ** 8
    if how == "regex":
        re.match("(a|a)*b", "a" * 60)
    if how == "waits":
        forks[0]["branch"]
    if how == "eat":
        held = []
        while True:
            held.append(bytearray(b"x" * (1 << 20)))
    if how == "gulp":
        return len(bytearray(10 ** 14))
    if how == "child eats":
        subprocess.run([sys.executable, "-c", "held = []\\nwhile True: held.append(b'x' * (1 << 20))"])
    if how == "exit":
        os._exit(3)
    if how == "crash":
        ctypes.string_at(0)
    if how == "close":
        os.closerange(3, 256)
        time.sleep(600)
    if how == "raise":
        raise LookupError("nothing there")

@lmc.function
def closed(s, forever: bool):
    s += "x" + lmc.gen("a", max_tokens=3)
    s["a"]
    while forever:
        pass

@lmc.function
async def elsewhere(s, marker: str):
    s += "x" + lmc.gen("a", max_tokens=3)
    def spin():
        touch(marker)
        while True:
            pass
    await asyncio.to_thread(spin)

@lmc.function
def seeing(s, picture: str):
    s += lmc.user(lmc.image(picture)) + lmc.assistant(lmc.gen("a", max_tokens=6))

@lmc.function
def ahead(s, name: str):
    """The second answer is asked while the first is waited for."""
    s += name + lmc.gen("a", max_tokens=6)
    first = s["a"].strip()
    s += " and " + lmc.gen("b", max_tokens=6)
    return first + s["b"]
'''
NAMES = ("fine", "wild", "ahead", "closed", "elsewhere", "seeing")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "programs_of_workers.py"
    path.write_text(FILE)
    return path


@asynccontextmanager
async def running(file: Path, backend: Any, count: int = 1, memory: int | None = None, cpu: int | None = None, **limits: Any):
    targets = [f"{file}:{name}" for name in NAMES]
    options = WorkerOptions(targets, count, memory, cpu)
    app = create_app(backend, settings(**limits), [load_program(target) for target in targets], workers=options)
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture(autouse=True)
def new_loop() -> Any:
    """Loops such as the server would have."""
    return uvloop.new_event_loop if uvloop is not None else None


def begun(marker: Path) -> int:
    """The process of a program that has begun; 0 if none has."""
    return int(marker.read_text()) if marker.exists() else 0


def is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def ask(app: Any, path: str, **body: Any) -> ByHand:
    call = ByHand(app, path, json.dumps(body).encode())
    await call.task
    return call


def returned(call: ByHand) -> Any:
    assert call.status == 200, call.text
    return json.loads(call.text)["return_value"]


def told(call: ByHand) -> tuple[int | None, str]:
    return call.status, json.loads(call.text)["error"]["message"]


def idle(engine: Any) -> bool:
    held = engine.stats()
    return held["running"] == held["waiting"] == 0


async def test_programs_answer_as_in_the_servers_process(file):
    texts = []
    async with running(file, lmc.Mock()) as app:
        one = returned(await ask(app, "/programs/fine", name="x"))
        assert one["process"] != os.getpid()
        whole = ByHand(app, "/programs/fine", b'{"name": "x"}')
        await whole.task
        stream = await ask(app, "/programs/fine/stream", name="x")
        batch = await ask(app, "/programs/fine/batch", items=[{"name": n} for n in "abc"])
        wrong = await ask(app, "/programs/fine", nme="x")
        raised = await ask(app, "/programs/wild", how="raise", marker=str(file.parent / "raised"))
        texts = [whole.text, stream.text, batch.text]
        picture = await ask(app, "/programs/seeing", picture="/dev/zero")
        assert picture.status == 400 and "in a program that is served, a string is a data URL" in told(picture)[1]
        assert metric(app, "lmc_workers") == 1
        assert app.state.metrics.text().decode().count("lmc_workers_ended_total{") == 0, "none of these costs a process"
    mock = lmc.Mock()
    targets = [load_program(f"{file}:fine")]
    here = create_app(mock, settings(), targets)
    async with here.router.lifespan_context(here):
        expected = [
            await ask(here, "/programs/fine", name="x"), await ask(here, "/programs/fine/stream", name="x"),
            await ask(here, "/programs/fine/batch", items=[{"name": n} for n in "abc"]),
        ]  # fmt: skip
        said = await ask(here, "/programs/fine", nme="x")
    plain = lambda text: [_without_process(d) for d in (events(text) if text.startswith("event") else [json.loads(text)])]
    assert [plain(t)[-1] for t in texts] == [plain(e.text)[-1] for e in expected]
    assert (wrong.status, wrong.text) == (said.status, said.text) == (400, said.text)
    line = next(n for n, line in enumerate(FILE.splitlines(), 1) if "raise LookupError" in line)
    assert told(raised) == (500, f"programs_of_workers.py:{line}: LookupError: nothing there")


def _without_process(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _without_process(v) for k, v in data.items() if k not in ("process", "usage")}
    return [_without_process(each) for each in data] if isinstance(data, list) else data


@pytest.mark.parametrize("how", ("raise", "stubborn"))
async def test_what_a_worker_asked_is_counted_however_its_program_ends(file, tmp_path, how):
    """Where it is killed, too: what its requests cost is known here."""
    engine, _ = engine_fakes.backend()
    with engine:
        async with running(file, engine, api_keys=[Key.of("a", "alice", KeyLimits(tokens=1))], audit_log=tmp_path / "log") as app:
            ask = lambda: ByHand(app, "/programs/wild", json.dumps({"how": how, "marker": str(tmp_path / "begun")}).encode(), {"authorization": "Bearer a"})
            call = ask()
            await until(lambda: begun(tmp_path / "begun"), 60)
            if how != "raise":
                call.leave()
            await call.task
            tokens = lambda: metric(app, "lmc_prompt_tokens_total") + metric(app, "lmc_completion_tokens_total")
            await until(lambda: tokens() >= 5 and idle(engine), 60)
            again = ask()
            await again.task
            assert again.status == 429, again.text
            counted = tokens()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert sum(line.get("tokens", 0) + line.get("late_tokens", 0) for line in lines) == counted >= 5


async def test_variables_stream_as_they_grow(file):
    mock = InPieces()
    async with running(file, mock) as app:
        call = ByHand(app, "/programs/fine/stream", b'{"name": "x"}')
        await until(mock.begin)
        await until(lambda: "event: delta" in call.text)
        mock.open()
        await call.task
        kinds = [line.removeprefix("event: ") for line in call.text.splitlines() if line.startswith("event: ")]
        assert kinds.count("delta") > 2 and kinds.count("value") == 2 and kinds[-1] == "done"


@pytest.mark.parametrize(
    "how, path", [("spin", ""), ("stubborn", ""), ("number", ""), ("regex", ""), ("number", "/stream"), ("spin", "/batch")], ids=lambda x: x.strip("/") or "run"
)
async def test_a_program_that_spins_is_killed_when_its_client_leaves(file, tmp_path, how, path):
    engine, _ = engine_fakes.backend()
    with engine:
        async with running(file, engine, count=2) as app:
            marker = tmp_path / "begun"
            body = {"how": how, "marker": str(marker)}
            call = ByHand(app, f"/programs/wild{path}", json.dumps({"items": [body]} if path == "/batch" else body).encode())
            await until(lambda: begun(marker) or call.task.done(), 60)
            assert not call.task.done(), call.text
            process = begun(marker)
            beside = returned(await ask(app, "/programs/fine", name="x"))["process"]
            assert beside != process, "others go on"
            call.leave()
            await call.task
            await until(lambda: not is_there(process), 60)
            await until(lambda: metric(app, 'lmc_workers_ended_total{why="abandoned"}') == 1 and metric(app, "lmc_workers") == 2, 60)
            await until(lambda: idle(engine), 60)
            found = {returned(each)["process"] for each in await asyncio.gather(*[ask(app, "/programs/fine", name="x") for _ in range(6)])}
            assert process not in found
        await until(lambda: idle(engine) and engine.stats()["pinned"] == 0, 60)
        engine.check()


async def test_a_program_begins_though_what_is_behind_its_answer_never_ends(file, tmp_path):
    """While it waits for the answer, what comes next is evaluated: not a search that may go on for ever."""
    async with running(file, lmc.Mock(latency=lambda ask: 1.0 if ask.name == "a" else 0.0)) as app:
        marker = tmp_path / "begun"
        call = ByHand(app, "/programs/wild", json.dumps({"how": "regex", "marker": str(marker)}).encode())
        await until(lambda: begun(marker), 60)
        call.leave()
        await call.task


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
@pytest.mark.parametrize("how", ("", "/batch"))
async def test_a_program_that_calls_nothing_unknown_is_killed_as_well(file, how):
    mock = lmc.Mock()
    async with running(file, mock) as app:
        process = returned(await ask(app, "/programs/fine", name="x"))["process"]
        asked, used = len(mock.call_log), ticks(process)
        body = {"items": [{"forever": True}, {"forever": False}]} if how else {"forever": True}
        call = ByHand(app, f"/programs/closed{how}", json.dumps(body).encode())
        await until(lambda: len(mock.call_log) > asked and ticks(process) > used + 50, 90)  # half a second: it spins
        call.leave()
        await call.task
        await until(lambda: metric(app, 'lmc_workers_ended_total{why="abandoned"}') == 1, 60)
        assert not is_there(process)


async def test_a_thread_that_a_program_has_started_is_killed_as_well(file, tmp_path):
    async with running(file, lmc.Mock()) as app:
        marker = tmp_path / "begun"
        call = ByHand(app, "/programs/elsewhere", json.dumps({"marker": str(marker)}).encode())
        await until(lambda: begun(marker), 60)
        call.leave()
        await call.task
        await until(lambda: metric(app, 'lmc_workers_ended_total{why="abandoned"}') == 1, 60)
        assert not is_there(begun(marker))


def ticks(process: int) -> int:
    """Hundredths of a second that a process has computed."""
    return sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))


async def test_a_program_that_waits_for_the_model_is_cancelled_and_its_worker_stays(file, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 60.0)  # however slow the machine is
    mock = lmc.Mock(latency=lambda ask: 60 if ask.name == "branch" else 0)
    async with running(file, mock) as app:
        for turn in range(2):
            marker = tmp_path / f"begun{turn}"
            call = ByHand(app, "/programs/wild", json.dumps({"how": "waits", "marker": str(marker)}).encode())
            await until(lambda m=marker: begun(m), 60)
            call.leave()
            await call.task
            await until(lambda: not mock._pending and metric(app, "lmc_workers_busy") == 0, 60)
        assert begun(tmp_path / "begun0") == begun(tmp_path / "begun1")


@pytest.mark.parametrize("path", ("", "/stream"), ids=("run", "stream"))
async def test_drain_and_the_time_out_end_a_program(file, tmp_path, time_limits, path):
    async with running(file, lmc.Mock(), timeout=HOUR) as app:
        for end, kind in ((app.state.entrance.over.set, "overloaded_error"), (time_limits.end, "timeout_error")):
            marker = tmp_path / kind
            call = ByHand(app, f"/programs/wild{path}", json.dumps({"how": "spin", "marker": str(marker)}).encode())
            await until(lambda m=marker: begun(m), 60)
            end()
            await call.task
            app.state.entrance.over.clear()
            error = events(call.text)[-1] if path else json.loads(call.text)
            assert error["error"]["type"] == kind
            await until(lambda m=marker: not is_there(begun(m)), 60)


ENDS = {
    "exit": ("wild ended its process (status 3)", "exit"),
    "crash": ("wild ended its process with signal SIGSEGV", "signal"),
    "close": ("wild closed the files that its process needs, and was ended", "mute"),
    "eat": ("wild used more memory than this server allows (--worker-memory), and was ended", "memory"),
    "child eats": ("wild used more memory than this server allows (--worker-memory), and was ended", "memory"),
}


@pytest.mark.parametrize("how", ENDS)
async def test_a_program_that_ends_its_process_or_eats_memory_is_said(file, tmp_path, how):
    if "eat" in how and not Path("/proc/self/statm").exists():
        pytest.skip("there is no /proc")
    engine, _ = engine_fakes.backend()
    with engine:
        async with running(file, engine, count=2, memory=200 << 20) as app:
            marker = tmp_path / "begun"
            call = ByHand(app, "/programs/wild", json.dumps({"how": how, "marker": str(marker)}).encode())
            beside = await asyncio.gather(*[ask(app, "/programs/fine", name="x") for _ in range(4)])
            await call.task
            assert told(call) == (500, ENDS[how][0])
            assert json.loads(call.text)["error"]["type"] == "program_error"
            for each in beside:
                returned(each)
            await until(lambda: metric(app, f'lmc_workers_ended_total{{why="{ENDS[how][1]}"}}') == 1 and metric(app, "lmc_workers") == 2, 60)
            assert not is_there(begun(marker))
            await until(lambda: idle(engine), 60)
            returned(await ask(app, "/programs/fine", name="x"))
            await until(lambda: metric(app, "lmc_workers_busy") == 0, 60)
        await until(lambda: engine.stats()["pinned"] == 0, 60)
        engine.check()


async def test_a_process_that_has_ended_is_not_said_to_be_mute(file, tmp_path, monkeypatch):
    """Its connection closes first, and on a busy machine its end is seen long after that."""
    async with running(file, lmc.Mock()) as app:
        monkeypatch.setattr(workers, "GRACE", 0.0)
        assert told(await ask(app, "/programs/wild", how="exit", marker=str(tmp_path / "begun"))) == (500, ENDS["exit"][0])


async def test_far_too_much_memory_at_once_is_pythons_memory_error(file, tmp_path):
    async with running(file, lmc.Mock(), memory=200 << 20) as app:
        call = await ask(app, "/programs/wild", how="gulp", marker=str(tmp_path / "m"))
        assert call.status == 500 and "MemoryError" in told(call)[1]
        assert metric(app, "lmc_workers") == 1


async def test_processor_time_is_limited_for_each_request(file, tmp_path):
    async with running(file, lmc.Mock(), cpu=1) as app:
        call = await ask(app, "/programs/wild", how="spin", marker=str(tmp_path / "m"))
        assert told(call) == (500, "wild used more processor time than this server allows (--worker-cpu), and was ended")
        returned(await ask(app, "/programs/fine", name="x"))


async def test_requests_wait_for_a_worker(file):
    async with running(file, lmc.Mock(latency=0.02), count=2) as app:
        found = await asyncio.gather(*[ask(app, "/programs/fine", name=str(i)) for i in range(12)])
        assert len({returned(each)["process"] for each in found}) == 2


@pytest.mark.parametrize("in_workers", (False, True))
async def test_what_programs_ask_ahead_is_counted(file, in_workers):
    mock = Gated()
    target = f"{file}:ahead"
    app = create_app(mock, settings(), [load_program(target)], workers=WorkerOptions([target], 1) if in_workers else None)
    async with app.router.lifespan_context(app):
        call = ByHand(app, "/programs/ahead", b'{"name": "x"}')
        await until(lambda: len(mock._pending) == 2)
        mock.open()
        await call.task
        assert call.status == 200
        await until(lambda: metric(app, "lmc_ahead_used_total") == 1)
        assert metric(app, "lmc_ahead_asked_total") == 1
        assert metric(app, "lmc_ahead_wasted_total") == metric(app, "lmc_ahead_wasted_tokens_total") == 0


FRAGILE = """
import os, lmc

if os.environ.get("LMC_TEST_WORKER"):
    raise OSError("the index is not there")

@lmc.function
def f(s, end: bool = False):
    s += "x"
    if end:
        os._exit(1)
    return "fine"
"""


@pytest.fixture
def fragile(tmp_path):
    path = tmp_path / "fragile_program.py"
    path.write_text(FRAGILE)
    return f"{path}:f"


async def test_a_worker_that_does_not_begin_is_said_when_the_server_starts(fragile, monkeypatch):
    app = create_app(lmc.Mock(), settings(), [load_program(fragile)], workers=WorkerOptions([fragile], 2))
    monkeypatch.setenv("LMC_TEST_WORKER", "1")
    with pytest.raises(lmc.ProgramError, match="a worker did not start: OSError: the index is not there"):
        async with app.router.lifespan_context(app):
            pass


async def test_workers_that_do_not_begin_any_more_are_503s_until_they_do(fragile, monkeypatch):
    app = create_app(lmc.Mock(), settings(), [load_program(fragile)], workers=WorkerOptions([fragile], 1))
    async with app.router.lifespan_context(app):
        monkeypatch.setenv("LMC_TEST_WORKER", "1")
        assert (await ask(app, "/programs/f", end=True)).status == 500
        assert told(await ask(app, "/programs/f")) == (503, "f cannot be run now: OSError: the index is not there")
        assert (await ask(app, "/v1/completions", prompt="x")).status == 200
        monkeypatch.delenv("LMC_TEST_WORKER")
        await until(lambda: metric(app, "lmc_workers") == 1, 60)
        assert returned(await ask(app, "/programs/f")) == "fine"


def test_running_programs_finish_when_the_server_is_told_to_stop(file, tmp_path):
    (tmp_path / "program.py").write_text(SLOW)
    marker, go = tmp_path / "begun", tmp_path / "begun.go"
    os.mkfifo(go)
    with served("--workers", "1", f"{tmp_path}/program.py:slow") as (url, process):
        found: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: found.append(httpx.post(f"{url}/programs/slow", json={"marker": str(marker)}, timeout=60)))
        asking.start()
        waiting.until(marker.exists)
        process.send_signal(signal.SIGTERM)
        wait_until_it_ends(url)
        go.open("w").close()
        asking.join(60)
        assert found[0].status_code == 200 and found[0].json()["return_value"]
        assert process.wait(30) == 0


def test_workers_end_with_their_server(file, tmp_path):
    """Also when it is killed, and when a program lets nothing else of its process run."""
    marker = tmp_path / "begun"
    with served("--workers", "1", f"{file}:wild", f"{file}:fine") as (url, process):
        asking = subprocess.Popen(
            [sys.executable, "-c", "import httpx, sys; httpx.post(sys.argv[1], json={'how': 'number', 'marker': sys.argv[2]}, timeout=60)",
                f"{url}/programs/wild", str(marker)],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            waiting.until(lambda: begun(marker))
            assert httpx.get(f"{url}/health", timeout=30).status_code == 200
            process.send_signal(signal.SIGKILL)
            process.wait(20)
            waiting.until(lambda: not is_there(begun(marker)))
        finally:
            asking.kill()
            asking.wait(20)


def test_a_command_whose_workers_have_nothing_to_do_is_refused(capsys, monkeypatch):
    from lmc import cli

    monkeypatch.setattr("sys.argv", ["lmc", "serve", "--workers", "2", "--backend", "mock"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and "none is named" in capsys.readouterr().err


async def test_a_process_that_cannot_be_started_is_tried_again(fragile, monkeypatch):
    app = create_app(lmc.Mock(), settings(), [load_program(fragile)], workers=WorkerOptions([fragile], 1))
    async with app.router.lifespan_context(app):
        real = asyncio.create_subprocess_exec
        failing = AsyncMock(side_effect=OSError(12, "Cannot allocate memory"))
        monkeypatch.setattr(asyncio, "create_subprocess_exec", failing)
        assert (await ask(app, "/programs/f", end=True)).status == 500
        assert told(await ask(app, "/programs/f")) == (503, "f cannot be run now: no process can be started: Cannot allocate memory")
        monkeypatch.setattr(asyncio, "create_subprocess_exec", real)
        assert returned(await asyncio.wait_for(_answered(app), 60)) == "fine"


async def _answered(app: Any) -> ByHand:
    while (call := await ask(app, "/programs/f")).status == 503:
        await asyncio.sleep(0.01)
    return call
