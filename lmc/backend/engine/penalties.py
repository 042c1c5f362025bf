"""Penalties on an answer's tokens so far: n × frequency_penalty + presence_penalty off the logit of a token that
occurred n times.

Where passes are launched ahead, each answer's tokens are counted on the device: a pass's samples are counted there
before the host knows them, and tokens that the host knows first (forced tokens, those of passes that were waited for)
are sent with the next pass. So no pass has to be waited for, and none sends more than it adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from lmc.backend.engine.drafted import Drafted, Sampled
from lmc.backend.engine.request import Request
from lmc.backend.engine.token_ids import PENDING
from lmc.backend.engine.transfer import to_device
from lmc.segments import SamplingParams

_LEAST = 8  # answers that there is room for from the start; twice as many each time that there are more


def penalise(logits: torch.Tensor, requests: Sequence[Sampled]) -> None:
    """Penalize the requests' rows of `logits` [N, V] on a CPU, in place; all their tokens are known."""
    for row, req in zip(logits.numpy(), requests, strict=True):
        if is_penalised(p := req.params):
            ids, counts = np.unique(req.ids[req.prompt_len : req.length], return_counts=True)
            row[ids] -= counts.astype(np.float32) * np.float32(p.frequency_penalty) + np.float32(p.presence_penalty)


class Penalised(NamedTuple):
    """Rows of a pass that are penalised.

    at      [n] int64, which of its samples
    counts  [n] int64, where the counts of each begin
    """

    at: torch.Tensor
    counts: torch.Tensor


class Penalties:
    """Penalties of the running answers of one engine. An ended answer's row is reused."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None  # [places, V] float32: exact as far as answers can be long
        self._places: dict[Request, int] = {}
        self._counted: dict[Request, int] = {}  # tokens of the answer, the one that is being sampled included

    def apply(self, logits: torch.Tensor, requests: Sequence[Sampled]) -> Penalised | None:
        """As `penalise`, on the device, where the last token of each may be known to the device alone."""
        at = [i for i, req in enumerate(requests) if is_penalised(req.params)]
        if not at:
            if self._places:
                self._forget()
            return None
        asked, width = [requests[i] for i in at], logits.shape[1]
        counts = self._held([req for req in asked if isinstance(req, Request)], logits)
        places = to_device([self._places[_whole(req)] for req in asked], logits)
        by = np.array([[r.params.frequency_penalty, r.params.presence_penalty] for r in asked], np.float32)
        by = to_device(by, logits)
        less = counts.index_select(0, places)
        self._count_drafts(asked, less)
        once = (less > 0).float().mul_(by[:, 1:])
        less.mul_(by[:, :1]).add_(once)
        rows = to_device(at, logits)
        if len(at) == len(requests):
            logits.sub_(less)
        else:
            logits.index_add_(0, rows, less, alpha=-1)
        return Penalised(rows, places * width)

    def _count_drafts(self, asked: Sequence[Sampled], less: torch.Tensor) -> None:
        """Add to the rows of drafts the tokens there beyond the known ones: [len(asked), V] counts."""
        said = [req.ids[_whole(req).length : req.length] + np.int64(i * less.shape[1]) for i, req in enumerate(asked) if isinstance(req, Drafted)]
        if said:
            where = to_device(np.concatenate(said), less)
            less.view(-1).index_add_(0, where, torch.ones_like(where, dtype=torch.float32))

    def expect(self, rows: Penalised, requests: Sequence[Sampled], tokens: torch.Tensor) -> None:
        """Count the samples of `requests`, [N] int64 on the device; one below 0 ends its answer, whatever is counted.
        Draws after drafts are counted by the host once they are verified."""
        assert self._counts is not None
        own = [req for req in requests if isinstance(req, Request) and is_penalised(req.params)]
        n = len(own)  # samples come before rows of drafts
        said = rows.counts[:n] + tokens[rows.at[:n]].clamp_min(0)
        self._counts.view(-1).index_add_(0, said, torch.ones_like(said, dtype=torch.float32))
        for req in own:
            self._counted[req] += 1

    def _held(self, asked: Sequence[Request], logits: torch.Tensor) -> torch.Tensor:
        """Return the counts of all rows, with those of `asked` as far as the host knows them."""
        new = [req for req in asked if req not in self._places]
        if new:
            self._forget()
            free = sorted(set(range(len(self._places) + len(new))) - set(self._places.values()))
            self._places |= zip(new, free, strict=False)
            self._counted |= dict.fromkeys(new, 0)
        counts = self._roomy(logits)
        if new:
            counts[to_device([self._places[req] for req in new], logits)] = 0.0
        self._count(asked, counts)
        return counts

    def _roomy(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the counts, with room for all rows."""
        counts, least = self._counts, max(self._places.values()) + 1
        if counts is None or least > len(counts):
            grown = logits.new_zeros(max(_LEAST, 1 << (least - 1).bit_length()), logits.shape[1])
            if counts is not None:
                grown[: len(counts)] = counts
            self._counts = counts = grown
        return counts

    def _count(self, asked: Sequence[Request], counts: torch.Tensor) -> None:
        """Count the tokens that became known since the last count."""
        said: list[np.ndarray] = []
        for req in asked:
            start, end = req.prompt_len + self._counted[req], req.length
            assert start <= end, f"request {req.order}: more tokens were counted than sampled"
            if start < end:
                known = req.ids[start:end]
                assert known[-1] != PENDING, "sampled ahead, and not counted there"
                said.append(known + np.int64(self._places[req] * counts.shape[1]))
                self._counted[req] = end - req.prompt_len
        if said:
            where = to_device(np.concatenate(said), counts)
            counts.view(-1).index_add_(0, where, torch.ones_like(where, dtype=torch.float32))

    def _forget(self) -> None:
        """Forget ended answers; and the memory, once no answer is left."""
        for req in [req for req in self._places if req.done]:
            del self._places[req], self._counted[req]
        if not self._places:
            self._counts = None


def _whole(req: Sampled) -> Request:
    return req.request if isinstance(req, Drafted) else req


def is_penalised(p: SamplingParams) -> bool:
    return bool(p.frequency_penalty or p.presence_penalty)
