"""The pace of passes: how many rows of prompts one may have to end in time, learned from earlier passes.

Like TCP's congestion control: more while passes end in time, less at once when one does not. So one pass that was slow
for another reason (the first one, a busy machine) only costs a few small passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmc.backend.engine.request import Request

_FIRST = 64  # rows of the first passes, where there is a bound for all
_LEAST = 16  # least rows for prompts


class _Limit:
    """Known number of rows of a pass of at most `seconds`."""

    def __init__(self, seconds: float, rows: int, most: int) -> None:
        self._seconds, self.rows, self._most = seconds, min(rows, most), most

    def learn(self, rows: int, seconds: float) -> None:
        part = seconds / self._seconds
        if part > 1:
            self.rows = max(_LEAST, min(self.rows, int(rows / part)))
        elif rows * 4 >= self.rows * 3:  # the limit was used
            self.rows = min(self._most, max(self.rows, int(rows / max(part, 0.5))))


class Pace:
    """chunk    rows for prompts without a bound
    seconds  that a pass may take; None: any
    streams  the same while a growing answer is read; None: any
    """

    def __init__(self, chunk: int, seconds: float | None = None, streams: float | None = None) -> None:
        self._chunk = chunk
        self._always = None if seconds is None else _Limit(seconds, _FIRST, chunk)
        self._streaming = None if streams is None else _Limit(streams, chunk, chunk)

    def learn(self, rows: int, seconds: float) -> None:
        """Record how long a pass of so many rows has taken."""
        for limit in (self._always, self._streaming):
            if limit is not None:
                limit.learn(rows, seconds)

    def rows(self, decoding: Sequence[Request]) -> int:
        """Return the most rows that a pass with these may have, them included."""
        rows = self._chunk if self._always is None else self._always.rows
        if self._streaming is not None and self._streaming.rows < rows and any(req.watched for req in decoding):
            return self._streaming.rows
        return rows
