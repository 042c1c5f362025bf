"""The Llama family, fused: merged qkv and gate_up, rotary position as one complex product, logits for wanted rows only.

Covers, besides the experts of Mixtral and Qwen3-MoE, Llama 2 and 3, SmolLM2 and 3 (layers without positions), Mistral,
Qwen2 (qkv bias) and Qwen3 (q/k norm). Rows of q and k are kept with each rotary pair side by side (x[2i], x[2i+1]); dot
products are invariant, and rotation becomes a complex multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.backend.engine.attention.base import ForwardBatch
from lmc.backend.engine.attention.fixed import FixedPlan
from lmc.backend.engine.attention.torch_ref import LonePlan, Tall, fast
from lmc.backend.engine.kv_pool import KVPool
from lmc.backend.engine.models.adapters import Adapters, RowsByAdapter
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.linear import Linear, local
from lmc.backend.engine.models.lone import LoneSequence, rms


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
        self.dtype, self.device = norm.dtype, embed.device  # the first of activations and of the KV store
        self.adapters: Adapters | None = None  # set once, where it is loaded
        self.rotations = rotations(config, embed.device)
        self.eps = torch.tensor(config.norm_eps, device=embed.device)
        self.lone = LoneSequence.of(layers, config, self.eps)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: KVPool) -> Tensor:
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
        rows = None if batch.adapters is None or self.adapters is None else RowsByAdapter.of(batch.adapters)
        tall = None if self.lone is None or seen is not None or rows is not None else self._tall(plan)
        if self.lone is not None and tall is not None and (pairs := _pairs(kv, len(self.layers))):
            self.lone.run(residual.whole, residual.root, turn, batch.out_slots, pairs, tall)
            return self._logits(residual.only(batch.logit_rows))
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            turned = None if index in self.config.nope_layers else turn
            normed = residual.normed(layer.input_norm)
            qkv = self._product(index, "qkv", layer.qkv, normed, rows).to(x.dtype)
            q = self._store_and_query(layer, qkv, turned, batch.out_slots, kv, index)
            attended = plan.attend(q, kv.key(index), kv.value(index)).reshape(len(x), -1)
            if index == last:  # the other rows are not read any further
                residual, attended = residual.only(batch.logit_rows), attended[batch.logit_rows]
                x = residual.rows
                rows = None if rows is None else rows.only(batch.logit_rows)
                if len(x) == 0:
                    break
            x += self._product(index, "o", layer.o, attended, rows)
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

    def _store_and_query(self, layer: Layer, qkv: Tensor, turn: Tensor | None, slots: Tensor, kv: KVPool, index: int) -> Tensor:
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

    def _product(self, index: int, kind: str, matrix: Linear, x: Tensor, rows: RowsByAdapter | None) -> Tensor:
        """Return `x` times a matrix, with what the rows' adapters add; a sharded one's parts are summed with it."""
        if rows is None or (adapters := self.adapters) is None:
            return matrix(x)
        adapted: Linear = lambda x: adapters.add(index, kind, x, local(matrix)(x), rows)
        return adapted(x) if local(matrix) is matrix else matrix.over(adapted)(x)  # pyright: ignore[reportFunctionMemberAccess]

    def _mlp(self, index: int, x: Tensor, rows: RowsByAdapter | None) -> Tensor:
        layer = self.layers[index]
        if layer.gate_up is None or layer.down is None:
            assert layer.experts is not None
            return layer.experts(x)
        gate, up = self._product(index, "gate_up", layer.gate_up, x, rows).chunk(2, -1)
        inner = self.silu(gate).mul_(up)
        return self._product(index, "down", layer.down, inner, rows)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)
        return rms(x, weight, self.eps)


def _pairs(kv: KVPool, layers: int) -> list[Tensor]:
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
