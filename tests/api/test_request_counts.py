"""How many prompts the workloads of the comparison ask a server: no more than SGLang's own frontend, and far fewer HTTP requests."""

from __future__ import annotations

import pytest

import lmc
from benchmarks.workloads import Size, figures
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api

# What SGLang's frontend asks beside one request an answer: one more for a select, one for each fork into several, one for a batch
FORKS = {"tree": 1 + 3 + 6, "skeleton": 1, "judge": 1}
SELECTS = {"choice": 1}
ITEMS = 4
SIZE = Size(0.2)


@pytest.mark.parametrize("workload", figures(SIZE), ids=lambda w: w.name)
def test_no_more_is_asked_than_by_sglang_s_frontend(remote, workload):
    backend, stand_in, server = remote(TextModel())
    items = workload.items(ITEMS, 1)
    lmc.compile(workload.program).batch(items, backend=backend, temperature=0)
    frontend = 1 + ITEMS * (workload.gens + FORKS.get(workload.name, 0) + SELECTS.get(workload.name, 0))
    posted = [s.body for s in server.seen[1:]]  # behind the one that finds out whether ids are taken
    scored = sum("return_logprob" in body or "logprob_token_ids" in body or "prompt_logprobs" in body for body in posted)
    asked = len(stand_in.texts) - 1 if not scored else len(posted)  # a list of choices is one request for both
    assert asked <= 1.15 * frontend, f"{asked} requests, {frontend} of SGLang's frontend"
    assert len(posted) <= frontend
