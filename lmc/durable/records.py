"""Records: the contents of a journal's file, and reading them.

A journal is lines of text. The first identifies the format and the program; each further one is a group of records
written together (lmc.durable.groups), after a checksum, so that a file cut at any byte is read up to the last complete
group. Records only add; those of a run are in the order in which they became known. docs/durability.md describes the
format.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from lmc import codec, json_data
from lmc.durable.cipher import Cipher, Key, opened_first
from lmc.durable.groups import MAGIC, VERSION, WELL, Ask, Record, in_group, payload
from lmc.durable.turns import FEW_TURNS
from lmc.errors import JournalError
from lmc.gc_tuning import no_collection

Kind = tuple[str, str, int]
"""What calls have in common that may stand for one another: the stream of their run, the callee, and a checksum of what cannot change of their arguments."""


class RecordedCall(NamedTuple):
    """A call of host code, as a journal knows it.

    digest    checksum of its arguments, but for the contents of what can change
    contents  checksums of those;  shared: which of them another task or thread was given, too
    task      number of the task or thread that makes it
    ordered   whether it is made where the program makes it, not ahead of order
    """

    stream: str
    name: str
    digest: int
    contents: tuple[int, ...]
    shared: tuple[bool, ...]
    task: int
    ordered: bool

    @property
    def kind(self) -> Kind:
        return self[:3]

    @property
    def of_task(self) -> tuple[tuple[int, ...], int]:
        """Return what calls of a kind have in common that one task makes with the same contents, in one order."""
        return self.contents, self.task

    def is_like(self, other: RecordedCall, known: Sequence[bool]) -> bool:
        """Return whether a call of the same kind differs in nothing but contents of what is shared, or `known`."""
        return all(a == b or any(may) for a, b, *may in zip(self.contents, other.contents, self.shared, other.shared, known, strict=True))


@dataclass(slots=True, eq=False)
class Effect:
    """A call of host code, or a question to a person. `outcome`: None while only its intent is known.

    number    index among the run's effects, in the order in which they began
    shown     its arguments, for people;  line  where the program calls it
    ended     the place of its outcome among all;  suspended  whether the program's task, which awaited it, was suspended
    turns     of the event loop since what was suspended and ended before it, if they were few
    passed    whether the program has come past it again
    unexpected  whether the program called it because of a doubt that is decided by now: it may not come to it again
    failed    how many attempts are known to have failed, after which it may be retried
    begun     whether an attempt began whose end is not known
    question  the question to a person, the JSON schema of the answer (or ""), and its time, in seconds since 1970
    """

    number: int
    call: RecordedCall
    shown: str
    line: str
    outcome: Record | None = None
    ended: int = 0
    suspended: bool = False
    turns: int = FEW_TURNS
    passed: bool = False
    unexpected: bool = False
    failed: int = 0
    begun: bool = True
    question: tuple[str, str, int] | None = None

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def changes(self) -> bool:
        """Return whether it is known to have changed what it was given."""
        return self.outcome is not None and len(self.outcome) > 2 and bool(self.outcome[2])

    @property
    def cancelled(self) -> bool:
        """Return whether the program has cancelled it."""
        return self.outcome is not None and self.outcome[0] == "cancelled"

    @property
    def doubtful(self) -> bool:
        """Return whether it is in doubt: begun, with unknown outcome."""
        return self.outcome is None and self.begun and self.question is None


@dataclass(slots=True, eq=False)
class Read:
    """The first read of an answer by a program that has begun tasks.

    ended      its place among all outcomes;  passed  whether the program has come past it again;  turns  as of an effect
    suspended  whether its task was suspended, so that others went on
    cancelled  whether it was cancelled
    """

    ended: int
    suspended: bool = True
    turns: int = FEW_TURNS
    cancelled: bool = False
    passed: bool = False


@dataclass(slots=True, eq=False)
class Expiry:
    """A time-out of the program that has expired: its task and its number in that, and after how many steps. `ended`, `passed`, `turns`: as of a read."""

    ended: int
    key: tuple[int, ...]
    step: int
    turns: int
    passed: bool = False
    cancelled: ClassVar = False
    suspended: ClassVar = True


@dataclass(slots=True)
class Known:
    """A journal's records of one run.

    arguments  as data, or None if they are too large; then digest is of them
    answers    by place, then by the checksum of the request;  unexpected: places of those that were requested because of a doubt
    asked      places that the program has come to again
    effects    by number;  unmade: those that were not made after all, and have not begun again
    reads      of answers, by place, in order;  expiries: of time-outs
    order      records of answers and effects in the order they became known
    left_doubtful  numbers of the effects that were in doubt when it ended
    end        None while it runs; then the errors it ended with, from the last to its causes: (type, message)
    ended      when that was, in seconds since 1970
    unread     places of the requests whose errors these are, if nothing has read them
    deleted    whether its contents were deleted: it is over, and cannot be resumed
    """

    arguments: Any = None
    digest: str | None = None
    answers: dict[Ask, dict[int, Record]] = field(default_factory=dict[Ask, dict[int, Record]])
    unexpected: set[Ask] = field(default_factory=set[Ask])
    asked: set[Ask] = field(default_factory=set[Ask])
    effects: dict[int, Effect] = field(default_factory=dict[int, Effect])
    unmade: dict[int, RecordedCall] = field(default_factory=dict[int, RecordedCall])
    reads: dict[Ask, list[Read]] = field(default_factory=dict[Ask, list[Read]])
    expiries: list[Expiry] = field(default_factory=list[Expiry])
    order: list[Record | Effect] = field(default_factory=list[Record | Effect])
    end: list[tuple[str, str]] | None = None
    ended: int = 0
    unread: set[Ask] = field(default_factory=set[Ask])
    left_doubtful: set[int] = field(default_factory=set[int])
    deleted: bool = False

    @property
    def cut_off(self) -> bool:
        """Return whether it has not come to its end: its process has ended, or it was interrupted or cancelled."""
        return self.end is None or bool(self.end and self.end[0][0] in _CUT_OFF)

    @property
    def open(self) -> list[Effect]:
        """Return the effects that wait for a person: questions, and those in doubt."""
        return [effect for effect in self.effects.values() if effect.outcome is None and (effect.doubtful or effect.question is not None)]


_CUT_OFF = frozenset({"KeyboardInterrupt", "CancelledError", "GeneratorExit"})


@dataclass(slots=True)
class Contents:
    """A journal that was read: its header, the records of its runs by number, and how many bytes are whole.

    records  the first of a run is its beginning
    groups   how many there are;  sum  the checksum of the last one, which the next one's continues;  first  that
             of the first line
    cipher   opens and seals its lines, if it is encrypted
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
        """Return the records of a run. Raises JournalError."""
        known = Known()
        try:
            for record in self.records.get(item, ()):
                _TAKE[record[0]](known, record)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise JournalError(f"{self.name}: a record of run {item} that lmc did not write: {type(error).__name__}: {error}") from None
        _forget_failures(known)
        return known

    def finished(self, items: Iterable[int]) -> bool:
        """Return whether runs are over, and none with an error."""
        return all(self.records.get(item, _NO_RECORDS)[-1][:2] == WELL for item in items)

    @property
    def runs(self) -> dict[int, Known]:
        """Return the records of all runs, by number."""
        with no_collection():
            return {item: self.known(item) for item in self.records}


# -- reading ---------------------------------------------------------------------------------------------------------


def find(path: str | os.PathLike[str]) -> Path:
    """Return the file of a journal: the path itself, or the file in a batch's directory."""
    path = Path(path)
    return path / "journal" if path.is_dir() else path


def read(path: str | os.PathLike[str], key: Key | None = None) -> Contents:
    """Read a journal from its file, without an incomplete end. Raises JournalError."""
    file = find(path)
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise JournalError(f"{file} is not a regular file; give the path of a journal")
        with file.open("rb") as opened:
            data = opened.read(len(MAGIC))
            if MAGIC.encode().startswith(data):  # another file may be of any size
                data += opened.read()
    except (OSError, ValueError) as error:
        instead = f"{path} is a directory, and there is no batch's journal in it; " if file != Path(path) else ""
        raise JournalError(f"{instead}{file}: {getattr(error, 'strerror', None) or error}") from None
    found = parse(data, str(file), key)
    if found is None:
        raise JournalError(f"{file}: a journal that was cut off before anything was written; delete it")
    return found


def parse(data: bytes, name: str, key: Key | None = None) -> Contents | None:
    """Parse a journal's bytes; None if they end before the first line does. Raises JournalError for what is not a
    journal, or for another key."""
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
        raise JournalError(f"{name} is a journal of format {shown}; this lmc reads format {VERSION}. Finish it with the lmc that wrote it, or start a new one")
    try:
        header, total, cipher = _header(rest, key)
    except JournalError as error:
        raise JournalError(f"{name}: {error.message}") from None
    except ValueError:
        raise JournalError(f"{name} is damaged in its first line; start a new journal") from None
    contents = Contents(name, header, size=len(head) + 1, sum=total, first=total, cipher=cipher)
    _groups(contents, data)
    contents.dropped = len(data) - contents.size
    _check_rest(contents, data)
    return contents


def _header(first: bytes, key: Key | None) -> tuple[dict[str, Any], int, Cipher | None]:
    """Return the header in the first line after the format's number, its checksum, and the cipher of the others. Raises ValueError if it is damaged."""
    if (found := payload(first, 0)) is None:
        raise ValueError("another checksum")
    header, cipher = opened_first(json_data.from_bytes(found[0]), key)
    if not isinstance(header, dict) or type(header.get("seed")) is not int:
        raise ValueError("no header")
    return header, found[1], cipher


_NO_RECORDS: Sequence[Record] = ([],)


def _groups(contents: Contents, data: bytes) -> None:
    """Read the groups after the first line, up to the last complete one."""
    records = contents.records
    with no_collection():
        while (end := data.find(b"\n", contents.size)) >= 0 and (found := payload(data[contents.size : end], contents.sum)) is not None:
            try:
                data_of = found[0] if contents.cipher is None else contents.cipher.open(found[0], contents.groups + 1)
                for item, record in in_group(json_data.decode_json(data_of)):
                    if record[0] not in _TAKE:
                        raise ValueError(f"a record {record[0]!r}")
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
    """Check that the rest after the last complete group is the beginning of one, as when writing was cut off. Otherwise
    the file was changed."""
    at = contents.size
    if data.find(b"\n", at) >= 0 or payload(data[at:-1], contents.sum) is not None:  # of a complete one only the line end may have been changed
        raise JournalError(
            f"{contents.name} is damaged at byte {at}, where what was written behind the group before is not, or not as it was: effects that it, or what "
            f"follows, knows of would be called again. Restore the file, or cut it there if that may be (truncate -s {at})"
        )


# -- records of a run ------------------------------------------------------------------------------------------


def _begin(known: Known, record: Record) -> None:
    _, known.arguments, known.digest = record


def _answer(known: Known, record: Record) -> None:
    _, places, digest, *_ = record
    if not places:
        raise ValueError("an answer to no request")
    for stream, ordinal in places:
        known.answers.setdefault((stream, ordinal), {})[digest] = record
    known.order.append(record)


def _intent(known: Known, record: Record) -> None:
    _, number, stream, name, digest, contents, shared, task, ordered, shown, line = record
    if not json_data.are_texts((stream, name, shown, line)) or any(type(n) is not int for n in (digest, task, *contents)) or len(shared) != len(contents):
        raise ValueError(f"the call {number} is {record[2:]}")
    call = RecordedCall(stream, name, digest, tuple(contents), tuple(shared), task, ordered)
    known.effects[number] = effect = Effect(_number(number), call, shown, line)
    known.unmade.pop(number, None)
    known.order.append(effect)


_ENDED = itertools.count()


def _result(known: Known, record: Record) -> None:
    tag, number, *outcome = record
    turns = _number(outcome.pop(0)) if tag == "R" else FEW_TURNS
    kind, _, *changes = outcome
    if not isinstance(kind, str) or len(changes) not in (0, 2, 3) or (len(changes) == 3 and type(changes[2]) is not int):
        raise ValueError(f"the result of call {number} is {outcome}")
    effect = known.effects[number]
    effect.outcome, effect.ended, effect.suspended, effect.turns = outcome, next(_ENDED), tag == "R", turns
    _leave_course(known, effect)


def _attempt_failed(known: Known, record: Record) -> None:
    effect = known.effects[_number(record[1])]
    effect.failed, effect.begun = effect.failed + 1, False


def _attempt(known: Known, record: Record) -> None:
    effect = known.effects[_number(record[1])]
    effect.begun, effect.outcome = True, None


def _read(known: Known, record: Record) -> None:
    _, stream, ordinal, suspended, *cancelled = record
    read = Read(next(_ENDED), suspended is not None, FEW_TURNS if suspended is None else _number(suspended), bool(cancelled))
    known.reads.setdefault((stream, _number(ordinal)), []).append(read)


def _expiry(known: Known, record: Record) -> None:
    task, number, step, turns = map(_number, record[1:])
    known.expiries.append(Expiry(next(_ENDED), (task, number), step, turns))


def _question(known: Known, record: Record) -> None:
    _, number, question, schema, when = record
    known.effects[_number(number)].question = str(question), str(schema), _number(when)


def _deleted(known: Known, record: Record) -> None:
    known.deleted = True


def _undo(known: Known, record: Record) -> None:
    """Take back a call that was not made after all: where it is made, it has the same number."""
    effect = known.effects[_number(record[1])]
    _leave_course(known, effect)
    known.order.remove(effect)
    known.unmade[effect.number] = known.effects.pop(effect.number).call


def _leave_course(known: Known, effect: Effect) -> None:
    """Expect no more, of an effect that is decided, what the program did while it was in doubt: in a `finally`, or where it handled that."""
    if effect.call.ordered:
        for later in reversed(known.effects.values()):
            if later.number <= effect.number:
                break
            later.unexpected = later.call.ordered
    if effect.number in known.left_doubtful:
        known.left_doubtful.remove(effect.number)
        for entry in known.order[known.order.index(effect) + 1 :]:
            if not isinstance(entry, Effect):
                known.unexpected.update((stream, ordinal) for stream, ordinal in entry[1])


def _end(known: Known, record: Record) -> None:
    known.end, known.ended = [(str(kind), str(message)) for kind, message in record[1]], _number(record[2])
    known.unread = {(stream, _number(ordinal)) for stream, ordinal in record[3]} if len(record) > 3 else set()
    for effect in reversed(known.effects.values()) if known.cut_off else ():
        if effect.outcome is None or effect.outcome[:2] != ["cancelled", []]:
            break
        effect.outcome = None  # with the run
    known.left_doubtful = {effect.number for effect in known.open if effect.doubtful}


def _number(number: Any) -> int:
    if type(number) is not int:
        raise ValueError(f"a call's number is {number!r}")
    return number


_TAKE = {
    "b": _begin, "a": _answer, "A": _answer, "f": _answer, "w": _read, "o": _expiry, "i": _intent, "t": _attempt_failed, "g": _attempt, "q": _question,
    "r": _result, "R": _result, "u": _undo, "e": _end, "x": _deleted,
}  # fmt: skip


def _forget_failures(known: Known) -> None:
    """Forget the failed requests of a run that ended because of one, or that nothing in it has read, so that they are made again; failures that the
    program handled stay."""
    ended = set(known.end or ())
    if not ended:
        return
    for place, found in list(known.answers.items()):
        for digest, record in list(found.items()):
            if record[0] == "f" and (place in known.unread if known.unread else _failure(record) in ended):
                del found[digest]
        if not found:
            del known.answers[place]


def _failure(record: Record) -> tuple[str, str]:
    data = record[3][codec.TAG]
    return data[1].rpartition(":")[2].rpartition(".")[2], data[4]  # also for a nested class
