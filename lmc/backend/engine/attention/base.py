"""The forward batch of one pass: rows of tokens, the slots of their KV, and what each row attends to.

A pass mixes prefill chunks, decode rows, forced rows and scoring rows; attention sees only spans of rows and slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from lmc.backend.engine.kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence.

    rows [start, start + length) attend causally to `slots`, whose last `length` entries are the rows' own slots: row i
    sees slots[: len(slots) - length + i + 1]. Rows among tokens [first, last) that are `mutual` see all of them. For a
    model with other rotations in long sequences (longrope), `is_far` marks one.
    """

    start: int
    length: int
    slots: torch.Tensor  # [context length, these rows included] int64, slots of the KV pool in token order
    is_far: bool = False
    mutual: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PictureRows:
    """Rows of a pass that belong to pictures: their features in place of embeddings.

    deeper    added to them after the first, second, … layer
    axes      their positions in time, height and width, [3, P] int64; None: those of the pass
    """

    rows: torch.Tensor  # [P] int64
    features: torch.Tensor  # [P, hidden_size]
    deeper: tuple[torch.Tensor, ...] = ()
    axes: torch.Tensor | None = None

    def only(self, place: torch.Tensor) -> PictureRows:
        """Select a part of the pass: `place` [T] maps rows of the pass to rows of the part, -1 for none."""
        ours = torch.nonzero(place[self.rows] >= 0)[:, 0]
        axes = None if self.axes is None else self.axes[:, ours]
        return PictureRows(place[self.rows[ours]], self.features[ours], tuple(more[ours] for more in self.deeper), axes)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One pass. T rows in all, S spans, R rows whose logits are wanted."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, 0-based; tokens after a picture may have positions other than their index
    out_slots: torch.Tensor  # [T] int64, where the rows' K and V are written
    spans: tuple[Span, ...]
    logit_rows: torch.Tensor  # [R] int64
    seen: PictureRows | None = None
    adapters: torch.Tensor | None = None  # [T] int64, the number of each row's adapter, 0 for none; None: no row has one

    def part(self, spans: Sequence[Span]) -> tuple[ForwardBatch, torch.Tensor]:
        """Return the rows of some spans as a pass, and which of the R logit rows are its own."""
        device = self.token_ids.device
        rows = torch.cat([torch.arange(s.start, s.start + s.length, device=device) for s in spans])
        place = torch.full_like(self.token_ids, -1)
        place[rows] = torch.arange(len(rows), device=device)
        starts = place[torch.tensor([s.start for s in spans], device=device)].tolist()
        moved = tuple(replace(s, start=start) for s, start in zip(spans, starts, strict=True))
        wanted = torch.nonzero(place[self.logit_rows] >= 0)[:, 0]
        logit_rows = place[self.logit_rows[wanted]]
        seen = None if self.seen is None else self.seen.only(place)
        adapters = None if self.adapters is None else self.adapters[rows]
        return ForwardBatch(self.token_ids[rows], self.positions[rows], self.out_slots[rows], moved, logit_rows, seen, adapters), wanted


class CausalModel(Protocol):
    """A decoder-only model over a paged KV store."""

    def forward(self, batch: ForwardBatch, kv: KVPool) -> torch.Tensor:
        """Write the rows' K and V to their slots; return logits [R, vocab_size] float32."""
        ...
