"""Records: what a journal's file holds, and how it is read.

A journal is lines of text. The first says what it is and of which program; each further one is a group of records that
were written together (lmc.durable.groups), behind a checksum, so that a file cut at any byte is read up to the last whole group.
Records only add; those of a run are in the order in which things became known. docs/durability.md is the format's description.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (records are data by nature)

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmc import codec
from lmc.durable.cipher import Cipher, Key, opened_first
from lmc.durable.groups import MAGIC, VERSION, WELL, Ask, Record, in_group, payload
from lmc.errors import JournalError
from lmc.garbage import no_collection

Place = tuple[str, str, int, int]
"""Of an effect: the stream of its run, what is called, a check of its arguments, and which of such calls it is."""


@dataclass(slots=True)
class Effect:
    """A call of host code, or a question to a person. `outcome`: None while only its intent is known.

    number    of the run's effects, in the order in which they began
    shown     its arguments, for people;  line  where the program calls it
    ordered   it is made where the program makes it, not ahead
    failed    how many attempts are known to have failed, behind which it may be called again
    begun     whether an attempt began whose end is not known
    question  what a person is asked, the JSON schema of the answer (or ""), and when, in seconds since 1970
    """

    number: int
    place: Place
    shown: str
    line: str
    ordered: bool
    outcome: Record | None = None
    failed: int = 0
    begun: bool = True
    question: tuple[str, str, int] | None = None

    @property
    def name(self) -> str:
        return self.place[1]

    @property
    def doubtful(self) -> bool:
        """Whether nobody knows if it was done."""
        return self.outcome is None and self.begun and self.question is None


@dataclass(slots=True)
class Known:
    """What a journal knows of one run.

    arguments  as data, or None if they are too large; then digest is of them
    answers    by place, then by the digest of what was asked
    effects    by place, and `calls` by number
    order      of what became known: records of answers, and effects
    end        None while it runs; then the errors it ended with, from the last to its causes: (type, message)
    ended      when that was, in seconds since 1970
    deleted    its contents were: it is over, and cannot be resumed
    """

    arguments: Any = None
    digest: str | None = None
    answers: dict[Ask, dict[int, Record]] = field(default_factory=dict[Ask, dict[int, Record]])
    effects: dict[Place, Effect] = field(default_factory=dict[Place, Effect])
    calls: dict[int, Effect] = field(default_factory=dict[int, Effect])
    order: list[Record | Effect] = field(default_factory=list[Record | Effect])
    end: list[tuple[str, str]] | None = None
    ended: int = 0
    deleted: bool = False

    @property
    def open(self) -> list[Effect]:
        """What waits for a person: questions, and effects that are in doubt."""
        return [effect for effect in self.calls.values() if effect.outcome is None and (effect.doubtful or effect.question is not None)]


@dataclass(slots=True)
class Contents:
    """A journal that was read: its header, the records of its runs by number, and how many bytes are whole.

    records  the first of a run says how it begins
    groups   how many there are;  sum  the checksum of the last one, which that of the next goes on from;  first  that of the first line
    cipher   what opens and seals its lines, if it is encrypted
    """

    name: str
    header: dict[str, Any]
    records: dict[int, list[Record]] = field(default_factory=dict[int, list[Record]])
    size: int = 0
    dropped: int = 0
    groups: int = 0
    sum: int = 0
    first: int = 0
    cipher: Cipher | None = None

    def known(self, item: int) -> Known:
        """What is known of a run. Raises JournalError."""
        known = Known()
        try:
            for record in self.records.get(item, ()):
                _TAKE[record[0]](known, record)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise JournalError(f"{self.name}: a record of run {item} that lmc did not write: {type(error).__name__}: {error}") from None
        _forget_failures(known)
        return known

    def finished(self, items: Iterable[int]) -> bool:
        """Whether runs are over, and none with an error."""
        return all(self.records.get(item, _NO_RECORDS)[-1][:2] == WELL for item in items)

    @property
    def runs(self) -> dict[int, Known]:
        """What is known of all runs, by number."""
        with no_collection():
            return {item: self.known(item) for item in self.records}


# -- reading ---------------------------------------------------------------------------------------------------------


def find(path: str | os.PathLike[str]) -> Path:
    """The file of a journal: the path itself, or the file in a batch's directory."""
    path = Path(path)
    return path / "journal" if path.is_dir() else path


def read(path: str | os.PathLike[str], key: Key | None = None) -> Contents:
    """A journal from its file, without the end that was not written whole. Raises JournalError."""
    file = find(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        instead = f"{path} is a directory, and there is no batch's journal in it; " if file != Path(path) else ""
        raise JournalError(f"{instead}{file}: {error.strerror or error}") from None
    found = parse(data, str(file), key)
    if found is None:
        raise JournalError(f"{file}: a journal that was cut off before anything was written; delete it")
    return found


def parse(data: bytes, name: str, key: Key | None = None) -> Contents | None:
    """A journal from its bytes; None if they end before the first line does. Raises JournalError for what is no journal, or not this key's."""
    head, newline, _ = data.partition(b"\n")
    magic = f"{MAGIC} ".encode()
    if not head.startswith(magic):
        if not newline and magic.startswith(head):
            return None
        raise JournalError(f"{name} is not a journal of lmc; give the path of one")
    if not newline:
        return None
    version, _, rest = head[len(magic) :].partition(b" ")
    if version != str(VERSION).encode():
        shown = version[:20].decode("utf-8", "replace")
        raise JournalError(
            f"{name} is a journal of format {shown}; this lmc reads format {VERSION}. Finish it with the lmc that wrote it, or start a new one")
    try:
        header, total, cipher = _header(rest, key)
    except JournalError as error:
        raise JournalError(f"{name}: {error.message}") from None
    if header is None:
        raise JournalError(f"{name} is damaged in its first line; start a new journal")
    contents = Contents(name, header, size=len(head) + 1, sum=total, first=total, cipher=cipher)
    _groups(contents, data)
    contents.dropped = len(data) - contents.size
    _check_rest(contents, data)
    return contents


def _header(first: bytes, key: Key | None) -> tuple[dict[str, Any] | None, int, Cipher | None]:
    """What the first line says behind the format's number, None if it is damaged; its checksum; and what opens the others."""
    found = payload(first, 0)
    if found is None:
        return None, 0, None
    try:
        header, cipher = opened_first(codec.from_bytes(found[0]), key)
    except ValueError:
        return None, 0, None
    return (header, found[1], cipher) if isinstance(header, dict) and type(header.get("seed")) is int else (None, 0, None)


_NO_RECORDS: Sequence[Record] = ([],)


def _groups(contents: Contents, data: bytes) -> None:
    """Reads the groups behind the first line, up to the last whole one."""
    records, decode = contents.records, codec.decoder(len(data))
    with no_collection():
        while (end := data.find(b"\n", contents.size)) >= 0 and (found := payload(data[contents.size : end], contents.sum)) is not None:
            try:
                data_of = found[0] if contents.cipher is None else contents.cipher.open(found[0], contents.groups + 1)
                for item, record in in_group(decode(data_of)):
                    known = records.get(item)
                    if known is None:
                        records[_number(item)] = [record]
                    else:
                        known.append(record)
            except JournalError as error:
                raise JournalError(f"{contents.name}: {error.message}") from None
            except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
                raise JournalError(f"{contents.name}: a group at byte {contents.size} that lmc did not write: {type(error).__name__}: {error}") from None
            contents.size, contents.sum, contents.groups = end + 1, found[1], contents.groups + 1


def _check_rest(contents: Contents, data: bytes) -> None:
    """What follows the last whole group is the beginning of one, if the file was cut off while it was written. Otherwise it was changed."""
    at = contents.size
    if data.find(b"\n", at) >= 0 or payload(data[at:-1], contents.sum) is not None:  # of a whole one only the end of its line may have been changed
        raise JournalError(
            f"{contents.name} is damaged at byte {at}, where what was written behind the group before is not, or not as it was: effects that it, or what "
            f"follows, knows of would be called again. Restore the file, or cut it there if that may be (truncate -s {at})")


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
    _, number, kind, _, *changes = record
    if not isinstance(kind, str) or len(changes) not in (0, 2, 3) or (len(changes) == 3 and type(changes[2]) is not int):
        raise ValueError(f"the result of call {number} is {record[2:]}")
    known.calls[number].outcome = record[2:]


def _attempt_failed(known: Known, record: Record) -> None:
    effect = known.calls[_number(record[1])]
    effect.failed, effect.begun = effect.failed + 1, False


def _attempt(known: Known, record: Record) -> None:
    known.calls[_number(record[1])].begun = True


def _question(known: Known, record: Record) -> None:
    _, number, question, schema, when = record
    known.calls[_number(number)].question = str(question), str(schema), _number(when)


def _deleted(known: Known, record: Record) -> None:
    known.deleted = True


def _undo(known: Known, record: Record) -> None:
    """A call that was not made after all."""
    effect = known.calls.pop(_number(record[1]))
    del known.effects[effect.place]
    known.order.remove(effect)


def _end(known: Known, record: Record) -> None:
    known.end, known.ended = [(str(kind), str(message)) for kind, message in record[1]], _number(record[2])


def _number(number: Any) -> int:
    if type(number) is not int:
        raise ValueError(f"a call's number is {number!r}")
    return number


_TAKE = {
    "b": _begin, "a": _answer, "A": _answer, "f": _answer, "i": _intent, "t": _attempt_failed, "g": _attempt, "q": _question, "r": _result, "u": _undo, "e": _end,
    "x": _deleted,
}  # fmt: skip


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
