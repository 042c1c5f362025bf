"""The application during startup: while the model is loading, every request gets a 503 that says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from lmc.serve.errors import ApiError
from lmc.serve.gate import request_id
from lmc.serve.messages_api import error_body_at


class Front:
    """An ASGI application that is made by `make`, on a thread of its own, after the server has begun to listen.

    ready   called on the server's loop when the application is ready
    failed  called there when `make` has raised; `error` is its exception
    """

    def __init__(self, make: Callable[[], Starlette], ready: Callable[[], None], failed: Callable[[], None]) -> None:
        self._make, self._ready, self._failed = make, ready, failed
        self._app: Starlette | None = None
        self._open = AsyncExitStack()
        self.error: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        if self._app is not None:
            return await self._app(scope, receive, send)
        if scope["type"] == "http":
            await _starting(scope)(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        starting = asyncio.create_task(self._start())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        starting.cancel()
        await self._open.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        try:
            app = await _on_a_thread(self._make)
            await self._open.enter_async_context(app.router.lifespan_context(app))
        except Exception as error:  # raised by the command when the server has ended
            self.error = error
            return self._failed()
        self._app = app
        self._ready()


_STARTING = "lmc-starting"


def is_starting() -> bool:
    """Return whether an application of this process is still being made."""
    return any(thread.name == _STARTING for thread in threading.enumerate())


async def _on_a_thread(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, run on a thread that does not delay the end of the process."""
    future = Future[Any]()
    future.set_running_or_notify_cancel()  # whoever no longer waits for it does not cancel it

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # passed to the future
            future.set_exception(error)

    threading.Thread(target=run, name=_STARTING, daemon=True).start()
    return await asyncio.wrap_future(future)


def _starting(scope: Scope) -> JSONResponse:
    headers = {"X-Request-Id": request_id(scope)}
    if scope["path"] == "/health/live":
        return JSONResponse({"status": "starting"}, headers=headers)
    if scope["path"] in ("/health", "/health/ready"):
        return JSONResponse({"status": "starting", "reason": "the model is being loaded"}, 503, headers=headers)
    error = ApiError(503, "the model is being loaded; try again later")
    return JSONResponse(error_body_at(scope["path"], error), 503, headers={**headers, **error.headers})
