"""Needs: how many slots runs come to hold, learned from earlier ones: by program, and by places that a run has passed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from lmc.backend.engine.forecast import Peaks
from lmc.backend.engine.leases import OpenRun
from lmc.backend.engine.request import Request

_GROWS = 1.0  # expected growth of a run of an unknown program, in multiples of its first prompt
_KINDS = 1024  # remembered programs, and places


class Needs:
    """What earlier runs have taught of needs. capacity: slots of the pool."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._programs: OrderedDict[Hashable, Peaks] = OrderedDict()
        self._places: OrderedDict[Hashable, Peaks] = OrderedDict()  # of runs that passed one, by program and place
        self._largest: dict[Hashable, int] = {}  # for programs without an ended run: the most that one has held so far

    def peaks(self, req: Request) -> Peaks | None:
        """Return the peaks of earlier runs that passed this place, or else of all of its program."""
        program = req.owner.program if req.owner is not None else None
        return None if program is None else self._places.get((program, req.gen)) or self._programs.get(program)

    def knows_place(self, run: OpenRun, req: Request) -> bool:
        """Return whether earlier runs of its program passed this place."""
        return (run.program, req.gen) in self._places

    def expected(self, run: OpenRun, req: Request, need: int, at: int) -> int:
        """Return the expected slots at its peak, from runs that passed this place; `need`: for this request, after `at`
        tokens."""
        found = self.peaks(req)
        guess = max(need + (req.head_len - at) * _GROWS, self._largest.get(run.program, 0)) if found is None else found.above(need, run.first or need)
        if req.growth is not None:  # the graph allows no more
            most = run.held + need + req.growth
            guess = most if found is None else min(guess, most)
        return min(self._capacity, max(round(guess), run.peak if run.was_open else 0, need))

    def grown(self, run: OpenRun) -> None:
        """Record the most that an open run has held so far."""
        if run.peak > self._largest.get(run.program, 0) and run.program not in self._programs:
            self._largest[run.program] = run.peak

    def ended(self, run: OpenRun) -> None:
        """Record an ended run."""
        if run.peak and run.program is not None:
            self._largest.pop(run.program, None)
            _remember(self._programs, run.program, run)
            for place in run.places:
                _remember(self._places, (run.program, place), run)


def _remember(peaks: OrderedDict[Hashable, Peaks], key: Hashable, run: OpenRun) -> None:
    """Record one more ended run."""
    found = peaks.pop(key, None)
    found = peaks[key] = Peaks() if found is None else found
    found.add(run.first, run.peak)
    if len(peaks) > _KINDS:
        peaks.popitem(last=False)
