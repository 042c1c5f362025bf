"""The load of the device: what another row costs, and what another run in flight would gain.

A pass takes some time, and more for each of its rows. What rows leave of the device's time may be spent on computing again what a run has lost while it was
away, since another one used its memory meanwhile. Learned from passes; numbers only. And whether copying from the host is faster than that.
"""

from __future__ import annotations

import math

_PASSES = 256  # means are over about so many
_ENOUGH = 32  # passes before anything is known
_ALIKE = 1e-9  # the relative variance of rows below which nothing can be told of what one costs


class Load:
    """Means over the latest passes."""

    def __init__(self) -> None:
        self._passes = 0
        self._rows = self._seconds = self._squares = self._products = 0.0  # of a pass: rows, seconds, rows², rows · seconds
        self._between = self._on_device = 0.0  # seconds between the ends of two passes; seconds of a pass, for each request that ran in it
        self._ended: float | None = None

    def learn(self, rows: int, seconds: float, requests: int, now: float) -> None:
        """Take in a pass of so many rows and seconds, in which so many requests ran, and which has ended at `now` (seconds, by any clock)."""
        self._passes += 1
        part = 1 / min(self._passes, _PASSES)
        between = seconds if self._ended is None else max(seconds, now - self._ended)
        self._ended = now
        self._rows += (rows - self._rows) * part
        self._seconds += (seconds - self._seconds) * part
        self._squares += (rows * rows - self._squares) * part
        self._products += (rows * seconds - self._products) * part
        self._between += (between - self._between) * part
        self._on_device += (seconds * requests - self._on_device) * part

    @property
    def row(self) -> float | None:
        """Seconds by which another row makes a pass longer; None: not known."""
        variance = self._squares - self._rows**2
        if self._passes < _ENOUGH or variance <= _ALIKE * self._squares:
            return None
        return max(0.0, (self._products - self._rows * self._seconds) / variance)

    @property
    def gain(self) -> float:
        """The share of the device's time up to which recomputation pays for another run in flight; 0: not known.

        Let rows leave the share `idle` of the device's time, and n requests be on the device at a time. If recomputation takes the share d, passes become
        longer by d / idle, which delays n requests, and so costs the work of n · d / idle runs. One run is gained: it pays while d < idle / n.
        """
        row = self.row
        if row is None:
            return 0.0
        idle = max(0.0, 1 - row * self._rows / self._between)
        requests = self._on_device / self._between
        return idle / requests if requests else math.inf


class CopyRates:
    """Comparison of copying and recomputation: tokens per second of either, as measured."""

    def __init__(self) -> None:
        self.prefill = self.copy = 0.0  # 0: not known yet

    def learn_pass(self, rows: int, seconds: float) -> None:
        if rows >= 64 and seconds > 0:  # smaller passes are bound by reading the weights
            self.prefill = _smoothed(self.prefill, rows / seconds)

    def learn_copy(self, tokens: int, seconds: float) -> None:
        if tokens >= 64 and seconds > 0:
            self.copy = _smoothed(self.copy, tokens / seconds)

    @property
    def favour_copies(self) -> bool:
        return not (self.prefill and self.copy) or self.copy > self.prefill


def _smoothed(before: float, now: float) -> float:
    return now if not before else before + (now - before) / 8
