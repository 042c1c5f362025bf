"""Async programs: a read inside one suspends its task and not the loop.

Each step of a task runs in a greenlet (as in SQLAlchemy's asyncio layer). Where the step has to wait for an answer,
anywhere in user code or in C, it yields a future to its task, as `await` would, and resumes when that is done. The
loop's task factory does the same for tasks that a program creates, and numbers them (lmc.frontend.active). So reading is an await point, with all that implies:
other tasks run meanwhile, and the task may be cancelled there.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from lmc import waiting
from lmc.code_origin import LMC
from lmc.errors import CancelledError
from lmc.frontend.active import ACTIVE, CALLING, TASK, TaskOfRun, creator_waits, new_task

T = TypeVar("T")


class _TaskStep(greenlet):
    """One step of a task, up to where it awaits. Its parent is its current driver."""

    __slots__ = ("closing",)


class Suspendable(Coroutine[Any, Any, T]):
    """A coroutine whose steps are suspended where they read an answer that has not arrived. Awaitable, and runnable as
    a task.

    task  that it is; None: part of the one that runs it
    """

    __slots__ = ("__weakref__", "_coroutine", "_suspended", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T], task: TaskOfRun | None = None) -> None:
        self._coroutine, self._task = coroutine, task
        self._suspended: _TaskStep | None = None  # inside a step, while it waits for an answer

    def __await__(self) -> Generator[Any, Any, T]:
        return self  # type: ignore[return-value]  # it has the methods of a generator

    def __iter__(self) -> Suspendable[T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        step = self._suspended
        if step is None:
            return self._run(_fresh(self._coroutine.send), value)
        return self._run(step)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        error = typ if val is None else val
        if self._suspended is not None:
            return self._run(self._suspended, error=error)
        return self._run(_fresh(self._coroutine.throw), error if isinstance(error, BaseException) else error())

    def close(self) -> None:
        """End it. Waits during its unwinding block the whole thread, since it no longer has a driver."""
        step = self._suspended
        if step is None:
            return self._coroutine.close()
        self._suspended, step.closing = None, True
        step.parent = getcurrent()
        with contextlib.suppress(GeneratorExit, StopIteration):
            step.throw(GeneratorExit)
            self._coroutine.close()  # it has caught the exception, and awaits something

    def _run(self, step: _TaskStep, *args: Any, error: Any = None) -> Any:
        """Drive a step to its end, or to where it waits. Return the future that the task must wait for."""
        self._suspended = None
        step.parent = getcurrent()
        token = None if self._task is None else TASK.set(self._task)  # at each step: tasks may share a context
        try:
            given = step.switch(*args) if error is None else step.throw(error)
        except CancelledError as cancelled:
            if self._task is not None and getattr(getattr(self._task.state, "emitter", None), "cancelled", False):
                raise asyncio.CancelledError(cancelled.message) from cancelled  # with its run: nobody is left to take an error
            raise
        finally:
            if token is not None:
                TASK.reset(token)
        if not step.dead:
            self._suspended = step
        return given

    def __getattr__(self, name: str) -> Any:
        """Delegate attributes that task introspection reads from a coroutine: its name, its frame, its state."""
        return getattr(object.__getattribute__(self, "_coroutine"), name)

    def __repr__(self) -> str:
        return repr(self._coroutine)


def _fresh(run: Callable[..., Any]) -> _TaskStep:
    def in_context(*args: Any) -> Any:
        _context = copy_context()  # held here, `lmc serve` finds by it whose step this is
        return run(*args)

    step = _TaskStep(in_context)
    step.gr_context = getcurrent().gr_context  # the task's own, not a copy
    step.closing = False
    return step


def suspendable(coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return the coroutine, such that reading inside it suspends the task that runs it."""
    return coroutine if isinstance(getcurrent(), _TaskStep) else Suspendable(coroutine)


def _suspend(signal: waiting.Signal, timeout: float | None) -> bool:
    """Wait for a signal inside a step; False outside of any, also in a child that it has forked: its loop is the parent's."""
    step = getcurrent()
    if not isinstance(step, _TaskStep) or step.closing or not waiting.in_event_loop():
        return False
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def woken() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed while the answer was pending
            loop.call_soon_threadsafe(_finish, future)

    if signal.on_set(woken):
        return True
    timer = None if timeout is None else loop.call_later(timeout, _finish, future)
    task = asyncio.current_task()
    waiting.reading.add(task)
    try:
        while not future.done():
            future._asyncio_future_blocking = True  # type: ignore[attr-defined]  # as `Future.__await__` does
            step.parent.switch(future)  # type: ignore[union-attr]  # it is driven by somebody
    finally:
        waiting.reading.discard(task)
        if timer is not None:
            timer.cancel()
    return True


def awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await, inside a step, what does no more than let other tasks go on."""
    step = getcurrent()
    try:
        while True:
            step.parent.switch(coroutine.send(None))  # type: ignore[union-attr]
    except StopIteration as end:
        return end.value
    finally:
        coroutine.close()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# -- tasks that a program creates ------------------------------------------------------------------------------------------


class ProgramTasks:
    """A task factory: tasks that begin inside a program are suspended where they read; all are made by the previous
    factory."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        context = options.get("context")
        program = ACTIVE.get() if context is None else context.get(ACTIVE)
        if program is not None and asyncio.iscoroutine(coroutine) and not isinstance(coroutine, Suspendable):
            coroutine = Suspendable(coroutine, TASK.get() if _creator_waits() else _task_of(program, coroutine))
        if self._before is None:
            return asyncio.Task(coroutine, loop=loop, **options)
        return self._before(loop, coroutine, **options)


def _task_of(program: Any, coroutine: Any) -> TaskOfRun:
    name, code = getattr(coroutine, "__name__", type(coroutine).__name__), getattr(coroutine, "cr_code", None)
    return new_task(program, name, calls=name in CALLING and code is not None and code.co_filename.startswith(LMC))


def _creator_waits() -> bool:
    """Return whether a task is created by one that does nothing but wait for it: by `asyncio.wait_for`, which awaits in
    the same task since Python 3.12."""
    if sys.version_info < (3, 12):
        frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        while frame.f_back is not None and frame.f_code.co_filename in _MAKING_TASKS:
            if frame.f_code is asyncio.wait_for.__code__:
                return True
            frame = frame.f_back
    return creator_waits()


_MAKING_TASKS = frozenset({asyncio.tasks.__file__, asyncio.base_events.__file__})


def prepare() -> None:
    """Prepare the running loop for programs: once for each loop."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    if not isinstance(before, ProgramTasks):
        loop.set_task_factory(ProgramTasks(before))  # type: ignore[arg-type]


waiting.suspends_by(_suspend)
