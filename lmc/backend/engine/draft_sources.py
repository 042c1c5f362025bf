"""Sources of drafts: an earlier occurrence of a text's end, and what a smaller model guesses."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
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
