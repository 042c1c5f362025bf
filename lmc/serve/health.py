"""Health endpoints: /health/live of the process, /health/ready (and /health) of the engine, for routers and
supervisors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import lmc
from lmc.backend.base import HEALTHY, Backend, Health, SaysHealth
from lmc.serve.gate import EndpointCall, EndpointReply, Entrance

_PATIENCE = 5.0  # seconds for a backend to report its health
_EVERY = 1.0  # seconds between checks of an engine that may have ended


class HealthApi:
    """The endpoints. 503 while requests would not be answered: a failed or stuck pass, an ended engine, a stopping
    server."""

    def __init__(self, backend: Backend, entrance: Entrance) -> None:
        self._backend, self._entrance = backend, entrance

    async def live(self, call: EndpointCall) -> EndpointReply:
        return EndpointReply({"status": "ok", "version": lmc.__version__})

    async def ready(self, call: EndpointCall) -> EndpointReply:
        if self._entrance.closed.is_set():
            return EndpointReply({"status": "draining", "reason": "the server is shutting down"}, 503)
        found = await self._found()
        said = {"status": found.state, "version": lmc.__version__} | ({"reason": found.reason} if found.reason else {})
        return EndpointReply(said, 200 if found.ready else 503)

    async def watch(self, broken: Callable[[Health], None]) -> None:
        """Report a permanently broken engine, and return."""
        while True:
            found = await self._found()
            if found.state in ("ended", "stuck"):
                return broken(found)
            await asyncio.sleep(_EVERY)

    async def _found(self) -> Health:
        if not isinstance(self._backend, SaysHealth):
            return HEALTHY
        try:
            async with asyncio.timeout(_PATIENCE):
                return await asyncio.get_running_loop().run_in_executor(None, self._backend.health)
        except TimeoutError:
            return Health("stuck", f"the engine does not report its health within {_PATIENCE:g} s how it is")
