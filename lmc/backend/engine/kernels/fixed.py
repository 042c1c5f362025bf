"""Products with a matrix in which a row has the same bits among any number of rows: each sum is in an order that the matrix alone decides.

    y[t, o] = Σ x[t, i] w[o, i]        x [T, in] and w [out, in] of one dtype, sums in float32

The columns of the matrix are cut into a few parts. Of few rows, a part is a program's, so that all multiprocessors read, and the last program of a tile to
end adds the parts in order (cf. few_rows.py); of many, a program computes the parts of its tile one after the other and adds them in the same order.
Tiles for few rows are lower. Whether tensor cores give the same bits in them is tried for each shape when a model is loaded, and others are not used.
Rows and matrix come by TMA, which reads zeros beyond their ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lmc.backend.engine.kernels.dependent_launch import after, launch
from lmc.backend.engine.models.linear import Dense, Linear

log = logging.getLogger("lmc.models")

_COLUMNS = 64
_HEIGHTS = (16, 32, 64, 128)  # rows of a tile
_LOW, _TALL = 64, 128  # outputs of a tile whose parts are programs' own, and of others
_MANY = 256  # rows of a tile among many, if there is one part: two would need two sums of that size
_WIDE = 128 * 192  # outputs from which on tiles alone fill a GPU


@triton.jit
def _write(summed, bias, y, row, out, rows, outputs, BIASED: tl.constexpr):
    is_row, is_output = row < rows, out < outputs
    if BIASED:
        summed += tl.load(bias + out, mask=is_output, other=0.0).to(tl.float32)[:, None]
    to = y + row[None, :].to(tl.int64) * outputs + out[:, None]
    tl.store(to, summed.to(y.dtype.element_ty), mask=is_output[:, None] & is_row[None, :])


@triton.jit(do_not_specialize=["rows"])  # or the first launched pass whose rows are no multiple of 16 would wait for a compiler
def _multiply(
    x, w, bias, y, parts, ended, rows, outputs, columns, BIASED: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr, APART: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`x` and `w`: descriptors of [rows, columns] by [ROWS, COLUMNS] and of [outputs, columns] by [OUTPUTS, COLUMNS]."""
    if EARLY:
        after()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tile, part = tl.program_id(1), tl.program_id(2)
    out = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    each = tl.cdiv(tl.cdiv(columns, COLUMNS), SPLIT) * COLUMNS
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for i in range(1 if APART else SPLIT):
        first = (part + i) * each
        summed = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for k in tl.range(first, tl.minimum(first + each, columns), COLUMNS, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
            a, b = w.load([tile * OUTPUTS, k]), x.load([tl.program_id(0) * ROWS, k])
            summed = tl.dot(a, b.T, summed, input_precision="ieee")
        if SPLIT == 1:
            total = summed
        else:
            total += summed
    if not APART:
        _write(total, bias, y, row, out, rows, outputs, BIASED)
    else:
        within = tl.arange(0, OUTPUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        tl.store(parts + (tile * SPLIT + part).to(tl.int64) * OUTPUTS * ROWS + within, total)
        tl.debug_barrier()  # all of it is written before this program is counted
        if tl.atomic_add(ended + tile, 1, sem="acq_rel") == SPLIT - 1:
            tl.store(ended + tile, 0)  # for the next product
            every = parts + tile.to(tl.int64) * SPLIT * OUTPUTS * ROWS + within
            total = tl.zeros([OUTPUTS, ROWS], tl.float32)
            for n in tl.static_range(SPLIT):  # pyright: ignore[reportGeneralTypeIssues]
                total += tl.load(every + n * OUTPUTS * ROWS, cache_modifier=".cg")
            _write(total, bias, y, row, out, rows, outputs, BIASED)


def split_of(outputs: int) -> int:
    """Return the parts of a matrix's columns: as few as fill a GPU with programs where rows are few."""
    split = 1
    while outputs < _WIDE and triton.cdiv(outputs, _LOW) * split < 128 and split < 8:
        split *= 2
    return split


class Room:
    """Memory for the parts of products that follow each other on one stream."""

    def __init__(self, outputs: int, device: torch.device) -> None:
        split, tiles = split_of(outputs), triton.cdiv(outputs, _LOW)
        self.parts = torch.empty(tiles * _LOW * split * _HEIGHTS[-1] if split > 1 else 0, dtype=torch.float32, device=device)
        self.ended = torch.zeros(tiles, dtype=torch.int32, device=device)


class FixedProduct:
    """A Linear of an unmodified matrix, and of its bias.

    heights  of tiles for up to so many rows, ascending
    """

    def __init__(self, matrix: Dense, room: Room) -> None:
        self.weight, self.bias, self._room = matrix.weight.contiguous(), matrix.bias, room
        self.heights: tuple[int, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        return self.multiply(x, next((n for n in self.heights if n >= len(x)), None), x.dtype)

    def multiply(self, x: Tensor, height: int | None, dtype: torch.dtype) -> Tensor:
        """Return x [T, in] times the matrix, [T, out] of `dtype`; T ≤ height, None: any."""
        (rows, columns), outputs = x.shape, len(self.weight)
        y = torch.empty(rows, outputs, dtype=dtype, device=x.device)
        if rows:
            split = split_of(outputs)
            apart, high = height is not None and split > 1, height or (_MANY if split == 1 else _HEIGHTS[-1])
            tile, stages = _LOW if apart else _TALL, 4 if high >= _HEIGHTS[-1] else 6
            read, matrix = TensorDescriptor.from_tensor(x.contiguous(), [high, _COLUMNS]), TensorDescriptor.from_tensor(self.weight, [tile, _COLUMNS])
            given = read, matrix, self.weight if self.bias is None else self.bias, y, self._room.parts, self._room.ended
            constants = self.bias is not None, high, tile, _COLUMNS, split, apart, stages
            grid = triton.cdiv(rows, high), triton.cdiv(outputs, tile), split if apart else 1
            launch(_multiply, grid, *given, rows, outputs, columns, *constants, warps=4 if apart else 8)
        return y

    @torch.inference_mode()
    def agreeing(self) -> tuple[int, ...]:
        """Return the heights of tiles in which rows have the bits that they have among many."""
        x = torch.randn(2 * _HEIGHTS[-1], self.weight.shape[1], generator=torch.Generator().manual_seed(0)).to(self.weight)
        expected = self.multiply(x, None, torch.float32)  # rounded to less, few differences would be seen
        return tuple(height for height in _HEIGHTS if self._agrees(height, x, expected))

    def _agrees(self, height: int, x: Tensor, expected: Tensor) -> bool:
        """Return whether rows have the expected bits: in a whole tile, alone, and elsewhere."""
        some = (slice(0, height), slice(len(x) - height, None), slice(0, 1), slice(height // 2, height), slice(height - 1, height))
        return all(torch.equal(self.multiply(x[rows], height, torch.float32), expected[rows]) for rows in some)


def fixed_products(device: torch.device) -> Callable[[str, Linear], Linear]:
    """Return what wraps the matrices of a model (llama_weights.build)."""
    rooms: dict[int, Room] = {}
    heights: dict[torch.Size, tuple[int, ...]] = {}

    def wrap(name: str, matrix: Linear) -> FixedProduct:
        assert isinstance(matrix, Dense), name
        outputs, shape = len(matrix.weight), matrix.weight.shape
        if outputs not in rooms:
            rooms[outputs] = Room(outputs, device)
        found = FixedProduct(matrix, rooms[outputs])
        if shape not in heights:
            heights[shape] = found.agreeing()
            log.info("%s: tiles of %s rows", name.rpartition(".")[2], ", ".join(map(str, heights[shape])))
        found.heights = heights[shape]
        return found

    return wrap
