"""Disk space for a run's writes: reserved before an effect, so that its result can be written when it is known."""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from typing import Any

ROOM = 1 << 16
"""Bytes reserved after the end of a journal before an effect begins; for larger results, the rest must be found
then."""
_KEEP_SIZE = 1


class ReservedBlocks:
    """Blocks reserved after the end of a file without being part of it. Systems without such reservations check the
    free space."""

    def __init__(self, file: int) -> None:
        self._file, self._until = file, 0

    def reserve(self, end: int) -> None:
        """Reserve `ROOM` bytes after `end`, or nearly. Raises OSError if the disk lacks them."""
        if self._until - end >= ROOM // 2:
            return
        if not _allocate(self._file, end, ROOM) and hasattr(os, "fstatvfs"):
            found = os.fstatvfs(self._file)
            if found.f_bavail * found.f_frsize < ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._until = end + ROOM

    def give_back(self, end: int) -> None:
        """Free unused blocks. Raises OSError."""
        if self._until:
            os.ftruncate(self._file, end)


def _allocate(file: int, at: int, size: int) -> bool:
    """Reserve blocks after the end of a file; return False if the system or the file system cannot. Raises OSError if
    there is no space."""
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


@cache
def _fallocate() -> Any | None:
    """Return Linux's `fallocate`, which Python offers without the flag."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    found = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return found
