"""Reproducers of passes that fail on purpose go to a folder of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmc.config import reset


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        reset()
        yield
    reset()
