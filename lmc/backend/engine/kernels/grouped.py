"""Grouped GEMM: each row times the matrix of its group, for all groups in one launch of a grid that does not depend on
the grouping.

    scores [T, E] ──choose──► experts of each row ──group──► blocks of at most so many rows of one expert each
                                                                 ──multiply──► a program a block and columns

The number of blocks is the upper bound; those without rows end at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmc.backend.engine.kernels.dependent_launch import after, launch

_COMPARED = 8192  # choices up to which comparing each with each is faster than sorting them


class Tile(NamedTuple):
    """Of a product: `height` rows × `columns`, `inner` of the shared axis at a time."""

    height: int
    columns: int
    inner: int
    warps: int
    stages: int


_TILES = (  # up to so many rows an expert has on average, the best of 15 on an H200 at Mixtral's shape on one of two ranks
    (8, Tile(16, 64, 256, 4, 3)),
    (24, Tile(32, 128, 64, 4, 4)),
    (160, Tile(64, 128, 64, 4, 4)),
    (None, Tile(128, 256, 64, 8, 3)),
)
_IN_FLOAT32 = ((16, Tile(16, 64, 64, 4, 3)), (None, Tile(64, 64, 64, 4, 3)))  # without tensor cores
_TOGETHER = 16  # blocks whose programs follow each other for each tile of columns: they share it, and all tiles their rows


class Groups(NamedTuple):
    """Blocks of the rows of a pass, each as often as it chose an expert. int32.

    order    [T·k] choices, sorted by expert
    expert   [blocks];  first, rows: of each block, where in `order` it begins and how many it has, 0 for one that is not needed
    tile     of products; its height is the rows of a block at most
    """

    order: Tensor
    expert: Tensor
    first: Tensor
    rows: Tensor
    tile: Tile


# -- the choice of experts ---------------------------------------------------------------------------------------------


@triton.jit
def _choose(scores, weights, chosen, experts, COUNT: tl.constexpr, NORMED: tl.constexpr, EXPERTS: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        after()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, EXPERTS)
    given = tl.load(scores + row * experts + at, mask=at < experts, other=-float("inf")).to(tl.float32)
    known = given < float("inf")  # not NaN, nor what overflowed: such a row goes to experts that exist, with NaN as weights
    score = tl.where(known, tl.maximum(given, -3e38), 0.0)
    lost = tl.sum(tl.where(known, 0.0, float("nan")), 0)
    odds = tl.exp(score - tl.max(score, 0))
    total = tl.sum(odds, 0)
    left, sum_of_chosen = odds, 0.0
    for _ in tl.static_range(COUNT):  # pyright: ignore[reportGeneralTypeIssues]
        best = tl.argmax(left, 0)
        sum_of_chosen += tl.max(left, 0)  # pyright: ignore[reportOperatorIssue]
        left = tl.where(at == best, -1.0, left)
    if NORMED:
        total = sum_of_chosen
    left = odds
    for place in tl.static_range(COUNT):  # pyright: ignore[reportGeneralTypeIssues]
        best = tl.argmax(left, 0)
        tl.store(chosen + row * COUNT + place, best)
        tl.store(weights + row * COUNT + place, tl.max(left, 0) / total + lost)  # pyright: ignore[reportOperatorIssue]
        left = tl.where(at == best, -1.0, left)


def choose(scores: Tensor, count: int, *, normed: bool) -> tuple[Tensor, Tensor]:
    """Compute `routed` of models/experts.py, with experts as int32; of equal scores the first."""
    rows, experts = scores.shape
    weights = torch.empty(rows, count, dtype=torch.float32, device=scores.device)
    chosen = torch.empty(rows, count, dtype=torch.int32, device=scores.device)
    if rows:
        launch(_choose, (rows,), scores.contiguous(), weights, chosen, experts, count, normed, triton.next_power_of_2(experts), warps=1)
    return weights, chosen


# -- blocks of rows ----------------------------------------------------------------------------------------------------


def _tile(choices: int, experts: int, dtype: torch.dtype) -> Tile:
    tiles = _IN_FLOAT32 if dtype == torch.float32 else _TILES
    return next(tile for most, tile in tiles if most is None or choices <= most * experts)


def _blocks(choices: int, experts: int, height: int) -> int:
    return choices // height + min(experts, choices)


def groups_of_reference(chosen: Tensor, experts: int, dtype: torch.dtype, tile: Tile | None = None) -> Groups:
    """Build from chosen experts [T, k], for products of rows of `dtype` by `tile`; None: the best for experts. Shapes depend only
    on T, k and the number of experts, and nothing is synchronized."""
    flat = chosen.flatten().long()
    tile = tile or _tile(len(flat), experts, dtype)
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add_(0, flat, torch.ones_like(flat))
    blocks = (counts + tile.height - 1) // tile.height
    ends, starts = torch.cumsum(blocks, 0), torch.cumsum(counts, 0) - counts
    at = torch.arange(_blocks(len(flat), experts, tile.height), device=flat.device)
    expert = torch.searchsorted(ends, at, right=True)
    own = expert.clamp_max(experts - 1)
    within = (at - (ends - blocks)[own]) * tile.height
    rows = torch.where(expert < experts, (counts[own] - within).clamp(0, tile.height), 0)
    return Groups(order.int(), own.int(), torch.where(rows > 0, starts[own] + within, 0).int(), rows.int(), tile)


@triton.jit
def _group(
    chosen, order, expert, first, rows, n, experts, blocks, HEIGHT: tl.constexpr, EXPERTS: tl.constexpr,
    PLACES: tl.constexpr, OTHERS: tl.constexpr, BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The first programs place PLACES choices each, the later ones describe BLOCKS blocks each."""
    if EARLY:
        after()
    placing = (n + PLACES - 1) // PLACES
    program = tl.program_id(0)
    if program < placing:
        i = program * PLACES + tl.arange(0, PLACES)
        key = tl.load(chosen + i, mask=i < n, other=0) * n + i  # all keys are different, and sorted by expert, then place
        place = tl.zeros((PLACES,), tl.int32)
        for begin in range(0, n, OTHERS):
            j = begin + tl.arange(0, OTHERS)
            other = tl.load(chosen + j, mask=j < n, other=experts) * n + j
            place += tl.sum((other[None, :] < key[:, None]).to(tl.int32), 1)
        tl.store(order + place, i, mask=i < n)
    else:
        counts = tl.zeros((EXPERTS,), tl.int32)
        for begin in range(0, n, OTHERS):
            j = begin + tl.arange(0, OTHERS)
            counts += tl.histogram(tl.load(chosen + j, mask=j < n, other=0), EXPERTS, mask=j < n)
        own_blocks = (counts + HEIGHT - 1) // HEIGHT
        ends, starts = tl.cumsum(own_blocks, 0), tl.cumsum(counts, 0) - counts
        at = (program - placing) * BLOCKS + tl.arange(0, BLOCKS)
        found = tl.sum((ends[None, :] <= at[:, None]).to(tl.int32), 1)
        own = tl.minimum(found, experts - 1)
        is_own = tl.arange(0, EXPERTS)[None, :] == own[:, None]
        before = (at - tl.sum(tl.where(is_own, (ends - own_blocks)[None, :], 0), 1)) * HEIGHT
        left = tl.sum(tl.where(is_own, counts[None, :], 0), 1) - before
        many = tl.where(found < experts, tl.minimum(tl.maximum(left, 0), HEIGHT), 0)
        begins = tl.sum(tl.where(is_own, starts[None, :], 0), 1) + before
        tl.store(expert + at, own, mask=at < blocks)
        tl.store(first + at, tl.where(many > 0, begins, 0), mask=at < blocks)
        tl.store(rows + at, many, mask=at < blocks)


def groups_of(chosen: Tensor, experts: int, dtype: torch.dtype, tile: Tile | None = None) -> Groups:
    """Compute `groups_of_reference`."""
    n = chosen.numel()
    if not 0 < n <= _COMPARED:
        return groups_of_reference(chosen, experts, dtype, tile)
    tile = tile or _tile(n, experts, dtype)
    blocks = _blocks(n, experts, tile.height)
    order, expert, first, rows = torch.empty(n + 3 * blocks, dtype=torch.int32, device=chosen.device).split((n, blocks, blocks, blocks))
    places, others, at_once = 16, 256, 16
    grid = (triton.cdiv(n, places) + triton.cdiv(blocks, at_once),)
    launch(_group, grid, chosen.int().contiguous(), order, expert, first, rows, n, experts, blocks, tile.height,
           triton.next_power_of_2(experts), places, others, at_once, warps=4)  # fmt: skip
    return Groups(order, expert, first, rows, tile)


# -- products ----------------------------------------------------------------------------------------------------------


def multiply_reference(x: Tensor, w: Tensor, chosen: Tensor, repeat: int, weights: Tensor | None = None) -> Tensor:
    """Compute row i of the result as x[i // repeat] times w[chosen[i]], by its weight if there are any; chosen [M]."""
    found = torch.einsum("mk,mnk->mn", x.float()[torch.arange(len(chosen), device=x.device) // repeat], w.float()[chosen.long()])
    return (found if weights is None else found * weights[:, None]).to(x.dtype)


@triton.jit
def _multiply(
    x, w, out, weights, order, experts, firsts, counts, blocks, n, k, REPEAT: tl.constexpr, WEIGHED: tl.constexpr, EVEN: tl.constexpr,
    HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    programs = TOGETHER * tl.cdiv(n, COLUMNS)  # of blocks that go together
    begin = tl.program_id(0) // programs * TOGETHER
    together = tl.minimum(blocks - begin, TOGETHER)
    within = tl.program_id(0) % programs
    block = begin + within % together
    rows = tl.load(counts + block)
    if rows == 0:
        return
    lane = tl.arange(0, HEIGHT)
    there = lane < rows
    choice = tl.load(order + tl.load(firsts + block) + tl.minimum(lane, rows - 1))  # lanes without a row compute the last one, too
    column = within // together * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < n
    at = tl.arange(0, INNER)
    a = x + (choice // REPEAT).to(tl.int64)[:, None] * k + at[None, :]
    b = w + tl.load(experts + block).to(tl.int64) * n * k + (tl.minimum(column, n - 1)[None, :] * k + at[:, None])
    total = tl.zeros((HEIGHT, COLUMNS), tl.float32)
    for left in range(k, 0, -INNER):
        if EVEN:
            total = tl.dot(tl.load(a), tl.load(b), total, input_precision="ieee")
        else:
            total = tl.dot(tl.load(a, mask=at[None, :] < left, other=0.0), tl.load(b, mask=at[:, None] < left, other=0.0), total, input_precision="ieee")
        a += INNER
        b += INNER
    choice = choice.to(tl.int64)
    if WEIGHED:
        total = total * tl.load(weights + choice)[:, None]
    tl.store(out + choice[:, None] * n + column[None, :], total.to(out.dtype.element_ty), mask=there[:, None] & inside[None, :])


def multiply(x: Tensor, w: Tensor, groups: Groups, repeat: int, weights: Tensor | None = None) -> Tensor:
    """Compute `multiply_reference`; x [M // repeat, K], w [experts, N, K], both contiguous, a matrix of fewer than 2³¹
    numbers, weights [M] float32 → [M, N]."""
    (_, n, k), tile = w.shape, groups.tile
    out = torch.empty(len(groups.order), n, dtype=x.dtype, device=x.device)
    if len(out):
        blocks = len(groups.rows)
        _multiply[(blocks * triton.cdiv(n, tile.columns),)](
            x, w, out, x if weights is None else weights, groups.order, groups.expert, groups.first, groups.rows, blocks, n, k,
            repeat, weights is not None, k % tile.inner == 0, tile.height, tile.columns, tile.inner, _TOGETHER,
            num_warps=tile.warps, num_stages=tile.stages,  # pyright: ignore[reportCallIssue]
        )  # fmt: skip
    return out
