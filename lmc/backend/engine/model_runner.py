"""The runner: turns the scheduler's pass into tensors, runs the model, and returns tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from lmc.backend.engine.attention.base import CausalModel, ForwardBatch, PictureRows, Span
from lmc.backend.engine.eyes import Eyes
from lmc.backend.engine.kv_pool import KVPool
from lmc.backend.engine.logprobs import Logprobs, logprobs
from lmc.backend.engine.memory import trim
from lmc.backend.engine.prompt_pictures import Laid, positions, within
from lmc.backend.engine.runner import PassOutput
from lmc.backend.engine.sampler import Sampler
from lmc.backend.engine.token_ids import PICTURE, Top
from lmc.backend.engine.transfer import to_device

if TYPE_CHECKING:
    from lmc.backend.engine.forward_batch import ModelPass, Rows


class ModelRunner:
    """Runs passes on one device. Not thread-safe."""

    freed = staticmethod(trim)
    """Called when the last runner of an engine is gone: what its tensors had goes back to the system."""

    def __init__(self, model: CausalModel, kv: KVPool, sampler: Sampler, device: str = "cpu", eyes: Eyes | None = None) -> None:
        self._model, self._kv, self._sampler, self._device, self._eyes = model, kv, sampler, device, eyes

    def close(self) -> None:
        """Drop all that passes compute with: it is the runner's own, and gone even if a graph, a cycle or a late caller refers to the runner."""
        if self._eyes is not None:
            self._eyes.drop_tower()
        vars(self).clear()

    @torch.inference_mode()
    def run(self, work: ModelPass) -> PassOutput:
        wanted = wanted_rows(work)
        logits, index = self.logits(work, wanted), index_of(wanted)
        scores = self._scores(logits, work, index)
        draws = work.draws
        tokens, told = self._sampler.sample(logits, [index[row] for row, _ in draws], [req for _, req in draws])
        return PassOutput(tokens, told, *read(scores))

    def _scores(self, logits: torch.Tensor, work: ModelPass, index: dict[int, int]) -> Logprobs | None:
        """Return the scores of the pass; on the device."""
        if not work.scores:
            return None
        tokens = to_device([s.token for s in work.scores], logits)
        return logprobs(logits, [index[s.row] for s in work.scores], tokens, [s.top for s in work.scores])

    def logits(self, work: ModelPass, wanted: list[int]) -> torch.Tensor:
        """Return logits of the rows `wanted`, [len(wanted), vocab] float32."""
        return self._model.forward(self._batch(work, wanted), self._kv)

    def _batch(self, work: ModelPass, wanted: list[int]) -> ForwardBatch:
        ids = tokens_of(work.spans)
        out_slots = np.concatenate([s.slots[s.position :] for s in work.spans])
        spans: list[Span] = []
        start = 0
        for s in work.spans:
            spans.append(Span(start, len(s.ids), self._tensor(s.slots), s.is_far, mutual_of(s)))
            start += len(s.ids)
        return ForwardBatch(
            token_ids=self._tensor(ids.astype(np.int64)),
            positions=self._tensor(positions_of(work.spans)),
            out_slots=self._tensor(out_slots),
            spans=tuple(spans),
            logit_rows=self._tensor(np.asarray(wanted, dtype=np.int64)),
            seen=self._seen(work.spans),
            adapters=None if (adapters := adapters_of(work.spans)) is None else self._tensor(adapters),
        )

    def _seen(self, spans: Sequence[Rows]) -> PictureRows | None:
        """Return rows of pictures, and their features; the tower runs now, if needed."""
        if self._eyes is None:
            return None
        found: list[tuple[Laid, int, int, int]] = []  # with the row of the pass of its first
        start = 0
        for s in spans:
            if s.branch is None and s.request.pictures and s.request.pictures[-1].end > s.position:
                end = s.position + len(s.ids)
                found += [(at, first, last, start + row) for at, first, last, row in within(s.request.pictures, s.position, end)]
            start += len(s.ids)
        if not found:
            return None
        features = self._eyes.features(at.picture for at, *_ in found)
        rows = np.concatenate([np.arange(row, row + last - first) for _, first, last, row in found])
        first, *deeper = torch.cat([features[at.picture.number][first:last] for at, first, last, _ in found]).split(self._eyes.sight.width, -1)
        return PictureRows(to_device(rows, first), first, tuple(deeper), self._axes(found, first))

    @staticmethod
    def _axes(found: Sequence[tuple[Laid, int, int, int]], like: torch.Tensor) -> torch.Tensor | None:
        """Return positions on three axes, if the model has them."""
        axes = [at.position + shown.axes[:, first:last] for at, first, last, _ in found if (shown := at.picture.shown).axes is not None]
        return to_device(np.concatenate(axes, 1), like) if axes else None

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def tokens_of(spans: Sequence[Rows]) -> np.ndarray:
    """Return ids of the rows, [rows] int32; 0 for a picture's features."""
    ids = np.concatenate([s.ids for s in spans])
    ids[ids >= PICTURE] = 0
    return ids


def adapters_of(spans: Sequence[Rows]) -> np.ndarray | None:
    """Of each row the number of its adapter, int64; None where no row has one."""
    numbers = [s.request.adapter for s in spans]
    return np.repeat(np.asarray(numbers, np.int64), [len(s.ids) for s in spans]) if any(numbers) else None


def positions_of(spans: Sequence[Rows]) -> np.ndarray:
    """Return positions of the rows, int64; of choices that do not see the prompt, as if there were none."""
    lengths = np.fromiter((len(s.ids) for s in spans), np.int64, len(spans))
    starts = np.cumsum(lengths) - lengths
    found = np.arange(lengths.sum()) + np.repeat(np.fromiter((s.position for s in spans), np.int64, len(spans)) - starts, lengths)
    for s, start in zip(spans, starts.tolist(), strict=True):
        pictures = s.request.pictures
        if not pictures or (s.branch is not None and not s.request.trie.prompt_length(s.branch)):
            continue
        rows, last = slice(start, start + len(s.ids)), pictures[-1]
        if last.end > s.position:
            found[rows] = positions(pictures, s.position, s.position + len(s.ids))
        elif last.lift:
            found[rows] += last.lift
    return found


def mutual_of(rows: Rows) -> tuple[tuple[int, int], ...]:
    """Return begin and end in their sequence of pictures with rows here whose tokens see each other."""
    if rows.branch is not None or not rows.request.pictures:
        return ()
    found = within(rows.request.pictures, rows.position, rows.position + len(rows.ids))
    return tuple((at.start, at.end) for at, *_ in found if at.picture.shown.mutual)


def wanted_rows(work: ModelPass) -> list[int]:
    """Return the rows whose logits are wanted, in order."""
    return sorted({*work.drawn_rows, *(s.row for s in work.scores)})


def index_of(wanted: Sequence[int]) -> dict[int, int]:
    """Return the index of each row among those wanted."""
    return {row: i for i, row in enumerate(wanted)}


def read(scores: Logprobs | None) -> tuple[list[float], list[Top]]:
    """Read a pass's scores, and the likeliest tokens beside each."""
    found = [] if scores is None else scores.read()
    return [score for score, _ in found], [top for _, top in found]
