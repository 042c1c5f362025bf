"""The engine on the small real model: right answers, the same as a plain loop gives, whatever runs beside them."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from lmc.backend.local_model import Engine
from lmc.segments import ChoicesMethod, Constraint, Gen, SamplingParams, Select, Text

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine():
    made = Engine("smollm2", max_tokens=3000, chunk=128)
    yield made
    made.check()
    made.close()


def gen(max_new: int = 8, constraint: Constraint | None = None, *, seed: int = 0, **options) -> Gen:
    return Gen(SamplingParams(**{"max_new_tokens": max_new, "temperature": 0.0} | options), constraint, seed=seed)


def chat(engine, question: str) -> Text:
    template = engine.chat_template
    parts = (*template.begin("user", None), question, *template.end("user"), *template.begin("assistant", "user"))
    return Text(parts)


def reference(engine, ids: list[int]):
    """Logits [len(ids), vocab] of one whole pass over a pool of its own: no cache, no batch, no scheduler."""
    import torch

    from lmc.backend.engine.attention.base import ForwardBatch, Span
    from lmc.backend.engine.kv_pool import KVPool

    model = engine._core._runner._model
    c = model.config
    pool = KVPool(c.num_layers, len(ids), c.num_kv_heads, c.head_dim, torch.float32)
    every = torch.arange(len(ids))
    return model.forward(ForwardBatch(torch.tensor(ids), every, every, (Span(0, len(ids), every),), every), pool)


def test_it_knows_the_capital_of_france(engine):
    result = engine.submit(None, [chat(engine, "What is the capital of France?"), gen(20)]).results[0]
    assert "Paris" in result.output().text
    assert result.output().metas[0]["finish_reason"]["type"] == "stop"


def test_greedy_in_a_mixed_batch_equals_a_plain_loop(engine):
    prompts = [f"The capital of {c} is" for c in ("France", "Italy", "Japan", "Peru")]
    prompts += ["Once upon a time, " * 20 + end for end in ("a king", "a queen")]
    handles = [engine.submit(None, [Text((p,)), gen(10, ignore_eos=True)]) for p in prompts]
    for prompt, handle in zip(prompts, handles, strict=True):
        ids = engine.prompt_ids(handle)
        asked = engine.tokenizer.encode((prompt,))
        assert ids[: len(asked)] == asked
        rows = reference(engine, ids)[len(asked) - 1 : -1]
        for row, token in zip(rows, ids[len(asked) :], strict=True):  # teacher forcing
            assert float(row.max() - row[token]) <= 0.1


REGEXES = [
    r'\{"grade": "[ABCD][+-]?", "why": "[\w ]{1,30}"\}',
    r"[-+]?[0-9]+",
    r"(True|False)",
    r"(?i)yes|no",
    r"[^\s\d]{2,5}",
    r"(?P<y>\d{4})-(?P<m>0[1-9]|1[0-2])",
    r"世界(和平|大战)",
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_match_their_regex(engine, temperature):
    asks = [gen(24, Constraint("regex", r), temperature=temperature, seed=i) for i, r in enumerate(REGEXES)]
    handles = [engine.submit(None, [Text(("Fill in the form: ",)), ask]) for ask in asks]
    for regex, handle in zip(REGEXES, handles, strict=True):
        out = handle.results[0].output()
        if out.metas[0]["finish_reason"]["type"] == "stop":
            assert re.fullmatch(regex, out.text, re.ASCII), out
        else:
            assert len(out.text) > 0


@pytest.mark.parametrize("method", list(ChoicesMethod))
def test_select_is_sensible(engine, method):
    choices = (" London", " Paris", " a large banana")
    handle = engine.submit(None, [Text(("The capital of France is",)), Select(choices, method)])
    assert handle.results[0].output().text == " Paris"


def test_select_scores_equal_a_plain_pass(engine):
    meta = (
        engine.submit(None, [Text(("The sky is",)), Select((" blue", " made of cheese", " made of stone"))])
        .results[0]
        .output()
        .metas[0]
    )
    prompt = engine.tokenizer.encode(("The sky is",))
    for row in meta["input_token_logprobs"]:
        tokens = [token for _, token, _ in row]
        logprobs = reference(engine, [*prompt, *tokens]).log_softmax(-1)
        expected = [float(logprobs[len(prompt) - 1 + i, t]) for i, t in enumerate(tokens)]
        assert [lp for lp, _, _ in row] == pytest.approx(expected, abs=2e-3)


def test_the_prompts_logprobs_equal_a_plain_pass(engine):
    options = {"return_logprob": True, "logprob_start_len": 2, "top_logprobs_num": 3}
    handle = engine.submit(None, [Text(("The capital of France is Paris",)), gen(1, **options)])
    meta = handle.results[0].output().metas[0]
    ids = engine.tokenizer.encode(("The capital of France is Paris",))
    rows = reference(engine, ids).log_softmax(-1)[1:-1]
    for row, token, own, best in zip(
        rows, ids[2:], meta["input_token_logprobs"], meta["input_top_logprobs"], strict=True
    ):
        assert own == [pytest.approx(float(row[token]), abs=0.02), token, None]
        assert [lp for lp, _, _ in best] == pytest.approx(row.topk(3).values.tolist(), abs=0.02)
        assert all(float(row[i]) == pytest.approx(lp, abs=0.02) for lp, i, _ in best)


def test_32_programs_compute_their_shared_prefix_once(engine):
    engine.flush_cache()
    before = engine.counters()
    shared = chat(engine, "You grade essays. " * 20)
    handles = [engine.submit(None, [shared, Text((f"Essay {i}",)), gen(2)]) for i in range(32)]
    for handle in handles:
        handle.results[0].output()
    used = engine.counters() - before
    assert used.prefill_optimality >= 0.99
    assert used.cached_tokens > 0.8 * used.prompt_tokens


@pytest.mark.parametrize(("device", "gib", "expected"), [("cpu", 0, (64, 512)), ("cuda", 24, (512, 2048)), ("cuda", 80, (512, 4096))])
def test_passes_are_as_large_as_the_device_has_room_for(device, gib, expected, monkeypatch):
    import torch

    from lmc.backend import local_model

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib << 30))
    assert local_model._default_batch(torch.device(device)) == expected
