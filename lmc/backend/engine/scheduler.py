"""The scheduler: which rows run in the next pass, in which slots.

    requests short of slots reserve more, else the last are preempted ─► decoding rows ─► rows of prompts ─► admission
                                                                                                                │
    waiting.py ── next ──► admission.py ── joins ──► batch_builder.py ── rows in slots ──► slot_ownership.py ◄──┘

Waiting requests are admitted longest cached prefix first, with a bound on waiting, and reserved slots (reservations.py);
runs of programs as wholes, which keep what they will use again (runs.py). Passes are filled so that no request waits
for long behind a long prompt (pace.py). Requests that need more slots reserve more. If there are none, the last in the
plan's order are preempted: their KV stays cached while there is room, and they go first as soon as there is room for
more than they had. Each request is preempted a few times at most, the first in the order only by fully reserved ones,
which end.

Pure bookkeeping on token ids and slots: no model, no text, no threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from lmc import config
from lmc.backend.engine.admission import Admission
from lmc.backend.engine.batch_builder import FREE_ROWS, BatchBuilder
from lmc.backend.engine.draft_costs import Costs
from lmc.backend.engine.drafts import Drafts
from lmc.backend.engine.forward_batch import Draft, Foreseen, ModelPass, PassCounts, Rows
from lmc.backend.engine.load import CopyRates
from lmc.backend.engine.pace import Pace
from lmc.backend.engine.policy import OWN, Policy
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.reservations import AnswerLengths, most_preemptions
from lmc.backend.engine.riders import Riders
from lmc.backend.engine.slot_ownership import SlotOwnership
from lmc.backend.engine.waiting import WaitingQueue

if TYPE_CHECKING:
    from lmc.backend.engine.kv_copy import KVMover

_FOR_THE_FIRST = 4  # 1/n of the contested rows of a pass goes to the first prompt
_NO_IDS = np.empty(0, np.int32)
_GROWS = 0.02  # seconds after which an idle engine looks whether the host tier has more room


class Scheduler:
    """max_batch: sequences that run together. chunk: rows of one pass; sampled tokens leave at least half of it to
    known text, prompts and forced runs. pace: how many of those keep a pass short enough. now: seconds."""

    def __init__(
        self, num_slots: int, *, max_batch: int = 64, chunk: int = 512, policy: Policy = OWN, pace: Pace | None = None,
        now: Callable[[], float] = time.monotonic, mover: KVMover | None = None, drafts: Drafts | None = None,
    ) -> None:  # fmt: skip
        self.max_batch, self.chunk, self.policy, self._now = max_batch, chunk, policy, now
        self.pace = pace or Pace(chunk)
        self.drafts = drafts or Drafts("off", Costs(ahead=False, row=0.0))
        self.tally = PassCounts()
        self._turns = False  # positions may have to be rotated again
        self.lengths = AnswerLengths()
        self._mover, self._rates = mover, CopyRates()
        self._begin_with(SlotOwnership(num_slots, self.lengths, policy, now, mover, self._rates))

    def reset(self) -> None:
        """Forget everything, as after a failed pass: requests, pins, cached KV."""
        self.held.abandon()
        if self.drafts.model is not None:
            self.drafts.model.reset()
        before = self.runs
        self._begin_with(SlotOwnership(self.pool.num_slots, self.lengths, self.policy, self._now, self._mover, self._rates))
        self.runs.learn_from(before)

    def _begin_with(self, held: SlotOwnership) -> None:
        self.held = held
        self.pool, self.tree, self.reservations = held.pool, held.tree, held.reservations
        self.running, self.pins, self.runs = held.running, held.pins, held.runs
        self.waiting, self.riders = WaitingQueue(held), Riders(held, self.drafts, self.tally)
        self._admission = Admission(held, self.waiting, self.tally, self.max_batch)

    # -- in and out --------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not (self.running or self.waiting or self.runs.over or self.held.copies)

    @property
    def patience(self) -> float:
        """Return the seconds until something may be admitted if nothing runs and all waiting requests wait for runs
        that are expected back."""
        if self.running or self.runs.over or self.held.copies or not self.waiting.is_stuck:
            return 0.0
        patience = self.runs.patience or 0.0
        return min(patience, _GROWS) if self.held.host is not None and self.held.host.grows else patience

    def add(self, req: Request) -> bool:
        """Take a request in. Return whether it is the first of its run here, whose end must then be reported to
        `runs.end`."""
        assert req.need <= self.pool.num_slots, "does not fit the pool; refuse it at submit"
        self._turns |= req.near is not None
        req.is_far = req.exceeds_near
        is_new = self.policy.schedule == "program" and self.runs.meet(req)
        self.waiting.add(req)
        return is_new

    def cancel(self, req: Request) -> None:
        """Take a request out, wherever it is; free its slots."""
        if req in self.running:
            self.held.finish(req, req.cached_len)
        elif req in self.waiting:
            self.waiting.remove(req)
        req.done = True

    def flush(self) -> None:
        """Drop all cached KV that no running request needs, pins included."""
        self.held.flush()
        if self.drafts.model is not None:
            self.drafts.model.flush()

    def has_prompts(self, rows: int) -> bool:
        """Return whether so many rows of prompts could run now; of waiting requests only the first are checked."""
        found = sum(req.head_len - req.device_len for req in self.running if req.in_head)
        room = 0 if self.waiting.is_stuck else max(0, self.max_batch - len(self.running))
        return found + self.waiting.uncached(room, rows - found) >= rows

    # -- the next pass -----------------------------------------------------------------------------------------

    def schedule(self, rows: int | None = None, unreported: Iterable[Request] = ()) -> ModelPass | None:
        """Return the next pass, with slots for its rows; None if there is nothing to compute.

        rows        no more of prompts and forced runs than leave so many in all
        unreported  requests that have ended, whose listeners do not know yet
        """
        self.waiting.clock += 1
        self.held.complete_copies()
        closed = self.runs.close(unreported)  # now that the requests following their last answers have arrived
        lapsed = len(self.waiting) > 0 and self.runs.lapse()
        if closed or lapsed:
            self.held.changes += 1
        self.waiting.promote()
        self._turn()
        self._secure()
        self._make_room()
        decoding, others = list[Request](), list[Request]()
        for req in self.running:
            if req.arriving is not None:
                continue
            if req.device_len < req.head_len or req.kind is not RequestKind.GENERATE:
                others.append(req)
            elif not (req.in_flight and req.is_completing):
                decoding.append(req)
        known = [req.extend_len for req in decoding]
        most = min(rows or self.chunk, self.pace.rows(decoding), self.chunk) if others or self.waiting else self.chunk
        builder = BatchBuilder(self.held, self.waiting, most)
        spare = self._spare_rows(known, others) if self.drafts.setting != "off" else 0
        builder.decode(decoding, known, self.drafts.propose(decoding, spare))
        if spare > builder.work.checked:
            self.riders.join(builder, decoding, spare - builder.work.checked)
        others = self._shared(others, builder)
        for req in others:
            assert req.node is not None
            builder.advance(req, req.node)
        self._admission.admit(builder)
        if not self.waiting.ready:
            self.held.fetch_ahead()
        work = builder.done()
        if work is not None:
            self.tally.passes += 1
            self.tally.rows += work.rows
        return work

    def foresee(self, work: ModelPass) -> Foreseen | None:
        """Return the pass that `schedule` will plan if the drafts of the one in flight are right as a whole, of a lone answer that nothing but its tokens
        continues; None if that is unlikely."""
        if self.waiting or len(self.running) != 1 or len(work.spans) != 1 or len(work.samples) != 1:
            return None
        _, req = work.samples[0]
        if req not in self.running or req.answer is None or req.answer.matcher is not None or req.is_scored or not req.awaited:
            return None
        if req.near is not None and not req.is_far:
            return None
        draft = work.drafts.get(req)
        found = self.drafts.foresee(req, () if draft is None else draft.ids.tolist(), FREE_ROWS - 1)
        if found is None:
            return None
        tokens, ids = found
        if not req.answer.goes_on(tokens) or self.riders.may_follow(req, [*tokens, *ids.tolist()]):
            return None
        following = self._of_one(req, np.array(tokens[-1:], np.int32), req.length + len(tokens) - 2, ids)
        return following and Foreseen(tokens, following)

    def following(self) -> Foreseen | None:
        """Return the pass that `schedule` will plan, if it is of a lone answer whose tokens are known; what that proposes as its draft is proposed again."""
        if self.waiting or len(self.running) != 1:
            return None
        (req,) = self.running
        if req.kind is not RequestKind.GENERATE or req.in_head or req.in_flight or req.ending is not None or req.is_scored or req.arriving is not None:
            return None
        n, at, draft = req.extend_len, req.device_len, _NO_IDS
        if not 0 < n <= FREE_ROWS:
            return None
        if self.drafts.setting != "off":
            draft = self.drafts.propose([req], self._spare_rows([n], [])).get(req, _NO_IDS)
            self.drafts.expect(req, draft, is_proposed=True)
            if self.riders.may_follow(req, draft.tolist()):
                return None
        following = self._of_one(req, req.ids[at : at + n], at, draft)
        return following and Foreseen([], following)

    def _of_one(self, req: Request, known: np.ndarray, at: int, draft: np.ndarray) -> ModelPass | None:
        """Return a pass of one answer's `known` tokens, of which the first has index `at`, and its draft; None if that needs slots of others."""
        n, rows = len(known), len(known) + len(draft)
        if rows > self.pool.free_count or rows - req.reserved > self.reservations.unreserved:
            return None
        work = ModelPass(samples=[(n - 1, req)], checked=len(draft), drafts={req: Draft(draft, n, at + n, 0)} if len(draft) else {})
        slots = np.concatenate((req.slots[:at], self.pool.next(rows)))
        work.add(Rows(req, np.concatenate((known, draft)), at, slots, None, req.is_far))
        work.complete()
        return work

    def _spare_rows(self, known: list[int], others: list[Request]) -> int:
        """Return the rows of the next pass that are nearly free: none if prompts wait for them."""
        if self.waiting.ready:
            return 0
        return FREE_ROWS - sum(known) - sum(req.head_len - req.device_len for req in others)

    def _shared(self, others: list[Request], builder: BatchBuilder) -> list[Request]:
        """Return requests with prompt rows in this pass, in order, if they do not all fit: the shortest first, waiting
        ones included; but a quarter for the one that arrived first, so that it progresses."""
        self.waiting.shortest_first = False
        if not others or builder.room <= 0 or self.policy.schedule != "program":
            return others
        left = [(req.head_len - req.device_len, req) for req in others if req.in_head]
        room = builder.room
        if sum(rows for rows, _ in left) <= room:
            return others
        first, longest = left[0][1], max(left, key=lambda one: one[0])
        least = room // _FOR_THE_FIRST
        shorter = self.waiting.rows_of_shorter(longest[0] // 2, room - least, longest[1].party) if len(self.running) < self.max_batch else 0
        if not shorter and len({req.party for _, req in left}) == 1:
            return others
        self.waiting.shortest_first = shorter > 0
        room -= shorter
        builder.allow(first, min(left[0][0], least))
        room -= builder.allowed(first)
        for rows, req in sorted(left, key=lambda one: one[0]):
            more = min(rows - builder.allowed(req), max(0, room))
            builder.allow(req, builder.allowed(req) + more)
            room -= more
        return others

    def commit(self, work: ModelPass) -> None:
        """Commit a pass that has run, or will have before anything planned from now on: its KV is valid. Prompt chunks
        go to the tree at once, so that others can use them; its sampled tokens get their places."""
        held, drafts = self.held, work.drafts
        work.places = [req.expect() for _, req in work.samples]
        for req, ids, _, _, branch, _ in work.spans:
            if req.done:
                continue
            n = len(ids)
            if branch is not None:
                self.tally.prefilled_tokens += n
                self.tally.unique_tokens += n
                continue
            if drafts and req in drafts:
                n -= len(drafts[req].ids)  # it is not known whether these are drawn
            if req in work.followers:  # the ones it follows come before it
                held.adopt_prefix(req, work.followers.pop(req))
            before = req.device_len
            req.device_len = now = before + n
            if before < req.computed:
                self.tally.recomputed_tokens += min(now, req.computed) - before
            if before >= req.head_len:
                assert now <= req.wanted_len, f"request {req.order}: on device {now}, known {req.length}"
                continue
            self._count(req, before)
            if not req.in_head:
                held.release_twins(req)
                if req.kind is RequestKind.PREFILL:
                    held.complete(req)
            req.check()

    def _count(self, req: Request, before: int) -> None:
        """Give the computed part of a head to the tree."""
        prompt = min(req.device_len, req.prompt_len)
        if prompt > before:
            self.tally.prefilled_tokens += prompt - before
            self.tally.unique_tokens += self.held.donate_to_cache(req, prompt)
        if req.device_len > prompt:
            self.held.donate_to_cache(req, req.device_len)  # forced tokens: not requested, so not counted

    def accept(self, req: Request, tokens: int = 1) -> None:
        """Accept the next tokens of its draft, which were drawn: their KV is valid."""
        req.device_len, req.draft = req.device_len + tokens, req.draft - tokens

    def learn(self, rows: int, seconds: float) -> None:
        """Record how long a pass of so many rows has taken."""
        self.pace.learn(rows, seconds)
        self._rates.learn_pass(rows, seconds)
        self.runs.learn_pass(rows, seconds, len(self.running))

    def close(self) -> None:
        """Free the host tier's memory; nothing is scheduled any longer."""
        if self._mover is not None:
            self._mover.close()

    def wait_for_copies(self) -> None:
        """Wait, when nothing can run, until a copy between device and host is done, if one is being made."""
        if self.held.host is not None:
            self.held.host.wait()

    def host_stats(self) -> dict[str, int]:
        """Return the host tier's tokens, and copy counters."""
        host, size = self.held.host, self._mover.token_bytes if self._mover is not None else 0
        if host is None:
            return {}
        return {
            "host_slots": host.capacity, "host_tokens": host.size, "host_out": host.saved, "host_in": host.fetched,
            "host_bytes": (host.saved + host.fetched) * size, "host_hits": host.fetches, "host_ahead": host.ahead,
            "host_failed": host.failed, "parked_leases": self.runs.parked,
        }  # fmt: skip

    # -- preemption --------------------------------------------------------------------------------------------

    @property
    def may_preempt(self) -> bool:
        """Return whether the next pass may preempt a request, unless something ends before."""
        return self.reservations.is_short or bool(self._beyond_near()) or self._in_the_way() is not None

    def _secure(self) -> None:
        """Reserve the slots of the next rows, in order; the last requests release theirs if there are no more."""
        reservations = self.reservations
        if not (short := reservations.short()):
            return
        self.runs.lapse()
        ahead = reservations.left_for(short)
        for req in sorted(short, key=lambda r: r.seniority):
            while req in reservations.open and reservations.unreserved < req.missing:
                last = max(reservations.open, key=lambda r: r.seniority)
                leases = self.runs.younger_leases(req) + (self.runs.own_leases(req) if last.owner is req.owner else [])
                if not any(other.guess for other in reservations.open) and self.runs.make_room(req.missing, leases):
                    break
                if len(self.running) == 1 and self.pins:
                    self._admission.unpin_oldest()
                else:
                    self._preempt(last)
            if req in reservations.open:
                reservations.extend(req, ahead)

    def _make_room(self) -> None:
        """Preempt guesses while others wait. One that a pass computes was not in the way when that was known: it is the next time."""
        while (req := self._in_the_way()) is not None and not req.in_flight:
            self._preempt(req)

    def _in_the_way(self) -> Request | None:
        """Return the last of the running guesses, if a needed request waits and there is no room for both."""
        guesses = [req for req in self.running if req.guess and req.kind is RequestKind.GENERATE]
        needed = self.waiting.first_needed() if guesses else None
        if needed is None:
            return None
        slots = self.reservations.at_first(needed) - self.waiting.cached(needed).end
        return max(guesses, key=lambda r: r.seniority) if len(self.running) >= self.max_batch or self.reservations.unreserved < slots else None

    def _beyond_near(self) -> list[Request]:
        return [req for req in self.running if req.exceeds_near] if self._turns else []

    def _turn(self) -> None:
        """Rotate positions again of a sequence that has become too long for its present rotation, and recompute all of
        it."""
        for req in self._beyond_near():
            self._preempt(req)
            req.is_far = True

    def _preempt(self, req: Request) -> None:
        """Take a request out of the batch and keep its answer so far; its KV stays cached for a while."""
        assert not req.in_flight and not req.awaited, "preempted while a pass computes it"
        req.computed = max(req.computed, req.device_len)
        self.held.preempt(req, req.device_len)
        req.head_len, req.device_len, req.cached_len = req.wanted_len, 0, 0
        req.behind, req.found, req.kept = req.kept and req.kept(), None, None  # a twin keeps its match from its first wait
        req.preempted += 1
        req.group = None
        self.tally.preemptions += 1
        self.waiting.put_back(req)
        self.waiting.joins(req)
        why = "longer than its turn of positions" if req.exceeds_near else "KV pool full"
        config.log("schedule", f"{why}: {req.length} tokens of request {req.order} wait, for the {req.preempted}. time")

    # -- invariants -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if a slot leaks, is owned twice, or a lock or reservation has no owner."""
        self.held.check(self.riders.slots())
        if self.drafts.model is not None:
            self.drafts.model.check()
        self.runs.check(list(self.waiting), list(self.running))
        often = [r for r in (*self.running, *self.waiting) if not r.guess and r.preempted > most_preemptions(r) + r.is_far]
        assert not often, "preempted too often"
        assert all(r in self.running or not r.reserved for r in self.waiting), "a reservation of one that waits"
        if self.idle:
            assert not self.reservations.reserved
        if self.waiting and self.waiting.is_stuck and not self.running and not self.held.copies:
            assert self.runs.patience is not None, "a request waits although nothing runs and no run is expected back"
            assert not (self.pins and self.waiting.has_needed), "nothing runs, and a request waits for a pin"
