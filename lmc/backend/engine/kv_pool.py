"""The KV pool: free slots, and the storage of their keys and values.

A slot holds K and V of one token in every layer (page size 1). Who owns a slot:

    free list ──alloc──► a request ──insert──► the radix tree ──evict──► free list
                             └──────free (rollback, cancel)──────────────────┘
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

    from lmc.backend.engine.kv_fp8 import Stored


class SlotAllocator:
    """A stack of free slots in [0, num_slots). Pure bookkeeping, independent of the slots' contents."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._stack = np.arange(num_slots - 1, -1, -1, dtype=np.int64)
        self.free_count = num_slots
        self._freed = 0  # since all were sorted
        self._loose = 0  # at the top of the stack, freed since the last tidying

    def extend(self, num_slots: int) -> None:
        """Grow to so many slots; the new ones are free."""
        new = np.arange(self.num_slots, num_slots, dtype=np.int64)
        self.num_slots, self._stack = num_slots, np.append(self._stack, new)
        self.free(new)

    def next(self, n: int) -> np.ndarray:
        """Return what `alloc` will return if nothing is freed or allocated before."""
        assert n <= self.free_count, f"KV pool exhausted: {n} slots wanted, {self.free_count} free"
        return self._stack[self.free_count - n : self.free_count][::-1].copy()

    def alloc(self, n: int) -> np.ndarray:
        """Return `n` free slots [n] int64, in ascending order if they were freed so; the caller owns them."""
        found = self.next(n)
        self.free_count -= n
        self._loose = max(0, self._loose - n)
        return found

    def free(self, slots: np.ndarray) -> None:
        """Free slots; each must be owned by the caller."""
        n = len(slots)
        assert self.free_count + n <= self.num_slots, "more slots freed than there are"
        self._stack[self.free_count : self.free_count + n] = slots[::-1]
        self.free_count += n
        self._loose += n
        self._freed += n

    def tidy(self) -> None:
        """Sort the slots that were freed since the last time, and all that are free once those were many: consecutive slots are
        views of the store, others are copies."""
        many = self._freed * 8 >= self.num_slots
        first = 0 if many else self.free_count - self._loose
        self._stack[first : self.free_count] = np.sort(self._stack[first : self.free_count])[::-1]
        self._loose, self._freed = 0, 0 if many else self._freed

    def free_slots(self) -> np.ndarray:
        """Return the free slots, for checks."""
        return self._stack[: self.free_count].copy()

    def check(self, owned: Sequence[np.ndarray]) -> None:
        """Raise unless free slots and `owned` together are each slot exactly once."""
        every = np.concatenate([self.free_slots(), *owned])
        seen = np.bincount(every, minlength=self.num_slots)
        if len(seen) != self.num_slots or not (seen == 1).all():
            leaked, shared = int((seen == 0).sum()), int((seen > 1).sum())
            raise AssertionError(f"KV pool: {leaked} slots leaked, {shared} owned twice")


class LayerShape(NamedTuple):
    """The shape of one token in one layer: K [num_kv_heads, key_dim], V [num_kv_heads, value_dim]."""

    num_kv_heads: int
    key_dim: int
    value_dim: int

    def bytes(self, dtype: torch.dtype) -> int:
        """Return its bytes; in FP8, K and V of each head have a scale (kv_fp8.py)."""
        return self.num_kv_heads * ((self.key_dim + self.value_dim) * dtype.itemsize + (8 if dtype.itemsize == 1 else 0))


class KVPool:
    """Storage of the pool: per layer, K and V [num_slots + 1, num_kv_heads, head_dim]; the last slot is scratch. In
    float8_e4m3fn, rows have scales beside them (kv_fp8.py)."""

    def __init__(self, num_layers: int, num_slots: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: str = "cpu") -> None:
        self._allocate([LayerShape(num_kv_heads, head_dim, head_dim)] * num_layers, num_slots, dtype, device, paired=False)

    @classmethod
    def of(cls, layers: Sequence[LayerShape], num_slots: int, dtype: torch.dtype, device: str = "cpu") -> KVPool:
        """Create for layers that may differ; on a CPU with K and V of a layer beside each other, where they have one shape."""
        pool = cls.__new__(cls)
        pool._allocate(layers, num_slots, dtype, device, paired=device == "cpu")
        return pool

    def _allocate(self, layers: Sequence[LayerShape], num_slots: int, dtype: torch.dtype, device: str, *, paired: bool) -> None:
        import torch

        from lmc.backend.engine.kv_fp8 import Fp8Rows

        def zeros(heads: int, dim: int) -> torch.Tensor:  # an unwritten slot must never be NaN
            shape = (num_slots + 1, heads, dim)
            if device == "cpu":  # the system zeroes a page when it is first used, and most of a large pool never is
                return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
            return torch.zeros(shape, dtype=dtype, device=device)

        def stores(heads: int, key_dim: int, value_dim: int) -> tuple[torch.Tensor | None, Stored, Stored]:
            if dtype == torch.float8_e4m3fn:
                return None, Fp8Rows.zeros(num_slots + 1, heads, key_dim, device), Fp8Rows.zeros(num_slots + 1, heads, value_dim, device)
            if not paired or key_dim != value_dim:
                return None, zeros(heads, key_dim), zeros(heads, value_dim)
            pair = zeros(2 * heads, key_dim)
            return pair, pair[:, :heads], pair[:, heads:]

        self.scratch = num_slots  # written by padding rows of a pass; never read
        self._layers = [stores(*layer) for layer in layers]

    def key(self, layer: int) -> Stored:
        return self._layers[layer][1]

    def value(self, layer: int) -> Stored:
        return self._layers[layer][2]

    def pair(self, layer: int) -> torch.Tensor | None:
        """Return a layer's K and V as one tensor, [num_slots + 1, 2 · num_kv_heads, head_dim], if they are: a row is written at once then."""
        return self._layers[layer][0]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield all that it consists of, each [num_slots + 1, …]."""
        from lmc.backend.engine.kv_fp8 import apart

        for pair, *both in self._layers:
            for store in both if pair is None else [pair]:
                yield from dict.fromkeys(apart(store))
