"""A fleet: several servers of one model. placement.py chooses the server of a request; one that cannot be reached, or
takes no requests, is skipped for a while, and its requests move. Servers come and go while requests run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from lmc.backend.api.exchange import Fault, HttpRequest, Malformed, Received, Wire
from lmc.backend.api.redaction import addressed, redacted
from lmc.backend.placement import Placement, PlacementTarget
from lmc.backend.usage import Usage
from lmc.config import log

_GONE = (502, 503)  # status from proxies for unavailable servers
_ITS_OWN = (401, 403, 404, 405, 408, 429)  # status below 500 that says nothing about the request: another server may take it


@dataclass(slots=True, eq=False, kw_only=True)
class FleetServer(PlacementTarget):
    """One server of a fleet.

    url       without user and password, which only its wire knows
    fleet     that it belongs to
    prompted  prompt tokens that it reported, and those that it had cached
    """

    url: str
    wire: Wire
    fleet: Fleet
    prompted: int = 0
    cached: int = 0

    def used(self, usage: Usage) -> None:
        """Record its reported usage for a request."""
        self.prompted += usage.prompt_tokens
        self.cached += usage.cached_tokens

    def failed(self, fault: Fault) -> None:
        self.fleet.failed(self, fault)

    @property
    def said(self) -> dict[str, Any]:
        """Return its part of `server_info`."""
        prompt, cached = self.prompted, self.cached
        return {
            "url": self.url, "requests": self.requests, "running": self.running, "prompt_tokens": prompt, "cached_tokens": cached,
            "hit_rate": cached / prompt if prompt else 0.0, "sent_before": self.known, "failures": self.failures, "down": self.fell > 0,
        }  # fmt: skip


class Fleet(Placement[FleetServer]):
    """A wire over servers. Belongs to one event loop, except `add` and `said`.

    make     returns the wire to a URL
    timeout  seconds after which the client cancels a request
    """

    def __init__(self, urls: Sequence[str], make: Callable[[str], Wire], timeout: float = inf) -> None:
        super().__init__()
        self._make, self._timeout = make, timeout
        self._bits = 0
        for url in urls:
            self.add(url)

    @property
    def servers(self) -> tuple[FleetServer, ...]:
        """Return those that get requests."""
        return self.targets

    @property
    def said(self) -> list[dict[str, Any]]:
        return [server.said for server in self.servers]

    @property
    def secrets(self) -> list[str]:
        return [secret for server in self._targets for secret in server.wire.secrets]

    def add(self, url: str) -> None:
        """Send requests there, too, from now on."""
        self._targets = [*self._targets, FleetServer(url=addressed(url), wire=self._make(url), fleet=self, bit=self._bits)]
        self._bits += 1

    async def retire(self, server: FleetServer) -> None:
        """Send it no more requests; its connections are closed when its last answer has arrived."""
        self.drop(server)
        await self.end(server)

    async def end(self, server: FleetServer) -> None:
        """End a request to it: close it if it was the last of one that was dropped."""
        if server.dropped and not server.running and server in self._targets:
            self._targets = [s for s in self._targets if s is not server]
            await server.wire.close()

    async def post(self, request: HttpRequest) -> Received:
        async with self._sent(request) as server:
            try:
                received = await server.wire.post(request)
            except Fault as fault:
                self.failed(server, fault)
                raise
            self.answered(server, request)
        return Received(received.body, received.headers, server)

    async def stream(self, request: HttpRequest) -> AsyncIterator[Received]:
        """Yield the answer's pieces. Of a fault behind the first one their reader tells the server: the answer may have been complete."""
        came = False
        async with self._sent(request) as server:
            try:
                async for received in server.wire.stream(request):
                    came = True
                    self.answered(server, request)
                    yield Received(received.body, received.headers, server)
            except Fault as fault:
                if not came:
                    self.failed(server, fault)
                raise

    async def close(self) -> None:
        await asyncio.gather(*[server.wire.close() for server in self._targets])

    @asynccontextmanager
    async def _sent(self, request: HttpRequest) -> AsyncIterator[FleetServer]:
        server, cost = self.take(request)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            yield server
        except asyncio.CancelledError:
            if clock() - began >= 0.99 * self._timeout:  # the client's time began a little before
                self.failed(server, Fault(f"no answer within {self._timeout:g} s"))
            raise
        finally:
            self.leave(server, cost)
            await self.end(server)

    def failed(self, server: FleetServer, fault: Fault) -> None:
        """Handle a failed request; if that was the server's fault, the fault's `elsewhere` tells whether others
        exist."""
        if isinstance(fault, Malformed):
            how, (fault.elsewhere, news) = "answers what is no answer", self.set_aside(server)
        elif fault.status is None or fault.status in _GONE:
            how, (fault.elsewhere, news) = "cannot be reached", self.unreachable(server)
        elif fault.status >= 500 or fault.status in _ITS_OWN:
            how, (fault.elsewhere, news) = f"answers with HTTP {fault.status}", self.set_aside(server, fault.retry_after or 0.0)
        else:
            return
        if news:
            others = "others get its requests" if fault.elsewhere else "no other server is left"
            log("backend", f"{server.url} {how} ({redacted(fault.message, server.wire.secrets)}); {others}")
