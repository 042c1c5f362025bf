"""Promises: how many slots of the KV pool running requests may count on.

A request is promised at admission all that it can need, where that is known or small, and what it is expected to need
(lengths.py) where it is neither; more as its answer grows. What is promised is never more than what is free or can be evicted,
so a promise can always be kept. The promise doubles each time that a request was preempted, and one that is promised everything
is not preempted any more (`most_preemptions`). Counts; who gives up what for whom is the scheduler's.
"""

from __future__ import annotations

from collections.abc import Iterable

from lmc.backend.engine.kv_pool import SlotAllocator
from lmc.backend.engine.lengths import Lengths
from lmc.backend.engine.radix_cache import RadixCache
from lmc.backend.engine.request import Request

_LEAST = 32  # tokens that an answer is promised when it begins, and twice as many each time that it was preempted
_AHEAD = 16  # tokens that it is promised beyond those that it needs now, where there is room


class Promises:
    """Of one pool.

    made    slots promised to running requests and not allocated yet; `Request.reserved` is each one's part
    open    running requests that may need more than they were promised
    """

    def __init__(self, pool: SlotAllocator, tree: RadixCache, lengths: Lengths) -> None:
        self._pool, self._tree, self._lengths = pool, tree, lengths
        self.made = 0
        self.open: dict[Request, None] = {}

    @property
    def spare(self) -> int:
        """Slots that nobody was promised."""
        return self._pool.free_count + self._tree.evictable - self.made

    def at_first(self, req: Request) -> int:
        """Slots that it is promised at admission, cached ones included."""
        if req.is_sure:
            return req.need
        said = req.length - req.prompt_len
        return min(req.need, req.head_len + (max(_LEAST, self._lengths.expected(req.gen) - said) << req.preempted))

    def expected(self, req: Request) -> int:
        """Tokens that its answer is expected to have."""
        return self._lengths.expected(req.gen)

    def make(self, req: Request, slots: int) -> None:
        """So many more."""
        req.reserved += slots
        self.made += slots

    def keep(self, req: Request, slots: int) -> None:
        """So many were allocated."""
        assert req.reserved >= slots, "more allocated than promised"
        req.reserved -= slots
        self.made -= slots

    def watch(self, req: Request) -> None:
        """It runs from now on."""
        if req.unpromised:
            self.open[req] = None

    def end(self, req: Request) -> None:
        """It runs no more."""
        self.made -= req.reserved
        req.reserved = 0
        self.open.pop(req, None)

    @property
    def is_short(self) -> bool:
        """Whether the next pass may need more than there is, unless something ends before."""
        return bool(self.open) and sum(map(_lacks, self.short())) > self.spare

    def short(self) -> list[Request]:
        """Those that were promised less than their known tokens need."""
        return [req for req in self.open if req.length > req.draft_end + req.reserved]

    def left_for(self, short: list[Request]) -> int:
        """Slots beyond those that they lack, for each: so that not each pass has to promise more."""
        return min(_AHEAD, max(0, (self.spare - sum(map(_lacks, short))) // len(short)))

    def extend(self, req: Request, ahead: int) -> None:
        """What it lacks, and `ahead` more if it may need them."""
        self.make(req, min(req.missing + ahead, req.unpromised))
        if not req.unpromised:
            del self.open[req]

    def check(self, running: Iterable[Request]) -> None:
        """Raises AssertionError if a promise has no owner, or could not be kept."""
        assert self.made == sum(req.reserved for req in running), "promises without a request"
        assert self.spare >= 0, "more promised than there is"
        assert set(self.open) == {req for req in running if req.unpromised}, "not known who may need more"


def most_preemptions(req: Request) -> int:
    """How often a request can be preempted: once it is promised all that it may need, it is not."""
    return 0 if req.is_sure else (max(0, req.max_new - 2) // _LEAST).bit_length()


def _lacks(req: Request) -> int:
    """`Request.missing`, quickly: negative where nothing is; one more than that where the last token needs no row."""
    return req.length - req.draft_end - req.reserved
