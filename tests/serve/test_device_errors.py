"""A device error under `lmc serve --restart`: clients get 503s, /health too, and another process takes over behind the same socket.

The engine is a real one on a CPU; a kernel of its model raises what torch raises of a device that has failed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading

import pytest

from tests.fuzzing import bases
from tests.serve.serving import supervised
from tests.waiting import until

pytest.importorskip("torch")
httpx = pytest.importorskip("httpx")

pytestmark = pytest.mark.model
CHAT = "/v1/chat/completions"

PROGRAM = """
import os, threading
import torch
import lmc
from lmc.backend.engine.models import loader

left, broken, go = [1 << 30], [], threading.Event()
kernel, load = torch.nn.functional.embedding, loader.load
held = __file__ + ".held"  # a pipe, from which the process that takes over reads a line before it loads the model

def when_it_may(*args, **how):
    if os.path.exists(held):
        open(held).readline()
    return load(*args, **how)

loader.load = when_it_may

def on_the_device(*args, **how):
    left[0] -= 1
    if left[0] < 0:
        go.wait()
    if broken:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    return kernel(*args, **how)

torch.nn.functional.embedding = on_the_device

@lmc.function
def does(s, what: str):
    if what == "waits":
        left[0] = 2  # a pass soon waits until the device breaks
    elif what == "breaks":
        os.mkfifo(held)
        broken.append(True)
        go.set()
    return os.getpid()
"""


def test_a_device_error_is_a_503_to_clients_and_another_process_takes_over(tmp_path):
    model = next(m for seed in range(100) if (m := bases.folder(random.Random(seed))).files["config.json"]["model_type"] == "llama")
    model.files["config.json"]["max_position_embeddings"] = 512
    path = model.write(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    asked = {"model": "model", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 400, "logit_bias": {"1": -100}}
    answers = dict[str, tuple[int, str]]()

    def ask(how: str) -> None:
        answer = httpx.post(at + CHAT, json=asked | {"stream": how == "stream"}, timeout=120)
        answers[how] = answer.status_code, answer.text

    quiet = {"LMC_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with supervised(f"{tmp_path}/program.py:does", backend=str(path), **quiet) as (process, url, said):
        at = url()

        def run(what: str):
            return httpx.post(f"{at}/programs/does", json={"what": what}, timeout=60).json()["return_value"]

        first = run("who")
        assert httpx.get(f"{at}/health", timeout=20).status_code == 200
        run("waits")
        threads = [threading.Thread(target=ask, args=(how,)) for how in ("whole", "stream")]
        for thread in threads:
            thread.start()
        until(lambda: "\nlmc_requests_in_flight 3.0\n" in httpx.get(f"{at}/metrics", timeout=20).text, "both, and this one")
        run("breaks")
        for thread in threads:
            thread.join()

        def health() -> tuple[int, str]:
            while True:
                try:
                    found = httpx.get(f"{at}/health", timeout=120)
                except httpx.TransportError:  # the process that ended had taken it
                    assert process.poll() is None, said
                else:
                    return found.status_code, found.json()["status"]

        assert health() in {(503, state) for state in ("ended", "draining", "starting")}, answers
        with open(os.open(f"{tmp_path}/program.py.held", os.O_RDWR), "wb") as line:  # whether or not it is read already
            line.write(b"\n")
            line.flush()
            assert url() == at, "the socket stays"
        assert health() == (200, "ok")
        status, text = answers["whole"]
        error = json.loads(text)["error"]
        assert (status, error["type"], set(error)) == (503, "overloaded_error", {"message", "type", "param", "code"})
        assert "device error" in error["message"] and "illegal memory access" in error["message"]
        status, text = answers["stream"]
        last = [line for line in text.splitlines() if line.strip()][-1] if status == 200 else text
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "overloaded_error"
        assert "ended with a broken engine; starting another" in "".join(said)
        assert run("who") not in (first, process.pid)
        assert httpx.post(at + CHAT, json=asked | {"max_tokens": 4}, timeout=60).json()["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
