"""Answers for which less room is reserved than they may need, and are preempted where there is no more: nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from lmc.backend.engine.reservations import AnswerLengths, most_preemptions
from lmc.segments import Select, Text
from tests.backend.engine_fakes import (
    EOS,
    FakeAheadRunner,
    FakeRunner,
    FakeWords,
    SteppedCore,
    automata,
    gen,
    reserving_little,
    stepped,
)
from tests.searching import some

WORDS = FakeWords()


ASKS = {
    "plain": gen(30),
    "sampled": gen(30, temperature=1.0, seed=5),
    "stopped": gen(50, stop=("a",)),
    "stopped by a regex": gen(50, stop_regex=("[ab]c",)),
    "several": gen(20, temperature=1.0, n=3, seed=2),
    "penalised": gen(30, frequency_penalty=0.5),
    "scored": gen(25, return_logprob=True, logprob_start_len=0, top_logprobs_num=2),
    "constrained": gen(40, constraint="(yes|no), [0-9]{3,20} and the cat(s|END)"),
    "constrained and scored": gen(40, constraint="the cats and dogs [ab]{5,9} and the cats(!|END)", return_logprob=True),
    "chosen": Select(("abc", "ab", "d e", "abx")),
}
CHAINS = [*([name] for name in ASKS), ["plain", "chosen", "stopped", "scored"], ["constrained", "several", "sampled"]]


def run(core: SteppedCore, engine, most: int = 5000) -> None:
    for _ in range(most):
        if not core.turn():
            return
        engine.check()
    raise AssertionError("the engine does not come to rest")


def run_until(core: SteppedCore, engine, there: Callable[[], bool]) -> None:
    while not there():
        assert core.turn(), "the engine came to rest"
        engine.check()


def outcomes(slots: int, chains: list[list[str]], runs=FakeRunner, **options):
    """Texts, streams and what is said of the tokens, of chains that all run together; and the engine."""
    engine, core = stepped(slots, compiler=automata(WORDS), runs=runs, **options)
    handles = [
        engine.submit(None, [s for i, name in enumerate(chain) for s in (Text((f"{n % 3} go {i} ",)), ASKS[name])])
        for n, chain in enumerate(chains)
    ]
    run(core, engine)
    outputs = [result.output() for handle in handles for result in handle.results]
    for handle in handles:
        for result in handle.results:
            assert "".join(result.stream()) == result.output().text, "a stream says something else"
    metas = [[{k: v for k, v in m.items() if k not in ("id", "cached_tokens")} for m in o.metas] for o in outputs]
    usages = [(o.usage.completion_tokens, o.usage.forced_tokens) for o in outputs]
    return [(o.texts, o.ids) for o in outputs], metas, usages, engine


@some(("runs", "chunk"), product([FakeAheadRunner, FakeRunner], [5, 64]), 4)
def test_nothing_that_is_said_changes(runs, chunk):
    *expected, _ = outcomes(4096, CHAINS)
    with reserving_little():
        *found, engine = outcomes(150, CHAINS, runs, chunk=chunk)
    assert engine.counters().preemptions > 3
    assert found == expected


def test_a_large_limit_does_not_keep_others_out():
    """Twenty answers of ten tokens with room for two of 1400: the passes are those of twenty limits of ten."""
    passes = []
    for most in (10, 1400):
        engine, core = stepped(3000, chunk=2048)
        for i in range(20):
            core.runner.say(WORDS.encode((f"question {i}",)), [97] * 9)
        handles = [engine.submit(None, [Text((f"question {i}",)), gen(most)]) for i in range(20)]
        run(core, engine)
        assert all(handle.results[0].output().text == "a" * 9 for handle in handles)
        passes.append(list(core.runner.passes))
        assert engine.counters().preemptions == 0
    assert passes[0] == passes[1]


@pytest.mark.parametrize("runs", [FakeRunner, FakeAheadRunner])
def test_what_fits_takes_the_same_passes(runs):
    taken = []
    for little in (False, True):
        with reserving_little() if little else reserving_little(short=10_000):
            *_, engine = outcomes(4096, CHAINS, runs)
        counters = engine.counters()
        assert counters.preemptions == 0 and engine.stats()["recomputed_tokens"] == 0
        taken.append((engine._core.runner.passes, counters.prefilled_tokens, counters.cached_tokens, counters.twins))
    assert taken[0] == taken[1]


def test_the_first_goes_on_and_the_last_give_way():
    """The first in the plan's order has a row in each pass until it ends, and each waits a bounded number of times."""
    with reserving_little():
        engine, core = stepped(120, max_context=110, chunk=64)
        handles = [engine.submit(None, [Text((c * 10,)), gen(90)]) for c in "abcdefgh"]
        first, *others = requests = [handle.last.requests[0] for handle in handles]
        while not first.done:
            core.turn()
            engine.check()
        assert first.preempted == 0 and engine.counters().passes == 90
        run(core, engine)
        assert all(handle.results[0].output().meta["completion_tokens"] == 90 for handle in handles)
        assert all(req.preempted <= most_preemptions(req) for req in requests)
        assert any(req.preempted > 1 for req in others)


def test_a_reservation_is_kept():
    """A request for which everything is reserved is not preempted for others, whoever comes first."""
    with reserving_little():
        engine, core = stepped(120, max_context=110)
        first = engine.submit(None, [Text(("a" * 10,)), gen(90)])
        sure = engine.submit(None, [Text(("b" * 10,)), gen(60, ignore_eos=True)])
        reqs = [h.last.requests[0] for h in (first, sure)]
        run(core, engine)
        assert reqs[1].preempted == 0 and reqs[0].preempted > 0
        assert [len(h.results[0].output().ids) for h in (first, sure)] == [90, 60]


def test_everything_is_reserved_for_whoever_was_preempted_as_often_as_can_be():
    """Which is what bounds how often it is: each time it goes on with more, at last with all that it may need."""
    with reserving_little():
        engine, core = stepped(120, max_context=110)
        handles = [engine.submit(None, [Text((text * 10,)), gen(90)]) for text in "ab"]
        run_until(core, engine, lambda: any(req.preempted for h in handles for req in h.last.requests))
        (req,) = [req for h in handles for req in h.last.requests if req.preempted]
        reserved = [core.scheduler.reservations.at_first(req)]
        while req.preempted < most_preemptions(req):
            req.preempted += 1
            reserved.append(core.scheduler.reservations.at_first(req))
        assert reserved == sorted(reserved) and reserved[0] < reserved[-1] == req.need
        run(core, engine)


def test_what_is_preempted_goes_before_what_is_new():
    with reserving_little():
        engine, core = stepped(100, max_context=90)
        old = [engine.submit(None, [Text((c * 10,)), gen(60)]) for c in "ab"]
        preempted = old[1].last.requests[0]
        while not preempted.preempted:
            assert core.turn()
        new = [engine.submit(None, [Text((c * 5,)), gen(40)]) for c in "cd"]
        waited = 0
        while core.turn() and preempted in core.scheduler.waiting:
            assert all(handle.last.requests[0] in core.scheduler.waiting for handle in new)
            waited += 1
        assert waited > 5
        run(core, engine)
        assert all(handle.results[0].done for handle in new)


def test_what_is_preempted_can_be_cancelled():
    with reserving_little():
        engine, core = stepped(100, max_context=90)
        handles = [engine.submit(None, [Text((c * 10,)), gen(60)]) for c in "ab"]
        while not engine.stats()["preempted"]:
            assert core.turn()
        handles[1].cancel()
        run(core, engine)
        assert handles[0].results[0].output().meta["completion_tokens"] == 60
        assert engine.stats()["free_slots"] + engine.stats()["cached_tokens"] == 100


def test_who_asks_for_figures_does_not_disturb_the_loop(monkeypatch):
    """From another thread, so that requests come while those that wait are counted."""
    engine, core = stepped(100)
    waiting = dict[Any, None]()
    monkeypatch.setattr(core.scheduler.waiting, "_requests", waiting)

    class Coming:
        @property
        def preempted(self) -> int:
            waiting[Coming()] = None
            return 1

    waiting.update({Coming(): None, Coming(): None})
    figures = engine.stats()
    assert (figures["waiting"], figures["preempted"], len(waiting)) == (2, 2, 4)


def test_pins_give_way_before_the_only_answer_does():
    with reserving_little():
        engine, core = stepped(100, max_context=100)
        pin = engine.prefill(None, [Text(("p" * 50,))])
        handle = engine.submit(None, [Text(("q" * 10,)), gen(80)])
        run(core, engine)
        assert handle.results[0].output().meta["completion_tokens"] == 80
        assert engine.stats()["pinned"] == 0 and engine.counters().preemptions == 0
        engine.release(pin)


def test_what_is_still_cached_is_not_computed_again():
    """Preempted by hand, with room for everything: one row, that of the token that was sampled last."""
    engine, core = stepped(2000)
    handle = engine.submit(None, [Text(("q" * 20,)), gen(500, stop_token_ids=(EOS,))])
    for _ in range(10):
        core.turn()
    core.scheduler._preempt(handle.last.requests[0])
    rows = list(core.runner.passes)
    core.turn()
    assert core.runner.passes == [*rows, 1] and engine.stats()["recomputed_tokens"] == 0


def test_lengths_are_those_of_the_same_gen_and_follow_it():
    lengths = AnswerLengths()
    assert lengths.expected("a") == lengths.expected("b") > 0
    for _ in range(50):
        lengths.learn("a", 20)
    assert lengths.expected("a") == 20 and lengths.expected("b") == AnswerLengths().expected("b")
    for _ in range(200):
        lengths.learn("a", 90)
    assert 85 < lengths.expected("a") <= 90
    for i in range(5000):
        lengths.learn(i, 1)
    assert lengths.expected("a") == lengths.expected("new") and len(lengths._seen) < 2000


def on_a_model(folder: str, slots: int):
    """Texts and ids, tokens with their log-probabilities, streams, and counters of a mixed batch in a pool of so many tokens."""
    from lmc.backend.local_model import Engine

    form = r'\{"name": "[A-Z][a-z]{2,9}", "orderId": "[a-z]{1,9}"\}'
    scored = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    asks = [
        ("Once upon a time", gen(16)),
        ("The capital of France is", gen(14, temperature=0.8, seed=7)),
        ("A list of animals: cats,", gen(14, frequency_penalty=0.4, stop=("dogs, dogs",))),
        ("A list of numbers: 1, 2,", gen(14, logprob_start_len=0, **scored)),
        ("A customer as JSON: ", gen(30, constraint=form, temperature=1.0, seed=11)),
        ("An order as JSON: ", gen(30, constraint=form, **scored)),
    ]
    with Engine(folder, dtype="float32", max_tokens=slots, chunk=32) as engine:
        handles = [engine.submit(None, [Text((prompt,)), ask]) for prompt, ask in asks]
        streams = ["".join(handle.results[0].stream()) for handle in handles]
        outputs = [handle.results[0].output() for handle in handles]
        engine.check()
        logprobs = [
            [pair for key in ("input_token_logprobs", "output_token_logprobs") for pair in output.metas[0].get(key, ())]
            for output in outputs
        ]
        reasons = [[meta["finish_reason"] for meta in output.metas] for output in outputs]
        return [(o.texts, o.ids) for o in outputs], reasons, logprobs, streams, engine.counters()


@pytest.mark.model
def test_nothing_that_a_model_says_changes(tiny_smollm2: str):
    with reserving_little():
        texts, reasons, logprobs, streams, counters = on_a_model(tiny_smollm2, 44)
    expected = on_a_model(tiny_smollm2, 2000)
    assert counters.preemptions > 1 and counters.forced_tokens > 10 and expected[-1].preemptions == 0
    assert (texts, reasons, streams) == (expected[0], expected[1], expected[3])
    assert streams == [said[0] for said, _ in texts]
    for found, known in zip(logprobs, expected[2], strict=True):
        assert [(token, text) for _, token, text in found] == [(token, text) for _, token, text in known]
        assert [p for p, *_ in found] == pytest.approx([p for p, *_ in known], abs=1e-3)
    assert sum(map(len, logprobs)) > 30
