"""Sharding of a model: heads by their groups, columns of the MLP, rows of the vocabulary; and the slices of weights.

9 heads of q, 3 of k and v, 2 ranks      q 0–5, kv 0–1 │ q 6–8, kv 2          whole groups, as evenly as they go
9 heads of q, 3 of k and v, 4 ranks      q 0–1, kv 0 │ q 2, kv 0 │ q 3–5, kv 1 │ q 6–8, kv 2      more ranks than kv heads: these are copied
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.layout import MATRICES, size, sizes
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    from torch import Tensor

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

    def part(self, axis: str) -> range | None:
        """Return its part of an axis (models/layout.py); None if each rank has all of it."""
        size = self.whole.head_dim
        q, kv = (range(heads.start * size, heads.stop * size) for heads in (self.heads, self.kv_heads))
        return {"q": q, "kv": kv, "inner": self.inner, "vocabulary": self.vocabulary}.get(axis)

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
    inner = size(config, "inner")
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
        *_, matrix, kind = ("", *name.split("."))
        return _sliced(found, matrix, kind, self._share)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


_AXES = {
    **{part.name.rpartition(".")[2]: (part.rows, part.columns) for parts in MATRICES.values() for part in parts},
    "w1": ("inner", "width"), "w3": ("inner", "width"), "w2": ("width", "inner"), "lm_head": ("vocabulary", "width"),
}  # fmt: skip
"""Of each matrix by the last part of transformers' name."""


def _sliced(found: Tensor, name: str, kind: str, share: RankShard) -> Tensor:
    """Return the slice of a matrix's weight, its bias, or scales, one for all or one for each row."""
    axes = _AXES.get(name, ())
    return sliced(found, axes if kind == "weight" else axes[:1], share)


def sliced(found: Tensor, axes: Sequence[str], share: RankShard) -> Tensor:
    """Return a rank's slice of what has these axes, one for each dimension; of a single number, that."""
    for dim, axis in enumerate(axes):
        if (own := share.part(axis)) is not None and found.numel() > 1:
            found = found[(slice(None),) * dim + (slice(own.start, own.stop),)]
    return found


def sliced_fused(weights: Mapping[str, Tensor], share: RankShard) -> dict[str, Tensor]:
    """Return a rank's slices of weights in the layout of models/llama.py, without experts."""
    return {name: part for name, tensor in weights.items() if (part := _of_fused(name, tensor, share)) is not None}


def _of_fused(name: str, found: Tensor, share: RankShard) -> Tensor | None:
    import torch

    *_, matrix, kind = ("", "", *name.split("."))
    if (matrix, kind) == ("o", "bias") and share.rank:
        return None  # it is added once
    if name == "head":
        return _sliced(found, "lm_head", "weight", share)
    if matrix not in MATRICES:
        return found
    rows, _ = sizes(share.whole, matrix)
    parts = zip(found.split(rows), MATRICES[matrix], strict=True)
    return torch.cat([_sliced(rows, part.name.rpartition(".")[2], kind, share) for rows, part in parts])
