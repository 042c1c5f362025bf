"""The backend that `--backend` names."""

from __future__ import annotations

from typing import Any

from lmc import named
from lmc.cli.console import waiting
from lmc.cli.errors import as_usage


def open_backend(name: str) -> Any:
    """The backend that `--backend` names."""
    with as_usage():
        if not named.is_model(name):
            return named.open_backend(name)
        named.check_model(name)
        with waiting("loading the model"):
            return named.open_backend(name)
