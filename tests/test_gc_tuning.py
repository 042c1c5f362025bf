"""Full garbage collections are put off as long as somebody wants it, and what the user sets is left alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lmc.gc_tuning import few_full_collections

IN_PARTS = sys.version_info < (3, 14)
SHORT = {least: (175, 1, least * 22) if IN_PARTS else (700, 10, least) for least in (100, 1000, 5000)}


@pytest.fixture(autouse=True)
def before() -> Iterator[tuple[int, int, int]]:
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*thresholds)


def test_of_several_the_fewest_count(before):
    with few_full_collections(100):
        with few_full_collections(1000):
            with few_full_collections(100):
                assert gc.get_threshold() == SHORT[1000]
            assert gc.get_threshold() == SHORT[1000]
        assert gc.get_threshold() == SHORT[100]
    assert gc.get_threshold() == before


def test_whoever_comes_first_may_go_first(before):
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(few_full_collections(1000))
        second.enter_context(few_full_collections(100))
        first.close()
        assert gc.get_threshold() == SHORT[100]
        second.close()
        assert gc.get_threshold() == before


def test_fewer_than_wanted_stay():
    gc.set_threshold(700, 10, 5000)
    with few_full_collections(100):
        assert gc.get_threshold() == SHORT[5000]
    assert gc.get_threshold() == (700, 10, 5000)


def test_what_somebody_sets_meanwhile_stays():
    with few_full_collections(100):
        gc.set_threshold(900, 5, 5)
        with few_full_collections(1000):
            assert gc.get_threshold() == (900, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)
    with few_full_collections(100):
        assert gc.get_threshold() == ((225, 1, 1200) if IN_PARTS else (900, 5, 100))
    assert gc.get_threshold() == (900, 5, 5)


def test_they_are_put_back_after_an_error(before):
    with pytest.raises(KeyError), few_full_collections(100):
        raise KeyError
    assert gc.get_threshold() == before


@pytest.mark.skipif(not IN_PARTS, reason="collections of all generations are in parts from Python 3.14 on")
def test_no_collection_before_a_full_one_looks_at_many_objects(before):
    """With Python's thresholds one in eleven looks at 7,000 and more, which takes as long as several masks."""
    looked: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 1:
            looked.append(len(gc.get_objects(0)) + len(gc.get_objects(1)))

    gc.collect()
    kept: list[list[int]] = []
    with few_full_collections(1000):
        gc.callbacks.append(look)
        for i in range(30_000):
            kept.append([i])
        gc.callbacks.remove(look)
    assert len(looked) > 40 and max(looked) < 1000
