"""Riders: a select is scored beside the last rows of the answer before it; the same choices and scores, a pass less, and nothing left of those that err."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from lmc.errors import LmcError
from lmc.segments import ChoicesMethod, Gen, Select, Text
from tests.backend.engine.test_ahead import OPTIONS, PARTS, WORDS, gen, seen_of
from tests.backend.engine.test_drafts import at, copied, drain
from tests.backend.engine_fakes import Copies, CopiesAhead, automata, run_cancelling, stepped
from tests.searching import apart, size

RUNS = [Copies, CopiesAhead]
CHOICES = ("yes", "no", "not at all")


def select(*choices: str, **options: Any) -> Select:
    return Select(choices or CHOICES, **options)


def asked(runs, answer: str, ask: Gen, *, drafts: Any = 8, behind: tuple[Any, ...] = (), times: int = 2, said: str = "", **options: Any):
    """Ask one gen several times, always answered alike, and then so that it says `said` if that is given; a select behind it. Returns the engine, its core,
    the results of the last chain, and the passes that it took."""
    engine, core = stepped(2048, runs=runs, drafts=drafts, compiler=automata(WORDS), **options)
    handle: Any = None
    for i in range(times):
        prompt = f"{i} ask:"
        copied(core, prompt, said if said and i == times - 1 else answer)
        before = len(core.runner.passes)
        handle = engine.submit(None, [Text((prompt,)), ask, *(behind or (Text((" So it is: ",)), select()))])
        drain(core)
        engine.check()
    assert not isinstance(core.runner, CopiesAhead) or core.runner.begun == core.runner.continued
    return engine, core, handle.results, len(core.runner.passes) - before


LONG = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ENDS = {
    "a stop token": (LONG, gen(60)),
    "a stop text": (LONG + "\nno", gen(60, stop=("\n",))),
    "a part of a token": (LONG + "the no", gen(60, stop=("he",))),
    "a regex": (LONG + "12no", gen(60, stop_regex=(r"\d\d",))),
    "its length": (LONG + "no", gen(len(LONG))),
    "a constraint": (LONG, gen(60, constraint="[A-Z]{26}")),
    "what is forced": (LONG + " the end of it", gen(60, constraint="[A-Z]{26} the end of it")),
}


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("end", ENDS)
def test_a_select_takes_no_pass_behind_an_answer_that_ends_as_expected(runs, end):
    answer, ask = ENDS[end]
    answers, passes, cached = [], [], []
    for rides in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not rides:
                patch.setattr("lmc.backend.engine.riders.Riders.join", lambda *_: None)
            engine, _, results, took = asked(runs, answer, at(1, ask))
        answers.append([seen_of(results[0]), results[1].output().text, results[1].output().meta["normalized_prompt_logprobs"]])
        passes.append(took)
        cached.append(engine.stats()["cached_tokens"])
        assert engine.stats()["riders_used"] == rides, engine.stats()["riders"]
        assert results[1].output().usage.passes == (not rides)
    assert answers[0] == answers[1] and cached[0] == cached[1]
    assert passes[0] == passes[1] - 1


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("said", [LONG + "more", LONG[:12], LONG[:12] + "another end", "short"])
def test_one_behind_an_answer_that_goes_on_otherwise_is_dropped(runs, said):
    engine, core, results, _ = asked(runs, LONG, at(1, gen(60)), said=said)
    assert results[0].output().text == said and results[1].output().text in CHOICES
    assert engine.stats()["riders_used"] == 0
    before = core.counters()
    off, _, alone, _ = asked(runs, LONG, at(1, gen(60)), said=said, drafts="off")
    assert results[1].output().meta["normalized_prompt_logprobs"] == alone[1].output().meta["normalized_prompt_logprobs"]
    assert before.prefilled_tokens == off.counters().prefilled_tokens and before.prompt_tokens == off.counters().prompt_tokens


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("method", list(ChoicesMethod))
def test_each_method_and_what_follows_are_the_same(runs, method):
    behind = Text((" abcd",)), select("abcd the cat", "ab no", "x", method=method), Text((" the",)), gen(6)
    found = [asked(runs, LONG, at(1, gen(60)), drafts=drafts, behind=behind) for drafts in (8, "off")]
    assert [engine.stats()["riders_used"] for engine, *_ in found] == [1, 0]
    assert [[seen_of(r) for r in results] for *_, results, _ in found] == [[seen_of(r) for r in results] for *_, results, _ in found[::-1]]
    used = [engine.counters() for engine, *_ in found]
    assert used[0].prompt_tokens == used[1].prompt_tokens and used[0].passes < used[1].passes


def test_a_seam_that_is_encoded_again_is_the_text_that_the_program_asks_with():
    for seam in ("token", "text"):
        engine, _, results, _ = asked(Copies, LONG + "a", at(1, gen(60)), behind=(Text(("b cat",)), select()), seam=seam)
        _, _, alone, _ = asked(Copies, LONG + "a", at(1, gen(60)), behind=(Text(("b cat",)), select()), seam=seam, drafts="off")
        assert seen_of(results[1]) == seen_of(alone[1]) and engine.stats()["riders_used"] == 1


@pytest.mark.parametrize("runs", RUNS)
def test_a_select_that_is_made_while_the_answer_grows_rides_too(runs):
    """The first one; one of another prompt behind the same answer, as of a fork, is scored after it."""
    engine, core, _, _ = asked(runs, LONG, at(1, gen(60)), times=1)
    copied(core, "x ask:", LONG)
    grows = engine.submit(None, [Text(("x ask:",)), at(1, gen(60))])
    core.turn()
    first, second = (engine.submit(grows, [Text((text,)), select()]) for text in (" So it is: ", " Or it is: "))
    drain(core)
    assert grows.results[0].output().text == LONG
    assert [handle.results[0].output().usage.passes for handle in (first, second)] == [0, 1]


@pytest.mark.parametrize("behind", [(Text((" \ud800",)), select()), (select("a\udfff", "b"),), (Text(("long " * 999,)), select())])
def test_one_that_cannot_be_made_fails_alone(behind):
    """Where it is made, and not in the pass of all in which it would have been scored beside its answer."""
    engine, _, results, _ = asked(Copies, LONG, at(1, gen(60)), behind=behind)
    assert results[0].output().text == LONG and isinstance(results[1].error, LmcError)
    assert engine.stats()["riders"] == 0


def test_there_is_none_where_rows_or_slots_are_wanted(monkeypatch):
    """Nor behind an answer whose log-probabilities are asked for, nor if a gen follows."""
    asks = at(1, gen(60))
    used = lambda *args, **options: asked(Copies, LONG, *args, **options)[0].stats()["riders"]
    assert used(asks) == 1
    assert used(at(1, gen(60, return_logprob=True))) == 0
    assert used(asks, behind=(Text((" So",)), gen(3))) == 0
    with monkeypatch.context() as patch:
        patch.setattr("lmc.backend.engine.scheduler.FREE_ROWS", 12)
        assert used(asks, drafts=10) == 0
    with monkeypatch.context() as patch:
        patch.setattr("lmc.backend.engine.batch_builder.BatchBuilder.has_slots", lambda self, n: False)
        assert used(asks) == 0


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("row", [0.005, 0.15])
@pytest.mark.parametrize("ends", ["alike", "later each time"])
def test_they_are_made_where_they_pay(runs, row, ends):
    """Where answers never end where an earlier one did, a few are in vain and then none are made: they may cost a pass, and a hundredth of all."""
    engine, core = stepped(4096, runs=runs, drafts="auto")
    costs = core.scheduler.drafts.costs
    costs.learn, costs.row, costs.host, costs.gap = lambda *_: None, row, 0.02, 0.02
    rounds, text = 24, LONG + LONG.lower() + "0123456789!$%&/()=?+*#"
    for i in range(rounds):
        copied(core, f"{i} ask:", text[: 26 if ends == "alike" else 26 + i])
        handle = engine.submit(None, [Text((f"{i} ask:",)), at(1, gen(90)), Text((" So: ",)), select("yes", "no")])
        drain(core)
        assert handle.results[1].output().text in ("yes", "no")
    engine.check()
    riders, used = engine.stats()["riders"], engine.stats()["riders_used"]
    if ends == "alike":
        assert used == riders > rounds // 2
    else:
        assert used < riders / 4 and (riders - used) * row * 6 <= 1 + used + 0.01 * len(core.runner.passes), "each has six rows"


@apart
def test_random_chains_are_those_without_drafts(monkeypatch):
    """In pools that are too small, some cancelled; constraints, stops, penalties, selects of all kinds; riders that begin elsewhere, too."""

    def said(runs, drafts) -> list[object]:
        engine, core = stepped(slots, chunk=chunk, max_batch=max_batch, compiler=automata(WORDS), runs=runs, max_context=140, drafts=drafts)
        handles = run_cancelling(engine, core, chains, cancelled)
        stats = engine.stats()
        assert stats["free_slots"] + stats["cached_tokens"] == stats["slots"]
        counted.append((stats["riders"], stats["riders_used"]))
        kept = [handle for handle, when in zip(handles, cancelled, strict=True) if when is None]
        return [seen_of(r) for handle in kept for r in handle.results]

    counted: list[tuple[int, int]] = []
    for seed in range(size(12, 400)):
        rng = Random(seed)

        def ask(line: int, rng: Random = rng) -> Any:
            if line % 2:
                return select(*rng.sample(["yes", "no", "the cat", "the", "abcd", "ab"], rng.randint(1, 4)), method=rng.choice(list(ChoicesMethod)))
            regex = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 3))) if rng.random() < 0.3 else None
            return at(line, gen(rng.choice([5, 9, 14, 30]), constraint=regex, **rng.choice(OPTIONS)))

        chains = [[ask(line) for line in range(rng.choice([2, 4, 6]))] for _ in range(rng.randint(1, 7))]
        cancelled = [rng.randint(1, 40) if rng.random() < 0.15 else None for _ in chains]
        slots, chunk, max_batch = rng.choice([150, 160, 800]), rng.choice([6, 12, 64]), rng.choice([2, 7, 32])
        expected = said(Copies, "off")
        drafts = rng.choice([2, 5, 16, "auto"])
        for runs in RUNS:
            assert said(runs, drafts) == expected, (seed, runs, drafts)
    riders, used = map(sum, zip(*counted, strict=True))
    assert riders > used > 20
