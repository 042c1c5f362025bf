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
from lmc.backend.engine.models.linear import Dense, Linear, eight_bits, four_bits, half_packed, spread
from lmc.backend.engine.models.llama import Layer, LlamaModel
from lmc.errors import ModelLoadError


def pair_rows(weight: Tensor, heads: int) -> Tensor:
    """Reorder rows of q or k from halves (x[i], x[i + d/2]) to pairs (x[2i], x[2i+1]); weight [heads·d, …]."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def halve_rows(weight: Tensor, heads: int) -> Tensor:
    """Invert `pair_rows`: from GGUF's layout for llama to transformers'."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def fuse_ends(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Fuse the weights before the first layer and after the last."""
    rows, width = config.vocab_size, config.hidden_size
    fused = {"embed": _get(state, "model.embed_tokens.weight", rows, width), "norm": _get(state, "model.norm.weight", width)}
    if not config.tie_embeddings:
        fused["head"] = _get(state, "lm_head.weight", config.head_rows or rows, width)
    return fused


def fuse_layer(state: Mapping[str, Tensor], config: ModelConfig, index: int) -> dict[str, Tensor]:
    """Fuse one layer's weights."""
    src, dst = f"model.layers.{index}.", f"layers.{index}."
    attn, mlp = src + "self_attn.", src + "mlp."
    c, width = config, config.hidden_size

    def paired(name: str, heads: int, *columns: int) -> Tensor:
        return pair_rows(_get(state, attn + name, heads * c.head_dim, *columns), heads)

    fused: dict[str, Tensor] = {}
    for kind, columns in (("weight", (width,)), ("bias", ())) if c.qkv_bias else (("weight", (width,)),):
        q = paired(f"q_proj.{kind}", c.num_heads, *columns)
        k = paired(f"k_proj.{kind}", c.num_kv_heads, *columns)
        fused[f"{dst}qkv.{kind}"] = _below((q, k, _get(state, f"{attn}v_proj.{kind}", c.kv_size, *columns)), attn)
    fused[dst + "o.weight"] = _get(state, attn + "o_proj.weight", width, c.q_size)
    if c.o_bias:
        fused[dst + "o.bias"] = _get(state, attn + "o_proj.bias", width)
    if c.qk_norm:
        fused[dst + "q_norm"] = paired("q_norm.weight", 1)
        fused[dst + "k_norm"] = paired("k_norm.weight", 1)
    if c.num_experts:
        fused |= _fuse_experts(state, c, src, dst)
    else:
        gate_up = (_get(state, f"{mlp}{kind}_proj.weight", c.intermediate_size, width) for kind in ("gate", "up"))
        fused[dst + "gate_up.weight"] = _below(tuple(gate_up), mlp)
        fused[dst + "down.weight"] = _get(state, mlp + "down_proj.weight", width, c.intermediate_size)
    for matrix in MATRICES[:2] if c.num_experts else MATRICES:
        parts = PARTS[matrix]
        if (scales := _scales(state, [src + part for part in parts])) is not None:
            rows = {"q_proj": c.q_size, "k_proj": c.kv_size, "v_proj": c.kv_size, "o_proj": width, "down_proj": width}
            found = [row_scales(scale, rows.get(part.split(".")[1], c.intermediate_size), src + part) for scale, part in zip(scales, parts, strict=True)]
            if matrix == "qkv":
                found[:2] = [pair_rows(found[0], c.num_heads), pair_rows(found[1], c.num_kv_heads)]
            fused[f"{dst}{matrix}.scale"] = torch.cat(found)
    fused[dst + "input_norm"] = _get(state, src + "input_layernorm.weight", width)
    fused[dst + "post_norm"] = _get(state, src + "post_attention_layernorm.weight", width)
    return fused


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


PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"), "down": ("mlp.down_proj",),
}  # fmt: skip
"""The parts of each merged matrix, by transformers' names."""


def _scales(state: Mapping[str, Tensor], parts: Sequence[str]) -> list[Tensor] | None:
    """Return scales of a matrix' parts; None if it is not quantized."""
    if not any(state[f"{part}.weight"].dtype == E4M3 for part in parts):
        return None
    if missing := [f"{part}.weight_scale" for part in parts if f"{part}.weight_scale" not in state]:
        raise ModelLoadError(f"the weights lack {missing[0]!r}; is the download complete?")
    return [state[f"{part}.weight_scale"] for part in parts]


def _below(parts: Sequence[Tensor], name: str) -> Tensor:
    if len({part.dtype == E4M3 for part in parts}) > 1:
        raise ModelLoadError(f"some of the weights of {name.rstrip('.')!r} are quantized and others are not; take a checkpoint where all are, or none")
    return cat(parts)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every fused weight: the names and layout of `fuse_ends` and `fuse_layer`."""
    c = config
    found: dict[str, tuple[int, ...]] = {"embed": (c.vocab_size, c.hidden_size), "norm": (c.hidden_size,)}
    if not c.tie_embeddings:
        found["head"] = (c.head_rows or c.vocab_size, c.hidden_size)
    for i in range(c.num_layers):
        layer = f"layers.{i}."
        for kind, rows, columns, biased in (
            ("qkv", c.q_size + 2 * c.kv_size, c.hidden_size, c.qkv_bias),
            ("o", c.hidden_size, c.q_size, c.o_bias),
            *(() if c.num_experts else (("gate_up", 2 * c.intermediate_size, c.hidden_size, False), ("down", c.hidden_size, c.intermediate_size, False))),
        ):
            found[f"{layer}{kind}.weight"] = (rows, columns)
            if biased:
                found[f"{layer}{kind}.bias"] = (rows,)
        found |= {f"{layer}input_norm": (c.hidden_size,), f"{layer}post_norm": (c.hidden_size,)}
        if c.num_experts:
            found[f"{layer}router.weight"] = (c.num_experts, c.hidden_size)
            found[f"{layer}experts_gate_up.weight"] = (c.num_experts, 2 * c.expert_size, c.hidden_size)
            found[f"{layer}experts_down.weight"] = (c.num_experts, c.hidden_size, c.expert_size)
        if c.qk_norm:
            found |= {f"{layer}q_norm": (c.head_dim,), f"{layer}k_norm": (c.head_dim,)}
    return found


def their_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that may be read, by transformers' names."""
    c, width = config, config.hidden_size
    found: dict[str, tuple[int, ...]] = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (c.vocab_size, width))
    found["model.norm.weight"] = (width,)
    rows = {"q_proj": c.q_size, "k_proj": c.kv_size, "v_proj": c.kv_size}
    for i in range(c.num_layers):
        attn, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        found |= {f"{attn}{name}.weight": (size, width) for name, size in rows.items()} | {f"{attn}{name}.bias": (size,) for name, size in rows.items()}
        found |= {
            f"{attn}o_proj.weight": (width, c.q_size),
            f"{attn}o_proj.bias": (width,),
            f"{attn}q_norm.weight": (c.head_dim,),
            f"{attn}k_norm.weight": (c.head_dim,),
        }
        if c.num_experts:
            router, experts, (gate, up, down) = _expert_names(c, f"model.layers.{i}.")
            found[router] = (c.num_experts, width)
            for e in range(c.num_experts):
                found |= {f"{experts}{e}.{name}.weight": (c.expert_size, width) for name in (gate, up)} | {
                    f"{experts}{e}.{down}.weight": (width, c.expert_size)
                }
        found |= {f"{mlp}gate_proj.weight": (c.intermediate_size, width), f"{mlp}up_proj.weight": (c.intermediate_size, width)}
        found |= {f"{mlp}down_proj.weight": (width, c.intermediate_size)}
        found |= {f"model.layers.{i}.{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
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


MATRICES = ("qkv", "o", "gate_up", "down")


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
    kinds = MATRICES[:2] if config.num_experts else MATRICES
    names = [f"layers.{i}.{kind}" for i in range(config.num_layers) for kind in kinds]
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
