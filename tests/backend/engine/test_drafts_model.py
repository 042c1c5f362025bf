"""Drafts on real models and samplers: the same tokens, seed for seed, however they are drawn."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lmc.errors import Loc
from lmc.segments import Constraint, Gen, SamplingParams, Select, Text
from tests.backend.engine.test_device_automata import CONSTRAINTS, ahead_runner, folder, k
from tests.searching import TIMES

pytestmark = pytest.mark.model
__all__ = ["folder", "k"]  # fixtures

OPTIONS: list[dict[str, Any]] = [
    {}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 8}, {"temperature": 0.9, "top_p": 0.8}, {"temperature": 0.8, "min_p": 0.1},
    {"frequency_penalty": 0.4, "presence_penalty": 0.2}, {"temperature": 0.6, "presence_penalty": -0.5}, {"logit_bias": ((5, 3.0), (9, -2.0))},
    {"stop": ("or",)}, {"stop_regex": ("th[a-z]",)}, {"min_new_tokens": 20}, {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0},
    {"temperature": 1.0, "return_logprob": True}, {"ignore_eos": True}, {"n": 2, "temperature": 0.5},
]  # fmt: skip


def said(engine, texts=("the order is the order ", "ab and ab and "), most: int = 40):
    """Answers with all options, constrained and not, four at a time: tokens, why each ended, log-probabilities."""
    asks = []
    for i, options in enumerate(OPTIONS * 2):
        source = CONSTRAINTS[(i // 2) % len(CONSTRAINTS)]
        params = SamplingParams(**{"max_new_tokens": most, "temperature": 0.0, **options})
        asks.append((texts[i % len(texts)] * 3, Gen(params, Constraint("regex", source) if source else None, seed=i)))
    found = []
    for i in range(0, len(asks), 4):
        handles = [engine.submit(None, [Text((text,)), ask]) for text, ask in asks[i : i + 4]]
        for handle in handles:
            output = handle.results[0].output()
            found.append((output.texts, output.ids, [m["finish_reason"] for m in output.metas], [m.get("output_token_logprobs") for m in output.metas]))
    engine.check()
    return found


def same(found, expected) -> None:
    for (*what, logprobs), (*others, theirs) in zip(found, expected, strict=True):
        assert what == others
        for mine, their in zip(logprobs, theirs, strict=True):
            assert (mine is None) == (their is None)
            if mine is not None:  # to what a product of more rows rounds otherwise
                assert [t[1:] for t in mine] == [t[1:] for t in their]
                assert [t[0] for t in mine] == pytest.approx([t[0] for t in their], abs=2e-3)


@pytest.mark.parametrize("temperature", [0.8, 0.0][: None if TIMES else 1])
def test_the_small_model_says_the_same_in_fewer_passes(temperature):
    import lmc

    rows = "Ada Lovelace, London, 1815; Alan Turing, London, 1912; Kurt Goedel, Brno, 1906; Emmy Noether, Erlangen, 1882"
    prompt = f'Names, cities and years as JSON, one object a line, from: {rows}.\n{{"name": "Ada Lovelace", "city": "London", "year": 1815}}\n'
    line = r'(\{"name": "[A-Za-z ]{1,20}", "city": "[A-Za-z ]{1,20}", "year": [0-9]{4}\}\n){2}'
    found = []
    with lmc.Engine("smollm2", max_tokens=2048) as engine:
        for drafts in ("off", 8, "auto"):
            engine.drafts = drafts
            engine.forget_drafts()
            gens = [Gen(SamplingParams(max_new_tokens=60, temperature=temperature), c, seed=4) for c in (None, Constraint("regex", line))]
            handles = [engine.submit(None, [Text((prompt,)), gen]) for gen in gens]
            outputs = [handle.results[0].output() for handle in handles]
            assert re.fullmatch(line, outputs[1].text)
            found.append(([o.ids for o in outputs], sum(o.usage.passes for o in outputs)))
        engine.check()
    (ids, passes), (ids_8, passes_8), (ids_auto, _) = found
    assert ids == ids_8 == ids_auto
    assert passes_8 < 0.8 * passes


def test_what_was_recorded_is_answered_whatever_the_model_draws(folder):
    import lmc

    answers = {"the order ": "the order and the end", "ab ": "ab and ab and ab and the order"}
    with lmc.Engine(folder, load_format="dummy", device="cpu", max_tokens=1024, drafts="off") as engine:
        engine.replay(answers.get)
        for drafts in ("off", 4):
            engine.drafts = drafts
            for prompt, answer in answers.items():
                for temperature in (0.0, 1.0):
                    output = engine.submit(None, [Text((prompt,)), Gen(SamplingParams(max_new_tokens=60, temperature=temperature))]).results[0].output()
                    assert output.text == answer and output.meta["finish_reason"]["type"] == "stop"
        assert engine.counters().accepted_tokens > 0
        engine.replay(None)
        assert engine.submit(None, [Text(("ab ",)), Gen(SamplingParams(max_new_tokens=9, temperature=0.0))]).results[0].output().text != answers["ab "]


@pytest.mark.parametrize("ahead", [False, True])
def test_choices_that_ride_beside_an_answer_have_the_same_scores(k, folder, ahead):
    """And what follows them reads the KV that they left."""
    import lmc

    found: list[list[Any]] = []
    with lmc.Engine(folder, load_format="dummy", device="cpu", max_tokens=2048, drafts="off") as engine:
        if ahead:
            engine._core._runner = ahead_runner(engine._core._runner, k.slow)
        engine.replay(lambda prompt: "the order and the end of the order" if prompt.endswith("go ") else None)
        last = Gen(SamplingParams(max_new_tokens=5, temperature=0.0, ignore_eos=True))
        behind = Text((" so it is:",)), Select(("the end", "the order", "another")), Text((" and",)), last
        for drafts in ("off", 12):
            engine.drafts = drafts
            engine.flush_cache()
            for i in range(3):
                handle = engine.submit(None, [Text((f"{i} go ",)), Gen(SamplingParams(max_new_tokens=60), loc=Loc("program.py", 1)), *behind])
                found.append([result.output() for result in handle.results])
        engine.check()
        assert engine.stats()["riders_used"] == 2, "behind a first answer, none is expected"
    assert [choice.usage.passes > 0 for _, choice, _ in found] == [True] * 4 + [False] * 2
    for (_, choice, after), (_, other, later) in zip(found[:3], found[3:], strict=True):
        assert choice.text == other.text and after.ids == later.ids
        assert choice.meta["normalized_prompt_logprobs"] == pytest.approx(other.meta["normalized_prompt_logprobs"], abs=2e-3)


def test_a_compiled_program_tells_what_it_has_for_later(folder):
    """An answer that anticipates a text of the program takes fewer passes; nothing else differs."""
    import lmc

    @lmc.function
    def told(s):
        s += "the order " + lmc.gen("x", max_tokens=60)
        s += "\nand then another brown cat came to the end"
        s += lmc.gen("y", max_tokens=4, ignore_eos=True)

    answer = "is so: and then another brown cat came to the end"
    found = []
    with lmc.Engine(folder, load_format="dummy", device="cpu", max_tokens=1024) as engine:
        engine.replay(lambda prompt: answer if prompt.endswith("the order ") else None)
        for drafts in ("off", 8):
            engine.drafts = drafts
            program = lmc.compile(told, backend=engine)
            (state,) = program.batch([{}], temperature=0)
            found.append((state.text(), state.get_meta_info("x")["completion_tokens"], state.usage.passes, state.usage.accepted_tokens))
    (text, tokens, passes, none), (same_text, same_tokens, fewer, accepted) = found
    assert answer in text and (text, tokens) == (same_text, same_tokens)
    assert none == 0 and accepted > 8 and fewer <= passes - accepted // 2
    drafted = state.usage.drafted_tokens
    assert f"{drafted} tokens drafted, {accepted} of them drawn; " in program.explain()
    assert f"{drafted} tokens were drafted, and {accepted} of them drawn." in state.explain("html")
