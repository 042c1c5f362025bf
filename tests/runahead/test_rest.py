"""Evaluations end where nothing else can be requested: nothing is requested later or less often by that."""

from __future__ import annotations

import random
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.frontend.capture.evaluation import Evaluation
from lmc.runahead.ledger import Ledger
from lmc.runahead.profile import PROBE, TRIALS
from tests.conformance.harness import eager
from tests.runahead.test_costs import Clock


@lmc.function
def said(s, prompt):
    s += prompt + lmc.gen("a", max_tokens=3)


@lmc.function
def rounds(s, q, aside):
    heard = ["", "", ""]
    for k in range(3):
        heard = [said(f"{q}{k}{i} " + " ".join(heard[:i] + heard[i + 1 :]))["a"] for i in range(3)]
    s += " ".join(heard) + lmc.gen("z", max_tokens=3)
    return s["z"], said("aside")["a"] if aside else ""


def counted(asides: list[bool], seed: int, monkeypatch: pytest.MonkeyPatch, *, to_the_end: bool = False) -> tuple[list[int], list[float], int]:
    """Run one program after another; return how many requests of each were made ahead and used, when each was done, and how many were reached in vain."""
    miss, missed, ended = Evaluation.miss, list[Any](), list[float]()
    with monkeypatch.context() as patch:
        clock = Clock(patch, evaluation=0.0)
        patch.setattr(Evaluation, "miss", lambda self, address, deps: missed.append(address) or miss(self, address, deps))
        if to_the_end:
            patch.setattr(Ledger, "unchanged", lambda *_: [])
        program, used = eager(lmc.compile(rounds)), list[int]()
        backend = Mock(latency=lambda ask, prompt: 5.0 if prompt == "aside" else random.Random(f"{seed} {prompt}").uniform(0.1, 1.0))
        for aside in asides:
            used.append(program("x", aside, backend=backend, temperature=0).usage.ahead_used)
            ended.append(clock.now)
    return used, ended, len(missed)


@pytest.mark.parametrize("seed", range(6))
def test_as_much_is_requested_as_early_whatever_the_order_of_answers(seed: int, monkeypatch: pytest.MonkeyPatch):
    asides = [False] * (TRIALS + 3)
    *now, few = counted(asides, seed, monkeypatch)
    *before, many = counted(asides, seed, monkeypatch, to_the_end=True)
    assert now == before and min(now[0]) >= 6 and few < 0.8 * many


def test_a_request_that_this_has_hidden_turns_it_off_for_further_runs(monkeypatch: pytest.MonkeyPatch):
    asides = [False] * (TRIALS + 1) + [True] + ([False] * 4 + [True]) * 2
    (_, now, _), (_, before, _) = (counted(asides, 0, monkeypatch, to_the_end=to_the_end) for to_the_end in (False, True))
    later = [b - a for a, b in zip(before, now, strict=True)]
    assert len(asides) < PROBE and not any(later[: TRIALS + 1])
    assert later[TRIALS + 1] > 1 and max(later) - later[TRIALS + 1] < 1e-6
