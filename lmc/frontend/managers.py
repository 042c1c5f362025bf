"""Context managers of the host in captured programs: entering and leaving are calls like any other, in order and recorded."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Callable
from typing import Any

from lmc.frontend import reach
from lmc.frontend.instrumented import is_instrumented

PACKAGE = __file__.rsplit("frontend", 1)[0]


class Managed:
    """Stands for a manager in the `with` statement of instrumented code: its two calls become calls of hooks."""

    def __init__(self, manager: Any, dispatch: Callable[[str, tuple[Any, ...], dict[str, Any]], Any], dead: Callable[[], bool]) -> None:
        self._manager, self._dispatch, self._dead = manager, dispatch, dead

    def __enter__(self) -> Any:
        return self._dispatch("entered", (self._manager,), {})

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None) -> Any:
        if self._dead():
            return False  # the trace is over: nothing of the program happens any more
        return self._dispatch("left", (self._manager, error), {})


class AsyncManaged:
    """As `Managed`, in an `async with` statement: entering and leaving are awaited."""

    def __init__(self, manager: Any, dispatch: Callable[[str, tuple[Any, ...], dict[str, Any]], Any], dead: Callable[[], bool]) -> None:
        self._manager, self._dispatch, self._dead = manager, dispatch, dead

    async def __aenter__(self) -> Any:
        return await self._dispatch("aentered", (self._manager,), {})

    async def __aexit__(self, cls: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None) -> Any:
        if self._dead():
            return False  # as above
        return await self._dispatch("aleft", (self._manager, error), {})


class Guarded:
    """Stands for a manager of the program's own while tracing, which may handle what the block raises: `around` is told."""

    def __init__(self, manager: Any, around: Callable[[int], None]) -> None:
        self._manager, self._around = manager, around

    def __enter__(self) -> Any:
        entered = self._manager.__enter__()
        self._around(1)
        return entered

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None) -> Any:
        self._around(-1)
        return self._manager.__exit__(cls, error, traceback)


class AsyncGuarded:
    """As `Guarded`, in an `async with` statement."""

    def __init__(self, manager: Any, around: Callable[[int], None]) -> None:
        self._manager, self._around = manager, around

    async def __aenter__(self) -> Any:
        entered = await self._manager.__aenter__()
        self._around(1)
        return entered

    async def __aexit__(self, cls: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None) -> Any:
        self._around(-1)
        return await self._manager.__aexit__(cls, error, traceback)


def is_own_manager(x: Any) -> bool:
    """Whether Python may run a manager as it is: one of a state (`s.user()`), or of a generator of the program's own."""
    if reach.is_language(x):
        return True
    code = generator_code(x)
    return code is not None and (code.co_filename.startswith(PACKAGE) or is_instrumented(code))


def is_generator_manager(x: Any) -> bool:
    """Whether a manager is one of a generator function of the program's own. Only a `with` or `async with` statement may have it."""
    code = generator_code(x)
    return (code is not None and is_instrumented(code)) or is_own_async_manager(x)


def may_handle(manager: Any) -> bool:
    """Whether leaving a manager of the program's own may end the exception that its block raised."""
    method = getattr(type(manager), "__exit__", None) or getattr(type(manager), "__aexit__", None)
    return not (isinstance(method, types.FunctionType) and _gives_nothing(method.__code__))


def _gives_nothing(code: types.CodeType) -> bool:
    """Whether a function never returns anything but None or False."""
    nothing, steps = (None, False), list(dis.get_instructions(code))
    for before, step in itertools.pairwise(steps):
        if step.opname == "RETURN_VALUE" and not (before.opname == "LOAD_CONST" and before.argval in nothing):
            return False
        if step.opname == "RETURN_CONST" and step.argval not in nothing:
            return False
    return True


def is_own_async_manager(x: Any) -> bool:
    """Whether an async manager is one of an async generator function of the program's own."""
    code = async_generator_code(x)
    return code is not None and is_instrumented(code)


def generator_code(x: Any) -> types.CodeType | None:
    """The code that a manager of `contextlib.contextmanager` runs."""
    generator = getattr(x, "gen", None) if type(x).__module__ == "contextlib" else None
    return generator.gi_code if isinstance(generator, types.GeneratorType) else None


def async_generator_code(x: Any) -> types.CodeType | None:
    """The code that a manager of `contextlib.asynccontextmanager` runs."""
    generator = getattr(x, "gen", None) if type(x).__module__ == "contextlib" else None
    return generator.ag_code if isinstance(generator, types.AsyncGeneratorType) else None
