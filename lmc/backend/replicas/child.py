"""The process of a replica: one engine, served over a pipe until the other side goes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from lmc.backend.pipe.server import PipeServer
from lmc.backend.replicas.process import BEAT, EVERY, GRACE
from lmc.errors import BackendError, LmcError

_CHECK = 1.0  # seconds between checks of the engine
_LOOK = 0.1  # and of the program that this belongs to, once it has closed its line


def main() -> None:
    """Run a replica according to `sys.argv`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the program, which ends this
    told = json.loads(sys.argv[2])
    line, connection = _LineToProgram(told["line"]), Connection(told["pipe"])
    threading.Thread(target=_end_with, args=(told["leader"], line), name="lmc-leader", daemon=True).start()
    engine = _engine(told, line)
    line.tell({"topology": list(engine.topology) or [f"a KV pool of {engine.server_info()['max_tokens']} tokens"]})
    server = PipeServer(engine, connection)
    while not server.join(_CHECK):
        if engine.health().state == "ended":
            time.sleep(_CHECK)  # waiting requests get the reason before that
            break
    engine.close()
    os._exit(0)


def _engine(told: Mapping[str, Any], line: _LineToProgram) -> Any:
    try:
        import torch

        from lmc.backend.local_model import Engine

        torch.set_num_threads(told["threads"])
        if told["options"]["device"] != "cpu":
            torch.cuda.set_device(told["options"]["device"])  # no memory on another GPU
        return Engine(**told["options"])
    except BaseException as error:
        line.tell({"failed": error.message if isinstance(error, LmcError) else f"{type(error).__name__}: {error}"})
        os._exit(1)


class _LineToProgram:
    """The line to the program, which reads it and never writes."""

    def __init__(self, handle: int) -> None:
        self._socket, self._whole = socket.socket(fileno=handle), threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def beat(self) -> None:
        with self._whole, suppress(OSError):  # it is full, as the program has been stopped, or has an end, which `_end_with` sees
            self._socket.send(BEAT, socket.MSG_DONTWAIT)

    def tell(self, message: Mapping[str, Any]) -> None:
        try:
            with self._whole:
                self._socket.sendall(json.dumps(message).encode() + BEAT)
        except OSError:
            raise BackendError("the program that this replica belongs to has ended") from None


def _end_with(leader: int, line: _LineToProgram) -> None:
    """Send heartbeats, and end this process when the program's does, in any state."""
    watched = select.poll()
    watched.register(line.fileno(), 0)
    while os.getppid() == leader and not watched.poll(1000 * EVERY):
        line.beat()
    until = time.monotonic() + GRACE  # the engine is closed first, unless the program ends: it loses its lines before its children
    while os.getppid() == leader and time.monotonic() < until:
        time.sleep(_LOOK)
    os._exit(0)
