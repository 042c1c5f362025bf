"""Sources of drafts: an earlier occurrence of a text's end, and what a smaller model guesses; and how often what followed an occurrence was right, by its
length and by the token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter, mul
from typing import NamedTuple

import numpy as np

from lmc.backend.engine.token_ids import PICTURE

REPLACED = "replaced"  # as a source: an occurrence behind one token of it that another has replaced
RESUMED = "resumed"  # one that goes on a little further than it was left
PLACES, _NEAR = 4, 32  # where copies were left last, and tokens behind each among which one may be resumed (measured)
LEAST, LONGEST = 2, 16  # tokens that an occurrence has at least, and up to which a longer one counts for more


class Match(NamedTuple):
    """An earlier occurrence of a text's end: `length` tokens before `at` in `text` are its last ones."""

    text: np.ndarray
    at: int
    length: int
    source: str
    repeats: bool  # the source is the text itself: after its end it continues as after `at`

    def next(self, n: int) -> np.ndarray:
        """Return up to `n` tokens that followed there."""
        found = self.text[self.at : self.at + n]
        if len(found) < n and self.repeats:
            found = np.resize(found, n)
        (foreign,) = (found.view(np.uint32) >= PICTURE).nonzero()  # or negative
        return found[: foreign[0]] if len(foreign) else found

    def behind_replaced(self, right: int) -> Match | None:
        """Return where the text goes on behind so many tokens and one that another has replaced; None for a second one in a row, and at its end."""
        at = self.at + right + 1
        return Match(self.text, at, 0, REPLACED, self.repeats) if self.length + right and at < len(self.text) else None


def occurrence(text: np.ndarray, end: np.ndarray, source: str) -> Match | None:
    """Return the longest occurrence in `text` of the end of `end`, the last of several, with a continuation; None if it
    is too short."""
    (at,) = (text[:-1] == end[-1]).nonzero()
    length, most = 1, min(LONGEST, len(end))
    while len(at) > 1 and length < most:
        before = at[at >= length] - length
        further = before[text[before] == end[-1 - length]] + length
        if not len(further):
            break
        at, length = further, length + 1
    if not len(at):
        return None
    last = int(at[-1])
    if len(at) == 1:
        while length < min(most, last + 1) and text[last - length] == end[-1 - length]:
            length += 1
    return Match(text, last + 1, length, source, text is end) if length >= LEAST else None


def resumed(left: Sequence[Match], token: int) -> Match | None:
    """Return the text behind the place nearest to where a copy was left that has the token, as in the next cell of a table; None if none has it."""
    found: list[tuple[int, Match]] = []
    for match in left:
        (behind,) = (match.next(_NEAR) == token).nonzero()
        if len(behind) and (at := match.at + int(behind[0]) + 1) < len(match.text):
            found.append((int(behind[0]), Match(match.text, at, 1, RESUMED, match.repeats)))
    return min(found, key=itemgetter(0))[1] if found else None


class ModelGuess(NamedTuple):
    """The tokens that a smaller model predicts for an answer from `at` on."""

    at: int
    ids: np.ndarray


# -- how often they are right ------------------------------------------------------------

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
