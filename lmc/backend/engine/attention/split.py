"""Attention of a large pass in two parts: short spans by our tiles, which read shared prefixes once, and prompts by
FlashInfer, which multiplies many rows at the machine's speed but takes a tile of 64 for a row that decodes.

One after the other: such a pass is launched kernel by kernel, and each event between two streams would release and
reacquire the interpreter's lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.backend.engine.attention import flashinfer, tiled
from lmc.backend.engine.kv_fp8 import Stored


@dataclass(frozen=True, slots=True)
class SplitAttention:
    """q [T, num_heads, head_dim] over keys and values [num_slots, num_kv_heads, head_dim] → like q.

    rows      number of first rows, computed by `short`; `long` computes the others
    """

    rows: int
    short: tiled.StagedAttention
    long: flashinfer.FlashInferAttention

    def __call__(self, q: Tensor, keys: Stored, values: Stored) -> Tensor:
        out = torch.empty_like(q)
        self.short(q[: self.rows], keys, values, out[: self.rows])
        self.long(q[self.rows :], keys, values, out[self.rows :])
        return out
