"""One step ahead: the same answers, at most one row that nobody takes, and no more than one pass in flight."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from random import Random

import numpy as np
import pytest

from lmc import gc_tuning
from lmc.backend.base import Handle, Hints, ProgramRun
from lmc.backend.engine.request import Request, RequestKind
from lmc.errors import BackendError
from lmc.segments import Gen, Select, Text
from tests.backend.engine_fakes import (
    EOS,
    FakeAheadRunner,
    FakeFlight,
    FakeRunner,
    FakeWords,
    automata,
    backend,
    drain,
    gen,
    run_cancelling,
    stepped,
)
from tests.searching import apart, size, some

WORDS = FakeWords()


HOST = {"presence_penalty": 1.0}  # beside a constraint: only the host follows the answer
ASKS = {
    "plain": gen(6),
    "one token": gen(1),
    "sampled": gen(9, temperature=1.0, seed=5),
    "stopped": gen(12, stop=("a",)),
    "several": gen(5, temperature=1.0, n=3, seed=2),
    "penalised": gen(6, frequency_penalty=0.5),
    "scored": gen(5, return_logprob=True, logprob_start_len=0),
    "none": gen(0),
    "constrained": gen(9, constraint="(yes|no), [0-9]{1,3}"),
    "free within": gen(14, constraint=r"[a-z ]{3,9}"),
    "forced often": gen(30, constraint=r"[ab] the cat[sd]{1,2}, (yes|no) END[a-e]*"),
    "forced and drawn": gen(25, constraint=r"[ab ]{1,3}(the|END) abcd[a-d世界]{2,5} xyz", temperature=1.0, seed=7),
    "bound and scored": gen(12, constraint=r"[ab] the cat[sd]{1,2}", return_logprob=True),
    "followed by the host": gen(9, constraint="(yes|no), [a-z]{1,3}", **HOST),
    "chosen": Select(("abc", "ab", "d e", "abx")),
}


def answers(runs: type[FakeRunner], chains: list[list[str]], **options):
    """Texts and metas of chains of asks that all run together."""
    engine, core = stepped(4096, compiler=automata(WORDS), runs=runs, **options)
    handles = [
        engine.submit(None, [s for i, name in enumerate(chain) for s in (Text((f"{n % 3} go {i} ",)), ASKS[name])])
        for n, chain in enumerate(chains)
    ]
    drain(core, engine.check)
    engine.check()
    outputs = [[result.output() for result in handle.results] for handle in handles]
    return [
        [(o.texts, [{k: v for k, v in m.items() if k not in ("id", "cached_tokens")} for m in o.metas]) for o in chain]
        for chain in outputs
    ], core


CHAINS = [
    *([name] for name in ASKS),
    ["plain", "stopped", "one token", "none", "chosen", "sampled"],
    ["constrained", "plain", "constrained", "several", "scored"],
    ["stopped", "stopped", "chosen", "penalised", "plain"],
    ["forced often", "free within", "forced and drawn", "bound and scored"],
    ["free within", "followed by the host", "forced often", "constrained"],
]


@some("chunk, max_batch", [(8, 3), (8, 64), (512, 3), (512, 64)], 6)
def test_answers_are_those_of_a_loop_that_waits(chunk, max_batch):
    expected, _ = answers(FakeRunner, CHAINS, chunk=chunk, max_batch=max_batch)
    found, core = answers(FakeAheadRunner, CHAINS, chunk=chunk, max_batch=max_batch)
    assert found == expected
    assert core.runner.launched > 0


def test_an_answer_that_ends_by_its_length_costs_no_row_more():
    rows = {}
    for runs in (FakeRunner, FakeAheadRunner):
        _, core = answers(runs, [["plain"], ["one token"], ["sampled"]])
        rows[runs] = sum(core.runner.passes)
    assert rows[FakeAheadRunner] == rows[FakeRunner]


def test_an_answer_that_stops_costs_one_row_more():
    engine, core = stepped(512, runs=FakeAheadRunner)
    prompt = WORDS.encode(("say it",))
    core.runner.say(prompt, [100, 101])
    handle = engine.submit(None, [Text(("say it",)), gen(50)])
    drain(core, engine.check)
    assert handle.results[0].output().text == "de"
    assert handle.results[0].output().meta["finish_reason"] == {"type": "stop", "matched": EOS}
    assert core.runner.passes == [len(prompt), 1, 1, 1]  # the last one's token nobody takes
    assert engine.counters().generated_tokens == 3


@pytest.mark.parametrize("names", [["free within"] * 3, ["forced often", "forced and drawn"], ["plain", "forced often"]])
def test_constrained_answers_ahead_are_those_of_a_loop_that_waits(names, monkeypatch):
    """Also where nobody waits for what may be forced."""
    expected, _ = answers(FakeRunner, [[name] for name in names])
    monkeypatch.setattr("lmc.backend.engine.engine._MOST_FORCED", 1.0)
    found, core = answers(FakeAheadRunner, [[name] for name in names])
    assert found == expected
    assert core.runner.launched == len(core.runner.passes)


PARTS = ["[ab]", "[a-d ]{1,6}", " the cat", "(yes|no)", "END", "(ab|abcd|cd)", "[世界]{1,2}", "[0-9]{1,3}", "(the |cat )+", "[a-e]*"]


OPTIONS = [
    {}, {}, {"temperature": 1.0, "seed": 3}, {"temperature": 0.7, "seed": 71, "n": 2}, {"stop": ("d",)}, {"stop": ("e c", "世")},
    {"stop_regex": ("c[a-d]",)}, {"stop_token_ids": (WORDS.encode((" cat",))[0],)}, {"return_logprob": True}, {"min_new_tokens": 5},
    {"presence_penalty": 1.0}, {"logit_bias": ((97, 2.0),)},
]  # fmt: skip


def random_ask(rng: Random) -> Gen | Select:
    regex = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 5)))
    kind = rng.random()
    if kind < 0.1:
        return ASKS["chosen"]
    return gen(rng.choice([5, 6, 9, 30, 60]), constraint=None if kind < 0.3 else regex, **rng.choice(OPTIONS))


class Traffic:
    """Chains of random asks, some of them under constraints, some cancelled, in two namespaces and in a pool that is mostly too small for all of them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.chains = [[random_ask(rng) for _ in range(rng.randint(1, 3))] for _ in range(rng.choice([rng.randint(1, 7), rng.randint(9, 14)]))]
        self.cancelled = [rng.randint(1, 40) if rng.random() < 0.15 else None for _ in self.chains]
        self.slots, self.chunk, self.max_batch = rng.choice([145, 160, 800]), rng.choice([6, 12, 64]), rng.choice([2, 7, 32])
        self.preempted = self.accepted = 0

    def said(self, runs: type[FakeRunner], **options) -> list[object]:
        """Return all that is seen of those that are not cancelled; in the end no slot is lost."""
        sizes = {"chunk": self.chunk, "max_batch": self.max_batch, "max_context": 140}
        engine, core = stepped(self.slots, compiler=automata(WORDS), runs=runs, **sizes, **options)
        handles = run_cancelling(engine, core, self.chains, self.cancelled)
        counters, stats = core.counters(), engine.stats()
        assert counters.accepted_tokens <= counters.drafted_tokens and stats["free_slots"] + stats["cached_tokens"] == stats["slots"]
        self.preempted += counters.preemptions
        self.accepted += counters.accepted_tokens
        engine.flush_cache()
        engine.check()
        return [seen_of(r) for handle, when in zip(handles, self.cancelled, strict=True) if when is None for r in handle.results]


@apart
def test_random_answers_ahead_are_those_of_a_loop_that_waits(monkeypatch):
    """However surprises are weighed."""
    preempted = 0
    for seed in range(size(0, 400)) or (0, 1, 2, 3, 5, 8, 11):  # some of these are preempted
        traffic = Traffic(seed)
        monkeypatch.setattr("lmc.backend.engine.engine._MOST_FORCED", traffic.rng.choice([0.0, 0.3, 1.0]))
        assert traffic.said(FakeAheadRunner) == traffic.said(FakeRunner), seed
        preempted += traffic.preempted
    assert preempted > 0


def seen_of(result) -> object:
    """Return all that a user sees of it: texts, why each ended, its counts; assert that its streams say the same."""
    if result.error is not None:
        return str(result.error)
    out = result.output()
    if len(out.texts) == 1 and result.deltas:
        assert "".join(result.stream()) == out.text
    told = [{k: m.get(k) for k in ("finish_reason", "completion_tokens", "output_token_logprobs")} for m in out.metas]
    return out.texts, told, out.usage.forced_tokens


def test_an_automaton_is_followed_by_the_device():
    """Nobody waits between two tokens."""
    engine, core = stepped(512, compiler=automata(WORDS), runs=FakeAheadRunner)
    handle = engine.submit(None, [Text(("n: ",)), gen(8, constraint="[a-z]{8}")])
    core.turn()
    core.turn()
    for launched in range(3, 6):
        core.turn()
        assert core.runner.flying == 1 and core.runner.launched == launched
    drain(core, engine.check)
    assert len(handle.results[0].output().text) == 8


FORCES = "(a [0-9] the cat ){8}"  # behind each digit


def test_what_is_forced_takes_the_place_of_a_sample(monkeypatch):
    """A pass more for each forced run, and no row more but one behind the last token, which nobody takes."""
    passes, texts = {}, set()
    for share in (0.0, 1.0):
        monkeypatch.setattr("lmc.backend.engine.engine._MOST_FORCED", share)
        engine, core = stepped(512, compiler=automata(WORDS), runs=FakeAheadRunner)
        handle = engine.submit(None, [Text(("go ",)), gen(80, constraint=FORCES)])
        drain(core, engine.check)
        texts.add(handle.results[0].output().text)
        passes[share] = core.runner.passes
    assert len(texts) == 1
    assert len(passes[1.0]) == len(passes[0.0]) + 8
    assert sum(passes[1.0]) == sum(passes[0.0]) + 1


def test_where_something_is_forced_more_often_than_not_it_is_waited_for():
    engine, core = stepped(512, compiler=automata(WORDS), runs=FakeAheadRunner)
    counts = []
    for text in ("first ", "next "):
        before = core.runner.launched
        handle = engine.submit(None, [Text((text,)), gen(80, constraint=FORCES)])
        drain(core, engine.check)
        assert handle.results[0].output().text.count("the cat") == 8
        counts.append(core.runner.launched - before)
    assert counts[1] == 8, "one for each digit"
    assert 8 < counts[0] < 12, "nobody knew at first"


def test_a_constraint_lands_before_its_next_row_and_nothing_waits_for_a_lone_one():
    engine, core = stepped(512, compiler=automata(WORDS), runs=FakeAheadRunner)
    bound = engine.submit(None, [Text(("n: ",)), gen(5, constraint="[0-9]{5}", **HOST)])
    free = engine.submit(None, [Text(("t: ",)), gen(20)])
    drain(core, engine.check)
    assert len(bound.results[0].output().text) == 5
    assert free.results[0].output().meta["completion_tokens"] == 20
    assert core.runner.launched == len(core.runner.passes)
    assert core.runner.passes[1:6] == [2, 2, 2, 2, 1]  # together as long as both run


def test_text_is_told_when_the_device_has_its_next_pass():
    """Between a constrained answer's sample and its next row nothing is done that can wait."""
    engine, core = stepped(512, compiler=automata(WORDS), runs=FakeAheadRunner)
    told: list[int] = []  # passes launched when each piece of text was told
    handle = engine.submit(None, [Text(("go ",)), gen(8, constraint="[a-z]{8}", **HOST)])
    handle.results[0].on_change(lambda result: told.append(core.runner.launched))
    drain(core)
    assert len(handle.results[0].output().text) == 8
    n = core.runner.launched
    assert n > 3 and told == [*range(2, n + 1), n, n], "each with the next pass on its way, but for the end"


def test_prompts_are_read_while_a_constraint_is_looked_at():
    engine, core = stepped(512, compiler=automata(WORDS), runs=FakeAheadRunner, chunk=16)
    bound = engine.submit(None, [Text(("n: ",)), gen(3, constraint="[0-9]{3}", **HOST)])
    long = engine.submit(None, [Text(("t" * 60,)), gen(1)])
    drain(core, engine.check)
    assert len(bound.results[0].output().text) == 3
    assert long.results[0].output().text
    assert core.runner.passes == [16, 16, 16, 16, 1]  # 3 + 13, then 16 without the constrained row and 15 + 1 with it


@pytest.mark.parametrize(("full", "second"), [(16, 10), (64, 11)])
def test_a_pass_is_worth_while_with_fewer_rows_than_it_has_room_for(full, second, monkeypatch):
    monkeypatch.setattr("lmc.backend.engine.engine._FULL", full)
    engine, core = stepped(512, compiler=automata(WORDS), runs=FakeAheadRunner, chunk=64)
    bound = engine.submit(None, [Text(("n: ",)), gen(3, constraint="[0-9]{3}", **HOST)])
    long = engine.submit(None, [Text(("t" * 71,)), gen(1)])
    drain(core, engine.check)
    assert len(bound.results[0].output().text) == 3 and long.results[0].output().text
    assert core.runner.passes[:2] == [64, second]  # 3 + 61, then 10 without the constrained row, or with it


@pytest.mark.parametrize("options", [{"return_logprob": True, "top_logprobs_num": 2}, {"presence_penalty": 1.0}])
def test_log_probabilities_and_penalties_are_not_waited_for(options):
    engine, core = stepped(512, runs=FakeAheadRunner)
    handle = engine.submit(None, [Text(("n: ",)), gen(6, **options)])
    core.turn()
    core.turn()
    assert core.runner.flying == 1 and core.runner.launched == 2  # the second before the first was looked at
    drain(core, engine.check)
    meta = handle.results[0].output().meta
    assert meta["completion_tokens"] == core.runner.launched == 6
    assert len(meta.get("output_token_logprobs", [None] * 6)) == 6


def test_a_flight_that_fails_fails_its_requests_and_nothing_else():
    engine, core = stepped(512, runs=FakeAheadRunner)
    lost = engine.submit(None, [Text(("a",)), gen(20)])
    core.turn()
    core.runner.fail_result = RuntimeError("the device is gone")
    with pytest.raises(RuntimeError):
        core.turn()
    core._fail_all(RuntimeError("the device is gone"))  # as the loop's thread does
    with pytest.raises(BackendError, match="the device is gone"):
        lost.results[0].output()
    engine.check()
    core.runner.flying = 0  # the pass behind it is forgotten too
    again = engine.submit(None, [Text(("a",)), gen(4)])
    drain(core, engine.check)
    assert again.results[0].output().meta["completion_tokens"] == 4


def test_what_is_cancelled_in_flight_leaves_nothing():
    engine, core = stepped(512, runs=FakeAheadRunner)
    handle = engine.submit(None, [Text(("a long prompt",)), gen(30)])
    for _ in range(4):
        core.turn()
    handle.cancel()
    drain(core, engine.check)
    stats = engine.stats()
    assert stats["free_slots"] + stats["cached_tokens"] == stats["slots"]


def test_who_submits_gives_way_to_the_first_pass_and_not_to_small_ones():
    class SlowFlight(FakeFlight):
        def result(self):
            time.sleep(0.01)
            return super().result()

    class SlowRunner(FakeAheadRunner):
        def launch(self, work):
            flight = super().launch(work)
            return SlowFlight(self, flight._output)

    engine, runner = backend(8192, runs=SlowRunner, chunk=64, max_batch=128)
    with engine:
        handles = [engine.submit(None, [Text(("s" * 40 + f"{i:03}",)), gen(1)]) for i in range(100)]
        assert all(h.results[0].output().text for h in handles)
    assert len(runner.passes) < 30  # the first ones are small; what is submitted meanwhile runs together


def test_a_pin_is_released_while_its_prefill_is_in_flight():
    """Requests of others go on, and nothing stays pinned."""
    engine, core = stepped(512, runs=FakeAheadRunner)
    pin = engine.prefill(None, [Text(("p" * 20,))])
    assert core.turn()
    engine.release(pin)
    handle = engine.submit(None, [Text(("p" * 20 + "q",)), gen(3)])
    drain(core, engine.check)
    assert handle.results[0].output().meta["completion_tokens"] == 3
    assert engine.stats()["pinned"] == 0


def test_who_submits_gives_way_while_the_loop_works_for_the_device():
    found: list[tuple[str, bool]] = []

    class Watching(FakeAheadRunner):
        def launch(self, work):
            found.append(("launch", core._resting.is_set()))
            flight = super().launch(work)
            result = flight.result

            def watched():
                found.append(("result", core._resting.is_set()))
                return result()

            flight.result = watched
            return flight

    engine, core = stepped(512, runs=Watching)
    handles = [engine.submit(None, [Text(("a",)), gen(4)], Hints(has_more=True))]
    core.turn()
    core.turn()
    assert found == [("launch", False), ("launch", False), ("result", True)]  # more was announced
    handles.append(engine.submit(None, [Text(("b",)), gen(4)]))
    core.turn()
    assert found[3:] == [("launch", False), ("result", True)]  # something was posted
    drain(core)
    assert [len(h.results[0].output().text) > 0 for h in handles] == [True, True]


@apart
def test_who_gave_way_has_a_turn_where_the_device_is_never_waited_for():
    engine, runner = backend(4096, runs=FakeAheadRunner)
    resting = engine._core._resting
    waits, turns = resting.wait, []

    def wait(_):
        turns.append(waits(60))
        return turns[-1]

    resting.wait = wait
    with contextlib.closing(engine):
        handles = [
            engine.submit(None, [Text((f"prompt {i}",)), gen(30, ignore_eos=True)], Hints(has_more=i < 299)) for i in range(300)
        ]
        assert all(h.results[0].output().text for h in handles)
    assert all(turns), "somebody was kept waiting"
    assert resting.is_set()
    assert runner.launched > 30


@pytest.mark.parametrize("runs", [FakeRunner, FakeAheadRunner])
def test_full_garbage_collections_are_few_while_a_loop_works(runs):
    before = gc.get_threshold()
    with contextlib.closing(backend(64, runs=runs)[0]) as engine:
        engine.submit(None, [Text(("a",)), gen(2)]).results[0].output()
        assert gc.get_threshold() == gc_tuning._shortened(*before, 100) != before
    assert gc.get_threshold() == before


def test_threads_take_short_turns_while_a_loop_works_for_a_device():
    before = sys.getswitchinterval()
    with contextlib.closing(backend(64, runs=FakeRunner)[0]) as engine:
        engine.submit(None, [Text(("a",)), gen(2)]).results[0].output()
        assert sys.getswitchinterval() == before
    first, second = (backend(64, runs=FakeAheadRunner)[0] for _ in range(2))
    for engine in (first, second):
        engine.submit(None, [Text(("a",)), gen(2)]).results[0].output()
        assert sys.getswitchinterval() == pytest.approx(0.0005)
        engine.close()
    first.close()
    assert sys.getswitchinterval() == before
    with contextlib.closing(backend(64, runs=FakeAheadRunner)[0]) as engine:
        engine.submit(None, [Text(("a",)), gen(2)]).results[0].output()
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == pytest.approx(0.002)  # somebody's own
    sys.setswitchinterval(before)


def test_chains_that_continue_together_get_a_pass_before_all_are_told():
    """40 answers end in one pass: the next one has a full chunk of rows, and is launched before the last of them is told. Their runs, whose
    programs have returned, stay open."""
    seen, firsts, begin = list[tuple[int, int]](), list[Handle](), threading.Event()

    class Watched(FakeAheadRunner):
        def launch(self, work):
            seen.append((sum(handle.results[0].done for handle in firsts), engine.stats()["open_runs"]))
            return super().launch(work)

    engine, _ = backend(16384, runs=Watched, chunk=512, max_batch=64)
    runs = [ProgramRun("chain") for _ in range(40)]
    with engine:
        engine._core.post(begin.wait)
        firsts += [engine.submit(None, [Text(("p" * 30 + f"{i:02}",)), gen(4)], Hints(run=run)) for i, run in enumerate(runs)]
        seconds = [engine.submit(first, [Text(("q" * 30,)), gen(4)], Hints(run=run)) for first, run in zip(firsts, runs, strict=True)]
        for run in runs:
            run.end()
        begin.set()
        assert all(handle.results[0].output().meta["completion_tokens"] == 4 for handle in (*firsts, *seconds))
    between = [runs for told, runs in seen if 0 < told < 40]
    assert between and set(between) == {40}, seen


def test_answers_are_told_while_others_go_on_on_a_device_that_never_waits():
    """A pass is over as soon as it is launched, so that there always is a next one; the answers that ended are told all the same."""
    engine, core = stepped(16384, runs=FakeAheadRunner, chunk=256, max_batch=64)
    long = engine.submit(None, [Text(("l" * 20,)), gen(200)])
    short = [engine.submit(None, [Text((f"{i:02}" + "p" * 5,)), gen(4)]) for i in range(40)]
    while not all(handle.results[0].done for handle in short):
        assert core.turn() and not long.results[0].done
    drain(core, engine.check)
    assert long.results[0].done


def test_prompts_behind_a_short_pass_begin_in_one_that_is_launched_at_once():
    """Launching more rows than are captured takes longer than the device needs for three answers; a longer pass leaves the time."""

    class Captured(FakeAheadRunner):
        quick_rows = 64

    engine, core = stepped(4096, runs=Captured, chunk=256, max_batch=64)
    handles = [engine.submit(None, [Text((f"{i}" + "p" * 99,)), gen(40, ignore_eos=True)]) for i in range(3)]
    for _ in range(8):
        core.turn()
    passes = core._runner.passes
    assert passes[0] == 256 and passes[-1] == 3, passes  # a batch begins with long ones
    handles.append(engine.submit(None, [Text(("q" * 500,)), gen(2)]))
    drain(core, engine.check)
    assert all(handle.results[0].done for handle in handles)
    at = next(i for i in range(5, len(passes)) if passes[i] > 3)
    assert passes[at] <= 64 < passes[at + 1], passes[at:]


def test_what_arrives_while_the_loop_ends_is_told_so():
    engine, _ = backend(512, runs=FakeAheadRunner)
    core, begin = engine._core, threading.Event()
    core.post(begin.wait)
    core.close(timeout=0)
    told: list[BaseException | None] = []
    late = Request(RequestKind.PREFILL, np.zeros(3, np.int32), lambda req: told.append(req.error))
    core.submit(late)
    begin.set()
    core._thread.join()
    assert [str(error) for error in told] == ["the engine was closed"]


def test_counters_read_with_a_text_have_the_seconds_of_its_pass():
    class Second(FakeFlight):
        seconds = 1.0

    class Timed(FakeAheadRunner):
        def launch(self, work):
            return Second(self, super().launch(work)._output)

    engine, core = stepped(512, runs=Timed)
    found = []
    handle = engine.submit(None, [Text(("a",)), gen(4, ignore_eos=True)])
    handle.results[0].on_change(lambda _: found.append(engine.counters().device_seconds))
    drain(core)
    assert found == [1.0, 2.0, 3.0, 4.0, 4.0]  # the last at its end
    assert engine.counters().device_seconds == engine.counters().passes == 4


def test_a_child_of_fork_learns_of_all_answers_without_asking_the_device():
    """Answers that ended in the parent and were not told yet are complete; the rest fail."""

    class Unreachable(FakeFlight):
        @property
        def over(self):
            raise RuntimeError("the device is the parent's")

    class OfParent(FakeAheadRunner):
        def launch(self, work):
            return Unreachable(self, super().launch(work)._output)

    engine, core = stepped(16384, runs=OfParent, chunk=256, max_batch=64)
    short = [engine.submit(None, [Text((f"{i:02}" + "p" * 5,)), gen(2, ignore_eos=True)]) for i in range(20)]
    long = engine.submit(None, [Text(("l",)), gen(40, ignore_eos=True)])
    while not core.delivery.unreported:
        assert core.turn()
    assert core._flying is not None and len(core.delivery.unreported) > 8  # more than are told at once
    core.forked(1)
    assert all(handle.results[0].output().meta["completion_tokens"] == 2 for handle in short)
    with pytest.raises(BackendError, match="of which this one is a fork"):
        long.results[0].output()
