"""What earlier runs of a program have taught: what an evaluation costs, where it is of use, and which sites guess wrong."""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

from lmc.config import log
from lmc.errors import Loc

if TYPE_CHECKING:
    from lmc.runahead.ledger import Ledger

FIRST_COST = 0.001
"""Seconds that the first evaluation is taken to cost."""
TRIALS, PROBE = 3, 32
"""Evaluations at one reading line that may ask nothing before only every so manieth is made."""
WRONG = 3
"""Guesses of one site that were wrong, and more than were right, before it is turned off."""
PASSED = 8
"""Times that a `raise` or `assert` has to be passed without raising before it no longer ends certainty."""
KEPT = 256
"""Runs whose requests are kept for reports."""

_OWN = str(Path(__file__).parent.parent) + os.sep


class Profile:
    """Shared by all runs of a program, from any thread. Its numbers are advice: a lost update costs nothing but time."""

    def __init__(self) -> None:
        self.cost = FIRST_COST
        self.evaluations = self.asked = self.used = self.wasted = 0
        self.runs: deque[Ledger] = deque(maxlen=KEPT)
        self.passed: Counter[Hashable] = Counter()  # sites that may raise, and did not
        self.arms: Counter[Hashable] = Counter()  # (site, arm) that runs took
        self._lines: dict[Hashable, list[int]] = {}  # reading line: evaluations there, requests that they made
        self._sites: dict[Loc | None, list[int]] = {}  # of an ask: right, wrong
        self.off: set[Loc | None] = set()

    @property
    def patience(self) -> float:
        """Seconds that a wait has to last before an evaluation begins: twice what one costs."""
        return 2 * self.cost

    def worth(self, line: Hashable) -> bool:
        """Whether to evaluate at a reading line: not where the first evaluations asked nothing, but for a probe now and then."""
        seen = self._lines.setdefault(line, [0, 0])
        if seen[0] < TRIALS or seen[1] > 0:
            return True
        seen[0] += 1
        return seen[0] % PROBE == 0

    def evaluated(self, line: Hashable, seconds: float, asked: int) -> None:
        """An evaluation is over."""
        seen = self._lines.setdefault(line, [0, 0])
        seen[0] += 1
        seen[1] += asked
        self.evaluations += 1
        self.cost += (seconds - self.cost) / min(self.evaluations, 16)

    def right(self, site: Loc | None) -> None:
        """A guess for the ask at a site was used."""
        self._sites.setdefault(site, [0, 0])[0] += 1

    def wrong(self, site: Loc | None) -> None:
        """A guess for the ask at a site was not what Python asked there."""
        seen = self._sites.setdefault(site, [0, 0])
        seen[1] += 1
        if seen[1] >= WRONG and seen[1] > seen[0] and site not in self.off:
            self.off.add(site)
            log("ahead", f"{site}: what was asked ahead here was wrong {seen[1]} times and right {seen[0]} times; turned off")

    def is_off(self, site: Loc | None) -> bool:
        """Whether nothing is asked ahead for a site any more."""
        return site in self.off

    def ended(self, ledger: Ledger) -> None:
        """A run is over."""
        usage = ledger.usage
        self.asked += usage.ahead_asked
        self.used += usage.ahead_used
        self.wasted += usage.ahead_wasted
        if ledger.records:
            self.runs.append(ledger)


def reading_line() -> Hashable:
    """The line of the program that waits: the innermost frame that is not lmc's."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else (frame.f_code, frame.f_lineno)
