"""A small HTTP/1.1 server for stand-ins of APIs: one thread, keep-alive, server-sent events, and planted faults on the wire."""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A JSON body, or the events of a stream."""

    body: Body
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[Body] | None = None
    sentinel: str | None = "[DONE]"
    data: bytes | None = None
    counted: bool = True  # False: it reports no usage that anybody adds up


@dataclass(frozen=True)
class Planted:
    """A fault: what happens instead of the answer.

    kind   "status", "reset" (no answer, the connection is gone), "truncate" (half of a body), "garbage" (a body that is not JSON),
           "shape" (JSON without what was asked for), "model" (another model's answer), "delay" (late), "slow" (in small pieces),
           "half-stream" (a stream that breaks off), "error" (one that ends with `body`, an error), "kill" (the server is gone, with all its connections)
    until  ends a delay before its `seconds` are over
    """

    kind: str
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    until: Callable[[], bool] = lambda: False
    body: Body | None = None


@dataclass
class SeenRequest:
    """A request, and what it was told: `reported` is its answer's usage if the answer goes out whole; of a list that is answered as a
    stream, that of the `answers` that go out.

    It is there before the answer's last bytes are sent, so whoever has the answer can read it here.
    """

    path: str
    body: Body
    headers: Mapping[str, str]
    fault: str | None = None
    reported: Body | None = None
    answers: int = 0


class Server:
    """`handle(path, body)` gives the answer of each request; `plant(number, path, body)` what goes wrong with it."""

    def __init__(
        self,
        handle: Callable[[str, Body], Answer],
        *,
        plant: Callable[[int, str, Body], Planted | None] = lambda n, path, body: None,
        get: Mapping[str, Body | Answer] | None = None,
        getting: Callable[[str], Answer | None] = lambda path: None,
    ) -> None:
        self.handle, self.plant, self.get, self.getting = handle, plant, dict(get or {}), getting
        self.seen: list[SeenRequest] = []
        self.got: list[SeenRequest] = []  # what was asked by GET
        self.open_connections = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._tasks: set[Any] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._work, name="stand-in", daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:  # it was killed
            pass
        self._thread.join(60)

    def restart(self) -> None:
        """Break all connections, as a server does that is started anew."""

        async def broken() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(broken(), self._loop).result(10)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connection, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end(server))
        self._loop.close()

    async def _end(self, server: asyncio.Server) -> None:
        """Breaks all connections, also those that were accepted just now: a closed server would leave their sockets open for ever."""
        while any(getattr(task.get_coro(), "__name__", "") == "_accept_connection2" for task in asyncio.all_tasks()):
            await asyncio.sleep(0)
        server.close()
        for _ in range(3):
            await asyncio.sleep(0)
            for writer in list(self._writers):
                writer.transport.abort()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open_connections -= 1
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False when the connection is over."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET":
            self.got.append(SeenRequest(path, {}, headers))
            found = self.getting(path) or self.get.get(path, Answer({"error": {"message": f"no {path}"}}, 404))
            await self._send(writer, found if isinstance(found, Answer) else Answer(found))
            return True
        multipart = headers.get("content-type", "").startswith("multipart/")
        body: Body = _parts(headers["content-type"], data) if multipart else json.loads(data) if data else {}
        number = len(self.seen)
        seen = SeenRequest(path, body, headers)
        self.seen.append(seen)
        fault = self.plant(number, path, body)
        seen.fault = fault.kind if fault is not None else None
        if fault is not None and fault.kind == "kill":
            self._loop.stop()
            writer.transport.abort()
            return False
        if fault is not None and fault.kind in ("status", "reset"):
            if fault.kind == "reset":
                writer.transport.abort()
                return False
            await self._send(writer, Answer(fault.body or {"error": {"message": f"planted {fault.status}"}}, fault.status, fault.headers))
            return True
        if fault is not None and fault.kind == "delay":
            late = self._loop.time() + fault.seconds
            while self._loop.time() < late and not fault.until():
                await asyncio.sleep(min(fault.seconds, 0.005))
                if reader.at_eof():
                    return False  # nobody waits any more
        try:
            answer = self.handle(path, body)
        except Exception as error:  # a mistake in the stand-in: the test's message shows it
            answer = Answer({"error": {"message": f"the stand-in failed: {traceback.format_exc()[-300:]} {error}"}}, 400)
        return await (self._stream if answer.events is not None else self._faulty)(writer, answer, fault, seen)

    async def _faulty(self, writer: asyncio.StreamWriter, answer: Answer, fault: Planted | None, seen: SeenRequest) -> bool:
        kind = fault.kind if fault is not None and answer.status == 200 else ""
        if kind == "truncate":
            data = json.dumps(answer.body).encode()
            writer.write(_head(200, {"content-length": str(len(data))}) + data[: len(data) // 2])
            await writer.drain()
            return False
        if kind == "garbage":
            writer.write(_head(200, {"content-length": "9"}) + b"<html>?!\n")
            await writer.drain()
            return True
        body = answer.body
        if kind == "shape":
            body = {k: v for k, v in body.items() if k in ("usage", "model", "id")}
        elif kind == "model":
            body = {**body, "model": "another-model"}
        seen.reported = _reported(answer)
        await self._send(writer, Answer(body, answer.status, answer.headers))
        return True

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        data = json.dumps(answer.body).encode() if answer.data is None else answer.data
        writer.write(_head(answer.status, {"content-length": str(len(data)), **answer.headers}) + data)
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter, answer: Answer, fault: Planted | None, seen: SeenRequest) -> bool:
        writer.write(_head(answer.status, {"transfer-encoding": "chunked", **answer.headers}, "text/event-stream"))
        if fault is not None and fault.kind == "shape":
            answer = replace(answer, events=[{k: e[k] for k in ("model", "id") if k in e} for e in answer.events or ()])
        events = [f"data: {json.dumps(e)}\n\n" for e in answer.events or ()]
        if answer.sentinel is not None:
            events.append(f"data: {answer.sentinel}\n\n")
        for i, event in enumerate(events):
            if fault is not None and fault.kind in ("half-stream", "truncate", "garbage") and i >= len(events) // 3:  # before the answer's end
                writer.transport.abort()
                return False
            if fault is not None and fault.kind == "error" and i >= len(events) // 2:
                data = f"data: {json.dumps(fault.body)}\n\n".encode()
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n")
                await writer.drain()
                return True
            if fault is not None and fault.kind == "slow":
                await asyncio.sleep(fault.seconds)
            ended = None if i == len(answer.events or ()) else _ended((answer.events or ())[i]) if answer.counted else None
            if ended is not None:
                seen.answers += 1
                seen.reported = {
                    k: (seen.reported or {}).get(k, 0) + (ended[k] if type(ended[k]) is int else 0) for k in ("prompt_tokens", "completion_tokens")
                }
            elif i == len(events) - 1 and not seen.answers:
                seen.reported = _reported(answer)
            data = event.encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _parts(kind: str, data: bytes) -> Body:
    """The fields of a form, files as bytes."""
    boundary = kind.partition("boundary=")[2].strip('"').encode()
    found: Body = {}
    for part in data.split(b"--" + boundary)[1:-1]:
        head, _, content = part.strip(b"\r\n").partition(b"\r\n\r\n")
        name = head.decode().partition(' name="')[2].partition('"')[0]
        found[name] = content if b"filename=" in head else content.decode()
    return found


def _ended(event: Body) -> Body | None:
    """The usage of a list's member whose answer an event ends."""
    meta = event.get("meta_info")
    if meta is not None:
        return meta if "index" in event and meta["finish_reason"] is not None else None
    return event.get("usage") if event.get("choices") and event["choices"][0].get("finish_reason") is not None else None


def _reported(answer: Answer) -> Body | None:
    """The usage that an answer tells: OpenAI's, or SGLang's of one prompt or of several."""
    if not answer.counted:
        return None
    if answer.events is not None:
        last = next((e for e in reversed(answer.events) if e.get("usage") or e.get("meta_info")), {})
        return last.get("usage") or last.get("meta_info")
    if isinstance(answer.body, list):
        metas = [item["meta_info"] for item in answer.body]
        return {k: sum(m[k] for m in metas) for k in ("prompt_tokens", "completion_tokens")}
    return answer.body.get("usage") or answer.body.get("meta_info")


def _head(status: int, headers: Mapping[str, str], kind: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", *[f"{k}: {v}" for k, v in headers.items()]]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
