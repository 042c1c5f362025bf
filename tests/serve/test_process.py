"""`lmc serve` as a process: it answers, lets running requests finish when it is told to stop, and says what is wrong."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.waiting import until

pytestmark = pytest.mark.api

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import lmc

@lmc.function
def slow(s, marker: str):
    open(marker, "w").close()
    open(marker + ".go").close()  # a pipe: until the test opens its other end
    s += "x" + lmc.gen("out", max_tokens=4)
    return s["out"]
"""


@contextmanager
def served(*arguments: str, scheme: str = "http", start: Sequence[str] = ("-m", "lmc"), address: str = "127.0.0.1"):
    """A process; its URL, read from what it says."""
    command = [sys.executable, *start, "serve", "--backend", "mock", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stderr is not None
    try:
        said = list[str]()
        while f" at {scheme}://{address}:" not in (line := process.stderr.readline()):
            assert line, said
            said.append(line)
        yield line.split(" at ")[1].strip(), process
    finally:
        process.kill()
        process.wait(60)
        process.stderr.close()


def wait_until_it_ends(url: str) -> None:
    """Wait until a server no longer listens."""

    def refuses() -> bool:
        try:
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60).close()
        except OSError:
            return True
        return False

    until(refuses, "it goes on listening")


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP])
def test_running_requests_finish_when_it_is_told_to_stop(tmp_path, told):
    (tmp_path / "program.py").write_text(PROGRAM)
    marker, go = tmp_path / "begun", tmp_path / "begun.go"
    os.mkfifo(go)
    with served(f"{tmp_path}/program.py:slow") as (url, process):
        assert process.stderr.readline() == f"pages for a browser: {url}/ (what it does), {url}/docs (its API)\n"
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        found: list[httpx.Response] = []

        def ask():
            found.append(httpx.post(f"{url}/programs/slow", json={"marker": str(marker)}, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: marker.exists() or not asking.is_alive())
        assert asking.is_alive()
        process.send_signal(told)
        wait_until_it_ends(url)
        go.open("w").close()
        asking.join(60)
        assert found[0].status_code == 200
        assert found[0].json()["return_value"]
        assert process.wait(60) == 0


FREEZING = """
import atexit, gc, sys
import lmc

kept = [{} for _ in range(50_000)]
atexit.register(lambda: print("to look at:", len(gc.get_objects()), "and not:", gc.get_freeze_count(), file=sys.stderr))

@lmc.function
def nothing(s):
    pass
"""


def said_when_told_to_stop(folder, program):
    (folder / "program.py").write_text(program)
    with served(f"{folder}/program.py:nothing") as (_, process):
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(60) == 0
    return said


def test_python_does_not_look_through_what_is_left_when_it_ends(tmp_path):
    said = said_when_told_to_stop(tmp_path, FREEZING)
    looked, left = map(int, re.findall(r"(?:to look at|and not): (\d+)", said))
    assert left > 50_000 > looked, said


LOADING = """
import atexit, sys, threading
import lmc, lmc.cli.serve

def load(*_, **__):
    print("loading at http://127.0.0.1:0", file=sys.stderr, flush=True)
    threading.Event().wait()

lmc.cli.serve.open_backend = load
atexit.register(print, "Python ends", file=sys.stderr)

@lmc.function
def nothing(s):
    pass
"""


def test_told_to_stop_while_the_model_is_loaded_it_does_not_wait_for_python_to_end_that_thread(tmp_path):
    assert said_when_told_to_stop(tmp_path, LOADING) == ""


def test_who_has_not_sent_a_whole_request_does_not_hold_the_end_up(tmp_path):
    """A stream goes on to its end; half a body, half a head and an idle connection are let go at once, long before the 30 s
    that they may take otherwise."""
    (tmp_path / "program.py").write_text(PROGRAM)
    marker, go = tmp_path / "begun", tmp_path / "begun.go"
    os.mkfifo(go)
    with served(f"{tmp_path}/program.py:slow") as (url, process), ExitStack() as open_:
        host, port = url.removeprefix("http://").split(":")
        half_body, half_head, idle = (open_.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(3))
        half_body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        half_head.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in idle.recv(1 << 16)
        found: list[str] = []

        def ask():
            found.append(httpx.post(f"{url}/programs/slow/stream", json={"marker": str(marker)}, timeout=60).text)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: marker.exists() or not asking.is_alive())
        assert asking.is_alive()
        process.send_signal(signal.SIGTERM)
        answer = half_body.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"shutting down" in answer
        go.open("w").close()
        asking.join(60)
        assert "event: done" in found[0]
        assert process.wait(60) == 0


def test_only_this_machine_is_listened_to_unless_told_otherwise():
    from lmc.serve.main import is_loopback

    with served() as (url, _):
        assert is_loopback(url.removeprefix("http://").rpartition(":")[0])
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "localhost", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "192.168.1.4", "::", "example.org")))


def test_an_ipv6_address_is_given_as_urls_have_it_or_bare():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    for host in ("::1", "[::1]"):
        with served("--host", host, address="[::1]") as (url, _):
            assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "99999"], "65535"),
        (["--host", "256.0.0.1"], "cannot listen on"),
        (["--api-keys", "/nonexistent"], "cannot read"),
        (["nothing.py:f"], "no such file"),
        (["--backend", "smolm2"], "did you mean smollm2"),
    ],
)
def test_what_cannot_be_served_is_said(arguments, said, capsys, monkeypatch):
    from lmc import cli

    monkeypatch.setattr("sys.argv", ["lmc", "serve", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_call_that_holds_the_interpreters_lock_is_shown_in_the_log(tmp_path):
    """Python's matcher lets nothing else run: no metrics, no time-out, no health."""
    (tmp_path / "frozen.py").write_text(
        "import re\nimport lmc\n\n@lmc.function\ndef frozen(s):\n    s += lmc.gen('out', max_tokens=4)\n    s['out']\n    re.match('(a+)+$', 'a' * 40 + 'b')\n"
    )
    start = "from lmc.serve import main; main._FROZEN = 0.5; import runpy; runpy.run_module('lmc', run_name='__main__', alter_sys=True)"
    with served(f"{tmp_path}/frozen.py:frozen", start=["-c", start]) as (url, process):
        def ask():
            with suppress(httpx.HTTPError):  # it is never answered
                httpx.post(f"{url}/programs/frozen", json={}, timeout=120)

        threading.Thread(target=ask).start()
        assert process.stderr is not None
        late = threading.Timer(60, process.kill)
        late.start()
        shown = any(line.rstrip().endswith('frozen.py", line 8 in frozen') for line in process.stderr)
        late.cancel()
        assert shown
