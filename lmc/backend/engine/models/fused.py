"""The Llama family on a GPU: the layers of llama.py through fused kernels, at most nine launches a layer, capturable.

Same weights, same layout; `LlamaModel.forward` is the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lmc.backend.engine.attention.base import PictureRows
from lmc.backend.engine.attention.tiled import StagedAttention
from lmc.backend.engine.distributed.group import Summed
from lmc.backend.engine.distributed.peer_memory import PartialSum
from lmc.backend.engine.kernels.activation import silu_mul, silu_mul_quantized
from lmc.backend.engine.kernels.embedding import embed
from lmc.backend.engine.kernels.few_rows import can_gate
from lmc.backend.engine.kernels.grouped import Groups
from lmc.backend.engine.kernels.low_rank import Stack, add, group, stack
from lmc.backend.engine.kernels.norm import add_rms_norm, add_rms_norm_quantized
from lmc.backend.engine.kernels.rope import rope_append
from lmc.backend.engine.kv_fp8 import Stored
from lmc.backend.engine.kv_pool import KVPool
from lmc.backend.engine.models.experts import GroupedExperts
from lmc.backend.engine.models.fp8 import Fp8, Quantized
from lmc.backend.engine.models.linear import Linear, local
from lmc.backend.engine.models.llama import Layer, LlamaModel, turned_by_axes

Inputs = tuple[Tensor, Tensor, Tensor]  # ids, positions and slots of the rows, [T] int32
_FEW = 16  # rows up to which a row's partial results are better merged by several programs
Attention = Callable[[Tensor, Stored, Stored], Tensor]  # (q, keys, values of a layer) → like q


class Attended(NamedTuple):
    """By row: the last layer's attention, residuals before it, and the number of its adapter; and the rows by adapter."""

    rows: Tensor
    residual: Tensor
    adapters: Tensor | None
    groups: Groups | None


class FusedLlama:
    """The fused model. Holds no state of its own but the table of rotations.

    multiply    x [rows, in] times a matrix (gemm_tuning.py); None: as the matrix does
    mlp         few rows through an MLP in FP8, as `TunedGemm.mlp`; None: matrix by matrix
    """

    def __init__(
        self, model: LlamaModel, multiply: Callable[[Linear, Tensor | Quantized], Tensor] | None = None,
        mlp: Callable[[Fp8, Fp8, Tensor | Quantized], Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.config, self.dtype, self.device = model.config, model.dtype, model.device
        self._model, self._multiply, self._few_mlp = model, multiply or _plain, mlp
        self._experts = [None if layer.experts is None else self._grouped(layer.experts) for layer in model.layers]
        self.adapters: dict[tuple[int, str], Stack] | None = None  # by layer and merged matrix
        if model.adapters is not None:
            self.adapters = {key: stack(every) for key, every in model.adapters.factors.items()}
        self._turns = torch.view_as_real(model.rotations).contiguous()  # [max_context, head_dim / 2, 2] float32
        self._still = torch.view_as_real(torch.ones_like(model.rotations)) if self.config.nope_layers else self._turns

    @property
    def matrices(self) -> list[Linear]:
        """Return matrices by which rows of a pass are multiplied."""
        every = [matrix for layer in self._model.layers for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        return [local(matrix) for matrix in every if matrix is not None]

    def hidden(
        self, rows: Inputs, sampled: Tensor, kv: KVPool, attend: Attention, wanted: Tensor | None = None, seen: PictureRows | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return final hidden states [T, hidden_size], normed; K and V of the rows go to their slots. `sampled`: see
        embed.

        wanted    [R] rows: return only theirs, [R, hidden_size], and skip unread parts of the others
        seen      rows that are pictures'
        adapters  [T] int32, the number of each row's adapter, 0 for none; None: no row has one
        """
        return self.finished(self.attended(rows, sampled, kv, attend, seen, adapters), wanted)

    def attended(
        self, rows: Inputs, sampled: Tensor, kv: KVPool, attend: Attention, seen: PictureRows | None = None, adapters: Tensor | None = None,
    ) -> Attended:  # fmt: skip
        """Run the same up to the attention of the last layer, behind which only some of the rows are read."""
        ids, positions, slots = rows
        m, times, normed, last = self._model, self._times, self._normed, len(self._model.layers) - 1
        residual = embed(ids, sampled, m.embed)
        groups = self._by_adapter(adapters)
        table, deeper = self._turns, ()
        if seen is not None:
            residual[seen.rows], deeper = seen.features.to(residual.dtype), seen.deeper
            if seen.axes is not None:
                table, positions = self._turned(positions, seen.rows, seen.axes)
        x = normed(None, residual, m.layers[0].input_norm, m.layers[0].qkv, groups)
        for index, layer in enumerate(m.layers):
            keys, values = kv.key(index), kv.value(index)
            turns = self._still if index in self.config.nope_layers else table
            q = rope_append(times(index, "qkv", layer.qkv, x, groups), positions, slots, turns, keys, values, _norms(layer), self.config.norm_eps)
            if index < last and len(ids) > _FEW and groups is None and _in_fp8(layer.o) and isinstance(attend, StagedAttention):
                attended = Quantized(*attend.quantized(q, keys, values), q.dtype)
            else:
                attended = attend(q, keys, values).view(len(ids), -1)
                if index == last:
                    return Attended(attended, residual, adapters, groups)
            summed = self._behind(index, attended, residual, groups)
            if seen is not None and index < len(deeper):
                residual[seen.rows] += deeper[index].to(residual.dtype)
            x = normed(summed, residual, m.layers[index + 1].input_norm, m.layers[index + 1].qkv, groups)
        raise AssertionError("a model has layers")

    def finished(self, attended: Attended, wanted: Tensor | None = None) -> Tensor:
        """Return final hidden states, normed, from what `attended` has returned; its tensors are used up unless there are rows `wanted`."""
        x, residual, adapters, groups = attended
        if wanted is not None:
            x, residual = x.index_select(0, wanted), residual.index_select(0, wanted)
            groups = self._by_adapter(None if adapters is None else adapters.index_select(0, wanted))
        summed = self._behind(len(self._model.layers) - 1, x, residual, groups)
        hidden = self._normed(summed, residual, self._model.norm, None, groups)
        assert isinstance(hidden, Tensor), "nothing that multiplies reads the last norm"
        return hidden

    def _by_adapter(self, numbers: Tensor | None) -> Groups | None:
        adapters = self._model.adapters
        return None if numbers is None or adapters is None else group(numbers, adapters.count, self.dtype)

    def _behind(self, index: int, attended: Tensor | Quantized, residual: Tensor, groups: Groups | None) -> Tensor | PartialSum:
        """Return what a layer's MLP adds to `residual`, to which what its attention adds has been added in place."""
        layer = self._model.layers[index]
        summed = self._summed(index, "o", layer.o, attended, groups)
        return self._mlp(index, self._normed(summed, residual, layer.post_norm, layer.gate_up, groups), groups)

    def _normed(self, x: Tensor | PartialSum | None, residual: Tensor, weight: Tensor, reader: Linear | None, groups: Groups | None) -> Tensor | Quantized:
        """Return norm(residual + x), as the matrix that reads it is best given it; `residual` becomes the sum in place."""
        eps = self.config.norm_eps
        if isinstance(x, PartialSum):
            return x.add_rms_norm(residual, weight, eps)
        if groups is None and _in_fp8(reader):
            return Quantized(*add_rms_norm_quantized(x, residual, weight, eps), residual.dtype)
        return add_rms_norm(x, residual, weight, eps)

    def _times(self, index: int, kind: str, matrix: Linear, x: Tensor | Quantized, groups: Groups | None) -> Tensor:
        """A product with a matrix, and what the rows' adapters add."""
        y = self._multiply(matrix, x)
        if groups is None or self.adapters is None or isinstance(x, Quantized) or (added := self.adapters.get((index, kind))) is None:
            return y
        return add(x, y, added, groups)

    def _summed(self, index: int, kind: str, matrix: Linear, x: Tensor | Quantized, groups: Groups | None) -> Tensor | PartialSum:
        """The same with a matrix whose columns may be sharded."""
        multiply = partial(self._times, index, kind, groups=groups)
        return matrix.product(x, multiply) if isinstance(matrix, Summed) else multiply(matrix, x)

    def _mlp(self, index: int, x: Tensor | Quantized, groups: Groups | None) -> Tensor | PartialSum:
        gate_up, down, experts = self._model.layers[index].gate_up, self._model.layers[index].down, self._experts[index]
        if gate_up is not None and down is not None:
            few, part = self._few_mlp, local(down)
            if few is not None and groups is None and isinstance(gate_up, Fp8) and isinstance(part, Fp8) and can_gate(gate_up, len(x)):
                return down.product(x, lambda _, x: few(gate_up, part, x)) if isinstance(down, Summed) else few(gate_up, part, x)
            both = self._times(index, "gate_up", gate_up, x, groups)
            inner = Quantized(*silu_mul_quantized(both), both.dtype) if groups is None and _in_fp8(down) else silu_mul(both)
            return self._summed(index, "down", down, inner, groups)
        assert experts is not None
        return self._summed(index, "experts", experts, x, groups)

    @staticmethod
    def _grouped(experts: Linear) -> Linear:
        grouped = GroupedExperts(local(experts))
        return grouped if local(experts) is experts else experts.over(grouped)  # pyright: ignore[reportFunctionMemberAccess]

    def _turned(self, positions: Tensor, rows: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
        """Return a table of rotations for these rows alone, and their indices in it: some have positions on three
        axes."""
        table = self._turns[positions.long()]
        table[rows] = turned_by_axes(self._turns, axes, self.config)
        return table, torch.arange(len(positions), dtype=positions.dtype, device=positions.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [R, hidden_size] → [R, vocab_size] float32."""
        return self._model.head(hidden).float()


def _plain(matrix: Linear, x: Tensor | Quantized) -> Tensor:
    return matrix(x)  # pyright: ignore[reportArgumentType]  (only matrices in FP8 are given rows in FP8)


def _in_fp8(matrix: Linear | None) -> bool:
    return matrix is not None and isinstance(local(matrix), Fp8)


def _norms(layer: Layer) -> tuple[Tensor, Tensor] | None:
    return None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
