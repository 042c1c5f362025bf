"""Fixtures of servers."""

import pytest

from tests.serve.serving import TimeLimits


@pytest.fixture
def time_limits(monkeypatch):
    return TimeLimits(monkeypatch)
