"""The processes of replicas: starting, watching and ending them. What runs in one: child.py.

A replica says on its line that it lives, from a thread of its own, and once what it has loaded. One that is silent for
too long, because it is stopped or because native code keeps its interpreter's lock, is killed: what waits for it then
goes on elsewhere, as after any other end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from lmc.backend.pipe.client import PipeBackend
from lmc.errors import BackendError, ModelLoadError

CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from lmc.backend.replicas.child import main; main()"
BEAT = b"\n"  # also the end of a message, so that it may come between any two
EVERY = 0.25  # seconds from one beat to the next
GRACE = 5.0  # grace period for a replica to end by itself, in seconds
SILENT = 6.0
"""Seconds without a beat after which a replica counts as hung, as a rank does: a busy machine delays beats by less, and
native code that keeps the interpreter's lock for as long, while all requests wait, is as good as hung."""
SILENT_LOADING = 120.0
"""The same while it loads: importing and compiling may keep the lock for long."""


class Process:
    """The program's handle of a replica. options: of lmc.Engine; number: for people."""

    def __init__(self, number: int, options: Mapping[str, Any], threads: int) -> None:
        self.number, self.device = number, str(options["device"])
        self._owner = os.getpid()
        (self._line, its_line), (self._connection, its_connection) = socket.socketpair(), Pipe()
        told = {
            "leader": os.getpid(), "line": its_line.fileno(), "pipe": its_connection.fileno(), "options": dict(options), "threads": threads,
        }  # fmt: skip
        with its_line, its_connection:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", CODE, json.dumps(sys.path), json.dumps(told)],
                    stdin=subprocess.DEVNULL, stdout=_errors(), pass_fds=(its_line.fileno(), its_connection.fileno()), start_new_session=True,
                )  # fmt: skip
            except BaseException:
                self._line.close()
                self._connection.close()
                raise
        self.topology: list[str] = []
        self._loaded: Future[dict[str, Any]] = Future()
        self._hung = 0.0  # seconds for which it had been silent when it was killed for that
        threading.Thread(target=self._watch, name=f"lmc-replica-{number}", daemon=True).start()

    @property
    def id(self) -> int:
        return self._process.pid

    def backend(self) -> PipeBackend:
        """Return its engine, once it is loaded. Raises ModelLoadError."""
        said = self._loaded.result()
        if "failed" in said:
            raise ModelLoadError(f"replica {self.number} on {self.device}: {said['failed']}")
        self.topology = said.get("topology", [])
        try:
            return PipeBackend(self._connection)
        except BackendError:
            raise ModelLoadError(f"replica {self.number} {self.described} while it loaded") from None

    @property
    def hung(self) -> bool:
        """Return whether it was killed because it was silent."""
        return self._hung > 0

    @property
    def described(self) -> str:
        """Return how it ended, as the end of a sentence about it."""
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "has closed its line"
        if self._hung:
            return f"had not been running for {self._hung:.0f} s, and was ended"
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"

    def close(self, until: float) -> None:
        """Return when it has gone: it ends with its connection, or is killed at that time (time.monotonic())."""
        if self._owner != os.getpid():
            return  # in a child of fork()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()) if self.topology else 0.0)
        self.kill()

    def kill(self) -> None:
        """Kill it; its children end with it."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def _watch(self) -> None:
        """Read its line until it has ended, and kill it when it is silent for too long."""
        heard, looks = b"", 0
        self._line.settimeout(EVERY)
        while True:
            try:
                received = self._line.recv(4096)
            except TimeoutError:
                looks += 1  # times, not time: while this process itself was stopped, nobody was silent
                if looks * EVERY > (SILENT if self._loaded.done() else SILENT_LOADING) and not self._hung:
                    self._hung = looks * EVERY
                    self._process.kill()
                if self._process.poll() is None:
                    continue
                received = b""  # it has ended, whoever else has the line
            except OSError:
                received = b""
            if not received:
                break
            looks = 0
            *messages, heard = (heard + received).split(BEAT)
            for message in filter(None, messages):
                self._loaded.set_result(json.loads(message))
        self._line.close()
        if not self._loaded.done():
            self._loaded.set_exception(ModelLoadError(f"replica {self.number} {self.described} while it loaded"))


def _errors() -> int:
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL
    except (OSError, ValueError):
        return subprocess.DEVNULL
