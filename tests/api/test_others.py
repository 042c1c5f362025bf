"""lmc.Anthropic against a stand-in of its API, lmc.LiteLLM with a stand-in of its client; lmc.OpenAI against `lmc serve`."""

from __future__ import annotations

import sys
from collections import Counter
from types import ModuleType

import pytest

import lmc
from tests.api import anthropic_server
from tests.api.conftest import QUICK, nothing_is_left
from tests.api.http import Planted
from tests.api.test_conformance import turns
from tests.api.test_faults import planted
from tests.api.test_speculation import FIELDS, VALUES, chat3, record, writer
from tests.api.text_model import TextModel
from tests.api.view import agree_with_the_mock
from tests.conformance.harness import differences, run

pytestmark = pytest.mark.api

pytest.importorskip("anthropic")


@pytest.mark.parametrize("which", ("anthropic", "litellm"))
def test_it_gives_what_the_mock_gives(request, which):
    model = TextModel()
    backend, _ = request.getfixturevalue(which)(model)
    items = [{"q": q} for q in ("x", "cats", "the sea")]
    agree_with_the_mock(turns, items, backend, lambda: model.mock(backend.chat_template))


@pytest.mark.parametrize("which", ("anthropic", "litellm"))
def test_a_turn_is_one_call(request, which):
    backend, seen = request.getfixturevalue(which)(TextModel(writer(record())))
    state = lmc.compile(chat3)(text="t", backend=backend, temperature=0)
    assert [state[f] for f in FIELDS[:3]] == [f" {v}" for v in VALUES[:3]]
    assert len(seen if isinstance(seen, list) else seen.seen) == 1


def test_messages_of_anthropic(anthropic):
    @lmc.function
    def program(s):
        s += lmc.system("Brief.") + lmc.user("Q") + lmc.assistant("A: " + lmc.gen("a", max_tokens=5, stop=["END", "\n"]))

    backend, server = anthropic(TextModel(lambda prompt: " x\ny"))
    assert program.run(backend=backend, temperature=0.5)["a"] == "x"
    assert server.seen[0].body == {
        "model": "claude", "system": "Brief.", "max_tokens": 5, "temperature": 0.5, "stop_sequences": ["END"],
        "messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A:"}],
    }  # fmt: skip


def test_a_type_of_few_values_is_a_schema_for_anthropic(anthropic):
    @lmc.function
    def program(s):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", dtype=bool)) + lmc.user("Sure?") + lmc.assistant(lmc.gen("b", dtype=int))

    backend, server = anthropic(TextModel())  # that enforces what it is sent
    state = program.run(backend=backend)
    assert state["a"] in ("True", "False") and str(state.parsed("b", int)) == state["b"]
    assert [s.body["output_config"]["format"]["schema"]["properties"]["answer"]["type"] for s in server.seen] == ["string", "integer"]


def says(text: str) -> TextModel:
    return TextModel(lambda prompt: text)


def test_the_rest_of_a_message_is_not_kept_within_a_schema(anthropic):
    @lmc.function
    def program(s):
        s += lmc.user("Q") + lmc.assistant("The number is " + lmc.gen("a", dtype=int))

    backend, server = anthropic(says("42"))
    assert program.run(backend=backend)["a"] == "42"
    assert ["output_config" in s.body for s in server.seen] == [False]


def test_a_model_that_cannot_go_on_with_a_message(anthropic):
    @lmc.function
    def program(s):
        s += lmc.user("Q") + lmc.assistant("A: " + lmc.gen("a", max_tokens=5))

    backend, _ = anthropic(TextModel(lambda prompt: "x"), stand_in={"prefill": False})
    with pytest.raises(lmc.UnsupportedOpError, match=r"test_others.py:\d+: .*an answer in the middle of a message: begin the message"):
        program.run(backend=backend).text()
    follower, server = anthropic(TextModel(writer(record())), stand_in={"prefill": False})
    fast = lmc.compile(chat3)
    states = fast.batch([{"text": str(i)} for i in range(3)], backend=follower, temperature=0)
    assert [s["Born"] for s in states] == [" 1815"] * 3 and all(s.reported or s.body["messages"][-1]["role"] == "assistant" for s in server.seen)


def test_faults_of_anthropic(anthropic):
    @lmc.function
    def program(s, q):
        s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=9))
        s += lmc.user("and") + lmc.assistant(lmc.gen("b", max_tokens=9))
        return s["b"]

    model = TextModel()
    backend, server = anthropic(model, stand_in={"plant": planted(0.2, kinds=("status", "reset", "truncate", "garbage"))}, concurrency=8)
    items = [{"q": str(i)} for i in range(60)]
    states = lmc.compile(program).batch(items, backend=backend, temperature=0)
    assert [s.ret_value for s in states] == [s.ret_value for s in program.run_batch(items, backend=model.mock(backend.chat_template), temperature=0)]
    reported = [s.reported for s in server.seen if s.reported]
    assert backend.spent().usage.prompt_tokens == sum(r["input_tokens"] for r in reported)
    faults = Counter(s.fault for s in server.seen)
    assert backend.spent().unreported >= faults["reset"] + faults["truncate"] + faults["garbage"] > 0
    nothing_is_left(backend, server)
    broken, _ = anthropic(model, stand_in={"plant": lambda n, path, body: Planted("status", 529)})
    with pytest.raises(lmc.BackendError, match=r"test_others.py:\d+: Anthropic\(claude\): gen 'a' failed after 9 attempts: HTTP 529"):
        program.run(q="x", backend=broken).text()


def test_a_client_of_ones_own_is_asked_for_long_answers(opened):
    """The SDK refuses them where they are not streamed, unless its client has a time-out of its own."""
    sdk = pytest.importorskip("anthropic")
    server = opened(anthropic_server.serve(TextModel()))
    backend = opened(lmc.Anthropic("claude-opus-4-1", client=sdk.AsyncAnthropic(api_key="k", base_url=server.url), patience=QUICK))

    @lmc.function
    def program(s):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=64_000))

    assert program.run(backend=backend)["a"] and server.seen[0].body["max_tokens"] == 64_000


def test_what_cannot_be_asked_of_anthropic(anthropic):
    backend, server = anthropic(TextModel())
    for given in ({"return_logprob": True}, {"temperature": 1.5}, {"frequency_penalty": 0.5}):

        @lmc.function
        def program(s, given=given):
            s += lmc.user("Q") + lmc.assistant(lmc.gen("a", **given))

        with pytest.raises(lmc.UnsupportedOpError):
            program.run(backend=backend)
    assert server.seen == []


def test_faults_of_litellm(litellm):
    class Busy(Exception):
        status_code = 429

    class InternalServerError(Exception):  # what LiteLLM makes of a connection that is reset
        status_code = 500

    faults = {1: Busy("slow down"), 2: InternalServerError("OpenAIException - Connection error."), 4: ValueError("no such provider")}

    @lmc.function
    def program(s):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=5))

    backend, seen = litellm(TextModel(), fault=faults.get)
    assert program.run(backend=backend, temperature=0)["a"] and len(seen) == 3
    assert backend.spent().unreported == 1 and backend.spent().retries == 2
    with pytest.raises(lmc.BackendError, match=r"test_others.py:\d+: .*ValueError: no such provider"):
        program.run(backend=backend).text()
    assert len(seen) == 4


def test_missing_packages_are_named(monkeypatch):
    for package, extra, make in (("google.auth", "vertexai", lmc.VertexAI), ("litellm", "litellm", lmc.LiteLLM)):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(lmc.ProgramError, match=rf"needs {package.replace('.', '-')}, which is not installed: pip install .*\[{extra}\]"):
            make("m")


def test_a_missing_key_and_a_wrong_address_are_said_at_once(monkeypatch):
    for key in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(lmc.ParameterError, match="no key; pass api_key=… or set ANTHROPIC_API_KEY"):
        lmc.Anthropic("claude")
    with pytest.raises(lmc.ParameterError, match="base_url='localhost:8000/v1' is not a URL such as http://host:port/v1"):
        lmc.OpenAI("m", api_key="k", base_url="localhost:8000/v1")

    @lmc.function
    def program(s):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=5))

    for backend in (
        lmc.OpenAI("m", api_key="k", base_url="http://127.0.0.1:9/v1", retries=0),
        lmc.Anthropic("m", api_key="k", base_url="http://127.0.0.1:9", retries=0),
    ):
        with backend, pytest.raises(lmc.BackendError, match=r"failed after 1 attempt: http://127.0.0.1:9/v1/\w+"):
            program.run(backend=backend).text()


@pytest.mark.parametrize("chat", (True, False), ids=("chat", "text"))
def test_lmc_serve_is_a_server_like_others(opened, chat):
    """A program on a backend, and on the same backend behind `lmc serve`."""
    pytest.importorskip("starlette")
    from tests.serve.serving import on_a_port

    @lmc.function
    def text(s, q):  # without a select: the mock behind the server makes up its log-probabilities
        s += lmc.user(q) + lmc.assistant("So: " + lmc.gen("a", max_tokens=20, stop="\n"))
        for f in s.fork(2):
            f += lmc.user("and?") + lmc.assistant(lmc.gen("b", regex="[0-9]{2}"))
            s["b"] = f["b"]
        s += lmc.user(s["b"]) + lmc.assistant(lmc.gen("c", n=2, max_tokens=9))

    program = turns if chat else text
    model = TextModel()
    behind = opened(model.mock(lmc.get_chat_template("chatml")))
    with on_a_port(behind) as url:
        backend = opened(lmc.OpenAI("mock", chat, "chatml", base_url=f"{url}/v1", server="vllm", patience=QUICK))
        for q in ("x", "cats"):
            expected = run(program.run, {"q": q}, lambda: None, {"backend": behind, "temperature": 0})
            for call in (program.run, lmc.compile(program)):
                seen = run(call, {"q": q}, lambda: None, {"backend": backend, "temperature": 0})
                if chat:
                    seen.text = expected.text  # without the template's text
                seen.metas = expected.metas
                assert seen == expected, differences(seen, expected)


def test_vertex_ai_is_asked_through_litellm(litellm, monkeypatch):
    """The options that LiteLLM gets for Vertex AI; with the real LiteLLM: test_litellm.py."""
    _, seen = litellm(TextModel())
    for name in ("google", "google.auth"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setenv("GCP_LOCATION", "europe-west1")
    for model in ("gemini-2.5-flash", "vertex_ai/gemini-2.5-flash"):
        backend = lmc.VertexAI(model, {"HARM_CATEGORY_HARASSMENT": "BLOCK_NONE"}, project="p")
        with backend, pytest.raises(lmc.BackendError):  # the stand-in has another model
            turns("x", backend=backend, temperature=0).text()
    assert {sent["model"] for sent in seen} == {"vertex_ai/gemini-2.5-flash"}
    assert (seen[0]["vertex_project"], seen[0]["vertex_location"]) == ("p", "europe-west1") and "vertex_credentials" not in seen[0]
    assert seen[0]["safety_settings"] == [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
