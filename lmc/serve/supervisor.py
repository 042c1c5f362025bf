"""`lmc serve --restart`: a worker process that has ended with a broken engine, or was killed, is replaced; the socket stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

BROKEN = 75
"""Exit status of a worker whose engine has ended: a new one may work (EX_TEMPFAIL)."""
Handler = Callable[[int, object], object]
SOCKET = "LMC_SERVE_SOCKET"
"""The variable that names two file descriptors to the worker: the socket's, and that of a pipe which ends when the supervisor does."""
_SHORT, _MOST = 10.0, 5  # a worker that lives shorter than so many seconds, so many times in a row, is not replaced


def inherited() -> socket.socket | None:
    """Return the socket of the supervisor that started this process, if one did."""
    found = os.environ.get(SOCKET)
    if found is None:
        return None
    where, lifeline = map(int, found.split(","))
    threading.Thread(target=_end_with, args=(lifeline,), name="lmc-supervised", daemon=True).start()
    return socket.socket(fileno=where)


@contextmanager
def handling(stop: Handler, hangup: Handler) -> Iterator[None]:
    """Handle SIGINT and SIGTERM, and SIGHUP (a terminal that is closed) unless that is ignored, as by nohup."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    if (number := getattr(signal, "SIGHUP", None)) is not None and signal.getsignal(number) is signal.SIG_DFL:
        before[number] = signal.signal(number, hangup)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with(lifeline: int) -> None:
    """Tell this process to end when its supervisor was killed: nobody would replace it, and it would hold the socket."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def supervise(command: Sequence[str], where: socket.socket, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> int:
    """Run the command until it ends by itself or by a signal (SIGINT, SIGTERM, SIGHUP, which are passed on as the first or the second), and
    return its exit status."""
    os.set_inheritable(where.fileno(), True)
    lifeline, ours = os.pipe()
    worker: subprocess.Popen[bytes] | None = None
    told = 0

    def stop(number: int, _: object) -> None:
        nonlocal told
        told = number
        if worker is not None:
            worker.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    short = 0
    try:
        with handling(stop, stop):
            while True:
                began = clock()
                worker = subprocess.Popen(
                    [sys.executable, *command],
                    pass_fds=[where.fileno(), lifeline],
                    env={**os.environ, SOCKET: f"{where.fileno()},{lifeline}"},
                    start_new_session=True,
                )
                status = worker.wait()
                if told or not (status == BROKEN or status < 0):
                    return max(status, 0) if told else status
                short = short + 1 if clock() - began < _SHORT else 0
                if short >= _MOST:
                    say(f"the server ended {short} times within {_SHORT:g} s of its start (the last with {_said(status)}); giving up")
                    return 1
                say(f"the server ended with {_said(status)}; starting another")
    finally:
        os.close(ours)
        os.close(lifeline)


def _said(status: int) -> str:
    if status == BROKEN:
        return "a broken engine"
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
