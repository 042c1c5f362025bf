"""The forward batch of one pass: rows of requests, their slots, and which of them are sampled or scored; counters of
passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from lmc.backend.engine.drafted import Drafted, Sampled, drafted
from lmc.backend.engine.request import Request


class Rows(NamedTuple):
    """Consecutive rows of one sequence in a pass; `slots` [context] ends with the rows' own."""

    request: Request
    ids: np.ndarray  # [n] int32
    position: int
    slots: np.ndarray  # [position + n] int64
    branch: int | None = None  # the row of the choices' trie that it begins with; None: rows of the sequence itself
    is_far: bool = False  # see Request


@dataclass(slots=True)
class PassCounts:
    """Counts since the start (backend/usage.py, Counters)."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    unique_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    passes: int = 0
    rows: int = 0
    groups: int = 0  # admitted in one pass
    split_groups: int = 0  # not so, for want of room
    twins: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0  # of preempted requests, no longer cached
    riders: int = 0  # selects that were scored beside an answer (riders.py)
    riders_used: int = 0  # of those, as the program made them


_FIRST, _SECOND = itemgetter(0), itemgetter(1)


class Score(NamedTuple):
    """Requests the log-probability of `token` in logit row `row`: at position `at` of the sequence, or (`at` None) of a
    node of its choices' trie."""

    row: int
    token: int
    request: Request
    at: int | None
    node: int = -1

    @property
    def top(self) -> int:
        """Return how many of the likeliest tokens are requested beside it; none for a choice's tokens."""
        return (self.request.params.top_logprobs_num or 0) if self.at is not None else 0


class Draft(NamedTuple):
    """A draft in a pass: its tokens and the first of their rows; how many tokens the answer has before them; and where in `checks` the rows are."""

    ids: np.ndarray  # [n] int32
    row: int
    length: int
    first: int


@dataclass(slots=True)
class ModelPass:
    """One pass of the model: spans in row order, rows to sample for, rows to score.

    checked  rows of drafts; each samples the next token if the draft's tokens up to it are drawn
    """

    spans: list[Rows] = field(default_factory=list)
    samples: list[tuple[int, Request]] = field(default_factory=list)
    checked: int = 0
    drafts: dict[Request, Draft] = field(default_factory=dict)
    scores: list[Score] = field(default_factory=list)
    first: list[tuple[int, Request]] = field(default_factory=list)  # prompts that end here, before twins are added
    followers: dict[Request, int] = field(default_factory=dict)  # tokens of its head that others compute here
    riders: list[Request] = field(default_factory=list[Request])  # answers behind which a select is scored here
    rows: int = 0
    requests: Sequence[Request] = ()  # all with a row or a sample in it, each once; set when it is complete
    places: list[int] = field(default_factory=list)  # for each sample: its position in the request; set by `commit`

    @property
    def checks(self) -> list[tuple[int, Drafted]]:
        """Return the rows of drafts, and what each is drawn by: until the pass is committed, and best once it is launched, since the device waits before."""
        return [check for req, draft in self.drafts.items() for check in enumerate(drafted(req, draft.ids, draft.length), draft.row)]

    @property
    def drawn_rows(self) -> Iterable[int]:
        """Return the rows of `draws`."""
        return chain(map(_FIRST, self.samples), *(range(draft.row, draft.row + len(draft.ids)) for draft in self.drafts.values()))

    @property
    def draws(self) -> Sequence[tuple[int, Sampled]]:
        """Return rows that tokens are drawn from: those of samples, then those of drafts."""
        return [*self.samples, *self.checks] if self.drafts else self.samples

    @property
    def only_decodes(self) -> bool:
        """Return whether each span is one row of an answer, from which its next token is sampled."""
        return len(self.spans) == self.rows == len(self.samples) and not (self.first or self.scores)

    @property
    def unsampled(self) -> Iterable[Request]:
        """Return requests with rows in it and no sample."""
        if len(self.samples) == len(self.spans) and not self.first:
            return ()  # of decoding requests each has a span, and no more than one sample
        sampled = set(map(_SECOND, self.samples))
        return [req for req in dict.fromkeys(map(_FIRST, self.spans)) if req not in sampled]

    def computes(self, other: ModelPass) -> bool:
        """Return whether it writes and gives the same rows as another pass of one sequence."""
        if len(self.spans) != 1 or len(other.spans) != 1 or self.scores or other.scores or list(self.drawn_rows) != list(other.drawn_rows):
            return False
        (mine,), (theirs,) = self.spans, other.spans
        same = mine.request is theirs.request and (mine.position, mine.branch, mine.is_far) == (theirs.position, theirs.branch, theirs.is_far)
        return same and np.array_equal(mine.ids, theirs.ids) and np.array_equal(mine.slots, theirs.slots)

    def complete(self) -> None:
        """Complete it: no further rows are added. A twin has a sample and no rows."""
        self.requests = list(dict.fromkeys(chain(map(_FIRST, self.spans), map(_SECOND, self.samples))))

    def add(self, rows: Rows) -> int:
        """Add a span; return the row where it begins."""
        start = self.rows
        self.spans.append(rows)
        self.rows += len(rows.ids)
        return start


class Foreseen(NamedTuple):
    """The pass that follows one that gives these tokens, as it will probably be planned; none: all are known."""

    tokens: list[int]
    work: ModelPass
