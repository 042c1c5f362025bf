"""Runs: ownership of the pool's memory by program runs. Open runs, their expected needs, and the prefixes they will use
again.

    a request of a run ──ends──► a *lease* on its KV ──the run goes on──► the next request
                                      ├── the run ends · its time is well over · an older run needs the room ──► the cache
                                      └── the host has it, and others need the room ──► *parked* until the run resumes

A run is *open* while a request of it runs or it has a lease, be it parked. A new one opens when it is expected to fit beside the open ones until its end, as
all of them grow and those that are nearest to their ends give back what they have (forecast.py). It also opens if the room that it lacks can be had from runs
that are away, and what that has computed again costs less than another run in flight gains (load.py). Until then its requests wait, the oldest first. What a
program needs, how long its runs are away behind a gen (in a tool, with a person) and whether they come back at all is learned from earlier ones: per program,
and per place in its source. A request that belongs to no run is a run of its own: it needs what it reserves, and keeps nothing. If it has come back to what
an earlier one left, as a conversation does, what it leaves is evicted as if it came back after as long again.

Leases are locks, so the tree counts shared prefixes once. Bookkeeping on the loop's thread; scheduling is decided
elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from lmc.backend.engine.absences import UNKNOWN_ABSENCE, Absences
from lmc.backend.engine.forecast import Forecast, Peaks
from lmc.backend.engine.host_tier import HostTier
from lmc.backend.engine.leases import Lease, OpenRun
from lmc.backend.engine.load import Load
from lmc.backend.engine.needs import Needs
from lmc.backend.engine.radix_cache import Node, RadixCache
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.reservations import Reservations

_WELL_OVER, _SLACK = 3, 1.0  # a lease ends after so many times the usual time, but not before so many seconds beyond it
_FOR_OTHERS = 128  # passes that a continuing run waits for others to end, before it takes their leases
_PASSED = 32  # places of a run that are remembered


class Runs:
    """leases: what a run will use again is kept for it. priced: runs may begin in the room of those that are away, unless the host has that. now: seconds."""

    def __init__(
        self, tree: RadixCache, reservations: Reservations, capacity: int, *, leases: bool, now: Callable[[], float], host: HostTier | None = None,
        priced: bool = False,
    ) -> None:  # fmt: skip
        self._tree, self._reservations, self._capacity, self._leases, self._now = tree, reservations, capacity, leases, now
        self._load = Load() if priced else None
        self._host, self._away_tokens = host, 0  # of all parked leases
        self._runs: dict[int, OpenRun] = {}
        self._open: dict[OpenRun, None] = {}
        self.must_admit = False  # nothing runs, no run with memory is expected back: must admit the next request
        self.over: list[OpenRun] = []  # ended runs whose last request has ended, too
        self.growth = 0  # of all open runs
        self.running = 0  # requests of runs
        self._returning: dict[OpenRun, None] = {}  # that have given up all that they kept, and have requests
        self._forecast: Forecast | None = None  # None: what open runs hold has changed
        self._away_longest: list[tuple[float, Lease]] | None = None  # the same
        self.leased = 0  # leases there are
        self.broken = 0  # leases that ended for want of room
        self.parked = 0  # that were parked
        self.lapsed = 0  # because their time was over
        self._needs, self._absences = Needs(capacity), Absences()

    def learn_from(self, other: Runs) -> None:
        """Take over the statistics of needs, absences and the cost of passes."""
        self._needs, self._absences, self._load = other._needs, other._absences, other._load

    def learn_pass(self, rows: int, seconds: float, requests: int) -> None:
        """Record that a pass of so many rows has ended, in which so many requests ran."""
        if self._load is not None:
            self._load.learn(rows, seconds, requests, self._now())

    @property
    def count(self) -> int:
        """Return the number of open runs."""
        return len(self._open)

    def held_by_program(self) -> dict[str, int]:
        """Return the slots that open runs hold, by the name of their program. From any thread."""
        found: dict[str, int] = {}
        for run in list(self._open):
            name = str(run.program or "?")
            found[name] = found.get(name, 0) + run.held
        return found

    def leases(self) -> Iterator[Lease]:
        return itertools.chain.from_iterable(run.leases.values() for run in self._runs.values())

    # -- a run's requests --------------------------------------------------------------------------------------

    def meet(self, req: Request) -> bool:
        """Register an arrived request. Return whether it is the first of its run here."""
        source = req.run
        if source is None:
            return False
        run = self._runs.get(source.number)
        is_new = run is None
        if run is None:
            run = self._runs[source.number] = OpenRun(source.number, source.program, source.batch, (False, req.priority, req.order))
        req.owner = run
        run.requests += 1
        if run.was_open and not run.is_open:
            self._returning[run] = None
        if req.kind is RequestKind.PREFILL:
            return is_new  # the run stays away
        if run.leases and (lease := self._above(req.behind, run.leases)) is not None:
            req.lease = lease
            lease.wanted += 1
            if lease.wanted == 1:
                self._returned(lease)
        elif run.parked and (lease := self._above(req.behind, run.parked)) is not None:
            if lease.until < math.inf:
                self._returned(lease)
            lease.until = math.inf  # until the request is admitted, or gone
        elif run.lapsed is not None:  # or only early returns would be learned
            self._returned(run.lapsed)
            run.lapsed = None
        return is_new

    @staticmethod
    def _above(node: Node | None, leases: Mapping[Node, Lease]) -> Lease | None:
        """Return that of the leases, held or parked, which keeps the longest prefix of `node`."""
        while node is not None:
            if (lease := leases.get(node)) is not None:
                return lease
            node = node.parent
        return None

    def gone(self, req: Request) -> None:
        """Remove a request cancelled while it waited."""
        if (run := req.owner) is None:
            return
        self._waits_no_more(req)
        if req.kind is not RequestKind.PREFILL and (parked := self._above(req.behind, run.parked)) is not None:
            parked.until = self._now() + UNKNOWN_ABSENCE
        run.requests -= 1
        self._settle(run)
        self._close_if_over(run)

    def _waits_no_more(self, req: Request) -> None:
        lease, req.lease = req.lease, None
        if lease is not None:
            lease.wanted -= 1
            lease.until = max(lease.until, self._now() + UNKNOWN_ABSENCE)

    def admitted(self, req: Request, need: int, at: int, node: Node) -> None:
        """Register a request that runs from now on: so many more slots are reserved for it, after `at` tokens that were
        present, cached up to `node`."""
        run = req.owner
        if run is None:
            req.away = self._tree.away(node) if self._leases else 0
            return
        lease, taken, goes_on = req.lease, 0, req.kind is not RequestKind.PREFILL
        if goes_on and lease is None and run.leases and (lease := self._above(node, run.leases)) is not None:  # only known now that it extends it
            self._returned(lease)
        if lease is not None:
            self._waits_no_more(req)
            if lease.wanted <= 0 and run.leases.get(lease.node) is lease:  # its own lock covers the lease
                taken = min(lease.own, at)
                self._drop(lease)
                run.held -= lease.own
        parked = self._above(req.behind, run.parked) if goes_on else None
        if not (run.is_open or taken):
            run.expected, run.peaks = self._needs.expected(run, req, need, at), self._needs.peaks(req)
            run.was_open, run.first = True, run.first or need
        elif goes_on and (req.growth is not None or self._needs.knows_place(run, req)):  # e.g. it has taken this arm
            run.expected, run.peaks = max(self._needs.expected(run, req, need, at), run.held), self._needs.peaks(req)
        if goes_on and len(run.places) < _PASSED:
            run.places[req.gen] = None
        run.running += 1
        self.running += 1
        req.charged, req.started = need + taken, at - taken
        if parked is not None:  # `need` includes the returning tokens
            self._unpark(parked)
        self._hold(run, req.charged)

    def interrupted(self, req: Request) -> None:
        """Register a preemption."""
        if (run := req.owner) is not None:
            run.running -= 1
            self.running -= 1
            self._hold(run, -req.charged)
            req.charged = 0

    def finished(self, req: Request, node: Node) -> None:
        """Register an ended request, with its KV up to `node`, on which it has a lock."""
        run = req.owner
        if run is None:
            if req.away:  # e.g. a conversation: it may return after the same time
                self._tree.expect(node, _WELL_OVER * req.away)
            return self._tree.unlock(node)
        own = max(0, node.end - req.started)
        run.requests -= 1
        run.running -= 1
        self.running -= 1
        run.held -= req.charged
        req.charged = 0
        run.peak = max(run.peak, run.held + own)  # without unused reservations
        self._needs.grown(run)
        away = self._absences.usual(req.gen) if self._leases and req.kind is not RequestKind.PREFILL and node.parent is not None else None
        if away is not None:
            self._lease(run, node, own, req, away)
        else:
            self._stay(run, self._now() + UNKNOWN_ABSENCE)
            if req.kind is RequestKind.PREFILL and (lease := self._above(node, run.leases)) is not None and node not in run.leases:
                self._lengthen(lease, node, own)
            self._settle(run)
            self._tree.unlock(node)
            if self._leases and req.kind is not RequestKind.PREFILL:
                self._expire(node, own)
        self._close_if_over(run)

    def end(self, number: int) -> None:
        """End a run. Its pending requests continue, and so do those already submitted to follow them."""
        run = self._runs.get(number)
        if run is not None:
            run.ended = True
            self._close_if_over(run)

    def _close_if_over(self, run: OpenRun) -> None:
        if run.ended and not run.requests:
            self.over.append(run)

    def close(self, unreported: Iterable[Request] = ()) -> bool:
        """Close ended runs without requests: their prefixes are not used again. Return whether there were any. Not those of
        `unreported` requests, which others may follow."""
        if not self.over:
            return False
        going_on = {req.owner for req in unreported}
        over, self.over = self.over, [run for run in self.over if run in going_on]
        for run in over:
            if not run.requests and self._runs.get(run.number) is run and run not in going_on:
                self._close(run)
        return True

    def _close(self, run: OpenRun) -> None:
        for lease in list(run.leases.values()):
            self._absences.learn(lease.place, None)
            self._end(lease)
            self._expire(lease.node, lease.own)
        for lease in list(run.parked.values()):
            self._absences.learn(lease.place, None)
            self._unpark(lease)
            self._expire(lease.node, lease.own)
        if run.lapsed is not None:
            self._absences.learn(run.lapsed.place, None)
        self._settle(run)
        del self._runs[run.number]
        self._needs.ended(run)

    def _expire(self, node: Node, tokens: int) -> None:
        """Expect no further use of the last `tokens` of the prefix that ends at `node`, which a run added."""
        self._tree.forget(node, tokens)
        if self._host is not None:
            self._host.expire(node, tokens)

    # -- admission ---------------------------------------------------------------------------------------------

    def may_run(self, req: Request, need: int, at: int) -> bool:
        """Return whether a request may reserve so many slots after `at` tokens: one of an open run may, another one if
        its run fits beside all open ones, or is worth its cost to them."""
        run = req.owner
        if not self._open or self.must_admit or req.preempted or (run is not None and run.is_open):
            return True
        return self._has_room(req, need, self._wants(req, need, at))

    def _has_room(self, req: Request, need: int, peak: int) -> bool:
        lack = self._lack(need, peak, self._needs.peaks(req))
        return lack <= 0 or self._is_worth(req, lack, (need + peak) / 2)

    def _lack(self, need: int, peak: int, peaks: Peaks | None) -> int:
        """Slots that will be lacking until its end for a run that needs so much now, and comes to need its peak, beside all open ones; 0 or less: none."""
        room = self._reservations.unreserved + (max(0, self._host.capacity - self._away_tokens) if self._host is not None else 0)
        if peak <= room - self.growth:  # even if all peak at the same time
            return 0
        if self._forecast is None:
            self._forecast = Forecast([(run.held + run.away, run.growth, run.peaks is not None) for run in self._open])
        lack = self._forecast.peak_beside(need, max(0, peak - need), peaks is not None) - room
        if lack > 0 and self._host is not None:
            self._host.want(lack)
        return lack

    def may_fit(self, req: Request) -> bool:
        """Return whether a refused request is worth another try."""
        if req.preempted or not self._open or self.must_admit:
            return True
        need, peak = req.wants
        return self._has_room(req, need - req.shared, peak - req.shared)

    def refused(self, req: Request, need: int, at: int) -> None:
        """Record what a refused request would take."""
        req.wants, req.shared = (need, self._wants(req, need, at)), at

    def _wants(self, req: Request, need: int, at: int) -> int:
        return need if req.owner is None else self._needs.expected(req.owner, req, need, at)

    def _hold(self, run: OpenRun, slots: int) -> None:
        run.held += slots
        self._settle(run)

    def _settle(self, run: OpenRun) -> None:
        """Update whether it is open, and its expected growth."""
        growth, self._forecast, self._away_longest = 0, None, None
        if run.was_open and run.requests and not run.is_open:
            self._returning[run] = None
        else:
            self._returning.pop(run, None)
        if run.is_open:
            self._open[run] = None
            has = run.held + run.away
            if has > run.expected and run.peaks is not None:  # it is one of the larger ones
                run.expected = min(self._capacity, max(has, round(run.peaks.above(has, run.first))))
            growth = max(0, run.expected - has)
        else:
            self._open.pop(run, None)
        self.growth += growth - run.growth
        run.growth = growth

    # -- leases ------------------------------------------------------------------------------------------------

    def _lease(self, run: OpenRun, node: Node, own: int, req: Request, away: float) -> None:
        """Turn a request's lock into a lease."""
        now = self._now()
        until = now + max(away * _WELL_OVER, away + _SLACK, self._absences.longest(req.gen))
        self._stay(run, until)
        held = run.leases.get(node)
        if held is not None:  # siblings that end at the same node
            self._tree.unlock(node)
            held.until, held.own = until, held.own + own
        else:
            run.leases[node] = Lease(run, node, own, req.gen, req.space, now, until)
            self.leased += 1
        self._hold(run, own)

    @staticmethod
    def _stay(run: OpenRun, until: float) -> None:
        """Restart the run's leases: those for later, while e.g. a sub-program makes requests, must not expire
        before."""
        for lease in itertools.chain(run.leases.values(), run.parked.values()):
            lease.until = max(lease.until, until)

    def _lengthen(self, lease: Lease, node: Node, own: int) -> None:
        """Extend its lease to the tokens computed after it, up to `node`. The caller settles its run."""
        self._tree.lengthen(lease.node, node)
        del lease.run.leases[lease.node]
        lease.node, lease.own = node, lease.own + own
        lease.run.leases[node] = lease
        lease.run.held += own

    def _end(self, lease: Lease) -> None:
        self._drop(lease)
        self._hold(lease.run, -lease.own)

    def _drop(self, lease: Lease) -> None:
        del lease.run.leases[lease.node]
        self.leased -= 1
        self._tree.unlock(lease.node)

    def _returned(self, lease: Lease) -> None:
        self._absences.learn(lease.place, self._now() - lease.since)

    def lapse(self) -> bool:
        """End leases whose time is well over; except of runs with other requests here, such as a sub-program's. Return
        whether there was one."""
        if not self._open:
            return False
        now = self._now()
        away = [run for run in self._open if not run.requests]
        over = [lease for run in away for lease in run.leases.values() if lease.until <= now]
        parked = [lease for run in away for lease in run.parked.values() if lease.until <= now]
        for lease in over:
            self._end(lease)
            lease.run.lapsed = lease
        for lease in parked:
            self._unpark(lease)
            lease.run.lapsed = lease
            self._settle(lease.run)
        self.lapsed += len(over) + len(parked)
        return bool(over or parked)

    @property
    def patience(self) -> float | None:
        """Return the seconds until the lease of an entirely absent run ends; None: none is expected back. A run with a
        waiting request is not absent: its leases cannot be worth more to it than that request."""
        until = [lease.until for run in self._open if not run.requests for lease in run.leases.values()]
        return max(0.0, min(until) - self._now()) if until else None

    def younger_leases(self, req: Request) -> list[Lease]:
        """Return leases of runs younger than the request's, those of the youngest first."""
        seniority = req.owner.seniority if req.owner is not None else req.seniority
        younger = sorted((run for run in self._open if run.leases and run.seniority > seniority), key=lambda run: run.seniority, reverse=True)
        return [lease for run in younger for lease in run.leases.values()]

    def own_leases(self, req: Request) -> list[Lease]:
        """Return leases of its own run, except the one that it extends: the one used last first, those awaited by other
        requests at the end."""
        if (run := req.owner) is None:
            return []
        goes_on_from = req.lease or self._above(req.behind, run.leases)
        found = [lease for lease in run.leases.values() if lease is not goes_on_from]
        return sorted(found, key=lambda lease: (lease.wanted > 0, -lease.until))

    def reclaimable(self, req: Request, age: int) -> Iterator[Lease]:
        """Return leases that may end for a request that has waited for `age` passes, in order: those that the host has,
        of any run, are only parked; for a run that has its memory, or if none is expected back, also those of younger
        runs, and its own. While others progress it waits for them to end, but not for long: released prefixes are
        recomputed."""
        if req.guess and not self.must_admit:
            return
        if not req.guess:
            yield from self.parkable_leases()
        if self.may_break(req, age):
            yield from self.younger_leases(req)
            yield from self.own_leases(req)

    def may_break(self, req: Request, age: int) -> bool:
        """Return whether leases of its own run and of younger ones may end for a request that has waited for `age` passes."""
        return self.must_admit or (req.is_of_open_run and not (self.running and age < _FOR_OTHERS))

    # -- the room of those that are away -----------------------------------------------------------------------

    @property
    def _price(self) -> Load | None:
        """Return what recomputation costs; None: no run begins in the room of others. Nor does any beside a large host
        tier: who is away is there, at a lower cost, and what has no room there either waits."""
        return None if self._host is not None and self._host.is_large else self._load

    def _is_worth(self, req: Request, lack: int, mean: float) -> bool:
        """Return whether a run that lacks so much room, and has `mean` slots on average, may begin in the room of runs
        that are away. Open runs that have lost all their slots come first."""
        load = self._price
        if load is None or req.guess or (row := load.row) is None or (self._returning and req.owner not in self._returning):
            return False
        for seconds, lease in self._by_next_use():
            lack -= lease.own
            if lack <= 0:  # as much as it has is computed again whenever one such as the last of these comes back
                return row * mean <= load.gain * seconds
        return False

    def affordable(self, req: Request, need: int) -> list[Lease]:
        """Return the leases of other runs that give so many slots, those that are used again last first,
        if what they have computed again costs less than what is gained; else none."""
        load = self._price
        if load is None or req.guess or (row := load.row) is None:
            return []
        found, price, lack = list[Lease](), 0.0, need - self._reservations.unreserved
        for seconds, lease in self._by_next_use():
            if lease.run is req.owner:
                continue
            found.append(lease)
            lack -= lease.own
            price += row * lease.own / seconds
            if price > load.gain:
                return []
            if lack <= 0 and self._tree.freed_by(one.node for one in found) >= need - self._reservations.unreserved:
                return found
        return []

    def _by_next_use(self) -> list[tuple[float, Lease]]:
        """Leases of runs that are away as wholes, and the seconds until they are expected back; the longest first.
        Where nothing is known of a place, none is there."""
        if self._away_longest is None:
            now = self._now()
            known = ((self._until_back(lease, now), lease) for run in self._open for lease in run.leases.values())
            self._away_longest = sorted(((seconds, lease) for seconds, lease in known if seconds is not None), key=lambda one: -one[0])
        return [one for one in self._away_longest if not one[1].run.requests]

    def _until_back(self, lease: Lease, now: float) -> float | None:
        return self._absences.left(lease.place, now - lease.since)

    def parkable_leases(self) -> list[Lease]:
        """Return leases with no waiting request whose prefixes the host has: of all runs, the one used last first."""
        if (host := self._host) is None:
            return []
        found = [lease for run in self._open for lease in run.leases.values() if not lease.wanted and host.has(lease.node)]
        return sorted(found, key=lambda lease: -lease.until)

    def make_room(self, need: int, leases: Iterable[Lease]) -> bool:
        """End leases in order until so many slots are unreserved; none if that is not enough."""
        ending = list(dict.fromkeys(leases))
        if self._reservations.unreserved + self._tree.freed_by(lease.node for lease in ending) < need:
            return False
        for lease in ending:
            if (lack := need - self._reservations.unreserved) <= 0:
                break
            self._break(lease, lack)
        assert self._reservations.unreserved >= need, "what ended leases give back was miscounted"
        return True

    def break_any(self) -> bool:
        """End a lease of the youngest run; return False if there is none."""
        leasing = [run for run in self._open if run.leases]
        if not leasing:
            return False
        run = max(leasing, key=lambda run: run.seniority)
        lease = next(iter(run.leases.values()))
        self._break(lease, lease.own)
        return True

    def _break(self, lease: Lease, lack: int) -> None:
        """Park it, if the host has its prefix. Else release as much of its end as is lacking: that is recomputed."""
        if self._host is None or lease.wanted or not self._host.has(lease.node):
            self.broken += 1
            return self._shorten(lease, lack)
        run = lease.run
        lease.copy = self._host.keep(lease.node)
        if (before := run.parked.get(lease.node)) is not None:
            self._unpark(before)
        self._drop(lease)
        run.parked[lease.node] = lease
        run.away += lease.own
        self._away_tokens += lease.own
        self.parked += 1
        self._hold(run, -lease.own)

    def _shorten(self, lease: Lease, lack: int) -> None:
        """Release the last tokens of it that no other lock holds, as few as needed; all of it if they do not
        suffice."""
        run, node, given = lease.run, lease.node, 0
        while given < lack and node.locks == 1 and node.parent is not None and lease.own > given:
            given += len(node.ids)
            node = node.parent
        if given < lack or given >= lease.own or node in run.leases:
            return self._end(lease)
        self._tree.lock(node)
        self._tree.unlock(lease.node)
        del run.leases[lease.node]
        lease.node, lease.own = node, lease.own - given
        run.leases[node] = lease
        self._hold(run, -given)

    def _unpark(self, lease: Lease) -> None:
        """Unpark a lease. The caller settles its run."""
        run = lease.run
        assert self._host is not None and lease.copy is not None
        self._host.release(lease.copy)
        del run.parked[lease.node]
        run.away -= lease.own
        self._away_tokens -= lease.own

    def expected_back(self) -> Iterator[Lease]:
        """Return parked leases whose runs are expected back, by their usual time away; the earliest first."""
        if not self._away_tokens or self._host is None:
            return
        now, found = self._now(), list[tuple[float, int, Lease]]()
        for lease in itertools.chain.from_iterable(run.parked.values() for run in self._open):
            away = self._absences.mean(lease.place)
            if away is not None and not lease.coming and lease.until < math.inf:
                due = lease.since + away
                if now >= lease.since + away / 2 or now >= due - 2 * self._host.seconds(lease.node.end):
                    found.append((due, len(found), lease))
        yield from (lease for *_, lease in sorted(found))

    def back(self, lease: Lease, node: Node) -> None:
        """Handle that a parked lease is on the device again, up to `node`."""
        lease.coming = False
        run = lease.run
        if run.parked.get(lease.node) is not lease or node in run.leases:
            return  # its run resumed, ended or lapsed meanwhile
        self._unpark(lease)
        lease.node, lease.copy = node, None
        self._tree.lock(node)
        run.leases[node] = lease
        self.leased += 1
        self._hold(run, lease.own)

    def drop_leases(self) -> None:
        for lease in list(self.leases()):
            self._end(lease)
        for run in list(self._open):
            for lease in list(run.parked.values()):
                self._unpark(lease)
            self._settle(run)

    # -- invariants -------------------------------------------------------------------------------------------------

    def check(self, waiting: list[Request], running: list[Request]) -> None:
        """Raise AssertionError unless runs and their requests are consistent."""
        for run in self._runs.values():
            own = [req for req in running if req.owner is run]
            waits = [req for req in waiting if req.owner is run]
            assert run.running == len(own), f"run {run.number}: {run.running} requests run, recorded; {len(own)} do"
            assert run.requests == len(own) + len(waits), f"run {run.number}: {run.requests} requests recorded, {len(own) + len(waits)} there"
            held = sum(req.charged for req in own) + sum(lease.own for lease in run.leases.values())
            assert run.held == held, f"run {run.number}: holds {run.held} slots, recorded; {held}"
            assert (run in self._open) == run.is_open
            assert run.growth == (max(0, run.expected - run.held - run.away) if run.is_open else 0)
            assert run.away == sum(lease.own for lease in run.parked.values())
            for node, lease in run.leases.items():
                assert lease.node is node and node.locks > 0, "a lease on an unlocked node"
                assert lease.wanted == sum(req.lease is lease for req in waits), "a lease's waiter count is wrong"
            assert run.requests or not run.ended or run in self.over, f"run {run.number} has ended"
        assert self.growth == sum(run.growth for run in self._runs.values())
        assert self._returning.keys() == {run for run in self._runs.values() if run.was_open and run.requests and not run.is_open}
        assert self.running == sum(run.running for run in self._runs.values())
        assert self.leased == sum(len(run.leases) for run in self._runs.values())
        assert self._away_tokens == sum(run.away for run in self._runs.values())
        assert all(req.owner is None or self._runs.get(req.owner.number) is req.owner for req in (*waiting, *running)), "a run that is gone"
