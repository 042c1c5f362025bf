"""A replica's process: one engine, served over a pipe until the other side goes; and starting and ending such
processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from lmc.backend.pipe.client import PipeBackend
from lmc.errors import BackendError, ModelLoadError

CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from lmc.backend.replicas.process import main; main()"

_LOOK = 0.1  # seconds between checks of a silent process
_CHECK = 1.0  # seconds between a replica's checks of its engine
_GRACE = 10.0  # grace period for a replica to end by itself, in seconds


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
            self._process.wait(_GRACE if self.topology else 0.0)
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


# -- in the process ------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run a replica according to `sys.argv`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the program, which ends this
    told = json.loads(sys.argv[2])
    line, connection = Connection(told["line"]), Connection(told["pipe"])
    threading.Thread(target=_end_with, args=(told["leader"], line), name="lmc-leader", daemon=True).start()
    engine = _engine(told, line)
    from lmc.backend.pipe.server import PipeServer

    _tell(line, {"topology": list(engine.topology) or [f"a KV pool of {engine.server_info()['max_tokens']} tokens"]})
    server = PipeServer(engine, connection)
    while not server.join(_CHECK):
        if engine.health().state == "ended":
            time.sleep(_CHECK)  # waiting requests get the reason before that
            break
    engine.close()
    os._exit(0)


def _engine(told: Mapping[str, Any], line: Connection) -> Any:
    try:
        import torch

        from lmc.backend.local import Engine

        torch.set_num_threads(told["threads"])
        if told["options"]["device"] != "cpu":
            torch.cuda.set_device(told["options"]["device"])  # no memory on another GPU
        return Engine(**told["options"])
    except BaseException as error:
        from lmc.errors import LmcError

        _tell(line, {"failed": error.message if isinstance(error, LmcError) else f"{type(error).__name__}: {error}"})
        os._exit(1)


def _end_with(leader: int, line: Connection) -> None:
    """End this process when the program's does, in any state: no message is ever sent here."""
    import select

    watched = select.poll()
    watched.register(line.fileno(), 0)
    while os.getppid() == leader and not watched.poll(250):
        pass
    time.sleep(_GRACE / 2 if os.getppid() == leader else 0.0)  # the engine is closed first
    os._exit(0)


def _tell(line: Connection, message: Mapping[str, Any]) -> None:
    try:
        line.send_bytes(json.dumps(message).encode())
    except OSError:
        raise BackendError("the program that this replica belongs to has ended") from None
