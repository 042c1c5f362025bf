"""Forced runs in the engine: what a regex leaves no choice of rides in the next pass, and changes nothing else.

The model is made to say given answers, so that an engine which samples every token must come to the same results.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmc.backend.local import LocalBackend
from lmc.errors import CancelledError
from lmc.fsm.forced import _common_prefix
from lmc.fsm.regex import parse
from lmc.segments import Constraint, Gen, SamplingParams, Text
from tests.backend.engine_fakes import FakeRunner, SteppedCore, automata, drain, stepped
from tests.fsm.forced_oracle import CHARACTER_TEXT, FINITE, TOOL, by_definition, forced_tokens
from tests.fsm.patterns import CHARACTER, JUDGE, word_of
from tests.fsm.small_vocabulary import small_words, smollm2, smollm2_words
from tests.searching import search

WORDS = small_words()
EOS = WORDS.eos_token_ids[0]


def ids(text: str) -> list[int]:
    return WORDS.encode((text,))


def gen(regex: str, max_new: int = 200, *, seed: int = 0, **options: Any) -> Gen:
    params = SamplingParams(**{"max_new_tokens": max_new, "temperature": 0.0} | options)
    return Gen(params, Constraint("regex", regex), seed=seed)


compiler_of = cache(automata)  # what is compiled is shared by all tests


def engine_of(*, forced: bool = True, words=WORDS, slots: int = 2048, **options: Any):
    engine, core = stepped(slots, words=words, compiler=compiler_of(words, forced=forced), **options)
    runner = core._runner
    assert isinstance(runner, FakeRunner)
    return engine, core, runner


def said(engine: LocalBackend, core: SteppedCore, prompt: str, ask: Gen, answer: str):
    """The handle after the model has said `answer`."""
    core._runner.say(ids(prompt), ids(answer))
    handle = engine.submit(None, [Text((prompt,)), ask])
    drain(core)
    engine.check()
    return handle


def result(handle):
    return handle.results[0].output()


# -- passes --------------------------------------------------------------------------------------------------------


def test_forced_tokens_ride_in_the_next_pass():
    engine, core, runner = engine_of()
    out = result(said(engine, core, "Say: ", gen("(yes|no) and the end"), "yes and the end"))
    assert out.text == "yes and the end"
    assert out.usage.completion_tokens == len(ids("yes and the end"))
    assert runner.passes == [len(ids("Say: "))]  # the pass that gives `yes` or its first letter ends the answer
    assert out.usage.forced_tokens == engine.counters().forced_tokens == out.usage.completion_tokens - 1


def test_an_answer_says_where_it_was_forced_and_when_it_began():
    engine, core, _ = engine_of()
    handle = said(engine, core, "Say: ", gen('"order": "[a-z]"'), '"order": "s"')
    out = result(handle)
    assert [out.text[begin:end] for begin, end in out.forced] == ['"order": "', '"']
    admitted, first = out.phases
    assert handle.results[0].began <= admitted <= first <= handle.results[0].ended


def test_a_forced_beginning_is_computed_with_the_prompt():
    engine, core, runner = engine_of()
    out = result(said(engine, core, "Say: ", gen('"order": "[a-z]"'), '"order": "s"'))
    opening = forced_tokens('"order": "[a-z]"').run(0).tokens
    assert len(opening) > 2 and runner.passes[0] == len(ids("Say: ")) + len(opening)
    assert out.usage.passes == len(runner.passes)
    assert engine.counters().prefilled_tokens == len(ids("Say: "))


def test_an_answer_without_any_choice_needs_no_pass():
    engine, core, runner = engine_of()
    handle = engine.submit(None, [Text(("Say: ",)), gen("the end"), Text((" then ",)), gen("the cat")])
    drain(core)
    assert [r.output().text for r in handle.results] == ["the end", "the cat"]
    assert runner.passes == [] and handle.results[0].output().usage.passes == 0


def test_a_long_chain_of_answers_without_any_choice():
    engine, core, _ = engine_of(slots=8192, max_context=8192)
    handle = engine.submit(None, [gen("ab") for _ in range(600)])
    drain(core)
    assert handle.results[-1].output().text == "ab"


def test_an_answer_without_any_choice_can_be_cancelled():
    engine, core, _ = engine_of()
    handle = engine.submit(None, [Text(("Say: ",)), gen("the end")])
    handle.cancel()
    drain(core)
    assert isinstance(handle.results[0].error, CancelledError)


def test_nothing_is_forced_behind_a_cut_that_no_tokenizer_makes():
    engine, core, runner = engine_of()
    letters = [token for letter in "order" for token in ids(letter)]
    assert len(ids("order")) == 1 and forced_tokens("(order|Harry)!").run(1).tokens
    runner.say(ids("Q"), [*letters, *ids("!")])
    handle = engine.submit(None, [Text(("Q",)), gen("(order|Harry)!")])
    drain(core)
    assert result(handle).text == "order!" and result(handle).usage.completion_tokens == 6
    assert result(handle).usage.forced_tokens == 1, "the mark, for which it does not matter"


def oracle_passes(pattern: str, answer: str) -> int:
    """Samples that are needed for `answer`, one by one, when every run is the definition's."""
    f, tokens = forced_tokens(pattern), ids(answer)
    at = state = samples = 0
    while True:
        run = by_definition(f, state)
        assert tuple(tokens[at : at + len(run)]) == run
        at, state = at + len(run), f.automaton.dfa.step(state, b"".join(f.automaton.vocabulary.tokens[t] for t in run))
        if f.automaton.is_done(state):
            return samples
        samples += 1
        if at == len(tokens):
            return samples  # EOS
        state, at = f.automaton.next(state, tokens[at]), at + 1
        if f.automaton.is_done(state):
            return samples


@pytest.mark.parametrize("pattern", FINITE)
def test_passes_are_those_of_the_definition(pattern):
    rng, tree = random.Random(pattern), parse(pattern)
    for answer in sorted({word_of(tree, rng) for _ in range(6)}):
        engine, core, runner = engine_of()
        assert result(said(engine, core, "Say: ", gen(pattern), answer)).text == answer
        assert len(runner.passes) == oracle_passes(pattern, answer)


def test_a_run_longer_than_the_rows_of_a_pass_is_computed_in_several():
    answer = "yes and then the cat and the end and a constant"
    for chunk in (3, 64):
        engine, core, runner = engine_of(chunk=chunk)
        pattern = f"(yes|no){answer[3:]}(a|b)"
        out = result(said(engine, core, "Say: ", gen(pattern), answer + "a"))
        assert out.text == answer + "a"
        assert max(runner.passes) <= chunk + 1 and (len(runner.passes) > 4) == (chunk == 3)


def test_others_go_on_beside_a_long_run():
    engine, core, runner = engine_of(chunk=4)
    runner.say(ids("Q"), ids("yes" + " and the end" * 6 + "a"))
    long = engine.submit(None, [Text(("Q",)), gen("(yes|no)( and the end){6}(a|b)")])
    short = engine.submit(None, [Text(("R",)), Gen(SamplingParams(max_new_tokens=4, temperature=0.0))])
    drain(core)
    assert long.results[0].done and short.results[0].done
    assert len(runner.passes) < 20


def test_equal_beginnings_are_computed_once():
    engine, core, runner = engine_of()
    regex = r'\{"order": "[a-z]"\}'
    runner.say(ids("Say: "), ids('{"order": "s"}'))
    handles = [engine.submit(None, [Text(("Say: ",)), gen(regex, seed=i)]) for i in range(8)]
    drain(core)
    assert {result(h).text for h in handles} == {'{"order": "s"}'}
    assert runner.passes[0] == len(ids("Say: ")) + len(forced_tokens(regex).run(0).tokens)
    engine.check()
    later = engine.submit(None, [Text(("Say: ",)), gen(regex)])
    drain(core)
    assert result(later).metas[0]["cached_tokens"] == len(ids("Say: ")) and runner.passes[-1] <= 2


# -- where answers end ---------------------------------------------------------------------------------------------


def test_a_stop_string_inside_a_run_leaves_nothing_behind_it():
    engine, core, _ = engine_of()
    handle = said(engine, core, "Q", gen("(yes|no) and the end of it", stop=(" end",)), "yes and the end of it")
    out = result(handle)
    assert out.text == "yes and the" and out.metas[0]["finish_reason"] == {"type": "stop", "matched": " end"}
    assert engine.prompt_ids(handle) == ids("Q") + ids("yes and the")
    assert engine.stats()["cached_tokens"] == len(ids("Q"))


def test_the_kv_of_a_run_behind_a_stop_is_given_back():
    """Scores need the rows of the run, so they are computed, and then freed from the cut on."""
    engine, core, _ = engine_of()
    ask = gen("(yes|no) and the end of it", stop=(" end",), return_logprob=True)
    out = result(said(engine, core, "Q", ask, "yes and the end of it"))
    kept = len(ids("yes and the"))
    assert out.text == "yes and the" and len(out.metas[0]["output_token_logprobs"]) == out.usage.completion_tokens > kept
    assert engine.stats()["cached_tokens"] == len(ids("Q")) + kept


def test_forced_tokens_count_towards_the_minimum():
    for minimum, text in ((len(ids("the end")), "the end"), (len(ids("the end")) + 1, "the end!")):
        engine, core, runner = engine_of()
        runner.say(ids("Q"), ids("the end"))
        wish = gen("the end(!)?", min_new_tokens=minimum)
        handle = engine.submit(None, [Text(("Q",)), wish])
        if text == "the end!":
            runner.script.clear()  # the sampler's own rule is tested with the sampler
            runner.say(ids("Q"), ids("the end!"))
        drain(core)
        assert result(handle).text == text


def test_who_weighs_tokens_gets_nothing_forced():
    engine, core, _ = engine_of()
    out = result(said(engine, core, "Q", gen("the end", logit_bias=((ids("the")[0], -5.0),)), "the end"))
    assert out.text == "the end" and out.usage.forced_tokens == 0 and out.usage.passes == len(ids("the end"))


# -- what is seen of it ----------------------------------------------------------------------------------------------


def test_an_answer_without_any_choice_is_scored_if_asked():
    engine, core, runner = engine_of()
    meta = result(said(engine, core, "Q: ", gen("the end", return_logprob=True), "the end")).metas[0]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == ids("the end")
    assert runner.passes == [len(ids("Q: ")) + len(ids("the end")) - 1]  # the last token needs no row


def test_penalties_count_forced_tokens():
    """The sampler counts `ids[prompt_len:length]`; forced tokens are there before the next sample."""
    engine, core, runner = engine_of()
    seen: list[list[int]] = []
    run = runner.run
    core._runner.run = lambda work: (seen.extend(r.ids[r.prompt_len : r.length].tolist() for _, r in work.samples), run(work))[1]
    said(engine, core, "Q", gen("the (cat|end) and a(b|c)", presence_penalty=1.0), "the cat and ab")
    assert [s for s in seen if s] and all(s == ids("the cat and ab")[: len(s)] for s in seen)
    assert len(seen[-1]) > len(seen)


# -- forcing changes nothing else --------------------------------------------------------------------------------------

PATTERNS = [*FINITE, CHARACTER, JUDGE, TOOL, r'\{"grade": "[ABCD][+-]?", "why": "[\w ]{1,20}"\}', "[0-9]{1,9}", "yes", "ab(c|d)"]


@dataclass
class Wish:
    """A request and what the model says to it."""

    prompt: str
    pattern: str
    answer: str
    options: dict[str, Any] = field(default_factory=dict)


@st.composite
def wishes(draw) -> Wish:
    pattern = draw(st.sampled_from(PATTERNS))
    answer = word_of(parse(pattern), random.Random(draw(st.integers(0, 1000))))
    tokens = ids(answer)
    options: dict[str, Any] = {"max_new_tokens": draw(st.sampled_from([1, 2, 3, 5, 200, 200, 200]))}
    if draw(st.booleans()):
        options |= {"return_logprob": True, "top_logprobs_num": 1}
        if draw(st.booleans()):
            options["logprob_start_len"] = draw(st.integers(0, 3))
    if answer and draw(st.booleans()):
        at = draw(st.integers(0, len(answer) - 1))
        options["stop"] = (answer[at : at + draw(st.integers(1, 4))],)
    if tokens and draw(st.integers(0, 3)) == 0:
        options["stop_token_ids"] = (draw(st.sampled_from(tokens)),)
    if draw(st.integers(0, 3)) == 0:
        options["n"] = 2
    return Wish(draw(st.sampled_from(["", "Q ", "Say it: "])), pattern, answer, options)


def outcome(wished: list[Wish], *, forced: bool, **options: Any):
    """Return all that a user sees of them."""
    engine, core, runner = engine_of(forced=forced, **options)
    handles = []
    for i, wish in enumerate(wished):
        prompt = wish.prompt + wish.pattern + wish.answer + ("" if i % 2 else str(i))
        runner.say(ids(prompt), ids(wish.answer))
        params = SamplingParams(**{"temperature": 0.0} | wish.options)
        handles.append(engine.submit(None, [Text((prompt,)), Gen(params, Constraint("regex", wish.pattern))]))
    for _ in range(5000):
        if not core.turn():
            break
        engine.check()
    counted = engine.counters()
    seen = []
    for handle in handles:
        out = result(handle)
        metas = [{k: v for k, v in m.items() if k not in ("id", "cached_tokens", "forced_tokens", "free_tokens")} for m in out.metas]
        assert "".join(handle.results[0].stream()) == out.text  # the end comes with the answer where scores are waited for
        seen.append((out.texts, metas, engine.prompt_ids(handle), out.usage.completion_tokens))
    assert sum(result(h).usage.forced_tokens for h in handles) == counted.forced_tokens
    return seen, counted


ORDER = r'\{"order(Id|Name)": (1|12|yes)\}'


@search(9, 150)
@example([Wish("", ORDER, '{"orderName": yes}', {"max_new_tokens": 3, "return_logprob": True, "n": 2})], 3, 1)
@given(st.lists(wishes(), min_size=1, max_size=5), st.sampled_from([3, 16, 512]), st.sampled_from([1, 3, 32]))
def test_with_and_without_forcing_all_is_equal(wished, chunk, max_batch):
    sampled, without = outcome(wished, forced=False, chunk=chunk, max_batch=max_batch, slots=2000)
    with_forcing, with_ = outcome(wished, forced=True, chunk=chunk, max_batch=max_batch, slots=2000)
    assert with_forcing == sampled
    assert without.forced_tokens == 0 and with_.generated_tokens == without.generated_tokens
    if chunk == 512 and not any("return_logprob" in wish.options for wish in wished):  # scores want passes of their own
        assert with_.passes <= without.passes


# -- figures on the small model's vocabulary -----------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize(
    ("pattern", "text", "most"),
    [
        (CHARACTER, CHARACTER_TEXT, 0.32),
        (TOOL, '{"tool": "search", "arguments": {"orderId": "abc12"}}', 0.45),
        (JUDGE, '{"summary": "The essay is clear and well argued.", "grade": "B+"}', 0.72),
    ],
)
def test_passes_per_token_of_structured_answers(pattern, text, most):
    words = smollm2_words()
    engine, core, runner = engine_of(words=words)
    runner.say(words.encode(("Q",)), words.encode((text,)))
    handle = engine.submit(None, [Text(("Q",)), gen(pattern)])
    drain(core)
    out = result(handle)
    assert out.text == text and out.usage.completion_tokens == len(words.encode((text,)))
    assert len(runner.passes) == engine.counters().passes == out.usage.passes
    assert len(runner.passes) <= most * out.usage.completion_tokens
    f = forced_tokens(pattern, smollm2)
    assert len(runner.passes) == samples_of(f, words.encode((text,)))


def samples_of(f, tokens: list[int]) -> int:
    at = state = samples = 0
    while at < len(tokens):
        run = f.run(state)
        at, state = at + len(run.tokens), run.state
        if at < len(tokens):
            state, at, samples = f.automaton.next(state, tokens[at]), at + 1, samples + 1
    return samples


# -- what the model itself says ----------------------------------------------------------------------------------------


def needed_by_definition(f, tokens: list[int], rng: random.Random) -> int:
    """How many of an answer's tokens have to be sampled, looked at one after another: a token need not be if it is next in
    the canonical encodings of everything that may follow, tried on the answer's own rest, on one with each next byte behind
    the forced text and some after that, and on random ones."""
    vocabulary, dfa = f.automaton.vocabulary, f.automaton.dfa
    at = state = needed = 0
    while at < len(tokens):
        before, forced = vocabulary.text(tokens[:at]), dfa.forced(state)[0]
        whole = len(forced.decode(errors="ignore").encode())
        rests = [vocabulary.text(tokens[at:]), *(random_rest(f, state, rng) for _ in range(12)), *next_bytes(f, state, forced)]
        cuts = [cut for rest in rests if forced and dfa.accepts(before + rest) and (cut := f.seams.cut(before, rest)) is not None]
        run = _common_prefix(cuts)
        while len(vocabulary.text(run)) > whole:
            run = run[:-1]
        assert tuple(tokens[at : at + len(run)]) == run
        at, state = at + len(run), dfa.step(state, vocabulary.text(run))
        if at < len(tokens):
            state, at, needed = f.automaton.next(state, tokens[at]), at + 1, needed + 1
    return needed


def next_bytes(f, state: int, forced: bytes) -> Iterator[bytes]:
    """Legal endings behind the forced text, by each next byte, and some after that."""
    dfa = f.automaton.dfa
    end = dfa.step(state, forced)
    for first in np.flatnonzero(dfa.table[end] >= 0).tolist() if forced else ():
        middle = int(dfa.table[end, first])
        yield forced + bytes([first]) + f._endings._shortest(middle, 1 << 20)
        for second in np.flatnonzero(dfa.table[middle] >= 0)[::9].tolist():
            yield forced + bytes([first, second]) + f._endings._shortest(int(dfa.table[middle, second]), 1 << 20)


def random_rest(f, state: int, rng: random.Random) -> bytes:
    """A legal ending from a state: bytes at random for a while, then the shortest way out."""
    dfa, out = f.automaton.dfa, bytearray()
    for _ in range(rng.choice((0, 1, 2, 4, 40))):
        ways = np.flatnonzero(dfa.table[state] >= 0).tolist()
        if not ways:
            break
        out.append(rng.choice(ways))
        state = int(dfa.table[state, out[-1]])
    return bytes(out) + f._endings._shortest(state, 1 << 20)


@pytest.mark.model
def test_passes_of_a_models_own_answers_are_those_of_the_definition(tiny_smollm2):
    """Greedy answers, recorded; each needs as many passes as it has tokens that are not certain."""
    from benchmarks.bench_forcing import answers, questions
    from lmc.backend.local_model import Engine

    rng, asked = random.Random(0), questions(6, 3, untold=True)  # one of each form
    with Engine(tiny_smollm2, forced=True) as engine:
        said_ = answers(engine, asked)
    for ask, answer in zip(asked, said_, strict=True):
        f = forced_tokens(ask.regex, smollm2)
        needed = needed_by_definition(f, list(answer.tokens), rng)
        assert len(answer.tokens) - answer.forced == needed, answer.text


def test_meta_info_counts_forced_and_free_tokens():
    engine, core, _ = engine_of()
    out = result(said(engine, core, "Q", gen(r"the end(!|\?)"), "the end!"))
    meta = out.metas[0]
    assert meta["forced_tokens"] == out.usage.forced_tokens > 0
    assert meta["forced_tokens"] + meta["free_tokens"] == meta["completion_tokens"]
