"""A pool of a twentieth of what a batch needs finishes everything, with the same text."""

from __future__ import annotations

import pytest

import lmc
from benchmarks.workloads import Size, Workload, figures
from tests.backend.engine_fakes import backend

WORKLOADS = {workload.name: workload for workload in figures(Size(0.03))}


def texts(workload: Workload, n: int, engine) -> list[str]:
    program = lmc.compile(workload.program, backend=engine)
    return [state.text() for state in program.batch(workload.items(n, 1), temperature=0)]


def needed(engine) -> tuple[int, int]:
    """Tokens that the batch left in the cache, and those of its longest prompt."""
    longest = max(node.end for node in engine._scheduler.tree.nodes())
    return engine.stats()["cached_tokens"], longest


def compare(workload: Workload, n: int, make) -> None:
    with make(200_000) as engine:
        expected = texts(workload, n, engine)
        every, longest = needed(engine)
        engine.check()
    capped = every // 20
    assert capped > longest, f"too few items for a pool of {capped} to be enough for {longest}"
    with make(capped) as engine:
        found = texts(workload, n, engine)
        assert found == expected
        engine.check()
        assert engine.counters().unique_tokens > capped, "nothing was evicted"
        stats = engine.stats()
        assert stats["running"] == stats["waiting"] == 0


@pytest.mark.parametrize(("name", "n"), [("agents", 48), ("chat-short", 30)])
def test_on_a_model_that_sees_every_page(name, n):
    compare(WORKLOADS[name], n, lambda slots: backend(slots, max_context=4000, chunk=64)[0])


@pytest.mark.model
@pytest.mark.parametrize(("name", "n"), [("agents", 40), ("chat-short", 24)])
def test_on_the_small_model(name, n):
    compare(WORKLOADS[name], n, lambda slots: lmc.Engine("smollm2", dtype="float32", max_tokens=min(slots, 30_000)))
