"""The Llama family on a GPU: the layers of llama.py through fused kernels, nine launches a layer, capturable.

Same weights, same layout; `LlamaModel.forward` is the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmc.backend.engine.attention.base import KVStore, Seen
from lmc.backend.engine.kernels.activation import silu_mul
from lmc.backend.engine.kernels.embedding import embed
from lmc.backend.engine.kernels.norm import add_rms_norm
from lmc.backend.engine.kernels.rope import rope_append
from lmc.backend.engine.models.experts import Grouped
from lmc.backend.engine.models.linear import Linear, local
from lmc.backend.engine.models.llama import Layer, LlamaModel, turned_by_axes

Inputs = tuple[Tensor, Tensor, Tensor]  # ids, positions and slots of the rows, [T] int32
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # (q, keys, values of a layer) → like q


class FusedLlama:
    """Holds no state of its own but the table of rotations.

    multiply    x [rows, in] times a matrix (products.py)
    """

    def __init__(self, model: LlamaModel, multiply: Callable[[Linear, Tensor], Tensor] = lambda matrix, x: matrix(x)) -> None:
        self.config, self.dtype, self.device = model.config, model.dtype, model.device
        self._model, self._multiply = model, multiply
        self._mlps = [self._mlp_of(layer) for layer in model.layers]
        self._turns = torch.view_as_real(model.rotations).contiguous()  # [max_context, head_dim / 2, 2] float32
        self._still = torch.view_as_real(torch.ones_like(model.rotations)) if self.config.nope_layers else self._turns

    @property
    def matrices(self) -> list[Linear]:
        """By which rows of a pass are multiplied."""
        every = [matrix for layer in self._model.layers for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        return [local(matrix) for matrix in every if matrix is not None]

    def hidden(
        self, rows: Inputs, sampled: Tensor, kv: KVStore, attend: Attention, wanted: Tensor | None = None, seen: Seen | None = None
    ) -> Tensor:
        """Final hidden states [T, hidden_size], normed; K and V of the rows go to their slots. `sampled`: see embed.

        wanted    [R] rows: only theirs, [R, hidden_size], and nothing is computed of others that nobody reads
        seen      rows that are pictures'
        """
        ids, positions, slots = rows
        m, eps, times = self._model, self.config.norm_eps, self._multiply
        residual = embed(ids, sampled, m.embed)
        table, deeper = self._turns, ()
        if seen is not None:
            residual[seen.rows], deeper = seen.features.to(residual.dtype), seen.deeper
            if seen.axes is not None:
                table, positions = self._turned(positions, seen.rows, seen.axes)
        following = [layer.input_norm for layer in m.layers[1:]] + [m.norm]
        x = add_rms_norm(None, residual, m.layers[0].input_norm, eps)
        for index, (layer, next_norm) in enumerate(zip(m.layers, following, strict=True)):
            keys, values = kv.key(index), kv.value(index)
            turns = self._still if index in self.config.nope_layers else table
            q = rope_append(times(layer.qkv, x), positions, slots, turns, keys, values, _norms(layer), eps)
            attended = attend(q, keys, values).view(len(x), -1)
            if wanted is not None and layer is m.layers[-1]:
                attended, residual = attended.index_select(0, wanted), residual.index_select(0, wanted)
            x = times(layer.o, attended)
            x = add_rms_norm(x, residual, layer.post_norm, eps)
            x = self._mlps[index](x)
            if seen is not None and index < len(deeper):
                residual[seen.rows] += deeper[index].to(residual.dtype)
            x = add_rms_norm(x, residual, next_norm, eps)
        return x

    def _mlp_of(self, layer: Layer) -> Linear:
        gate_up, down, experts, times = layer.gate_up, layer.down, layer.experts, self._multiply
        if gate_up is not None and down is not None:
            return lambda x: times(down, silu_mul(times(gate_up, x)))
        assert experts is not None
        grouped = Grouped(local(experts))
        return grouped if local(experts) is experts else experts.over(grouped)  # pyright: ignore[reportFunctionMemberAccess]

    def _turned(self, positions: Tensor, rows: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
        """A table of rotations for these rows alone, and their places in it: some have positions on three axes."""
        table = self._turns[positions.long()]
        table[rows] = turned_by_axes(self._turns, axes, self.config)
        return table, torch.arange(len(positions), dtype=positions.dtype, device=positions.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden_size] → [R, vocab_size] float32."""
        return self._model.head(hidden).float()


def _norms(layer: Layer) -> tuple[Tensor, Tensor] | None:
    return None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
