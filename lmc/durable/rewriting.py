"""Rewriting of journals: compaction, deletion of the contents of old finished runs, and records that a person adds."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from lmc import json_data
from lmc.backend.results import Result
from lmc.durable.cipher import Cipher, Key
from lmc.durable.files import Sidecar, as_journal_error, opened, sync_directory, truncate, write_all
from lmc.durable.groups import WELL, Ask, Entry, Record, file_of, group_of, line, output_of
from lmc.durable.journal import MANY
from lmc.durable.records import Contents, Known, find
from lmc.errors import JournalError


def append(path: Path, key: Key | None, make: Callable[[Contents], Iterable[tuple[int, Record]]]) -> None:
    """Append the records that `make` gives for a journal's contents, as one group, synced to disk. Raises
    JournalError."""
    file, contents = opened(_existing(path), key)
    with as_journal_error(path), file:
        if contents is None:
            raise JournalError(f"{path} is empty")
        records = [["record", item, record] for item, record in make(contents)]
        truncate(file, contents)
        data = json_data.to_bytes(records)
        found, _ = line(data if contents.cipher is None else contents.cipher.seal(data, contents.groups + 1), contents.sum)
        write_all(file, found)
        os.fsync(file.fileno())
        _note(find(path), contents.size + len(found), contents.first)


def compact(path: Path, key: Key | None, keep: float | None = None, *, new_key: Key | None = None) -> tuple[int, int, int]:
    """Rewrite a journal with only the records that a resumed run needs; and without the contents of runs that ended
    well more than `keep` seconds ago.

    Returns bytes before and after, and how many runs were deleted. `new_key`: the key from now on. Raises JournalError.
    """
    where = _existing(path)
    with _locked(where, key) as contents:
        if contents is None:
            return 0, 0, 0
        old = _old(contents, math.inf if keep is None else keep)
        size = _replace(where, contents, old, key if new_key is None else new_key)
        return contents.size + contents.dropped, size, len(old)


def delete_finished(path: Path, key: Key | None, keep: float) -> None:
    """Delete the contents of runs that ended well more than `keep` seconds ago, if there are any. Raises
    JournalError."""
    if path.exists():
        with _locked(path, key) as contents:
            if contents is not None and (old := _old(contents, keep)):
                _replace(path, contents, old, key)


def _old(contents: Contents, keep: float) -> Mapping[int, Known]:
    """Return the runs that ended well more than `keep` seconds ago, and whose contents are not deleted yet."""
    until = time.time() - keep
    return {item: known for item, known in contents.runs.items() if is_over(known) and not known.deleted and known.ended < until}


def is_over(known: Known) -> bool:
    """Return whether a run ended well."""
    return known.end == [] and not known.open


def _needed(records: list[Record]) -> list[Record]:
    """Return the records of a run without those superseded by later ones."""
    void, of, ends, left_doubtful = set[int](), dict[int, list[int]](), list[int](), set[int]()
    for n, record in enumerate(records):
        if record[0] == "e":
            ends.append(n)
        elif record[0] in "rRu" and ends and of.get(record[1], [n])[0] < ends[-1]:
            left_doubtful.add(ends[-1])  # says what came of a doubt that was decided later
        if record[0] in _OF_EFFECTS:
            of.setdefault(record[1], []).append(n)
        elif record[0] == "u":
            void.update(of.pop(record[1], [])[1:])  # its intent says whose call is to be made, and what came behind it
    return [record for n, record in enumerate(records) if n not in void and (n not in ends[:-1] or n in left_doubtful)]


_OF_EFFECTS = frozenset("itgqr")


def _groups(runs: Mapping[int, list[Record]]) -> Iterator[list[list[Any]]]:
    """Return groups of all records. Runs are interleaved, so that answers at the same place are in one section."""
    items = iter(runs)
    while some := list(islice(items, MANY)):
        ended = dict[int, list[int]]()
        left: list[list[tuple[_KnownRun, Record]]] = []
        for item in some:
            records = runs[item]
            if records and records[-1][:2] == WELL:
                *records, (_, _, when) = records
                ended.setdefault(when, []).append(item)
            run = _KnownRun(item)
            left.append([(run, record) for record in records])
        steps = [each for step in zip_longest(*left) for each in step if each is not None]
        entries: list[Entry] = [(tuple(map(tuple, record[1])), run, _answer(record)) if record[0] == "a" else (run.item, record) for run, record in steps]
        yield [*group_of(entries), *[["ended", items, when] for when, items in ended.items()]]


@dataclass
class _KnownRun:
    item: int

    def record(self, places: Sequence[Ask], result: Result) -> None:
        """Return no record: all answers have arrived."""


def _answer(record: Record) -> Result:
    result = Result()
    result.checked = None, record[2], record[1][0]
    result.finish(output_of(record))
    return result


def _replace(where: Path, contents: Contents, old: Mapping[int, Known], key: Key | None) -> int:
    """Replace a journal's file atomically, without records that no run needs, and the contents of old runs; return its size."""
    runs = {item: [["x"], ["e", [], old[item].ended]] if item in old else _needed(records) for item, records in contents.records.items()}
    header = {**contents.header, "id": secrets.token_hex(8)}  # so that the old sidecar does not apply to it
    data, first = file_of(header, _groups(runs), None if key is None else Cipher(key))
    temporary = where.with_name(where.name + ".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.stat(where).st_mode & 0o777), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, where)
    sync_directory(where.parent)
    _note(where, len(data), first)
    return len(data)


def _existing(path: Path) -> Path:
    """Return the file of an existing journal."""
    with as_journal_error(path):
        if not (where := find(path)).is_file():
            raise JournalError(f"{path}: there is no journal")
    return where


@contextmanager
def _locked(where: Path, key: Key | None) -> Generator[Contents | None]:
    file, contents = opened(where, key)
    with as_journal_error(where), file:
        yield contents


def _note(where: Path, size: int, first: int) -> None:
    sidecar = Sidecar(where)
    sidecar.note(size, first)
    sidecar.close()
