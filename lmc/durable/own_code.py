"""Code of the program's own, as opposed to that of lmc and of libraries: its frame, and awaitables that run it."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import types
from typing import Any

from lmc.code_origin import LMC
from lmc.durable.deferred import AROUND_HOST_CODE, inner_of
from lmc.durable.instrument import is_instrumented


def program_frame() -> types.FrameType:
    """Return the frame of the program, which calls this through lmc's frames."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LMC):
        frame = frame.f_back
    return frame


def is_own_coroutine(x: Any) -> bool:
    """Return whether something is a coroutine of the program's own functions, or of programs."""
    x = inner_of(x)
    if not isinstance(x, types.CoroutineType):
        return False
    return is_instrumented(x.cr_code) or x.cr_code in _STACKING or (x.cr_code.co_filename.startswith(LMC) and x.cr_code not in AROUND_HOST_CODE)


def is_own_awaitable(x: Any) -> bool:
    """Return whether awaiting something runs code of the program's own: its coroutine or asynchronous generator, or an
    object with an `__await__` of its own."""
    if type(x).__name__ == "anext_awaitable":  # of `anext(…, default)`
        return any(map(is_own_awaitable, gc.get_referents(x)))
    method = getattr(type(x), "__await__", None)
    return is_own_coroutine(x) or _is_turn_of_own_generator(x) or (isinstance(method, types.FunctionType) and is_instrumented(method.__code__))


_STACKING = frozenset(fn.__code__ for fn in vars(contextlib.AsyncExitStack).values() if inspect.iscoroutinefunction(fn))
_MANAGING = frozenset(
    getattr(contextlib._AsyncGeneratorContextManager, name).__code__  # pyright: ignore[reportPrivateUsage]
    for name in ("__aenter__", "__aexit__")
)


def _is_own_generator(x: Any) -> bool:
    return isinstance(x, types.AsyncGeneratorType) and is_instrumented(x.ag_code)


def _is_turn_of_own_generator(x: Any) -> bool:
    """Return whether something advances an async generator of the program's own: the result of `anext` or `asend`, or
    its manager's methods."""
    if isinstance(x, types.CoroutineType):
        return x.cr_code in _MANAGING and _is_own_generator(getattr(inspect.getcoroutinelocals(x).get("self"), "gen", None))
    return type(x).__name__ in ("async_generator_asend", "async_generator_athrow") and any(map(_is_own_generator, gc.get_referents(x)))
