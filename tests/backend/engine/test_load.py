"""Estimates of the device's load, from passes."""

from __future__ import annotations

import math
from random import Random

import pytest

from lmc.backend.engine.load import Load


def loaded(base: float, per_row: float, *, requests: int = 4, pause: float = 0.0, passes: int = 400) -> Load:
    """After passes of 10 to 90 rows, 50 on average."""
    rng, load, now = Random(0), Load(), 0.0
    for _ in range(passes):
        rows = rng.randint(10, 90)
        seconds = base + per_row * rows
        now += seconds + pause
        load.learn(rows, seconds, requests, now)
    return load


@pytest.mark.parametrize(("base", "per_row"), [(8e-3, 25e-6), (0.0, 1e-3), (0.01, 0.0)])
def test_what_another_row_costs_is_told_from_what_a_pass_costs(base, per_row):
    assert loaded(base, per_row).row == pytest.approx(per_row, rel=1e-6, abs=1e-12)


def test_nothing_is_known_of_few_passes_nor_of_passes_that_are_all_alike():
    assert loaded(8e-3, 25e-6, passes=8).row is None
    load = Load()
    for i in range(100):
        load.learn(50, 0.01, 4, i * 0.01)
    assert load.row is None and load.gain == 0.0


def test_a_run_in_flight_is_worth_what_is_left_of_the_device_for_each_request_on_it():
    busy = loaded(5e-3, 100e-6, requests=4)  # rows take half of its time
    assert busy.gain == pytest.approx(0.5 / 4, rel=0.1)
    resting = loaded(5e-3, 100e-6, requests=4, pause=10e-3)  # a quarter; and two requests at a time are there, on average
    assert resting.gain == pytest.approx(0.75 / 2, rel=0.1)
    assert loaded(0.0, 1e-3).gain == pytest.approx(0.0, abs=1e-6), "all that it does is rows: what is computed again is missing elsewhere"
    assert loaded(8e-3, 25e-6, requests=0).gain == math.inf


@pytest.mark.parametrize("runs", range(4, 60, 4))
def test_that_is_where_more_runs_in_flight_do_no_more(runs):
    """Runs that are in a tool for 50 ms and then on the device for ten passes; beyond the tenth each costs some recomputation."""
    base, tool, passes, share = 8e-3, 0.05, 10, 4e-3

    def turns(n: int) -> tuple[float, float]:
        """A second, of `n` runs; and the device's gain from another one. Of each beyond ten, recomputation takes `share` of the device's time."""
        idle = 1 - share * max(0, n - 10)
        on_device = passes * base / idle
        return n / (tool + on_device), idle / (n * on_device / (tool + on_device))

    now, gain = turns(runs)
    more, _ = turns(runs + 1)
    if runs >= 10 and abs(share / gain - 1) > 0.05:
        assert (more > now) == (share < gain)
