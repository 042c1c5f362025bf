"""Grouped GEMM: each row times the matrix of its group, for all groups in one launch of a grid that does not depend on
the grouping.

    chosen [T, k] ──sorted by expert──► blocks of at most so many rows of one expert each ──► a program a block and columns

The number of blocks is the upper bound; those without rows end at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS, _INNER = 64, 64


class Groups(NamedTuple):
    """Blocks of the rows of a pass, each as often as it chose an expert. int32.

    order    [T·k] choices, sorted by expert
    expert   [blocks];  first, rows: of each block, where in `order` it begins and how many it has, 0 for one that is not needed
    height   rows of a block at most
    """

    order: Tensor
    expert: Tensor
    first: Tensor
    rows: Tensor
    height: int


def groups_of(chosen: Tensor, experts: int) -> Groups:
    """Build from chosen experts [T, k] int64. Shapes depend only on T, k and the number of experts, and nothing is
    synchronized."""
    flat = chosen.flatten()
    height = 16 if len(flat) <= 16 * experts else 64
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add_(0, flat, torch.ones_like(flat))
    blocks = (counts + height - 1) // height
    ends, starts = torch.cumsum(blocks, 0), torch.cumsum(counts, 0) - counts
    at = torch.arange(len(flat) // height + min(experts, len(flat)), device=flat.device)
    expert = torch.searchsorted(ends, at, right=True)
    own = expert.clamp_max(experts - 1)
    within = (at - (ends - blocks)[own]) * height
    rows = torch.where(expert < experts, (counts[own] - within).clamp(0, height), 0)
    return Groups(order.int(), own.int(), (starts[own] + within).int(), rows.int(), height)


def multiply_reference(x: Tensor, w: Tensor, chosen: Tensor, repeat: int, weights: Tensor | None = None) -> Tensor:
    """Compute row i of the result as x[i // repeat] times w[chosen[i]], by its weight if there are any; chosen [M]."""
    found = torch.einsum("mk,mnk->mn", x.float()[torch.arange(len(chosen), device=x.device) // repeat], w.float()[chosen])
    return (found if weights is None else found * weights[:, None]).to(x.dtype)


@triton.jit
def _multiply(
    x, w, out, weights, order, experts, firsts, counts, n, k, REPEAT: tl.constexpr, WEIGHED: tl.constexpr,
    HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    rows = tl.load(counts + block)
    if rows == 0:
        return
    lane = tl.arange(0, HEIGHT)
    there = lane < rows
    choice = tl.load(order + tl.load(firsts + block) + lane, mask=there, other=0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < n
    own = w + tl.load(experts + block).to(tl.int64) * n * k
    total = tl.zeros((HEIGHT, COLUMNS), tl.float32)
    for begin in range(0, k, INNER):
        at = begin + tl.arange(0, INNER)
        a = tl.load(x + (choice // REPEAT)[:, None] * k + at[None, :], mask=there[:, None] & (at < k)[None, :], other=0.0)
        b = tl.load(own + column[None, :].to(tl.int64) * k + at[:, None], mask=inside[None, :] & (at < k)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    if WEIGHED:
        total = total * tl.load(weights + choice, mask=there, other=0.0)[:, None]
    tl.store(out + choice[:, None] * n + column[None, :], total.to(out.dtype.element_ty), mask=there[:, None] & inside[None, :])


def multiply(x: Tensor, w: Tensor, groups: Groups, repeat: int, weights: Tensor | None = None) -> Tensor:
    """Compute `multiply_reference`; x [M // repeat, K], w [experts, N, K], both contiguous, weights [M] float32 → [M,
    N]."""
    n, k = w.shape[1], w.shape[2]
    out = torch.empty(len(groups.order), n, dtype=x.dtype, device=x.device)
    if len(out):
        grid = (len(groups.rows), triton.cdiv(n, _COLUMNS))
        _multiply[grid](
            x, w, out, x if weights is None else weights, groups.order, groups.expert, groups.first, groups.rows, n, k,
            repeat, weights is not None, groups.height, _COLUMNS, _INNER, num_warps=4,  # pyright: ignore[reportCallIssue]
        )  # fmt: skip
    return out
