"""The program that is running here, and the task of it that is."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

ACTIVE: ContextVar[Any] = ContextVar("lmc_active_state", default=None)
"""Root state of the program that is running here, or None; sub-programs inherit its backend and sampling defaults."""


class Numbers(Protocol):
    """The numbers of what a program, or a task of it, has called, forked and created; `prefix` of the addresses' streams."""

    calls: int
    forks: int
    tasks: Mapping[str, int]

    @property
    def prefix(self) -> str: ...


class TaskOfRun:
    """A task that a running program has created: it numbers its own sub-programs, forks of the program's state and
    tasks, so that their addresses do not depend on the order in which tasks go on.

    state   of the program
    prefix  of the addresses' streams
    """

    __slots__ = ("calls", "forks", "prefix", "state", "tasks")

    def __init__(self, state: Numbers, prefix: str, calls: int = 0) -> None:
        self.state, self.prefix, self.calls, self.forks = state, prefix, calls, 0
        self.tasks: Mapping[str, int] = {}


TASK: ContextVar[TaskOfRun | None] = ContextVar("lmc_task", default=None)
"""The task that runs here; None outside of any. It may be another program's than the one that is running."""


def numbering(state: Numbers) -> Numbers:
    """Return what numbers a program's sub-programs and forks here: the running task, if it is the program's, else the
    state."""
    task = TASK.get()
    return state if task is None or task.state is not state else task


def next_call(state: Numbers) -> str:
    """Return the stream of the sub-program that a program calls here."""
    by = numbering(state)
    by.calls += 1
    return f"{by.prefix}c{by.calls - 1}"


def new_task(state: Numbers, name: str, *, calls: bool = False) -> TaskOfRun:
    """Return the task that a program creates here: the first one of this name, the second one, and so on.

    By name, since libraries create tasks, too, as many as their connections need.

    calls  whether it does nothing but call one sub-program, which has the number of a call made here
    """
    by = numbering(state)
    if calls:
        by.calls += 1
        return TaskOfRun(state, by.prefix, by.calls - 1)
    number = by.tasks.get(name, 0)
    by.tasks = {**by.tasks, name: number + 1}
    return TaskOfRun(state, f"{by.prefix}{name}.{number}:")


class _Creating(threading.local):
    waits = False


_creating = _Creating()


CALLING = frozenset({"arun", "acall", "abatch"})
"""Coroutine functions of programs that call one sub-program."""


@contextmanager
def waiting_for_task() -> Generator[None]:
    """In the block, tasks are created by one that does nothing but wait for them: they are numbered as part of it."""
    _creating.waits = True
    try:
        yield
    finally:
        _creating.waits = False


def creator_waits() -> bool:
    """Return whether `waiting_for_task` is in force."""
    return _creating.waits
