"""Worker processes: each runs the program of one request at a time, and is killed and replaced if that does not end
with its request.

    request ──► a free worker ──► reply, or events one by one ──► "over" ──► free again
                    │ client gone, time-out, drain: cancelled; not over in a second ──► killed ─┐
                    │ too much memory or processor time, os._exit, a crash ─────────────────────┴─► another in its place

The engine stays in this process; a worker's requests are cancelled and released when the worker ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Collection, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from lmc.backend.base import Backend
from lmc.backend.pipe.server import PipeServer
from lmc.backend.usage import MeteredAccount, Usage
from lmc.errors import ProgramError
from lmc.frontend.interpreter import Function
from lmc.observing import observer
from lmc.serve import frames
from lmc.serve.errors import ApiError
from lmc.serve.gate import EndpointCall, EndpointReply, Events
from lmc.serve.metrics import AHEAD, Metrics
from lmc.serve.programs import DescribedProgram
from lmc.serve.spinning import KEPT
from lmc.serve.supervisor import SOCKET

log = logging.getLogger("lmc.serve")

GRACE = 1.0  # seconds that an abandoned program has to end
_LOOK = 0.05  # seconds between checks of workers' memory
_LATEST = 5.0  # most seconds before a worker that did not begin is replaced
_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from lmc.serve.worker import main; main()"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of worker processes.

    targets  FILE.py:FUNCTION or FILE.lmcp of each program: workers load them for themselves
    count    workers, and so concurrent programs (a batch is one)
    memory   bytes by which a worker's resident memory, including its children's, may grow while it runs programs; None:
             no limit
    cpu      CPU seconds of one request; None: no limit
    """

    targets: Sequence[str]
    count: int = 4
    memory: int | None = 2 << 30
    cpu: int | None = None

    @property
    def possible(self) -> bool:
        """Return whether this system supports workers."""
        return hasattr(os, "killpg")


class WorkerEndpoints(DescribedProgram):
    """A program's endpoints, answered by workers. A request's errors are reported by its worker."""

    def __init__(self, function: Function, workers: Workers, pool: Executor, journals: Path | None) -> None:
        super().__init__(function, pool, journals)
        self.run, self.batch, self.stream, self.resume = (partial(workers.answer, self.name, how) for how in ("run", "batch", "stream", "resume"))

    def close(self) -> None:
        """Do nothing: the workers are closed together."""


class Workers:
    """All worker processes of a server. On its loop only."""

    def __init__(self, backend: Backend, options: WorkerOptions, metrics: Metrics, journals: Path | None = None, hosts: Collection[str] = ()) -> None:
        self._backend, self._options, self._metrics = backend, options, metrics
        self._journals = None if journals is None else journals.absolute()  # a program may change the directory
        self._hosts = hosts
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()  # the one that ran a program last has it warm
        self._living: set[_Worker] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing = ""  # why workers fail to start
        self.ahead = Usage()

    async def start(self) -> None:
        """Start all workers; return when they can answer. Raises ProgramError if one does not begin."""
        first = [asyncio.get_running_loop().create_future() for _ in range(self._options.count)]
        for each in first:
            self._spawn(self._keep(each))
        if self._options.memory is not None:
            self._spawn(self._watch_memory(self._options.memory))
        try:
            await asyncio.gather(*first)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Kill all workers; return when they have gone and the engine has released everything they held."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in list(self._living):
            worker.end("closed")
            await worker.gone()
        self._living.clear()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- processes

    async def _keep(self, first: asyncio.Future[None]) -> None:
        """Keep one worker after another running. `first` receives whether the first begins."""
        failed = 0
        while True:
            problem = await self._life(first)
            failed = 0 if problem is None else failed + 1
            if problem is None:
                continue
            if not first.done():
                return first.set_exception(ProgramError(f"a worker did not start: {problem}"))
            self._failing = problem
            log.error("a worker did not start: %s", problem)
            await asyncio.sleep(min(_LATEST, 0.1 * 2 ** min(failed, 10)))

    async def _life(self, first: asyncio.Future[None]) -> str | None:
        """Run a worker from its beginning to its end. Return why it did not begin, if so."""
        try:
            worker = await _Worker.start(self._backend, self._options, self._journals, self._hosts)
        except OSError as error:
            return f"no process can be started: {error.strerror or error}"
        self._living.add(worker)
        try:
            problem = await worker.ready()
            if problem is not None:
                worker.end("failed")
                await worker.gone()
                return problem
            self._failing = ""
            self._metrics.workers.inc()
            self._free.put_nowait(worker)
            if not first.done():
                first.set_result(None)
            await worker.gone()
            self._metrics.workers.dec()
            self._metrics.ended_workers.labels(worker.why).inc()
            log.warning("a worker was replaced: %s %s", worker.program, worker.described)
            return None
        finally:
            if worker.has_gone:
                self._living.discard(worker)

    async def _watch_memory(self, most: int) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            for worker in self._living:
                if worker.busy and worker.grown > most:
                    worker.end("memory")

    # -- requests

    async def answer(self, program: str, how: str, call: EndpointCall) -> EndpointReply | Events:
        """Return a worker's answer. Raises ApiError; cancelling it ends the program."""
        worker = await self._taken(program)
        worker.charged_to(call.share["account"])
        worker.grace = KEPT if how == "resume" or "run" in call.query else GRACE
        trace = [] if (watching := observer()) is None else watching.headers()
        worker.say(
            {"run": how, "program": program, "path": dict(call.path), "query": dict(call.query), "id": call.id, "share": dict(call.share), "trace": trace},
            call.body,
        )
        try:
            header, body = await self._told(worker, program)
        except BaseException:
            self._leave(worker)
            raise
        if "events" in header:
            return Events(self._events(worker, program), partial(self._leave, worker))
        self._leave(worker)
        if "error" in header:
            raise _error(header["error"])
        return EndpointReply(body, header["reply"], header["content_type"])

    async def _taken(self, program: str) -> _Worker:
        while True:
            if self._failing and not any(worker.runs for worker in self._living):
                raise ApiError(503, f"{program} cannot be run now: {self._failing}")
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    worker = await self._free.get()
                if worker.runs:
                    worker.busy, worker.program = True, program
                    self._metrics.busy_workers.inc()
                    return worker

    async def _told(self, worker: _Worker, program: str) -> frames.Frame:
        """Return a worker's next message on its request. Raises ApiError if it has ended."""
        frame = await worker.hear()
        if frame is None:
            raise ApiError(500, f"{program} {worker.described}", kind="program_error")
        return frame

    async def _events(self, worker: _Worker, program: str) -> AsyncGenerator[bytes, None]:
        while True:
            worker.say({"next": True})
            header, body = await self._told(worker, program)
            if "error" in header:
                raise _error(header["error"])
            if "end" in header:
                return
            yield body

    def _leave(self, worker: _Worker) -> None:
        """Leave the worker's request, which was abandoned."""
        if worker.busy and not worker.leaving:
            worker.leaving = True
            self._spawn(self._settle(worker))

    async def _settle(self, worker: _Worker) -> None:
        """Make a worker free again when its program has ended, or kill it."""
        try:
            worker.say({"cancel": True})
            async with asyncio.timeout(worker.grace):
                while (frame := await worker.hear()) is not None and "over" not in frame[0]:
                    pass
        except TimeoutError:
            frame = None
            worker.end("abandoned")
        finally:
            worker.busy = worker.leaving = False
            self._metrics.busy_workers.dec()
        if frame is None:
            return
        self.ahead += Usage(**dict(zip(AHEAD, frame[0]["over"], strict=True)))
        if self._options.memory is not None and worker.grown > self._options.memory // 2:
            return worker.end("grown")  # before it delays a request
        self._free.put_nowait(worker)


class _Worker:
    """A process, and the messages to and from it."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: PipeServer) -> None:
        self._process, self._reader, self._writer, self._pipe = process, reader, writer, pipe
        self.has_begun = self.busy = self.leaving = False
        self.why = ""
        self.grace = GRACE  # seconds that its program has to end once abandoned
        self.program = "it"  # the program it ran last
        self._size = 0
        self._said: asyncio.Queue[frames.Frame | None] = asyncio.Queue()
        self._listening = asyncio.ensure_future(self._listen())
        self._gone = asyncio.ensure_future(self._wait())

    @classmethod
    async def start(cls, backend: Backend, options: WorkerOptions, journals: Path | None, hosts: Collection[str]) -> _Worker:
        (control, its_control), (connection, its_connection) = socket.socketpair(), Pipe()
        told = {
            "server": os.getpid(), "control": its_control.fileno(), "pipe": its_connection.fileno(),
            "targets": list(options.targets), "memory": options.memory, "cpu": options.cpu, "journals": None if journals is None else str(journals),
            "hosts": sorted(hosts),
        }  # fmt: skip
        with its_control, its_connection:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", _CODE, json.dumps(sys.path), json.dumps(told),
                    stdin=asyncio.subprocess.DEVNULL, pass_fds=(its_control.fileno(), its_connection.fileno()), start_new_session=True,
                    env={name: value for name, value in os.environ.items() if name != SOCKET},
                )  # fmt: skip
            except BaseException:  # a process that began nevertheless ends with its connection
                control.close()
                connection.close()
                raise
        reader, writer = await asyncio.open_connection(sock=control)
        return cls(process, reader, writer, PipeServer(backend, connection))

    async def ready(self) -> str | None:
        """Return None when it can answer; else why not."""
        frame = await self.hear()
        if frame is not None and "ready" in frame[0]:
            self._size, self.has_begun = _resident(self._process.pid), True
            return None
        return self.described if frame is None else str(frame[0].get("failed"))

    def say(self, header: dict[str, Any], body: bytes = b"") -> None:
        if not self._writer.is_closing():  # otherwise the reader notices
            frames.write(self._writer, header, body)

    def charged_to(self, account: str) -> None:
        """Charge its requests to an account from now on, unless that wants no notifications."""
        self._pipe.told = account.told if isinstance(account, MeteredAccount) else None

    async def hear(self) -> frames.Frame | None:
        """Return its next message; None when it has ended."""
        frame = await self._said.get()
        if frame is None:
            self._said.put_nowait(None)  # for the next read
        return frame

    async def _listen(self) -> None:
        while (frame := await frames.read(self._reader)) is not None:
            self._said.put_nowait(frame)
        await asyncio.wait((self._gone,), timeout=GRACE)
        self.end("mute")
        await self.gone()
        self._said.put_nowait(None)

    def end(self, why: str) -> None:
        """Kill it and its children."""
        if not self.has_ended:
            self.why = why
            self._kill()

    @property
    def has_ended(self) -> bool:
        return bool(self.why) or self._process.returncode is not None

    @property
    def runs(self) -> bool:
        """Return whether it has begun, and has not ended."""
        return self.has_begun and not self.has_ended

    @property
    def has_gone(self) -> bool:
        return self._gone.done()

    async def gone(self) -> None:
        """Return when the process has ended, and the engine has released everything it held, or is about to."""
        await asyncio.shield(self._gone)

    async def _wait(self) -> None:
        status = await self._process.wait()
        if not self.why or (self.why == "mute" and status != -signal.SIGKILL):  # it had ended before it was killed
            self.why = "cpu" if status == -signal.SIGXCPU else "exit" if status >= 0 else "signal"
        self._kill()  # its children
        self._pipe.close()  # also if a child of it has the other end
        self._writer.close()
        await asyncio.get_running_loop().run_in_executor(None, self._pipe.join, GRACE)

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def grown(self) -> int:
        """Return the bytes by which it and its children have grown since it began."""
        return _resident(self._process.pid) - self._size

    @property
    def described(self) -> str:
        """Return why it ended, as the end of a sentence about a program."""
        status = self._process.returncode
        if self.why in _REASONS:
            return _REASONS[self.why]
        if status is not None and status < 0:
            return f"ended its process with signal {signal.Signals(-status).name}"
        return f"ended its process (status {status})"


_REASONS = {
    "memory": "used more memory than this server allows (--worker-memory), and was ended",
    "cpu": "used more processor time than this server allows (--worker-cpu), and was ended",
    "abandoned": "went on after its client had left, and was ended",
    "grown": "left more memory in use than is good for the next request",
    "closed": "was ended with the server",
    "mute": "closed the files that its process needs, and was ended",
}


def _error(data: dict[str, Any]) -> ApiError:
    return ApiError(data.pop("status"), data.pop("message"), **data)


def _resident(pid: int) -> int:
    """Return the resident memory of a process and its descendants in bytes; 0 if the system does not report it (there
    is no /proc)."""
    found, todo, page = 0, [pid], os.sysconf("SC_PAGE_SIZE")
    while todo:
        process = todo.pop()
        with suppress(OSError):  # it has ended
            with open(f"/proc/{process}/statm") as file:
                found += int(file.read().split()[1]) * page
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children") as file:
                    todo += map(int, file.read().split())
    return found
