"""A pool of a twentieth of what a batch needs (a tenth on the small model, which takes its time) finishes everything, with the same text."""

from __future__ import annotations

import pytest

import lmc
from benchmarks.workloads import Size, Workload, figures
from tests.backend.engine_fakes import backend
from tests.searching import some

WORKLOADS = {workload.name: workload for workload in figures(Size(0.03))}


def texts(workload: Workload, n: int, engine) -> list[str]:
    program = lmc.compile(workload.program, backend=engine)
    return [state.text() for state in program.batch(workload.items(n, 1), temperature=0)]


def needed(engine) -> tuple[int, int]:
    """Tokens that the batch left in the cache, and those of its longest prompt."""
    longest = max(node.end for node in engine._scheduler.tree.nodes())
    return engine.stats()["cached_tokens"], longest


def compare(workload: Workload, n: int, make, share: int = 20) -> None:
    with make(200_000) as engine:
        expected = texts(workload, n, engine)
        every, longest = needed(engine)
        engine.check()
    capped = every // share
    assert capped > longest, f"too few items for a pool of {capped} to be enough for {longest}"
    with make(capped) as engine:
        found = texts(workload, n, engine)
        assert found == expected
        engine.check()
        assert engine.counters().unique_tokens > capped, "nothing was evicted"
        stats = engine.stats()
        assert stats["running"] == stats["waiting"] == 0


@some(("name", "n"), [("chat-short", 30), ("agents", 48)], 2)
def test_on_a_model_that_sees_every_page(name, n):
    compare(WORKLOADS[name], n, lambda slots: backend(slots, max_context=4000, chunk=64)[0])


@lmc.function
def interview(s, name):
    s += f"Who are you, {name}? "
    s += lmc.gen("who", max_tokens=200, stop=["e", "d"])
    s += " And you want? "
    s += lmc.gen("what", max_tokens=200, stop="de")


def test_answers_of_unknown_length_are_preempted_and_go_on():
    """A pass has as many rows as fit by what is said, not by what may be said."""
    items = [{"name": f"number {i}"} for i in range(16)]
    found, counters = [], []
    for slots in (20_000, 320):
        with backend(slots, max_context=300, chunk=64)[0] as engine:
            states = lmc.compile(interview, backend=engine).batch(items, temperature=0)
            engine.check()
            found.append([(state.text(), state["who"], state["what"]) for state in states])
            counters.append(engine.counters())
    plenty, capped = counters
    assert found[0] == found[1]
    assert plenty.preemptions == 0 < capped.preemptions < 3 * len(items)
    assert plenty.generated_tokens == capped.generated_tokens > 5 * 320
    assert capped.generated_tokens / capped.passes > 320 / 220, "no more than would fit with all that may be said"


@pytest.mark.model
@pytest.mark.parametrize(("name", "n"), [("agents", 20), ("chat-short", 12)])
def test_on_a_model(tiny_smollm2, name, n):
    compare(WORKLOADS[name], n, lambda slots: lmc.Engine(tiny_smollm2, dtype="float32", max_tokens=min(slots, 30_000)), share=10)
