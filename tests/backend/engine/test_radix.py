"""The radix tree against a dictionary of prefixes."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.backend.engine.kv_pool import SlotAllocator
from lmc.backend.engine.radix_cache import RadixCache, common_prefix, prefix_hashes
from tests.searching import search


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def put(tree: RadixCache, pool: SlotAllocator, tokens: np.ndarray):
    slots = pool.alloc(len(tokens))
    done = tree.insert(tree.root, tokens, slots)
    pool.free(slots[: done.present])
    return done


def test_slots_follow_tokens_through_splits():
    tree, pool = RadixCache(), SlotAllocator(64)
    first = put(tree, pool, ids(1, 2, 3, 4)).node
    before = tree.slots_to(first)
    tree.match(ids(1, 9))
    tree.match(ids(1, 2, 3, 9))
    assert tree.slots_to(first).tolist() == before.tolist()
    assert tree.slots_to(tree.match(ids(1, 2))).tolist() == before[:2].tolist()


def test_insert_says_what_was_there():
    tree, pool = RadixCache(), SlotAllocator(64)
    put(tree, pool, ids(1, 2, 3))
    slots = pool.alloc(4)
    done = tree.insert(tree.root, ids(1, 2, 7, 8), slots)
    assert (done.present, done.node.end) == (2, 4)
    assert done.slots.tolist() == tree.slots_to(tree.match(ids(1, 2))).tolist()
    pool.free(slots[:2])
    pool.check([n.slots for n in tree.nodes()])


def test_eviction_takes_least_recently_used_leaves_first():
    tree, pool = RadixCache(), SlotAllocator(64)
    put(tree, pool, ids(1, 2, 3))
    put(tree, pool, ids(1, 2, 4))
    put(tree, pool, ids(5, 6))
    tree.match(ids(1, 2, 3))
    tree.evict(1)
    assert tree.match(ids(1, 2, 4)).end == 2
    tree.evict(1)
    assert tree.match(ids(5, 6)).end == 0
    assert tree.match(ids(1, 2, 3)).end == 3


def test_what_follows_a_used_prefix_is_not_used():
    tree, pool = RadixCache(), SlotAllocator(64)
    old = put(tree, pool, ids(1, 2, 3)).node
    put(tree, pool, ids(5, 6))
    put(tree, pool, ids(1, 2, 4))
    tree.match(ids(1, 9))
    tree.evict(1)
    assert old.parent is None and tree.match(ids(5, 6)).end == 2
    tree.check()


def test_what_was_forgotten_and_not_used_since_can_be_evicted_alone():
    tree, pool = RadixCache(), SlotAllocator(64)
    kept, over, back = (put(tree, pool, ids(n, 2, 3)).node for n in (1, 4, 5))
    tree.forget(over, 3)
    tree.forget(back, 3)
    tree.match(ids(5, 2, 3))
    assert len(tree.evict(100, until=0)) == 3 and len(tree.evict(100, until=0)) == 0
    assert over.parent is None and kept.parent is not None and back.parent is not None
    tree.check()


def test_a_locked_prefix_stays_and_its_upper_half_after_a_split_too():
    tree, pool = RadixCache(), SlotAllocator(64)
    node = put(tree, pool, ids(1, 2, 3, 4)).node
    tree.lock(node)
    tree.match(ids(1, 2, 9))
    assert len(tree.evict(100)) == 0
    tree.unlock(node)
    assert len(tree.evict(100)) == 4
    tree.check()


def test_what_is_used_again_and_again_is_offered_for_eviction_once():
    tree, pool = RadixCache(), SlotAllocator(64)
    long, short = put(tree, pool, ids(1, 2, 3)).node, put(tree, pool, ids(1, 2, 4)).node
    for _ in range(100):
        for node in (short, long):
            tree.lock(node)
            tree.unlock(node)
        tree.touch(long)
        tree.check()
    assert len(tree._leaves) == 2
    pool.free(tree.evict(1))
    assert short.parent is None and long.parent is not None, "the least recently used goes first"
    pool.free(tree.evict(64))
    tree.check()
    assert tree.size == 0 and pool.free_count == 64 and not tree._leaves


def test_unlock_without_lock_is_an_error():
    tree, pool = RadixCache(), SlotAllocator(8)
    with pytest.raises(AssertionError, match="unlock without lock"):
        tree.unlock(put(tree, pool, ids(1)).node)


def test_evicted_tokens_are_remembered_until_the_cache_is_cleared():
    tree, pool = RadixCache(), SlotAllocator(64)
    put(tree, pool, ids(1, 2, 3))
    pool.free(tree.evict(3))
    done = put(tree, pool, ids(1, 2, 3, 4))
    assert tree.evicted_before(done.node, 4) == 3
    pool.free(tree.clear())
    assert tree.evicted_before(put(tree, pool, ids(1, 2, 3)).node, 3) == 0


def test_namespaces_have_nothing_in_common():
    tree, pool = RadixCache(), SlotAllocator(64)
    for namespace in ("", "mine", "yours"):
        root = tree.match(ids(1, 2, 3), namespace=namespace)
        assert root.end == 0
        tree.insert(root, ids(1, 2, 3), pool.alloc(3))
        assert tree.match(ids(1, 2, 3, 4), namespace=namespace).end == 3
    tree.check()
    assert (tree.size, tree.evictable, len(list(tree.nodes()))) == (9, 9, 3)
    pool.free(tree.evict(9))
    assert tree.evicted_before(tree.insert(tree.match(ids(1), namespace="new"), ids(1), pool.alloc(1)).node, 1) == 0
    assert tree.match(ids(1, 2, 3), namespace="mine").end == 0


def test_a_namespace_that_is_empty_leaves_nothing_behind():
    tree, pool = RadixCache(), SlotAllocator(64)
    for i in range(50):
        tree.insert(tree.match(ids(1), namespace=f"user {i}"), ids(1), pool.alloc(1))
        pool.free(tree.evict(1))
    gc.collect()
    assert len(tree._roots) <= 2


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@search(9, 60)
@given(st.lists(TOKENS, max_size=25), st.lists(TOKENS, min_size=1, max_size=10))
def test_matches_like_a_set_of_prefixes(inserted, asked):
    tree, pool = RadixCache(), SlotAllocator(512)
    for tokens in inserted:
        put(tree, pool, ids(*tokens))
    known = {tuple(t[:i]) for t in inserted for i in range(len(t) + 1)} | {()}
    for tokens in asked:
        expected = max(i for i in range(len(tokens) + 1) if tuple(tokens[:i]) in known)
        assert (tree.match(ids(*tokens), limit=min(2, len(tokens))).end, tree.match(ids(*tokens)).end) == (min(expected, 2), expected)
    tree.check()
    pool.check([n.slots for n in tree.nodes()])
    assert tree.size == len(known) - 1
    assert len(tree.evict(10_000)) == len(known) - 1


@search(15, 100)
@given(TOKENS, TOKENS)
def test_common_prefix_and_hashes_agree(a, b):
    n = common_prefix(ids(*a), ids(*b))
    assert a[:n] == b[:n] and (n == min(len(a), len(b)) or a[n] != b[n])
    same = prefix_hashes(ids(*a))[: min(len(a), len(b))] == prefix_hashes(ids(*b))[: min(len(a), len(b))]
    assert same.tolist() == [i < n for i in range(min(len(a), len(b)))]
