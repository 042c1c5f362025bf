"""Rows in FP8: each divided by a scale of its own, so that its largest number is e4m3's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.kernels.dependent_launch import after, launch


@triton.jit
def _quantize(x, out, scales, columns, LARGEST: tl.constexpr, SMALLEST: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        after()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), 0) / LARGEST, SMALLEST)
    tl.store(out + row * columns + at, (values / scale).to(out.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def quantize(x: Tensor, largest: float, smallest: float) -> tuple[Tensor, Tensor]:
    """Quantize x [T, C], contiguous → e4m3 [T, C] and scales [T, 1] float32, as `fp8.quantize_reference`. `largest`: of
    e4m3; `smallest`: scale."""
    rows, columns = x.shape
    out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(columns)
        launch(_quantize, (rows,), x, out, scales, columns, largest, smallest, block, warps=min(16, max(1, block // 512)))
    return out, scales
