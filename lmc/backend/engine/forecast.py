"""Forecasts: the memory that open runs will need together, from their current size and the peaks of earlier runs.

Peaks of runs that began at different times do not coincide: those nearest to their ends release their memory before the
others have grown. All are assumed to grow at one pace, each up to its peak, and to end some time after that, since
their order is uncertain (cf. LightLLM's past-future scheduler, which forecasts requests by the lengths of earlier
answers). The ends of runs of unknown programs are not foreseen. Numbers only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

_RECENT = 64  # remembered runs of a program, or of those that passed a place in it,
_ALIKE = 4  # and how many of those that began most alike predict a peak
_BEYOND = 8  # a run larger than all of them is expected to grow by 1/8
_LATE = 0.8  # share of a run's peak by which others have grown before it has surely ended


class Peaks:
    """Sizes of the latest runs of a kind at their beginnings and at their peaks, in tokens."""

    def __init__(self) -> None:
        self._latest: deque[tuple[int, int]] = deque(maxlen=_RECENT)

    def add(self, first: int, peak: int) -> None:
        """Add one more."""
        self._latest.append((first, peak))

    def above(self, held: int, first: int) -> float:
        """Return the expected peak of a run that holds so much by now, and held `first` when it began."""
        higher = [(abs(began - first), peak) for began, peak in self._latest if peak > held]
        if not higher:
            return held + held / _BEYOND
        alike = sorted(higher)[:_ALIKE]
        return sum(peak for _, peak in alike) / len(alike)


class Forecast:
    """The forecast of open runs, each given by its size, its expected growth, and whether its end is foreseen."""

    def __init__(self, runs: Sequence[tuple[int, int, bool]]) -> None:
        table = np.array(runs, np.int64).reshape(-1, 3)
        held, growth, known = table[:, 0], table[:, 1], table[:, 2] > 0
        self._growths = np.sort(growth)
        self._grown = np.append(0, np.cumsum(self._growths))  # cumulative growth of the first so many
        ends = (growth + (held + growth) * _LATE)[known]
        order = np.argsort(ends)
        self._ends = ends[order]
        self._ended = np.append(0, np.cumsum((held + growth)[known][order]))  # cumulative size at ends
        self._at_ends = self._more(self._ends)

    def _more(self, moments: np.ndarray) -> np.ndarray:
        """Return how much more the runs hold when each continuing one has grown by so much, or to its peak."""
        grown = np.searchsorted(self._growths, moments)
        return self._grown[grown] + (len(self._growths) - grown) * moments - self._ended[np.searchsorted(self._ends, moments)]

    def peak_beside(self, held: int, growth: int, known: bool) -> int:
        """Return the additional peak memory from now on if a run begins that needs `held` at once, and grows by
        `growth`."""
        end = growth + (held + growth) * _LATE
        later = 0 if known else held + growth
        beside = np.where(self._ends > end, later, held + np.minimum(growth, self._ends))
        alone = float(self._more(np.array([end]))[0]) + held + growth
        return int(max(alone, (self._at_ends + beside).max(initial=0.0)))
