"""Attention of rows over slots: pieces computed separately, and merged.

A *tile* is a run of rows that read the same slots. Rows of one sequence make a tile, and so do rows of several sequences that
share a prefix, which is then read once for all of them. Tiles are cut into pieces (attention/tiles.py). Where a row's slots lie
in several, each leaves a partial result with its log-sum-exp, and they are merged (https://arxiv.org/abs/2501.01005, §2.2).

K and V in FP8 (kv_fp8.py) are widened in registers to float16, exactly; q is narrowed to it, which only numbers beyond 65,504 or below 6e-5
notice. Narrow tiles read V as pairs of columns, since matrices of single bytes cannot be transposed on their way from shared memory; wide ones
write it back there for wgmma anyway. The scales go into the scores and the weights, in float32; a weight times a scale is 448 times what it
would be, as float16 has no room below 6e-8.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.attention.tiles import BLOCK, NARROW, PIECE, WIDE, group_of, rows_of
from lmc.backend.engine.kernels.dependent_launch import after, can_launch_early, launch
from lmc.backend.engine.kernels.e4m3 import LARGEST, SMALLEST
from lmc.backend.engine.kernels.pieces import DevicePlan, Partials, begin_piece, end_piece, scale_of
from lmc.backend.engine.kernels.quantize import quantized_like
from lmc.backend.engine.kernels.widened import attend_widened
from lmc.backend.engine.kv_fp8 import Fp8Rows, Stored, apart

_WARPS = {NARROW: 2, WIDE: 4}
_PARTS = 4  # partial results of a row that are read together
_EARLY = 4  # rows up to which waiting programs do not slow the reading ones (measured)
_LESS = 256.0  # times too small is what `_unpaired` returns
_STAGES = {NARROW: 4, WIDE: 5}  # a load of slots, and of their contents: 3 has one block in flight, 5 two
_STAGES_OF_FP8 = 5  # of both kinds: its blocks are half as large


_UNPAIRED = tl.constexpr(
    "{ .reg .b32 t, u;"
    " shl.b32 t, $2, 7; and.b32 t, t, 0x3f803f80; shl.b32 u, $2, 8; lop3.b32 $0, u, 0x80008000, t, 0xea;"
    " shr.u32 t, $2, 1; and.b32 t, t, 0x3f803f80; lop3.b32 $1, $2, 0x80008000, t, 0xea; }"
)  # of two pairs at a time; 0xea: (a & b) | c


@triton.jit
def _unpaired(pair, x):
    """Return both numbers of `pair`, two of e4m3 in 16 bits, in the dtype of `x`, 256 times too small: the exponent of float16
    has another bias."""
    if x.dtype == tl.float16:
        even, odd = tl.inline_asm_elementwise(_UNPAIRED, "=r,=r,r", [pair], dtype=(tl.float16, tl.float16), is_pure=True, pack=2)  # pyright: ignore[reportArgumentType]
    else:  # Triton's interpreter knows no assembly
        even = (((pair & 0x7F) << 7) | ((pair & 0x80) << 8)).to(tl.float16, bitcast=True)
        odd = (((pair >> 1) & 0x3F80) | (pair & -0x8000)).to(tl.float16, bitcast=True)
    return even.to(x.dtype), odd.to(x.dtype)


@triton.jit
def _attend(
    q, keys, values, key_scales, value_scales, in_context, indices, pieces, shares, indptr, partial, lse, out, scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    LANES: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr, STAGES: tl.constexpr, CHAINED: tl.constexpr,
    FP8: tl.constexpr, LARGEST: tl.constexpr, UNIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Run one program per share and head of k. GROUP: lanes a row has, the heads of q that share a head of k, as a
    power of two. CHAINED: the blocks of a share are contiguous, so that reading continues from piece to piece."""
    if EARLY:
        after()
    PAIRED: tl.constexpr = FP8 and CHAINED
    COLUMNS: tl.constexpr = WIDTH // 2 if PAIRED else WIDTH  # of sums; the odd ones of pairs are apart
    share = tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    first, behind = tl.load(shares + share), tl.load(shares + share + 1)
    if first == behind:
        return
    column = tl.arange(0, WIDTH)
    at = tl.arange(0, BLOCK)
    best = tl.full((LANES,), -float("inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    sums = tl.zeros((LANES, COLUMNS), tl.float32)
    odds = sums
    runs = 1 if CHAINED else behind - first
    for run in range(runs):
        piece = pieces + (first + run) * PIECE
        x, most, last = begin_piece(piece, q, in_context, kv_head, HEADS, KV_HEADS, DIM, WIDTH, GROUP, LANES, FP8)
        begin, end = tl.load(piece + 2), tl.load(piece + 3)
        until = tl.load(pieces + (behind - 1) * PIECE + 3) if CHAINED else end
        for block in tl.range(begin, until, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
            if CHAINED:  # noqa: SIM102, known when this is compiled
                if block == end:
                    end_piece(piece, kv_head, best, total, sums, odds, indptr, partial, lse, out, HEADS, KV_HEADS, DIM, WIDTH, GROUP, LANES, PAIRED, UNIT)
                    piece += PIECE
                    x, most, last = begin_piece(piece, q, in_context, kv_head, HEADS, KV_HEADS, DIM, WIDTH, GROUP, LANES, FP8)
                    begin, end = tl.load(piece + 2), tl.load(piece + 3)
                    best = tl.full((LANES,), -float("inf"), tl.float32)
                    total = tl.zeros((LANES,), tl.float32)
                    sums = tl.zeros((LANES, COLUMNS), tl.float32)
                    odds = sums
            slot = tl.load(indices + block * BLOCK + at).to(tl.int64) * KV_HEADS + kv_head
            k = tl.load(keys + slot[None, :] * DIM + column[:, None], mask=(column < DIM)[:, None], other=0.0)
            if FP8:
                score = tl.dot(x, k.to(x.dtype)) * (tl.load(key_scales + slot) * scale)[None, :]
            else:
                score = tl.dot(x, k) * scale
            place = (block - begin) * BLOCK + at
            sees = place[None, :] <= most[:, None]
            if window > 0:
                sees &= place[None, :] > last[:, None] - window
            score = tl.where(sees, score, -float("inf"))
            higher = tl.maximum(best, tl.max(score, 1))
            shift = tl.where(higher == -float("inf"), 0.0, higher)  # a row that has seen nothing yet
            weight = tl.exp2(score - shift[:, None])
            fade = tl.exp2(best - shift)
            total = total * fade + tl.sum(weight, 1)
            if FP8:
                weight = tl.minimum(weight * (tl.load(value_scales + slot) * LARGEST)[None, :], 65504.0)
            if PAIRED:
                half = tl.arange(0, COLUMNS)
                even, odd = _unpaired(tl.load(values + slot[:, None] * (DIM // 2) + half[None, :], mask=(half < DIM // 2)[None, :], other=0), x)
                sums = tl.dot(weight.to(x.dtype), even, sums * fade[:, None])
                odds = tl.dot(weight.to(x.dtype), odd, odds * fade[:, None])
            else:
                v = tl.load(values + slot[:, None] * DIM + column[None, :], mask=(column < DIM)[None, :], other=0.0)
                sums = tl.dot(weight.to(x.dtype), v.to(x.dtype), sums * fade[:, None])
            best = higher
        end_piece(piece, kv_head, best, total, sums, odds, indptr, partial, lse, out, HEADS, KV_HEADS, DIM, WIDTH, GROUP, LANES, PAIRED, UNIT)
        best = tl.full((LANES,), -float("inf"), tl.float32)
        total = tl.zeros((LANES,), tl.float32)
        sums = tl.zeros((LANES, COLUMNS), tl.float32)
        odds = sums


@triton.jit
def _merged(
    partial, lse, begin, end, head, column, inside,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Return the merged results [BLOCK, WIDTH] of a row's heads; the loads of PARTS partial ones are in flight together."""
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    sums = tl.zeros((BLOCK, WIDTH), tl.float32)
    for first in range(begin, end, PARTS):
        for n in tl.static_range(PARTS):  # pyright: ignore[reportGeneralTypeIssues]
            at = (first + n) * HEADS + head
            there = (at < end * HEADS) & (head < HEADS)
            found = tl.load(lse + at, mask=there, other=-float("inf"))
            mean = tl.load(partial + at[:, None] * DIM + column[None, :], mask=there[:, None] & inside, other=0.0)
            higher = tl.maximum(best, found)
            shift = tl.where(higher == -float("inf"), 0.0, higher)
            weight, fade = tl.exp2(found - shift), tl.exp2(best - shift)
            sums = tl.fma(sums, tl.broadcast_to(fade[:, None], (BLOCK, WIDTH)), weight[:, None] * mean)  # the same bits for every BLOCK
            total = tl.fma(total, fade, weight)
            best = higher
    return sums / tl.where(total > 0.0, total, 1.0)[:, None]


@triton.jit
def _merge(
    partial, lse, indptr, out,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Run one program per row and BLOCK heads."""
    if EARLY:
        after()
    row = tl.program_id(0)
    begin, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    if begin == end:
        return
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH)
    inside = (head < HEADS)[:, None] & (column < DIM)[None, :]
    y = _merged(partial, lse, begin, end, head, column, inside, HEADS, DIM, WIDTH, BLOCK, PARTS)
    tl.store(out + (row * HEADS + head)[:, None] * DIM + column[None, :], y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _merge_quantized(
    partial, lse, indptr, out, quantized, scales,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    LARGEST: tl.constexpr, SMALLEST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Run one program per row, of all heads: as `_merge` and then quantize.py. What is not in several pieces is read from `out`."""
    if EARLY:
        after()
    row = tl.program_id(0)
    begin, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    head, column = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    inside = (head < HEADS)[:, None] & (column < DIM)[None, :]
    to = (row * HEADS + head)[:, None] * DIM + column[None, :]
    if begin == end:
        y = tl.load(out + to, mask=inside, other=0.0).to(tl.float32)
    else:
        y = _merged(partial, lse, begin, end, head, column, inside, HEADS, DIM, WIDTH, BLOCK, PARTS).to(out.dtype.element_ty).to(tl.float32)
    scale = tl.maximum(tl.max(tl.max(tl.abs(y), 1), 0) / LARGEST, SMALLEST)
    tl.store(quantized + to, (y / scale).to(quantized.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def attend(
    q: Tensor,
    keys: Stored,
    values: Stored,
    in_context: Tensor,
    tables: DevicePlan,
    partials: Partials,
    *,
    wide: bool,
    window: int = 0,
    beside: torch.cuda.Stream | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute q [T, num_heads, head_dim] over keys and values [num_slots, num_kv_heads, head_dim] → like q, in `out` if
    given; rows in no piece are left undefined. `in_context` [T]: the rows' indices in their contexts. `wide`: whether there may be wide pieces. `window`: how
    many tokens a row sees, its own included; 0: all. `beside`: a stream for the wide pieces."""
    out = torch.empty_like(q) if out is None else out
    early = _attend_pieces(q, keys, values, in_context, tables, partials, wide, window, beside, out)
    (rows, heads, dim), block = q.shape, 1 if len(q) <= 16 else 4
    launch(
        _merge, (rows, triton.cdiv(heads, block)),
        partials.means, partials.lse, tables.indptr, out, heads, dim, triton.next_power_of_2(dim), block, _PARTS, warps=1, early=early,
    )  # fmt: skip
    return out


def attend_quantized(
    q: Tensor, keys: Stored, values: Stored, in_context: Tensor, tables: DevicePlan, partials: Partials,
    *, wide: bool, window: int = 0, beside: torch.cuda.Stream | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return `attend`'s result in FP8, as quantize.py does, in one launch less: e4m3 [T, num_heads · head_dim] and scales [T, 1]."""
    out = torch.empty_like(q)
    early = _attend_pieces(q, keys, values, in_context, tables, partials, wide, window, beside, out)
    rows, heads, dim = q.shape
    quantized, scales = quantized_like(q.view(rows, -1))
    width, block = triton.next_power_of_2(dim), triton.next_power_of_2(heads)
    launch(
        _merge_quantized, (rows,),
        partials.means, partials.lse, tables.indptr, out, quantized, scales, heads, dim, width, block, _PARTS, LARGEST, SMALLEST,
        warps=min(16, max(1, block * width // 512)), early=early,
    )  # fmt: skip
    return quantized, scales


def _attend_pieces(
    q: Tensor, keys: Stored, values: Stored, in_context: Tensor, tables: DevicePlan, partials: Partials,
    wide: bool, window: int, beside: torch.cuda.Stream | None, out: Tensor,
) -> bool:  # fmt: skip
    """Compute all pieces, into `out` and the partial results; return whether what follows may be launched early."""
    rows, heads, dim = q.shape
    kv_heads = keys.shape[1]
    stored_keys, stored_values = keys, values
    (keys, key_scales), (values, value_scales) = apart(keys), apart(values)
    fp8 = keys is not key_scales
    width, group = triton.next_power_of_2(dim), group_of(heads, kv_heads)
    kinds = ((NARROW, tables.narrow, tables.narrow_shares), (WIDE, tables.wide, tables.wide_shares))
    early = can_launch_early() and not wide and rows <= _EARLY  # where streams meet, kernels wait for both
    if beside is not None and wide:
        beside.wait_stream(torch.cuda.current_stream())
    for kind, pieces, shares in kinds[: 2 if wide else 1]:
        if kind == WIDE and tables.widened is not None:
            assert isinstance(stored_keys, Fp8Rows) and isinstance(stored_values, Fp8Rows)
            with torch.cuda.stream(beside):
                attend_widened(q, stored_keys, stored_values, in_context, tables, partials, out, window)
            continue
        unit = (_LESS if kind == NARROW else 1.0) / LARGEST if fp8 else 1.0
        stored = values.view(torch.int16) if fp8 and kind == NARROW else values
        with torch.cuda.stream(beside if kind == WIDE else None):
            launch(
                _attend, ((len(shares) - 1) * kv_heads,),
                q, keys, stored, key_scales, value_scales, in_context, tables.indices, pieces, shares, tables.indptr, partials.means, partials.lse, out,
                scale_of(dim), window, heads, kv_heads, dim, width, group, rows_of(group, kind) * group, BLOCK, PIECE,
                _STAGES_OF_FP8 if fp8 else _STAGES[kind], kind == NARROW, fp8, LARGEST, unit, warps=_WARPS[kind], early=early,
            )  # fmt: skip
    if beside is not None and wide:
        torch.cuda.current_stream().wait_stream(beside)
    return early
