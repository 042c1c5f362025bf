"""Forecasts: how much memory open runs will need together, from what they hold and what earlier ones came to hold.

Peaks of runs that began at different times do not coincide: those that are nearest to their ends give back what they have before the others have grown. All
are taken to grow at one pace, each by what it lacks of its peak, and to end some time behind that, since their order is not sure
(cf. LightLLM's past-future scheduler, which forecasts requests by the lengths of earlier answers). The ends of runs of unknown programs are not foreseen.
Numbers only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

_RECENT = 64  # runs of a program, or that came by a place in it, that are remembered,
_ALIKE = 4  # and of those, how many that began most alike tell what one will need
_BEYOND = 8  # a run that is larger than all of them is expected to grow by such a part
_LATE = 0.8  # of what a run comes to hold, others have grown by so much more before it has surely ended


class Peaks:
    """What the latest runs of a kind held when they began, and at their peaks, in tokens."""

    def __init__(self) -> None:
        self._latest: deque[tuple[int, int]] = deque(maxlen=_RECENT)

    def add(self, first: int, peak: int) -> None:
        """Take one more in."""
        self._latest.append((first, peak))

    def above(self, held: int, first: int) -> float:
        """Return the peak to be expected of a run that holds so much by now, and held `first` when it began."""
        higher = [(abs(began - first), peak) for began, peak in self._latest if peak > held]
        if not higher:
            return held + held / _BEYOND
        alike = sorted(higher)[:_ALIKE]
        return sum(peak for _, peak in alike) / len(alike)


class Forecast:
    """Of open runs, each given by what it holds, by how much it is expected to grow, and whether its end is foreseen."""

    def __init__(self, runs: Sequence[tuple[int, int, bool]]) -> None:
        table = np.array(runs, np.int64).reshape(-1, 3)
        held, growth, known = table[:, 0], table[:, 1], table[:, 2] > 0
        self._growths = np.sort(growth)
        self._grown = np.append(0, np.cumsum(self._growths))  # by the first so many, once they have grown
        ends = (growth + (held + growth) * _LATE)[known]
        order = np.argsort(ends)
        self._ends = ends[order]
        self._ended = np.append(0, np.cumsum((held + growth)[known][order]))  # held by the first so many when they end
        self._at_ends = self._more(self._ends)

    def _more(self, moments: np.ndarray) -> np.ndarray:
        """How much more the runs hold when each that goes on has grown by so much, or by all that it will."""
        grown = np.searchsorted(self._growths, moments)
        return self._grown[grown] + (len(self._growths) - grown) * moments - self._ended[np.searchsorted(self._ends, moments)]

    def peak_beside(self, held: int, growth: int, known: bool) -> int:
        """Return how much more than now will be needed at most if a run begins that needs `held` at once, and grows by `growth`."""
        end = growth + (held + growth) * _LATE
        later = 0 if known else held + growth
        beside = np.where(self._ends > end, later, held + np.minimum(growth, self._ends))
        alone = float(self._more(np.array([end]))[0]) + held + growth
        return int(max(alone, (self._at_ends + beside).max(initial=0.0)))
