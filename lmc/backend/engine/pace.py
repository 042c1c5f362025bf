"""The pace of passes: how many rows of prompts one may have so that it is over in time, learned from passes that were."""

from __future__ import annotations

from collections.abc import Sequence

from lmc.backend.engine.request import Request

_FIRST = 64  # rows of the first passes, and twice as many as were seen after that
_LEAST = 16  # rows that prompts have in any case
_DECAY = 0.97  # the weight of a pass falls to half in some twenty


class Pace:
    """Seconds of a pass as a line over its rows, by least squares.

    chunk    rows that prompts have where there is no bound
    seconds  that a pass may take; None: any
    streams  the same while somebody reads an answer that grows; None: any
    """

    def __init__(self, chunk: int, seconds: float | None = None, streams: float | None = None) -> None:
        self._chunk, self.seconds, self._streams = chunk, seconds, streams
        self._most = _FIRST // 2  # rows of the largest pass
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def learn(self, rows: int, seconds: float) -> None:
        """A pass of so many rows has taken so long."""
        if self.seconds is None and self._streams is None:
            return
        self._most = max(self._most, rows)
        for name, value in (("_n", 1.0), ("_x", rows), ("_y", seconds), ("_xx", rows * rows), ("_xy", rows * seconds)):
            setattr(self, name, getattr(self, name) * _DECAY + value)

    def rows(self, decoding: Sequence[Request]) -> int:
        """Rows that a pass beside these may have at most, theirs included."""
        bound = self.seconds
        if self._streams is not None and any(req.watched for req in decoding):
            bound = self._streams if bound is None else min(bound, self._streams)
        if bound is None:
            return self._chunk
        return max(_LEAST, min(self._chunk, 2 * self._most, self._within(bound)))

    def _within(self, seconds: float) -> int:
        if not self._n:
            return self._chunk
        mean = self._x / self._n
        spread = self._xx / self._n - mean * mean
        slope = (self._xy / self._n - mean * self._y / self._n) / spread if spread > 1e-6 * mean * mean else 0.0
        if slope <= 0:  # passes of one size: as if all of it were for the rows
            slope = self._y / self._x
        fixed = max(0.0, self._y / self._n - slope * mean)
        return int((seconds - fixed) / slope)
