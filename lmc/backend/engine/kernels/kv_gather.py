"""Scattered slots of the KV pool packed into rows of all layers, and back: one launch for all of them.

A row has K and V of every layer of one token, one after the other, as one of the host tier does (kv_copy.py). Bits are
copied, in the largest words that divide all parts of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_BLOCK = 1024  # words that a program copies at a time


@triton.jit
def _pack(table, slots, rows, stores, width, BACK: tl.constexpr, BLOCK: tl.constexpr):
    """Run one program per slot and store. table [3, stores]: addresses, widths, and places in a row, in words."""
    row, store = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.load(table + stores + store)
    there = tl.load(table + store).to(tl.pointer_type(rows.dtype.element_ty)) + tl.load(slots + row) * count
    here = rows + row * width + tl.load(table + 2 * stores + store)
    for begin in range(0, count, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        if BACK:
            tl.store(there + at, tl.load(here + at, mask=at < count), mask=at < count)
        else:
            tl.store(here + at, tl.load(there + at, mask=at < count), mask=at < count)


@dataclass(frozen=True, eq=False)
class Packing:
    """The kernel's view of a pool's stores, contiguous and of one dtype; it neither keeps nor copies them."""

    table: Tensor
    width: int  # of a row, in words
    block: int
    word: torch.dtype

    @classmethod
    def of(cls, stores: Sequence[Tensor]) -> Packing:
        sizes = [store[0].nbytes for store in stores]
        word = math.gcd(8, *sizes)
        widths = [size // word for size in sizes]
        places = [sum(widths[:i]) for i in range(len(widths))]
        table = torch.tensor([[store.data_ptr() for store in stores], widths, places], dtype=torch.int64, device=stores[0].device)
        return cls(table, sum(widths), min(_BLOCK, triton.next_power_of_2(max(widths))), _WORDS[word])

    def gather(self, slots: Tensor, rows: Tensor) -> None:
        """As `gather_reference` (kv_copy.py); rows contiguous."""
        self._launch(slots, rows, back=False)

    def scatter(self, slots: Tensor, rows: Tensor) -> None:
        """As `scatter_reference`."""
        self._launch(slots, rows, back=True)

    def _launch(self, slots: Tensor, rows: Tensor, *, back: bool) -> None:
        stores = self.table.shape[1]
        if len(slots):
            _pack[(len(slots), stores)](self.table, slots, rows.view(self.word), stores, self.width, back, self.block, num_warps=4)  # pyright: ignore[reportCallIssue]
