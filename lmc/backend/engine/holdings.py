"""Holdings: who has which slots of the KV pool, and how they change hands.

    free ──alloc──► a running request ──give──► the radix tree ──evict──► free
                            └───────────leave───────────────────────────────┘

What the tree has stays as long as a running request, a lease of its run (runs.py) or a pin locks it, and after that until its room is needed. Changes
hands; who runs, and what is computed, is decided by others.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from lmc.backend.engine.host_tier import HostTier, Mover, Rates
from lmc.backend.engine.kv_pool import SlotAllocator
from lmc.backend.engine.lengths import Lengths
from lmc.backend.engine.policy import Policy
from lmc.backend.engine.promises import Promises
from lmc.backend.engine.radix_cache import NoCache, Node, RadixCache, TableCache
from lmc.backend.engine.request import Kind, Request
from lmc.backend.engine.runs import Runs

_LEFT = 8  # the share of the pool that is left to answers that grow when something is fetched before it is asked for

_TREES: Mapping[str, Callable[[], RadixCache]] = {"tree": RadixCache, "table": TableCache, "off": NoCache}


class Holdings:
    """Of one pool.

    running    requests that have slots, in order of admission
    pins       finished prefills, and where what they keep in the tree ends
    completed  prefills that ended; the engine takes them from here
    changes    how often something was given up: what did not fit before may fit now
    """

    def __init__(
        self, num_slots: int, lengths: Lengths, policy: Policy, now: Callable[[], float], mover: Mover | None = None, rates: Rates | None = None
    ) -> None:
        self.pool, self.policy = SlotAllocator(num_slots), policy
        self.tree = _TREES[policy.cache]()
        self.promises = Promises(self.pool, self.tree, lengths)
        self.host = HostTier(mover, self.tree, self.pool, rates or Rates(), self.promises) if mover is not None else None
        self.runs = Runs(self.tree, self.promises, num_slots, leases=policy.leases, now=now, host=self.host, priced=policy.priced)
        self.running: dict[Request, None] = {}
        self.pins: dict[Request, Node] = {}
        self.completed: list[Request] = []
        self.changes = 0

    def abandon(self) -> None:
        """Nothing here is looked at any more, by whoever still has a name of it."""
        if self.host is not None:
            self.host.close()
        self.tree.give_up()
        for req in self.pins:
            req.pinned = False

    # -- free slots --------------------------------------------------------------------------------------------

    def lacks(self, n: int) -> bool:
        """Whether something is evicted for so many slots."""
        return self.pool.free_count < n

    def alloc(self, n: int) -> np.ndarray:
        """`n` slots [n] int64 that running requests were promised; what is cached goes for them."""
        if self.lacks(n):
            self.pool.free(self.tree.evict(n - self.pool.free_count))
        return self.pool.alloc(n)

    # -- a request's way ---------------------------------------------------------------------------------------

    def enter(self, req: Request) -> None:
        """It runs from now on; its node is locked, and it was promised what it needs first."""
        self.running[req] = None
        self.promises.watch(req)

    def leave(self, req: Request, keep: int) -> None:
        """It is preempted: KV of `ids[:keep]` goes to the tree, the rest is freed."""
        node = self._detach(req, keep)
        if self.host is not None:
            self.host.save(node, req.space)
        self.tree.unlock(node)
        self.runs.interrupted(req)

    def _detach(self, req: Request, keep: int) -> Node:
        """It runs no more; where what it leaves in the tree ends. That is still locked."""
        assert req.node is not None and not req.twins
        if req.arriving is not None:  # the fetch keeps its slots until they are written
            req.arriving.request = req.arriving = None
            req.device_len = keep = req.cached_len
        if keep > req.cached_len:
            self.give(req, keep)
        self.pool.free(req.slots[req.cached_len : req.draft_end])
        req.device_len, req.draft = req.cached_len, 0
        self.pool.free(req.row_slots[req.held_rows])
        req.row_slots[:] = -1
        node, req.node = req.node, None
        self.tree.mark_end(node)
        if req.kept is None and req.cached_len <= keep:  # and not cut before tokens that were forced, or computed again
            req.kept = weakref.ref(node)
        self.promises.end(req)
        del self.running[req]
        self.changes += 1
        return node

    def finish(self, req: Request, keep: int) -> None:
        """Ends a running request: KV of `ids[:keep]` goes to the tree, the rest is freed."""
        node = self._detach(req, keep)
        winner = req.kept and req.kept() if req.kind is Kind.SCORE and req.owner is not None else None
        if winner is not None and winner.parent is not None and winner.end > node.end:  # the run goes on behind it
            self.tree.lengthen(node, winner)
            node = winner
        self.runs.finished(req, node)
        if self.host is not None and req.kind is not Kind.PREFILL and (req.owner is None or node in req.owner.leases):
            self.host.save(node, req.space)
        req.done = True
        if not self.running:
            self.pool.tidy()

    def give(self, req: Request, upto: int) -> int:
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

    def take_over(self, req: Request, upto: int) -> None:
        """What others computed for it, up to there, is in the tree now: its lock reaches as far."""
        assert req.node is not None
        node = self.tree.match(req.ids[: req.head_len], upto, req.space, req.node)
        assert node.end == upto, f"request {req.order} follows {upto} tokens, of which {node.end} are there"
        self.tree.lengthen(req.node, node)
        req.node, req.cached_len = node, upto
        self.tree.write_slots(node, req.slots)

    def release_twins(self, req: Request) -> None:
        """Its head is complete, and so theirs is: they run from now on."""
        assert req.node is not None
        for twin in req.twins:
            self.tree.lock(req.node)
            twin.node, twin.cached_len, twin.device_len = req.node, req.cached_len, req.cached_len
            twin.slots[: req.cached_len] = req.slots[: req.cached_len]
            self.enter(twin)
        req.twins = []

    def drop_draft(self, req: Request) -> None:
        """What is left of its draft was not drawn: it is promised the slots again."""
        self.pool.free(req.slots[req.device_len : req.draft_end])
        self.promises.make(req, req.draft)
        req.draft = 0

    # -- the host tier -----------------------------------------------------------------------------------------

    @property
    def copies(self) -> bool:
        """Whether copies between device and host are being made: what they hold comes free by itself."""
        return self.host is not None and self.host.busy

    def fetch(self, req: Request, upto: int) -> None:
        """It has just been admitted; what the host has of its head, up to there, comes to slots of its own. If that cannot be begun, it computes all."""
        assert self.host is not None
        at, n = req.device_len, upto - req.device_len
        req.slots[at:upto] = self.alloc(n)
        self.promises.keep(req, n)
        if self.host.fetch(req, upto):
            req.device_len = upto
        else:
            self.pool.free(req.slots[at:upto])
            self.promises.make(req, n)

    def fetch_ahead(self) -> None:
        """What runs will go on from that are expected back comes to the device, where there is room that nobody needs now."""
        host = self.host
        if host is None or not host.rates.favour_copies:
            return
        for lease in self.runs.expected_back():
            assert lease.copy is not None
            parent = self.tree.match(host.ids_to(lease.copy), namespace=lease.space)
            n = lease.copy.end - parent.end
            if self.promises.spare - lease.copy.end < self.pool.num_slots // _LEFT:
                return
            if not n:  # nothing of it has left
                host.is_at(parent, lease.copy)
                self.runs.back(lease, parent)
                continue
            lease.coming = True
            self.tree.lock(parent)  # what is evicted for it is not what it goes behind
            slots = self.alloc(n)
            host.fetch_ahead(lease.copy, parent, slots, lambda node, lease=lease: self.runs.back(lease, node))
            self.tree.unlock(parent)

    def land_copies(self) -> None:
        """What has been copied by now is there."""
        if self.host is None or not self.copies:
            return
        for req in self.host.landed():
            self.changes += 1
            if req is None:
                continue
            self.give(req, req.device_len)
            if req.kind is Kind.PREFILL and not req.in_head:
                self.complete(req)

    # -- choices -----------------------------------------------------------------------------------------------

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

    # -- pins --------------------------------------------------------------------------------------------------

    def complete(self, req: Request) -> None:
        """A prefill is complete: its lock passes to a pin, unless it is only made in passing."""
        assert req.node is not None
        if not req.passing:
            self.pins[req] = req.node
            req.pinned = True
            self.tree.mark_end(req.node)
            self.tree.lock(req.node)
        self.finish(req, req.device_len)
        self.completed.append(req)

    def unpin(self, req: Request) -> None:
        """Ends the pin of a finished prefill; nothing happens if it was broken or ended before."""
        node = self.pins.pop(req, None)
        req.pinned = False
        if node is not None:
            self.tree.unlock(node)
            self.changes += 1

    def flush(self) -> None:
        """Drops all cached KV that nothing running needs, pins and leases included."""
        for req in list(self.pins):
            self.unpin(req)
        self.give_up_leases()
        self.pool.free(self.tree.clear())
        if self.host is not None:
            self.host.forget()

    def give_up_leases(self) -> None:
        """What runs would use again stays cached until its room is needed."""
        self.runs.drop_leases()
        self.changes += 1

    # -- truth -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError if a slot leaks, is owned twice, or a lock or promise has no owner."""
        self.tree.check()
        for req in self.running:
            req.check()
        owned = [n.slots for n in self.tree.nodes()]
        owned += [r.slots[r.cached_len : r.draft_end] for r in self.running]
        owned += [r.row_slots[r.held_rows] for r in self.running]
        copied: list[Node] = []
        if self.host is not None:
            self.host.check()
            owned += self.host.orphans()
            copied += self.host.locked()
        self.pool.check(owned)
        self.promises.check(self.running)
        leased = [lease.node for lease in self.runs.leases()]
        self._check_locks([r.node for r in self.running if r.node is not None] + list(self.pins.values()) + leased + copied)
        assert not any(r.twins for r in self.running), "twins between two passes"

    def _check_locks(self, holders: Iterable[Node]) -> None:
        expected: Counter[Node] = Counter()
        for node in holders:
            while node.parent is not None:
                expected[node] += 1
                node = node.parent
        for node in self.tree.nodes():
            assert node.locks == expected[node], f"{node}: {node.locks} locks, {expected[node]} holders"
