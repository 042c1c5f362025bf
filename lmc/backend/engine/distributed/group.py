"""Collectives of ranks on their devices: sums, the gathered logits, tokens drawn by rank 0; and matrices that end in
them.

gloo on CPUs, NCCL on GPUs, where all of it can be captured in CUDA graphs. Groups are not in torch.distributed's
registry: a program may have its own, and several engines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmc.backend.engine.distributed.passes import unnamed
from lmc.backend.engine.distributed.peer_memory import PartialSum, PeerMemory
from lmc.backend.engine.models.fp8 import Quantized
from lmc.backend.engine.models.linear import Linear

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""Set in every rank before torch.distributed begins: multicast over NVLink can make a shared host unusable for others."""

_LONG = timedelta(hours=1)
HANDSHAKE = 30.0
"""Seconds that live ranks may take to find each other."""


class PeerLost(RuntimeError):
    """A collective did not end because a peer has ended or hangs, which is the reason, and not this rank."""


@contextmanager
def _losing_peers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"a collective did not end: {error}") from error


def without_multicast() -> None:
    """Set it in this process, before NCCL is loaded."""
    os.environ.update(NO_MULTICAST)


@cache
def meeting_place() -> int:
    """Return the handle of memory in which ranks find each other, for their processes to inherit: no other user can open it, and it
    is gone with the last of them. Never closed: a store writes to it once more when nothing refers to it any longer."""
    return unnamed("lmc-ranks")


def met_at(handle: int, engine: str) -> Any:
    """Return the store there of one engine's ranks."""
    from torch.distributed import FileStore, PrefixStore

    return PrefixStore(engine, FileStore(f"/dev/fd/{handle}", -1))


class RankGroup:
    """The group of ranks 0 to `ranks` - 1. Until `connect` it only identifies this one.

    limit    seconds that a collective on a CPU may take: after that its peers count as lost
    waiting  by rank, whether it waits in a collective: this one's is kept here
    """

    def __init__(self, rank: int, ranks: int, limit: float, waiting: MutableSequence[int] | np.ndarray | None = None) -> None:
        self.rank, self.ranks, self._limit = rank, ranks, limit
        self._waiting = [0] * ranks if waiting is None else waiting
        self._group: Any = None
        self._store: Any = None
        self._aborts = False  # NCCL's communicators do not end by themselves
        self.peers: PeerMemory | None = None

    def connect(self, met: Any, device: torch.device) -> None:
        """Meet the other ranks over a store of torch.distributed that all of them have; each of them must be about
        to. Raises RuntimeError."""
        import torch.distributed as dist

        without_multicast()
        met.set_timeout(timedelta(seconds=HANDSHAKE))
        self._store = met
        if device.type == "cuda":
            told = dist.ProcessGroupNCCL.Options()
            told._timeout = _LONG  # others may be measuring or compiling; passes have a deadline of their own (crew.py)
            self._group = dist.ProcessGroupNCCL(met, self.rank, self.ranks, told)
            self._aborts = True
        else:
            options: Any = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = timedelta(seconds=self._limit)
            self._group = dist.ProcessGroupGloo(met, self.rank, self.ranks, options)
        self._root = dist.GatherOptions()
        self._root.rootRank = 0
        self._from_root = dist.BroadcastOptions()
        self._from_root.rootRank = 0
        self.sum(torch.zeros(1, device=device))  # communicators are made by the first use, which must not be captured
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def share_memory(self, rows: int, columns: int, device: torch.device) -> None:
        """Set up `peers` for sums of up to so many rows, where GPUs write to each other's memory; all ranks must do this
        at once."""
        self.peers = PeerMemory.of(self._store, self.rank, self.ranks, rows, columns, device)

    def sum(self, x: Tensor) -> Tensor:
        """Sum all ranks' `x`, in place. Raises PeerLost, as all collectives do."""
        self._complete(lambda: self._group.allreduce([x]))
        return x

    def gather(self, x: Tensor) -> Tensor | None:
        """Gather on rank 0: all ranks' `x` [rows, n] side by side, [rows, ranks · n]; None on others."""
        if self.rank:
            self._complete(lambda: self._group.gather([], [x], self._root))
            return None
        every = x.new_empty(self.ranks, *x.shape)
        self._complete(lambda: self._group.gather([list(every.unbind(0))], [x], self._root))
        return every.transpose(0, 1).reshape(len(x), -1)

    def from_root(self, x: Tensor) -> Tensor:
        """Broadcast rank 0's `x`, in place."""
        self._complete(lambda: self._group.broadcast([x], self._from_root))
        return x

    def _complete(self, collective: Callable[[], Any]) -> None:
        self._waiting[self.rank] = 1
        try:
            with _losing_peers():
                collective().wait()
        finally:
            self._waiting[self.rank] = 0

    def abort(self) -> None:
        """Abort waits for lost peers. From any thread."""
        group = self._group
        if self.peers is not None:
            self.peers.give_up()
        if group is not None and hasattr(group, "abort"):
            group.abort()

    def close(self) -> None:
        """Close the connections; nothing is under way."""
        if self._aborts:
            self.abort()
        peers, self.peers, self._group, self._store, self._aborts = self.peers, None, None, None, False
        if peers is not None:
            peers.close()


class Summed:
    """A matrix whose columns are sharded over ranks: each multiplies its part of x, and the results are summed.

    turn  0 or 1: matrices whose sums follow each other take turns (kernels/peer_sum.py)
    """

    __slots__ = ("_group", "_turn", "local")

    def __init__(self, local: Linear, group: RankGroup, turn: int) -> None:
        self.local, self._group, self._turn = local, group, turn

    def __call__(self, x: Tensor) -> Tensor:
        return self._group.sum(self.local(x).contiguous())

    def product(self, x: Tensor | Quantized, multiply: Callable[[Linear, Tensor | Quantized], Tensor]) -> Tensor | PartialSum:
        """Return x times the matrix; of few rows, where GPUs write to each other's memory, this rank's part, to be summed by
        whoever reads it."""
        part, peers = multiply(self.local, x).contiguous(), self._group.peers
        return self._group.sum(part) if peers is None or len(part) > peers.rows else PartialSum(peers, self._turn, part)

    def over(self, local: Linear) -> Summed:
        """Wrap another way to multiply by this part."""
        return Summed(local, self._group, self._turn)


class GatheredHead:
    """A head whose rows are sharded over ranks. Rank 0 has the logits of all; the others a placeholder of the same
    number of rows.

    width    rows of the longest part; shorter ones are padded
    size     of the vocabulary
    """

    __slots__ = ("_group", "_size", "_width", "local")

    def __init__(self, local: Linear, group: RankGroup, width: int, size: int) -> None:
        self.local, self._group, self._width, self._size = local, group, width, size

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) == 0:
            return x.new_empty(0, self._size)
        y = self.local(x)
        if y.shape[1] < self._width:
            y = torch.nn.functional.pad(y, (0, self._width - y.shape[1]))
        every = self._group.gather(y.contiguous())
        return y if every is None else every[:, : self._size]
