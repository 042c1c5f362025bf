"""A pass for other ranks: written once to memory that all of them map, in a few arrays of int32, and read there as a pass again.

    rank 0 ──write──► part n mod 2 of the memory ──"n is there"──► each rank copies it out, and confirms in `taken`

While a pass runs the next one may be written; one more waits until the slowest rank has copied the previous contents.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from lmc.backend.engine.attention.sharing import SharedPrefix
from lmc.backend.engine.forward_batch import ModelPass, Rows
from lmc.backend.engine.request import Request, nobody
from lmc.backend.engine.token_ids import PENDING

_PARTS = 2
_FIRST = 1 << 20  # bytes of a part, to begin with
_HEAD = 4096  # bytes before the parts: `taken`, `beats`, `worked`, `waiting` and `compiled` of each rank
_FIELDS = 8
MOST_RANKS = 64


class Written(NamedTuple):
    """A pass as others read it: spans whose requests are known by their adapters alone, logit rows, groups that read slots together, and how many of
    its samples are broadcast after it."""

    work: ModelPass
    wanted: list[int]
    groups: list[SharedPrefix]
    samples: int


class Memory:
    """Shared memory. The file behind it has no name; it grows when a pass needs more. By rank, [MOST_RANKS] int64:

    taken     the number of the last pass that it has copied out
    beats     the number of heartbeats
    worked    the processor time of its computing thread, in ns, as of the last heartbeat
    waiting   whether it waits in a collective for others
    compiled  whether the kernels that it compiles beside its work are there
    """

    def __init__(self, handle: int | None = None) -> None:
        self.handle = unnamed("lmc-passes") if handle is None else handle
        if handle is None:
            os.ftruncate(self.handle, _HEAD + _PARTS * _FIRST)
        self._map()

    def _map(self) -> None:
        size = os.fstat(self.handle).st_size
        self._memory = mmap.mmap(self.handle, size)
        self.taken, self.beats, self.worked, self.waiting, self.compiled = np.frombuffer(self._memory, np.int64, 5 * MOST_RANKS).reshape(5, MOST_RANKS)
        self._part = (size - _HEAD) // _PARTS

    def room(self, number: int, ints: int) -> np.ndarray:
        """Return the place of pass `number`, at least so many int32. The writer enlarges it while no rank reads."""
        return np.frombuffer(self._memory, np.int32, ints, _HEAD + number % _PARTS * self._part)

    def fits(self, ints: int) -> bool:
        return 4 * ints <= self._part

    def grow(self, ints: int) -> None:
        os.ftruncate(self.handle, _HEAD + _PARTS * (1 << (4 * ints - 1).bit_length()))
        self._map()

    def refresh(self) -> None:
        """Map it again: another process may have enlarged it."""
        if os.fstat(self.handle).st_size != len(self._memory):
            self._map()

    def close(self) -> None:
        os.close(self.handle)


def processor_clock(thread: int) -> Callable[[], int]:
    """Return a clock of a living thread's processor time, in ns; where there is none, one that never stands still."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic_ns
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime_ns(clock)


def unnamed(purpose: str) -> int:
    """Return the handle of an empty file that has no name, and is gone with the last process that has it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(purpose)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def parts_of(work: ModelPass, wanted: Sequence[int], groups: Sequence[SharedPrefix], places: Mapping[Request, int], samples: int) -> list[np.ndarray]:
    """Return the arrays of a pass. A pending token is written as its index among the samples before
    (kernels/embedding.py)."""
    spans = work.spans
    lengths = np.fromiter((len(s.ids) for s in spans), np.int32, len(spans))
    contexts = np.fromiter((len(s.slots) for s in spans), np.int32, len(spans))
    ids = np.concatenate([s.ids for s in spans], dtype=np.int32)
    if places:
        for span, end in zip(spans, np.cumsum(lengths).tolist(), strict=True):
            if span.ids[-1] == PENDING:
                ids[end - 1] = -1 - places[span.request]
    grouped = list(chain.from_iterable((g.length, len(g.spans), *g.spans) for g in groups))
    fields = (len(spans), len(ids), len(wanted), int(contexts.sum()), len(groups), len(grouped), samples, 0)
    far = np.fromiter((s.is_far for s in spans), np.int32, len(spans))
    adapters = np.fromiter((s.request.adapter for s in spans), np.int32, len(spans))
    return [_ints(fields), lengths, contexts, far, adapters, ids, _ints(wanted), _ints(grouped), *(s.slots for s in spans)]


def put(parts: Sequence[np.ndarray], room: np.ndarray) -> None:
    """Write them one after the other."""
    np.concatenate(parts, out=room, casting="same_kind")


def _ints(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, np.int32)


def read(room: np.ndarray) -> Written:
    """Read a pass written by `put`, copied out."""
    spans, rows, wanted, slots, groups, grouped, samples, _ = room[:_FIELDS].tolist()
    at = _FIELDS

    def take(n: int, kind: Any = np.int32) -> np.ndarray:
        nonlocal at
        at += n
        return room[at - n : at].astype(kind)

    lengths, contexts, far, adapters = (take(spans).tolist() for _ in range(4))
    ids, logit_rows, said, every = take(rows), take(wanted).tolist(), take(grouped).tolist(), take(slots, np.int64)
    work, row, slot = ModelPass(), 0, 0
    for n, context, is_far, adapter in zip(lengths, contexts, far, adapters, strict=True):
        work.add(Rows(nobody(adapter), ids[row : row + n], context - n, every[slot : slot + context], is_far=bool(is_far)))
        row, slot = row + n, slot + context
    found: list[SharedPrefix] = []
    while len(found) < groups:
        length, members = said[:2]
        found.append(SharedPrefix(length, tuple(said[2 : 2 + members])))
        said = said[2 + members :]
    return Written(work, logit_rows, found, samples)


def wait_until(done: Callable[[], bool], check: Callable[[], None]) -> None:
    """Return once `done`; in between `check` may raise. Usually it is done at once, or within microseconds."""
    for _ in range(100):
        if done():
            return
    pause = 20e-6
    while not done():
        check()
        time.sleep(pause)
        pause = min(pause * 2, 2e-3)
