"""Sampling on a GPU: penalties and log-probabilities without waiting for the device."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

from lmc.backend.engine.sampler import Sampler  # noqa: E402
from lmc.segments import SamplingParams  # noqa: E402
from tests.backend.engine import test_penalties  # noqa: E402
from tests.backend.engine.test_penalties import request  # noqa: E402


@pytest.fixture(autouse=True)
def _import_torch(monkeypatch) -> None:
    monkeypatch.setattr(test_penalties, "torch", torch)


def test_penalised_logits_are_those_of_the_definition():
    sampler, rng = Sampler(test_penalties.V), np.random.default_rng(0)
    running = [request(test_penalties.random_params(rng), i) for i in range(200)]
    for _ in range(12):
        logits = (torch.randn(200, test_penalties.PADDED) * 3).bfloat16().float()
        found = logits.cuda()
        left = sampler.sample_ahead(found, range(200), running).leave()
        torch.cuda.synchronize()
        tokens, told = left.read()
        for i, (row, req) in enumerate(zip(logits, running, strict=True)):
            assert torch.equal(found[i].cpu(), test_penalties.adjusted(row, req))
            if (expected := test_penalties.told(row, req, tokens[i])) is not None:
                known = told[i]
                assert known is not None and [t for _, t in known.top] == [t for _, t in expected.top]
                assert known.logprob == pytest.approx(expected.logprob, abs=1e-4)
            req.append(tokens[i])


def test_nothing_is_waited_for():
    """Whoever waits for the device while a pass is drawn is told so by torch."""
    params = SamplingParams(
        temperature=0.7, frequency_penalty=0.5, return_logprob=True, top_logprobs_num=5, logit_bias=((3, 1.0),), max_new_tokens=50
    )
    sampler, running = Sampler(1000), [request(params, i, (5, 6)) for i in range(64)]
    logits = torch.randn(64, 1000, device="cuda")
    sampler.sample_ahead(logits.clone(), range(64), running)  # pinned memory is set up
    for req in running:
        req.expect()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampler.sample_ahead(logits, range(64), running).leave()
    finally:
        torch.cuda.set_sync_debug_mode("default")
