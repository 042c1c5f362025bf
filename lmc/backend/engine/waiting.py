"""The waiting queue and its order: preempted requests first, then starved ones, then the longest cached prefix.

Where several accounts or priorities compete, each gets its share (weighted fair queueing by tokens), in this order
among its own. Requests whose run has to wait until it fits (runs.py) are *held back*: they are skipped until it may.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain, islice
from random import Random
from typing import Any

from lmc.backend.engine.radix_cache import Node, common_prefix
from lmc.backend.engine.request import Request
from lmc.backend.engine.slot_ownership import SlotOwnership

_LOOKED_AT = 64  # requests whose prompts are counted, and kept in the cache
_WINDOW = 256  # considered in one pass
_HELD_BACK = 16  # held-back requests considered in one pass
_AGAIN = 64  # passes after which misfits are retried though nothing has ended: their age counts
_PATIENCE = 512  # passes after which a request goes first, whatever is cached

Share = tuple[str, float]
"""An account and a weight: requests with equal ones form one share."""


class WaitingQueue:
    """Requests not yet admitted, the next one first.

    clock  planned passes; a request's `since` is one of them
    """

    def __init__(self, held: SlotOwnership) -> None:
        self._held = held
        self._requests: OrderedDict[Request, None] = OrderedDict()
        self._held_back: OrderedDict[Request, None] = OrderedDict()
        self._shares: Counter[Share] = Counter()  # number of waiting requests per share
        self._served: dict[Share, float] = {}  # tokens served per share, divided by its weight
        self._random = Random(0)
        self.shortest_first = False  # prompts compete for the rows of this pass
        self._order = self._orders()[held.policy.schedule]
        self._guesses: OrderedDict[Request, None] = OrderedDict()  # considered after all others
        self._stuck_at = -1  # `changes` of the slot ownership when nothing fitted; -1: retry
        self._stuck_since = 0  # the pass when that was
        self._kept_in = 0  # the last pass in which something was evicted
        self.clock = 0

    def __len__(self) -> int:
        return len(self._requests) + len(self._guesses) + len(self._held_back)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over a copy, made at once: other threads read figures while the loop runs."""
        return iter([*self._requests, *self._guesses, *self._held_back])

    def __contains__(self, req: object) -> bool:
        return req in self._requests or req in self._guesses or req in self._held_back

    @property
    def held_back(self) -> int:
        """Return requests whose runs wait until they fit."""
        return len(self._held_back)

    @property
    def ready(self) -> int:
        """Return the number of other requests."""
        return len(self._requests) + len(self._guesses)

    @property
    def has_needed(self) -> bool:
        """Return whether a request waits that is no guess and not held back."""
        return bool(self._requests)

    # -- in and out --------------------------------------------------------------------------------------------

    def add(self, req: Request) -> None:
        req.since = self.clock
        self._queue(req)[req] = None
        self.joins(req)
        if req.group is not None:
            req.group.waiting.append(req)
        self._stuck_at = -1

    def remove(self, req: Request) -> None:
        """Remove a cancelled request."""
        for queue in (self._requests, self._guesses, self._held_back):
            queue.pop(req, None)
        self._leaves(req)
        self._held.runs.gone(req)
        if req.group is not None:
            req.group.waiting.remove(req)
            self._stuck_at = -1  # the others of the group may fit now

    def put_back(self, req: Request) -> None:
        """Put back requests that were considered, before all that wait."""
        queue = self._queue(req)
        queue[req] = None
        queue.move_to_end(req, last=False)

    def hold_back(self, requests: list[Request]) -> None:
        """Hold back requests whose runs do not fit; the oldest first."""
        for req in requests:
            self._held_back[req] = None
        for req in sorted(requests, key=lambda r: r.owner.seniority if r.owner is not None else r.seniority, reverse=True):
            if req.looked_at or (req.owner is not None and req.owner.was_open):
                self._held_back.move_to_end(req, last=False)
            req.looked_at = True

    def joins(self, req: Request) -> None:
        """Add a request to its share."""
        share = req.account, req.weight
        if share not in self._shares and self._shares:  # no credit accrues while a share has no requests
            least = min(self._served.get(other, 0.0) for other in self._shares)
            self._served[share] = max(least, self._served.get(share, 0.0))
        self._shares[share] += 1

    def _leaves(self, req: Request) -> None:
        share = req.account, req.weight
        self._shares[share] -= 1
        if not self._shares[share]:
            del self._shares[share]
            if not self._shares:
                self._served.clear()

    def admitted(self, req: Request, tokens: int) -> None:
        """Remove an admitted request; charge its share so many tokens."""
        if len(self._shares) > 1:
            share = req.account, req.weight
            self._served[share] = self._served.get(share, 0.0) + tokens / req.weight
        self._leaves(req)

    def take(self) -> list[Request]:
        """Return requests to consider now, in admission order; those not admitted are put back."""
        taken = [self._requests.popitem(last=False)[0] for _ in range(min(_WINDOW, len(self._requests)))]
        taken += [self._guesses.popitem(last=False)[0] for _ in range(min(_WINDOW - len(taken), len(self._guesses)))]
        if self._held_back:
            fits = self._held.runs.may_fit
            for req in [req for req in islice(self._held_back, _HELD_BACK) if fits(req)]:
                del self._held_back[req]
                taken.append(req)
        taken.sort(key=self.rank)
        return self._by_shares(taken) if len(self._shares) > 1 else taken

    def _by_shares(self, taken: list[Request]) -> list[Request]:
        """Return those of each share in their order, and all as their shares allow, with those first that none may
        pass."""
        first = [req for req in taken if not req.guess and (req.preempted or self.is_starved(req))]
        queues: dict[Share, list[Request]] = {}
        for req in taken:
            if not (req.guess or req.preempted or self.is_starved(req)):
                queues.setdefault((req.account, req.weight), []).append(req)
        heap = [(self._served.get(share, 0.0), i, iter(queue)) for i, (share, queue) in enumerate(queues.items())]
        heapq.heapify(heap)
        while heap:
            served, i, queue = heap[0]
            if (req := next(queue, None)) is None:
                heapq.heappop(heap)
                continue
            first.append(req)
            heapq.heapreplace(heap, (served + self.cost(req) / req.weight, i, queue))
        return first + [req for req in taken if req.guess]

    def cost(self, req: Request) -> int:
        """Return the tokens that a waiting request has computed and is expected to generate."""
        return req.head_len - self.cached(req).end + min(req.max_new, self._held.reservations.expected(req))

    def _queue(self, req: Request) -> OrderedDict[Request, None]:
        return self._guesses if req.guess else self._requests

    def promote(self) -> None:
        """Move guesses that are needed now among the others."""
        for req in [req for req in self._guesses if not req.guess]:
            del self._guesses[req]
            self._requests[req] = None
            self._stuck_at = -1

    # -- capacity ---------------------------------------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        """Return whether nothing that waits fits until something changes."""
        return self._stuck_at == self._held.changes and self.clock - self._stuck_since < _AGAIN

    def stick(self) -> None:
        self._stuck_at, self._stuck_since = self._held.changes, self.clock

    @property
    def expects_more(self) -> bool:
        """Return whether all waiting requests wait for the rest of their group."""
        ready = self.ready > 0
        return ready and all(req.group is not None and req.group.missing > 0 for req in chain(self._requests, self._guesses))

    # -- order -------------------------------------------------------------------------------------------------

    def age(self, req: Request) -> int:
        """Return the number of passes that it has waited."""
        return self.clock - req.since

    def is_starved(self, req: Request) -> bool:
        return self.age(req) > _PATIENCE

    def rank(self, req: Request) -> tuple[Any, ...]:
        """Return the sort key: preempted first, then starved, then by the policy; then requests that may not be needed;
        guesses last, however long they wait."""
        if req.preempted:
            return (req.guess, False, False, -1, req.priority, req.order)
        if self.is_starved(req):
            return (req.guess, False, req.low_priority, 0, (), req.order)
        return self._order(req)

    def _orders(self) -> dict[str, Callable[[Request], tuple[Any, ...]]]:
        return {
            "program": lambda req: self._by_prefix(req) if not (self._held_back or self.shortest_first) else self._where_short(req),
            "lpm": lambda req: self._by_prefix(req),
            "fcfs": lambda req: (req.guess, True, req.low_priority, req.order),
            "random": lambda req: (req.guess, True, req.low_priority, self._random.random()),
        }

    def _by_prefix(self, req: Request) -> tuple[Any, ...]:
        """Return the sort key by longest cached prefix, then the plan's order, then arrival."""
        return (req.guess, True, req.low_priority, -self.cached(req).end, req.priority, req.order)

    def first_needed(self) -> Request | None:
        """Return one of the first that wait and are not guesses."""
        return next((req for req in islice(self._requests, _LOOKED_AT) if not req.low_priority), None)

    def _where_short(self, req: Request) -> tuple[Any, ...]:
        """Return the sort key: if runs wait for memory, requests of open runs first; if prompts wait for rows, the
        shortest first."""
        is_new = bool(self._held_back) and not req.is_of_open_run
        cached = self.cached(req).end
        return (req.guess, True, req.low_priority, is_new, req.head_len - cached if self.shortest_first else 0, -cached, req.priority, req.order)

    def cached(self, req: Request) -> Node:
        """Return the node where the longest cached prefix of a waiting request's head ends."""
        found = req.found
        if found is None or found.goes_on(req.found_next):
            limit = req.match_limit
            found = req.found = self._held.tree.match(req.ids, limit, req.space, found or req.behind)
            req.found_next = int(req.ids[found.end]) if found.end < limit else -1
        return found

    def uncached(self, most: int, rows: int) -> int:
        """Return uncached tokens of the first `most` heads, counting only until `rows` are found. What a head has in
        common with the first that goes on alike counts once."""
        found = 0
        first: dict[tuple[Node, int], Request] = {}
        for req in islice(chain(self._requests, self._guesses), min(_LOOKED_AT, most)):
            if found >= rows:
                break
            node = self.cached(req)
            at, end = node.end, req.head_len
            if at < end and (like := first.setdefault((node, int(req.ids[at])), req)) is not req:
                at += common_prefix(req.ids[at:end], like.ids[at : like.head_len])
            found += end - at
        return found

    def rows_of_shorter(self, than: int, most: int, party: Hashable) -> int:
        """Return rows of waiting prompts that need fewer than so many and are not of that party, up to `most`."""
        found = 0
        for req in islice(self._requests, _LOOKED_AT):
            rows = req.head_len - self.cached(req).end
            if rows < than and not req.low_priority and req.party != party and self._held.reservations.unreserved >= self._held.reservations.at_first(req):
                found += rows
                if found >= most:
                    return most
        return found

    def keep_next(self) -> None:
        """Mark prefixes of waiting requests as used next: they are evicted last, that of the first in the queue at the
        very last."""
        if self._kept_in == self.clock or self._held.policy.eviction == "lru":
            return
        self._kept_in = self.clock
        for req in sorted(islice(chain(self._requests, self._guesses), _LOOKED_AT), key=self.rank, reverse=True):
            self._held.tree.touch(self.cached(req))
