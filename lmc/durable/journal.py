"""Journals: files to which runs write answers and results of effects, so that an interrupted run can be resumed.

lmc.durable.records describes their contents.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

from lmc import json_data, locks
from lmc.backend.results import Result
from lmc.durable import files
from lmc.durable.cipher import Cipher, Key
from lmc.durable.groups import Answered, Entry, Record, first_line, group_of, line
from lmc.durable.records import Contents
from lmc.durable.room import ReservedBlocks
from lmc.errors import JournalError
from lmc.forking import REMEDY, belongs_here

log = logging.getLogger("lmc.journal")

GROUP = 0.05
"""Seconds that records wait for others to be written and synced with, unless something waits for them."""

MANY = 256
"""Number of entries at which the thread that adds the last puts them into a group, while they are in the CPU caches."""


class JournalFile:
    """A journal that runs write to, from any thread. Entries that arrive together are encoded together; a thread of its
    own writes and syncs them. An answer is written before everything that its run did because of it.

    entries  entries in no group yet
    """

    def __init__(self, path: Path, file: BinaryIO, contents: Contents, *, new: bool) -> None:
        self.path, self.contents = path, contents
        self._place = os.path.abspath(path)  # the program may change the directory
        self.entries: list[Entry] = []
        self._unanswered: list[Answered] = []  # requests whose answers were missing when groups were made
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # that drive runs, one or several; not those that programs begin
        self._file = file
        self._new = new  # the disk may not have the file's name yet
        self._lines: list[bytes] = []  # groups not written yet
        self._writing = threading.Lock()  # guards the order of writes
        self._waiting: list[Callable[[], object]] = []  # callbacks for when everything before them is written
        self._gathering = threading.Lock()  # groups are made one after another
        self._some, self._urgent = threading.Event(), threading.Event()
        self._closing = False
        self.left = False  # its runs were cancelled: nothing more begins
        self._calls, self._held = 0, threading.Lock()  # calls of host code whose outcome is to be written
        self._error: Exception | None = None
        self._sum, self._groups = contents.sum, contents.groups  # of the last group
        self._cipher, self._room, self._end = contents.cipher, ReservedBlocks(file.fileno()), contents.size
        self._sidecar = files.Sidecar(path)
        self._thread = threading.Thread(target=self._work, name="lmc-journal", daemon=True)
        self._thread.start()
        belongs_here(self)

    def forked(self, parent: int) -> None:
        """Close a child's copy: the lock is on the open file, which a child would keep open for as long as it lives; it
        is the parent's alone."""
        self._file.close()
        self._sidecar.close()
        self._gathering, self._writing, self._some, self._urgent = threading.Lock(), threading.Lock(), threading.Event(), threading.Event()
        self._held = threading.Lock()
        self._error = JournalError(f"it is written by process {parent}, of which this one is a fork: {REMEDY}")
        self.entries.clear()
        self._unanswered = []

    @classmethod
    def open(cls, path: Path, header: Mapping[str, Any], fresh: Callable[[], int], key: Key | None = None) -> JournalFile:
        """Open a new journal with this header, or the existing one, if it has the same. Raises JournalError.

        A seed of None in `header` means the journal's own, for a new one `fresh()`.
        """
        file, contents = files.opened(path, key)
        try:
            with files.as_journal_error(path):
                new = contents is None
                if contents is None:
                    found = {**header, "seed": fresh() if header["seed"] is None else header["seed"], "id": secrets.token_hex(8)}
                    contents = Contents(str(path), found, cipher=None if key is None else Cipher(key))
                    first, contents.sum = first_line(contents.header, contents.cipher)
                    file.truncate(0)
                    files.write_all(file, first)
                    contents.size, contents.first = len(first), contents.sum
                else:
                    check(contents.header, header, path)
                    files.truncate(file, contents)
                return cls(path, file, contents, new=new)
        except BaseException:
            file.close()
            raise

    @property
    def seed(self) -> int:
        """Return the seed of the runs."""
        return self.contents.header["seed"]

    def put(self, item: int, record: Record) -> None:
        """Add a record of a run, as JSON data that is no longer modified.

        Never waits and never raises for the file: a full disk is reported by `sync` and `close`.
        """
        self.add((item, record))

    def add(self, entry: Entry) -> None:
        """As `put`, for any entry."""
        self.entries.append(entry)
        self._ring()

    def _ring(self, *_: Result) -> None:
        """Let the writing thread look for entries."""
        if not self._some.is_set():
            self._some.set()

    def flush(self) -> None:
        """Write everything that was put, so that it survives the end of this process; it is synced to disk later. Never
        raises for the file, as `put`."""
        self.gather()
        self._trying(self._write_groups)

    def _hurry(self) -> None:
        self._urgent.set()
        self._ring()

    def sync(self) -> None:
        """Wait until everything that was put is on disk. Raises JournalError if it cannot be."""
        written = threading.Event()
        self._waiting.append(written.set)
        self._hurry()
        while not written.wait(1) and self._thread.is_alive():
            pass
        self._check()

    async def synced(self) -> None:
        """As `sync`, without blocking the loop."""
        loop = asyncio.get_running_loop()
        written = loop.create_future()

        def notify() -> None:
            if not loop.is_closed():  # the run was cancelled
                loop.call_soon_threadsafe(lambda: written.done() or written.set_result(None))

        self._waiting.append(notify)
        self._hurry()
        await written
        self._check()

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep the journal open in the block, in which a call is made whose outcome is written here, also if the run is
        cancelled meanwhile."""
        with self._held:
            self._calls += 1
        try:
            yield
        finally:
            with self._held:
                self._calls -= 1
                last = self.left and not self._calls and not self._closing
            if last:
                self._alone(self.close)

    @property
    def in_calls(self) -> bool:
        """Return whether threads of its runs are making calls."""
        return bool(self._calls)

    def leave(self) -> None:
        """Leave after the runs have ended with an error, or were cancelled. Running calls still write their outcomes, and the last of them closes
        the journal; without any, it is closed now."""
        with self._held:
            self.left = True
            last = not self._calls
        self._alone(self.close if last else self.sync)

    def _alone(self, act: Callable[[], None]) -> None:
        """Log the error of an action that has no caller to raise it to."""
        try:
            act()
        except JournalError as error:
            log.error("%s", error.message)

    def close(self) -> None:
        """Write everything that was put and close the file. Raises JournalError if it cannot be written.

        The writing thread does it: Ctrl-C here does not leave the journal in use.
        """
        self._closing = True
        self._hurry()
        self._thread.join()
        self._check()
        self._error = JournalError("it was closed")

    def _check(self) -> None:
        if self._error is not None:
            raise JournalError(
                f"journal={str(self.path)!r}: {getattr(self._error, 'strerror', None) or self._error}; the run cannot continue without its journal"
            ) from (self._error if isinstance(self._error, OSError) else None)

    def _work(self) -> None:
        closing, due = False, 0.0  # deadline of the next sync; 0: all is synced
        while not closing:
            if not self._some.wait(max(0.0, due - monotonic()) if due else None):
                due = self._trying(self._sync)
                continue
            due = due or monotonic() + GROUP
            self._urgent.wait(max(0.0, due - monotonic()))
            self._some.clear()  # before taking anything: an entry added now is seen now or notifies again
            self._urgent.clear()
            closing = self._closing
            waiting = _taken(self._waiting)
            self.gather()
            if waiting:  # a caller waits before an effect, whose intent is not written if there is no room for its result
                self._trying(self._room.reserve, self._end + sum(map(len, self._lines)))
            self._trying(self._write_groups)
            if waiting or closing or monotonic() >= due:
                due = self._trying(self._sync)
            for notify in waiting:
                notify()
        self._trying(self._room.give_back, self._end)
        try:
            locks.unlock(self._file)
        finally:
            self._file.close()
            self._sidecar.close()

    def _trying(self, work: Callable[..., None], *args: Any) -> float:
        """Run an action that may fail, unless something has failed before; that error goes to waiters or `close`.
        Always returns 0."""
        try:
            if self._error is None:
                work(*args)
        except Exception as error:
            self._error = error
        return 0.0

    def _sync(self) -> None:
        end = self._end  # later writes may not be on disk
        os.fsync(self._file.fileno())
        if not files.is_at(self._file, self._place):
            raise JournalError("it was deleted, moved or replaced while a run wrote to it")
        if self._new:
            files.sync_directory(self.path.parent)
            self._new = False
        self._sidecar.note(end, self.contents.first)

    def _write_groups(self) -> None:
        with self._writing:
            lines = _taken(self._lines)
            if lines:
                data = b"".join(lines)
                files.write_all(self._file, data)
                self._end += len(data)

    # -- making groups

    def gather(self) -> None:
        """Make a group of the entries so far."""
        with self._gathering:
            new = self.entries[:]  # before looking what has arrived: what a new entry depends on has
            late, unanswered = _arrived(self._unanswered)
            entries, missing = _arrived(new)
            if late or entries:
                self._trying(self._make_group, [*late, *entries])
            self._unanswered = unanswered + missing  # only now, and the next line after it: Ctrl-C on a run's thread must lose none
            del self.entries[: len(new)]
            for _, _, result in missing:
                result.on_done(self._ring)

    def gather_many(self) -> None:
        """As `gather`, unless another thread is gathering already."""
        if not self._gathering.locked():
            self.gather()

    def _make_group(self, entries: Sequence[Entry]) -> None:
        sections = group_of(entries)
        if sections:
            data = json_data.encode_json(sections)
            self._groups += 1
            found, self._sum = line(data if self._cipher is None else self._cipher.seal(data, self._groups), self._sum)
            self._lines.append(found)


def _arrived(entries: Sequence[Entry]) -> tuple[list[Entry], list[Answered]]:
    """Divide entries into those that can be written, and answers that have not arrived."""
    there: list[Entry] = []
    missing: list[Answered] = []
    for entry in entries:
        if len(entry) > 2 and not entry[2].done:
            missing.append(entry)
        else:
            there.append(entry)
    return there, missing


def _taken(items: list[Any]) -> list[Any]:
    """Remove and return the present items of a list; others may append meanwhile."""
    taken = items[:]
    del items[: len(taken)]
    return taken


_FIELDS: Mapping[str, str] = {
    "kind": "{}", "program": "the program {}", "source": "a program with another source", "compiled": "a program compiled with {}",
    "backend": "the backend {}", "sampling": "a run with {}", "seed": "a run with seed {}",
}  # fmt: skip


def check(found: Mapping[str, Any], header: Mapping[str, Any], path: Path) -> None:
    """Refuse a journal whose header is not `header`."""
    for name, text in _FIELDS.items():
        theirs, ours = found.get(name), header.get(name)
        if theirs != ours and not (name == "seed" and ours is None):
            theirs, ours = (f"a {theirs}", f"a {ours}") if name == "kind" else (theirs, ours)
            what = text.format(_shown(theirs))
            instead = "" if "{}" not in text else f", not {_shown(ours)}"
            raise JournalError(f"journal={str(path)!r} is of {what}{instead}; give each call a journal of its own, or delete this one")
    if header.get("media") and not found.get("media"):
        raise JournalError(f"journal={str(path)!r} was begun without pictures in it; leave out with_media, or begin another one")


def _shown(x: Any) -> str:
    """Return a value for messages; an empty one was not given."""
    if isinstance(x, dict):
        return ", ".join(f"{k}={v!r}" for k, v in x.items()) or "the default sampling parameters"
    return "no outputs= or aggressive=" if x == "" else str(x)
