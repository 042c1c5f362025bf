"""`lmc serve` as a process: it answers, lets running requests finish when it is told to stop, and says what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.api

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import time
import lmc

@lmc.function
def slow(s, marker: str):
    open(marker, "w").close()
    time.sleep(0.6)
    s += "x" + lmc.gen("out", max_tokens=4)
    return s["out"]
"""


@contextmanager
def served(*arguments: str):
    """A process; its URL, read from what it says."""
    command = [sys.executable, "-m", "lmc", "serve", "--backend", "mock", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert " at http://127.0.0.1:" in line, line + process.stderr.read()
        yield line.split(" at ")[1].strip(), process
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


def test_running_requests_finish_when_it_is_told_to_stop(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    marker = tmp_path / "begun"
    with served(f"{tmp_path}/program.py:slow") as (url, process):
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        found: list[httpx.Response] = []

        def ask():
            found.append(httpx.post(f"{url}/programs/slow", json={"marker": str(marker)}, timeout=20))

        asking = threading.Thread(target=ask)
        asking.start()
        while not marker.exists():
            assert asking.is_alive()
        process.send_signal(signal.SIGTERM)
        asking.join(20)
        assert found[0].status_code == 200
        assert found[0].json()["return_value"]
        assert process.wait(20) == 0


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
