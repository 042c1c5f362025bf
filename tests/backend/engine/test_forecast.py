"""Forecasts of memory, beside a simulation that lets runs grow a token at a time."""

from __future__ import annotations

from random import Random

import pytest

from lmc.backend.engine import forecast
from lmc.backend.engine.forecast import Forecast, Peaks


def simulated(runs: list[tuple[int, int, bool]], new: tuple[int, int, bool], late: float) -> float:
    """The most that is needed beyond what is held now, at the moments when something ends."""
    everything = [*runs, new]
    ends = [growth + (held + growth) * late if known else None for held, growth, known in everything]
    most = 0.0
    for moment in {end for end in ends if end is not None} | {new[1] + (new[0] + new[1]) * late}:
        more = 0.0
        for (held, growth, _), end, is_new in zip(everything, ends, [False] * len(runs) + [True], strict=True):
            gone = end is not None and end < moment
            now = 0 if gone else held + min(growth, moment)
            more += now - (0 if is_new else held)
        most = max(most, more)
    return most


@pytest.mark.parametrize("seed", range(40))
def test_a_forecast_is_what_a_simulation_comes_to(seed):
    rng = Random(seed)
    one = lambda: (rng.randint(0, 400), rng.choice([0, rng.randint(0, 400)]), rng.random() < 0.7)
    runs, new = [one() for _ in range(rng.randint(0, 12))], one()
    found = Forecast(runs).peak_beside(*new)
    assert found == pytest.approx(simulated(runs, new, forecast._LATE), abs=1)
    assert found <= new[0] + new[1] + sum(growth for _, growth, _ in runs), "no more than all peaks at once"


def test_runs_that_end_soon_make_room_for_one_that_begins():
    """Two that have grown, and one that will: by the time it has, they have ended."""
    old = [(500, 0, True), (500, 0, True)]
    assert Forecast(old).peak_beside(100, 900, True) == 500, "what it has when they end"
    unforeseen = [(500, 0, False), (500, 0, False)]
    assert Forecast(unforeseen).peak_beside(100, 900, True) == 1000


def test_runs_that_begin_together_have_their_peaks_together():
    assert Forecast([(100, 400, True)] * 7).peak_beside(100, 400, True) == 8 * 400 + 100


def test_nothing_is_open():
    assert Forecast([]).peak_beside(100, 50, True) == Forecast([]).peak_beside(100, 50, False) == 150


def test_a_run_is_expected_to_need_what_those_did_that_began_like_it():
    peaks = Peaks()
    for i in range(10):
        peaks.add(100 + i, 1000)
        peaks.add(500 + i, 8000)
    assert peaks.above(90, 90) == 1000
    assert peaks.above(520, 520) == 8000
    assert peaks.above(1500, 100) == 8000, "it has outgrown those that began like it"
    assert peaks.above(8000, 500) == 9000, "it is larger than all: by an eighth"


def test_what_runs_need_now_counts_and_not_what_they_needed_long_ago():
    peaks = Peaks()
    for peak in [9000] * 100 + [300] * 64:
        peaks.add(50, peak)
    assert peaks.above(50, 50) == 300
