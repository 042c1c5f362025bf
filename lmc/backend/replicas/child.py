"""The process of a replica: one engine, served over a pipe until the other side goes."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from lmc.backend.pipe.server import PipeServer
from lmc.backend.replicas.process import GRACE
from lmc.errors import BackendError, LmcError

_CHECK = 1.0  # seconds between checks of the engine
_LOOK = 0.1  # and of the program that this belongs to, once it has closed its line


def main() -> None:
    """Run a replica according to `sys.argv`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the program, which ends this
    told = json.loads(sys.argv[2])
    line, connection = Connection(told["line"]), Connection(told["pipe"])
    threading.Thread(target=_end_with, args=(told["leader"], line), name="lmc-leader", daemon=True).start()
    engine = _engine(told, line)
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

        from lmc.backend.local_model import Engine

        torch.set_num_threads(told["threads"])
        if told["options"]["device"] != "cpu":
            torch.cuda.set_device(told["options"]["device"])  # no memory on another GPU
        return Engine(**told["options"])
    except BaseException as error:
        _tell(line, {"failed": error.message if isinstance(error, LmcError) else f"{type(error).__name__}: {error}"})
        os._exit(1)


def _end_with(leader: int, line: Connection) -> None:
    """End this process when the program's does, in any state: no message is ever sent here."""
    watched = select.poll()
    watched.register(line.fileno(), 0)
    while os.getppid() == leader and not watched.poll(250):
        pass
    until = time.monotonic() + GRACE / 2  # the engine is closed first, unless the program ends: it loses its lines before its children
    while os.getppid() == leader and time.monotonic() < until:
        time.sleep(_LOOK)
    os._exit(0)


def _tell(line: Connection, message: Mapping[str, Any]) -> None:
    try:
        line.send_bytes(json.dumps(message).encode())
    except OSError:
        raise BackendError("the program that this replica belongs to has ended") from None
