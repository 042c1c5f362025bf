"""Declarations about host functions: `lmc.pure` and `lmc.host`. An evaluation never looks into a function so marked."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from time import perf_counter
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, SupportsIndex, overload

from lmc.errors import ArgumentError, HostTimeout, ParameterError
from lmc.frontend.active import ACTIVE
from lmc.frontend.attempts import Retry, aattempted, attempted
from lmc.frontend.expressions import caller_loc
from lmc.frontend.typed import P, R
from lmc.observing import observer


class RunRecorder(Protocol):
    """A journaled run as seen by code that runs in it (lmc.durable.recorder)."""

    def call(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a call's result, from the journal if recorded; otherwise make the call and record it."""
        ...

    def callee(self, fn: Any) -> Any:
        """Return the callable that instrumented code calls in place of `fn`."""
        ...

    def callback(self, fn: Any) -> Any:
        """Return the function to pass to uninstrumented code in place of a function of the program."""
        ...

    def awaited(self, x: Any) -> Any:
        """Return the awaitable that instrumented code awaits in place of `x`."""
        ...

    def managed(self, x: Any) -> Any:
        """Return the context manager that a `with` of instrumented code enters in place of `x`."""
        ...

    def based(self, base: Any) -> Any:
        """Return what instrumented code derives a class from, or makes one by, in place of `base`."""
        ...

    def decided(self, loc: str, test: str, answer: bool) -> None:
        """Record the outcome of a test in the program."""
        ...

    def asked(self, question: str, schema: str) -> Any:
        """Return a person's answer to a question. Raises Interrupted while there is none."""
        ...


RECORDING: ContextVar[RunRecorder | None] = ContextVar("lmc_recording", default=None)
"""The journaled run whose program is running here. None: there is none, or host code called by it is running."""


Rest = ParamSpec("Rest")


class HostFunction(Generic[P, R]):
    """A function with its declared properties. Calling it means the same everywhere: interpreter, compiled run, plain
    Python."""

    def __init__(
        self, fn: Callable[P, R], *, pure: bool, ordered: bool, idempotent: bool, timeout: float | None, retry: Retry | None = None,
        check: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        functools.update_wrapper(self, fn, updated=())
        self.__module__ = getattr(fn, "__module__", None) or "builtins"  # it is the user's, not lmc's
        self.fn: Callable[..., Any] = fn
        self.pure, self.ordered, self.idempotent, self.timeout, self.retry, self.check = pure, ordered, idempotent, timeout, retry, check
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        # DSPy's tools read a callable object's parameters from its `__call__`
        self.__call__ = functools.update_wrapper(functools.partial(HostFunction.__call__, self), fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        state = ACTIVE.get()
        ledger = None if state is None else state.emitter.run.ledger
        if ledger is None:
            return self._made(args, kwargs)
        began = perf_counter()
        try:
            if self.pure and (calls := ledger.pure_calls()) is not None:
                return calls.take(self, args, kwargs)
            return self._made(args, kwargs)
        finally:
            ledger.called(self.name, began, perf_counter())

    def _made(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not self.pure and (recorder := RECORDING.get()) is not None:
            return recorder.call(self, args, kwargs)
        return self.plain(*args, **kwargs)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call, without recording."""
        watching = observer()
        return self._called(args, kwargs) if watching is None else watching.call(self, args, kwargs, lambda: self._called(args, kwargs))

    def _called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.timeout is None and self.retry is None and self.check is None:
            return self.fn(*args, **kwargs)
        if inspect.iscoroutinefunction(self.fn):
            made = self.awaited(args, kwargs)
            made.__qualname__ = getattr(self.fn, "__qualname__", self.name)
            return made
        return attempted(lambda: self._once(args, kwargs), self.retry, self.check and (lambda: self.asked(args, kwargs)), self.name)

    def asked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return its check's answer about a call: `Done`, None, or an awaitable of that."""
        assert self.check is not None
        return self.check(*args, **kwargs)

    def _once(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.fn(*args, **kwargs) if self.timeout is None else self._in_time(self.timeout, tuple(args), dict(kwargs))

    def _in_time(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call on a thread of its own. Python cannot stop a thread: a late one runs on, and its result is
        dropped."""
        future: Future[Any] = Future()
        context = copy_context()

        def work() -> None:
            try:
                future.set_result(context.run(self.fn, *args, **kwargs))
            except BaseException as error:  # raised in the caller, which may have timed out
                future.set_exception(error)

        threading.Thread(target=work, name=f"lmc-{self.name}", daemon=True).start()
        wait([future], seconds)
        if not future.done():
            raise self._late()
        return future.result()

    async def awaited(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Await an async function that has a timeout or retries."""
        return await aattempted(lambda: self._aonce(args, kwargs), self.retry, self.check and (lambda: self.asked(args, kwargs)), self.name)

    async def _aonce(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        within = asyncio.timeout(self.timeout)
        try:
            async with within:
                return await self.fn(*args, **kwargs)
        except TimeoutError:
            if within.expired():
                raise self._late() from None
            raise  # raised by the function itself

    def _late(self) -> HostTimeout:
        return HostTimeout(f"{self.name}() gave no answer within {self.timeout:g} s")

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self: HostFunction[Concatenate[Any, Rest], R], instance: object, owner: type | None = None) -> Callable[Rest, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickle by name if another process finds it by that in its module, as it does Python's functions."""
        path: str = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        return path if found is self else super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        said = [n for n, yes in (("pure", self.pure), ("unordered", not self.ordered), ("idempotent", self.idempotent)) if yes]
        said += [] if self.timeout is None else [f"timeout={self.timeout:g}"]
        said += [name for name, value in (("retried", self.retry), ("checked", self.check)) if value is not None]
        return f"<{' '.join(['host function', self.name, *said])}>"


class Marks(Protocol):
    """Type of `lmc.host(…)`, the decorator with arguments."""

    def __call__(self, fn: Callable[P, R], /) -> HostFunction[P, R]: ...


def pure(fn: Callable[P, R]) -> HostFunction[P, R]:
    """Promise that the result of `fn` depends only on its arguments, and that it changes nothing.

    A run with requests made ahead may call it before the program does, on a worker thread, once for equal arguments
    that are plain data; the program's own call gets that result, a copy of it if it is mutable.
    """
    return HostFunction(_checked(fn, "pure"), pure=True, ordered=True, idempotent=True, timeout=None)


@overload
def host(
    fn: Callable[P, R], *, ordered: bool = True, idempotent: bool = False, timeout: float | None = None, retry: Retry | int | None = None,
    check: Callable[..., Any] | None = None,
) -> HostFunction[P, R]: ...  # fmt: skip
@overload
def host(
    fn: None = None, *, ordered: bool = True, idempotent: bool = False, timeout: float | None = None, retry: Retry | int | None = None,
    check: Callable[..., Any] | None = None,
) -> Marks: ...  # fmt: skip
def host(
    fn: Callable[..., Any] | None = None, *, ordered: bool = True, idempotent: bool = False, timeout: float | None = None, retry: Retry | int | None = None,
    check: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Mark `fn`, a function that does something outside the program; also a decorator, bare or with arguments.

    It is called where the program calls it, and never ahead. In a journaled run it is one recorded call, wherever it is called.

    ordered     False: the order of its calls does not matter; a resumed journaled run finds their results in any order
    idempotent  a resumed run may call it again with the same arguments
    timeout     seconds; a call (each attempt) that takes longer raises HostTimeout (a TimeoutError) in the program;
                its thread runs on
    retry       an `lmc.Retry`, or how often a failed call is made again: after connection errors and timeouts, if it is
                idempotent or has a `check`; else after the exceptions of `lmc.Retry(on=…)`
    check       called with the arguments of a call that may or may not have happened (its process ended in it; it
                failed and would be retried): finds out, and returns `lmc.Done(result)` if it did, None if it did not
                and is to be made. If it raises, the call stays in doubt
    """
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"timeout={timeout!r}: must be a number of seconds", loc=caller_loc())
    if timeout is not None and not 0 < timeout < threading.TIMEOUT_MAX:
        raise ParameterError(f"timeout={timeout!r}: must be a number of seconds above 0", loc=caller_loc())
    for name, value in (("ordered", ordered), ("idempotent", idempotent)):
        if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"{name}={value!r}: must be True or False", loc=caller_loc())
    if check is not None and not callable(check):
        raise ArgumentError(f"check={check!r}: must be a function of the same arguments", loc=caller_loc())
    again = Retry(retry) if type(retry) is int else retry
    if again is not None and not isinstance(again, Retry):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"retry={retry!r}: must be an lmc.Retry, or a number of further attempts", loc=caller_loc())
    if again is not None and again.on is None and check is None and not idempotent:
        raise ParameterError(
            "retry= needs idempotent=True, a check=, or exceptions after which the call may be made again, lmc.Retry(on=…): "
            "a call that failed may have happened all the same",
            loc=caller_loc(),
        )

    def mark(fn: Callable[..., Any]) -> HostFunction:
        seconds = None if timeout is None else float(timeout)
        return HostFunction(_checked(fn, "host"), pure=False, ordered=ordered, idempotent=idempotent, timeout=seconds, retry=again, check=check)

    return mark if fn is None else mark(fn)


def _checked(fn: Any, what: str) -> Callable[..., Any]:
    if isinstance(fn, HostFunction):
        raise ArgumentError(f"lmc.{what}: {fn.name} is already marked: {fn!r}", loc=caller_loc())
    if not callable(fn):
        raise ArgumentError(f"lmc.{what} takes a function, not {fn!r}", loc=caller_loc())
    return fn
