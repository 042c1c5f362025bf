"""Several servers of one model: where requests go, what happens when servers fail, come and go, and what each reports."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import warnings
from types import SimpleNamespace

import pytest

import lmc
from lmc.backend import placement
from lmc.backend.api.client import Patience
from lmc.backend.api.exchange import Fault, HttpRequest, Received
from lmc.backend.api.fleet import Fleet
from lmc.backend.api.prefixes import BLOCK, Prefixes, keys_of
from tests.api.conftest import QUICK
from tests.api.http import Answer, Planted, Server
from tests.api.raw_server import TEXT, RawServer, answered, whole
from tests.api.sglang_server import WORDS, SGLangModel, VLLMModel, serve
from tests.api.text_model import TextModel
from tests.waiting import until

pytestmark = pytest.mark.api

# -- placing, without servers ----------------------------------------------------------------------------------------------


class Held:
    """A wire whose answers come when the test says so."""

    secrets = ()

    def __init__(self, url: str) -> None:
        self.url, self.closed = url, False
        self.waiting: list[asyncio.Future[Received]] = []

    async def post(self, request: HttpRequest) -> Received:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return await future

    async def close(self) -> None:
        self.closed = True


def request(begins: int, length: int = 640, limit: int = 16) -> HttpRequest:
    """A prompt that is like others of the same `begins` for all but its last block."""
    ids = [begins] * (length - BLOCK) + [id(object()) % 1000 + i for i in range(BLOCK)]
    return HttpRequest("/generate", {}, keys=keys_of(ids), size=length, limit=limit)


class Scenario:
    def __init__(self, servers: int) -> None:
        self.wires: dict[str, Held] = {}
        self.fleet = Fleet([f"s{i}" for i in range(servers)], self._made)

    def _made(self, url: str) -> Held:
        self.wires[url] = Held(url)
        return self.wires[url]

    async def send(self, request: HttpRequest) -> str:
        """The server it went to."""
        before = {url: len(wire.waiting) for url, wire in self.wires.items()}
        self.tasks = [*getattr(self, "tasks", []), asyncio.create_task(self.fleet.post(request))]
        await asyncio.sleep(0)
        (url,) = [url for url, wire in self.wires.items() if len(wire.waiting) > before.get(url, 0)]
        return url

    async def end(self, *, fault: Fault | None = None, url: str | None = None) -> list[object]:
        """Ends all that is running (on a server), with answers or a fault."""
        for wire in self.wires.values():
            if url in (None, wire.url):
                for future in wire.waiting:
                    if not future.done():
                        future.set_result(Received({})) if fault is None else future.set_exception(fault)
        done = [task for task in self.tasks if url is None] or self.tasks
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [task.exception() for task in done if task.done()]


async def test_what_begins_alike_goes_to_one_server():
    s = Scenario(3)
    first = {begins: await s.send(request(begins)) for begins in (1, 2, 3)}
    assert sorted(first.values()) == ["s0", "s1", "s2"]
    await s.end()
    for begins in (3, 1, 2, 2, 1, 3):
        assert await s.send(request(begins)) == first[begins]
        await s.end()
    assert [server.running for server in s.fleet.servers] == [0, 0, 0] == [server.load for server in s.fleet.servers]


async def test_a_busy_server_shares_what_begins_alike():
    s = Scenario(2)
    went = [await s.send(request(1, 640, limit=64)) for _ in range(20)]
    assert went[:3] == ["s0"] * 3, "its prefix is cheaper to wait for than to compute again"
    assert 7 <= went.count("s1") <= 10, "but not for all"
    await s.end()
    s = Scenario(2)
    assert {await s.send(request(1, 64_000, limit=64)) for _ in range(20)} == {"s0"}, "a long one is waited for"


async def test_a_server_that_fails_is_left_alone_and_tried_again(monkeypatch):
    now = 100.0
    monkeypatch.setattr(placement, "time", SimpleNamespace(monotonic=lambda: now))
    s = Scenario(2)
    assert await s.send(request(1)) == "s0" and await s.send(request(1)) == "s0"
    (fault, again) = await s.end(fault=Fault("gone"))
    assert isinstance(fault, Fault) and fault.elsewhere and again is fault
    assert s.fleet.said[0]["down"] and s.fleet.said[0]["failures"] == 2
    assert s.fleet.unread(request(1)) == 640, "what it had cached is gone"
    assert {await s.send(request(1)) for _ in range(3)} == {"s1"}
    now += 1.1
    assert [await s.send(request(2)) for _ in range(3)] == ["s0", "s1", "s1"], "one request tries it"
    await s.end(fault=Fault("gone"), url="s0")
    now += 1.1
    assert await s.send(request(3)) == "s1", "it is left alone for longer"
    now += 1.0
    assert await s.send(request(4)) == "s0"
    await s.end()
    assert not s.fleet.said[0]["down"] and await s.send(request(5)) == "s0"


async def test_an_answer_that_was_on_its_way_does_not_hide_that_a_server_is_gone():
    s = Scenario(2)
    assert [await s.send(request(1)) for _ in range(2)] == ["s0", "s0"]
    early, late = s.wires["s0"].waiting
    early.set_exception(Fault("gone"))
    await asyncio.sleep(0)
    late.set_result(Received({}))
    await asyncio.sleep(0.0)
    await asyncio.sleep(0.0)
    assert await s.send(request(1)) == "s0", "it has answered"
    s.wires["s0"].waiting[-1].set_exception(Fault("gone"))
    await asyncio.sleep(0.0)
    await asyncio.sleep(0.0)
    assert await s.send(request(1)) == "s1"


async def test_when_all_are_down_all_are_tried():
    s = Scenario(2)
    await s.send(request(1))
    (fault,) = await s.end(fault=Fault("gone"))
    assert fault.elsewhere  # type: ignore[union-attr]
    await s.send(request(1))
    fault = (await s.end(fault=Fault("gone")))[-1]
    assert not fault.elsewhere, "the client waits before it tries again"  # type: ignore[union-attr]
    assert await s.send(request(1)) in ("s0", "s1")


async def test_a_refusal_is_no_failure_of_the_server():
    s = Scenario(2)
    await s.send(request(1))
    await s.end(fault=Fault("too long", status=400))
    assert s.fleet.said[0]["failures"] == 0 and await s.send(request(1)) == "s0"


@pytest.mark.parametrize("fault", (None, Fault("gone")), ids=("answered", "failed"))
async def test_a_server_is_closed_when_its_last_request_has_ended(fault):
    s = Scenario(2)
    await s.send(request(1))
    server = s.fleet.servers[0]
    await s.fleet.retire(server)
    assert not s.wires["s0"].closed and await s.send(request(1)) == "s1"
    await s.end(fault=fault)
    assert s.wires["s0"].closed and [server.url for server in s.fleet.servers] == ["s1"]
    s.fleet.add("s2")
    assert await s.send(request(9)) == "s2", "which has had the fewest"


def test_prefixes_forget_the_oldest():
    prefixes = Prefixes(capacity=4)
    one, other = (keys_of([i] * BLOCK * 3) for i in (1, 2))
    prefixes.send(one, 0)
    prefixes.answered(one, 0)
    assert prefixes.read(one, 0) == 3 and prefixes.read(one, 1) == 0 == prefixes.read(other, 0)
    prefixes.send(other, 0)
    assert len(prefixes) == 4 and prefixes.sent(one, 0) == 0 and prefixes.sent(other, 0) == 3


def test_keys_are_of_beginnings():
    assert keys_of([1] * 130)[:2] == keys_of([1] * 128) and len(keys_of([1] * 130)) == 2
    assert keys_of([2] + [1] * 127)[1] != keys_of([1] * 128)[1], "a block is known by all before it"
    assert len(keys_of("x" * 1000)) == 3 and keys_of("é\ud800" * 128) != keys_of("x" * 256)


# -- with servers --------------------------------------------------------------------------------------------------------------


@lmc.function
def turns(s, q):
    s += f"All about {q}. " * 60
    s += "First:" + lmc.gen("a", max_tokens=8)
    s += "\nThen:" + lmc.gen("b", max_tokens=8)
    return s["a"], s["b"]


ITEMS = [{"q": "abcdefgh"[i % 8] * 3} for i in range(64)]


@pytest.fixture(params=("sglang", "vllm"))
def several(request, opened):
    """A backend over stand-ins of one kind."""
    stand_in, backend = {"sglang": (SGLangModel, lmc.SGLang), "vllm": (VLLMModel, lmc.VLLM)}[request.param]

    def start(plant=None) -> Server:
        return opened(serve(stand_in(TextModel(), caches=True), **({"plant": plant} if plant else {})))

    def connect(servers: list[Server], patience: Patience = QUICK):
        return opened(backend([s.url for s in servers], tokenizer=WORDS, chat_template=lmc.get_chat_template("chatml"), patience=patience))

    return start, connect


def expected(items):
    return [s.ret_value for s in lmc.compile(turns).batch(items, backend=TextModel().mock(lmc.get_chat_template("chatml")), temperature=0)]


def test_each_server_reports_its_hits(several):
    start, connect = several
    backend = connect([start() for _ in range(4)])
    fast = lmc.compile(turns)
    for _ in range(3):
        assert [s.ret_value for s in fast.batch(ITEMS, backend=backend, temperature=0)] == expected(ITEMS)
    said = backend.server_info()["servers"]
    assert len(said) == 4 and all(server["requests"] > 0 and server["running"] == 0 for server in said)
    spent = backend.spent().usage
    assert sum(server["prompt_tokens"] for server in said) == spent.prompt_tokens
    assert sum(server["cached_tokens"] for server in said) == spent.cached_tokens
    assert sum(server["sent_before"] for server in said) > 0.8 * spent.prompt_tokens
    if isinstance(backend, lmc.SGLang):  # vLLM says it of single requests only
        assert spent.cached_tokens > 0.8 * spent.prompt_tokens and all(0 < server["hit_rate"] < 1 for server in said)


@pytest.mark.parametrize("servers", (2, 3, 4))
def test_servers_that_are_killed_lose_nothing(several, servers):
    start, connect = several
    killed = threading.Event()
    living: list[Server] = []

    def plant(n, path, body):
        if n == 2 and not killed.is_set():
            killed.set()
            victims = [s for s in living[1:] if s is not dying]  # all but the first, and the one that is speaking
            for victim in victims:
                victim.close()
            return Planted("kill")
        return None

    living += [start() for _ in range(servers)]
    dying = living[-1]
    dying.plant = plant
    backend = connect(living)
    fast = lmc.compile(turns)
    for _ in range(3):
        assert [s.ret_value for s in fast.batch(ITEMS, backend=backend, temperature=0)] == expected(ITEMS)
    assert killed.is_set()
    said = backend.server_info()["servers"]
    assert said[-1]["failures"] > 0 and said[0]["failures"] == 0


FAULTS = {
    "500": Planted("status", 500),
    "overloaded": Planted("status", 429, {"retry-after": "30"}),
    "no such path": Planted("status", 404),
    "another key": Planted("status", 401),
    "shape": Planted("shape"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_only_fails_is_left_to_itself(several, monkeypatch, fault):
    """Its requests go to the others at once: it does not hold them up, and gets no more for being idle."""
    start, connect = several
    servers = [start(), start(), start()]
    backend = connect(servers)
    fast = lmc.compile(turns)
    fast.batch(ITEMS[:1], backend=backend, temperature=0)  # whether ids are taken is known
    monkeypatch.setattr(placement, "time", SimpleNamespace(monotonic=lambda: 1e6))
    servers[0].plant = lambda n, path, body: FAULTS[fault]
    before = len(servers[0].seen)
    assert [s.ret_value for s in fast.batch(ITEMS, backend=backend, temperature=0)] == expected(ITEMS)
    first, *others = backend.server_info()["servers"]
    assert first["down"] and first["failures"] > 0 and not any(server["failures"] for server in others)
    assert len(servers[0].seen) - before < len(ITEMS), "what was on its way when the first of them failed"
    assert backend.server_info()["at_once"] == 1024, "the others take as much as before"


def test_a_server_that_hangs_is_left_alone(several, monkeypatch):
    start, connect = several
    servers = [start(), start()]
    backend = connect(servers, Patience(3, 2.0, 0.001, 0.01))
    fast = lmc.compile(turns)
    fast.batch(ITEMS[:1], backend=backend, temperature=0)
    monkeypatch.setattr(placement, "time", SimpleNamespace(monotonic=lambda: 1e6))
    hanging, _other = sorted(servers, key=lambda server: -len(server.seen))
    hanging.plant = lambda n, path, body: Planted("delay", seconds=60)
    state = turns.run(q=ITEMS[0]["q"], backend=backend, temperature=0, stream=True)  # a stream of one, and no list
    assert "".join(state.text_iter("a")), "four attempts there would all be late"
    assert sum(server["failures"] for server in backend.server_info()["servers"]) >= 1


def test_where_all_servers_fail_that_is_an_error(several):
    start, connect = several
    servers = [start(), start()]
    backend = connect(servers)
    fast = lmc.compile(turns)
    fast.batch(ITEMS[:1], backend=backend, temperature=0)
    for server in servers:
        server.plant = lambda n, path, body: Planted("status", 404)
    with pytest.raises(lmc.BackendError, match=r"test_fleet.py:\d+: .*HTTP 404: planted 404 \(POST /(generate|v1/completions)\)"):
        fast(q="x", backend=backend, temperature=0).text()


def runs_another_model(server: Server) -> None:
    server.get = {"/model_info": {"model_path": "other"}, "/v1/models": {"data": [{"id": "other", "owned_by": "vllm"}]}}
    server.restart()
    until(lambda: not server.open_connections)


def test_a_server_that_comes_back_with_another_model_is_not_asked(several):
    start, connect = several
    one, two = start(), start()
    fast = lmc.compile(turns)
    alone, both = connect([one]), connect([one, two])
    for backend in (alone, both):
        fast.batch(ITEMS, backend=backend, temperature=0)
    two.restart()
    until(lambda: not two.open_connections)
    assert [s.ret_value for s in fast.batch(ITEMS, backend=both, temperature=0)] == expected(ITEMS), "it is the same server"
    runs_another_model(one)
    before = len(one.seen)
    with pytest.raises(lmc.BackendError, match=rf"test_fleet.py:\d+: .*the server at {one.url} runs other now, not "):
        fast(q="x", backend=alone, temperature=0).text()
    assert [s.ret_value for s in fast.batch(ITEMS, backend=both, temperature=0)] == expected(ITEMS)
    assert len(one.seen) == before


def test_a_check_of_the_model_that_stalls_costs_one_attempt(opened):
    """The next attempt makes a check of its own, also where attempts have less time than a check would."""

    async def reply(request, writer):
        if request.method == "POST":
            writer.write(whole(json.dumps(answered("sglang")).encode()) if request.number > 0 else b"")
            return request.number > 0  # the first connection breaks, so the server is asked again what it is
        if request.number == 1:
            await asyncio.Event().wait()
        writer.write(whole(b'{"model_path": "m"}'))
        return True

    @lmc.function
    def program(s):
        s += "x" + lmc.gen("a", max_tokens=8)

    server = opened(RawServer(reply))
    patience = Patience(retries=2, timeout=4.0, first_delay=0.001)
    backend = opened(lmc.SGLang(server.url, chat_template="chatml", router=False, patience=patience))
    assert program.run(backend=backend, temperature=0)["a"] == TEXT
    assert len(server.of("GET")) == 3


def test_servers_come_and_go_while_requests_run(several):
    start, connect = several
    one, two, three = (start() for _ in range(3))
    backend = connect([one, two])
    fast = lmc.compile(turns)
    requests = itertools.count(1)

    def changing(n, path, body):
        if next(requests) == 2:
            backend.add_server(three.url)
            backend.drop_server(one.url)

    one.plant = two.plant = changing
    assert [s.ret_value for s in fast.batch(ITEMS, backend=backend, temperature=0)] == expected(ITEMS)
    assert [server["url"] for server in backend.server_info()["servers"]] == [two.url, three.url]
    before = len(one.seen)
    assert [s.ret_value for s in fast.batch(ITEMS, backend=backend, temperature=0)] == expected(ITEMS)
    assert len(one.seen) == before
    assert [s.url for s in backend._fleet.servers] == [two.url, three.url]
    backend.drop_server(two.url)
    before = len(two.seen), len(three.seen)
    assert [s.ret_value for s in fast.batch(ITEMS, backend=backend, temperature=0)] == expected(ITEMS)
    assert len(two.seen) == before[0] and len(three.seen) > before[1]


def test_what_cannot_be_added_or_dropped_is_named(several, opened):
    start, connect = several
    one = start()
    backend = connect([one])
    with pytest.raises(lmc.ParameterError, match="is its last server"):
        backend.drop_server(one.url)
    with pytest.raises(lmc.ParameterError, match=r"has no server http://127.0.0.1:9; it has http"):
        backend.drop_server("http://127.0.0.1:9")
    with pytest.raises(lmc.ParameterError, match=r"already has the server http"):
        backend.add_server(one.url)
    with pytest.raises(lmc.BackendError, match=r"server at http://127.0.0.1:9"):
        backend.add_server("http://127.0.0.1:9")


def test_servers_of_other_models_are_refused_before_the_batch(opened):
    one, other = (opened(serve(SGLangModel(TextModel(), path=path))) for path in ("small/qwen-model", "other/model"))
    with pytest.raises(lmc.BackendError, match=r"different models: small/qwen-model at http.*, other/model at http"):
        lmc.SGLang([one.url, other.url])
    backend = opened(lmc.SGLang(one.url, tokenizer=WORDS))
    with pytest.raises(lmc.BackendError, match="runs other/model, not small/qwen-model"):
        backend.add_server(other.url)
    vllm = opened(serve(VLLMModel(TextModel())))
    with pytest.raises(lmc.BackendError, match=r"no SGLang server at .*HTTP 404"):
        backend.add_server(vllm.url)


def test_a_server_that_is_not_there_is_said_and_the_others_work(several):
    start, connect = several
    one, gone = start(), start()
    gone.close()
    with pytest.warns(UserWarning, match="the other servers get its requests until it answers"):
        backend = connect([gone, one])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [s.ret_value for s in lmc.compile(turns).batch(ITEMS, backend=backend, temperature=0)] == expected(ITEMS)
    one.close()
    with pytest.raises(lmc.BackendError, match=r"no .* server at"):
        connect([gone, one])


def test_flushing_reaches_all_servers_and_what_they_had_read_is_forgotten(several):
    start, connect = several
    servers = [start(), start()]
    backend = connect(servers)
    for server in servers:
        server.handle = lambda path, body, handle=server.handle: Answer({"success": True}) if path == backend.flush else handle(path, body)
    lmc.compile(turns).batch(ITEMS, backend=backend, temperature=0)
    prefixes, keys = backend._fleet.prefixes, keys_of(list(range(640)))
    prefixes.answered(keys, 0)
    assert lmc.flush_cache(backend) is True
    assert [sum(s.path == backend.flush for s in server.seen) for server in servers] == [1, 1]
    done = threading.Event()
    backend._loop.post(done.set)
    assert done.wait(60) and prefixes.read(keys, 0) == 0


def test_a_server_that_does_not_flush_its_cache_is_said(several):
    start, connect = several
    server = start()
    backend = connect([server])
    vllm = isinstance(backend, lmc.VLLM)
    busy = (
        (Answer({"success": False}), "still answering")
        if vllm
        else (Answer({"error": {"message": "requests are running"}}, 400), "HTTP 400: requests are running")
    )
    for answer, what in (busy, (Answer({"detail": "Not Found"}, 404), "VLLM_SERVER_DEV_MODE=1" if vllm else "HTTP 404: Not Found")):
        server.handle = lambda path, body, answer=answer: answer
        with pytest.raises(lmc.BackendError, match=f"{server.url} did not flush its cache: .*{what}"):
            backend.flush_cache()
    server.close()
    with pytest.raises(lmc.BackendError, match="no answer from"):
        backend.flush_cache()
