"""Traces across processes: what comes with a request of HTTP goes on in programs and their workers, and in what is asked of an API's server."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

import lmc
from lmc.backend.api.exchange import Fault, HttpRequest
from lmc.backend.api.litellm import LiteLLMWire
from tests.api.text_model import TextModel

pytest.importorskip("opentelemetry.sdk.trace", reason="needs OpenTelemetry's SDK (the extra otel)")
from opentelemetry.trace import SpanKind

from tests.integrations.test_otel import CONTENT, EXPORTER, Spans, helper, provider, spans  # noqa: F401  # fixtures
from tests.serve.serving import HELLO, talk, talking
from tests.serve.test_process import served
from tests.waiting import until

pytestmark = pytest.mark.api

THEIRS = "0af7651916cd43dd8448eb211c80319c"
SENT = {"traceparent": f"00-{THEIRS}-b7ad6b7169203331-01"}


def trace_of(seen) -> int | None:
    """The trace that a request named. The span is lmc's, or that of the HTTP client under it."""
    sent = seen.headers.get("traceparent")
    return None if sent is None else int(sent.split("-")[1], 16)


@lmc.function
def asks(s, q: str):
    s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=4))
    return s["a"]


async def test_a_request_of_http_goes_on_with_its_client_s_trace(spans):  # noqa: F811
    async with talking(lmc.Mock(), [asks]) as client:
        await client.post("/programs/asks", json={"q": "x"}, headers=SENT)
        await client.post("/programs/asks/batch", json={"items": [{"q": "x"}, {"q": "y"}]}, headers=SENT)
        await client.post("/programs/asks/stream", json={"q": "x"}, headers=SENT)
        await client.post("/v1/chat/completions", json={**HELLO, "max_tokens": 3}, headers=SENT)
        await client.post("/programs/asks", json={"p": "x"})
        await client.get("/health")
    run = "invoke_workflow asks"
    one = "POST /programs/asks"
    assert spans.tree() == sorted([
        one, one, f"{one} > batch asks", f"{one} > batch asks > {run}", f"{one} > batch asks > {run} > chat mock",
        f"{one}/batch", f"{one}/batch > batch asks", *[f"{one}/batch > batch asks > {run}"] * 2, *[f"{one}/batch > batch asks > {run} > chat mock"] * 2,
        f"{one}/stream", f"{one}/stream > {run}", f"{one}/stream > {run} > chat mock",
        "POST /v1/chat/completions", "POST /v1/chat/completions > chat mock",
    ])  # fmt: skip
    served = [span for span in spans.all if span.kind is SpanKind.SERVER]
    assert sorted(span.attributes["http.response.status_code"] for span in served) == [200, 200, 200, 200, 400]
    refused = next(span for span in served if span.attributes["http.response.status_code"] == 400)
    assert f"{refused.context.trace_id:032x}" != THEIRS
    assert {f"{span.context.trace_id:032x}" for span in spans.all if span is not refused} == {THEIRS}


@pytest.mark.parametrize("stream", (False, True))
def test_the_server_of_an_api_is_told_of_the_trace(spans, openai, stream):  # noqa: F811
    backend, server = openai(TextModel(lambda prompt: "fine"))
    state = asks.run("x", backend=backend, stream=stream)
    assert state["a"] == "fine"
    state.sync()
    span = spans["chat m"]
    (seen,) = server.seen
    assert trace_of(seen) == span.context.trace_id
    assert span.kind is SpanKind.CLIENT and span.attributes["gen_ai.provider.name"] == "openai" and span.attributes["gen_ai.response.model"]


@pytest.mark.filterwarnings("ignore:text contains")
def test_other_apis_are_told_too(spans, anthropic, vllm, sglang):  # noqa: F811
    for make, name in ((anthropic, "anthropic"), (vllm, "vllm"), (sglang, "sglang")):
        EXPORTER.clear()
        backend, *_, server = make(TextModel(lambda prompt: "fine"))
        asks.run("x", backend=backend).sync()
        (span,) = [span for span in spans.all if span.name.startswith("chat ")]
        assert span.attributes["gen_ai.provider.name"] == name
        assert span.context.trace_id in [trace_of(seen) for seen in server.seen], name


def test_content_of_a_request_of_http(spans, monkeypatch):  # noqa: F811
    monkeypatch.setenv(CONTENT, "true")
    monkeypatch.setattr("lmc.observing._observer", None)
    lmc.config(otel=True)
    talk(lambda client: client.post("/v1/chat/completions", json={**HELLO, "max_tokens": 3}), lmc.Mock())
    said = spans["chat mock"].attributes
    (message,) = json.loads(said["gen_ai.input.messages"])
    assert message["role"] == "user" and "<|im_start|>user\nHello<|im_end|>" in message["parts"][0]["content"], "as the model reads it"


def test_litellm_is_handed_the_headers(spans):  # noqa: F811
    sent = []

    class LiteLLM:
        async def acompletion(self, **arguments):
            sent.append(arguments)
            raise ValueError("enough")

    wire = LiteLLMWire(LiteLLM(), {"extra_headers": {"x": "1"}})
    for headers in ({}, {"traceparent": "00-1-2-01"}):
        with pytest.raises(Fault):
            asyncio.run(wire.post(HttpRequest("", {"model": "m"}, headers)))
    assert [arguments["extra_headers"] for arguments in sent] == [{"x": "1"}, {"x": "1", "traceparent": "00-1-2-01"}]


FILE = """
import lmc

@lmc.function
def asks(s, q: str):
    s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=4))
    return s["a"]
"""


class Collector(ThreadingHTTPServer):
    """Takes what is exported by OTLP over HTTP."""

    def __init__(self) -> None:
        self.got = b""
        super().__init__(("127.0.0.1", 0), self.Take)

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            self.server.got += gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data  # type: ignore[attr-defined]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass


@pytest.fixture
def collector():
    with Collector() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="workers need process groups")
@pytest.mark.parametrize("workers", ((), ("--workers", "1")))
def test_the_server_s_processes_export_by_the_standard_variables(tmp_path, collector, monkeypatch, workers):
    (tmp_path / "program.py").write_text(FILE)
    for name, value in {"LMC_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}.items():
        monkeypatch.setenv(name, value)
    expected = [bytes.fromhex(THEIRS), b"POST /programs/asks", b"invoke_workflow asks", b"chat mock"]
    with served(f"{tmp_path}/program.py:asks", *workers) as (url, _):
        assert httpx.post(f"{url}/programs/asks", json={"q": "x"}, headers=SENT, timeout=60).status_code == 200
        until(lambda: all(each in collector.got for each in expected))
    assert collector.got.count(b"chat mock") == 1, "the server's process does not say again what its worker asked"
