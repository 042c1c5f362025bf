"""Memory belongs to programs: which runs are open, what is kept for them, and in which order what is kept goes."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

import lmc
from lmc.backend.base import Hints, ProgramRun
from lmc.backend.engine.load import Load
from lmc.backend.engine.policy import Policy
from lmc.backend.engine.runs import Runs
from lmc.errors import Loc, ParameterError, PromptTooLongError
from lmc.segments import Gen, SamplingParams, Select, Text
from tests.backend.engine.agents import Clock, World, agents
from tests.backend.engine.test_scheduler import Anything
from tests.backend.engine_fakes import FakeAheadRunner, backend, drain, endless, stepped
from tests.searching import apart, examples, some

POOL = 2600
"""Tokens: six of the agents have room in it at once."""


# -- agents that use tools -----------------------------------------------------------------------------------------


@some("count", [12, 24, 48], 2)
def test_agents_compute_their_prompts_once(count):
    """Of 300 tokens with four tools each, in a pool with room for six; by requests 12 of them computed 19,000."""
    world = World(POOL)
    world.run(agents(count), check=count == 12)
    counters = world.engine.counters()
    assert counters.unique_tokens > 370 * count
    assert counters.prefilled_tokens <= (1.02 if count == 12 else 1.05) * counters.unique_tokens


def seconds(tool: float, admission: Any) -> tuple[float, int]:
    """That 24 agents take whose tools take so long, and tokens that were computed again. A row costs a millisecond."""
    world = World(POOL, Policy(admission=admission))
    world.run(agents(24, tool=tool))
    world.engine.check()
    counters = world.engine.counters()
    return world.clock.now, counters.prefilled_tokens - counters.unique_tokens


@apart
@pytest.mark.parametrize("tool", [0.05, 0.5])
def test_where_tools_are_quick_nobody_begins_in_the_room_of_those_that_are_away(tool):
    assert seconds(tool, "cost") == seconds(tool, "fit")


@apart
@pytest.mark.parametrize("tool", [2.0, 5.0])
def test_where_the_device_has_time_left_others_begin_in_the_room_of_those_that_are_away(tool):
    (now, again), (fit, _) = seconds(tool, "cost"), seconds(tool, "fit")
    assert now < 0.7 * fit and again > 5000


def test_while_it_is_not_known_what_rows_cost_only_what_fits_begins():
    """Nobody has been away before, and hardly any pass has run."""
    clock = Clock()
    engine, core = stepped(200, now=clock, max_context=150)
    one, other = ProgramRun("one"), ProgramRun("other")
    kept = engine.submit(None, [Text(("c" * 100,)), endless(4)], Hints(run=one))
    drain(core)
    waits = engine.submit(None, [Text(("o" * 120,)), endless(4)], Hints(run=other))
    for _ in range(8):
        core.turn()
    assert not waits.results[0].done and kept.results[0].done and engine.stats()["leases"] == 1


@some("policy", [Policy(schedule="lpm"), Policy(schedule="lpm", eviction="lru"), Policy(schedule="fcfs")], 3)
def test_without_runs_they_compute_them_again_and_again(policy):
    world = World(POOL, policy)
    world.run(agents(12))
    counters = world.engine.counters()
    assert counters.prefilled_tokens > 3 * counters.unique_tokens


@apart
def test_agents_whose_contexts_grow_tenfold_are_interrupted_and_come_to_their_end():
    """Nothing is known of the program when the first ones begin: the youngest give up what they have."""
    world = World(3000)
    world.run(agents(16, prompt=60, turns=8, found=90, tokens=8), check=True)
    stats, counters = world.engine.stats(), world.engine.counters()
    assert stats["broken_leases"] > 0
    assert counters.prefilled_tokens <= 1.3 * counters.unique_tokens


@apart
def test_what_runs_need_is_learned():
    world = World(3000)
    world.run(agents(16, prompt=60, turns=8, found=90, tokens=8))
    before, broken = world.engine.counters(), world.engine.stats()["broken_leases"]
    world.run(agents(16, prompt=60, turns=8, found=90, tokens=8, seed=1))
    counters = world.engine.counters() - before
    assert counters.prefilled_tokens <= 1.05 * counters.unique_tokens
    assert world.engine.stats()["broken_leases"] == broken


def test_what_runs_need_is_learned_for_each_arm():
    """A long arm and a short one: a run that has asked in the short one keeps no room for the long one."""
    engine, core = stepped(1000, max_context=600)
    hints = lambda run: Hints(run=run)
    sites = {"begin": Loc("agent.py", 1), "short": Loc("agent.py", 2), "long": Loc("agent.py", 3)}

    def at(name: str) -> Gen:
        return Gen(SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True), loc=sites[name])

    def go(run: ProgramRun, arm: str, n: int) -> Any:
        first = engine.submit(None, [Text((arm[0] * 30,)), at("begin")], hints(run))
        drain(core)
        more = engine.submit(first, [Text(("m" * n,)), at(arm)], hints(run))
        drain(core)
        return more

    for arm, n in (("short", 10), ("long", 400), ("short", 10), ("long", 400)):
        run = ProgramRun("agent")
        go(run, arm, n)
        run.end()
        drain(core)
    run = ProgramRun("agent")
    handle = go(run, "short", 10)
    (lease,) = core.scheduler.runs.leases()
    assert handle and lease.run.expected < 60, "as the short arm needs, and not as the program does on average"


@pytest.mark.parametrize(("growth", "open_runs"), [(None, 1), (0, 2), (200, 1)])
def test_a_run_whose_graph_leaves_no_more_is_expected_to_need_no_more(growth, open_runs):
    """Nothing is known of the program: without its graph, it may come to need as much again as its prompt."""
    engine, core = stepped(110, max_context=100)
    runs = [ProgramRun("agent") for _ in range(2)]
    handles = [engine.submit(None, [Text((name * 40,)), endless(4)], Hints(run=run, growth=growth)) for name, run in zip("ab", runs, strict=True)]
    drain(core)
    assert engine.stats()["open_runs"] == open_runs and handles


@apart
def test_who_comes_back_late_loses_its_lease_and_is_answered():
    world = World(POOL)
    some = agents(48)
    some[0].tools = [100.0] * 4
    world.run(some)
    assert world.engine.stats()["lapsed_leases"] > 0
    counters = world.engine.counters()
    assert counters.prefilled_tokens <= counters.unique_tokens + 4 * 400


@apart
def test_tools_whose_times_differ_a_hundredfold_lose_leases_only_until_that_is_known():
    """Who comes back after its lease has ended is learned from."""
    world, lapsed = World(POOL, Policy(admission="fit")), [0]
    for _ in range(3):
        some = agents(24)
        for i, agent in enumerate(some):
            agent.tools = [8.0 if (i + turn) % 7 == 0 else 0.08 for turn in range(4)]
        world.run(some)
        lapsed.append(world.engine.stats()["lapsed_leases"])
    assert 0 < lapsed[1] == lapsed[3]


def test_what_waits_for_a_sub_program_is_kept_while_that_is_active():
    """The sub-program asks again and again for a minute: as long as it does, its caller has not gone."""
    clock = Clock()
    engine, core = stepped(200, now=clock, max_context=150, policy=Policy(admission="fit"))
    run, other = ProgramRun("caller"), ProgramRun("other")
    caller = engine.submit(None, [Text(("c" * 60,)), endless(4)], Hints(run=run))
    drain(core)
    sub = None
    for _ in range(40):
        sub = engine.submit(sub, [Text(("s",)), endless(1)], Hints(run=run))
        drain(core)
        clock.now += 1.5
        held_back = engine.submit(None, [Text(("o" * 120,)), endless(4)], Hints(run=other))
        core.turn()
        assert not held_back.results[0].done
        held_back.cancel()
        drain(core)
    more = engine.submit(caller, [Text(("more",)), endless(1)], Hints(run=run))
    drain(core)
    assert engine.stats()["lapsed_leases"] == engine.stats()["broken_leases"] == 0
    assert more.results[0].output().meta["cached_tokens"] > 60


def test_a_lease_gives_up_no_more_of_its_end_than_is_needed():
    """The younger run's last turn goes for the older one; of what it has from before nothing is computed again."""
    engine, core = stepped(300, max_context=280)
    older, younger = ProgramRun("agent"), ProgramRun("agent")
    first = engine.submit(None, [Text(("f" * 100,)), endless(4)], Hints(run=older, growth=0))
    drain(core)
    second = engine.submit(None, [Text(("s" * 100,)), endless(4)], Hints(run=younger, growth=0))
    drain(core)
    for _ in range(2):
        second = engine.submit(second, [Text(("t" * 20,)), endless(4)], Hints(run=younger))
        drain(core)
    assert engine.stats()["leases"] == 2
    more = engine.submit(first, [Text(("m" * 50,)), endless(4)], Hints(run=older))
    drain(core)
    assert more.results[0].done and engine.stats()["broken_leases"] == 1
    (lease,) = (lease for lease in core.scheduler.runs.leases() if lease.run.number == younger.number)
    assert 100 < lease.node.end < 150
    older.end()
    drain(core)
    last = engine.submit(second, [Text(("l",)), endless(1)], Hints(run=younger))
    drain(core)
    assert last.results[0].output().meta["cached_tokens"] > 100


def test_nothing_is_given_up_while_others_get_on():
    """The older run waits for the answer that is being made, which gives room, and what the younger one has stays."""
    engine, core = stepped(300, max_context=280)
    older, younger, short = (ProgramRun("agent") for _ in range(3))
    first = engine.submit(None, [Text(("f" * 100,)), endless(4)], Hints(run=older, growth=0))
    drain(core)
    second = engine.submit(None, [Text(("s" * 100,)), endless(4)], Hints(run=younger, growth=0))
    drain(core)
    soon = engine.submit(None, [Text(("n" * 40,)), endless(8)], Hints(run=short, growth=0))
    core.turn()
    more = engine.submit(first, [Text(("m" * 60,)), endless(4)], Hints(run=older))
    core.turn()
    assert not (soon.results[0].done or more.results[0].done)
    short.end()
    drain(core)
    assert soon.results[0].done and more.results[0].done and second.results[0].done
    assert engine.stats()["broken_leases"] == 0


def test_who_goes_on_does_not_wait_long_for_others_to_end():
    """An answer of many tokens is being made: an older run has the room of one that is away before that has ended."""
    engine, core = stepped(500, max_context=400)
    older, younger, long = (ProgramRun("agent") for _ in range(3))
    first = engine.submit(None, [Text(("f" * 60,)), endless(4)], Hints(run=older, growth=0))
    drain(core)
    second = engine.submit(None, [Text(("s" * 60,)), endless(4)], Hints(run=younger, growth=0))
    drain(core)
    talk = engine.submit(None, [Text(("n" * 40,)), endless(300)], Hints(run=long, growth=0))
    core.turn()
    more = engine.submit(first, [Text(("m" * 60,)), endless(4)], Hints(run=older))
    for _ in range(200):
        core.turn()
    assert more.results[0].done and second.results[0].done and not talk.results[0].done
    assert engine.stats()["broken_leases"] == 1
    drain(core)


def test_where_everything_fits_runs_change_nothing():
    found = []
    for policy in (Policy(), Policy(schedule="lpm")):
        world = World(50_000, policy)
        world.run(agents(12))
        found.append((replace(world.engine.counters(), device_seconds=0.0), round(world.clock.now, 3)))
    assert found[0] == found[1]


# -- no deadlock, and no starving ----------------------------------------------------------------------------------


def test_runs_that_wait_for_one_another_outside_do_not_hold_the_pool():
    """The first waits for what only the last can say, which has no room beside it: its lease ends, and the last is admitted."""
    clock = Clock()
    engine, core = stepped(100, now=clock, max_context=100)
    first, last = ProgramRun("first"), ProgramRun("last")
    kept = engine.submit(None, [Text(("f" * 50,)), endless(8)], Hints(run=first))
    drain(core)
    other = engine.submit(None, [Text(("l" * 60,)), endless(8)], Hints(run=last))
    drain(core)
    assert kept.results[0].done and not other.results[0].done
    assert engine.stats()["held_back"] == 1 and 0 < core.scheduler.patience < 10
    clock.now += core.scheduler.patience
    drain(core)
    assert other.results[0].done


def test_a_run_does_not_wait_for_what_it_keeps_itself():
    """A pin and the leases of three forks leave no room for what the same run asks next: the leases end at once, the pin stays."""
    engine, core = stepped(200, max_context=150)
    run = ProgramRun("program")
    pin = engine.prefill(None, [Text(("p" * 70,))], Hints(run=run, pin=True))
    forks: list[Any] = []
    for name in "fgh":
        forks.append(engine.submit(None, [Text((name * 25,)), endless(8)], Hints(run=run)))
        drain(core)
    assert engine.stats()["leases"] == 3
    more = engine.submit(None, [Text(("m" * 100,)), endless(8)], Hints(run=run))
    drain(core)
    assert more.results[0].done and pin
    assert engine.stats()["pinned"] == 1 and engine.stats()["broken_leases"] > 0


def test_what_is_needed_does_not_wait_behind_pins_for_runs_that_are_away():
    clock = Clock()
    engine, core = stepped(200, now=clock, max_context=150)
    away, here = ProgramRun("away"), ProgramRun("here")
    kept = engine.submit(None, [Text(("a" * 40,)), endless(8)], Hints(run=away))
    drain(core)
    begun = engine.submit(None, [Text(("h" * 20,)), endless(8)], Hints(run=here))
    drain(core)
    pin = engine.prefill(None, [Text(("p" * 70,))], Hints(run=here, pin=True))
    drain(core)
    more = engine.submit(begun, [Text(("m" * 80,)), endless(8)], Hints(run=here))
    drain(core)
    assert kept.results[0].done and more.results[0].done and pin
    assert engine.stats()["pinned"] == 0 and engine.stats()["broken_leases"] == 0


def test_a_sub_program_and_forks_do_not_wait_behind_other_runs():
    clock = Clock()
    engine, core = stepped(200, now=clock, max_context=200)
    own, others = ProgramRun("own"), [ProgramRun("other") for _ in range(4)]
    prompt = engine.submit(None, [Text(("p" * 50,)), endless(8)], Hints(run=own))
    core.turn()
    waiting = [engine.submit(None, [Text((f"{i}" + "o" * 90,)), endless(8)], Hints(run=run)) for i, run in enumerate(others)]
    drain(core)
    forks = [engine.submit(prompt, [Text((f"fork {i}",)), endless(8)], Hints(run=own)) for i in range(3)]
    alone = engine.submit(None, [Text(("sub-program",)), endless(8)], Hints(run=own))
    for _ in range(12):
        core.turn()
    assert all(handle.results[0].done for handle in (*forks, alone))
    assert not all(handle.results[0].done for handle in waiting)
    own.end()
    for run, handle in zip(others, waiting, strict=True):
        drain(core)
        assert handle.results[0].done, "the oldest first"
        run.end()


def test_a_request_of_no_run_is_not_passed_for_ever(monkeypatch):
    monkeypatch.setattr("lmc.backend.engine.waiting._PATIENCE", 20)
    world = World(POOL)
    alone = world.engine.submit(None, [Text(("z" * 900,)), endless(8)])
    world.run(agents(24))
    assert alone.results[0].done


def test_a_run_that_is_dropped_keeps_nothing():
    engine, core = stepped(400)
    run = ProgramRun("dropped")
    handle = engine.submit(None, [Text(("p" * 50,)), endless(8)], Hints(run=run))
    drain(core)
    assert engine.stats()["leases"] == 1
    del handle, run
    gc.collect()
    drain(core)
    assert engine.stats()["leases"] == engine.stats()["open_runs"] == 0


def test_what_is_asked_after_a_run_has_ended_is_answered():
    engine, core = stepped(400)
    run = ProgramRun("program")
    handle = engine.submit(None, [Text(("p" * 50,)), endless(8)], Hints(run=run))
    run.end()
    drain(core)
    more = engine.submit(handle, [Text(("more",)), endless(8)], Hints(run=run))
    drain(core)
    assert more.results[0].output().meta["cached_tokens"] > 50
    assert engine.stats()["leases"] == 0


def test_a_choice_is_kept_for_what_follows():
    engine, core = stepped(400)
    run = ProgramRun("program")
    handle = engine.submit(None, [Text(("p" * 50,)), Select(("abc", "abd"))], Hints(run=run))
    drain(core)
    (lease,) = core.scheduler.runs.leases()
    assert lease.node.end > 50
    more = engine.submit(handle, [Text(("more",)), endless(2)], Hints(run=run))
    drain(core)
    assert more.results[0].done and engine.stats()["leases"] == 1


def test_a_place_that_nobody_comes_back_to_keeps_nothing():
    engine, core = stepped(4000)
    for i in range(12):
        run = ProgramRun("program")
        handle = engine.submit(None, [Text((f"{i}" + "p" * 30,)), endless(8)], Hints(run=run))
        drain(core)
        assert handle.results[0].done and engine.stats()["leases"] == (i < 8)
        run.end()
        drain(core)


@pytest.mark.parametrize(("eviction", "kept"), [("next-use", True), ("lru", False)])
def test_a_conversation_outlives_requests_that_never_came_back(eviction, kept):
    """Of no run: it has come back once, so it is expected again, and others that were asked later go before it."""
    engine, core = stepped(400, policy=Policy(eviction=eviction))

    def ask(text: str, before: Any = None) -> Any:
        handle = engine.submit(before, [Text((text,)), endless(2)])
        drain(core)
        return handle

    chat = ask("c" * 60)
    for i in range(3):
        ask(f"{i}" + "o" * 50)
    chat = ask("and more", chat)
    for i in range(7):
        ask(f"{i}" + "p" * 50)
    chat = ask("and more", chat)
    assert (chat.results[0].output().meta["cached_tokens"] > 60) == kept
    assert engine.stats()["leases"] == 0


# -- programs ------------------------------------------------------------------------------------------------------


@lmc.function
def agent(s, task, notes):
    s += "You are an agent. " + task
    for note in notes:
        s += " Do: " + lmc.gen("step", max_tokens=4, ignore_eos=True)
        s += s["step"] and note
    s += " So: " + lmc.gen("end", max_tokens=4, ignore_eos=True)


@some("compiled", [True, False], 2)
def test_programs_are_runs(compiled):
    items = [{"task": f"task {i} " + chr(102 + i) * 60, "notes": [chr(102 + i) * 15 + str(j) for j in range(4)]} for i in range(20)]
    with backend(700, max_context=600, policy=Policy(admission="fit"))[0] as engine:  # how long passes take here depends on what else this machine does
        batch: Callable[..., Any] = lmc.compile(agent, backend=engine).batch if compiled else agent.run_batch
        options: dict[str, Any] = {"temperature": 0, **({} if compiled else {"backend": engine})}
        batch(items[:4], **options)  # teaches what runs need
        before = engine.counters()
        states = batch(items[4:], **options)
        assert all(state["end"] for state in states)
        counters = engine.counters() - before
        assert counters.prefilled_tokens <= 1.05 * counters.unique_tokens
        engine.check()
        stats = engine.stats()
        assert stats["open_runs"] == stats["leases"] == stats["held_back"] == 0


@lmc.function
def helper(s, text):
    s += text + lmc.gen("found", max_tokens=4, ignore_eos=True)
    return s["found"]


@lmc.function
def caller(s, text):
    s += text + lmc.gen("first", max_tokens=4, ignore_eos=True)
    found = helper.run(text="h" * 40 + s["first"]).ret_value
    for fork in s.fork(3):
        fork += found + lmc.gen("more", max_tokens=4, ignore_eos=True)
        fork.text()
    s += lmc.gen("last", max_tokens=4, ignore_eos=True)


def test_sub_programs_and_forks_belong_to_their_run():
    """Each waits for the others of its own: if they had to wait behind other runs, nobody would get on."""
    with backend(260, max_context=200)[0] as engine:
        states = caller.run_batch([{"text": chr(102 + i) * 50} for i in range(12)], temperature=0, backend=engine)
        assert all(state["last"] for state in states)
        engine.check()
        assert engine.stats()["open_runs"] == 0


def test_a_priority_is_a_share():
    for given in (0, -1, float("nan"), "high", True):
        with pytest.raises(ParameterError, match="priority"):
            agent.run(task="", notes=[], backend=lmc.Mock(), priority=given)


# -- shares --------------------------------------------------------------------------------------------------------


def order_of(engine: Any, core: Any, asks: list[tuple[str, Hints]]) -> list[int]:
    """In which order they are answered, one at a time."""
    handles = [engine.submit(None, [Text((text,)), endless(1)], hints) for text, hints in asks]
    done: list[int] = []
    while core.turn():
        done += [i for i, handle in enumerate(handles) if handle.results[0].done and i not in done]
    return done


def test_who_has_twice_the_priority_has_twice_the_share():
    engine, core = stepped(2000, max_batch=1)
    asks = [(f"{'ab'[i % 2]}{i:02}" + "p" * 30, Hints(priority=1 + i % 2)) for i in range(40)]
    order = order_of(engine, core, asks)
    assert 9 <= sum(i % 2 == 0 for i in order[:30]) <= 11, "a third of those that were answered first"


def test_an_account_with_many_requests_does_not_hold_up_one_with_few():
    engine, core = stepped(2000, max_batch=1)
    many = [(f"m{i:02}" + "p" * 30, Hints(account="many")) for i in range(30)]
    few = [(f"f{i:02}" + "p" * 30, Hints(account="few")) for i in range(3)]
    order = order_of(engine, core, many + few)
    assert all(order.index(30 + i) <= 2 * i + 2 for i in range(3))


# -- policies to compare with --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "computed"),
    [("tree", 100 + 20 + 1 + 10), ("table", 100 + 110 + 1 + 10), ("off", 100 + 110 + 110 + 120)],
)
def test_caches_find_what_they_keep(cache, computed):
    """Two prompts with a common beginning, the second again, and one that goes on from it."""
    engine, core = stepped(2000, policy=Policy(cache=cache), chunk=512)
    first, second = "a" * 90 + "f" * 10, "a" * 90 + "g" * 20
    for text in (first, second, second, second + "h" * 10):
        handle = engine.submit(None, [Text((text,)), endless(1)])
        drain(core)
        assert handle.results[0].done
    assert engine.counters().prefilled_tokens == computed


def test_orders_are_what_they_are_called():
    for schedule, expected in (("fcfs", [0, 1, 2, 3]), ("lpm", [2, 3, 0, 1]), ("program", [2, 3, 0, 1])):
        engine, core = stepped(2000, max_batch=1, policy=Policy(schedule=schedule))
        order_of(engine, core, [("w" * 40, Hints())])
        assert order_of(engine, core, [(text, Hints()) for text in ("x" * 40, "y" * 40, "w" * 40 + "a", "w" * 40 + "b")]) == expected
    engine, core = stepped(2000, max_batch=1, policy=Policy(schedule="random"))
    order = order_of(engine, core, [(f"{i:02}" + "p" * 20, Hints()) for i in range(20)])
    assert order != sorted(order) and sorted(order) == list(range(20))


def test_a_policy_that_is_none_is_refused():
    with pytest.raises(ParameterError, match="schedule is 'best'; it can be 'program'"):
        Policy(schedule="best")  # pyright: ignore[reportArgumentType]


# -- anything ------------------------------------------------------------------------------------------------------


class AnythingOfRuns(Anything):
    """The same by runs of programs, which begin, end, go away and come back late."""

    policy = Policy()
    more: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.clock = Clock()
        self.options = {"now": self.clock, "policy": self.policy, **self.more}
        self.runs_begun: list[ProgramRun] = []
        self.run_of: ProgramRun | None = None
        self.share: dict[str, Any] = {}
        super().__init__()

    def hinted(self, hints: Hints) -> Hints:
        return hints._replace(run=self.run_of, **self.share)

    @rule(account=st.sampled_from("xy"), priority=st.sampled_from([0.5, 1.0, 4.0]))
    def another_share(self, account, priority):
        self.share = {"account": account, "priority": priority}

    @rule(program=st.sampled_from("ab"))
    def begin_run(self, program):
        self.run_of = ProgramRun(program, **self.share)
        self.runs_begun.append(self.run_of)

    @rule(data=st.data())
    def another_run(self, data):
        self.run_of = data.draw(st.sampled_from([None, *self.runs_begun]))

    @rule(data=st.data())
    def end_run(self, data):
        if self.runs_begun:
            self.runs_begun.pop(data.draw(st.integers(0, len(self.runs_begun) - 1))).end()

    @rule(seconds=st.sampled_from([0.01, 1.0, 30.0]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    def come_to_rest(self):
        for _ in range(1000):
            drain(self.core)
            if not (pause := self.core.scheduler.patience):
                break
            self.clock.now += pause
        assert not self.core.scheduler.waiting, "lost"
        for run in self.runs_begun:
            run.end()
        super().come_to_rest()
        stats = self.engine.stats()
        assert stats["open_runs"] <= (self.run_of is not None and not self.run_of.ended)


class AnythingOfRunsAhead(AnythingOfRuns):
    runs = FakeAheadRunner


class AnythingTalked(AnythingOfRuns):
    """The same with conversations of runs and of none, whose beginnings do not fit the pool together."""

    def __init__(self) -> None:
        super().__init__()
        self.talks: list[tuple[ProgramRun | None, Any]] = []

    @rule(begin=st.sampled_from("abcd"), n=st.integers(30, 70), passes=st.integers(0, 12), of_run=st.booleans())
    def begin_to_talk(self, begin, n, passes, of_run):
        run = ProgramRun("talk") if of_run else None
        handle = self.engine.submit(None, [Text((begin * n,)), endless(3)], Hints(run=run))
        self.talks.append((run, handle))
        self.open.append((handle, None, []))
        self.run(passes)

    @rule(data=st.data(), text=st.text("ab", min_size=1, max_size=6), passes=st.integers(0, 12))
    def talk_on(self, data, text, passes):
        if self.talks:
            i = data.draw(st.integers(0, len(self.talks) - 1))
            run, handle = self.talks[i]
            try:
                handle = self.engine.submit(handle, [Text((text,)), endless(3)], Hints(run=run))
            except PromptTooLongError:
                return
            self.talks[i] = run, handle
            self.open.append((handle, None, []))
            self.run(passes)

    def come_to_rest(self):
        drain(self.core)
        for run, _ in self.talks:
            if run is not None:
                run.end()
        self.talks.clear()
        super().come_to_rest()


class Cheap(Load):
    """Nothing costs anything."""

    row, gain = 0.0, math.inf  # pyright: ignore


class AnythingInTheRoomOfOthers(AnythingTalked):
    """The same where whoever is away loses what it kept as soon as somebody else lacks the room."""

    known = staticmethod(lambda self, lease, now: 1.0 + lease.own % 7)

    def __init__(self) -> None:
        self.known_times = mock.patch.object(Runs, "_until_back", self.known)
        self.known_times.start()
        super().__init__()
        self.core.scheduler.runs._load = Cheap()

    def teardown(self):
        try:
            super().teardown()
        finally:
            self.known_times.stop()


class AnythingInTheRoomOfOthersAhead(AnythingInTheRoomOfOthers):
    runs = FakeAheadRunner


class AnythingAtRandom(AnythingOfRuns):
    policy = Policy("random", "table", "lru")


class AnythingUncached(AnythingOfRunsAhead):
    policy = Policy(cache="off")


AnythingAtRandom.TestCase.settings = AnythingUncached.TestCase.settings = settings(examples(2, 40), stateful_step_count=40)
TestAnythingAtRandom = pytest.mark.search(AnythingAtRandom.TestCase)
TestAnythingUncached = pytest.mark.search(AnythingUncached.TestCase)
AnythingOfRuns.TestCase.settings = AnythingOfRunsAhead.TestCase.settings = settings(examples(2, 80), stateful_step_count=40)
AnythingInTheRoomOfOthers.TestCase.settings = AnythingInTheRoomOfOthersAhead.TestCase.settings = settings(examples(2, 80), stateful_step_count=40)
TestAnythingInTheRoomOfOthers = pytest.mark.search(AnythingInTheRoomOfOthers.TestCase)
TestAnythingInTheRoomOfOthersAhead = pytest.mark.search(AnythingInTheRoomOfOthersAhead.TestCase)
TestAnythingOfRuns = pytest.mark.search(AnythingOfRuns.TestCase)
TestAnythingOfRunsAhead = pytest.mark.search(AnythingOfRunsAhead.TestCase)
