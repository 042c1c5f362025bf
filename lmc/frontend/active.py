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


class ForkedState(Numbers, Protocol):
    """A state. `home`: the key of the task that made it, which it does not keep alive."""

    home: object | None


class TaskOfRun:
    """A task that a running program has created: it numbers its own sub-programs, forks and tasks, so that their
    addresses do not depend on the order in which tasks go on.

    state   of the program; None: it numbers nothing itself
    prefix  of the addresses' streams
    label   by which other states number what it makes of them
    key     by which they know it
    fork    whose body it is (lmc/frontend/each.py), which no other task copies meanwhile
    """

    __slots__ = ("calls", "fork", "forks", "key", "label", "prefix", "state", "tasks")

    def __init__(self, state: Numbers | None, prefix: str, label: str, calls: int = 0, fork: Numbers | None = None) -> None:
        self.state, self.prefix, self.label, self.calls, self.forks, self.fork = state, prefix, label, calls, 0, fork
        self.tasks: Mapping[str, int] = {}
        self.key = object()


TASK: ContextVar[TaskOfRun | None] = ContextVar("lmc_task", default=None)
"""The task that runs here; None outside of any. It may be another program's than the one that is running."""


def home() -> object | None:
    """Return the key of the task that runs here."""
    task = TASK.get()
    return None if task is None else task.key


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


def next_fork(state: ForkedState) -> str:
    """Return the beginning of the streams of the copies that are made of a state here.

    If it is neither the running program's nor of the running task, other tasks may copy it at the same time: then each
    of them numbers its own copies.
    """
    by, task = numbering(state), TASK.get()
    if by is state and home() is not state.home and state is not ACTIVE.get() and (task is None or task.fork is not state):
        return f"{state.prefix}{_numbered(state, ':' if task is None else task.label.lstrip('/').replace('/', '|'))}"
    by.forks += 1
    return f"{by.prefix}{by.forks - 1}"


def _numbered(by: Numbers, name: str) -> str:
    number = by.tasks.get(name, 0)
    by.tasks = {**by.tasks, name: number + 1}
    return f"{name}{number}"


def new_task(state: Numbers, name: str, *, calls: bool = False) -> TaskOfRun:
    """Return the task that a program creates here: the first one of this name, the second one, and so on.

    By name, since libraries create tasks, too, as many as their connections need.

    calls  whether it does nothing but call one sub-program, which has the number of a call made here
    """
    by = numbering(state)
    if calls:
        by.calls += 1
        return TaskOfRun(state, by.prefix, f"{by.prefix}c{by.calls - 1}:", by.calls - 1)
    prefix = f"{by.prefix}{_numbered(by, f'{name}.')}:"
    return TaskOfRun(state, prefix, prefix)


def new_body(fork: Numbers) -> TaskOfRun:
    """Return the task that a plain body of `forks.each` is, on a thread of its own."""
    return TaskOfRun(None, fork.prefix, f"{fork.prefix}:", fork=fork)


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
