"""Wires by an SDK's client (openai's, anthropic's): its connections and headers; raw bodies, and its errors as faults."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from lmc.backend.api.exchange import Body, Fault, HttpRequest, Received
from lmc.backend.api.network import CONNECT, broken, certificates_of_environment, client_of, http_errors, secrets_of_proxies
from lmc.backend.api.redaction import addressed, authorization, check_key, check_url, secrets_by_name, secrets_of_headers, secrets_of_url
from lmc.backend.api.sse import events
from lmc.backend.api.wire import bounded, lowered, parsed, refused
from lmc.config import log

T = TypeVar("T")


class SdkWire:
    """Requests by an SDK's client. A subclass says with which of its methods, and with which arguments.

    sdk  the module, which has the classes of its errors
    """

    def __init__(self, client: Any, sdk: Any) -> None:
        self._client, self.sdk = client, sdk

    def _resource(self, request: HttpRequest) -> Any:
        """Return what the SDK makes a request by."""
        raise NotImplementedError

    own: tuple[str, ...] = ()
    """Arguments of the SDK's by their names; everything else is extra body: servers support more than the SDK."""

    def _arguments(self, request: HttpRequest) -> Body:
        own = {k: request.body[k] for k in self.own if k in request.body}
        return {**own, "extra_body": {k: v for k, v in request.body.items() if k not in own}, "extra_headers": dict(request.headers)}

    @property
    def secrets(self) -> list[str]:
        """Return keys and passwords that the client sends."""
        client = self._client
        keys = [getattr(client, name, None) for name in ("api_key", "auth_token", "webhook_secret", "admin_api_key")]
        named = (*secrets_of_headers(client._custom_headers), *secrets_by_name(client._custom_query))
        return [*(key for key in keys if isinstance(key, str)), *secrets_of_url(str(client.base_url)), *named, *secrets_of_proxies()]

    async def models(self) -> Sequence[str]:
        """Return the names of the server's models; empty if it does not tell."""
        try:
            async with asyncio.timeout(CONNECT):
                raw = await self._client.with_options(timeout=CONNECT).models.with_raw_response.list()
            listed: Any = parsed(raw.http_response.content, self.secrets).get("data")
        except Exception as error:  # of the SDK, whose types differ; the list is not needed
            log("backend", f"the server does not list its models: {type(error).__name__}")
            return []
        return [str(entry["id"]) for entry in listed if isinstance(entry, dict) and "id" in entry] if isinstance(listed, list) else []

    async def post(self, request: HttpRequest) -> Received:
        with self.faults():
            raw = await self._resource(request).with_raw_response.create(**self._arguments(request))
        return Received(parsed(raw.http_response.content, self.secrets), lowered(raw.headers))

    async def streamed(self, request: HttpRequest, last: Callable[[Body], bool] = lambda body: False) -> AsyncIterator[Received]:
        """Yield the events of a stream, up to the `last` one."""
        with self.faults():
            async with self._resource(request).with_streaming_response.create(**self._arguments(request)) as response:
                async for received in events(response.iter_bytes(), lowered(response.headers), self.secrets, last):
                    yield received

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """Return what a call of the client gives. Raises Fault."""
        with self.faults():
            return await call(self._client)

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Raise errors of the SDK, and of the connections below it, as faults."""
        try:
            yield
        except self.sdk.APIError as error:
            raise self.fault(error) from None
        except http_errors() as error:
            raise broken(error) from None

    def fault(self, error: Any) -> Fault:
        """Return the fault of an error of the SDK's."""
        if isinstance(error, self.sdk.APIStatusError):
            return refused(error.status_code, lowered(error.response.headers), self._said(error))
        cause, asked = error.__cause__, getattr(error, "request", None)
        if isinstance(cause, Fault):
            return cause
        said = error.message + (f" ({type(cause).__name__}: {cause})" if cause is not None else "")
        return broken(cause or error, "" if asked is None else str(asked.url), said)

    @staticmethod
    def _said(error: Any) -> str:
        return json.dumps(error.body) if error.body else error.message


# -- clients -----------------------------------------------------------------------------------------------------------


def client_of_sdk(sdk: Any, kind: str, options: Mapping[str, Any], keys: Mapping[str, str]) -> Any:
    """Return a client of an SDK's, made with the options. Raises ParameterError for a URL and for keys that cannot be used, and what the SDK raises.

    keys  attributes of the client, as messages call them
    """
    options = _with_userinfo_in_header(options)
    found = getattr(sdk, kind)(**with_shared_tls(sdk, options))
    for name, what in keys.items():
        check_key(getattr(found, name, None), what)
    if "http_client" not in options:
        bounded(found._client)
    return found


def _with_userinfo_in_header(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with no user and password in base_url: httpx logs the URLs of requests. Raises ParameterError for one that is none."""
    found = dict(options)
    for name in ("base_url", "azure_endpoint"):
        url = found.get(name)
        if url is None:
            continue
        check_url(str(url), f"{name}=")
        if header := authorization(str(url)):
            found |= {name: addressed(str(url)), "default_headers": {**(found.get("default_headers") or {}), "Authorization": header["authorization"]}}
    return found


def with_shared_tls(sdk: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a client that has one TLS context with the others in this process: each would load all
    certificates anew."""
    if options.get("http_client") is not None:
        return dict(options)
    library = next(cls.__module__ for cls in sdk.DefaultAsyncHttpxClient.__mro__ if cls.__name__ == "AsyncClient")  # httpx, or httpx2
    client = client_of(sdk, "DefaultAsyncHttpxClient", verify=_tls_of(library, *certificates_of_environment()), follow_redirects=False)
    timeout = options.get("timeout")
    if isinstance(timeout, int | float):  # a machine that is not there does not answer at all
        timeout = importlib.import_module(library).Timeout(timeout, connect=min(timeout, CONNECT))
    return {**options, "timeout": timeout, "http_client": client}


@lru_cache(maxsize=4)
def _tls_of(library: str, *environment: str | None) -> Any:
    """Return the TLS context of an HTTP library, for the certificates that the environment names."""
    return importlib.import_module(library).create_ssl_context()
