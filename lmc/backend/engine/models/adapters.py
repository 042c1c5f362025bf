"""Adapters of a model in passes: products of low rank that are added to those of its matrices; each row of a pass has one of them, or none.

    y = W x            rows without an adapter
    y = W x + B A x    rows with one; the scale is in B

Products are grouped: the rows of one adapter are multiplied together. `Stacked` is the same in shapes that do not depend on which rows have which, for
graphs of a GPU: all adapters lie side by side, and a mask leaves each row its own.
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
        self._factors: dict[tuple[int, str], list[Factors | None]] = {}
        for key in {key for adapter in adapters for key in adapter}:
            every = [adapter.get(key) for adapter in adapters]
            self._factors[key] = [f and Factors(f.down.to(device, dtype), tuple(AdaptedRows(p.first, p.up.to(device, dtype)) for p in f.parts)) for f in every]

    def add(self, layer: int, matrix: str, x: Tensor, y: Tensor, rows: RowsByAdapter) -> Tensor:
        """Add to the product `y` [T, rows of the matrix] of `x` [T, in], in place, what the adapters of the rows do."""
        every = self._factors.get((layer, matrix))
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

    @staticmethod
    def grouped(numbers: Tensor) -> RowsByAdapter:
        """Return the rows of a pass, by their adapters [T] int64."""
        return RowsByAdapter.of(numbers)

    def stacked(self) -> Stacked:
        return Stacked(self._factors, self.count)


class _Stack(NamedTuple):
    """Of one merged matrix: A's of all parts and adapters [parts · adapters · rank, in], and for each part its first row and B's [rows, adapters · rank]."""

    down: Tensor
    parts: tuple[AdaptedRows, ...]
    rank: int


class Stacked:
    """The same in fixed shapes: whatever rows have, the same products, so that a graph can be captured."""

    def __init__(self, factors: Mapping[tuple[int, str], Sequence[Factors | None]], count: int) -> None:
        self.count = count
        self._stacks = {key: _stack(every) for key, every in factors.items()}

    def mask(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """Of rows with these adapters, [T]: 1 where a row has one, [T, adapters]."""
        every = torch.arange(1, self.count + 1, dtype=numbers.dtype, device=numbers.device)
        return (numbers[:, None] == every).to(dtype)

    def add(self, layer: int, matrix: str, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """As Adapters.add."""
        if (stack := self._stacks.get((layer, matrix))) is None:
            return y
        low = F.linear(x, stack.down).view(len(x), len(stack.parts), self.count, stack.rank) * mask[:, None, :, None]
        for i, (first, up) in enumerate(stack.parts):
            y[:, first : first + len(up)] += F.linear(low[:, i].flatten(1), up)
        return y


def _stack(every: Sequence[Factors | None]) -> _Stack:
    """Ranks that differ are filled up with zeros."""
    some = [f for f in every if f is not None]
    rows = {p.first: len(p.up) for f in some for p in f.parts}
    rank = max(p.up.shape[1] for f in some for p in f.parts)
    like = some[0].down
    down = like.new_zeros(len(rows), len(every), rank, like.shape[1])
    ups = {first: like.new_zeros(n, len(every), rank) for first, n in rows.items()}
    place = {first: i for i, first in enumerate(sorted(rows))}
    for number, factors in enumerate(every):
        at = 0
        for first, up in () if factors is None else factors.parts:
            assert factors is not None
            n = up.shape[1]
            down[place[first], number, :n] = factors.down[at : at + n]
            ups[first][:, number, :n] = up
            at += n
    return _Stack(down.flatten(0, 2), tuple(AdaptedRows(first, ups[first].flatten(1)) for first in sorted(rows)), rank)
