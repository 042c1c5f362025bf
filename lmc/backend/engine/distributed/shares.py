"""Sharding of a model: heads by their groups, columns of the MLP, rows of the vocabulary; and the slices of weights.

9 heads of q, 3 of k and v, 2 ranks      q 0–5, kv 0–1 │ q 6–8, kv 2          whole groups, as evenly as they go
9 heads of q, 3 of k and v, 4 ranks      q 0–1, kv 0 │ q 2, kv 0 │ q 3–5, kv 1 │ q 6–8, kv 2      more ranks than kv heads: these are copied
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from lmc.backend.engine.models.config import ModelConfig
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.backend.engine.models.adapters import Factors

_UNIT = 128  # columns of the MLP that stay together where that is possible: tiles of matrix units


@dataclass(frozen=True, slots=True)
class RankShard:
    """The part of one of several ranks. Ranges are of the whole model.

    heads, kv_heads  consecutive; each of its heads of k and v is read by equally many of its heads of q
    inner            columns of the MLP, or of each expert's
    vocabulary       rows of the head; `width`: of the longest such range
    """

    rank: int
    ranks: int
    whole: ModelConfig
    heads: range
    kv_heads: range
    inner: range
    vocabulary: range
    width: int

    @property
    def config(self) -> ModelConfig:
        """Return the config of the part, as a model of its own. A bias that is added once is rank 0's."""
        c = self.whole
        inner = {"expert_size": len(self.inner)} if c.num_experts else {"intermediate_size": len(self.inner)}
        return replace(
            c, num_heads=len(self.heads), num_kv_heads=len(self.kv_heads), o_bias=c.o_bias and self.rank == 0, head_rows=len(self.vocabulary), **inner
        )


def shares(config: ModelConfig, ranks: int) -> tuple[RankShard, ...]:
    """Return the shares of all ranks. Raises ModelLoadError if the model has not enough parts."""
    inner = config.expert_size or config.intermediate_size
    if ranks > min(config.num_heads, inner, config.vocab_size):
        raise ModelLoadError(
            f"tp={ranks}: the model has {config.num_heads} attention heads, and a rank needs at least one; tp may be {config.num_heads} at most"
        )
    unit = _UNIT
    while inner % unit or inner // unit < ranks:
        unit //= 2
    columns = [range(part.start * unit, part.stop * unit) for part in evenly(inner // unit, ranks)]
    width = -(-config.vocab_size // ranks)
    words = [range(min(i * width, config.vocab_size), min((i + 1) * width, config.vocab_size)) for i in range(ranks)]
    return tuple(
        RankShard(rank, ranks, config, heads, kv_heads, columns[rank], words[rank], width)
        for rank, (heads, kv_heads) in enumerate(_heads(config.num_heads, config.num_kv_heads, ranks))
    )


def evenly(total: int, parts: int) -> list[range]:
    """Return consecutive ranges of nearly one size, the larger ones first."""
    size, more = divmod(total, parts)
    ends = [i * size + min(i, more) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(ends)]


def _heads(heads: int, kv_heads: int, ranks: int) -> Iterator[tuple[range, range]]:
    group = heads // kv_heads
    if ranks <= kv_heads:
        for kv in evenly(kv_heads, ranks):
            yield range(kv.start * group, kv.stop * group), kv
        return
    for kv, sharing in enumerate(evenly(ranks, kv_heads)):
        for part in evenly(group, len(sharing)):
            yield range(kv * group + part.start, kv * group + part.stop), range(kv, kv + 1)


# -- slices of weights -----------------------------------------------------------------------------------------------------


class Slices(Mapping[str, "Tensor"]):
    """Weights under transformers' names, of which a rank's slices are read. Unused parts of a mapped file are not
    read."""

    def __init__(self, state: Mapping[str, Tensor], share: RankShard, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._state, self._share, self._shapes = state, share, shapes

    def __getitem__(self, name: str) -> Tensor:
        found, wanted = self._state[name], self._shapes.get(name)
        if wanted is not None and tuple(found.shape) != wanted:
            raise ModelLoadError(
                f"the weights' {name!r} is {list(found.shape)}, and the model's configuration says {list(wanted)}; do both belong to the same model?"
            )
        *_, kind, part = ("", *name.split("."))
        return _sliced(found, kind, part, self._share)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def _sliced(found: Tensor, kind: str, part: str, share: RankShard) -> Tensor:
    """Return the slice of a `part` of one of transformers' matrices: its weight, its bias, or scales, one for all or one for each row."""
    size = share.whole.head_dim
    rows = {
        "q_proj": _times(share.heads, size), "k_proj": _times(share.kv_heads, size), "v_proj": _times(share.kv_heads, size),
        "gate_proj": share.inner, "up_proj": share.inner, "w1": share.inner, "w3": share.inner, "lm_head": share.vocabulary,
    }.get(kind)  # fmt: skip
    columns = {"o_proj": _times(share.heads, size), "down_proj": share.inner, "w2": share.inner}.get(kind)
    if rows is not None and found.numel() > 1:
        return found[rows.start : rows.stop]
    if columns is not None and part == "weight":
        return found[:, columns.start : columns.stop]
    return found


def _times(part: range, by: int) -> range:
    return range(part.start * by, part.stop * by)


def sliced_fused(weights: Mapping[str, Tensor], share: RankShard) -> dict[str, Tensor]:
    """Return a rank's slices of weights in the layout of models/llama.py."""
    return {name: part for name, tensor in weights.items() if (part := _of_fused(name, tensor, share)) is not None}


def _of_fused(name: str, found: Tensor, share: RankShard) -> Tensor | None:
    import torch

    c, kind = share.whole, name.split(".")[-2] if name.count(".") > 1 else name
    if kind == "qkv":
        q, kv = _times(share.heads, c.head_dim), _times(share.kv_heads, c.head_dim)
        k, v = c.q_size, c.q_size + c.kv_size
        return torch.cat((found[q.start : q.stop], found[k + kv.start : k + kv.stop], found[v + kv.start : v + kv.stop]))
    if kind == "o":
        heads = _times(share.heads, c.head_dim)
        return found[:, heads.start : heads.stop] if found.dim() == 2 else found if share.rank == 0 else None
    if kind in ("gate_up", "experts_gate_up"):  # [2·I, in], or [experts, 2·I, in]
        gate, up = found.chunk(2, -2)
        return torch.cat((gate[..., share.inner.start : share.inner.stop, :], up[..., share.inner.start : share.inner.stop, :]), -2)
    if kind in ("down", "experts_down"):
        return found[..., share.inner.start : share.inner.stop]
    return found[share.vocabulary.start : share.vocabulary.stop] if kind == "head" else found


def sliced_factors(factors: Factors, matrix: str, share: RankShard) -> Factors:
    """Return a rank's part of an adapter's factors of a merged matrix: the rows of B that belong to its outputs; or, where the matrix is sharded by
    columns, the columns of A, whose products with B are summed over ranks."""
    if matrix in ("o", "down"):
        own = _times(share.heads, share.whole.head_dim) if matrix == "o" else share.inner
        return factors._replace(down=factors.down[:, own.start : own.stop].contiguous())
    from lmc.backend.engine.models.adapters import AdaptedRows

    c = share.whole  # below, by the first row of a part in the whole: the first in this rank's matrix, and which of the part's
    if matrix == "qkv":
        q, kv = _times(share.heads, c.head_dim), _times(share.kv_heads, c.head_dim)
        rows = {0: (0, q), c.q_size: (len(q), kv), c.q_size + c.kv_size: (len(q) + len(kv), kv)}
    else:
        rows = {0: (0, share.inner), c.intermediate_size: (len(share.inner), share.inner)}
    parts = ((rows[part.first], part.up) for part in factors.parts)
    return factors._replace(parts=tuple(AdaptedRows(first, up[own.start : own.stop]) for (first, own), up in parts))
