"""Tiling of a pass into pieces for the kernels of kernels/attention.py: which rows read which slots together.

    a decoding sequence          a narrow tile: its row (or few rows), its slots
    constants, a prompt's chunk  wide tiles: so many of its rows, the slots up to the last of them
    a group with a prefix        tiles over the prefix, a narrow one if it has room, and each row's own tile after it

Slots are counted in blocks; each tile begins a new one, and the rest of its last one repeats the tile's last slot. All
tiles of a kind, one after the other, are cut into shares of nearly one size, for programs of the GPU that then end
together (https://arxiv.org/abs/2301.03598 does so with products of matrices): a share has the end of a tile, some
tiles, and the beginning of one. A tile's part in one share is a *piece*.

Where a row's bits must not depend on the rest of the pass, all tiles are wide, and pieces begin at positions that are multiples of one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

PIECE = 8  # int32 of a piece: first row, rows, first block, block after the last, position of the first slot, part, slots, 0
BLOCK = 64  # slots
NARROW, WIDE = 16, 64  # lanes: rows times the heads of q that share a head of k
HEADER = 2  # of indices: how many blocks are widened, and where they begin
_FEW_TILES = 16  # of passes whose cut is kept
_EACH = 1  # blocks that a program reads of a lone span's narrow tiles at most, about (measured)
_STEP = 4  # blocks of a lone span's slots are counted in: what is behind them is masked
_NO_TILES, _NO_SLOTS = np.empty((0, 5), np.int64), np.empty(0, np.int32)
_START = 1.0  # cost of beginning a piece, in blocks read meanwhile (measured)


def group_of(num_heads: int, num_kv_heads: int) -> int:
    """Return the heads of q that share a head of k, as a power of two."""
    return 1 << (num_heads // num_kv_heads - 1).bit_length()


def rows_of(group: int, lanes: int) -> int:
    """Return the rows of a tile."""
    return max(1, lanes // group)


class Shared(NamedTuple):
    """Rows [first, first + rows) begin with the same slots."""

    first: int
    rows: int
    slots: np.ndarray


class Plan(NamedTuple):
    """Input of the kernels; int32.

    narrow, wide                [n, PIECE]: the pieces of each kind, share by share; the n-th partial
                                result of its rows has part n, a final one has -1
    narrow_shares, wide_shares  [shares + 1]: where each share's pieces begin
    indptr                      the partial results of row i are indptr[i] to indptr[i + 1]
    indices                     slots of all blocks; if wide tiles read what was widened, before them how many blocks are, the first one's place
                                among all, and for each block of wide tiles which of them it is
    widened                     how many are; None: wide tiles read KV as it is stored
    """

    narrow: np.ndarray
    narrow_shares: np.ndarray
    wide: np.ndarray
    wide_shares: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    widened: int | None = None


@dataclass(frozen=True, slots=True)
class Tiler:
    """Cuts passes into a given number of shares.

    shares    of the narrow tiles; wide_shares: of the wide ones, None: as many
    window    tokens that a row sees, its own included; None: all. With a window, nothing may be shared.
    piece     blocks of a piece, which then begins at a multiple of them, of wide tiles alone; None: as many as make shares equal. With it, nothing may be
              shared, and there is no window
    """

    num_heads: int
    num_kv_heads: int
    shares: int
    window: int | None = None
    wide_shares: int | None = None
    piece: int | None = None

    def plan(
        self, lengths: np.ndarray, slots: Sequence[np.ndarray], cuts: np.ndarray, shared: Sequence[Shared], rows: int, *, widen: bool = False,
    ) -> Plan:  # fmt: skip
        """Plan spans in row order: `lengths` [S] rows each, the `slots` of their contexts without the first `cuts` [S],
        which their group reads. `rows`: at least all of them. `widen`: wide tiles read what was widened (kernels/widened.py)."""
        if len(slots) == 1 and not (shared or widen) and self.window is None and self.piece is None:
            return self._plan_of_one(int(lengths[0]), slots[0], int(cuts[0]), rows)
        few, many = self.few, self.many
        if self.window is not None:  # a block or two may be too old for a tile's first row; the kernel checks
            cuts = np.maximum(0, np.fromiter(map(len, slots), np.int64, len(slots)) - lengths - self.window + 1)
            slots = [s[cut:] for s, cut in zip(slots, cuts.tolist(), strict=True)]
        own = np.fromiter(map(len, slots), np.int64, len(slots))
        short = lengths <= (few if self.piece is None else 0)
        alone = int(short.sum())
        low = [s for s in shared if s.rows <= few]
        high = [s for s in shared if s.rows > few]
        whole = np.empty((len(slots), 5), np.int64)
        whole[:, 0], whole[:, 1], whole[:, 3], whole[:, 4] = lengths.cumsum() - lengths, lengths, own, cuts
        if alone < len(slots):
            order = np.argsort(~short, kind="stable")
            whole, slots = whole[order], [slots[i] for i in order.tolist()]
        runs = [*slots[:alone], *(s.slots for s in low), *slots[alone:], *(s.slots for s in high)]  # those of narrow tiles are contiguous
        sizes = np.fromiter(map(len, runs), np.int64, len(runs))
        blocks = -(-sizes // BLOCK)
        begins, behind = blocks.cumsum() - blocks, alone + len(low)
        indices, widened = _widened(runs, sizes, blocks, behind) if widen else (_padded(runs, sizes, blocks), None)
        if widen:
            before = int(blocks[:behind].sum())
            begins[:behind] += indices[1] - before
            begins[behind:] += HEADER - before
        low_at, high_at = begins[alone:behind], begins[len(slots) + len(low) :]
        whole[:alone, 2], whole[alone:, 2] = begins[:alone], begins[behind : len(slots) + len(low)]
        narrow, wide = whole[:alone], _sliced(whole[alone:], many)
        if self.window is not None:
            wide = _within(wide, self.window)
        if low:
            narrow = np.concatenate((narrow, _over(low, low_at, few)))
        if high:
            wide = np.concatenate((wide, _over(high, high_at, many)))
        return self._cut(narrow, wide, alone, rows, indices, widened)

    def _plan_of_one(self, length: int, slots: np.ndarray, cut: int, rows: int) -> Plan:
        """Plan a single span: while an answer with a draft is planned, the device waits."""
        own = len(slots)
        blocks = -(-own // BLOCK)
        if length > 1 and rows <= BLOCK and (found := _lone(self, rows, (more := -(-blocks // _STEP) * _STEP), cut)) is not None:
            blocks = more
        else:
            height = self.few if length <= self.few else self.many
            tiles = np.array([(k, min(height, length - k), 0, own - length + min(k + height, length), cut) for k in range(0, length, height)], np.int64)
            narrow, wide = (tiles, _NO_TILES) if height == self.few else (_NO_TILES, tiles)
            found = self._cut(narrow, wide, len(narrow), rows, _NO_SLOTS, None)
        indices = np.empty(blocks * BLOCK, np.int32)
        indices[:own], indices[own:] = slots, slots[-1]
        return found._replace(indices=indices)

    def has_narrow(self, rows: int, blocks: int) -> bool:
        """Return whether a single span of few rows has narrow tiles. Each of these reads all of its blocks of slots, which takes less than a kernel for
        wide ones beside them while no program has many."""
        return rows <= self.few or -(-rows // self.few) * blocks <= _EACH * self.shares

    def lone(self, rows: int, blocks: int, cut: int) -> Plan | None:
        """Return the plan, without slots, of a single span of few rows and so many blocks of slots: pieces of as many blocks each, a share for each
        piece; None if there are fewer shares than tiles."""
        is_narrow = self.has_narrow(rows, blocks)
        height, shares, others = (self.few, self.shares, self.shares_of_wide) if is_narrow else (self.many, self.shares_of_wide, self.shares)
        tiles = -(-rows // height)
        if tiles > shares:
            return None
        size = -(-blocks // (shares // tiles))
        parts = -(-blocks // size)
        first, begins = np.arange(0, rows, height).repeat(parts), np.tile(np.arange(0, blocks, size), tiles)
        pieces = np.zeros((tiles * parts, PIECE), np.int32)
        pieces[:, 0], pieces[:, 1] = first, np.minimum(height, rows - first)
        pieces[:, 2], pieces[:, 3] = begins, np.minimum(begins + size, blocks)
        pieces[:, 4], pieces[:, 5] = begins * BLOCK + cut, begins // size if parts > 1 else -1
        pieces[:, 6] = (pieces[:, 3] - pieces[:, 2]) * BLOCK
        indptr = np.arange(rows + 1, dtype=np.int32) * (parts if parts > 1 else 0)
        filled, none = np.minimum(np.arange(shares + 1, dtype=np.int32), len(pieces)), np.zeros(others + 1, np.int32)
        if is_narrow:
            return Plan(pieces, filled, pieces[:0], none, indptr, _NO_SLOTS)
        return Plan(pieces[:0], none, pieces, filled, indptr, _NO_SLOTS)

    @property
    def few(self) -> int:
        """Return the rows of a narrow tile."""
        return rows_of(group_of(self.num_heads, self.num_kv_heads), NARROW)

    @property
    def many(self) -> int:
        """Return the rows of a wide tile."""
        return rows_of(group_of(self.num_heads, self.num_kv_heads), WIDE)

    @property
    def shares_of_wide(self) -> int:
        return self.wide_shares or self.shares

    def most_partials(self, rows: int) -> int:
        """Return the most partial results of a pass of so many rows: two a row, and those of tiles that are cut. Of pieces of one length there
        may be more."""
        return (2 if self.piece is None else 4) * rows + self.shares * self.few + self.shares_of_wide * self.many

    def _cut(self, narrow: np.ndarray, wide: np.ndarray, alone: int, rows: int, indices: np.ndarray, widened: int | None) -> Plan:
        """Cut tiles into pieces. `alone`: the leading narrow tiles, which are over no prefix."""
        full = [_filled(tiles) for tiles in (narrow, wide)]
        found = _alike if len(narrow) + len(wide) <= _FEW_TILES else _alike.__wrapped__
        cut = found(self, full[0].tobytes(), full[1].tobytes(), alone, rows)
        lacking = np.concatenate((full[0][:, 3] - narrow[:, 3], full[1][:, 3] - wide[:, 3]))
        pieces = cut.pieces.copy()
        pieces[cut.ends, 6] -= lacking[cut.ended]
        n = cut.narrow
        return Plan(pieces[:n], cut.narrow_shares, pieces[n:], cut.wide_shares, cut.indptr, indices, widened)

    def cut_full(self, narrow: np.ndarray, wide: np.ndarray, alone: int, rows: int) -> _Cut:
        """Cut tiles whose blocks are full."""
        (a, a_tiles, a_shares), (b, b_tiles, b_shares) = _pieces(narrow, self.shares), self._wide_pieces(wide)
        every = np.concatenate((a, b))
        own = int(a_tiles.searchsorted(alone))  # pieces of rows' own tiles; those over prefixes are behind them
        together = _of_rows(every[own:], rows)  # such rows have tiles of their own after it
        several = together + _of_rows(a[:own], rows)
        indptr = np.zeros(rows + 1, np.int32)
        np.where(several > 1, several, 0).cumsum(out=indptr[1:])
        parts = np.concatenate((_within_tile(a_tiles), _within_tile(b_tiles)))
        parts[:own] += together[a[:own, 0]]
        every[:, 5] = np.where(several[every[:, 0]] > 1, parts, -1)
        tiles = np.concatenate((a_tiles, b_tiles + len(narrow)))
        ends = np.flatnonzero(np.append(tiles[1:] != tiles[:-1], len(tiles) > 0))
        return _Cut(every.astype(np.int32), len(a), a_shares, b_shares, indptr, ends, tiles[ends])

    def _wide_pieces(self, tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _pieces(tiles, self.shares_of_wide) if self.piece is None else _even_pieces(tiles, self.shares_of_wide, self.piece)


class _Cut(NamedTuple):
    """Tiles in pieces, the first `narrow` of them of narrow ones: what a plan has as long as no tile needs another block. `ends`: the last piece
    of each tile `ended`."""

    pieces: np.ndarray
    narrow: int
    narrow_shares: np.ndarray
    wide_shares: np.ndarray
    indptr: np.ndarray
    ends: np.ndarray
    ended: np.ndarray


@lru_cache(maxsize=256)
def _lone(tiler: Tiler, rows: int, blocks: int, cut: int) -> Plan | None:
    """Return `lone`, which is the same for all rows of a bucket and many contexts: drafts grow and shrink, and the device waits for each."""
    return tiler.lone(rows, blocks, cut)


@lru_cache(maxsize=256)
def _alike(tiler: Tiler, narrow: bytes, wide: bytes, alone: int, rows: int) -> _Cut:
    """Return the pieces of tiles. Kept for passes of few: after a pass that was waited for, as for a draft, the device waits while they are cut."""
    return tiler.cut_full(np.frombuffer(narrow, np.int64).reshape(-1, 5), np.frombuffer(wide, np.int64).reshape(-1, 5), alone, rows)


def _filled(tiles: np.ndarray) -> np.ndarray:
    """Return tiles [n, 5] as if their last blocks were full."""
    found = tiles.copy()
    found[:, 3] = -(-found[:, 3] // BLOCK) * BLOCK
    return found


def _sliced(tiles: np.ndarray, height: int) -> np.ndarray:
    """Return tiles [n, 5] of `height` rows each, from those of whole spans: first row, rows, first block, slots,
    position of the first slot. The rows of a span are the last of its slots."""
    counts = -(-tiles[:, 1] // height)
    if (counts == 1).all():
        return tiles
    found, k = np.repeat(tiles, counts, 0), _counting(counts) * height
    rows = np.minimum(height, found[:, 1] - k)
    found[:, 3] += k + rows - found[:, 1]
    found[:, 0] += k
    found[:, 1] = rows
    return found


def _within(tiles: np.ndarray, window: int) -> np.ndarray:
    """Return tiles without the blocks that are too old even for their first row; a tile's rows are the last of its
    slots."""
    old = np.maximum(0, tiles[:, 3] - tiles[:, 1] - window + 1) // BLOCK
    return tiles + np.outer(old, (0, 0, 1, -BLOCK, BLOCK))


def _over(shared: Sequence[Shared], begins: np.ndarray, height: int) -> np.ndarray:
    """Return tiles of prefixes, whose slots begin at these blocks, of `height` rows each."""
    found = np.zeros((len(shared), 5), np.int64)
    found[:, [0, 1, 3]] = [(first, rows, len(slots)) for first, rows, slots in shared]
    found[:, 2] = begins
    counts = -(-found[:, 1] // height)
    found, at = np.repeat(found, counts, 0), _counting(counts) * height
    found[:, 0] += at
    found[:, 1] = np.minimum(height, found[:, 1] - at)
    return found


def _pieces(tiles: np.ndarray, shares: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pieces [n, PIECE] of all tiles, without targets, the tile of each [n], and where the shares begin
    [shares + 1]."""
    blocks = -(-tiles[:, 3] // BLOCK)
    total = int(blocks.sum())
    if total == 0:
        return np.zeros((0, PIECE), np.int64), np.zeros(0, np.int64), np.zeros(shares + 1, np.int32)
    ends = blocks.cumsum()
    begins = ends - blocks
    costs = np.arange(1, len(tiles) + 1) * _START + ends  # cumulative, up to a tile's end
    aims = np.arange(1, shares) * (costs[-1] / shares)
    tile = costs.searchsorted(aims)
    size = blocks[tile]
    within = np.ceil(aims - (costs[tile] - size)).astype(np.int64)
    bounds = np.empty(shares + 1, np.int64)
    bounds[0], bounds[-1] = 0, total
    bounds[1:-1] = begins[tile] + np.minimum(np.maximum(within, 0), size)
    cuts = np.concatenate((begins, bounds))
    cuts.sort()
    cuts = cuts[np.append(cuts[1:] != cuts[:-1], True)]  # each once
    sizes, cuts = cuts[1:] - cuts[:-1], cuts[:-1]  # nothing begins at the last
    of = ends.searchsorted(cuts, side="right")
    return _cut_from(tiles[of], cuts - begins[of], sizes), of, cuts.searchsorted(bounds).astype(np.int32)


def _even_pieces(tiles: np.ndarray, shares: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same, of pieces of `size` blocks."""
    blocks = -(-tiles[:, 3] // BLOCK)
    counts = -(-blocks // size)
    of, inside = np.arange(len(tiles)).repeat(counts), _counting(counts) * size
    sizes = np.minimum(size, blocks[of] - inside)
    costs = (sizes + _START).cumsum()
    bounds = costs.searchsorted(np.arange(shares + 1) * (costs[-1] / shares)) if len(of) else np.zeros(shares + 1)
    bounds[-1] = len(of)
    return _cut_from(tiles[of], inside, sizes), of, bounds.astype(np.int32)


def _cut_from(tiles: np.ndarray, inside: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return pieces [n, PIECE], without targets, that begin `inside` blocks into their tiles [n, 5] and have `sizes` blocks."""
    found = np.zeros((len(tiles), PIECE), np.int64)
    found[:, :2] = tiles[:, :2]
    found[:, 2] = tiles[:, 2] + inside
    found[:, 3] = found[:, 2] + sizes
    found[:, 4] = tiles[:, 4] + inside * BLOCK
    found[:, 6] = np.minimum(sizes * BLOCK, tiles[:, 3] - inside * BLOCK)
    return found


def _of_rows(pieces: np.ndarray, rows: int) -> np.ndarray:
    """Return the number of pieces of each row, [rows]."""
    firsts, counts = pieces[:, 0], pieces[:, 1]
    if len(pieces) and counts.max() > 1:
        firsts = firsts.repeat(counts) + _counting(counts)
    return np.bincount(firsts, minlength=rows)


def _within_tile(tiles: np.ndarray) -> np.ndarray:
    """Return the index of each piece within its tile, from the tiles of the pieces, which ascend."""
    return np.arange(len(tiles)) - np.searchsorted(tiles, tiles)


def _padded(runs: Sequence[np.ndarray], sizes: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Return the runs one after the other, each padded to whole blocks with its last slot."""
    ends, lengths = blocks.cumsum() * BLOCK, blocks * BLOCK
    found = np.empty(int(ends[-1]) if len(ends) else 0, np.int32)
    missing = lengths - sizes
    last = ends - missing
    for run, begin, end in zip(runs, (ends - lengths).tolist(), last.tolist(), strict=True):
        found[begin:end] = run
    found[last.repeat(missing) + _counting(missing)] = found[last - 1].repeat(missing)
    return found


def _widened(runs: Sequence[np.ndarray], sizes: np.ndarray, blocks: np.ndarray, behind: int) -> tuple[np.ndarray, int]:
    """Return the slots of all blocks, those of the runs from `behind` on once each, after a header (see Plan), and how many these are.

    A slot has one position, and what is before it is the same for all who read it: full blocks with the same last slot are equal.
    """
    many = blocks[behind:]
    ends, whole = many.cumsum(), sizes[behind:] // BLOCK
    total = int(ends[-1]) if len(ends) else 0
    last = -1 - np.arange(total)  # of blocks that are not full nobody else's
    if total:
        last[(ends - many).repeat(whole) + _counting(whole)] = np.concatenate([run[BLOCK - 1 :: BLOCK] for run in runs[behind:]])
    _, once, which = np.unique(last, return_index=True, return_inverse=True)
    header = np.zeros(-(-(HEADER + total) // BLOCK) * BLOCK, np.int32)
    before = int(blocks[:behind].sum())
    header[0], header[1], header[HEADER : HEADER + total] = len(once), len(header) // BLOCK + before, which
    slots = _padded(runs, sizes, blocks).reshape(-1, BLOCK)
    return np.concatenate((header, slots[:before].reshape(-1), slots[before:][once].reshape(-1))), len(once)


def _counting(counts: np.ndarray) -> np.ndarray:
    """Return 0, 1, … for each of `counts`, one after the other."""
    ends = counts.cumsum()
    return np.arange(int(ends[-1]) if len(ends) else 0) - (ends - counts).repeat(counts)
