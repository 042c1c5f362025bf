"""Memory on each rank's GPU that the other ranks' GPUs write to, over NVLink or PCIe.

Allocated by the driver and shared by CUDA's interprocess handles, which ranks exchange through their store; no
multicast.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from contextlib import suppress
from ctypes import POINTER, byref, c_char, c_size_t, c_uint, c_uint64, c_ushort, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("lmc.engine")

_ROWS = 4096  # of a sum, at most
_RECEIVED = 8 << 20  # bytes that a rank receives in one: it gets all rows of each of the others, and from NCCL about twice its own
_RECEIVED_OF_ONE = 32 << 20  # where there is one other rank, whose rows it gets from NCCL, too
_OPEN_LAZILY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


def most_rows(ranks: int, columns: int) -> int:
    """Return for how many rows of a pass places are worth their memory and the bytes that are sent: a power of two."""
    received = _RECEIVED_OF_ONE if ranks == 2 else _RECEIVED
    return min(_ROWS, 1 << (max(1, received // (2 * columns * max(1, ranks - 1))).bit_length() - 1))


class PeerError(Exception):
    """A call that the driver refused."""


class _Handle(ctypes.Structure):
    _fields_ = [("data", c_char * 64)]


class PeerMemory:
    """Places for the rows of sums (kernels/peer_sum.py): this rank's, and the addresses of all.

    rows  of a sum, at most
    """

    def __init__(self, rank: int, bases: list[int], rows: int, device: torch.device) -> None:
        self.rank, self.rows = rank, rows
        self._bases, self._device = dict(enumerate(bases)), device
        self.places = torch.tensor(bases, dtype=torch.int64, device=device)
        self.rounds = torch.zeros(4, dtype=torch.int32, device=device)
        self.stop = torch.zeros(1, dtype=torch.int32, device=device)
        self._stopped, self._side = torch.ones(1, dtype=torch.int32, pin_memory=True), torch.cuda.Stream(device)

    @classmethod
    def of(cls, store: Any, rank: int, ranks: int, rows: int, columns: int, device: torch.device) -> PeerMemory | None:
        """Make it for sums of up to so many rows; all ranks must do so at once. None, on all of them, where one of them
        cannot."""
        from lmc.backend.engine.kernels.peer_sum import PLACES

        bases, why = dict[int, int](), ""
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # its context is this thread's
            try:
                bases[rank], handle = _allocated(PLACES * ranks * rows * columns)
            except PeerError as error:
                handle, why = b"", str(error)
            store.set(f"peers/{rank}", handle)
            for peer in range(ranks):
                if peer != rank and (theirs := store.get(f"peers/{peer}")) and not why:
                    try:
                        bases[peer] = _opened(theirs)
                    except PeerError as error:
                        why = str(error)
            store.set(f"peers/{rank}/all", b"1" if len(bases) == ranks else b"0")
            if any(store.get(f"peers/{peer}/all") != b"1" for peer in range(ranks)):
                log.info("GPUs cannot write to each other's memory directly%s: sums between ranks are NCCL's", f" ({why})" if why else "")
                _release(rank, bases)
                return None
        return cls(rank, [bases[peer] for peer in range(ranks)], rows, device)

    def give_up(self) -> None:
        """End the waits of all sums: ranks are lost. From any thread."""
        with torch.cuda.stream(self._side):  # a copy needs no multiprocessor: those may all be waiting
            self.stop.copy_(self._stopped, non_blocking=True)

    def close(self) -> None:
        """Free the memory; nothing runs on it."""
        bases, self._bases = self._bases, {}
        with torch.cuda.device(self._device), suppress(RuntimeError):  # a device that has failed has lost it anyway
            torch.cuda.synchronize()
            _release(self.rank, bases)


@dataclass(frozen=True, slots=True)
class PartialSum:
    """This rank's part of a sum, `x` [T, C]. `turn`: sums take turns 0 and 1."""

    memory: PeerMemory
    turn: int
    x: Tensor

    def add_rms_norm(self, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return norm(residual + the sum); `residual` becomes the sum in place."""
        from lmc.backend.engine.kernels.peer_sum import sum_add_rms_norm

        m = self.memory
        return sum_add_rms_norm(self.x, m.places, m.stop, m.rounds, m.rank, self.turn, m.rows, residual, weight, eps)


def _allocated(count: int) -> tuple[int, bytes]:
    """Return the address of memory for so many numbers, empty (kernels/peer_sum.py), and a handle for other processes."""
    from lmc.backend.engine.kernels.peer_sum import EMPTY

    address, handle = c_uint64(), _Handle()
    _call("cuMemAlloc_v2", byref(address), c_size_t(2 * count))
    try:
        _call("cuMemsetD16_v2", address, c_ushort(EMPTY & 0xFFFF), c_size_t(count))
        _call("cuCtxSynchronize")
        _call("cuIpcGetMemHandle", byref(handle), address)
    except PeerError:
        _call("cuMemFree_v2", address)
        raise
    return address.value, bytes(handle)


def _opened(handle: bytes) -> int:
    address = c_uint64()
    _call("cuIpcOpenMemHandle_v2", byref(address), _Handle.from_buffer_copy(handle), c_uint(_OPEN_LAZILY))
    return address.value


def _release(rank: int, bases: Mapping[int, int]) -> None:
    for peer, base in bases.items():
        with suppress(PeerError):
            _call("cuMemFree_v2" if peer == rank else "cuIpcCloseMemHandle", c_uint64(base))


def _call(name: str, *args: Any) -> None:
    driver = _driver()
    status = getattr(driver, name)(*args)
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, byref(text))
        raise PeerError(f"{name}: {(text.value or b'').decode() or status}")


@cache
def _driver() -> ctypes.CDLL:
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise PeerError(str(error)) from error
    found.cuMemAlloc_v2.argtypes = [POINTER(c_uint64), c_size_t]
    found.cuIpcGetMemHandle.argtypes = [c_void_p, c_uint64]
    found.cuMemsetD16_v2.argtypes = [c_uint64, c_ushort, c_size_t]
    found.cuIpcOpenMemHandle_v2.argtypes = [POINTER(c_uint64), _Handle, c_uint]
    return found
