"""Drafts: more tokens a pass, and the same ones; none of another's; none where they do not pay."""

from __future__ import annotations

import zlib
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from lmc.backend.base import Hints
from lmc.backend.engine import draft_sources
from lmc.backend.engine import drafts as drafting
from lmc.backend.engine.draft_costs import Costs, DraftBudget
from lmc.backend.engine.draft_sources import Odds, occurrence, resumed
from lmc.backend.engine.scheduler import Scheduler
from lmc.backend.engine.token_ids import BROKEN
from lmc.errors import BackendError, Loc, ParameterError
from lmc.segments import Gen, Text
from tests.backend.engine.test_ahead import ASKS, CHAINS, WORDS, Traffic, answers, seen_of
from tests.backend.engine_fakes import Copies, CopiesAhead, FakeAheadRunner, FakeRunner, automata, backend, drain, gen, run_cancelling, stepped
from tests.searching import apart, size, some

RUNS = [Copies, CopiesAhead]


@cache
def without_drafts() -> list[Any]:
    return [answers(Copies, [chain])[0] for chain in CHAINS]


@pytest.mark.parametrize("runs", RUNS)
@some("drafts", [5, 1, "auto", 16], 4)
def test_answers_are_those_without_drafts(runs, drafts):
    """Sampled, stopped, penalised, scored, constrained, forced; texts, ids, log-probabilities, why each ended."""
    found = [answers(runs, [chain], drafts=drafts) for chain in CHAINS]
    assert [said for said, _ in found] == without_drafts()
    accepted = sum(core.counters().accepted_tokens for _, core in found)
    assert accepted > 10 if drafts != "auto" else accepted >= 0


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("name", ["plain", "sampled", "scored", "penalised", "forced often", "free within", "bound and scored"])
def test_what_is_cached_behind_an_answer_is_what_is_without_drafts(runs, name):
    """KV of drafts that were drawn is kept, and of no others."""
    cached: list[list[int]] = []
    for drafts in ("off", 7):
        engine, core = stepped(4096, compiler=automata(WORDS), runs=runs, drafts=drafts)
        handles = [engine.submit(None, [Text((f"{text} {text} ",)), ASKS[name], Text(("and",)), gen(3)]) for text in ("ab cat", "the the")]
        drain(core)
        engine.check()
        cached.append([engine.stats()["cached_tokens"], *(h.results[1].output().meta["cached_tokens"] for h in handles)])
    assert cached[0] == cached[1]


@apart
def test_random_answers_are_those_without_drafts(monkeypatch):
    preempted = accepted = 0
    for seed in range(size(0, 400)) or (3, 5, 8, 11):  # some of these are preempted
        traffic = Traffic(seed)
        monkeypatch.setattr("lmc.backend.engine.engine._MOST_FORCED", traffic.rng.choice([0.0, 0.3, 1.0]))
        expected, drafts = traffic.said(Copies), traffic.rng.choice([1, 2, 5, 16, "auto"])
        for runs in RUNS:
            assert traffic.said(runs, drafts=drafts) == expected, (seed, runs, drafts)
        preempted, accepted = preempted + traffic.preempted, accepted + traffic.accepted
    assert preempted > 0 and accepted > 100


def copied(core, prompt: str, answer: str) -> None:
    core.runner.say(WORDS.encode((prompt,)), WORDS.encode((answer,)))


@pytest.mark.parametrize("runs", RUNS)
def test_what_is_copied_from_the_prompt_takes_few_passes(runs):
    text = "0123456789QRSTUVWXYZ!$%&/()=?+*#"
    passes = {}
    for drafts in ("off", 8):
        engine, core = stepped(1024, runs=runs, drafts=drafts)
        copied(core, f"{text}\n{text[:3]}", text[3:])
        handle = engine.submit(None, [Text((f"{text}\n{text[:3]}",)), gen(60)])
        drain(core)
        engine.check()
        output = handle.results[0].output()
        assert output.text == text[3:]
        passes[drafts] = output.usage.passes
    assert passes["off"] == len(text) - 2
    assert passes[8] <= 6, "one for the first token, then nine at a time"
    assert output.usage.accepted_tokens >= len(text) - 9 and output.usage.drafted_tokens >= output.usage.accepted_tokens
    assert engine.counters().accepted_tokens == engine.spent().usage.accepted_tokens == output.usage.accepted_tokens


def test_a_pass_behind_a_draft_that_was_right_begins_before_it_is_planned():
    """It is the one that is planned then, its slots included; there is none behind the last token, and none of an answer that may end otherwise."""
    text, begun = "0123456789QRSTUVWXYZ!$%&/()=?+*#", dict[str, int]()
    asked = {"plain": {}, "sampled": {"temperature": 0.7}, "penalised": {"presence_penalty": 0.5}, "another stop": {"stop": ("no",)}}
    others = {"stopped": {"stop": ("XYZ",)}, "by a regex": {"stop_regex": ("no",)}, "scored": {"return_logprob": True}, "bound": {"constraint": "[^a-z]+"}}
    for name, options in (asked | others).items():
        engine, core = stepped(1024, runs=CopiesAhead, compiler=automata(WORDS), drafts=5)
        copied(core, f"{text}\n{text[:3]}", text[3:])
        handle = engine.submit(None, [Text((f"{text}\n{text[:3]}",)), gen(60, **options)])
        drain(core)
        engine.check()
        assert handle.results[0].output().text == text[3 : text.index("XYZ") if name == "stopped" else None]
        assert core.runner.begun == core.runner.continued
        begun[name] = core.runner.foreseen
    assert begun.pop("by a regex") == begun.pop("scored") == begun.pop("bound") == 0
    assert begun.pop("stopped") == 3, "none behind the draft in which it stops"
    assert set(begun.values()) == {5}, "behind the first token in its own place, and four drafts of five"


def test_no_pass_is_foreseen_for_a_runner_that_cannot_begin_one(monkeypatch):
    """As with several ranks, which begin a pass together."""
    text, foreseen = "0123456789QRSTUVWXYZ!$%&/()=?+*#", list[int]()
    foresee = Scheduler.foresee
    monkeypatch.setattr(Scheduler, "foresee", lambda self, work: foreseen.append(work.rows) or foresee(self, work))
    for prepare in (True, None):
        engine, core = stepped(1024, runs=CopiesAhead, drafts=5)
        if prepare is None:
            monkeypatch.setattr(core.runner, "prepare", None)
        copied(core, f"{text}\n{text[:3]}", text[3:])
        handle = engine.submit(None, [Text((f"{text}\n{text[:3]}",)), gen(60)])
        drain(core)
        assert handle.results[0].output().text == text[3:]
        assert (len(foreseen) > 3) == (core.runner.begun > 0) == (prepare is not None)
        foreseen.clear()


@pytest.mark.parametrize("drafts", ["off", 3])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"temperature": 0.9, "seed": 4}, {"stop_regex": ("no",)}, {"constraint": r"[ab]{2,9} the cat[sd]{1,2}, (yes|no) END[a-e]*"},
        {"constraint": "[^a-z]+", "presence_penalty": 0.5}, {"return_logprob": True},
    ],
)  # fmt: skip
def test_the_next_pass_of_a_lone_answer_that_was_waited_for_begins_before_it_is_planned(options, drafts):
    """With all of its forced tokens, and the draft that is proposed for it; not where tokens are scored. Of several answers none does."""
    text, said, following = "0123456789QRS!", dict[Any, list[Any]](), dict[int, int]()
    for runs in (CopiesAhead, Copies):
        for answers_beside in (0, 1):
            engine, core = stepped(1024, runs=runs, compiler=automata(WORDS), drafts=drafts)
            handles = [engine.submit(None, [Text((f"{text}{i}\n{text[:3]}",)), gen(40, **options)]) for i in range(1 + answers_beside)]
            drain(core)
            engine.check()
            said[runs, answers_beside] = [seen_of(handle.results[0]) for handle in handles]
            if runs is CopiesAhead:
                assert core.runner.begun == core.runner.continued
                following[answers_beside] = core.runner.begun - core.runner.foreseen
    waits = drafts != "off" or "presence_penalty" in options
    assert (following[0] > 0) == (waits and "return_logprob" not in options)
    assert following[1] <= following[0], "once the other has ended"
    assert all(said[CopiesAhead, n] == said[Copies, n] for n in (0, 1))


def test_a_pass_that_cannot_begin_early_fails_its_answer_and_nothing_else(monkeypatch):
    def fails() -> None:
        raise RuntimeError("the device is gone")

    text = "0123456789QRSTUVWXYZ!$%&/()=?+*#"
    engine, core = stepped(1024, runs=CopiesAhead, drafts=5)
    copied(core, f"{text}\n{text[:3]}", text[3:])
    for begin in (fails, core.runner.begin):
        monkeypatch.setattr(core.runner, "begin", begin)
        handle = engine.submit(None, [Text((f"{text}\n{text[:3]}",)), gen(60)])
        if begin is fails:
            with pytest.raises(RuntimeError, match="the device is gone") as failed:
                drain(core)
            core._fail_all(failed.value)  # as the loop's thread does
            with pytest.raises(BackendError, match="the device is gone"):
                handle.results[0].output()
        drain(core)
        engine.check()
    assert handle.results[0].output().text == text[3:] and core.runner.begun == core.runner.continued > 0


@pytest.mark.parametrize("in_vain", [False, True])
def test_passes_that_began_early_change_no_answer(in_vain, monkeypatch):
    """Of answers that are alone, one after the other, in pools that are too small for what they draft, some of them cancelled; in vain, too."""
    of_one = Scheduler._of_one

    def elsewhere(self, *args):
        """In other free slots than those that the plan takes."""
        if (found := of_one(self, *args)) is not None:
            (rows,) = found.spans
            n = len(rows.ids)
            found.spans[0] = rows._replace(slots=np.append(rows.slots[:-n], self.pool.free_slots()[:n]))
        return found

    if in_vain:
        monkeypatch.setattr(Scheduler, "_of_one", elsewhere)

    def said(runs, drafts) -> list[object]:
        engine, core = stepped(slots, chunk=16, compiler=automata(WORDS), runs=runs, max_context=120, drafts=drafts)
        found: list[object] = []
        for chain, when in zip(chains, cancelled, strict=True):
            (handle,) = run_cancelling(engine, core, [chain], [when])
            found += [seen_of(r) for r in handle.results] if when is None else []
        if runs is CopiesAhead:
            counted.append((core.runner.begun, core.runner.continued))
        return found

    counted: list[tuple[int, int]] = []
    for seed in range(size(12, 200)):
        rng = Random(seed)
        stop = rng.choice([(), ("ab b", "aaaa"), ("never",)])
        chains = [[gen(rng.randint(20, 60), seed=seed, temperature=rng.choice([0.0, 0.8]), stop=stop)] for _ in range(3)]
        cancelled = [rng.randint(5, 25) if rng.random() < 0.2 else None for _ in chains]
        slots, drafts = rng.choice([122, 130, 400]), rng.choice([2, 5, "auto"])
        assert said(CopiesAhead, drafts) == said(Copies, "off"), (seed, drafts)
    begun, continued = map(sum, zip(*counted, strict=True))
    assert begun > 100 and (continued == 0 if in_vain else continued > 0.98 * begun)


def passes_of_a_copy(runs, prompt: str, answer: str) -> int:
    """Return the passes in which a lone answer is drawn that copies from its prompt; its text is checked."""
    engine, core = stepped(1024, runs=runs, drafts=8)
    copied(core, prompt, answer)
    handle = engine.submit(None, [Text((prompt,)), gen(60)])
    drain(core)
    engine.check()
    output = handle.results[0].output()
    assert output.text == answer
    return output.usage.passes


@pytest.mark.parametrize("runs", RUNS)
def test_a_copy_goes_on_behind_a_replaced_token(runs):
    text = "0123456789QRSTUVWXYZ!$%&/()=?+*#"
    answers = (text, text.replace("9", "i"), text.replace("9", "i").replace("W", "j"), text.replace("9Q", "ii"))
    copy, one, two, in_a_row = (passes_of_a_copy(runs, f"{text}\n{text[:3]}", answer[3:]) for answer in answers)
    assert max(one, two) <= copy + 1
    assert in_a_row > max(one, two), "two in a row may be any change: the copy is found again behind a token of it"


@pytest.mark.parametrize("runs", RUNS)
def test_a_copy_is_resumed_a_little_further_than_it_was_left(runs):
    """Behind a single token of it: as cells of a table are copied one after the other."""
    text = "0123456789QRSTUVWXYZ!$%&/()=?+*#"
    skipped, back = text.replace("9QRS", ""), text[:10] + text[22:] + text[10:22]
    answers = (text, skipped, skipped.replace("!$%", ""), text.replace("9QRS", "ij"), back)
    copy, skips, skips_twice, goes_on, goes_back = (passes_of_a_copy(runs, f"{text}{'.' * 40}\n{text[:3]}", answer[3:]) for answer in answers)
    assert skips <= copy and skips_twice < copy
    assert goes_on <= copy + 2 and goes_back <= copy + 1


@pytest.mark.parametrize(("left", "fewer"), [(1.0, False), (8.0, True)])
def test_what_is_less_sure_than_an_occurrence_costs_no_more_than_was_gained(left, fewer, monkeypatch):
    """Or nothing would be left at the beginning of an answer for what is."""
    text = "0123456789QRSTUVWXYZ!$%&/()=?+*#"
    answer = text[:10] + text[22:] + text[10:22]
    monkeypatch.setattr(DraftBudget, "begin", lambda self, *_: setattr(self, "left", left))
    passes: list[int] = []
    for places in (0, drafting.PLACES):
        monkeypatch.setattr(drafting, "resumed", lambda left, token, places=places: resumed(left[:places], token))
        engine, core = stepped(1024, drafts="auto")
        costs = core.scheduler.drafts.costs
        costs.learn, costs.row = lambda *_: None, 0.001
        monkeypatch.setattr(drafting, "GUESSED", (0.5,) * 6)
        copied(core, f"{text}{'.' * 40}\n{text[:3]}", answer[3:])
        handle = engine.submit(None, [Text((f"{text}{'.' * 40}\n{text[:3]}",)), gen(60)])
        drain(core)
        assert handle.results[0].output().text == answer[3:]
        passes.append(handle.results[0].output().usage.passes)
    assert (passes[1] < passes[0]) == fewer, passes


@pytest.mark.parametrize("runs", RUNS)
def test_a_row_behind_a_draft_without_numbers_fails_its_answer_alone(runs):
    text = "0123456789QRSTUVWXYZ!$%&/()=?+*#"
    engine, core = stepped(1024, runs=runs, drafts=8)
    copied(core, f"{text}\n{text[:3]}", text[3:])
    core.runner.script[tuple(WORDS.encode((f"{text}\n{text[:20]}",)))] = [BROKEN]
    handle, other = (engine.submit(None, [Text((prompt,)), gen(60)]) for prompt in (f"{text}\n{text[:3]}", "ab"))
    drain(core)
    engine.check()
    assert engine.counters().accepted_tokens > 0 and other.results[0].output().text
    with pytest.raises(BackendError, match="no numbers"):
        handle.results[0].output()


@pytest.mark.parametrize("runs", RUNS)
def test_drafts_grow_with_what_was_right(runs):
    """Three of up to 63 tokens for most of a copy of 192, and none of many rows behind one that was wrong at once."""
    text = "".join(Random(7).sample([chr(n) for n in range(33, 127)] * 2, 188)).replace("}", "{")
    engine, core = stepped(2048, runs=runs, drafts="auto", chunk=1024)
    costs = core.scheduler.drafts.costs
    costs.learn, costs.row = lambda *_: None, 0.001
    engine.submit(None, [Text((f"{text}\n{text[:3]}",)), gen(1)])
    drain(core)
    copied(core, f"{text}\n{text[:3]}", text[3:])
    drafts: list[int] = []
    run = core.runner.run
    core.runner.run = lambda work: drafts.append(work.checked) or run(work)
    handle = engine.submit(None, [Text((f"{text}\n{text[:3]}",)), gen(300)])
    drain(core)
    assert handle.results[0].output().text == text[3:]
    assert max(drafts) > 48 and all(n <= max(16, 2 * sum(drafts[:i]) + 16) for i, n in enumerate(drafts))
    assert handle.results[0].output().usage.passes <= 12


def test_several_drafts_share_what_rows_there_are():
    good = np.cumprod([0.97] * 63)
    assert max(counts := Costs(False, 0.001).worth(4, [good] * 4, rows=100)) - min(counts) <= 1 and sum(counts) == 100


def at(line: int, ask: Gen) -> Gen:
    return Gen(ask.params, ask.constraint, ask.seed, ask.name, Loc("program.py", line))


TOLD = "QRSTUVWXYZ 0123456789"


def accepted_in(first: Hints, second: Hints, lines=(1, 1)) -> int:
    """Tokens of drafts in an answer that is like an earlier one, which its own prompt is not."""
    engine, core = stepped(1024, drafts=8)
    for hints, line, prompt in ((first, lines[0], "one:"), (second, lines[1], "two:")):
        copied(core, prompt, TOLD)
        handle = engine.submit(None, [Text((prompt,)), at(line, gen(60))], hints)
        drain(core)
        assert handle.results[0].output().text == TOLD
    return handle.results[0].output().usage.accepted_tokens


def test_earlier_answers_to_the_same_gen_are_drafts():
    assert accepted_in(Hints(), Hints()) > 10
    assert accepted_in(Hints(), Hints(), (1, 2)) == 0, "to another gen"


def passes_with(*constants: str, runs=Copies, drafts: int | str = 8, ask: Gen | None = None, hints: Hints | None = None) -> tuple[str, int, int]:
    """An answer that is in none of its texts before, its passes, and tokens of drafts in it. The program has these texts for later."""
    engine, core = stepped(1024, runs=runs, drafts=drafts)
    copied(core, "one:", TOLD)
    handle = engine.submit(None, [Text(("one:",)), at(1, ask or gen(60))], (hints or Hints())._replace(constants=constants))
    drain(core)
    engine.check()
    output = handle.results[0].output()
    return output.text, output.usage.passes, output.usage.accepted_tokens


@pytest.mark.parametrize("runs", RUNS)
def test_texts_of_the_program_are_drafts(runs):
    text, alone, none = passes_with(runs=runs)
    assert (text, none) == (TOLD, 0)
    assert passes_with(f"Then: {TOLD}.", "another one", runs=runs)[0] == TOLD
    text, fewer, accepted = passes_with("another one", f"Then: {TOLD}.", runs=runs)
    assert text == TOLD and accepted > 12 and fewer <= alone - accepted + 1
    assert passes_with(f"Then: {TOLD}.", runs=runs, drafts="off")[1:] == (alone, 0)
    assert passes_with("0123", "456789", "QRS", runs=runs)[2] <= 7, "what follows one text is not another one"


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("name", ["plain", "sampled", "scored", "penalised", "forced often"])
def test_texts_of_the_program_change_no_answer(runs, name):
    """They are parts of the answer, and go on otherwise."""
    found, counted = [], []
    for drafts in ("off", 5):
        engine, core = stepped(4096, compiler=automata(WORDS), runs=runs, drafts=drafts)
        said = []
        texts: tuple[str, ...] = ()
        for line in (1, 2):
            handle = engine.submit(None, [Text(("ab cat the ",)), at(line, ASKS[name])], Hints(constants=texts))
            drain(core)
            said.append(seen_of(handle.results[0]))
            text = handle.results[0].output().text
            texts = tuple(text[i : i + 9] + " cat" for i in (0, 6, 12))
        engine.check()
        found.append(said)
        counted.append(core.counters().drafted_tokens)
    assert found[0] == found[1] and counted[0] == 0 < counted[1]


def test_texts_of_the_program_are_bounded_and_those_of_the_last_plan(monkeypatch):
    monkeypatch.setattr(drafting, "_SITE", 30)
    engine, core = stepped(1024, drafts=8)
    for constants in (("x" * 100,), ("y" * 100, "z" * 50)):
        handle = engine.submit(None, [Text(("one:",)), at(1, gen(8))], Hints(constants=constants))
        drain(core)
        assert handle.results[0].done
        (site,) = core.scheduler.drafts._sites.values()
        assert len(site.program) == 30 and site.constants == constants


def test_nobody_is_told_by_time_what_others_were_answered():
    """Drafts come from answers in the same namespace and of the same account."""
    assert accepted_in(Hints(namespace="a"), Hints(namespace="b")) == 0
    assert accepted_in(Hints(account="a"), Hints(account="b")) == 0
    assert accepted_in(Hints(account="a", namespace="n"), Hints(account="a", namespace="n")) > 10


def test_what_is_kept_of_earlier_answers_is_bounded(monkeypatch):
    monkeypatch.setattr(drafting, "_SITE", 30)
    monkeypatch.setattr(drafting, "_SITES", 3)
    engine, core = stepped(4096, drafts=4)
    for i in range(10):
        for line in range(5):
            handle = engine.submit(None, [Text((f"{i} {line}",)), at(line, gen(8))])
            drain(core)
            assert handle.results[0].done
    sites = core.scheduler.drafts._sites
    assert len(sites) == 3 and all(len(site.text) <= 30 for site in sites.values())


def test_many_answers_at_once_have_no_drafts():
    engine, core = stepped(8192, runs=Copies, drafts=8)
    handles = [engine.submit(None, [Text((f"ab ab {i}",)), gen(12, ignore_eos=True)]) for i in range(drafting.MOST_DRAFTING + 1)]
    while core.turn():
        assert not engine.counters().drafted_tokens or len(core.scheduler.running) <= drafting.MOST_DRAFTING
    assert all(handle.results[0].done for handle in handles)


def test_prompts_come_before_drafts():
    engine, core = stepped(8192, runs=Copies, drafts=8, chunk=8)
    handle = engine.submit(None, [Text(("ab ab ab",)), gen(200, ignore_eos=True)])
    core.turn()
    other = engine.submit(None, [Text(("q" * 900,)), gen(1)])
    for _ in range(20):
        core.turn()
        assert engine.counters().drafted_tokens == 0
    drain(core)
    assert engine.counters().drafted_tokens > 0 and handle.results[0].done and other.results[0].done


def test_a_draft_evicts_nothing():
    engine, core = stepped(120, runs=Copies, drafts=16)
    kept = engine.submit(None, [Text(("q" * 50,)), gen(1)])
    drain(core)
    before = engine.stats()["cached_tokens"]
    handle = engine.submit(None, [Text(("ab ab ab",)), gen(40, ignore_eos=True)])
    while core.turn():
        engine.check()
        taken = engine.stats()
        assert taken["cached_tokens"] >= before or taken["free_slots"] == 0
    assert handle.results[0].output().usage.accepted_tokens > 0 and kept.results[0].done


# -- where a text occurred before, and what that is worth --------------------------------------------------------------


def found(text: list[int], end: list[int] | None = None, n: int = 4) -> tuple[int, list[int]] | None:
    ids = np.array(text, np.int32)
    match = occurrence(ids, ids if end is None else np.array(end, np.int32), "own")
    return None if match is None else (match.length, match.next(n).tolist())


def test_the_longest_occurrence_is_found_and_the_last_of_several():
    assert found([1, 2, 3, 9, 2, 3, 7, 1, 2, 3]) == (3, [9, 2, 3, 7])
    assert found([5, 2, 3, 8, 6, 2, 3, 7, 4, 2, 3]) == (2, [7, 4, 2, 3])
    assert found([1, 2, 3, 4]) is None and found([3, 1, 3]) is None, "of one token"
    assert found([1, 2, 1, 2, 1, 2]) == (4, [1, 2, 1, 2])
    assert found([7, 7, 7]) == (2, [7, 7, 7, 7]), "it goes on as it does"


def test_between_two_answers_nothing_follows():
    assert found([1, 2, 3, -1, 1, 2, 9], [1, 2, 3]) is None or found([1, 2, 3, -1, 1, 2, 9], [1, 2, 3])[1] == []
    assert found([1, 2, 3, 4, -1, 8], [1, 2, 3]) == (3, [4])


def test_odds_are_learned():
    odds = Odds()
    before = odds.chances(8, 3)
    for _ in range(30):
        odds.learn(8, False)
    assert odds.chances(8, 3)[0] < 0.2 < before[0]
    assert (np.diff(before) < 0).all()
    assert Odds(odds).chances(8, 1)[0] < 0.2, "one that begins expects what all know"


@pytest.mark.parametrize(("length", "right"), [(2, 0), (2, 3), (14, 2), (9, 40), (17, 1), (30, 60)])
@pytest.mark.parametrize("missed", [False, True])
def test_a_run_teaches_what_its_tokens_teach(length, right, missed):
    one, run = Odds(), Odds()
    for at, hit in enumerate([True] * right + [False] * missed, length):
        one.learn(at, hit)
    run.learn_run(length, right, missed)
    assert run.rates() == pytest.approx(one.rates())


def test_a_token_that_was_expected_in_vain_ends_a_draft(monkeypatch):
    odds = Odds()
    for _ in range(6):
        odds.learn(20, True)
        odds.learn_token(7, False)
    alone, after, before = (odds.chances(20, 3, expected) for expected in ([], [5, 7, 5], [7, 5, 5]))
    assert alone[2] > 0.8 and after[0] == alone[0] and after[2] < after[1] < 0.2 and before[0] < 0.2
    assert Costs(False, 0.3).worth(1, [alone])[0] == 3 and Costs(False, 0.3).worth(1, [after]) == [1]
    for _ in range(60):
        odds.learn_token(7, True)
    assert odds.chances(20, 1, [7])[0] > 0.8, "what changes is learned"
    monkeypatch.setattr(draft_sources, "_TOKENS", 3)
    for token in (1, 2, 7, 3, 4):
        odds.learn_token(token, True)
    assert list(odds._tokens) == [7, 3, 4]
    odds.learn_tokens([3, 9])
    assert list(odds._tokens) == [4, 3, 9]


def test_drafts_are_run_where_they_pay():
    good, bad = np.cumprod([0.95] * 16), np.cumprod([0.1] * 16)
    cheap, dear = Costs(ahead=False, row=0.005), Costs(ahead=False, row=0.6)
    assert cheap.worth(1, [good])[0] >= 12
    assert 1 <= dear.worth(1, [good])[0] <= 12
    assert dear.worth(1, [bad]) == [0]
    slow_host = Costs(ahead=True, row=0.005, host=0.9)
    assert slow_host.worth(1, [np.array([0.5])]) == [0], "to wait for it takes longer than it saves"
    assert slow_host.worth(1, [good])[0] > 0
    assert cheap.worth(4, [good, bad]) [0] > 0


class Alike(FakeRunner):
    """After the same two tokens it says the same with some probability, among so many letters. Counts passes, rows of drafts and waits."""

    share, letters = 0.5, 12
    waited = drafted = 0

    def next(self, context, noise, allowed):
        whole = context.astype(np.int32).tobytes()
        alike = zlib.crc32(whole + b"?") < self.share * 2**32
        return 65 + zlib.crc32(context[-2:].astype(np.int32).tobytes() if alike else whole) % self.letters

    def run(self, work):
        self.waited += self.flying == 0
        self.drafted += work.checked
        return super().run(work)


class AlikeAhead(Alike, FakeAheadRunner): ...


def took(runs, drafts, row: float, host: float, answers: int, tokens: int, rounds: int) -> tuple[float, list[str]]:
    """In passes of a device: what all passes, rows of drafts and waits of the device for the host cost; and the texts."""
    engine, core = stepped(8192, runs=runs, drafts=drafts, chunk=512)
    costs = core.scheduler.drafts.costs
    costs.learn, costs.row, costs.host, costs.gap = lambda *_: None, row, host, host
    texts: list[str] = []
    for k in range(rounds):
        asks = [at(k * answers + i, gen(tokens, ignore_eos=True)) for i in range(answers)]
        handles = [engine.submit(None, [Text((f"{k} {i} start:",)), ask]) for i, ask in enumerate(asks)]
        drain(core)
        texts += [handle.results[0].output().text for handle in handles]
    return len(core.runner.passes) + row * core.runner.drafted + host * core.runner.waited, texts


@some(("ahead", "row", "host", "answers", "tokens", "rounds", "share", "letters"), [
    (False, 0.15, 0.02, 4, 24, 6, 0.8, 4), (False, 0.15, 0.02, 4, 200, 1, 0.8, 12), (True, 0.005, 0.4, 1, 300, 1, 0.2, 4),
    (True, 0.005, 0.4, 8, 150, 1, 0.8, 30), (True, 0.03, 0.1, 8, 150, 1, 0.8, 30), (True, 0.005, 0.4, 4, 24, 6, 0.8, 30),
], 3)  # fmt: skip
def test_drafts_that_do_not_pay_cost_little(monkeypatch, ahead, row, host, answers, tokens, rounds, share, letters):
    """Few of them are right, or they are of no use to the answer that ends last: a hundredth is lost at most, and a pass."""
    monkeypatch.setattr(Alike, "share", share)
    monkeypatch.setattr(Alike, "letters", letters)
    runs = AlikeAhead if ahead else Alike
    off, on = (took(runs, drafts, row, host, answers, tokens, rounds) for drafts in ("off", "auto"))
    assert off[1] == on[1] and on[0] <= 1.01 * off[0] + 1.2


@some(("runs", "row", "host", "together", "most"), [
    (AlikeAhead, 0.005, 0.1, 1, 0.4), (AlikeAhead, 0.005, 0.1, 4, 0.5), (Alike, 0.15, 0.02, 4, 0.98), (Alike, 0.15, 0.02, 1, 0.6),
], 2)  # fmt: skip
def test_drafts_that_pay_are_not_held_back(monkeypatch, runs, row, host, together, most):
    monkeypatch.setattr(Alike, "share", 0.95)
    off, on = (took(runs, drafts, row, host, together, 200, 1) for drafts in ("off", "auto"))
    assert off[1] == on[1] and on[0] < most * off[0]


def words_of(rng: Random) -> list[str]:
    return ["".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=8)) for _ in range(12)]


def passes_and_waits(runs, drafts, host: float, rows: list[tuple[str, str]]) -> tuple[int, int]:
    """Of answers to one gen, one after the other, where the host takes so much of a pass."""
    engine, core = stepped(4096, runs=runs, drafts=drafts, chunk=2048)
    costs = core.scheduler.drafts.costs
    costs.learn, costs.row, costs.host, costs.gap = lambda *_: None, 0.005, host, host
    for prompt, answer in rows:
        copied(core, prompt, answer)
        handle = engine.submit(None, [Text((prompt,)), at(1, gen(2 * len(answer)))])
        drain(core)
        assert handle.results[0].output().text == answer
    return len(core.runner.passes), core.runner.waited


def test_a_pass_is_waited_for_where_copies_often_begin():
    """So a device that runs ahead takes hardly more passes than one that never does."""
    lists = [words_of(Random(seed)) for seed in range(6)]
    rows = [(" ".join(words) + "\n", "".join(f"<{word}>" for word in words)) for words in lists]
    off, _ = passes_and_waits(AlikeAhead, "off", 0.1, rows)
    least, _ = passes_and_waits(Alike, "auto", 0.1, rows)
    passes, _ = passes_and_waits(AlikeAhead, "auto", 0.1, rows)
    assert least < 0.6 * off and passes <= 1.05 * least


def test_no_pass_is_waited_for_where_none_begin():
    rows = [(" ".join(words_of(Random(seed))) + "\n", "".join(words_of(Random(-1 - seed)))) for seed in range(6)]
    passes, waits = passes_and_waits(AlikeAhead, "auto", 0.1, rows)
    assert waits - len(rows) < 0.1 * passes


def test_what_drafts_cost_is_learned_from_drafts_of_one_length():
    """Of which the loop failed after a thousand or so: where a line begins cannot be told from them."""
    costs = Costs(ahead=False, row=0.5)
    costs.learn(1, 0, 1.0, 0.1, 0.1)
    for _ in range(5000):
        costs.learn(1, 4, 1.2, 0.1, 0.1)
        assert 0 <= costs.row < 1 and costs.some >= 0
    assert costs.some + 4 * costs.row == pytest.approx(0.2, abs=0.01)


def test_costs_are_learned():
    costs = Costs(ahead=False, row=0.5)
    for _ in range(200):
        costs.learn(1, 0, 1.0, 0.1, 0.1)
        costs.learn(1, 8, 1.04, 0.1, 0.1)
    assert costs.row < 0.02
    for n in (4, 16, 63) * 30:
        costs.learn(1, n, 1.1 + 0.001 * n, 0.1, 0.1)
    assert costs.some == pytest.approx(0.1, rel=0.2) and costs.row == pytest.approx(0.001, rel=0.2)


def test_costs_are_those_of_the_device_and_not_of_what_disturbs_it():
    costs = Costs(ahead=True, row=0.002)
    costs.learn(1, 0, 9.0, 0.9, 0.0)  # a first pass is slow
    for _ in range(40):
        costs.learn(1, 0, 1.0, 0.9, 0.0)
        costs.learn(1, 8, 1.1, 0.9, 0.05)
    before = costs.of([8], [False])
    assert before == pytest.approx(0.15, abs=0.05), "0.1 for rows, and 0.05 for the wait: the host works beside the device for the rest of its time"
    costs.learn(1, 0, 7.0, 0.9, 0.0)
    costs.learn(1, 8, 7.0, 0.9, 6.0)
    assert costs.of([8], [False]) < before + 0.2


@pytest.mark.parametrize("setting", [0, -1, 65, True, "on", 1.5, None])
def test_a_setting_that_cannot_be_is_refused(setting):
    with pytest.raises(ParameterError, match="drafts"):
        backend(64, drafts=setting)
