"""Journals' files: opened and locked, synced, each with a sidecar that says how much of it is certainly on disk."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from lmc import locks
from lmc.durable.cipher import Key
from lmc.durable.records import Contents, parse
from lmc.errors import JournalError

log = logging.getLogger("lmc.journal")


def opened(path: Path, key: Key | None) -> tuple[BinaryIO, Contents | None]:
    """Open and lock a journal's file and read it; None if it is still empty. Raises JournalError, also where synced
    groups are missing."""
    with as_journal_error(path):
        there = os.path.exists(path)
        file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise JournalError(f"journal={str(path)!r} is not a regular file; give the path of one, or of a file that is not there yet")
            if not locks.lock(file, path) or not is_at(file, os.path.abspath(path)):  # the latter: it was compacted meanwhile
                raise JournalError(f"journal={str(path)!r} is in use by another run; give each its own, or wait for it")
            contents = parse(file.read(), str(path), key)
            if there:
                Sidecar.check(path, contents)
            file.seek(0)
            return file, contents
        except BaseException:
            file.close()
            raise


def truncate(file: BinaryIO, contents: Contents) -> None:
    """Drop the end that was not written completely, and log it; the file continues there."""
    if contents.dropped:
        log.warning("%s: the last %d bytes were not written whole when its process ended, and are dropped; no effect was begun behind them",
                    contents.name, contents.dropped)  # fmt: skip
    file.truncate(contents.size)
    file.seek(contents.size)


@contextmanager
def as_journal_error(path: Path) -> Generator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise JournalError(f"journal={str(path)!r}: {getattr(error, 'strerror', None) or error}") from (error if isinstance(error, OSError) else None)


class Sidecar:
    """Beside a journal, how much of it is certainly on disk: `SIZE FIRST CHECKSUM`: bytes, the checksum of the
    journal's first line, and one of the two.

    It is written after each sync, never before: a shorter journal has lost groups that runs relied on.
    """

    def __init__(self, journal: Path) -> None:
        with as_journal_error(self.path_of(journal)):
            self._file = os.fdopen(os.open(self.path_of(journal), os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)

    @staticmethod
    def path_of(journal: Path) -> Path:
        return journal.with_name(journal.name + ".synced")

    def note(self, size: int, first: int) -> None:
        self._file.seek(0)
        said = b"%016d %08x " % (size, first)  # as long as the text it replaces
        write_all(self._file, b"%s%08x\n" % (said, crc32(said)))

    def close(self) -> None:
        self._file.close()

    @classmethod
    def check(cls, journal: Path, contents: Contents | None) -> None:
        """Raise JournalError if groups are missing that were on disk."""
        try:
            said = cls.path_of(journal).read_bytes()
        except FileNotFoundError:
            return
        found = re.fullmatch(rb"(([0-9]{16}) ([0-9a-f]{8}) )([0-9a-f]{8})\n", said)
        if found is None or crc32(found[1]) != int(found[4], 16) or (contents is not None and int(found[3], 16) != contents.first):
            return  # partly written when its process ended; or of an earlier journal here
        size, there = int(found[2]), 0 if contents is None else contents.size
        if there < size:
            raise JournalError(
                f"{journal}: {size - there} bytes are missing at its end that were on the disk: {size} were, and {there} are whole. "
                f"Effects that they know of would be called again. Restore the file, or delete {cls.path_of(journal).name} if that may be"
            )


def is_at(file: BinaryIO, place: str) -> bool:
    """Return whether a path leads to this open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(place))
    except FileNotFoundError:
        return False


def write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def make_directory(path: Path) -> None:
    """Make a directory in one that is there; the disk has its name. Raises OSError or ValueError."""
    if not path.is_dir():
        path.mkdir(exist_ok=True)
        sync_directory(path.absolute().parent)


def check_parent(path: Path) -> None:
    """Raise JournalError where a journal's folder is not there: one that nobody made is mostly a misspelt one."""
    parent = path.parent
    with as_journal_error(path):
        if parent.exists():  # what is no folder is said by opening
            return
    raise JournalError(f"journal={str(path)!r}: there is no folder {parent}; make it (mkdir -p {parent}), or choose another")


def sync_directory(path: Path) -> None:
    """Sync a directory: a new file's name is stored there."""
    if hasattr(os, "O_DIRECTORY"):  # not on every system
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
