"""The runner on a GPU: one transfer a pass, small passes replayed from CUDA graphs, larger ones launched.

    a pass on the host ──one pinned copy──► its stage on the device ──► graph of its bucket ──► logits

A bucket is a number of rows; a pass of T rows takes the next larger one. Rows beyond T compute on token 0, read nothing and
write to the pool's scratch slot. Which rows belong together (decode, constants, prompt chunks, choices) is in the plan and not
in the graph, so that mixed passes replay too; a graph only knows whether there may be rows that read slots together, and whether
there may be rows with adapters.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from lmc.backend.engine.attention.base import PictureRows
from lmc.backend.engine.attention.flashinfer import AttentionShape, PagedAttention, SplitAttention
from lmc.backend.engine.attention.sharing import PassGroups, SharedPrefix
from lmc.backend.engine.attention.tiled import FIXED_PIECE, TiledAttention, put
from lmc.backend.engine.attention.tiles import BLOCK, HEADER, PIECE, Plan, Shared
from lmc.backend.engine.eyes import Eyes
from lmc.backend.engine.forward_batch import ModelPass, Rows
from lmc.backend.engine.gemm_tuning import TunedGemm
from lmc.backend.engine.kernels.fixed import FixedProduct
from lmc.backend.engine.kernels.pieces import Partials, Widened
from lmc.backend.engine.kv_fp8 import Fp8Rows
from lmc.backend.engine.kv_pool import KVPool
from lmc.backend.engine.logprobs import Logprobs
from lmc.backend.engine.model_runner import ModelRunner, adapters_of, index_of, positions_of, read, tokens_of, wanted_rows
from lmc.backend.engine.models.fp8 import Fp8
from lmc.backend.engine.models.fused import Attention, FusedLlama, Inputs
from lmc.backend.engine.models.llama import LlamaModel
from lmc.backend.engine.request import Request
from lmc.backend.engine.runner import Flight, PassOutput
from lmc.backend.engine.sampler import DrawnAhead, Sampler
from lmc.backend.engine.staging import StagingBuffer
from lmc.backend.engine.token_ids import PENDING

log = logging.getLogger("lmc.engine")

_MOST_SAMPLES = 1 << 14
_MOST_INDICES = 1 << 22
_SHARE_FROM = 1 << 15
_WIDENED = 1 << 16  # slots for which there is room at most: 0.27 GB of 8 heads of 128; passes over more attend to KV as it is stored
_MOMENT = 3.0  # seconds that a start may wait for compilers to find nothing to do
_SMALL = (1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 288, 304, 320, 352, 384, 448, 512)
_MIDDLE = (576, 640, 704, 768, 832, 896, 960, 1024)  # in which some rows are of prompts
BUCKETS = (*_SMALL, *_MIDDLE)
BUCKETS_OF_FP8 = (*BUCKETS, *range(1152, 2049, 128), *range(2304, 4097, 256))
"""Of weights and KV in FP8, where a GPU is hardly slower than a slow host launches."""
_IDS, _SLOTS = attrgetter("ids"), attrgetter("slots")


@dataclass(frozen=True)
class _Captured:
    """A captured graph.

    hidden  returns hidden states of so many rows whose logits are wanted, in the order of the staging buffer
    """

    graph: torch.cuda.CUDAGraph
    hidden: Callable[[int], Tensor]


@dataclass(slots=True)
class _Prepared:
    """A staged pass. begun: an event before it, once it has been."""

    work: ModelPass
    captured: _Captured
    begun: torch.cuda.Event | None = None


@dataclass(frozen=True, slots=True)
class _SpanLayout:
    """The spans of a pass in the order of their rows; `cuts`: slots at the beginning of each that its group reads.

    short       number of leading spans that are no longer than a tile
    lengths     rows of each
    contexts    slots of each
    wanted      rows whose logits are wanted, in this order
    adapters    of each row the number of its adapter; None: no row has one
    """

    spans: list[Rows]
    short: int
    lengths: np.ndarray
    contexts: np.ndarray
    cuts: np.ndarray
    wanted: np.ndarray
    shared: tuple[Shared, ...]
    adapters: np.ndarray | None


class CudaRunner(ModelRunner):
    """Runs passes on one GPU. Not thread-safe. A pass may be staged while the one before it runs, once that has
    consumed its own staged data.

    buckets       rows of the passes that are captured, ascending
    share_from    slots that attention must be spared before rows read their prefixes together (measured;
                  docs/performance.md); groups that fit a narrow tile need an eighth of it; None: never
    """

    freed = staticmethod(torch.cuda.empty_cache)
    """Called when the last runner of an engine is gone: what its tensors had goes back to the device."""

    def __init__(self, model: LlamaModel, kv: KVPool, sampler: Sampler, eyes: Eyes | None = None, *, buckets: Sequence[int] | None = None) -> None:
        super().__init__(model, kv, sampler, str(model.device), eyes)
        c, self.buckets = model.config, BUCKETS if buckets is None else buckets
        self.quick_rows = self.buckets[-1]  # the most of a captured pass: others are launched kernel by kernel, in 10 to 20 ms
        fixed = isinstance(model.head, FixedProduct)  # a row's bits must not depend on the rest of its pass
        self._products = None if fixed else TunedGemm.of(model.device, model.dtype)
        self._fused, self._pool = FusedLlama(model, self._products, self._products.mlp) if self._products else FusedLlama(model), kv
        room = None if fixed else _room(model, kv)
        self._tiled = TiledAttention(c.num_heads, c.num_kv_heads, c.head_dim, c.sliding_window, model.device, FIXED_PIECE if fixed else None, room)
        shape = AttentionShape(c.num_heads, c.num_kv_heads, c.head_dim, model.dtype, c.sliding_window)
        self._flash = None if fixed or isinstance(kv.key(0), Fp8Rows) else _flash(shape, model.device)
        most = self.buckets[-1]
        self._stage, self._partials = self._tiled_stage(most, _MOST_INDICES), self._tiled.partials(most)
        self._large: StagingBuffer | None = None  # grows with the passes
        self._graphs: dict[tuple[int, bool, bool], _Captured] = {}
        self._memory = torch.cuda.graph_pool_handle()
        self._staged = torch.cuda.Event()
        self._stream = torch.cuda.current_stream(model.device)  # found once: the device may wait for who records an event
        self._begun = self._mark()  # when the device reads the staged data
        self._sampled = torch.zeros(_MOST_SAMPLES, dtype=torch.int32, device=model.device)  # by the pass launched last
        self._places: dict[Request, int] = {}  # index in it
        self._prepared: _Prepared | None = None
        self.share_from = _SHARE_FROM if c.sliding_window is None and not fixed else None
        self._prefixes = PassGroups()

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture all graphs, some 40 ms each, and compile what sampling needs, so that no pass has to wait for one."""
        if self._products is not None:
            self._products.measure(self._fused.matrices, BUCKETS)
        for rows in self.buckets:
            for wide in (False, True) if rows <= _SMALL[-1] and not self._tiled.only_wide else (True,):
                for adapted in (False, True) if self._fused.adapters is not None else (False,):
                    self._captured(rows, wide=wide, adapted=adapted)
        self._sampler.warm_up(self._fused.logits(self._captured(1, wide=False).hidden(1)))
        if self._flash is not None and not self._flash.wait(_MOMENT):
            log.info("FlashInfer's kernels are compiled for this model, once on this machine (some two minutes); until then our own read long prompts")
        self.settle()

    def attach(self) -> None:
        """Run passes on this thread from now on: its device is the model's. Its stream may be another than that of who made the engine."""
        torch.cuda.set_device(self._fused.device)
        self._stream = torch.cuda.current_stream()

    def settle(self) -> None:
        """Adopt kernels compiled meanwhile; nothing is running."""
        if self._flash is not None:
            self._flash.load()

    def wait_compiled(self) -> None:
        """Wait until all kernels that `settle` will adopt are compiled. From any thread."""
        if (flash := getattr(self, "_flash", None)) is not None:  # not there if the runner has been closed meanwhile
            flash.wait()

    @torch.inference_mode()
    def launch(self, work: ModelPass) -> Flight:
        """Launch a pass, see AheadRunner. Its scores come with it."""
        wanted = wanted_rows(work)
        logits = self.logits(work, wanted)
        index = index_of(wanted)
        scores = self._scores(logits, work, index)
        draws, n = work.draws, len(work.samples)
        self._places = {req: i for i, (_, req) in enumerate(work.samples)}
        drawn = None
        if draws:
            drawn = self._sampler.sample_ahead(logits, [index[row] for row, _ in draws], [req for _, req in draws])
            self._sampled[:n] = drawn.tokens[:n].clamp_min(0)  # any embedding will do
        left = drawn and drawn.leave(), scores and scores.leave()
        return CudaFlight(*left, self._begun, self._mark())

    @torch.inference_mode()
    def prepare(self, work: ModelPass) -> bool:
        """Stage a pass, see EagerRunner: what it is staged over has been read when the device comes to it."""
        layout = _arranged(work, wanted_rows(work), [], self._tiled.many)
        if work.rows > self.buckets[-1] or self._seen(layout.spans) is not None:
            return False
        bucket = self._bucket(work.rows)
        plan = self._plan(layout, len(layout.spans), bucket)
        if not self._fits_graph(plan, bucket):
            return False
        captured, last = self._put(work.rows, layout, plan, bucket)
        self._stage.send(last)
        self._staged.record(self._stream)
        self._prepared = _Prepared(work, captured)
        return True

    @torch.inference_mode()
    def begin(self) -> None:
        assert self._prepared is not None
        self._prepared.begun = self._mark()
        self._prepared.captured.graph.replay()

    def run(self, work: ModelPass) -> PassOutput:
        output = super().run(work)
        self._places = {}
        return output

    def logits(self, work: ModelPass, wanted: list[int]) -> Tensor:
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.begun is not None and prepared.work.computes(work):
            self._begun = prepared.begun
            return self._fused.logits(prepared.captured.hidden(len(wanted)))
        rows = max(work.rows, len(wanted))
        layout = _arranged(work, wanted, self._groups(work), self._tiled.many)
        seen = self._seen(layout.spans)
        if rows <= self.buckets[-1] and seen is None:
            bucket = self._bucket(rows)
            plan = self._plan(layout, len(layout.spans), bucket)
            if self._fits_graph(plan, bucket):
                return self._replay(work.rows, layout, plan, bucket)
        return self._launch(work.rows, layout, rows, seen)

    def _bucket(self, rows: int) -> int:
        return self.buckets[bisect_left(self.buckets, rows)]

    def _mark(self) -> torch.cuda.Event:
        """Return an event behind what has been launched."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _fits_graph(self, plan: Plan, rows: int) -> bool:
        fits = len(plan.indices) <= _MOST_INDICES and plan.wide.size <= self._stage.capacity("wide") and plan.indptr[-1] <= self._partials.capacity
        return fits and (plan.widened is not None) == self._tiled.widens(rows)

    def _plan(self, layout: _SpanLayout, spans: int, rows: int) -> Plan:
        """Return the tile plan of the first `spans`."""
        cuts = layout.cuts[:spans]
        slots = [s.slots[cut:] for s, cut in zip(layout.spans[:spans], cuts.tolist(), strict=True)]
        return self._tiled.plan(layout.lengths[:spans], slots, cuts, layout.shared, rows)

    def _replay(self, known: int, layout: _SpanLayout, plan: Plan, rows: int) -> Tensor:
        captured, last = self._put(known, layout, plan, rows)
        self._send(self._stage, last)
        self._staged.record(self._stream)
        captured.graph.replay()
        return self._fused.logits(captured.hidden(len(layout.wanted)))

    def _put(self, known: int, layout: _SpanLayout, plan: Plan, rows: int) -> tuple[_Captured, int]:
        """Write a pass to the stage; return its graph, and how much of the stage's last part is used."""
        self._staged.synchronize()  # the last staged data is on the device
        wide = len(plan.wide) > 0 or rows > _SMALL[-1]
        captured = self._captured(rows, wide=wide, adapted=layout.adapters is not None)  # if it is not there yet, over the stage
        self._fill(self._stage, layout, known, rows)
        return captured, put(plan, self._stage)

    def _launch(self, known: int, layout: _SpanLayout, rows: int, seen: PictureRows | None) -> Tensor:
        """Launch without a graph, as always with rows of pictures; prompts by FlashInfer if it is installed."""
        self._staged.synchronize()
        spans, flash = len(layout.spans), self._flash
        apart = flash is not None and flash.usable and layout.short < spans
        plan = None if apart else self._plan(layout, spans, rows)
        stage = self._large_stage(rows, 2 * int(layout.contexts.sum()) + BLOCK * (spans + len(layout.shared)), 0 if plan is None else len(plan.wide))
        self._fill(stage, layout, known, rows)
        if plan is None:
            assert flash is not None
            attend = self._apart(flash, stage, layout)
        else:
            self._send(stage, put(plan, stage))
            partials = self._partials_of(rows, int(plan.indptr[-1]))
            attend = self._tiled.over(stage, partials, known, wide=True, widened=plan.widened is not None, beside=False)
        self._staged.record()
        wanted = stage.device("logits", len(layout.wanted))
        adapters = None if layout.adapters is None else stage.device("adapters", known)
        return self._fused.logits(self._fused.hidden(_inputs(stage, known), self._sampled, self._pool, attend, wanted, seen, adapters))

    def _apart(self, flash: PagedAttention, stage: StagingBuffer, layout: _SpanLayout) -> Attention:
        """Attend short spans by tiles, the others by FlashInfer."""
        rows, indices = int(layout.lengths[: layout.short].sum()), 0
        if rows:
            indices = put(self._plan(layout, layout.short, rows), stage)
        pages = _put_pages(layout, stage, indices)
        self._send(stage, indices + pages)
        qo, kv = (stage.host(name, len(layout.spans) - layout.short + 1) for name in ("qo", "kv"))
        long = flash.plan(qo, kv, stage.device("indices", indices + pages)[indices:])
        if not rows:
            return long
        return SplitAttention(rows, self._tiled.over(stage, self._partials_of(rows), rows, wide=True, widened=False, beside=False), long)

    def _send(self, stage: StagingBuffer, last: int) -> None:
        """Send the staged data: the pass begins here, until now the device had nothing of it to do."""
        self._begun = self._mark()
        stage.send(last)

    def _partials_of(self, rows: int, least: int = 0) -> Partials:
        """Return the partials of captured passes if they are large enough: passes end one after the other."""
        return self._partials if rows <= self.buckets[-1] and least <= self._partials.capacity else self._tiled.partials(rows, least)

    def _fill(self, stage: StagingBuffer, layout: _SpanLayout, known: int, rows: int) -> None:
        """Write `known` rows and pad up to `rows`. A pending token is written as its index among the sampled ones
        (kernels/embedding.py). Attention masks by a row's index in its context, which behind pictures is not its position."""
        spans = layout.spans
        ids, positions, in_context, slots = (stage.array(name, rows) for name in ("ids", "positions", "in_context", "slots"))
        if len(spans) == 1 and self._eyes is None:  # as when the device waits
            (one,) = spans
            ids[:known], slots[:known] = one.ids, one.slots[one.position :]
            in_context[:known] = positions[:known] = np.arange(one.position, one.position + known)
        else:
            if self._eyes is None:
                np.concatenate([s.ids for s in spans], out=ids[:known])
            else:
                ids[:known] = tokens_of(spans)
            np.concatenate([s.slots[s.position :] for s in spans], out=slots[:known], casting="same_kind")
            in_context[:known] = np.arange(known) + np.repeat(layout.contexts - layout.lengths.cumsum(), layout.lengths)
            positions[:known] = in_context[:known] if self._eyes is None else positions_of(spans)
        if (places := self._places) and len(pending := (ids[:known] == PENDING).nonzero()[0]):
            ids[pending] = [-1 - places[spans[i].request] for i in layout.lengths.cumsum().searchsorted(pending, side="right").tolist()]
        ids[known:], positions[known:], in_context[known:], slots[known:] = 0, 0, 0, self._pool.scratch
        if layout.adapters is not None:
            adapters = stage.array("adapters", rows)
            adapters[:known], adapters[known:] = layout.adapters, 0
        wanted, logits = layout.wanted, stage.array("logits", rows)
        logits[: len(wanted)], logits[len(wanted) :] = wanted, 0

    def _groups(self, work: ModelPass) -> list[SharedPrefix]:
        if self.share_from is None or sum(map(len, map(_SLOTS, work.spans))) < self.share_from // 8:
            return []
        found = self._prefixes.of(work)
        if sum(group.saves for group in found) >= self.share_from:
            return found
        few = [group for group in found if len(group.spans) <= self._tiled.few]
        return few if sum(group.saves for group in few) >= self.share_from // 8 else []

    def _captured(self, rows: int, *, wide: bool, adapted: bool = False) -> _Captured:
        if (rows, wide, adapted) not in self._graphs:
            self._graphs[rows, wide, adapted] = self._capture(rows, wide, adapted)
        return self._graphs[rows, wide, adapted]

    def _capture(self, rows: int, wide: bool, adapted: bool) -> _Captured:
        """Capture the shape: a pass over the scratch slot in which nothing is attended to. Of long ones, whose prompts want few logits or,
        for `select`, many, what follows the last attention is launched for those rows alone."""
        stage, fused = self._stage, self._fused
        for name, value in (("ids", 0), ("positions", 0), ("in_context", 0), ("slots", self._pool.scratch), ("logits", 0), ("adapters", 0)):
            stage.array(name, rows)[:] = value
        for name in ("narrow_shares", "wide_shares", "indptr"):
            stage.array(name, stage.capacity(name))[:] = 0
        stage.array("indices", HEADER)[:] = 0
        stage.send(HEADER)
        attend = self._tiled.over(stage, self._partials, rows, wide=wide, widened=self._tiled.widens(rows))

        def forward() -> Callable[[int], Tensor]:
            adapters = stage.device("adapters", rows) if adapted else None
            attended = fused.attended(_inputs(stage, rows), self._sampled, self._pool, attend, adapters=adapters)
            if rows > BUCKETS[-1]:
                return lambda wanted: fused.finished(attended, stage.device("logits", wanted))
            hidden = fused.finished(attended).index_select(0, stage.device("logits", rows))
            return lambda wanted: hidden[:wanted]

        side = _side(fused.device)  # kernels are compiled and libraries set up outside the capture
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            forward()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):  # other threads may pin memory
            hidden = forward()
        graph.replay()  # the first launch also copies the graph to the device
        return _Captured(graph, hidden)

    def _tiled_stage(self, rows: int, indices: int, pieces: int = 0) -> StagingBuffer:
        sizes = _of_rows(rows) | dict.fromkeys(("qo", "kv"), rows + 1) | self._tiled.sizes(rows, indices, pieces)
        return StagingBuffer(sizes, self._fused.device)

    def _large_stage(self, rows: int, indices: int, pieces: int) -> StagingBuffer:
        """Return a staging buffer for a pass that is not captured."""
        stage = self._large
        if stage is None or rows > stage.capacity("ids") or indices > stage.capacity("indices") or pieces * PIECE > stage.capacity("wide"):
            stage = self._large = self._tiled_stage(_grown(rows), _grown(indices), _grown(pieces))
        return stage


@dataclass(frozen=True, slots=True)
class CudaFlight:
    """A pass in flight: host memory that the device writes to, and its begin and end."""

    drawn: DrawnAhead | None
    scores: Logprobs | None
    begun: torch.cuda.Event
    ended: torch.cuda.Event

    @property
    def over(self) -> bool:
        return self.ended.query()

    @property
    def seconds(self) -> float:
        return self.begun.elapsed_time(self.ended) / 1e3

    def result(self) -> PassOutput:
        self.ended.synchronize()
        tokens, told = ([], []) if self.drawn is None else self.drawn.read()
        return PassOutput(tokens, told, *read(self.scores))


def buckets_of(model: LlamaModel, kv: KVPool, chunk: int) -> Sequence[int]:
    """Return the rows of passes that are captured on one GPU: all up to `chunk` if no prompt is read by FlashInfer, which plans each pass."""
    every = BUCKETS_OF_FP8 if isinstance(model.layers[0].qkv, Fp8) and isinstance(kv.key(0), Fp8Rows) else BUCKETS
    return every[: max(len(BUCKETS), bisect_left(every, chunk) + 1)]


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """Return one stream for all engines of a device: cuBLAS takes 32 MB for each stream that it has seen, for good."""
    return torch.cuda.Stream(device)


def _of_rows(rows: int) -> dict[str, int]:
    return dict.fromkeys(("ids", "positions", "in_context", "slots", "logits", "adapters"), rows)


def _inputs(stage: StagingBuffer, rows: int) -> Inputs:
    return stage.device("ids", rows), stage.device("positions", rows), stage.device("slots", rows)


def _room(model: LlamaModel, kv: KVPool) -> Widened | None:
    """Return room to widen KV in FP8, if the device has TMA and blocks fit its shared memory."""
    c, stored = model.config, kv.key(0)
    if not isinstance(stored, Fp8Rows) or torch.cuda.get_device_capability(model.device) < (9, 0) or c.head_dim > 128 or model.dtype.itemsize > 2:
        return None
    slots = min(_WIDENED, -(-stored.shape[0] // BLOCK) * BLOCK)
    return Widened.empty(slots, c.num_kv_heads, c.head_dim, model.dtype, model.device)


def _flash(shape: AttentionShape, device: torch.device) -> PagedAttention | None:
    try:
        return PagedAttention(shape, device)
    except ImportError:
        log.info("FlashInfer is not installed: long prompts are read by our own kernels, a few per cent slower")
        return None


def _put_pages(layout: _SpanLayout, stage: StagingBuffer, behind: int) -> int:
    """Write the longer spans in FlashInfer's layout, their slots after so many indices; return how many slots."""
    for name, sizes in (("qo", layout.lengths), ("kv", layout.contexts)):
        ends = np.cumsum(sizes[layout.short :])
        stage.put(name, np.concatenate(((0,), ends)))
    slots = np.concatenate([s.slots for s in layout.spans[layout.short :]])
    stage.array("indices", behind + len(slots))[behind:] = slots
    return len(slots)


def _arranged(work: ModelPass, wanted: list[int], shared: list[SharedPrefix], few: int) -> _SpanLayout:
    """Arrange spans: rows of one group contiguous, the groups first, then other spans of up to `few` rows, then longer
    ones."""
    spans, rows, short = work.spans, np.asarray(wanted, np.int64), len(work.spans)
    if short == 1:  # as when the device waits for an answer with a draft
        (one,) = spans
        lengths, contexts = np.array([len(one.ids)]), np.array([len(one.slots)])
        return _SpanLayout(spans, int(len(one.ids) <= few), lengths, contexts, np.zeros(1, np.int64), rows, (), adapters_of(spans))
    lengths = np.fromiter(map(len, map(_IDS, spans)), np.int64, len(spans))
    cuts = np.zeros(len(spans), np.int64)
    if shared or lengths.max() > few:
        grouped = [i for group in shared for i in group.spans]
        cuts[: len(grouped)] = [group.length for group in shared for _ in group.spans]
        rank = np.where(lengths > few, 2, 1)
        rank[grouped] = 0
        order = np.argsort(rank, kind="stable")
        order[: len(grouped)] = grouped
        begins = lengths.cumsum() - lengths  # by span, in the scheduler's row numbering
        spans, lengths, short = [spans[i] for i in order.tolist()], lengths[order], int((rank < 2).sum())
        moved = np.empty(len(order), np.int64)  # by span, in the new order
        moved[order] = lengths.cumsum() - lengths
        rows = rows + (moved - begins)[begins.searchsorted(rows, side="right") - 1]
    contexts = np.fromiter(map(len, map(_SLOTS, spans)), np.int64, len(spans))
    return _SpanLayout(spans, short, lengths, contexts, cuts, rows, tuple(_read_together(work, shared)), adapters_of(spans))


def _read_together(work: ModelPass, shared: list[SharedPrefix]) -> Iterator[Shared]:
    first = 0
    for group in shared:
        yield Shared(first, len(group.spans), work.spans[group.spans[0]].slots[: group.length])
        first += len(group.spans)


def _grown(n: int) -> int:
    return max(1024, 1 << (n - 1).bit_length())
