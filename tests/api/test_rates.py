"""Rate limits: programs run at a service's limits and not into them. The services keep the published rules, in virtual time."""

from __future__ import annotations

import asyncio
import heapq
from itertools import pairwise

import pytest

import lmc
from lmc.backend.api import rates
from lmc.backend.api.client import Client, Patience
from lmc.backend.api.exchange import Fault, HttpRequest, Received
from lmc.backend.api.rates import ConcurrencyLimit, told
from lmc.backend.api.spending import AttemptUsage, UsageLedger
from lmc.backend.api.streams import UNWATCHED, Pieces
from lmc.backend.api.wire import refused

pytestmark = pytest.mark.api


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock goes on to what comes next whenever there is nothing else to do."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            while self._scheduled and self._scheduled[0]._cancelled:
                heapq.heappop(self._scheduled)._scheduled = False
            if self._scheduled:
                self.now = max(self.now, self._scheduled[0]._when)
        super()._run_once()


def virtually(scenario):
    loop = VirtualTime()
    try:
        return loop.run_until_complete(scenario)
    finally:
        loop.close()


class Refill:
    """A token bucket that is refilled evenly, full at the start."""

    def __init__(self, limit: float, seconds: float = 60.0) -> None:
        self.limit, self.rate, self.left, self.at = limit, limit / seconds, limit, 0.0

    def at_time(self, now: float) -> float:
        self.left, self.at = min(self.limit, self.left + self.rate * (now - self.at)), now
        return self.left

    def full_in(self) -> float:
        return (self.limit - self.left) / self.rate


class Service:
    """A wire whose other end has limits. Tokens of prompts are a quarter of their characters.

    latency   seconds until a request is counted
    answers   seconds for an answer
    headers   "openai", "anthropic" or "none"
    others    share of the limits that others use
    """

    secrets = ()

    def __init__(
        self, limits: dict[str, float], *, headers: str = "openai", latency: float = 0.05, answers: float = 2.0, written: int = 20, others: float = 0.0
    ) -> None:
        self.buckets = {name: Refill(limit) for name, limit in limits.items()}
        self.headers, self.latency, self.answers, self.written, self.others = headers, latency, answers, written, others
        self.answered, self.refused, self.running, self.most = 0, 0, 0, 0
        self.last_other = 0.0

    def _cost(self, body) -> dict[str, float]:
        prompt = sum(len(m["content"]) for m in body["messages"]) / 4
        return {"requests": 1, "tokens": prompt + body["max_tokens"], "input-tokens": prompt, "output-tokens": body["max_tokens"]}

    async def post(self, request: HttpRequest) -> Received:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.latency)
            now = asyncio.get_running_loop().time()
            for bucket in self.buckets.values():
                bucket.at_time(now)
                bucket.left -= self.others * bucket.limit / 60 * (now - self.last_other)
            self.last_other = now
            cost = self._cost(request.body)
            if any(bucket.left < cost[name] for name, bucket in self.buckets.items()):
                self.refused += 1
                raise Fault("rate limit reached", status=429, retry_after=None if self.headers == "none" else 1.0, headers=self._said())
            for name, bucket in self.buckets.items():
                bucket.left -= cost[name]
            headers = self._said()
            await asyncio.sleep(self.answers)
            for name in self.buckets.keys() & {"output-tokens"}:  # adjusted to what was written
                self.buckets[name].left += cost[name] - self.written
            self.answered += 1
            return Received({"usage": {"prompt_tokens": int(cost["input-tokens"]), "completion_tokens": self.written}}, headers)
        finally:
            self.running -= 1

    def _said(self) -> dict[str, str]:
        if self.headers == "none":
            return {}
        found: dict[str, str] = {}
        for name, bucket in self.buckets.items():
            if self.headers == "openai":
                found |= {f"x-ratelimit-limit-{name}": f"{bucket.limit:g}", f"x-ratelimit-remaining-{name}": f"{max(int(bucket.left), 0)}"}
                found[f"x-ratelimit-reset-{name}"] = f"{bucket.full_in():.3f}s"
            else:
                found |= {f"anthropic-ratelimit-{name}-limit": f"{bucket.limit:g}", f"anthropic-ratelimit-{name}-remaining": f"{max(int(bucket.left), 0)}"}
        return found

    async def close(self) -> None: ...


def usage(body):
    found = body["usage"]
    return lmc.backend.usage.Usage(found["prompt_tokens"], found["completion_tokens"], 0, 0, 1, 0)


async def programs(service: Service, n: int, turns: int, *, concurrency: int = 64, begin: int | None = 8, characters: int = 4000, limit: int = 100) -> float:
    """n programs of so many requests, each behind the one before; the seconds that they took."""
    client = Client(service, name="service", ledger=UsageLedger(None), concurrency=concurrency, patience=Patience(50, 600.0), begin=begin)  # type: ignore[arg-type]
    body = {"messages": [{"role": "user", "content": "x" * characters}], "max_tokens": limit}

    async def one() -> None:
        for _ in range(turns):
            await client.call(lambda: HttpRequest("/", body), usage, lambda body: None, AttemptUsage())

    await asyncio.gather(*[one() for _ in range(n)])
    return asyncio.get_running_loop().time()


SERVICES = {
    # OpenAI's rules: requests and tokens by the minute, prompts and what may be written counted at the start
    "openai, requests": ({"limits": {"requests": 500, "tokens": 10_000_000}}, lambda n: (n - 500) / 500 * 60),
    "openai, tokens": ({"limits": {"requests": 10_000, "tokens": 400_000}}, lambda n: (n * 1100 - 400_000) / 400_000 * 60),
    "openai, few tokens": ({"limits": {"requests": 500, "tokens": 30_000}}, lambda n: (n * 1100 - 30_000) / 30_000 * 60),
    # Anthropic's: requests, tokens of prompts and tokens written, the last put right at the end of an answer
    "anthropic, requests": (
        {"limits": {"requests": 300, "input-tokens": 10_000_000, "output-tokens": 1_000_000}, "headers": "anthropic"},
        lambda n: (n - 300) / 300 * 60,
    ),
    "anthropic, prompts": (
        {"limits": {"requests": 4000, "input-tokens": 200_000, "output-tokens": 80_000}, "headers": "anthropic"},
        lambda n: (n * 1000 - 200_000) / 200_000 * 60,
    ),
}


@pytest.mark.parametrize("which", SERVICES)
def test_a_thousand_programs_run_at_the_limit_without_a_refusal(which):
    options, ideal = SERVICES[which]
    service = Service(**options)
    took = virtually(programs(service, 1000, 2))
    assert service.answered == 2000
    assert service.refused == 0
    assert took <= 1.1 * ideal(2000) + 10


def test_many_at_once_are_no_storm_either():
    service = Service({"requests": 500, "tokens": 2_000_000}, answers=10.0)
    took = virtually(programs(service, 1000, 2, concurrency=1000))
    assert service.answered == 2000 and service.refused == 0 and took <= 1.1 * 1500 / 500 * 60 + 30


def test_others_use_the_limit_too():
    """A third of it is used by others, of whom nothing is known but what the headers say."""
    service = Service({"requests": 500, "tokens": 10_000_000}, others=1 / 3)
    took = virtually(programs(service, 1000, 2))
    assert service.answered == 2000 and service.refused <= 0.02 * 2000
    assert took <= 1.15 * (2000 - 500) / (500 * 2 / 3) * 60


def test_without_headers_refusals_halve_what_is_on_its_way():
    """A service that says nothing of its limits and refuses: answers are not fewer than it could give, refusals few."""
    service = Service({"requests": 600}, headers="none")
    took = virtually(programs(service, 1000, 2))
    assert service.answered == 2000 and service.refused <= 0.2 * 2000
    assert took <= 2 * (2000 - 600) / 600 * 60


def test_a_server_without_limits_is_asked_by_all_at_once():
    service = Service({}, headers="none")
    took = virtually(programs(service, 128, 1, begin=None))
    assert service.most == 64 and took == pytest.approx(2 * 2.05)
    service = Service({}, headers="none")
    virtually(programs(service, 128, 1, begin=8))
    assert service.most > 32, "more and more, as nothing is refused"


def test_a_request_that_costs_more_than_there_can_be_goes_when_all_is_there():
    async def scenario() -> None:
        found = rates.Rates("x", 4)
        body = {"messages": [{"content": "x" * 40_000}], "max_tokens": 1}
        first = await found.admit(body)
        found.heard(first, {"x-ratelimit-limit-tokens": "600", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m0s"}, 600)
        await found.admit(body)
        assert asyncio.get_running_loop().time() == pytest.approx(60, abs=1)
        assert found.said["limits"]["tokens"] == {"limit": 600, "a_minute": pytest.approx(600)}

    virtually(scenario())


def test_a_limit_of_a_day_that_is_used_up_is_not_waited_for():
    async def scenario() -> None:
        found = rates.Rates("x", 4)
        first = await found.admit({})
        found.heard(first, {"x-ratelimit-limit-requests": "50", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "24h"}, 600)
        with pytest.raises(rates.Full, match="it was not sent: by the limits in its headers, the server takes such a request in 1728 s"):
            await found.admit({})
        assert asyncio.get_running_loop().time() == 0

    virtually(scenario())


def test_a_server_that_asks_for_a_long_pause_is_given_it():
    class Busy:
        secrets = ()
        asked = list[float]()

        async def post(self, request):
            self.asked.append(asyncio.get_running_loop().time())
            if len(self.asked) == 1:
                raise refused(503, {"retry-after": "1800"}, b"")
            return Received({"usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    async def scenario() -> None:
        client = Client(Busy(), name="busy", ledger=UsageLedger(None), concurrency=4, patience=Patience(3, timeout=3600.0))  # type: ignore[arg-type]
        await client.call(lambda: HttpRequest("/", {}), usage, lambda body: None, AttemptUsage())
        assert Busy.asked == [0, 1800]

    virtually(scenario())


def test_pauses_within_a_stream_are_waited_for_until_it_says_how_it_ended():
    class Slow:
        secrets = ()

        async def stream(self, request):
            for text, reason in (("one ", ""), ("two", ""), ("", "stop")):
                await asyncio.sleep(60)
                yield Received({"choices": [{"delta": {"content": text}, "finish_reason": reason}]})
            await asyncio.sleep(3600)

    async def scenario() -> None:
        client = Client(Slow(), name="slow", ledger=UsageLedger(None), concurrency=1, patience=Patience(0))  # type: ignore[arg-type]
        body = await client.stream(lambda: HttpRequest("/", {}), lambda body: None, lambda: Pieces(True, UNWATCHED, lambda body: body), AttemptUsage())
        assert body["choices"][0]["message"]["content"] == "one two"
        assert asyncio.get_running_loop().time() < 200

    virtually(scenario())


@pytest.mark.parametrize("said", ("0", "Mon, 01 Jan 2001 00:00:00 GMT"))
def test_a_server_that_names_no_delay_is_not_asked_at_once(said):
    class Busy:
        secrets = ()
        asked = list[float]()

        async def post(self, request):
            self.asked.append(asyncio.get_running_loop().time())
            raise refused(429, {"retry-after": said}, b"")

    async def scenario() -> None:
        client = Client(Busy(), name="busy", ledger=UsageLedger(None), concurrency=4, patience=Patience(3, first_delay=1.0))  # type: ignore[arg-type]
        with pytest.raises(lmc.BackendError, match="after 4 attempts"):
            await client.call(lambda: HttpRequest("/", {}), usage, lambda body: None, AttemptUsage())
        gaps = [after - before for before, after in pairwise(Busy.asked)]
        assert [0.5 * 2**n <= gap <= 2**n for n, gap in enumerate(gaps)] == [True] * 3

    virtually(scenario())


def test_the_window():
    room = ConcurrencyLimit(100, 8)
    for _ in range(8):
        room.grow()
    assert room.window == 16, "twice as many a round"
    room.shrink()
    for _ in range(9):
        room.grow()
    assert room.window == 9, "then one more a round"
    room.open()
    assert room.window == 9, "what a refusal said holds"
    for _ in range(20):
        room.shrink()
    assert room.window == 1
    fresh = ConcurrencyLimit(100, 8)
    fresh.open()
    assert fresh.window == 100


def test_what_headers_say():
    openai = {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-reset-requests": "120ms",
        "x-ratelimit-remaining-tokens": "-5",
    }
    assert told(openai) == {"requests": (500, 499, 0.12), "tokens": (None, 0, None)}
    anthropic = {
        f"anthropic-ratelimit-{name}-{what}": value
        for name in ("requests", "input-tokens", "tokens")
        for what, value in (("limit", "50"), ("remaining", "3"), ("reset", "2026-01-01T00:00:00Z"))
    }
    assert told(anthropic) == {"requests": (50, 3, None), "input-tokens": (50, 3, None)}
    assert told({"x-ratelimit-remaining-requests": "many"}) == {}
