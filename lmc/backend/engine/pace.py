"""The pace of passes: how many rows of prompts one may have so that it is over in time, learned from passes that were.

As a sender of packets finds out what a network takes: more as long as passes end in time, less at once when one does not. So one pass that was
slow for another reason (the first one, a busy machine) costs a few small passes and nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmc.backend.engine.request import Request

_FIRST = 64  # rows of the first passes, where there is a bound for all
_LEAST = 16  # rows that prompts have in any case


class _Limit:
    """Rows that a pass of at most `seconds` has, as far as is known."""

    def __init__(self, seconds: float, rows: int, most: int) -> None:
        self._seconds, self.rows, self._most = seconds, min(rows, most), most

    def learn(self, rows: int, seconds: float) -> None:
        part = seconds / self._seconds
        if part > 1:
            self.rows = max(_LEAST, min(self.rows, int(rows / part)))
        elif rows * 4 >= self.rows * 3:  # it was made use of
            self.rows = min(self._most, max(self.rows, int(rows / max(part, 0.5))))


class Pace:
    """chunk    rows that prompts have where there is no bound
    seconds  that a pass may take; None: any
    streams  the same while somebody reads an answer that grows; None: any
    """

    def __init__(self, chunk: int, seconds: float | None = None, streams: float | None = None) -> None:
        self._chunk = chunk
        self._always = None if seconds is None else _Limit(seconds, _FIRST, chunk)
        self._streaming = None if streams is None else _Limit(streams, chunk, chunk)

    def learn(self, rows: int, seconds: float) -> None:
        """A pass of so many rows has taken so long."""
        for limit in (self._always, self._streaming):
            if limit is not None:
                limit.learn(rows, seconds)

    def rows(self, decoding: Sequence[Request]) -> int:
        """Rows that a pass beside these may have at most, theirs included."""
        rows = self._chunk if self._always is None else self._always.rows
        if self._streaming is not None and self._streaming.rows < rows and any(req.watched for req in decoding):
            return self._streaming.rows
        return rows
