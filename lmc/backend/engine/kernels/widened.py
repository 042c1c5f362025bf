"""Attention of wide tiles over FP8 KV that was widened first: the slots that they read, each once, in blocks that lie one behind the other.

Many tiles read the same slots, and to widen them takes as long as to multiply by them. So it is done once a layer, into memory that every
layer uses again; from there TMA brings whole blocks, and only the last blocks of a tile, which not all of its rows see, are masked.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lmc.backend.engine.attention.tiles import BLOCK, PIECE, WIDE, group_of, rows_of
from lmc.backend.engine.kernels.dependent_launch import after, launch
from lmc.backend.engine.kernels.pieces import DevicePlan, Partials, begin_piece, end_piece, is_row, scale_of
from lmc.backend.engine.kv_fp8 import Fp8Rows

_STAGES = 3
_WARPS = 4
_PROGRAMS = 2  # that widen, for one that attends


@triton.jit
def _widen(
    keys, values, key_scales, value_scales, indices, wide_keys, wide_values, room,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Run any number of programs; `indices` begins with the number of blocks and with the first one's place among blocks of indices."""
    if EARLY:
        after()
    at, column = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    count, first = tl.load(indices), tl.load(indices + 1)
    for n in range(tl.program_id(0), count * KV_HEADS, tl.num_programs(0)):
        block, kv_head = n // KV_HEADS, n % KV_HEADS  # pyright: ignore[reportOperatorIssue]
        slot = tl.load(indices + (first + block) * BLOCK + at).to(tl.int64) * KV_HEADS + kv_head
        to = (kv_head * room + block * BLOCK + at)[:, None] * WIDTH + column[None, :]
        inside = (column < DIM)[None, :]
        k = tl.load(keys + slot[:, None] * DIM + column[None, :], mask=inside, other=0.0).to(tl.float32) * tl.load(key_scales + slot)[:, None]
        v = tl.load(values + slot[:, None] * DIM + column[None, :], mask=inside, other=0.0).to(tl.float32) * tl.load(value_scales + slot)[:, None]
        tl.store(wide_keys + to, k.to(wide_keys.dtype.element_ty))
        tl.store(wide_values + to, v.to(wide_values.dtype.element_ty))


@triton.jit
def _read_block(
    x, keys, values, row, best, total, sums, scale, place, most, last, window,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add what a block of slots, whose rows in `keys` and `values` begin at `row`, gives; return best, total and sums."""
    score = tl.dot(x, keys.load([row, 0]).T)
    if MASKED:
        at = place + tl.arange(0, BLOCK)
        sees = at[None, :] <= most[:, None]
        if window > 0:
            sees &= at[None, :] > last[:, None] - window
        score = tl.where(sees, score, -float("inf"))
    higher = tl.maximum(best, tl.max(score, 1) * scale)
    shift = tl.where(higher == -float("inf"), 0.0, higher) if MASKED else higher  # a row that has seen nothing yet
    weight = tl.exp2(score * scale - shift[:, None])
    fade = tl.exp2(best - shift)
    total = total * fade + tl.sum(weight, 1)
    sums = tl.dot(weight.to(x.dtype), values.load([row, 0]), sums * fade[:, None])
    return higher, total, sums


@triton.jit
def _attend_widened(
    q, keys, values, in_context, indices, pieces, shares, indptr, partial, lse, out, scale, window, room,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    LANES: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Run one program per share and head of k. `keys` and `values`: descriptors of blocks; `indices`: of each block of a piece its place there."""
    if EARLY:
        after()
    share, kv_head = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS
    begins = kv_head * room
    FP8: tl.constexpr = False  # pyright: ignore[reportAssignmentType]  (no longer)
    ALL: tl.constexpr = False  # pyright: ignore[reportAssignmentType]
    SOME: tl.constexpr = True  # pyright: ignore[reportAssignmentType]  (of the rows see a block)
    UNIT: tl.constexpr = 1.0  # pyright: ignore[reportAssignmentType]
    for run in range(tl.load(shares + share), tl.load(shares + share + 1)):
        piece = pieces + run * PIECE
        x, most, last = begin_piece(piece, q, in_context, kv_head, HEADS, KV_HEADS, DIM, WIDTH, GROUP, LANES, FP8)
        begin, end = tl.load(piece + 2), tl.load(piece + 3)
        seen = tl.min(tl.where(is_row(piece, HEADS, KV_HEADS, GROUP, LANES), most, 2147483647), 0) + 1  # pyright: ignore[reportOperatorIssue]  (slots that all rows see)
        clear = begin if window > 0 else tl.minimum(end, begin + tl.maximum(seen, 0) // BLOCK)
        best = tl.full((LANES,), -float("inf"), tl.float32)
        total = tl.zeros((LANES,), tl.float32)
        sums = tl.zeros((LANES, WIDTH), tl.float32)
        for block in tl.range(begin, clear, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
            row = begins + tl.load(indices + block) * BLOCK
            best, total, sums = _read_block(x, keys, values, row, best, total, sums, scale, 0, most, last, window, ALL, BLOCK)
        for tail in tl.range(clear, end, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
            row = begins + tl.load(indices + tail) * BLOCK
            best, total, sums = _read_block(x, keys, values, row, best, total, sums, scale, (tail - begin) * BLOCK, most, last, window, SOME, BLOCK)
        end_piece(piece, kv_head, best, total, sums, sums, indptr, partial, lse, out, HEADS, KV_HEADS, DIM, WIDTH, GROUP, LANES, FP8, UNIT)


def attend_widened(
    q: Tensor, keys: Fp8Rows, values: Fp8Rows, in_context: Tensor, tables: DevicePlan, partials: Partials, out: Tensor, window: int = 0,
) -> None:  # fmt: skip
    """Compute the wide pieces of a plan that was made with `widen`, into `out` and the partial results; see `attention.attend`. Of `tables.widened`
    no more than its blocks are used, so the plan has to have at most as many."""
    _, heads, dim = q.shape
    room = tables.widened
    assert room is not None
    kv_heads, slots, width = room.keys.shape
    group, programs = group_of(heads, kv_heads), (len(tables.wide_shares) - 1) * kv_heads
    given = keys.numbers, values.numbers, keys.scales, values.scales, tables.indices, room.keys, room.values, slots
    launch(_widen, (_PROGRAMS * programs,), *given, kv_heads, dim, width, BLOCK, warps=4, early=False)  # streams may meet before it
    blocks = (TensorDescriptor.from_tensor(x.view(-1, width), [BLOCK, width]) for x in (room.keys, room.values))
    where = tables.indices, tables.wide, tables.wide_shares, tables.indptr, partials.means, partials.lse
    constants = heads, kv_heads, dim, width, group, rows_of(group, WIDE) * group, BLOCK, PIECE, _STAGES
    launch(_attend_widened, (programs,), q, *blocks, in_context, *where, out, scale_of(dim), window, slots, *constants, warps=_WARPS)
