"""Tokens as passes take and return them: ids that are no tokens of the vocabulary, and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

Top = tuple[tuple[float, int], ...]  # (log-probability, id) of the likeliest tokens at a place, best first


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token under the model itself: before penalties, masks and temperature."""

    token: int
    logprob: float
    top: Top = ()


STUCK = -1  # from the sampler: the constraint allows no next token
BROKEN = -2  # from the sampler: the logits are NaN
PENDING = -1  # in `ids`: a token not yet received from the device
PICTURE = 1 << 30
"""Ids from here on are pictures (eyes.py), not tokens of the vocabulary."""
