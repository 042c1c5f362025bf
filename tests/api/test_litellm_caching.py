"""Prompt caches through LiteLLM: Claude's marks, Gemini's implicit and explicit caches; with a stand-in of litellm that charges by their rules."""

from __future__ import annotations

import asyncio

import pytest

import lmc
from tests.api.cache_billing import READ, WRITE, Cache, blocks_of, plain_cost
from tests.api.conftest import QUICK, fake_litellm, without_its_own
from tests.api.openai_server import OpenAIModel
from tests.api.programs import LONG, agent, siblings
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api


@pytest.fixture
def cached(opened, monkeypatch):
    """A backend, and the bodies that its stand-in saw with the blocks of their prompts. A server of `implicit` caches needs no marks. It answers when so
    many requests were made `together`, there or held back."""

    def make(name, *, implicit=False, together=1, **options):
        stand_in, cache, asked = OpenAIModel(TextModel(lambda prompt: "Done."), name="*", continues=False), Cache(1024), []

        async def answer(body):
            blocks = blocks_of({k: v for k, v in body.items() if k != "tools"})
            asked.append((body, blocks))
            if implicit:
                hit = max((i for i, key in enumerate(blocks.keys) if key in cache.kept), default=-1)
                read, wrote = blocks.tokens[hit] if hit >= 0 and blocks.tokens[hit] >= 1024 else 0, 0
            else:
                read, wrote, _ = cache.charge(blocks, cache.hit(blocks))
            while backend.server_info().get("held", len(asked) - 1) < together - 1:
                await asyncio.sleep(0.001)
            cache.kept |= dict.fromkeys(blocks.keys, (1000000000.0, 1000000000.0)) if implicit else {}
            plain = [{**m, "content": m["content"] if isinstance(m["content"], str) else "".join(p["text"] for p in m["content"])} for m in body["messages"]]
            answer = stand_in.handle("/v1/chat/completions", {**without_its_own(body), "messages": plain})
            assert answer.status == 200, answer.body
            for part in (answer.body, *(answer.events or ())):
                if part.get("usage"):
                    part["usage"] |= {"prompt_tokens_details": {"cached_tokens": read}, "cache_creation_input_tokens": wrote}
            return answer

        fake_litellm(monkeypatch, answer)
        backend = opened(lmc.LiteLLM(name, patience=QUICK, prices=lmc.Prices(3.0, 15.0), **options))
        return backend, asked

    return make


def billed(backend):
    usage = backend.spent().usage
    return usage.prompt_tokens - usage.cached_tokens - usage.written_tokens + READ * usage.cached_tokens + WRITE * usage.written_tokens


@pytest.mark.parametrize("program", (lambda **k: siblings.run(text=LONG, **k), agent.run, lmc.compile(agent)), ids=("siblings", "agent", "compiled agent"))
def test_claude_is_marked(cached, program):
    backend, asked = cached("bedrock/anthropic.claude-sonnet-4-5")
    program(backend=backend, temperature=0)
    assert plain_cost([b for _, b in asked]) >= 3 * billed(backend) and all(len(b.marks) <= 4 for _, b in asked)
    assert backend.spent().cost == pytest.approx((3.0 * billed(backend) + 15.0 * backend.spent().usage.completion_tokens) / 1e6)
    off, plain = cached("bedrock/anthropic.claude-sonnet-4-5", cache="off")
    program(backend=off, temperature=0)
    assert not any(b.marks for _, b in plain) and off.spent().usage.cached_tokens == 0


def test_gemini_keeps_what_it_has_read_and_siblings_wait_for_it(cached):
    backend, asked = cached("gemini/gemini-2.5-flash", implicit=True, together=6)
    siblings.run(text=LONG, backend=backend, temperature=0)
    assert backend.server_info()["held"] == 5 and backend.spent().usage.cached_tokens == 5 * 6300 and not any(b.marks for _, b in asked)
    off, _ = cached("gemini/gemini-2.5-flash", implicit=True, cache="off", together=6)
    siblings.run(text=LONG, backend=off, temperature=0)
    assert off.spent().usage.cached_tokens == 0 and "held" not in off.server_info()


def test_gemini_is_marked_if_that_is_wanted(cached):
    backend, asked = cached("vertex_ai/gemini-2.5-flash", cache="5m")
    siblings.run(text=LONG, backend=backend, temperature=0)
    marks = [
        part["cache_control"]
        for body, _ in asked
        for m in body["messages"]
        if isinstance(m["content"], list)
        for part in m["content"]
        if "cache_control" in part
    ]
    assert marks and all(mark == {"type": "ephemeral", "ttl": "300s"} for mark in marks)
    assert all(len(b.marks) <= 1 for _, b in asked) and backend.spent().usage.cached_tokens >= 5 * 6300
    with pytest.raises(lmc.ParameterError, match="not known to have a prompt cache"):
        cached("ollama/llama3", cache="1h")
