"""Two `lmc serve` workers with the small model behind a cache-aware router, one of them killed in the middle of a batch."""

from __future__ import annotations

import asyncio
import collections
import re
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import lmc
from tests.serve.workers import count, free_port, process, url_in, wait_for

pytestmark = [pytest.mark.api, pytest.mark.model]
pytest.importorskip("vllm_router")

ITEMS = 24


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """Two workers and a router; their URLs and processes. Only the last test may harm them."""
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        command = [sys.executable, "-m", "lmc", "serve", "--backend", "smollm2", "--port", "0"]
        workers = [stack.enter_context(process(*command, log=logs / f"worker-{i}")) for i in range(2)]  # load at the same time
        urls = [url_in(logs / f"worker-{i}", worker) for i, worker in enumerate(workers)]
        router = Path(sys.executable).with_name("vllm-router")
        port = free_port()
        command = [str(router) if router.exists() else str(shutil.which("vllm-router"))]
        command += ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls, "--policy", "cache_aware"]
        command += ["--balance-abs-threshold", "2", "--balance-rel-threshold", "1.1", "--prometheus-port", str(free_port())]
        front = stack.enter_context(process(*command, log=logs / "router"))
        urls.append(f"http://127.0.0.1:{port}")
        wait_for(f"{urls[2]}/health", front)
        wait_for(f"{urls[2]}/v1/models", front)
        yield urls, workers


def test_without_a_failure_every_request_is_computed_once(cluster):
    urls, _ = cluster

    async def work():
        async with httpx.AsyncClient(base_url=urls[2], timeout=300) as client:
            bodies = [{"model": "smollm2", "prompt": f"Item {i}:", "max_tokens": 8, "temperature": 0, "regex": "[a-z ]{4,8}"} for i in range(ITEMS)]
            return await asyncio.gather(*[client.post("/v1/completions", json=body) for body in bodies])

    found = asyncio.run(work())
    assert [r.status_code for r in found] == [200] * ITEMS
    assert all(re.fullmatch("[a-z ]{4,8}", r.json()["choices"][0]["text"]) for r in found), "the router keeps our parameters"
    per_worker = [count(url, r'lmc_requests_total\{endpoint="completions",status="200"\}') for url in urls[:2]]
    assert sum(per_worker) == ITEMS
    assert min(per_worker) > 0, "both work"


@lmc.function
def label(s, item: int, turns: int):
    s += f"Items and their colours, one a line.\nitem 0: red\nitem {item}:"
    s += lmc.gen("colour", regex=rf" item {item} is (red|green|blue), (light|dark)( and (warm|cold)){{{turns}}}\.", max_tokens=120)
    NOTED.append(item)
    return s["colour"]


NOTED: list[int] = []  # an effect of each run


def test_a_worker_that_is_killed_loses_nothing_and_doubles_nothing(cluster):
    urls, workers = cluster
    backend = lmc.OpenAI("smollm2", is_chat_model=False, chat_template="chatml", base_url=f"{urls[2]}/v1", api_key="none", server="vllm")
    answers: dict[int, list[str]] = collections.defaultdict(list)
    killed = False
    try:
        program = lmc.compile(label, backend=backend)
        items = [{"item": i, "turns": i} for i in range(1, ITEMS + 1)]  # of many lengths: some end long before the others
        for index, state in program.as_completed(items, temperature=0, errors="return"):
            assert state.error() is None, state.error()
            answers[index].append(state.ret_value)
            if not killed and len(answers) >= 3:
                busy = max((0, 1), key=lambda i: count(urls[i], "lmc_requests_in_flight"))
                assert count(urls[busy], "lmc_requests_in_flight") > 1, "it is at work"
                workers[busy].kill()
                killed = True
    finally:
        backend.close()
    assert killed
    assert sorted(answers) == list(range(ITEMS))
    assert all(len(found) == 1 for found in answers.values()), "each item has one answer"
    assert sorted(NOTED) == list(range(1, ITEMS + 1)), "and its effects happened once"
    for index, (text,) in answers.items():
        assert text.startswith(f" item {index + 1} is "), "and it is its own"
