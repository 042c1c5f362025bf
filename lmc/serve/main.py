"""Runs the application: one socket, until a signal ends it; running requests are answered first."""

from __future__ import annotations

import asyncio
import faulthandler
import ipaddress
import json
import logging
import re
import signal
import socket
import ssl
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmc.backend.base import Backend, Health
from lmc.errors import ParameterError, SchemaWarning
from lmc.frontend.interpreter import Function
from lmc.serve.app import create_app
from lmc.serve.errors import ApiError
from lmc.serve.front import Front
from lmc.serve.gate import Entrance, new_id
from lmc.serve.settings import ServerSettings
from lmc.serve.supervisor import handling
from lmc.serve.workers import WorkerOptions

log = logging.getLogger("lmc.serve")

_LAST = 2  # seconds for the last 503s to be sent
_FROZEN = 30.0  # seconds without a turn of the event loop after which the log says what all threads do
_PATIENCE = 30  # seconds for a request line and headers, for the next request of a connection, and to read `_READ` bytes
_READ = 1 << 16  # bytes of an answer
_CLOSING = 256  # connections of clients that are still sending, and may read their answer before the connection is closed
_FILES = 10_240  # open files, of which each connection is one; macOS allows no more


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate with its chain and its private key, as PEM files."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Raise ParameterError for files that do not belong together."""
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ParameterError(f"TLS: {self.certificate} and {self.key} are not a certificate and its key: {error}") from None


def loopback_names(host: str) -> frozenset[str]:
    """Return the names by which clients on this machine reach a server that listens on loopback."""
    return frozenset({"localhost", "127.0.0.1", "::1", host.lower()})


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 picks a free one. Raises ParameterError if that is impossible."""
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
    """Return whether only this machine can reach a server on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    open_backend: Callable[[], Backend],
    settings: ServerSettings,
    programs: Sequence[Function],
    where: socket.socket,
    *,
    drain: float,
    ready: Callable[[str], None] = lambda url: None,
    until_broken: bool = False,
    tls: Tls | None = None,
    workers: WorkerOptions | None = None,
) -> Health | None:
    """Serve until SIGINT, SIGTERM, or SIGHUP (unless that is ignored, as by nohup), then let running requests finish, for at most `drain` seconds.

    The backend is opened once the server listens, which answers 503 until then, and closed at the end. Calls
    `ready(url)` when requests are accepted. `until_broken`: also ends by itself when the engine is permanently broken,
    and returns its health. Raises the errors of opening the backend.
    """
    entrance, opened, broken = Entrance(settings.max_requests), list[Backend](), list[Health]()

    def make() -> Starlette:
        opened.append(open_backend())
        return create_app(opened[0], settings, programs, workers=workers, entrance=entrance, broken=end if until_broken else None)

    def end(health: Health) -> None:
        broken.append(health)
        server.stop_at_once()

    _remember_no_warnings_about_schemas()
    _allow_many_files()
    front = Front(make, lambda: ready(_url(where, tls)), lambda: server.stop_at_once())
    server = DrainingServer(front, entrance, drain=drain, tls=tls)
    try:
        with _signals_end_it():
            server.run(sockets=[where])
        if front.error is not None:
            raise front.error
        return broken[0] if broken else None
    finally:
        faulthandler.cancel_dump_traceback_later()
        if not broken:  # a stuck engine does not close
            for backend in opened:
                backend.close()


def _remember_no_warnings_about_schemas() -> None:
    """Let Python keep no list of the warnings about schemas that it has shown: they quote what clients send."""
    warnings.filterwarnings("always", category=SchemaWarning)


def _allow_many_files() -> None:
    """Raise the limit of open files, and so of connections, as far as the system lets this process."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """Swallow the signal that ended uvicorn, which it raises again when all is answered."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handling(lambda *_: None, lambda *_: signal.raise_signal(signal.SIGTERM)):
        yield


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which on shutdown rejects incompletely received requests, and ends those not answered in time
    with a 503."""

    def __init__(self, app: ASGIApp, entrance: Entrance, *, drain: float = 60.0, tls: Tls | None = None) -> None:
        self._drain = max(1.0, drain)
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_PATIENCE,
            timeout_graceful_shutdown=round(self._drain) + _LAST,
            backlog=2048,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else str(tls.key),
        )
        super().__init__(config)
        self._entrance = entrance
        self._draining: asyncio.AbstractEventLoop | None = None

    def stop_at_once(self) -> None:
        """Stop at once: running requests will not be answered."""
        self._drain, self.should_exit = 0.0, True

    async def on_tick(self, counter: int) -> bool:
        if counter % 50 == 0:  # of 0.1 s
            _write_stacks_unless_called_again(_FROZEN)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end running requests with a 503 at a second, and everything at a third."""
        if self._draining is None or self._entrance.over.is_set():
            return super().handle_exit(sig, frame)
        self._draining.call_soon_threadsafe(self._entrance.over.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._draining = asyncio.get_running_loop()
        if (running := len(self.server_state.tasks)) and self._drain:
            log.warning("%d request%s running and may take %.0f s to end; Ctrl-C ends them now", running, " is" if running == 1 else "s are", self._drain)
        self._entrance.close(self._drain)
        _write_stacks_unless_called_again(self._drain + _FROZEN)  # there are no more ticks
        await super().shutdown(sockets)


def _write_stacks_unless_called_again(seconds: float) -> None:
    """Let the system write where each thread is, after that time: while a program's call holds the interpreter's lock, nothing else can."""
    if threading.current_thread() is threading.main_thread():
        faulthandler.dump_traceback_later(seconds, repeat=True, file=sys.__stderr__ or sys.stderr)


_ADDRESS = re.compile(rb"(?i:https?)://([^/?#@]+)((?:[/?].*)?)")


class _Messages(h11.Connection):
    """h11's connection, which refuses a request whose end a proxy in front of the server may see elsewhere (request smuggling),
    takes whole addresses as targets (`GET http://host/path`), as proxies send them (RFC 9112, 3.2.2), and passes over empty lines
    before a request (2.2), which clients write behind a body."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE and (waiting := self.trailing_data[0])[:1] in (b"\r", b"\n"):
            self._receive_buffer.maybe_extract_at_most(len(waiting) - len(waiting.lstrip(b"\r\n")))
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("Transfer-Encoding beside Content-Length, or in HTTP/1.0")
            if whole := _ADDRESS.fullmatch(event.target):
                host, path = whole.groups()  # of this host, whatever the header says
                headers = [(b"host", host), *((name, value) for name, value in event.headers if name != b"host")]
                target = path if path.startswith(b"/") else b"/" + path
                return h11.Request(method=event.method, headers=headers, target=target, http_version=event.http_version)
        return event


class _Transport:
    """A connection's transport, which its connection closes."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport, self.close = transport, close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(H11Protocol):
    """uvicorn's connection, which limits the wait for a request line and headers, for the rest of a body that was
    answered already, and for a client to read an answer that is complete; the gate limits that for a body before its
    answer, and for a stream."""

    _late: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _ends = False  # closed without waiting for more of the client
    _closing: ClassVar[dict[Connection, None]] = {}  # in the order in which they were answered

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.conn = _Messages(h11.SERVER)
        self.app = self._answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._made = transport
        super().connection_made(_Transport(transport, self._close))  # pyright: ignore[reportArgumentType]
        self._await_head()

    def _close(self) -> None:
        """Close the connection, but let a client that is still sending read its answer, until it ends the connection, `_PATIENCE` is over or `_CLOSING`
        others wait for the same: for what was sent and not read, the system would reset the connection, and the answer would be lost."""
        if self._ends or self.conn.their_state not in (h11.SEND_BODY, h11.ERROR) or not self._made.can_write_eof():
            return self._made.close()
        self._ends = True
        if self.cycle is not None and not self.cycle.response_complete:  # it is not answered any more, and is not to write behind the end
            self.cycle.disconnected, self.cycle.waiting_for_100_continue = True, False
            self.cycle.message_event.set()
        self._made.write_eof()
        self._made.resume_reading()
        self._wait()
        self._closing[self] = None
        if len(self._closing) > _CLOSING:
            oldest = next(iter(self._closing))
            del self._closing[oldest]  # it is lost in a later turn of the loop, and more may come in this one
            oldest._made.abort()

    def shutdown(self) -> None:
        self._ends = True
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self.conn.our_state is h11.CLOSED or self.conn.their_state is h11.ERROR:
            return  # it is answered, and has nothing more to say
        self._await_head()
        answered = self._answered_early
        super().data_received(data)
        if self._answered_early:
            self._wait()
        elif not self._ends and (answered or self.conn.their_state is not h11.IDLE):
            self._stop_waiting()

    def _should_upgrade(self) -> bool:
        """No upgrade is offered, and an offer of a client's is ignored (RFC 9110, 7.8): uvicorn would log two lines of advice for each."""
        return False

    def on_response_complete(self) -> None:
        self._await_reader()
        super().on_response_complete()
        if self._answered_early:
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP in the form of all other errors, and say why it is not."""
        fault = sys.exception()  # h11's, which uvicorn is handling
        status = fault.error_status_hint if isinstance(fault, h11.RemoteProtocolError) else 400
        why = "its line and headers are too long" if status == 431 else str(fault or msg).partition(": bytearray(")[0]
        body = json.dumps(ApiError(status, f"this is no request of HTTP/1.1: {why}").body).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close", "x-request-id": new_id()}
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # nothing is answered yet
            for event in (
                h11.Response(status_code=status, headers=list(headers.items()), reason=HTTPStatus(status).phrase.encode()),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._await_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing.pop(self, None)
        self._stop_waiting()
        if self._reading is not None:
            self._reading.cancel()
        self.app, self.transport = self.config.loaded_app, self._made  # not this object: it is freed at once
        super().connection_lost(exc)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application. An answer that it gave up because the client does not read ends the connection."""
        cycle = self.cycle
        try:
            await self.config.loaded_app(scope, receive, send)
        finally:
            if self.flow.write_paused and not cycle.response_complete:
                cycle.disconnected = True
                self.transport.abort()

    def _await_reader(self) -> None:
        """End the connection unless the client goes on reading what was written: `_PATIENCE` seconds for each `_READ` bytes.

        With TLS what is encrypted is not counted, and asyncio's limit for the end of a connection (30 s) does the same.
        """
        if self._reading is not None:
            self._reading.cancel()
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.timeout_keep_alive, self._look_at_reader, unread) if unread else None

    def _look_at_reader(self, before: int) -> None:
        streaming = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        unread = self.transport.get_write_buffer_size()
        if unread and not streaming and before - unread < _READ:
            self.transport.abort()
        else:
            self._await_reader()

    @property
    def _answered_early(self) -> bool:
        """Return whether the last request is answered, and its body has not arrived completely."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _await_head(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self._wait()

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.timeout_keep_alive, self._made.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _url(where: socket.socket, tls: Tls | None = None) -> str:
    host, port = where.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
