"""The host tier: what has to leave the device comes back, the right KV at the right time, and nothing leaks on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from lmc.backend.base import Hints, ProgramRun
from lmc.backend.engine.policy import Policy, host_size
from lmc.errors import ParameterError
from lmc.prompt import Gen, SamplingParams, Text
from tests.backend.engine.agents import Clock, World, agents
from tests.backend.engine.test_runs import AnythingOfRuns, drain
from tests.backend.engine_fakes import FakeAheadRunner, FakeMover, stepped
from tests.searching import examples


def gen(n: int) -> Gen:
    return Gen(SamplingParams(max_new_tokens=n, temperature=0.0, ignore_eos=True))


def mover_of(core: Any) -> FakeMover:
    return core.scheduler._mover


def ask(engine: Any, core: Any, text: str, before: Any = None, run: ProgramRun | None = None) -> Any:
    handle = engine.submit(before, [Text((text,)), gen(4)], Hints(run=run))
    drain(core)
    return handle


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_conversation_that_was_evicted_comes_back(late, ahead):
    engine, core = stepped(200, host=1000, max_context=200, **({"runs": FakeAheadRunner} if ahead else {}))
    mover_of(core).late = late
    chat = ask(engine, core, "c" * 60)
    first = chat.results[0].output().text
    others = [ask(engine, core, f"{i}" + "o" * 70) for i in range(4)]
    more = ask(engine, core, "and more", chat)
    alone, its_core = stepped(400)
    same = ask(alone, its_core, "and more", ask(alone, its_core, "c" * 60))
    assert first and more.results[0].output().text == same.results[0].output().text, "the fake's answer depends on all KV that it reads"
    assert all(other.results[0].done for other in others)
    stats = engine.stats()
    assert stats["host_out"] > 200
    assert stats["host_hits"] == 1 and more.results[0].output().meta["cached_tokens"] >= 60
    engine.check()


def test_agents_away_are_parked_and_others_run_meanwhile():
    """Tools of a second: without a host tier the device is idle while the first ones are away."""
    took, computed = {}, {}
    for host in (0, 8000):
        world = World(2600, host=host)
        world.run(agents(24, tool=1.0), check=host > 0)
        took[host], computed[host] = world.clock.now, world.engine.counters().prefilled_tokens
        stats = world.engine.stats()
    assert stats["parked_leases"] > 0 and stats["host_in"] > 0
    assert took[8000] < 0.5 * took[0]
    assert computed[8000] <= 1.05 * world.engine.counters().unique_tokens


def test_tokens_are_the_same_with_and_without():
    answers = []
    for host in (0, 600, 8000):
        world = World(1200, host=host)
        some = agents(12, prompt=150, tool=0.5)
        world.run(some, check=True)
        answers.append([agent.texts for agent in some])
    assert answers[0] == answers[1] == answers[2]


def test_a_copy_that_fails_is_computed_again():
    world = World(1200, host=4000)
    mover_of(world.core).fail = MemoryError("no memory")
    world.run(agents(12, prompt=150, tool=0.5), check=True)
    stats = world.engine.stats()
    assert stats["host_failed"] > 0 and stats["host_in"] == stats["parked_leases"] == 0


def test_what_is_fetched_late_for_a_request_that_is_cancelled_stays_cached():
    engine, core = stepped(200, host=1000, max_context=200)
    chat = ask(engine, core, "c" * 60)
    kept = [ask(engine, core, f"{i}" + "o" * 70) for i in range(4)]
    mover_of(core).late = 10
    more = engine.submit(chat, [Text(("and more",)), gen(4)])
    core.turn()
    hits = engine.stats()["host_hits"]
    more.cancel()
    engine.check()
    drain(core)
    engine.check()
    assert hits == 1 and kept
    stats = engine.stats()
    assert stats["free_slots"] + stats["cached_tokens"] == stats["slots"] and stats["running"] == 0


def test_a_host_that_computes_faster_than_it_copies_does_not_copy():
    engine, core = stepped(200, host=1000, max_context=200)
    core.scheduler._rates.prefill, core.scheduler._rates.copy = 1000.0, 100.0
    handles = [ask(engine, core, f"{i}" + "o" * 70) for i in range(4)]
    assert handles and engine.stats()["host_out"] == 0


@pytest.mark.parametrize(("said", "size"), [(None, 0), (0, 0), (123, 123), ("16GB", 16 * 10**9), ("1.5 GiB", 3 << 29), ("2kb", 2000)])
def test_sizes(said, size):
    assert host_size(said, Policy()) == size


@pytest.mark.parametrize("said", [-1, True, 1.5, "much", "16 XB", ""])
def test_sizes_that_are_none(said):
    with pytest.raises(ParameterError, match="host_memory is"):
        host_size(said, Policy())


@pytest.mark.parametrize("policy", [Policy(cache="off"), Policy(cache="table"), Policy(schedule="lpm"), Policy(eviction="lru")])
def test_it_belongs_to_runs(policy):
    with pytest.raises(ParameterError, match="host_memory needs"):
        host_size(1 << 30, policy)


class AnythingWithAHost(AnythingOfRuns):
    """The same with a host tier, whose copies take long or fail."""

    more = {"host": 300}

    @property
    def mover(self) -> FakeMover:
        return mover_of(self.core)

    @rule(late=st.integers(0, 5))
    def copies_take_long(self, late):
        self.mover.late = late

    @rule(fails=st.booleans())
    def copies_fail(self, fails):
        self.mover.fail = RuntimeError("no copy") if fails else None

    @rule(text=st.sampled_from(["ab" * 20, "cd" * 15, "ab" * 10 + "cd" * 15]), n=st.integers(1, 8))
    def ask_again(self, text, n):
        self._submit(text, gen(n))


class AnythingWithAHostAhead(AnythingWithAHost):
    runs = FakeAheadRunner


AnythingWithAHost.TestCase.settings = AnythingWithAHostAhead.TestCase.settings = settings(examples(6, 80), stateful_step_count=50)
TestAnythingWithAHost = pytest.mark.search(AnythingWithAHost.TestCase)
TestAnythingWithAHostAhead = pytest.mark.search(AnythingWithAHostAhead.TestCase)
