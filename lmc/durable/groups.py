"""Groups: the lines of a journal, each with the records that were written together.

A group is a list of sections, `[kind, …]`. Answers, the most common records, are stored by columns
(lmc.durable.columns), a section for each place where programs made requests: a few calls write and read all of them. A
line's checksum continues that of the line before, so that a missing line is detected, too.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Protocol

from lmc import codec, json_data
from lmc.backend.results import Output, Result
from lmc.backend.usage import Usage
from lmc.durable.cipher import Cipher
from lmc.durable.columns import packed_rows, unpacked
from lmc.errors import JournalError

VERSION = 13
MAGIC = "lmc-journal"

Record = list[Any]
Ask = tuple[str, int]
"""Place of an answer: stream and ordinal."""
WELL: Record = ["e", []]
"""Record of a run that ended well; the file has the time with it, in seconds since 1970."""


class Writes(Protocol):
    """A run that writes to a journal."""

    item: int

    def record(self, places: Sequence[Ask], result: Result) -> Record | None:
        """Return the record of an outcome other than a plain answer; None if it is not written."""
        ...


Answered = tuple[Sequence[Ask], Writes, Result]
"""Places of requests, with their checksums."""
Entry = Answered | tuple[int, Record]
"""Contents of a group; a record has its run. They are distinguished by their lengths."""


# -- writing ---------------------------------------------------------------------------------------------------------


def group_of(entries: Iterable[Entry]) -> list[list[Any]]:
    """Return the sections of what became known, in this order for each run."""
    sections: list[list[Any]] = []
    ended: list[int] = []
    begun: dict[tuple[str, ...], dict[int, Mapping[str, str]]] = {}  # by the names of arguments, if all are text
    answers = _Answers()
    for entry in entries:
        if len(entry) > 2:
            answers.add(entry)
        elif entry[1] is WELL:
            ended.append(entry[0])
        elif entry[1][0] == "b" and type(given := entry[1][1]) is dict and set(map(type, given.values())) == {str}:
            begun.setdefault(tuple(given), {})[entry[0]] = given
        else:
            if entry[0] in answers.items:
                sections += answers.taken()
                answers = _Answers()
            sections.append(["record", *entry])
    first = [["begun", [*runs], names, [[given[name] for given in runs.values()] for name in names]] for names, runs in begun.items()]
    return [*first, *sections, *answers.taken(), *([["ended", ended, int(time.time())]] if ended else [])]


class _Answers:
    """Answers that are in no section yet, by place of the request; a run's later requests are in later sections.

    items  their runs, each with the last section that it is in
    """

    def __init__(self) -> None:
        self.items: dict[int, int] = {}
        self._sections: list[list[Any]] = []
        self._newest: dict[Sequence[Ask], int] = {}

    def add(self, entry: Answered) -> None:
        where, item = entry[0], entry[1].item
        at = self._newest.get(where, -1)
        if at <= self.items.get(item, -1):
            at = self._newest[where] = len(self._sections)
            self._sections.append([])
        self._sections[at].append(entry)
        self.items[item] = at

    def taken(self) -> Iterator[list[Any]]:
        """Remove and return the sections of all answers."""
        for entries in self._sections:
            places, runs, results = zip(*entries, strict=True)
            yield from _sections(places[0], runs, results, [result.checked[1] for result in results])


def _sections(places: Sequence[Ask], runs: Sequence[Writes], results: Sequence[Result], checks: Sequence[int]) -> Iterator[list[Any]]:
    """Yield a section for the answers, or a record for each if their meta info is not plain JSON; for other outcomes their record, if there is one."""
    there = [(run, check, result.answer) for run, check, result in zip(runs, checks, results, strict=True) if result.answer is not None]
    try:
        if there:
            yield _answers(places, *zip(*there, strict=True))
    except (codec.NotData, RecursionError):  # for the meta info of some
        yield from (["record", run.item, record_of(places, check, output)] for run, check, output in there)
    for run, result in zip(runs, results, strict=True):
        if result.answer is None and (record := run.record(places, result)) is not None:
            yield ["record", run.item, record]


def _answers(places: Sequence[Ask], runs: Sequence[Writes], checks: Sequence[int], outputs: Sequence[Output]) -> list[Any]:
    """Pack answers as a section. Raises NotData."""
    return [
        "answers", places, list(map(_ITEM, runs)), checks, packed_rows([o.texts for o in outputs]), packed_rows([o.metas for o in outputs]),
        packed_rows([_USAGE(o.usage) for o in outputs]), packed_rows([o.ids for o in outputs])]  # fmt: skip


_ITEM = attrgetter("item")
_COUNTED = [f.name for f in fields(Usage) if not f.name.startswith("ahead")]
_USAGE = attrgetter(*_COUNTED)


def record_of(places: Sequence[Ask], digest: int, output: Output) -> Record:
    """Return the record of an answer whose meta info is not plain JSON. Raises JournalError if it is not data."""
    try:
        metas = [[[name, codec.encode(x)] for name, x in meta.items()] for meta in output.metas]
    except codec.NotData as what:
        raise JournalError(f"a journal cannot hold the meta info of an answer: {what}") from None
    return ["A", places, digest, output.texts, metas, _USAGE(output.usage), output.ids]


# -- lines -----------------------------------------------------------------------------------------------------------


def line(data: bytes, before: int) -> tuple[bytes, int]:
    """Return a line, and its checksum; `before` is that of the line before, 0 for the first."""
    total = zlib.crc32(data, before)
    return b"%08x %s\n" % (total, data), total


def payload(found: bytes, before: int) -> tuple[bytes, int] | None:
    """Return the contents of a line, without its end, and its checksum; None if it is damaged, or not the next line."""
    total, _, data = found.partition(b" ")
    expected = zlib.crc32(data, before)
    return (data, expected) if total == b"%08x" % expected else None


def first_line(header: Mapping[str, Any], cipher: Cipher | None = None) -> tuple[bytes, int]:
    """Return the first line of a journal, and its checksum."""
    found, total = line(json_data.to_bytes(header) if cipher is None else cipher.first(json_data.to_bytes(header)), 0)
    return b"%s %d %s" % (MAGIC.encode(), VERSION, found), total


def file_of(header: Mapping[str, Any], groups: Iterable[list[list[Any]]], cipher: Cipher | None = None) -> tuple[bytes, int]:
    """Return the file of a journal with these groups, as lists of sections, and the checksum of its first line."""
    found, first = first_line(header, cipher)
    lines, total = [found], first
    for number, group in enumerate(groups, 1):
        data = json_data.to_bytes(group)
        found, total = line(data if cipher is None else cipher.seal(data, number), total)
        lines.append(found)
    return b"".join(lines), first


# -- reading ---------------------------------------------------------------------------------------------------------


def in_group(sections: Any) -> Iterator[tuple[int, Record]]:
    """Yield the records of a group in order, each with its run."""
    for kind, *section in sections:
        yield from _READ[kind](*section)


def _read_answers(places: Any, items: Any, digests: Any, *columns: Any) -> Iterator[tuple[int, Record]]:
    unpacked_columns = [unpacked(column, len(items)) for column in columns]
    for item, *record in zip(items, digests, *unpacked_columns, strict=True):
        yield item, ["a", places, *record]


_READ: Mapping[str, Any] = {
    "begun": lambda items, names, columns: [(item, ["b", dict(zip(names, values, strict=True)), None]) for item, *values in zip(items, *columns, strict=True)],
    "answers": _read_answers, "record": lambda item, record: ((item, record),),
    "ended": lambda items, when: [(item, [*WELL, when]) for item in items],
}  # fmt: skip


def output_of(record: Record) -> Output:
    """Return the answer that a record holds. Raises JournalError for one that no lmc wrote."""
    try:
        kind, _, _, texts, metas, usage, ids = record
        if kind == "A":
            metas = [{name: codec.decode(x) for name, x in meta} for meta in metas]
        if not texts or not json_data.are_texts(texts) or len(texts) != len(metas) or any(type(meta) is not dict for meta in metas):
            raise ValueError(f"{len(texts)} texts and {len(metas)} metas")
        if any(type(number) not in (int, float) for number in usage):
            raise ValueError(f"a usage of {usage}")
        return Output(tuple(texts), tuple(metas), Usage(**dict(zip(_COUNTED[: len(usage)], usage, strict=True))), tuple(ids))
    except (codec.BadData, ValueError, TypeError, IndexError) as error:
        raise JournalError(f"an answer that lmc did not write: {error}") from None
