"""Products of few rows with a matrix: as fast as its bytes are read, which in FP8 cuBLAS and CUTLASS are not, and in 16 bits cuBLAS often is not.

    y[t, o] = s[t] · scale[o] · Σ p[t, i] q[o, i]        q [out, in] and p [T, in] e4m3, sums in float32
    y[t, o] = Σ x[t, i] w[o, i]                          w and x of one dtype of 16 bits

Tensor cores want 64 rows on their left, so the matrix is on the left and the few rows are on the right. Both come by TMA (tensor descriptors),
which leaves registers and issue slots to the rest. The columns of a tile of outputs are split over programs, so that all multiprocessors read; the
last program of a tile to end adds their parts in order, so the bits are the same each time. Tensor cores add e4m3 with 14 bits: their sums are added
in float32 every 128 columns.

The first product of a gated MLP ends in silu(gate) · up, in FP8 again: a program has the gates and the ups of 128 outputs, and quantizes them with a scale
for each row, since others have the rest of the row. The second product multiplies its sums of those columns by that scale, before they are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lmc.backend.engine.kernels.activation import gated
from lmc.backend.engine.kernels.dependent_launch import after, launch
from lmc.backend.engine.kernels.e4m3 import LARGEST, SMALLEST
from lmc.backend.engine.models.fp8 import BLOCK, BlockQuantized, Fp8, padded

MOST, MOST_DENSE = 128, 16
"""Rows, at most: in FP8, and in 16 bits, where more of them make programs no faster (measured)."""

_MOST_GATED = 64  # of an MLP that is gated inside: more are faster with the activation apart, and so are 17 to 32 (measured)
_PRECISE = 128  # columns whose sum tensor cores may keep


@triton.jit
def _scaled(summed, scales, scale, row, out, rows, outputs, SCALES: tl.constexpr):
    """Return sums [OUTPUTS, ROWS] times the scales of outputs and rows, if they have any (of rows, not where SCALES are of blocks)."""
    if SCALES == "none":
        return summed
    by = tl.load(scale + out, mask=out < outputs, other=0.0)[:, None]
    if SCALES == "rows":
        by = tl.load(scales + row, mask=row < rows, other=0.0)[None, :] * by
    return summed * by


@triton.jit
def _store(y, values, row, out, rows, outputs):
    tl.store(y + row[None, :] * outputs + out[:, None], values.to(y.dtype.element_ty), mask=(out < outputs)[:, None] & (row < rows)[None, :])


@triton.jit
def _is_last(ended, tile, SPLIT: tl.constexpr):
    """Count a program of a tile, whose part is stored; return whether the parts are complete."""
    tl.debug_barrier()  # all of it is written before this program is counted
    last = tl.atomic_add(ended + tile, 1, sem="acq_rel") == SPLIT - 1
    if last:
        tl.store(ended + tile, 0)  # for the next product
    return last


@triton.jit
def _added(parts, SIZE: tl.constexpr, SPLIT: tl.constexpr):
    """Return the sum of parts that are SIZE apart, in order."""
    summed = tl.load(parts, cache_modifier=".cg")
    for i in tl.static_range(1, SPLIT):  # pyright: ignore[reportGeneralTypeIssues]
        summed += tl.load(parts + i * SIZE, cache_modifier=".cg")
    return summed


@triton.jit(do_not_specialize=["rows"])  # or the first pass whose rows are no multiple of 16 would wait for a compiler
def _multiply_few(
    p, scales, q, scale, y, parts, ended, rows, outputs, columns, SCALES: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, PRECISE: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`p` and `q`: descriptors of [rows, columns] by [ROWS, COLUMNS] and of [outputs, columns] by [OUTPUTS, COLUMNS]. SCALES: "none" in 16 bits; `scales`
    are [rows], or of "blocks" of COLUMNS, [blocks, ROWS]."""
    if EARLY:
        after()
    tile, part = tl.program_id(0), tl.program_id(1)
    out = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    each = tl.cdiv(tl.cdiv(columns, COLUMNS), SPLIT) * COLUMNS
    first = part * each
    summed = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for k in tl.range(first, tl.minimum(first + each, columns), COLUMNS, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        a, b = q.load([tile * OUTPUTS, k]), p.load([0, k])
        if SCALES == "none":
            summed = tl.dot(a, b.T, summed)
        elif SCALES == "blocks":
            by = tl.load(scales + k // COLUMNS * ROWS + row)
            summed += tl.dot(a, b.T) * by[None, :]
        else:
            summed = tl.dot(a, b.T, summed, max_num_imprecise_acc=PRECISE)
    if SPLIT == 1:
        _store(y, _scaled(summed, scales, scale, row, out, rows, outputs, SCALES), row, out, rows, outputs)
    else:
        within = tl.arange(0, OUTPUTS)[:, None] * ROWS + row[None, :]
        every = parts + tile.to(tl.int64) * SPLIT * OUTPUTS * ROWS + within
        tl.store(every + part * OUTPUTS * ROWS, summed)
        if _is_last(ended, tile, SPLIT):
            _store(y, _scaled(_added(every, OUTPUTS * ROWS, SPLIT), scales, scale, row, out, rows, outputs, SCALES), row, out, rows, outputs)


@triton.jit
def _store_gated(
    gate, up, scales, scale, y, block_scales, tile, row, rows, inner,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DTYPE: tl.constexpr, LARGEST: tl.constexpr, SMALLEST: tl.constexpr,
):  # fmt: skip
    """Write silu(gate) · up of sums [OUTPUTS, ROWS], rounded to DTYPE as it would be stored, quantized; and its scales."""
    out = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    gate = _scaled(gate, scales, scale, row, out, rows, inner, SCALES="rows").to(DTYPE).to(tl.float32)  # pyright: ignore[reportArgumentType]
    up = _scaled(up, scales, scale + inner, row, out, rows, inner, SCALES="rows").to(DTYPE).to(tl.float32)  # pyright: ignore[reportArgumentType]
    values = gated(gate, up).to(DTYPE).to(tl.float32)
    of_block = tl.maximum(tl.max(tl.abs(values), 0) / LARGEST, SMALLEST)
    tl.store(block_scales + tile * ROWS + row, of_block)
    _store(y, values / of_block[None, :], row, out, rows, inner)


@triton.jit(do_not_specialize=["rows"])
def _gate_few(
    p, scales, q, scale, y, block_scales, parts, ended, rows, inner, columns, DTYPE: tl.constexpr, LARGEST: tl.constexpr, SMALLEST: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, PRECISE: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`p` and `q`: descriptors of [rows, columns] by [ROWS, COLUMNS] and of [2 · inner, columns] by [OUTPUTS, COLUMNS], gates before ups; `inner`: in a
    multiple of OUTPUTS."""
    if EARLY:
        after()
    tile, part = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)
    each = tl.cdiv(tl.cdiv(columns, COLUMNS), SPLIT) * COLUMNS
    first = part * each
    gate = tl.zeros([OUTPUTS, ROWS], tl.float32)
    up = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for k in tl.range(first, tl.minimum(first + each, columns), COLUMNS, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        a, b, c = q.load([tile * OUTPUTS, k]), p.load([0, k]), q.load([inner + tile * OUTPUTS, k])
        gate = tl.dot(a, b.T, gate, max_num_imprecise_acc=PRECISE)
        up = tl.dot(c, b.T, up, max_num_imprecise_acc=PRECISE)
    if SPLIT == 1:
        _store_gated(gate, up, scales, scale, y, block_scales, tile, row, rows, inner, ROWS, OUTPUTS, DTYPE, LARGEST, SMALLEST)
    else:
        SIZE: tl.constexpr = OUTPUTS * ROWS
        gates = parts + tile.to(tl.int64) * SPLIT * 2 * SIZE + tl.arange(0, OUTPUTS)[:, None] * ROWS + row[None, :]
        tl.store(gates + part * 2 * SIZE, gate)
        tl.store(gates + part * 2 * SIZE + SIZE, up)
        if _is_last(ended, tile, SPLIT):
            every_gate, every_up = _added(gates, 2 * SIZE, SPLIT), _added(gates + SIZE, 2 * SIZE, SPLIT)
            _store_gated(every_gate, every_up, scales, scale, y, block_scales, tile, row, rows, inner, ROWS, OUTPUTS, DTYPE, LARGEST, SMALLEST)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut: outputs of a tile, columns of a step and how many steps are loaded ahead, programs of a tile."""

    outputs: int
    columns: int
    stages: int
    split: int
    warps: int = 4


DENSE_CUTS = (*(Cut(64, 128, 5, split) for split in (1, 2, 4)), Cut(128, 64, 6, 1, 8))
"""Of products in 16 bits: which is fastest, and whether any is, must be measured (gemm_tuning.py)."""


def cut_of(outputs: int) -> Cut:
    """Return the cut that is within a few per cent of the fastest on an H200 (`benchmarks.bench_fp8 --cuts`): as few
    programs as keep its 132 multiprocessors reading."""
    if outputs >= 256 * 96:
        return Cut(256, 128, 4, 1, 8)
    return Cut(64, 128, 8, _split(triton.cdiv(outputs, 64)))


def gated_cut_of(inner: int) -> Cut:
    """Return the same for gates and ups of so many outputs: each tile has twice its outputs in rows of the matrix."""
    return Cut(BLOCK, 128, 4, _split(triton.cdiv(inner, BLOCK)), 8)


def can_gate(gate_up: Fp8, rows: int) -> bool:
    """Return whether `FewRows.gate` takes a matrix of gates and ups and so many rows."""
    return (rows <= 16 or 32 < rows <= _MOST_GATED) and gate_up.bias is None and gate_up.weight.shape[0] % (2 * BLOCK) == 0


def _split(tiles: int) -> int:
    split = 1
    while tiles * split < 96 and split < 8:
        split *= 2
    return split


class FewRows:
    """Multiplies on a device, with memory for the parts of products, which follow each other on one stream."""

    def __init__(self, device: torch.device) -> None:
        self._parts = torch.empty(0, dtype=torch.float32, device=device)
        self._ended = torch.zeros(0, dtype=torch.int32, device=device)
        self._kept: list[Tensor] = []  # smaller ones: graphs that were captured use them

    def multiply(self, p: Tensor, scales: Tensor, q: Tensor, scale: Tensor, dtype: torch.dtype, cut: Cut | None = None) -> Tensor:
        """Return y [T, out] of `dtype`; T ≤ MOST.

        p, q           [T, in] and [out, in] e4m3, contiguous, in a multiple of 16
        scales, scale  [T, 1] and [1, out] float32
        cut            None: see `cut_of`
        """
        return self._product(p, scales, q, scale, dtype, cut or cut_of(len(q)), "rows")

    def dense(self, x: Tensor, weight: Tensor, cut: Cut) -> Tensor:
        """Return x [T, in] times weight [out, in], both of one dtype of 16 bits, contiguous, in a multiple of 8; T ≤ MOST_DENSE."""
        return self._product(x, x, weight, weight, x.dtype, cut, "none")

    def multiply_blocks(self, x: BlockQuantized, q: Tensor, scale: Tensor, cut: Cut | None = None) -> Tensor:
        """Return the same of rows whose blocks have scales."""
        cut = cut or cut_of(len(q))
        assert cut.columns == BLOCK and x.block_scales.shape[1] == padded(len(x.rows)) and x.block_scales.is_contiguous()
        return self._product(x.rows, x.block_scales, q, scale, x.dtype, cut, "blocks")

    def gate(self, p: Tensor, scales: Tensor, q: Tensor, scale: Tensor, dtype: torch.dtype, cut: Cut | None = None) -> BlockQuantized:
        """Return silu(gate) · up [T, I] of the products with q [2 · I, in], gates before ups, as if they were stored in `dtype`; I a multiple of BLOCK."""
        (rows, columns), inner = p.shape, len(q) // 2
        assert rows <= MOST and inner % BLOCK == 0
        y, block_scales = torch.empty(rows, inner, dtype=p.dtype, device=p.device), scales.new_empty(inner // BLOCK, padded(rows))
        if rows:
            cut = cut or gated_cut_of(inner)
            assert cut.outputs == BLOCK
            constants = getattr(tl, str(dtype).removeprefix("torch.")), LARGEST, SMALLEST
            self._launch(_gate_few, cut, 2, padded(rows), (p, scales, q, scale), (y, block_scales), rows, inner, columns, *constants)
        return BlockQuantized(y, block_scales, dtype)

    def _product(self, p: Tensor, scales: Tensor, q: Tensor, scale: Tensor, dtype: torch.dtype, cut: Cut, scaled: str) -> Tensor:
        (rows, columns), outputs = p.shape, len(q)
        assert rows <= MOST
        y = torch.empty(rows, outputs, dtype=dtype, device=p.device)
        if rows:
            tile = padded(rows) if scaled == "blocks" else max(16, triton.next_power_of_2(rows))
            self._launch(_multiply_few, cut, 1, tile, (p, scales, q, scale), (y,), rows, outputs, columns, scaled)
        return y

    def _launch(
        self, kernel: Any, cut: Cut, sums: int, block: int, given: tuple[Tensor, Tensor, Tensor, Tensor], written: tuple[Tensor, ...], *sizes: Any
    ) -> None:
        """Launch a kernel whose programs have tiles of `block` rows, and so many sums of each row and output."""
        p, scales, q, scale = given
        tiles = triton.cdiv(len(q), sums * cut.outputs)
        if cut.split > 1:
            self._grow(tiles, tiles * cut.split * sums * cut.outputs * block)
        read, matrix = TensorDescriptor.from_tensor(p, [block, cut.columns]), TensorDescriptor.from_tensor(q, [cut.outputs, cut.columns])
        constants = block, cut.outputs, cut.columns, cut.split, _PRECISE, cut.stages
        launch(kernel, (tiles, cut.split), read, scales, matrix, scale, *written, self._parts, self._ended, *sizes, *constants, warps=cut.warps)

    def _grow(self, tiles: int, parts: int) -> None:
        if parts > len(self._parts):
            self._kept.append(self._parts)
            self._parts = self._parts.new_empty(parts)
        if tiles > len(self._ended):
            self._kept.append(self._ended)
            self._ended = self._ended.new_zeros(tiles)
