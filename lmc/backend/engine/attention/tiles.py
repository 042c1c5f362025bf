"""How a pass is cut into pieces for the kernels of kernels/attention.py: whose rows read which slots together.

    a decoding sequence          a narrow tile: its row (or few rows), its slots
    constants, a prompt's chunk  wide tiles: so many of its rows, the slots up to the last of them
    a group with a prefix        wide tiles over the prefix, and each row's own tile behind it

Slots are counted in blocks; each tile's begin a new one, and what is left of its last repeats the tile's last slot. All tiles
of a kind, one behind the other, are cut into shares of nearly one size, for programs of the GPU that then end together
(https://arxiv.org/abs/2301.03598 does so with products of matrices): a share has the end of a tile, some tiles, and the
beginning of one. A tile's part in one share is a *piece*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

PIECE = 8  # int32 of a piece: first row, rows, first block, block behind the last, position of the first slot, part, slots, 0
BLOCK = 64  # slots
NARROW, WIDE = 16, 64  # lanes: rows times the heads of q that share a head of k
_START = 1.0  # what beginning a piece costs, in blocks read meanwhile (measured)


def group_of(num_heads: int, num_kv_heads: int) -> int:
    """Heads of q that share a head of k, as a power of two."""
    return 1 << (num_heads // num_kv_heads - 1).bit_length()


def rows_of(group: int, lanes: int) -> int:
    """Rows of a tile."""
    return max(1, lanes // group)


class Shared(NamedTuple):
    """Rows [first, first + rows) begin with the same slots."""

    first: int
    rows: int
    slots: np.ndarray


@dataclass(frozen=True, slots=True)
class Plan:
    """What the kernels read; int32.

    narrow, wide                [n, PIECE]: the pieces of each kind, share by share; the n-th to give a partial result of its rows
                                has part n, one that gives the result has part -1
    narrow_shares, wide_shares  [shares + 1]: where each share's pieces begin
    indptr                      the partial results of row i are indptr[i] to indptr[i + 1]
    indices                     slots of all blocks
    """

    narrow: np.ndarray
    narrow_shares: np.ndarray
    wide: np.ndarray
    wide_shares: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray


@dataclass(frozen=True, slots=True)
class Tiler:
    """Cuts passes into so many shares of each kind.

    window    tokens that a row sees, its own included; None: all. Then nothing may be shared.
    """

    num_heads: int
    num_kv_heads: int
    shares: int
    window: int | None = None

    def plan(
        self, lengths: np.ndarray, slots: Sequence[np.ndarray], cuts: np.ndarray, shared: Sequence[Shared], rows: int
    ) -> Plan:
        """For spans in row order: `lengths` [S] rows each, the `slots` of their contexts without the first `cuts` [S], which
        their group reads. `rows`: at least all of them."""
        few, many = self._heights
        if self.window is not None:  # a block or two may be too old for a tile's first row; the kernel looks
            cuts = np.maximum(0, np.fromiter(map(len, slots), np.int64, len(slots)) - lengths - self.window + 1)
            slots = [s[cut:] for s, cut in zip(slots, cuts.tolist(), strict=True)]
        own = np.fromiter(map(len, slots), np.int64, len(slots))
        short = lengths <= few
        order = np.argsort(~short, kind="stable")  # narrow tiles lie one behind the other
        runs = [*(slots[i] for i in order), *(s.slots for s in shared)]
        sizes = np.fromiter(map(len, runs), np.int64, len(runs))
        begins = np.empty(len(runs), np.int64)
        blocks = -(-sizes // BLOCK)
        begins[: len(order)][order], begins[len(order) :] = np.split(np.cumsum(blocks) - blocks, [len(order)])
        firsts = np.cumsum(lengths) - lengths
        whole = np.stack((firsts, lengths, begins[: len(own)], own, cuts), 1)
        narrow, wide = whole[short], _sliced(whole[~short], many)
        if self.window is not None:
            wide = _within(wide, self.window)
        for s, begin in zip(shared, begins[len(order) :].tolist(), strict=True):
            wide = np.concatenate((wide, _over(s, begin, many)))
        return self._cut(narrow, wide, rows, _padded(runs, sizes, blocks))

    @property
    def _heights(self) -> tuple[int, int]:
        """Rows of a narrow and of a wide tile."""
        group = group_of(self.num_heads, self.num_kv_heads)
        return rows_of(group, NARROW), rows_of(group, WIDE)

    def most_partials(self, rows: int) -> int:
        """Partial results that a pass of so many rows can have: two a row, and those of tiles that are cut."""
        return 2 * rows + self.shares * sum(self._heights)

    def _cut(self, narrow: np.ndarray, wide: np.ndarray, rows: int, indices: np.ndarray) -> Plan:
        (a, a_shares), (b, b_shares) = _pieces(narrow, self.shares), _pieces(wide, self.shares)
        every = np.concatenate((a, b))
        together = _of_rows(b, rows)  # rows of a prefix's tile have tiles of their own behind it
        of_row = together + _of_rows(a, rows)
        several = of_row > 1
        indptr = np.zeros(rows + 1, np.int32)
        np.cumsum(np.where(several, of_row, 0), out=indptr[1:])
        parts = np.concatenate((_within_tile(a) + together[a[:, 0]], _within_tile(b)))
        every[:, 5] = np.where(several[every[:, 0]], parts, -1)
        found = every.astype(np.int32)
        return Plan(found[: len(a)], a_shares, found[len(a) :], b_shares, indptr, indices)


def _sliced(tiles: np.ndarray, height: int) -> np.ndarray:
    """Tiles [n, 5] of `height` rows each, out of such of whole spans: first row, rows, first block, slots, position of the first
    slot. The rows of a span are the last of its slots."""
    counts = -(-tiles[:, 1] // height)
    found, k = np.repeat(tiles, counts, 0), _counting(counts) * height
    rows = np.minimum(height, found[:, 1] - k)
    found[:, 3] += k + rows - found[:, 1]
    found[:, 0] += k
    found[:, 1] = rows
    return found


def _within(tiles: np.ndarray, window: int) -> np.ndarray:
    """Without the blocks that are too old even for a tile's first row; its rows are the last of its slots."""
    old = np.maximum(0, tiles[:, 3] - tiles[:, 1] - window + 1) // BLOCK
    return tiles + np.outer(old, (0, 0, 1, -BLOCK, BLOCK))


def _over(shared: Shared, begin: int, height: int) -> np.ndarray:
    at = np.arange(0, shared.rows, height)
    rows = np.minimum(height, shared.rows - at)
    begins, sizes = np.full_like(at, begin), np.full_like(at, len(shared.slots))
    return np.stack((shared.first + at, rows, begins, sizes, np.zeros_like(at)), 1)


def _pieces(tiles: np.ndarray, shares: int) -> tuple[np.ndarray, np.ndarray]:
    """The pieces [n, PIECE] of all tiles, without targets, and where each of the shares begins [shares + 1]."""
    blocks = -(-tiles[:, 3] // BLOCK)
    total = int(blocks.sum())
    if total == 0:
        return np.zeros((0, PIECE), np.int64), np.zeros(shares + 1, np.int32)
    ends = np.cumsum(blocks)
    costs = np.arange(1, len(tiles) + 1) * _START + ends  # of all up to a tile's end
    aims = np.arange(1, shares) * (costs[-1] / shares)
    tile = np.searchsorted(costs, aims)
    within = np.ceil(aims - (costs[tile] - blocks[tile])).astype(np.int64)
    cuts = np.unique(np.concatenate((ends - blocks, (ends - blocks)[tile] + np.clip(within, 0, blocks[tile]))))
    if cuts[-1] == total:
        cuts = cuts[:-1]
    of = np.searchsorted(ends, cuts, side="right")
    sizes = np.diff(cuts, append=total)
    inside = cuts - (ends - blocks)[of]
    found = np.zeros((len(cuts), PIECE), np.int64)
    found[:, :2] = tiles[of, :2]
    found[:, 2] = tiles[of, 2] + inside
    found[:, 3] = found[:, 2] + sizes
    found[:, 4] = tiles[of, 4] + inside * BLOCK
    found[:, 6] = np.minimum(sizes * BLOCK, tiles[of, 3] - inside * BLOCK)
    starts = (ends - blocks)[tile] + np.clip(within, 0, blocks[tile])
    return found, np.searchsorted(cuts, np.concatenate(([0], starts, [total]))).astype(np.int32)


def _of_rows(pieces: np.ndarray, rows: int) -> np.ndarray:
    """How many of the pieces each row is in, [rows]."""
    counts = pieces[:, 1]
    return np.bincount(np.repeat(pieces[:, 0], counts) + _counting(counts), minlength=rows)


def _within_tile(pieces: np.ndarray) -> np.ndarray:
    """The how manieth of its tile each piece is; those of one tile lie together and begin with the same row."""
    at = np.arange(len(pieces))
    begins = np.ones(len(pieces), bool)
    begins[1:] = pieces[1:, 0] != pieces[:-1, 0]
    return at - np.maximum.accumulate(np.where(begins, at, 0))


def _padded(runs: Sequence[np.ndarray], sizes: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """The runs one behind the other, each filled up to whole blocks with its last slot."""
    ends = np.cumsum(blocks) * BLOCK
    found = np.empty(int(ends[-1]) if len(ends) else 0, np.int32)
    missing = blocks * BLOCK - sizes
    for run, begin in zip(runs, (ends - blocks * BLOCK).tolist(), strict=True):
        found[begin : begin + len(run)] = run
    found[np.repeat(ends - missing, missing) + _counting(missing)] = np.repeat([run[-1] for run in runs], missing)
    return found


def _counting(counts: np.ndarray) -> np.ndarray:
    """0, 1, … for each of `counts`, one behind the other."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
