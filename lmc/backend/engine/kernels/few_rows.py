"""Products of few rows with a matrix in FP8: as fast as its bytes are read, which cuBLAS and CUTLASS are not.

    y[t, o] = s[t] · scale[o] · Σ p[t, i] q[o, i]        q [out, in] and p [T, in] e4m3, sums in float32

Tensor cores want 64 rows on their left, so the matrix is on the left and the few rows are on the right. Both come by TMA (tensor descriptors),
which leaves registers and issue slots to the rest. The columns of a tile of outputs are split over programs, so that all multiprocessors read; the
last program of a tile to end adds their parts in order, so the bits are the same each time. Tensor cores add e4m3 with 14 bits: their sums are added
in float32 every 128 columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lmc.backend.engine.kernels.dependent_launch import after, launch

MOST = 128
"""Rows, at most."""

_PRECISE = 128  # columns whose sum tensor cores may keep


@triton.jit
def _scale(summed, scales, scale, y, row, out, rows, outputs):
    """Write sums [OUTPUTS, ROWS], scaled, to y [rows, outputs]."""
    is_row, is_output = row < rows, out < outputs
    summed *= tl.load(scales + row, mask=is_row, other=0.0)[None, :] * tl.load(scale + out, mask=is_output, other=0.0)[:, None]
    tl.store(y + row[None, :] * outputs + out[:, None], summed.to(y.dtype.element_ty), mask=is_output[:, None] & is_row[None, :])


@triton.jit
def _multiply_few(
    p, scales, q, scale, y, parts, ended, rows, outputs, columns,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, PRECISE: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`p` and `q`: descriptors of [rows, columns] by [ROWS, COLUMNS] and of [outputs, columns] by [OUTPUTS, COLUMNS]."""
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
        summed = tl.dot(a, b.T, summed, max_num_imprecise_acc=PRECISE)
    if SPLIT == 1:
        _scale(summed, scales, scale, y, row, out, rows, outputs)
    else:
        mine = parts + (tile * SPLIT + part).to(tl.int64) * OUTPUTS * ROWS
        within = tl.arange(0, OUTPUTS)[:, None] * ROWS + row[None, :]
        tl.store(mine + within, summed)
        tl.debug_barrier()  # all of it is written before this program is counted
        if tl.atomic_add(ended + tile, 1, sem="acq_rel") == SPLIT - 1:
            tl.store(ended + tile, 0)  # for the next product
            every = parts + tile.to(tl.int64) * SPLIT * OUTPUTS * ROWS + within
            summed = tl.load(every, cache_modifier=".cg")
            for i in tl.static_range(1, SPLIT):  # pyright: ignore[reportGeneralTypeIssues]
                summed += tl.load(every + i * OUTPUTS * ROWS, cache_modifier=".cg")
            _scale(summed, scales, scale, y, row, out, rows, outputs)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut: outputs of a tile, columns of a step and how many steps are loaded ahead, programs of a tile."""

    outputs: int
    columns: int
    stages: int
    split: int
    warps: int = 4


def cut_of(outputs: int) -> Cut:
    """Return the cut that is within a few per cent of the fastest on an H200 (`benchmarks.bench_fp8 --cuts`): as few
    programs as keep its 132 multiprocessors reading."""
    if outputs >= 256 * 96:
        return Cut(256, 128, 4, 1, 8)
    split = 1
    while triton.cdiv(outputs, 64) * split < 96 and split < 8:
        split *= 2
    return Cut(64, 128, 8, split)


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
        (rows, columns), outputs = p.shape, len(q)
        assert rows <= MOST
        y = torch.empty(rows, outputs, dtype=dtype, device=p.device)
        if rows:
            cut = cut or cut_of(outputs)
            block, tiles = max(16, triton.next_power_of_2(rows)), triton.cdiv(outputs, cut.outputs)
            if cut.split > 1:
                self._grow(tiles, tiles * cut.split * cut.outputs * block)
            constants = block, cut.outputs, cut.columns, cut.split, _PRECISE, cut.stages
            read, matrix = TensorDescriptor.from_tensor(p, [block, cut.columns]), TensorDescriptor.from_tensor(q, [cut.outputs, cut.columns])
            given = read, scales, matrix, scale, y, self._parts, self._ended, rows, outputs, columns
            launch(_multiply_few, (tiles, cut.split), *given, *constants, warps=cut.warps)
        return y

    def _grow(self, tiles: int, parts: int) -> None:
        if parts > len(self._parts):
            self._kept.append(self._parts)
            self._parts = self._parts.new_empty(parts)
        if tiles > len(self._ended):
            self._kept.append(self._ended)
            self._ended = self._ended.new_zeros(tiles)
