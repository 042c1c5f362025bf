"""What a program says of itself: what it has done so far, and, once each, why something of it is not compiled."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field

from lmc.backend.base import Backend, Counters
from lmc.config import log, logs
from lmc.errors import CaptureWarning, Loc
from lmc.frontend.interpreter import Function


@dataclass
class Stats:
    """What a program has done so far."""

    runs: int = 0
    replays: int = 0
    traces: int = 0
    trace_seconds: float = 0.0
    plan_seconds: float = 0.0
    run_seconds: float = 0.0
    wasted: int = 0  # requests for arms that were not taken (speculate="branches")
    counters: Counters = field(default_factory=Counters)
    """The backend's work during the last call or batch."""

    def during(self, runs: int, backend: Backend) -> _During:
        """For `with`: a call or batch of so many runs is driven inside."""
        return _During(self, runs, backend)


class _During:
    """Takes what a call or batch has cost, however it ends."""

    __slots__ = ("_backend", "_before", "_runs", "_start", "_stats")

    def __init__(self, stats: Stats, runs: int, backend: Backend) -> None:
        self._stats, self._runs, self._backend = stats, runs, backend

    def __enter__(self) -> None:
        self._before, self._start = self._backend.counters(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._stats.runs += self._runs
        self._stats.run_seconds = time.perf_counter() - self._start
        self._stats.counters = self._backend.counters() - self._before


class Notices:
    """Reasons why something of a program is not compiled."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self.said: set[str] = set()

    def say(self, message: str) -> None:
        """Says it if it was not said before."""
        if message in self.said:
            return
        self.said.add(message)
        if logs("exits"):
            log("exits", message)
            return
        where = self._function.loc or Loc("<unknown>", 1)
        warnings.warn_explicit(f"{message} (right, but at the interpreter's speed)", CaptureWarning, where.file, where.line)
