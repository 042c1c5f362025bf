"""Pieces of attention (attention/tiles.py) on the device: what the kernels that compute them have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.attention.tiles import BLOCK

_LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Widened:
    """Room for the keys and values of so many slots, [num_kv_heads, slots, width] each, width head_dim as a power of two; passes on one stream share it."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, slots: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Widened:
        shape = num_kv_heads, slots, triton.next_power_of_2(head_dim)
        return cls(*(torch.empty(shape, dtype=dtype, device=device) for _ in range(2)))

    @property
    def blocks(self) -> int:
        return self.keys.shape[1] // BLOCK


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A `Plan` on the device. `widened`: what its wide tiles read, if it was made with `widen`."""

    narrow: Tensor
    narrow_shares: Tensor
    wide: Tensor
    wide_shares: Tensor
    indptr: Tensor
    indices: Tensor
    widened: Widened | None = None


class Partials:
    """Space for the partial results of a pass; passes on one stream share it."""

    def __init__(self, capacity: int, num_heads: int, head_dim: int, device: torch.device) -> None:
        self.means = torch.empty(capacity, num_heads, head_dim, dtype=torch.float32, device=device)
        self.lse = torch.empty(capacity, num_heads, dtype=torch.float32, device=device)

    @property
    def capacity(self) -> int:
        return len(self.lse)


def scale_of(dim: int) -> float:
    """Return what scores are multiplied by, for powers of 2."""
    return _LOG2E * dim**-0.5


@triton.jit
def is_row(piece, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, LANES: tl.constexpr):
    """Return which of a piece's lanes are a row and a head of it."""
    lane = tl.arange(0, LANES)
    return (lane // GROUP < tl.load(piece + 1)) & (lane % GROUP < HEADS // KV_HEADS)


@triton.jit
def begin_piece(
    piece, q, in_context, kv_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    LANES: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Return the rows of a piece: q, which of them exist, and the last of the piece's slots that each sees."""
    lane = tl.arange(0, LANES)
    column = tl.arange(0, WIDTH)
    row = tl.load(piece) + lane // GROUP
    taken = is_row(piece, HEADS, KV_HEADS, GROUP, LANES)
    head = row * HEADS + kv_head * (HEADS // KV_HEADS) + lane % GROUP
    x = tl.load(q + head[:, None] * DIM + column[None, :], mask=taken[:, None] & (column < DIM)[None, :], other=0.0)
    last = tl.load(in_context + row, mask=taken, other=0) - tl.load(piece + 4)
    if FP8 and x.dtype != tl.float32:
        x = x.to(tl.float16)
    return x, tl.minimum(last, tl.load(piece + 6) - 1), last


@triton.jit
def end_piece(
    piece, kv_head, best, total, sums, odds, indptr, partial, lse, out,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    LANES: tl.constexpr, PAIRED: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Store the result of a piece: in its place, or among the partial ones."""
    if PAIRED:
        sums = tl.interleave(sums, odds)
    sums *= UNIT
    lane = tl.arange(0, LANES)
    column = tl.arange(0, WIDTH)
    taken = is_row(piece, HEADS, KV_HEADS, GROUP, LANES)
    row = tl.load(piece) + lane // GROUP
    head = kv_head * (HEADS // KV_HEADS) + lane % GROUP
    inside = taken[:, None] & (column < DIM)[None, :]
    part = tl.load(piece + 5)
    mean = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    if part < 0:
        to = row * HEADS + head
        tl.store(out + to[:, None] * DIM + column[None, :], mean.to(out.dtype.element_ty), mask=inside)
    else:
        to = (tl.load(indptr + row, mask=taken, other=0) + part) * HEADS + head
        tl.store(partial + to[:, None] * DIM + column[None, :], mean, mask=inside)
        tl.store(lse + to, best + tl.log2(tl.where(total > 0.0, total, 1.0)), mask=taken)
