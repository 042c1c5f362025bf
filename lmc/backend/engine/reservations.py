"""Reservations: the slots of the KV pool guaranteed to running requests.

At admission a request reserves all that it can need, if that is known or small, and what it is expected to need if it
is neither; more as its answer grows. A program makes requests at the same places of its source again and again, and
answers at one place have about the same length (SGLang reserves a share of `max_tokens` that is the same for all
requests, vLLM nothing): being wrong costs time, never text. Reservations never exceed the free and evictable slots, so they
can always be fulfilled. The reservation doubles with each preemption of a request, and one with everything reserved is
never preempted (`most_preemptions`). Only counts; the scheduler decides about preemption.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from lmc.backend.engine.kv_pool import SlotAllocator
from lmc.backend.engine.radix_cache import RadixCache
from lmc.backend.engine.request import Request

_LEAST = 32  # tokens that an answer reserves when it begins, doubled with each preemption
_AHEAD = 16  # further tokens that it reserves beyond its present need, if there is room

_UNKNOWN = 128.0  # tokens expected of a gen without answers so far
_RECENT = 32  # window of the running mean, so that it follows changes
_GENS = 1024  # remembered gens, the most recent ones


class AnswerLengths:
    """Mean lengths of answers, in tokens, per gen."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, int]] = {}  # mean, answers that it is over; in the order of the last answer

    def expected(self, gen: Hashable) -> int:
        """Return the expected number of tokens of an answer to `gen`."""
        return round(self._seen.get(gen, (_UNKNOWN, 0))[0])

    def learn(self, gen: Hashable, tokens: int) -> None:
        """Record the length of an ended answer to `gen`."""
        mean, count = self._seen.pop(gen, (0.0, 0))
        count = min(count + 1, _RECENT)
        self._seen[gen] = mean + (tokens - mean) / count, count
        if len(self._seen) > _GENS:
            del self._seen[next(iter(self._seen))]


class Reservations:
    """Reservations of one pool.

    made    slots reserved by running requests and not allocated yet; `Request.reserved` is each one's part
    open    running requests that may need more than they have reserved
    """

    def __init__(self, pool: SlotAllocator, tree: RadixCache, lengths: AnswerLengths) -> None:
        self._pool, self._tree, self._lengths = pool, tree, lengths
        self.reserved = 0
        self.open: dict[Request, None] = {}

    @property
    def unreserved(self) -> int:
        """Return the unreserved slots."""
        return self._pool.free_count + self._tree.evictable - self.reserved

    def at_first(self, req: Request) -> int:
        """Return the slots to reserve at admission, cached ones included."""
        if req.is_sure:
            return req.need
        said = req.length - req.prompt_len
        return min(req.need, req.head_len + (max(_LEAST, self._lengths.expected(req.gen) - said) << req.preempted))

    def expected(self, req: Request) -> int:
        """Return the expected tokens of its answer."""
        return self._lengths.expected(req.gen)

    def reserve(self, req: Request, slots: int) -> None:
        """Reserve so many more."""
        req.reserved += slots
        self.reserved += slots

    def consume(self, req: Request, slots: int) -> None:
        """Consume so many, which were allocated."""
        assert req.reserved >= slots, "more allocated than reserved"
        req.reserved -= slots
        self.reserved -= slots

    def consume_each(self, requests: Sequence[Request]) -> None:
        """Consume one of each."""
        for req in requests:
            assert req.reserved > 0, "more allocated than reserved"
            req.reserved -= 1
        self.reserved -= len(requests)

    def watch(self, req: Request) -> None:
        """Track a request that runs from now on."""
        if req.unreserved_need:
            self.open[req] = None

    def end(self, req: Request) -> None:
        """Drop a request that no longer runs."""
        self.reserved -= req.reserved
        req.reserved = 0
        self.open.pop(req, None)

    @property
    def is_short(self) -> bool:
        """Return whether the next pass may need more than there is, unless something ends before."""
        return bool(self.open) and sum(map(_lacks, self.short())) > self.unreserved

    def short(self) -> list[Request]:
        """Return requests that reserved less than their known tokens need."""
        return [req for req in self.open if req.length > req.device_len + req.draft + req.reserved]

    def left_for(self, short: list[Request]) -> int:
        """Return the slots to spare beyond those that they lack, for each: so that not every pass has to reserve
        more."""
        return min(_AHEAD, max(0, (self.unreserved - sum(map(_lacks, short))) // len(short)))

    def extend(self, req: Request, ahead: int) -> None:
        """Reserve what it lacks, and `ahead` more if it may need them."""
        self.reserve(req, min(req.missing + ahead, req.unreserved_need))
        if not req.unreserved_need:
            del self.open[req]

    def check(self, running: Iterable[Request]) -> None:
        """Raise AssertionError if a reservation has no owner, or cannot be fulfilled."""
        assert self.reserved == sum(req.reserved for req in running), "reservations without a request"
        assert self.unreserved >= 0, "more reserved than there is"
        assert set(self.open) == {req for req in running if req.unreserved_need}, "untracked requests may need more"


def most_preemptions(req: Request) -> int:
    """Return how often a request can be preempted: once everything it may need is reserved, it is not."""
    return 0 if req.is_sure else (max(0, req.max_new - 2) // _LEAST).bit_length()


def _lacks(req: Request) -> int:
    """Return `Request.missing`, faster: negative if nothing is missing; one too many if the last token needs no row."""
    return req.length - req.draft_end - req.reserved
