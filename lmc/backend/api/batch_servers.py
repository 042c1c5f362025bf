"""Batches of OpenAI (files of requests) and of Anthropic, by the SDKs' clients."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from inspect import isawaitable
from typing import Any, Literal

from lmc.backend.api import responses
from lmc.backend.api.batch_api import FULL, Expired, Item, Status
from lmc.backend.api.exchange import Body, Fault, HttpRequest, Malformed, Received
from lmc.backend.api.rates import date_of
from lmc.backend.api.sdk import SdkWire
from lmc.backend.api.sse import status_of
from lmc.backend.api.wire import parsed, refused

_SKEW = 3600.0  # seconds by which a clock may have been set since


class OpenAIBatches:
    """A batch is a file of requests to one endpoint; answers and errors are files, too.

    responses  converts a chat completion to the Responses API, if used;  turns: whether a refusal tells another form
    """

    most, size = 50_000, 190_000_000
    _TAKES = ("/chat/completions", "/completions", responses.PATH)

    def __init__(self, wire: SdkWire, responses: Callable[[HttpRequest], HttpRequest | None], turns: Callable[[HttpRequest, Fault], bool]) -> None:
        self._wire, self._responses, self._turns = wire, responses, turns

    def sent(self, request: HttpRequest) -> HttpRequest:
        request = self._responses(request) or request
        if request.path not in self._TAKES:
            raise Fault(f"a batch takes no {request.path}; leave deadline= out", status=400)
        return replace(request, path=f"/v1{request.path}")

    def mends(self, request: HttpRequest, fault: Fault) -> bool:
        return self._turns(request, fault)

    async def submit(self, path: str, items: Sequence[tuple[str, Body]], wave: str) -> str:
        lines = b"".join(json.dumps({"custom_id": id, "method": "POST", "url": path, "body": body}).encode() + b"\n" for id, body in items)
        file = await self._wire.ask(lambda client: client.files.create(file=(f"lmc-{wave}.jsonl", lines), purpose="batch"))
        made = {"input_file_id": _id(file), "endpoint": path, "completion_window": "24h", "metadata": {"lmc": wave}}
        return _id(await self._wire.ask(lambda client: client.batches.create(**made)))

    async def find(self, wave: str, size: int, age: float) -> str | Literal["later"] | None:
        async def found(client: Any) -> str | None:
            page, now = await _listed(client.batches)
            async for batch in page:
                if batch.created_at < now - age - _SKEW:
                    return None
                if (batch.metadata or {}).get("lmc") == wave:
                    return _id(batch)
            return None

        return await self._wire.ask(found)

    async def status(self, batch: str) -> Status:
        found = await self._wire.ask(lambda client: client.batches.retrieve(batch))
        errors = getattr(found.errors, "data", None) or ()
        if found.status == "failed":
            code = FULL if any(e.code == FULL for e in errors) else None
            raise Fault("; ".join(str(e.message) for e in errors) or "the batch failed", status=429 if code else 400, code=code)
        counts = found.request_counts
        done, total = (counts.completed + counts.failed, counts.total) if counts is not None else (0, 0)
        return Status(done, total, found.status in ("completed", "expired", "cancelled"))

    async def results(self, batch: str) -> Mapping[str, Item]:
        found = await self._wire.ask(lambda client: client.batches.retrieve(batch))
        items: dict[str, Item] = {}
        for file in (found.output_file_id, found.error_file_id):
            if file:
                content = await self._wire.ask(lambda client, file=file: client.files.content(file))
                items |= _items(content.content, _of_openai)
        return items

    async def cancel(self, batch: str) -> None:
        await self._wire.ask(lambda client: client.batches.cancel(batch))


class AnthropicBatches:
    """A batch is one request with all the others in it."""

    most, size = 100_000, 240_000_000

    def __init__(self, wire: SdkWire) -> None:
        self._wire = wire

    def sent(self, request: HttpRequest) -> HttpRequest:
        return request

    def mends(self, request: HttpRequest, fault: Fault) -> bool:
        return False

    async def submit(self, path: str, items: Sequence[tuple[str, Body]], wave: str) -> str:
        requests = [{"custom_id": id, "params": body} for id, body in items]
        return _id(await self._wire.ask(lambda client: client.messages.batches.create(requests=requests)))

    async def find(self, wave: str, size: int, age: float) -> str | Literal["later"] | None:
        """Find it by its requests, since batches have no name: of the batches of this size made since then, the one
        whose requests have its name."""

        async def found(client: Any) -> str | Literal["later"] | None:
            later = False
            page, now = await _listed(client.messages.batches)
            async for batch in page:
                created = batch.created_at if isinstance(batch.created_at, datetime) else datetime.fromisoformat(str(batch.created_at))
                if created.timestamp() < now - age - _SKEW:
                    break
                if _size(batch.request_counts) != size:
                    continue
                if batch.processing_status != "ended":  # its requests are known when their results are
                    later = True
                elif any(id.endswith(wave) for id in await self.results(batch.id)):
                    return _id(batch)
            return "later" if later else None

        return await self._wire.ask(found)

    async def status(self, batch: str) -> Status:
        found = await self._wire.ask(lambda client: client.messages.batches.retrieve(batch))
        total = _size(found.request_counts)
        return Status(total - found.request_counts.processing, total, found.processing_status == "ended")

    async def results(self, batch: str) -> Mapping[str, Item]:
        async def read(client: Any) -> bytes:
            async with client.messages.batches.with_streaming_response.results(batch) as response:
                return await response.read()

        try:
            return _items(await self._wire.ask(read), _of_anthropic)
        except self._wire.sdk.AnthropicError as error:  # the SDK's own: the batch has no results, or none any longer
            raise Fault(str(error), status=404) from None

    async def cancel(self, batch: str) -> None:
        await self._wire.ask(lambda client: client.messages.batches.cancel(batch))


async def _listed(batches: Any) -> tuple[Any, float]:
    """Return the first page of a server's batches, and the time by the server's own clock."""
    raw = await batches.with_raw_response.list(limit=100)
    page = raw.parse()
    return await page if isawaitable(page) else page, _time_of(raw.headers.get("date", ""))


def _time_of(date: str) -> float:
    """Return the time that an answer's header tells; that of this machine if it tells none."""
    return time.time() if (found := date_of(date)) is None else found.timestamp()


def _id(made: Any) -> str:
    if not isinstance(made.id, str):
        raise Malformed(f"the server gave {made.id!r:.40} for an id")
    return made.id


def _items(content: bytes, read: Callable[[Body], Item]) -> dict[str, Item]:
    """Return the lines of a file of results; an invalid one is the result of its request."""
    found: dict[str, Item] = {}
    for record in map(parsed, filter(bytes.strip, content.split(b"\n"))):
        id = str(record.get("custom_id"))
        try:
            found[id] = read(record)
        except Fault as fault:
            found[id] = fault
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            found[id] = Malformed(f"a result of the batch is not what its API says: {str(record)[:80]} ({error!r})", status=502)
    return found


def _of_openai(record: Body) -> Item:
    response, error = record.get("response"), record.get("error") or {}
    if response is None:
        code, message = error.get("code"), str(error.get("message") or "no answer")
        return Expired(message, status=408) if code in ("batch_expired", "batch_cancelled") else Fault(message, status=500, code=code)
    if response["status_code"] != 200:
        return refused(int(response["status_code"]), {}, json.dumps(response.get("body") or {}))
    body = response["body"]
    return Received(responses.answered(body) if body.get("object") == "response" else body)


def _of_anthropic(record: Body) -> Item:
    result = record["result"]
    if result["type"] == "succeeded":
        return Received(result["message"])
    if result["type"] == "errored":
        error = result["error"]["error"] if isinstance(result["error"].get("error"), dict) else result["error"]
        return Fault(str(error.get("message") or "no message"), status=status_of(error, 500))
    return Expired(f"the batch ended before the request was answered ({result['type']})", status=408)


def _size(counts: Any) -> int:
    return sum(getattr(counts, kind) for kind in ("processing", "succeeded", "errored", "canceled", "expired"))
