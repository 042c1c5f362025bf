"""The local backend on a fake model: prompts as token paths, forks, failures, lifetimes, threads."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lmc.backend.base import HEALTHY, Backend, Hints, ProgramRun
from lmc.backend.engine import device_errors
from lmc.backend.engine import engine as engine_module
from lmc.backend.local import await_closed
from lmc.backend.local_model import Engine
from lmc.backend.runtime import Runtime
from lmc.backend.usage import MeteredAccount, Usage
from lmc.errors import (
    BackendError,
    CancelledError,
    ConstraintError,
    Loc,
    ParameterError,
    ProgramError,
    PromptTooLongError,
)
from lmc.segments import Constraint, Gen, Given, Mark, SamplingParams, Select, Special, Text
from tests.backend.engine_fakes import (
    BOS,
    EOS,
    IM_END,
    IM_START,
    FakeCompiler,
    FakeDetokenizer,
    FakeMatcher,
    FakeWords,
    automata,
    backend,
    bits_of,
    drain,
    gen,
    logprob,
    reference_ids,
    stepped,
    top,
)
from tests.searching import apart
from tests.waiting import until

WORDS = FakeWords()


@pytest.fixture
def engine():
    made, _ = backend()
    yield made
    made.check()
    made.close()


def ask(engine, text, ask_, parent=None):
    return engine.submit(parent, [Text((text,)), ask_])


def answer(engine, text, ask_, parent=None):
    return ask(engine, text, ask_, parent).results[0].output()


# -- prompts as token paths ------------------------------------------------------------------------------------------


def test_it_is_a_backend(engine):
    assert isinstance(engine, Backend)


def test_a_greedy_answer_is_the_models(engine):
    assert answer(engine, "hello", gen(9)).text == WORDS.decode(reference_ids(WORDS.encode(("hello",)), 9))


def test_text_is_one_run_however_it_is_cut(engine):
    whole = engine.submit(None, [Text(("xabcdz",)), gen(1)])
    cut = engine.submit(None, [Text(("x",)), Text(("a", Mark("user", "end"), "b"))])
    cut = engine.prefill(cut, [Text(("c",))])
    cut = engine.submit(cut, [Text(("dz",)), gen(1)])
    assert engine.prompt_ids(whole) == engine.prompt_ids(cut)
    assert engine.prompt_ids(whole)[:3] == WORDS.encode(("xabcdz",))


def test_generated_ids_are_kept_as_generated():
    engine, core = stepped()
    core._runner.say(WORDS.encode(("q",)), list(b"abcd"))  # the encoder would have said one token
    handle = ask(engine, "q", gen(20))
    drain(core)
    assert engine.prompt_ids(handle) == [ord("q"), *b"abcd"]
    child = ask(engine, "ab", gen(1), handle)
    drain(core)
    assert engine.prompt_ids(child)[:6] == [ord("q"), *b"abcd", *WORDS.encode(("ab",))]


def test_a_known_answer_stands_where_it_was(engine):
    """An answer of an earlier run has the ids it was sampled with, and a chosen one those that a select gives it; nothing is asked."""
    live = engine.submit(None, [Text(("hello",)), gen(5)])
    output = live.results[0].output()
    known = engine.submit(None, [Text(("hello",)), Given(output.text, output.ids), Text(("more",))])
    assert engine.prompt_ids(known) == engine.prompt_ids(engine.submit(live, [Text(("more",))])) and not known.results
    chosen = engine.submit(None, [Text(("qa",)), Select(("bc", "d"))])
    text = chosen.results[0].output().text
    assert engine.prompt_ids(engine.submit(None, [Text(("qa",)), Given(text)])) == engine.prompt_ids(chosen)


@pytest.mark.parametrize("passes", (0, 1, 4))
@pytest.mark.parametrize("how", ("cancelled", "dropped", "failed", "completed"))
def test_an_account_is_charged_once_with_what_was_computed(passes, how):
    engine, core = stepped(chunk=4)
    core._runner.say(WORDS.encode(("hello",)), list(b"abcdefgh"))
    charged: list[Usage] = []
    handle = engine.submit(None, [Text(("hello",)), gen(8)], Hints(account=MeteredAccount("alice", charged.append)))
    for _ in range(passes):
        core.turn()
    assert not charged
    if how == "completed":
        drain(core)
        assert charged == [handle.results[0].output().usage]
    elif how == "cancelled":
        handle.cancel()
        handle.cancel()
    elif how == "failed":
        core._fail_all(RuntimeError("the device is gone"))
    tokens = [(usage.prompt_tokens, usage.completion_tokens) for usage in charged]
    del handle
    gc.collect()
    drain(core)
    assert len(charged) == 1
    tokens = tokens or [(charged[0].prompt_tokens, charged[0].completion_tokens)]
    if how != "completed":
        assert tokens == {0: [(0, 0)], 1: [(4, 0)], 4: [(5, 3)]}[passes]


def test_several_samples_have_one_prompt():
    engine, core = stepped()
    charged: list[Usage] = []
    handle = engine.submit(None, [Text(("hello",)), gen(8, n=3)], Hints(account=MeteredAccount("alice", charged.append)))
    core.turn()
    core.turn()
    handle.cancel()
    assert [(usage.prompt_tokens, usage.completion_tokens > 0) for usage in charged] == [(5, True)]


def test_a_run_charges_its_account():
    engine, core = stepped()
    charged: list[Usage] = []
    handle = engine.submit(None, [Text(("hello",)), gen(8)], Hints(run=ProgramRun(account=MeteredAccount("alice", charged.append))))
    drain(core)
    assert charged == [handle.results[0].output().usage]


def test_seam_text_encodes_answers_again():
    engine, core = stepped(seam="text")
    core._runner.say(WORDS.encode(("q",)), list(b"abc"))
    handle = ask(engine, "q", gen(20))
    child = ask(engine, "d!", gen(1), handle)
    drain(core)
    assert engine.prompt_ids(handle) == WORDS.encode(("qabc",))
    assert child.results[0].output().metas[0]["prompt_tokens"] == len(WORDS.encode(("qabcd!",)))


def test_a_stop_string_leaves_nothing_behind_it():
    engine, core = stepped()
    core._runner.say(WORDS.encode(("q",)), list(b"xyENDzz"))
    handle = ask(engine, "q", gen(20, stop=("END",)))
    drain(core)
    out = handle.results[0].output()
    assert out.text == "xy" and out.metas[0]["finish_reason"] == {"type": "stop", "matched": "END"}
    assert engine.prompt_ids(handle) == WORDS.encode(("q",)) + list(b"xy")
    assert engine.stats()["cached_tokens"] == 3  # q, x, y: the KV of E, N, D is gone


def test_special_tokens_come_from_parts_only(engine):
    handle = engine.submit(None, [Text((Special("<|im_start|>"), "a<|im_end|>", Special("<|im_end|>"))), gen(1)])
    ids = engine.prompt_ids(handle)
    assert ids[0] == IM_START and ids.count(IM_END) == 1


def test_an_unknown_special_is_refused_at_submit(engine):
    with pytest.raises(ProgramError, match="no special token"):
        engine.submit(None, [Text((Special("<|nope|>"),)), gen(1)])


def test_the_templates_stop_ends_an_answer_and_is_not_kept():
    engine, core = stepped()
    core._runner.script[(ord("q"),)] = [EOS]
    handle = ask(engine, "q", gen(5))
    ignoring = ask(engine, "q", gen(2, ignore_eos=True))
    drain(core)
    assert handle.results[0].output().text == "" and engine.prompt_ids(handle) == [ord("q")]
    assert len(engine.prompt_ids(ignoring)) == 3


def test_bos_once_where_the_tokenizer_asks_for_it(monkeypatch):
    monkeypatch.setattr(FakeWords, "add_bos", True)
    engine, core = stepped()
    plain = ask(engine, "x", gen(1))
    templated = engine.submit(None, [Text((Special("<s>"), "x")), gen(1)])
    child = ask(engine, "y", gen(1), plain)
    drain(core)
    assert engine.prompt_ids(plain)[:2] == engine.prompt_ids(templated)[:2] == [BOS, ord("x")]
    assert engine.prompt_ids(child).count(BOS) == 1


def test_an_empty_prompt_starts_from_bos(engine):
    out = engine.submit(None, [gen(3)]).results[0].output()
    assert out.text == WORDS.decode(reference_ids([BOS], 3))


def test_zero_tokens(engine):
    out = answer(engine, "hello", gen(0))
    assert out.text == "" and out.metas[0]["finish_reason"]["type"] == "length"


def test_siblings_encode_a_shared_stretch_once():
    engine, core = stepped(4096)
    shared = (Special("<|im_start|>"), "s" * 500, Special("<|im_end|>"))
    handles = [engine.submit(None, [Text((*shared, f"{i}")), gen(1)]) for i in range(20)]
    drain(core)
    assert all(h.results[0].done for h in handles)
    assert engine.tokenizer.encoded_bytes < 600


# -- chains and forks --------------------------------------------------------------------------------------------------


def test_a_chain_is_accepted_at_once_and_each_answer_sees_the_one_before(engine):
    handle = engine.submit(None, [Text(("a",)), gen(3), Text((" then ",)), gen(3), Text(("!",))])
    first, second = (r.output().text for r in handle.results)
    ids = WORDS.encode(("a",))
    ids += reference_ids(ids, 3)
    ids += WORDS.encode((" then ",))
    assert second == WORDS.decode(reference_ids(ids, 3))
    assert first and engine.prompt_ids(handle)[-1] == ord("!")


def test_children_of_an_unfinished_parent_start_when_it_ends():
    engine, core = stepped()
    parent = ask(engine, "a", gen(3))
    child = ask(engine, "b", gen(3), parent)
    text_only = engine.submit(parent, [Text(("c",))])
    grandchild = ask(engine, "d", gen(2), text_only)
    drain(core)
    ids = engine.prompt_ids(parent)
    assert child.results[0].output().text == WORDS.decode(reference_ids([*ids, ord("b")], 3))
    assert grandchild.results[0].output().text == WORDS.decode(reference_ids(ids + WORDS.encode(("cd",)), 2))


def test_descendants_fail_with_the_parents_error():
    engine, core = stepped()
    parent = ask(engine, "a", gen(3))
    child = ask(engine, "b", gen(3), engine.submit(parent, [Text(("c",))]))
    parent.cancel()
    late = ask(engine, "d", gen(3), child)
    drain(core)
    errors = [h.results[0].error for h in (parent, child, late)]
    assert isinstance(errors[0], CancelledError) and errors[0] is errors[1] is errors[2]


def test_a_long_chain_fails_as_a_whole():
    engine, core = stepped()
    handle = engine.submit(None, [Text(("a",)), *[gen(1)] * 3000])
    handle.steps[0].backend.abort(handle.steps[0], CancelledError("gone"))
    drain(core)
    assert all(isinstance(r.error, CancelledError) for r in handle.results)


def test_n_samples_share_the_prompt_and_differ():
    engine, core = stepped()
    handle = ask(engine, "z" * 40, gen(8, n=5, temperature=1.0, seed=3))
    drain(core)
    out = handle.results[0].output()
    assert len(out.texts) == 5 and len(set(out.texts)) > 1
    assert engine.counters().prefilled_tokens == 40
    assert (
        engine.prompt_ids(handle)[40:] == WORDS.encode((out.texts[0],))
        or WORDS.decode(engine.prompt_ids(handle)[40:]) == out.texts[0]
    )


def test_a_seed_gives_the_same_answer_in_any_company():
    texts = []
    for company in (0, 7):
        engine, core = stepped(2048)
        others = [ask(engine, f"other {i}", gen(9, temperature=1.0, seed=i)) for i in range(company)]
        mine = ask(engine, "mine", gen(9, temperature=1.0, seed=42))
        drain(core)
        texts.append(mine.results[0].output().text)
        assert all(o.results[0].done for o in others)
    assert texts[0] == texts[1]


def test_a_prefilled_prefix_is_not_computed_again():
    engine, core = stepped(2048)
    pin = engine.prefill(None, [Text(("a long prefix of words " * 10,))])
    drain(core)
    before = engine.counters()
    handles = [ask(engine, f"and {i}", gen(1), pin) for i in range(5)]
    drain(core)
    used = engine.counters() - before
    assert used.prefilled_tokens < 5 * 12 and engine.counters().prefill_optimality == 1
    assert engine.spent().attempts == engine.counters().calls > 0
    engine.release(pin)
    drain(core)
    assert engine.stats()["pinned"] == 0 and len(handles) == 5


# -- select ------------------------------------------------------------------------------------------------------------


def scores(prompt: list[int], choice: str) -> list[float]:
    ids = WORDS.encode((choice,))
    return [logprob([*prompt, *ids[:i]], t) for i, t in enumerate(ids)]


def test_select_scores_exactly_the_choices_tokens(engine):
    choices = ("yes", "never", "maybe so")
    handle = ask(engine, "is it? ", Select(choices))
    out = handle.results[0].output()
    rows = [scores(WORDS.encode(("is it? ",)), c) for c in choices]
    means = [sum(r) / len(r) for r in rows]
    assert out.metas[0]["normalized_prompt_logprobs"] == pytest.approx(means)
    assert out.text == choices[means.index(max(means))]
    listed = out.metas[0]["input_token_logprobs"]
    assert [[t[0] for t in row] for row in listed] == [pytest.approx(r) for r in rows]
    assert "".join(t[2] for t in listed[2]) == "maybe so"


def test_a_choice_that_merges_with_the_prompt_is_scored_from_where_they_part(engine):
    out = ask(engine, "xa", Select(("bz", "c"))).results[0].output()
    prompt = WORDS.encode(("x",))
    whole = WORDS.encode(("xabz",))
    first = [logprob(whole[:i], whole[i]) for i in range(len(prompt), len(whole))]
    assert [t[0] for t in out.metas[0]["input_token_logprobs"][0]] == pytest.approx(first)
    assert [t[0] for t in out.metas[0]["input_token_logprobs"][1]] == pytest.approx([logprob([*b"xa"], ord("c"))])


def test_the_prompt_goes_on_with_the_ids_that_were_scored(engine):
    handle = ask(engine, "xa", Select(("bz",)))
    assert engine.prompt_ids(handle) == WORDS.encode(("xabz",))
    child = ask(engine, "!", gen(3), handle)
    assert child.results[0].output().text == WORDS.decode(reference_ids([*WORDS.encode(("xabz",)), ord("!")], 3))


def test_the_winners_kv_is_kept_and_the_losers_freed(engine):
    handle = ask(engine, "w? ", Select(("aaaaaa", "cccccc")))
    winner = handle.results[0].output().text
    assert engine.stats()["cached_tokens"] == len(WORDS.encode(("w? " + winner,))) - 1


def test_select_needs_choices(engine):
    with pytest.raises(ProgramError, match="at least one choice") as caught:
        engine.submit(None, [Select((), loc=Loc("p.py", 3))])
    assert caught.value.loc == Loc("p.py", 3)


# -- constraints, log-probabilities, streams --------------------------------------------------------------------------


def test_a_constraint_ends_the_answer_when_nothing_may_follow(engine):
    ask_ = Gen(SamplingParams(max_new_tokens=30, temperature=1.0), Constraint("regex", "[0-9]{1,3}"), seed=1)
    text = answer(engine, "n=", ask_).text
    assert text.isdigit() and 1 <= len(text) <= 3


def test_an_invalid_regex_is_refused_at_submit_with_its_place(engine):
    with pytest.raises(ConstraintError) as caught:
        engine.submit(None, [Gen(constraint=Constraint("regex", "(a"), loc=Loc("p.py", 9))])
    assert caught.value.loc == Loc("p.py", 9)


class StuckMatcher(FakeMatcher):
    """A digit, and then nothing at all."""

    @property
    def bits(self):
        return bits_of([] if self.count else range(48, 58))


class StuckCompiler(FakeCompiler):
    def matcher(self, constraint, *, longer=False) -> FakeMatcher:
        return StuckMatcher() if constraint.source == "stuck" else FakeMatcher()

    def check(self, constraint, loc) -> None: ...


@pytest.mark.parametrize("beside",
    [Gen(SamplingParams(max_new_tokens=30, temperature=0)),
        Gen(SamplingParams(max_new_tokens=30, temperature=0), Constraint("regex", "[0-9]{1,3}"))])  # fmt: skip
def test_a_constraint_that_lets_nothing_follow_fails_alone(beside):
    engine, _ = backend(compiler=StuckCompiler())
    with engine:
        alone = answer(engine, "beside", beside).text
        other = ask(engine, "beside", beside)
        stuck = ask(engine, "n=", Gen(SamplingParams(max_new_tokens=9), Constraint("regex", "stuck"), loc=Loc("p.py", 9)))  # fmt: skip
        with pytest.raises(ConstraintError, match=r"the constraint regex 'stuck' lets nothing follow '\d'") as caught:
            stuck.results[0].output()
        assert caught.value.loc == Loc("p.py", 9)
        assert other.results[0].output().text == alone
        assert answer(engine, "beside", beside).text == alone  # the engine goes on
        assert engine.stats()["running"] == 0


def test_others_go_on_while_a_hostile_constraint_is_compiled(monkeypatch):
    """However long it takes: all of it happens in the thread that submits it, and no other waits for that."""
    from lmc.backend.engine import automaton

    began, go_on = threading.Event(), threading.Event()
    real = automaton.machine_of

    def slow(kind: str, source: str):
        if source == "a{3}":
            began.set()
            assert go_on.wait(60)
        return real(kind, source)

    monkeypatch.setattr(automaton, "machine_of", slow)
    engine, _ = backend(compiler=automata(WORDS))
    with engine, ThreadPoolExecutor(1) as pool:
        running = ask(engine, "free", gen(300, ignore_eos=True))
        hostile = pool.submit(answer, engine, "h=", Gen(SamplingParams(max_new_tokens=9), Constraint("regex", "a{3}")))
        assert began.wait(60)
        before = engine.counters().generated_tokens
        digits = Gen(SamplingParams(max_new_tokens=9, temperature=1.0), Constraint("regex", "[0-9]{2}x{4}"))
        assert all(re.fullmatch("[0-9]{2}x{4}", answer(engine, f"{i}=", digits).text) for i in range(8))
        assert answer(engine, "plain", gen(20, ignore_eos=True)).usage.completion_tokens == 20
        running.results[0].output()
        assert engine.counters().generated_tokens - before >= 8 * 6 + 20 and not hostile.done()
        go_on.set()
        assert hostile.result(60).text == "aaa"
        engine.check()


def test_logprobs_of_answer_and_prompt(engine):
    options = {"return_logprob": True, "logprob_start_len": 0, "return_text_in_logprobs": True}
    answer(engine, "hello", gen(1))  # a cached prompt has no logits: asking for them computes it again
    meta = answer(engine, "hello", gen(2, **options)).metas[0]
    ids = WORDS.encode(("hello",))
    assert [t[1] for t in meta["input_token_logprobs"]] == ids
    assert meta["input_token_logprobs"][0][0] is None
    assert [t[0] for t in meta["input_token_logprobs"][1:]] == pytest.approx(
        [logprob(ids[:i], ids[i]) for i in range(1, 5)]
    )
    assert [t[1] for t in meta["output_token_logprobs"]] == reference_ids(ids, 2)


@pytest.mark.parametrize("start", [None, -1])
def test_minus_one_asks_for_nothing_of_the_prompt(engine, start):
    options = {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": 2}
    answer(engine, "hello", gen(1))
    out = answer(engine, "hello", gen(2, **options))
    assert out.metas[0]["input_token_logprobs"] == out.metas[0]["input_top_logprobs"] == []
    assert len(out.metas[0]["output_token_logprobs"]) == 2
    assert out.usage.cached_tokens == 4  # nothing of the prompt is computed again for it


def test_the_likeliest_tokens_of_the_prompt(engine):
    options = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    first, *others = answer(engine, "hello", gen(1, **options)).metas[0]["input_top_logprobs"]
    ids = WORDS.encode(("hello",))
    assert first is None
    assert others == [[[lp, i, WORDS.decode([i])] for lp, i in top(ids[:n], 2)] for n in range(1, len(ids))]


def test_streams_end_with_the_answer(engine):
    result = ask(engine, "stream", gen(20)).results[0]
    deltas = list(result.stream())
    assert "".join(deltas) == result.output().text


@pytest.mark.parametrize("options", [{}, {"stop": ("never",)}, {"return_logprob": True}], ids=["free", "stop", "scores"])
def test_an_answer_is_fed_to_those_who_watch_it_from_then_on(options):
    engine, core = stepped()
    alone, watched, read, late = (ask(engine, name, gen(20, **options)).results[0] for name in "abcd")
    seen: list[int] = []
    watched.on_change(lambda result: seen.append(len(result.deltas)))
    ended: list[bool] = []
    late.on_done(lambda result: ended.append(result.done))
    for _ in range(8):
        core.turn()
    before = "".join(read.deltas)
    assert before and "".join(watched.deltas)
    late.watch()
    drain(core)
    for result in (watched, read, late):
        assert "".join(result.deltas) == result.output().text
    assert read.output().text.startswith(before) and len(read.deltas) > 5
    assert 1 < len(late.deltas) < len(watched.deltas) == len(seen) - 1, "the text so far at once, then token by token"
    assert alone.deltas == () and list(alone.stream()) == [alone.output().text]
    assert ended == [True]
    assert all(result.began < result.first < result.ended for result in (alone, watched, read, late))


def test_text_that_nobody_reads_is_decoded_at_the_end(monkeypatch):
    engine, core = stepped()
    pushed: list[int] = []
    push_all = FakeDetokenizer.push_all
    monkeypatch.setattr(FakeDetokenizer, "push_all", lambda self, tokens: pushed.append(len(tokens)) or push_all(self, tokens))
    result = ask(engine, "x", gen(20)).results[0]
    drain(core)
    assert pushed == [20] and result.output().usage.completion_tokens == 20


# -- limits and faults -------------------------------------------------------------------------------------------------


def test_a_prompt_over_the_pool_is_refused_with_numbers_and_a_remedy():
    engine, _ = stepped(64)
    with pytest.raises(PromptTooLongError, match=r"100 tokens.*64.*max_tokens"):
        engine.submit(None, [Text(("x" * 100,)), gen(1)])


def test_a_choice_over_the_pool_is_refused_as_one():
    engine, _ = stepped(64)
    with pytest.raises(PromptTooLongError, match=r"the prompt and its longest choice have 110 tokens; the KV pool holds 64"):
        engine.submit(None, [Text(("x" * 10,)), Select(("y" * 100, "z"))])


def test_text_that_is_no_text_is_refused_with_the_reason(engine):
    for parts in (("a", "b\ud83d"), ("\udcff",)):
        with pytest.raises(ParameterError, match=r"the prompt has '\\ud...', half of a surrogate pair"):
            engine.submit(None, [Text(parts), gen(1)])
    assert ask(engine, "x", gen(2)).results[0].output().text


def test_text_that_is_no_text_behind_an_answer_fails_when_that_is_there():
    engine, core = stepped(100)
    parent = ask(engine, "x", gen(1))
    child = engine.submit(parent, [Text(("\ud800",)), gen(1)])
    drain(core)
    with pytest.raises(ParameterError, match="surrogate"):
        child.results[0].output()
    with pytest.raises(ParameterError, match="surrogate"):
        engine.submit(parent, [Text(("\ud800",)), gen(1)])


def test_tokens_that_the_model_does_not_know_are_refused():
    """A tokenizer's files may have more than the weights have rows for."""
    engine, core = stepped(embedded=260)
    for prompt in (Text(("the cat",)), Given("the ", (261,))):
        with pytest.raises(ParameterError, match=r"the prompt has 'the ', token 261, but the model knows only 260 tokens"):
            engine.submit(None, [prompt, gen(1)])
    fine = ask(engine, "quiz", gen(1))
    drain(core)
    assert fine.results[0].done


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded():
    engine, _ = stepped(4096, max_context=50)
    words, text = engine.tokenizer, Text(("the cat " * 1000,))
    before = words.encoded_bytes
    for ask_ in (gen(1), Select(("a", "b"))):
        with pytest.raises(PromptTooLongError, match=r"the prompt has at least [0-9]+ tokens; .* 50 tokens"):
            engine.submit(None, [text, ask_])
    assert words.encoded_bytes == before


def test_a_prompt_over_the_context_is_refused_with_its_place():
    engine, _ = stepped(4096, max_context=50)
    ask_ = Gen(loc=Loc("p.py", 2))
    with pytest.raises(PromptTooLongError, match=r"60 tokens.*50 tokens") as caught:
        engine.submit(None, [Text(("x" * 60,)), ask_])
    assert caught.value.loc == Loc("p.py", 2)


def test_an_answer_is_cut_where_the_context_ends():
    engine, core = stepped(4096, max_context=50)
    handle = ask(engine, "x" * 45, gen(100))
    drain(core)
    assert handle.results[0].output().metas[0]["completion_tokens"] == 5


def test_a_child_that_is_too_long_fails_alone():
    engine, core = stepped(64)
    parent = ask(engine, "x" * 30, gen(4))
    child = ask(engine, "y" * 40, gen(4), parent)
    sibling = ask(engine, "y", gen(4), parent)
    drain(core)
    assert isinstance(child.results[0].error, PromptTooLongError)
    assert sibling.results[0].output().text


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": 0}, "top_k is 0"),
        ({"n": 0}, "n is 0"),
        ({"top_logprobs_num": 10**6}, "top_logprobs_num is 1000000"),
        ({"min_new_tokens": 9}, "min_tokens is 9"),
        ({"stop_token_ids": (10**6,)}, "token id 1000000"),
        ({"stop_regex": ("(",)}, "stop_regex '\\('"),
    ],
)
def test_parameters_out_of_range_are_refused(engine, params, says):
    with pytest.raises((ProgramError, ConstraintError), match=says):
        engine.submit(None, [Text(("x",)), gen(4, **params)])


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"max_tokens": -5}, "max_tokens is -5; it must be at least 1"),
        ({"max_tokens": 1e3}, "max_tokens is 1000.0; it must be a whole number"),
        ({"max_batch": "8"}, "max_batch is '8'; it must be a whole number"),
        ({"chunk": True}, "chunk is True; it must be a whole number"),
        ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_anything_is_loaded(numbers, says):
    with pytest.raises(ParameterError, match=re.escape(f"Engine: {says}")):
        Engine("nowhere.gguf", **numbers)


def test_runtime_takes_none_for_the_default():
    asked = {"max_total_tokens": None, "random_seed": None, "chunked_prefill_size": 0}
    with pytest.raises(ParameterError, match="Engine: chunk is 0"):
        Runtime("nowhere.gguf", **asked)


def test_a_failing_pass_fails_everything_and_the_engine_lives_on():
    engine, runner = backend()
    runner.fail_with = RuntimeError("device lost")
    handle = engine.submit(None, [Text(("x",)), gen(4), Text(("y",)), gen(4)])
    for result in handle.results:
        with pytest.raises(BackendError, match="device lost"):
            result.output()
    engine.check()
    assert answer(engine, "x", gen(2)).text
    engine.close()


def test_a_pass_without_memory_says_what_needs_less_and_holds_none_of_it():
    """Whoever keeps the error keeps no tensor of the pass that failed."""

    class Tensor: ...

    kept: list[weakref.ref[Tensor]] = []

    def run(work):
        tensor = Tensor()
        kept.append(weakref.ref(tensor))
        raise MemoryError(f"{len(work.spans)} spans")

    engine, runner = backend()
    fine = runner.run
    runner.run = run
    handle = ask(engine, "x", gen(4))
    with pytest.raises(BackendError, match=r"MemoryError: 1 spans; a pass needs less with a smaller Engine\(chunk=…\) or max_batch"):
        handle.results[0].output()
    runner.run = fine
    assert kept[0]() is None
    assert answer(engine, "x", gen(2)).text
    engine.check()
    engine.close()


def test_a_closed_engine_holds_no_runner_and_gives_its_memory_back(monkeypatch):
    engine, runner = backend()
    assert answer(engine, "x", gen(2)).text
    kept, seen = weakref.ref(runner), []
    monkeypatch.setattr(type(runner), "freed", staticmethod(lambda: seen.append(kept())), raising=False)
    del runner
    engine.close()
    assert seen == [None], "the device's memory goes back once nothing holds it"


def test_one_bad_request_does_not_take_its_batch_along(monkeypatch):
    engine, core = stepped()
    bad = Gen(SamplingParams(max_new_tokens=4, temperature=0.0), Constraint("regex", "[0-9]{1,3}"))
    monkeypatch.setattr("tests.backend.engine_fakes.FakeMatcher.accept", lambda *_: 1 / 0)
    failing, fine = ask(engine, "a", bad), ask(engine, "b", gen(4))
    drain(core)
    error = failing.results[0].error
    assert isinstance(error, BackendError) and isinstance(error.__cause__, ZeroDivisionError)
    assert fine.results[0].output().text


# -- health ------------------------------------------------------------------------------------------------------------


def test_an_engine_whose_pass_failed_says_so_until_one_goes_through():
    engine, runner = backend()
    assert engine.health() == HEALTHY
    runner.fail_with = RuntimeError("out of luck")
    with pytest.raises(BackendError, match="out of luck"):
        answer(engine, "x", gen(4))
    found = engine.health()  # which asks for a token, too
    assert (found.state, found.ready) == ("failed", False) and "RuntimeError: out of luck" in found.reason
    engine._trial.results[0].output()
    assert engine.health() == HEALTHY
    engine.close()
    assert engine.health().state == "closed"


def test_a_trial_that_fails_leaves_the_engine_failed():
    engine, runner = backend()
    fine, runner.run = runner.run, lambda work: 1 / 0
    with pytest.raises(BackendError):
        answer(engine, "x", gen(4))
    for _ in range(2):
        assert engine.health().state == "failed"
        engine._trial.results[0].wait()
    runner.run = fine
    engine.health()
    engine._trial.results[0].output()
    assert engine.health().ready
    engine.close()


def test_a_pass_that_does_not_end_is_stuck():
    engine, runner = backend()
    inside, go_on, fine = threading.Event(), threading.Event(), runner.run

    def run(work):
        inside.set()
        go_on.wait(60)
        return fine(work)

    runner.run = run
    handle = ask(engine, "x", gen(1))
    inside.wait(60)
    assert engine.health().ready
    engine._core._computing_since -= engine_module.STUCK_AFTER + 1
    found = engine.health()
    assert found.state == "stuck" and "does not end" in found.reason
    go_on.set()
    handle.results[0].output()
    assert engine.health().ready
    engine.close()


DEVICE_ERRORS = ("CUDA error: device-side assert triggered", "Triton Error [CUDA]: an illegal memory access was encountered", "CUBLAS_STATUS_EXECUTION_FAILED")


@pytest.mark.parametrize("message", DEVICE_ERRORS)
def test_a_device_error_ends_the_engine_with_its_reason(message):
    engine, runner = backend()
    runner.fail_with = RuntimeError(message)
    handles = [ask(engine, text, gen(4)) for text in ("a", "b")]
    for handle in handles:
        with pytest.raises(BackendError, match=re.escape(message)):
            handle.results[0].output()
    engine._core._thread.join(60)
    found = engine.health()
    assert found.state == "ended" and message in found.reason
    with pytest.raises(BackendError, match=r"ended with a device error.*start a new process"):
        ask(engine, "x", gen(4))
    engine.close()


def test_too_little_memory_is_no_device_error():
    class OutOfMemoryError(RuntimeError): ...

    assert not device_errors.is_device_error(OutOfMemoryError("CUDA error: out of memory"))
    assert not device_errors.is_device_error(ValueError("CUDA error"))


# -- lifetimes ---------------------------------------------------------------------------------------------------------


def test_dropping_the_last_handle_aborts_and_frees():
    engine, core = stepped()
    handle = ask(engine, "x" * 40, gen(50))
    core.turn()
    del handle
    gc.collect()
    drain(core)
    assert engine.stats()["running"] == 0 and engine.counters().generated_tokens == 1


def test_a_result_keeps_its_work_and_that_of_its_parent_alive():
    engine, core = stepped()
    result = ask(engine, "y", gen(2), ask(engine, "x", gen(5))).results[0]
    gc.collect()
    drain(core)
    assert result.output().text


def test_an_unstarted_child_that_is_dropped_takes_its_parent_along():
    engine, core = stepped()
    child = ask(engine, "y", gen(2), ask(engine, "x", gen(50)))
    core.turn()
    del child
    gc.collect()
    drain(core)
    assert engine.counters().generated_tokens == 1


def test_finished_work_holds_nothing():
    engine, core = stepped()
    handle = ask(engine, "x", gen(5))
    drain(core)
    step = weakref.ref(handle.last)
    del handle
    assert step() is None


def test_close_fails_what_is_unfinished_and_is_idempotent():
    engine, _ = backend()
    handle = ask(engine, "x", gen(2000))
    engine.close()
    engine.close()
    assert handle.results[0].done
    with pytest.raises(BackendError, match="closed"):
        ask(engine, "x", gen(1))


def test_the_next_engine_waits_for_one_that_was_dropped():
    engine, _ = backend()
    answer(engine, "x", gen(2))
    thread = engine._core._thread
    del engine
    await_closed()
    assert not thread.is_alive()


def test_an_engine_that_is_dropped_ends_its_thread():
    before = {*threading.enumerate()}
    engine, _ = backend()
    answer(engine, "x", gen(2))
    del engine
    gc.collect()
    until(lambda: {*threading.enumerate()} <= before, "a thread is left")


def test_many_threads():
    engine, _ = backend()
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for i in range(10):
                prompt = f"thread {k % 3} step {i}"
                handle = ask(engine, prompt, gen(5))
                if i % 4 == 3:
                    handle.cancel()
                    continue
                assert handle.results[0].output().text == WORDS.decode(reference_ids(WORDS.encode((prompt,)), 5))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures and not any(t.is_alive() for t in threads)
    engine.check()
    engine.close()


# -- the end of the process --------------------------------------------------------------------------------------------


def in_a_process(code: str, *, interrupt_after: float | None = None) -> tuple[int, str]:
    """Exit status and standard error of a Python process that runs `code` with an `engine` whose `ask` takes minutes."""
    prelude = (
        "from tests.backend.engine_fakes import *\n"
        "from lmc.segments import *\n"
        "import time\n"
        "class Slow(FakeRunner):\n"
        "    def run(self, work):\n"
        "        time.sleep(0.1)\n"
        "        return super().run(work)\n"
        "engine, runner = backend()\n"
        "engine._core._runner.__class__ = Slow\n"
        "ask = Gen(SamplingParams(max_new_tokens=1900, temperature=0.0))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + code],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    if interrupt_after is not None:
        time.sleep(interrupt_after)
        process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()  # it waits for its answer: the test fails
    return process.returncode, err


@apart  # the next is as long, and interrupted too
def test_a_process_ends_with_work_unfinished():
    status, err = in_a_process("h = engine.submit(None, [Text(('x',)), ask]); print('go', flush=True)")
    assert (status, err) == (0, "")


@pytest.mark.model  # needs torch
def test_a_process_ends_behind_a_pass_that_takes_longer_than_its_end_may():
    """A thread in native code when the interpreter ends would abort the process."""
    pytest.importorskip("torch")
    code = (
        "import torch\n"
        "import lmc.backend.local as local\n"
        "local._AT_EXIT = 0.01\n"
        "class Native(FakeRunner):\n"
        "    def run(self, work):\n"
        "        print('go', flush=True)\n"
        "        torch.mm(*[torch.ones(1500, 1500, dtype=torch.float64)] * 2)\n"
        "        return super().run(work)\n"
        "engine._core._runner.__class__ = Native\n"
        "h = engine.submit(None, [Text(('x',)), ask])\n"
        "time.sleep(0.1)\n"
    )
    status, err = in_a_process(code)
    assert (status, err) == (0, "")


def test_ctrl_c_while_waiting_does_not_hang():
    code = "h = engine.submit(None, [Text(('x',)), ask]); print('go', flush=True); h.results[0].output()"
    status, err = in_a_process(code, interrupt_after=0.3)
    assert status != 0 and "KeyboardInterrupt" in err
