"""Evaluations end where nothing else can be requested: nothing is requested later or less often by that."""

from __future__ import annotations

import random
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.frontend.capture.evaluation import Evaluation
from lmc.runahead.ledger import Ledger
from tests.conformance.harness import eager
from tests.runahead.test_costs import Clock


@lmc.function
def said(s, prompt):
    s += prompt + lmc.gen("a", max_tokens=3)


@lmc.function
def rounds(s, q):
    heard = ["", "", ""]
    for k in range(3):
        heard = [said(f"{q}{k}{i} " + " ".join(heard[:i] + heard[i + 1 :]))["a"] for i in range(3)]
    s += " ".join(heard) + lmc.gen("z", max_tokens=3)
    return s["z"]


def counted(seed: int, monkeypatch: pytest.MonkeyPatch, *, to_the_end: bool = False) -> tuple[int, float, int]:
    """Return how many requests of a run were made ahead and used, when it was done, and how many were reached in vain."""
    miss, missed = Evaluation.miss, list[Any]()
    with monkeypatch.context() as patch:
        clock = Clock(patch, evaluation=0.0)
        patch.setattr(Evaluation, "miss", lambda self, address, deps: missed.append(address) or miss(self, address, deps))
        if to_the_end:
            patch.setattr(Ledger, "unchanged", lambda *_: [])
        backend = Mock(latency=lambda ask, prompt: random.Random(f"{seed} {prompt}").uniform(0.1, 1.0))
        used = eager(lmc.compile(rounds))("x", backend=backend, temperature=0).usage.ahead_used
        return used, clock.now, len(missed)


@pytest.mark.parametrize("seed", range(6))
def test_as_much_is_requested_as_early_whatever_the_order_of_answers(seed: int, monkeypatch: pytest.MonkeyPatch):
    *now, few = counted(seed, monkeypatch)
    *before, many = counted(seed, monkeypatch, to_the_end=True)
    assert now == before and now[0] >= 6 and few < many
