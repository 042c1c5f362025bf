"""Who waits, and in which order: preempted first, then who has waited too long, then the longest cached prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice

from lmc.backend.engine.holdings import Holdings
from lmc.backend.engine.radix_cache import Node
from lmc.backend.engine.request import Request

_LOOKED_AT = 64  # whose prompts are counted, and kept in the cache
_WINDOW = 256  # looked at in one pass
_PATIENCE = 512  # passes after which a request goes first, whatever is cached


class Waiting:
    """Requests that were not admitted, who is next first.

    clock  passes that were planned; a request's `since` is one of them
    """

    def __init__(self, held: Holdings) -> None:
        self._held = held
        self._requests: OrderedDict[Request, None] = OrderedDict()
        self._guesses: OrderedDict[Request, None] = OrderedDict()  # looked at when all others have been
        self._stuck_at = -1  # the changes of the holdings when nothing fitted; -1: something new may fit
        self._kept_in = 0  # the last pass in which something was evicted
        self.clock = 0

    def __len__(self) -> int:
        return len(self._requests) + len(self._guesses)

    def __iter__(self) -> Iterator[Request]:
        """Over a copy, made at once: other threads ask for figures while the loop goes on."""
        return iter([*self._requests, *self._guesses])

    def __contains__(self, req: object) -> bool:
        return req in self._requests or req in self._guesses

    # -- in and out --------------------------------------------------------------------------------------------

    def add(self, req: Request) -> None:
        req.since = self.clock
        self._queue(req)[req] = None
        if req.group is not None:
            req.group.waiting.append(req)
        self._stuck_at = -1

    def remove(self, req: Request) -> None:
        """It was cancelled."""
        del (self._requests if req in self._requests else self._guesses)[req]
        if req.group is not None:
            req.group.waiting.remove(req)
            self._stuck_at = -1  # the others of the group may fit now

    def put_back(self, req: Request) -> None:
        """Before all that waits."""
        queue = self._queue(req)
        queue[req] = None
        queue.move_to_end(req, last=False)

    def take(self) -> list[Request]:
        """Those that are looked at now, in the order in which they may be admitted; who is not is put back."""
        taken = [self._requests.popitem(last=False)[0] for _ in range(min(_WINDOW, len(self._requests)))]
        taken += [self._guesses.popitem(last=False)[0] for _ in range(min(_WINDOW - len(taken), len(self._guesses)))]
        taken.sort(key=self.rank)
        return taken

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
        return self._stuck_at == self._held.changes

    def stick(self) -> None:
        self._stuck_at = self._held.changes

    @property
    def expects_more(self) -> bool:
        """Whether all that waits does so for the rest of its group."""
        return all(req.group is not None and req.group.missing > 0 for req in chain(self._requests, self._guesses))

    # -- order -------------------------------------------------------------------------------------------------

    def age(self, req: Request) -> int:
        """Passes that it has waited."""
        return self.clock - req.since

    def is_starved(self, req: Request) -> bool:
        return self.age(req) > _PATIENCE

    def rank(self, req: Request) -> tuple[bool, bool, bool, int, tuple[int, ...], int]:
        """Preempted first, then starved, then longest cached prefix, then the plan's order, then arrival; then what may not
        be needed; last guesses, however long they wait."""
        if req.preempted:
            return (req.guess, False, False, -1, req.priority, req.order)
        if self.is_starved(req):
            return (req.guess, False, req.spare, 0, (), req.order)
        return (req.guess, True, req.spare, -self.cached(req).end, req.priority, req.order)

    def first_needed(self) -> Request | None:
        """One of the first that wait, and is no guess."""
        return next((req for req in islice(self._requests, _LOOKED_AT) if not req.spare), None)

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

    def keep_next(self) -> None:
        """What requests wait for is used next: it is evicted last, that of the first to be admitted at the very last."""
        if self._kept_in == self.clock:
            return
        self._kept_in = self.clock
        for req in sorted(islice(chain(self._requests, self._guesses), _LOOKED_AT), key=self.rank, reverse=True):
            self._held.tree.touch(self.cached(req))
