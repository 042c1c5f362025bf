"""Attention whose bits do not depend on what else is in a pass, nor on how a prompt was cut or cached.

A row reads its context from the first token on, filled up to a length that its position alone decides; what fills it up is masked. Rows of one span are read
in tiles of the same length, lone rows of the same length in one call. So the kernel sees few shapes, and of the heights of tiles those alone are used that
give a row the same bits, which is tried once (cf. models/fixed.py). Prefixes that several rows share are read by each: to merge partial results would round
otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from lmc.backend.engine.attention.base import Span
from lmc.backend.engine.attention.torch_ref import Tall, additive, gathered, partial, rows_where
from lmc.backend.engine.kv_fp8 import Stored

_STEPS = ((512, 16), (1024, 128))  # of lengths up to the first; of longer ones half a block
_BLOCK = 512  # keys that torch's kernel reads at once
_TALL = 16  # rows of a tile of a prompt
_HEIGHTS = (1, 2, 4, 8, _TALL)


def length_of(context: int) -> int:
    """To how many tokens a context is filled up."""
    step = next((step for most, step in _STEPS if context <= most), _BLOCK // 2)
    return -(-context // step) * step


@dataclass(frozen=True)
class _Lone:
    """Rows of one length, each over a context of its own, in tiles that repeat it.

    where   the rows of the pass
    slots   [n, length]
    mask    [n, 1, 1, length] float, 0 or -inf
    height  of a tile
    """

    where: slice | Tensor
    slots: Tensor
    mask: Tensor
    height: int
    scratch: dict[str, Tensor] = field(default_factory=dict)

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> Tensor:
        """Return [n, num_heads, head_dim] of q of the whole pass."""
        (n, length), (_, heads, dim), kv_heads = self.slots.shape, q.shape, keys.shape[1]
        tall = q[self.where].view(n, kv_heads, 1, -1, dim).expand(-1, -1, self.height, -1, -1).reshape(n, kv_heads, -1, dim).contiguous()
        k, v = (
            gathered(store, self.slots.flatten(), self.scratch, name).view(n, length, kv_heads, dim).transpose(1, 2)
            for store, name in ((keys, "k"), (values, "v"))
        )
        return partial(tall, k, v, mask=self.mask)[0][:, :, : heads // kv_heads].reshape(n, heads, dim)


@dataclass(frozen=True)
class _Prompt:
    """Rows of one span, in tiles over the beginning of its context.

    where   the rows of the pass
    filled  [n · _TALL], of these; some only fill a tile up
    wanted  [rows] of `filled`, those that do not
    slots   [longest]
    parts   masks of some tiles each, [tiles, 1, _TALL · group, length] float, 0 or -inf
    """

    where: slice
    filled: Tensor
    wanted: Tensor
    slots: Tensor
    parts: tuple[Tensor, ...]
    scratch: dict[str, Tensor] = field(default_factory=dict)

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> Tensor:
        """Return [rows, num_heads, head_dim] of q of the whole pass."""
        heads, dim, kv_heads, n = q.shape[1], q.shape[2], keys.shape[1], len(self.filled) // _TALL
        tall = q[self.where].index_select(0, self.filled).view(n, _TALL, kv_heads, -1, dim).transpose(1, 2).reshape(n, kv_heads, -1, dim).contiguous()
        k, v = (gathered(store, self.slots, self.scratch, name).transpose(0, 1)[None] for store, name in ((keys, "k"), (values, "v")))
        found: list[Tensor] = []
        for some, mask in zip(tall.split([len(mask) for mask in self.parts]), self.parts, strict=True):
            seen = (store[:, :, : mask.shape[-1]].expand(len(mask), -1, -1, -1) for store in (k, v))
            found.append(partial(some, *seen, mask=mask)[0])
        rows = torch.cat(found).view(n, kv_heads, _TALL, -1, dim).transpose(1, 2).reshape(n * _TALL, heads, dim)
        return rows.index_select(0, self.wanted)


@dataclass(frozen=True)
class FixedPlan:
    """One pass."""

    tiles: tuple[_Lone | _Prompt, ...]

    def tall(self) -> Tall | None:
        """Return the pass of a single row as one query; None if there are more."""
        match self.tiles:
            case (_Lone(slots=slots) as lone,) if len(slots) == 1:
                return Tall(0, 0, slots[0], lone.mask, lone.height)
            case _:
                return None

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> Tensor:
        if len(self.tiles) == 1 and isinstance(self.tiles[0].where, slice):  # all rows, in their order
            return self.tiles[0].attend(q, keys, values)
        out = torch.empty_like(q)
        for tiles in self.tiles:
            out[tiles.where] = tiles.attend(q, keys, values)
        return out


class FixedAttention:
    """Plans passes of a model. On a CPU.

    low  rows of a tile of a lone row
    """

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        self._group = num_heads // num_kv_heads
        self.low = self._lowest(num_heads, num_kv_heads, head_dim)

    def __call__(self, spans: Sequence[Span], window: int | None = None) -> FixedPlan:
        assert window is None, "refused where it is loaded"
        tiles: list[_Lone | _Prompt] = [_prompt(span, self._group) for span in spans if span.length > 1]
        lone = sorted((length_of(len(s.slots)), i, s) for i, s in enumerate(spans) if s.length == 1)
        tiles += [_lone([s for *_, s in some], length, self.low) for length, some in groupby(lone, lambda each: each[0])]
        return FixedPlan(tuple(tiles))

    # -- which heights agree ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _lowest(self, heads: int, kv_heads: int, dim: int) -> int:
        """The lowest tile in which a row has the bits that it has in one of a prompt, at every length that kernels see: longer ones end with a block like one
        of these."""
        generator = torch.Generator().manual_seed(0)
        longest = _STEPS[-1][0]
        q, keys, values = (torch.randn(n, h, dim, generator=generator) for n, h in ((_TALL, heads), (longest, kv_heads), (longest, kv_heads)))
        lengths = sorted({length_of(n) for n in range(1, longest + 1)})
        slots, seen = torch.arange(longest), {length: length - 7 - torch.arange(_TALL) % 9 for length in lengths}

        def lone(length: int, height: int) -> Tensor:
            """All rows, as many tiles."""
            return _Lone(slice(None), slots[:length].expand(_TALL, -1), _mask(seen[length], length)[:, None, None], height).attend(q, keys, values)

        every = torch.arange(_TALL)
        expected = {n: _Prompt(slice(None), every, every, slots[:n], (_tall_mask(seen[n][None], n, self._group),)).attend(q, keys, values) for n in lengths}
        return next((h for h in _HEIGHTS[:-1] if all(torch.equal(lone(n, h), expected[n]) for n in lengths)), _TALL)


def _lone(spans: Sequence[Span], length: int, height: int) -> _Lone:
    seen = torch.tensor([len(span.slots) for span in spans])
    slots = torch.stack([_filled(span.slots, length) for span in spans])
    return _Lone(rows_where([span.start for span in spans]), slots, _mask(seen, length)[:, None, None], height)


def _prompt(span: Span, group: int) -> _Prompt:
    before, filled, wanted, parts = len(span.slots) - span.length, list[Tensor](), list[Tensor](), list[Tensor]()
    for length, some in groupby(range(span.length), lambda i: length_of(before + i + 1)):
        own = torch.tensor(list(some))
        n = -(-len(own) // _TALL)
        wanted.append(sum(map(len, filled)) + torch.arange(len(own)))
        filled.append(torch.cat((own, own[-1:].expand(n * _TALL - len(own)))))
        parts.append(_tall_mask(before + filled[-1].view(n, _TALL) + 1, length, group))
    where = slice(span.start, span.start + span.length)
    return _Prompt(where, torch.cat(filled), torch.cat(wanted), _filled(span.slots, length_of(len(span.slots))), tuple(parts))


def _mask(seen: Tensor, length: int) -> Tensor:
    """Of rows that see so many tokens, [n] → [n, length]."""
    return additive(torch.arange(length) < seen[:, None])


def _tall_mask(seen: Tensor, length: int, group: int) -> Tensor:
    """Of tiles whose rows see so many tokens, [n, height] → [n, 1, height · group, length]."""
    return _mask(seen.flatten(), length).view(len(seen), -1, length).repeat_interleave(group, 1)[:, None]


def _filled(slots: Tensor, length: int) -> Tensor:
    return torch.cat((slots[:length], slots[:1].expand(length - len(slots[:length]))))
