"""Admission: which waiting requests join the pass being filled, and what they share with those that are in it.

Longest cached prefix first, with a bound on waiting (waiting.py), as far as there is room in the pass, in the batch, and of
slots that can be promised (promises.py); a run's first request only if its run fits (runs.py). A request with the very same head as one in the pass becomes its *twin*, that
samples from the same logits. (A head is the prompt and the tokens that a constraint forces behind it.) Asks of siblings
enter together, if they can.
"""

from __future__ import annotations

from enum import Enum, auto
from time import perf_counter

from lmc import config
from lmc.backend.engine.filling import Filling, Start
from lmc.backend.engine.holdings import Holdings
from lmc.backend.engine.radix_cache import common_prefix
from lmc.backend.engine.request import Kind, Request
from lmc.backend.engine.waiting import Waiting
from lmc.backend.engine.work import Tally

_ON_ITS_WAY = 2  # passes that the first of a group wait for the others to arrive
_TOGETHER = 16  # passes that a group waits for room for all of it


class _Verdict(Enum):
    ADMITTED = auto()
    LATER = auto()  # another computes what it needs, but not all of it in this pass
    NO_ROOM = auto()
    HELD_BACK = auto()  # its run does not fit beside those that are open


_FULL = (_Verdict.NO_ROOM, _Verdict.HELD_BACK)


class Admission:
    """max_batch: sequences that run together."""

    def __init__(self, held: Holdings, waiting: Waiting, tally: Tally, max_batch: int) -> None:
        self._held, self._waiting, self._tally, self._max_batch = held, waiting, tally, max_batch
        self._runs = held.runs

    def admit(self, filling: Filling) -> None:
        """As many as there is room for.

        Where nothing runs and something waits, a request is admitted, or a copy is being made between device and host, or a run that is away
        is expected back within `Runs.patience` seconds. For what is needed now, its run's own leases and those of younger runs end,
        then pins do; once nobody is expected back, all leases, and then all pins: so whatever fits the empty pool gets in.
        """
        waiting, runs = self._waiting, self._runs
        runs.must_admit = False
        while waiting and not waiting.is_stuck:
            progress, deferred = self._rounds(filling)
            if progress or deferred or not waiting:
                return
            if self._held.running or filling.work.rows or self._held.copies:
                return waiting.stick()
            if runs.patience:
                if not (self._held.pins and waiting.has_needed):
                    return waiting.stick()
                self.unpin_oldest()
            elif not runs.must_admit:
                runs.must_admit = True
            elif not runs.break_any():
                self.unpin_oldest()

    def _rounds(self, filling: Filling) -> tuple[bool, bool]:
        """Admits until nobody enters any more. Whether the last round admitted somebody, and whether somebody who did not
        enter may in the next pass, without that anything ends before."""
        progress, deferred = True, False
        while progress and filling.room > 0 and self._waiting and filling.batch < self._max_batch:
            progress, later = self._round(filling)
            deferred |= later
        return progress, deferred

    def _round(self, filling: Filling) -> tuple[bool, bool]:
        progress, deferred, blocked = False, False, False
        candidates, left, held_back = self._waiting.take(), list[Request](), list[Request]()
        for i, req in enumerate(candidates):
            if filling.room <= 0 or filling.batch >= self._max_batch:
                left.extend(candidates[i:])
                break
            if blocked and not req.is_of_open_run:
                left.append(req)
                continue
            start = filling.start(req)
            if filling.room_of(req) <= 0:
                left.append(req)
                deferred = True
                continue
            verdict = self._together(filling, req, start) or self._try(filling, req, start)
            if verdict is _Verdict.ADMITTED:
                progress = True
                self._entered(req)
                if req in self._held.running and req.arriving is None:  # and not a twin, nor a prefill that was cached as a whole
                    filling.advance(req, start.place)
                continue
            if req.passing and verdict in _FULL:
                self._give_up(req)
                continue
            (held_back if verdict is _Verdict.HELD_BACK else left).append(req)
            deferred |= verdict is _Verdict.LATER
            if verdict in _FULL and (req.preempted or self._waiting.is_starved(req)):
                blocked = True  # nobody passes it any more but who has memory already, and gives it up in the end
        for req in sorted(left, key=lambda r: (bool(r.preempted), -r.order)):
            self._waiting.put_back(req)
        self._waiting.hold_back(held_back)
        return progress, deferred

    def _give_up(self, req: Request) -> None:
        """There is no room for what is only made in passing."""
        self._waiting.remove(req)
        req.done = True
        self._held.completed.append(req)

    def unpin_oldest(self) -> None:
        """Pins are a wish, not a promise. One that gives no room, as what open runs go on from, goes after those that do."""
        pins = self._held.pins
        assert pins, "a request that fits the empty pool was not admitted"
        config.log("schedule", f"KV pool full: releasing the oldest of {len(pins)} pinned prefixes")
        gives_room = (req for req, node in pins.items() if self._held.tree.freed_by((node,)))
        self._held.unpin(next(gives_room, None) or next(iter(pins)))

    # -- one request -------------------------------------------------------------------------------------------

    def _try(self, filling: Filling, req: Request, start: Start) -> _Verdict:
        node, leader, at = start.node, start.leader, min(start.at, req.match_limit)
        if leader is not None:
            if req.is_twin_of(leader) and filling.begins(leader):
                return self._join(req, leader)
            leader.spare &= req.spare  # somebody needs it
            leader.guess &= req.guess
            planned = filling.planned(leader)
            if start.at == planned < min(leader.head_len, req.head_len) and leader.ids[start.at] == req.ids[start.at]:
                return _Verdict.LATER  # it goes on with that in the next pass
            if at == req.head_len:
                return _Verdict.LATER  # a prefill without rows of its own: the next pass finds it cached
        held, upto = self._held, at
        if held.host is not None and leader is None and at < req.match_limit:
            if held.host.is_coming(node, int(req.ids[at])):
                return _Verdict.LATER
            upto = held.host.found(req, at)
        need = held.promises.at_first(req) - at
        held.tree.lock(node)
        if (refusal := self._refusal(req, need, at)) is not None:
            held.tree.unlock(node)
            return refusal
        self._waiting.admitted(req, need)
        held.promises.make(req, need)
        self._runs.admitted(req, need, at, node)
        req.admitted_at = req.admitted_at or perf_counter()
        req.node, req.cached_len, req.device_len = node, node.end, at
        req.found = req.behind = None
        held.enter(req)
        if at > node.end:
            assert leader is not None
            filling.work.followers[req] = at
            req.slots[:at] = leader.slots[:at]
        else:
            held.tree.write_slots(node, req.slots)
        if upto > at:
            held.fetch(req, upto)
        self._count_prompt(req, min(req.device_len, req.prompt_len))
        if req.kind is Kind.PREFILL and not req.in_head and req.arriving is None:
            held.complete(req)
        return _Verdict.ADMITTED

    def _refusal(self, req: Request, need: int, at: int) -> _Verdict | None:
        """Why it may not be promised so many slots; None if it may."""
        runs = self._runs
        if not runs.may_run(req, need, at):
            runs.refused(req, need, at)
            return _Verdict.HELD_BACK
        if self._held.promises.spare >= need or runs.make_room(need, runs.reclaimable(req, self._waiting.age(req))):
            return None
        if (leases := runs.affordable(req, need)) and runs.make_room(need, leases):
            return None
        return _Verdict.NO_ROOM

    def _join(self, req: Request, leader: Request) -> _Verdict:
        """A twin: it runs from the moment its leader's head is there, which is the end of this pass."""
        promises = self._held.promises
        need = promises.at_first(req) - req.head_len
        if (refusal := self._refusal(req, need, req.head_len)) is not None:
            return refusal
        self._waiting.admitted(req, need)
        promises.make(req, need)
        self._runs.admitted(req, need, req.head_len, leader.node or self._held.tree.root)
        req.admitted_at = req.admitted_at or perf_counter()
        leader.twins.append(req)
        self._tally.twins += 1
        self._count_prompt(req, req.prompt_len)
        return _Verdict.ADMITTED

    def _count_prompt(self, req: Request, cached: int) -> None:
        if req.preempted:
            return  # it was counted when it came
        req.hit_len = cached
        self._tally.prompt_tokens += req.prompt_len
        self._tally.cached_tokens += cached

    # -- groups ------------------------------------------------------------------------------------------------

    def _together(self, filling: Filling, req: Request, start: Start) -> _Verdict | None:
        """Why a request has to wait for the others of its group, or with them; None if it has not. Not for ever: a wish,
        not a promise."""
        group = req.group
        if group is None or group.entered is not None:
            return None
        age = self._waiting.age(req)
        if group.missing > 0 and age < _ON_ITS_WAY:
            return _Verdict.LATER
        if age > _TOGETHER or len(group.waiting) > self._max_batch:
            return None
        shared = min(common_prefix(req.ids[: req.head_len], other.ids[: other.head_len]) for other in group.waiting)
        promises = self._held.promises
        need = sum(promises.at_first(other) - shared for other in group.waiting) + max(0, shared - start.at)
        if need > self._held.pool.num_slots:
            return None
        fits = promises.spare >= need and filling.batch + len(group.waiting) <= self._max_batch
        return None if fits else _Verdict.NO_ROOM

    def _entered(self, req: Request) -> None:
        self._runs.must_admit = False
        group = req.group
        if group is None:
            return
        group.waiting.remove(req)
        now = self._waiting.clock
        group.split |= group.entered not in (None, now)
        group.entered = now
        if not group.waiting and not group.missing:
            self._tally.groups += not group.split
            self._tally.split_groups += group.split
