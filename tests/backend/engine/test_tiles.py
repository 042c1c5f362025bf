"""However a pass is cut: every row reads each of its slots once, and finds all of its partial results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.backend.engine.attention.tiles import BLOCK, PIECE, Plan, Shared, Tiler
from tests.searching import search

HEADS = {"4 to 1": (8, 2), "3 to 1": (9, 3), "1 to 1": (4, 4)}


def what_rows_read(plan: Plan, positions: np.ndarray) -> list[list[tuple[int, int]]]:
    """(position, slot) of every slot that a row sees."""
    seen: list[list[tuple[int, int]]] = [[] for _ in positions]
    for pieces, widened in ((plan.narrow, False), (plan.wide, plan.widened is not None)):
        for row, rows, first, behind, start, _, slots, _ in pieces.tolist():
            assert 0 < slots <= (behind - first) * BLOCK
            blocks = plan.indices[first:behind] + plan.indices[1] if widened else np.arange(first, behind)
            assert not widened or (plan.indices[first:behind] < plan.indices[0]).all()
            read = plan.indices.reshape(-1, BLOCK)[blocks].reshape(-1).tolist()
            for r in range(row, row + rows):
                here = range(start, min(int(positions[r]), start + slots - 1) + 1)
                seen[r] += [(p, read[p - start]) for p in here]
    return seen


def check(plan: Plan, spans: list[tuple[int, np.ndarray]], shares: int, window: int | None = None) -> None:
    positions = np.concatenate([np.arange(len(s) - n, len(s)) for n, s in spans])
    contexts, padded = [s for n, s in spans for _ in range(n)], np.zeros(len(plan.indptr) - 1, np.int64)
    padded[: len(positions)] = positions
    for found, position, context in zip(what_rows_read(plan, padded), positions.tolist(), contexts, strict=False):
        oldest = 0 if window is None else max(0, position - window + 1)
        assert [x for x in sorted(found) if x[0] >= oldest] == list(
            zip(range(oldest, position + 1), context[oldest : position + 1].tolist(), strict=True)
        )
    for pieces, begins, chained in ((plan.narrow, plan.narrow_shares, True), (plan.wide, plan.wide_shares, False)):
        assert len(begins) == shares + 1
        assert begins[0] == 0
        assert begins[-1] == len(pieces)
        assert (np.diff(begins) >= 0).all()
        for share in range(shares if chained else 0):  # one program reads them as one run of blocks
            mine = pieces[begins[share] : begins[share + 1]]
            assert (mine[1:, 2] == mine[:-1, 3]).all()
    results: list[list[int]] = [[] for _ in padded]
    direct: list[int] = []
    for row, rows, _, _, _, part, *_ in [*plan.narrow.tolist(), *plan.wide.tolist()]:
        for r in range(row, row + rows):
            if part < 0:
                direct.append(r)
            else:
                results[r].append(part)
    assert len(direct) == len(set(direct))
    for row, parts in enumerate(results):
        assert sorted(parts) == list(range(plan.indptr[row + 1] - plan.indptr[row]))
        assert (row in direct) != bool(parts) or row >= len(positions)


@search(6, 40)
@given(
    st.sampled_from(sorted(HEADS)),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 150)), min_size=1, max_size=5),
    st.integers(1, 20),
    st.sampled_from([None, None, 1, 70]),
    st.booleans(),
)
def test_any_mix_of_spans(heads, spans, shares, window, widen):
    tiler, at, found = Tiler(*HEADS[heads], shares, window), 1000, []
    for n, (rows, before) in enumerate(spans):  # half of them begin alike
        found.append((rows, np.concatenate((np.arange(before) if n % 2 else np.arange(at, at + before), np.arange(at + before, at + before + rows)))))
        at += rows + before
    lengths, rows = np.array([n for n, _ in found]), sum(n for n, _ in found)
    plan = tiler.plan(lengths, [s for _, s in found], np.zeros(len(found), np.int64), [], rows + 3, widen=widen)
    assert (plan.widened is not None) == widen
    check(plan, found, shares, window)
    assert plan.indptr[-1] <= tiler.most_partials(rows)
    assert max(len(plan.narrow), len(plan.wide)) <= rows + 3 + shares


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 16, 17, 33, 62])
@pytest.mark.parametrize("before", [0, 1, 63, 64, 300])
@pytest.mark.parametrize("shares", [7, 66])
def test_a_lone_span_has_narrow_tiles_while_each_block_has_a_program(rows, before, shares):
    tiler, slots = Tiler(*HEADS["4 to 1"], shares), np.arange(5, 5 + before + rows)
    plan = tiler.plan(np.array([rows]), [slots], np.zeros(1, np.int64), [], rows + 2)
    check(plan, [(rows, slots)], shares)
    assert plan.indptr[-1] <= tiler.most_partials(rows)
    assert max(np.diff(plan.narrow_shares).max(), np.diff(plan.wide_shares).max()) == 1
    assert (len(plan.wide) == 0) == (rows <= 2 or -(-(rows + 2) // 4) * 4 * -(-len(slots) // (4 * BLOCK)) <= shares)


@search(5, 20)
@given(
    st.sampled_from(sorted(HEADS)),
    st.lists(st.tuples(st.integers(2, 20), st.integers(1, 150)), min_size=1, max_size=3),
    st.integers(1, 20),
)
def test_groups_read_their_prefix_together(heads, groups, shares):
    tiler, at, spans, cuts, shared = Tiler(*HEADS[heads], shares), 0, [], [], []
    for members, length in groups:
        prefix, at = np.arange(at, at + length), at + length
        shared.append(Shared(len(spans), members, prefix))
        for own in range(1, members + 1):
            spans.append((1, np.concatenate((prefix, np.arange(at, at + own)))))
            cuts.append(length)
            at += own
    spans.append((9, np.arange(at, at + 30)))
    lengths = np.array([n for n, _ in spans])
    slots = [s[cut:] for (_, s), cut in zip(spans, [*cuts, 0], strict=True)]
    plan = tiler.plan(lengths, slots, np.array([*cuts, 0]), shared, int(lengths.sum()))
    check(plan, spans, shares)
    assert len(plan.indices) // BLOCK == sum(-(-len(s) // BLOCK) for s in [*slots, *(g.slots for g in shared)])
    assert len(plan.wide) >= sum(g.rows > tiler.few for g in shared)
    assert max(len(plan.narrow), len(plan.wide)) <= 2 * int(lengths.sum()) + shares
    assert plan.indptr[-1] <= tiler.most_partials(int(lengths.sum()))


@pytest.mark.parametrize("shares", [1, 7, 33])
def test_shares_are_nearly_equal(shares):
    contexts = np.random.default_rng(0).integers(100, 2000, 128)
    slots = [np.arange(n) for n in contexts]
    plan = Tiler(32, 8, shares).plan(np.ones(128, np.int64), slots, np.zeros(128, np.int64), [], 128)
    blocks = [
        int((plan.narrow[a:b, 3] - plan.narrow[a:b, 2] + 1).sum())
        for a, b in zip(plan.narrow_shares, plan.narrow_shares[1:], strict=False)
    ]
    assert max(blocks) <= min(blocks) + 3
    assert plan.narrow.shape[1] == PIECE


def test_a_pass_of_the_same_blocks_reads_its_own_slots():
    tiler, at = Tiler(8, 2, 7), 0
    for length in (130, 131, 170, 192, 193, 130):  # a cut is kept until a block is added
        prefix, at = np.arange(at, at + length), at + length + 2
        spans = [(1, np.append(prefix, at - 2)), (1, np.append(prefix, at - 1))]
        plan = tiler.plan(np.ones(2, np.int64), [s[length:] for _, s in spans], np.full(2, length), [Shared(0, 2, prefix)], 2)
        check(plan, spans, 7)
