"""Wires to servers: how they say who asks, and that nothing they raise, log or report has a key or a password."""

from __future__ import annotations

import asyncio
import base64
import json
import os

import pytest

import lmc
from lmc.backend.api.client import Patience
from lmc.backend.api.exchange import HttpRequest
from lmc.backend.api.http1 import HttpWire
from lmc.backend.api.network import Access
from lmc.backend.api.proxied import ProxiedWire
from lmc.backend.api.sdk import with_shared_tls
from tests.api.http import Answer, Server
from tests.api.sglang_server import WORDS, SGLangModel, VLLMModel, serve
from tests.api.test_forking import in_child
from tests.api.text_model import TextModel
from tests.api.view import all_of

pytestmark = pytest.mark.api

KEY, PASSWORD = "sk-very-secret-0123456789", "hunter2!secret"
BASIC = base64.b64encode(f"tom:{PASSWORD}".encode()).decode()
ECHO = {"error": {"message": f"no {KEY} for tom:{PASSWORD} {BASIC} at http://tom:{PASSWORD}@host", "code": KEY}}
TWICE = Patience(1, 60.0, 0.001, 0.002)
KINDS = {"sglang": (lmc.SGLang, SGLangModel), "vllm": (lmc.VLLM, VLLMModel)}


@pytest.fixture(autouse=True)
def quiet():
    yield
    lmc.config(log="")


def with_password(url):
    return url.replace("://", f"://tom:{PASSWORD}@")


def several(backend):
    """The errors of eight requests that are made together."""
    forks: list[object] = []

    @lmc.function
    def about(s):
        for i, f in enumerate(s.fork(8)):
            f += f"About {i}:" + lmc.gen("a", max_tokens=6)
            forks.append(f)

    about(backend=backend, temperature=0)
    return [f.error() for f in forks]


def client(kind, url, **options):
    return KINDS[kind][0](url, tokenizer=WORDS, chat_template="chatml", patience=TWICE, **options)


def refusing(model, answer):
    """A server that answers the question whether it takes ids, and then refuses."""
    question = WORDS.encode(("a",), at_start=True)
    return lambda path, body: model.handle(path, body) if question in body.values() else answer


ANSWERS = {
    "refuses": Answer(ECHO, 401),  # lists, too: each request is sent alone
    "is gone": Answer(ECHO, 503),  # others get its requests
    "breaks a stream": Answer({}, events=[ECHO]),
    "makes no sense": Answer({"text": KEY, "choices": KEY, "items": PASSWORD}),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_message_log_or_report_of_a_fleet_has_a_key(opened, capfd, kind, answer):
    servers = []
    for _ in range(2):
        model = KINDS[kind][1](TextModel())
        servers.append(opened(serve(model)))
        servers[-1].handle = refusing(model, ANSWERS[answer])
    lmc.config(log="backend,prefix")
    backend = opened(client(kind, [with_password(s.url) for s in servers], api_key=KEY))
    errors = several(backend)
    assert all(errors)
    texts = [*capfd.readouterr(), json.dumps(backend.server_info(), default=str), *[text for error in errors for text in all_of(error)]]
    for text in texts:
        assert not any(secret in text for secret in (KEY, PASSWORD, BASIC)), text
    assert any("[redacted]" in text for text in texts) or answer == "makes no sense"


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_not_there_is_named_without_its_password(opened, kind):
    server = opened(serve(KINDS[kind][1](TextModel())))
    gone = f"http://tom:{PASSWORD}@127.0.0.1:9"
    with pytest.warns(UserWarning, match=r"http://127\.0\.0\.1:9") as warned:
        backend = opened(client(kind, [gone, server.url], api_key=KEY))
    said = [str(w.message) for w in warned]
    for call in (
        lambda: backend.add_server(f"http://tom:{PASSWORD}@127.0.0.1:10"),
        lambda: backend.drop_server(with_password("http://h")),
        lambda: client(kind, gone),
    ):
        with pytest.raises(lmc.LmcError) as raised:
            call()
        said += all_of(raised.value)
    backend.drop_server(gone)
    assert [s["url"] for s in backend.server_info()["servers"]] == [server.url]
    assert not any(secret in text for text in said for secret in (KEY, PASSWORD, BASIC))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["key", "password"])
def test_who_asks_is_said_with_each_request(opened, kind, how):
    server = opened(serve(KINDS[kind][1](TextModel())))
    backend = opened(client(kind, server.url, api_key=KEY) if how == "key" else client(kind, with_password(server.url)))
    several(backend)
    expected = f"Bearer {KEY}" if how == "key" else f"Basic {BASIC}"
    assert server.got and len(server.seen) > 1 and {s.headers["authorization"] for s in (*server.got, *server.seen)} == {expected}
    assert {(s.headers["host"], s.headers["user-agent"]) for s in (*server.got, *server.seen)} == {(server.url.removeprefix("http://"), "lmc")}


@pytest.mark.parametrize("make", [HttpWire, lambda url, access: ProxiedWire(url, access, None, timeout=60, connections=1)], ids=["own", "proxied"])
def test_both_wires_send_and_know_the_same_secrets(opened, make):
    server = opened(Server(lambda path, body: Answer({})))

    async def once() -> set[str]:
        wire = make(with_password(server.url), Access({"authorization": f"Bearer {KEY}"}))
        await wire.post(HttpRequest("/", {}))
        await wire.close()
        return set(wire.secrets)

    assert asyncio.run(once()) >= {KEY, PASSWORD, BASIC}
    assert server.seen[0].headers["authorization"] == f"Basic {BASIC}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_does_not_follow_a_redirect(opened, kind):
    elsewhere = opened(serve(KINDS[kind][1](TextModel())))
    moved = Answer({}, 302, {"location": f"{elsewhere.url}/v1/models"})
    server = opened(Server(lambda path, body: Answer({}), get=dict.fromkeys(("/v1/models", "/model_info", "/get_model_info"), moved)))
    with pytest.raises(lmc.BackendError, match="HTTP 302"):
        client(kind, server.url, api_key=KEY)
    assert not elsewhere.got


@pytest.mark.parametrize("usage", [-3, "many", 1e9, [1], None])
@pytest.mark.parametrize("kind", KINDS)
def test_usage_of_lists_that_cannot_be_is_not_counted(opened, kind, usage):
    model = KINDS[kind][1](TextModel())
    server = opened(serve(model))

    def wrong(path, body):
        answer = model.handle(path, body)
        for event in answer.events or (answer.body,):
            told = event["meta_info"] if kind == "sglang" else event.setdefault("usage", {})
            told |= {"prompt_tokens": usage, "completion_tokens": usage}
        return answer

    server.handle = wrong
    backend = opened(client(kind, server.url))
    several(backend)
    assert len(server.seen) < 9, "they went as lists"
    spent = backend.spent()
    assert spent.usage.prompt_tokens == spent.usage.completion_tokens == 0
    assert spent.unreported == 9, "each of them, and the one that finds out whether ids are taken"


@pytest.mark.parametrize("kind", KINDS)
def test_servers_are_taken_in_and_dropped_by_the_process_that_has_the_connections(opened, kind):
    servers = [opened(serve(KINDS[kind][1](TextModel()))) for _ in range(3)]
    backend = opened(client(kind, [s.url for s in servers[:2]]))
    several(backend)
    for call in (lambda: backend.add_server(servers[2].url), lambda: backend.drop_server(servers[0].url)):
        assert f"its connections were opened by process {os.getpid()}, of which this one is a fork" in in_child(call)
    backend.close()
    for call in (lambda: backend.add_server(servers[2].url), lambda: backend.drop_server(servers[0].url)):
        with pytest.raises(lmc.BackendError, match="is closed"):
            call()


@pytest.mark.parametrize("make, sdk", [(lmc.OpenAI, "openai"), (lmc.Anthropic, "anthropic")])
def test_clients_of_sdks_load_certificates_once(monkeypatch, make, sdk):
    package = pytest.importorskip(sdk)
    library = pytest.importorskip(package.DefaultAsyncHttpxClient.__mro__[1].__module__)
    made, create = [], library.create_ssl_context
    monkeypatch.setattr(library, "create_ssl_context", lambda *given: made.append(given) or create(*given))
    backends = [make("m", base_url="https://127.0.0.1:9/v1", api_key="none") for _ in range(3)]
    assert len(made) <= 1  # another test may have come before
    assert with_shared_tls(package, {"http_client": (own := object())})["http_client"] is own
    for backend in backends:
        backend.close()
