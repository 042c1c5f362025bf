"""The Llama family, fused: merged qkv and gate_up, rotary position as one complex product, logits for wanted rows only.

Covers, besides the experts of Mixtral and Qwen3-MoE, Llama 2 and 3, SmolLM2 and 3 (layers without positions), Mistral,
Qwen2 (qkv bias) and Qwen3 (q/k norm). Rows of q and k are kept with each rotary pair side by side (x[2i], x[2i+1]); dot
products are invariant, and rotation becomes a complex multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.backend.engine.attention.base import ForwardBatch, KVStore
from lmc.backend.engine.attention.fixed import FixedPlan
from lmc.backend.engine.attention.torch_ref import LonePlan, Tall, fast
from lmc.backend.engine.models.adapters import Adapters, RowsByAdapter
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.experts import experts_of
from lmc.backend.engine.models.fp8 import E4M3, cat, dequantized, fp8, row_scales
from lmc.backend.engine.models.linear import Dense, Linear, eight_bits, four_bits, half_packed, spread
from lmc.backend.engine.models.lone import LoneSequence, rms
from lmc.errors import ModelLoadError


@dataclass(frozen=True)
class Layer:
    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    post_norm: Tensor
    gate_up: Linear | None
    down: Linear | None
    experts: Linear | None = None  # in place of both (experts.py)


class LlamaModel:
    """A CausalModel. Weights are fixed; everything that changes is in the batch and the KV store."""

    def __init__(
        self,
        config: ModelConfig,
        embed: Tensor,
        layers: tuple[Layer, ...],
        norm: Tensor,
        head: Linear,
        plan: Callable[..., Any] = fast,
        silu: Callable[[Tensor], Tensor] = F.silu,
    ) -> None:
        self.config, self.embed, self.layers, self.norm, self.head, self.plan, self.silu = config, embed, layers, norm, head, plan, silu
        self.adapters: Adapters | None = None  # set once, where it is loaded
        self.rotations = rotations(config, embed.device)
        self.eps = torch.tensor(config.norm_eps, device=embed.device)
        self.lone = LoneSequence.of(layers, config, self.eps)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of activations and of the KV store."""
        return self.norm.dtype

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: KVStore) -> Tensor:
        """Write the rows' K and V to their slots; return logits [R, vocab_size] float32."""
        plan = self.plan(batch.spans, self.config.sliding_window)
        turn = self.rotations[batch.positions][:, None]  # [T, 1, head_dim / 2] complex
        residual = Residual.of(F.embedding(batch.token_ids, self.embed).to(self.norm.dtype), self.config.norm_eps)
        x = residual.rows
        seen, deeper = batch.seen, ()
        if seen is not None:
            x[seen.rows], deeper = seen.features.to(x.dtype), seen.deeper
            if seen.axes is not None:
                turn[seen.rows, 0] = turned_by_axes(self.rotations, seen.axes, self.config)
        rows = None if batch.adapters is None or self.adapters is None else self.adapters.grouped(batch.adapters)
        tall = None if self.lone is None or seen is not None or rows is not None else self._tall(plan)
        if self.lone is not None and tall is not None and (pairs := _pairs(kv, len(self.layers))):
            self.lone.run(residual.whole, residual.root, turn, batch.out_slots, pairs, tall)
            return self._logits(residual.only(batch.logit_rows))
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            turned = None if index in self.config.nope_layers else turn
            normed = residual.normed(layer.input_norm)
            qkv = self._adapted(index, "qkv", normed, layer.qkv(normed), rows).to(x.dtype)
            q = self._store_and_query(layer, qkv, turned, batch.out_slots, kv, index)
            attended = plan.attend(q, kv.key(index), kv.value(index)).reshape(len(x), -1)
            if index == last:  # the other rows are not read any further
                residual, attended = residual.only(batch.logit_rows), attended[batch.logit_rows]
                x = residual.rows
                rows = None if rows is None else rows.only(batch.logit_rows)
                if len(x) == 0:
                    break
            x += self._adapted(index, "o", attended, layer.o(attended), rows)
            x += self._mlp(index, residual.normed(layer.post_norm), rows)
            if seen is not None and index < len(deeper):
                x[seen.rows] += deeper[index].to(x.dtype)
        return self._logits(residual)

    def _tall(self, plan: Any) -> Tall | None:
        """Return what the pass attends to as one query; None if it cannot be one."""
        if isinstance(plan, LonePlan):
            return plan.tall(self.config.num_heads // self.config.num_kv_heads)
        return plan.tall() if isinstance(plan, FixedPlan) else None

    def _logits(self, residual: Residual) -> Tensor:
        rows = residual.rows
        return self.head(residual.normed(self.norm)).float() if len(rows) else rows.new_empty(0, self.config.vocab_size, dtype=torch.float32)

    def _store_and_query(self, layer: Layer, qkv: Tensor, turn: Tensor | None, slots: Tensor, kv: KVStore, index: int) -> Tensor:
        """Return rotated q [T, num_heads, head_dim]; k and v go to their slots."""
        c = self.config
        heads, pair = c.num_heads, kv.pair(index)
        qkv = qkv.view(len(qkv), -1, c.head_dim)
        qk = qkv[:, : heads + c.num_kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            qk.copy_(torch.cat((self._rms(qk[:, :heads], layer.q_norm), self._rms(qk[:, heads:], layer.k_norm)), 1))
        if turn is not None:
            rotate(qk, turn)
        if pair is not None:
            pair.index_copy_(0, slots, qkv[:, heads:].to(pair.dtype))
        else:
            for store, rows in zip((kv.key(index), kv.value(index)), qkv[:, heads:].chunk(2, 1), strict=True):
                store.index_copy_(0, slots, rows.to(store.dtype))
        return qk[:, :heads]

    def _adapted(self, index: int, matrix: str, x: Tensor, y: Tensor, rows: RowsByAdapter | None) -> Tensor:
        """The product `y` of a matrix with `x`, with what the rows' adapters add."""
        return y if rows is None or self.adapters is None else self.adapters.add(index, matrix, x, y, rows)

    def _mlp(self, index: int, x: Tensor, rows: RowsByAdapter | None) -> Tensor:
        layer = self.layers[index]
        if layer.gate_up is None or layer.down is None:
            assert layer.experts is not None
            return layer.experts(x)
        gate, up = self._adapted(index, "gate_up", x, layer.gate_up(x), rows).chunk(2, -1)
        inner = self.silu(gate).mul_(up)
        return self._adapted(index, "down", inner, layer.down(inner), rows)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)
        return rms(x, weight, self.eps)


def _pairs(kv: KVStore, layers: int) -> list[Tensor]:
    """Return K and V of each layer as one tensor; nothing if they are not, or not in float32."""
    found = [pair for index in range(layers) if (pair := kv.pair(index)) is not None and pair.dtype == torch.float32]
    return found if len(found) == layers else []


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual stream of a pass. In float32 it has one more column, √(C·eps), so that the length of a row is what RMSNorm divides by but for √C, and
    torch normalizes rows by one operation: a lone row's time is that of operations' code, which the weights between them drive out of the cache.

    rows   [T, C], a view of `whole`
    whole  [T, C + 1], or `rows`
    root   [T, 1], √C
    """

    rows: Tensor
    whole: Tensor
    root: Tensor
    eps: float

    @classmethod
    def of(cls, x: Tensor, eps: float) -> Residual:
        if x.dtype != torch.float32:
            return cls(x, x, x, eps)
        count, columns = x.shape
        whole = x.new_full((count, columns + 1), math.sqrt(columns * eps))
        rows = whole[:, :columns]
        rows.copy_(x)
        return cls(rows, whole, x.new_full((count, 1), math.sqrt(columns)), eps)

    def normed(self, weight: Tensor) -> Tensor:
        """Return RMSNorm of the rows."""
        if self.whole is self.rows:
            return F.rms_norm(self.rows, weight.shape, weight, self.eps)
        return torch._weight_norm_interface(self.whole, self.root, 0)[0][:, : len(weight)].mul_(weight)

    def only(self, rows: Tensor) -> Residual:
        """Return some of the rows, copied."""
        if self.whole is self.rows:
            return Residual.of(self.rows[rows], self.eps)
        whole = self.whole[rows]
        return Residual(whole[:, : self.rows.shape[1]], whole, self.root[: len(rows)], self.eps)


def rotations(config: ModelConfig, device: torch.device) -> Tensor:
    """Return e^(i·position·frequency), scaled as RoPE's scaling requires: [max_context, head_dim / 2] complex64."""
    inv_freq = torch.tensor(config.inv_freq(), dtype=torch.float32, device=device)
    angles = torch.outer(torch.arange(config.max_context, dtype=torch.float32, device=device), inv_freq)
    magnitude = config.rope_scaling.magnitude if config.rope_scaling else 1.0
    return torch.polar(torch.full_like(angles, magnitude), angles)


def turned_by_axes(table: Tensor, axes: Tensor, config: ModelConfig) -> Tensor:
    """Return rotations of rows with a position in time, height and width, `axes` [3, P] int64: [P, head_dim / 2, …] of
    `table`."""
    which = torch.tensor(config.rope_axes, device=axes.device)
    return table[axes[which].T, torch.arange(len(which), device=axes.device)]


def rotate(x: Tensor, turn: Tensor) -> None:
    """Rotate pairs (x[2i], x[2i+1]) in place; computed in float32."""
    if x.dtype == torch.float32:
        torch.view_as_complex(x.view(*x.shape[:-1], -1, 2)).mul_(turn)
    else:
        turned = x.float()
        rotate(turned, turn)
        x.copy_(turned)


# -- from weights ----------------------------------------------------------------------------------------------------


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
