"""SiLU of the gate times up: the middle of a gated MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.kernels.dependent_launch import after, launch
from lmc.backend.engine.kernels.e4m3 import LARGEST, SMALLEST
from lmc.backend.engine.kernels.quantize import quantize_row, quantized_like

_BLOCK = 1024


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Compute silu(gate) · up in float32; gate_up [T, 2·I] → [T, I]."""
    gate, up = gate_up.float().chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up.dtype)


@triton.jit
def gated(gate, up):
    """Return silu(gate) · up of float32."""
    return gate * tl.sigmoid(gate) * up


@triton.jit
def _gated_row(gate_up, row, at, width):
    """Return silu(gate) · up of columns `at` of a row, in float32; 0 beyond `width`."""
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    return gated(gate, up)


@triton.jit
def _silu_mul(gate_up, out, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        after()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + row * width + at, _gated_row(gate_up, row, at, width).to(out.dtype.element_ty), mask=at < width)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Compute gate_up [T, 2·I], contiguous → [T, I]."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        launch(_silu_mul, (rows, triton.cdiv(width, _BLOCK)), gate_up, out, width, _BLOCK, warps=4)
    return out


@triton.jit
def _silu_mul_quantized(gate_up, out, scales, width, LARGEST: tl.constexpr, SMALLEST: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        after()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = _gated_row(gate_up, row, at, width).to(gate_up.dtype.element_ty)  # rounded as `silu_mul` stores it
    quantize_row(values, out, scales, row, at, width, LARGEST, SMALLEST)


def silu_mul_quantized(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the same → e4m3 [T, I] and scales [T, 1] (quantize.py)."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out, scales = quantized_like(gate_up[:, :width])
    if rows:
        block = triton.next_power_of_2(width)
        launch(_silu_mul_quantized, (rows,), gate_up, out, scales, width, LARGEST, SMALLEST, block, warps=min(32, max(1, block // 512)))
    return out, scales
