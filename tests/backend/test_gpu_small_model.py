"""The small model on a GPU: greedy tokens are the float32 reference's own, up to its margin, in every kind of pass."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.model]
torch = pytest.importorskip("torch")

import lmc  # noqa: E402
from lmc.backend.engine.models.loader import load  # noqa: E402
from lmc.segments import Constraint, Gen, SamplingParams, Select, Text  # noqa: E402
from tests.backend.engine.model_fixtures import all_logits  # noqa: E402

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small",
    "1, 2, 3, 4,",
    "def add(a, b):\n    return",
]
SHARED = "A list of animals, of what they eat and of where they live. " * 30


@pytest.fixture(scope="module")
def reference():
    return load("smollm2", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def engine():
    with lmc.Engine("smollm2", device="cuda", dtype="float16", max_tokens=60_000) as made:
        yield made


def gen(tokens: int, **options) -> Gen:
    constraint = options.pop("constraint", None)
    return Gen(SamplingParams(max_new_tokens=tokens, temperature=0.0, **options), constraint)


def margin(reference, prompt: str, answer: str) -> float:
    """How far below the reference's best token the answer's tokens are (semantics: at most 0.1)."""
    before, whole = (reference.tokenizer.encode((text,)) for text in (prompt, prompt + answer))
    logits = all_logits(reference, whole)[len(before) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(list(whole[len(before) :]))[:, None])[:, 0]
    return float((logits.max(1).values - chosen).max())


def test_greedy_tokens_of_a_mixed_batch(engine, reference):
    prompts = [*PROMPTS, *(SHARED + p for p in PROMPTS), *(SHARED + f"Number {i} is the" for i in range(40))]
    handles = [engine.submit(None, [Text((p,)), gen(30, ignore_eos=True)]) for p in prompts]
    answers = [h.results[0].output().text for h in handles]
    engine.check()
    worst = [margin(reference, p, a) for p, a in zip(prompts[:12], answers, strict=False)]
    assert max(worst) < 0.1, worst


@pytest.mark.parametrize("more", [{}, {"draft_model": "smollm2"}], ids=["copies", "a smaller model"])
def test_drafted_tokens_are_as_near(reference, more):
    """Whatever rows share their pass with drafts, one answer at a time and several at once."""
    years = "1815 Ada, 1912 Alan, 1906 Kurt, 1882 Emmy. " * 3
    prompts = [*PROMPTS, years, years + "1815"]
    with lmc.Engine("smollm2", device="cuda", dtype="float16", max_tokens=8_000, drafts=6, **more) as drafting:
        alone = [drafting.submit(None, [Text((p,)), gen(30, ignore_eos=True)]).results[0].output().text for p in prompts]
        handles = [drafting.submit(None, [Text((p,)), gen(30, ignore_eos=True)]) for p in prompts]
        together = [h.results[0].output().text for h in handles]
        assert drafting.counters().accepted_tokens > 40
        drafting.check()
    worst = [margin(reference, p, a) for answers in (alone, together) for p, a in zip(prompts, answers, strict=True)]
    assert max(worst) < 0.1, worst


def test_prefixes_that_rows_share_change_no_text(engine):
    prompts = [SHARED + f"Number {i} is the" for i in range(64)]

    def texts() -> list[str]:
        engine.flush_cache()
        handles = [engine.submit(None, [Text((p,)), gen(24, ignore_eos=True)]) for p in prompts]
        return [h.results[0].output().text for h in handles]

    runner, together = engine._core._runner, texts()
    runner.share_from, before = None, runner.share_from
    apart = texts()
    runner.share_from = before
    assert sum(a == b for a, b in zip(together, apart, strict=True)) >= 60  # a near tie may fall otherwise


def test_constraints_choices_and_samples(engine):
    words = Constraint("regex", r"(cat|dog|horse), \d{2}")
    handles = [
        engine.submit(None, [Text((f"An animal and a number, {i}: ",)), gen(12, constraint=words)]) for i in range(20)
    ]
    assert all(h.results[0].output().text.split(", ")[0] in ("cat", "dog", "horse") for h in handles)
    chosen = engine.submit(None, [Text(("The capital of France is",)), Select((" Berlin", " Paris", " Rome"))])
    assert chosen.results[0].output().text == " Paris"
    drawn = [
        engine.submit(
            None, [Text(("My favourite",)), Gen(SamplingParams(max_new_tokens=8, temperature=0.8, top_p=0.9), seed=7)]
        )
        for _ in range(3)
    ]
    assert len({h.results[0].output().text for h in drawn}) == 1
    engine.check()


def test_kv_in_fp8(reference):
    """Near the reference; a prefix that rows share, that was cached, or that came back from host memory is the same."""
    with lmc.Engine("smollm2", device="cuda", dtype="bfloat16", kv_dtype="fp8", max_tokens=8_000, host_memory="1GB") as small:
        assert small.server_info()["kv_dtype"] == "float8_e4m3fn"
        prompts = [*PROMPTS, *(SHARED + f"Number {i} is the" for i in range(40))]

        def texts() -> list[str]:
            handles = [small.submit(None, [Text((p,)), gen(24, ignore_eos=True)]) for p in prompts]
            return [h.results[0].output().text for h in handles]

        first = texts()
        others = [small.submit(None, [Text((f"{i}. " + SHARED,)), gen(4)]) for i in range(20)]  # more than the pool has room for
        assert all(h.results[0].output().text for h in others)
        again = texts()
        small.check()
    assert max(margin(reference, p, a) for p, a in zip(prompts[:8], first, strict=False)) < 1.5
    assert sum(a == b for a, b in zip(first, again, strict=True)) >= 36  # passes are cut otherwise, and a near tie may fall otherwise
