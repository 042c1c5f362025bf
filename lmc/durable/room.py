"""Room on the disk for what a run will have to write: reserved before an effect, so that its result can be written when it is known."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

ROOM = 1 << 16
"""Bytes behind the end of a journal that are its own before an effect begins; of results that take more, the rest has to be found."""
_KEEP_SIZE = 1


class Room:
    """Blocks behind the end of a file that are its own, without being a part of it. Where the system has no such thing, its free space is looked at."""

    def __init__(self, file: int) -> None:
        self._file, self._until = file, 0

    def reserve(self, end: int) -> None:
        """Has `ROOM` bytes behind `end`, or nearly. Raises OSError where the disk has not as much."""
        if self._until - end >= ROOM // 2:
            return
        if not _allocate(self._file, end, ROOM) and hasattr(os, "fstatvfs"):
            found = os.fstatvfs(self._file)
            if found.f_bavail * found.f_frsize < ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._until = end + ROOM

    def give_back(self, end: int) -> None:
        """Frees what was not used. Raises OSError."""
        if self._until:
            os.ftruncate(self._file, end)


def _allocate(file: int, at: int, size: int) -> bool:
    """Reserves blocks behind the end of a file; False where the system or the file system cannot. Raises OSError where there is no room."""
    allocate = _fallocate()
    if allocate is None:
        return False
    import ctypes

    while allocate(file, _KEEP_SIZE, at, size) != 0:
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM):
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True


def _fallocate() -> Any | None:
    """Linux's `fallocate`, which Python has without the flag."""
    global _found
    if _found is _UNKNOWN and not sys.platform.startswith("linux"):
        _found = None
    elif _found is _UNKNOWN:
        import ctypes

        _found = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
        if _found is not None:
            _found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return _found


_UNKNOWN = object()
_found: Any = _UNKNOWN
