"""The runner on a GPU: one transfer a pass, small passes replayed from CUDA graphs, larger ones launched.

    a pass on the host ──one pinned copy──► header and slots on the device ──► graph of its bucket ──► logits

A bucket is a number of rows; a pass of T rows takes the next larger one. Rows beyond T compute on token 0 and write to
the pool's scratch slot; sequences beyond the pass's have no rows. Which rows belong together (decode, constants, prompt
chunks, choices) is in the plan and not in the graph, so that mixed passes replay too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lmc.backend.engine.attention.flashinfer import CapturedAttention, PagedAttention, Shape
from lmc.backend.engine.attention.sharing import Group, groups
from lmc.backend.engine.engine import PassOutput
from lmc.backend.engine.kv_pool import KVPool
from lmc.backend.engine.model_runner import ModelRunner, wanted_rows
from lmc.backend.engine.models.fused import FusedLlama, Inputs
from lmc.backend.engine.models.llama import LlamaModel
from lmc.backend.engine.request import PENDING, Request, Top
from lmc.backend.engine.sampler import Sampler
from lmc.backend.engine.scheduler import Pass, Rows

_MOST_SAMPLES = 1 << 14
_SHARE_FROM = 1 << 16
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)

IDS, POSITIONS, SLOTS, QO, KV, LOGITS = range(6)  # the parts of a stage


class Stage:
    """A pass's integers, int32, at fixed places: host memory that the GPU reads fast, and its copy on the device.

    [ ids | positions | slots | qo_indptr | kv_indptr | logit rows | kv indices … ]
      rows  rows        rows    rows + 1    rows + 1    rows         grows
    """

    def __init__(self, rows: int, indices: int, device: torch.device) -> None:
        ends = np.cumsum([rows, rows, rows, rows + 1, rows + 1, rows])
        self._begins = (0, *ends[:-1].tolist())
        self.header, self.rows = int(ends[-1]), rows
        self.host = torch.empty(self.header + indices, dtype=torch.int32, pin_memory=True)
        self.array = self.host.numpy()
        self.device = torch.empty(self.header + indices, dtype=torch.int32, device=device)

    @property
    def capacity(self) -> int:
        """How many kv indices it can hold."""
        return len(self.array) - self.header

    def part(self, index: int, length: int) -> slice:
        begin = self._begins[index]
        return slice(begin, begin + length)

    def rows_of(self, rows: int) -> Inputs:
        """ids, positions and slots of the first `rows` rows, on the device."""
        return (
            self.device[self.part(IDS, rows)],
            self.device[self.part(POSITIONS, rows)],
            self.device[self.part(SLOTS, rows)],
        )

    def send(self, indices: int) -> None:
        """To the device, in stream order; the host side may be written again once the pass has been waited for."""
        n = self.header + indices
        self.device[:n].copy_(self.host[:n], non_blocking=True)


@dataclass(frozen=True)
class _Captured:
    """A graph for `rows` rows, what it reads its lengths from, and what it leaves: hidden states of the logit rows.

    prefix    what groups of rows share, where the graph has attention in two parts
    """

    rows: int
    graph: torch.cuda.CUDAGraph
    attention: CapturedAttention
    prefix: CapturedAttention | None
    hidden: Tensor  # [rows, hidden_size], in the order of the stage's logit rows

    @property
    def most_groups(self) -> int:
        return _most_groups(self.rows)


def _most_groups(rows: int) -> int:
    return max(1, rows // 8)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The spans of a pass in the order of their rows; `cuts`: slots at the beginning of each that its group reads."""

    spans: list[Rows]
    cuts: np.ndarray  # [spans]
    wanted: np.ndarray  # rows whose logits are wanted, in this order


class CudaRunner(ModelRunner):
    """Runs passes on one GPU. Not thread-safe. A pass may be staged while the one before it runs, once that has taken
    what was staged for it.

    share_from    slots that attention must be spared before it runs in two parts (measured; docs/performance.md)
    """

    def __init__(self, model: LlamaModel, kv: KVPool, sampler: Sampler) -> None:
        super().__init__(model, kv, sampler, str(model.device))
        c = model.config
        self._fused, self._pool = FusedLlama(model), kv
        shape = Shape(c.num_heads, c.num_kv_heads, c.head_dim, model.dtype, c.sliding_window)
        self._attention = PagedAttention(shape, model.device)
        self._stage = Stage(BUCKETS[-1], 1 << 22, model.device)
        self._large = Stage(BUCKETS[-1], 1, model.device)  # grows with the passes
        self._graphs: dict[tuple[int, bool], _Captured] = {}
        self._memory = torch.cuda.graph_pool_handle()
        self._staged = torch.cuda.Event()
        self._sampled = torch.zeros(_MOST_SAMPLES, dtype=torch.int32, device=model.device)  # by the pass launched last
        self._places: dict[Request, int] = {}  # where in it
        self._prefixes = Stage(BUCKETS[-1], 1 << 20, model.device)
        self.share_from = _SHARE_FROM if c.sliding_window is None else None

    def prepare(self) -> None:
        """Captures every bucket, the largest first so that the others use its memory; else each on its first use."""
        for rows in reversed(BUCKETS):
            self._captured(rows, shared=False)

    @torch.inference_mode()
    def launch(self, work: Pass) -> Landing:
        """See AheadRunner. Scores come with it."""
        wanted, index = wanted_rows(work)
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        logits = self.logits(work, wanted)
        scores, tops = self._scores(logits, work, index)
        requests = [req for _, req in work.samples]
        self._places = {req: i for i, req in enumerate(requests)}
        tokens = None
        if requests:
            tokens = self._sampler.sample_ahead(logits, [index[row] for row, _ in work.samples], requests)
            self._sampled[: len(requests)] = tokens
        landing = Landing(_to_host(tokens), _to_host(scores), tops, len(requests), begun, ended)
        ended.record()
        return landing

    def run(self, work: Pass) -> PassOutput:
        output = super().run(work)
        self._places = {}
        return output

    def logits(self, work: Pass, wanted: list[int]) -> Tensor:
        self._staged.synchronize()  # what was staged last, ours and FlashInfer's, is on the device
        contexts = sum(len(s.slots) for s in work.spans)
        if max(work.rows, len(wanted)) > BUCKETS[-1] or contexts > self._stage.capacity:
            return self._launch(work, wanted, contexts)
        return self._replay(work, wanted, contexts)

    def _replay(self, work: Pass, wanted: list[int], contexts: int) -> Tensor:
        rows = next(b for b in BUCKETS if b >= max(work.rows, len(wanted)))
        shared = self._groups(work, rows)
        captured = self._captured(rows, shared=bool(shared))
        stage, layout = self._stage, _arranged(work, wanted, shared)
        contexts = _fill(stage, layout, work.rows, rows, self._pool.scratch, self._places)
        stage.send(contexts)
        _plan(captured.attention, stage, rows)
        if captured.prefix is not None:
            self._prefixes.send(_fill_prefixes(self._prefixes, work, shared, rows))
            _plan(captured.prefix, self._prefixes, _most_groups(rows) + 1)
        self._staged.record()
        captured.graph.replay()
        return self._fused.logits(captured.hidden[: len(wanted)])

    def _groups(self, work: Pass, rows: int) -> list[Group]:
        if self.share_from is None or sum(len(s.slots) for s in work.spans) < self.share_from:
            return []
        found = groups(work.spans, _most_groups(rows))
        fits = sum(group.length for group in found) <= self._prefixes.capacity
        return found if fits and sum(group.saves for group in found) >= self.share_from else []

    def _launch(self, work: Pass, wanted: list[int], contexts: int) -> Tensor:
        sequences = len(work.spans)
        rows = max(work.rows, sequences, len(wanted))
        if rows > self._large.rows or contexts > self._large.capacity:
            self._large = Stage(_grown(rows), _grown(contexts), self._fused.device)
        stage = self._large
        _fill(stage, _arranged(work, wanted, []), work.rows, sequences, self._pool.scratch, self._places)
        stage.send(contexts)
        host, on_device = stage.host, stage.device
        attend = self._attention.plan(
            host[stage.part(QO, sequences + 1)],
            host[stage.part(KV, sequences + 1)],
            on_device[stage.header : stage.header + contexts],
        )
        self._staged.record()
        hidden = self._fused.hidden(stage.rows_of(work.rows), self._sampled, self._pool, attend)
        return self._fused.logits(hidden.index_select(0, on_device[stage.part(LOGITS, len(wanted))]))

    def _captured(self, rows: int, *, shared: bool) -> _Captured:
        if (rows, shared) not in self._graphs:
            self._graphs[rows, shared] = self._capture(rows, shared)
        return self._graphs[rows, shared]

    def _capture(self, rows: int, shared: bool) -> _Captured:
        """What is captured is the shape: a pass of one-row sequences over the scratch slot, or of one group of them."""
        stage = self._stage
        array = stage.array
        for index, value in ((IDS, 0), (POSITIONS, 0), (SLOTS, self._pool.scratch), (LOGITS, 0)):
            array[stage.part(index, rows)] = value
        for index in (QO, KV):
            array[stage.part(index, rows + 1)] = np.arange(rows + 1)
        array[stage.header : stage.header + rows] = self._pool.scratch
        stage.send(rows)
        attention = self._capturable(stage, rows, causal=True)
        _plan(attention, stage, rows)
        attend, prefix = attention.attend, None
        if shared:
            stage, sequences = self._prefixes, _most_groups(rows) + 1
            stage.array[stage.part(QO, sequences + 1)] = [0, *([rows] * sequences)]
            stage.array[stage.part(KV, sequences + 1)] = [0, *([1] * sequences)]
            stage.array[stage.header] = self._pool.scratch
            stage.send(1)
            prefix = self._capturable(stage, sequences, causal=False)
            _plan(prefix, stage, sequences)
            attend = self._attention.shared(prefix, attention)

        def forward() -> Tensor:
            hidden = self._fused.hidden(self._stage.rows_of(rows), self._sampled, self._pool, attend)
            return hidden.index_select(0, self._stage.device[self._stage.part(LOGITS, rows)])

        side = torch.cuda.Stream()  # kernels are compiled and libraries set up outside the capture
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            forward()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            hidden = forward()
        return _Captured(rows, graph, attention, prefix, hidden)

    def _capturable(self, stage: Stage, sequences: int, *, causal: bool) -> CapturedAttention:
        qo, kv = stage.device[stage.part(QO, sequences + 1)], stage.device[stage.part(KV, sequences + 1)]
        return self._attention.captured(qo, kv, stage.device[stage.header :], causal=causal)


@dataclass(frozen=True, slots=True)
class Landing:
    """A pass in flight: host memory that the device writes to, and when it begins and ends."""

    tokens: Tensor | None
    scores: Tensor | None
    tops: list[Top]
    samples: int
    begun: torch.cuda.Event
    ended: torch.cuda.Event

    def land(self) -> tuple[PassOutput, float]:
        self.ended.synchronize()
        tokens = [] if self.tokens is None else self.tokens.tolist()
        scores = [] if self.scores is None else self.scores.tolist()
        return PassOutput(tokens, [None] * self.samples, scores, self.tops), self.begun.elapsed_time(self.ended) / 1e3


def _to_host(found: Tensor | None) -> Tensor | None:
    if found is None:
        return None
    host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    return host.copy_(found, non_blocking=True)


def _plan(attention: CapturedAttention, stage: Stage, sequences: int) -> None:
    qo, kv = stage.host[stage.part(QO, sequences + 1)], stage.host[stage.part(KV, sequences + 1)]
    attention.plan(qo, kv, stage.device[stage.header : stage.header + int(kv[-1])])


def _arranged(work: Pass, wanted: list[int], shared: list[Group]) -> _Layout:
    """Rows of one group lie side by side, the groups first."""
    rows = np.asarray(wanted, np.int64)
    cuts = np.zeros(len(work.spans), np.int64)
    if not shared:
        return _Layout(work.spans, cuts, rows)
    grouped = [i for group in shared for i in group.spans]
    order = [*grouped, *sorted(set(range(len(work.spans))) - set(grouped))]
    lengths = np.fromiter((len(s.ids) for s in work.spans), np.int64, len(work.spans))
    begins = np.cumsum(lengths) - lengths  # of each span, as the scheduler numbers rows
    moved = np.empty(len(order), np.int64)  # of each span, as they lie now
    moved[order] = np.cumsum(lengths[order]) - lengths[order]
    owner = np.searchsorted(begins, rows, side="right") - 1
    cuts[: len(grouped)] = np.repeat([group.length for group in shared], [len(group.spans) for group in shared])
    return _Layout([work.spans[i] for i in order], cuts, rows + (moved - begins)[owner])


def _fill(stage: Stage, layout: _Layout, rows: int, sequences: int, scratch: int, places: dict[Request, int]) -> int:
    """Writes a pass of `rows` rows for `sequences` sequences and at least as many rows, of which those beyond the pass's
    own are empty; returns the number of kv indices. A pending token is written as its place among the sampled ones
    (kernels/embedding.py)."""
    array, spans, cuts = stage.array, layout.spans, layout.cuts
    to = max(rows, sequences)
    ids, positions, slots = (array[stage.part(index, to)] for index in (IDS, POSITIONS, SLOTS))
    qo, kv = (array[stage.part(index, sequences + 1)] for index in (QO, KV))
    lengths = np.fromiter((len(s.ids) for s in spans), np.int64, len(spans))
    contexts = np.fromiter((len(s.slots) for s in spans), np.int64, len(spans))
    np.concatenate([s.ids for s in spans], out=ids[:rows], casting="same_kind")
    np.concatenate([s.slots[s.position :] for s in spans], out=slots[:rows], casting="same_kind")
    ends = np.cumsum(lengths)
    if places:
        for span, end in zip(spans, ends, strict=True):
            if span.ids[-1] == PENDING:  # only a sequence's last token can be
                ids[end - 1] = -1 - places[span.request]
    positions[:rows] = np.arange(rows) + np.repeat(contexts - ends, lengths)
    ids[rows:], positions[rows:], slots[rows:] = 0, 0, scratch
    own = np.cumsum(contexts - cuts)
    total = int(own[-1])
    qo[0] = kv[0] = 0
    qo[1 : len(spans) + 1], kv[1 : len(spans) + 1] = ends, own
    qo[len(spans) + 1 :], kv[len(spans) + 1 :] = rows, total
    wanted = layout.wanted
    logits = array[stage.part(LOGITS, max(len(wanted), to))]
    logits[: len(wanted)], logits[len(wanted) :] = wanted, 0
    kept = [s.slots[cut:] for s, cut in zip(spans, cuts.tolist(), strict=True)]
    np.concatenate(kept, out=array[stage.header : stage.header + total], casting="same_kind")
    return total


def _fill_prefixes(stage: Stage, work: Pass, shared: list[Group], rows: int) -> int:
    """Writes what the groups share, a sequence a group; one more has all other rows, and no slots."""
    sequences = _most_groups(rows) + 1
    qo, kv = (stage.array[stage.part(index, sequences + 1)] for index in (QO, KV))
    lengths = np.cumsum([group.length for group in shared])
    qo[0] = kv[0] = 0
    qo[1 : len(shared) + 1], kv[1 : len(shared) + 1] = np.cumsum([len(group.spans) for group in shared]), lengths
    qo[len(shared) + 1 :], kv[len(shared) + 1 :] = rows, lengths[-1]
    prefixes = [work.spans[group.spans[0]].slots[: group.length] for group in shared]
    total = int(lengths[-1])
    np.concatenate(prefixes, out=stage.array[stage.header : stage.header + total], casting="same_kind")
    return total


def _grown(n: int) -> int:
    return max(1024, 1 << (n - 1).bit_length())
