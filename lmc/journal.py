"""Journals: files of what became known in runs (answers, results of effects), so that a run that was cut off can go on.

A journal is lines of text. The first says what it is and of which program; each further one holds a group of records that
were written together, behind a checksum, so that a file cut at any byte is read up to the last whole group. Records only
add; their order is the order in which things became known. docs/durability.md is the format's description.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (records are data by nature)

from __future__ import annotations

import gc
import os
import queue
import threading
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from lmc import codec
from lmc.errors import JournalError

VERSION = 1
MAGIC = "lmc-journal"
GROUP = 0.005
"""Seconds that records wait for others to be written with, unless somebody waits for them."""

Record = list[Any]
Place = tuple[str, str, int, int]
"""Of an effect: the stream of its run, what is called, a check of its arguments, and which of such calls it is."""
Ask = tuple[str, int]
"""Of an answer: stream and ordinal."""


@dataclass(slots=True)
class Effect:
    """A call of host code. `outcome`: None while only its intent is known.

    number   of the run's effects, in the order in which they began
    shown    its arguments, for people;  line  where the program calls it
    ordered  it is made where the program makes it, not ahead
    """

    number: int
    place: Place
    shown: str
    line: str
    ordered: bool
    outcome: Record | None = None

    @property
    def name(self) -> str:
        return self.place[1]


@dataclass(slots=True)
class Known:
    """What a journal knows of one run.

    arguments  as data, or None if they are too large; digest  of them
    answers    by place, then by the digest of what was asked
    effects    by place, and `calls` by number
    order      of what became known: records of answers, and effects
    end        None while it runs; then the errors it ended with, from the last to its causes: (type, message)
    """

    arguments: Any = None
    digest: str | None = None
    answers: dict[Ask, dict[int, Record]] = field(default_factory=dict[Ask, dict[int, Record]])
    effects: dict[Place, Effect] = field(default_factory=dict[Place, Effect])
    calls: dict[int, Effect] = field(default_factory=dict[int, Effect])
    order: list[Record | Effect] = field(default_factory=list[Record | Effect])
    end: list[tuple[str, str]] | None = None


@dataclass(slots=True)
class Contents:
    """A journal that was read: its header, its runs by number, the names that its records share, and how many bytes are whole."""

    header: dict[str, Any]
    runs: dict[int, Known] = field(default_factory=dict[int, Known])
    names: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    size: int = 0
    dropped: int = 0

    def known(self, item: int) -> Known:
        found = self.runs.get(item)
        if found is None:
            found = self.runs[item] = Known()
        return found


# -- reading ---------------------------------------------------------------------------------------------------------


def find(path: str | os.PathLike[str]) -> Path:
    """The file of a journal: the path itself, or the file in a batch's directory."""
    path = Path(path)
    return path / "journal" if path.is_dir() else path


def read(path: str | os.PathLike[str]) -> Contents:
    """A journal from its file, without the end that was not written whole. Raises JournalError."""
    file = find(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise JournalError(f"{file}: {error.strerror or error}") from None
    found = parse(data, str(file))
    if found is None:
        raise JournalError(f"{file}: a journal that was cut off before anything was written; delete it")
    return found


def parse(data: bytes, name: str) -> Contents | None:
    """A journal from its bytes; None if they end before the first line does. Raises JournalError for what is no journal."""
    head, newline, _ = data.partition(b"\n")
    magic = f"{MAGIC} ".encode()
    if not head.startswith(magic):
        if not newline and magic.startswith(head):
            return None
        raise JournalError(f"{name} is not a journal of lmc; give the path of one, or of a file that is not there yet")
    if not newline:
        return None
    version, _, rest = head[len(magic) :].partition(b" ")
    if version != str(VERSION).encode():
        shown = version[:20].decode("utf-8", "replace")
        raise JournalError(
            f"{name} is a journal of format {shown}; this lmc reads format {VERSION}. Finish it with the lmc that wrote it, or start a new one")
    header = _group(rest)
    if not isinstance(header, dict):
        raise JournalError(f"{name} is damaged in its first line; start a new journal")
    contents = Contents(header, size=len(head) + 1)
    with _no_collection():
        at = _records(contents, data, name)
    contents.dropped = len(data) - at
    _check_rest(data, at, name)
    for known in contents.runs.values():
        _forget_failures(known)
    return contents


@contextmanager
def _no_collection() -> Generator[None]:
    """Millions of records are no garbage: looking for some again and again would take most of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _records(contents: Contents, data: bytes, name: str) -> int:
    """Reads the groups behind the first line; gives where the last whole one ends."""
    at = contents.size
    while at < len(data):
        end = data.find(b"\n", at)
        records = _group(data[at : end if end >= 0 else len(data)]) if end >= 0 else None
        if not isinstance(records, list):
            break
        _take(contents, records, name, at)
        at = contents.size = end + 1
    return at


def _group(line: bytes) -> Any:
    """The data of one line, None if it is damaged."""
    checksum, _, payload = line.partition(b" ")
    if checksum != _checksum(payload):
        return None
    try:
        return codec.from_bytes(payload)
    except ValueError:
        return None


def _checksum(payload: bytes) -> bytes:
    return b"%08x" % zlib.crc32(payload)


def _check_rest(data: bytes, at: int, name: str) -> None:
    """What follows the first damaged line must be damaged too: otherwise the file was not cut off but changed."""
    lines = data[at:].split(b"\n")[1:]
    if any(line and _group(line) is not None for line in lines):
        raise JournalError(
            f"{name} is damaged at byte {at}, and what follows is not: effects that it knows of would be called again. Restore the file, "
            "or cut it there if that may be")


def _take(contents: Contents, records: Sequence[Any], name: str, at: int) -> None:
    """Adds a group of records to what is known."""
    try:
        for record in records:
            _TAKE[record[0]](contents, record)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise JournalError(f"{name}: a record at byte {at} that no lmc wrote: {type(error).__name__}: {error}") from None


def _begin(contents: Contents, record: Record) -> None:
    _, item, arguments, digest = record
    known = contents.known(_number(item))
    known.arguments, known.digest = arguments, digest


def _names(contents: Contents, record: Record) -> None:
    contents.names.append(tuple(map(str, record[1])))


def _answer(contents: Contents, record: Record) -> None:
    _, item, stream, ordinal, digest, *_ = record
    known = contents.known(_number(item))
    known.answers.setdefault((stream, ordinal), {})[digest] = record
    if len(record) > (6 if record[0] == "f" else 9):
        for also in record[-1]:
            known.answers.setdefault(tuple(also), {})[digest] = record
    known.order.append(record)


def _intent(contents: Contents, record: Record) -> None:
    _, item, number, stream, name, digest, which, shown, line, ordered = record
    known = contents.known(_number(item))
    effect = Effect(_number(number), (stream, name, digest, which), shown, line, bool(ordered))
    known.effects[effect.place] = known.calls[number] = effect
    known.order.append(effect)


def _result(contents: Contents, record: Record) -> None:
    _, item, number, *outcome = record
    contents.known(_number(item)).calls[number].outcome = outcome


def _end(contents: Contents, record: Record) -> None:
    contents.known(_number(record[1])).end = [(str(kind), str(message)) for kind, message in record[2]]


def _number(item: Any) -> int:
    if type(item) is not int:
        raise ValueError(f"a run's number is {item!r}")
    return item


_TAKE = {"b": _begin, "k": _names, "a": _answer, "A": _answer, "f": _answer, "i": _intent, "r": _result, "e": _end}


def _forget_failures(known: Known) -> None:
    """A run that ended because a request failed asks again; what the program handled stays as it was."""
    ended = set(known.end or ())
    if not ended:
        return
    for place, found in list(known.answers.items()):
        for digest, record in list(found.items()):
            if record[0] == "f" and _failure(record) in ended:
                del found[digest]
        if not found:
            del known.answers[place]


def _failure(record: Record) -> tuple[str, str]:
    data = record[5][codec.TAG]
    return data[1].partition(":")[2], data[4]


# -- writing ---------------------------------------------------------------------------------------------------------


class Journal:
    """A journal that runs write to. `add` from any thread; a thread of its own writes what came together, and syncs it."""

    def __init__(self, path: Path, file: BinaryIO, contents: Contents) -> None:
        self.path, self.contents = path, contents
        self._file = file
        self._queue: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        self._urgent = threading.Event()
        self._error: OSError | None = None
        self._names = {names: i for i, names in enumerate(contents.names)}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="lmc-journal", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path, header: Mapping[str, Any], fresh: Callable[[], int]) -> Journal:
        """A new journal with this header, or the one that is there, if it has the same. Raises JournalError.

        A seed of None in `header` means the journal's own, which of a new one is `fresh()`.
        """
        try:
            file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        except OSError as error:
            raise JournalError(f"journal={str(path)!r}: {error.strerror or error}") from None
        try:
            _lock(file, path)
            data = file.read()
            contents = parse(data, str(path))
            if contents is None:
                contents = Contents({**header, "seed": fresh() if header["seed"] is None else header["seed"]})
                payload = codec.to_bytes(contents.header)
                line = b"%s %d %s %s\n" % (MAGIC.encode(), VERSION, _checksum(payload), payload)
                file.truncate(0)
                file.seek(0)
                _write(file, line)
                contents.size = len(line)
            else:
                check(contents.header, header, path)
                file.truncate(contents.size)
                file.seek(contents.size)
            os.fsync(file.fileno())
        except OSError as error:
            file.close()
            raise JournalError(f"journal={str(path)!r}: {error.strerror or error}") from None
        except BaseException:
            file.close()
            raise
        return cls(path, file, contents)

    @property
    def seed(self) -> int:
        """The seed of the runs."""
        return self.contents.header["seed"]

    def shape(self, names: tuple[str, ...]) -> int:
        """The number that stands for names in records."""
        known = self._names.get(names)
        if known is None:
            with self._lock:
                known = self._names.get(names)
                if known is None:
                    known = len(self._names)
                    self.add(["k", list(names)])  # before any record that uses it
                    self._names[names] = known
        return known

    def add(self, record: Record) -> None:
        """Never waits and never raises for the file: a disk that is full is said by `sync` and `close`.

        The record is data as JSON has it, and is read before this returns. Raises TypeError or ValueError for any other.
        """
        self._queue.put(codec.dumps(record))

    def sync(self) -> None:
        """Waits until all that was added is on the disk. Raises JournalError if it cannot be."""
        if self._thread.is_alive():
            written = threading.Event()
            self._queue.put(written)
            self._urgent.set()
            written.wait()
        self._check()

    def close(self) -> None:
        """Writes what was added and closes the file. Raises JournalError if it cannot be written."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._urgent.set()
            self._thread.join()
            self._file.close()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise JournalError(f"journal={str(self.path)!r}: {self._error.strerror or self._error}; the run cannot go on without its journal")

    def _work(self) -> None:
        going = True
        while going:
            group = [self._queue.get()]
            if group[0] is not None:
                self._urgent.wait(GROUP)
            self._urgent.clear()
            while not self._queue.empty():
                group.append(self._queue.get())
            going = None not in group
            self._put([r for r in group if isinstance(r, str)])
            for waiting in group:
                if isinstance(waiting, threading.Event):
                    waiting.set()

    def _put(self, records: list[str]) -> None:
        if not records or self._error is not None:
            return
        payload = f"[{','.join(records)}]".encode("utf-8", "surrogatepass")
        try:
            _write(self._file, b"%s %s\n" % (_checksum(payload), payload))
            os.fsync(self._file.fileno())
        except OSError as error:  # said to whoever waits or closes
            self._error = error


def _write(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _lock(file: BinaryIO, path: Path) -> None:
    """Two processes must not write one journal."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalError(f"journal={str(path)!r} is in use by another run; give each its own, or wait for it") from None


_FIELDS: Mapping[str, str] = {
    "kind": "a {}", "program": "the program {}", "source": "a program with another source", "compiled": "a program compiled with {}",
    "backend": "the backend {}", "sampling": "the sampling parameters {}", "seed": "the seed {}",
}  # fmt: skip


def check(found: Mapping[str, Any], header: Mapping[str, Any], path: Path) -> None:
    """Refuses a journal of something else than `header` says."""
    for name, text in _FIELDS.items():
        theirs, ours = found.get(name), header.get(name)
        if theirs != ours and not (name == "seed" and ours is None):
            what = text.format(_shown(theirs))
            instead = "" if "{}" not in text else f", not {_shown(ours)}"
            raise JournalError(f"journal={str(path)!r} is of {what}{instead}; give each call a journal of its own, or delete this one")


def _shown(x: Any) -> str:
    if isinstance(x, dict):
        return ", ".join(f"{k}={v!r}" for k, v in x.items()) or "of no change"
    return str(x)

