"""Tests of API backends: against stand-ins on this machine, without a key or a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lmc.backend.api.client import Patience
from tests.api import openai_server
from tests.api.http import Server
from tests.api.text_model import TextModel

QUICK = Patience(retries=8, timeout=5.0, first_delay=0.001, longest_delay=0.01)


@pytest.fixture
def model() -> TextModel:
    return TextModel()


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Closes what it was given when the test ends."""
    found: list[Any] = []

    def keep(what: Any) -> Any:
        found.append(what)
        return what

    yield keep
    for what in reversed(found):
        what.close()


@pytest.fixture
def openai(opened: Callable[[Any], Any]) -> Callable[..., tuple[Any, Server]]:
    """A backend with its server: `chat`, what the stand-in takes, and options of the backend."""

    def make(model: TextModel, chat: bool = True, *, stand_in: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Server]:
        import lmc

        server = opened(openai_server.serve(model, **(stand_in or {})))
        backend = opened(lmc.OpenAI("m", chat, base_url=f"{server.url}/v1", **{"patience": QUICK, **options}))
        return backend, server

    return make
