"""FP8: the kernel and torch's products against the reference, models in it, and checkpoints that are."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from lmc.backend.engine.models.quantization import is_fp8
from lmc.errors import ModelLoadError
from lmc.segments import Gen, SamplingParams, Text
from tests.backend.engine.test_device_automata import folder

__all__ = ["folder"]  # a fixture
torch: Any = None  # imported when the first test runs: collecting this file must not need it


@pytest.fixture(scope="module")
def f8():
    global torch
    torch = pytest.importorskip("torch")
    from lmc.backend.engine.models import fp8, llama_weights, loader

    return SimpleNamespace(**vars(fp8), llama_weights=llama_weights, loader=loader, device="cuda" if torch.cuda.is_available() else "cpu")


def noise(*shape: int, seed: int = 0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.model
def test_rows_are_quantized_by_their_own_largest(f8):
    x = torch.cat((noise(4, 96), torch.zeros(1, 96), noise(1, 96) * 1e6, noise(1, 96) * 1e-9))
    rows, scales = f8.quantize_reference(x)
    assert rows.float().abs().amax(1).tolist() == [448.0] * 4 + [0.0] + [448.0] * 2
    error = (rows.float() * scales - x).abs() / x.abs().amax(1, keepdim=True).clamp_min(1e-30)
    assert float(error.max()) <= 1 / 28 + 1e-6, "four bits of significand, the largest of them half a step of 32 off"
    assert torch.isnan(f8.quantize_reference(torch.full((1, 4), torch.nan))[0].float()).all()


@pytest.mark.model
def test_weights_have_the_scales_of_least_error(f8, monkeypatch):
    weight = torch.cat((noise(40, 512), torch.zeros(1, 512), 17.0 * torch.ones(1, 512), torch.full((1, 512), torch.nan)))

    def error(rows, scales):
        return (rows.float() * scales - weight)[:-1].square().sum(1)

    plain, found = f8.quantize_reference(weight), f8.quantize_weight(weight)
    assert bool((error(*found) <= error(*plain)).all())
    assert float(error(*found).sum()) < 0.9 * float(error(*plain).sum())
    assert float(error(*found)[-2:].max()) < 1e-6 and bool(torch.isnan(found[0][-1].float()).all())
    monkeypatch.setattr("lmc.backend.engine.models.fp8._AT_ONCE", 600)  # a row at a time
    for mine, same in zip(found, f8.quantize_weight(weight), strict=True):
        assert torch.equal(mine.view(torch.uint8), same.view(torch.uint8))
    assert torch.equal(f8.fp8(weight[:32]).scale[0], found[1][:32, 0])


@pytest.mark.model
@pytest.mark.parametrize("columns", [16, 96, 1500])
def test_the_kernel_equals_the_reference(f8, columns):
    pytest.importorskip("triton")
    from lmc.backend.engine.kernels.quantize import quantize

    x = torch.cat((noise(5, columns), torch.zeros(1, columns), noise(1, columns) * 1e5)).to(f8.device)
    rows, scales = quantize(x)
    right, same = f8.quantize_reference(x)
    assert torch.equal(scales, same)
    differs = rows.view(torch.uint8) != right.view(torch.uint8)
    if f8.device == "cpu":  # the interpreter forgets the carry where a number is rounded up to a power of two
        differs &= torch.frexp(right.float().abs())[0] != 0.5
    assert not bool(differs.any())
    assert quantize(x[:0])[0].shape == (0, columns)


@pytest.mark.model
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_torchs_products_equal_the_reference(f8, rows):
    x, weight = noise(rows, 96), noise(64, 96, seed=1)
    matrix = f8.fp8(weight.to(f8.device))
    quantized = f8.quantize_reference(x.to(f8.device))
    found = matrix.multiply(f8.Quantized(*quantized, torch.bfloat16)).float()
    right = matrix.reference(x.to(f8.device))
    torch.testing.assert_close(found, right, atol=2e-2, rtol=1e-2)
    exact = x @ weight.T
    assert float((right.cpu() - exact).norm() / exact.norm()) < 0.06


@pytest.mark.model
@pytest.mark.parametrize(("rows", "outputs", "columns", "split"), [(1, 64, 512, 4), (5, 160, 528, 2), (17, 96, 1040, 4), (64, 80, 256, 1)])
def test_products_of_few_rows_equal_the_reference(f8, rows, outputs, columns, split):
    pytest.importorskip("triton")
    from lmc.backend.engine.kernels.few_rows import Cut, FewRows, cut_of

    few = FewRows(torch.device(f8.device))
    matrix = f8.fp8(noise(outputs, columns, seed=1).to(f8.device))
    for seed in (2, 3):  # counters are 0 again after each product
        x = noise(rows, columns, seed=seed).to(f8.device)
        for cut in (Cut(64, 128, 3, split), cut_of(outputs)):
            found = few.multiply(*f8.quantize_reference(x), matrix.weight, matrix.scale, torch.float32, cut)
            right = matrix.reference(x)
            assert float((found - right).norm() / right.norm()) < (1e-3 if f8.device == "cuda" else 1e-5), "tensor cores add with 14 bits"
    assert few.multiply(*f8.quantize_reference(x[:0]), matrix.weight, matrix.scale, torch.float32).shape == (0, outputs)


def gated_apart(f8, few, x, matrix):
    """By the kernels that `FewRows.gate` is in place of."""
    from lmc.backend.engine.kernels.activation import silu_mul
    from lmc.backend.engine.kernels.quantize import quantize

    rows, scales = quantize(silu_mul(few.multiply(x.rows, x.scales, matrix.weight, matrix.scale, x.dtype)).view(-1, f8.BLOCK))
    return f8.BlockQuantized(rows.view(len(x), -1), scales.view(len(x), -1).t().contiguous(), x.dtype)


def check_gated(f8, rows, inner, columns, dtype, cuts=(None,)):
    from lmc.backend.engine.kernels.activation import silu_mul_reference
    from lmc.backend.engine.kernels.few_rows import FewRows

    few = FewRows(torch.device(f8.device))
    matrix = f8.fp8(noise(2 * inner, columns, seed=1).to(f8.device) * columns**-0.5)
    for seed in (2, 3):  # counters are 0 again after each product
        x = f8.Quantized(*f8.quantize_reference((noise(rows, columns, seed=seed) * 3).to(f8.device)), dtype)
        apart = gated_apart(f8, few, x, matrix)
        both = x.rows.float() * x.scales @ (matrix.weight.float() * matrix.scale.t()).t()
        right = silu_mul_reference(both)
        for cut in cuts:
            found = few.gate(x.rows, x.scales, matrix.weight, matrix.scale, dtype, cut)
            assert found.rows.shape == (rows, inner) and found.block_scales.shape == (inner // f8.BLOCK, f8.padded(rows)) and found.dtype == dtype
            torch.testing.assert_close(
                found.block_scales[:, :rows], apart.block_scales[:, :rows], atol=0, rtol=1e-5 if cut is None and dtype == torch.float32 else 1e-2
            )
            error = float((found.dequantized() - right).norm() / right.norm())
            assert error < (0.03 if f8.device == "cuda" else 0.08), "four bits of significand; the interpreter forgets carries, see above"
            differs = (found.rows.view(torch.uint8) != apart.rows.view(torch.uint8)).float().mean()
            assert float(differs) < (1e-2 if dtype == torch.float32 else 0.1), "sums in another order round few of them to their neighbours"
    assert few.gate(x.rows[:0], x.scales[:0], matrix.weight, matrix.scale, dtype).rows.shape == (0, inner)


def check_blocks(f8, rows, outputs, columns, cuts=(None,)):
    from lmc.backend.engine.kernels.few_rows import FewRows

    few = FewRows(torch.device(f8.device))
    matrix = f8.fp8(noise(outputs, columns, seed=1).to(f8.device))
    for seed in (2, 3):
        sizes = 10.0 ** torch.randint(-1, 2, (rows, columns // f8.BLOCK), generator=torch.Generator().manual_seed(seed))  # of blocks, far apart
        x = f8.BlockQuantized.reference((noise(rows, columns, seed=seed) * sizes.repeat_interleave(f8.BLOCK, 1)).to(f8.device))
        right = x.dequantized() @ (matrix.weight.float() * matrix.scale.t()).t()
        for cut in cuts:
            found = few.multiply_blocks(x, matrix.weight, matrix.scale, cut)
            assert float((found - right).norm() / right.norm()) < (1e-3 if f8.device == "cuda" else 1e-5), "tensor cores add with 14 bits"
    assert few.multiply_blocks(f8.BlockQuantized.reference(noise(0, columns).to(f8.device)), matrix.weight, matrix.scale).shape == (0, outputs)


@pytest.mark.model
def test_blocks_of_rows_are_quantized_by_their_own_largest(f8):
    x = torch.cat((noise(3, 256) * torch.tensor((1.0, 1e4)).repeat_interleave(128), torch.zeros(1, 256)))
    found = f8.BlockQuantized.reference(x)
    assert found.block_scales.shape == (2, 16) and found.rows.float().view(4, 2, 128).abs().amax(2).tolist() == [[448.0] * 2] * 3 + [[0.0] * 2]
    error = (found.dequantized() - x).abs().view(4, 2, 128) / x.abs().view(4, 2, 128).amax(2, keepdim=True).clamp_min(1e-30)
    assert float(error.max()) <= 1 / 28 + 1e-6
    rows, scales = f8.quantize_reference(x[:, 128:])
    assert torch.equal(found.rows[:, 128:].float(), rows.float()) and torch.equal(found.block_scales[1, :4], scales[:, 0])


@pytest.mark.model
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 128, 512), (5, 256, 528), (17, 384, 272)])
def test_gates_of_few_rows_equal_the_kernels_they_replace(f8, rows, inner, columns):
    pytest.importorskip("triton")
    from lmc.backend.engine.kernels.few_rows import Cut

    check_gated(f8, rows, inner, columns, torch.float32, (None, Cut(128, 128, 3, 1, 8), Cut(128, 128, 4, 2, 8)))


@pytest.mark.model
@pytest.mark.parametrize(("rows", "outputs", "columns"), [(1, 64, 512), (5, 160, 640), (17, 96, 1152)])
def test_products_of_blocks_equal_the_reference(f8, rows, outputs, columns):
    pytest.importorskip("triton")
    from lmc.backend.engine.kernels.few_rows import Cut

    check_blocks(f8, rows, outputs, columns, (None, Cut(64, 128, 3, 1), Cut(64, 128, 3, 4)))


@pytest.mark.gpu
@pytest.mark.parametrize(("hidden", "inner"), [(4096, 14336), (576, 1536)], ids=["8B", "SmolLM2"])
@pytest.mark.parametrize("rows", [1, 7, 40, 64, 128])
def test_whole_gates_and_blocks_equal_the_reference(f8, rows, hidden, inner):
    check_gated(f8, rows, inner, hidden, torch.bfloat16)
    check_gated(f8, rows, inner, hidden, torch.float32)
    check_blocks(f8, rows, hidden, inner)


@pytest.mark.model
def test_an_mlp_of_few_rows_is_near_its_matrices_one_by_one(f8):
    pytest.importorskip("triton")
    from lmc.backend.engine.gemm_tuning import TunedGemm
    from lmc.backend.engine.kernels.activation import silu_mul
    from lmc.backend.engine.kernels.few_rows import can_gate

    weights = [noise(*shape, seed=i).to(f8.device) * shape[1] ** -0.5 for i, shape in enumerate(((512, 96), (96, 256)))]
    bias = noise(96).to(f8.device)
    gate_up, down = f8.fp8(weights[0]), f8.fp8(weights[1], None, bias)
    x = f8.Quantized(*f8.quantize_reference((noise(9, 96, seed=2) * 3).to(f8.device)), torch.bfloat16)
    times: Any = TunedGemm(SimpleNamespace(), None)  # pyright: ignore[reportArgumentType]
    found = times.mlp(gate_up, down, x).float()
    both = times(gate_up, x)
    right = silu_mul(both).float() @ (down.weight.float() * down.scale.t()).t() + bias
    assert found.shape == (9, 96) and float((found - right).norm() / right.norm()) < (0.04 if f8.device == "cuda" else 0.08)
    assert [can_gate(gate_up, rows) for rows in (16, 24, 40, 64, 65)] == [True, False, True, True, False]
    assert not can_gate(f8.fp8(weights[0], None, noise(512)), 1) and not can_gate(f8.fp8(weights[0][:192]), 1)


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_are_quantized_as_they_would_be_stored(f8, dtype):
    """By the norm and the activation before a product."""
    pytest.importorskip("triton")
    from lmc.backend.engine.kernels.activation import silu_mul, silu_mul_quantized
    from lmc.backend.engine.kernels.norm import add_rms_norm, add_rms_norm_quantized
    from lmc.backend.engine.kernels.quantize import quantize

    dtype = getattr(torch, dtype)
    x, residual, weight = (noise(*shape, seed=i).to(f8.device, dtype) for i, shape in enumerate(((5, 96), (5, 96), (96,))))
    for added in (x, None):
        first, second = residual.clone(), residual.clone()
        expected = quantize(add_rms_norm(added, first, weight, 1e-5))
        found = add_rms_norm_quantized(added, second, weight, 1e-5)
        assert torch.equal(first, second) and torch.equal(found[1], expected[1])
        assert torch.equal(found[0].view(torch.uint8), expected[0].view(torch.uint8))
    found, expected = silu_mul_quantized(x), quantize(silu_mul(x))
    assert torch.equal(found[1], expected[1]) and torch.equal(found[0].view(torch.uint8), expected[0].view(torch.uint8))
    assert len(silu_mul_quantized(x[:0])[0]) == len(add_rms_norm_quantized(None, residual[:0], weight, 1e-5)[0]) == 0


@pytest.mark.model
def test_biases_are_added_and_odd_shapes_are_left(f8):
    x, weight, bias = noise(3, 32), noise(48, 32, seed=1), noise(48, seed=2)
    with_bias, without = f8.fp8(weight, None, bias), f8.fp8(weight)
    torch.testing.assert_close(with_bias(x), without(x) + bias)
    assert f8.fp8(noise(24, 32)) is None and f8.fp8(noise(32, 40)) is None


# -- models --------------------------------------------------------------------------------------------------------


def logits(model, ids=tuple(range(3, 23))):
    from tests.backend.engine.model_fixtures import PlainKV, batch

    loaded = SimpleNamespace(config=model.config, dtype=model.dtype)
    return model.forward(batch((list(ids), range(len(ids))), logits=range(len(ids))), PlainKV(loaded, len(ids)))  # pyright: ignore[reportArgumentType]


@pytest.mark.model
def test_a_model_in_fp8_is_near_the_one_that_it_was_made_of(f8, folder):
    whole = f8.loader.load(folder, dtype="float32", load_format="dummy")
    small = f8.loader.load(folder, dtype="float32", load_format="dummy", quantization="fp8")
    assert small.weights == "float8_e4m3fn" and isinstance(small.model.layers[0].qkv, f8.Fp8)
    a, b = logits(whole.model), logits(small.model)
    assert 0 < float((a - b).norm() / a.norm()) < 0.1
    for layer in small.model.layers:  # the same as if each product were that of the dequantized matrix, but for the rows
        assert layer.down.weight.dtype == f8.E4M3 and layer.down.scale.shape == (1, layer.down.weight.shape[0])


@pytest.mark.model
@pytest.mark.parametrize("options", [{}, {"tp": 2, "kv_dtype": "fp8"}], ids=["alone", "two ranks, KV in FP8"])
def test_an_engine_answers_in_fp8(folder, options):
    import lmc

    with lmc.Engine(folder, load_format="dummy", device="cpu", max_tokens=512, quantization="fp8", **options) as engine:
        handle = engine.submit(None, [Text(("the order",)), Gen(SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True))])
        assert handle.results[0].output().usage.completion_tokens == 8


def checkpoint(f8, folder, path, scheme: dict[str, Any], per: str, *, beside: bool = False):
    """The model of `folder` as an FP8 checkpoint at `path`; and the same with its weights dequantized, at `path`-plain."""
    from safetensors.torch import save_file

    config = json.loads((folder / "config.json").read_text())
    names = f8.llama_weights.their_shapes(f8.loader.load(str(folder), dtype="float32", load_format="dummy").config)
    quantized: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for i, (name, shape) in enumerate(names.items()):
        if name.endswith("bias") or ("_norm.weight" in name and "q_norm" in name) or "k_norm" in name:
            continue
        weight = torch.ones(shape) if len(shape) == 1 else noise(*shape, seed=i) * 0.05
        if "_proj" in name:
            scale = weight.abs().amax(1, keepdim=True) / 448 if per == "channel" else weight.abs().amax().reshape(()) / 448
            quantized[name] = (weight / scale).to(f8.E4M3)
            quantized[name.replace(".weight", ".weight_scale")] = scale
            quantized[name.replace(".weight", ".input_scale")] = torch.tensor(0.01)
            if (which := name.split(".")[-2][0]) in "kv":  # of KV, which ModelOpt writes and lmc does not use
                quantized[name.replace(".weight", f".{which}_scale")] = torch.tensor(0.02)
            weight = quantized[name].float() * scale
        else:
            quantized[name] = weight
        plain[name] = weight
    for place, weights, said in ((path, quantized, scheme), (path.with_name(path.name + "-plain"), plain, None)):
        place.mkdir()
        (place / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
        (place / "config.json").write_text(json.dumps(config | ({} if said is None or beside else {"quantization_config": said})))
        if said is not None and beside:
            (place / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": said["quant_algo"], "kv_cache_quant_algo": "FP8"}}))
        save_file(weights, place / "model.safetensors")


def compressed(**weights: Any) -> dict[str, Any]:
    said = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True} | weights
    group = {"weights": said, "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}, "targets": ["Linear"]}
    groups = {"group_0": group}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups, "ignore": ["lm_head"], "transform_config": {}}


MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}


@pytest.mark.model
@pytest.mark.parametrize(
    ("scheme", "per", "beside"),
    [
        (compressed(), "channel", False),
        (compressed(strategy="tensor"), "tensor", False),
        (MODELOPT, "tensor", False),
        (MODELOPT, "tensor", True),
        (MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "channel", True),
    ],
)
def test_a_checkpoint_is_read_as_it_is(f8, folder, tmp_path, scheme, per, beside):
    """Its very numbers: the matrices dequantized are those that it stands for, in our order of rows."""
    from pathlib import Path

    path = tmp_path / "quantized"
    checkpoint(f8, Path(folder), path, scheme, per, beside=beside)
    found = f8.loader.load(str(path), dtype="float32")
    plain = f8.loader.load(str(path.with_name("quantized-plain")), dtype="float32")
    assert found.weights == "float8_e4m3fn"
    for ours, theirs in zip(found.model.layers, plain.model.layers, strict=True):
        for name in f8.llama_weights.MATRICES:
            matrix = getattr(ours, name)
            assert isinstance(matrix, f8.Fp8)
            torch.testing.assert_close(f8.dequantized(matrix.weight, matrix.scale[0], torch.float32), getattr(theirs, name).weight, atol=0, rtol=1e-6)
    a, b = logits(plain.model), logits(found.model)
    assert float((a - b).norm() / a.norm()) < 0.1


@pytest.mark.model
@pytest.mark.parametrize("per", [None, "channel", "tensor"])
def test_ranks_have_their_slices_of_a_model_in_fp8(f8, folder, tmp_path, per):
    """Of a checkpoint its very numbers; of what is quantized while it is read, each rank's rows and matrices have scales of their own."""
    from pathlib import Path

    from lmc.backend.engine.models.linear import local
    from tests.backend.engine.test_distributed import logits_of, spread

    path, near = tmp_path / "quantized", {"atol": 0, "rtol": 1e-6}
    checkpoint(f8, Path(folder), path, compressed(**({"strategy": per} if per else {})), per or "channel")
    if per is None:
        path, near = path.with_name("quantized-plain"), {"atol": 3e-3, "rtol": 0.07}
    options = {"dtype": "float32", "quantization": "fp8"}
    whole = f8.loader.load(str(path), **options)
    (first, logits), (second, _) = spread(path, 2, tmp_path, **options)
    assert first.weights == "float8_e4m3fn"
    numbers = lambda matrix: f8.dequantized(matrix.weight, matrix.scale[0], torch.float32)
    for layer, *parts in zip(whole.model.layers, first.model.layers, second.model.layers, strict=True):
        for name in ("o", "down"):
            halves = [numbers(local(getattr(part, name))) for part in parts]
            torch.testing.assert_close(torch.cat(halves, 1), numbers(getattr(layer, name)), **near)
    expected = logits_of(whole)
    assert float((logits - expected).norm() / expected.norm()) < 0.05


@pytest.mark.model
@pytest.mark.parametrize("tp", [None, 2])
def test_bytes_of_weights_are_those_of_the_model(f8, folder, tp):
    from lmc.backend.engine.distributed.group import RankGroup

    group = None if tp is None else RankGroup(0, tp, 1.0)
    found = f8.loader.load(folder, dtype="float32", load_format="dummy", quantization="fp8", group=group)
    from lmc.backend.engine.models.linear import local

    model = found.model
    rest = [model.embed, model.norm, local(model.head).weight, *[norm for layer in model.layers for norm in (layer.input_norm, layer.post_norm)]]
    matrices = [local(getattr(layer, name)) for layer in model.layers for name in f8.llama_weights.MATRICES]
    assert found.weight_bytes == sum(t.nbytes for t in (*rest, *[t for m in matrices for t in (m.weight, m.scale)]))


@pytest.mark.model
@pytest.mark.parametrize("quantization", ["fp8", "int4"])
def test_a_mixture_of_experts_is_refused_before_its_weights_are_read(f8, folder, quantization, monkeypatch):
    from pathlib import Path

    config = json.loads((Path(folder) / "config.json").read_text())
    (Path(folder) / "config.json").write_text(json.dumps(config | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}))
    monkeypatch.setattr(f8.loader.directory, "read_safetensors", None)
    with pytest.raises(ModelLoadError, match="a mixture of experts in"):
        f8.loader.load(folder, quantization=quantization)


@pytest.mark.model
def test_a_checkpoint_without_its_scales_is_refused(f8, folder, tmp_path):
    from pathlib import Path

    from safetensors.torch import load_file, save_file

    path = tmp_path / "quantized"
    checkpoint(f8, Path(folder), path, compressed(), "channel")
    weights = load_file(path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight_scale"
    for wrong, why in ((None, "lack"), (torch.ones(3), "blocks are not supported"), (torch.full((96, 1), torch.nan), "no number above 0")):
        changed = {k: v for k, v in weights.items() if k != name} | ({} if wrong is None else {name: wrong})
        save_file(changed, path / "model.safetensors")
        with pytest.raises(ModelLoadError, match=why):
            f8.loader.load(str(path))
    save_file(weights | {"model.layers.0.self_attn.k_proj.weight": weights["model.layers.0.self_attn.k_proj.weight"].float()}, path / "model.safetensors")
    with pytest.raises(ModelLoadError, match="some of the weights"):
        f8.loader.load(str(path))


@pytest.mark.model
def test_a_quantization_that_there_is_not_is_refused(f8, folder):
    with pytest.raises(ModelLoadError, match="quantization 'int3' is not supported; supported: fp8"):
        f8.loader.load(folder, quantization="int3")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quantized by 'gptq'"), ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "quantized by 'fp8'"), (compressed(strategy="block"), "for each block"),
        (compressed(num_bits=4, type="int", strategy="group"), "4-bit int"), ({"quant_method": "compressed-tensors"}, "config_groups"),
        (compressed() | {"transform_config": {"config_groups": {"R3": {"type": "hadamard"}}}}, "rotated activations"), ("fp8", "expected an object"),
    ],
)  # fmt: skip
def test_other_quantizations_are_refused_with_what_is_read(said, why):
    with pytest.raises(ModelLoadError, match=why):
        is_fp8({"quantization_config": said}, "config.json")
    assert is_fp8({}, "config.json") is False
