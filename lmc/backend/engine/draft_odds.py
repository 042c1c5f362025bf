"""Odds of drafts: how often what followed an occurrence was right, by its length and by the token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from lmc.backend.engine.draft_sources import LONGEST

_BUCKETS = (0, 0, 0, 1, 2, 2, 3, 3, 3, *[4] * 8, 5)  # of lengths
PRIOR = (0.35, 0.45, 0.55, 0.7, 0.8, 0.9)
GUESSED = (0.15, 0.25, 0.35, *PRIOR[3:])  # behind what is no occurrence of several tokens
SELDOM = (0.1,) * len(PRIOR)  # that an occurrence is found after a token, and right
_WEIGHT = 4.0  # weight, in tokens, of the statistics of all gens for a new one
_MEMORY = 0.98  # decay of a token's weight per later token
_TOKENS = 512  # the most tokens with odds of their own
_UNKNOWN = 0.0, 0.0  # hits and tries of others


class Odds:
    """Frequency with which the token after an occurrence was the next one, by the length of the occurrence, and by the
    token. In Python's own numbers: they are learned while the device waits, and numpy takes a microsecond for each."""

    def __init__(self, prior: Odds | Sequence[float] = PRIOR) -> None:
        self._prior = prior
        self._hits, self._tries = [0.0] * len(PRIOR), [0.0] * len(PRIOR)
        self._tokens: dict[int, tuple[float, float]] = {}  # hits and tries of the tokens expected last

    def learn(self, length: int, hit: bool) -> None:
        b = _BUCKETS[min(length, LONGEST + 1)]
        self._hits[b] = self._hits[b] * _MEMORY + hit
        self._tries[b] = self._tries[b] * _MEMORY + 1

    def learn_run(self, length: int, right: int, missed: bool) -> None:
        """Learn that so many tokens in a row were right, and, if `missed`, that the one after them was not."""
        at, end = length, length + right
        while at < end:
            n = 1 if at <= LONGEST else end - at  # all longer ones are alike
            b, kept = _BUCKETS[min(at, LONGEST + 1)], _MEMORY**n
            more = (1 - kept) / (1 - _MEMORY)
            self._hits[b], self._tries[b], at = self._hits[b] * kept + more, self._tries[b] * kept + more, at + n
        if missed:
            self.learn(end, False)

    def learn_token(self, token: int, hit: bool) -> None:
        hits, tries = self._tokens.pop(token, _UNKNOWN)
        self._tokens[token] = hits * _MEMORY + hit, tries * _MEMORY + 1
        if len(self._tokens) > _TOKENS:
            del self._tokens[next(iter(self._tokens))]

    def learn_tokens(self, tokens: Sequence[int]) -> None:
        """Learn that these were right."""
        known = self._tokens
        for token in tokens:
            hits, tries = known.pop(token, _UNKNOWN)
            known[token] = hits * _MEMORY + 1, tries * _MEMORY + 1
        while len(known) > _TOKENS:
            del known[next(iter(known))]

    def rates(self) -> list[float]:
        prior = self._prior.rates() if isinstance(self._prior, Odds) else self._prior
        return [(hits + _WEIGHT * p) / (tries + _WEIGHT) for hits, tries, p in zip(self._hits, self._tries, prior, strict=True)]

    def chances(self, length: int, n: int, expected: Sequence[int] = ()) -> list[float]:
        """Return `n` probabilities that the first, the first two, … tokens after an occurrence are the next ones.
        expected: these, as far as they are known."""
        every = self.rates()
        rates = [every[b] for b in _BUCKETS[length : length + n]]
        rates += [every[-1]] * (n - len(rates))
        for i, counted in enumerate(map(self._tokens.get, expected)):
            if counted is not None:
                rates[i] = (counted[0] + rates[i]) / (counted[1] + 1)
        return list(accumulate(rates, mul))
