"""Costs of drafts, and their budget: rows in units of passes without them, and a budget that is earned where drafts pay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmc.backend.engine.request import Request


class Costs:
    """Cost of rows of drafts, in units of passes without them.

    ahead  whether passes without drafts are launched before the last one's tokens are known
    some   cost of any further rows: a GPU has other kernels for them
    row    cost of each
    host   the host's work between two passes
    gap    for how long the device has nothing to do before a pass that is waited for: the part of that work which it needs
    step   what a smaller model takes for the next token of each of its drafts
    """

    def __init__(self, ahead: bool, row: float, host: float = 0.1) -> None:
        self.ahead, self.some, self.row, self.host, self.gap = ahead, 0.0, row, host, host
        self.step = _STEP
        self._plain: dict[int, float] = {}  # seconds of a pass of so many rows
        prior = _moments(0, 0.0) + _moments(_PRIOR_ROWS, _PRIOR_ROWS * row)
        self._seen, self._kept = _PRIOR * prior, _LEAST * (1 - _FADES) * prior

    def learn(self, rows: int, drafted: int, seconds: float, host: float, gap: float) -> None:
        """Record the device's and the host's time of a pass of so many rows, and so many rows of drafts beside them, and how long the device had
        nothing to do before it. What disturbs a pass makes it longer, never shorter: a surprising time counts as a slightly longer one."""
        plain = self._plain.get(rows)
        if not drafted:
            share = 2 if plain is not None and seconds * _SURPRISE < plain else 8  # a much shorter one tells that those before were disturbed
            self._plain[rows] = seconds if plain is None else plain + (min(seconds, _SURPRISE * plain) - plain) / share
        elif plain:
            more, expected = max(0.0, seconds / plain - 1), self.some + self.row * drafted
            self._seen = self._seen * _FADES + self._kept + _moments(drafted, min(float(drafted), more, _SURPRISE * (1 + expected) - 1))
            self.some, self.row = _line(*self._seen.tolist())
            self.gap += (min(2.0, gap / plain) - self.gap) / 16
        if plain:
            self.host += (min(2.0, host / plain) - self.host) / 32

    @property
    def plain(self) -> float:
        """Return what a pass without drafts takes, the host's work included."""
        return max(1.0, self.host) if self.ahead else 1 + self.host

    @property
    def wait(self) -> float:
        """Return what it costs to wait for a pass instead of launching the next one ahead."""
        return max(0.0, 1 + self.gap - self.plain) if self.ahead else 0.0

    def of(self, counts: Sequence[int], guessed: Sequence[bool]) -> float:
        """Return what so many tokens of each draft cost; their pass is waited for."""
        steps = max((n for n, model in zip(counts, guessed, strict=True) if model), default=0)
        return self.wait + self.some + self.row * sum(counts) + self.step * steps if any(counts) else 0.0

    def learn_step(self, answers: int, steps: int, seconds: float) -> None:
        """Record that a smaller model has taken so long for so many tokens of each of its drafts."""
        if plain := self._plain.get(answers):
            self.step += (min(2.0, seconds / steps / plain) - self.step) / 16

    def worth(self, answers: int, chances: Sequence[Sequence[float]], guessed: Sequence[bool] = (), rows: int | None = None) -> list[int]:
        """Return how many tokens of each draft to run to maximize tokens per second; none if drafts would not gain.
        `chances`: the probabilities that as many tokens of each draft are right (Odds). `guessed`: those of a smaller
        model, whose tokens cost one more step shared by all of these. `rows`: the most in all."""
        guessed = guessed or [False] * len(chances)
        step = self.step / max(1, sum(guessed))
        costs = [self.row + step * model for model in guessed]
        order = [(p, i) for i, each in enumerate(chances) for p in each]
        if len(chances) > 1:  # else they fall
            order.sort(key=lambda one: (one[0] / costs[one[1]] if costs[one[1]] else one[0], *one), reverse=True)
        counts = [0] * len(chances)
        tokens, took = float(answers), self.plain + self.wait + self.some
        for p, i in order[:rows]:
            if p * took <= tokens * costs[i]:
                break
            tokens, took = tokens + p, took + costs[i]
            counts[i] += 1
        return counts if tokens / took > _GAIN * answers / self.plain else [0] * len(chances)


def _moments(rows: int, cost: float) -> np.ndarray:
    return np.array([1.0, rows, rows * rows, cost, rows * cost])


def _line(n: float, x: float, xx: float, y: float, xy: float) -> tuple[float, float]:
    """Return the line of least squares, where it begins and how it rises, neither below zero."""
    rise = (n * xy - x * y) / (n * xx - x * x)
    begins = (y - rise * x) / n
    return (y / n, 0.0) if rise < 0 else (0.0, xy / xx) if begins < 0 else (begins, rise)


_SURPRISE = 1.25  # how much longer than expected a pass may seem
_STEP = 0.25  # until steps have told
_PRIOR, _PRIOR_ROWS = 0.5, 16  # passes for which what is expected of none and of so many rows counts
_LEAST = 1 / 1024  # what is left of that in the end: many passes of one number of rows make no line
_FADES = 31 / 32  # weight of a pass after each later one
_GAIN = 1.03  # a smaller gain is not noticeable, and a wrong guess would cost more


class DraftBudget:
    """The cost that drafts may still have, in the unit of costs: a share of the passes, and what drafts have gained. So where they do not pay they cost
    that share and no more, however wrong the odds are.

    A token that a draft gave an answer is a pass gained once all answers that run beside it have got as many: those that are ahead wait for
    the others.
    """

    def __init__(self) -> None:
        self.left = _AT_FIRST
        self._since: dict[Request, int] = {}  # tokens of drafts that each answer had when the last one began
        self._gained = 0  # by all of them since then

    def begin(self, decoding: Sequence[Request], plain: float) -> None:
        """Account for a pass, which takes that long without drafts."""
        more = {req: req.accepted - since for req, since in self._since.items()}
        going_on = [more[req] for req in decoding if req in more]
        gained = max(self._gained, min(more.values(), default=0), min(going_on, default=0))
        self.left = min(self.left + (_SHARE + gained - self._gained) * plain, _SAVED)
        self._gained = gained
        if len(going_on) < len(decoding):
            self._since, self._gained = {req: req.accepted for req in decoding}, 0
        elif len(going_on) < len(more):
            self._since = {req: self._since[req] for req in decoding}

    @property
    def gained(self) -> float:
        """Return what is left of what drafts have gained, without what they may cost at first."""
        return self.left - _AT_FIRST

    def gain(self, passes: float) -> None:
        """Record that so many passes were saved beside drafts."""
        self.left = min(self.left + passes, _SAVED)

    def ahead(self, req: Request) -> int:
        """Return the tokens of drafts that an answer got since the last one began."""
        return req.accepted - self._since.get(req, req.accepted)


_SHARE = 0.01
_AT_FIRST = 1.0
_SAVED = 8.0  # the most that is left of what was gained
