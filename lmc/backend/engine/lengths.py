"""How long answers become, by what the answers to the same gen were. A guess: being wrong costs time, never text.

SGLang promises a share of `max_tokens` that all requests have in common, vLLM nothing. A program asks at the same places of its
source again and again, and what is asked at one place is answered at about the same length.
"""

from __future__ import annotations

from collections.abc import Hashable

_UNKNOWN = 128.0  # tokens expected of a gen that nobody has answered yet
_RECENT = 32  # the mean is over about so many answers, so that it follows what changes
_GENS = 1024  # remembered, those that were met last


class Lengths:
    """Mean lengths of answers, in tokens, per gen."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, int]] = {}  # mean, answers that it is over; in the order of the last answer

    def expected(self, gen: Hashable) -> int:
        """Tokens that an answer to `gen` is expected to have."""
        return round(self._seen.get(gen, (_UNKNOWN, 0))[0])

    def learn(self, gen: Hashable, tokens: int) -> None:
        """An answer to `gen` has ended after so many."""
        mean, count = self._seen.pop(gen, (0.0, 0))
        count = min(count + 1, _RECENT)
        self._seen[gen] = mean + (tokens - mean) / count, count
        if len(self._seen) > _GENS:
            del self._seen[next(iter(self._seen))]
