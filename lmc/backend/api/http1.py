"""HTTP/1.1 over asyncio, the subset that clients of inference servers need: JSON posts on kept-alive connections, and
event streams.

A connection carries one request at a time; idle ones are reused, newest first, so that the others time out on the
server's side. httpx spends about a millisecond of CPU time per request; this spends a twentieth.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from lmc.backend.api.exchange import MOST_BYTES, Endless, Fault, HttpRequest, Received
from lmc.backend.api.network import CONNECT, Access, broken, tls
from lmc.backend.api.redaction import addressed, authorization, secrets_of_headers, secrets_of_url
from lmc.backend.api.sse import events
from lmc.backend.api.wire import content, parsed, refused

_LONGEST_HEAD = 1 << 16
_ALIVE = [  # a dead machine closes no connection: after 30 s without keepalive replies it is broken
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *[
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
        if hasattr(socket, name)
    ],
]

OnPiece = Callable[[bytes], None]


class HttpWire:
    """A server's URL and the headers of every request.

    check   awaited when the server is reached anew after it has ended all connections: it may be another one now.
            Raises Fault
    opened  connections so far
    """

    def __init__(self, url: str, access: Access, check: Callable[[], Awaitable[None]] | None = None) -> None:
        at = urlsplit(url)
        assert at.hostname is not None
        self._secure = at.scheme == "https"
        self._host, self._port, self._path = at.hostname, at.port or (443 if self._secure else 80), at.path.rstrip("/")
        self._tls = tls(access.verify) if self._secure else None
        self._url = addressed(url)
        lines = {
            "host": at.netloc.rpartition("@")[2],
            "content-type": "application/json",
            "accept": "*/*",
            "accept-encoding": "identity",
            "user-agent": "lmc",
            **access.headers,
            **authorization(url),
        }
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._opening = self.opened = 0
        self._check = check
        self._ended = False  # the server has ended a connection since it was checked
        self._checking: asyncio.Task[None] | None = None
        self.secrets = (*secrets_of_url(url), *secrets_of_headers(access.headers))

    async def post(self, request: HttpRequest) -> Received:
        pieces: list[bytes] = []
        status, headers = await self._exchange(request, pieces.append)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if status >= 300:
            raise refused(status, headers, data, self._path + request.path)
        return Received(parsed(data, self.secrets), headers)

    async def stream(self, request: HttpRequest) -> AsyncIterator[Received]:
        """Yield the events of the answer, as they arrive. Raises Fault if it ends prematurely."""
        queue: asyncio.Queue[Any] = asyncio.Queue()  # its status and headers, the pieces of its body, and None
        exchange = asyncio.ensure_future(self._exchange(request, queue.put_nowait, lambda *head: queue.put_nowait(head)))
        exchange.add_done_callback(lambda _: queue.put_nowait(None))

        async def pieces() -> AsyncIterator[bytes]:
            while (piece := await queue.get()) is not None:
                yield piece
            await exchange  # raises what has broken it

        body = pieces()
        try:
            status, headers = await queue.get() or await exchange
            if status >= 300:
                raise refused(status, headers, b"".join([piece async for piece in body]), self._path + request.path)
            async for received in events(body, headers, self.secrets):
                yield received
            async for _ in body:  # behind its `[DONE]`, so that the connection can be used again
                pass
        finally:
            exchange.cancel()

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()

    async def _exchange(self, request: HttpRequest, piece: OnPiece, begun: Callable[[int, dict[str, str]], None] | None = None) -> tuple[int, dict[str, str]]:
        body = content(request)
        more = "".join([f"{name}: {value}\r\n" for name, value in request.headers.items()])
        head = f"POST {self._path}{request.path} HTTP/1.1\r\n{self._head}{more}content-length: {len(body)}\r\n\r\n"
        connection = await self._connection()
        self._busy.add(connection)
        try:
            return await connection.send(head.encode("latin-1") + body, piece, begun)
        except BaseException as error:
            self._ended |= isinstance(error, Fault)
            connection.abort()  # the rest belongs to an abandoned request
            raise
        finally:
            self._busy.discard(connection)
            if connection.usable:
                self._idle.append(connection)

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and not connection.has_news():
                return connection
            connection.abort()
            self._ended = True
        if self._check is not None and self._ended:
            await self._checked(self._check)
        loop = asyncio.get_running_loop()
        self._opening += 1
        try:
            async with asyncio.timeout(CONNECT):
                _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        except TimeoutError:
            raise Fault(f"no connection to {self._host}:{self._port} within {CONNECT:g} s") from None
        except OSError as error:  # network and TLS errors
            raise broken(error, self._url) from None
        finally:
            self._opening -= 1
        self.opened += 1
        return connection

    async def _checked(self, check: Callable[[], Awaitable[None]]) -> None:
        """Check the server, if no connection to it is left; once for all requests that begin meanwhile."""
        if self._checking is None and not self._busy and not self._opening:
            self._checking = asyncio.ensure_future(check())
        if (checking := self._checking) is None:
            return
        try:
            await asyncio.shield(checking)
            self._ended = False
        finally:
            if checking.done() and self._checking is checking:
                self._checking = None


class _Connection(asyncio.Protocol):
    """One connection, with the awaited answer as received so far.

    The head is read first; then a body of a known length, in chunks, or up to the end of the connection.
    """

    __slots__ = ("_answered", "_begun", "_buffer", "_chunked", "_headers", "_left", "_lost", "_piece", "_room", "_status", "_transport", "_until_end")

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[tuple[int, dict[str, str]]] | None = None
        self._lost = False
        self._buffer = b""
        self._reset()

    def _reset(self) -> None:
        self._status, self._headers = 0, dict[str, str]()
        self._left, self._chunked, self._until_end = 0, False, False
        self._room = MOST_BYTES  # for the rest of the body

    @property
    def usable(self) -> bool:
        """Return whether another request may be sent."""
        return not self._lost and self._answered is None

    def has_news(self) -> bool:
        """Return whether something has arrived that the loop has not read yet: between two answers only the connection's
        end. A request sent now would be lost, and count as an attempt."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def send(self, data: bytes, piece: OnPiece, begun: Callable[[int, dict[str, str]], None] | None) -> asyncio.Future[tuple[int, dict[str, str]]]:
        """Send a request; pieces of the body are passed to `piece`; return the complete answer."""
        assert self.usable and self._transport is not None
        self._reset()
        self._piece, self._begun = piece, begun
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._answered

    def abort(self) -> None:
        self._lost = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:  # uvloop's are no asyncio.Transport
        self._transport = transport
        if (sock := transport.get_extra_info("socket")) is not None:
            for level, option, value in _ALIVE:
                sock.setsockopt(level, option, value)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._answered is not None:
            if self._until_end and self._status and exc is None:
                self._finish()
            else:
                self._fail(Fault(f"the connection broke: {exc}" if exc is not None else "the server closed the connection before its answer was whole"))

    def data_received(self, data: bytes) -> None:
        if self._answered is None:
            self.abort()  # no request is pending: this cannot be an answer
            return
        self._buffer = self._buffer + data if self._buffer else data
        try:
            while self._answered is not None and (self._read_body() if self._status else self._read_head()):
                pass
        except (ValueError, IndexError) as error:
            self._fail(Fault(f"the answer is not HTTP: {error}"))
            self.abort()
        except Fault as error:
            self._fail(error)
            self.abort()

    # reading

    def _read_head(self) -> bool:
        """Return whether there is more to read at once."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return self._unfinished("its head")
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        self._buffer = self._buffer[end + 4 :]
        version, status = first.split(" ", 2)[:2]
        if not version.startswith("HTTP/1."):
            raise ValueError(first[:40])
        if 100 <= int(status) < 200:
            return True  # an interim response: the answer follows
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            if name == "content-length" and headers.get(name, value) != value:
                raise ValueError(f"two lengths, {headers[name]} and {value}")
            headers[name] = value
        self._status, self._headers = int(status), headers
        if (coding := headers.get("content-encoding", "").lower()) not in ("", "identity"):
            raise Fault(
                f"the answer is compressed ({coding[:20]}), which was not asked for; perhaps a proxy in between does that",
                status=self._status if self._status >= 300 else None,
            )
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        self._until_end = not self._chunked and length is None and self._status not in (204, 304)
        self._left = _size(length, 10) if length is not None and not self._chunked else 0
        if self._begun is not None:
            self._begun(self._status, headers)
        if not self._chunked and not self._until_end and not self._left:
            self._finish()
            return False
        return bool(self._buffer)

    def _read_body(self) -> bool:
        if self._chunked:
            return self._read_chunk()
        taken = self._buffer if self._until_end else self._buffer[: self._left]
        self._buffer = self._buffer[len(taken) :]
        if taken:
            self._take(taken)
        if not self._until_end:
            self._left -= len(taken)
            if not self._left:
                self._finish()
        return False

    def _read_chunk(self) -> bool:
        """Read a chunk; `_left`: bytes of the chunk still to come, including its line end."""
        if self._left:
            taken = self._buffer[: self._left]
            self._buffer = self._buffer[len(taken) :]
            self._left -= len(taken)
            data = taken[: len(taken) - (2 - min(self._left, 2))]
            if data:
                self._take(data)
            return bool(self._buffer)
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return self._unfinished("the head of a chunk")
        size = _size(self._buffer[:end].split(b";")[0].decode("latin-1"), 16)
        if size:
            self._buffer = self._buffer[end + 2 :]
            self._left = size + 2
            return bool(self._buffer)
        tail = self._buffer.find(b"\r\n\r\n", end)  # trailers, mostly none
        if tail < 0:
            return self._unfinished("what follows its body")
        self._buffer = self._buffer[tail + 4 :]
        self._finish()
        return False

    def _take(self, data: bytes) -> None:
        """Pass on a piece of the body."""
        self._room -= len(data)
        if self._room < 0:
            raise Endless.beyond(MOST_BYTES)
        self._piece(data)

    def _unfinished(self, what: str) -> bool:
        """Wait for more of what is no part of a body, unless there is too much of it."""
        if len(self._buffer) > _LONGEST_HEAD:
            raise ValueError(f"{what} has no end")
        return False

    def _finish(self) -> None:
        answered, self._answered = self._answered, None
        if self._until_end or "close" in self._headers.get("connection", "").lower() or self._buffer:
            self.abort()
        if answered is not None and not answered.done():
            answered.set_result((self._status, self._headers))

    def _fail(self, fault: Fault) -> None:
        answered, self._answered = self._answered, None
        self._lost = True
        if answered is not None and not answered.done():
            answered.set_exception(fault)


def _size(text: str, base: int) -> int:
    """Return a size that the server announces. Raises ValueError for anything but a whole number, and Endless for more
    than any answer has."""
    found = int(text, base)
    if found < 0:
        raise ValueError(f"a part of {found} bytes")
    if found > MOST_BYTES:
        raise Endless.beyond(MOST_BYTES)
    return found
