"""K or V of a layer in FP8 (e4m3): half of bfloat16's bytes, which is what attention reads.

    x[slot, head, i] ≈ q[slot, head, i] · scale[slot, head]

A row has a scale of its own, from its own largest number. So what a slot holds depends on its token's computation alone, and
slots can be shared, evicted, copied and computed again like those of any other dtype. It is dequantized where it is read: by
the kernels in registers (kernels/attention.py), elsewhere by indexing; scores and results are summed in float32 there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.backend.engine.models.fp8 import E4M3, quantize_reference
from lmc.errors import ModelLoadError


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Rows:
    """Rows of a KV store, used like a tensor of them by all that reads and writes slots.

    numbers  [num_slots, num_kv_heads, dim] e4m3
    scales   [num_slots, num_kv_heads] float32
    """

    numbers: Tensor
    scales: Tensor

    @classmethod
    def zeros(cls, slots: int, heads: int, dim: int, device: str) -> Fp8Rows:
        return cls(torch.zeros((slots, heads, dim), dtype=torch.uint8, device=device).view(E4M3), torch.zeros((slots, heads), device=device))

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype in which rows are written and read."""
        return self.scales.dtype

    def __getitem__(self, where: slice | Tensor) -> Tensor:
        """Return rows dequantized, float32."""
        return self.numbers.view(torch.uint8)[where].view(E4M3).float() * self.scales[where][..., None]

    def index_copy_(self, dim: int, slots: Tensor, rows: Tensor) -> None:
        """Quantize rows [T, num_kv_heads, dim] to `slots` [T]."""
        assert dim == 0
        numbers, scales = quantize_reference(rows)
        self.numbers.view(torch.uint8).index_copy_(0, slots, numbers.view(torch.uint8))
        self.scales.index_copy_(0, slots, scales[..., 0])


Stored = Tensor | Fp8Rows


def apart(store: Stored) -> tuple[Tensor, Tensor]:
    """Return what kernels read: the numbers, and their scales; the tensor itself twice if it has none."""
    return (store.numbers, store.scales) if isinstance(store, Fp8Rows) else (store, store)


def check_device(device: torch.device) -> None:
    """Raise ModelLoadError if the device's instructions do not convert e4m3."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        name = torch.cuda.get_device_name(device)
        raise ModelLoadError(f'kv_dtype="fp8" needs a GPU of compute capability 8.9 (Ada) or newer, and {device} is {name}; leave kv_dtype out')
