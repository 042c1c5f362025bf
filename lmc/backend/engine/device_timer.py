"""Device timer: the seconds that a device spends on the work it is given, which nothing waits for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceTimer:
    """Times blocks of one thread on a device. `seconds` from any thread."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._seconds = 0.0
        self._begun: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()  # begin and end of blocks that the device may not have come to

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time the block; on a GPU what it launches, in stream order."""
        if self._device.type != "cuda":
            began = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - began
            return
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        yield
        end.record()
        self._begun.append((begin, end))
        self._count_ended()  # also where nobody ever asks for the seconds

    @property
    def seconds(self) -> float:
        """Return the seconds of all blocks that have ended."""
        self._count_ended()
        return self._seconds

    def _count_ended(self) -> None:
        with self._lock:
            while self._begun and self._begun[0][1].query():
                begin, end = self._begun.popleft()
                self._seconds += begin.elapsed_time(end) / 1e3
