"""The way of a lone sequence's few rows through a model's layers on a CPU, without Python between the operations.

One sequence alone has some forty operations a layer, most of which take less time than Python takes to call them. TorchScript runs these very operations, so
the bits are those of `LlamaModel.forward`. It is deprecated, but torch has nothing else for this that needs no compiler; where it is missing, Python runs the
same function.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.backend.engine.attention.torch_ref import Tall
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.fixed import Fixed
from lmc.backend.engine.models.linear import FourBits, HalfPacked, four_bit_product
from lmc.warning_filters import ignored

log = logging.getLogger("lmc.models")


@dataclass(frozen=True, slots=True)
class LoneSequence:
    """The layers of a model. Its matrices are all packed as float16, or all in 4 bits.

    weights  the arguments of `_layers` that are the model's
    """

    weights: tuple[Any, ...]

    @classmethod
    def of(cls, layers: Sequence[Any], config: ModelConfig, eps: Tensor) -> LoneSequence | None:
        """Return None if a matrix is packed otherwise. `layers`: as of `LlamaModel`."""
        c, found = config, [matrix for layer in layers for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        found = [matrix.of_one if isinstance(matrix, Fixed) else matrix for matrix in found]
        halves = [matrix.packed for matrix in found if isinstance(matrix, HalfPacked)]
        fours = [matrix for matrix in found if isinstance(matrix, FourBits)]
        if max(len(halves), len(fours)) < len(found):
            return None
        norms = [[norm for layer in layers if (norm := getattr(layer, name)) is not None] for name in ("input_norm", "post_norm", "q_norm", "k_norm")]
        turned = [index not in c.nope_layers for index in range(c.num_layers)]
        packed, scales, biases = [m.packed for m in fours], [m.scales for m in fours], [m.bias for m in fours]
        return cls((*norms, eps, turned, halves, packed, scales, biases, c.num_heads, c.num_kv_heads, c.head_dim))

    def run(self, whole: Tensor, root: Tensor, turn: Tensor, slots: Tensor, stores: Sequence[Tensor], seen: Tall) -> None:
        """Run the rows' residual stream `whole` (llama.py) through all layers, in place. `slots`: the rows' own in `stores`, K and V of each layer beside
        each other."""
        _compiled()(whole, root, turn, slots, stores, seen.first, seen.count, seen.slots, seen.mask, seen.height, *self.weights)


@cache
def _compiled() -> Callable[..., None]:
    if sys.version_info >= (3, 14):
        return _layers  # TorchScript does not support it
    try:
        with ignored(Warning, "`torch.jit"):  # a DeprecationWarning until torch 2.13, then a FutureWarning, which Python shows
            return torch.jit.script(_layers)
    except (AttributeError, OSError, RuntimeError) as error:
        log.info("one sequence alone is a sixth slower, since torch cannot compile its layers: %s", error)
        return _layers


# What TorchScript compiles: it knows only a part of Python, whose types it takes from the annotations.


def _layers(
    whole: Tensor, root: Tensor, turn: Tensor, slots: Tensor, stores: list[Tensor], first: int, count: int,
    gathered: Tensor | None, mask: Tensor | None, height: int,
    norms: list[Tensor], post_norms: list[Tensor], q_norms: list[Tensor], k_norms: list[Tensor], eps: Tensor, turned: list[bool],
    halves: list[torch.classes.quantized.LinearPackedParamsBase],  # pyright: ignore[reportInvalidTypeForm]
    packed: list[Tensor], scales: list[Tensor], biases: list[Tensor | None],
    heads: int, kv_heads: int, dim: int,
) -> None:  # fmt: skip
    rows, width, groups = whole.size(0), whole.size(1) - 1, heads // kv_heads
    x = whole[:, :width]
    for i in range(len(norms)):
        at = 4 * i
        normed = torch._weight_norm_interface(whole, root, 0)[0][:, :width].mul_(norms[i])
        qkv = _times(normed, halves, packed, scales, biases, at).to(torch.float32).view(rows, -1, dim)
        qk = qkv[:, : heads + kv_heads]
        if len(q_norms) > 0:
            qk.copy_(torch.cat((rms(qk[:, :heads], q_norms[i], eps), rms(qk[:, heads:], k_norms[i], eps)), 1))
        if turned[i]:
            torch.view_as_complex(qk.view(rows, heads + kv_heads, dim // 2, 2)).mul_(turn)
        stores[i].index_copy_(0, slots, qkv[:, heads:])
        if gathered is None:
            seen = stores[i][first : first + count].transpose(0, 1)[None]
            k, v = seen[:, :kv_heads], seen[:, kv_heads:]
        else:
            k = stores[i][:, :kv_heads].index_select(0, gathered).transpose(0, 1)[None]
            v = stores[i][:, kv_heads:].index_select(0, gathered).transpose(0, 1)[None]
        tall = qk[:, :heads].view(rows, kv_heads, groups, dim).transpose(0, 1).expand(-1, height, -1, -1)
        tall = tall.reshape(1, kv_heads, height * groups, dim).contiguous()  # a row that repeats itself by strides has other bits
        attended = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(tall, k, v, 0.0, False, attn_mask=mask)[0]
        attended = attended.view(kv_heads, height, groups, dim)[:, :rows].transpose(0, 1).reshape(rows, -1)
        x += _times(attended, halves, packed, scales, biases, at + 1)
        normed = torch._weight_norm_interface(whole, root, 0)[0][:, :width].mul_(post_norms[i])
        gate, up = _times(normed, halves, packed, scales, biases, at + 2).chunk(2, -1)
        x += _times(F.silu(gate).mul_(up), halves, packed, scales, biases, at + 3)


def rms(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """Return RMSNorm in float32."""
    norm = torch.linalg.vector_norm(x, dim=[-1], keepdim=True)
    scale = torch.addcmul(eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()
    return (x * scale).mul_(weight)


def _times(
    x: Tensor,
    halves: list[torch.classes.quantized.LinearPackedParamsBase],  # pyright: ignore[reportInvalidTypeForm]
    packed: list[Tensor], scales: list[Tensor], biases: list[Tensor | None], i: int,
) -> Tensor:  # fmt: skip
    if len(halves) > 0:
        return torch.ops.quantized.linear_dynamic_fp16(x, halves[i])
    return four_bit_product(x, packed[i], scales[i], biases[i])
