"""Batches of OpenAI (files of requests) and of Anthropic, by the SDKs' clients."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from inspect import isawaitable
from typing import Any, Literal, TypeVar

from lmc.backend.api import responses
from lmc.backend.api.batch_api import FULL, Expired, Item, Status
from lmc.backend.api.exchange import Body, Fault, HttpRequest, Malformed, Received
from lmc.backend.api.network import broken, http_errors
from lmc.backend.api.sse import status_of
from lmc.backend.api.wire import parsed, refused

T = TypeVar("T")
_SKEW = 3600.0  # seconds by which a clock may have been set since


class OpenAIBatches:
    """A batch is a file of requests to one endpoint; answers and errors are files, too.

    client     an `openai.AsyncOpenAI`;  fault: translates its errors
    responses  converts a chat completion to the Responses API, if used;  turns: whether a refusal tells another form
    """

    most, size = 50_000, 190_000_000
    _TAKES = ("/chat/completions", "/completions", responses.PATH)

    def __init__(
        self, client: Any, fault: Callable[[Any], Fault], responses: Callable[[HttpRequest], HttpRequest | None], turns: Callable[[HttpRequest, Fault], bool]
    ) -> None:
        self._client, self._fault, self._responses, self._turns = client, fault, responses, turns

    def sent(self, request: HttpRequest) -> HttpRequest:
        request = self._responses(request) or request
        if request.path not in self._TAKES:
            raise Fault(f"a batch takes no {request.path}; leave deadline= out", status=400)
        return replace(request, path=f"/v1{request.path}")

    def mends(self, request: HttpRequest, fault: Fault) -> bool:
        return self._turns(request, fault)

    async def submit(self, path: str, items: Sequence[tuple[str, Body]], wave: str) -> str:
        lines = b"".join(json.dumps({"custom_id": id, "method": "POST", "url": path, "body": body}).encode() + b"\n" for id, body in items)
        file = await self._do(lambda: self._client.files.create(file=(f"lmc-{wave}.jsonl", lines), purpose="batch"))
        return str((await self._do(lambda: self._client.batches.create(
            input_file_id=file.id, endpoint=path, completion_window="24h", metadata={"lmc": wave}))).id)  # fmt: skip

    async def find(self, wave: str, size: int, age: float) -> str | Literal["later"] | None:
        return await self._do(lambda: self._found(wave, age))

    async def _found(self, wave: str, age: float) -> str | None:
        page, now = await _listed(self._client.batches)
        async for batch in page:
            if batch.created_at < now - age - _SKEW:
                return None
            if (batch.metadata or {}).get("lmc") == wave:
                return str(batch.id)
        return None

    async def status(self, batch: str) -> Status:
        found = await self._do(lambda: self._client.batches.retrieve(batch))
        errors = getattr(found.errors, "data", None) or ()
        if found.status == "failed":
            code = FULL if any(e.code == FULL for e in errors) else None
            raise Fault("; ".join(str(e.message) for e in errors) or "the batch failed", status=429 if code else 400, code=code)
        counts = found.request_counts
        done, total = (counts.completed + counts.failed, counts.total) if counts is not None else (0, 0)
        return Status(done, total, found.status in ("completed", "expired", "cancelled"))

    async def results(self, batch: str) -> Mapping[str, Item]:
        found = await self._do(lambda: self._client.batches.retrieve(batch))
        items: dict[str, Item] = {}
        for file in (found.output_file_id, found.error_file_id):
            if file:
                content = await self._do(lambda file=file: self._client.files.content(file))
                items |= _items(content.content, _of_openai)
        return items

    async def cancel(self, batch: str) -> None:
        await self._do(lambda: self._client.batches.cancel(batch))

    async def _do(self, ask: Callable[[], Awaitable[T]]) -> T:
        import openai

        try:
            return await ask()
        except openai.APIError as error:
            raise self._fault(error) from None
        except http_errors() as error:
            raise broken(error) from None


class AnthropicBatches:
    """A batch is one request with all the others in it.

    client  an `anthropic.AsyncAnthropic`;  fault: translates its errors
    """

    most, size = 100_000, 240_000_000

    def __init__(self, client: Any, fault: Callable[[Any], Fault]) -> None:
        self._client, self._fault = client, fault

    def sent(self, request: HttpRequest) -> HttpRequest:
        return request

    def mends(self, request: HttpRequest, fault: Fault) -> bool:
        return False

    async def submit(self, path: str, items: Sequence[tuple[str, Body]], wave: str) -> str:
        requests = [{"custom_id": id, "params": body} for id, body in items]
        return str((await self._do(lambda: self._client.messages.batches.create(requests=requests))).id)

    async def find(self, wave: str, size: int, age: float) -> str | Literal["later"] | None:
        """Find it by its requests, since batches have no name: of the batches of this size made since then, the one
        whose requests have its name."""
        return await self._do(lambda: self._found(wave, size, age))

    async def _found(self, wave: str, size: int, age: float) -> str | Literal["later"] | None:
        later = False
        page, now = await _listed(self._client.messages.batches)
        async for batch in page:
            created = batch.created_at if isinstance(batch.created_at, datetime) else datetime.fromisoformat(str(batch.created_at))
            if created.timestamp() < now - age - _SKEW:
                break
            if _size(batch.request_counts) != size:
                continue
            if batch.processing_status != "ended":  # its requests are known when their results are
                later = True
            elif any(id.endswith(wave) for id in await self.results(batch.id)):
                return str(batch.id)
        return "later" if later else None

    async def status(self, batch: str) -> Status:
        found = await self._do(lambda: self._client.messages.batches.retrieve(batch))
        total = _size(found.request_counts)
        return Status(total - found.request_counts.processing, total, found.processing_status == "ended")

    async def results(self, batch: str) -> Mapping[str, Item]:
        async def read() -> bytes:
            async with self._client.messages.batches.with_streaming_response.results(batch) as response:
                return await response.read()

        return _items(await self._do(read), _of_anthropic)

    async def cancel(self, batch: str) -> None:
        await self._do(lambda: self._client.messages.batches.cancel(batch))

    async def _do(self, ask: Callable[[], Awaitable[T]]) -> T:
        import anthropic

        try:
            return await ask()
        except anthropic.APIError as error:
            raise self._fault(error) from None
        except anthropic.AnthropicError as error:  # the SDK's own: the batch has no results, or none any longer
            raise Fault(str(error), status=404) from None
        except http_errors() as error:
            raise broken(error) from None


async def _listed(batches: Any) -> tuple[Any, float]:
    """Return the first page of a server's batches, and the time by the server's own clock."""
    raw = await batches.with_raw_response.list(limit=100)
    page = raw.parse()
    return await page if isawaitable(page) else page, _time_of(raw.headers.get("date", ""))


def _time_of(date: str) -> float:
    """Return the time that an answer's header tells; that of this machine if it tells none."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return time.time()


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
