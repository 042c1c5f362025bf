"""A pass being filled: rows for what running requests know and have not computed, in slots that they were promised.

Two requests never compute the same prompt token: one with rows in this pass *claims* (place, next token), and another that
needs the same token *follows* it, in this very pass: its rows attend to the slots that the other's rows write, and go on
where the two prompts part. So the trie of a cold batch takes as many passes as its rows do, not as it is deep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lmc.backend.engine.holdings import Holdings
from lmc.backend.engine.radix_cache import Node, common_prefix
from lmc.backend.engine.request import PICTURE, Kind, Request, drafted
from lmc.backend.engine.waiting import Waiting
from lmc.backend.engine.work import Draft, Pass, Rows, Score

FREE_ROWS = 188
"""Rows of a pass that are nearly free: below it, reading the weights takes the time (docs/performance.md)."""

Place = Node | tuple[Request, int]
"""Where a prompt goes on: behind a node of the tree, or behind so many tokens of a request that has rows in this pass."""


class Start(NamedTuple):
    """Where a request's own rows begin: behind what is cached, and what others compute in this pass.

    node    where what is cached ends
    at      tokens of its head that it need not compute;  leader: who computes the last of them; None: they are cached
    """

    node: Node
    at: int
    place: Place
    leader: Request | None


class Filling:
    """work: the pass. room: rows that prompts and forced runs may still have in it."""

    def __init__(self, held: Holdings, waiting: Waiting, chunk: int) -> None:
        self.work, self.room = Pass(), chunk
        self._shares = held.policy.cache == "tree"
        self._allowed: dict[Request, int] = {}  # rows that prompts may have which compete for them
        self._chunk, self._held, self._waiting = chunk, held, waiting
        self._claims: dict[tuple[Place, int], Request] = {}  # who computes the token after a place
        self._planned: dict[Request, int] = {}  # how much of its head a request will have computed

    @property
    def batch(self) -> int:
        """Sequences that run together once it is over."""
        return len(self._held.running) + sum(len(req.twins) for _, req in self.work.first)

    def limit(self, rows: int) -> None:
        """The pass has no more rows of prompts and forced runs."""
        self.room = self._chunk = rows

    def allow(self, req: Request, rows: int) -> None:
        """A prompt has no more in this pass."""
        self._allowed[req] = rows

    def allowed(self, req: Request) -> int:
        return self._allowed.get(req, 0)

    def room_of(self, req: Request) -> int:
        """What is spare has the free rows of a pass that others run in anyway."""
        room = min(self.room, FREE_ROWS - self.work.rows) if req.spare else self.room
        return min(room, self._allowed.get(req, room)) if self._allowed else room

    def planned(self, req: Request) -> int:
        """How much of its head a request that has rows of it in this pass will have computed."""
        return self._planned[req]

    def begins(self, req: Request) -> bool:
        """Whether its answer begins in this pass."""
        return any(other is req for _, other in self.work.first)

    def start(self, req: Request) -> Start:
        """How much of a waiting request's head is cached or computed in this pass, and by whom."""
        node = self._waiting.cached(req)
        at, place, leader = node.end, node, None
        while self._shares and at < req.head_len and (ahead := self._claims.get((place, int(req.ids[at])))) is not None:
            at += common_prefix(req.ids[at : req.head_len], ahead.ids[at : self._planned[ahead]])
            place, leader = (ahead, at), ahead
        return Start(node, at, place, leader)

    def decode(self, decoding: Sequence[Request], drafts: Mapping[Request, np.ndarray]) -> None:
        """The rows of sampled tokens, and as many as there is room for of the tokens forced behind them. The last row of each
        gives the next sample, unless the answer has ended and only waits for scores. Behind that are the rows of its draft."""
        room, counts = self.room, list[int]()
        for req in decoding:
            known = req.extend_len
            assert known > 0, "a decoding request has nothing to compute"
            n = known if known == 1 else min(known, 1 + max(0, room))
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
                self.work.drafts[req] = Draft(draft, len(self.work.checks))
                self.work.checks += [(start + n + i, view) for i, view in enumerate(drafted(req, draft))]
        self.room -= sum(counts) - len(decoding)  # drafts have rows that nobody else wants
        self.room -= min(len(self.work.samples), self.room, self._chunk // 2)  # products of matrices like a whole chunk

    def _drafts(self, drafts: Mapping[Request, np.ndarray], counts: Mapping[Request, int]) -> dict[Request, np.ndarray]:
        """Those that there are slots for which nobody was promised and nothing is evicted for; they are promised them now, and keep them
        as far as they are drawn."""
        promises, found = self._held.promises, dict[Request, np.ndarray]()
        free, spare = self._held.pool.free_count - sum(counts.values()), promises.spare
        for req, draft in drafts.items():
            n = counts[req]
            lacks = max(0, n + len(draft) - req.reserved)
            if n < req.extend_len or req.ending is not None or len(draft) > free or lacks > spare:
                continue
            free, spare = free - len(draft), spare - lacks
            if lacks:
                promises.extend(req, lacks)
            req.ids[req.length : req.length + len(draft)] = draft
            req.draft = len(draft)
            found[req] = draft
        return found

    def advance(self, req: Request, place: Place) -> None:
        """The next chunk of the head, behind `place`, and the branches once it is complete."""
        n, row = _uncut(req, max(0, min(req.head_len - req.device_len, self.room_of(req)))), -1
        planned = req.device_len + n
        if n > 0:
            self._claims.setdefault((place, int(req.ids[req.device_len])), req)
            self._planned[req] = planned
            row = self._place(req, self._alloc(n)) + n - 1
            self.room -= n
        if planned < req.head_len:
            return
        if req.kind is Kind.GENERATE and req.max_new > 0 and req.ending is None:
            self.work.first.append((row, req))
        if req.kind is Kind.SCORE:
            if row >= 0:
                self.work.scores += [Score(row, token, req, None, node) for node, token in req.trie.first]
            self._choices(req)

    def _choices(self, req: Request) -> None:
        """Rows of the choices' trie, run by run; they see the prompt, and those above them, also in this very pass."""
        trie, promises = req.trie, self._held.promises
        while req.next_row < len(trie.ids):
            first = req.next_row
            n = min(trie.run(first), self.room, promises.spare + req.reserved)
            if n <= 0:
                break  # the next pass has room again
            slots = self._alloc(n)
            promises.keep(req, min(req.reserved, n))
            req.row_slots[first : first + n] = slots
            above, prompt = trie.above(first), trie.prompt_length(first)
            context = np.concatenate((req.slots[:prompt], req.row_slots[above], slots))
            far = req.is_far if prompt else req.lone_is_far
            start = self.work.add(Rows(req, trie.ids[first : first + n], trie.positions[first], context, first, far)) - first
            for row in range(first, first + n):
                self.work.scores += [Score(start + row, token, req, None, node) for node, token in trie.asks[row]]
            req.next_row += n
            self.room -= n

    def _place(self, req: Request, slots: np.ndarray) -> int:
        """Rows for the next known tokens, one a slot that it was promised; scores for those behind them that are known too."""
        at, n = req.device_len, len(slots)
        end = at + n
        req.slots[at:end] = slots
        self._held.promises.keep(req, n)
        start = self.work.add(Rows(req, req.ids[at:end], at, req.slots[:end], None, req.is_far))
        if req.is_scored:
            for p in range(max(at, req.first_scored - 1), min(end, req.length - 1)):
                if req.ids[p + 1] < PICTURE:  # how likely a picture is, no model says
                    self.work.scores.append(Score(start + p - at, int(req.ids[p + 1]), req, p + 1))
        return start

    def _alloc(self, n: int) -> np.ndarray:
        if self._held.lacks(n):
            self._waiting.keep_next()
        return self._held.alloc(n)

    def done(self) -> Pass | None:
        """The pass; None if there is nothing to compute."""
        work = self.work
        for row, req in work.first:  # only now: twins may join a prompt that is in this very pass
            work.samples += [(row, req), *((row, twin) for twin in req.twins)]
        return work if work.rows or work.scores else None


def _uncut(req: Request, n: int) -> int:
    """How many of the next `n` rows of a head to run, or how many more, so that tokens of a picture that see each other are in one
    pass. What of them is cached was computed so."""
    end = req.device_len + n
    for at in req.pictures if n else ():
        if at.picture.shown.mutual and at.start < end < at.end:
            return (at.start if at.start > req.device_len else at.end) - req.device_len
    return n
