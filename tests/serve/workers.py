"""`lmc serve` processes and routers for tests: started with a log, found by what they say, counted by their metrics."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def process(*command: str, log: Path):
    """A process whose output goes to `log`."""
    with log.open("w") as out:
        started = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT,
                                   env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})  # fmt: skip
    try:
        yield started
    finally:
        started.kill()
        started.wait(60)


def url_in(log: Path, of: subprocess.Popen[bytes], seconds: float = 180.0) -> str:
    """Where a worker says that it listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert of.poll() is None, f"the process ended with {of.returncode}: {log.read_text()}"
        if said := re.search(r" at (http://127\.0\.0\.1:\d+)\n", log.read_text()):
            return said[1]
        time.sleep(0.1)
    raise AssertionError(f"a worker did not start: {log.read_text()}")


def wait_for(url: str, of: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert of.poll() is None, f"{url}: the process ended with {of.returncode}"
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url} does not answer")


def count(url: str, name: str) -> float:
    """A counter of a worker, summed over its labels."""
    text = httpx.get(f"{url}/metrics", timeout=20).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(name + r"[ {]", line))
