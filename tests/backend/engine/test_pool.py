"""Free slots: each is somebody's, exactly once."""

from __future__ import annotations

import pytest

from lmc.backend.engine.kv_pool import SlotAllocator


def test_slots_are_distinct_and_come_back():
    pool = SlotAllocator(10)
    a, b = pool.alloc(4), pool.alloc(6)
    assert sorted([*a, *b]) == list(range(10)) and pool.free_count == 0
    pool.free(a)
    pool.check([b])


def test_fresh_slots_are_consecutive():
    pool = SlotAllocator(10)
    assert pool.alloc(4).tolist() == [0, 1, 2, 3]
    a = pool.alloc(3)
    pool.free(a)
    assert pool.alloc(3).tolist() == a.tolist()


def test_slots_are_consecutive_again_after_tidying():
    pool = SlotAllocator(16)
    odd = [pool.alloc(1) for _ in range(16)][1::2]
    for slots in odd[::-1]:
        pool.free(slots)
    pool.tidy()
    assert pool.alloc(4).tolist() == [1, 3, 5, 7]


def test_few_freed_slots_of_a_large_pool_are_consecutive_after_tidying():
    pool = SlotAllocator(1000)
    prompt, answer = pool.alloc(3), pool.alloc(2)
    pool.free(prompt)
    pool.free(answer)
    pool.tidy()
    assert pool.alloc(8).tolist() == list(range(8))


def test_exhaustion_is_an_error():
    with pytest.raises(AssertionError, match="exhausted"):
        SlotAllocator(3).alloc(4)


def test_check_finds_leaks_and_double_owners():
    pool = SlotAllocator(4)
    a = pool.alloc(2)
    with pytest.raises(AssertionError, match="1 slots leaked"):
        pool.check([a[:1]])
    with pytest.raises(AssertionError, match="2 owned twice"):
        pool.check([a, a])
