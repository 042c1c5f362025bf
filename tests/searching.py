"""Random searches: a handful of examples in the unit tier, a share of them in `make conformance` (LMC_SEARCH=0.25), all in `make nightly` (LMC_SEARCH=1).

The number says how many times longer: LMC_SEARCH=100 looks at a hundred times as many, and at others in every run.
Of long tables `make conformance` looks at what the unit tier leaves out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TIMES = float(os.environ.get("LMC_SEARCH", "0"))


def size(few: int, many: int) -> int:
    """How much is looked at: `few` in the unit tier, and never less."""
    return max(few, round(many * TIMES))


def examples(few: int, many: int) -> settings:
    return settings(
        max_examples=size(few, many), derandomize=TIMES <= 1, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )  # fmt: skip


APART = (pytest.mark.search, pytest.mark.skipif(not TIMES, reason="runs in make conformance"))
"""The marks of a case that runs in `make conformance` alone: it takes long, and others of its table show the same in short."""


def apart(test: Any) -> Any:
    """Marks a test that runs in `make conformance` alone: it takes seconds, and what it holds up is other tests' power to find faults."""
    for mark in APART:
        test = mark(test)
    return test


def some(names: Any, values: Iterable[Any], every: int, **options: Any) -> Callable[[Any], Any]:
    """As `pytest.mark.parametrize`, with each `every`-th value in the unit tier, the others in `make conformance`, and all of them in `make nightly`."""
    rows = list(values)
    rows = rows[::every] if not TIMES else rows if TIMES >= 1 else [row for i, row in enumerate(rows) if i % every]
    return lambda test: pytest.mark.search(pytest.mark.parametrize(names, rows, **options)(test))


def search(few: int, many: int) -> Callable[[Any], Any]:
    """Marks a hypothesis test as a random search, of that many examples."""
    return lambda test: pytest.mark.search(examples(few, many)(test))
