"""The scheduler: what runs in the next pass, in which slots; and who owns the slots afterwards.

Waiting requests are admitted longest cached prefix first, with a bound on waiting, and promised slots (promises.py). What
needs more than that is promised more. Where there is no more, the last in the plan's order are preempted: what they have
computed stays cached as long as there is room, and they go first as soon as there is room for more than they had. Each
request is preempted a few times at most, the first in the order only by those that are promised everything, which end.

Two requests never compute the same prompt token: one with rows in
this pass *claims* (place, next token), and another that needs the same token *follows* it, in this very pass: its rows
attend to the slots that the other's rows write, and go on where the two prompts part. One with the very same head
becomes a *twin* that samples from the same logits. (A head is the prompt and the tokens that a constraint forces behind
it.) So the trie of a cold batch takes as many passes as its rows do, not as it is deep.

Pure bookkeeping on token ids and slots: no model, no text, no threads.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

import numpy as np

from lmc import config
from lmc.backend.engine.kv_pool import SlotAllocator
from lmc.backend.engine.lengths import Lengths
from lmc.backend.engine.promises import Promises, most_preemptions
from lmc.backend.engine.radix_cache import Node, RadixCache, common_prefix
from lmc.backend.engine.request import Kind, Request
from lmc.backend.engine.work import Pass, Rows, Score

_LOOKED_AT = 64  # waiting requests whose prompts are counted
_WINDOW = 256  # waiting requests looked at in one pass
FREE_ROWS = 188
"""Rows of a pass that are nearly free: below it, reading the weights takes the time (docs/performance.md)."""
_PATIENCE = 512  # passes after which a request goes first, whatever is cached
_ON_ITS_WAY = 2  # passes that the first of a group wait for the others to arrive
_TOGETHER = 16  # passes that a group waits for room for all of it


@dataclass(slots=True)
class Tally:
    """Counts since the start (backend/base.py, Counters)."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    unique_tokens: int = 0
    passes: int = 0
    rows: int = 0
    groups: int = 0  # admitted in one pass
    split_groups: int = 0  # not so, for want of room
    twins: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0  # of those that were preempted, and not cached any more


class _Verdict(Enum):
    ADMITTED = auto()
    LATER = auto()  # another computes what it needs, but not all of it in this pass
    NO_ROOM = auto()


Place = Node | tuple[Request, int]
"""Where a prompt goes on: behind a node of the tree, or behind so many tokens of a request that has rows in this pass."""


class _Start(NamedTuple):
    """Where a request's own rows begin: behind what is cached, and what others compute in this pass.

    node    where what is cached ends
    at      tokens of its head that it need not compute;  leader: who computes the last of them; None: they are cached
    """

    node: Node
    at: int
    place: Place
    leader: Request | None


class Scheduler:
    """max_batch: sequences that run together. chunk: rows of one pass, as far as sampled tokens leave half of it to known
    text, prompts and forced runs."""

    def __init__(self, num_slots: int, *, max_batch: int = 64, chunk: int = 512) -> None:
        self.max_batch, self.chunk = max_batch, chunk
        self.tally = Tally()
        self._clock = 0
        self.pins: dict[Request, Node] = {}
        self.lengths = Lengths()
        self.tree = RadixCache()
        self.reset(num_slots)

    def reset(self, num_slots: int | None = None) -> None:
        """Forgets everything, as after a failed pass: requests, pins, cached KV."""
        self.pool = SlotAllocator(num_slots or self.pool.num_slots)
        self.tree.give_up()
        self.tree = RadixCache()
        self.completed: list[Request] = []  # PREFILLs that ended; the engine takes them from here
        self.waiting: OrderedDict[Request, None] = OrderedDict()  # who is next, first
        self.running: dict[Request, None] = {}  # in order of admission
        for req in self.pins:
            req.pinned = False
        self.pins.clear()
        self.promises = Promises(self.pool, self.tree, self.lengths)
        self._claims: dict[tuple[Place, int], Request] = {}  # of this pass: who computes the token after a place
        self._planned: dict[Request, int] = {}  # of this pass: how much of its head a request will have computed
        self._followers: dict[Request, int] = {}  # of this pass: how much of its head others compute
        self._stuck = False  # nothing that waits fits until something changes
        self._kept_in = 0  # the last pass in which something was evicted

    # -- in and out --------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not (self.running or self.waiting)

    def add(self, req: Request) -> None:
        assert req.need <= self.pool.num_slots, "does not fit the pool; refuse it at submit"
        req.since = self._clock
        self.waiting[req] = None
        if req.group is not None:
            req.group.waiting.append(req)
        self._stuck = False

    def cancel(self, req: Request) -> None:
        """Takes a request out, wherever it is; frees what it holds."""
        if req in self.running:
            self.finish(req, req.cached_len)
        elif req in self.waiting:
            del self.waiting[req]
            if req.group is not None:
                req.group.waiting.remove(req)
                self._stuck = False
        req.done = True

    def finish(self, req: Request, keep: int) -> None:
        """Ends a running request: KV of `ids[:keep]` goes to the tree, the rest is freed."""
        self._leave(req, keep)
        req.done = True
        if not self.running:
            self.pool.tidy()

    def _leave(self, req: Request, keep: int) -> None:
        assert req.node is not None and not req.twins
        if keep > req.cached_len:
            self._give_to_tree(req, keep)
        self.pool.free(req.slots[req.cached_len : req.device_len])
        req.device_len = req.cached_len
        self.pool.free(req.row_slots[req.held_rows])
        req.row_slots[:] = -1
        self.tree.unlock(req.node)
        if req.kept is None and req.cached_len <= keep:  # and not cut before tokens that were forced, or computed again
            req.kept = weakref.ref(req.node)
        req.node = None
        self.promises.end(req)
        del self.running[req]
        self._stuck = False

    def unpin(self, req: Request) -> None:
        """Ends the pin of a finished PREFILL; nothing happens if it was broken or ended before."""
        node = self.pins.pop(req, None)
        req.pinned = False
        if node is not None:
            self.tree.unlock(node)
            self._stuck = False

    def flush(self) -> None:
        """Drops all cached KV that nothing running needs, pins included."""
        for req in list(self.pins):
            self.unpin(req)
        self.pool.free(self.tree.clear())

    def has_prompts(self, rows: int) -> bool:
        """Whether so many rows of prompts could run now; of what waits only the first requests are looked at."""
        found = sum(req.head_len - req.device_len for req in self.running if req.in_head)
        room = 0 if self._stuck else self.max_batch - len(self.running)
        for req in islice(self.waiting, min(_LOOKED_AT, max(0, room))):
            if found >= rows:
                break
            found += req.head_len - self._cached(req).end
        return found >= rows

    # -- the next pass -----------------------------------------------------------------------------------------

    def schedule(self) -> Pass | None:
        """Rows for the next pass, with their slots; None if there is nothing to compute."""
        self._clock += 1
        self._secure()
        work = Pass()
        self._claims.clear()
        self._planned.clear()
        room, decoding, others = self.chunk, list[Request](), list[Request]()
        for req in self.running:
            if req.in_head or req.kind is not Kind.GENERATE:
                others.append(req)
            elif not req.is_landing:
                decoding.append(req)
        room -= self._decode(work, decoding, room)
        room -= min(len(work.samples), room, self.chunk // 2)  # a pass stays within `chunk` rows: products of matrices like it
        for req in others:
            assert req.node is not None
            room -= self._advance(work, req, room, req.node)
        self._admit(work, room)
        for row, req in work.first:  # only now: twins may join a prompt that is in this very pass
            work.samples += [(row, req), *((row, twin) for twin in req.twins)]
        if not work.rows and not work.scores:
            return None
        self.tally.passes += 1
        self.tally.rows += work.rows
        return work

    def _decode(self, work: Pass, decoding: Sequence[Request], room: int) -> int:
        """The rows of sampled tokens, and as many as there is room for of the tokens forced behind them; returns how many of
        those. The last row of each gives the next sample, unless the answer has ended and only waits for scores."""
        counts: list[int] = []
        for req in decoding:
            known = req.extend_len
            assert known > 0, "a decoding request has nothing to compute"
            n = known if known == 1 else min(known, 1 + max(0, room))
            room -= n - 1
            counts.append(n)
        slots = self._alloc(sum(counts))
        taken = 0
        for req, n in zip(decoding, counts, strict=True):
            start = self._place(work, req, slots[taken : taken + n])
            taken += n
            if n == req.extend_len and req.ending is None:
                work.samples.append((start + n - 1, req))
        return taken - len(decoding)

    def _advance(self, work: Pass, req: Request, room: int, place: Place) -> int:
        """The next chunk of the head, behind `place`, and the branches once it is complete; returns the rows used."""
        n = max(0, min(req.head_len - req.device_len, self._own_room(work, req, room)))
        used, row = n, -1
        planned = req.device_len + n
        if n > 0:
            self._claims.setdefault((place, int(req.ids[req.device_len])), req)
            self._planned[req] = planned
            row = self._extend(work, req, n) + n - 1
        if planned < req.head_len:
            return used
        if req.kind is Kind.GENERATE and req.max_new > 0 and req.ending is None:
            work.first.append((row, req))
        if req.kind is Kind.SCORE:
            if row >= 0:
                work.scores += [Score(row, token, req, None, node) for node, token in req.trie.first]
            used += self._choices(work, req, room - n)
        return used

    def _choices(self, work: Pass, req: Request, room: int) -> int:
        """Rows of the choices' trie, run by run; they see the prompt, and those above them, also in this very pass."""
        trie, begun = req.trie, req.next_row
        while req.next_row < len(trie.ids):
            first = req.next_row
            n = min(trie.run(first), room - (first - begun), self.promises.spare + req.reserved)
            if n <= 0:
                break  # the next pass has room again
            slots = self._alloc(n)
            self.promises.keep(req, min(req.reserved, n))
            req.row_slots[first : first + n] = slots
            above, prompt = trie.above(first), trie.prompt_length(first)
            context = np.concatenate((req.slots[:prompt], req.row_slots[above], slots))
            start = work.add(Rows(req, trie.ids[first : first + n], trie.positions[first], context, first)) - first
            for row in range(first, first + n):
                work.scores += [Score(start + row, token, req, None, node) for node, token in trie.asks[row]]
            req.next_row += n
        return req.next_row - begun

    def _own_room(self, work: Pass, req: Request, room: int) -> int:
        """What is spare has the free rows of a pass that others run in anyway."""
        return min(room, FREE_ROWS - work.rows) if req.spare else room

    def _extend(self, work: Pass, req: Request, n: int) -> int:
        """Rows for the next `n` known tokens, in fresh slots; where they begin."""
        return self._place(work, req, self._alloc(n))

    def _place(self, work: Pass, req: Request, slots: np.ndarray) -> int:
        """Rows for the next known tokens, one a slot that it was promised; scores for those behind them that are known too."""
        at, n = req.device_len, len(slots)
        end = at + n
        req.slots[at:end] = slots
        self.promises.keep(req, n)
        start = work.add(Rows(req, req.ids[at:end], at, req.slots[:end]))
        if req.is_scored:
            for p in range(max(at, req.first_scored - 1), min(end, req.length - 1)):
                work.scores.append(Score(start + p - at, int(req.ids[p + 1]), req, p + 1))
        return start

    def _alloc(self, n: int) -> np.ndarray:
        if self.pool.free_count < n:
            self._keep_for_waiting()
            self.pool.free(self.tree.evict(n - self.pool.free_count))
        return self.pool.alloc(n)

    def _keep_for_waiting(self) -> None:
        """What requests wait for is used next: it is evicted last, that of the first to be admitted at the very last."""
        if self._kept_in == self._clock:
            return
        self._kept_in = self._clock
        for req in sorted(islice(self.waiting, _LOOKED_AT), key=self._rank, reverse=True):
            self.tree.touch(self._cached(req))

    # -- preemption --------------------------------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """Whether the next pass may need more than there is, unless something ends before."""
        return self.promises.is_short

    def _secure(self) -> None:
        """Promises what the next rows need, first to those that come first; the last give up theirs where there is no more."""
        promises = self.promises
        if not (short := promises.short()):
            return
        ahead = promises.left_for(short)
        for req in sorted(short, key=lambda r: r.seniority):
            while req in promises.open and promises.spare < req.missing:
                if len(self.running) == 1 and self.pins:
                    self._unpin_oldest()
                else:
                    self._preempt(max(promises.open, key=lambda r: r.seniority))
            if req in promises.open:
                promises.extend(req, ahead)

    def _preempt(self, req: Request) -> None:
        """Takes a request out of the batch and keeps all that it has said; what it has computed stays cached for a while."""
        assert not req.in_flight and not req.awaited, "preempted while a pass computes it"
        req.computed = max(req.computed, req.device_len)
        self._leave(req, req.device_len)
        req.head_len, req.device_len, req.cached_len = req.wanted_len, 0, 0
        req.behind, req.kept = req.kept and req.kept(), None
        req.preempted += 1
        req.group = None
        self.tally.preemptions += 1
        self._put_back(req)
        config.log("schedule", f"KV pool full: {req.length} tokens of request {req.order} wait, for the {req.preempted}. time")

    # -- admission ---------------------------------------------------------------------------------------------

    def _admit(self, work: Pass, room: int) -> None:
        if self._stuck or not self.waiting:
            return
        progress, deferred = True, False
        while progress and room > 0 and self.waiting and self._batch_size(work) < self.max_batch:
            progress = False
            candidates = [self.waiting.popitem(last=False)[0] for _ in range(min(_WINDOW, len(self.waiting)))]
            left: list[Request] = []
            candidates.sort(key=self._rank)
            for i, req in enumerate(candidates):
                if room <= 0 or self._batch_size(work) >= self.max_batch:
                    left.extend(candidates[i:])
                    break
                start = self._start(req)
                if self._own_room(work, req, room) <= 0:
                    left.append(req)
                    deferred = True
                    continue
                verdict = self._together(work, req, start) or self._try_admit(work, req, start)
                if verdict is _Verdict.ADMITTED:
                    progress = True
                    self._entered(req)
                    if req in self.running:  # and not a twin, nor a prefill that was cached as a whole
                        room -= self._advance(work, req, room, start.place)
                    continue
                left.append(req)
                deferred |= verdict is _Verdict.LATER
                if verdict is _Verdict.NO_ROOM and (req.preempted or self._starved(req)):  # nobody passes it any more
                    left.extend(candidates[i + 1 :])
                    break
            for req in sorted(left, key=lambda r: (bool(r.preempted), -r.order)):
                self._put_back(req)
        if self.waiting and not self.running and not work.rows and not deferred:
            self._make_room(work)
        elif self.waiting and not progress:
            self._stuck = not deferred

    def _put_back(self, req: Request) -> None:
        """Before all that waits."""
        self.waiting[req] = None
        self.waiting.move_to_end(req, last=False)

    @property
    def only_waiting(self) -> bool:
        """Nothing runs yet, so that a pass may as well begin a moment later."""
        return bool(self.waiting) and not self.running

    @property
    def expects_more(self) -> bool:
        """Whether all that waits does so for the rest of its group."""
        return all(req.group is not None and req.group.missing > 0 for req in self.waiting)

    def _together(self, work: Pass, req: Request, start: _Start) -> _Verdict | None:
        """Why a request has to wait for the others of its group, or with them; None if it has not. Not for ever: a wish,
        not a promise."""
        group = req.group
        if group is None or group.entered is not None:
            return None
        since = self._clock - req.since
        if group.missing > 0 and since < _ON_ITS_WAY:
            return _Verdict.LATER
        if since > _TOGETHER or len(group.waiting) > self.max_batch:
            return None
        shared = min(common_prefix(req.ids[: req.head_len], other.ids[: other.head_len]) for other in group.waiting)
        need = sum(self.promises.at_first(other) - shared for other in group.waiting) + max(0, shared - start.at)
        if need > self.pool.num_slots:
            return None
        fits = self.promises.spare >= need and self._batch_size(work) + len(group.waiting) <= self.max_batch
        return None if fits else _Verdict.NO_ROOM

    def _entered(self, req: Request) -> None:
        group = req.group
        if group is None:
            return
        group.waiting.remove(req)
        group.split |= group.entered not in (None, self._clock)
        group.entered = self._clock
        if not group.waiting and not group.missing:
            self.tally.groups += not group.split
            self.tally.split_groups += group.split

    def _batch_size(self, work: Pass) -> int:
        return len(self.running) + sum(len(req.twins) for _, req in work.first)

    def _make_room(self, work: Pass) -> None:
        """Nothing runs and nothing fits: pins hold the pool. They are a wish, not a promise."""
        assert self.pins, "a request that fits the empty pool was not admitted"
        self._unpin_oldest()
        self._admit(work, self.chunk)

    def _unpin_oldest(self) -> None:
        config.log("schedule", f"KV pool full: releasing the oldest of {len(self.pins)} pinned prefixes")
        self.unpin(next(iter(self.pins)))

    def _starved(self, req: Request) -> bool:
        return self._clock - req.since > _PATIENCE

    def _rank(self, req: Request) -> tuple[bool, bool, int, tuple[int, ...], int]:
        """Preempted first, then starved, then longest cached prefix, then the plan's order, then arrival; last what may not
        be needed."""
        if req.preempted:
            return (False, False, -1, *req.seniority)
        if self._starved(req):
            return (False, req.spare, 0, (), req.order)
        return (True, req.spare, -self._cached(req).end, req.priority, req.order)

    def _cached(self, req: Request) -> Node:
        """Where the longest cached prefix of a waiting request's head ends."""
        found = req.found
        if found is None or found.goes_on(req.found_next):
            limit = req.match_limit
            found = req.found = self.tree.match(req.ids, limit, req.namespace, found or req.behind)
            req.found_next = int(req.ids[found.end]) if found.end < limit else -1
        return found

    def _start(self, req: Request) -> _Start:
        """How much of a head is cached or computed in this pass, and by whom."""
        node = self._cached(req)
        at, place, leader = node.end, node, None
        while at < req.head_len and (ahead := self._claims.get((place, int(req.ids[at])))) is not None:
            at += common_prefix(req.ids[at : req.head_len], ahead.ids[at : self._planned[ahead]])
            place, leader = (ahead, at), ahead
        return _Start(node, at, place, leader)

    def _try_admit(self, work: Pass, req: Request, start: _Start) -> _Verdict:
        node, leader, at = start.node, start.leader, min(start.at, req.match_limit)
        if leader is not None:
            if req.is_twin_of(leader) and any(r is leader for _, r in work.first):
                return self._join(req, leader)
            leader.spare &= req.spare  # somebody needs it
            if start.at == self._planned[leader] < min(leader.head_len, req.head_len) and leader.ids[start.at] == req.ids[start.at]:
                return _Verdict.LATER  # it goes on with that in the next pass
            if at == req.head_len:
                return _Verdict.LATER  # a prefill without rows of its own: the next pass finds it cached
        need = self.promises.at_first(req) - at
        self.tree.lock(node)
        if self.promises.spare < need:
            self.tree.unlock(node)
            return _Verdict.NO_ROOM
        self.promises.make(req, need)
        req.node, req.cached_len, req.device_len = node, node.end, at
        req.found = req.behind = None
        self._enter(req)
        if at > node.end:
            assert leader is not None
            self._followers[req] = at
            req.slots[:at] = leader.slots[:at]
        else:
            self.tree.write_slots(node, req.slots)
        self._count_prompt(req, min(at, req.prompt_len))
        if req.kind is Kind.PREFILL and not req.in_head:
            self._complete_prefill(req)
        return _Verdict.ADMITTED

    def _join(self, req: Request, leader: Request) -> _Verdict:
        """A twin: it runs from the moment its leader's head is there, which is the end of this pass."""
        need = self.promises.at_first(req) - req.head_len
        if self.promises.spare < need:
            return _Verdict.NO_ROOM
        self.promises.make(req, need)
        leader.twins.append(req)
        self.tally.twins += 1
        self._count_prompt(req, req.prompt_len)
        return _Verdict.ADMITTED

    def _count_prompt(self, req: Request, cached: int) -> None:
        if req.preempted:
            return  # it was counted when it came
        req.hit_len = cached
        self.tally.prompt_tokens += req.prompt_len
        self.tally.cached_tokens += cached

    def _enter(self, req: Request) -> None:
        self.running[req] = None
        self.promises.watch(req)

    # -- after the pass ----------------------------------------------------------------------------------------

    def commit(self, work: Pass) -> None:
        """The pass has run, or will have before whatever is planned from now on: its KV is there. Prompt chunks go to the
        tree at once, so that others can use them; the tokens that it samples get their places."""
        work.places = [req.expect() for _, req in work.samples]
        for span in work.spans:
            req, n = span.request, len(span.ids)
            if req.done:
                continue
            if span.branch is not None:
                self.tally.prefilled_tokens += n
                self.tally.unique_tokens += n
                continue
            if self._followers:
                self._settle(req)
            was_head, before = req.in_head, req.device_len
            req.device_len += n
            self.tally.recomputed_tokens += max(0, min(req.device_len, req.computed) - before)
            if was_head:
                prompt = min(req.device_len, req.prompt_len)
                if prompt > before:
                    self.tally.prefilled_tokens += prompt - before
                    self.tally.unique_tokens += self._give_to_tree(req, prompt)
                if req.device_len > prompt:
                    self._give_to_tree(req, req.device_len)  # what was forced: nobody asked for it, so it is not counted
                if not req.in_head:
                    self._release_twins(req)
                    if req.kind is Kind.PREFILL:
                        self._complete_prefill(req)
            req.check()

    def _settle(self, req: Request) -> None:
        """What a follower did not compute is in the tree now, since those that it follows come before it."""
        at = self._followers.pop(req, None)
        if at is None:
            return
        assert req.node is not None
        node = self.tree.match(req.ids[: req.head_len], at, req.namespace, req.node)
        assert node.end == at, f"request {req.order} follows {at} tokens, of which {node.end} are there"
        self.tree.lengthen(req.node, node)
        req.node, req.cached_len = node, at
        self.tree.write_slots(node, req.slots)

    def keep_branch(self, req: Request, index: int) -> None:
        """The winner of a SCORE: KV of its rows, as far as it is still there, goes to the tree below the prompt."""
        if req.node is None:
            return
        rows, branch = np.array(req.trie.rows[index], np.int64), req.branches[index]
        held = req.row_slots[rows] >= 0
        rows = rows[: len(rows) if held.all() else int(held.argmin())]
        if not len(rows):
            return
        assert branch.base == req.node.end
        slots = req.row_slots[rows]
        done = self.tree.insert(req.node, branch.ids[: len(rows)], slots)
        self.pool.free(slots[: done.present])
        req.row_slots[rows] = -1
        req.kept = weakref.ref(done.node)

    def drop_choices(self, req: Request) -> None:
        """Frees rows of choices that were scored while others have to wait for the next pass, but for those that the
        next ones see."""
        kept = req.trie.above(req.next_row)
        dropped = np.setdiff1d(req.held_rows, kept)
        self.pool.free(req.row_slots[dropped])
        req.row_slots[dropped] = -1
        back = max(0, req.branch_reserve - len(kept) - req.reserved)
        self.promises.make(req, back)

    def _give_to_tree(self, req: Request, upto: int) -> int:
        """Moves slots [cached_len, upto) to the tree; returns how many tokens were new to it, ever."""
        assert req.node is not None
        a = req.cached_len
        done = self.tree.insert(req.node, req.ids[a:upto], req.slots[a:upto])
        if done.present:  # computed twice: use the tree's
            self.pool.free(req.slots[a : a + done.present])
            req.slots[a : a + done.present] = done.slots
        self.tree.lengthen(req.node, done.node)
        req.node, req.cached_len = done.node, upto
        new = upto - a - done.present
        return new - self.tree.evicted_before(done.node, new)

    def _release_twins(self, req: Request) -> None:
        assert req.node is not None
        for twin in req.twins:
            self.tree.lock(req.node)
            twin.node, twin.cached_len, twin.device_len = req.node, req.cached_len, req.cached_len
            twin.slots[: req.cached_len] = req.slots[: req.cached_len]
            self._enter(twin)
        req.twins = []

    def _complete_prefill(self, req: Request) -> None:
        """The lock passes from the request to a pin."""
        assert req.node is not None
        self.pins[req] = req.node
        req.pinned = True
        self.tree.lock(req.node)
        self.finish(req, req.device_len)
        self.completed.append(req)

    # -- truth -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError if a slot leaks, is owned twice, or a lock or reservation has no owner."""
        self.tree.check()
        for req in self.running:
            req.check()
        owned = [n.slots for n in self.tree.nodes()]
        owned += [r.slots[r.cached_len : r.device_len] for r in self.running]
        owned += [r.row_slots[r.held_rows] for r in self.running]
        self.pool.check(owned)
        self.promises.check(self.running)
        assert all(r.preempted <= most_preemptions(r) for r in (*self.running, *self.waiting)), "preempted too often"
        self._check_locks([r.node for r in self.running if r.node is not None] + list(self.pins.values()))
        assert not any(r.twins for r in self.running), "twins between two passes"
        assert all(r in self.running or not r.reserved for r in self.waiting), "a promise to one that waits"
        if self.idle:
            assert not self.promises.made

    def _check_locks(self, holders: Iterable[Node]) -> None:
        expected: Counter[Node] = Counter()
        for node in holders:
            while node.parent is not None:
                expected[node] += 1
                node = node.parent
        for node in self.tree.nodes():
            assert node.locks == expected[node], f"{node}: {node.locks} locks, {expected[node]} holders"

