"""`deterministic=True`: the same bits for every batch, prefix hit, chunk and draft."""

from __future__ import annotations

import pytest

import lmc
from lmc.errors import ModelLoadError, ParameterError
from lmc.segments import ChoicesMethod, Gen, SamplingParams, Select, Text

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from lmc.backend.engine.attention.base import Span  # noqa: E402
from lmc.backend.engine.attention.fixed import FixedAttention, length_of  # noqa: E402
from lmc.backend.engine.attention.torch_ref import reference  # noqa: E402
from lmc.backend.engine.models.fixed import SIZES, Fixed, agreeing, silu  # noqa: E402
from tests.backend.engine.test_lora import make_base  # noqa: E402
from tests.searching import TIMES  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def two_threads():
    """Where threads part a row, some operations give it other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_base("llama", tmp_path_factory.mktemp("llama")).path


FEW = (0, 5, 9, 14, 21, 26, 35)  # of all kinds
PROMPTS = [("the order of " + "things and a brown cat " * (i % 9)) + str(i) for i in range(64)]


def asked(i: int) -> Gen | Select:
    if i % 16 == 5:
        return Select((" first", " another", " brown thing"), ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED)
    scored = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0 if i % 3 else None}
    return Gen(SamplingParams(max_new_tokens=14, temperature=0.8 if i % 2 else 0.0, frequency_penalty=0.2 * (i % 5), **scored), seed=i)


def numbers(engine, batch: int, prompts) -> list[object]:
    """Of each prompt, all that was told of its answer: tokens and log-probabilities, as they are."""
    found: list[object] = []
    for first in range(0, len(prompts), batch):
        some = [engine.submit(None, [Text((PROMPTS[i],)), asked(i)]) for i in prompts[first : first + batch]]
        for handle in some:
            output = handle.results[0].output()
            told = ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs", "unconditional_token_logprobs")
            found.append((output.texts, [output.metas[0].get(name) for name in told]))
    engine.check()
    return found


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return make_base("qwen3", tmp_path_factory.mktemp("qwen3")).path


ALL = tuple(range(64))
PART = ALL if TIMES else FEW
"""In `make nightly` all prompts are looked at."""


def check_batches(path, prompts, **options):
    options |= {"max_tokens": 8000, "deterministic": True}
    with lmc.Engine(path, cache="off", **options) as engine:
        alone = dict(zip(prompts, numbers(engine, 1, prompts), strict=True))
    for batch, more in ((3 if prompts is FEW else 7, {}), (64, {"chunk": 37}), (64, {"drafts": 5})):
        with lmc.Engine(path, **options, **more) as engine:
            assert numbers(engine, batch, prompts) == [*alone.values()]
            assert numbers(engine, 7, FEW) == [alone[i] for i in FEW], "behind what is cached"
            assert engine.counters().cached_tokens > 15 * len(prompts)


@pytest.mark.parametrize(("model", "dtype", "kv", "prompts"), [
    ("llama", None, None, PART), ("llama", "float32", None, PART), ("qwen3", None, None, PART), ("llama", "float32", "fp8", PART),
], ids=["half", "float32", "qwen3", "fp8"])  # fmt: skip
def test_batches_of_1_7_and_64_have_the_same_bits(model, dtype, kv, prompts, request):
    check_batches(request.getfixturevalue(model), prompts, device="cpu", dtype=dtype, kv_dtype=kv)


@pytest.mark.parametrize("kv", [None, "fp8"])
def test_computed_again_in_a_small_pool_and_for_several_samples(llama, kv):
    options = {"device": "cpu", "dtype": "float32", "kv_dtype": kv, "deterministic": True}
    with lmc.Engine(llama, max_tokens=8000, **options) as engine:
        alone = numbers(engine, 1, FEW)
        gen = Gen(SamplingParams(max_new_tokens=60, n=3, temperature=1.0, ignore_eos=True, return_logprob=True), seed=1)
        several = engine.submit(None, [Text((PROMPTS[3],)), gen]).results[0].output()
    with lmc.Engine(llama, max_tokens=190, chunk=24, **options) as engine:
        handles = [engine.submit(None, [Text((PROMPTS[3],)), gen]) for _ in range(3)]
        assert numbers(engine, 16, FEW) == alone
        outputs = [handle.results[0].output() for handle in handles]
        counters = engine.counters()
        assert counters.prefilled_tokens > 2 * counters.unique_tokens, "some was evicted, and computed again"
    for output in outputs:
        assert output.texts == several.texts
        assert [m["output_token_logprobs"] for m in output.metas] == [m["output_token_logprobs"] for m in several.metas]


def test_a_draft_model_changes_no_bits(llama):
    options = {"device": "cpu", "dtype": "float32", "max_tokens": 8000, "deterministic": True}
    with lmc.Engine(llama, **options) as engine:
        alone = numbers(engine, 1, FEW)
    with lmc.Engine(llama, draft_model=llama, drafts=5, **options) as engine:
        assert numbers(engine, 7, FEW) == alone
        assert engine.counters().accepted_tokens > 40


@pytest.mark.gpu
@pytest.mark.parametrize(("model", "dtype", "kv"), [("llama", "bfloat16", None), ("qwen3", "float16", None), ("llama", "bfloat16", "fp8")])
def test_on_a_gpu_batches_of_1_7_and_64_have_the_same_bits(model, dtype, kv, request):
    check_batches(request.getfixturevalue(model), ALL, device="cuda", dtype=dtype, kv_dtype=kv)


@pytest.mark.gpu
def test_on_a_gpu_the_small_model_has_the_same_bits():
    """With prompts of more than one piece of attention, in captured passes and launched ones."""
    texts = [" ".join(f"{i} {word}" for word in PROMPTS[-1].split() * (3 + 5 * (i % 9))) for i in range(40)]
    gen = Gen(SamplingParams(max_new_tokens=20, temperature=0.0, return_logprob=True, logprob_start_len=0, ignore_eos=True))

    def told(engine, batch: int) -> list[object]:
        found: list[object] = []
        for first in range(0, len(texts), batch):
            for handle in [engine.submit(None, [Text((text,)), gen]) for text in texts[first : first + batch]]:
                meta = handle.results[0].output().metas[0]
                found.append((meta["input_token_logprobs"], meta["output_token_logprobs"]))
        return found

    with lmc.Engine("smollm2", device="cuda", max_tokens=60000, deterministic=True) as engine:
        alone = told(engine, 1)
        engine.flush_cache()
        assert told(engine, 40) == alone
    with lmc.Engine("smollm2", device="cuda", max_tokens=60000, chunk=300, deterministic=True) as engine:
        assert told(engine, 7) == alone


def test_the_small_model():
    few = (1, 3, 12)
    with lmc.Engine("smollm2", device="cpu", max_tokens=1500, deterministic=True) as engine:
        together = numbers(engine, 3, few)
        engine.flush_cache()
        assert numbers(engine, 1, few) == together


def test_what_it_computes_is_what_the_model_says(qwen3):
    from lmc.backend.engine.models.loader import load
    from tests.backend.engine.model_fixtures import all_logits

    ids = torch.randint(0, 60, (90,), generator=torch.Generator().manual_seed(1)).tolist()
    found, right = (all_logits(load(qwen3, dtype="float32", deterministic=fixed), ids) for fixed in (True, False))
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)


# -- its parts -----------------------------------------------------------------------------------------------------------


class Library:
    """A product whose rows have something more, by how many rows there are and where each stands."""

    def __init__(self, more) -> None:
        self.more, self.weight, self.seen = more, torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), []

    def __call__(self, x):
        self.seen.append(len(x))
        return torch.stack([row @ self.weight for row in x]) + torch.tensor([self.more(len(x), i) for i in range(len(x))])[:, None]


@pytest.mark.parametrize(("more", "sizes"), [
    (lambda n, i: 0.0, SIZES),
    (lambda n, i: float(n == 1), SIZES[1:]),
    (lambda n, i: float(n in (1, 2, 48)), tuple(s for s in SIZES if s not in (1, 2, 48))),
    (lambda n, i: float(n > 8) * (n + i % 3), SIZES[:8]),
    (lambda n, i: float(n > 1 and i == 1), (1,)),
    (lambda n, i: float(n > 6 and i == n - 1), SIZES[:6]),
])  # fmt: skip
def test_numbers_of_rows_that_agree_are_found_and_no_others_used(more, sizes):
    library = Library(more)
    assert agreeing(library, 8) == sizes
    fixed, x = Fixed(library, sizes), torch.randn(600, 8, generator=torch.Generator().manual_seed(1))
    one = torch.cat([fixed(x[i : i + 1]) for i in range(600)])
    library.seen = []
    for n in (1, 2, 3, 7, 49, 64, 65, 255, 256, 257, 600):
        assert torch.equal(fixed(x[:n]), one[:n]) and torch.equal(fixed(x[600 - n :]), one[600 - n :])
    assert set(library.seen) <= set(sizes)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 16), (4, 2, 12)])
def test_attention_of_a_row_is_the_same_however_it_comes(heads, kv_heads, dim):
    generator = torch.Generator().manual_seed(0)
    plan, n = FixedAttention(heads, kv_heads, dim), 600
    keys, values = (torch.randn(2000, kv_heads, dim, generator=generator) for _ in range(2))
    slots, q = torch.randperm(2000, generator=generator)[:n], torch.randn(n, heads, dim, generator=generator)
    whole = plan((Span(0, n, slots),)).attend(q, keys, values)
    right = reference((Span(0, n, slots),)).attend(q.double(), keys.double(), values.double())
    torch.testing.assert_close(whole.double(), right, atol=2e-6, rtol=1e-5)
    for cut in (37, 100):
        parts = [plan((Span(0, min(cut, n - s), slots[: s + cut]),)).attend(q[s : s + cut].clone(), keys, values) for s in range(0, n, cut)]
        assert torch.equal(torch.cat(parts), whole)
    rows = torch.randperm(n, generator=generator)[:50].tolist()
    mixed = (*(Span(i, 1, slots[: row + 1]) for i, row in enumerate(rows)), Span(50, 30, slots[:430]))
    found = plan(mixed).attend(torch.cat((q[rows], q[400:430])), keys, values)
    assert torch.equal(found, whole[[*rows, *range(400, 430)]])


def test_a_context_is_filled_up_by_its_length_alone():
    assert [length_of(n) for n in (1, 16, 17, 257, 512, 513, 1024, 1025, 1500)] == [16, 16, 32, 272, 512, 640, 1024, 1280, 1536]
    assert all(n <= length_of(n) <= 1.25 * n for n in range(256, 3000))


def test_silu_of_a_row_is_the_same_where_threads_part_it():
    x = torch.randn(461, 160, generator=torch.Generator().manual_seed(0)).chunk(2, -1)[0]
    assert torch.equal(silu(x), torch.cat([silu(x[i : i + 1]) for i in range(461)]))


# -- what cannot be --------------------------------------------------------------------------------------------------------


def test_what_has_no_fixed_numbers_is_refused(llama, tmp_path):
    import transformers

    from tests.backend.engine.test_device_automata import EOS, trained

    def refused(source: str, said: str, **options) -> None:
        with pytest.raises(ModelLoadError, match=said):
            lmc.Engine(source, device="cpu", max_tokens=64, deterministic=True, **options)

    refused(llama, "on a CPU it computes in float32; leave dtype out", dtype="bfloat16")
    refused(llama, r"with deterministic=True: .*|FP8", quantization="fp8")
    refused(llama, "for one device, tp=1", tp=2)
    refused(make_base("mixtral", tmp_path / "experts").path, "mixtures of experts are not supported; leave deterministic out")
    shape = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
    words = trained()
    for name, kind, more, said in (
        ("window", "Mistral", {"sliding_window": 16}, "sliding windows are not"), ("theirs", "Gemma", {"head_dim": 12}, "transformers' own code are not"),
    ):  # fmt: skip
        config = getattr(transformers, f"{kind}Config")(
            **shape, **more, vocab_size=words.get_vocab_size(), eos_token_id=EOS, bos_token_id=None, pad_token_id=None
        )
        getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(tmp_path / name)
        words.save(str(tmp_path / name / "tokenizer.json"))
        refused(str(tmp_path / name), said)


@pytest.mark.parametrize(("options", "said"), [
    ({"deterministic": 3}, "deterministic is 3; it can be True or False"),
    ({"deterministic": "yes"}, "deterministic is 'yes'; it can be True or False"),
    ({"deterministic": True, "adapters": {"x": "y"}}, "adapters with deterministic=True are not supported"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused(options, said):
    with pytest.raises(ParameterError, match=said):
        lmc.Engine("nowhere", **options)
