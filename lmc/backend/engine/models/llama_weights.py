"""Weights of the Llama family in the fused layout of llama.py: names, shapes, how checkpoints' tensors are fused, and a model built from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.experts import experts_of
from lmc.backend.engine.models.fp8 import E4M3, cat, dequantized, fp8, row_scales
from lmc.backend.engine.models.layout import MATRICES, Weight, matrices, norms, size, sizes
from lmc.backend.engine.models.linear import Dense, Linear, eight_bits, four_bits, half_packed, spread
from lmc.backend.engine.models.llama import Layer, LlamaModel
from lmc.errors import ModelLoadError


def pair_rows(weight: Tensor, size: int) -> Tensor:
    """Reorder rows of q or k from halves (x[i], x[i + d/2]) to pairs (x[2i], x[2i+1]) of heads of that size; weight [heads·d, …]."""
    return weight.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)


def halve_rows(weight: Tensor, size: int) -> Tensor:
    """Invert `pair_rows`: from GGUF's layout for llama to transformers'."""
    return weight.unflatten(0, (-1, size // 2, 2)).transpose(1, 2).flatten(0, 2)


def fuse_ends(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Fuse the weights before the first layer and after the last."""
    rows, width = config.vocab_size, config.hidden_size
    fused = {"embed": _get(state, "model.embed_tokens.weight", rows, width), "norm": _get(state, "model.norm.weight", width)}
    if not config.tie_embeddings:
        fused["head"] = _get(state, "lm_head.weight", config.head_rows or rows, width)
    return fused


def fuse_layer(state: Mapping[str, Tensor], config: ModelConfig, index: int) -> dict[str, Tensor]:
    """Fuse one layer's weights."""
    c, src, dst = config, f"model.layers.{index}.", f"layers.{index}."
    fused: dict[str, Tensor] = {}

    def laid(rows: Tensor, part: Weight) -> Tensor:
        return pair_rows(rows, c.head_dim) if part.paired else rows

    for matrix, biased in matrices(c).items():
        parts, (rows, columns) = MATRICES[matrix], sizes(c, matrix)
        for kind, more in (("weight", (columns,)), ("bias", ()))[: 1 + biased]:
            found = [laid(_get(state, f"{src}{part.name}.{kind}", n, *more), part) for part, n in zip(parts, rows, strict=True)]
            fused[f"{dst}{matrix}.{kind}"] = _below(found, src + parts[0].name)
        if (scales := _scales(state, [src + part.name for part in parts])) is not None:
            every = zip(scales, parts, rows, strict=True)
            fused[f"{dst}{matrix}.scale"] = torch.cat([laid(row_scales(scale, n, src + part.name), part) for scale, part, n in every])
    if c.num_experts:
        fused |= _fuse_experts(state, c, src, dst)
    return fused | {dst + name: laid(_get(state, f"{src}{part.name}.weight", size(c, part.rows)), part) for name, part in norms(c).items()}


def _expert_names(config: ModelConfig, src: str) -> tuple[str, str, tuple[str, str, str]]:
    """Return names of the router of a layer, its experts, and the gate, up and down of each."""
    if config.architecture == "mixtral":
        return f"{src}block_sparse_moe.gate.weight", f"{src}block_sparse_moe.experts.", ("w1", "w3", "w2")
    return f"{src}mlp.gate.weight", f"{src}mlp.experts.", ("gate_proj", "up_proj", "down_proj")


def _fuse_experts(state: Mapping[str, Tensor], c: ModelConfig, src: str, dst: str) -> dict[str, Tensor]:
    router, experts, (gate, up, down) = _expert_names(c, src)
    rows, width = c.expert_size, c.hidden_size
    every = [f"{experts}{i}." for i in range(c.num_experts)]
    pairs = [torch.cat([_get(state, f"{e}{name}.weight", rows, width) for name in (gate, up)]) for e in every]
    return {
        f"{dst}router.weight": _get(state, router, c.num_experts, width),
        f"{dst}experts_gate_up.weight": torch.stack(pairs),
        f"{dst}experts_down.weight": torch.stack([_get(state, f"{e}{down}.weight", width, rows) for e in every]),
    }


def _scales(state: Mapping[str, Tensor], parts: Sequence[str]) -> list[Tensor] | None:
    """Return scales of a matrix' parts; None if it is not quantized."""
    if not any(state[f"{part}.weight"].dtype == E4M3 for part in parts):
        return None
    if missing := [f"{part}.weight_scale" for part in parts if f"{part}.weight_scale" not in state]:
        raise ModelLoadError(f"the weights lack {missing[0]!r}; is the download complete?")
    return [state[f"{part}.weight_scale"] for part in parts]


def _below(parts: Sequence[Tensor], name: str) -> Tensor:
    if len({part.dtype == E4M3 for part in parts}) > 1:
        raise ModelLoadError(f"some of the weights of {name.rpartition('.')[0]!r} are quantized and others are not; take a checkpoint where all are, or none")
    return cat(parts) if len(parts) > 1 else parts[0]


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every fused weight: the names and layout of `fuse_ends` and `fuse_layer`."""
    c = config
    found: dict[str, tuple[int, ...]] = {"embed": (c.vocab_size, c.hidden_size), "norm": (c.hidden_size,)}
    if not c.tie_embeddings:
        found["head"] = (c.head_rows or c.vocab_size, c.hidden_size)
    for i in range(c.num_layers):
        layer = f"layers.{i}."
        for matrix, biased in matrices(c).items():
            rows, columns = sizes(c, matrix)
            found[f"{layer}{matrix}.weight"] = sum(rows), columns
            if biased:
                found[f"{layer}{matrix}.bias"] = (sum(rows),)
        if c.num_experts:
            found[f"{layer}router.weight"] = (c.num_experts, c.hidden_size)
            found[f"{layer}experts_gate_up.weight"] = (c.num_experts, 2 * c.expert_size, c.hidden_size)
            found[f"{layer}experts_down.weight"] = (c.num_experts, c.hidden_size, c.expert_size)
        found |= {layer + name: (size(c, part.rows),) for name, part in norms(c).items()}
    return found


def their_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that is read, by transformers' names."""
    c, width = config, config.hidden_size
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, width), "model.norm.weight": (width,)}
    if not c.tie_embeddings:
        found["lm_head.weight"] = (c.vocab_size, width)
    for i in range(c.num_layers):
        layer = f"model.layers.{i}."
        for matrix, biased in matrices(c).items():
            rows, columns = sizes(c, matrix)
            for part, n in zip(MATRICES[matrix], rows, strict=True):
                found |= {f"{layer}{part.name}.weight": (n, columns)} | ({f"{layer}{part.name}.bias": (n,)} if biased else {})
        if c.num_experts:
            router, experts, (gate, up, down) = _expert_names(c, layer)
            found[router] = (c.num_experts, width)
            for e in range(c.num_experts):
                found |= dict.fromkeys((f"{experts}{e}.{gate}.weight", f"{experts}{e}.{up}.weight"), (c.expert_size, width))
                found[f"{experts}{e}.{down}.weight"] = (width, c.expert_size)
        found |= {f"{layer}{part.name}.weight": (size(c, part.rows),) for part in norms(c).values()}
    return found


def _get(state: Mapping[str, Tensor], name: str, *shape: int) -> Tensor:
    if name not in state:
        raise ModelLoadError(f"the weights lack {name!r}; is the download complete?")
    found = state[name]
    if tuple(found.shape) != shape:
        raise ModelLoadError(
            f"the weights' {name!r} is {list(found.shape)}, and the model's configuration says {list(shape)}; do both belong to the same model?"
        )
    if not found.is_floating_point():
        kind = str(found.dtype).removeprefix("torch.")
        raise ModelLoadError(f"the weights' {name!r} is of {kind}: quantized safetensors are not supported; take a GGUF")
    return found


def _matrix(weight: Tensor, scale: Tensor | None, bias: Tensor | None, *, dtype: torch.dtype) -> Linear:
    """Build a matrix, in FP8 if its shape allows that."""
    return fp8(weight, scale, bias) or Dense(weight if scale is None else dequantized(weight, scale, dtype), bias)


def build(
    fused: Mapping[str, Tensor],
    config: ModelConfig,
    *,
    pack_half: bool = False,
    pack_four: bool = False,
    quantized: bool = False,
    wrap: Callable[[str, Linear], Linear] = lambda _, matrix: matrix,
    **options: Any,
) -> LlamaModel:
    """Build the model over fused weights. Dense matrices are kept without a copy; `pack_half` and `pack_four`: see linear.py.

    quantized  matrices of layers are converted to FP8 (fp8.py) unless they are already
    wrap       wraps a matrix ("head", "layers.0.o", …) that is sharded
    """
    names = [f"layers.{i}.{kind}" for i in range(config.num_layers) for kind in matrices(config)]
    table = fused["head"] if "head" in fused else fused["embed"]
    if quantized:
        assert not config.num_experts, "refused where it is loaded"
        make = partial(_matrix, dtype=fused["norm"].dtype)
        head: Linear = Dense(table)
        rest = [make(fused[name + ".weight"], fused.get(name + ".scale"), fused.get(name + ".bias")) for name in names]
    else:
        pairs = [(table, None)]  # the largest first: threads end together
        pairs += [(fused[name + ".weight"], fused.get(name + ".bias")) for name in names]
        pack, pack_head = (four_bits, eight_bits) if pack_four else (half_packed, half_packed)
        head, *rest = spread(lambda p: pack_head(table) if p[0] is table else pack(*p), pairs) if pack_half else [Dense(*pair) for pair in pairs]
    linear = {name: wrap(name, matrix) for name, matrix in zip(names, rest, strict=True)}
    if config.num_experts:
        for i in range(config.num_layers):
            linear[f"layers.{i}.experts"] = wrap(f"layers.{i}.experts", experts_of(fused, f"layers.{i}.", config, pack_half=pack_half))
    layers = tuple(
        Layer(
            input_norm=fused[f"layers.{i}.input_norm"],
            qkv=linear[f"layers.{i}.qkv"],
            q_norm=fused.get(f"layers.{i}.q_norm"),
            k_norm=fused.get(f"layers.{i}.k_norm"),
            o=linear[f"layers.{i}.o"],
            post_norm=fused[f"layers.{i}.post_norm"],
            gate_up=linear.get(f"layers.{i}.gate_up"),
            down=linear.get(f"layers.{i}.down"),
            experts=linear.get(f"layers.{i}.experts"),
        )
        for i in range(config.num_layers)
    )
    return LlamaModel(config, fused["embed"], layers, fused["norm"], wrap("head", head), **options)
