"""Context managers of the host in captured programs: entering and leaving are calls like any other, in order and recorded."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from lmc.frontend import reach
from lmc.frontend.instrument import HOOKS_NAME

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


def is_own_manager(x: Any) -> bool:
    """Whether Python may run a manager as it is: one of a state (`s.user()`), or of a generator of the program's own."""
    if reach.is_language(x):
        return True
    generator = getattr(x, "gen", None) if type(x).__module__ == "contextlib" else None
    if not isinstance(generator, types.GeneratorType):
        return False
    return generator.gi_code.co_filename.startswith(PACKAGE) or HOOKS_NAME in generator.gi_code.co_freevars
