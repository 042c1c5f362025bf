"""Prompt caches of an API: what is held back until the first of its kind is answered, and what that saves; never a wait in a circle."""

from __future__ import annotations

import asyncio
import threading
from itertools import takewhile

import pytest

import lmc
from lmc.backend.api.cache_warmup import BLOCK, CacheWarmup
from tests.api.conftest import QUICK
from tests.api.http import Answer, Body, Planted, Server
from tests.api.openai_server import OpenAIModel
from tests.api.programs import LONG, agent, siblings
from tests.api.text_model import TextModel
from tests.conformance.harness import differences, run

pytestmark = pytest.mark.api


class Caching(OpenAIModel):
    """OpenAI's prompt cache: what was read when a request arrives costs less, from 1,024 tokens on, by 128 of them."""

    def __init__(self, model: TextModel, **options) -> None:
        super().__init__(model, **options)
        self._read: set[str] = set()  # beginnings
        self._cached: dict[int, int] = {}
        self.until = lambda: True
        self.plant = lambda n: Planted("delay", seconds=60, until=lambda: self.until())

    def arrives(self, n: int, path: str, body: Body) -> Planted | None:
        known = takewhile(self._read.__contains__, self._beginnings(body))
        self._cached[id(body)] = max(map(len, known), default=0)
        return self.plant(n)  # a delay: until others have arrived

    def _beginnings(self, body: Body) -> list[str]:
        prompt = self._written(body)
        return [prompt[:n] for n in range(1024, len(prompt) + 1, 128)]

    def handle(self, path: str, body: Body) -> Answer:
        answer = super().handle(path, body)
        self._read |= {*self._beginnings(body)}
        cached = {"prompt_tokens_details": {"cached_tokens": self._cached.pop(id(body))}}
        for part in (answer.body, *(answer.events or ())):
            if part.get("usage"):
                part["usage"] |= cached
        return answer


@pytest.fixture
def caching(opened):
    def make(model: TextModel, *, stand_in=None, **options) -> tuple[lmc.OpenAI, Server, Caching]:
        stand_in = Caching(model, **(stand_in or {}))
        server = opened(Server(stand_in.handle, plant=stand_in.arrives))
        return opened(lmc.OpenAI("m", base_url=f"{server.url}/v1", **{"server": "openai", "patience": QUICK, **options})), server, stand_in

    return make


def saved(backend) -> int:
    return backend.spent().usage.cached_tokens


@pytest.mark.parametrize("call", (siblings.run, lmc.compile(siblings)), ids=("interpreted", "compiled"))
def test_siblings_find_cached_what_the_first_of_them_has_read(caching, call):
    backend, server, stand_in = caching(TextModel())
    stand_in.until = lambda: backend.server_info()["held"] == 5
    state = call(text=LONG, backend=backend, temperature=0)
    assert backend.server_info()["held"] == 5 and len(server.seen) == 6 == state.usage.calls
    assert saved(backend) >= 5 * 6144 and state.usage.cached_tokens == saved(backend)
    assert [s.body.get("stream", False) for s in server.seen] == [True] + [False] * 5, "the others follow its first words"
    plain, others, stand_in = caching(TextModel(), wait_for_cache=False)
    stand_in.until = lambda: len(others.seen) == 6
    assert call(text=LONG, backend=plain, temperature=0).ret_value == state.ret_value
    assert saved(plain) == 0 and "held" not in plain.server_info()


def billed(backend) -> float:
    """Return the cost of a backend's prompts, in tokens of input: those found cached cost a tenth."""
    usage = backend.spent().usage
    return usage.prompt_tokens - 0.9 * usage.cached_tokens


def least(asked: list[str]) -> float:
    """The least that these prompts can cost, in the best order: each finds the longest beginning that another one before it has in common with it."""
    cost, read = 0.0, set[str]()
    for prompt in sorted(asked):  # so those that begin alike follow each other
        cached = max((n for n in range(1024, len(prompt) + 1, 128) if prompt[:n] in read), default=0)
        read |= {prompt[:n] for n in range(1024, len(prompt) + 1, 128)}
        cost += len(prompt) - 0.9 * cached
    return cost


@pytest.mark.parametrize(
    "program",
    (lambda **k: siblings.run(text=LONG, **k), lambda **k: lmc.compile(siblings)(text=LONG, **k), agent.run, lmc.compile(agent)),
    ids=("siblings", "compiled siblings", "agent", "compiled agent"),
)
def test_input_costs_a_third_of_what_it_does_without_a_cache_and_2_percent_more_than_the_least(caching, program):
    backend, server, stand_in = caching(TextModel(lambda prompt: "Done."))
    program(backend=backend, temperature=0)
    asked = [stand_in._written(seen.body) for seen in server.seen]
    assert 3 * billed(backend) < sum(map(len, asked)) and billed(backend) <= 1.02 * least(asked)
    assert len({seen.body["prompt_cache_key"] for seen in server.seen}) == 1, "all go where the beginning is"


def test_dollars_before_a_run_know_what_is_found_cached(caching):
    from lmc import dollars

    @lmc.function
    def report(s):
        s += lmc.system(LONG)
        forks = s.fork(3)
        for view, f in zip(("short", "long", "odd"), forks):
            f += lmc.user(f"The {view} view?") + lmc.assistant(lmc.gen("view", max_tokens=40))
        s += lmc.user("All: " + "".join(f["view"] for f in forks)) + lmc.assistant(lmc.gen("sum", max_tokens=40))
        return s["sum"]

    prices = lmc.Prices(2.0, 8.0, cached=0.2)
    backend, _, _ = caching(TextModel(lambda prompt: "Four words are it."), prices=prices)
    siblings.run(text="warm up the count of tokens " * 50, backend=backend, temperature=0)
    program, before = lmc.compile(report, backend=backend), backend.spent().usage
    foreseen = dollars.before(program.planner.planned(program.graph(), program.target).graph, backend, {})
    program(temperature=0)
    now = backend.spent().usage
    cached = now.cached_tokens - before.cached_tokens
    assert cached > 3 * 6000
    assert foreseen.prompts == pytest.approx(((now.prompt_tokens - before.prompt_tokens - cached) * 2.0 + cached * 0.2) / 1e6, rel=0.1)


def test_what_is_known_is_not_waited_for(caching):
    backend, _, stand_in = caching(TextModel())
    stand_in.until = lambda: backend.server_info()["held"] == 7
    fast = lmc.compile(siblings)
    fast.batch([{"text": LONG, "size": 1}] * 8, backend=backend)
    assert backend.server_info()["held"] == 7
    fast.batch([{"text": LONG, "size": 3}] * 8, backend=backend)
    assert backend.server_info()["held"] == 7


def test_short_prompts_and_other_servers_are_not_held(caching, openai):
    backend, server, _ = caching(TextModel())
    siblings(text="short", backend=backend)
    assert backend.server_info()["held"] == 0 and not any(s.body.get("stream") for s in server.seen)
    compatible, _ = openai(TextModel())
    assert "held" not in compatible.server_info()


def test_a_longer_beginning_is_waited_for_anew(caching):
    @lmc.function
    def nested(s):
        s += lmc.system(LONG)
        inner = []
        for i, f in enumerate(s.fork(2)):
            f += lmc.user(f"{i} " + "More that some share. " * 300)
            for k, g in enumerate(f.fork(3)):
                g += lmc.user(f"{k}") + lmc.assistant(lmc.gen("a", max_tokens=4))
                inner.append(g)
        return [g["a"] for g in inner]  # none is read before all are asked, whatever is asked ahead

    backend, server, stand_in = caching(TextModel())
    stand_in.until = lambda: backend.server_info()["held"] == 5
    state = lmc.compile(nested)(backend=backend, temperature=0)
    assert backend.server_info()["held"] == 5 and len(server.seen) == 6
    assert saved(backend) >= 1 * 6144 + 4 * 12288, "one reads the beginning of all, two that of their kind"
    assert state.ret_value == nested(backend=backend, temperature=0).ret_value


@pytest.mark.parametrize("kind", ("status", "reset", "half-stream", "garbage"))
def test_when_the_first_fails_another_is_it(caching, kind):
    backend, server, stand_in = caching(TextModel(), retries=0, patience=None)
    stand_in.plant = lambda n: Planted(kind, 400) if n < 2 else Planted("delay", seconds=0.02)
    group: list[object] = []

    @lmc.function
    def each(s):
        s += lmc.system(LONG)
        for i, f in enumerate(s.fork(5)):
            f += lmc.user(f"{i}") + lmc.assistant(lmc.gen("a", max_tokens=4))
            group.append(f)

    each(backend=backend, temperature=0)
    failed = [f for f in group if f.error() is not None]
    assert len(failed) == (1 if kind == "half-stream" else 2), "a stream that broke off had begun: the others are not asked as streams"
    assert all(isinstance(f.error(), lmc.BackendError) for f in failed) and len(server.seen) == 5
    assert saved(backend) >= (0 if kind == "half-stream" else 2 * 6144)


def test_a_first_that_is_given_up_holds_nobody(caching):
    backend, _, stand_in = caching(TextModel())
    stand_in.plant = lambda n: Planted("delay", seconds=60 if n == 0 else 0.01)
    arrived = threading.Event()
    stand_in.plant, planted = (lambda n: (arrived.set(), planted(n))[1]), stand_in.plant
    state = lmc.compile(siblings).stream(LONG, size=1, backend=backend)
    assert arrived.wait(30)
    others = lmc.compile(siblings).stream(LONG, size=3, backend=backend, temperature=0)
    del state
    assert len(others.ret_value) == 3


def test_one_request_at_a_time_ends_too(caching):
    backend, server, _ = caching(TextModel(), concurrency=1)
    states = lmc.compile(siblings).batch([{"text": LONG + str(i % 2)} for i in range(4)], backend=backend, temperature=0)
    assert len({str(s.ret_value) for s in states}) == 2 and len(server.seen) == 24


def test_a_model_that_does_not_stream_is_asked_without(caching):
    backend, server, _ = caching(TextModel(), stand_in={"refuses": ("stream",)})
    assert len(siblings(text=LONG, backend=backend, temperature=0).ret_value) == 6
    assert sum(bool(s.body.get("stream")) for s in server.seen) == 1 and saved(backend) >= 5 * 6144


def test_effects_and_streams_keep_their_order(caching):
    said: list[str] = []

    @lmc.function
    def program(s):
        s += lmc.system(LONG)
        forks = s.fork(4)
        for i, f in enumerate(forks):
            f += lmc.user(f"{i}") + lmc.assistant(lmc.gen("a", max_tokens=4))
        for f in forks:
            said.append(f["a"])
            s += lmc.user(f["a"])
        s += lmc.assistant(lmc.gen("end", max_tokens=9))

    model = TextModel()
    backend, _, _ = caching(model)
    expected = run(program.run, {}, lambda: tuple(said), {"backend": model.mock(backend.chat_template), "temperature": 0})
    for call in (program.run, lmc.compile(program)):
        said.clear()
        seen = run(call, {}, lambda: tuple(said), {"backend": backend, "temperature": 0})
        seen.metas = expected.metas
        assert seen == expected, differences(seen, expected)


async def test_a_first_that_is_stuck_holds_nobody_for_long(monkeypatch):
    """The one behind it goes after a while; when that one is answered, those who wait go too, and nobody waits any more."""
    monkeypatch.setattr("lmc.backend.api.cache_warmup._LONGEST", 0.05)
    warmup, went = CacheWarmup(), asyncio.Event()

    async def one(prompt: str) -> None:
        async with warmup.turn(prompt) as turn:
            turn.begun()

    async with warmup.turn("a" * BLOCK * 3):
        await one("a" * BLOCK * 2)  # after a while
        assert warmup.held == 1
        monkeypatch.setattr("lmc.backend.api.cache_warmup._LONGEST", 60.0)
        await one("a" * BLOCK * 2 + "b" * BLOCK)
        assert warmup.held == 1, "what the other brought is known"
        longer = asyncio.create_task(one("a" * BLOCK * 3))
        longer.add_done_callback(lambda task: went.set())
        await asyncio.sleep(0)
        assert not went.is_set(), "what is the stuck one's alone is still waited for"
    await asyncio.wait_for(went.wait(), 30)
    assert warmup.held == 2 and not warmup._ahead


async def test_nothing_is_left_of_what_was_held():
    """Requests in any order, of beginnings within each other, some of which fail: all get their turn, and none stays ahead."""
    warmup = CacheWarmup()
    ended: list[int] = []

    async def one(i: int) -> None:
        prompt = "".join("abc"[(i * 7 + k) % (k + 1) % 3] * BLOCK for k in range(i % 4)) + str(i)
        async with warmup.turn(prompt) as turn:
            await asyncio.sleep(0)
            if i % 5:
                turn.begun()
            await asyncio.sleep(0)
            ended.append(i)
            if i % 3 == 0:
                raise RuntimeError

    tasks = [asyncio.create_task(one(i)) for i in range(60)]
    tasks[13].cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert len(ended) >= 59 and not warmup._ahead
