"""Clients that people use, against a server with a port: the official openai package, curl, and a generated test."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time

import pytest

import lmc
from tests.serve.serving import on_a_port
from tests.serve.test_programs import PROGRAMS

pytestmark = pytest.mark.api

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def url():
    with on_a_port(lmc.Mock(latency=0.01), PROGRAMS) as url:
        yield url


def test_the_official_client(url):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(model="mock", messages=MESSAGES, n=2, seed=1, logprobs=True, top_logprobs=1)
        assert len(chat.choices) == 2
        assert chat.choices[0].logprobs.content[0].token
        chat = client.chat.completions.create(model="mock", messages=MESSAGES, seed=1)
        pieces = client.chat.completions.create(model="mock", messages=MESSAGES, seed=1, stream=True, stream_options={"include_usage": True})
        *chunks, last = list(pieces)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == chat.choices[0].message.content
        assert last.usage.prompt_tokens == chat.usage.prompt_tokens
        done = client.completions.create(model="mock", prompt=["a", "b"], max_tokens=5, extra_body={"regex": "[ab]{5}"})
        assert {c.text.strip("ab") for c in done.choices} == {""}
        shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {}, "additionalProperties": False}}}
        assert client.chat.completions.create(model="mock", messages=MESSAGES, response_format=shape).choices[0].message.content == "{}"
        assert [m.id for m in client.models.list()] == ["mock"]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="mock", messages=MESSAGES, temperature=9)
        assert refused.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")


def test_the_official_client_on_an_event_loop(url):
    openai = pytest.importorskip("openai")

    async def work():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            asks = [client.completions.create(model="mock", prompt=f"p{i}", seed=1, max_tokens=20) for i in range(20)]
            texts = [answer.choices[0].text for answer in await asyncio.gather(*asks)]
            stream = await client.completions.create(model="mock", prompt="p3", seed=1, max_tokens=20, stream=True)
            assert "".join([c.choices[0].text async for c in stream]) == texts[3]

    asyncio.run(work())


def test_a_stream_that_is_closed_early_is_cancelled(url):
    openai = pytest.importorskip("openai")
    mock = lmc.Mock(latency=30)
    with on_a_port(mock) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with client.chat.completions.create(model="mock", messages=MESSAGES, stream=True) as stream:
            next(iter(stream))
            assert mock._pending
        for _ in range(1000):
            if not mock._pending:
                break
            time.sleep(0.01)
        assert not mock._pending


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(url):
    def curl(*args: str) -> str:
        return subprocess.run(["curl", "-sS", "--max-time", "20", *args], capture_output=True, text=True, check=True).stdout

    body = json.dumps({"messages": MESSAGES})
    assert json.loads(curl(f"{url}/v1/chat/completions", "-d", body))["object"] == "chat.completion"
    assert curl("-N", f"{url}/v1/chat/completions", "-d", json.dumps({"messages": MESSAGES, "stream": True})).rstrip().endswith("data: [DONE]")
    assert "event: done" in curl("-N", f"{url}/programs/greet/stream", "-d", '{"name": "Ann"}')
    assert curl("-o", "/dev/null", "-w", "%{http_code}", f"{url}/v1/chat/completions", "-d", "{") == "400"
    assert curl("-o", "/dev/null", "-w", "%{http_code}", f"{url}/health") == "200"


def test_every_answer_is_what_the_description_says():
    """Generated requests, good and bad: no 5xx but those that programs raise, and every answer fits the schema."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    from lmc.serve.app import create_app
    from tests.serve.serving import settings as limits

    app = create_app(lmc.Mock(), limits(max_tokens=8), [p for p in PROGRAMS if p.name != "broken"])
    tried: list[int] = []
    for found in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():

        @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
        @given(case=found.ok().as_strategy())
        def check(case):
            # fields may exclude each other, and 5.0 is no integer here: a schema does not say that
            tried.append(case.call_and_validate(excluded_checks=[positive_data_acceptance]).status_code)

        check()
    assert tried.count(200) > 20
    assert tried.count(400) > 5
