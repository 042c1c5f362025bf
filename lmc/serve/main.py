"""Runs the application: one socket, until a signal ends it; requests that run are answered first."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmc.backend.base import Backend
from lmc.errors import ParameterError
from lmc.frontend.interpreter import Function
from lmc.serve.app import create_app
from lmc.serve.gate import Entrance
from lmc.serve.settings import Settings

_PATIENCE = 30  # seconds for a request line and headers, and for the next request of a connection


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises ParameterError where that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise ParameterError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port") from None
    return made


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    backend: Backend,
    settings: Settings,
    programs: Sequence[Function],
    where: socket.socket,
    *,
    drain: float,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serves until SIGINT or SIGTERM, then lets running requests finish, for at most `drain` seconds.

    Calls `ready(url)` when requests are accepted. Does not close the backend.
    """
    app = create_app(backend, settings, programs)
    with _signals_end_it():
        Server(app, drain=drain, ready=lambda: ready(_url(where))).run(sockets=[where])


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more when all is answered; it has done its work then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Server(uvicorn.Server):
    """uvicorn's, which says when it is ready, and turns away at its end who has not sent a whole request."""

    def __init__(self, app: Starlette, *, drain: float = 60.0, ready: Callable[[], None] = lambda: None) -> None:
        """`app`: of `create_app`."""
        config = uvicorn.Config(
            app,
            http=Connection,
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_PATIENCE,
            timeout_graceful_shutdown=max(1, round(drain)),
            backlog=2048,
        )
        super().__init__(config)
        self._entrance: Entrance = app.state.entrance
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._entrance.close()
        await super().shutdown(sockets)


class Connection(H11Protocol):
    """uvicorn's, which does not wait for ever for a request line and headers; the gate does not for a body."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        self._await_head()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._late is None and self.conn.their_state is h11.IDLE:
            self._late = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _url(where: socket.socket) -> str:
    host, port = where.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
