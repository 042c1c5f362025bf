"""Spending on an API: the reported usage of each attempt, summed for an answer, a backend and an account."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from lmc.backend.api.batches import Waves
from lmc.backend.api.exchange import AnsweringServer, Body, Fault
from lmc.backend.api.replies import ServerReply
from lmc.backend.base import Hints
from lmc.backend.usage import Prices, Spending, Usage
from lmc.errors import Loc


class UsageLedger:
    """Adds up submissions and spending, from any thread. `groups` and `twins` as in Counters."""

    def __init__(self, prices: Prices | None) -> None:
        self._prices, self._lock, self._cost = prices, threading.Lock(), 0.0
        self._usages = [Usage()]  # a sum, and what is not yet in it
        self._counts = Counter[str]()  # attempts, retries, unreported, speculated, wasted: as in Spending
        self.groups = self.twins = 0
        self._latest = OrderedDict[tuple[int, ...], None]()  # groups, of which more siblings may come

    def submitted(self, hints: Hints) -> None:
        """Record that a request of a group is about to be made."""
        assert hints.group is not None
        with self._lock:
            self.twins += hints.sample_index[0] > 0
            if hints.group not in self._latest:
                self.groups += 1
                self._latest[hints.group] = None
                if len(self._latest) > _LATEST:
                    self._latest.popitem(last=False)

    def add(self, *, usage: Usage | None = None, **counts: int) -> None:
        """Add what a request has used, and counts of Spending by their names."""
        with self._lock:
            if usage is not None:
                self._usages.append(usage)
                if self._prices is not None:
                    self._cost += self._prices.of(usage)
                if len(self._usages) > _UNSUMMED:
                    self._usages = [Usage.sum(self._usages)]
            for name, count in counts.items():
                self._counts[name] += count

    def spent(self) -> Spending:
        with self._lock:
            cost = None if self._prices is None else self._cost
            self._usages = [Usage.sum(self._usages)]
            return Spending(self._usages[0], cost=cost, **self._counts)


_NO_USAGE = Usage()


_LATEST = 1 << 14  # groups
_UNSUMMED = 64  # usages that are summed together: most of a sum's cost is making it


@dataclass(slots=True)
class AttemptUsage:
    """Cost of one answer so far: every attempt for it counts. `loc` and `name` identify it, `shared` and `trace` are as
    in Hints.

    turn      batch and number of its run, by which requests wait for one another
    failed    error of the latest attempt, one in a list; None: no need to back off
    unmet     a reply of a list that is not within its constraint, to be looked at first
    waves     of batches for its requests; None: they are sent at once
    identity  of the request, besides its prompt, for batches;  sent: requests for it so far
    choosing  it is a select's
    """

    name: str | None = None
    loc: Loc | None = None
    shared: tuple[tuple[int, float], ...] = ()
    trace: tuple[tuple[str, str], ...] = ()
    turn: tuple[Hashable, int] = (None, 0)
    usage: Usage = _NO_USAGE
    attempts: int = 0
    unreported: int = 0
    failed: Fault | None = None
    unmet: ServerReply | None = None
    waves: Waves | None = None
    identity: str = ""
    sent: int = 0
    choosing: bool = False

    def apart(self) -> AttemptUsage:
        """Return the cost, so far none, of the same answer's further attempts: equal samples share this one."""
        return AttemptUsage(self.name, self.loc, trace=self.trace, turn=self.turn)

    def add(self, other: AttemptUsage) -> None:
        """Count the attempts of another one, too."""
        self.usage += other.usage
        self.attempts += other.attempts
        self.unreported += other.unreported

    @property
    def meta(self) -> Body:
        """Return its part of the answer's meta info: tokens, and what is exceptional."""
        usage = self.usage
        found: Body = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "cached_tokens": usage.cached_tokens}
        found |= {"attempts": self.attempts} if self.attempts > 1 else {}
        return found | ({"unreported_attempts": self.unreported} if self.unreported else {})


class AttemptAccount:
    """Cost of one attempt, entered once: the reported usage, or that there was no report."""

    def __init__(self, ledger: UsageLedger, tally: AttemptUsage) -> None:
        self._ledger, self._tally, self._open = ledger, tally, True

    def reported(self, usage: Usage | None, origin: AnsweringServer | None) -> None:
        if usage is None:
            return self.close()
        self._open = False
        if origin is not None:
            origin.used(usage)
        self._tally.usage += usage
        self._ledger.add(usage=usage)

    def close(self) -> None:
        """Close: nothing more will be reported."""
        if self._open:
            self._open = False
            self._tally.unreported += 1
            self._ledger.add(unreported=1)
