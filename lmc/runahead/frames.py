"""The frames of a program that is running: the current line of each function and its locals, read without side effects.

CPython before 3.13 copies the locals of a frame into one dict, which `locals()` shows to the program and which keeps its contents alive. So that dict is
emptied after each read, unless something else references it, and functions that may hold it themselves are left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from inspect import CO_NEWLOCALS, CO_OPTIMIZED
from types import FrameType
from typing import Any

from lmc.frontend.capture.code import Place, place_of
from lmc.runahead.profile import is_own

_SHARED = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "stack", "currentframe", "f_locals", "breakpoint"})
"""Names through which a function may get the dict of its own locals."""


class Locals:
    """The locals of one frame, read on demand."""

    frame: FrameType | None = None

    def get(self, name: str, default: Any) -> Any:
        """Return the value of a name; `default` if it is unbound."""
        if self.frame is None or name not in (*self.frame.f_code.co_varnames, *self.frame.f_code.co_cellvars):
            return default
        held = self.frame.f_locals
        found = held.get(name, default)
        if sys.version_info < (3, 13) and sys.getrefcount(held) <= _OURS:
            held.clear()
        return found


_OURS = 3
"""References to the dict of a frame's locals if nothing else holds it: the frame's, the reader's, and refcount's argument."""


@contextmanager
def frames(known: dict[Place, Locals]) -> Generator[None]:
    """In the block, `known` has the locals of each function that runs in this thread, by its place, of the innermost call of each; not of lmc's own."""
    frame: FrameType | None = sys._getframe(1)
    traced = sys.gettrace() is not None
    seen = set[Place]()
    while frame is not None:
        code = frame.f_code
        if not is_own(frame) and (place := place_of(code)) not in seen:
            seen.add(place)
            private = code.co_flags & CO_OPTIMIZED and code.co_flags & CO_NEWLOCALS
            if sys.version_info >= (3, 13) or (private and not traced and _SHARED.isdisjoint(code.co_names)):
                known.setdefault(place, Locals()).frame = frame
        frame = frame.f_back
    try:
        yield
    finally:
        for held in known.values():
            held.frame = None  # which keeps its locals alive
