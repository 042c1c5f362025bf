"""Rotary position embedding fused with the KV append: merged qkv rows in, rotated q out, k and v into their slots, quantized
if those are in FP8 (kv_fp8.py).

Rotary pairs lie side by side (models/llama_weights.py, `pair_rows`). With norm weights, q and k are RMS-normalised per head
before they are rotated (Qwen3).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.kernels.dependent_launch import after, launch
from lmc.backend.engine.kv_fp8 import Stored, apart
from lmc.backend.engine.models.fp8 import LARGEST, SMALLEST


def rope_append_reference(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    turns: Tensor,
    keys: Stored,
    values: Stored,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Return rotated q [T, num_heads, head_dim]; k and v are written to `slots` of `keys` and `values`.

    qkv [T, (num_heads + 2·num_kv_heads)·head_dim]; positions, slots [T]; turns [max_context, head_dim / 2, 2] float32
    (cosine, sine); keys, values [num_slots, num_kv_heads, head_dim]; norms: weights [head_dim] of q and of k.
    """
    kv_heads, dim = keys.shape[1:]
    every = qkv.unflatten(-1, (-1, dim)).float()
    heads = every.shape[1] - 2 * kv_heads
    q, k, v = every.split((heads, kv_heads, kv_heads), 1)
    if norms is not None:
        pairs = zip((q, k), norms, strict=True)
        q, k = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float() for x, weight in pairs)
    turn = torch.view_as_complex(turns[positions])[:, None]
    q, k = (torch.view_as_real(_complex(x) * turn).flatten(-2) for x in (q, k))
    keys.index_copy_(0, slots.long(), k.to(keys.dtype))
    values.index_copy_(0, slots.long(), v.to(values.dtype))
    return q.to(qkv.dtype)


def _complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())


@triton.jit
def _rope_append(
    qkv, positions, slots, turns, keys, values, key_scales, value_scales, q_norm, k_norm, out, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr,
    FP8: tl.constexpr, LARGEST: tl.constexpr, SMALLEST: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Run one program per row and BLOCK heads; heads of q come first, then of k, then of v. WIDTH: DIM as a power of
    two."""
    if EARLY:
        after()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = (head < HEADS + 2 * KV_HEADS) & (column < DIM)
    x = tl.load(qkv + (row * (HEADS + 2 * KV_HEADS) + head) * DIM + column, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / DIM + eps)
        weight = tl.where(
            head < HEADS,
            tl.load(q_norm + column, mask=column < DIM, other=0.0).to(tl.float32),
            tl.load(k_norm + column, mask=column < DIM, other=0.0).to(tl.float32),
        )
        x = tl.where(head < HEADS + KV_HEADS, x * scale * weight, x)
    pair = tl.arange(0, WIDTH // 2)[None, :]
    turn = turns + tl.load(positions + row).to(tl.int64) * DIM + 2 * pair
    cos = tl.load(turn, mask=pair < DIM // 2, other=0.0)
    sin = tl.load(turn + 1, mask=pair < DIM // 2, other=0.0)
    even, odd = tl.split(tl.reshape(x, (BLOCK, WIDTH // 2, 2)))
    turned = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (BLOCK, WIDTH))
    y = tl.where(head < HEADS + KV_HEADS, turned, x)
    tl.store(out + (row * HEADS + head) * DIM + column, y.to(out.dtype.element_ty), mask=inside & (head < HEADS))
    slot = tl.load(slots + row).to(tl.int64) * KV_HEADS
    k = head - HEADS
    v = k - KV_HEADS
    if FP8:
        row_scale = tl.maximum(tl.max(tl.abs(y), 1, keep_dims=True) / LARGEST, SMALLEST)
        y = y / row_scale
        tl.store(key_scales + slot + k, row_scale, mask=(k >= 0) & (k < KV_HEADS))
        tl.store(value_scales + slot + v, row_scale, mask=(v >= 0) & (v < KV_HEADS))
    y = y.to(keys.dtype.element_ty)
    tl.store(keys + (slot + k) * DIM + column, y, mask=inside & (k >= 0) & (k < KV_HEADS))
    tl.store(values + (slot + v) * DIM + column, y, mask=inside & (v >= 0))


_HEADS_A_PROGRAM = 8


def rope_append(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    turns: Tensor,
    keys: Stored,
    values: Stored,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    """As `rope_append_reference`. qkv, keys and values contiguous, and of one dtype unless those are in FP8."""
    kv_heads, dim = keys.shape[1:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    out = torch.empty(len(qkv), heads, dim, dtype=qkv.dtype, device=qkv.device)
    if len(qkv):
        q_norm, k_norm = norms if norms is not None else (qkv, qkv)
        (keys, key_scales), (values, value_scales) = apart(keys), apart(values)
        grid = (len(qkv), triton.cdiv(heads + 2 * kv_heads, _HEADS_A_PROGRAM))
        launch(
            _rope_append, grid, qkv, positions, slots, turns, keys, values, key_scales, value_scales, q_norm, k_norm, out, eps,
            heads, kv_heads, dim, triton.next_power_of_2(dim), norms is not None, keys is not key_scales, LARGEST, SMALLEST, _HEADS_A_PROGRAM,
            warps=4,
        )  # fmt: skip
    return out
