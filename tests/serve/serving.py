"""Servers for tests: in this process without a socket, by hand message by message, or on a thread with a real port."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import lmc
from lmc.serve.app import create_app
from lmc.serve.settings import ServerSettings

ROOT = Path(__file__).parent.parent.parent
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def settings(**limits: Any) -> ServerSettings:
    return ServerSettings(("mock",), **limits)


@asynccontextmanager
async def running(backend: Any = None, programs: Any = (), **limits: Any):
    """The application, started up."""
    app = create_app(lmc.Mock() if backend is None else backend, settings(**limits), programs)
    async with app.router.lifespan_context(app):
        yield app


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://test", timeout=20)


@asynccontextmanager
async def talking(backend: Any = None, programs: Any = (), **limits: Any):
    """A client of an application in this process."""
    async with running(backend, programs, **limits) as app, client_of(app) as client:
        yield client


def talk(work: Callable[[httpx.AsyncClient], Awaitable[Any]], backend: Any = None, programs: Any = (), **limits: Any) -> Any:
    """`await work(client)`, with such a client."""

    async def main() -> Any:
        async with talking(backend, programs, **limits) as client:
            return await work(client)

    return asyncio.run(main())


def post(path: str, body: Any, backend: Any = None, programs: Any = (), headers: Any = None, **limits: Any) -> httpx.Response:
    """The answer to one request."""
    how: dict[str, Any] = {"content": body} if isinstance(body, bytes | str) else {"json": body}
    return talk(lambda client: client.post(path, headers={"content-type": "application/json", **(headers or {})}, **how), backend, programs, **limits)


def chat(backend: Any = None, **fields: Any) -> httpx.Response:
    return post("/v1/chat/completions", {**HELLO, **fields}, backend)


def complete(backend: Any = None, **fields: Any) -> httpx.Response:
    return post("/v1/completions", {"prompt": "Hello", **fields}, backend)


def events(text: str) -> list[Any]:
    """The data of server-sent events; JSON but for the last word of OpenAI's streams."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [d if d == "[DONE]" else json.loads(d) for d in data]


class ByHand:
    """One request, its messages sent and received one by one."""

    def __init__(self, app: Any, path: str, body: bytes | None, headers: dict[str, str] | None = None) -> None:
        raw = [(k.lower().encode(), v.encode()) for k, v in {"content-type": "application/json", **(headers or {})}.items()]
        self.scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
            "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "headers": raw,
            "client": ("127.0.0.1", 1), "server": ("test", 80),
        }  # fmt: skip
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.blocked = asyncio.Event()  # set: the client reads nothing any more
        self.stuck = False  # whether something waits for it to read
        self.broken: OSError | None = None  # what sending to it raises
        if body is not None:
            self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.task = asyncio.ensure_future(app(self.scope, self.incoming.get, self._take))

    async def _take(self, message: dict[str, Any]) -> None:
        if self.blocked.is_set():
            self.stuck = True
            await asyncio.Event().wait()
        if self.broken is not None:
            raise self.broken
        self.sent.append(message)

    def leave(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return next((m["status"] for m in self.sent if m["type"] == "http.response.start"), None)

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.sent).decode()


def metric(app: Any, name: str) -> float:
    """A number of an application's metrics; 0 if it is not there."""
    lines = app.state.metrics.text().decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(name + " ")), 0.0)


HOUR = 3600.0


class TimeLimits:
    """The time limits of `HOUR` seconds that a server sets meanwhile. They end when the test says so, and not before, however slow the machine is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._began: list[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = []
        original = asyncio.timeout

        def timeout(seconds: float | None) -> asyncio.Timeout:
            made = original(seconds)
            if seconds == HOUR:
                self._began.append((asyncio.get_running_loop(), made))
            return made

        monkeypatch.setattr(asyncio, "timeout", timeout)

    def end(self) -> None:
        """As if the hour had passed, from any thread."""
        for loop, limit in self._began:
            loop.call_soon_threadsafe(self._end, loop, limit)

    @staticmethod
    def _end(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
        with suppress(RuntimeError):  # what it was for is done
            limit.reschedule(loop.time())


class FakeTime:
    """The clock of the running loop, which a test sets forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop, self._ahead = asyncio.get_running_loop(), 0.0
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self._ahead)

    def pass_(self, seconds: float) -> None:
        self._ahead += seconds


async def until(ready: Callable[[], Any], seconds: float = 60.0) -> None:
    """Waits until `ready()`; fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while not ready():
            await asyncio.sleep(0.005)


@contextmanager
def on_a_port(backend: Any = None, programs: Any = (), **limits: Any):
    """A server on a thread; its URL."""
    from lmc.serve.main import DrainingServer, listen

    app = create_app(lmc.Mock() if backend is None else backend, settings(**limits), programs)
    where = listen("127.0.0.1", 0)
    server = DrainingServer(app, app.state.entrance, drain=10)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [where]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.005)
            assert thread.is_alive()
        yield f"http://127.0.0.1:{where.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        where.close()


@contextmanager
def supervised(*programs: str, backend: str = "mock", **environment: str):
    """The process of `lmc serve --restart`, a function that reads on to the next URL that it says, and what it said before."""
    command = [sys.executable, "-m", "lmc", "serve", "--backend", backend, "--port", "0", "--restart", *programs]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment})
    assert process.stderr is not None
    said = list[str]()

    def url() -> str:
        while " at http" not in (line := process.stderr.readline()):
            assert line, said
            said.append(line)
        return line.split(" at ")[1].strip()

    try:
        yield process, url, said
    finally:
        process.kill()
        process.wait(60)
        process.stderr.close()
