"""The scheduler's state machine over a model on two ranks: each pass gives what it gives on one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")

from lmc.backend.engine.distributed.passes import parts_of, put, read  # noqa: E402
from lmc.backend.engine.distributed.runner import FollowerRunner, Leading  # noqa: E402
from lmc.backend.engine.kv_pool import KVPool  # noqa: E402
from lmc.backend.engine.model_runner import ModelRunner  # noqa: E402
from lmc.backend.engine.models.loader import load  # noqa: E402
from lmc.backend.engine.runner import PassOutput  # noqa: E402
from lmc.backend.engine.sampler import Sampler  # noqa: E402
from lmc.backend.engine.token_ids import BROKEN  # noqa: E402
from tests.backend.engine.model_fixtures import greedy  # noqa: E402
from tests.backend.engine.test_distributed import UNEVEN, together  # noqa: E402
from tests.backend.engine.test_models import FAMILIES, saved  # noqa: E402, F401
from tests.backend.engine.test_scheduler import Anything  # noqa: E402
from tests.backend.engine_fakes import EOS, VOCAB, FakeRunner, FakeWords  # noqa: E402

WORDS = FakeWords()


class Crew:
    """Rank 0's view of the other, which is a thread here: a pass crosses as it does between processes."""

    def __init__(self, follower: FollowerRunner, thread: ThreadPoolExecutor) -> None:
        self._follower, self._thread = follower, thread

    def tell(self, *what: Any) -> None:
        parts = parts_of(*what)
        put(parts, room := np.empty(sum(map(len, parts)), np.int32))
        self._there = self._thread.submit(self._follower.follow, read(room))

    def waits(self) -> None: ...

    def over(self) -> None:
        self._there.result(20)


class TwoRanks(FakeRunner):
    """Looks at what slots should hold as a FakeRunner does, and computes each pass on two ranks and on one process."""

    models: Any = None  # the fixture's

    def __init__(self, num_slots: int, eos: int = EOS) -> None:
        super().__init__(num_slots, eos)

        def of(loaded: Any) -> tuple[Any, KVPool, Sampler, str]:
            return loaded.model, KVPool.of(loaded.layers, num_slots, loaded.kv_dtype), Sampler(VOCAB), "cpu"

        first, second = self.models.ranks
        self.ranks = Leading(Crew(FollowerRunner(*of(second)), self.models.thread), *of(first))  # type: ignore[arg-type]
        self.alone = ModelRunner(*of(self.models.alone))

    def run(self, work: Any) -> PassOutput:
        super().run(work)
        ours, its = self.ranks.run(work), self.alone.run(work)
        assert ours.tokens == its.tokens
        assert ours.scores == pytest.approx(its.scores, abs=1e-3)
        assert [said and said.logprob for said in ours.logprobs] == pytest.approx([said and said.logprob for said in its.logprobs], abs=1e-3)
        tokens = [BROKEN if req.order in self.broken else token for token, (_, req) in zip(ours.tokens, work.draws, strict=True)]
        return PassOutput(tokens, ours.logprobs, ours.scores, ours.tops)


class AnythingOnRanks(Anything):
    runs = TwoRanks

    def expected(self, whole: str, n: int) -> str:
        ids, pieces = greedy(TwoRanks.models.alone, WORDS.encode((whole,)), n), WORDS.detokenizer()
        said = [*takewhile(lambda token: token != EOS, ids)]
        return "".join(pieces.push_all(said)) + (pieces.flush() if len(said) < len(ids) else "")  # cut by length: without half a character


@pytest.fixture(scope="module")
def models(saved, tmp_path_factory):  # noqa: F811
    """A model whose heads do not divide."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
        kind, extra = FAMILIES["llama"]
        patch.setitem(FAMILIES, "llama", (kind, extra | UNEVEN | {"vocab_size": VOCAB}))
        folder, meeting = str(saved("llama")[0]), str(tmp_path_factory.mktemp("meeting") / "store")

        def one(group):
            loaded = load(folder, dtype="float32", group=group)
            group.connect(torch.distributed.FileStore(meeting, 2), torch.device("cpu"))
            return loaded

        patch.setattr(TwoRanks, "models", SimpleNamespace(ranks=together(2, one), alone=load(folder, dtype="float32"), thread=thread))
        yield


AnythingOnRanks.TestCase.settings = settings(
    max_examples=3, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), stateful_step_count=30
)
TestAnythingOnRanks = pytest.mark.usefixtures("models")(AnythingOnRanks.TestCase)
