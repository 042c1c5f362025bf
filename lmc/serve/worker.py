"""A worker process of `lmc serve --workers`: runs one request's program at a time, over the backend of the server's process.

    server ══ control (frames.py) ══► Published ──► PipeBackend ══ pipe ══► the server's backend

It ends when the server does. It cannot stop a program that does not end; the server then kills it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import math
import os
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lmc
from lmc import userfiles
from lmc.backend.pipe.client import PipeBackend
from lmc.backend.usage import Usage
from lmc.config import settings
from lmc.errors import LmcError, message_of
from lmc.observing import observer, within
from lmc.serve import frames
from lmc.serve.errors import ApiError, as_api_error
from lmc.serve.gate import Endpoint, EndpointCall, EndpointReply
from lmc.serve.metrics import AHEAD
from lmc.serve.programs import ProgramLoop, Published
from lmc.serve.spinning import RunningProgram, stack, threads_of

_THREADS = 8
_LIBRARIES = ("<", str(Path(lmc.__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
_EVERY = 0.01  # seconds between checks of a program that must end
_ROOM = 4, 4 << 30  # address space of a request: a factor of its memory, and extra bytes: threads and libraries reserve more than they use


def main() -> None:
    """Run a worker according to `sys.argv`: the server's process, its two sockets, and the programs."""
    told = json.loads(sys.argv[2])
    _end_with(told["server"])
    if settings().otel:
        from lmc.integrations.otel import provide

        provide()
    sys.argv[1:] = []  # a program's module may read them
    connection = Connection(told["pipe"])
    asyncio.run(_serve(socket.socket(fileno=told["control"]), connection, told))


def _end_with(server: int) -> None:
    """End this process when the server's does, even if a program blocks the rest of it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != server:  # it has gone meanwhile
        os._exit(0)


async def _serve(control: socket.socket, connection: Connection, told: Mapping[str, Any]) -> None:
    reader, writer = await asyncio.open_connection(sock=control)
    try:
        worker = ProgramWorker(writer, PipeBackend(connection), told)
    except (Exception, SystemExit) as error:  # error of a program's file; shown where the server was started
        reason = error.message if isinstance(error, LmcError) else f"{type(error).__name__}: {message_of(error)}"
        frames.write(writer, {"failed": reason})
        await writer.drain()
        os._exit(1)
    frames.write(writer, {"ready": True})
    while (frame := await frames.read(reader)) is not None:
        worker.take(*frame)
    os._exit(0)  # even if programs have left threads running


class ProgramWorker:
    """Programs, and the current request. On the control loop only."""

    def __init__(self, writer: asyncio.StreamWriter, backend: PipeBackend, told: Mapping[str, Any]) -> None:
        self._writer = writer
        self._left: list[RunningProgram] = []
        self._programs: dict[str, Published] = {}
        loop, pool = ProgramLoop(), ThreadPoolExecutor(_THREADS, thread_name_prefix="lmc-worker")
        for target in told["targets"]:
            journals = None if told["journals"] is None else Path(told["journals"])
            made = Published(userfiles.load_program(target), backend, loop, pool, self._left.append, journals, told["hosts"])
            self._programs[made.name] = made
        self._cpu: int | None = told["cpu"]
        _dump_no_core()
        if told["memory"] is not None and sys.platform == "linux":
            _limit_address_space(told["memory"])
        self._answering: asyncio.Task[None] | None = None
        self._cancelled = False
        self._before = set(sys._current_frames())  # threads started by programs' files belong to no request
        self._wanted = asyncio.Queue[None]()
        self._told = Usage()

    def take(self, header: Mapping[str, Any], body: bytes) -> None:
        if "run" in header:
            self._wanted, self._cancelled = asyncio.Queue(), False
            self._answering = asyncio.ensure_future(self._answer(header, body))
            self._answering.add_done_callback(self._answered)
        elif "next" in header:
            self._wanted.put_nowait(None)
        elif "cancel" in header and self._answering is not None:
            self._cancelled = self._answering.cancel()

    def _say(self, header: dict[str, Any], body: bytes = b"") -> None:
        frames.write(self._writer, header, body)

    def _answered(self, _: asyncio.Task[None]) -> None:
        self._ending = asyncio.ensure_future(self._until_it_ends())

    async def _answer(self, header: Mapping[str, Any], body: bytes) -> None:
        published = self._programs[header["program"]]
        endpoints = {"run": published.run, "batch": published.batch, "stream": published.stream, "resume": published.resume}
        call = EndpointCall(body, header["path"], header["query"], share=header["share"])  # what it asks is charged by the server's process
        _limit_cpu(self._cpu)
        with within(header["trace"]):
            await self._run(endpoints[header["run"]], call, header["id"])

    async def _run(self, endpoint: Endpoint, call: EndpointCall, number: str) -> None:
        try:
            answer = await endpoint(call)
            if isinstance(answer, EndpointReply):
                return self._say({"reply": answer.status, "content_type": answer.content_type}, answer.body)
            try:
                self._say({"events": True})
                async with aclosing(answer.stream) as stream:
                    async for chunk in stream:
                        await self._wanted.get()
                        self._say({"chunk": True}, chunk)
                await self._wanted.get()
                self._say({"end": True})
            finally:
                answer.cancel()
        except Exception as error:
            self._say({"error": _data_of(as_api_error(error, number))})

    async def _until_it_ends(self) -> None:
        """Report the request as over when no thread executes code of a cancelled run. The server does not wait
        forever."""
        while any(list(threads_of(run)) for run in self._left) or (self._cancelled and self._executes_programs()):
            await asyncio.sleep(_EVERY)
        self._left.clear()
        self._answering = None
        _limit_cpu(None)
        self._say({"over": self._news()})
        if (watching := observer()) is not None:  # the server may end this process at any moment
            asyncio.get_running_loop().run_in_executor(None, watching.flush)

    def _executes_programs(self) -> bool:
        """Return whether a thread started by requests executes code that is neither lmc's nor a library's: a program
        may have started it."""
        own = threading.get_ident()
        threads = [frame for thread, frame in sys._current_frames().items() if thread != own and thread not in self._before]
        return any(not outer.f_code.co_filename.startswith(_LIBRARIES) for frame in threads for outer in stack(frame))

    def _news(self) -> list[int]:
        """Return the usage ahead since the last call."""
        now, before = sum((each.ahead for each in self._programs.values()), Usage()), self._told
        self._told = now
        return [getattr(now, name) - getattr(before, name) for name in AHEAD]


def _data_of(error: ApiError) -> dict[str, Any]:
    return {"status": error.status, "message": error.message, "param": error.param, "code": error.code, "kind": error.kind, "headers": error.headers}


def _dump_no_core() -> None:
    """Disable core dumps: a killed worker leaves no file behind."""
    import resource  # there are workers on POSIX only

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _limit_cpu(seconds: int | None) -> None:
    """Let the system end this process (SIGXCPU) after so much more CPU time; None: no limit."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = hard
    if seconds is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = math.ceil(used.ru_utime + used.ru_stime) + seconds
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _limit_address_space(memory: int) -> None:
    """Limit the address space: allocating far more than its memory at once raises MemoryError; the server watches the
    real usage."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    times, more = _ROOM
    soft = _address_space() + times * memory + more
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
