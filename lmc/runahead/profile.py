"""The profile of earlier runs of a program: the cost of an evaluation, where it pays off, and which sites guess wrong."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from lmc.config import log
from lmc.errors import Loc

if TYPE_CHECKING:
    from lmc.frontend.state import State
    from lmc.run_records import EndedRun

FIRST_COST = 0.04
"""Assumed seconds of the first evaluation: it compiles the code it meets."""
FIRST_PLAN = 0.1
"""Assumed seconds of planning."""
SHARE = 1 / 40
"""Share of the time that runs have waited which evaluations and plans may take when the wait itself is too short for them."""
SHORTEST = 0.0005
"""Least seconds that a wait has to last."""
USUAL, FADING = 32, 0.98
"""Waits after which a wait is expected to last no longer than the longest one, of which each further one leaves that share."""
TRIALS, PROBE = 3, 32
"""Evaluations at a reading line that may make no requests before only every `PROBE`th one is run."""
MOST_LINES = 4096
"""Places of which that is known."""
WRONG = 3
"""Wrong guesses of one site, and more than right ones, before it is turned off."""
KEPT = 256
"""Runs whose requests are kept for reports."""

_SAVED: Mapping[str, type[float] | type[int]] = {"cost": float, "evaluations": int, "asked": int, "used": int, "wasted": int}
_log = logging.getLogger("lmc.ahead")
_OWN = str(Path(__file__).parent.parent) + os.sep


class Profile:
    """Shared by all runs of a program, from any thread. Its numbers are advice: a lost update costs nothing but time."""

    def __init__(self) -> None:
        self.cost = FIRST_COST
        self.waited = self.spent = self._until = 0.0  # seconds in which a run waited, and of all evaluations and plans; the end of the latest wait
        self.begun, self.found = 0, False  # runs that began, and whether an evaluation of any has made a request
        self.waits, self.longest = 0, 0.0  # how many waits there were, and the seconds that one of them may last
        self.evaluations = self.asked = self.used = self.wasted = self.wasted_tokens = 0
        self.runs: deque[EndedRun] = deque(maxlen=KEPT)
        self.latest: Callable[[], State[Any] | None] = lambda: None  # of the run that began last, while it is alive
        self.passed: Counter[Hashable] = Counter()  # sites that may raise but did not
        self._lines: dict[Hashable, list[int]] = {}  # reading line, alone and with the stream it waits for: evaluations there, requests that they made
        self._sites: dict[Loc | None, list[int]] = {}  # by request site: right, wrong
        self.off: set[Loc | None] = set()  # whose requests are no longer made ahead
        self.faults: list[Exception] = []

    @property
    def patience(self) -> float:
        """Return the seconds that a wait has to last before an evaluation begins: twice the cost of one, or little if all so far were cheap."""
        return SHORTEST if 2 * self.cost > SHORTEST and self.affords(self.cost) else 2 * self.cost

    def is_idle(self) -> bool:
        """Return whether a run that begins needs no evaluations, except for an occasional probe: whole runs had none that made requests, or one or two
        waits, too short for any."""
        self.begun += 1
        in_vain = not self.found and self.evaluations >= TRIALS and len(self.runs) >= USUAL
        return self.begun % PROBE != 0 and (in_vain or (self.waits <= 2 * self.begun and not self.is_patient))

    def has_waited(self, began: float, ended: float) -> None:
        """Record that a run has waited; of waits that overlap, the time counts once."""
        self.waits += 1
        self.longest = max(ended - began, FADING * self.longest)
        if ended > self._until:
            self.waited += ended - (began if began > self._until else self._until)
            self._until = ended

    @property
    def is_patient(self) -> bool:
        """Return whether a wait may last long enough for an evaluation."""
        return self.waits < USUAL or self.patience <= self.longest

    def affords(self, seconds: float) -> bool:
        """Return whether that much more work is a small share of the time that runs have waited."""
        return self.spent + seconds <= SHARE * self.waited

    def in_vain(self, lines: Sequence[Hashable]) -> list[list[int]]:
        """Return the counts of a reading line of those that made no requests in their first evaluations."""
        return [seen for line in lines if (seen := self._lines.get(line)) is not None and seen[0] >= TRIALS and not seen[1]]

    def worth(self, lines: Sequence[Hashable]) -> bool:
        """Return whether to watch a wait at a reading line: not if evaluations there are in vain, except for an occasional probe."""
        for seen in self.in_vain(lines):
            seen[0] += 1
            if seen[0] % PROBE:
                return False
        return True

    def evaluated(self, lines: Sequence[Hashable], seconds: float, asked: int, once: float = 0.0) -> None:
        """Record an evaluation at a reading line. It took `seconds`, `once` of it for work that no other one repeats."""
        for line in lines:
            if line in self._lines or len(self._lines) < MOST_LINES:
                seen = self._lines.setdefault(line, [0, 0])
                seen[0] += 1
                seen[1] += asked
        self.evaluations += 1
        self.found = self.found or asked > 0
        self.spent += seconds
        self.cost += (max(0.0, seconds - once) - self.cost) / min(self.evaluations, 16)

    def fault(self, error: Exception) -> None:
        """Record an evaluation that failed by a bug in lmc: logged once, and kept for tests."""
        if not self.faults:
            _log.warning("a bug in lmc, which costs only time: nothing more is requested ahead in this run; please report it", exc_info=error)
        self.faults.append(error)

    def right(self, site: Loc | None) -> None:
        """Record that a guess for the request at a site was used."""
        self._sites.setdefault(site, [0, 0])[0] += 1

    def wrong(self, site: Loc | None) -> None:
        """Record that a guess for the request at a site was not Python's request there."""
        seen = self._sites.setdefault(site, [0, 0])
        seen[1] += 1
        if seen[1] >= WRONG and seen[1] > seen[0] and site not in self.off:
            self.off.add(site)
            log("ahead", f"{site}: requests made ahead here were wrong {seen[1]} times and right {seen[0]} times; turned off")

    def measured(self) -> dict[str, Any]:
        """Return the part that a saved program keeps, as data."""
        return {name: getattr(self, name) for name in _SAVED}

    def learn(self, measured: Mapping[str, Any]) -> None:
        """Continue from the data of a saved program."""
        for name, value in read_measured(measured).items():
            setattr(self, name, value)

    def ended(self, ledger: EndedRun) -> None:
        """Record the end of a run."""
        self.asked += ledger.made_ahead
        self.used += ledger.used
        self.wasted += ledger.wasted
        self.wasted_tokens += ledger.wasted_tokens
        if ledger.records:
            self.runs.append(ledger)


def read_measured(data: Mapping[str, Any]) -> dict[str, float]:
    """Return what `measured` wrote. Raises KeyError, TypeError, ValueError or OverflowError for anything else."""
    return {name: number(data[name]) for name, number in _SAVED.items()}


def is_own(frame: FrameType) -> bool:
    """Return whether a frame runs lmc's code."""
    return frame.f_code.co_filename.startswith(_OWN)


def reading_line() -> tuple[Hashable, ...] | None:
    """Return the line of the program that waits, as file and number: that of the innermost frame that is not lmc's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):  # `is_own`, of some eight frames at each wait
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)
