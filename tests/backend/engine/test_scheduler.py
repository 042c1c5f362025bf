"""The scheduler driven pass by pass: sharing, order, memory, and a state machine over everything a user can do."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lmc.backend.base import Hints
from lmc.backend.engine.request import RequestKind
from lmc.errors import BackendError, CancelledError, PromptTooLongError
from lmc.segments import Constraint, Gen, SamplingParams, Select, Text
from tests.backend.engine_fakes import (
    Copies,
    CopiesAhead,
    FakeAheadRunner,
    FakeRunner,
    FakeWords,
    automata,
    drain,
    gen,
    reference_ids,
    reserving_little,
    stepped,
)
from tests.searching import examples

WORDS = FakeWords()


def expected_text(prompt: str, n: int) -> str:
    return WORDS.decode(reference_ids(WORDS.encode((prompt,)), n))


def test_cold_siblings_compute_their_prefix_once():
    engine, core = stepped(8192, chunk=64)
    shared = "q" * 300
    handles = [engine.submit(None, [Text((f"{shared}{i % 8} tail {i}",)), gen()]) for i in range(32)]
    drain(core)
    counters = engine.counters()
    assert counters.prefill_optimality >= 0.99
    assert counters.prefilled_tokens == counters.unique_tokens
    for i, h in enumerate(handles):
        assert h.results[0].output().text == expected_text(f"{shared}{i % 8} tail {i}", 4)


def test_a_cold_trie_takes_one_pass():
    """Prefixes, what goes on from them and what goes on from that: each token has one row, and all are in one pass."""
    engine, core = stepped(1024, chunk=256)
    pin = engine.prefill(None, [Text(("q" * 40,))], Hints(pin=True))
    deep = engine.prefill(pin, [Text(("w" * 30,))], Hints(pin=True))
    tails = ("a", "bb", "ab", "dd")
    handles = [engine.submit(deep, [Text((tail,)), gen(1)]) for tail in tails]
    handles.append(engine.submit(pin, [Text(("e",)), gen(1)]))
    assert drain(core) == 1
    texts = ["q" * 40 + "w" * 30 + tail for tail in tails] + ["q" * 40 + "e"]
    for handle, text in zip(handles, texts, strict=True):
        assert handle.results[0].output().text == expected_text(text, 1)
    counters = engine.counters()
    assert counters.prefilled_tokens == counters.unique_tokens == core.runner.passes[0]
    assert engine.stats()["pinned"] == 2


def test_what_is_longer_than_a_pass_is_waited_for_and_then_followed():
    engine, core = stepped(1024, chunk=16)
    handles = [engine.submit(None, [Text(("q" * 40 + tail,)), gen(1)]) for tail in ("a", "cc", "ddd")]
    assert drain(core) == 3
    assert engine.counters().prefilled_tokens == engine.counters().unique_tokens
    for handle, tail in zip(handles, ("a", "cc", "ddd"), strict=True):
        assert handle.results[0].output().text == expected_text("q" * 40 + tail, 1)


def test_a_released_prefill_that_has_not_run_is_not_run():
    """Its pin is all that it was for: what others ask behind it computes it, and an arm that is not taken costs nothing."""
    engine, core = stepped(1024, chunk=64)
    wanted, other = (engine.prefill(None, [Text((c * 40,))], Hints(pin=True)) for c in "qw")
    handle = engine.submit(wanted, [Text(("a",)), gen(1)])
    engine.release(wanted)
    engine.release(other)
    drain(core)
    assert engine.counters().prefilled_tokens == 41 and engine.stats()["pinned"] == 0
    assert handle.results[0].output().text == expected_text("q" * 40 + "a", 1)


def test_a_prefill_released_half_way_leaves_what_it_has_computed():
    engine, core = stepped(1024, chunk=16)
    pin = engine.prefill(None, [Text(("q" * 60,))], Hints(pin=True))
    core.turn()
    engine.release(pin)
    assert drain(core) == 0
    assert engine.counters().prefilled_tokens == 16 and engine.stats()["cached_tokens"] == 16


def siblings(engine, members: int, *tails: str, group=(0, 0, 0), most: int = 4):
    """Asks of one group, as the executor submits them; fewer than `members` if not all have come."""
    hints = Hints(group=group, members=members)
    return [engine.submit(None, [Text(("q" * 20 + tail,)), gen(most)], hints) for tail in tails]


def test_a_group_is_admitted_when_all_of_it_is_there():
    engine, core = stepped()
    first = siblings(engine, 3, "a", "b")
    assert core.turn() and engine.stats()["running"] == 0
    last = siblings(engine, 3, "c")
    assert drain(core) == 4
    assert engine.counters().groups == 1 and engine.stats()["split_groups"] == 0
    for handle, tail in zip([*first, *last], "abc", strict=True):
        assert handle.results[0].output().text == expected_text("q" * 20 + tail, 4)


def test_a_group_does_not_wait_for_ever_for_one_that_never_comes():
    engine, core = stepped()
    handles = siblings(engine, 3, "a", "b")
    assert drain(core) <= 2 + 4
    assert all(h.results[0].done for h in handles)


@pytest.mark.parametrize("end", ["cancel", "drop", "refuse"])
def test_a_member_that_will_not_ask_is_not_waited_for(end):
    """Cancelled or forgotten while it waits for an answer, or refused."""
    engine, core = stepped(chunk=256)
    parent = engine.submit(None, [Text(("p",)), gen(3)])
    hints = Hints(group=(0, 0, 0), members=2)
    third = engine.submit(parent, [Text(("c",)), gen()], hints) if end != "refuse" else None
    if end == "refuse":
        with pytest.raises(PromptTooLongError):
            engine.submit(None, [Text(("x" * 5000,)), gen()], hints)
    elif end == "cancel":
        third.cancel()
    third = None
    gc.collect()
    (handle,) = siblings(engine, 2, "a")
    core.turn()
    assert engine.stats()["running"] == 2
    drain(core)
    assert handle.results[0].output().text == expected_text("q" * 20 + "a", 4)
    del parent


def test_a_group_waits_for_room_for_all_of_it():
    """Five seats, three taken: the two that would fit wait for the third."""
    engine, core = stepped(4096, max_batch=5)
    busy = [engine.submit(None, [Text((c * 10,)), gen(6)]) for c in "xyz"]
    core.turn()
    handles = siblings(engine, 3, "a", "b", "c")
    core.turn()
    assert engine.stats()["running"] == 3
    drain(core)
    assert all(h.results[0].done for h in [*busy, *handles])
    assert engine.counters().groups == 1 and engine.stats()["split_groups"] == 0


def test_a_group_that_never_fits_goes_in_one_by_one():
    engine, core = stepped(4096, max_batch=2)
    handles = siblings(engine, 3, "a", "b", "c")
    drain(core)
    assert all(h.results[0].done for h in handles)
    assert engine.counters().groups == 0 and engine.stats()["split_groups"] == 1


def test_what_waiting_prompts_have_in_common_counts_once():
    """Two programs behind one long text looked like a full pass, which began without the others of their batch."""
    engine, core = stepped(2000, chunk=512)
    handles = [engine.submit(None, [Text(("x" * 100 + tail,)), gen()]) for tail in "ab"]
    core._take(wait=0.0)
    assert len(handles) == len(core.scheduler.waiting) == 2
    assert core.scheduler.has_prompts(102) and not core.scheduler.has_prompts(103)


@pytest.mark.parametrize(("every", "arrived"), [(0.004, 13), (0.006, 1)])
def test_a_pass_begins_when_no_more_of_a_batch_arrives(monkeypatch, every, arrived):
    """Each that arrives says that there are more; after 5 ms without another one, or 50 in all, the pass begins."""
    engine, core = stepped(2000, chunk=512)
    clock, handles, take = [0.0], [], core._take

    def taken(*, wait):
        clock[0] += min(wait, every)
        if wait >= every or not handles:
            handles.append(engine.submit(None, [Text((f"{len(handles)} of many",)), gen()], Hints(has_more=True)))
        return take(wait=0.0)

    monkeypatch.setattr("lmc.backend.engine.engine.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(core, "_take", taken)
    taken(wait=0.0)
    assert core._gather() and len(handles) == arrived


def test_an_n_way_sample_is_one_prompt_row_and_a_seed_each():
    """Equal siblings of a group begin with the same row; each text is that of its own seed."""
    engine, core = stepped()

    def ask(seed, **options):
        sampled = Gen(SamplingParams(max_new_tokens=3, temperature=1.0), seed=seed)
        return engine.submit(None, [Text(("q" * 20,)), sampled], Hints(**options))

    handles = [ask(seed, group=(0, 0, 0), members=3, sample_index=(seed, 3)) for seed in range(3)]
    drain(core)
    assert engine.counters().twins == 2 and engine.counters().prefilled_tokens == 20
    assert core.runner.passes == [20, 3, 3]
    texts = [h.results[0].output().text for h in handles]
    engine.flush_cache()
    alone = [ask(seed) for seed in range(3)]
    drain(core)
    assert [h.results[0].output().text for h in alone] == texts


@pytest.mark.parametrize("runs", [FakeRunner, FakeAheadRunner])
@pytest.mark.parametrize("most", [1, 4])
def test_equal_prompts_share_the_last_row(runs, most):
    """A twin has no rows of its own in the pass that samples it."""
    engine, core = stepped(runs=runs)
    handles = [engine.submit(None, [Text(("x" * 20,)), gen(most)]) for _ in range(3)]
    drain(core)
    assert engine.counters().prefilled_tokens == 20
    assert {h.results[0].output().text for h in handles} == {expected_text("x" * 20, most)}


@pytest.mark.parametrize(("chunk", "tail"), [(16, ""), (64, ""), (16, "cc")])
def test_those_that_wait_for_anothers_prefix_go_on_when_that_is_cancelled(chunk, tail):
    engine, core = stepped(chunk=chunk)
    first, *others = (engine.submit(None, [Text(("x" * 50 + end,)), gen()]) for end in ("a" if tail else "", tail, tail))
    core.turn()
    assert engine.stats()["running"] == (1 if chunk == 16 else 3)
    first.cancel()
    drain(core)
    assert isinstance(first.results[0].error, CancelledError)
    assert [other.results[0].output().text for other in others] == [expected_text("x" * 50 + tail, 4)] * 2


def test_decoding_goes_on_beside_a_long_prefill():
    engine, core = stepped(4096, chunk=16)
    short = engine.submit(None, [Text(("z",)), gen(8)])
    core.turn()
    long = engine.submit(None, [Text(("w" * 500,)), gen(1)])
    for _ in range(8):
        core.turn()
    assert short.results[0].done and not long.results[0].done


@pytest.mark.parametrize("max_batch", [1, 2])
def test_guesses_give_their_places_to_what_is_needed(max_batch):
    """They run in what others leave, and go on where they were."""
    engine, core = stepped(4096, max_batch=max_batch)
    guesses = [engine.submit(None, [Text((f"guess {i}",)), gen(12)], Hints(guess=True)) for i in range(max_batch)]
    for _ in range(3):
        core.turn()
    needed = [engine.submit(None, [Text((f"needed {i}",)), gen(6)]) for i in range(2)]
    while not all(h.results[0].done for h in needed):
        assert core.turn() and not any(h.results[0].done for h in guesses)
        engine.check()
    assert engine.counters().preemptions >= max_batch
    drain(core)
    for name, handles, n in (("guess", guesses, 12), ("needed", needed, 6)):
        assert [h.results[0].output().text for h in handles] == [expected_text(f"{name} {i}", n) for i in range(len(handles))]


def test_guesses_wait_behind_all_others_until_they_are_needed(monkeypatch):
    monkeypatch.setattr("lmc.backend.engine.waiting._PATIENCE", 2)
    engine, core = stepped(4096, max_batch=1)
    first = engine.submit(None, [Text(("first",)), gen(4)])
    core.turn()
    guess, taken = (engine.submit(None, [Text((name,)), gen(2)], Hints(guess=True)) for name in ("guess", "taken"))
    others = [engine.submit(None, [Text((f"other {i}",)), gen(2)]) for i in range(3)]
    taken.needed()
    order: list[str] = []
    named = {"first": first, "guess": guess, "taken": taken, **{f"other {i}": h for i, h in enumerate(others)}}
    while core.turn():
        order += [name for name, h in named.items() if h.results[0].done and name not in order]
    assert order[-1] == "guess" and order.index("taken") < order.index("other 2")
    assert engine.counters().preemptions == 0


@pytest.mark.parametrize("runs", [FakeRunner, FakeAheadRunner])
def test_a_guess_that_is_needed_now_takes_the_place_of_one_that_a_pass_computes(runs):
    engine, core = stepped(4096, max_batch=1, runs=runs)
    guess, taken = (engine.submit(None, [Text((name,)), gen(12)], Hints(guess=True)) for name in ("guess", "taken"))
    for _ in range(4):
        core.turn()
    taken.needed()
    while not taken.results[0].done:
        assert core.turn() and not guess.results[0].done
        engine.check()
    drain(core)
    assert [h.results[0].output().text for h in (guess, taken)] == [expected_text("guess", 12), expected_text("taken", 12)]


def test_guesses_leave_the_pool_to_what_is_needed():
    engine, core = stepped(96, max_batch=8)
    guess = engine.submit(None, [Text(("g" * 40,)), gen(20)], Hints(guess=True))
    core.turn()
    needed = engine.submit(None, [Text(("n" * 50,)), gen(20)])
    while not needed.results[0].done:
        assert core.turn() and not guess.results[0].done
        engine.check()
    drain(core)
    assert guess.results[0].output().text == expected_text("g" * 40, 20) and engine.counters().preemptions >= 1


@pytest.mark.parametrize("slots", [100, 400])
def test_after_its_patience_nobody_who_came_later_passes_a_request(monkeypatch, slots):
    """The bound on waiting: `_PATIENCE` passes, and what came before it."""
    monkeypatch.setattr("lmc.backend.engine.waiting._PATIENCE", 6)
    engine, core = stepped(slots, max_batch=3, chunk=32)
    engine.submit(None, [Text(("warm" * 8,)), gen(1)])
    drain(core)
    admitted: dict[int, int] = {}
    arrived: dict[int, int] = {}
    handles = []
    for clock in range(60):
        for i in (2 * clock, 2 * clock + 1):  # more than can be served, most of it with a cached prefix
            text = f"cold {i} " * 5 if i % 7 == 0 else "warm" * 8 + f"!{i}"
            handles.append(engine.submit(None, [Text((text,)), gen(3)]))
            arrived[i] = clock
        core.turn()
        for i, handle in enumerate(handles):
            if i not in admitted and all(req.node is not None or req.done for req in handle.last.requests):
                admitted[i] = clock
    waiting = set(arrived) - set(admitted)
    assert waiting and len(admitted) > 20
    for i, then in arrived.items():
        left = admitted.get(i, 60)
        passed_by = [j for j in arrived if j > i and then + 6 + 2 < admitted.get(j, 60) < left]
        assert not passed_by, f"{i} came in pass {then} and was passed by {passed_by}"
    drain(core)
    assert all(handle.results[0].done for handle in handles)


def test_one_whose_logits_are_no_numbers_fails_alone():
    engine, core = stepped(512)
    bad, good = (engine.submit(None, [Text((text,)), gen(6), Text(("then",)), gen(2)]) for text in ("one ", "two "))
    core.turn()
    core.runner.broken.add(bad.last.parent.requests[0].order)
    drain(core)
    with pytest.raises(BackendError, match="no numbers"):
        bad.results[0].output()
    with pytest.raises(BackendError, match="no numbers"):
        bad.results[1].output()
    assert good.results[0].output().text == expected_text("two ", 6)


@pytest.mark.parametrize("act", ["cancel", "drop"])
def test_a_thousand_that_wait_are_taken_out_at_once(act):
    """Each by itself, from either end, without looking at the others."""
    engine, core = stepped(512, max_batch=4)
    handles = [engine.submit(None, [Text((f"p {i} ",)), gen(8)]) for i in range(1000)]
    core.turn()
    looked = 0

    class Watched(type(handles[0].last.requests[0])):
        __slots__ = ()

        def __eq__(self, other):
            nonlocal looked
            looked += 1
            return self is other

        __hash__ = object.__hash__

    for req in core.scheduler.waiting:
        req.__class__ = Watched
    if act == "cancel":
        for handle in handles:
            handle.cancel()
    handle = None
    handles.clear()
    drain(core)
    assert engine.stats()["waiting"] == engine.stats()["running"] == 0
    assert looked < 100


def test_who_listens_badly_harms_nobody():
    engine, core = stepped(512)
    one, other = (engine.submit(None, [Text((text,)), gen(6), Text(("then",)), gen(2)]) for text in ("one ", "two "))
    one.results[0].on_change(_raises)
    drain(core)
    assert one.results[0].output().text == expected_text("one ", 6)
    assert other.results[0].output().text == expected_text("two ", 6)
    assert one.results[1].done


def test_an_answer_that_cannot_be_told_is_an_error_and_never_a_hang(monkeypatch):
    engine, core = stepped(512)
    one, other = (engine.submit(None, [Text((text,)), gen(6), Text(("then",)), gen(2)]) for text in ("one ", "two "))
    meta, broken = engine._builder.results.meta, one.last.parent.requests[0]

    def fails(req):
        if req is broken:
            raise ValueError("no meta info")
        return meta(req)

    monkeypatch.setattr(engine._builder.results, "meta", fails)
    drain(core)
    for result in one.results:
        with pytest.raises(BackendError, match="no meta info"):
            result.output()
    assert other.results[0].output().text == expected_text("two ", 6)


def test_what_is_cached_may_be_dropped_at_any_moment():
    """Between all passes, while answers wait for room, in two engines that know nothing of each other."""
    engines = [stepped(90, max_batch=8) for _ in range(2)]
    handles = [engines[i % 2][0].submit(None, [Text((f"p {i // 2} ",)), gen(30)]) for i in range(24)]
    turned = [True]
    while any(turned):
        turned = [core.turn() for _, core in engines]
        for engine, _ in engines:
            engine.flush_cache()
            engine.check()
    for i, handle in enumerate(handles):
        assert handle.results[0].output().text == expected_text(f"p {i // 2} ", 30)


def test_namespaces_share_no_page():
    engine, core = stepped(2000, chunk=256)
    text = "the same text for everybody " * 3
    handles = []
    for namespace in ("", "mine", "yours", "mine"):
        first = engine.submit(None, [Text((text,)), gen(3)], Hints(namespace=namespace))
        handles += [first, engine.submit(first, [Text((" and more",)), gen(3)])]
    drain(core)
    assert len({h.results[0].output().text for h in handles[::2]}) == 1
    assert len({h.results[0].output().text for h in handles[1::2]}) == 1
    prompt = len(WORDS.encode((text,)))
    assert engine.counters().unique_tokens >= 3 * prompt
    cached = [h.results[0].output().metas[0]["cached_tokens"] for h in handles]
    assert all(c > prompt for c in cached[1::2]), "what goes on from a prompt stays in its namespace"


@pytest.mark.parametrize("runs", [FakeRunner, FakeAheadRunner])
@pytest.mark.parametrize("near", [9, 10, 11, 14, 29, 30, 31])
def test_a_sequence_that_outgrows_its_positions_is_computed_again_once(runs, near):
    """And no other: where a model turns positions of long sequences otherwise (the runner looks that all are turned alike)."""
    engine, core = stepped(200, near_context=near, runs=runs)
    long, short = (engine.submit(None, [Text((c * 10,)), gen(n)]) for c, n in (("w", 20), ("x", 3)))
    drain(core)
    assert long.results[0].output().text == expected_text("w" * 10, 20)
    assert short.results[0].output().text == expected_text("x" * 10, 3)
    again = near if 10 <= near < 29 else 0  # the last token needs no row
    assert engine.stats()["recomputed_tokens"] == again + (near if 10 <= near < 12 else 0)


@pytest.mark.parametrize("runs", [FakeRunner, FakeAheadRunner])
def test_twins_that_outgrow_their_positions_are_computed_again(runs):
    """Pages that a twin found in the cache while it waited are of shorter sequences."""
    engine, core = stepped(200, near_context=10, runs=runs)
    drain_after(engine, core, "w" * 9)
    handles = [engine.submit(None, [Text(("w" * 9 + "x",)), gen(4)]) for _ in range(3)]
    drain(core)
    assert [h.results[0].output().text for h in handles] == [expected_text("w" * 9 + "x", 4)] * 3
    assert engine.counters().twins == 2 * 2  # and again when they go on


def drain_after(engine, core, text: str) -> None:
    """Leaves a text in the cache."""
    engine.submit(None, [Text((text,)), gen(1)])
    drain(core)


def test_what_was_far_may_be_near_again():
    """A stop takes back what made a sequence long: what goes on from it is computed as a short one."""
    engine, core = stepped(200, near_context=13)
    core.runner.say(WORDS.encode(("w" * 10,)), WORDS.encode(("zzeee",)))
    done = engine.submit(None, [Text(("w" * 10,)), gen(20, stop=("eee",)), Text(("y",)), gen(1)])
    drain(core)
    assert engine.counters().preemptions == 1
    assert [result.output().text for result in done.results] == ["zz", expected_text("w" * 10 + "zzy", 1)]


@pytest.mark.parametrize("slots", [70, 90, 150])
def test_a_small_pool_finishes_everything_with_the_same_text(slots):
    prompts = ["a" * 40 + str(i % 3) * 10 + "end" * (i % 4) for i in range(12)]
    engine, core = stepped(slots, chunk=16, max_batch=8)
    handles = [engine.submit(None, [Text((p,)), gen(6)]) for p in prompts]
    drain(core)
    assert [h.results[0].output().text for h in handles] == [expected_text(p, 6) for p in prompts]


def test_evicted_and_computed_again_is_not_unique():
    engine, core = stepped(60, chunk=64)
    for prompt in ("a" * 40, "c" * 40, "a" * 40):
        handle = engine.submit(None, [Text((prompt,)), gen(2)])
        drain(core)
        assert handle.results[0].output().text == expected_text(prompt, 2)
    c = engine.counters()
    assert c.prefilled_tokens > c.unique_tokens


def test_pins_hold_and_give_way_when_nothing_else_fits():
    engine, core = stepped(100, chunk=64)
    pinned = engine.prefill(None, [Text(("p" * 60,))])
    drain(core)
    assert engine.stats()["pinned"] == 1
    handle = engine.submit(None, [Text(("q" * 80,)), gen(2)])
    drain(core)
    assert handle.results[0].output().text == expected_text("q" * 80, 2)
    assert engine.stats()["pinned"] == 0
    engine.release(pinned)
    drain(core)


def test_equal_selects_in_one_pass_keep_one_copy():
    engine, core = stepped()
    handles = [engine.submit(None, [Text(("which? ",)), Select(("abc", "cab"))]) for _ in range(3)]
    drain(core)
    assert len({h.results[0].output().text for h in handles}) == 1


NAMESPACES = ["", "", "mine"]
FORCING = ["[a-d ]{2,12}", "yes", "(a|b) and the cat(s|END)", "[ab]{1,3} the end", "the cat"]


class Anything(RuleBasedStateMachine):
    """Submit, fork, chain, prefill, cancel, drop, preempt and run passes in any order: texts are those of a model alone, and
    nothing leaks."""

    runs = FakeRunner
    near: int | None = None
    options: Mapping[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        self.little = reserving_little()
        self.little.__enter__()
        options = {"chunk": 12, "max_batch": 5, "max_context": 120, "compiler": automata(WORDS), "runs": self.runs, **self.options}
        self.engine, self.core = stepped(160, near_context=self.near, **options)
        self.open: list[tuple[Any, str | None, list[Any]]] = []
        self.pinned: list[object] = []
        self.groups = 0

    def hinted(self, hints: Hints) -> Hints:
        """Return the hints of a submission."""
        return hints

    def _submit(self, text: str, *asks, namespace: str = ""):
        done = self.engine.submit(None, [Text((text,)), *asks], self.hinted(Hints(namespace=namespace)))
        self.open.append((done, text, list(asks)))

    @rule(text=st.text("ab cdE", min_size=1, max_size=30), n=st.integers(0, 40), namespace=st.sampled_from(NAMESPACES))
    def ask(self, text, n, namespace):
        self._submit(text, gen(n), namespace=namespace)

    @rule(text=st.text("ab cdE", min_size=1, max_size=20), n=st.integers(1, 4), more=st.integers(1, 3))
    def chain(self, text, n, more):
        """Text, answer, text, answer …, submitted as one."""
        segments = [part for i in range(more + 1) for part in (Text((text + str(i),)), gen(n))]
        self.open.append((self.engine.submit(None, segments, self.hinted(Hints())), None, []))

    @rule(data=st.data(), n=st.integers(1, 5), width=st.integers(2, 4), namespace=st.sampled_from(NAMESPACES))
    def fork(self, data, n, width, namespace):
        """Siblings of one prompt, as a group of the plan."""
        if self.open:
            handle, *_ = data.draw(st.sampled_from(self.open))
            hints = Hints(group=(self.groups,), members=width, namespace=namespace)
            self.groups += 1
            for i in range(width):
                self.open.append((self._try(handle, "fork" + "abcd"[i] * 3, gen(n), hints), None, []))

    @rule(data=st.data(), text=st.text("ab cdE", max_size=8), n=st.integers(1, 5))
    def go_on(self, data, text, n):
        if self.open:
            handle, *_ = data.draw(st.sampled_from(self.open))
            self.open.append((self._try(handle, text, gen(n)), None, []))

    @rule(data=st.data(), text=st.text("ab cdE", max_size=8))
    def choose(self, data, text):
        if self.open:
            handle, *_ = data.draw(st.sampled_from(self.open))
            self.open.append((self._try(handle, text, Select(("abc", "ab", "d e", "abx"))), None, []))

    @rule(text=st.text("ab cdE", min_size=4, max_size=30))
    def pin(self, text):
        self.pinned.append(self.engine.prefill(None, [Text((text,))], self.hinted(Hints(pin=True))))
        self.open.append((self.pinned[-1], None, []))

    @rule(data=st.data())
    def release(self, data):
        if self.pinned:
            self.engine.release(self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1))))

    @rule(data=st.data(), text=st.text("ab", min_size=1, max_size=5), n=st.integers(2, 3))
    def several(self, data, text, n):
        self._submit(text, Gen(SamplingParams(max_new_tokens=4, n=n), seed=data.draw(st.integers(0, 5))))

    @rule(data=st.data(), n=st.integers(1, 20), regex=st.sampled_from(FORCING), scored=st.booleans())
    def fill_in(self, data, n, regex, scored):
        """A constrained answer, most of it forced."""
        ask = Gen(SamplingParams(max_new_tokens=n, return_logprob=scored), Constraint("regex", regex))
        if self.open and data.draw(st.booleans()):
            handle, *_ = data.draw(st.sampled_from(self.open))
            self.open.append((self._try(handle, "x", ask), None, []))
        else:
            self._submit("fill in: ", ask)

    def _try(self, handle, text, ask, hints=None):
        from lmc.errors import PromptTooLongError

        try:
            return self.engine.submit(handle, [Text((text,)), ask] if text else [ask], self.hinted(hints or Hints()))
        except PromptTooLongError:
            return handle

    @rule(data=st.data())
    def cancel(self, data):
        if self.open:
            data.draw(st.sampled_from(self.open))[0].cancel()

    @rule(data=st.data())
    def drop(self, data):
        if self.open:
            self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))

    @rule()
    def flush(self):
        self.engine.flush_cache()

    @rule(data=st.data())
    def preempt(self, data):
        """Also those that would not have been."""
        scheduler = self.core.scheduler
        open_ = [req for req in scheduler.reservations.open if not req.in_flight]
        if open_:
            scheduler._preempt(data.draw(st.sampled_from(open_)))

    @rule(n=st.integers(1, 6))
    def run(self, n):
        for _ in range(n):
            self.core.turn()

    @rule(where=st.sampled_from(["fail_with", "fail_result"]), n=st.integers(1, 3))
    def fail(self, where, n):
        """The device fails in a pass, or when a flight lands: what is on its way fails with it, and the engine goes on."""
        fault = RuntimeError("the device failed")
        setattr(self.core.runner, where, fault)
        for _ in range(n):
            try:
                self.core.turn()
            except RuntimeError as error:  # as the loop of a thread does
                assert error is fault
                self.core._fail_all(error)
                self.core.runner.flying = 0
                self.pinned.clear()
        setattr(self.core.runner, where, None)

    @rule(data=st.data())
    def break_one(self, data):
        """One answer's logits are no numbers."""
        running = [req for req in self.core.scheduler.running if req.kind is RequestKind.GENERATE and not req.in_flight]
        if running:
            self.core.runner.broken.add(data.draw(st.sampled_from(running)).order)

    @rule(data=st.data())
    def listen_badly(self, data):
        """Whoever listens raises: nobody else learns of it."""
        if self.open and (results := data.draw(st.sampled_from(self.open))[0].results) and not results[-1].done:
            results[-1].on_change(_raises)

    @invariant()
    def nothing_leaks(self):
        self.engine.check()

    def teardown(self):
        try:
            self.come_to_rest()
        finally:
            self.little.__exit__(None, None, None)

    def come_to_rest(self):
        drain(self.core)
        for handle, whole, asks in self.open:
            for result in handle.results:
                assert result.done
                if asks and asks[0].constraint is not None and result.error is None:
                    self.is_legal(result.output(), asks[0].constraint.source)
            free = len(asks) == 1 and asks[0].params.n == 1 and asks[0].constraint is None
            if whole is not None and free and handle.results[0].error is None:
                n = min(asks[0].params.max_new_tokens, 120 - len(WORDS.encode((whole,))))
                assert handle.results[0].output().text == self.expected(whole, n)
        self.open.clear()
        self.pinned.clear()
        handle = None
        gc.collect()
        drain(self.core)
        self.engine.check()
        stats = self.engine.stats()
        assert stats["pinned"] == stats["running"] == stats["waiting"] == 0
        assert stats["free_slots"] + stats["cached_tokens"] == stats["slots"]


    def expected(self, whole: str, n: int) -> str:
        return expected_text(whole, n)

    def is_legal(self, output, regex: str) -> None:
        if output.meta["finish_reason"]["type"] == "stop":
            assert re.fullmatch(regex, output.text)


def _raises(_) -> None:
    raise ValueError("a listener failed")


class AnythingAhead(Anything):
    """The same with the loop one step ahead, also where tokens are forced behind most samples."""

    runs = FakeAheadRunner

    def __init__(self) -> None:
        super().__init__()
        self.ahead = mock.patch("lmc.backend.engine.engine._MOST_FORCED", 1.0)
        self.ahead.start()

    def teardown(self):
        try:
            super().teardown()
        finally:
            self.ahead.stop()


class AnythingNear(Anything):
    """The same with a model that turns positions of long sequences otherwise."""

    near = 24


class AnythingNearAhead(AnythingNear):
    runs = FakeAheadRunner


class AnythingDrafted(Anything):
    """The same with drafts, and a model that says much again."""

    runs = Copies
    near = 40
    options: Mapping[str, Any] = {"drafts": 5}

    def expected(self, whole: str, n: int) -> str:
        model = self.core.runner
        ids = WORDS.encode((whole,))
        for _ in range(n):
            ids.append(model.next(np.array(ids), 0, None))
        return WORDS.decode(ids[len(ids) - n :])


class AnythingDraftedAhead(AnythingDrafted):
    runs = CopiesAhead


AnythingDrafted.TestCase.settings = AnythingDraftedAhead.TestCase.settings = settings(examples(2, 60), stateful_step_count=30)
AnythingNear.TestCase.settings = AnythingNearAhead.TestCase.settings = settings(examples(2, 60), stateful_step_count=30)
Anything.TestCase.settings = AnythingAhead.TestCase.settings = settings(examples(2, 60), stateful_step_count=30)
TestAnything = pytest.mark.search(Anything.TestCase)
TestAnythingAhead = pytest.mark.search(AnythingAhead.TestCase)
TestAnythingDrafted = pytest.mark.search(AnythingDrafted.TestCase)
TestAnythingDraftedAhead = pytest.mark.search(AnythingDraftedAhead.TestCase)
TestAnythingNear = pytest.mark.search(AnythingNear.TestCase)
TestAnythingNearAhead = pytest.mark.search(AnythingNearAhead.TestCase)
