"""A row's numbers that do not depend on what else is in its pass: products in a few numbers of rows that are known to agree.

A library adds up a product in an order that its shapes decide: one row takes another way than seven or sixty-four. For each kind of matrix it is tried, once,
where a model is loaded, which numbers of rows give a row the same bits, wherever it stands among them; only those are used, and what is missing is filled up
with zeros (cf. batch-invariant kernels). If there are none, each row is multiplied by itself. Which order is taken depends on shapes, never on numbers, so what
rows of noise show holds for all. In float32: in half precision most rows would round to the same, and what is left would not be seen.

Of what else a model computes, only SiLU gives a number other bits where torch's threads part the rows (`silu`); norms, rotations and sums do not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.backend.engine.models.linear import Linear

SIZES = (*range(1, 16), *range(16, 32, 2), *range(32, 64, 4), *range(64, 128, 8), *range(128, 257, 16))
"""Numbers of rows that are tried: if all agree, at most one row in nine only fills them up."""
_SERIAL = (1 << 15) - 1  # numbers that torch leaves to one thread
_ALIGNED = 64  # bytes: libraries may take another way where a matrix begins elsewhere


class Fixed:
    """A Linear over numbers of rows that agree."""

    __slots__ = ("_multiply", "sizes")

    def __init__(self, multiply: Linear, sizes: tuple[int, ...]) -> None:
        self._multiply, self.sizes = multiply, sizes

    @property
    def of_one(self) -> Linear | None:
        """Return the product of a single row; None if that would have other bits."""
        return self._multiply if self.sizes[0] == 1 else None

    def __call__(self, x: Tensor) -> Tensor:
        n, largest = len(x), self.sizes[-1]
        if n > largest:
            return torch.cat([self(x[i : i + largest]) for i in range(0, n, largest)])
        size = next((s for s in self.sizes if s >= n), largest) if n else 0
        if size == n and x.is_contiguous() and x.data_ptr() % _ALIGNED == 0:
            return self._multiply(x)
        filled = x.new_zeros(size, x.shape[1])
        filled[:n] = x
        return self._multiply(filled)[:n]


@torch.inference_mode()
def agreeing(multiply: Linear, columns: int, most: int = SIZES[-1]) -> tuple[int, ...]:
    """Return the numbers of rows up to `most` with which a row has the same bits, wherever it stands; (1,) if there are no two."""
    rows = torch.randn(most, columns, generator=torch.Generator().manual_seed(0))
    for largest in reversed([size for size in SIZES if size <= most]):
        expected = multiply(rows[:largest].clone())
        if torch.equal(multiply(rows[:1].repeat(largest, 1)), expected[:1].expand_as(expected)):  # wherever it stands among the most rows
            return tuple(size for size in SIZES if size <= largest and torch.equal(multiply(rows[:size].clone()), expected[:size]))
    return (1,)


def silu(x: Tensor) -> Tensor:
    """SiLU of rows [n, width], some at a time: where threads part a row, the last numbers before it are computed by another way."""
    n = max(1, _SERIAL // x.shape[1]) if torch.get_num_threads() > 1 else len(x)
    if len(x) <= n:
        return F.silu(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for some, rows in zip(out.split(n), x.split(n), strict=True):
        torch.ops.aten.silu.out(rows, out=some)
    return out
