"""Wire to a server behind a proxy: by httpx, which supports them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from lmc.backend.api.exchange import HttpRequest, Received
from lmc.backend.api.network import CONNECT, Access, broken, client_of, http_errors, http_library, secrets_of_proxies, tls
from lmc.backend.api.redaction import addressed, authorization, secrets_of_headers, secrets_of_url
from lmc.backend.api.sse import events
from lmc.backend.api.wire import bounded, content, lowered, parsed, refused


class ProxiedWire:
    """Sends requests by httpx, which supports proxies."""

    opened = 0

    def __init__(self, url: str, access: Access, proxy: str | None, *, timeout: float, connections: int) -> None:
        httpx = http_library()
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self.secrets = (*secrets_of_url(url), *secrets_of_headers(access.headers), *secrets_of_proxies())
        self._client: Any = client_of(
            httpx, "AsyncClient", proxy=proxy, trust_env=False, verify=tls(access.verify),
            base_url=addressed(url).rstrip("/"),  # httpx logs it
            headers={"content-type": "application/json", **access.headers, **authorization(url)},
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT)), limits=limits,
        )  # fmt: skip
        self._path, self._url = urlsplit(url).path.rstrip("/"), addressed(url)
        bounded(self._client)

    async def post(self, request: HttpRequest) -> Received:
        try:
            response = await self._client.post(request.path, content=content(request), headers=dict(request.headers))
        except http_errors() as error:
            raise broken(error, self._url) from None
        if response.status_code >= 300:
            raise refused(response.status_code, lowered(response.headers), response.content, self._path + request.path)
        return Received(parsed(response.content, self.secrets), lowered(response.headers))

    async def stream(self, request: HttpRequest) -> AsyncIterator[Received]:
        try:
            async with self._client.stream("POST", request.path, content=content(request), headers=dict(request.headers)) as response:
                headers = lowered(response.headers)
                if response.status_code >= 300:
                    raise refused(response.status_code, headers, await response.aread(), self._path + request.path)
                async for received in events(response.aiter_bytes(), headers, self.secrets):
                    yield received
        except http_errors() as error:
            raise broken(error, self._url) from None

    async def close(self) -> None:
        await self._client.aclose()
