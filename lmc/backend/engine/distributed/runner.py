"""Runners of ranks: rank 0's, which sends each pass before it computes its part, and the others', which compute the
passes they receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmc.backend.engine.device_automata import kernels
from lmc.backend.engine.distributed.passes import Written
from lmc.backend.engine.model_runner import ModelRunner
from lmc.backend.engine.models.llama import LlamaModel
from lmc.backend.engine.sampler import Sampler

if TYPE_CHECKING:
    from lmc.backend.engine.distributed.crew import Crew
    from lmc.backend.engine.distributed.cuda import FollowingCuda
    from lmc.backend.engine.distributed.group import RankGroup
    from lmc.backend.engine.forward_batch import ModelPass
    from lmc.backend.engine.kv_pool import KVPool
    from lmc.backend.engine.models.loader import LoadedModel
    from lmc.backend.engine.runner import Runner


class Leading(ModelRunner):
    """Rank 0's runner, where passes are waited for."""

    def __init__(self, crew: Crew, model: LlamaModel, kv: KVPool, sampler: Sampler, device: str) -> None:
        super().__init__(model, kv, sampler, device)
        self._crew = crew

    def logits(self, work: ModelPass, wanted: list[int]) -> torch.Tensor:
        crew = self._crew
        crew.tell(work, wanted, (), {}, 0)
        crew.waits()
        try:
            return super().logits(work, wanted)
        except BaseException as error:
            raise crew.failed(error) from error
        finally:
            crew.over()

    def close(self) -> None:
        self._crew.close()
        super().close()


class FollowerRunner(ModelRunner):
    """The other ranks' runner."""

    compiled = True

    @torch.inference_mode()
    def follow(self, written: Written) -> None:
        self.logits(written.work, written.wanted)

    def settle(self) -> None:
        pass


def leader(loaded: LoadedModel, pool: KVPool, vocab_size: int, crew: Crew) -> Runner:
    assert isinstance(loaded.model, LlamaModel)
    if not _by_graphs(loaded):
        return Leading(crew, loaded.model, pool, Sampler(vocab_size), str(loaded.device))
    from lmc.backend.engine.distributed.cuda import LeadingCuda

    with torch.cuda.device(loaded.device):
        runner = LeadingCuda(crew, loaded.model, pool, Sampler(vocab_size, kernels()))
        runner.capture()
    return runner


def follower(loaded: LoadedModel, pool: KVPool, group: RankGroup) -> FollowerRunner | FollowingCuda:
    assert isinstance(loaded.model, LlamaModel)
    sampler = Sampler(loaded.config.vocab_size)  # never used
    if not _by_graphs(loaded):
        return FollowerRunner(loaded.model, pool, sampler, str(loaded.device))
    from lmc.backend.engine.distributed.cuda import FollowingCuda

    runner = FollowingCuda(group, loaded.model, pool, sampler)
    runner.capture()
    return runner


def _by_graphs(loaded: LoadedModel) -> bool:
    return loaded.device.type == "cuda" and loaded.dtype.itemsize == 2
