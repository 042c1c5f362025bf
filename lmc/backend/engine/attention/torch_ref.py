"""Attention in torch over a slotted KV store: the reference, and the CPU's fast path, with one interface.

`plan(spans, …)` once a pass, `plan.attend(q, keys, values)` once a layer:
q [T, num_heads, head_dim] → [T, num_heads, head_dim]; keys, values [num_slots, num_kv_heads, head_dim].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.backend.engine.attention.base import Span


@dataclass(frozen=True)
class ReferencePlan:
    """One span after the other, as the definition says. In the dtype of q (use float64 to judge others)."""

    spans: tuple[Span, ...]
    window: int | None = None

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = torch.empty_like(q)
        for span in self.spans:
            rows = slice(span.start, span.start + span.length)
            out[rows] = self._span(q[rows], keys[span.slots].to(q.dtype), values[span.slots].to(q.dtype))
        return out

    def _span(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(q.shape[-1])
        scores.masked_fill_(~causal_mask(len(q), len(k), self.window, q.device), -math.inf)
        return torch.einsum("hts,shd->thd", scores.softmax(-1), v)


def causal_mask(length: int, context: int, window: int | None, device: torch.device) -> Tensor:
    """[length, context] bool: row i sees columns up to context - length + i, at most `window` of them."""
    row = torch.arange(context - length, context, device=device)[:, None]
    column = torch.arange(context, device=device)[None]
    mask = column <= row
    return mask if window is None else mask & (column > row - window)


def reference(spans: Sequence[Span], window: int | None = None) -> ReferencePlan:
    return ReferencePlan(tuple(spans), window)


# -- the fast path ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """Where one span's context lies: a slice when its slots are consecutive (a view, no copy), else its slots."""

    start: int
    length: int
    where: slice | Tensor
    mask: Tensor | None  # [length, context] bool, None when every row sees the whole context


@dataclass(frozen=True)
class FastPlan:
    """Views instead of gathers, heads of one KV head folded into rows, torch's fused kernel for each span."""

    runs: tuple[_Run, ...]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if len(self.runs) == 1:
            return self._run(self.runs[0], q, keys, values)
        return torch.cat([self._run(r, q[r.start : r.start + r.length], keys, values) for r in self.runs])

    def _run(self, run: _Run, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows, heads, dim = q.shape
        k, v = keys[run.where].transpose(0, 1), values[run.where].transpose(0, 1)  # [Hkv, S, D]
        groups = heads // k.shape[0]
        if rows == 1:  # the heads that share a KV head are the rows of one small product
            out = F.scaled_dot_product_attention(q.view(1, -1, groups, dim), k[None], v[None])
            return out.view(1, heads, dim)
        query = q.transpose(0, 1)[None]
        if run.mask is None:
            out = F.scaled_dot_product_attention(query, k[None], v[None], is_causal=True, enable_gqa=groups > 1)
        else:
            out = F.scaled_dot_product_attention(query, k[None], v[None], attn_mask=run.mask, enable_gqa=groups > 1)
        return out[0].transpose(0, 1)


def fast(spans: Sequence[Span], window: int | None = None) -> FastPlan:
    """Plans one pass; spans must be in row order and cover the rows without gaps."""
    return FastPlan(tuple(_plan_run(span, window) for span in spans))


def _plan_run(span: Span, window: int | None) -> _Run:
    slots, context = span.slots, len(span.slots)
    if span.length == 1:
        seen = slots if window is None else slots[-window:]
        return _Run(span.start, 1, _where(seen), None)
    plain = context == span.length and (window is None or context <= window)
    mask = None if plain else causal_mask(span.length, context, window, slots.device)
    return _Run(span.start, span.length, _where(slots), mask)


def _where(slots: Tensor) -> slice | Tensor:
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and bool((slots[1:] > slots[:-1]).all()):
        return slice(first, last + 1)
    return slots
