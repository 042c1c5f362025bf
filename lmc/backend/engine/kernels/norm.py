"""RMSNorm fused with the residual addition before it.

Reads and writes each row once; torch's own sequence (add, square, mean, rsqrt, two products) is six launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.kernels.dependent_launch import after, launch
from lmc.backend.engine.kernels.e4m3 import LARGEST, SMALLEST
from lmc.backend.engine.kernels.quantize import quantize_row, quantized_like


def add_rms_norm_reference(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (norm(residual + x), residual + x), sums in float32; x None: nothing is added. x, residual [T, C], weight
    [C]."""
    total = residual if x is None else (residual.float() + x.float()).to(residual.dtype)
    wide = total.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * weight.float()).to(residual.dtype), total


@triton.jit
def _normed(total, weight, at, columns, eps):
    """Return the norm of a row, `total` [BLOCK] as it is stored, in float32."""
    total = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, 0) / columns + eps)
    return total * scale * tl.load(weight + at, mask=at < columns, other=0.0).to(tl.float32)


@triton.jit
def norm_row(total, weight, out, row, at, columns, eps):
    """Write the norm of a row, `total` [BLOCK] as it is stored."""
    tl.store(out + row * columns + at, _normed(total, weight, at, columns, eps).to(out.dtype.element_ty), mask=at < columns)


@triton.jit
def add_to_row(x, residual, row, at, columns):
    """Add `x` [BLOCK] float32 to a row in place; return it as it is stored."""
    inside = at < columns
    total = tl.load(residual + row * columns + at, mask=inside, other=0.0).to(tl.float32) + x
    total = total.to(residual.dtype.element_ty)  # rounded as stored, as others read it
    tl.store(residual + row * columns + at, total, mask=inside)
    return total


@triton.jit
def _add_rms_norm(
    x, residual, weight, out, scales, columns, eps, ADDS: tl.constexpr, QUANTIZES: tl.constexpr, LARGEST: tl.constexpr, SMALLEST: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        after()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    if ADDS:
        total = add_to_row(tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32), residual, row, at, columns)
    else:
        total = tl.load(residual + row * columns + at, mask=inside, other=0.0)
    if QUANTIZES:  # rounded as `norm_row` stores it
        quantize_row(_normed(total, weight, at, columns, eps).to(total.dtype), out, scales, row, at, columns, LARGEST, SMALLEST)
    else:
        norm_row(total, weight, out, row, at, columns, eps)


def add_rms_norm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return norm(residual + x) [T, C]; `residual` becomes the sum in place. All contiguous, one dtype."""
    out = torch.empty_like(residual)
    _launch(x, residual, weight, eps, out, None)
    return out


def add_rms_norm_quantized(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the same as e4m3 [T, C] and scales [T, 1] (quantize.py)."""
    out, scales = quantized_like(residual)
    _launch(x, residual, weight, eps, out, scales)
    return out, scales


def _launch(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, out: Tensor, scales: Tensor | None) -> None:
    rows, columns = residual.shape
    if rows:
        block = triton.next_power_of_2(columns)
        warps = min(16, max(1, block // 512))
        given = residual if x is None else x
        constants = x is not None, scales is not None, LARGEST, SMALLEST, block
        launch(_add_rms_norm, (rows,), given, residual, weight, out, weight if scales is None else scales, columns, eps, *constants, warps=warps)
