"""Slot ownership: the owner of each slot of the KV pool, and transfers between owners.

    free ──alloc──► a running request ──give──► the radix tree ──evict──► free
                            └───────────leave───────────────────────────────┘

The tree's slots stay as long as a running request, a lease of its run (runs.py) or a pin locks them, and after that
until their room is needed. Only transfers ownership; scheduling is decided elsewhere.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from lmc.backend.engine.host_tier import HostTier
from lmc.backend.engine.kv_pool import SlotAllocator
from lmc.backend.engine.load import CopyRates
from lmc.backend.engine.policy import Policy
from lmc.backend.engine.radix_cache import NoCache, Node, RadixCache, TableCache
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.reservations import AnswerLengths, Reservations
from lmc.backend.engine.runs import Runs

if TYPE_CHECKING:
    from lmc.backend.engine.kv_copy import KVMover

_LEFT = 8  # 1/n of the pool left to growing answers when prefixes are fetched ahead

_TREES: Mapping[str, Callable[[], RadixCache]] = {"tree": RadixCache, "table": TableCache, "off": NoCache}


class SlotOwnership:
    """Slot ownership of one pool.

    running    requests that have slots, in order of admission
    pins       finished prefills, and the end of what they keep in the tree
    completed  ended prefills; collected by the engine
    changes    number of releases: a request that did not fit before may fit now
    """

    def __init__(
        self, num_slots: int, lengths: AnswerLengths, policy: Policy, now: Callable[[], float], mover: KVMover | None = None, rates: CopyRates | None = None
    ) -> None:
        self.pool, self.policy = SlotAllocator(num_slots), policy
        self.tree = _TREES[policy.cache]()
        self.reservations = Reservations(self.pool, self.tree, lengths)
        self.host = HostTier(mover, self.tree, self.pool, rates or CopyRates(), self.reservations) if mover is not None else None
        self.runs = Runs(self.tree, self.reservations, num_slots, leases=policy.leases, now=now, host=self.host, priced=policy.priced)
        self.running: dict[Request, None] = {}
        self.pins: dict[Request, Node] = {}
        self.completed: list[Request] = []
        self.changes = 0

    def abandon(self) -> None:
        """Mark as abandoned: nothing here is used any longer, even if it is still referenced."""
        if self.host is not None:
            self.host.close()
        self.tree.give_up()
        for req in self.pins:
            req.pinned = False

    # -- free slots --------------------------------------------------------------------------------------------

    def lacks(self, n: int) -> bool:
        """Return whether so many slots require an eviction."""
        return self.pool.free_count < n

    def alloc(self, n: int) -> np.ndarray:
        """Allocate `n` reserved slots [n] int64 for running requests, evicting cached KV."""
        if self.lacks(n):
            self.pool.free(self.tree.evict(n - self.pool.free_count))
        return self.pool.alloc(n)

    # -- a request's life cycle ---------------------------------------------------------------------------------------

    def start(self, req: Request) -> None:
        """Start running a request; its node is locked, and its first need is reserved."""
        self.running[req] = None
        self.reservations.watch(req)

    def preempt(self, req: Request, keep: int) -> None:
        """Preempt it: KV of `ids[:keep]` goes to the tree, the rest is freed."""
        node = self._detach(req, keep)
        if self.host is not None:
            self.host.save(node, req.space, leased=req.owner is not None)
        self.tree.unlock(node)
        self.runs.interrupted(req)

    def _detach(self, req: Request, keep: int) -> Node:
        """Stop running a request; return the end of what it leaves in the tree, still locked."""
        assert req.node is not None and not req.twins
        if req.arriving is not None:  # the fetch owns its slots until they are written
            req.arriving.request = req.arriving = None
            req.device_len = keep = req.cached_len
        if keep > req.cached_len:
            self.donate_to_cache(req, keep)
        self.pool.free(req.slots[req.cached_len : req.draft_end])
        req.device_len, req.draft = req.cached_len, 0
        self.pool.free(req.row_slots[req.held_rows])
        req.row_slots[:] = -1
        node, req.node = req.node, None
        self.tree.mark_end(node)
        if req.kept is None and req.cached_len <= keep:  # unless cut before tokens that were forced, or recomputed
            req.kept = weakref.ref(node)
        self.reservations.end(req)
        del self.running[req]
        self.changes += 1
        return node

    def finish(self, req: Request, keep: int) -> None:
        """End a running request: KV of `ids[:keep]` goes to the tree, the rest is freed."""
        node = self._detach(req, keep)
        winner = req.kept and req.kept() if req.kind is RequestKind.SCORE and req.owner is not None else None
        if winner is not None and winner.parent is not None and winner.end > node.end:  # the run continues after it
            self.tree.lengthen(node, winner)
            node = winner
        self.runs.finished(req, node)
        leased = req.owner is not None and node in req.owner.leases
        if self.host is not None and req.kind is not RequestKind.PREFILL and (leased or (req.owner is None and self.host.may_resume(req))):
            self.host.save(node, req.space, leased=leased)
        req.done = True
        if not self.running:
            self.pool.tidy()

    def donate_to_cache(self, req: Request, upto: int) -> int:
        """Move slots [cached_len, upto) to the tree; return how many of its tokens were new to it, ever."""
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

    def adopt_prefix(self, req: Request, upto: int) -> None:
        """Adopt the prefix that others computed for it, up to there, from the tree: its lock covers it now."""
        assert req.node is not None
        node = self.tree.match(req.ids[: req.head_len], upto, req.space, req.node)
        assert node.end == upto, f"request {req.order} follows {upto} tokens, of which {node.end} are there"
        self.tree.lengthen(req.node, node)
        req.node, req.cached_len = node, upto
        self.tree.write_slots(node, req.slots)

    def release_twins(self, req: Request) -> None:
        """Start the twins of a request whose head is complete: theirs is complete, too."""
        assert req.node is not None
        for twin in req.twins:
            self.tree.lock(req.node)
            twin.node, twin.cached_len, twin.device_len = req.node, req.cached_len, req.cached_len
            twin.slots[: req.cached_len] = req.slots[: req.cached_len]
            self.start(twin)
        req.twins = []

    def drop_draft(self, req: Request) -> None:
        """Drop the rest of its draft, which was not drawn: its slots are reserved again."""
        self.pool.free(req.slots[req.device_len : req.draft_end])
        self.reservations.reserve(req, req.draft)
        req.draft = 0

    # -- the host tier -----------------------------------------------------------------------------------------

    @property
    def copies(self) -> bool:
        """Return whether copies between device and host are running: their slots become free by themselves."""
        return self.host is not None and self.host.busy

    def fetch(self, req: Request, upto: int) -> None:
        """Fetch the host's part of a just admitted request's head to slots of its own. If that cannot begin, all of it
        is computed."""
        assert self.host is not None
        at, n = req.device_len, upto - req.device_len
        req.slots[at:upto] = self.alloc(n)
        self.reservations.consume(req, n)
        if self.host.fetch(req, upto):
            req.device_len = upto
        else:
            self.pool.free(req.slots[at:upto])
            self.reservations.reserve(req, n)

    def fetch_ahead(self) -> None:
        """Fetch prefixes of runs that are expected back to the device, if there is room that no request needs now."""
        host = self.host
        if host is None or not host.rates.favour_copies:
            return
        for lease in self.runs.expected_back():
            assert lease.copy is not None
            parent = self.tree.match(host.ids_to(lease.copy), namespace=lease.space)
            n = lease.copy.end - parent.end
            if self.reservations.unreserved - lease.copy.end < self.pool.num_slots // _LEFT:
                return
            if not n:  # all of it is still on the device
                host.is_at(parent, lease.copy)
                self.runs.back(lease, parent)
                continue
            lease.coming = True
            self.tree.lock(parent)  # its parent must not be evicted for it
            slots = self.alloc(n)
            host.fetch_ahead(lease.copy, parent, slots, lambda node, lease=lease: self.runs.back(lease, node))
            self.tree.unlock(parent)

    def complete_copies(self) -> None:
        """Complete copies that are done by now, and take in what room has come for others."""
        if self.host is None:
            return
        self.changes += self.host.take_room()
        if not self.copies:
            return
        for req in self.host.completed():
            self.changes += 1
            if req is None:
                continue
            self.donate_to_cache(req, req.device_len)
            if req.kind is RequestKind.PREFILL and not req.in_head:
                self.complete(req)

    # -- choices -----------------------------------------------------------------------------------------------

    def keep_branch(self, req: Request, index: int) -> None:
        """Give the winner of a SCORE: KV of its rows, as far as it still exists, to the tree below the prompt."""
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
        """Free rows of choices scored while others have to wait for the next pass, except those that the next ones
        see."""
        kept = req.trie.above(req.next_row)
        dropped = np.setdiff1d(req.held_rows, kept)
        self.pool.free(req.row_slots[dropped])
        req.row_slots[dropped] = -1
        back = max(0, req.branch_reserve - len(kept) - req.reserved)
        self.reservations.reserve(req, back)

    # -- pins --------------------------------------------------------------------------------------------------

    def complete(self, req: Request) -> None:
        """Complete a prefill: its lock passes to a pin, unless it is only made in passing."""
        assert req.node is not None
        if not req.passing:
            self.pins[req] = req.node
            req.pinned = True
            self.tree.mark_end(req.node)
            self.tree.lock(req.node)
        self.finish(req, req.device_len)
        self.completed.append(req)

    def unpin(self, req: Request) -> None:
        """End the pin of a finished prefill; do nothing if it was broken or ended before."""
        node = self.pins.pop(req, None)
        req.pinned = False
        if node is not None:
            self.tree.unlock(node)
            self.changes += 1

    def flush(self) -> None:
        """Drop all cached KV that no running request needs, pins and leases included."""
        for req in list(self.pins):
            self.unpin(req)
        self.give_up_leases()
        self.pool.free(self.tree.clear())
        if not self.running:
            self.pool.tidy()
        if self.host is not None:
            self.host.forget()

    def give_up_leases(self) -> None:
        """End all leases: the prefixes stay cached until their room is needed."""
        self.runs.drop_leases()
        self.changes += 1

    # -- invariants -------------------------------------------------------------------------------------------------

    def check(self, more: Iterable[np.ndarray] = ()) -> None:
        """Raise AssertionError if a slot leaks, is owned twice, or a lock or reservation has no owner. more: slots that others own."""
        self.tree.check()
        for req in self.running:
            req.check()
        owned = [*more, *(n.slots for n in self.tree.nodes())]
        owned += [r.slots[r.cached_len : r.draft_end] for r in self.running]
        owned += [r.row_slots[r.held_rows] for r in self.running]
        copied: list[Node] = []
        if self.host is not None:
            self.host.check()
            owned += self.host.orphans()
            copied += self.host.locked()
        self.pool.check(owned)
        self.reservations.check(self.running)
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
