"""Where the parts of a run find who records it. Nobody does, as a rule, and then nothing is measured.

Recorded are times and numbers, never the text of a prompt or an answer. All times are `time.perf_counter()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter
from typing import Any, TypeVar

from lmc.errors import Loc

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of the program's own code. `run` is the number of the run."""

    run: int
    name: str
    loc: Loc | None
    began: float
    ended: float
    thread: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A pass of the model.

    prefill, decode, scored  rows of known text, rows that go on with an answer, and texts that were scored
    waiting, free, cached    requests not admitted, free slots of the KV cache, and tokens that were found in it so far
    device                   seconds that the device took
    """

    began: float
    ended: float
    rows: int
    requests: int
    prefill: int
    decode: int
    scored: int
    waiting: int
    free: int
    slots: int
    cached: int
    device: float


@dataclass
class Recorder:
    """What happened since it was made. Parts of a run append to it from any thread."""

    began: float = field(default_factory=perf_counter)
    runs: list[Any] = field(default_factory=list[Any])  # what the owner of the runs notes
    calls: list[HostCall] = field(default_factory=list[HostCall])
    batches: list[Batch] = field(default_factory=list[Batch])

    def timed(self, run: int, fn: Callable[..., Any], loc: Loc | None, call: Callable[[], T]) -> T:
        """Makes a call of the program's own code and notes how long it took."""
        began = perf_counter()
        try:
            return call()
        finally:
            self.called(run, fn, loc, began)

    def called(self, run: int, fn: Callable[..., Any], loc: Loc | None, began: float) -> None:
        name = getattr(fn, "__qualname__", None) or type(fn).__name__
        self.calls.append(HostCall(run, name, loc, began, perf_counter(), get_ident()))


recorder: Recorder | None = None
"""Who records now. Set by `lmc.trace`."""
