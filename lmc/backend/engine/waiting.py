"""Who waits, and in which order: preempted first, then who has waited too long, then the longest cached prefix.

Where several accounts or priorities compete, each gets its share (weighted fair queueing by tokens), in this order among its own.
Requests whose run has to wait until it fits (runs.py) are *held back*: nobody looks at them until it may.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain, islice
from random import Random
from typing import Any

from lmc.backend.engine.holdings import Holdings
from lmc.backend.engine.radix_cache import Node
from lmc.backend.engine.request import Request

_LOOKED_AT = 64  # whose prompts are counted, and kept in the cache
_WINDOW = 256  # looked at in one pass
_HELD_BACK = 16  # of those that are held back, looked at in one pass
_AGAIN = 64  # passes after which what fitted nowhere is looked at again, though nothing has ended: it has become older
_PATIENCE = 512  # passes after which a request goes first, whatever is cached

Share = tuple[str, float]
"""An account and a weight: requests with the same ones share what they get."""


class Waiting:
    """Requests that were not admitted, who is next first.

    clock  passes that were planned; a request's `since` is one of them
    """

    def __init__(self, held: Holdings) -> None:
        self._held = held
        self._requests: OrderedDict[Request, None] = OrderedDict()
        self._held_back: OrderedDict[Request, None] = OrderedDict()
        self._shares: Counter[Share] = Counter()  # how many wait for each
        self._served: dict[Share, float] = {}  # tokens that each has had, by its weight
        self._random = Random(0)
        self.shortest_first = False  # prompts compete for the rows of this pass
        self._order = self._orders()[held.policy.schedule]
        self._guesses: OrderedDict[Request, None] = OrderedDict()  # looked at when all others have been
        self._stuck_at = -1  # the changes of the holdings when nothing fitted; -1: something new may fit
        self._stuck_since = 0  # the pass when that was
        self._kept_in = 0  # the last pass in which something was evicted
        self.clock = 0

    def __len__(self) -> int:
        return len(self._requests) + len(self._guesses) + len(self._held_back)

    def __iter__(self) -> Iterator[Request]:
        """Over a copy, made at once: other threads ask for figures while the loop goes on."""
        return iter([*self._requests, *self._guesses, *self._held_back])

    def __contains__(self, req: object) -> bool:
        return req in self._requests or req in self._guesses or req in self._held_back

    @property
    def held_back(self) -> int:
        """Requests whose runs wait until they fit."""
        return len(self._held_back)

    @property
    def ready(self) -> int:
        """Others."""
        return len(self._requests) + len(self._guesses)

    @property
    def has_needed(self) -> bool:
        """Whether a request waits that is no guess and is not held back."""
        return bool(self._requests)

    # -- in and out --------------------------------------------------------------------------------------------

    def add(self, req: Request) -> None:
        req.since = self.clock
        self._queue(req)[req] = None
        self._joins(req)
        if req.group is not None:
            req.group.waiting.append(req)
        self._stuck_at = -1

    def remove(self, req: Request) -> None:
        """It was cancelled."""
        for queue in (self._requests, self._guesses, self._held_back):
            queue.pop(req, None)
        self._leaves(req)
        self._held.runs.gone(req)
        if req.group is not None:
            req.group.waiting.remove(req)
            self._stuck_at = -1  # the others of the group may fit now

    def add_preempted(self, req: Request) -> None:
        self.put_back(req)
        self._joins(req)

    def put_back(self, req: Request) -> None:
        """One that was looked at, before all that waits."""
        queue = self._queue(req)
        queue[req] = None
        queue.move_to_end(req, last=False)

    def hold_back(self, requests: list[Request]) -> None:
        """Their runs do not fit; the oldest first."""
        for req in requests:
            self._held_back[req] = None
        for req in sorted(requests, key=lambda r: r.owner.seniority if r.owner is not None else r.seniority, reverse=True):
            if req.looked_at or (req.owner is not None and req.owner.was_open):
                self._held_back.move_to_end(req, last=False)
            req.looked_at = True

    def _joins(self, req: Request) -> None:
        """It waits for its share."""
        share = req.account, req.weight
        if share not in self._shares and self._shares:  # nobody saves up while he wants nothing
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
        """It waits no more, and takes so many tokens."""
        if len(self._shares) > 1:
            share = req.account, req.weight
            self._served[share] = self._served.get(share, 0.0) + tokens / req.weight
        self._leaves(req)

    def take(self) -> list[Request]:
        """Those that are looked at now, in the order in which they may be admitted; who is not is put back."""
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
        """Those of each share in their order, and all as their shares allow, with those first that nobody may pass."""
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
        """Tokens that a waiting request has computed and is expected to say."""
        return req.head_len - self.cached(req).end + min(req.max_new, self._held.promises.expected(req))

    def _queue(self, req: Request) -> OrderedDict[Request, None]:
        return self._guesses if req.guess else self._requests

    def promote(self) -> None:
        """What was a guess and is needed now takes its place among the others."""
        for req in [req for req in self._guesses if not req.guess]:
            del self._guesses[req]
            self._requests[req] = None
            self._stuck_at = -1

    # -- what fits ---------------------------------------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        """Nothing that waits fits until something changes."""
        return self._stuck_at == self._held.changes and self.clock - self._stuck_since < _AGAIN

    def stick(self) -> None:
        self._stuck_at, self._stuck_since = self._held.changes, self.clock

    @property
    def expects_more(self) -> bool:
        """Whether all that waits does so for the rest of its group."""
        ready = self.ready > 0
        return ready and all(req.group is not None and req.group.missing > 0 for req in chain(self._requests, self._guesses))

    # -- order -------------------------------------------------------------------------------------------------

    def age(self, req: Request) -> int:
        """Passes that it has waited."""
        return self.clock - req.since

    def is_starved(self, req: Request) -> bool:
        return self.age(req) > _PATIENCE

    def rank(self, req: Request) -> tuple[Any, ...]:
        """Preempted first, then starved, then by the policy; then what may not be needed; last guesses, however long they wait."""
        if req.preempted:
            return (req.guess, False, False, -1, req.priority, req.order)
        if self.is_starved(req):
            return (req.guess, False, req.spare, 0, (), req.order)
        return self._order(req)

    def _orders(self) -> dict[str, Callable[[Request], tuple[Any, ...]]]:
        return {
            "program": lambda req: self._by_prefix(req) if not (self._held_back or self.shortest_first) else self._where_short(req),
            "lpm": lambda req: self._by_prefix(req),
            "fcfs": lambda req: (req.guess, True, req.spare, req.order),
            "random": lambda req: (req.guess, True, req.spare, self._random.random()),
        }

    def _by_prefix(self, req: Request) -> tuple[Any, ...]:
        """Longest cached prefix, then the plan's order, then arrival."""
        return (req.guess, True, req.spare, -self.cached(req).end, req.priority, req.order)

    def first_needed(self) -> Request | None:
        """One of the first that wait, and is no guess."""
        return next((req for req in islice(self._requests, _LOOKED_AT) if not req.spare), None)

    def _where_short(self, req: Request) -> tuple[Any, ...]:
        """Where runs wait for memory, those of open runs first; where prompts wait for rows, the shortest first."""
        is_new = bool(self._held_back) and not req.is_of_open_run
        cached = self.cached(req).end
        return (req.guess, True, req.spare, is_new, req.head_len - cached if self.shortest_first else 0, -cached, req.priority, req.order)

    def cached(self, req: Request) -> Node:
        """Where the longest cached prefix of a waiting request's head ends."""
        found = req.found
        if found is None or found.goes_on(req.found_next):
            limit = req.match_limit
            found = req.found = self._held.tree.match(req.ids, limit, req.space, found or req.behind)
            req.found_next = int(req.ids[found.end]) if found.end < limit else -1
        return found

    def uncached(self, most: int, rows: int) -> int:
        """Tokens of the first `most` heads that are not cached, as far as it takes to find `rows`."""
        found = 0
        for req in islice(chain(self._requests, self._guesses), min(_LOOKED_AT, most)):
            if found >= rows:
                break
            found += req.head_len - self.cached(req).end
        return found

    def rows_of_shorter(self, than: int, most: int, party: Hashable) -> int:
        """Rows of waiting prompts that need fewer than so many and are not of that party, up to `most`."""
        found = 0
        for req in islice(self._requests, _LOOKED_AT):
            rows = req.head_len - self.cached(req).end
            if rows < than and not req.spare and req.party != party and self._held.promises.spare >= self._held.promises.at_first(req):
                found += rows
                if found >= most:
                    return most
        return found

    def keep_next(self) -> None:
        """What requests wait for is used next: it is evicted last, that of the first to be admitted at the very last."""
        if self._kept_in == self.clock or self._held.policy.eviction == "lru":
            return
        self._kept_in = self.clock
        for req in sorted(islice(chain(self._requests, self._guesses), _LOOKED_AT), key=self.rank, reverse=True):
            self._held.tree.touch(self.cached(req))
