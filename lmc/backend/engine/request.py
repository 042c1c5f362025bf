"""A request: one sequence on its way through the engine, and the ownership of its slots."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lmc.backend.engine.choice_trie import NO_CHOICES, ChoiceTrie, Continuation, trie
from lmc.backend.engine.token_ids import PENDING, TokenLogprob
from lmc.segments import SamplingParams

if TYPE_CHECKING:
    from lmc.backend.base import ProgramRun
    from lmc.backend.engine.answer import Answer, Ending
    from lmc.backend.engine.draft_sources import Match, ModelGuess
    from lmc.backend.engine.leases import Lease, OpenRun
    from lmc.backend.engine.prompt_pictures import Laid
    from lmc.backend.engine.radix_cache import Node


class RequestKind(Enum):
    GENERATE = "generate"  # compute the prompt, then sample
    PREFILL = "prefill"  # compute the prompt, then keep it pinned
    SCORE = "score"  # compute the prompt, then log-probabilities of several continuations


SHORT = 128
"""Limit up to which an answer reserves all its slots: reserving less would save little."""

_order = itertools.count()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Group:
    """Requests of siblings, which are admitted together: in one pass, if there is room for all of them.

    missing  how many have not arrived yet
    waiting  requests that arrived and were not admitted
    entered  number of the pass that admitted the first of them; split: later ones had to admit others
    """

    missing: int
    waiting: list[Request] = field(default_factory=list["Request"])
    entered: int | None = None
    split: bool = False

    def arrive(self) -> None:
        """Record that all sequences of one more request have arrived, or will never arrive."""
        self.missing -= 1


class Arrival(Protocol):
    """A copy of a prefix to the slots of a request; to slots of its own once that is gone."""

    request: Request | None


@dataclass(eq=False, slots=True)
class Request:
    """One sequence.

        slots   [0, cached_len)          in the radix tree, locked through `node`
                [cached_len, device_len) ours: KV computed, given to the tree or freed on finish
                [device_len, draft_end)  ours while a pass with a draft is in flight: undrawn ones are returned
                [draft_end, kv_max)      not allocated yet; the first `reserved` of them are reserved

    All slots are reserved if the length is known or small. If it is neither, more are reserved as the answer grows; if
    there are no more, a request is *preempted*: its KV goes to the tree, as far as there is room for that, and it waits
    with its answer so far to be resumed, with `ids[:length]` as its head.

    `ids[:length]` are known tokens: the prompt, sampled tokens, and those that the constraint forced after them. While
    decoding, the last sampled one and those forced after it are not computed yet. `ids[:head_len]` is computed before
    the first sample: the prompt, and the forced beginning of the answer.
    """

    kind: RequestKind
    prompt: np.ndarray  # [prompt_len] int32
    on_done: Callable[[Request], None]  # on the scheduler thread, with `error` set or not
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    answer: Answer | None = None  # GENERATE
    branches: tuple[Continuation, ...] = ()  # SCORE
    choose: Callable[[Request], int] | None = None  # SCORE: the branch whose KV is worth keeping
    score_from: int | None = None  # log-probabilities of the prompt's tokens from here on
    priority: tuple[int, ...] = ()  # the plan's visit order
    namespace: str = ""  # shares cached KV with requests of the same one only
    adapter: int = 0  # the number of its adapter; 0: none
    near: int | None = None  # tokens beyond which the model turns the positions of all of a sequence otherwise (longrope)
    gen: Hashable = None  # what its answer is one of many to
    group: Group | None = None
    low_priority: bool = False  # PREFILL: in rows that are nearly free, until a request needs it
    passing: bool = False  # PREFILL: not pinned when done, and dropped if there is no room
    run: ProgramRun | None = None  # its run
    growth: int | None = None  # most tokens by which the run grows after the answer, if planned
    constants: tuple[str, ...] = ()  # texts of the program that may come after it, if planned
    weight: float = 1.0  # its share where others compete with it
    account: str = ""  # owner of that share
    watched: bool = False  # the answer is read while it grows
    pictures: tuple[Laid, ...] = ()  # of the prompt
    script: np.ndarray | None = None  # fixed answer, whatever the model draws, for benchmarks
    guess: bool = False  # made ahead of a decision: after all others, and preempted first
    following: Callable[[Ending], Request | None] | None = None  # GENERATE: the SCORE that its program makes behind it if it ends so, if that is known
    precedes_select: bool = False  # there is one; set from any thread
    rider: Request | None = None  # SCORE: one of the same tokens that was scored beside the answer before it (riders.py)

    # identity and outcome
    order: int = field(default_factory=lambda: next(_order))
    error: BaseException | None = None
    done: bool = False
    cancelled: bool = False  # nobody wants it any longer, perhaps before the loop has it
    pinned: bool = False  # PREFILL: its prompt is held in the cache
    ending: Ending | None = None  # GENERATE
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)  # by position
    node_logprobs: list[float] = field(default_factory=list)  # SCORE: per node of the trie; unscored is 0
    passes: int = 0
    forced: int = 0  # tokens of the answer that were not sampled
    drafted: int = 0  # tokens of drafts that were run
    accepted: int = 0  # of those, tokens that were drawn
    admitted_at: float = 0.0  # by `time.perf_counter()`: when it was first admitted
    first_at: float = 0.0  # and when its first token arrived; 0: not yet

    is_scored: bool = field(init=False)  # wants log-probabilities of tokens known before their rows run
    is_plain: bool = field(init=False)  # nothing but its sampled tokens continues it, and no text ends it
    _free: bool = field(init=False)
    """Its next sample does not depend on the host's processing of the last one, so it may be planned before that is
    known: it has no constraint, or one that a device follows by itself (device_automata.py). Tokens forced after the
    last one replace that sample, which is discarded. Not if the answer is steered (`runs_free`)."""

    # progress
    ids: np.ndarray = field(init=False)
    slots: np.ndarray = field(init=False)
    length: int = field(init=False)
    head_len: int = field(init=False)
    cached_len: int = 0
    device_len: int = 0
    hit_len: int = 0  # prompt tokens that were cached at admission
    node: Node | None = None
    behind: Node | None = None  # until it is admitted: end of a prefix of it left in the tree
    kept: weakref.ref[Node] | None = None  # end of what it left in the tree
    found: Node | None = None  # while it waits: end of its longest cached prefix when last matched
    found_next: int = -1  # and the token after it; -1: no more may come from the cache
    reserved: int = 0
    owner: OpenRun | None = None  # its run, once it has arrived
    lease: Lease | None = None  # while it waits: the lease its run holds for it
    charged: int = 0  # slots charged to its run while it runs
    away: int = 0  # if it belongs to no run: ticks of the tree since its prefix was left
    started: int = 0  # tokens present before its run added the rest
    wants: tuple[int, int] = (0, 0)  # unreserved slots that its run lacked to be opened, now and at its peak
    shared: int = 0  # and cached tokens in addition
    arriving: Arrival | None = None  # while its prefix is copied to its slots: it has no rows
    looked_at: bool = False  # it was held back before
    since: int = 0  # the pass number when it began to wait
    is_far: bool = False  # its positions are rotated as those of more than `near` tokens
    preempted: int = 0  # times
    computed: int = 0  # tokens whose rows had run when it was last preempted: already scored
    trie: ChoiceTrie = field(init=False)  # SCORE: the branches merged
    next_row: int = 0  # of the trie; those before it are computed
    row_slots: np.ndarray = field(init=False)  # [rows of the trie] int64, ours; -1: none, or none any more
    awaited: bool = False  # its last token is being sampled: a place is kept for it
    draft: int = 0  # slots behind `device_len` that hold a draft (drafts.py)
    match: Match | None = None  # where its text occurred before,
    nearby: Match | None = None  # or may go on like another,
    left: tuple[Match, ...] = ()  # where it went on otherwise than these did,
    guess_of: ModelGuess | None = None  # what a smaller model expects it to have,
    followed: int = 0  # of so many tokens
    found_after: tuple[int, int] | None = None  # found after so many tokens without, and this one, and not verified yet,
    vain: int = 0  # tokens in a row without such a place,
    idle: int = 0  # and tokens for which none is looked for
    in_flight: int = 0  # passes with rows or samples of it that were launched and not delivered
    twins: list[Request] = field(default_factory=list)  # within a pass: they sample from our last prompt row, too

    def __post_init__(self) -> None:
        self.ids = np.empty(self.prompt_len + self.max_new, np.int32)
        self.ids[: self.prompt_len] = self.prompt
        self.length = self.head_len = self.prompt_len
        self.slots = np.zeros(self.kv_max, np.int64)
        self.trie = trie(self.branches) if self.branches else NO_CHOICES
        self.row_slots = np.full(len(self.trie.ids), -1, np.int64)
        p, matcher = self.params, self.answer.matcher if self.answer is not None else None
        self.is_scored = self.score_from is not None or (self.kind is RequestKind.GENERATE and p.return_logprob)
        changes = p.frequency_penalty or p.presence_penalty or p.min_new_tokens  # by the samples, or their number
        self._free = matcher is None or (matcher.place is not None and not self.is_scored and not changes)
        self.is_plain = self.answer is not None and self.answer.is_plain and not self.is_scored
        self.node_logprobs = [0.0] * self.trie.nodes

    @property
    def runs_free(self) -> bool:
        """Return whether its next sample does not depend on the host's processing of the last one."""
        return self._free and not self.draft and (self.is_plain or self.answer is None or not self.answer.is_near)

    @property
    def prompt_len(self) -> int:
        return len(self.prompt)

    @property
    def max_new(self) -> int:
        return self.params.max_new_tokens if self.kind is RequestKind.GENERATE else 0

    @property
    def kv_max(self) -> int:
        """Return the most tokens of this sequence that can ever have KV; the last sampled one needs none."""
        return self.prompt_len + max(0, self.max_new - 1)

    @property
    def branch_reserve(self) -> int:
        """Return the slots with which the trie can be scored path by path."""
        return max((b.rows for b in self.branches), default=0)

    @property
    def branch_logprobs(self) -> list[list[float]]:
        """Return log-probabilities per branch and token; unscored is 0."""
        return [[self.node_logprobs[node] for node in place] for place in self.trie.places]

    @property
    def held_rows(self) -> np.ndarray:
        """Return rows of the trie whose KV is ours."""
        return np.flatnonzero(self.row_slots >= 0)

    @property
    def need(self) -> int:
        """Return the slots it needs with nothing cached."""
        return self.kv_max + self.branch_reserve

    @property
    def match_limit(self) -> int:
        """Return how much of the head may come from the cache: a row must be left for each wanted logit."""
        if self.kind is RequestKind.PREFILL:
            return self.prompt_len
        return max(0, min(self.head_len, self.first_scored) - 1)

    @property
    def first_scored(self) -> int:
        """Return the position from which log-probabilities of tokens known before their rows run are wanted."""
        if not self.is_scored:
            return len(self.ids)
        first = self.prompt_len if self.score_from is None else self.score_from
        return max(first, self.computed + 1) if self.computed else first

    @property
    def is_sure(self) -> bool:
        """Return whether everything it may need is reserved before it begins: its answer is short, or only its limit
        can end it."""
        if self.max_new <= SHORT:
            return True
        p, matcher = self.params, self.answer.matcher if self.answer is not None else None
        return p.ignore_eos and matcher is None and not (p.stop or p.stop_regex or p.stop_token_ids)

    @property
    def draft_end(self) -> int:
        return self.device_len + self.draft

    @property
    def unreserved_need(self) -> int:
        """Return slots that it may come to need and has not reserved."""
        return max(0, self.kv_max - self.draft_end - self.reserved)

    @property
    def missing(self) -> int:
        """Return slots of known tokens that it has not reserved."""
        return max(0, min(self.wanted_len, self.kv_max) - self.draft_end - self.reserved)

    @property
    def seniority(self) -> tuple[bool, tuple[int, ...], int]:
        """Return its rank in the order in which requests may keep their memory: guesses last, then the plan's order,
        then arrival."""
        return self.guess, self.priority, self.order

    @property
    def is_of_open_run(self) -> bool:
        """Return whether it belongs to a run that has its memory."""
        return self.owner is not None and self.owner.is_open

    @property
    def party(self) -> Hashable:
        """Return its party, whose requests progress together: its batch, or itself."""
        return self if self.owner is None else self.owner.batch

    @property
    def space(self) -> str:
        """Of the radix tree: what one adapter or turn of positions has computed is of no use to another."""
        own = f"\0adapter {self.adapter}" if self.adapter else ""
        return f"{self.namespace}{own}\0far" if self.is_far else self.namespace + own

    @property
    def exceeds_near(self) -> bool:
        """Return whether it has grown beyond `near`: all of it has to be recomputed. A select's choices are rotated
        like the longest."""
        if self.near is None or self.is_far:
            return False
        return max((b.base + len(b.ids) for b in self.branches), default=self.wanted_len) > self.near

    @property
    def lone_is_far(self) -> bool:
        """Return the same for choices that do not see the prompt."""
        return self.near is not None and any(not b.base and len(b.ids) > self.near for b in self.branches)

    @property
    def in_head(self) -> bool:
        return self.device_len < self.head_len

    @property
    def wanted_len(self) -> int:
        """Return known tokens that need a row: all, except the last of an answer that has ended."""
        return self.length - (self.ending is not None)

    @property
    def extend_len(self) -> int:
        """Return the number of rows that are known but not computed."""
        return self.length - (self.ending is not None) - self.device_len

    @property
    def needs_no_model(self) -> bool:
        """Return whether the constraint has forced the whole answer, and no scores are wanted."""
        return self.ending is not None and self.first_scored >= self.length

    @property
    def forced_chance(self) -> float:
        """Return the probability that the token being sampled makes the next sample useless, 0 to 1."""
        if not self.awaited or self.done or self.answer is None or self.answer.matcher is None:
            return 0.0
        return self.answer.matcher.forced_chance if self.runs_free else 1.0

    @property
    def is_completing(self) -> bool:
        """Return whether its rest is in flight: its last token is being sampled, or the last of its rows is computed,
        or its next step depends on the token being sampled."""
        if not self.in_flight:
            return False
        if self.awaited:
            return self.length == len(self.ids) or not self.runs_free or self.extend_len == 0
        return self.extend_len == 0

    def append(self, token: int) -> None:
        self.ids[self.length] = token
        self.length += 1

    def extend(self, tokens: Sequence[int]) -> None:
        self.ids[self.length : self.length + len(tokens)] = tokens
        self.length += len(tokens)

    def expect(self) -> int:
        """Reserve a place for the token being sampled; return its position."""
        assert not self.awaited or self.runs_free
        at = self.length
        self.ids[at] = PENDING
        self.length, self.awaited = at + 1, True
        return at

    def awaits(self, position: int) -> bool:
        """Return whether the token at `position` is being sampled; not if a forced one has replaced it."""
        return position < self.length and self.ids[position] == PENDING

    def withdraw(self) -> None:
        """Withdraw the token being sampled: it is not what comes next."""
        if self.awaited:
            self.length -= 1
            self.awaited = False

    def learn(self, position: int, token: int) -> None:
        """Set the token that was expected at `position`."""
        assert self.ids[position] == PENDING
        self.ids[position] = token
        self.awaited = position < self.length - 1

    def check(self) -> None:
        assert 0 <= self.cached_len <= self.device_len <= self.wanted_len <= self.length <= len(self.ids), (
            f"request {self.order}: cached {self.cached_len}, on device {self.device_len}, known {self.length}"
        )
        assert self.node is None or self.node.end == self.cached_len

    def is_twin_of(self, other: Request) -> bool:
        """Return whether the last row of `other`'s head also gives our first sample."""
        return (
            self.kind is other.kind is RequestKind.GENERATE
            and self.first_scored >= self.length
            and min(self.max_new, other.max_new) > 0
            and np.array_equal(self.ids[: self.head_len], other.ids[: other.head_len])
        )


@cache
def nobody(adapter: int = 0) -> Request:
    """Return the request of rows whose owner is irrelevant or unknown but for its adapter."""
    return Request(RequestKind.PREFILL, np.zeros(1, np.int32), lambda _: None, adapter=adapter)
