"""Copies of KV between the pool and host memory. On a GPU on a stream of their own: beside passes, in pieces of a fixed size.

pool, scattered slots ──gather──► staging ──copy stream──► pinned host memory, one row a token
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import mmap
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from lmc.backend.engine.kv_pool import KVPool
from lmc.backend.engine.memory import free_host
from lmc.backend.engine.transfer import to_device

log = logging.getLogger("lmc.engine")

_PIECE = 32 << 20  # bytes of host memory allocated, and pinned, at a time
_STAGE = 64 << 20  # bytes gathered at a time
_PAUSE = 2.0  # after a piece was pinned, in multiples of what that took: the driver launches nothing meanwhile
_AGAIN = 1.0  # seconds after which a machine that had no more memory may have some
_WORDS = (torch.int32, torch.int16, torch.uint8)


class KVMover:
    """Copies KV between slots of a pool and of the host, in the order of calls, after all launched passes.

    host_bytes   the host memory that it may use; None: as much as it leaves free to all others, by what the machine shows at that time
    capacity     number of host slots that there will be, as far as can be told;  ready: of leading ones available by now
    token_bytes  of one token's KV

    A host row holds K and V of all layers of one token, as words of whatever dtype. Memory is allocated in pieces when it is
    wanted, on a GPU by a thread that pins it. If a piece cannot be allocated, it keeps those it has.
    """

    def __init__(self, pool: KVPool, host_bytes: int | None) -> None:
        stores = [store.flatten(1) for store in pool.tensors()]
        self._device = stores[0].device
        self._dtype = next(d for d in _WORDS if all(s.shape[1] * s.element_size() % d.itemsize == 0 for s in stores))
        self._stores = [store.view(self._dtype) for store in stores]  # [num_slots + 1, words of a token]
        self._width = sum(store.shape[1] for store in self._stores)
        self.token_bytes = self._width * self._dtype.itemsize
        self._shares = host_bytes is None
        self._rows = max(1, min(_PIECE, host_bytes or _PIECE) // self.token_bytes)  # of a piece
        self._pieces: list[torch.Tensor] = []
        self.ready = self._wanted = 0
        self._growing = threading.Lock()
        self._refused = -math.inf  # when there was no more memory
        self.pinning = 0.0  # seconds that it took last
        self.capacity = self._share() if host_bytes is None else host_bytes // self.token_bytes
        self._stage: torch.Tensor | None = None  # of the device
        self._unpin: weakref.finalize[..., KVMover] | None = None
        self._gather, self._scatter = partial(gather_reference, self._stores), partial(scatter_reference, self._stores)
        if self._device.type == "cuda":
            from lmc.backend.engine.kernels.kv_gather import Packing

            packing = Packing.of(self._stores)
            self._gather, self._scatter = packing.gather, packing.scatter
            stage = self._stage = torch.empty((16 * max(1, _STAGE // 16 // self.token_bytes), self._width), dtype=self._dtype, device=self._device)
            with torch.cuda.device(self._device):
                self._stream = torch.cuda.Stream()
                nothing = torch.tensor([pool.scratch], device=self._device)
                for copy in (self._gather, self._scatter):  # compiled now, and not beside a pass
                    copy(nothing, stage[:1])
            self._unpin = weakref.finalize(self, unpin, self._pieces, self._stream)
            self._unpin.atexit = False  # the system does it then

    # -- memory ------------------------------------------------------------------------------------------------

    def want(self, slots: int) -> None:
        """Make so many host slots available, as far as there is memory; beside passes, so it takes a while."""
        self._wanted = max(self._wanted, slots if self._shares else min(slots, self.capacity))
        if self.ready >= self._wanted or time.monotonic() < self._refused + _AGAIN:
            return
        if self._device.type != "cuda":
            while self.grow():
                pass
        elif self._growing.acquire(blocking=False):
            threading.Thread(target=_grow, args=(weakref.ref(self), self._growing), name="lmc-host-memory", daemon=True).start()

    @property
    def grows(self) -> bool:
        """Return whether more of them will come soon."""
        return self._growing.locked()

    def _share(self) -> int:
        """Return the slots, in whole pieces, that leave as much memory free as they take."""
        return max(self.ready, (self.ready + free_host() // self.token_bytes) // 2 // self._rows * self._rows)

    def grow(self) -> bool:
        """Allocate one more piece; return False if there are enough, or no more."""
        if self._shares:
            self.capacity = self._share()
        rows = min(self._rows, self.capacity - self.ready)
        if rows <= 0:
            self._refused = time.monotonic()
        if rows <= 0 or self.ready >= self._wanted:
            return False
        try:
            shape = rows, self._width
            piece = torch.empty(shape, dtype=self._dtype) if self._device.type != "cuda" else paged(shape, self._dtype)
            began = time.monotonic()
            if self._device.type == "cuda":
                pin(piece, self._device)
            self.pinning = time.monotonic() - began
        except (RuntimeError, MemoryError, OSError) as error:
            log.warning("host memory for KV: %d of %d tokens could be had: %s", self.ready, self.capacity, error)
            self.capacity, self._shares = self.ready, False
            return False
        self._pieces.append(piece)
        self.ready += rows
        return True

    @torch.inference_mode()
    def out(self, device: np.ndarray, host: np.ndarray) -> Copied:
        return self._copied(device, host, self._out)

    @torch.inference_mode()
    def back(self, host: np.ndarray, device: np.ndarray) -> Copied:
        return self._copied(device, host, self._back)

    def settle(self) -> None:
        """Wait for the copies begun."""
        if self._device.type == "cuda":
            self._stream.synchronize()

    def close(self) -> None:
        """Wait for them, and free all memory; nothing is copied any longer."""
        self.settle()
        self.capacity, self._shares, self._wanted = 0, False, 0  # the last for a thread that is just computing the first
        with self._growing:
            self._stores.clear()
            self._stage = None
            if self._unpin is not None:
                self._unpin()
            self._pieces.clear()

    # -- pieces ------------------------------------------------------------------------------------------------

    def _copied(self, device: np.ndarray, host: np.ndarray, copy: Callable[[torch.Tensor, np.ndarray, torch.Tensor], None]) -> Copied:
        if (stage := self._stage) is None:
            began = time.perf_counter()
            copy(torch.from_numpy(device), host, torch.empty((len(device), self._width), dtype=self._dtype))
            return Copied(time.perf_counter() - began)
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))  # passes that use these slots have been launched
        with torch.cuda.stream(self._stream):
            begun.record()
            slots, most = to_device(device, stage), len(stage)
            for at in range(0, len(device), most):
                part = slots[at : at + most]
                copy(part, host[at : at + most], stage[: len(part)])
            ended.record()
        return CopiedByDevice(begun, ended)

    def _out(self, slots: torch.Tensor, host: np.ndarray, stage: torch.Tensor) -> None:
        self._gather(slots, stage)
        for rows, a, b in self._runs(host):
            rows.copy_(stage[a:b], non_blocking=True)

    def _back(self, slots: torch.Tensor, host: np.ndarray, stage: torch.Tensor) -> None:
        for rows, a, b in self._runs(host):
            stage[a:b].copy_(rows, non_blocking=True)
        self._scatter(slots, stage)

    def _runs(self, host: np.ndarray) -> Iterator[tuple[torch.Tensor, int, int]]:
        """Yield consecutive host rows, and their positions among those that are copied."""
        cuts = np.flatnonzero((np.diff(host) != 1) | (host[1:] % self._rows == 0)) + 1
        for a, b in itertools.pairwise([0, *cuts.tolist(), len(host)]):
            piece, row = divmod(int(host[a]), self._rows)
            yield self._pieces[piece][row : row + b - a], a, b


def gather_reference(stores: Sequence[torch.Tensor], slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write `slots` [T] int64 of each of the stores [num_slots, …] to `rows` [T, width of all], in their order."""
    for store, part in _parts(stores, rows):
        part.copy_(store.index_select(0, slots))


def scatter_reference(stores: Sequence[torch.Tensor], slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write `rows` to `slots` of the stores."""
    for store, part in _parts(stores, rows):
        store.index_copy_(0, slots, part)


def _parts(stores: Sequence[torch.Tensor], rows: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    widths = [store[0].numel() for store in stores]
    for store, part in zip(stores, rows.split(widths, 1), strict=True):
        yield store, part.unflatten(1, store.shape[1:])


def _grow(mover: weakref.ref[KVMover], growing: threading.Lock) -> None:
    """Allocate what is wanted, or until it is no longer needed."""
    try:
        while (found := mover()) is not None and found.grow():
            pause = _PAUSE * found.pinning
            del found
            time.sleep(pause)
    finally:
        growing.release()


def paged(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros in pages of their own, which are made now: that takes longer than pinning them, and no launch waits for it."""
    size = math.prod(shape) * dtype.itemsize
    found = torch.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=dtype).view(shape)
    ctypes.memset(found.data_ptr(), 0, size)  # without the interpreter's lock
    return found


def pin(piece: torch.Tensor, device: torch.device) -> None:
    """Pin pages, until `unpin`."""
    cuda = torch.cuda.cudart()
    assert cuda is not None
    with torch.cuda.device(device):
        torch.cuda.check_error(cuda.cudaHostRegister(piece.data_ptr(), piece.nbytes, 0))


def unpin(pieces: list[torch.Tensor], stream: torch.cuda.Stream) -> None:
    """Return pinned memory to the system."""
    cuda = torch.cuda.cudart()
    assert cuda is not None
    stream.synchronize()
    while pieces:
        torch.cuda.check_error(cuda.cudaHostUnregister(pieces[-1].data_ptr()))
        pieces.pop()


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
