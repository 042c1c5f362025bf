"""Eviction by what is known of the next use: pins stay, what requests wait for goes last, and of the rest the least recently
used."""

from __future__ import annotations

import numpy as np
import pytest

import lmc
from lmc.backend.engine.radix_cache import RadixCache, common_prefix
from lmc.backend.engine.waiting import WaitingQueue
from lmc.segments import Constraint, Gen, SamplingParams, Text
from tests.backend.engine_fakes import FakeWords, automata, backend, drain, gen, reference_ids, stepped

WORDS = FakeWords()


@pytest.fixture(params=["next use", "recency"])
def by_next_use(request, monkeypatch) -> bool:
    if request.param == "recency":
        monkeypatch.setattr(WaitingQueue, "keep_next", lambda self: None)
    return request.param == "next use"


def answer(engine, core, text: str) -> None:
    handle = engine.submit(None, [Text((text,)), gen(1)])
    drain(core)
    assert handle.results[0].done


@pytest.mark.parametrize(
    ("second", "asked", "kept", "recent"),
    [
        ("b" * 40, ("a" * 40,), [40], [0]),  # the oldest prefix in the cache waits behind a long answer
        ("b" * 39, ("b" * 39, "a" * 40), [0, 40], [39, 0]),  # the first to be admitted keeps its prefix longest
    ],
)
def test_a_prefix_that_is_waited_for_is_evicted_last(by_next_use, second, asked, kept, recent):
    engine, core = stepped(150, max_batch=1)
    for text in ("a" * 40, second):
        answer(engine, core, text)
    long = engine.submit(None, [Text(("c" * 10,)), gen(100)])
    core.turn()
    handles = [engine.submit(None, [Text((text + "e",)), gen(1)]) for text in asked]
    drain(core)
    assert [handle.results[0].output().meta["cached_tokens"] for handle in handles] == (kept if by_next_use else recent)
    assert long.results[0].done


@lmc.function
def qa(s, question):
    s += "A long beginning, which all questions to this program have in common. " + question + lmc.gen("answer", max_tokens=4)


def test_a_program_computes_its_beginning_once_while_others_fill_the_pool():
    """The plan pins it between runs; the interpreter has no plan, so there the least recently used goes, which is that."""
    computed = []
    for one in (lmc.compile(qa), qa.run):
        engine, _ = backend(300)
        with engine:
            for i in range(6):
                one(f"Number {i}?", backend=engine).sync()
                for other in "fgh":
                    engine.submit(None, [Text((f"{i}" + other * 99,)), gen(1)]).results[0].output()
            engine.check()
            computed.append(engine.counters().prefilled_tokens)
    planned, least_recently_used = computed
    assert least_recently_used - planned >= 5 * 60, "the beginning, in each run but the first"


def test_pins_outlive_what_was_used_later_and_go_when_they_are_released():
    engine, core = stepped(200, chunk=64)
    pin = engine.prefill(None, [Text(("p" * 60,))])
    drain(core)

    def fill() -> None:
        for i in range(6):
            answer(engine, core, f"{i}" + "f" * 60)

    def cached() -> int:
        return engine._scheduler.tree.match(np.array(WORDS.encode(("p" * 60,)), np.int32)).end

    held = cached()
    assert held > 50
    fill()
    assert cached() == held and engine.stats()["pinned"] == 1
    engine.release(pin)
    fill()
    assert cached() == 0


def test_a_long_conversation_looks_up_only_what_is_new(monkeypatch):
    """A turn goes on from where the one before it left its KV, not from the root."""
    compared = [0]

    def counted(a, b):
        compared[0] += 1
        return common_prefix(a, b)

    monkeypatch.setattr("lmc.backend.engine.radix_cache.common_prefix", counted)
    engine, core = stepped(2000)
    asks = [part for i in range(40) for part in (Text((f"turn {i}: ",)), gen(3))]
    handle = engine.submit(None, asks)
    drain(core)
    meta = handle.results[-1].output().meta
    assert meta["cached_tokens"] == meta["prompt_tokens"] - len("turn 39: ") - 1  # nobody needed the KV of the last token
    assert compared[0] <= 40


def say(core, prompt: str, answer: str) -> None:
    core.runner.say(WORDS.encode((prompt,)), WORDS.encode((answer,)))


@pytest.mark.parametrize("regex", [None, "the cats and dogs and the cat(s|!)"])
def test_what_goes_on_behind_a_cut_is_not_what_was_cut(regex):
    """The KV of an answer may reach beyond its cut: where it was preempted, or forced."""
    engine, core = stepped(2000, compiler=automata(WORDS))
    say(core, "go", "dddd dedede")
    constraint = Constraint("regex", regex) if regex else None
    params = SamplingParams(200, stop=("dede", "cats and"), temperature=0.0, return_logprob=True)
    handle = engine.submit(None, [Text(("go",)), Gen(params, constraint), Text((" on",)), gen(5)])
    for _ in range(7):
        core.turn()
        if not regex and core.scheduler.running:
            core.scheduler._preempt(next(iter(core.scheduler.running)))
    drain(core)
    first, second = (result.output() for result in handle.results)
    assert first.text == ("the " if regex else "dddd ")
    prompt = WORDS.encode(("go",)) + list(first.ids) + WORDS.encode((" on",))
    assert list(second.ids) == reference_ids(prompt, 5)


def test_after_a_failed_pass_nothing_goes_on_from_what_was_cached_before():
    engine, core = stepped(2000)
    first = engine.submit(None, [Text(("a long beginning ",)), gen(4)])
    drain(core)
    core._fail_all(RuntimeError("the device is gone"))  # as the loop's thread does
    core.runner.slots[:] = -1
    second = engine.submit(first, [Text((" and more ",)), gen(4)])
    drain(core)
    prompt = WORDS.encode(("a long beginning ",)) + list(first.results[0].output().ids) + WORDS.encode((" and more ",))
    assert list(second.results[0].output().ids) == reference_ids(prompt, 4)
    assert second.results[0].output().meta["cached_tokens"] == 0


def test_of_a_long_leaf_only_what_is_wanted_goes():
    tree = RadixCache()
    tree.insert(tree.root, np.arange(1000, dtype=np.int32), np.arange(1000))
    assert tree.evict(3).tolist() == list(range(936, 1000))
    assert tree.evict(200).tolist() == list(range(736, 936))
    assert tree.match(np.arange(1000, dtype=np.int32)).end == 736
    tree.check()
    assert len(tree.evict(5000)) == 736 and tree.size == 0
