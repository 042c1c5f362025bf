"""A KV store and a greedy loop for tests of models: no scheduler, no radix tree, one sequence per call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lmc.backend.engine.attention.base import ForwardBatch, Span
from lmc.backend.engine.models.loader import LoadedModel


class PlainKV:
    """One tensor per layer and side, [num_slots, num_kv_heads, head_dim]."""

    def __init__(self, loaded: LoadedModel, slots: int) -> None:
        c = loaded.config
        shape = (c.num_layers, slots, c.num_kv_heads, c.head_dim)
        self.keys = torch.zeros(shape, dtype=loaded.dtype)
        self.values = torch.zeros(shape, dtype=loaded.dtype)

    def key(self, layer: int) -> torch.Tensor:
        return self.keys[layer]

    def value(self, layer: int) -> torch.Tensor:
        return self.values[layer]


def batch(*rows: tuple[Sequence[int], Sequence[int]], logits: Sequence[int] | None = None) -> ForwardBatch:
    """A pass over (new ids, slots of the whole context) pairs; logits of each span's last row unless told."""
    ids, positions, out, spans, last = [], [], [], [], []
    for new, slots in rows:
        spans.append(Span(len(ids), len(new), torch.as_tensor(slots)))
        ids += new
        out += list(slots)[len(slots) - len(new) :]
        positions += range(len(slots) - len(new), len(slots))
        last.append(len(ids) - 1)
    wanted = last if logits is None else list(logits)
    ids, positions, out, wanted = (torch.tensor(x, dtype=torch.int64) for x in (ids, positions, out, wanted))
    return ForwardBatch(ids, positions, out, tuple(spans), wanted)


def all_logits(loaded: LoadedModel, ids: Sequence[int]) -> torch.Tensor:
    """Logits after every token of `ids`, in one pass."""
    kv = PlainKV(loaded, len(ids))
    return loaded.model.forward(batch((list(ids), range(len(ids))), logits=range(len(ids))), kv)


def greedy(loaded: LoadedModel, ids: Sequence[int], count: int) -> list[int]:
    """`count` tokens by argmax after `ids`."""
    kv, seen, new, found = PlainKV(loaded, len(ids) + count), 0, list(ids), []
    for _ in range(count):
        seen += len(new)
        new = [int(loaded.model.forward(batch((new, range(seen))), kv)[0].argmax())]
        found += new
    return found
