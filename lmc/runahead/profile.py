"""What earlier runs of a program have taught: what an evaluation costs, where it is of use, and which sites guess wrong."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from lmc.config import log
from lmc.errors import Loc

if TYPE_CHECKING:
    from lmc.frontend.state import State
    from lmc.runahead.ledger import Ledger

FIRST_COST = 0.04
"""Seconds that the first evaluation is taken to cost: it compiles what it meets."""
FIRST_PLAN = 0.1
"""Seconds that planning is taken to cost."""
SHARE = 1 / 40
"""Of the time in which runs of the program have waited: what evaluations and plans may take without a wait that is long enough for them."""
SHORTEST = 0.0005
"""Seconds that a wait has to last in any case."""
TRIALS, PROBE = 3, 32
"""Evaluations at one reading line that may ask nothing before only every so manieth is made."""
WRONG = 3
"""Guesses of one site that were wrong, and more than were right, before it is turned off."""
KEPT = 256
"""Runs whose requests are kept for reports."""

_log = logging.getLogger("lmc.ahead")
_OWN = str(Path(__file__).parent.parent) + os.sep


class Profile:
    """Shared by all runs of a program, from any thread. Its numbers are advice: a lost update costs nothing but time."""

    def __init__(self) -> None:
        self.cost = FIRST_COST
        self.waited = self.spent = 0.0  # seconds in which at least one run waited; of all evaluations and plans
        self._until = 0.0  # the end of the latest wait
        self.evaluations = self.asked = self.used = self.wasted = self.wasted_tokens = 0
        self.runs: deque[Ledger] = deque(maxlen=KEPT)
        self.latest: Callable[[], State[Any] | None] = lambda: None  # of the run that began last, while somebody has it
        self.passed: Counter[Hashable] = Counter()  # sites that may raise, and did not
        self._lines: dict[Hashable, list[int]] = {}  # reading line: evaluations there, requests that they made
        self._sites: dict[Loc | None, list[int]] = {}  # of an ask: right, wrong
        self.off: set[Loc | None] = set()
        self.faults: list[Exception] = []

    @property
    def patience(self) -> float:
        """Seconds that a wait has to last before an evaluation begins: twice what one costs, or little where all of them cost little so far."""
        return min(2 * self.cost, SHORTEST) if self.affords(self.cost) else 2 * self.cost

    def has_waited(self, began: float, ended: float) -> None:
        """A run has waited; what others have waited meanwhile counts once."""
        self.waited += max(0.0, ended - max(began, self._until))
        self._until = max(self._until, ended)

    def affords(self, seconds: float) -> bool:
        """Whether so much work more is a small share of the time that runs have waited."""
        return self.spent + seconds <= SHARE * self.waited

    def worth(self, line: Hashable) -> bool:
        """Whether to evaluate at a reading line: not where the first evaluations asked nothing, but for a probe now and then."""
        seen = self._lines.setdefault(line, [0, 0])
        if seen[0] < TRIALS or seen[1] > 0:
            return True
        seen[0] += 1
        return seen[0] % PROBE == 0

    def evaluated(self, line: Hashable, seconds: float, asked: int, once: float = 0.0) -> None:
        """An evaluation is over. It took so long, `once` of it with what no other one has to do again."""
        seen = self._lines.setdefault(line, [0, 0])
        seen[0] += 1
        seen[1] += asked
        self.evaluations += 1
        self.spent += seconds
        self.cost += (max(0.0, seconds - once) - self.cost) / min(self.evaluations, 16)

    def fault(self, error: Exception) -> None:
        """An evaluation failed by a fault of lmc's: said once, and kept for tests."""
        if not self.faults:
            _log.warning("a bug in lmc, which costs only time: nothing more is requested ahead in this run; please report it", exc_info=error)
        self.faults.append(error)

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

    def measured(self) -> dict[str, Any]:
        """What a saved program keeps of it, as data."""
        return {"cost": self.cost, "evaluations": self.evaluations, "asked": self.asked, "used": self.used, "wasted": self.wasted}

    def learn(self, measured: Mapping[str, Any]) -> None:
        """Go on from what a saved program has kept."""
        self.cost = float(measured["cost"])
        self.evaluations, self.asked = int(measured["evaluations"]), int(measured["asked"])
        self.used, self.wasted = int(measured["used"]), int(measured["wasted"])

    def ended(self, ledger: Ledger) -> None:
        """A run is over."""
        usage = ledger.usage
        self.asked += usage.ahead_asked
        self.used += usage.ahead_used
        self.wasted += usage.ahead_wasted
        self.wasted_tokens += usage.ahead_wasted_tokens
        if ledger.records:
            self.runs.append(ledger)


def is_own(frame: FrameType) -> bool:
    """Whether it is lmc's code that runs in a frame."""
    return frame.f_code.co_filename.startswith(_OWN)


def reading_line() -> Hashable:
    """The line of the program that waits: the innermost frame that is not lmc's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lineno)
