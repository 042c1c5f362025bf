"""Admission: the waiting requests that join the pass being built, and the prefixes they share with those in it.

Longest cached prefix first, with a bound on waiting (waiting.py), as far as there is room in the pass and the batch,
and slots that can be reserved (reservations.py); a run's first request only if its run fits (runs.py). A request with the
same head as one in the pass becomes its *twin*, which samples from the same logits. (A head is the prompt and the
tokens that a constraint forces after it.) Requests of siblings enter together, if they can.
"""

from __future__ import annotations

import sys
from enum import Enum, auto
from time import perf_counter

from lmc import config
from lmc.backend.engine.batch_builder import BatchBuilder, Start
from lmc.backend.engine.forward_batch import PassCounts
from lmc.backend.engine.radix_cache import Node, common_prefix
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.slot_ownership import SlotOwnership
from lmc.backend.engine.waiting import WaitingQueue

_ON_ITS_WAY = 2  # passes that the first members of a group wait for the rest to arrive
_TOGETHER = 16  # passes that a group waits for room for all of it


class _Verdict(Enum):
    ADMITTED = auto()
    LATER = auto()  # another computes what it needs, but not all of it in this pass
    NO_ROOM = auto()
    HELD_BACK = auto()  # its run does not fit beside the open ones


_FULL = (_Verdict.NO_ROOM, _Verdict.HELD_BACK)


class Admission:
    """Admits requests. max_batch: sequences that run together."""

    def __init__(self, held: SlotOwnership, waiting: WaitingQueue, tally: PassCounts, max_batch: int) -> None:
        self._held, self._waiting, self._tally, self._max_batch = held, waiting, tally, max_batch
        self._runs = held.runs
        self._too_much = sys.maxsize  # least slots that were refused in this round: more are not tried again

    def admit(self, builder: BatchBuilder) -> None:
        """Admit as many as there is room for.

        If nothing runs and something waits, a request is admitted, or a copy is being made between device and host, or
        an absent run is expected back within `Runs.patience` seconds. To make room for it, its run's own leases and
        those of younger runs end, then pins do; once no run is expected back, all leases, and then all pins: so
        everything that fits the empty pool gets in.
        """
        waiting, runs = self._waiting, self._runs
        runs.must_admit = False
        while waiting and not waiting.is_stuck:
            progress, deferred = self._rounds(builder)
            if progress or deferred or not waiting:
                return
            if self._held.running or builder.work.rows or self._held.copies:
                return waiting.stick()
            if runs.patience:
                if not (self._held.pins and waiting.has_needed):
                    return waiting.stick()
                self.unpin_oldest()
            elif not runs.must_admit:
                runs.must_admit = True
            elif not runs.break_any():
                self.unpin_oldest()

    def _rounds(self, builder: BatchBuilder) -> tuple[bool, bool]:
        """Admit until no further request enters. Return whether the last round admitted one, and whether one that did
        not enter may in the next pass, without anything ending before."""
        progress, deferred = True, False
        while progress and builder.room > 0 and self._waiting and builder.batch < self._max_batch:
            progress, later = self._round(builder)
            deferred |= later
        return progress, deferred

    def _round(self, builder: BatchBuilder) -> tuple[bool, bool]:
        progress, deferred, blocked = False, False, False
        self._too_much = sys.maxsize
        candidates, left, held_back = self._waiting.take(), list[Request](), list[Request]()
        for i, req in enumerate(candidates):
            if builder.room <= 0 or builder.batch >= self._max_batch:
                left.extend(candidates[i:])
                break
            if blocked and not req.is_of_open_run:
                left.append(req)
                continue
            start = builder.start(req)
            if builder.room_of(req) <= 0:
                left.append(req)
                deferred = True
                continue
            verdict = self._together(builder, req, start) or self._try(builder, req, start)
            if verdict is _Verdict.ADMITTED:
                progress = True
                self._entered(req)
                if req in self._held.running and req.arriving is None:  # and not a twin, nor a fully cached prefill
                    builder.advance(req, start.place)
                continue
            if req.passing and verdict in _FULL:  # a prefill that is only made in passing is given up
                self._waiting.remove(req)
                req.done = True
                self._held.completed.append(req)
                continue
            (held_back if verdict is _Verdict.HELD_BACK else left).append(req)
            deferred |= verdict is _Verdict.LATER
            if verdict in _FULL and (req.preempted or self._waiting.is_starved(req)):
                blocked = True  # from now on only requests that already hold memory, and will release it, may pass it
        for req in sorted(left, key=lambda r: (bool(r.preempted), -r.order)):
            self._waiting.put_back(req)
        self._waiting.hold_back(held_back)
        return progress, deferred

    def unpin_oldest(self) -> None:
        """Unpin the oldest pin: pins are a wish, not a guarantee. One that frees nothing, as open runs extend it, goes
        after those that do."""
        pins = self._held.pins
        assert pins, "a request that fits the empty pool was not admitted"
        config.log("schedule", f"KV pool full: releasing the oldest of {len(pins)} pinned prefixes")
        gives_room = (req for req, node in pins.items() if self._held.tree.freed_by((node,)))
        self._held.unpin(next(gives_room, None) or next(iter(pins)))

    # -- one request -------------------------------------------------------------------------------------------

    def _try(self, builder: BatchBuilder, req: Request, start: Start) -> _Verdict:
        node, leader, at = start.node, start.leader, min(start.at, req.match_limit)
        if leader is not None:
            if req.is_twin_of(leader) and builder.begins(leader):
                return self._join(req, leader)
            leader.low_priority &= req.low_priority  # a request needs it
            leader.guess &= req.guess
            planned = builder.planned(leader)
            if start.at == planned < min(leader.head_len, req.head_len) and leader.ids[start.at] == req.ids[start.at]:
                return _Verdict.LATER  # it continues with that in the next pass
            if at == req.head_len:
                return _Verdict.LATER  # a prefill without rows of its own: the next pass finds it cached
        held = self._held
        host = held.host if leader is None and at < req.match_limit else None
        if host is not None and host.is_coming(node, int(req.ids[at])):
            return _Verdict.LATER
        need = held.reservations.at_first(req) - at
        takes = need + held.tree.unlocked(node)  # of what is unreserved
        if takes >= self._too_much and not self._runs.may_break(req, self._waiting.age(req)) and self._runs.may_run(req, need, at):
            return _Verdict.NO_ROOM
        held.tree.lock(node)
        if (refusal := self._refusal(req, need, at)) is not None:
            held.tree.unlock(node)
            if refusal is _Verdict.NO_ROOM and held.running and not req.guess:
                self._too_much = min(self._too_much, takes)
            return refusal
        self._take(req, need, at, node)
        req.node, req.cached_len, req.device_len = node, node.end, at
        req.found = req.behind = None
        held.start(req)
        if at > node.end:
            assert leader is not None
            builder.work.followers[req] = at
            req.slots[:at] = leader.slots[:at]
        else:
            held.tree.write_slots(node, req.slots)
        if host is not None and (upto := host.found(req, at)) > at:
            held.fetch(req, upto)
        self._count_prompt(req, min(req.device_len, req.prompt_len))
        if req.kind is RequestKind.PREFILL and not req.in_head and req.arriving is None:
            held.complete(req)
        return _Verdict.ADMITTED

    def _refusal(self, req: Request, need: int, at: int) -> _Verdict | None:
        """Return why it may not reserve so many slots; None if it may."""
        runs = self._runs
        if not runs.may_run(req, need, at):
            runs.refused(req, need, at)
            return _Verdict.HELD_BACK
        if self._held.reservations.unreserved >= need or runs.make_room(need, runs.reclaimable(req, self._waiting.age(req))):
            return None
        if (leases := runs.affordable(req, need)) and runs.make_room(need, leases):
            return None
        return _Verdict.NO_ROOM

    def _join(self, req: Request, leader: Request) -> _Verdict:
        """Make it a twin: it runs from the moment its leader's head is computed, which is the end of this pass."""
        need = self._held.reservations.at_first(req) - req.head_len
        if (refusal := self._refusal(req, need, req.head_len)) is not None:
            return refusal
        self._take(req, need, req.head_len, leader.node or self._held.tree.root)
        leader.twins.append(req)
        self._tally.twins += 1
        self._count_prompt(req, req.prompt_len)
        return _Verdict.ADMITTED

    def _take(self, req: Request, need: int, at: int, node: Node) -> None:
        """Take it out of the queue, and reserve what it needs after `at` tokens that are present, cached up to `node`."""
        self._waiting.admitted(req, need)
        self._held.reservations.reserve(req, need)
        self._runs.admitted(req, need, at, node)
        req.admitted_at = req.admitted_at or perf_counter()

    def _count_prompt(self, req: Request, cached: int) -> None:
        if req.preempted:
            return  # it was counted on arrival
        req.hit_len = cached
        self._tally.prompt_tokens += req.prompt_len
        self._tally.cached_tokens += cached

    # -- groups ------------------------------------------------------------------------------------------------

    def _together(self, builder: BatchBuilder, req: Request, start: Start) -> _Verdict | None:
        """Return why a request has to wait for the others of its group, or with them; None if it need not. Not forever:
        a wish, not a guarantee."""
        group = req.group
        if group is None or group.entered is not None:
            return None
        age = self._waiting.age(req)
        if group.missing > 0 and age < _ON_ITS_WAY:
            return _Verdict.LATER
        if age > _TOGETHER or len(group.waiting) > self._max_batch:
            return None
        shared = min(common_prefix(req.ids[: req.head_len], other.ids[: other.head_len]) for other in group.waiting)
        reservations = self._held.reservations
        need = sum(reservations.at_first(other) - shared for other in group.waiting) + max(0, shared - start.at)
        if need > self._held.pool.num_slots:
            return None
        fits = reservations.unreserved >= need and builder.batch + len(group.waiting) <= self._max_batch
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
