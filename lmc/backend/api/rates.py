"""Rates: when a request may be sent, so that a server's limits are used fully without being hit; and how many may be in
flight.

Servers count in token buckets: `limit` of something, refilled evenly, from which each request takes what it costs. The
headers of an answer report the rest when its request was counted, so the present rest is known before a request is
refused:

    left now = left then + rate × (now − then) − what was sent since then

The number in flight adapts (like TCP's congestion window): for a server with unknown limits, it begins with a few and
grows by one per answer; once headers report the limits, those decide; a refusal (429 and similar) halves it, and
answers make it grow again, by one per round.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from lmc.backend.api.exchange import Fault
from lmc.config import log

_ON_ITS_WAY = 0.25  # seconds until a server has counted a request, at most
_BELIEVED = 0.1  # share of a reported rest above the known one that is believed
_LONGEST = 900.0  # seconds that a request waits for its place in a server's limits
_SMALLEST = 1e-9  # per second
_TICK = 0.001  # seconds below which no timer is used
_OVERLOADED = (429, 503, 529)


class Full(Fault):
    """A limit, of requests a day or a month, that is used up: the request was not sent."""

    transient = False  # type: ignore[assignment]


class Bucket:
    """One limit, as far as known: `left` at the time `at`, of `limit`, `rate` more each second."""

    def __init__(self) -> None:
        self.limit, self.rate, self._left, self._at = 0.0, 0.0, 0.0, 0.0
        self.sent = 0.0  # costs so far

    def left(self, now: float) -> float:
        self._left, self._at = min(self.limit, self._left + self.rate * max(now - self._at, 0.0)), max(now, self._at)
        return self._left

    def wait(self, cost: float, now: float) -> float:
        """Return the seconds until a request of that cost may go; one above the limit goes when the bucket is full."""
        return max(min(cost, self.limit) - self.left(now), 0.0) / max(self.rate, _SMALLEST)

    def take(self, cost: float) -> float:
        """Record that a request goes; return its position in the sum of costs sent."""
        self.sent += cost
        self._left -= min(cost, self.limit)
        return self.sent

    def told(self, limit: float, remaining: float, rate: float, place: float, then: float, now: float) -> None:
        """Record the report in the answer to the request at `place`, sent at `then`. Requests are not counted in
        sending order, so one answer may report too much: lower values are believed at once, higher ones gradually."""
        said = min(limit, remaining + rate * max(now - then - _ON_ITS_WAY, 0.0)) - (self.sent - place)
        known = self.left(now) if self.limit else said
        self.limit, self.rate, self._at = limit, rate, now
        self._left = said if said < known else known + _BELIEVED * (said - known)


class Ticket(NamedTuple):
    """A sent request: its time, and its position in each bucket."""

    then: float
    places: Mapping[str, float]


class ConcurrencyLimit:
    """A bounded number of concurrent requests. Batches take turns; of a batch, the run that began first goes first, so that
    runs end, and find their prompts in the server's cache, before others begin.

    most   most that may ever be in flight
    begin  most until the limits are known; None: `most`
    """

    def __init__(self, most: int, begin: int | None = None) -> None:
        self._most = most
        self._window = float(min(most, begin or most))
        self._probing = begin is not None  # the server's limits are still unknown
        self._inside = 0
        self._waiting: dict[Hashable, list[tuple[int, int, asyncio.Future[None]]]] = {}  # of each batch, a heap
        self._came = count()
        self.freed: Callable[[], object] | None = None  # called once when there are free places

    @property
    def window(self) -> int:
        """Return how many may be in flight now."""
        return int(self._window)

    @asynccontextmanager
    async def turn(self, batch: Hashable, run: int) -> AsyncGenerator[None]:
        """Make a request of a batch's run within the limit."""
        if self._inside < self.window and not self._waiting:
            self._inside += 1
        else:
            future = asyncio.get_running_loop().create_future()
            heappush(self._waiting.setdefault(batch, []), (run, next(self._came), future))
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():  # cancelled: the next waiter gets its place
                    self.leave()
                raise
        try:
            yield
        finally:
            self.leave()

    @property
    def free(self) -> int:
        """Return how many more may enter at once; waiters go first."""
        return 0 if self._waiting else self.window - self._inside

    def enter(self, count: int) -> None:
        """Enter with so many of the `free` places; each is to be left."""
        self._inside += count

    def leave(self) -> None:
        self._inside -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._inside < self.window:
            batch, waiting = next(iter(self._waiting.items()))
            future = heappop(waiting)[-1]
            del self._waiting[batch]
            if waiting:
                self._waiting[batch] = waiting  # behind the others
            if not future.done():
                self._inside += 1
                future.set_result(None)
        if self.freed is not None and self.free > 0:
            freed, self.freed = self.freed, None
            freed()

    def grow(self) -> None:
        """Grow the window: a request was answered."""
        if self._window < self._most:
            self._window = min(self._most, self._window + (1.0 if self._probing else 1.0 / self._window))
            self._admit()

    def open(self) -> None:
        """Open the window: the server's limits are known, and decide from now on."""
        if self._probing:
            self._probing, self._window = False, float(self._most)
            self._admit()

    def shrink(self) -> None:
        """Shrink the window: a request was refused because there are too many."""
        self._probing, self._window = False, max(1.0, self._window / 2)


class Rates:
    """Known limits of a server. Belongs to one event loop, whose clock it uses.

    most, begin  of the room
    """

    def __init__(self, name: str, most: int, begin: int | None = None) -> None:
        self.room = ConcurrencyLimit(most, begin)
        self._name = name
        self._buckets: dict[str, Bucket] = {}
        self._turn = asyncio.Lock()  # the first waiter waits for its cost; the others wait for it
        self._paused_until = self._shrunk_at = 0.0
        self._words = 0.25  # tokens of prompts for each character of them, as answers report it
        self._written = 1.0  # tokens of answers per allowed one

    @property
    def said(self) -> dict[str, Any]:
        """Return its part of `server_info`."""
        limits = {name: {"limit": bucket.limit, "a_minute": bucket.rate * 60} for name, bucket in self._buckets.items()}
        return {"at_once": self.room.window, **({"limits": limits} if limits else {})}

    @property
    def quiet(self) -> bool:
        """Return whether only the room can hold a request back."""
        return not self._buckets and asyncio.get_running_loop().time() >= self._paused_until

    async def admit(self, body: Mapping[str, Any]) -> Ticket:
        """Wait until a request with this body may be sent. Raises Full if that takes too long."""
        clock = asyncio.get_running_loop().time
        if self.quiet:
            return Ticket(clock(), {})
        async with self._turn:
            cost = self._cost(body) if self._buckets else {}
            while (wait := max(full := self._full(cost, clock()), self._paused_until - clock())) > 0:
                if full > _LONGEST:
                    raise Full(f"it was not sent: by the limits in its headers, the server takes such a request in {full:.0f} s")
                await asyncio.sleep(max(wait, _TICK))
                cost = self._cost(body) if self._buckets else {}
            places = {name: bucket.take(cost.get(name, 0.0)) for name, bucket in self._buckets.items()}
            return Ticket(clock(), places)

    def _full(self, cost: Mapping[str, float], now: float) -> float:
        """Return the seconds until the limits have room for a request."""
        return max([bucket.wait(cost.get(name, 0.0), now) for name, bucket in self._buckets.items()], default=0.0)

    def pause(self, seconds: float) -> None:
        """Pause: the server wants no request before."""
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + seconds)

    def heard(self, ticket: Ticket, headers: Mapping[str, str], longest: float) -> None:
        """Read an answer's headers, of a request or a refusal. `longest`: most seconds that a server may request a
        pause for."""
        if not headers:
            return
        now = asyncio.get_running_loop().time()
        for name, (limit, remaining, reset) in told(headers).items():
            if limit is None:  # only tells whether there is room
                if remaining <= 0 and reset:
                    self.pause(min(reset, longest))
                continue
            if name not in self._buckets:
                log("backend", f"{self._name}: the server's limit is {limit:g} {name}, {remaining:g} of them left")
            bucket = self._buckets.setdefault(name, Bucket())
            used = limit - remaining
            rate = used / reset if reset and used > 0 else limit / 60
            bucket.told(limit, remaining, max(rate, _SMALLEST), ticket.places.get(name, 0.0), ticket.then, now)
            self.room.open()

    def answered(self, body: Mapping[str, Any], prompt: int, completion: int) -> None:
        """Record that a request was answered, and cost that many tokens."""
        self.room.grow()
        if self._buckets and prompt > 0:
            self._words += 0.1 * (min(prompt / max(_characters(body), 1), 2.0) - self._words)
            self._written += 0.1 * (min(completion / _limit(body), 1.0) - self._written)

    def refused(self, ticket: Ticket, status: int | None) -> None:
        """Record a refused request. Those in flight when the window shrank tell nothing new."""
        if status in _OVERLOADED and ticket.then >= self._shrunk_at:
            self._shrunk_at = asyncio.get_running_loop().time()
            self.room.shrink()

    def _cost(self, body: Mapping[str, Any]) -> dict[str, float]:
        prompt, limit = _characters(body) * self._words, _limit(body)
        return {"requests": 1.0, "tokens": prompt + limit, "input-tokens": prompt, "output-tokens": limit * self._written}


# -- cost of a body
# -----------------------------------------------------------------------------------------------------

_IMAGE = 3200  # characters that an image or a page counts as


def _characters(body: Mapping[str, Any]) -> int:
    """Return the characters of a prompt, and of its further input."""
    return sum(_size(body[key]) for key in ("messages", "input", "system", "prompt", "tools", "instructions") if key in body)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if not value.startswith("data:") else _IMAGE
    if isinstance(value, Mapping):
        return _IMAGE if value.get("type") == "base64" else sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 1


def _limit(body: Mapping[str, Any]) -> int:
    """Return the most tokens of the answers."""
    each = next((body[key] for key in ("max_completion_tokens", "max_tokens", "max_output_tokens") if body.get(key)), 1)
    return max(int(each) * int(body.get("n") or 1), 1)


# -- headers -----------------------------------------------------------------------------------------------------------------

_OPENAI = ("requests", "tokens")
_ANTHROPIC = ("requests", "input-tokens", "output-tokens", "tokens")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def told(headers: Mapping[str, str]) -> dict[str, tuple[float | None, float, float | None]]:
    """Return (limit, its rest, seconds until it is full again) for each limited quantity, from headers in lower case.

    Anthropic's `tokens` are the binding one of the others, if it gives those; its times are by its own clock, and
    ignored: its limits are per minute.
    """
    found: dict[str, tuple[float | None, float, float | None]] = {}
    for name in _OPENAI:
        remaining = _number(headers.get(f"x-ratelimit-remaining-{name}"))
        if remaining is not None:
            found[name] = (_number(headers.get(f"x-ratelimit-limit-{name}")), remaining, seconds(headers.get(f"x-ratelimit-reset-{name}", "")))
    for name in _ANTHROPIC:
        limit, remaining = (_number(headers.get(f"anthropic-ratelimit-{name}-{what}")) for what in ("limit", "remaining"))
        if limit is not None and remaining is not None and not (name == "tokens" and "input-tokens" in found):
            found[name] = (limit, remaining, None)
    return {name: (limit or None, max(remaining, 0.0), reset) for name, (limit, remaining, reset) in found.items()}


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"-?\d+(\.\d+)?", text.strip()) else None


def seconds(text: str) -> float | None:
    """Parse a duration as servers write it: `1.5`, `20ms`, `6m0s`; None if invalid."""
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h|d))+", text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server requests to wait, from headers in lower case; of a date, by the server's own
    clock if it gives that."""
    ms = headers.get("retry-after-ms", "")
    if re.fullmatch(r"\d+(\.\d+)?", ms):
        return float(ms) / 1000
    said = headers.get("retry-after", "")
    if (date := date_of(said)) is None:
        return seconds(said)
    return max((date - (date_of(headers.get("date", "")) or datetime.now(UTC))).total_seconds(), 0.0)


def date_of(text: str) -> datetime | None:
    """Return the time of a header, None if it is none."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the second: an offset of too many digits
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
