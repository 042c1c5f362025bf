"""Fixtures of programs in every execution."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from tests.waiting import until


@pytest.fixture
def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread, task or un-awaited coroutine is left, and no finalizer has raised anything."""
    raised: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: raised.append(found.exc_value))
    before = _threads()
    gc.freeze()  # what other tests left need not be walked
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # such as "coroutine … was never awaited"
        yield
        gc.collect()
    assert not raised
    until(lambda: not _threads() - before, "a thread is left")


def _threads() -> set[threading.Thread]:
    """Those of a pool that all programs share stay as long as Python runs."""
    return {t for t in threading.enumerate() if not t.name.startswith(("tqdm_monitor", "lmc-mock", "lmc-pure"))}
