"""Attention of a pass by tiles: staged with the pass, the same kernels for every pass of a shape.

In captured passes, tiles of decoding rows and tiles of prefixes, constants and prompts are computed beside each other, on two
streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lmc.backend.engine.attention.tiles import PIECE, Plan, Shared, Tiler
from lmc.backend.engine.kernels.attention import attend, attend_quantized
from lmc.backend.engine.kernels.pieces import DevicePlan, Partials, Widened
from lmc.backend.engine.kv_fp8 import Stored
from lmc.backend.engine.staging import StagingBuffer

_NARROW, _WIDE = 4, 2  # programs per multiprocessor: as many as fit its memory
FIXED_PIECE = 8
"""Blocks of a piece where a row's bits must not depend on the rest of its pass."""
_WIDEN_FROM = 512  # rows of a pass beyond which KV in FP8 is widened for wide tiles (measured)


class TiledAttention:
    """Attention of a model's shape on one device.

    window  tokens that a row sees, its own included; None: all
    piece   see Tiler
    few     rows of a group up to which a narrow tile reads its prefix;  many: rows of a wide tile;  only_wide: all tiles are
    room    where KV in FP8 is widened for the wide tiles of large passes; None: it is not
    """

    def __init__(
        self, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None, device: torch.device, piece: int | None = None,
        room: Widened | None = None,
    ) -> None:  # fmt: skip
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        shares, wide_shares = (max(1, n * processors // num_kv_heads) for n in (_NARROW, _WIDE))
        self._tiler = Tiler(num_heads, num_kv_heads, shares, window, wide_shares, piece)
        self.few, self.many, self.only_wide = self._tiler.few, self._tiler.many, piece is not None
        self._head_dim, self._device, self._room = head_dim, device, room
        self._beside = torch.cuda.Stream(device)

    def sizes(self, rows: int, indices: int, pieces: int = 0) -> dict[str, int]:
        """Return the sizes of its parts of a staging buffer for passes of up to `rows` rows, and at least `pieces` wide pieces."""
        shares, wide_shares = self._tiler.shares, self._tiler.shares_of_wide
        return {
            "narrow_shares": shares + 1, "wide_shares": wide_shares + 1, "indptr": rows + 1,
            "narrow": (2 * rows + shares) * PIECE,  # a row's own tile, and its prefix's
            "wide": max(2 * rows + wide_shares, pieces) * PIECE, "indices": indices,
        }  # fmt: skip

    def plan(self, lengths: np.ndarray, slots: Sequence[np.ndarray], cuts: np.ndarray, shared: Sequence[Shared], rows: int) -> Plan:
        """Plan a pass, see `Tiler.plan`. What would be widened has room, or nothing is."""
        if self._room is not None and self.widens(rows):
            plan = self._tiler.plan(lengths, slots, cuts, shared, rows, widen=True)
            if plan.widened is not None and plan.widened <= self._room.blocks:
                return plan
        return self._tiler.plan(lengths, slots, cuts, shared, rows)

    def widens(self, rows: int) -> bool:
        """Return whether passes of so many rows widen what wide tiles read, if there is room."""
        return self._room is not None and rows > _WIDEN_FROM

    def partials(self, rows: int, least: int = 0) -> Partials:
        """Allocate space for the partial results of passes of up to `rows` rows, and at least so many; a captured graph needs it as long as
        it lives."""
        return Partials(max(least, self._tiler.most_partials(rows)), self._tiler.num_heads, self._head_dim, self._device)

    def over(self, stage: StagingBuffer, partials: Partials, rows: int, *, wide: bool, widened: bool, beside: bool = True) -> StagedAttention:
        """Return attention over staged data, for passes of `rows` rows. `wide`: whether there may be wide pieces; `widened`: whether they read
        what was widened; `beside`: on a stream of their own."""
        names = ("narrow", "narrow_shares", "wide", "wide_shares", "indptr", "indices")
        tables = DevicePlan(*(stage.device(name) for name in names), widened=self._room if widened else None)
        return StagedAttention(stage.device("in_context", rows), tables, partials, wide, self._tiler.window or 0, self._beside if beside else None)


def put(plan: Plan, stage: StagingBuffer) -> int:
    """Write a plan where its kernels read it; return how many indices it has."""
    for name in ("narrow_shares", "wide_shares", "indptr", "narrow", "wide", "indices"):
        stage.put(name, getattr(plan, name))
    return len(plan.indices)


@dataclass(frozen=True, slots=True)
class StagedAttention:
    """q [T, num_heads, head_dim] over keys and values [num_slots, num_kv_heads, head_dim] → [T, num_heads, head_dim].

    in_context  the rows' indices in their contexts, [T]: each sees the slots up to its own
    """

    in_context: Tensor
    tables: DevicePlan
    partials: Partials
    wide: bool
    window: int
    beside: torch.cuda.Stream | None

    def __call__(self, q: Tensor, keys: Stored, values: Stored, out: Tensor | None = None) -> Tensor:
        return attend(
            q, keys, values, self.in_context, self.tables, self.partials,
            wide=self.wide, window=self.window, beside=self.beside, out=out,
        )  # fmt: skip

    def quantized(self, q: Tensor, keys: Stored, values: Stored) -> tuple[Tensor, Tensor]:
        """Return the same in FP8: e4m3 [T, num_heads · head_dim] and scales [T, 1]."""
        where = self.in_context, self.tables, self.partials
        return attend_quantized(q, keys, values, *where, wide=self.wide, window=self.window, beside=self.beside)
