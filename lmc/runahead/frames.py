"""The frames of a program that is running: the current line of each function and its locals, read without side effects.

CPython before 3.13 copies the locals of a frame into one dict, which `locals()` shows to the program and which keeps
its contents alive. So that dict is emptied after each read, unless something else references it, and functions that may
hold it themselves are left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from inspect import CO_NEWLOCALS, CO_OPTIMIZED
from types import FrameType
from typing import Any

from lmc.frontend.capture.code import Place, place_of
from lmc.runahead.profile import is_own

_SHARED = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "stack", "currentframe", "f_locals", "breakpoint"})
"""Names through which a function may get the dict of its own locals."""


class Locals(Mapping[str, Any]):
    """The locals of one frame, read on demand."""

    def __init__(self, frame: FrameType) -> None:
        self._frame: FrameType | None = frame

    def close(self) -> None:
        """Release the frame, which keeps its locals alive."""
        self._frame = None

    def __contains__(self, name: object) -> bool:
        return name in self._names and self._read(str(name)) is not _UNBOUND

    def __getitem__(self, name: str) -> Any:
        found = self._read(name)
        if found is _UNBOUND:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def _names(self) -> tuple[str, ...]:
        return () if self._frame is None else self._frame.f_code.co_varnames

    def _read(self, name: str) -> Any:
        if self._frame is None:
            return _UNBOUND
        held = self._frame.f_locals
        found = held.get(name, _UNBOUND)
        if sys.version_info < (3, 13) and sys.getrefcount(held) <= _OURS:
            held.clear()
        return found


_UNBOUND = object()
_OURS = 3
"""References to the dict of a frame's locals if nothing else holds it: the frame's, the reader's, and refcount's
argument."""


@contextmanager
def frames() -> Generator[dict[Place, Mapping[str, Any]]]:
    """In the block, the locals of each function that runs in this thread, by its place, of the innermost call of each; not of lmc's own."""
    found = _found()
    try:
        yield found
    finally:
        for held in found.values():
            if isinstance(held, Locals):
                held.close()


def _found() -> dict[Place, Mapping[str, Any]]:
    found: dict[Place, Mapping[str, Any]] = {}
    frame: FrameType | None = sys._getframe(1)
    traced = sys.gettrace() is not None
    while frame is not None:
        code = frame.f_code
        if not is_own(frame) and (place := place_of(code)) not in found:
            private = code.co_flags & CO_OPTIMIZED and code.co_flags & CO_NEWLOCALS
            readable = sys.version_info >= (3, 13) or (private and not traced and _SHARED.isdisjoint(code.co_names))
            found[place] = Locals(frame) if readable else {}
        frame = frame.f_back
    return found
