"""What adapters add to a product with a model's matrix, for all rows in two launches whose grids do not depend on which rows have which adapter.

    numbers [T] ──group──► blocks of at most so many rows of one adapter each (grouped.py)
    x [T, in] ──shrink──► low [parts, T, ranks] ──expand──► added to y [T, out]

Cf. Punica (arXiv 2310.18547) and S-LoRA (2311.03285). The columns of `x` are split over programs, so that many multiprocessors read; those of the second
launch add the parts in order, so the bits are the same each time. Blocks of rows without an adapter end at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.kernels.dependent_launch import after, launch
from lmc.backend.engine.kernels.grouped import Groups, Tile, groups_of
from lmc.backend.engine.models.adapters import Factors

_FEW = 256  # rows of a pass up to which blocks are low
_LOW, _TALL = 16, 64  # rows of a block at most
_OUTPUTS = 128  # of a tile
_STEP = 32  # ranks, of 16 bits
_PROGRAMS, _PARTS = 96, 16  # at least, and at most


class Stack(NamedTuple):
    """All adapters' factors of one merged matrix. Ranks that differ are filled up with zeros, and so is the last tile of each part's outputs.

    down    [adapters, parts · rank, in]
    up      [adapters, tiles, _OUTPUTS, rank]
    places  [tiles, 3] int32: of each tile the first rank of its part in `down`, its first column in the product, and how many columns it has there
    even    whether those columns begin and end at multiples of 16
    """

    down: Tensor
    up: Tensor
    places: Tensor
    even: bool


def stack(every: Sequence[Factors | None]) -> Stack:
    """Stack the factors of one merged matrix by adapter; None: an adapter leaves it as it is."""
    some = [f for f in every if f is not None]
    outputs = {part.first: len(part.up) for f in some for part in f.parts}
    most = max(part.up.shape[1] for f in some for part in f.parts)
    step = min(_STEP, max(16, triton.next_power_of_2(most)))
    rank, like = triton.cdiv(most, step) * step, some[0].down
    places = [(i * rank, first + at, min(_OUTPUTS, n - at)) for i, (first, n) in enumerate(sorted(outputs.items())) for at in range(0, n, _OUTPUTS)]
    tile_at = {column: tile for tile, (_, column, _) in enumerate(places)}
    rank_at = {first: i * rank for i, first in enumerate(sorted(outputs))}
    down = like.new_zeros(len(every), len(outputs) * rank, like.shape[1])
    up = like.new_zeros(len(every), len(places), _OUTPUTS, rank)
    for number, factors in enumerate(every):
        at = 0
        for first, own in () if factors is None else factors.parts:
            assert factors is not None
            n = own.shape[1]
            down[number, rank_at[first] : rank_at[first] + n] = factors.down[at : at + n]
            up[number, tile_at[first] :].flatten(0, 1)[: len(own), :n] = own
            at += n
    even = all(first % 16 == 0 and n % 16 == 0 for first, n in outputs.items())
    return Stack(down, up, torch.tensor(places, dtype=torch.int32, device=like.device), even)


def tile_of(rows: int, dtype: torch.dtype) -> Tile:
    height, inner, stages = (_LOW, 512, 4) if rows <= _FEW else (_TALL, 256, 3)
    return Tile(height, _OUTPUTS, inner // dtype.itemsize, 4, stages)


def group(numbers: Tensor, count: int, dtype: torch.dtype, tile: Tile | None = None) -> Groups:
    """Return the rows of a pass by their adapters, `numbers` [T] int32 from 1 to `count`, 0 for none; `tile`: of their products, None: see `tile_of`."""
    return groups_of(numbers[:, None], count + 1, dtype, tile or tile_of(len(numbers), dtype))


def add_reference(x: Tensor, y: Tensor, every: Sequence[Factors | None], numbers: Tensor) -> Tensor:
    """Return `y` [T, out] with what the rows' adapters add for `x` [T, in]: sums in float32, rounded to the dtype between both factors and at the end."""
    more = torch.zeros_like(y, dtype=torch.float32)
    for number, factors in enumerate(every, 1):
        own, at = torch.nonzero(numbers == number)[:, 0], 0
        for first, up in () if factors is None else factors.parts:
            assert factors is not None
            low = x[own].float() @ factors.down[at : at + up.shape[1]].float().t()
            more[own, first : first + len(up)] += low.to(x.dtype).float() @ up.float().t()
            at += up.shape[1]
    return (y.float() + more).to(y.dtype)


@triton.jit(do_not_specialize=["rows"])  # or the first pass whose rows are no multiple of 16 would wait for a compiler
def _shrink(
    x, down, low, order, numbers, firsts, counts, rows, columns, ranks, each,
    EVEN: tl.constexpr, HEIGHT: tl.constexpr, RANKS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write the sums of a block's rows and RANKS ranks over `each` columns: one part."""
    if EARLY:
        after()
    block, part = tl.program_id(0), tl.program_id(2)
    number, first, count = tl.load(numbers + block), tl.load(firsts + block), tl.load(counts + block)
    if (number == 0) | (count == 0):
        return
    lane = tl.arange(0, HEIGHT)
    row = tl.load(order + first + tl.minimum(lane, count - 1)).to(tl.int64)  # lanes without a row compute the last one, too
    rank = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    at = tl.arange(0, INNER)
    a = x + row[:, None] * columns + at[None, :]
    b = down + (number - 1).to(tl.int64) * ranks * columns + (tl.minimum(rank, ranks - 1)[None, :] * columns + at[:, None])
    begin = part * each
    total = tl.zeros((HEIGHT, RANKS), tl.float32)
    for k in tl.range(begin, tl.minimum(begin + each, columns), INNER, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        if EVEN:
            total = tl.dot(tl.load(a + k), tl.load(b + k), total, input_precision="ieee")
        else:
            inside = at < columns - k
            total = tl.dot(tl.load(a + k, mask=inside[None, :], other=0.0), tl.load(b + k, mask=inside[:, None], other=0.0), total, input_precision="ieee")
    to = low + (part * rows + first + lane).to(tl.int64)[:, None] * ranks + rank[None, :]
    tl.store(to, total, mask=(lane < count)[:, None] & (rank < ranks)[None, :])


@triton.jit
def _added(low, mask, dtype, apart, PARTS: tl.constexpr):
    """Return the sum of parts of [HEIGHT, RANKS] that are `apart`, rounded; as a reduction, since the compiler would give each of several loads the layout that
    `dot` needs."""
    parts = tl.arange(0, PARTS)[:, None, None] * apart
    return tl.sum(tl.load(low[None, :, :] + parts, mask=mask[None, :, :], other=0.0), 0).to(dtype)


@triton.jit(do_not_specialize=["rows"])
def _expand(
    low, up, places, y, order, numbers, firsts, counts, rows, outputs, ranks,
    EVEN: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr, HEIGHT: tl.constexpr, OUTPUTS: tl.constexpr, RANKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Add to a block's rows in one tile of outputs, RANKS ranks at a time. EVEN: tiles begin and end at multiples of 16."""
    block, tile = tl.program_id(0), tl.program_id(1)
    number, first = tl.load(numbers + block), tl.load(firsts + block)
    count = tl.where(number > 0, tl.load(counts + block), 0)
    base, column = tl.multiple_of(tl.load(places + tile * 3), 16), tl.load(places + tile * 3 + 1)
    width = tl.where(count > 0, tl.load(places + tile * 3 + 2), 0)
    if EVEN:
        column, width = tl.multiple_of(column, 16), tl.multiple_of(width, 16)
    lane, out, rank = tl.arange(0, HEIGHT), tl.arange(0, OUTPUTS), tl.arange(0, RANKS)
    is_row, is_output = (lane < count)[:, None], (out < width)[None, :]
    row = tl.load(order + first + lane, mask=lane < count, other=0).to(tl.int64)
    own = tl.maximum(number - 1, 0).to(tl.int64) * tl.num_programs(1) + tile
    b = up + own * OUTPUTS * RANK + (out[None, :] * RANK + rank[:, None])
    to = y + row[:, None] * outputs + column + out[None, :]
    factor = tl.load(b, mask=is_output, other=0.0)
    before = tl.load(to, mask=is_row & is_output, other=0.0).to(tl.float32)
    if EARLY:
        after()  # what is read above was there before `_shrink`, which has waited for it
    if count == 0:
        return
    a = low + (first + lane).to(tl.int64)[:, None] * ranks + (base + rank)[None, :]
    more = tl.dot(_added(a, is_row, factor.dtype, rows * ranks, PARTS), factor, input_precision="ieee")
    for r in tl.range(RANKS, RANK, RANKS, num_stages=1):  # pyright: ignore[reportGeneralTypeIssues]
        factor = tl.load(b + r, mask=is_output, other=0.0)
        more = tl.dot(_added(a + r, is_row, factor.dtype, rows * ranks, PARTS), factor, more, input_precision="ieee")
    tl.store(to, (before + more).to(y.dtype.element_ty), mask=is_row & is_output)


class LowRankCut(NamedTuple):
    """How both products are cut: parts of the columns of `x`; ranks of a tile of the first, and of a step of the second; warps of a program."""

    parts: int
    ranks: int
    step: int
    warps: int = 4


def cut_of(stack: Stack, groups: Groups) -> LowRankCut:
    """Return as few parts as keep an H200's 132 multiprocessors reading, in powers of four, since each number is a kernel to compile. Of tall blocks `x` is
    most of what is read: their tiles have many ranks."""
    (_, ranks, columns), tile = stack.down.shape, groups.tile
    step = min(stack.up.shape[-1], _STEP * 2 // stack.up.itemsize)
    wide, most = (step, _PARTS) if tile.height == _LOW else (min(64, triton.next_power_of_2(ranks)), _PARTS // 4)
    programs, parts = len(groups.rows) * triton.cdiv(ranks, wide), 1
    while programs * parts < _PROGRAMS and 4 * parts <= min(most, triton.cdiv(columns, tile.inner)):
        parts *= 4
    return LowRankCut(parts, wide, step)


def add(x: Tensor, y: Tensor, stack: Stack, groups: Groups, cut: LowRankCut | None = None) -> Tensor:
    """Compute `add_reference`, in place; both contiguous, of one dtype; `groups`: of their rows; `cut` None: see `cut_of`."""
    (rows, columns), ranks, (parts, wide, step, warps), tile = x.shape, stack.down.shape[1], cut or cut_of(stack, groups), groups.tile
    if rows:
        blocks, even = (groups.order, groups.expert, groups.first, groups.rows), columns % tile.inner == 0
        low = torch.empty(parts, rows, ranks, dtype=torch.float32, device=x.device)
        each = triton.cdiv(triton.cdiv(columns, tile.inner), parts) * tile.inner
        constants = even, tile.height, wide, tile.inner, tile.stages
        launch(_shrink, (len(groups.rows), triton.cdiv(ranks, wide), parts), x, stack.down, low, *blocks, rows, columns, ranks, each, *constants, warps=warps)
        constants = stack.even, parts, stack.up.shape[-1], tile.height, tile.columns, step
        launch(_expand, (len(groups.rows), len(stack.places)), low, stack.up, stack.places, y, *blocks, rows, y.shape[1], ranks, *constants, warps=warps)
    return y
