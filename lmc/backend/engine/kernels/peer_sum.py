"""The sum of all ranks' rows, fused with the residual addition and the RMSNorm after it: one launch in place of three.

Each program writes its rows to the memory of the others' GPUs, waits until theirs have come to its own, and
adds them in the order of ranks: all ranks get the same bits. There are no flags and no fences: places are cleared to
a number that no row holds, -0, and a row has come when none is left of it (as in the "Lamport" kernels of TensorRT-LLM).

    round r: write to places r mod 3 of the others │ clear places r - 1 here │ wait for and add places r mod 3 here

A rank that writes in round r has ended round r - 1, so that all others have begun it, and ended r - 2, in which they
cleared what is written to now.

On two H200s 3.5 µs for one row, 6.4 for 128 and 108 for 4,096, where NCCL and the norm take 12, 19 and 173.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.kernels.dependent_launch import after, launch

PLACES = 3
EMPTY = -(1 << 15)
"""The bits of -0 in bfloat16 and float16, as int16: what a place holds that nobody has written to."""

_PROGRAMS = 128  # at most. A program waits only for the one of its number on the other ranks, and they start in order: none that waits keeps one from writing
_TILE = 4  # rows at most
_POLLS = 64  # between looks at whether the ranks have been given up


@triton.jit
def _place(places, owner, peer, now, size, RANKS: tl.constexpr, ALIGNED: tl.constexpr):
    """Return where rank `owner` has the rows of `peer` in this round, aligned to so many bytes, which pointers in memory do not tell."""
    there = tl.load(places + owner).to(tl.pointer_type(tl.int16)) + (now * RANKS + peer) * size
    return tl.multiple_of(there, ALIGNED)


@triton.jit
def _send(x, places, rows, at, count, columns, now, size, RANK: tl.constexpr, RANKS: tl.constexpr, ALIGNED: tl.constexpr, NONE: tl.constexpr):
    """Write a tile of `x` to the places of the others; return it."""
    inside = (rows < count) & (at < columns)
    mine = tl.load(x + rows * columns + at, mask=inside, other=0.0)
    bits = mine.to(tl.int16, bitcast=True)
    bits = tl.where(bits == NONE, 0, bits)
    for peer in tl.static_range(RANKS):  # pyright: ignore[reportGeneralTypeIssues]
        if peer != RANK:
            there = _place(places, peer, RANK, now, size, RANKS, ALIGNED)
            tl.store(there + rows * columns + at, bits, mask=inside)
    return mine


@triton.jit
def _receive(
    mine, places, stop, rows, at, count, columns, now, size,
    RANK: tl.constexpr, RANKS: tl.constexpr, ALIGNED: tl.constexpr, NONE: tl.constexpr, POLLS: tl.constexpr,
):  # fmt: skip
    """Return the sum of all ranks' tiles in float32, in the order of ranks, once they have come."""
    inside = (rows < count) & (at < columns)
    summed = tl.zeros_like(mine).to(tl.float32)
    for peer in tl.static_range(RANKS):  # pyright: ignore[reportGeneralTypeIssues]
        if peer == RANK:
            summed += mine.to(tl.float32)
        else:
            place = _place(places, RANK, peer, now, size, RANKS, ALIGNED) + rows * columns + at
            bits = tl.load(place, mask=inside, other=0, cache_modifier=".cg")
            polls = 0
            while tl.max(tl.max((bits == NONE).to(tl.int32), 1), 0) > 0:  # pyright: ignore[reportOperatorIssue]
                bits = tl.load(place, mask=inside, other=0, volatile=True)
                polls += 1
                if polls % POLLS == 0:  # noqa: SIM102  # pyright: ignore[reportOperatorIssue]  (Triton has no short circuit)
                    if tl.load(stop, volatile=True) != 0:
                        bits = tl.zeros_like(bits)
            summed += bits.to(mine.dtype, bitcast=True).to(tl.float32)
    return summed


@triton.jit
def _add_and_norm(summed, residual, weight, out, rows, at, count, columns, eps):
    """Add a tile to the residual in place; write its norm."""
    inside = (rows < count) & (at < columns)
    total = tl.load(residual + rows * columns + at, mask=inside, other=0.0).to(tl.float32) + summed
    total = total.to(residual.dtype.element_ty)  # rounded as stored, as others read it
    tl.store(residual + rows * columns + at, total, mask=inside)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / columns + eps)
    normed = wide * tl.expand_dims(scale, 1) * tl.load(weight + at, mask=at < columns, other=0.0).to(tl.float32)
    tl.store(out + rows * columns + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum_add_rms_norm(
    x, places, stop, rounds, residual, weight, out, count, columns, eps, most,
    TURN: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, NONE: tl.constexpr,
    POLLS: tl.constexpr, ONE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        after()
    first, step = tl.program_id(0).to(tl.int64) * ROWS, tl.num_programs(0) * ROWS
    now = tl.load(rounds + TURN)
    before = tl.load(rounds + 3 - TURN)  # rows of the round before
    if first == 0:
        tl.store(rounds + 1 - TURN, (now + 1) % 3)
        tl.store(rounds + 2 + TURN, count)
    down, at = tl.expand_dims(tl.arange(0, ROWS), 1), tl.expand_dims(tl.arange(0, BLOCK), 0)
    size = most * columns  # of a place: the rows of one rank in one round
    rows = first + down
    mine = _send(x, places, rows, at, count, columns, now, size, RANK, RANKS, ALIGNED, NONE)
    for row in range(first, before, step):
        old = row + down
        for peer in tl.static_range(RANKS):  # pyright: ignore[reportGeneralTypeIssues]
            if peer != RANK:
                there = _place(places, RANK, peer, (now + 2) % 3, size, RANKS, ALIGNED)
                tl.store(there + old * columns + at, tl.full([ROWS, BLOCK], NONE, tl.int16), mask=(old < before) & (at < columns))
    if not ONE:
        for row in range(first + step, count, step):  # the next tile is on its way while this one is waited for
            following = _send(x, places, row + down, at, count, columns, now, size, RANK, RANKS, ALIGNED, NONE)
            summed = _receive(mine, places, stop, rows, at, count, columns, now, size, RANK, RANKS, ALIGNED, NONE, POLLS)
            _add_and_norm(summed, residual, weight, out, rows, at, count, columns, eps)
            mine, rows = following, row + down
    summed = _receive(mine, places, stop, rows, at, count, columns, now, size, RANK, RANKS, ALIGNED, NONE, POLLS)
    _add_and_norm(summed, residual, weight, out, rows, at, count, columns, eps)


def sum_add_rms_norm(
    x: Tensor, places: Tensor, stop: Tensor, rounds: Tensor, rank: int, turn: int, most: int, residual: Tensor, weight: Tensor, eps: float
) -> Tensor:
    """Return norm(residual + the sum of all ranks' x) [T, C]; `residual` becomes the sum in place. Half precision.

    places    [ranks] int64: addresses of their places [3, ranks, `most`, C] int16, most ≥ T, EMPTY where nothing has come
    stop      [1] int32, on this device: not 0 when ranks are lost; nobody is waited for then
    rounds    [4] int32, to begin with 0; the same on all ranks, which take turns 0 and 1 strictly
    """
    count, columns = residual.shape
    out = torch.empty_like(residual)
    if count:
        block = triton.next_power_of_2(columns)
        rows = min(_TILE, triton.next_power_of_2(triton.cdiv(count, _PROGRAMS)))  # at once, whose reads are waited for together
        warps = min(16, max(1, rows * block // 512))
        tiles = triton.cdiv(count, rows)
        programs = triton.cdiv(tiles, triton.cdiv(tiles, _PROGRAMS))  # of as many tiles each
        constants = (turn, rank, len(places), 16 if columns % 8 == 0 else 2, rows, block, EMPTY, _POLLS, programs == tiles)
        given = x, places, stop, rounds, residual, weight, out, count, columns, eps, most
        launch(_sum_add_rms_norm, (programs,), *given, *constants, warps=warps)
    return out
