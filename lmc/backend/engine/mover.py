"""The mover between the pool and the host's memory, as the host tier uses it (kv_copy.py implements it), and the rates of copies."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Copy(Protocol):
    """A copy that was begun. `seconds`: how long it took, once it is done."""

    @property
    def seconds(self) -> float: ...

    def done(self) -> bool: ...

    def wait(self) -> None: ...


class Mover(Protocol):
    """Copies KV between slots of the device and of the host, in the order of calls, after all launched passes.

    capacity     number of host slots that there will be, as far as can be told;  ready: of leading ones available by now
    grows        more of them will come soon
    token_bytes  of one token's KV
    """

    token_bytes: int

    @property
    def capacity(self) -> int: ...

    @property
    def grows(self) -> bool: ...

    @property
    def ready(self) -> int: ...

    def want(self, slots: int) -> None:
        """Make so many host slots available, as far as there is memory; beside passes, so it takes a while."""
        ...

    def out(self, device: np.ndarray, host: np.ndarray) -> Copy: ...

    def back(self, host: np.ndarray, device: np.ndarray) -> Copy: ...

    def settle(self) -> None:
        """Wait for the copies begun."""
        ...

    def close(self) -> None:
        """Wait for them, and free all memory; nothing is copied any longer."""
        ...


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
