"""Who has which part of a model, and how a pass is told: without torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.backend.engine.attention.sharing import SharedPrefix
from lmc.backend.engine.distributed import passes
from lmc.backend.engine.distributed.passes import Memory, parts_of, put, read
from lmc.backend.engine.distributed.shares import shares
from lmc.backend.engine.forward_batch import ModelPass, Rows
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.token_ids import PENDING
from lmc.errors import ModelLoadError
from tests.searching import search

SMOLLM2 = ModelConfig("llama", 30, 9, 3, 64, 576, 1536, 49152, 8192)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (2, [("0-5", "0-1"), ("6-8", "2-2")]),
        (3, [("0-2", "0-0"), ("3-5", "1-1"), ("6-8", "2-2")]),
        (4, [("0-1", "0-0"), ("2-2", "0-0"), ("3-5", "1-1"), ("6-8", "2-2")]),
        (9, [(f"{i}-{i}", f"{i // 3}-{i // 3}") for i in range(9)]),
    ],
)
def test_heads_go_by_their_groups(ranks, expected):
    found = [tuple(f"{part.start}-{part.stop - 1}" for part in (s.heads, s.kv_heads)) for s in shares(SMOLLM2, ranks)]
    assert found == expected


@search(18, 200)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 64), st.integers(1, 3000), st.integers(2, 3000))
def test_every_part_is_somewhere_and_reads_the_heads_that_belong_to_it(kv, group, ranks, inner, words):
    config = replace(SMOLLM2, num_heads=kv * group, num_kv_heads=kv, intermediate_size=inner, vocab_size=words, max_context=16)
    if ranks > min(kv * group, inner, words):
        with pytest.raises(ModelLoadError, match=f"tp={ranks}"):
            shares(config, ranks)
        return
    every = shares(config, ranks)
    for name, total in (("heads", kv * group), ("inner", inner), ("vocabulary", words)):
        assert [i for share in every for i in getattr(share, name)] == list(range(total))
    for share in every:
        assert len(share.heads) % len(share.kv_heads) == 0 and len(share.inner) > 0 and len(share.vocabulary) <= share.width
        own = len(share.heads) // len(share.kv_heads)
        assert all(head // group == share.kv_heads[i // own] for i, head in enumerate(share.heads))
        assert share.config.num_heads == len(share.heads) and share.config.hidden_size == config.hidden_size


def test_columns_stay_together_in_tiles_where_they_can():
    assert all(len(share.inner) % 128 == 0 for share in shares(SMOLLM2, 4))


def _pass(rng, spans):
    work = ModelPass()
    for rows, context in spans:
        req = Request(RequestKind.PREFILL, np.arange(1, dtype=np.int32), lambda _: None)
        work.add(Rows(req, rng.integers(0, 500, rows).astype(np.int32), context - rows, rng.permutation(9999)[:context], is_far=context > 20))
    return work


@search(18, 200)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(9, 40)), min_size=1, max_size=12), st.integers(0, 7))
def test_a_pass_is_read_as_it_was_told(spans, seed):
    rng = np.random.default_rng(seed)
    work, wanted = _pass(rng, spans), [0, sum(n for n, _ in spans) - 1]
    groups = [SharedPrefix(5, (0,)), SharedPrefix(9, tuple(range(len(spans))))]
    parts = parts_of(work, wanted, groups, {}, 3)
    room = np.zeros(sum(map(len, parts)), np.int32)
    put(parts, room)
    found = read(room)
    room[:] = -7  # it was copied out
    assert (found.wanted, found.groups, found.samples, found.work.rows) == (wanted, groups, 3, work.rows)
    for ours, theirs in zip(found.work.spans, work.spans, strict=True):
        assert ours.position == theirs.position and ours.is_far == theirs.is_far and ours.slots.dtype == np.int64
        assert ours.ids.tolist() == theirs.ids.tolist() and ours.slots.tolist() == theirs.slots.tolist()


def test_a_pending_token_is_told_as_its_place_among_the_samples_before():
    work = _pass(np.random.default_rng(0), [(1, 9), (1, 9)])
    work.spans[1].ids[-1] = PENDING
    parts = parts_of(work, [0, 1], (), {work.spans[1].request: 6}, 0)
    room = np.zeros(sum(map(len, parts)), np.int32)
    put(parts, room)
    assert read(room).work.spans[1].ids.tolist() == [-7]


def test_memory_grows_and_others_see_it():
    ours = Memory()
    theirs = Memory(ours.handle)
    assert not ours.fits(passes._FIRST)
    ours.grow(passes._FIRST)
    assert ours.fits(passes._FIRST)
    ours.room(1, passes._FIRST)[:] = 5
    theirs.refresh()
    assert (theirs.room(1, passes._FIRST) == 5).all()
    theirs.taken[3] = 8
    assert ours.taken[3] == 8 and ours.beats[3] == 0
    ours.close()
