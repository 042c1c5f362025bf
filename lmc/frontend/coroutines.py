"""Which coroutines and generators are the program's own, and code that is not."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import contextlib
import gc
import inspect
import types
from collections.abc import Awaitable, Generator
from typing import Any

from lmc.frontend import raising, tools
from lmc.frontend.counting import PACKAGE, CountingMode
from lmc.frontend.hooks import hooks
from lmc.frontend.host import HostFunction
from lmc.frontend.instrument import instrument
from lmc.frontend.instrumented import awaits, is_instrumented
from lmc.frontend.source import CannotInstrument
from lmc.frontend.values import active

AROUND_HOST_CODE = frozenset({raising.ahandling.__code__, tools.later.__code__, HostFunction.awaited.__code__})
"""The code of lmc's coroutines that await what host code made."""


def is_own_coroutine(x: Any) -> bool:
    """Whether something is a coroutine of the program's own functions, or of programs."""
    return isinstance(x, types.CoroutineType) and (
        is_instrumented(x.cr_code) or (x.cr_code.co_filename.startswith(PACKAGE) and x.cr_code not in AROUND_HOST_CODE))


def waits_for_answers(x: Any) -> bool:
    """Whether something is a coroutine of the program's own, or of an async program, that waits for nothing but answers."""
    if not isinstance(x, types.CoroutineType) or inspect.getcoroutinestate(x) != inspect.CORO_CREATED:
        return False
    if x.cr_code is _SUB_PROGRAM:
        program = inspect.getcoroutinelocals(x)["fn"].func
        try:
            return isinstance(program, types.FunctionType) and not awaits(instrument(program, hooks).__code__)
        except CannotInstrument:
            return False
    return is_instrumented(x.cr_code) and not awaits(x.cr_code)


_SUB_PROGRAM = CountingMode.sub_program_async.__code__


def is_own_generator(x: Any) -> bool:
    return isinstance(x, types.AsyncGeneratorType) and is_instrumented(x.ag_code)


_MANAGING = frozenset(
    getattr(contextlib._AsyncGeneratorContextManager, name).__code__ for name in ("__aenter__", "__aexit__")  # pyright: ignore[reportPrivateUsage]
)


def is_turn_of_own_generator(x: Any) -> bool:
    """Whether something moves an async generator of the program's own on: what `anext` and `asend` give, or its manager's `__aexit__`."""
    if isinstance(x, types.CoroutineType):
        return x.cr_code in _MANAGING and is_own_generator(getattr(inspect.getcoroutinelocals(x).get("self"), "gen", None))
    return type(x).__name__ in ("async_generator_asend", "async_generator_athrow") and any(map(is_own_generator, gc.get_referents(x)))


@contextlib.contextmanager
def beyond_hooks() -> Generator[None]:
    """Hooks in here are not the replay's."""
    token = active.set(None)
    try:
        yield
    finally:
        active.reset(token)


async def as_host(awaitable: Awaitable[Any]) -> Any:
    with beyond_hooks():
        return await awaitable
