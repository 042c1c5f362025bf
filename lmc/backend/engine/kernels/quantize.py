"""Rows in FP8: each divided by a scale of its own, so that its largest number is e4m3's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.kernels.dependent_launch import after, launch
from lmc.backend.engine.kernels.e4m3 import LARGEST, SMALLEST


@triton.jit
def quantize_row(values, out, scales, row, at, columns, LARGEST: tl.constexpr, SMALLEST: tl.constexpr):
    """Write a row, `values` [BLOCK], quantized, and its scale; beyond `columns` values are 0."""
    wide = values.to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), 0) / LARGEST, SMALLEST)
    tl.store(out + row * columns + at, (wide / scale).to(out.dtype.element_ty), mask=at < columns)
    tl.store(scales + row, scale)


@triton.jit
def _quantize(x, out, scales, columns, LARGEST: tl.constexpr, SMALLEST: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        after()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    quantize_row(values, out, scales, row, at, columns, LARGEST, SMALLEST)


def quantized_like(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return room for x [T, C] quantized, and for its scales [T, 1]."""
    return torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device), torch.empty(len(x), 1, dtype=torch.float32, device=x.device)


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize x [T, C], contiguous → e4m3 [T, C] and scales [T, 1] float32, as `fp8.quantize_reference`."""
    rows, columns = x.shape
    out, scales = quantized_like(x)
    if rows:
        block = triton.next_power_of_2(columns)
        launch(_quantize, (rows,), x, out, scales, columns, LARGEST, SMALLEST, block, warps=min(16, max(1, block // 512)))
    return out, scales
