"""fork(): a child has copies of engines, connections and journals, but not their threads, and no right to their devices, sockets and locks.

Each of those registers here and is notified in a child before any of the child's code runs (`os.register_at_fork`).
Nothing here waits or communicates with the parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol

REMEDY = 'start what you use in the process that uses it (in the child, after the fork), or create processes with multiprocessing.get_context("spawn")'


class OfOneProcess(Protocol):
    """An object that belongs to the process that made it."""

    def forked(self, parent: int) -> None:
        """Called in a child, and in a child of that, of `parent`, to which this object belongs: nothing of it works here.
        Must not take a lock that any thread had."""
        ...


_owners: weakref.WeakKeyDictionary[OfOneProcess, int] = weakref.WeakKeyDictionary()  # the process that each was made in


def belongs_here(what: OfOneProcess) -> None:
    """Register `what` to be notified in children of this process, for as long as it exists."""
    _owners[what] = os.getpid()


_renewed: list[Callable[[], None]] = []


def renew(what: Callable[[], None]) -> None:
    """Call `what` in children of this process before anything else is notified: it replaces a module's lock or thread."""
    _renewed.append(what)


def _in_child() -> None:
    for each in _renewed:
        each()
    for what, parent in list(_owners.items()):
        what.forked(parent)


if hasattr(os, "register_at_fork"):  # platforms with fork
    os.register_at_fork(after_in_child=_in_child)
