"""Fixtures of servers."""

import pytest


@pytest.fixture
def time_limits(monkeypatch):
    from tests.serve.serving import TimeLimits  # the unit tier reads this file, and needs no server

    return TimeLimits(monkeypatch)
