"""The processes of replicas: starting and ending them. What runs in one: child.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from lmc.backend.pipe.client import PipeBackend
from lmc.errors import ModelLoadError

CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from lmc.backend.replicas.child import main; main()"

_LOOK = 0.1  # seconds between checks of a silent process
GRACE = 10.0  # grace period for a replica to end by itself, in seconds


class Process:
    """The program's handle of a replica. options: of lmc.Engine; number: for people."""

    def __init__(self, number: int, options: Mapping[str, Any], threads: int) -> None:
        self.number, self.device = number, str(options["device"])
        self._owner = os.getpid()
        (self._line, its_line), (self._connection, its_connection) = Pipe(), Pipe()
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

    @property
    def id(self) -> int:
        return self._process.pid

    def backend(self) -> PipeBackend:
        """Return its engine, once it is loaded. Raises ModelLoadError."""
        while not self._line.poll(_LOOK):
            if self._process.poll() is not None and not self._line.poll(0):
                raise ModelLoadError(f"replica {self.number} {self.described} while it loaded")
        try:
            said = json.loads(self._line.recv_bytes())
        except EOFError:
            raise ModelLoadError(f"replica {self.number} {self.described} while it loaded") from None
        if "failed" in said:
            raise ModelLoadError(f"replica {self.number} on {self.device}: {said['failed']}")
        self.topology = said["topology"]
        return PipeBackend(self._connection)

    @property
    def described(self) -> str:
        """Return how it ended, as the end of a sentence about it."""
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "has closed its line"
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"

    def close(self) -> None:
        """Return when it has gone: it ends with its connection, or is killed."""
        if self._owner != os.getpid():
            return  # in a child of fork()
        self._line.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE if self.topology else 0.0)
        self.kill()

    def kill(self) -> None:
        """Kill it; its children end with it."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def _errors() -> int:
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL
    except (OSError, ValueError):
        return subprocess.DEVNULL
