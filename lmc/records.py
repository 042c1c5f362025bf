"""Records: what a journal's file holds, and how it is read.

A journal is lines of text. The first says what it is and of which program; each further one is a group of records that
were written together, behind a checksum, so that a file cut at any byte is read up to the last whole group. Records only
add; their order is the order in which things became known. A group has the answers, of which there are most, by columns:
they are written and read by a few calls that way. docs/durability.md is the format's description.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (records are data by nature)

from __future__ import annotations

import gc
import os
import threading
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from lmc import codec
from lmc.backend.base import Output, Usage
from lmc.errors import JournalError

VERSION = 4
MAGIC = "lmc-journal"

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


@dataclass(slots=True)
class Contents:
    """A journal that was read: its header, the records of its runs by number, and how many bytes are whole.

    records  the first of a run says how it begins
    """

    name: str
    header: dict[str, Any]
    records: dict[int, list[Record]] = field(default_factory=dict[int, list[Record]])
    size: int = 0
    dropped: int = 0

    def known(self, item: int) -> Known:
        """What is known of a run. Raises JournalError."""
        known = Known()
        try:
            for record in self.records.get(item, ()):
                _TAKE[record[0]](known, record)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise JournalError(f"{self.name}: a record of run {item} that no lmc wrote: {type(error).__name__}: {error}") from None
        _forget_failures(known)
        return known

    def finished(self, items: Iterable[int]) -> bool:
        """Whether runs are over, and none with an error."""
        return all(self.records.get(item, _NO_RECORDS)[-1] == WELL for item in items)

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
_NO_RECORDS: Sequence[Record] = ([],)


def _groups(contents: Contents, data: bytes) -> None:
    """Reads the groups behind the first line, up to the last whole one."""
    at, records, decode = contents.size, contents.records, codec.decoder()
    with _no_collection():
        while (end := data.find(b"\n", at)) >= 0 and (payload := _payload(data[at:end])) is not None:
            try:
                for item, record in _in_group(decode(payload)):
                    known = records.get(item)
                    if known is None:
                        records[_number(item)] = [record]
                    else:
                        known.append(record)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                raise JournalError(f"{contents.name}: a group at byte {at} that no lmc wrote: {type(error).__name__}: {error}") from None
            at = contents.size = end + 1


def _payload(line: bytes) -> bytes | None:
    """What a line holds behind its checksum, None if it is damaged."""
    found, _, payload = line.partition(b" ")
    return payload if found == checksum(payload) else None


def checksum(payload: bytes) -> bytes:
    return b"%08x" % zlib.crc32(payload)


def _check_rest(data: bytes, at: int, name: str) -> None:
    """What follows the last whole group is the beginning of one, if the file was cut off while it was written. Otherwise it was changed."""
    if data.find(b"\n", at) >= 0 or _payload(data[at:-1]) is not None:  # of a whole one only the end of its line may have been changed
        raise JournalError(
            f"{name} is damaged at byte {at}, where a group is whole and not as it was written: effects that it, or what follows, knows of would be "
            f"called again. Restore the file, or cut it there if that may be (truncate -s {at})")


# -- groups ----------------------------------------------------------------------------------------------------------


class Group:
    """Records that are written together.

    begun    runs that begin with nothing but text: numbers, names of their arguments, and a column of values for each
    answers  of which `answered` takes one;  others  every other record, with its run and how many answers were before it
    ended    runs that are over, and well
    """

    __slots__ = ("_digests", "_items", "_outputs", "_places", "_table", "begun", "ended", "others")

    def __init__(self) -> None:
        self.begun: list[tuple[Sequence[int], Sequence[str], Sequence[Sequence[str]]]] = []
        self.others: list[tuple[int, int, Record]] = []
        self.ended: list[int] = []
        self._items: list[int] = []
        self._places: list[int] = []
        self._digests: list[int] = []
        self._outputs: list[Output] = []
        self._table: dict[Sequence[Ask], int] = {}

    def answered(self, item: int, places: Sequence[Ask], digest: int, output: Output) -> None:
        """An answer whose meta info is as JSON has it. `places`: its own, and those of the equal asks that it answers."""
        self._items.append(item)
        self._places.append(self._table.setdefault(places, len(self._table)))
        self._digests.append(digest)
        self._outputs.append(output)

    def add(self, item: int, record: Record) -> None:
        """Any other record."""
        if record is WELL:
            self.ended.append(item)
        else:
            self.others.append((len(self._items), item, record))

    @property
    def data(self) -> dict[str, Any]:
        """As JSON has it; empty if nothing is in it."""
        outputs = self._outputs
        answers = outputs and [
            self._items, self._places, self._digests, [o.texts for o in outputs], [o.metas for o in outputs],
            list(map(_USAGE, map(_USAGE_OF, outputs))), [o.ids for o in outputs], list(self._table)]  # fmt: skip
        sections = {"begun": self.begun, "answers": answers, "others": self.others, "ended": self.ended}
        return {name: section for name, section in sections.items() if section}


def _in_group(data: Any) -> Iterator[tuple[int, Record]]:
    """The records of a group in order, each with its run."""
    for items, names, columns in data.get("begun", ()):
        for item, *values in zip(items, *columns, strict=True):
            yield item, ["b", dict(zip(names, values, strict=True)), None]
    answers, at = _answers_of(data.get("answers")), 0
    for before, item, record in data.get("others", ()):
        yield from islice(answers, before - at)
        at = before
        yield item, record
    yield from answers
    for item in data.get("ended", ()):
        yield item, WELL


def _answers_of(section: Any) -> Iterator[tuple[int, Record]]:
    if section is not None:
        items, where, *columns, table = section
        for item, place, *column in zip(items, where, *columns, strict=True):
            yield item, ["a", table[place], *column]


def lines_of(records: Iterable[tuple[int, Record]]) -> bytes:
    """Groups of one record each, as they are in a file."""
    return b"".join(line(codec.to_bytes({"others": [(0, item, record)]})) for item, record in records)


def line(payload: bytes) -> bytes:
    """A group as it is in a file."""
    return b"%s %s\n" % (checksum(payload), payload)


WELL: Record = ["e", []]
"""The record of a run that is over, and well."""
_USAGE = attrgetter(*[f.name for f in fields(Usage)])
_USAGE_OF = attrgetter("usage")


def output_of(record: Record) -> Output:
    """The answer that a record holds. Raises BadData, ValueError, TypeError or IndexError for what no lmc wrote."""
    kind, _, _, texts, metas, usage, ids = record
    if kind == "A":
        metas = [{name: codec.decode(x) for name, x in meta} for meta in metas]
    return Output(tuple(texts), tuple(metas), Usage(*usage), tuple(ids))


def record_of(places: Sequence[Ask], digest: int, output: Output) -> Record:
    """The record of an answer whose meta info is not as JSON has it. Raises JournalError for what is no data."""
    try:
        metas = [[[name, codec.encode(x)] for name, x in meta.items()] for meta in output.metas]
    except codec.NotData as what:
        raise JournalError(f"a journal cannot hold the meta info of an answer: {what}") from None
    return ["A", places, digest, output.texts, metas, _USAGE(output.usage), output.ids]


# -- what is known of a run ------------------------------------------------------------------------------------------


def _begin(known: Known, record: Record) -> None:
    _, known.arguments, known.digest = record


def _answer(known: Known, record: Record) -> None:
    _, places, digest, *_ = record
    for stream, ordinal in places:
        known.answers.setdefault((stream, ordinal), {})[digest] = record
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
    data = record[3][codec.TAG]
    return data[1].rpartition(":")[2].rpartition(".")[2], data[4]  # of a class within another one, too
