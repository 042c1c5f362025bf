"""Attention whose bits do not depend on what else is in a pass, nor on how a prompt was cut or cached.

A row reads its context from the first token on, filled up to a length that its position alone decides; what fills it up is masked. Rows of one span that have
the same length are read together in tiles. So the kernel sees few shapes, and of the heights of tiles those alone are used that give a row the same bits, which
is tried once (cf. models/fixed.py). Prefixes that several rows share are read by each: to merge partial results would round otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from lmc.backend.engine.attention.base import Span
from lmc.backend.engine.attention.torch_ref import Tall, additive, gathered, partial
from lmc.backend.engine.kv_fp8 import Stored

_STEPS = ((512, 64), (1024, 128))  # of lengths up to the first; of longer ones half a block
_BLOCK = 512  # keys that torch's kernel reads at once
_TALL = 16  # rows of a tile of a prompt
_HEIGHTS = (1, 2, 4, 8, _TALL)


def length_of(context: int) -> int:
    """To how many tokens a context is filled up."""
    step = next((step for most, step in _STEPS if context <= most), _BLOCK // 2)
    return -(-context // step) * step


@dataclass(frozen=True)
class _Tiles:
    """Tiles of one length over contexts of their own, or all over one.

    rows    [n · height] of the pass; some only fill a tile up
    slots   [n or 1, length]
    mask    [n, 1, height · group, length] float, 0 or -inf
    wanted  indices in `rows` of those that do not, and these rows
    """

    rows: Tensor
    slots: Tensor
    mask: Tensor
    wanted: tuple[Tensor, Tensor]
    scratch: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Tensor, slots: Tensor, mask: Tensor, known: Tensor) -> _Tiles:
        """Return tiles of rows [n, height], of which those are wanted that are `known` [n, height]."""
        return cls(rows.flatten(), slots, mask, (known.flatten().nonzero()[:, 0], rows[known]))

    def attend(self, q: Tensor, keys: Stored, values: Stored, out: Tensor) -> None:
        n, heads, dim, kv_heads = len(self.mask), q.shape[1], q.shape[2], keys.shape[1]
        height, slots = len(self.rows) // n, self.slots.flatten()
        tall = q.index_select(0, self.rows).view(n, height, kv_heads, -1, dim).transpose(1, 2).reshape(n, kv_heads, -1, dim)
        stores = (gathered(keys, slots, self.scratch, "k"), gathered(values, slots, self.scratch, "v"))
        k, v = (store.view(len(self.slots), -1, kv_heads, dim).transpose(1, 2).expand(n, -1, -1, -1) for store in stores)
        found, _ = partial(tall, k, v, mask=self.mask)
        found = found.reshape(n, kv_heads, height, -1, dim).transpose(1, 2).reshape(n * height, heads, dim)
        wanted, rows = self.wanted
        out.index_copy_(0, rows, found.index_select(0, wanted))


@dataclass(frozen=True)
class FixedPlan:
    """One pass."""

    tiles: tuple[_Tiles, ...]

    def tall(self) -> Tall | None:
        """Return the pass of a single row as one query; None if there are more."""
        tile = self.tiles[0]
        alone = len(self.tiles) == 1 and len(tile.wanted[1]) == 1
        return Tall(0, 0, tile.slots[0], tile.mask, len(tile.rows)) if alone else None

    def attend(self, q: Tensor, keys: Stored, values: Stored) -> Tensor:
        out = torch.empty_like(q)
        for tiles in self.tiles:
            tiles.attend(q, keys, values, out)
        return out


class FixedAttention:
    """Plans passes of a model. On a CPU.

    low  rows of a tile of a lone row
    """

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        self._group = num_heads // num_kv_heads
        self.low = _TALL
        self.low = self._lowest(num_heads, num_kv_heads, head_dim)

    def __call__(self, spans: Sequence[Span], window: int | None = None) -> FixedPlan:
        assert window is None, "refused where it is loaded"
        tiles = [tile for span in spans if span.length > 1 for tile in self._prompt(span)]
        lone = sorted((length_of(len(s.slots)), i, s) for i, s in enumerate(spans) if s.length == 1)
        tiles += [self._lone([s for *_, s in some], length) for length, some in groupby(lone, lambda each: each[0])]
        return FixedPlan(tuple(tiles))

    def _lone(self, spans: Sequence[Span], length: int) -> _Tiles:
        rows = torch.tensor([[span.start] * self.low for span in spans])
        seen = torch.tensor([len(span.slots) for span in spans])
        known = torch.zeros(rows.shape, dtype=torch.bool)
        known[:, 0] = True
        return _Tiles.of(rows, torch.stack([_filled(span.slots, length) for span in spans]), self._mask(seen[:, None].expand(-1, self.low), length), known)

    def _prompt(self, span: Span) -> Iterator[_Tiles]:
        before = len(span.slots) - span.length
        for length, some in groupby(range(span.length), lambda i: length_of(before + i + 1)):
            own = torch.tensor(list(some))
            n = -(-len(own) // _TALL)
            places = torch.cat((own, own[-1:].expand(n * _TALL - len(own)))).view(n, _TALL)
            known = (torch.arange(n * _TALL) < len(own)).view(n, _TALL)
            yield _Tiles.of(span.start + places, _filled(span.slots[:length], length)[None], self._mask(before + places + 1, length), known)

    def _mask(self, seen: Tensor, length: int) -> Tensor:
        """Of rows that see so many tokens, [n, height]."""
        mask = torch.arange(length) < seen[..., None]
        return additive(mask.repeat_interleave(self._group, 1))[:, None]

    # -- which heights agree ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _lowest(self, heads: int, kv_heads: int, dim: int) -> int:
        """The lowest tile in which a row has the bits that it has in one of a prompt, at every length that kernels see: longer ones end with a block like one
        of these."""
        generator = torch.Generator().manual_seed(0)
        longest = _STEPS[-1][0]
        q, keys, values = (torch.randn(n, h, dim, generator=generator) for n, h in ((_TALL, heads), (longest, kv_heads), (longest, kv_heads)))
        lengths = sorted({length_of(n) for n in range(1, longest + 1)})

        def found(length: int, rows: Tensor) -> Tensor:
            out, known = torch.zeros_like(q), torch.ones_like(rows, dtype=torch.bool)
            known[:, 1:] = len(rows) == 1  # one tile of all rows, or as many of one each
            _Tiles.of(rows, torch.arange(length)[None], self._mask(length - 7 - rows, length), known).attend(q, keys, values, out)
            return out

        every = torch.arange(_TALL)
        expected = {length: found(length, every[None]) for length in lengths}
        return next((h for h in _HEIGHTS[:-1] if all(torch.equal(found(n, every[:, None].expand(-1, h)), expected[n]) for n in lengths)), _TALL)


def _filled(slots: Tensor, length: int) -> Tensor:
    return torch.cat((slots[:length], slots[:1].expand(length - len(slots[:length]))))
