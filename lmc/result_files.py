"""Files of results: JSONL records of the items of a batch, each written when its run ends, and continued where a batch was interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from lmc import locks, tracebacks
from lmc.errors import IncompleteAnswer, Loc, message_of
from lmc.userfiles import Item, UsageError, object_of, objects


@dataclass(frozen=True)
class Digests:
    """Digests that a record must match to be the result of an item: the item, and what ran it; and the program's source, which may have been mended since."""

    items: tuple[str, ...]
    run: str
    source: str
    places: tuple[str, ...]

    def of(self, index: int) -> Item:
        return {"item": self.items[index], "run": self.run, "source": self.source}


def digests(program: Any, arguments: Iterable[Item], places: Iterable[str], options: Mapping[str, Any], backend: str) -> Digests:
    """Compute digests of every item's arguments, and of program (file name and function), backend and sampling
    options."""
    what = [Path(program.loc.file).name, program.name, backend, dict(options)]
    return Digests(tuple(map(_digest, arguments)), _digest(what), program.digest, tuple(places))


def _digest(x: Any) -> str:
    text = json.dumps(x, sort_keys=True, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """A JSONL file of result records, each written when its run ends; sorted by item when the file is closed.

    resume     keeps the records of an earlier run that hold no error (`done` names their indices), if they belong to
               these items and this program; refuses the file otherwise
    overwrite  replaces what is there; with `resume` only the records that do not belong here, or are of another source

    The constructor only reads and checks; the file is opened by `with`. From the first of them that finds it on, the file is locked: another process that
    continues it would run the same items.
    """

    def __init__(self, path: Path | None, expected: Digests | None = None, *, resume: bool = False, overwrite: bool = False) -> None:
        self.path = path
        self.notes: list[str] = []
        self.kept: dict[int, Item] = {}
        self._expected = expected
        self._stream: TextIO = sys.stdout
        if path is not None and _is_file_with_text(path):
            self._stream = _locked(path)
            if resume and expected is not None:
                self.kept = self._earlier(path, expected, overwrite)
                self.notes.append(f"note: results in {path} that stay: {len(self.kept)}")
            elif not overwrite:
                raise UsageError(
                    f"{path} exists and is not empty; choose another --output, --overwrite to replace it, "
                    f"or --resume to keep its results and run the other items of --input"
                )
        self.written = len(self.kept)
        self._indices = list(self.kept)

    def __enter__(self) -> Results:
        if self.path is not None:
            if self._stream is sys.stdout and self.path.exists() and _is_file_with_text(self.path):
                raise _in_use(self.path)
            before = _locked(self.path) if self._stream is sys.stdout else self._stream
            self._stream = _rewrite(self.path, self.kept.values())
            before.close()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, its records in input order."""
        if self.path is None:
            return
        with _writing(self.path):
            if self._indices != sorted(self._indices) and self.path.is_file():
                rows = sorted((row for _, row in objects(self.path.read_text("utf-8"), str(self.path))), key=lambda row: row["index"])
                _rewrite(self.path, rows).close()
            locks.unlock(self._stream)  # a process that the program has started may hold a copy of it
            self._stream.close()

    @property
    def done(self) -> frozenset[int]:
        return frozenset(self.kept)

    def write(self, record: Item) -> None:
        if self._expected is not None:
            record = {**record, "digest": self._expected.of(record["index"])}
        self._indices.append(record["index"])
        with _writing(self.path):
            self._stream.write(_line(record))
            self._stream.flush()
        self.written += 1

    def _earlier(self, path: Path, expected: Digests, overwrite: bool) -> dict[int, Item]:
        """Return the records of an earlier run that are results of its items."""
        kept: dict[int, Item] = {}
        rows, torn = _records(path)
        if torn:
            self.notes.append(f"note: the last line of {path} is incomplete (the run was stopped while writing it); its item runs again")
        older = 0
        for number, row in rows:
            if "error" in row:
                continue
            wrong = _mismatch(row, expected)
            if wrong and not overwrite:
                raise UsageError(
                    f"{path}:{number}: {wrong}; nothing was changed. Name the --input, program and options that "
                    f"made it, another --output, or --resume --overwrite to run what does not match again"
                )
            changed = not wrong and row["digest"].get("source", expected.source) != expected.source
            older += changed
            if not wrong and not (changed and overwrite):
                kept[row["index"]] = row
        if older and not overwrite:
            self.notes.append(f"note: the program's source has changed since {older} of the results in {path}, which stay; add --overwrite to run them again")
        return kept


def _mismatch(row: Item, expected: Digests) -> str:
    """Return why a record is not the result of the item with its index; "" if it is."""
    index, found = row.get("index"), row.get("digest")
    if not isinstance(index, int) or not isinstance(found, dict):
        return "this is not a result of `lmc run --input` (it has no index and digest)"
    if not 0 <= index < len(expected.items):
        return f"this is the result of item {index}, and the input has only {len(expected.items)} items"
    if found.get("item") != expected.items[index]:
        return f"this is the result of another item than {expected.places[index]} is now"
    if found.get("run") != expected.run:
        return "this result was made by another program, --backend, --temperature, --max-tokens or --seed"
    return ""


def _records(path: Path) -> tuple[list[tuple[int, Item]], bool]:
    """Return the records of a results file with their line numbers, and whether its last line was torn off (and is left
    out)."""
    try:
        whole, newline, last = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read the results in {path}: {error.strerror}; choose another --output") from error
    rows: list[tuple[int, Item]] = []
    number = 0
    for number, line in enumerate(whole.split(b"\n") if newline else (), 1):
        if line.strip():
            rows.append((number, object_of(line.decode("utf-8", errors="replace"), Loc(str(path), number))))
    if last.strip():
        try:
            rows.append((number + 1, object_of(last.decode("utf-8"), Loc(str(path), number + 1))))
        except (UsageError, UnicodeDecodeError):
            return rows, True
    return rows, False


def _is_file_with_text(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _rewrite(path: Path, rows: Iterable[Item]) -> TextIO:
    """Replace a locked file by `rows` atomically (a crash leaves the old or the new one), and leave it open at its end, locked."""
    with _writing(path):
        path = Path(os.path.realpath(path))  # a link stays a link
        if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/null
            return path.open("w", encoding="utf-8")
        fresh = path.with_name(path.name + ".new")
        stream = fresh.open("w", encoding="utf-8")
        for row in rows:
            stream.write(_line(row))
        stream.flush()
        if os.name == "nt":
            stream.close()  # a file that is open cannot be replaced there
            fresh.replace(path)
            return path.open("a", encoding="utf-8")
        _lock(stream, path)
        fresh.replace(path)
        return stream


def _locked(path: Path) -> TextIO:
    """Open a file, and lock it as long as it is open. A pipe or a device has no lock, and no file on Windows."""
    with _writing(path):
        if os.name == "nt" or (path.exists() and not path.is_file()):
            return open(os.devnull, encoding="utf-8")
        stream = path.open("a", encoding="utf-8")
        _lock(stream, path)
        if not os.path.samestat(os.fstat(stream.fileno()), path.stat()):  # replaced meanwhile
            raise _in_use(path)
        return stream


def _lock(stream: TextIO, path: Path) -> None:
    if not locks.lock(stream, path):
        raise _in_use(path)


def _in_use(path: Path) -> UsageError:
    return UsageError(f"another process writes its results to {path}; wait for it, or choose another --output")


@contextmanager
def _writing(path: Path | None) -> Generator[None]:
    """Name the file in errors of the disk; None: standard output, whose reader may be gone."""
    try:
        yield
    except OSError as error:
        if path is None and isinstance(error, BrokenPipeError):
            raise
        raise UsageError(f"cannot write the results to {path or 'standard output'}: {error.strerror}; choose another --output") from error


def _line(record: Item) -> str:
    """Write a record as a line; one with half of a surrogate pair, which no file can hold, in ASCII."""
    text = json.dumps(record, ensure_ascii=False, default=repr)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(record, default=repr)
    return text + "\n"


def _value_of(state: Any, name: str) -> Any:
    """Return a variable's value, or the text so far of an answer that was cut off: the program has gone on without it."""
    try:
        return state.get_var(name)
    except IncompleteAnswer as cut:
        return cut.text


def record_of(index: int, state: Any, extra: Item) -> Item:
    """Return the record of one item: its results, or the error it ended with."""
    error = state.error()
    if error is not None:
        result: Item = {"error": {"type": type(error).__name__, "message": "\n".join((message_of(error), *tracebacks.notes(error)))}}
        if (last := tracebacks.users_line(error)) is not None:
            result["error"]["at"] = f"{os.path.relpath(last.filename)}:{last.lineno}"
    else:
        variables = {name: _value_of(state, name) for name in state.variables if name is not None}
        result = {"return": state.ret_value, "variables": variables, "text": state.text(), "usage": asdict(state.usage)}
    return {"index": index, **result, **({"input": extra} if extra else {})}
