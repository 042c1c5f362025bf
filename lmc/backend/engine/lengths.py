"""Expected lengths of answers, from earlier answers to the same gen. An estimate: being wrong costs time, never text.

SGLang reserves a share of `max_tokens` that is the same for all requests, vLLM nothing. A program makes requests at the
same places of its source again and again, and answers at one place have about the same length.
"""

from __future__ import annotations

from collections.abc import Hashable

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
