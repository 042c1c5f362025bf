"""Copies of KV between the pool and host memory. On a GPU on a stream of their own: beside passes, in pieces of a fixed size.

pool, scattered slots ──gather──► staging ──copy stream──► pinned host memory, one row a token
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from lmc.backend.engine.kv_pool import KVPool, LayerShape

log = logging.getLogger("lmc.engine")

_PIECE = 256 << 20  # bytes of host memory allocated, and pinned, at a time
_STAGE = 64 << 20  # bytes gathered at a time


class KVMover:
    """A `Mover` (host_tier.py) of a pool. host_bytes: the host memory that it may use.

    A host row holds K and V of all layers of one token. Memory is allocated by a thread, in pieces: on a GPU it is
    pinned, which takes seconds for some GiB. If a piece cannot be allocated, it keeps those it has.
    """

    def __init__(self, pool: KVPool, layers: Sequence[LayerShape], host_bytes: int) -> None:
        self._pool, self._layers = pool, layers
        first = pool.key(0)
        self._device, self._dtype = first.device, first.dtype
        self._width = sum(layer.size for layer in layers)
        self.token_bytes = self._width * first.element_size()
        self._rows = max(1, min(_PIECE, host_bytes) // self.token_bytes)  # of a piece
        self.capacity = host_bytes // self.token_bytes
        self._pieces: list[torch.Tensor] = []
        if self._device.type == "cuda":
            self._stage = torch.empty((max(16, _STAGE // self.token_bytes), self._width), dtype=self._dtype, device=self._device)
            self._stream = torch.cuda.Stream(self._device)
            threading.Thread(target=_grow, args=(weakref.ref(self),), name="lmc-host-memory", daemon=True).start()
        else:
            while self.grow():
                pass

    def grow(self) -> bool:
        """Allocate one more piece; return False if all exist."""
        at = self.ready
        if at >= self.capacity:
            return False
        try:
            piece = torch.empty((min(self._rows, self.capacity - at), self._width), dtype=self._dtype, pin_memory=self._device.type == "cuda")
        except (RuntimeError, MemoryError) as error:
            log.warning("host memory for KV: %d of %d tokens could be had: %s", at, self.capacity, error)
            return False
        self._pieces.append(piece)
        return True

    @property
    def ready(self) -> int:
        return sum(map(len, self._pieces.copy()))

    @torch.inference_mode()
    def out(self, device: np.ndarray, host: np.ndarray) -> Copied:
        return self._copied(device, host, self._out)

    @torch.inference_mode()
    def back(self, host: np.ndarray, device: np.ndarray) -> Copied:
        return self._copied(device, host, self._back)

    def settle(self) -> None:
        if self._device.type == "cuda":
            self._stream.synchronize()

    # -- pieces ------------------------------------------------------------------------------------------------

    def _copied(self, device: np.ndarray, host: np.ndarray, copy: object) -> Copied:
        if self._device.type != "cuda":
            began = time.perf_counter()
            stage = torch.empty((len(device), self._width), dtype=self._dtype)
            copy(torch.from_numpy(device), host, stage)  # pyright: ignore
            return Copied(time.perf_counter() - began)
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))  # passes that use these slots have been launched
        with torch.cuda.stream(self._stream):
            begun.record()
            most = len(self._stage)
            for at in range(0, len(device), most):
                slots = torch.from_numpy(device[at : at + most]).pin_memory().to(self._device, non_blocking=True)
                copy(slots, host[at : at + most], self._stage[: len(slots)])  # pyright: ignore
            ended.record()
        return CopiedByDevice(begun, ended)

    def _out(self, slots: torch.Tensor, host: np.ndarray, stage: torch.Tensor) -> None:
        for part, store in self._columns(stage):
            part.copy_(store.index_select(0, slots))
        for rows, a, b in self._runs(host):
            rows.copy_(stage[a:b], non_blocking=True)

    def _back(self, slots: torch.Tensor, host: np.ndarray, stage: torch.Tensor) -> None:
        for rows, a, b in self._runs(host):
            stage[a:b].copy_(rows, non_blocking=True)
        for part, store in self._columns(stage):
            store.index_copy_(0, slots, part)

    def _columns(self, stage: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield, for each K and V of each layer, its part of the rows, and the pool's."""
        at = 0
        for i, layer in enumerate(self._layers):
            for store, dim in ((self._pool.key(i), layer.key_dim), (self._pool.value(i), layer.value_dim)):
                width = layer.num_kv_heads * dim
                yield stage[:, at : at + width].unflatten(1, (layer.num_kv_heads, dim)), store
                at += width

    def _runs(self, host: np.ndarray) -> Iterator[tuple[torch.Tensor, int, int]]:
        """Yield consecutive host rows, and their positions among those that are copied."""
        cuts = np.flatnonzero((np.diff(host) != 1) | (host[1:] % self._rows == 0)) + 1
        for a, b in itertools.pairwise([0, *cuts.tolist(), len(host)]):
            piece, row = divmod(int(host[a]), self._rows)
            yield self._pieces[piece][row : row + b - a], a, b


def _grow(mover: weakref.ref[KVMover]) -> None:
    """Allocate until all pieces exist, or it is no longer needed."""
    while (found := mover()) is not None and found.grow():
        del found


class Copied:
    """A completed copy."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def done(self) -> bool:
        return True

    def wait(self) -> None: ...


class CopiedByDevice(Copied):
    """A copy made on a stream."""

    def __init__(self, begun: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        super().__init__(0.0)
        self._begun, self._ended = begun, ended

    def done(self) -> bool:
        if not self._ended.query():
            return False
        self.seconds = self._begun.elapsed_time(self._ended) / 1000
        return True

    def wait(self) -> None:
        self._ended.synchronize()
