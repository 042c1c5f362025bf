"""Attention in torch over a slotted KV store: the reference, and the CPU's fast path, with one interface.

`plan(spans, …)` once a pass, `plan.attend(q, keys, values)` once a layer:
q [T, num_heads, head_dim] → [T, num_heads, head_dim]; keys, values [num_slots, num_kv_heads, head_dim].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from lmc.backend.engine.attention.base import Span
from lmc.backend.engine.kv_fp8 import Fp8Rows, Stored


@dataclass(frozen=True)
class ReferencePlan:
    """One span after the other, following the definition. In the dtype of q (use float64 as reference)."""

    spans: tuple[Span, ...]
    window: int | None = None

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> Tensor:
        out = torch.empty_like(q)
        for span in self.spans:
            rows = slice(span.start, span.start + span.length)
            seen = keys[span.slots].to(q.dtype), values[span.slots].to(q.dtype)
            out[rows] = attend_span(q[rows], *seen, span_mask(span, self.window), q.shape[-1] ** -0.5)
        return out


def attend_span(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, softcap: float | None = None, sinks: Tensor | None = None) -> Tensor:
    """Return softmax(softcap · tanh(scaling · q·k / softcap)) · v: q [T, heads, key_dim], k and v [S, kv_heads, dim], mask [T, S] → [T, heads, value_dim].

    sinks  [heads], a logit per head beside the scores that takes its share and gives nothing
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("thd,shd->hts", q, k)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores.masked_fill_(~mask, -math.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(-1, len(q), 1)), -1)
    return torch.einsum("hts,shd->thd", scores.softmax(-1)[..., : len(k)].to(v.dtype), v)


def causal_mask(length: int, context: int, window: int | None, device: torch.device) -> Tensor:
    """Return [length, context] bool: row i sees columns up to context - length + i, at most `window` of them."""
    row = torch.arange(context - length, context, device=device)[:, None]
    column = torch.arange(context, device=device)[None]
    mask = column <= row
    return mask if window is None else mask & (column > row - window)


def reference(spans: Sequence[Span], window: int | None = None) -> ReferencePlan:
    return ReferencePlan(tuple(spans), window)


# -- the fast path ----------------------------------------------------------------------------------------------------
#
# Attention over a set of slots is a weighted mean with a known weight (the sum of exponentials), so a context may be
# cut into segments, each attended where it is cheapest, and the partial results merged by their log-sum-exp (lse):
#
#   prefill span   earlier context, all of it seen by all rows  ·  the rows' own slots, causally
#   decode spans   prefixes that siblings share, read once for all of them  ·  own segments, padded, one call

_SHARE = 256  # a shared segment is worth its extra call when it saves reading this many slots
_FEW = 32  # rows of one sequence that are attended to at once, over its earlier context and over themselves
_SMALL = 64  # own segments up to this length are always padded to each other

Where = slice | Tensor  # slots: consecutive ones as a slice (a view of the store), others as indices (a copy)


class _Part(Protocol):
    """One segment of some rows' context. All shapes without the head dimensions: q [n, H, D] → out, lse [n, H]."""

    @property
    def rows(self) -> Where: ...

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class _Span:
    """A prefill span's own slots, seen causally; or less than that, as in a sliding window, or more, as in a picture."""

    rows: slice
    where: Where
    mask: Tensor | None = None  # [rows, context] float, 0 or -inf; None: causal

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> tuple[Tensor, Tensor]:
        k, v = keys[self.where].transpose(0, 1)[None], values[self.where].transpose(0, 1)[None]
        mask = None if self.mask is None else self.mask.to(q.dtype)[None, None]
        out, lse = partial(q.transpose(0, 1)[None], k, v, mask=mask, causal=mask is None)
        return out[0].transpose(0, 1), lse[0].T


@dataclass(frozen=True)
class _Shared:
    """Slots that all of the rows see. The rows of a KV head, and the heads that share it, are one tall query."""

    rows: Where
    where: Where

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> tuple[Tensor, Tensor]:
        count, heads, dim = q.shape
        k, v = keys[self.where].transpose(0, 1)[None], values[self.where].transpose(0, 1)[None]
        tall = q.view(count, k.shape[1], -1, dim).transpose(0, 1).reshape(1, k.shape[1], -1, dim)
        out, lse = partial(tall, k, v)
        out = out.view(k.shape[1], count, -1, dim).transpose(0, 1).reshape(count, heads, dim)
        return out, lse.view(k.shape[1], count, -1).transpose(0, 1).reshape(count, heads)


@dataclass(frozen=True)
class _Own:
    """One decode row each over its own slots, padded with its last one to the longest."""

    rows: Where
    slots: Tensor  # [n * longest]
    mask: Tensor | None  # [n, 1, 1, longest] float, 0 or -inf
    scratch: dict[str, Tensor] = field(default_factory=dict)  # gathered K and V, reused by the layers of one pass

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> tuple[Tensor, Tensor]:
        count, heads, dim = q.shape
        k, v = self._gather("k", keys, count), self._gather("v", values, count)
        mask = None if self.mask is None else self.mask.to(q.dtype)
        out, lse = partial(q.view(count, k.shape[1], -1, dim), k, v, mask=mask)
        return out.reshape(count, heads, dim), lse.reshape(count, heads)

    def _gather(self, name: str, store: Stored, count: int) -> Tensor:
        found = gathered(store, self.slots, self.scratch, name)
        return found.view(count, -1, *store.shape[1:]).transpose(1, 2)  # [n, Hkv, longest, D]


def gathered(store: Stored, slots: Tensor, scratch: dict[str, Tensor], name: str) -> Tensor:
    """Return the rows of `slots`, in a buffer of that name: a fresh one per layer would cost its page faults each time."""
    if isinstance(store, Fp8Rows):
        return store[slots]
    if name not in scratch:
        scratch[name] = store.new_empty(len(slots), *store.shape[1:])
    return torch.index_select(store, 0, slots, out=scratch[name])


def partial(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute attention and its log-sum-exp: q [B, H, T, D], k and v [B, Hkv, S, D] → [B, H, T, D] and float32 [B, H,
    T].

    `causal` means T == S. On a CPU torch's flash kernel; elsewhere written out.
    """
    if k.dtype != q.dtype:
        k, v = k.to(q.dtype), v.to(q.dtype)
    if q.is_cpu:
        return torch._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    if causal:
        scores = scores + additive(causal_mask(q.shape[2], k.shape[2], None, q.device))
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1).to(q.dtype) @ v, scores.logsumexp(-1)


def tall_mask(mask: Tensor, groups: int) -> Tensor:
    """Return [1, 1, rows · groups, count] of [rows, count], for the tall query of so many heads that share a KV head."""
    return mask.repeat_interleave(groups, 0)[None, None]


def additive(mask: Tensor) -> Tensor:
    """Return True → 0, False → -inf, float32."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)


@dataclass(frozen=True)
class FastPlan:
    """Fast plan: `whole` parts are all that their rows see; `layered` ones of the same rows are merged."""

    whole: tuple[_Part, ...]
    layered: tuple[_Part, ...]

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> Tensor:
        if len(self.whole) == 1 and not self.layered:
            return self.whole[0].attend(q, keys, values)[0]
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        for part in self.whole:
            out[part.rows] = part.attend(q[part.rows], keys, values)[0]
        if not self.layered:
            return out
        lse = torch.full(q.shape[:2], -math.inf, device=q.device)
        for part in self.layered:
            _merge(out, lse, part.rows, *part.attend(q[part.rows], keys, values))
        return out


@dataclass(frozen=True, slots=True)
class Tall:
    """The attention of a pass of one sequence as one tall query: the rows of a KV head, and the heads that share it.

    slots   gathered; None: `count` from `first` on
    mask    [1, 1, height · heads of a KV head, slots] float, 0 or -inf; None: all are seen
    height  rows of the query: those of the pass, or a single one so many times
    """

    first: int
    count: int
    slots: Tensor | None
    mask: Tensor | None
    height: int


@dataclass(frozen=True)
class LonePlan:
    """One sequence's few rows over consecutive slots, as a lone answer's and its draft's are: a few views and the kernel, since a short context's
    attention is as cheap as a few more operations. The rows of a KV head, and the heads that share it, are one tall query.

    mask  [rows, count] float, 0 or -inf; None: of a single row
    """

    first: int
    count: int
    mask: Tensor | None = None

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> Tensor:
        k, v = self._seen(keys), self._seen(values)
        tall = q.view(len(q), k.shape[1], -1, k.shape[3]).transpose(0, 1).reshape(1, k.shape[1], -1, k.shape[3])
        out = partial(tall, k, v, mask=None if self.mask is None else tall_mask(self.mask, q.shape[1] // k.shape[1]).to(q.dtype))[0]
        return out.view(k.shape[1], len(q), -1, k.shape[3]).transpose(0, 1).reshape(q.shape)

    def tall(self, groups: int) -> Tall:
        """Return the same as one query, of so many heads that share a KV head."""
        mask = None if self.mask is None else tall_mask(self.mask, groups)
        return Tall(self.first, self.count, None, mask, 1 if self.mask is None else len(self.mask))

    def _seen(self, store: Stored) -> Tensor:
        """Return its slots' part of a store, [1, num_kv_heads, count, head_dim]."""
        return store[self.first : self.first + self.count].transpose(0, 1)[None]


def _merge(out: Tensor, lse: Tensor, rows: Where, new: Tensor, new_lse: Tensor) -> None:
    """Add a partial result to the rows' running mean."""
    old_lse = lse[rows]
    total = torch.logaddexp(old_lse, new_lse)
    kept = out[rows] * (old_lse - total).exp_()[..., None].to(out.dtype)
    out[rows] = kept.add_(new * (new_lse - total).exp_()[..., None].to(out.dtype))
    lse[rows] = total


def fast(spans: Sequence[Span], window: int | None = None) -> FastPlan | LonePlan:
    """Plan one pass; the spans cover the rows."""
    if len(spans) == 1 and spans[0].length <= _FEW:
        alone = spans[0].length == 1
        run = _where(spans[0].slots if window is None or not alone else spans[0].slots[-window:])
        if isinstance(run, slice):
            return LonePlan(run.start, run.stop - run.start, None if alone else additive(span_mask(spans[0], window)))
    whole: list[_Part] = []
    layered: list[_Part] = []
    for span in spans:
        if span.length > 1:
            parts = _prefill(span, window)
            (whole if len(parts) == 1 else layered).extend(parts)
    decode = [(s.start, s.slots if window is None else s.slots[-window:]) for s in spans if s.length == 1]
    if decode:
        shared, own = _share(decode, 0)
        (layered if shared else whole).extend((*shared, *_own(own)))
    return FastPlan(tuple(whole), tuple(layered))


def span_mask(span: Span, window: int | None) -> Tensor:
    """Return what the span's rows see of its slots, [length, context] bool."""
    before, context, device = len(span.slots) - span.length, len(span.slots), span.slots.device
    mask = causal_mask(span.length, context, None, device)
    for first, last in span.mutual:
        mask[max(0, first - before) : last - before, first:last] = True
    if window is not None:  # it limits earlier tokens, also of the same picture
        mask &= torch.arange(context, device=device)[None] > torch.arange(before, context, device=device)[:, None] - window
    return mask


def _prefill(span: Span, window: int | None) -> Sequence[_Part]:
    rows, before = slice(span.start, span.start + span.length), len(span.slots) - span.length
    if span.mutual or (window is not None and len(span.slots) > window):
        mask = span_mask(span, window)
        return [_Span(rows, _where(span.slots), additive(mask))]
    own = _Span(rows, _where(span.slots[before:]))
    return [_Shared(rows, _where(span.slots[:before])), own] if before else [own]


_Row = tuple[int, Tensor]  # a decode row and the slots it sees


def _share(rows: list[_Row], start: int) -> tuple[list[_Part], list[_Row]]:
    """Cut shared segments off rows that agree on slots [0, start): return the parts, and the rows with the rest."""
    families: dict[int, list[_Row]] = {}
    for row in rows:
        families.setdefault(int(row[1][start]), []).append(row)
    parts: list[_Part] = []
    rest: list[_Row] = []
    for family in families.values():
        end = _common_length([slots for _, slots in family])
        if len(family) == 1 or (end - start) * (len(family) - 1) < _SHARE:
            rest += [(row, slots[start:]) for row, slots in family]
            continue
        parts.append(_Shared(rows_where([row for row, _ in family]), _where(family[0][1][start:end])))
        deeper, left = _share(family, end)
        parts += deeper
        rest += left
    return parts, rest


def _common_length(all_slots: list[Tensor]) -> int:
    """Return the length of the common prefix of all; at most all but the last, which is the row's own."""
    first, end = all_slots[0], min(map(len, all_slots)) - 1
    for other in all_slots[1:]:
        same = first[:end] == other[:end]
        if not bool(same.all()):
            end = int(same.int().argmin())
    return end


def _own(rows: list[_Row]) -> list[_Part]:
    """Return calls over the rows' own slots: rows of similar length together, so that little is padded."""
    batches: list[list[_Row]] = []
    for row in sorted(rows, key=lambda r: -len(r[1])):
        if batches and (len(batches[-1][0][1]) <= _SMALL or len(row[1]) * 2 > len(batches[-1][0][1])):
            batches[-1].append(row)
        else:
            batches.append([row])
    return [_padded(sorted(batch, key=lambda r: r[0])) for batch in batches]


def _padded(rows: list[_Row]) -> _Part:
    longest = max(len(slots) for _, slots in rows)
    where = rows_where([row for row, _ in rows])
    if len(rows) == 1 and isinstance(run := _where(rows[0][1]), slice):
        return _Shared(where, run)
    lengths = torch.tensor([len(slots) for _, slots in rows])
    padded = torch.nn.utils.rnn.pad_sequence([slots for _, slots in rows], batch_first=True)
    if bool((lengths == longest).all()):
        return _Own(where, padded.flatten(), None)
    seen = (torch.arange(longest) < lengths[:, None]).to(padded.device)
    last = torch.stack([slots[-1] for _, slots in rows])  # of the row itself: what others wrote may be NaN, which no weight hides
    return _Own(where, torch.where(seen, padded, last[:, None]).flatten(), additive(seen)[:, None, None])


def rows_where(rows: list[int]) -> Where:
    if rows[-1] - rows[0] == len(rows) - 1 and rows == sorted(rows):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows)


def _where(slots: Tensor) -> Where:
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and bool((slots[1:] > slots[:-1]).all()):
        return slice(first, last + 1)
    return slots
