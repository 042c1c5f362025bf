"""The runners of ranks on GPUs: the same graphs on every rank, with NCCL's sums captured in them.

Ranks must run the same operations on their devices, in the same order: all plan each pass by the same rules from the
same spans, all graphs are captured before the first pass, and rank 0's draws are sent after each pass, on the devices.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lmc.backend.engine.attention.sharing import SharedPrefix as Sharing
from lmc.backend.engine.cuda_runner import BUCKETS, CudaFlight, CudaRunner
from lmc.backend.engine.distributed.peer_memory import most_rows
from lmc.backend.engine.runner import PassOutput
from lmc.backend.engine.sampler import Sampler

if TYPE_CHECKING:
    from lmc.backend.engine.distributed.crew import Crew
    from lmc.backend.engine.distributed.group import RankGroup
    from lmc.backend.engine.distributed.passes import Written
    from lmc.backend.engine.forward_batch import ModelPass
    from lmc.backend.engine.kv_pool import KVPool
    from lmc.backend.engine.models.llama import LlamaModel

_LOOK = 20e-6  # seconds between polls of a pass in flight, for the loop; the system adds some 50
_LAUNCHING = 1.4e-3  # seconds in which a slow host launches a layer kernel by kernel, the sums of ranks among them (docs/several-gpus.md)
_RATE = 4.5e14  # floating-point operations of matrices in a second of a whole pass of an H200
_MOST = 3072  # rows of a captured pass


def buckets(ranks: int, columns: int) -> tuple[int, ...]:
    """Return the rows of captured passes: more than on one device, up to where launching a pass takes the host less time than each
    rank's part takes its GPU. The same on all ranks. columns: of the model's hidden states."""
    layer = 2 * 13 * columns**2 / ranks  # operations of a row: a Llama's matrices have some 13 times as many numbers as columns squared
    most = min(_MOST, int(_LAUNCHING * _RATE / layer))
    return (*BUCKETS, *range(BUCKETS[-1] + 128, most + 1, 128))


class _Ranked(CudaRunner):
    """Common part of all ranks."""

    def __init__(self, group: RankGroup, model: LlamaModel, kv: KVPool, sampler: Sampler) -> None:
        super().__init__(model, kv, sampler, buckets=buckets(group.ranks, model.config.hidden_size))
        self._group = group
        self._sharing: list[Sharing] = []  # of the beginning pass, as determined by rank 0
        columns = model.config.hidden_size  # sums of larger passes are NCCL's
        group.share_memory(most_rows(group.ranks, columns), columns, model.device)

    @property
    def compiled(self) -> bool:
        """Return whether the kernels that `settle` adopts are compiled."""
        return self._flash is None or self._flash.wait(0.0)

    def _groups(self, work: ModelPass) -> list[Sharing]:
        return self._sharing

    prepare = None  # pyright: ignore[reportAssignmentType]  (the others begin a pass when rank 0 has planned it, so none is foreseen)


class LeadingCuda(_Ranked):
    """Rank 0's runner. See AheadRunner."""

    def __init__(self, crew: Crew, model: LlamaModel, kv: KVPool, sampler: Sampler) -> None:
        super().__init__(crew.group, model, kv, sampler)
        self._crew, self._samples, self._settled = crew, 0, False

    @torch.inference_mode()
    def launch(self, work: ModelPass) -> WatchedPass:
        self._samples = len(work.samples)
        try:
            flight = super().launch(work)
            assert isinstance(flight, CudaFlight)
            if self._samples:
                self._group.from_root(self._sampled[: self._samples])
        finally:
            self._samples = 0
        return WatchedPass(flight.drawn, flight.scores, flight.begun, flight.ended, self._crew)

    def logits(self, work: ModelPass, wanted: list[int]) -> torch.Tensor:
        self._sharing = CudaRunner._groups(self, work)
        self._crew.tell(work, wanted, self._sharing, self._places, self._samples)
        try:
            return super().logits(work, wanted)
        except BaseException as error:
            raise self._crew.failed(error) from error

    def settle(self) -> None:
        """Adopt kernels once they are compiled on all ranks, which then do so before the same pass: the slowest one is waited for."""
        if not self._settled and self.compiled and self._crew.compiled:
            self._settled = True
            self._crew.settle()
            super().settle()

    def wait_compiled(self) -> None:
        crew = self._crew
        super().wait_compiled()
        crew.wait_compiled()

    def close(self) -> None:
        self._crew.close()
        super().close()


@dataclass(frozen=True, slots=True)
class WatchedPass(CudaFlight):
    """A pass in flight that others compute, too: it is polled, since one that hangs in a graph would never report."""

    crew: Crew

    def result(self) -> PassOutput:
        self.crew.waits()
        while not self.ended.query():
            self.crew.check()
            time.sleep(_LOOK)
        self.crew.over()
        return CudaFlight.result(self)


class FollowingCuda(_Ranked):
    """The other ranks' runner."""

    @torch.inference_mode()
    def follow(self, written: Written) -> None:
        self._sharing = written.groups
        self.logits(written.work, written.wanted)
        if written.samples:
            self._group.from_root(self._sampled[: written.samples])
