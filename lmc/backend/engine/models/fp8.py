"""Matrices in FP8 (e4m3): half of bfloat16's bytes, which is what decoding reads.

    w[o, i] ≈ q[o, i] · scale[o]           each output by the scale of least squared error for its row, at load
    x[t, i] ≈ p[t, i] · s[t]               each row of a pass by its own largest, at run time; inside an MLP of few rows, each 128 of its columns
    y[t, o] = s[t] · scale[o] · Σ p q      products of FP8, summed in float32

On a GPU (Hopper or newer) by cuBLAS and CUTLASS, through torch; few rows by a kernel of lmc's (gemm_tuning.py, kernels/few_rows.py). On a CPU
the same numbers are multiplied in float32: to test with, and slower than matrices that are not quantized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.backend.engine.kernels.e4m3 import LARGEST, SMALLEST
from lmc.errors import ModelLoadError

E4M3 = torch.float8_e4m3fn
BLOCK = 128  # columns of a row with a scale of their own, where a row has several
_STEP = 16  # rows and columns of a matrix come in so many
_SCALES = 16  # that are tried, from one power of two to the next
_AT_ONCE = 1 << 24  # weights


def quantize_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize x [T, C] → e4m3 [T, C] and scales [T, 1] float32, with x ≈ e4m3 · scale; NaN stays NaN."""
    wide = x.float()
    scales = (wide.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(SMALLEST)
    return (wide / scales).to(E4M3), scales


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize weight [out, in] → e4m3 [out, in] and scales [out, 1] float32, each of the least squared error for its row. e4m3's steps double at powers of
    two, so the error depends on where between two of them the row's large numbers lie, which a scale up to twice that of the largest decides."""
    parts = [_quantize_rows(part.float()) for part in weight.split(max(1, _AT_ONCE // weight.shape[1]))]
    return cat([rows for rows, _ in parts]), torch.cat([scales for _, scales in parts])


def _quantize_rows(wide: Tensor) -> tuple[Tensor, Tensor]:
    rows, scales = quantize_reference(wide)
    first, best = scales, (rows.float() * scales - wide).square().sum(-1, keepdim=True)
    for i in range(1, _SCALES):
        tried = first * 2 ** (i / _SCALES)
        found = (wide / tried).to(E4M3)
        error = (found.float() * tried - wide).square().sum(-1, keepdim=True)
        better = error < best
        best, scales = torch.where(better, error, best), torch.where(better, tried, scales)
        rows = torch.where(better, found.view(torch.uint8), rows.view(torch.uint8)).view(E4M3)
    return rows, scales


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """Rows in FP8, in place of rows of `dtype`: e4m3 [T, in], scales [T, 1] float32."""

    rows: Tensor
    scales: Tensor
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.rows)


def padded(rows: int) -> int:
    """Return the rows of a tile of so many, by which scales of blocks lie apart, so that they are read several at a time. Tiles of 32 are slower
    than those of 64 (measured)."""
    return next(tile for tile in (16, 64, 128) if rows <= tile)


@dataclass(frozen=True, slots=True, eq=False)
class BlockQuantized:
    """Rows in FP8 with a scale for each BLOCK of columns: e4m3 [T, in], block_scales [in / BLOCK, padded(T)] float32. Only the kernel for few rows
    multiplies them."""

    rows: Tensor
    block_scales: Tensor
    dtype: torch.dtype

    @classmethod
    def reference(cls, x: Tensor) -> BlockQuantized:
        """Quantize x [T, in]."""
        rows, scales = quantize_reference(x.reshape(-1, BLOCK))
        of_blocks = scales.view(len(x), x.shape[1] // BLOCK).t()
        return cls(rows.view(x.shape), F.pad(of_blocks, (0, padded(len(x)) - len(x))).contiguous(), x.dtype)

    def dequantized(self) -> Tensor:
        """Return what the rows stand for, in float32."""
        return self.rows.float() * self.block_scales[:, : len(self.rows)].t().repeat_interleave(BLOCK, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8:
    """A Linear of a matrix in FP8.

    weight  [out, in] e4m3, contiguous
    scale   [1, out] float32
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        if isinstance(x, Quantized):
            return self.multiply(x)
        return self.multiply(self.quantized(x)) if x.is_cuda else self.reference(x)

    @staticmethod
    def quantized(x: Tensor) -> Quantized:
        """Quantize x [T, in] on its GPU."""
        return Quantized(*_kernel()(x.contiguous()), x.dtype)

    def multiply(self, x: Quantized) -> Tensor:
        """Return the product of rows that are quantized already."""
        y = torch._scaled_mm(x.rows, self.weight.t(), scale_a=x.scales, scale_b=self.scale, out_dtype=x.dtype, use_fast_accum=True)
        return y if self.bias is None else y + self.bias

    def reference(self, x: Tensor) -> Tensor:
        """Return the same result computed in float32."""
        rows, scales = quantize_reference(x)
        y = F.linear(rows.float() * scales, self.weight.float() * self.scale.t())
        return (y if self.bias is None else y + self.bias.float()).to(x.dtype)


@cache
def _kernel():
    from lmc.backend.engine.kernels.quantize import quantize

    return quantize


def fits(shape: Sequence[int]) -> bool:
    """Return whether FP8 GEMM supports a matrix of this shape."""
    return not any(size % _STEP for size in shape)


def fp8(weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> Fp8 | None:
    """Convert the matrix to FP8. `scale` [out]: it is e4m3 already. None if FP8 GEMM does not support its shape."""
    if not fits(weight.shape):
        return None
    if scale is None:
        rows, scales = quantize_weight(weight)
        return Fp8(rows.contiguous(), scales.t().contiguous(), bias)
    return Fp8(weight.contiguous(), scale[None].float().contiguous(), bias)


def dequantized(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [out, in] of `dtype`; `scale` [out]."""
    return (weight.float() * scale[:, None]).to(dtype)


def row_scales(scale: Tensor, rows: int, name: str) -> Tensor:
    """Return a checkpoint's scale of a matrix, one for all or one per output, as [rows] float32."""
    found = scale.float().flatten()
    if len(found) not in (1, rows):
        raise ModelLoadError(f"the weights' {name!r} is {list(scale.shape)}; expected one scale, or one for each of {rows} rows: blocks are not supported")
    if not bool((found.isfinite() & (found > 0)).all()):
        raise ModelLoadError(f"the weights' {name!r} has a scale that is no number above 0; download them again")
    return found.expand(rows) if len(found) == 1 else found


def check_device(device: torch.device, what: str) -> None:
    """Raise ModelLoadError if the device has no row-scaled FP8 GEMM."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
        name = torch.cuda.get_device_name(device)
        raise ModelLoadError(f"{what} needs a GPU of compute capability 9.0 (Hopper) or newer, and {device} is {name}; take weights that are not quantized")


def cat(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate parts of a matrix vertically; e4m3 as bytes, which every version of torch can move."""
    return torch.cat([p.view(torch.uint8) for p in parts]).view(E4M3) if parts[0].dtype == E4M3 else torch.cat(tuple(parts))
