"""Batch builder of a pass: rows for the known but uncomputed tokens of running requests, in slots that they reserved.

Two requests never compute the same prompt token: one with rows in this pass *claims* (place, next token), and another
that needs the same token *follows* it, in this very pass: its rows attend to the slots that the other's rows write, and
continue where the two prompts diverge. So the trie of a cold batch takes as many passes as its rows need, not as many
as it is deep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lmc.backend.engine.forward_batch import Draft, ModelPass, Rows, Score
from lmc.backend.engine.radix_cache import Node, common_prefix
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.slot_ownership import SlotOwnership
from lmc.backend.engine.token_ids import PICTURE
from lmc.backend.engine.waiting import WaitingQueue

FREE_ROWS = 188
"""Rows of a pass that are nearly free: up to it, reading the weights dominates (docs/performance.md)."""

Place = Node | tuple[Request, int]
"""Position from which a prompt continues: after a node of the tree, or after so many tokens of a request that has rows
in this pass."""


class Start(NamedTuple):
    """Start of a request's own rows: after cached tokens, and those that others compute in this pass.

    node    where the cached prefix ends
    at      tokens of its head that it need not compute;  leader: the request that computes the last of them;
            None: they are cached
    """

    node: Node
    at: int
    place: Place
    leader: Request | None


class BatchBuilder:
    """Builds a pass, `work`. room: rows left for prompts and forced runs."""

    def __init__(self, held: SlotOwnership, waiting: WaitingQueue, chunk: int) -> None:
        self.work, self.room = ModelPass(), chunk
        self._shares = held.policy.cache == "tree"
        self._allowed: dict[Request, int] = {}  # rows allowed for each competing prompt
        self._chunk, self._held, self._waiting = chunk, held, waiting
        self._claims: dict[tuple[Place, int], Request] = {}  # the request that computes the token after a place
        self._planned: dict[Request, int] = {}  # tokens of its head that a request will have computed

    @property
    def batch(self) -> int:
        """Return the sequences that run together after the pass."""
        return len(self._held.running) + sum(len(req.twins) for _, req in self.work.first)

    def allow(self, req: Request, rows: int) -> None:
        """Limit the rows of a prompt in this pass."""
        self._allowed[req] = rows

    def allowed(self, req: Request) -> int:
        return self._allowed.get(req, 0)

    def room_of(self, req: Request) -> int:
        """Return the rows left for a request: low-priority ones get the free rows of a pass that others run in
        anyway."""
        room = min(self.room, FREE_ROWS - self.work.rows) if req.low_priority else self.room
        return min(room, self._allowed.get(req, room)) if self._allowed else room

    def planned(self, req: Request) -> int:
        """Return how much of its head a request with rows in this pass will have computed."""
        return self._planned[req]

    def begins(self, req: Request) -> bool:
        """Return whether its answer begins in this pass."""
        return any(other is req for _, other in self.work.first)

    def start(self, req: Request) -> Start:
        """Return how much of a waiting request's head is cached or computed in this pass, and by which request."""
        node = self._waiting.cached(req)
        at, place, leader = node.end, node, None
        while self._shares and at < req.head_len and (ahead := self._claims.get((place, int(req.ids[at])))) is not None:
            at += common_prefix(req.ids[at : req.head_len], ahead.ids[at : self._planned[ahead]])
            place, leader = (ahead, at), ahead
        return Start(node, at, place, leader)

    def decode(self, decoding: Sequence[Request], known: Sequence[int], drafts: Mapping[Request, np.ndarray]) -> None:
        """Add the rows of sampled tokens, `known` of each, and as many of the tokens forced after them as there is room for. The last
        row of each gives the next sample, unless the answer has ended and only waits for scores. The rows of its draft
        follow."""
        assert min(known, default=1) > 0, "a decoding request has nothing to compute"
        if drafts or sum(known) > len(known):
            self._several(decoding, known, drafts)
        else:
            self._one_each(decoding)
        self.room -= min(len(self.work.samples), self.room, self._chunk // 2)  # GEMMs like a whole chunk

    def _one_each(self, decoding: Sequence[Request]) -> None:
        """Add one row for each, and nothing else: most rows of most passes."""
        work, reservations = self.work, self._held.reservations
        spans, samples = work.spans, work.samples
        for row, (req, slot) in enumerate(zip(decoding, self._alloc(len(decoding)).tolist(), strict=True), work.rows):
            at = req.device_len
            req.slots[at] = slot
            spans.append(Rows(req, req.ids[at : at + 1], at, req.slots[: at + 1], None, req.is_far))
            if req.is_scored:
                self._score(req, row, at, at + 1)
            if req.ending is None:
                samples.append((row, req))
        work.rows += len(decoding)
        reservations.consume_each(decoding)

    def _several(self, decoding: Sequence[Request], known: Sequence[int], drafts: Mapping[Request, np.ndarray]) -> None:
        room, counts = self.room, list[int]()
        for more in known:
            n = more if more == 1 else min(more, 1 + max(0, room))
            room -= n - 1
            counts.append(n)
        drafts = self._drafts(drafts, dict(zip(decoding, counts, strict=True)))
        slots = self._alloc(sum(counts) + sum(map(len, drafts.values())))
        taken = 0
        for req, n in zip(decoding, counts, strict=True):
            draft = drafts.get(req)
            more = 0 if draft is None else len(draft)
            start = self._place(req, slots[taken : taken + n + more])
            taken += n + more
            if n == req.extend_len and req.ending is None:
                self.work.samples.append((start + n - 1, req))
            if draft is not None:
                self.work.drafts[req] = Draft(draft, start + n, req.length, self.work.checked)
                self.work.checked += more
        self.room -= sum(counts) - len(decoding)  # drafts use rows that no other request wants

    def _drafts(self, drafts: Mapping[Request, np.ndarray], counts: Mapping[Request, int]) -> dict[Request, np.ndarray]:
        """Return drafts with slots that are unreserved and need no eviction; these are reserved now, and kept as far as
        they are drawn."""
        reservations, found = self._held.reservations, dict[Request, np.ndarray]()
        free, spare = self._held.pool.free_count - sum(counts.values()), reservations.unreserved
        for req, draft in drafts.items():
            n = counts[req]
            lacks = max(0, n + len(draft) - req.reserved)
            if n < req.extend_len or req.ending is not None or len(draft) > free or lacks > spare:
                continue
            free, spare = free - len(draft), spare - lacks
            if lacks:
                reservations.extend(req, lacks)
            req.ids[req.length : req.length + len(draft)] = draft
            req.draft = len(draft)
            found[req] = draft
        return found

    def advance(self, req: Request, place: Place) -> None:
        """Add the next chunk of the head, after `place`, and the branches once it is complete."""
        n, row = _uncut(req, max(0, min(req.head_len - req.device_len, self.room_of(req)))), -1
        planned = req.device_len + n
        if n > 0:
            self._claims.setdefault((place, int(req.ids[req.device_len])), req)
            self._planned[req] = planned
            row = self._place(req, self._alloc(n)) + n - 1
            self.room -= n
        if planned < req.head_len:
            return
        if req.kind is RequestKind.GENERATE and req.max_new > 0 and req.ending is None:
            self.work.first.append((row, req))
        if req.kind is RequestKind.SCORE:
            if row >= 0:
                self.work.scores += [Score(row, token, req, None, node) for node, token in req.trie.first]
            self._choices(req)

    def _choices(self, req: Request) -> None:
        """Add rows of the choices' trie, run by run; they see the prompt, and those above them, also in this very
        pass."""
        trie, reservations = req.trie, self._held.reservations
        while req.next_row < len(trie.ids):
            first = req.next_row
            n = min(trie.run(first), self.room, reservations.unreserved + req.reserved)
            if n <= 0:
                break  # the next pass has room again
            slots = self._alloc(n)
            reservations.consume(req, min(req.reserved, n))
            self._run_of_choices(req, slots)
            self.room -= n

    def _run_of_choices(self, req: Request, slots: np.ndarray) -> None:
        """Add the next rows of its choices' trie, a run."""
        trie, first, n = req.trie, req.next_row, len(slots)
        req.row_slots[first : first + n] = slots
        above, prompt = trie.above(first), trie.prompt_length(first)
        context = np.concatenate((req.slots[:prompt], req.row_slots[above], slots))
        far = req.is_far if prompt else req.lone_is_far
        start = self.work.add(Rows(req, trie.ids[first : first + n], trie.positions[first], context, first, far)) - first
        for row in range(first, first + n):
            self.work.scores += [Score(start + row, token, req, None, node) for node, token in trie.asks[row]]
        req.next_row += n

    def has_slots(self, n: int) -> bool:
        """Return whether so many slots are unreserved and need no eviction."""
        return n <= self._held.pool.free_count and n <= self._held.reservations.unreserved

    def ride(self, rider: Request, behind: Request, at: int) -> None:
        """Add all rows of a select behind the first `at` tokens of another request, whose rows are in this pass or were before. There are slots for them."""
        end = rider.head_len
        slots = self._held.alloc(end - at + len(rider.trie.ids))
        rider.slots[:at], rider.slots[at:end] = behind.slots[:at], slots[: end - at]
        start = self.work.add(Rows(rider, rider.ids[at:end], at, rider.slots[:end]))
        self.work.scores += [Score(start + end - at - 1, token, rider, None, node) for node, token in rider.trie.first]
        slots = slots[end - at :]
        while rider.next_row < len(rider.trie.ids):
            first = rider.next_row
            self._run_of_choices(rider, slots[first : first + rider.trie.run(first)])

    def _place(self, req: Request, slots: np.ndarray) -> int:
        """Add rows for the next known tokens, one per reserved slot; scores for those after them that are known too."""
        at, n = req.device_len, len(slots)
        end = at + n
        req.slots[at:end] = slots
        self._held.reservations.consume(req, n)
        start = self.work.add(Rows(req, req.ids[at:end], at, req.slots[:end], None, req.is_far))
        if req.is_scored:
            self._score(req, start, at, end)
        return start

    def _score(self, req: Request, start: int, at: int, end: int) -> None:
        """Score the known tokens behind its rows [at, end), of which the first is row `start`."""
        for p in range(max(at, req.first_scored - 1), min(end, req.length - 1)):
            if req.ids[p + 1] < PICTURE:  # pictures have no log-probability
                self.work.scores.append(Score(start + p - at, int(req.ids[p + 1]), req, p + 1))

    def _alloc(self, n: int) -> np.ndarray:
        if self._held.lacks(n):
            self._waiting.keep_next()
        return self._held.alloc(n)

    def done(self) -> ModelPass | None:
        """Return the pass; None if there is nothing to compute."""
        work = self.work
        for row, req in work.first:  # only now: twins may join a prompt that is in this very pass
            work.samples += [(row, req), *((row, twin) for twin in req.twins)]
        work.complete()
        return work if work.rows or work.scores else None


def _uncut(req: Request, n: int) -> int:
    """Return how many of the next `n` rows of a head to run, or how many more, so that tokens of a picture that see
    each other are in one pass. Cached ones were computed this way."""
    end = req.device_len + n
    for at in req.pictures if n else ():
        if at.picture.shown.mutual and at.start < end < at.end:
            return (at.start if at.start > req.device_len else at.end) - req.device_len
    return n
