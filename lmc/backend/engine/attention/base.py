"""What one pass of the model computes: rows of tokens, where their KV goes, and what each row may attend to.

A pass mixes prefill chunks, decode rows, forced rows and scoring rows; attention sees only spans of rows and slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence.

    rows [start, start + length) attend causally to `slots`, whose last `length` entries are the rows' own slots:
    row i sees slots[: len(slots) - length + i + 1].
    """

    start: int
    length: int
    slots: torch.Tensor  # [context length, these rows included] int64, slots of the KV pool in token order


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One pass. T rows in all, S spans, R rows whose logits are wanted."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, 0-based position in the sequence
    out_slots: torch.Tensor  # [T] int64, where the rows' K and V are written
    spans: tuple[Span, ...]
    logit_rows: torch.Tensor  # [R] int64


class KVStore(Protocol):
    """The storage attention reads and writes: per layer [num_slots, num_kv_heads, head_dim]."""

    def key(self, layer: int) -> torch.Tensor: ...

    def value(self, layer: int) -> torch.Tensor: ...


class CausalModel(Protocol):
    """A decoder-only model over a paged KV store."""

    def forward(self, batch: ForwardBatch, kv: KVStore) -> torch.Tensor:
        """Writes the rows' K and V to their slots; returns logits [R, vocab_size] float32."""
        ...
