"""Riders: a select behind an answer is scored in the pass in which the answer is expected to end.

    known         … the cat sat on the
    draft                              mat  .                         the answer's rows
    rider                                       So it is: yes | no    rows of the select behind it, if the answer ends by what is drawn after "."

Rows of a rider see the slots that the answer's rows write in this very pass. A rider is no request of its own: it has slots for one pass, and never waits,
samples or is delivered. If the answer ends as expected, its slots go to the tree, and its scores are those of the request that the program then makes, if
that has equal tokens; if not, they are freed, and nothing has changed but a pass's rows. So it is only made in rows and slots that nobody else wants, and if
the odds that the answer ends there pay for its rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmc.backend.engine.answer import Ending
from lmc.backend.engine.batch_builder import BatchBuilder
from lmc.backend.engine.draft_sources import Match
from lmc.backend.engine.drafts import MOST_DRAFTING, Drafts
from lmc.backend.engine.forward_batch import PassCounts
from lmc.backend.engine.radix_cache import common_prefix
from lmc.backend.engine.request import Request
from lmc.backend.engine.slot_ownership import SlotOwnership


@dataclass(frozen=True, slots=True)
class _Rider:
    """A rider in flight.

    request  the select, which is never admitted: `hit_len` tokens of it are the answer's, the slots of the rest are ours
    ending   how its answer is expected to end, by what is drawn behind `draft`, which follows `length` tokens
    place    where that was read
    cost     of its rows, if the answer does not end so; else they would be run anyway
    """

    request: Request
    ending: Ending
    length: int
    draft: np.ndarray
    place: Match
    cost: float


class Riders:
    """Riders of one engine, by the answer that each is behind."""

    def __init__(self, held: SlotOwnership, drafts: Drafts, tally: PassCounts) -> None:
        self._held, self._drafts, self._tally = held, drafts, tally
        self._riding: dict[Request, _Rider] = {}

    def join(self, builder: BatchBuilder, decoding: Sequence[Request], rows: int) -> None:
        """Add riders to a pass whose decoding rows are placed: at most so many rows."""
        if len(decoding) > MOST_DRAFTING or self._held.policy.cache != "tree":
            return
        known_so_far = [req for req in decoding if req.precedes_select and not req.awaited and req.followed == req.length]
        sampled = {req for _, req in builder.work.samples} if known_so_far else ()
        for req in known_so_far:
            if req not in sampled:
                continue
            draft = builder.work.drafts.get(req)
            place = self._drafts.place(req, len(decoding))
            found = None if place is None else self._expected(req, place, [] if draft is None else draft.ids.tolist())
            if place is None or found is None:
                continue
            ending, before, rider = found
            known = req.length + before  # what is behind the token that ends it is no part of the answer, and its rows are dropped
            at = common_prefix(rider.ids[: rider.head_len - 1], req.ids[: min(known, req.prompt_len + ending.keep)])
            n = rider.head_len - at + len(rider.trie.ids)
            if n > rows or not builder.has_slots(n) or (cost := self._drafts.pay(req, place, before, n)) is None:
                continue
            builder.ride(rider, req, at)
            rows, rider.hit_len = rows - n, at
            self._riding[req] = _Rider(rider, ending, req.length, req.ids[req.length : known].copy(), place, cost)
            self._tally.riders += 1
            builder.work.riders.append(req)

    def may_follow(self, req: Request, tokens: Sequence[int]) -> bool:
        """Return whether there may be a rider behind a lone answer once it has these tokens."""
        place = self._drafts.place(req, 1) if req.precedes_select else None
        return place is not None and self._expected(req, place, tokens) is not None

    def _expected(self, req: Request, place: Match, tokens: Sequence[int]) -> tuple[Ending, int, Request] | None:
        """Return how the answer ends by `tokens` or the one behind them, how many come before the one that ends it, and the select that follows then; None if
        one of these is unknown."""
        answer, following = req.answer, req.following
        if answer is None or following is None or req.is_scored or req.near is not None:
            return None
        expected = place.next(len(tokens) + 1).tolist()
        found = answer.ended_by(expected) if expected[: len(tokens)] == list(tokens) else None
        rider = None if found is None else following(found[0])
        return None if found is None or rider is None or rider.space != req.space else (*found, rider)

    def settle(self, req: Request) -> None:
        """End the rider behind an answer, if there is one, whose pass is known: its slots go to the tree if the answer has ended as expected."""
        found = self._riding.pop(req, None)
        if found is None:
            return
        rider, pool = found.request, self._held.pool
        self._held.changes += 1  # what did not fit beside it may fit now
        right = req.ending is not None and req.ending.ids == found.ending.ids
        as_drafted = np.array_equal(req.ids[found.length : found.length + len(found.draft)], found.draft)
        if right or (as_drafted and not req.done):
            self._drafts.learn_end(req, found.place, right)
        if right:
            self._drafts.gained(found.cost)
        if not (right and self._keep(rider)):
            pool.free(rider.slots[rider.hit_len : rider.head_len])
        pool.free(rider.row_slots[rider.held_rows])
        rider.row_slots[:] = -1

    def _keep(self, rider: Request) -> bool:
        """Give the tree what it has of the prompt, behind what its answer has left there, and of the choice that is the best; return False if the answer
        has left less, or the scores are no numbers."""
        tree, at = self._held.tree, rider.hit_len
        node = tree.match(rider.ids, at, rider.space)
        if node.end < at or any(map(math.isnan, rider.node_logprobs)):
            return False
        done = tree.insert(node, rider.ids[at : rider.head_len], rider.slots[at : rider.head_len])
        self._held.pool.free(rider.slots[at : at + done.present])
        tree.mark_end(done.node)
        assert rider.choose is not None
        rider.node = done.node
        self._held.keep_branch(rider, rider.choose(rider))
        rider.node = None
        return True

    def use(self, req: Request) -> None:
        """Give a select the scores of the rider that computed it."""
        rider, tally = req.rider, self._tally
        assert rider is not None
        req.node_logprobs, req.hit_len, req.kept, req.rider = rider.node_logprobs, rider.hit_len, rider.kept, None
        new = rider.head_len - rider.hit_len + len(rider.trie.ids)
        tally.prompt_tokens, tally.cached_tokens = tally.prompt_tokens + req.prompt_len, tally.cached_tokens + req.hit_len
        tally.prefilled_tokens, tally.unique_tokens = tally.prefilled_tokens + new, tally.unique_tokens + new
        tally.riders_used += 1
        self._drafts.gained(self._drafts.costs.plain)

    def slots(self) -> list[np.ndarray]:
        """Return the slots of all riders."""
        every = [found.request for found in self._riding.values()]
        return [r.slots[r.hit_len : r.head_len] for r in every] + [r.row_slots[r.held_rows] for r in every]


def equals(rider: Request, req: Request) -> bool:
    """Return whether a select has the tokens that a rider has scored."""
    if not rider.passes or any(map(math.isnan, rider.node_logprobs)):
        return False
    same = rider.space == req.space and len(rider.branches) == len(req.branches) and np.array_equal(rider.prompt, req.prompt)
    return same and all(a.base == b.base and np.array_equal(a.ids, b.ids) for a, b in zip(rider.branches, req.branches, strict=True))
