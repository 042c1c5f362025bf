"""Opening journals: the match between a call and the call that wrote a journal, and the beginning of its runs."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lmc import codec, json_data
from lmc.backend.base import Backend
from lmc.durable.call_records import data_or_class
from lmc.durable.files import as_journal_error, check_parent, make_directory
from lmc.durable.groups import Record
from lmc.durable.journal import JournalFile
from lmc.durable.rewriting import delete_finished
from lmc.errors import JournalError, ParameterError
from lmc.frontend.expressions import caller_loc
from lmc.gc_tuning import few_full_collections
from lmc.segments import SamplingParams

if TYPE_CHECKING:
    from lmc.frontend.options import Options


_FEW = 1000
"""GC passes through younger objects for each full one, while a finished batch is resumed."""
LARGEST = 1 << 20
"""Most bytes of a run's arguments that a journal holds; of larger ones it has the digest."""


class JournaledProgram(Protocol):
    """A program, as a journal identifies it."""

    name: str

    @property
    def digest(self) -> str: ...


def header(function: JournaledProgram, options: Options, backend: Backend, compiled: str, *, batch: bool) -> dict[str, Any]:
    """Return the header that a journal must have to be used for a call."""
    defaults = options.defaults(SamplingParams())
    changed = {f.name: codec.encode(getattr(defaults, f.name)) for f in fields(defaults) if getattr(defaults, f.name) != f.default}
    return {
        "kind": "batch" if batch else "run", "program": function.name, "source": function.digest, "compiled": compiled,
        "backend": backend.capabilities.name, "sampling": changed, "seed": options.seed, **({"media": True} if options.with_media else {}),
    }  # fmt: skip


@contextmanager
def journaled(
    function: JournaledProgram, options: Options, backend: Backend, bound: Sequence[inspect.BoundArguments], numbers: Sequence[int], fresh: Callable[[], int],
    *, batch: bool, compiled: str = "",
) -> Generator[Options]:  # fmt: skip
    """Yield the options with the journal open and its seed. Raises JournalError if it belongs to another call."""
    assert options.journal is not None and isinstance(options.journal, str)
    if options.stream:
        raise ParameterError("journal= with stream=True: a stream is not journaled; leave one out", loc=caller_loc())
    wanted = header(function, options, backend, compiled, batch=batch)
    try:
        path = _file_for(Path(options.journal), batch=batch)
        if options.keep is not None:
            delete_finished(path, options.key, options.keep)
        journal = JournalFile.open(path, wanted, fresh, options.key)
    except JournalError as error:
        error.loc = caller_loc()
        raise
    try:
        _enter(journal, bound, numbers)
        if options.desk is not None:
            options.desk.path, options.desk.synced = batches_of(path), journal.sync
        with few_full_collections(_FEW) if batch and journal.contents.finished(numbers) else nullcontext():
            yield replace(options, journal=journal, seed=journal.seed)
    except BaseException as error:
        if journal.in_calls or isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):  # threads of its runs are, or may yet be
            journal.leave()
        else:
            journal.close()
        raise
    journal.close()


def _file_for(path: Path, *, batch: bool) -> Path:
    """Return the file of a run's journal, or of a batch's, whose directory is made. Raises JournalError."""
    if batch and os.path.isfile(path):
        raise JournalError(f"journal={str(path)!r}: a batch's journal is a directory, and this is a file")
    if not batch and os.path.isdir(path):
        raise JournalError(f"journal={str(path)!r}: a run's journal is a file, and this is a directory")
    check_parent(path)
    if not batch:
        return path
    with as_journal_error(path):
        make_directory(path)
    return path / "journal"


def batches_of(journal: Path) -> Path:
    """Return the file that records which batches a journal's runs have submitted to batch APIs."""
    return journal.with_name(journal.name + ".batches")


def _enter(journal: JournalFile, bound: Sequence[inspect.BoundArguments], numbers: Sequence[int]) -> None:
    """Enter the runs of a call: new ones are written, those of an earlier call must have the same arguments."""
    for arguments in bound:
        if len(arguments.arguments) < len(arguments.signature.parameters):
            arguments.apply_defaults()
    records = journal.contents.records
    for number, arguments in zip(numbers, bound, strict=True):
        known = records.get(number)
        if known is not None and known[0][0] != "x" and not _same(_beginning(_given(arguments)), known[0]):
            of = "the run" if len(records) == 1 else f"item {number}"
            raise JournalError(
                f"journal={str(journal.path)!r} belongs to a call with other arguments: those of {of} have changed. Give the call what it was given "
                "before, or a journal of its own",
                loc=caller_loc(),
            )
    for number, arguments in zip(numbers, bound, strict=True):
        if number not in records:
            journal.put(number, _beginning(_given(arguments)))


def _same(given: Record, known: Record) -> bool:
    """Return whether two runs begin alike: 1, 1.0 and True are three values, NaN is one, and the order of a dict does
    not count."""
    if type(known[1]) is dict and set(map(type, known[1].values())) <= {str}:
        return given == known
    return json.dumps(given, sort_keys=True) == json.dumps(known, sort_keys=True)


def _given(arguments: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments of a run, except its state."""
    return dict(islice(arguments.arguments.items(), 1, None))


def _beginning(given: Mapping[str, Any]) -> Record:
    """Return the record of a run's arguments, or of their digest if they are too large."""
    if set(map(type, given.values())) <= {str} and sum(map(len, given.values())) < LARGEST // 8:  # JSON has 6 bytes for a character at most
        return ["b", given, None]
    data = {name: data_or_class(x) for name, x in given.items()}
    record = ["b", data, None]
    if len(json_data.to_bytes(record)) <= LARGEST:
        return record
    return ["b", None, hashlib.blake2b(json_data.to_bytes(data), digest_size=12).hexdigest()]
