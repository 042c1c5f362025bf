"""Batch APIs, on stand-ins with the providers' rules: waves, what is submitted and paid, kills, failures, dollars."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lmc
from lmc.backend.api import batches
from lmc.errors import BackendError, ParameterError, UnsupportedOpError
from tests.api import batch_servers
from tests.api.conftest import QUICK
from tests.api.http import Planted
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api

PRICES = lmc.Prices(2.0, 8.0)


class FakeClock(batches.Clock):
    """Time passes only where somebody sleeps. `slept` has how long, each time."""

    def __init__(self) -> None:
        self.time, self.slept = super().now(), list[float]()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(batches, "clock", clock := FakeClock())
    monkeypatch.setattr(batches, "PATIENCE", float("inf"))  # waves go out when all wait, however slow this machine is
    return clock


@pytest.fixture(params=("openai", "anthropic"))
def served(request, opened):
    """A backend with its stand-in: `again()` is another one, as another process would have it."""
    pytest.importorskip(request.param)

    def make(script=None, *, options=None, **stand_in):
        serve, of = {"openai": (batch_servers.serve_openai, _openai), "anthropic": (batch_servers.serve_anthropic, _anthropic)}[request.param]
        found, server = serve(TextModel(script) if script else TextModel(), **stand_in)
        opened(server)
        found.again = lambda **more: opened(of(server.url, **{**(options or {}), **more}))
        found.server = server
        return found.again(), found

    make.provider = request.param
    return make


def _openai(url, **options):
    return lmc.OpenAI("m", base_url=f"{url}/v1", api_key="k", server="openai", patience=QUICK, prices=PRICES, **options)


def _anthropic(url, **options):
    return lmc.Anthropic("claude", base_url=url, api_key="k", patience=QUICK, prices=PRICES, **options)


@lmc.function
def answer(s, question):
    s += lmc.user(question) + lmc.assistant(lmc.gen("a", max_tokens=9))
    return s["a"]


@lmc.function
def chain(s, question):
    s += lmc.user(question) + lmc.assistant(lmc.gen("first", max_tokens=9))
    first = s["first"]
    s += lmc.user(f"And {first}?") + lmc.assistant(lmc.gen("second", max_tokens=9))
    return s["second"]


@lmc.function
def views(s, question):
    s += lmc.system("Be brief.") + lmc.user(question)
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += lmc.user(f"View {i}?") + lmc.assistant(lmc.gen("view", max_tokens=9))
    s += lmc.user(" ".join(f["view"] for f in forks)) + lmc.assistant(lmc.gen("sum", max_tokens=9))
    return s["sum"]


ITEMS = [{"question": f"What is {i}?"} for i in range(7)]
PROGRAMS = pytest.mark.parametrize(("program", "waves"), ((answer, [7]), (chain, [7, 7]), (views, [21, 7])), ids=("answer", "chain", "views"))


def sizes(found):
    return [len(b.requests) for b in found.created]


@PROGRAMS
@pytest.mark.parametrize("compiled", (False, True), ids=("interpreted", "compiled"))
def test_a_wave_is_what_all_programs_wait_for(served, program, waves, compiled, tmp_path):
    backend, found = served()
    run = (lambda **k: lmc.compile(program).batch(ITEMS, **k)) if compiled else (lambda **k: program.run_batch(ITEMS, **k))
    states = run(backend=backend, temperature=0, deadline="24h", journal=tmp_path / "j")
    assert sizes(found) == waves
    direct = run(backend=found.again(), temperature=0)
    assert [s.ret_value for s in states] == [s.ret_value for s in direct] and [s.text() for s in states] == [s.text() for s in direct]
