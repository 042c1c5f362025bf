"""Tests of API backends: against stand-ins on this machine, without a key or a network."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import lmc
from lmc.backend.api.client import Patience
from tests.api import anthropic_server, openai_server
from tests.api.http import Answer, Server
from tests.api.openai_server import OpenAIModel
from tests.api.text_model import TextModel
from tests.waiting import until

QUICK = Patience(retries=8, timeout=60.0, first_delay=0.001, longest_delay=0.01)


def nothing_is_left(backend: Any, server: Server) -> None:
    """Closes a backend: its thread is gone, and so are its connections."""
    backend.close()
    until(lambda: server.open_connections == 0, "a connection is left")
    assert [t.name for t in threading.enumerate() if t.name == f"lmc-{backend.name}"[:40]] == []


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
        server = opened(openai_server.serve(model, **(stand_in or {})))
        backend = opened(lmc.OpenAI("m", chat, base_url=f"{server.url}/v1", **{"patience": QUICK, **options}))
        return backend, server

    return make


@pytest.fixture
def anthropic(opened):
    pytest.importorskip("anthropic")

    def make(model: TextModel, *, stand_in=None, **options) -> tuple[lmc.Anthropic, Server]:
        server = opened(anthropic_server.serve(model, **(stand_in or {})))
        return opened(lmc.Anthropic("claude", api_key="k", base_url=server.url, **{"patience": QUICK, **options})), server

    return make


class Refused(Exception):
    """As LiteLLM raises what a provider refuses."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(body["error"]["message"])
        self.status_code, self.param = status, body["error"].get("param")


def without_its_own(body: dict[str, Any]) -> dict[str, Any]:
    """A request to LiteLLM without the arguments that it does not pass on."""
    return {k: v for k, v in body.items() if k not in ("timeout", "num_retries", "max_retries")}


def fake_litellm(monkeypatch: pytest.MonkeyPatch, handle: Callable[[dict[str, Any]], Awaitable[Answer]]) -> None:
    """Put a module in the place of litellm's that answers by `handle`."""

    async def acompletion(**body):
        answer = await handle(body)
        if answer.status != 200:
            raise Refused(answer.status, answer.body)
        return answer.body if answer.events is None else each(answer.events)

    async def each(events):
        for event in events:
            yield event

    module = types.ModuleType("litellm")
    module.acompletion = acompletion  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litellm", module)


@pytest.fixture
def litellm(opened, monkeypatch):
    """The client's one function that is used, in front of the stand-in of OpenAI's API."""

    def make(model: TextModel, *, fault=lambda n: None, **options):
        stand_in = OpenAIModel(model, continues=False)
        seen = []

        async def answer(body):
            seen.append(body)
            if (error := fault(len(seen))) is not None:
                raise error
            return stand_in.handle("/v1/chat/completions", without_its_own(body))

        fake_litellm(monkeypatch, answer)
        return opened(lmc.LiteLLM("m", **{"patience": QUICK, **options})), seen

    return make


@pytest.fixture(params=("openai", "responses", "litellm", "anthropic", "sglang", "vllm"))
def anywhere(request):
    """A backend of each API that has tools and images, and the paths and bodies that its server was asked for so far."""

    def make(model: TextModel, **options):
        how = {"api": "responses"} if request.param == "responses" else {}
        backend, *_, server = request.getfixturevalue("openai" if how else request.param)(model, **how, **options)
        return backend, lambda: [("", body) for body in server] if isinstance(server, list) else [(s.path, s.body) for s in server.seen]

    return make


@pytest.fixture
def sglang(opened):
    return _remote(opened, "sglang")


@pytest.fixture
def vllm(opened):
    return _remote(opened, "vllm")


@pytest.fixture(params=("sglang", "vllm"))
def remote(request, opened):
    return _remote(opened, request.param)


def _remote(opened: Callable[[Any], Any], kind: str) -> Callable[..., tuple[Any, Any, Server]]:
    """A backend with its stand-in and server; `ids=False` is a router that takes text alone."""
    from tests.api import sglang_server as servers

    stand_in_of, backend_of = {"sglang": (servers.SGLangModel, lmc.SGLang), "vllm": (servers.VLLMModel, lmc.VLLM)}[kind]

    def make(model: TextModel, *, ids: bool = True, plant: Any = None, **options: Any) -> tuple[Any, Any, Server]:
        stand_in = stand_in_of(model, takes_ids=ids)
        server = opened(servers.serve(stand_in, **({"plant": plant} if plant else {})))
        backend = opened(backend_of(server.url, **{"tokenizer": servers.WORDS, "chat_template": lmc.get_chat_template("chatml"), "patience": QUICK, **options}))
        return backend, stand_in, server

    return make
