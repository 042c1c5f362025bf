"""Locks of files that only one process may write."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO, Any

from lmc.tracebacks import warn

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None

_WITHOUT = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of file systems without locks, such as some of a network."""
_warned = set[str]()


def lock(file: IO[Any], path: Path) -> bool:
    """Lock an open file as long as it is open; return False if another process has. Warns where that cannot be known."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT:
            raise
        warn(f"{path} is on a file system without locks ({error.strerror}): see to it that no other process writes it, too", once=_warned)
    return True


def unlock(file: IO[Any]) -> None:
    """Unlock, also in a child of fork(), which may not have closed its copy of the file yet."""
    if fcntl is not None and not file.closed:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        except OSError as error:
            if error.errno not in _WITHOUT:
                raise
