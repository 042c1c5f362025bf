"""SGLang's own frontend on the workloads of the comparison, beside lmc on the same stand-in: the same texts, and no more prompts for them."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from benchmarks.bench_frontends import frontend, measure, runners
from benchmarks.workloads import Size, figures
from tests.api.sglang_server import TokenModel

pytestmark = [pytest.mark.api, pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs SGLang's frontend: make clients")]

ITEMS = 4


@pytest.fixture(autouse=True)
def modules():
    """Leave none of SGLang's modules behind: the package's own is not executed, and has no more than its folder."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "sglang":
            del sys.modules[name]


@pytest.mark.parametrize("workload", figures(Size(0.1)), ids=lambda w: w.name)
def test_the_texts_are_those_of_sglang_s_frontend_and_no_more_is_asked(sglang, workload, monkeypatch):
    backend, stand_in, server = sglang(TokenModel())
    sgl = frontend()
    executor = importlib.import_module("sglang.lang.interpreter").StreamExecutor
    fork = executor.fork
    monkeypatch.setattr(executor, "fork", lambda self, *args: self.sync() or fork(self, *args))  # else it may not see yet that there is a prefix
    run = runners(workload, backend, sgl.RuntimeEndpoint(server.url), sgl, "auto")
    measure(run["lmc"], workload.items(1, 0), backend)  # the first request finds out whether ids are taken
    items = workload.items(ITEMS, 1)
    asked, texts = {}, {}
    for name in run:
        before, posted = len(stand_in.texts), len(server.seen)
        texts[name] = measure(run[name], items, backend).texts
        asked[name] = len(stand_in.texts) - before, len(server.seen) - posted
    assert texts["lmc"] == texts["sglang"]
    assert asked["lmc"][0] <= 1.15 * asked["sglang"][0] and asked["lmc"][1] <= 1.15 * asked["sglang"][1], asked
