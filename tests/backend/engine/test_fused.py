"""The layers of a GPU equal the reference's: compiled on one, else under Triton's interpreter (conftest.py)."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from lmc.backend.engine.attention.base import ForwardBatch, PictureRows, Span  # noqa: E402
from lmc.backend.engine.distributed.group import GatheredHead, RankGroup, Summed  # noqa: E402
from lmc.backend.engine.kv_pool import KVPool  # noqa: E402
from lmc.backend.engine.models import llama_weights  # noqa: E402
from lmc.backend.engine.models.config import ModelConfig  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BASE = {
    "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 80, "max_context": 64,
}  # fmt: skip
CONFIGS = {
    "llama": ModelConfig("llama", **BASE),
    "qwen3": ModelConfig("qwen3", **BASE, qk_norm=True, tie_embeddings=True),
    "mixtral": ModelConfig("mixtral", **BASE, num_experts=4, experts_per_token=2, expert_size=96),
    "qwen3_moe": ModelConfig("qwen3_moe", **BASE, num_experts=6, experts_per_token=3, expert_size=48, qk_norm=True, normed_experts=False),
}


def causal(q, keys, values):
    """Of one sequence whose slots are 0, 1, …"""
    n, group = len(q), q.shape[1] // keys.shape[1]
    k, v = (x[:n].repeat_interleave(group, 1).transpose(0, 1) for x in (keys, values))
    return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True).transpose(0, 1).contiguous()


@pytest.mark.parametrize(("name", "spread"), [("llama", False), ("llama", True), ("qwen3", False), ("mixtral", True), ("qwen3_moe", False)])
def test_each_layer_gives_the_references_numbers(name, spread, tmp_path):
    pytest.importorskip("triton")
    from lmc.backend.engine.models.fused import FusedLlama

    config, generator = CONFIGS[name], torch.Generator().manual_seed(0)
    weights = {n: (torch.randn(s, generator=generator) * 0.2 + (len(s) == 1)).to(DEVICE) for n, s in llama_weights.shapes(config).items()}
    wrap = {}
    if spread:  # as a rank has it whose group has no other
        group = RankGroup(0, 1, 10.0)
        group.connect(torch.distributed.FileStore(str(tmp_path / "store"), group.ranks), torch.device(DEVICE))
        wrap["wrap"] = lambda n, m: (
            GatheredHead(m, group, config.vocab_size, config.vocab_size)
            if n == "head"
            else Summed(m, group, 0)
            if n.endswith((".o", ".down", ".experts"))
            else m
        )
    model = llama_weights.build(weights, config, **wrap)
    shape, rows = (config.num_layers, 20, config.num_kv_heads, config.head_dim), 17
    ours, theirs = (KVPool(*shape, torch.float32, DEVICE) for _ in range(2))
    ids, at = torch.randint(0, 80, (rows,), generator=generator).to(DEVICE), torch.arange(rows, device=DEVICE)
    expected = model.forward(ForwardBatch(ids, at, at, (Span(0, rows, at),), at), theirs)
    fused = FusedLlama(model)
    with torch.inference_mode():
        inputs = (ids.int(), at.int(), at.int())
        hidden = fused.hidden(inputs, torch.zeros(1, dtype=torch.int32, device=DEVICE), ours, causal)
        found = fused.logits(hidden)
        last = fused.logits(fused.hidden(inputs, torch.zeros(1, dtype=torch.int32, device=DEVICE), ours, causal, at[[16, 3]].int()))
    near = {"atol": 2e-4 * float(expected.std()), "rtol": 1e-3}
    torch.testing.assert_close(found, expected, **near)
    torch.testing.assert_close(last, expected[[16, 3]], **near)
    torch.testing.assert_close(ours.key(1)[:rows], theirs.key(1)[:rows], atol=1e-4, rtol=1e-3)
    assert len(fused.matrices) == config.num_layers * (2 if config.num_experts else 4)


@pytest.mark.parametrize(("name", "inner"), [("llama", 96), ("qwen3", 96), ("llama", 256)], ids=["llama", "qwen3", "llama-blocks"])
def test_layers_in_fp8_give_the_references_numbers(name, inner, monkeypatch):
    """With MLPs in blocks where those are whole."""
    pytest.importorskip("triton")
    from dataclasses import replace

    from lmc.backend.engine.kernels.activation import silu_mul_reference
    from lmc.backend.engine.models import fp8
    from lmc.backend.engine.models import fused as module
    from lmc.backend.engine.models.fused import FusedLlama

    if DEVICE == "cpu":  # the interpreter's conversion is wrong for some numbers (test_fp8.py)
        monkeypatch.setattr(module, "add_rms_norm_quantized", lambda *given: fp8.quantize_reference(module.add_rms_norm(*given)))
        monkeypatch.setattr(module, "silu_mul_quantized", lambda x: fp8.quantize_reference(module.silu_mul(x)))
    config, generator = replace(CONFIGS[name], intermediate_size=inner), torch.Generator().manual_seed(0)
    weights = {n: (torch.randn(s, generator=generator) * 0.2 + (len(s) == 1)).to(DEVICE) for n, s in llama_weights.shapes(config).items()}
    small = lambda n, m: m if n == "head" else fp8.fp8(m.weight)
    model = llama_weights.build(weights, config, wrap=small)
    quantized, multiplied = [], []
    monkeypatch.setattr(fp8.Fp8, "quantized", staticmethod(lambda x: quantized.append(len(x)) or fp8.Quantized(*fp8.quantize_reference(x), x.dtype)))

    def multiply(matrix, x):
        if isinstance(matrix, fp8.Fp8):
            x = fp8.Fp8.quantized(x) if isinstance(x, torch.Tensor) else x
            multiplied.append(len(x))
            return F.linear(x.rows.float() * x.scales, matrix.weight.float() * matrix.scale.t())
        return matrix(x)

    def multiply_blocks(matrix, x):
        return F.linear(fp8.BlockQuantized.reference(x).dequantized(), matrix.weight.float() * matrix.scale.t())

    def mlp(gate_up, down, x):
        inner = silu_mul_reference(multiply(gate_up, x))
        multiplied.append(2 * len(inner))
        return multiply_blocks(down, inner)

    shape, rows = (config.num_layers, 43, config.num_kv_heads, config.head_dim), 40  # of which MLPs are gated inside
    ours, theirs = (KVPool(*shape, torch.float32, DEVICE) for _ in range(2))
    ids, at = torch.randint(0, 80, (rows,), generator=generator).to(DEVICE), torch.arange(rows, device=DEVICE)
    def reference(matrix, x):
        return matrix.reference(x) if matrix.weight.shape[1] != 256 else multiply_blocks(matrix, x)

    with monkeypatch.context() as patch:
        patch.setattr(fp8.Fp8, "__call__", reference)
        expected = model.forward(ForwardBatch(ids, at, at, (Span(0, rows, at),), at), theirs)
    fused = FusedLlama(model, multiply, mlp)
    with torch.inference_mode():
        found = fused.logits(fused.hidden((ids.int(), at.int(), at.int()), torch.zeros(1, dtype=torch.int32, device=DEVICE), ours, causal))
    assert float((found - expected).norm() / expected.norm()) < 0.03, "e4m3 rounds sums of other orders apart"
    assert multiplied == [rows, rows, rows, 2 * rows if inner == 256 else rows] * config.num_layers
    assert len(quantized) == config.num_layers, "of the outputs of attention; the others by the norm and the activation before"


@pytest.mark.parametrize("axes", [None, (0,) * 6 + (1,) * 5 + (2,) * 5, (0, 1, 2) * 5 + (0,)], ids=["in a row", "axes in sections", "axes interleaved"])
@pytest.mark.parametrize("deeper", [0, 2])
def test_rows_of_pictures_give_the_references_numbers(deeper, axes):
    """Features in place of embeddings and behind the first layers, positions on three axes; what follows is behind the picture."""
    pytest.importorskip("triton")
    from dataclasses import replace

    from lmc.backend.engine.models.fused import FusedLlama

    generator = torch.Generator().manual_seed(0)
    config = replace(CONFIGS["qwen3"], num_layers=3, rope_axes=axes or ())
    noise = lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)
    model = llama_weights.build({n: noise(*s) * 0.2 + (len(s) == 1) for n, s in llama_weights.shapes(config).items()}, config)
    shape, rows = (config.num_layers, 20, config.num_kv_heads, config.head_dim), 17
    ours, theirs, others = (KVPool(*shape, torch.float32, DEVICE) for _ in range(3))
    ids, slots = torch.randint(0, 80, (rows,), generator=generator).to(DEVICE), torch.arange(rows, device=DEVICE)
    pictures = torch.tensor([2, 3, 4, 5, 6, 7, 11, 12], device=DEVICE)
    places = torch.tensor([[2, 2, 2, 2, 2, 2, 8, 8], [2, 2, 2, 3, 3, 3, 8, 8], [2, 3, 4, 2, 3, 4, 8, 9]], device=DEVICE)
    at = slots if axes is None else slots - 3 * (slots > 7)
    seen = PictureRows(pictures, noise(8, 64), tuple(noise(8, 64) for _ in range(deeper)), None if axes is None else places)
    batch = ForwardBatch(ids, at, slots, (Span(0, rows, slots),), slots)
    expected, blind = model.forward(replace(batch, seen=seen), theirs), model.forward(batch, others)
    assert float((expected - blind).abs().max()) > 0.1
    fused = FusedLlama(model)
    with torch.inference_mode():
        inputs, sampled = (ids.int(), at.int(), slots.int()), torch.zeros(1, dtype=torch.int32, device=DEVICE)
        found = fused.logits(fused.hidden(inputs, sampled, ours, causal, seen=seen))
        last = fused.logits(fused.hidden(inputs, sampled, ours, causal, slots[[16, 3]].int(), seen))
    near = {"atol": 2e-4 * float(expected.std()), "rtol": 1e-3}
    torch.testing.assert_close(found, expected, **near)
    torch.testing.assert_close(last, expected[[16, 3]], **near)
    torch.testing.assert_close(ours.key(1)[:rows], theirs.key(1)[:rows], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral"])
def test_rows_with_adapters_give_the_references_numbers(name):
    """Some rows with one, some with another, some with none; the last layer has some of the rows alone."""
    pytest.importorskip("triton")
    from lmc.backend.engine.models.adapters import AdaptedRows, Adapters, Factors
    from lmc.backend.engine.models.fused import FusedLlama
    from lmc.backend.engine.models.layout import sizes

    config, generator = CONFIGS[name], torch.Generator().manual_seed(0)
    noise = lambda *shape: torch.randn(*shape, generator=generator) * 0.2
    weights = {n: (noise(*s) + (len(s) == 1)).to(DEVICE) for n, s in llama_weights.shapes(config).items()}
    every = []
    for rank, kinds in ((3, ("qkv", "o", "gate_up", "down")), (5, ("qkv", "down"))):
        adapter = {}
        for kind in kinds[: 2 if config.num_experts else 4]:
            rows, columns = sizes(config, kind)
            parts = [AdaptedRows(sum(rows[:i]), noise(n, rank)) for i, n in enumerate(rows) if i != 1]
            adapter |= {(layer, kind): Factors(noise(rank * len(parts), columns), tuple(parts)) for layer in range(config.num_layers)}
        every.append(adapter)
    model = llama_weights.build(weights, config)
    model.adapters = Adapters(every, torch.float32, torch.device(DEVICE))
    shape, rows = (config.num_layers, 20, config.num_kv_heads, config.head_dim), 17
    ours, theirs = (KVPool(*shape, torch.float32, DEVICE) for _ in range(2))
    ids, at = torch.randint(0, 80, (rows,), generator=generator).to(DEVICE), torch.arange(rows, device=DEVICE)
    numbers = torch.randint(0, 3, (rows,), generator=generator).to(DEVICE)
    batch = ForwardBatch(ids, at, at, (Span(0, rows, at),), at)
    expected, without = model.forward(ForwardBatch(ids, at, at, (Span(0, rows, at),), at, adapters=numbers), theirs), model.forward(batch, ours)
    assert float((expected - without).abs().max()) > 0.1
    fused = FusedLlama(model)
    assert fused.adapters is not None
    with torch.inference_mode():
        inputs, sampled = (ids.int(), at.int(), at.int()), torch.zeros(1, dtype=torch.int32, device=DEVICE)
        found = fused.logits(fused.hidden(inputs, sampled, ours, causal, adapters=numbers.int()))
        last = fused.logits(fused.hidden(inputs, sampled, ours, causal, at[[16, 3]].int(), adapters=numbers.int()))
        plain = fused.logits(fused.hidden(inputs, sampled, ours, causal))
    near = {"atol": 2e-4 * float(expected.std()), "rtol": 1e-3}
    torch.testing.assert_close(found, expected, **near)
    torch.testing.assert_close(last, expected[[16, 3]], **near)
    torch.testing.assert_close(plain, without, **near)
