"""Each engine that a test has driven pass by pass is looked at when the test has ended."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.backend import engine_fakes


@pytest.fixture(autouse=True)
def nothing_leaks() -> Generator[None]:
    """No page leaks, and no reference dangles: of the last few engines, since a search makes many."""
    yield
    while engine_fakes.STEPPED:
        engine = engine_fakes.STEPPED.pop()
        if engine._core.broken is None:  # else its loop has left everything as it was
            engine.check()
