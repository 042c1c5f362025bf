"""The host tier: what has to leave the device comes back, the right KV at the right time, and nothing leaks on the way."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from lmc.backend.base import Hints, ProgramRun
from lmc.backend.engine.policy import Policy, host_size
from lmc.backend.engine.runs import Runs
from lmc.errors import ParameterError
from lmc.segments import Text
from tests.backend.engine.agents import Clock, World, agents
from tests.backend.engine.test_runs import AnythingInTheRoomOfOthers, AnythingTalked
from tests.backend.engine_fakes import FakeAheadRunner, FakeMover, drain, endless, stepped
from tests.searching import apart, examples, size, some


def mover_of(core: Any) -> FakeMover:
    return core.scheduler._mover


def ask(engine: Any, core: Any, text: str, before: Any = None, run: ProgramRun | None = None) -> Any:
    handle = engine.submit(before, [Text((text,)), endless(4)], Hints(run=run))
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


def test_what_is_copied_out_leaves_room_for_what_is_reserved():
    """A copy holds what it copies: here of a prefix whose room was reserved for an answer since, before there was reason to copy it."""
    engine, core = stepped(100, host=300, max_context=100)
    mover_of(core).late = 50
    first = ask(engine, core, "c" * 40)
    assert not core.scheduler.host_stats()["host_out"], "half of the pool is free"
    long = engine.submit(None, [Text(("o" * 30,)), endless(32)])
    short = engine.submit(None, [Text(("s" * 3,)), endless(2)])
    drain(core, engine.check)
    assert all(handle.results[0].done for handle in (first, long, short))


@apart
def test_agents_away_are_parked_and_others_run_meanwhile():
    """Tools of a second: without a host tier the device is idle while the first ones are away."""
    took, computed = {}, {}
    for host in (0, 8000):
        world = World(2600, host=host)
        world.run(agents(24, tool=1.0), check=host > 0)
        world.engine.check()
        took[host], computed[host] = world.clock.now, world.engine.counters().prefilled_tokens
        stats = world.engine.stats()
    assert stats["parked_leases"] > 0 and stats["host_in"] > 0
    assert took[8000] < 0.5 * took[0]
    assert computed[8000] <= 1.05 * world.engine.counters().unique_tokens


def test_what_waits_for_a_copy_out_is_admitted_behind_it():
    """All that is cached is being copied, and so it cannot be evicted yet: nothing runs, and nobody is expected back."""
    engine, core = stepped(100, host=200, max_context=100)
    mover_of(core).late = 6
    first = engine.submit(None, [Text(("f" * 60,)), endless(4)])
    while not first.results[0].done:
        core.turn()
    more = engine.submit(None, [Text(("m" * 60,)), endless(4)])
    core.turn()
    engine.check()
    assert core.scheduler.held.copies and not more.results[0].done
    drain(core)
    assert more.results[0].done


def test_a_run_that_does_not_fit_beside_parked_ones_is_admitted_where_nothing_runs():
    """The parked one may need more than the device and the host have together, but it is away, and the device has nothing to do."""
    engine, core = stepped(100, host=60, max_context=100)
    away, new = ProgramRun("away"), ProgramRun("new")
    kept = ask(engine, core, "a" * 50, run=away)
    alone = ask(engine, core, "b" * 45)
    assert engine.stats()["parked_leases"] == 1 and alone.results[0].done
    later = ask(engine, core, "c" * 60, run=new)
    assert later.results[0].done and kept
    assert engine.stats()["open_runs"] == 2


def test_pins_that_open_runs_use_outlast_others():
    """Pages that a lease holds as well give no room: of two pins, the older one stays, which is the beginning of a run that is away."""
    engine, core = stepped(200, max_context=200)
    first, second = ProgramRun("agent"), ProgramRun("agent")
    shared = engine.prefill(None, [Text(("s" * 60,))], Hints(pin=True))
    drain(core)
    other = engine.prefill(None, [Text(("o" * 40,))], Hints(pin=True))
    agents = [ask(engine, core, "s" * 60 + name * 10, run=run) for name, run in (("x", first), ("y", second))]
    assert engine.stats()["pinned"] == 2 and engine.stats()["leases"] == 2
    more = engine.submit(agents[0], [Text(("m" * 100,)), endless(4)], Hints(run=first))
    drain(core)
    assert more.results[0].done and engine.stats()["broken_leases"] == 0
    assert engine.holds(shared) and not engine.holds(other)


@pytest.mark.parametrize("late", [0, 3])
def test_what_a_run_goes_on_from_is_back_before_its_request_comes(late):
    """It is parked for others; when it has been away for half the usual time, and there is room, it is copied back beside a pass of somebody else."""
    clock = Clock()
    engine, core = stepped(300, host=1000, max_context=250, now=clock)
    run = ProgramRun("agent")
    handle = ask(engine, core, "a" * 160, run=run)
    for _ in range(2):  # how long it is away is learned
        clock.now += 10.0
        handle = ask(engine, core, "go on", handle, run=run)
    other = ask(engine, core, "o" * 150)
    stats = engine.stats()
    assert (stats["parked_leases"], stats["leases"]) == (1, 0)
    mover_of(core).late = late
    clock.now += 2.0
    ask(engine, core, "x" * 10)
    assert engine.stats()["host_ahead"] == 0, "too early"
    clock.now += 4.0
    for name in "yz":
        ask(engine, core, name * 10)
    assert engine.stats()["host_ahead"] == 1 and engine.stats()["leases"] == 1
    engine.check()
    hits = engine.stats()["host_hits"]
    more = ask(engine, core, "and more", handle, run=run)
    assert more.results[0].output().meta["cached_tokens"] > 160 and engine.stats()["host_hits"] == hits, "nothing is copied for the request"
    assert other


@pytest.mark.search
def test_tokens_are_the_same_with_and_without():
    answers = []
    for host in (0, 600, 8000):
        world = World(1200, host=host)
        some = agents(size(4, 12), prompt=150, tool=0.5)
        world.run(some, check=True)
        answers.append([agent.texts for agent in some])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.search
def test_a_copy_that_fails_is_computed_again():
    world = World(1200, host=4000)
    mover_of(world.core).fail = MemoryError("no memory")
    world.run(agents(size(6, 12), prompt=150, tool=0.5), check=True)
    stats = world.engine.stats()
    assert stats["host_failed"] > 0 and stats["host_in"] == stats["parked_leases"] == 0


def test_what_is_fetched_late_for_a_request_that_is_cancelled_stays_cached():
    engine, core = stepped(200, host=1000, max_context=200)
    chat = ask(engine, core, "c" * 60)
    kept = [ask(engine, core, f"{i}" + "o" * 70) for i in range(4)]
    mover_of(core).late = 10
    more = engine.submit(chat, [Text(("and more",)), endless(4)])
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


def test_no_memory_is_taken_before_something_may_have_to_leave():
    """Cached KV that nobody will use again has no right to the host; leases do."""
    engine, core = stepped(300, host=1000, max_context=250)
    mover, run = mover_of(core), ProgramRun("agent")
    for i in range(6):
        over = ProgramRun("short")
        ask(engine, core, f"{i}" + "o" * 80, run=over)
        over.end()
        drain(core)
    assert engine.stats()["free_slots"] < 100 and mover.ready == 0
    first = ask(engine, core, "a" * 100, run=run)
    assert mover.ready == 0 and engine.stats()["host_out"] == 0
    second = ask(engine, core, "b" * 100, run=run)
    assert mover.ready > 0 and engine.stats()["host_out"] >= 200 and first and second


@pytest.mark.parametrize("late", [0, 4])
def test_what_ended_runs_left_on_the_host_goes_before_what_is_needed(late):
    """The older prefix belongs to a run that is away, the newer ones to runs that have ended."""
    engine, core = stepped(300, host=400, max_context=250)
    mover_of(core).late = late
    away = ProgramRun("agent")
    first = ask(engine, core, "a" * 160, run=away)
    for name in "bcd":
        over = ProgramRun("agent")
        ask(engine, core, name * 100, run=over)
        over.end()
        drain(core)
    ask(engine, core, "e" * 200)
    assert (engine.stats()["parked_leases"], engine.stats()["broken_leases"]) == (1, 0)
    more = ask(engine, core, "and more", first, run=away)
    assert more.results[0].output().meta["cached_tokens"] > 160


def test_what_ended_runs_left_takes_no_more_memory():
    engine, core = stepped(300, host=50_000, max_context=250)
    first = ask(engine, core, "a" * 160, run=ProgramRun("agent"))
    for i in range(60):
        over = ProgramRun("agent")
        begun = ask(engine, core, f"{i:02}" * 40, run=over)
        ask(engine, core, "more", begun, run=over)
        over.end()
        drain(core)
    assert engine.stats()["host_out"] > 5000 and mover_of(core).ready < 5 * 300 and first


def test_conversations_get_as_much_memory_as_they_need():
    """They belong to no run, and come back though the device has long been without them."""
    engine, core = stepped(300, host=50_000, max_context=250)
    chats = [ask(engine, core, f"{i:02}" * 20) for i in range(30)]
    more = [ask(engine, core, "and more", chat) for chat in chats]
    assert engine.stats()["host_hits"] == 30
    assert all(chat.results[0].output().meta["cached_tokens"] >= 40 for chat in more)


def test_who_needs_as_much_as_another_that_found_no_room_looks_for_none(monkeypatch):
    """Hundreds may wait for the device; each look for room goes over all leases."""
    engine, core = stepped(300, host=8000, max_context=250, max_batch=64, chunk=4000)
    looks = list[int]()
    make_room = Runs.make_room
    monkeypatch.setattr(Runs, "make_room", lambda self, need, leases: (looks.append(need), make_room(self, need, leases))[1])
    runs = [ProgramRun("agent") for _ in range(40)]
    handles = [engine.submit(None, [Text((f"{i:02}" * 50,)), endless(60)], Hints(run=run)) for i, run in enumerate(runs)]
    core.turn()
    for run in runs:
        run.end()
    assert engine.stats()["running"] == 1 and len(looks) <= 4
    drain(core)
    assert all(handle.results[0].done for handle in handles)


def test_who_is_held_back_begins_when_room_has_come():
    """Memory is wanted for a run that does not fit; it comes while nothing runs and nobody is expected back soon."""
    clock = Clock()
    engine, core = stepped(100, host=600, max_context=100, now=clock)
    mover = mover_of(core)
    mover.is_slow = mover.grows = True
    away = [ask(engine, core, name * 40, run=ProgramRun("away")) for name in "ab"]
    new = engine.submit(None, [Text(("c" * 60,)), endless(4)], Hints(run=ProgramRun("new")))
    drain(core)
    assert not new.results[0].done and 0 < core.scheduler.patience <= 0.1 and away, "a short pause of the engine's loop"
    core.step()
    assert not new.results[0].done
    mover.is_slow = mover.grows = False
    for _ in range(3):  # room, a copy, what it leaves
        core.step()
    drain(core)
    assert new.results[0].done and engine.stats()["broken_leases"] == 0


@some("resumes", [False, True], 2)
def test_requests_that_are_never_continued_are_soon_not_copied_any_more(resumes):
    """Single requests to a server fill the pool as well, but nobody comes back to them."""
    engine, core = stepped(300, host=2000, max_context=300)
    out, chat = list[int](), None
    for i in range(200):
        if i % 8 == 0 and resumes:
            chat = ask(engine, core, f"{i:03}" + "c" * 20, chat if i % 64 else None)
        else:
            ask(engine, core, f"{i:03}" + "o" * 40)
        out.append(engine.stats()["host_out"])
    first, last = out[60] - out[10], out[-1] - out[-51]
    assert first > 40 * 40 and (last > 40 * 40 if resumes else last < 10 * 44)


def test_what_found_no_room_is_copied_when_there_is_some():
    """Memory comes while passes run: until then what waits for it is neither copied nor forgotten."""
    engine, core = stepped(300, host=1000, max_context=250)
    mover, run = mover_of(core), ProgramRun("agent")
    mover.is_slow = True
    kept = [ask(engine, core, name * 80, run=run) for name in "ab"]
    assert engine.stats()["host_out"] == engine.stats()["host_failed"] == 0
    mover.is_slow = False
    kept.append(ask(engine, core, "c" * 80, run=run))
    assert engine.stats()["host_out"] > 240 and engine.stats()["host_tokens"] > 240


@pytest.mark.parametrize(("said", "size"), [(None, None), (0, 0), ("0GB", 0), (123, 123), ("16GB", 16 * 10**9), ("1.5 GiB", 3 << 29), ("2kb", 2000)])
def test_sizes(said, size):
    assert host_size(said, Policy()) == size


@pytest.mark.parametrize("said", [-1, True, 1.5, "much", "16 XB", ""])
def test_sizes_that_are_none(said):
    with pytest.raises(ParameterError, match="host_memory is"):
        host_size(said, Policy())


@pytest.mark.parametrize("policy", [Policy(cache="off"), Policy(cache="table"), Policy(schedule="lpm"), Policy(eviction="lru")])
def test_it_belongs_to_runs(policy):
    assert host_size(None, policy) == host_size(0, policy) == 0
    with pytest.raises(ParameterError, match="host_memory needs"):
        host_size(1 << 30, policy)


class AnythingWithAHost(AnythingTalked):
    """The same with a host tier, whose copies take long or fail."""

    more = {"host": 300}

    def __init__(self) -> None:
        self.everything = mock.patch.multiple("lmc.backend.engine.host_tier", LEAST=2, _IN_USE=0.0)
        self.everything.start()
        super().__init__()

    def teardown(self):
        try:
            super().teardown()
        finally:
            self.everything.stop()

    @property
    def mover(self) -> FakeMover:
        return mover_of(self.core)

    @rule(late=st.integers(0, 5))
    def copies_take_long(self, late):
        self.mover.late = late

    @rule(fails=st.booleans())
    def copies_fail(self, fails):
        self.mover.fail = RuntimeError("no copy") if fails else None


class AnythingWithAHostAhead(AnythingWithAHost):
    runs = FakeAheadRunner


class AnythingWithAHostInTheRoomOfOthers(AnythingWithAHost, AnythingInTheRoomOfOthers): ...


AnythingWithAHostInTheRoomOfOthers.TestCase.settings = AnythingWithAHost.TestCase.settings = AnythingWithAHostAhead.TestCase.settings = settings(
    examples(2, 80), stateful_step_count=50
)
TestAnythingWithAHost = pytest.mark.search(AnythingWithAHost.TestCase)
TestAnythingWithAHostAhead = pytest.mark.search(AnythingWithAHostAhead.TestCase)
TestAnythingWithAHostInTheRoomOfOthers = pytest.mark.search(AnythingWithAHostInTheRoomOfOthers.TestCase)
