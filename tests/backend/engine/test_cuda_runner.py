"""The GPU's runner gives the reference's logits: captured and launched passes, any mix of rows, shared slots."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from lmc.backend.engine.attention.base import ForwardBatch, Span  # noqa: E402
from lmc.backend.engine.attention.torch_ref import reference  # noqa: E402
from lmc.backend.engine.forward_batch import Draft, ModelPass, Rows  # noqa: E402
from lmc.backend.engine.kv_pool import KVPool  # noqa: E402
from lmc.backend.engine.models import llama_weights  # noqa: E402
from lmc.backend.engine.models.config import ModelConfig  # noqa: E402
from lmc.backend.engine.radix_cache import Node, RadixCache  # noqa: E402
from lmc.backend.engine.request import Request, RequestKind  # noqa: E402
from lmc.backend.engine.sampler import Sampler  # noqa: E402

SLOTS, VOCAB = 4096, 500
BASE = {
    "num_layers": 3, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "hidden_size": 256, "intermediate_size": 384,
    "vocab_size": VOCAB, "max_context": 2048,
}  # fmt: skip
CONFIGS = {
    "llama": ModelConfig("llama", **BASE),
    "qwen2": ModelConfig("qwen2", **BASE, qkv_bias=True, tie_embeddings=True),
    "qwen3": ModelConfig("qwen3", **{**BASE, "head_dim": 128}, qk_norm=True),
    "window": ModelConfig("mistral", **BASE, sliding_window=40),
}


class Both:
    """The runner in bfloat16 beside the reference in float32, over pools of their own; both in FP8 if `kv` is."""

    def __init__(self, config: ModelConfig, kv: torch.dtype | None = None, buckets: Sequence[int] | None = None) -> None:
        from lmc.backend.engine.cuda_runner import BUCKETS, CudaRunner

        generator = torch.Generator().manual_seed(0)
        weights = {
            n: torch.randn(s, generator=generator) * 0.05 + (len(s) == 1) for n, s in llama_weights.shapes(config).items()
        }
        half = {n: w.to("cuda", torch.bfloat16) for n, w in weights.items()}
        shape = (config.num_layers, SLOTS, config.num_kv_heads, config.head_dim)
        self.runner = CudaRunner(
            llama_weights.build(half, config), KVPool(*shape, kv or torch.bfloat16, "cuda"), Sampler(config.vocab_size), buckets=buckets or BUCKETS
        )
        self.model = llama_weights.build({n: w.float() for n, w in half.items()}, config, plan=reference)
        self.kv = KVPool(*shape, kv or torch.float32, "cuda")
        self.rng = np.random.default_rng(1)
        self.most = 3e-2 if kv is None else 6e-2  # a number of K or V that rounds otherwise is off by a sixteenth

    def check(
        self, *spans: tuple[int, np.ndarray], below: dict[int, Node] | None = None, every: int = 1
    ) -> None:
        """A pass of (rows, slots of the context): the logits of each `every`-th row are near the reference's. `below`: the
        nodes of the radix tree where spans' prefixes end."""
        work = ModelPass()
        for i, (rows, slots) in enumerate(spans):
            ids = self.rng.integers(0, VOCAB, rows).astype(np.int32)
            req = Request(RequestKind.PREFILL, ids, lambda _: None)
            req.node = (below or {}).get(i)
            work.add(Rows(req, ids, len(slots) - rows, slots.astype(np.int64)))
        self.check_pass(work, list(range(0, work.rows, every)))

    def check_pass(self, work: ModelPass, wanted: list[int]) -> None:
        with torch.inference_mode():
            ours = self.runner.logits(work, wanted)
            expected = self.model.forward(_batch(work, wanted), self.kv)
        worst = ((ours - expected).norm(dim=-1) / expected.norm(dim=-1)).max()
        assert worst < self.most, f"a row is off by {worst:.3f}"


def _batch(work: ModelPass, wanted: list[int]) -> ForwardBatch:
    def to(array):
        return torch.as_tensor(np.asarray(array, np.int64), device="cuda")

    spans, start = [], 0
    for s in work.spans:
        spans.append(Span(start, len(s.ids), to(s.slots)))
        start += len(s.ids)
    return ForwardBatch(
        to(np.concatenate([s.ids for s in work.spans])),
        to(np.concatenate([np.arange(s.position, len(s.slots)) for s in work.spans])),
        to(np.concatenate([s.slots[s.position :] for s in work.spans])),
        tuple(spans),
        to(wanted),
    )


KV = [None, torch.float8_e4m3fn]


@pytest.mark.parametrize("kv", KV, ids=["", "fp8"])
@pytest.mark.parametrize("name", CONFIGS)
def test_captured_and_launched_passes_give_the_references_logits(name, kv):
    both = Both(CONFIGS[name], kv)
    slots = np.random.default_rng(0).permutation(SLOTS)
    shared, a, b, c, d = slots[:90], slots[100:400], slots[400:900], slots[1000:1400], slots[1500:1600]
    both.check((90, shared))  # a prompt, captured
    both.check((300, a), (100, b[:100]))  # prompts
    on = np.concatenate
    both.check((1, on((shared, c[:1]))), (1, on((shared, d[:1]))))  # siblings decode
    both.check(
        (1, on((shared, c[:2]))), (7, on((shared, d[:8]))), (20, b[:120])
    )  # decode, constants and a chunk together
    both.check((1, on((shared, c[:3]))))
    both.check((1, on((shared, c[:4]))), (380, b[:500]))


@pytest.mark.parametrize("kv", KV, ids=["", "fp8"])
@pytest.mark.parametrize("drafted", [1, 9, 40])
@pytest.mark.parametrize("then", ["the same", "another", "not begun"])
def test_a_pass_that_begins_before_it_is_planned_gives_the_references_logits(then, drafted, kv):
    """And another one that is launched behind it, in slots that it wrote to."""
    both = Both(CONFIGS["llama"], kv)
    slots = both.rng.permutation(SLOTS)[:400].astype(np.int64)
    both.check((300, slots[:300]))
    req = Request(RequestKind.GENERATE, both.rng.integers(0, VOCAB, 300).astype(np.int32), lambda _: None)

    def planned() -> ModelPass:
        ids = both.rng.integers(0, VOCAB, 1 + drafted).astype(np.int32)
        work = ModelPass(samples=[(0, req)], drafts={req: Draft(ids[1:], 1, 301, 0)}, checked=drafted)
        work.add(Rows(req, ids, 300, slots[: 301 + drafted]))
        return work

    foreseen, other = planned(), planned()
    assert both.runner.prepare(foreseen)
    if then != "not begun":
        both.runner.begin()
    both.check_pass(foreseen if then == "the same" else other, list(range(1 + drafted)))


def test_many_rows_that_decode():
    """A graph of so many rows also reads slots together, of which there are none here."""
    both = Both(CONFIGS["llama"])
    slots = np.random.default_rng(0).permutation(SLOTS)
    both.check(*((1, slots[5 * i : 5 * i + 1]) for i in range(600)))
    both.check(*((1, slots[5 * i : 5 * i + 2]) for i in range(600)))


def test_a_launched_pass_gives_the_logits_that_are_wanted_and_writes_all_kv():
    both = Both(CONFIGS["llama"])
    slots = np.random.default_rng(0).permutation(SLOTS)
    a, b = slots[:900], slots[1000:1700]
    both.check((899, a[:899]), (600, b[:600]), every=137)  # more rows than a graph has
    both.check((1, a), (100, b), every=1)  # reads what they wrote


def test_captured_passes_of_prompts_compute_the_last_layer_for_the_rows_that_are_wanted():
    from lmc.backend.engine.cuda_runner import BUCKETS_OF_FP8

    both = Both(CONFIGS["llama"], torch.float8_e4m3fn, BUCKETS_OF_FP8)
    slots = np.random.default_rng(0).permutation(SLOTS)
    a, b, c = slots[:1200], slots[1200:2400], slots[2400:2900]
    both.check((1199, a[:1199]), (200, b[:200]), every=137)
    both.check((1, a), (999, b[:1199]), (500, c), every=3)  # reads what they wrote
    both.check((1100, slots[2900:4000]), every=2)  # 550 rows are wanted
    assert set(both.runner._graphs) == {(1408, True, False), (1536, True, False), (1152, True, False)}


@pytest.mark.parametrize("kv", KV, ids=["", "fp8"])
def test_prefixes_that_groups_share_are_read_apart_and_merged(kv):
    both = Both(CONFIGS["llama"], kv)
    both.runner.share_from = 1
    slots, tree, on = np.random.default_rng(3).permutation(SLOTS), RadixCache(), np.concatenate
    first, second, alone, chunk = slots[:700], slots[700:1300], slots[1300:1500], slots[2000:2100]
    nodes = [
        tree.insert(tree.root, np.arange(len(p), dtype=np.int32) + 10**4 * i, p).node
        for i, p in enumerate((first, second))
    ]
    for prefix in (first, second):
        both.check((len(prefix), prefix))
    both.check((199, alone[:199]), (60, chunk[:60]))
    own = [slots[2200 + 40 * i :][:40] for i in range(20)]
    for step in range(1, 4):  # decode: two groups that lie mixed, one row of its own, and a chunk of a prompt
        spans, below = [], {}
        for i, tail in enumerate(own):
            prefix, node = ((first, nodes[0]), (second, nodes[1]))[i % 2]
            below[len(spans)] = node
            spans.append((1, on((prefix, tail[:step]))))
        spans.insert(5, (10, chunk[: 60 + 10 * step]))
        below = {i + (i >= 5): node for i, node in below.items()}
        if step == 1:
            spans.append((1, alone))
        both.check(*spans, below=below)
    assert any((rows, True, False) in both.runner._graphs for rows in (24, 32))


@pytest.mark.parametrize("share_from", [1, 1 << 30])
@pytest.mark.parametrize("kv", KV, ids=["", "fp8"])
@pytest.mark.parametrize("name", ["llama", "window"])
def test_rows_that_decode_are_read_apart_from_prompts_in_one_pass(name, kv, share_from):
    both = Both(CONFIGS[name], kv)
    both.runner.share_from = share_from if CONFIGS[name].sliding_window is None else None
    slots, tree, on = np.random.default_rng(3).permutation(SLOTS), RadixCache(), np.concatenate
    prefix, chunk = slots[:700], slots[700:800]
    node = tree.insert(tree.root, np.arange(len(prefix), dtype=np.int32), prefix).node
    both.check((700, prefix), every=50)
    both.check((88, chunk[:88]), every=10)
    siblings = [(1, on((prefix, slots[800 + i : 801 + i]))) for i in range(8)]
    prompts = [(700, slots[1000:1700]), (600, slots[1700:2300])]
    spans = [*siblings[:3], prompts[0], (12, chunk), prompts[1], *siblings[3:]]
    decoding = [i for i, (rows, _) in enumerate(spans) if rows == 1]
    both.check(*spans, below=dict.fromkeys(decoding, node), every=7)
    assert both.runner._flash is None or both.runner._large is not None
    both.check((1, on((prefix, slots[800:802]))), (1, prompts[1][1]))  # reads what they wrote


@pytest.mark.parametrize("room", [SLOTS, 256], ids=["", "without room"])
@pytest.mark.parametrize("name", CONFIGS)
def test_large_passes_widen_what_prompts_share_once(name, room, monkeypatch):
    from lmc.backend.engine import cuda_runner

    monkeypatch.setattr(cuda_runner, "_WIDENED", room)
    both = Both(CONFIGS[name], torch.float8_e4m3fn)
    slots, on = np.random.default_rng(0).permutation(SLOTS), np.concatenate
    shared, first, second, own = slots[:150], slots[200:500], slots[600:900], slots[1000:1100]
    both.check((150, shared))
    both.check((300, on((shared, first))), (300, on((shared, second))))  # 600 rows, of which all see the same 150 slots
    decoding = [(1, on((shared, first, own[i : i + 1]))) for i in range(40)]
    both.check(*decoding, (500, on((shared, slots[1200:1700]))), (120, on((shared[:70], slots[1800:1920]))), every=3)
    both.check((1300, slots[2000:3300]), (700, slots[3300:4000]), every=7)  # launched


def test_a_pass_without_wanted_rows_still_writes_its_kv():
    both = Both(CONFIGS["llama"])
    slots = np.arange(64)
    work = ModelPass()
    ids = both.rng.integers(0, VOCAB, 63).astype(np.int32)
    work.add(Rows(Request(RequestKind.PREFILL, ids, lambda _: None), ids, 0, slots[:63]))
    with torch.inference_mode():
        assert both.runner.logits(work, []).shape == (0, VOCAB)
        both.model.forward(_batch(work, []), both.kv)
    both.check((1, slots))


def test_a_pass_is_over_when_the_stream_of_its_thread_has_come_so_far():
    """Also if the engine was made within another stream: what tells that a pass is over is behind it."""
    with torch.cuda.stream(torch.cuda.Stream()):
        runner = Both(CONFIGS["llama"]).runner
    runner.attach()
    torch.cuda._sleep(1 << 26)  # tens of milliseconds
    assert not runner._mark().query()


def _folder(where: Path) -> str:
    """A directory of a small model without weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(map(chr, range(33, 33 + 96)))}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.save(str(where / "tokenizer.json"))
    shape = {
        "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
        "intermediate_size": 384, "num_hidden_layers": 2, "max_position_embeddings": 512, "eos_token_id": 3,
    }  # fmt: skip
    (where / "config.json").write_text(json.dumps(shape))
    return str(where)


def test_one_step_ahead_gives_the_same_answers(tmp_path, monkeypatch):
    """One request after the other, so that both ways compute the same shapes."""
    import lmc
    from lmc.segments import Constraint, Gen, SamplingParams, Text

    monkeypatch.setattr("lmc.backend.engine.engine._MOST_FORCED", 1.0)  # also where much is forced
    folder = _folder(tmp_path)

    class Waits:
        """The runner without its `launch`."""

        def __init__(self, runner) -> None:
            self.run = runner.run

    def answers(engine):
        found = []
        for i, (params, regex) in enumerate(
            (
                (SamplingParams(max_new_tokens=30, temperature=0.0, ignore_eos=True), None),
                (SamplingParams(max_new_tokens=30, temperature=1.0), None),
                (SamplingParams(max_new_tokens=30, temperature=1.0, top_k=5, ignore_eos=True), None),
                (SamplingParams(max_new_tokens=30, temperature=1.0, top_p=0.9, stop=("A", "B")), None),
                (SamplingParams(max_new_tokens=30, temperature=0.0), "[A-Za-z]{3,9}:(yes|no),[0-9]{2}"),
                (SamplingParams(max_new_tokens=30, temperature=1.0), "([A-F]{1,3}word)+[a-z]*"),
            )
        ):
            engine.flush_cache()
            bound = Constraint("regex", regex) if regex else None
            handle = engine.submit(None, [Text((f"prompt{i}",)), Gen(params, bound, seed=i)])
            found.append(handle.results[0].output().text)
        engine.check()
        return found

    with lmc.Engine(folder, load_format="dummy", device="cuda", max_tokens=2048) as engine:
        ahead = answers(engine)
        engine._core._runner = Waits(engine._core._runner)
        assert answers(engine) == ahead
        assert len(ahead[0]) == 30


@pytest.mark.parametrize("close", [True, False], ids=["closed", "dropped"])
@pytest.mark.parametrize("options", [{}, {"quantization": "fp8", "kv_dtype": "fp8"}, {"deterministic": True}, {"drafts": "auto"}], ids=str)
def test_a_closed_engine_gives_its_memory_back_without_a_collection(options, close, tmp_path):
    import lmc
    from lmc.segments import Constraint, Gen, SamplingParams, Text

    if "drafts" in options:
        options = {"draft_model": _folder(tmp_path)}
    asks = [Gen(SamplingParams(max_new_tokens=8)), Gen(SamplingParams(max_new_tokens=8), Constraint("regex", "[a-c]{3,8}"))]

    def used() -> int:
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def run() -> int:
        engine = lmc.Engine(_folder(tmp_path), device="cuda", load_format="dummy", max_tokens=200_000, **options)
        for ask in asks:
            engine.submit(None, [Text(("ab" * 20,)), ask]).results[0].output()
        most, runner, thread = used(), weakref.ref(engine._core._runner), engine._core._thread
        if close:
            engine.close()
            assert engine.counters().calls == 2
        else:
            del engine
            thread.join(60)
        assert runner() is None
        return most

    run()  # libraries take workspaces, which they keep
    gc.collect()
    before = used()
    gc.disable()
    try:
        assert run() - before > 100 << 20
        assert used() - before < 1 << 20
    finally:
        gc.enable()
