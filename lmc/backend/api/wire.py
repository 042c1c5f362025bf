"""Wires: requests and answers as bytes. JSON, refusals, server-sent events; and httpx, if there is a proxy."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from lmc.backend.api.exchange import MOST_BYTES, Endless, Fault, HttpRequest, Received
from lmc.backend.api.rates import retry_after
from lmc.backend.api.redaction import (
    addressed,
    authorization,
    check_url,
    secrets_by_name,
    secrets_of_headers,
    secrets_of_url,
    without_escaped_keys,
    without_keys,
)
from lmc.errors import MissingPackageError
from lmc.extras import missing as _missing

try:
    import orjson  # pyright: ignore[reportMissingImports]
except ImportError:
    orjson = None
_loads: Callable[[Any], Any] = json.loads if orjson is None else orjson.loads


def missing(what: str, package: str, extra: str, error: ImportError | None = None) -> MissingPackageError:
    """The error of `what`, whose package is not installed, or lacks something itself."""
    broken = error is not None and error.name not in (None, package)
    return _missing(what, [package], extra, f"which cannot be imported ({error})" if broken else "")


def http_errors() -> tuple[type[BaseException], ...]:
    """Return the errors that the loaded HTTP libraries raise for failed connections."""
    loaded = [module for name in ("httpx", "httpx2") if (module := sys.modules.get(name)) is not None]
    return tuple(error for module in loaded for error in (module.HTTPError, module.InvalidURL, module.StreamError))


def broken(error: BaseException) -> Fault:
    """Return the fault of a failed connection."""
    return Fault(f"{type(error).__name__}: {error}")


def unanswered(error: Any) -> Fault:
    """Return the fault of an SDK's error without an answer, with the address and the cause that it carries."""
    cause, asked = error.__cause__, getattr(error, "request", None)
    if isinstance(cause, Fault):
        return cause
    where = "" if asked is None else f" {asked.url}:"
    return Fault(f"{where} {error.message}".strip() + (f" ({type(cause).__name__}: {cause})" if cause is not None else ""))


def dumped(body: Any) -> bytes:
    """Encode as JSON. With orjson, if it is installed: ten times faster; the library encodes what that refuses (half
    surrogates, integers beyond 64 bits)."""
    if orjson is not None:
        try:
            return orjson.dumps(body)
        except orjson.JSONEncodeError:
            pass
    return json.dumps(body, separators=(",", ":")).encode()


def parsed(text: str | bytes, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """Parse a JSON object; a list becomes `{"items": list}`. Without the keys in `secrets`. Raises Fault for anything
    else: the answer is unusable."""
    keys = tuple(secrets)
    text = without_keys(text, keys)
    try:
        try:
            body: Any = _loads(text)
        except ValueError:
            body = json.loads(text)  # NaN and Infinity, which are not JSON, but written by some servers
        if _escapes(text):
            body = without_escaped_keys(body, keys)
    except (ValueError, RecursionError):  # the second: nested too deeply
        raise Fault(f"the answer is not JSON: {text[:80]!r}") from None
    if isinstance(body, list):
        return {"items": body}
    if not isinstance(body, dict):
        raise Fault(f"the answer is not a JSON object: {text[:80]!r}")
    return body


def _escapes(text: str | bytes) -> bool:
    """Return whether JSON may spell characters in it otherwise than they are."""
    return "\\u" in text or "\\/" in text if isinstance(text, str) else b"\\u" in text or b"\\/" in text


def refused(status: int, headers: Mapping[str, str], text: str | bytes, path: str = "") -> Fault:
    """Return the fault of an HTTP error answer; its message is searched where servers put it. `path`: of the request,
    which the message names if there is nothing at it."""
    message, param, code = "", None, None
    try:
        body = json.loads(text)
        error: Any = body.get("error", body) if isinstance(body, dict) else body
        if isinstance(error, dict):
            found: Any = error.get("message") or error.get("detail") or ""
            message, param, code = str(found), error.get("param"), error.get("code")
        else:
            message = str(error)
    except (ValueError, RecursionError):
        message = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    if path and status in (404, 405):
        message = f"{message or 'no message'} (POST {path})"
    return Fault(
        message or "no message", status=status, retry_after=retry_after(headers), param=param,
        code=code if isinstance(code, str) else None, headers=headers,
    )  # fmt: skip


def refused_later(text: str | bytes) -> Fault:
    """Return the fault of an event of a stream whose HTTP status was a success.

    vLLM puts the status into the event, OpenAI and Anthropic the type of the error. SGLang writes such events only for
    invalid requests: on a fault of its own the stream breaks off.
    """
    error: Any = json.loads(text)["error"]
    code = error.get("code")
    return refused(code if type(code) is int and 400 <= code < 600 else STATUS.get(str(error.get("type")), 400), {}, text)


def no_stream(headers: Mapping[str, str]) -> Fault:
    """Return the fault of an answer without an event, where a stream was asked for."""
    kind = headers.get("content-type", "").partition(";")[0].strip()
    return Fault("the stream ended before the answer did" + (f": it has no event, and is {kind}" if kind not in ("", "text/event-stream") else ""))


STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403, "not_found_error": 404,
    "request_too_large": 413, "rate_limit_error": 429, "rate_limit_exceeded": 429, "insufficient_quota": 429, "api_error": 500, "server_error": 500,
    "internal_server_error": 500, "timeout_error": 504, "overloaded_error": 529,
}  # fmt: skip
"""Types of errors, as Anthropic and OpenAI name them, with their HTTP status."""


async def events(
    lines: AsyncIterator[str], secrets: Sequence[str], last: Callable[[dict[str, Any]], bool] = lambda body: False
) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a stream of server-sent events, up to its `[DONE]` or the `last` one, or its end: whether
    the answer is complete then, says the answer."""
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        body = parsed(data, secrets)
        if isinstance(body.get("error"), dict):
            raise refused_later(data)  # parsed once already: it is not nested too deeply
        yield body
        if last(body):
            return


def lowered(headers: Any) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}


def http_library() -> Any:
    """Return httpx, or httpx2, its successor with the same names: whichever is installed. Raises MissingPackageError if
    neither is."""
    for name in ("httpx", "httpx2"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise missing("a proxy", "httpx", "remote")


def bounded(client: Any) -> None:
    """Let an httpx client read no more of an answer than `MOST_BYTES`, counted when it is decompressed."""

    async def bound(response: Any) -> None:
        if response.request.method != "POST":  # a file with the answers to a batch
            return
        read = response.aiter_bytes

        async def counted(chunk_size: int | None = None) -> AsyncIterator[bytes]:
            room = MOST_BYTES
            async for piece in read(chunk_size):
                room -= len(piece)
                if room < 0:
                    raise Endless.beyond(MOST_BYTES)
                yield piece

        response.aiter_bytes = counted  # through which httpx reads lines and whole bodies, too

    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks["response"], bound]}


def secrets_of(client: Any) -> Iterator[str]:
    """Return keys and passwords that an SDK's client sends."""
    keys = [getattr(client, name, None) for name in ("api_key", "auth_token", "webhook_secret", "admin_api_key")]
    yield from (key for key in keys if isinstance(key, str))
    yield from secrets_of_url(str(client.base_url))
    yield from secrets_of_headers(client._custom_headers)
    yield from secrets_by_name(client._custom_query)
    yield from secrets_of_proxies()


def secrets_of_proxies() -> Iterator[str]:
    """Passwords of the proxies that the environment names."""
    for url in getproxies().values():
        yield from secrets_of_url(url)


def with_userinfo_in_header(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an SDK's client whose base_url has no user and password: httpx logs the URLs of requests. Raises ParameterError for one that is none."""
    found = dict(options)
    for name in ("base_url", "azure_endpoint"):
        url = found.get(name)
        if url is None:
            continue
        check_url(str(url), f"{name}=")
        if header := authorization(str(url)):
            found |= {name: addressed(str(url)), "default_headers": {**(found.get("default_headers") or {}), "Authorization": header["authorization"]}}
    return found


def proxied(url: str) -> bool:
    """Return whether the environment sets a proxy for a URL."""
    at = urlsplit(url)
    return at.scheme in getproxies() and not proxy_bypass(at.netloc)


def with_shared_tls(sdk: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an SDK's client that has one TLS context with the others in this process: each would load all certificates anew."""
    if options.get("http_client") is not None:
        return dict(options)
    library = next(cls.__module__ for cls in sdk.DefaultAsyncHttpxClient.__mro__ if cls.__name__ == "AsyncClient")  # httpx, or httpx2
    return {**options, "http_client": sdk.DefaultAsyncHttpxClient(verify=_tls(library, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")))}


@lru_cache(maxsize=4)
def _tls(library: str, *environment: str | None) -> Any:
    """Return the TLS context of an HTTP library, for the certificates that the environment names."""
    return importlib.import_module(library).create_ssl_context()


class ProxiedWire:
    """Sends requests by httpx, which supports proxies."""

    opened = 0

    def __init__(self, url: str, headers: Mapping[str, str], *, timeout: float, connections: int) -> None:
        httpx = http_library()
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self.secrets = (*secrets_of_url(url), *secrets_of_headers(headers), *secrets_of_proxies())
        self._client: Any = httpx.AsyncClient(
            base_url=addressed(url).rstrip("/"),  # httpx logs it
            headers={"content-type": "application/json", **headers, **authorization(url)},
            timeout=httpx.Timeout(timeout, connect=min(timeout, 30.0)), limits=limits,
        )  # fmt: skip
        self._path = urlsplit(url).path.rstrip("/")
        bounded(self._client)

    async def post(self, request: HttpRequest) -> Received:
        try:
            response = await self._client.post(
                request.path, content=dumped(request.body) if request.data is None else request.data, headers=dict(request.headers)
            )
        except http_errors() as error:
            raise broken(error) from None
        if response.status_code >= 400:
            raise refused(response.status_code, lowered(response.headers), response.content, self._path + request.path)
        return Received(parsed(response.content, self.secrets), lowered(response.headers))

    async def stream(self, request: HttpRequest) -> AsyncIterator[Received]:
        try:
            async with self._client.stream(
                "POST", request.path, content=dumped(request.body) if request.data is None else request.data, headers=dict(request.headers)
            ) as response:
                headers = lowered(response.headers)
                if response.status_code >= 400:
                    raise refused(response.status_code, headers, await response.aread(), self._path + request.path)
                came = False
                async for body in events(response.aiter_lines(), self.secrets):
                    came = True
                    yield Received(body, headers)
                if not came:
                    raise no_stream(headers)
        except http_errors() as error:
            raise broken(error) from None

    async def close(self) -> None:
        await self._client.aclose()
