"""Sources of drafts: an earlier occurrence of a text's end, and what a smaller model guesses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lmc.backend.engine.token_ids import PICTURE

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
        foreign = np.flatnonzero(found.view(np.uint32) >= PICTURE)  # or negative
        return found[: foreign[0]] if len(foreign) else found


def occurrence(text: np.ndarray, end: np.ndarray, source: str) -> Match | None:
    """Return the longest occurrence in `text` of the end of `end`, the last of several, with a continuation; None if it
    is too short."""
    at = np.flatnonzero(text[:-1] == end[-1])
    length = 1
    while len(at) and length < min(LONGEST, len(end)):
        before = at[at >= length] - length
        further = before[text[before] == end[-1 - length]] + length
        if not len(further):
            break
        at, length = further, length + 1
    if not len(at) or length < LEAST:
        return None
    return Match(text, int(at[-1]) + 1, length, source, text is end)


class ModelGuess(NamedTuple):
    """The tokens that a smaller model predicts for an answer from `at` on."""

    at: int
    ids: np.ndarray
