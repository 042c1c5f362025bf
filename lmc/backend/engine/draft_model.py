"""A smaller model of the same vocabulary guesses what answers go on with (cf. speculative decoding, arXiv 2211.17192).

    answers that wait for their next pass ──► rows that the small model lacks ─┬─► its logits ──► the answer's own sampler ──► a token of the draft
                                                    ▲                          │
                                                    └──── that token ◄─────────┘   until the draft is long enough

It draws as the answer does: with its parameters, penalties, constraint, and the number that belongs to (seed, position). So what both models find alike is
drawn alike, at every temperature; what is drawn is verified like any other draft, and nothing that is said changes.

Its KV is in a pool and a radix tree of its own, whose namespaces are those of requests:

    slots   [0, node.end) in the tree, locked · [node.end, computed) ours, of tokens that were known or guessed · tail kept for what comes
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from lmc.backend.engine.drafted import Drafted, DraftedAnswer
from lmc.backend.engine.forward_batch import ModelPass, Rows
from lmc.backend.engine.kv_pool import SlotAllocator
from lmc.backend.engine.radix_cache import Node, RadixCache, common_prefix
from lmc.backend.engine.request import Request, nobody
from lmc.errors import ConstraintError, ModelLoadError

if TYPE_CHECKING:
    from lmc.backend.engine.encoding import TokenizerProtocol
    from lmc.backend.engine.model_runner import ModelRunner
    from lmc.backend.engine.models.loader import LoadedModel
    from lmc.backend.engine.sampler import Sampler

_CONTEXTS = 8  # of which the pool holds the tokens, if it may be so large
_MOST_SLOTS = 1 << 14


class _Sequence:
    """The small model's KV of a request: `ids[:computed]`, at `slots[:computed]`."""

    __slots__ = ("computed", "ids", "node", "own", "params", "slots")

    def __init__(self, req: Request, node: Node) -> None:
        self.node, self.computed, self.own = node, node.end, 0
        self.ids, self.slots = np.empty(len(req.ids), np.int32), np.empty(len(req.ids), np.int64)
        self.params = replace(req.params, return_logprob=False)

    @property
    def held(self) -> np.ndarray:
        """Its own slots."""
        return self.slots[self.node.end : self.node.end + self.own]


class DraftModel:
    """For the engine's thread.

    slots        tokens that its pool holds
    max_context  beyond which it guesses nothing
    chunk        rows of a pass
    rows         that it has run in all; passes: in so many
    """

    def __init__(self, runner: ModelRunner, sampler: Sampler, slots: int, max_context: int, chunk: int = 512) -> None:
        self._runner, self._sampler, self._slots = runner, sampler, slots
        self.max_context, self._chunk = max_context, chunk
        self.rows = self.passes = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything, as after a failed pass."""
        self._pool, self._tree = SlotAllocator(self._slots), RadixCache()
        self._known: dict[Request, _Sequence] = {}

    def close(self) -> None:
        """Drop the model and its KV."""
        self._runner.close()

    def flush(self) -> None:
        """Drop all KV that no running answer needs."""
        self._retire(())
        self._pool.free(self._tree.clear())

    def room(self, req: Request) -> int:
        """Return how many tokens of an answer the small model may draft; 0: none."""
        return 0 if req.pictures else max(0, min(self.max_context, self._slots) - req.length)

    @torch.inference_mode()
    def guess(self, wanted: Mapping[Request, int]) -> dict[Request, np.ndarray]:
        """Up to so many tokens that each answer goes on with; the more of them there are, the more have to be right. They are left behind what is
        known in `ids`, where nobody reads them."""
        self._retire(wanted)
        found = {req: list[int]() for req, n in wanted.items() if n > 0 and self._open(req, n, wanted)}
        views = {req: None if req.answer is None or req.answer.matcher is None else req.answer.matcher.fork() for req in found}
        left = list(found)
        while left:
            logits = self._run(left, {req: req.length + len(found[req]) for req in left})
            asked = [
                Drafted(
                    req,
                    req.length + len(found[req]),
                    DraftedAnswer(views[req], req.answer.stop_ids if req.answer is not None else frozenset()),
                    self._known[req].params,
                )
                for req in left
            ]
            drawn, _ = self._sampler.sample(logits.float().cpu(), range(len(left)), asked)
            going: list[Request] = []
            for req, token in zip(left, drawn, strict=True):
                matcher = views[req]
                if token < 0 or (req.answer is not None and token in req.answer.stop_ids):
                    continue
                req.ids[req.length + len(found[req])] = token
                found[req].append(token)
                if matcher is not None:
                    try:
                        matcher.accept(token)
                    except ConstraintError:  # the answer meets it itself, and fails by it
                        continue
                if len(found[req]) < wanted[req] and not (matcher is not None and matcher.done):
                    going.append(req)
            left = going
        return {req: np.array(tokens, np.int32) for req, tokens in found.items() if tokens}

    # -- its passes ------------------------------------------------------------------------------------------------

    def _run(self, reqs: Sequence[Request], ends: Mapping[Request, int]) -> torch.Tensor:
        """Computes what it lacks of each up to `ends`; logits of the last row of each."""
        while sum(ends[req] - self._known[req].computed for req in reqs) > max(self._chunk, len(reqs)):
            room, work = self._chunk, ModelPass()
            for req in reqs:
                n = min(room, ends[req] - self._known[req].computed - 1)  # the last rows of all are in one pass
                if n > 0:
                    self._add(work, req, n)
                    room -= n
            self._logits(work, [])
        work, last = ModelPass(), list[int]()
        for req in reqs:
            self._add(work, req, ends[req] - self._known[req].computed)
            last.append(work.rows - 1)
        return self._logits(work, last)

    def _logits(self, work: ModelPass, wanted: list[int]) -> torch.Tensor:
        self.rows, self.passes = self.rows + work.rows, self.passes + 1
        return self._runner.logits(work, wanted)

    def _add(self, work: ModelPass, req: Request, n: int) -> None:
        known = self._known[req]
        at, end = known.computed, known.computed + n
        known.ids[at:end] = req.ids[at:end]
        work.add(Rows(nobody(), known.ids[at:end], at, known.slots[:end]))
        known.computed = end

    # -- its memory ------------------------------------------------------------------------------------------------

    def _open(self, req: Request, n: int, wanted: Collection[Request]) -> bool:
        """Makes room for what an answer has and may come to have now; whether there was some."""
        known = self._known.get(req)
        if known is None:
            node = self._tree.match(req.ids, req.length - 1, req.space)
            self._tree.lock(node)
            known = self._known[req] = _Sequence(req, node)
            self._tree.write_slots(node, known.slots)
            known.ids[: node.end] = req.ids[: node.end]
        known.computed = min(known.computed, common_prefix(known.ids[: known.computed], req.ids[: req.length - 1]))
        if known.computed < known.node.end:  # another turn of its positions, say: nothing of the tree can be given back singly
            self._close(req)
            return self._open(req, n, wanted)
        lacks = req.length + n - 1 - known.node.end - known.own
        if lacks > 0:
            self._make_room(lacks, wanted)
            if lacks > self._pool.free_count:
                self._close(req)
                return False
            begin = known.node.end + known.own
            known.slots[begin : begin + lacks] = self._pool.alloc(lacks)
            known.own += lacks
        return True

    def _make_room(self, n: int, wanted: Collection[Request]) -> None:
        if n > self._pool.free_count:
            self._pool.free(self._tree.evict(n - self._pool.free_count))
        for req in [req for req in self._known if req not in wanted]:
            if n <= self._pool.free_count:
                return
            self._close(req)
            self._pool.free(self._tree.evict(max(0, n - self._pool.free_count)))

    def _retire(self, wanted: Collection[Request]) -> None:
        """Move the KV of finished answers to the tree."""
        for req in [req for req in self._known if req.done and req not in wanted]:
            self._close(req)

    def _close(self, req: Request) -> None:
        known = self._known.pop(req)
        begin, end = known.node.end, max(known.node.end, min(known.computed, common_prefix(known.ids[: known.computed], req.ids[: req.length])))
        kept = known.held[: end - begin]
        if len(kept):
            inserted = self._tree.insert(known.node, known.ids[begin:end], kept)
            self._pool.free(kept[: inserted.present])
        self._pool.free(known.held[end - begin :])
        self._tree.unlock(known.node)

    def check(self) -> None:
        """Raise AssertionError if a slot leaks or is owned twice."""
        self._tree.check()
        self._pool.check([*(node.slots for node in self._tree.nodes()), *(known.held for known in self._known.values())])


def slots_for(loaded: LoadedModel, pool: int) -> int:
    """Return the tokens that the pool of a small model holds, beside an engine's pool of so many."""
    context = loaded.config.max_context
    return min(pool, max(context, min(_CONTEXTS * context, _MOST_SLOTS)))


def check_vocabulary(name: str, words: TokenizerProtocol, other: str, others: TokenizerProtocol, embedded: int) -> None:
    """Refuse a small model whose tokens are not those of the engine's. `embedded`: tokens that it knows."""
    n = words.vocab_size
    if embedded < n:
        raise ModelLoadError(f"draft_model {other}: it knows {embedded} tokens, and {name} has {n}; a draft model must have the model's vocabulary")
    differs = None if others.vocab_size >= n else others.vocab_size
    if differs is None:
        differs = next((i for i in range(n) if words.token_bytes(i) != others.token_bytes(i)), None)
    if differs is not None or words.special_ids != others.special_ids & set(range(n)):
        which = "special tokens are" if differs is None else f"token {differs} is"
        raise ModelLoadError(f"draft_model {other}: its {which} not that of {name}; a draft model must have the model's vocabulary")
