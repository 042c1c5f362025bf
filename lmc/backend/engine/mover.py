"""Copies between the pool and the host's memory (kv_copy.py makes them), and their rates."""

from __future__ import annotations

from typing import Protocol


class Copy(Protocol):
    """A copy that was begun. `seconds`: how long it took, once it is done."""

    @property
    def seconds(self) -> float: ...

    def done(self) -> bool: ...

    def wait(self) -> None: ...


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
