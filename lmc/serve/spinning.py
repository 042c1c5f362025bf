"""Abandoned programs that keep computing: an exception is raised in their threads until they end.

A run that is cancelled ends where it next waits for the model. One that never does (`while True`) would occupy a CPU
forever. Its threads are found by the context in which the program's code runs, which has the run of the request that
began it.

    request ends early ──► its run is cancelled ──► still computing? RunEnded at its next line, again and again ──► ended, or counted as unstoppable
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
from collections.abc import Iterator
from contextvars import Context, ContextVar
from pathlib import Path
from sysconfig import get_path
from types import FrameType

import lmc
from lmc.frontend.fibers import Fibers
from lmc.serve.metrics import Metrics

log = logging.getLogger("lmc.serve")

KEPT = 30.0
"""Seconds that a kept run has to finish its current call, once abandoned."""
_EVERY = 0.05  # seconds between checks
_TRIES = 400  # checks of a program that must end, before it is given up: C code, or a program that catches everything
_SELDOM = 5.0  # seconds between checks of programs given up
_OURS = str(Path(lmc.__file__).parent)
_FRONTEND = str(Path(lmc.__file__).parent / "frontend")
_LIBRARY, _PACKAGES = get_path("stdlib"), (get_path("purelib"), get_path("platlib"))
_THREADING, _EVENTS = threading.__file__, asyncio.events.__file__


class RunEnded(BaseException):
    """The run was abandoned: raised in a program that would keep computing."""


class RunningProgram:
    """A request's run of a program. `kept`: it has a journal, so its current call may finish, since otherwise its
    outcome would be unknown."""

    def __init__(self, program: str) -> None:
        self.program, self.kept = program, False


RUN: ContextVar[RunningProgram | None] = ContextVar("RUN", default=None)


class Ender:
    """Ends abandoned runs. On the server's loop only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def end(self, run: RunningProgram) -> None:
        task = asyncio.get_running_loop().create_task(self._end(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _end(self, run: RunningProgram) -> None:
        raised, found = False, list[tuple[int, FrameType]]()
        until = asyncio.get_running_loop().time() + (KEPT if run.kept else 0.0)
        while asyncio.get_running_loop().time() < until and any(threads_of(run)):
            await asyncio.sleep(_EVERY)
        for _ in range(_TRIES):
            await asyncio.sleep(_EVERY)
            found = list(threads_of(run))
            if not found:
                if raised:
                    self._metrics.ended_runs.inc()
                return
            raised = _raise_in_all(found) or raised
        place = _place(found[0][1])
        log.warning(
            "the program %s is still running at %s although its request is over, and cannot be stopped; restart the server if it takes too much",
            run.program,
            place,
        )
        self._metrics.unended_runs.inc()
        try:
            while found := list(threads_of(run)):
                _raise_in_all(found)
                await asyncio.sleep(_SELDOM)
        finally:
            self._metrics.unended_runs.dec()


def threads_of(run: RunningProgram) -> Iterator[tuple[int, FrameType]]:
    """Yield the threads that execute code of the run, with their current frames."""
    own = threading.get_ident()
    for thread, frame in sys._current_frames().items():
        if thread != own and any(_carries(outer, run) for outer in stack(frame)):
            yield thread, frame


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _carries(frame: FrameType, run: RunningProgram) -> bool:
    """Return whether a frame's callees run in a context of the run: frames of lmc, of threads and of the event loop
    hold it."""
    if frame.f_code.co_filename not in (_THREADING, _EVENTS) and not _is_ours(frame):
        return False
    for value in frame.f_locals.values():
        if isinstance(value, threading.Thread):
            value = getattr(getattr(value, "_target", None), "__self__", None)
        elif isinstance(value, asyncio.Handle | Fibers):
            value = getattr(value, "_context", None)
        if isinstance(value, Context) and value.get(RUN) is run:
            return True
    return False


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _is_the_programs(frame: FrameType) -> bool:
    """Return whether a thread is in the program's own code, or in what this called of the frontend, which works for one
    run only; else it waits, holds a lock of others, or ends the run itself, which nothing may interrupt."""
    file = frame.f_code.co_filename
    if file == _THREADING or (_is_ours(frame) and not file.startswith(_FRONTEND)):
        return False
    return any(_is_users(outer) for outer in stack(frame))


def _is_users(frame: FrameType) -> bool:
    """Return whether code is neither lmc's, nor of Python's library, nor what this generates: methods of dataclasses (in
    the globals of their module) and of named tuples."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    if file.startswith("<frozen ") or (file.startswith(_LIBRARY) and not file.startswith(_PACKAGES)):
        return False
    return not (_is_ours(frame) or module.startswith(("lmc.", "namedtuple_")))


def _raise_in_all(found: list[tuple[int, FrameType]]) -> bool:
    """Raise it in all; return whether it was raised anywhere."""
    raised = [_raise_in(thread) for thread, frame in found if _is_the_programs(frame)]  # in all, not only up to the first
    return any(raised)


def _raise_in(thread: int) -> bool:
    """Raise RunEnded at the next line of Python that the thread executes; return False if it has ended."""
    return ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(RunEnded)) == 1


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
