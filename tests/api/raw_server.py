"""A server of APIs whose answers are bytes: what a test's coroutine writes, well-formed or not, over TLS or IPv6 if wanted."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RawRequest:
    """A request as it came; `number` counts those of this method."""

    number: int
    connection: int
    method: str
    path: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.data)


Reply = Callable[[RawRequest, asyncio.StreamWriter], Awaitable[bool]]
"""Writes an answer; False: the connection is over."""


class RawServer:
    """Answers requests by `reply`, on as many connections as come. `seen`: all that came."""

    def __init__(self, reply: Reply, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._reply, self._host, self._tls = reply, host, tls
        self.seen: list[RawRequest] = []
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._tasks: set[Any] = set()
        self._thread = threading.Thread(target=self._work, name="raw-server", daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    def of(self, method: str) -> list[RawRequest]:
        return [request for request in self.seen if request.method == method]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connection, self._host, 0, ssl=self._tls))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number, task = self.connections, asyncio.current_task()
        self._tasks.add(task)
        try:
            while (request := await self._read(reader, number)) is not None and await self._reply(request, writer):
                await writer.drain()
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, connection: int) -> RawRequest | None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        found = RawRequest(len(self.of(method)), connection, method, path, headers, data)
        self.seen.append(found)
        return found


def head(status: str = "200 OK", version: str = "1.1", **headers: object) -> bytes:
    lines = [f"HTTP/{version} {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(data: bytes, status: str = "200 OK", version: str = "1.1", **headers: object) -> bytes:
    """An answer with its length."""
    return head(status, version, **{"content_type": "application/json", "content_length": len(data), **headers}) + data


# -- what each API answers ---------------------------------------------------------------------------------------------

TEXT = "one two thréé"
KINDS = ("openai", "anthropic", "sglang", "vllm")
_USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
_ENDS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}  # Anthropic's names


def answered(kind: str, text: str = TEXT, finish: str = "stop", usage: Any = True) -> dict[str, Any]:
    """The body of an answer of an API."""
    told = _USAGE if usage is True else usage
    if kind == "sglang":
        return {"text": text, "meta_info": {"id": "1", "finish_reason": {"type": finish}, **(told or {})}}
    if kind == "anthropic":
        counts = {"input_tokens": 5, "output_tokens": 3} if usage is True else usage
        block = {"type": "text", "text": text}
        return {"id": "1", "type": "message", "model": "m", "content": [block], "stop_reason": _ENDS.get(finish, finish), "usage": counts}
    said = {"message": {"role": "assistant", "content": text}} if kind == "openai" else {"text": text}
    return {"id": "1", "model": "m", "choices": [{"index": 0, **said, "finish_reason": finish}], "usage": told}


def streamed(kind: str, text: str = TEXT, finish: str = "stop", usage: Any = True) -> list[dict[str, Any]]:
    """The events of the same answer."""
    whole = answered(kind, text, finish, usage)
    if kind == "sglang":
        meta = {**whole["meta_info"], "finish_reason": None}
        return [{"text": text[:5], "meta_info": meta}, whole]
    if kind == "anthropic":
        deltas = [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}} for part in (text[:5], text[5:])]
        counts = whole["usage"]
        return [
            {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None, "usage": counts and {**counts, "output_tokens": 0}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *deltas,
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"]}, "usage": counts and {"output_tokens": counts["output_tokens"]}},
            {"type": "message_stop"},
        ]
    piece = lambda part: {"delta": {"content": part}} if kind == "openai" else {"text": part}
    chunks = [{"index": 0, **piece(part), "finish_reason": end} for part, end in ((text[:5], None), (text[5:], None), ("", finish))]
    return [*({"id": "1", "model": "m", "choices": [chunk]} for chunk in chunks), {"id": "1", "model": "m", "choices": [], "usage": whole["usage"]}]


def sse(kind: str, events: list[dict[str, Any]], end: str = "\n", *, done: bool = True) -> bytes:
    """Events as an API writes them; `end` of a line."""
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}{end}{end}" for event in events]
    return "".join([*lines, *([f"data: [DONE]{end}{end}"] if done and kind != "anthropic" else [])]).encode()


INFO = {"/model_info": {"model_path": "some/model"}, "/v1/models": {"data": [{"id": "m", "root": "none", "max_model_len": 4096}]}}


def api(kind: str, answer: Callable[[RawRequest, asyncio.StreamWriter], Awaitable[bool]], **options: Any) -> RawServer:
    """A server of an API whose answers to posts are written by `answer`."""

    async def reply(request: RawRequest, writer: asyncio.StreamWriter) -> bool:
        if request.method != "GET":
            return await answer(request, writer)
        found = INFO.get(request.path)
        writer.write(whole(json.dumps(found or {"error": "nothing here"}).encode(), "200 OK" if found else "404 Not Found"))
        return True

    return RawServer(reply, **options)


def writes(data: bytes, *, keeps: bool = True) -> Callable[[RawRequest, asyncio.StreamWriter], Awaitable[bool]]:
    """Answers that are always the same bytes."""

    async def answer(request: RawRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        return keeps

    return answer


def streams(data: bytes, size: int = 0, **headers: object) -> Callable[[RawRequest, asyncio.StreamWriter], Awaitable[bool]]:
    """Streams that are always the same bytes, in pieces of a size."""

    async def answer(request: RawRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(head(content_type="text/event-stream", connection="close", **headers))
        for at in range(0, len(data), size or len(data)):
            writer.write(data[at : at + (size or len(data))])
            await writer.drain()
        return False

    return answer
