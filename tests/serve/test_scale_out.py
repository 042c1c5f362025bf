"""Two `lmc serve` workers with the small model behind a cache-aware router, one of them killed in the middle of a batch.

The workers run as many passes as the test lets them: which answers are there and which are not follows from that, and not from how busy a machine is.
"""

from __future__ import annotations

import asyncio
import collections
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import lmc
from tests.serve.workers import count, free_port, process, url_in, wait_for
from tests.waiting import until

pytestmark = [pytest.mark.api, pytest.mark.model]
pytest.importorskip("vllm_router")

ITEMS = 24
ALL = 1 << 30

GATE = """
import threading
import torch
import lmc

may, left = threading.Condition(), [1 << 30]
kernel = torch.nn.functional.embedding

def of_a_pass(*args, **how):
    with may:
        may.wait_for(lambda: left[0] > 0)
        left[0] -= 1
    return kernel(*args, **how)

torch.nn.functional.embedding = of_a_pass

@lmc.function
def lets(s, passes: int):
    with may:
        left[0] = passes
        may.notify_all()
"""


def let(urls: list[str], passes: int) -> None:
    for url in urls:
        httpx.post(f"{url}/programs/lets", json={"passes": passes}, timeout=60).raise_for_status()


def let_once_all_are_there(urls: list[str], passes: int) -> None:
    try:
        until(lambda: sum(in_flight(url) for url in urls) == ITEMS, "not all requests arrive")
    finally:
        let(urls, passes)


def in_flight(url: str) -> float:
    return count(url, "lmc_requests_in_flight") - 1  # which is this one


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """Two workers and a router; their URLs and processes. Only the last test may harm them."""
    logs = tmp_path_factory.mktemp("logs")
    (logs / "gate.py").write_text(GATE)
    with ExitStack() as stack:
        command = [sys.executable, "-m", "lmc", "serve", "--backend", "smollm2", "--port", "0", f"{logs}/gate.py:lets"]
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
    let(urls[:2], 0)

    async def work():
        async with httpx.AsyncClient(base_url=urls[2], timeout=300) as client:
            bodies = [{"model": "smollm2", "prompt": f"Item {i}:", "max_tokens": 8, "temperature": 0, "regex": "[a-z ]{4,8}"} for i in range(ITEMS)]
            released = asyncio.create_task(asyncio.to_thread(let_once_all_are_there, urls[:2], ALL))
            found = await asyncio.gather(*[client.post("/v1/completions", json=body) for body in bodies])
            await released
            return found

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
    let(urls[:2], 0)
    with ThreadPoolExecutor(1) as beside:
        released = beside.submit(let_once_all_are_there, urls[:2], 20)  # enough for the short ones, and too few for those from the 19th on
        try:
            program = lmc.compile(label, backend=backend)
            items = [{"item": i, "turns": i} for i in range(1, ITEMS + 1)]
            for index, state in program.as_completed(items, temperature=0, errors="return"):
                assert state.error() is None, state.error()
                answers[index].append(state.ret_value)
                if len(answers) == 3:
                    released.result()
                    busy = max((0, 1), key=lambda i: in_flight(urls[i]))
                    assert in_flight(urls[busy]) > 1, "it is at work"
                    workers[busy].kill()
                    let([urls[1 - busy]], ALL)
        finally:
            backend.close()
    assert sorted(answers) == list(range(ITEMS))
    assert all(len(found) == 1 for found in answers.values()), "each item has one answer"
    assert sorted(NOTED) == list(range(1, ITEMS + 1)), "and its effects happened once"
    for index, (text,) in answers.items():
        assert text.startswith(f" item {index + 1} is "), "and it is its own"
