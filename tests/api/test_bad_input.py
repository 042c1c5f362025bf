"""Faults of a URL, a server, a model's name or of what a server can do are reported once and clearly, before the batch where they can be known."""

from __future__ import annotations

import socket
import threading

import pytest

import lmc
from tests.api.conftest import QUICK
from tests.api.http import Answer, Server
from tests.api.sglang_server import WORDS, SGLangModel, VLLMModel, serve
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api


@lmc.function
def asking(s, q):
    s += lmc.user("About " + q) + lmc.assistant(lmc.gen("a", max_tokens=6))


@lmc.function
def catching(s, q):
    s += lmc.user("About " + q) + lmc.assistant(lmc.gen("a", max_tokens=6))
    try:
        return s["a"]
    except lmc.BackendError:
        return "none"


ITEMS = [{"q": f"item {i}"} for i in range(5)]


# -- URLs ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ("{url}/v1", "{url}/v1/", "{url}/"))
def test_urls_with_and_without_v1_are_one(opened, given):
    for stand_in, backend in ((SGLangModel, lmc.SGLang), (VLLMModel, lmc.VLLM)):
        server = opened(serve(stand_in(TextModel())))
        with backend(given.format(url=server.url), tokenizer=WORDS, chat_template="chatml") as made:
            assert made.server_info()["servers"][0]["url"] == server.url
            made.add_server(opened(serve(stand_in(TextModel()))).url + "/v1")


@pytest.mark.parametrize("url", ("localhost:8000", "http://", "http://host:0", "http://host:99999", "http://h:port", "http://[h", "ftp://host", "http://a b"))
@pytest.mark.parametrize("backend", (lmc.SGLang, lmc.VLLM))
def test_what_is_no_url(backend, url):
    with pytest.raises(lmc.ParameterError, match="is not a URL such as http://host:port"):
        backend(url)


def test_a_url_of_openai_s_api_without_its_path(openai):
    _, server = openai(TextModel())
    with (
        lmc.OpenAI("m", base_url=server.url, patience=QUICK) as backend,
        pytest.raises(lmc.BackendError, match=rf"HTTP 404: .*base_url has no path, and servers mostly have their API at {server.url}/v1"),
    ):
        lmc.compile(asking).batch(ITEMS, backend=backend)
    assert len(server.seen) == len(ITEMS), "trying again would not help"


def test_a_url_of_a_request():
    with pytest.raises(lmc.ParameterError, match="is the URL of a request; give that of the API: 'http://host/v1'"):
        lmc.OpenAI("m", base_url="http://host/v1/chat/completions")


def test_what_else_answers_at_a_url_is_named(opened):
    owned = lambda by: opened(Server(lambda path, body: Answer({}, 404), get={"/v1/models": {"data": [{"id": "m", "owned_by": by}]}})).url
    other = owned("llama.cpp")
    with pytest.raises(
        lmc.BackendError,
        match=rf"no SGLang server at {other}: HTTP 404 for /get_model_info; a server of OpenAI's API answers there: lmc.OpenAI\(model, base_url='{other}/v1'\)",
    ):
        lmc.SGLang(other)
    vllm = owned("vllm")
    with pytest.raises(lmc.BackendError, match=rf"a vLLM server answers there: lmc.VLLM\('{vllm}'\)"):
        lmc.SGLang(vllm)
    sglang = owned("sglang")
    with pytest.raises(lmc.BackendError, match=rf"is an SGLang server: lmc.SGLang\('{sglang}'\)"):
        lmc.VLLM(sglang)
    with pytest.raises(lmc.BackendError, match=rf"no vLLM server at {vllm}/models: HTTP 404 for /v1/models; a vLLM server answers there: lmc.VLLM\('{vllm}'\)"):
        lmc.VLLM(vllm + "/models")
    page = opened(Server(lambda path, body: Answer({}, 404), get={"/model_info": Answer([1, 2])})).url  # type: ignore[arg-type]
    with pytest.raises(lmc.BackendError, match=rf"no vLLM server at {page}/a: HTTP 404 for /v1/models; give its URL alone, {page}$"):
        lmc.VLLM(page + "/a")


@pytest.mark.parametrize("backend", (lmc.SGLang, lmc.VLLM))
def test_a_server_that_wants_a_key(opened, backend):
    refusing = Answer({"error": "no"}, 401)
    server = opened(Server(lambda path, body: refusing, get={"/model_info": refusing, "/v1/models": refusing}))
    with pytest.raises(lmc.BackendError, match=r"HTTP 401 for /.*; it wants a key, or another one: api_key=…"):
        backend(server.url, api_key="sk-wrong-key-1234")


def test_https_where_http_is_spoken():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(lmc.BackendError, match=r"no SGLang server at https://.*; if it speaks http, write http:// in its URL"):
            lmc.SGLang(f"https://127.0.0.1:{listener.getsockname()[1]}")


# -- servers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", (lmc.SGLang, lmc.VLLM))
def test_a_dead_server(backend):
    with socket.socket() as held:  # nobody listens, and nobody else can begin to
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(lmc.BackendError, match=rf"no (SGLang|vLLM) server at {url}: .*Connection refused") as raised:
            backend(url)
    assert "urlopen" not in str(raised.value)


def test_a_server_that_dies_under_a_batch(remote):
    backend, _, server = remote(TextModel())
    lmc.compile(asking)(q="x", backend=backend, temperature=0).text()
    server.close()
    with pytest.raises(lmc.BackendError, match=r"test_bad_input.py:\d+: .*: gen 'a' failed after 9 attempts: .*(refused|closed|broke)") as raised:
        lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0)
    assert any("item 0" in note for note in raised.value.__notes__)


def test_a_model_that_makes_embeddings(opened):
    stand_in = SGLangModel(TextModel())
    stand_in.get["/model_info"]["is_generation"] = False
    server = opened(serve(stand_in))
    with pytest.raises(lmc.BackendError, match="small/qwen-model, only makes embeddings"):
        lmc.SGLang(server.url)


# -- models ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run", (lambda p, b: lmc.compile(p).batch(ITEMS, backend=b), lambda p, b: p.run_batch(ITEMS, backend=b)), ids=("compiled", "interpreted")
)
def test_a_batch_that_nobody_reads_of_a_model_that_is_not_there(openai, opened, run):
    _, server = openai(TextModel())
    backend = opened(lmc.OpenAI("gpt-99", base_url=f"{server.url}/v1", patience=QUICK))
    with pytest.raises(
        lmc.BackendError, match=r"test_bad_input.py:\d+: OpenAI\(gpt-99\): gen 'a' failed: HTTP 404: The model 'gpt-99' does not exist"
    ) as raised:
        run(asking, backend)
    assert any("item 0" in note for note in raised.value.__notes__)
    assert [s.ret_value for s in run(catching, backend)] == ["none"] * 5, "the program was told"


def test_what_failed_in_a_batch_may_be_returned(openai, opened):
    _, server = openai(TextModel())
    backend = opened(lmc.OpenAI("gpt-99", base_url=f"{server.url}/v1", patience=QUICK))
    states = lmc.compile(asking).batch(ITEMS, backend=backend, errors="return")
    assert all(isinstance(state.error(), lmc.BackendError) for state in states)


def test_a_model_that_a_server_does_not_have(opened):
    server = opened(serve(VLLMModel(TextModel())))
    with pytest.raises(lmc.BackendError, match=r"has no model 'other'; it has m$"):
        lmc.VLLM(server.url, "other")


# -- what servers cannot do -------------------------------------------------------------------------------------------------


def test_a_prompt_longer_than_the_context_is_not_sent(opened):
    server = opened(serve(VLLMModel(TextModel())))
    server.get["/v1/models"]["data"][0]["max_model_len"] = 300
    backend = opened(lmc.VLLM(server.url, tokenizer=WORDS, chat_template="chatml", patience=QUICK))
    items = [*ITEMS, {"q": "long " * 400}]
    states = lmc.compile(asking).batch(items, backend=backend, temperature=0, errors="return")
    assert [state.error() is None for state in states] == [True] * len(ITEMS) + [False]
    error = states[-1].error()
    assert isinstance(error, lmc.PromptTooLongError) and "the context of VLLM(m) is 300 tokens" in str(error) and "test_bad_input.py" in str(error)
    assert max(len(ids) for s in server.seen for ids in (s.body["prompt"] if isinstance(s.body["prompt"][0], list) else [s.body["prompt"]])) < 300


def test_what_a_server_refuses_is_said_with_its_place(opened):
    server = opened(serve(SGLangModel(TextModel(), lacks=frozenset({"regex"}))))
    backend = opened(lmc.SGLang(server.url, tokenizer=WORDS, chat_template="chatml", patience=QUICK))

    @lmc.function
    def digit(s, q):
        s += lmc.user(q) + lmc.assistant(lmc.gen("d", regex="[0-9]"))

    with pytest.raises(lmc.BackendError, match=r"test_bad_input.py:\d+: SGLang\(small/qwen-model\): gen 'd' failed: HTTP 400: unknown: \['regex'\]"):
        lmc.compile(digit).batch(ITEMS, backend=backend)
    assert all(state.error() is None for state in lmc.compile(asking).batch(ITEMS, backend=backend))


class Mixed:
    """A router over servers of one kind, which takes the next one for each request."""

    def __init__(self, *stand_ins) -> None:
        self.stand_ins, self.get = stand_ins, stand_ins[0].get
        self._lock, self._turn = threading.Lock(), 0

    def handle(self, path, body):
        with self._lock:
            self._turn += 1
            stand_in = self.stand_ins[self._turn % len(self.stand_ins)]
        return stand_in.handle(path, body)


@pytest.mark.parametrize("lacks", ("stream_interval", "sampling_seed", "token_ids_logprob"))
def test_mixed_versions_behind_a_router_are_asked_by_what_all_of_them_know(opened, lacks):
    @lmc.function
    def program(s, q):
        s += "About " + q + ":" + lmc.gen("a", max_tokens=6) + lmc.select("b", [" x", " y"])
        return s["b"]

    model = TextModel()
    newer, older = SGLangModel(model), SGLangModel(model, lacks=frozenset({lacks}))
    server = opened(Server(Mixed(newer, older).handle, get=newer.get))
    backend = opened(lmc.SGLang(server.url, tokenizer=WORDS, chat_template="chatml", patience=QUICK, router=False))
    for _ in range(3):
        states = lmc.compile(program).batch(ITEMS, backend=backend, seed=1)
        assert [state.error() for state in states] == [None] * 5 and {state.ret_value for state in states} <= {" x", " y"}


def test_what_one_endpoint_refuses_is_sent_to_the_other(opened):
    model = SGLangModel(TextModel())
    refused = Answer({"error": {"message": "n is not supported with this sampling"}}, 400)
    server = opened(Server(lambda path, body: refused if path == "/generate" and "n" in body["sampling_params"] else model.handle(path, body), get=model.get))
    backend = opened(lmc.SGLang(server.url, tokenizer=WORDS, chat_template="chatml", patience=QUICK, router=False))

    @lmc.function
    def twice(s, **how):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", n=2, max_tokens=6, temperature=1, **how))

    with pytest.raises(lmc.BackendError, match="n is not supported"):
        twice.run(backend=backend).text()
    assert sum(seen.path == "/generate" and "n" in seen.body["sampling_params"] for seen in server.seen) == 1
    assert len(twice.run(backend=backend, tools=[add])["a"]) == 2
    assert [seen.body["n"] for seen in server.seen if seen.path == "/v1/chat/completions"] == [2]


def add(a: int, b: int) -> int:
    return a + b


def test_one_of_several_servers_that_takes_no_ids(opened):
    model = TextModel()
    newer, older = SGLangModel(model), SGLangModel(model, takes_ids=False)
    server = opened(Server(Mixed(older, newer).handle, get=newer.get))  # the first request, which asks whether ids are taken, goes to the newer one
    backend = opened(lmc.SGLang(server.url, tokenizer=WORDS, chat_template="chatml", patience=QUICK, router=False))
    for _ in range(2):
        states = lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0)
        assert [state.error() for state in states] == [None] * 5
    assert backend.server_info()["prompts"].startswith("text: ids are refused")


def test_other_models_behind_a_router(opened):
    other = VLLMModel(TextModel())

    def renamed(path, body):
        answer = VLLMModel.handle(other, path, body)
        events = None if answer.events is None else [{**event, "model": "other"} for event in answer.events]
        return Answer({**answer.body, "model": "other"}, answer.status, events=events)

    server = opened(Server(renamed, get=other.get))
    backend = opened(lmc.VLLM(server.url, tokenizer=WORDS, chat_template="chatml", patience=QUICK))
    with pytest.raises(lmc.BackendError, match=r"gen 'a' failed after 9 attempts: the answer is of the model 'other', not of 'm'") as raised:
        lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0)
    assert "all servers behind a URL have to run one model" in str(raised.value)


@pytest.mark.parametrize("make, given, run", [
    (lmc.OpenAI, {"temperature": 0}, "temperature"), (lmc.Anthropic, {"max_tokens": 9}, "max_new_tokens"), (lmc.LiteLLM, {"seed": 1}, "seed"),
], ids=["openai", "anthropic", "litellm"])
def test_sampling_parameters_of_a_backend_are_refused(make, given, run):
    with pytest.raises(lmc.ParameterError, match=rf"{make.__name__}\({next(iter(given))}=…\): sampling parameters belong to .* fn\.run\({run}=…\)"):
        make("m", api_key="k", **given)
