"""Mixtures of experts: each token goes through a few of a layer's MLPs, chosen by a router, and their results are
weighted and added.

Here in torch, expert by expert, which is the reference; on a GPU as grouped GEMM (kernels/grouped.py), whose shapes do
not depend on the routing, so that graphs can capture it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.linear import Dense, Linear, half_packed


def routed(scores: Tensor, count: int, *, normed: bool) -> tuple[Tensor, Tensor]:
    """Return the experts of each row and their weights, [T, count] float32 and int64, by the router's `scores` [T,
    experts]."""
    weights, chosen = torch.topk(torch.softmax(scores.float(), -1), count, dim=-1)
    return weights / weights.sum(-1, keepdim=True) if normed else weights, chosen


class Experts:
    """x [T, hidden_size] → the same.

    gate_up, down  by expert
    stacked        the same as they are stored, [experts, 2·I, in] and [experts, out, I]; None where they were packed
    """

    def __init__(
        self, router: Linear, gate_up: Sequence[Linear], down: Sequence[Linear], per_token: int, normed: bool, stacked: tuple[Tensor, Tensor] | None
    ) -> None:
        self.router, self.gate_up, self.down, self.stacked = router, gate_up, down, stacked
        self.per_token, self.normed = per_token, normed

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return routed(self.router(x), self.per_token, normed=self.normed)

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in chosen.unique().tolist():
            rows, which = torch.where(chosen == expert)
            gate, up = self.gate_up[expert](x[rows]).chunk(2, -1)
            y = self.down[expert](F.silu(gate) * up)
            out.index_add_(0, rows, y.float() * weights[rows, which, None])
        return out.to(x.dtype)


def experts_of(fused: Mapping[str, Tensor], layer: str, config: ModelConfig, *, pack_half: bool) -> Experts:
    """Return the experts of a layer, from fused weights; `pack_half`: see linear.py."""
    router, gate_up, down = (fused[f"{layer}{name}.weight"] for name in ("router", "experts_gate_up", "experts_down"))
    kept = half_packed if pack_half else Dense
    own = Dense(router.float()) if pack_half else Dense(router)  # small, and its choices should not depend on the storage dtype
    stacked = None if pack_half else (gate_up, down)
    return Experts(own, [kept(w) for w in gate_up], [kept(w) for w in down], config.experts_per_token, config.normed_experts, stacked)


class GroupedExperts:
    """The same by kernels, without reading the routing on the host."""

    def __init__(self, experts: Linear) -> None:
        assert isinstance(experts, Experts) and experts.stacked is not None
        self._experts, (self._gate_up, self._down) = experts, experts.stacked

    def __call__(self, x: Tensor) -> Tensor:
        from lmc.backend.engine.kernels.activation import silu_mul
        from lmc.backend.engine.kernels.grouped import choose, groups_of, multiply

        count = self._experts.per_token
        weights, chosen = choose(self._experts.router(x), count, normed=self._experts.normed)
        groups = groups_of(chosen, len(self._gate_up), x.dtype)
        hidden = silu_mul(multiply(x, self._gate_up, groups, count))
        return multiply(hidden, self._down, groups, 1, weights.flatten()).unflatten(0, (-1, count)).sum(1)
