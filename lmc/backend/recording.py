"""The current recorder, for all parts of a run. Usually there is none, and then nothing is measured.

Recorded are times and numbers, never the text of a prompt or an answer. All times are `time.perf_counter()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run: the program's name, its number in its batch, when it began, and the records of its requests, current when
    read.

    failure  the exception that ended it, if kept: of an item of a batch
    """

    name: str
    item: int
    began: float
    records: Callable[[], Sequence[Any]]
    failure: Callable[[], BaseException | None] = lambda: None


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """A pass of the model.

    prefill, decode, scored  rows of known text, rows that extend an answer, and scored texts
    waiting, free, cached    requests not admitted, free slots of the KV cache, and tokens that were found in it so far
    device                   device time in seconds
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
class EventRecorder:
    """Events since its creation. Parts of a run append to it from any thread."""

    began: float = field(default_factory=perf_counter)
    runs: list[RecordedRun] = field(default_factory=list[RecordedRun])
    batches: list[RecordedPass] = field(default_factory=list[RecordedPass])


recorder: EventRecorder | None = None
"""The current recorder. Set by `lmc.trace`."""
