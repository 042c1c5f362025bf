"""One event loop on one thread, started on first use and ended by `close`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from contextvars import Context
from typing import Any

from lmc.errors import BackendError
from lmc.forking import REMEDY
from lmc.gc_tuning import few_full_collections

try:
    from uvloop import new_event_loop as _new_loop  # pyright: ignore[reportMissingImports]
except ImportError:
    from asyncio import new_event_loop as _new_loop

Closer = Callable[[], Awaitable[object]]
_COLLECTIONS = 1000
"""GC passes through young objects per full one, while coroutines run: thousands of waiting programs are no garbage."""


class LoopThread:
    """Runs coroutines for callers that do not wait. Nothing here refers to a backend, so that a dropped one can end its loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closers: list[Closer] = []
        self._collecting = ExitStack()  # entered while there are tasks
        self._closed = False
        self.error: BackendError | None = None  # why it is unusable, other than being closed

    def forked(self, parent: int) -> None:
        """Detach from the thread and connections, which are the parent's. A loop that had not begun can begin here."""
        self._lock = threading.Lock()
        if self._loop is not None:
            self._closed = True
            self.error = BackendError(f"its connections were opened by process {parent}, of which this one is a fork: {REMEDY}")

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def tasks(self) -> int:
        """Return how many coroutines are running."""
        return len(self._tasks)

    def at_close(self, closer: Closer) -> None:
        """Register a function awaited on the loop before it ends, such as closing connections."""
        self._closers.append(closer)

    def post(self, call: Callable[..., object], *args: object) -> bool:
        """Call on the loop's thread, soon; return False when the loop is closed. From any thread, never waits for the
        loop."""
        with self._lock:
            if self._closed:
                return False
            if self._loop is None:
                self._start()
            assert self._loop is not None
            self._loop.call_soon_threadsafe(call, *args, context=Context())  # the caller's would keep its run alive
        return True

    def post_if_running(self, call: Callable[..., object], *args: object) -> None:
        """As `post`, for destructors: takes no lock and starts nothing."""
        loop = self._loop
        if loop is not None and not self._closed:
            try:
                loop.call_soon_threadsafe(call, *args, context=Context())
            except RuntimeError:  # it has just ended: nothing is left to stop
                return

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Start a coroutine; on the loop's thread only."""
        task = asyncio.get_running_loop().create_task(work)
        if not self._tasks:
            self._collecting.enter_context(few_full_collections(_COLLECTIONS))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._collecting.close()

    def close(self, timeout: float | None = 10.0) -> None:
        """Cancel what runs, close resources, end the thread and wait for that; idempotent, from any thread."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():  # also in a fork, where the thread is the parent's
            return
        try:
            loop.call_soon_threadsafe(loop.stop)
        except RuntimeError:  # just closed by another thread
            pass
        if timeout is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _start(self) -> None:
        self._loop = Context().run(_new_loop)  # it keeps the context of its creation
        self._thread = threading.Thread(target=self._work, args=(self._loop,), name=self._name, daemon=True)
        self._thread.start()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(self._shutdown())
        finally:
            loop.close()

    async def _shutdown(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*[closer() for closer in self._closers], return_exceptions=True)
        loop = asyncio.get_running_loop()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # tasks begun by SDKs
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await loop.shutdown_asyncgens()
        await loop.shutdown_default_executor()  # where the SDKs look up names
