"""lmc.LiteLLM on the real litellm, where it is installed: its client, its errors and its streams, in front of the stand-in of OpenAI's API.

litellm pins old packages, so this runs in the environment of `make clients`; with a stand-in of litellm see test_others.py and test_tools.py.
"""

from __future__ import annotations

import json

import pytest

import lmc
from tests.api import gemini_server, openai_server
from tests.api.conftest import QUICK
from tests.api.http import Planted
from tests.api.raw_server import TEXT, answered, api, sse, streamed, streams, whole, writes
from tests.api.test_conformance import turns
from tests.api.test_tools import agent, script
from tests.api.text_model import TextModel
from tests.api.view import agree_with_the_mock

pytestmark = pytest.mark.api

pytest.importorskip("litellm")


@pytest.fixture
def real(opened):
    def make(model: TextModel, **stand_in):
        server = opened(openai_server.serve(model, **{"continues": False, **stand_in}))
        return opened(lmc.LiteLLM("openai/m", api_key="k", base_url=f"{server.url}/v1", patience=QUICK)), server

    return make


def test_it_gives_what_the_mock_gives(real):
    model = TextModel()
    backend, _ = real(model)
    items = [{"q": q} for q in ("x", "cats")]
    agree_with_the_mock(turns, items, backend, lambda: model.mock(backend.chat_template))


@lmc.function
def one(s):
    s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=40))


def test_streams(real):
    backend, server = real(TextModel(lambda prompt: "one two three four"))
    pieces = list(one.run(backend=backend, stream=True, temperature=0).text_iter("a"))
    assert "".join(pieces) == "one two three four" and len(pieces) > 2 and server.seen[0].body["stream"]


def test_tools(real):
    backend, server = real(TextModel(script))
    try:
        import mcp  # noqa: F401
    except ImportError:
        with pytest.raises(lmc.BackendError, match=r"test_tools.py:\d+: .*pip install .*\[litellm\]"):
            agent("tea", backend=backend, temperature=0).text()
        assert not server.seen and backend.spent().retries == 0
        return
    assert agent("tea", backend=backend, temperature=0).ret_value == "It is 7."
    state = lmc.compile(agent, backend=backend).stream("tea", temperature=0)
    assert "It is 7." in "".join(state.text_iter()) and any(s.body.get("stream") for s in server.seen)


@pytest.mark.parametrize("kind", ("status", "reset", "truncate"))
def test_faults(real, kind):
    backend, server = real(TextModel(), plant=lambda n, path, body: Planted(kind) if n == 0 else None)
    state = one(backend=backend, temperature=0)
    assert state.text() and len(server.seen) == 2 and backend.spent().retries == 1
    assert backend.spent().unreported == (kind != "status")
    refusing, server = real(TextModel(), plant=lambda n, path, body: Planted("status", 401, body={"error": {"message": "no such key"}}))
    with pytest.raises(lmc.BackendError, match=r"test_litellm.py:\d+: .*HTTP 401.*no such key"):
        one(backend=refusing).text()
    assert len(server.seen) == 1


@pytest.fixture
def vertex(opened, monkeypatch):
    """`lmc.VertexAI` in front of a stand-in of Vertex AI; Google's sign-on is the one thing that is not there."""
    from litellm.llms.vertex_ai.vertex_llm_base import VertexBase

    async def signed_on(*args, **options):
        return "a-token", "a-project"

    monkeypatch.setattr(VertexBase, "_ensure_access_token_async", signed_on)

    def make(model: TextModel, **options):
        server = opened(gemini_server.serve(model))
        return opened(lmc.VertexAI("gemini-2.5-flash", project="a-project", location="us-central1", api_base=server.url, patience=QUICK, **options)), server

    return make


def test_vertex_ai(vertex):
    backend, server = vertex(TextModel(), safety_settings={"HARM_CATEGORY_HARASSMENT": "BLOCK_NONE"})
    model = TextModel()
    items = [{"q": q} for q in ("x", "cats")]

    @lmc.function
    def talk(s, q):
        s += lmc.system("Be short.") + lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=20, stop="."))
        s += lmc.user("and?") + lmc.assistant(lmc.gen("b", max_tokens=12))
        return s["a"], s["b"]

    agree_with_the_mock(talk, items, backend, lambda: model.mock(backend.chat_template))
    (sent, *_) = server.seen
    assert sent.headers["authorization"] == "Bearer a-token"
    assert sent.body["safetySettings" if "safetySettings" in sent.body else "safety_settings"] == [
        {"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}
    ]
    assert backend.spent().usage.prompt_tokens > 0


def test_vertex_ai_streams(vertex):
    backend, _ = vertex(TextModel(lambda prompt: "one two three four"))
    pieces = list(one.run(backend=backend, stream=True, temperature=0).text_iter("a"))
    assert "".join(pieces) == "one two three four" and len(pieces) > 2


def test_a_stream_that_is_cut_is_no_answer(opened):
    """LiteLLM ends it as if the model had."""
    server = opened(api("openai", streams(sse("openai", streamed("openai")[:1]))))
    with (
        lmc.LiteLLM("openai/m", api_key="k", base_url=f"{server.url}/v1", patience=QUICK) as backend,
        pytest.raises(lmc.BackendError, match="failed after 9 attempts: the stream ended before the answer did"),
    ):
        "".join(one.run(backend=backend, stream=True).text_iter("a"))


def test_the_provider_says_when_requests_are_taken_again(real):
    backend, server = real(TextModel(), plant=lambda n, path, body: Planted("status", 429, {"retry-after": "3600"}))
    with pytest.raises(lmc.BackendError, match=r"after 1 attempt: HTTP 429.*takes requests again in 3600 s"):
        one.run(backend=backend).text()
    assert len(server.seen) == 1


def test_usage_that_a_provider_does_not_report_is_not_zero(opened):
    server = opened(api("openai", writes(whole(json.dumps(answered("openai", usage=None)).encode()))))
    with lmc.LiteLLM("openai/m", api_key="k", base_url=f"{server.url}/v1", patience=QUICK) as backend:
        assert one.run(backend=backend)["a"] == TEXT
        assert backend.spent().unreported == 1
