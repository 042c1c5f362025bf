"""A fleet: several servers of one model. A request goes where the longest beginning of it has been sent, unless that one is too busy.

What a server would have to do for a request is weighed in tokens of prefill:

    2 × what it has not been sent yet      computed here, and computed once more than needed
    + what its running requests still cost their own tokens of prompts, and twice those that they may generate

so work spreads as soon as waiting costs more than computing a prefix again. A server that cannot be reached is left alone for a while,
and its requests move; what it had cached is forgotten. Servers come and go while requests run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from lmc.backend.api.client import Fault, Received, Request, Wire
from lmc.backend.api.prefixes import BLOCK, Prefixes
from lmc.backend.api.redaction import redacted, without_userinfo
from lmc.backend.base import Usage
from lmc.config import log

_DOWN = 1.0  # seconds that a server is left alone after its first failure; doubles with each that follows
_LONGEST_DOWN = 30.0
_GONE = (502, 503)  # what proxies say of servers that are not there


@dataclass(slots=True, eq=False)
class Server:
    """One of them.

    url       without user and password, which only its wire knows
    bit       its place in the tables of prefixes
    load      tokens that its running requests still cost
    until     it is left alone until then, by time.monotonic()
    fell      failures to reach it in a row
    dropped   it gets no more requests
    usage     what it reported
    known     tokens of its prompts that it had been sent before
    """

    url: str
    wire: Wire
    bit: int
    running: int = 0
    load: int = 0
    requests: int = 0
    failures: int = 0
    until: float = 0.0
    fell: int = 0
    dropped: bool = False
    usage: Usage = field(default_factory=Usage)
    known: int = 0

    def used(self, usage: Usage) -> None:
        """What it reported for a request."""
        self.usage += usage

    @property
    def said(self) -> dict[str, Any]:
        """For `server_info`."""
        prompt, cached = self.usage.prompt_tokens, self.usage.cached_tokens
        return {
            "url": self.url, "requests": self.requests, "running": self.running, "prompt_tokens": prompt, "cached_tokens": cached,
            "hit_rate": cached / prompt if prompt else 0.0, "sent_before": self.known, "failures": self.failures, "down": self.fell > 0,
        }  # fmt: skip


class Prompted(Protocol):
    """What is about a prompt, as a Request is."""

    @property
    def keys(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def limit(self) -> int: ...


class Fleet:
    """A wire over servers. Belongs to one event loop, but for `add` and `said`. `make` gives the wire to a URL."""

    def __init__(self, urls: Sequence[str], make: Callable[[str], Wire], prefixes: Prefixes | None = None) -> None:
        self._make = make
        self.prefixes = prefixes or Prefixes()
        self._servers: list[Server] = []
        self._bits = 0
        for url in urls:
            self.add(url)

    @property
    def servers(self) -> tuple[Server, ...]:
        """Those that get requests."""
        return tuple([server for server in self._servers if not server.dropped])

    @property
    def said(self) -> list[dict[str, Any]]:
        return [server.said for server in self.servers]

    @property
    def secrets(self) -> list[str]:
        return [secret for server in self._servers for secret in server.wire.secrets]

    def add(self, url: str) -> None:
        """From now on requests go there, too."""
        self._servers = [*self._servers, Server(without_userinfo(url), self._make(url), self._bits)]
        self._bits += 1

    async def retire(self, server: Server) -> None:
        """No more requests go to it; its connections are closed when its last answer is there."""
        server.dropped = True
        self.prefixes.forget(server.bit)
        await self.end(server)

    async def end(self, server: Server) -> None:
        """A request to it is over: close it if it was the last of one that was dropped."""
        if server.dropped and not server.running and server in self._servers:
            self._servers = [s for s in self._servers if s is not server]
            await server.wire.close()

    async def post(self, request: Request) -> Received:
        with self._sent(request) as server:
            received = await server.wire.post(request)
            self.answered(server, request)
        await self.end(server)
        return Received(received.body, received.headers, server)

    async def stream(self, request: Request) -> AsyncIterator[Received]:
        with self._sent(request) as server:
            async for received in server.wire.stream(request):
                self.answered(server, request)
                yield Received(received.body, received.headers, server)
        await self.end(server)

    async def close(self) -> None:
        await asyncio.gather(*[server.wire.close() for server in self._servers])

    # -- placing

    def pick(self, request: Prompted) -> Server:
        """Where a request goes."""
        servers = self.servers
        if len(servers) == 1:
            return servers[0]
        now = time.monotonic()
        # one that was down is tried with one request; if none is up, all are
        up = [s for s in servers if not s.fell or (s.until <= now and not s.running)] or servers
        return min(up, key=lambda s: (2 * self._missing(s, request) + s.load, s.requests))

    def unread(self, request: Prompted) -> int:
        """Tokens of a prompt that the server which would get it now has not read yet, as far as is known here."""
        return request.size - BLOCK * self.prefixes.read(request.keys, self.pick(request).bit)

    def _missing(self, server: Server, request: Prompted) -> int:
        return request.size - BLOCK * self.prefixes.sent(request.keys, server.bit)

    @contextmanager
    def _sent(self, request: Request) -> Iterator[Server]:
        server, cost = self.take(request)
        try:
            yield server
        except Fault as fault:
            self.failed(server, fault)
            raise
        finally:
            self.leave(server, cost)

    def take(self, request: Prompted) -> tuple[Server, int]:
        """The server that a request goes to, and what it costs there until it is given to `leave`."""
        server = self.pick(request)
        missing = self._missing(server, request)
        cost = missing + 2 * request.limit
        server.running += 1
        server.requests += 1
        server.known += request.size - missing
        server.load += cost
        self.prefixes.send(request.keys, server.bit)
        return server, cost

    def leave(self, server: Server, cost: int) -> None:
        """A request is no longer on its way."""
        server.running -= 1
        server.load -= cost

    def answered(self, server: Server, request: Prompted) -> None:
        server.fell, server.until = 0, 0.0  # both, or a failure right behind an answer that was still on its way would not count
        self.prefixes.answered(request.keys, server.bit)

    def failed(self, server: Server, fault: Fault) -> None:
        """A request failed there; if the server could not be reached, `elsewhere` of the fault says whether others are there."""
        if fault.status is not None and fault.status not in _GONE:
            return
        server.failures += 1
        others = any(not s.fell for s in self.servers if s is not server)
        fault.elsewhere = others
        now = time.monotonic()
        if len(self.servers) > 1 and now >= server.until:  # once for all that were on their way to it
            server.fell += 1
            server.until = now + min(_DOWN * 2 ** (server.fell - 1), _LONGEST_DOWN)
            self.prefixes.forget(server.bit)
            log("backend", f"{server.url} cannot be reached ({redacted(fault.message, server.wire.secrets)}); {'others get its requests' if others else 'no other server is left'}")
