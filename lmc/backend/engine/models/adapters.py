"""Adapters of a model in passes: products of low rank that are added to those of its matrices; each row of a pass has one of them, or none.

    y = W x            rows without an adapter
    y = W x + B A x    rows with one; the scale is in B

Products are grouped: the rows of one adapter are multiplied together. On a GPU kernels/low_rank.py does the same in launches that do not depend on which rows
have which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class AdaptedRows(NamedTuple):
    """Rows of a merged matrix that an adapter changes: from `first` on, by `up` [rows, rank] and so many rows of `down`."""

    first: int
    up: Tensor


class Factors(NamedTuple):
    """An adapter's factors of one merged matrix: the A's of its parts stacked, `down` [ranks, in], and their B's."""

    down: Tensor
    parts: tuple[AdaptedRows, ...]


Adapter = Mapping[tuple[int, str], Factors]
"""By layer and merged matrix."""


@dataclass(frozen=True, slots=True)
class RowsByAdapter:
    """The rows of a pass by adapter: pairs of an adapter's number, from 1 on, and its rows; None: all rows."""

    numbers: Tensor  # [T] int64, 0 for none
    groups: tuple[tuple[int, Tensor | None], ...]

    @classmethod
    def of(cls, numbers: Tensor) -> RowsByAdapter:
        found = [int(n) for n in numbers.unique().tolist() if n]
        if len(found) == 1 and bool((numbers == found[0]).all()):
            return cls(numbers, ((found[0], None),))
        return cls(numbers, tuple((n, torch.nonzero(numbers == n)[:, 0]) for n in found))

    def only(self, rows: Tensor) -> RowsByAdapter:
        return RowsByAdapter.of(self.numbers[rows])


class Adapters:
    """All adapters of a model, by number from 1 on."""

    def __init__(self, adapters: Sequence[Adapter], dtype: torch.dtype, device: torch.device) -> None:
        self.count = len(adapters)
        self.factors: dict[tuple[int, str], list[Factors | None]] = {}
        for key in {key for adapter in adapters for key in adapter}:
            every = [adapter.get(key) for adapter in adapters]
            self.factors[key] = [f and Factors(f.down.to(device, dtype), tuple(AdaptedRows(p.first, p.up.to(device, dtype)) for p in f.parts)) for f in every]

    def add(self, layer: int, matrix: str, x: Tensor, y: Tensor, rows: RowsByAdapter) -> Tensor:
        """Add to the product `y` [T, rows of the matrix] of `x` [T, in], in place, what the adapters of the rows do."""
        every = self.factors.get((layer, matrix))
        for number, own in () if every is None else rows.groups:
            assert every is not None
            if (factors := every[number - 1]) is None:
                continue
            low, at = F.linear((x if own is None else x[own]).to(factors.down.dtype), factors.down), 0
            for first, up in factors.parts:
                more = F.linear(low[:, at : at + up.shape[1]], up)
                part = y[:, first : first + len(up)]
                if own is None:
                    part += more
                else:
                    part.index_add_(0, own, more)
                at += up.shape[1]
        return y
