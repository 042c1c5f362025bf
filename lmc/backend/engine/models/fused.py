"""The Llama family on a GPU: the layers of llama.py through fused kernels, nine launches a layer, capturable.

Same weights, same layout; `LlamaModel.forward` is the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmc.backend.engine.attention.base import KVStore
from lmc.backend.engine.kernels.activation import silu_mul
from lmc.backend.engine.kernels.embedding import embed
from lmc.backend.engine.kernels.norm import add_rms_norm
from lmc.backend.engine.kernels.rope import rope_append
from lmc.backend.engine.models.llama import Layer, LlamaModel

Inputs = tuple[Tensor, Tensor, Tensor]  # ids, positions and slots of the rows, [T] int32
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # (q, keys, values of a layer) → like q


class FusedLlama:
    """Holds no state of its own but the table of rotations."""

    def __init__(self, model: LlamaModel) -> None:
        self.config, self.dtype, self.device = model.config, model.dtype, model.device
        self._model = model
        self._turns = torch.view_as_real(model.rotations).contiguous()  # [max_context, head_dim / 2, 2] float32
        self._still = torch.view_as_real(torch.ones_like(model.rotations)) if self.config.nope_layers else self._turns

    def hidden(self, rows: Inputs, sampled: Tensor, kv: KVStore, attend: Attention) -> Tensor:
        """Final hidden states [T, hidden_size], normed; K and V of the rows go to their slots. `sampled`: see embed."""
        ids, positions, slots = rows
        m, eps = self._model, self.config.norm_eps
        residual = embed(ids, sampled, m.embed)
        following = [layer.input_norm for layer in m.layers[1:]] + [m.norm]
        x = add_rms_norm(None, residual, m.layers[0].input_norm, eps)
        for index, (layer, next_norm) in enumerate(zip(m.layers, following, strict=True)):
            keys, values = kv.key(index), kv.value(index)
            turns = self._still if index in self.config.nope_layers else self._turns
            q = rope_append(layer.qkv(x), positions, slots, turns, keys, values, _norms(layer), eps)
            x = layer.o(attend(q, keys, values).view(len(x), -1))
            x = add_rms_norm(x, residual, layer.post_norm, eps)
            x = layer.down(silu_mul(layer.gate_up(x)))
            x = add_rms_norm(x, residual, next_norm, eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden_size] → [R, vocab_size] float32."""
        return self._model.head(hidden).float()


def _norms(layer: Layer) -> tuple[Tensor, Tensor] | None:
    return None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
