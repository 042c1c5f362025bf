"""Answers as if tokens of their drafts were drawn already: what a sampler draws the next tokens by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lmc.backend.engine.request import Request
from lmc.segments import SamplingParams

if TYPE_CHECKING:
    from lmc.backend.engine.constraint import AutomatonMatcher


class DraftedAnswer(NamedTuple):
    """The part of an answer that a sampler needs."""

    matcher: AutomatonMatcher | None
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Drafted:
    """An answer assuming that the tokens of its draft, up to `length`, are drawn: the next one is sampled by it."""

    request: Request
    length: int
    answer: DraftedAnswer
    params: SamplingParams
    script: np.ndarray | None = None  # a model cannot draft by a recorded answer

    @property
    def seed(self) -> int:
        return self.request.seed

    @property
    def prompt_len(self) -> int:
        return self.request.prompt_len

    @property
    def ids(self) -> np.ndarray:
        return self.request.ids


Sampled = Request | Drafted
"""Requests whose next token is drawn."""


def drafted(req: Request, draft: np.ndarray, length: int) -> list[Drafted]:
    """Return the answer after the first, the first two, … tokens of a draft, which follow its own `length` in `ids`."""
    answer = req.answer
    assert answer is not None
    found: list[Drafted] = []
    matcher = answer.matcher
    for i, token in enumerate(draft.tolist()):
        if matcher is not None:
            matcher = matcher.fork()
            matcher.accept(token)
        found.append(Drafted(req, length + i + 1, DraftedAnswer(matcher, answer.stop_ids), req.params, req.script))
    return found
