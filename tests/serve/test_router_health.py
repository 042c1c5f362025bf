"""A worker whose engine is broken leaves a router's rotation by its /health alone: retries are off."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.serve.test_health import PROGRAM

pytestmark = pytest.mark.api
ROUTER = shutil.which("vllm-router", path=str(Path(sys.executable).parent)) or shutil.which("vllm-router")
if ROUTER is None:
    pytest.skip("vllm-router is not installed", allow_module_level=True)

from tests.serve.workers import count, free_port, process, url_in, wait_for  # noqa: E402


def test_a_broken_worker_leaves_the_rotation(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    with ExitStack() as stack:
        command = [sys.executable, "-m", "lmc", "serve", "--backend", "mock", "--port", "0", f"{tmp_path}/program.py:breaks"]
        workers = [stack.enter_context(process(*command, log=tmp_path / f"worker-{i}")) for i in range(2)]
        urls = [url_in(tmp_path / f"worker-{i}", worker) for i, worker in enumerate(workers)]
        front = f"http://127.0.0.1:{(port := free_port())}"
        command = [str(ROUTER), "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls, "--policy", "round_robin", "--disable-retries"]
        command += [
            "--health-check-interval-secs",
            "1",
            "--health-failure-threshold",
            "1",
            "--health-success-threshold",
            "1",
            "--prometheus-port",
            str(free_port()),
        ]
        router = stack.enter_context(process(*command, log=tmp_path / "router"))
        wait_for(f"{front}/health", router)
        wait_for(f"{front}/v1/models", router)
        asked = {"model": "mock", "prompt": "x", "max_tokens": 2}
        for _ in range(8):
            assert httpx.post(f"{front}/v1/completions", json=asked, timeout=60).status_code == 200
        done = r'lmc_requests_total\{endpoint="completions",status="200"\}'
        assert all(count(url, done) > 0 for url in urls), "both are asked"
        httpx.post(f"{urls[0]}/programs/breaks", json={}, timeout=60)
        assert httpx.get(f"{urls[0]}/health", timeout=60).status_code == 503
        checks = r'lmc_requests_total\{endpoint="health",status="503"\}'
        before = count(urls[0], checks)
        while count(urls[0], checks) < before + 2:  # the router has looked, and come again: it knows
            assert workers[0].poll() is None and router.poll() is None
        before = count(urls[0], done)
        for _ in range(8):
            assert httpx.post(f"{front}/v1/completions", json=asked, timeout=60).status_code == 200
        assert count(urls[0], done) == before, "the broken one is not asked any more"
