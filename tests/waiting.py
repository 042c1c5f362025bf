"""Waiting in tests for what other threads and processes do: however slow a machine is, and a failure where it never happens."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds after which something counts as never happening."""


def until(holds: Callable[[], object], what: str = "it does not happen", seconds: float = PATIENCE) -> None:
    """Return once `holds()` does."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.002)
