"""The gate that every request passes: key, capacity, size and time limits, and client disconnects; then its endpoint
answers.

    arrives ──► host? ──► key? ──► JSON? ──► room? ──► body in time, not too large ──► endpoint ──► one object, or a stream of events
       └───────────────── a client that leaves, or the timeout, cancels the request ─────────────────┘
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from lmc.backend.usage import MeteredAccount, Usage
from lmc.observing import observer
from lmc.serve.answering import encoded, event
from lmc.serve.audit import AuditEntry, AuditLog
from lmc.serve.errors import ApiError, as_api_error
from lmc.serve.keys import Account, Keyring
from lmc.serve.metrics import CLIENT_GONE, Metrics, RequestOutcome
from lmc.serve.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """A request as an endpoint sees it. `may`: which programs its key allows. `share`: the key's part of the model, as runs take it: its account is charged
    with all that is asked of the backend in its name."""

    body: bytes
    path: Mapping[str, str]
    query: Mapping[str, str]
    id: str = ""
    may: Callable[[str], bool] = lambda program: True
    share: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """One answer. `payload`: JSON, or bytes as they are."""

    payload: Any
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def body(self) -> bytes:
        if isinstance(self.payload, bytes):
            return self.payload
        return encoded(self.payload)


@dataclass(frozen=True, slots=True)
class Events:
    """An answer as server-sent events. `cancel` is called when it is over, however it ends, also before it began; `error_event` writes
    the last event of a stream that fails; `ping` is sent whenever there has been nothing else to send for a while."""

    stream: AsyncGenerator[bytes, None]
    cancel: Callable[[], None] = lambda: None
    error_event: Callable[[ApiError], bytes] = lambda error: event(error.body)
    ping: bytes = b": keep-alive\n\n"


T = TypeVar("T")
Endpoint = Callable[[EndpointCall], Awaitable[EndpointReply | Events]]


class ClientGone(Exception):
    """The client left before its answer was complete."""


@dataclass
class Entrance:
    """Counts the requests inside, and admits further ones. `inside` have arrived completely or are arriving."""

    most: int
    inside: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self, drain: float = 60.0) -> None:
        """Close the entrance: incompletely received requests are rejected, and those unanswered after `drain` seconds
        end with a 503. On the server's loop."""
        self.closed.set()
        asyncio.get_running_loop().call_later(drain, self.over.set)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        if self.inside >= self.most:
            raise ApiError(429, f"{self.most} requests are being answered; try again later")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


@dataclass(frozen=True)
class Gate:
    """An endpoint as an ASGI application. `public`: no key is asked for. `page`: it is for a person, whose browser asks for the key. `counted`: it takes
    room. `program`: that it runs. `route`: its path, as published."""

    name: str
    endpoint: Endpoint
    settings: ServerSettings
    metrics: Metrics
    entrance: Entrance
    keys: Keyring
    audit: AuditLog
    public: bool = False
    page: bool = False
    counted: bool = True
    program: str | None = None
    route: str = ""
    error_body: Callable[[ApiError], Any] = lambda error: error.body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = observer() if self.counted else None
        if watching is None:
            await self._serve(scope, receive, send)
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        with watching.served(scope["method"], self.route, scope["path"], headers) as told:
            told(await self._serve(scope, receive, send))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer a request; return the status of the answer."""
        began = time.monotonic()
        entry = AuditEntry(request_id(scope), "", str((scope.get("client") or ("",))[0]), scope["method"], scope["path"])
        try:
            with self.metrics.request(self.name) as seen:
                sender = _Sender(send, seen, entry.id, self.error_body, self.settings.ping_interval)
                try:
                    async with asyncio.timeout(self.settings.timeout):
                        self._check_host(scope)
                        account = self._account(scope)
                        if account is None:
                            raise _no_key(_BASIC if self.page else "Bearer")
                        entry.key = account.name
                        await self._answer(scope, receive, sender, entry, account)
                except ClientGone:
                    seen.status = CLIENT_GONE
                except Exception as error:
                    await sender.fail(as_api_error(error, entry.id))
                finally:
                    entry.status = seen.status
        finally:
            if self.counted:
                entry.seconds = round(time.monotonic() - began, 6)
                self.audit.write(entry)
        return entry.status

    def _check_host(self, scope: Scope) -> None:
        """Check the host: a page that maps its own name to this machine (DNS rebinding) sends that name."""
        if self.settings.hosts is None:
            return
        said = (_header(scope, b"host") or b"").decode("latin-1").strip().lower()
        name = said.rpartition(":")[0] if re.search(r":[0-9]*$", said) and not said.endswith("]") else said
        if name.strip("[]") not in self.settings.hosts:
            raise ApiError(421, f"this server is not {said!r:.80}; lmc serve --allow-host NAME adds a name", code="invalid_host")

    def _account(self, scope: Scope) -> Account | None:
        """Return the account of a request, by its key; None if unknown."""
        if self.keys.open or self.public:
            return self.keys.nobody
        given = (_header(scope, b"authorization") or b"").decode("utf-8", "surrogateescape")
        scheme, _, token = given.partition(" ")
        if scheme.lower() == "basic":  # a browser, which sends it with any page's requests
            token = _password(token) if _own_page(scope) else ""
        elif scheme.lower() != "bearer":
            token = (_header(scope, b"x-api-key") or b"").decode("utf-8", "surrogateescape")  # Anthropic's clients
        return self.keys.account(token.strip())

    async def _answer(self, scope: Scope, receive: Receive, sender: _Sender, entry: AuditEntry, account: Account) -> None:
        if not self.counted:
            account.check(self.program)
            return await sender.send(await self.endpoint(self._call(scope, b"", entry, account)))
        _check_json(scope)
        with account.admitted(self.program), self.entrance.admitted():
            body = await _unless(self._body(scope, receive), (self.entrance.closed.wait(), shutting_down))
            work = self._work(self._call(scope, body, entry, account), sender)
            await _unless(work, (_left(receive), ClientGone), (self.entrance.over.wait(), shutting_down))

    def _call(self, scope: Scope, body: bytes, entry: AuditEntry, account: Account) -> EndpointCall:
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        loop = asyncio.get_running_loop()

        def told(usage: Usage) -> None:  # called by the backend, on its own thread; the loop has ended if an answer outlives the server
            if not loop.is_closed():
                loop.call_soon_threadsafe(spend, usage)

        def spend(usage: Usage) -> None:
            tokens = usage.prompt_tokens + usage.completion_tokens
            self.metrics.tokens(usage)
            self.audit.spend(entry, tokens)
            account.spend(tokens)

        share = {"priority": account.priority, "account": MeteredAccount(account.name, told)}
        return EndpointCall(body, scope.get("path_params", {}), query, entry.id, account.may, share)

    async def _work(self, call: EndpointCall, sender: _Sender) -> None:
        await sender.send(await self.endpoint(call))

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most, found = self.settings.max_body, bytearray()
        announced = _header(scope, b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    found += message.get("body", b"")
                    if len(found) > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        return bytes(found)
        except TimeoutError:
            raise ApiError(408, f"the request did not arrive within {self.settings.body_timeout:g} s") from None


@dataclass
class _Sender:
    """Sends the response to the client, once."""

    _send: Send
    _seen: RequestOutcome
    _id: str
    _error_body: Callable[[ApiError], Any]
    _ping_interval: float
    started: bool = False
    _error_event: Callable[[ApiError], bytes] = field(default=lambda error: b"", init=False)  # of its stream
    ended: bool = field(default=False, init=False)
    _last: float = field(default=0.0, init=False)  # when a piece of its stream was sent

    async def send(self, answer: EndpointReply | Events) -> None:
        if isinstance(answer, EndpointReply):
            return await self._whole(answer.status, answer.body, answer.content_type, answer.headers)
        self._error_event = answer.error_event
        try:
            async with aclosing(answer.stream) as stream:
                await self._start(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
                await _unless(self._pieces(stream), (self._pinging(answer.ping), ClientGone))
        finally:
            answer.cancel()
        await self._end()

    async def _pieces(self, stream: AsyncIterable[bytes]) -> None:
        async for chunk in stream:
            await self._piece(chunk)

    async def _pinging(self, ping: bytes) -> None:
        """Send a sign of life whenever the stream has been silent for the interval: clients and proxies give up silent connections, and a long
        prompt has no token for minutes."""
        clock = asyncio.get_running_loop().time
        self._last = clock()
        while True:
            if (left := self._last + self._ping_interval - clock()) > 0:
                await asyncio.sleep(left)
            else:
                await self._piece(ping)

    async def _piece(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._last = asyncio.get_running_loop().time()

    async def fail(self, error: ApiError) -> None:
        """Send an error: as the answer, or as the last event of a stream that has begun."""
        body = None if self.started else encoded(self._error_body(error))
        self._seen.status = error.status
        if self.ended:
            return
        try:
            async with asyncio.timeout(1.0):  # a client that does not read blocks the server no longer than that
                if body is not None:
                    return await self._whole(error.status, body, "application/json", error.headers)
                await self._piece(self._error_event(error))
                await self._end()
        except TimeoutError:
            return  # the answer stays incomplete, and the server closes the connection

    async def _whole(self, status: int, body: bytes, content_type: str, headers: Mapping[str, str]) -> None:
        await self._start(status, {"content-type": content_type, "content-length": str(len(body)), **headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.ended = True

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started, self._seen.status = True, status
        headers = {**headers, "x-request-id": self._id}
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        start: Message = {"type": "http.response.start", "status": status, "headers": raw}
        await self._send(start)

    async def _end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self.ended = True


async def _unless(work: Coroutine[Any, Any, T], *others: tuple[Coroutine[Any, Any, object], Callable[[], Exception]]) -> T:
    """Return the result of the work, unless one of the others ends first: then cancel it, and raise the error of that one, or what belongs to it."""
    task = asyncio.ensure_future(work)
    watched = {asyncio.ensure_future(other): error for other, error in others}
    try:
        await asyncio.wait((task, *watched), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise next(each.exception() or error() for each, error in watched.items() if each.done())
        return await task
    finally:
        for each in (task, *watched):
            each.cancel()
        await asyncio.gather(task, *watched, return_exceptions=True)


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down; try again", headers={"Connection": "close", "Retry-After": "1"})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_BASIC = 'Basic realm="lmc serve: any name, and an API key as the password", charset="UTF-8"'


def _no_key(challenge: str) -> ApiError:
    return ApiError(401, "no valid API key: send the header Authorization: Bearer KEY", code="invalid_api_key", headers={"WWW-Authenticate": challenge})


def _password(credentials: str) -> str:
    """Return the password of HTTP's basic authentication (RFC 7617), "" for what is none."""
    try:
        return base64.b64decode(credentials, validate=True).decode("utf-8", "surrogateescape").partition(":")[2]
    except ValueError:
        return ""


def _own_page(scope: Scope) -> bool:
    """Return whether a browser's request comes from the server's own pages, or from a person who opens one."""
    if (site := _header(scope, b"sec-fetch-site")) is not None:  # of browsers, and no page can write it
        return site in (b"same-origin", b"none")
    origin = _header(scope, b"origin")
    return origin is None or origin.partition(b"://")[2] == (_header(scope, b"host") or b"")


def request_id(scope: Scope) -> str:
    """Return the client's own id, if it is suitable for logs; else a new one."""
    given = (_header(scope, b"x-request-id") or b"").decode("latin-1")
    return given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else new_id()


def new_id() -> str:
    """Return an id for a request."""
    return f"req_{secrets.token_hex(12)}"


def _check_json(scope: Scope) -> None:
    """Check that the body is JSON: a page of another origin may send text and forms without a preflight, but not JSON."""
    kind = (_header(scope, b"content-type") or b"").decode("latin-1").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(415, f"the body must be JSON: send the header Content-Type: application/json, not {kind or 'none'!r:.60}")
    coding = (_header(scope, b"content-encoding") or b"identity").decode("latin-1").strip().lower()
    if coding != "identity":
        raise ApiError(415, f"the body must be sent as it is, without Content-Encoding: {coding!r:.60}")


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the request is larger than {most} bytes")
