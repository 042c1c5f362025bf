"""Journals: files of what became known in runs (answers, results of effects), so that a run that was cut off can go on.

A journal is lines of text. The first says what it is and of which program; each further one holds a group of records that
were written together, behind a checksum, so that a file cut at any byte is read up to the last whole group. Records only
add; their order is the order in which things became known. A group has the records of each run in one piece, which is
parsed when the run needs it. docs/durability.md is the format's description.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (records are data by nature)

from __future__ import annotations

import asyncio
import gc
import os
import stat
import threading
import weakref
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Protocol

from lmc import codec
from lmc.errors import JournalError

VERSION = 3
MAGIC = "lmc-journal"
GROUP = 0.05
"""Seconds that records wait for others to be written and synced with, unless somebody waits for them."""

Record = list[Any]
Late = tuple[Any, ...]
"""What a record is made of when it is written: the arguments of its run's `record`."""
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

    arguments  as data, or None if they are too large; then digest is of them
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


class Writes(Protocol):
    """A run that writes to a journal: its number, and what makes a record when it is written, or None where there is none."""

    item: int

    @property
    def record(self) -> Callable[..., Record | None]: ...


@dataclass(slots=True)
class Contents:
    """A journal that was read: its header, the records of its runs by number, and how many bytes are whole.

    records  in pieces as they are in the file, the first of which says how the run begins: most runs of a large batch need
             theirs for a moment only
    """

    name: str
    header: dict[str, Any]
    records: dict[int, list[bytes]] = field(default_factory=dict[int, list[bytes]])
    size: int = 0
    dropped: int = 0

    def known(self, item: int) -> Known:
        """What is known of a run. Raises JournalError."""
        known = Known()
        try:
            for _, *records in map(codec.decoder(), self.records.get(item, ())):
                for record in records:
                    _TAKE[record[0]](known, record)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise JournalError(f"{self.name}: a record of run {item} that no lmc wrote: {type(error).__name__}: {error}") from None
        _forget_failures(known)
        return known

    def finished(self, items: Iterable[int]) -> bool:
        """Whether runs are over, and none with an error."""
        return all(self.records.get(item, _NO_PIECES)[-1].endswith(b',["e",[]]]') for item in items)

    @property
    def runs(self) -> dict[int, Known]:
        """What is known of all runs, by number."""
        with _no_collection():
            return {item: self.known(item) for item in self.records}


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
        instead = f"{path} is a directory, and there is no batch's journal in it; " if file != Path(path) else ""
        raise JournalError(f"{instead}{file}: {error.strerror or error}") from None
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
    header = _header(rest)
    if header is None:
        raise JournalError(f"{name} is damaged in its first line; start a new journal")
    contents = Contents(name, header, size=len(head) + 1)
    _groups(contents, data)
    contents.dropped = len(data) - contents.size
    _check_rest(data, contents.size, name)
    return contents


def _header(line: bytes) -> dict[str, Any] | None:
    payload = _payload(line)
    try:
        header = None if payload is None else codec.from_bytes(payload)
    except ValueError:
        return None
    return header if isinstance(header, dict) else None


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


@contextmanager
def few_full_collections() -> Generator[None]:
    """Puts off the collector's passes through all objects, which take as long as making thousands of states; what dies young is found as always."""
    with _thresholds_lock:
        _thresholds.append(gc.get_threshold())
        young, middle, full = _thresholds[0]
        gc.set_threshold(young, middle, max(full, 1000))
    try:
        yield
    finally:
        with _thresholds_lock:
            first = _thresholds[0]
            _thresholds.pop()
            if not _thresholds:
                gc.set_threshold(*first)


_thresholds: list[tuple[int, int, int]] = []  # one for each who puts them off; the first has what is put back
_thresholds_lock = threading.Lock()
_NO_PIECES = (b"",)


def _groups(contents: Contents, data: bytes) -> None:
    """Reads the groups behind the first line, up to the last whole one."""
    at, records = contents.size, contents.records
    while (end := data.find(b"\n", at)) >= 0 and (payload := _payload(data[at:end])) is not None:
        for piece in payload.split(b"\t"):
            try:
                records.setdefault(int(piece[1 : piece.index(b",")]), []).append(piece)
            except ValueError:
                raise JournalError(f"{contents.name}: a record at byte {at} that no lmc wrote") from None
        at = contents.size = end + 1


def _payload(line: bytes) -> bytes | None:
    """What a line holds behind its checksum, None if it is damaged."""
    checksum, _, payload = line.partition(b" ")
    return payload if checksum == _checksum(payload) else None


def _checksum(payload: bytes) -> bytes:
    return b"%08x" % zlib.crc32(payload)


def _check_rest(data: bytes, at: int, name: str) -> None:
    """What follows the first damaged line must be damaged too: otherwise the file was not cut off but changed."""
    lines = data[at:].split(b"\n")[1:]
    if any(line and _payload(line) is not None for line in lines):
        raise JournalError(
            f"{name} is damaged at byte {at}, and what follows is not: effects that it knows of would be called again. Restore the file, "
            "or cut it there if that may be")


def _begin(known: Known, record: Record) -> None:
    _, known.arguments, known.digest = record


def _answer(known: Known, record: Record) -> None:
    _, stream, ordinal, digest, *_ = record
    known.answers.setdefault((stream, ordinal), {})[digest] = record
    if len(record) > (5 if record[0] == "f" else 8):
        for also in record[-1]:
            known.answers.setdefault(tuple(also), {})[digest] = record
    known.order.append(record)


def _intent(known: Known, record: Record) -> None:
    _, number, stream, name, digest, which, shown, line, ordered = record
    effect = Effect(_number(number), (stream, name, digest, which), shown, line, bool(ordered))
    known.effects[effect.place] = known.calls[number] = effect
    known.order.append(effect)


def _result(known: Known, record: Record) -> None:
    _, number, *outcome = record
    known.calls[number].outcome = outcome


def _undo(known: Known, record: Record) -> None:
    """A call that was not made after all."""
    effect = known.calls.pop(_number(record[1]))
    del known.effects[effect.place]
    known.order.remove(effect)


def _end(known: Known, record: Record) -> None:
    known.end = [(str(kind), str(message)) for kind, message in record[1]]


def _number(number: Any) -> int:
    if type(number) is not int:
        raise ValueError(f"a call's number is {number!r}")
    return number


_TAKE = {"b": _begin, "a": _answer, "A": _answer, "f": _answer, "i": _intent, "r": _result, "u": _undo, "e": _end}


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
    data = record[4][codec.TAG]
    return data[1].partition(":")[2], data[4]


# -- writing ---------------------------------------------------------------------------------------------------------


class Journal:
    """A journal that runs write to. `put` from any thread; a thread of its own encodes, writes and syncs what came together.

    encode  one record as bytes
    """

    def __init__(self, path: Path, file: BinaryIO, contents: Contents) -> None:
        self.path, self.contents = path, contents
        self.encode = codec.encoder()
        self._file = file
        self._begun: list[tuple[int, Record]] = []  # what is not written; only the writing thread takes from it
        self._records: list[tuple[Writes, Record | Late]] = []
        self._waiting: list[Callable[[], object]] = []  # what to call when all that was there before it is written
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # that drive runs, one or several; not those that programs begin
        self._some, self._urgent = threading.Event(), threading.Event()
        self._closing = False
        self._error: Exception | None = None
        self._types: dict[tuple[type, ...], bool] = {}
        self._thread = threading.Thread(target=self._work, name="lmc-journal", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path, header: Mapping[str, Any], fresh: Callable[[], int]) -> Journal:
        """A new journal with this header, or the one that is there, if it has the same. Raises JournalError.

        A seed of None in `header` means the journal's own, which of a new one is `fresh()`.
        """
        try:
            file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        except (OSError, ValueError) as error:
            raise JournalError(f"journal={str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise JournalError(f"journal={str(path)!r} is no ordinary file; give the path of one, or of a file that is not there yet")
            _lock(file, path)
            data = file.read()
            contents = parse(data, str(path))
            if contents is None:
                contents = Contents(str(path), {**header, "seed": fresh() if header["seed"] is None else header["seed"]})
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

    def is_json(self, meta: Mapping[str, Any]) -> bool:
        """Whether meta info is as JSON has it: looked at once for each combination of types, what has the same is taken to be alike."""
        types = tuple(map(type, meta.values()))
        found = self._types.get(types)
        if found is None:
            found = self._types[types] = codec.is_json(dict(meta))
        return found

    def begin(self, item: int, record: Record) -> None:
        """How a run begins, before anything else of it."""
        self._begun.append((item, record))
        if not self._some.is_set():
            self._some.set()

    def put(self, run: Writes, what: Record | Late) -> None:
        """A record of a run, as data as JSON has it that nobody changes any more, or what makes it when it is written.

        Never waits and never raises for the file: a disk that is full is said by `sync` and `close`.
        """
        self._records.append((run, what))
        if not self._some.is_set():
            self._some.set()

    def hurry(self) -> None:
        """What was put is written now, so that it is there if this process ends; the disk has it a moment later."""
        self._urgent.set()
        self._some.set()

    def sync(self) -> None:
        """Waits until all that was put is on the disk. Raises JournalError if it cannot be."""
        written = threading.Event()
        self._waiting.append(written.set)
        self.hurry()
        while not written.wait(1) and self._thread.is_alive():
            pass
        self._check()

    async def synced(self) -> None:
        """As `sync`, without holding the loop."""
        loop = asyncio.get_running_loop()
        written = loop.create_future()

        def notify() -> None:
            if not loop.is_closed():  # the run was cancelled
                loop.call_soon_threadsafe(lambda: written.done() or written.set_result(None))

        self._waiting.append(notify)
        self.hurry()
        await written
        self._check()

    def close(self) -> None:
        """Writes what was put and closes the file. Raises JournalError if it cannot be written."""
        self._closing = True
        self.hurry()
        self._thread.join()
        self._file.close()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise JournalError(f"journal={str(self.path)!r}: {getattr(self._error, 'strerror', None) or self._error}; the run cannot go on without its journal")

    def _work(self) -> None:
        closing, due = False, 0.0  # when the disk must have what was written; 0: it has
        while not closing:
            if not self._some.wait(max(0.0, due - monotonic()) if due else None):
                due = self._trying(self._sync)
                continue
            due = due or monotonic() + GROUP
            self._urgent.wait(max(0.0, due - monotonic()))
            self._some.clear()  # before taking anything: what comes now is seen now or rings again
            self._urgent.clear()
            closing = self._closing
            waiting = _taken(self._waiting)
            self._trying(self._write_group)
            if waiting or closing or monotonic() >= due:
                due = self._trying(self._sync)
            for notify in waiting:
                notify()

    def _trying(self, work: Callable[..., None], *args: Any) -> float:
        """Does what may fail, unless something has failed before; that is said to whoever waits or closes. Always 0."""
        try:
            if self._error is None:
                work(*args)
        except Exception as error:
            self._error = error
        return 0.0

    def _sync(self) -> None:
        os.fsync(self._file.fileno())

    def _write_group(self) -> None:
        taken = _taken(self._records)  # first: what is among them has begun
        begun, runs = list(map(list, _taken(self._begun))), dict[int, list[Any]]()
        for run, what in taken:
            record = what if what.__class__ is list else run.record(*what)
            if record is None:
                continue
            piece = runs.get(run.item)
            if piece is None:
                runs[run.item] = [run.item, record]
            else:
                piece.append(record)
        pieces = [*begun, *runs.values()]
        if pieces:
            payload = codec.encoded(pieces, self.encode, b"\t")
            _write(self._file, b"%s %s\n" % (_checksum(payload), payload))


def _taken(items: list[Any]) -> list[Any]:
    """What a list has now, which then is no more in it; others may add to it meanwhile."""
    taken = items[:]
    del items[: len(taken)]
    return taken


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
    "kind": "{}", "program": "the program {}", "source": "a program with another source", "compiled": "a program compiled with {}",
    "backend": "the backend {}", "sampling": "the sampling parameters {}", "seed": "the seed {}",
}  # fmt: skip


def check(found: Mapping[str, Any], header: Mapping[str, Any], path: Path) -> None:
    """Refuses a journal of something else than `header` says."""
    for name, text in _FIELDS.items():
        theirs, ours = found.get(name), header.get(name)
        if theirs != ours and not (name == "seed" and ours is None):
            theirs, ours = (f"a {theirs}", f"a {ours}") if name == "kind" else (theirs, ours)
            what = text.format(_shown(theirs))
            instead = "" if "{}" not in text else f", not {_shown(ours)}"
            raise JournalError(f"journal={str(path)!r} is of {what}{instead}; give each call a journal of its own, or delete this one")


def _shown(x: Any) -> str:
    if isinstance(x, dict):
        return ", ".join(f"{k}={v!r}" for k, v in x.items()) or "of no change"
    return str(x)

