"""A program that processes import, which were spawned or forked."""

from __future__ import annotations

import os
from typing import Any

import lmc
from lmc.backend.mock import Mock


@lmc.function
def two(s: Any, q: str) -> Any:
    for i in range(2):
        s += q + lmc.gen(f"x{i}", max_tokens=2)
        s += s[f"x{i}"]
    return s["x0"]


PROGRAM = lmc.compile(two, ahead="likely")


def asked(q: str) -> tuple[int, str]:
    """Which process it ran in, and what it gave; compiled there it gives the same."""
    PROGRAM.profile.cost = 0.0
    backend = Mock(latency=0.0003)
    state = PROGRAM(q=q, backend=backend, seed=1)
    assert lmc.compile(two)(q=q, backend=backend, seed=1).text() == state.text()
    return os.getpid(), state.text()
