"""Runs that are resumed behind every record of their journals, in every execution; and what must hold then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import lmc
from lmc.durable import records
from lmc.durable.files import Sidecar
from lmc.durable.groups import file_of
from tests.searching import TIMES

CALLS: list[tuple[Any, ...]] = []
"""Calls in order: the function's name and its arguments. Functions of the programs that are resumed note it here."""


def journal_of(header: Mapping[str, Any], records: Iterable[tuple[int, Any]]) -> bytes:
    """The file of a journal with these records, a group for each."""
    return file_of(header, ([["record", item, record]] for item, record in records))[0]


def seen(state: lmc.State) -> Any:
    return state.text(), repr(state.ret_value), {n: state[n] for n in state.variables if n is not None}


def lay(path: Path, data: bytes) -> None:
    """A journal with these bytes, of which nobody knows how much the disk had."""
    path.write_bytes(data)
    Sidecar.path_of(path).unlink(missing_ok=True)


def prefixes(path: Path) -> list[bytes]:
    """A journal as a process leaves it that ends behind each of its records: the first one has none but that the run begins."""
    contents = records.read(path)
    (found,) = contents.records.values()
    return [journal_of(contents.header, [(0, record) for record in found[:count]]) for count in range(1, len(found) + 1)]


def done(path: Path) -> Counter[str]:
    """How often a journal has the result of each function."""
    return Counter(e.name.removeprefix("await ") for e in records.read(path).runs[0].effects.values() if e.outcome is not None)


def effects(path: Path) -> list[str]:
    """The names of the effects in the journal of a run."""
    return [effect.name for effect in records.read(path).runs[0].effects.values()]


def recorded(program: Any, directory: Path, **arguments: Any) -> list[str]:
    """Asserts that a run with a journal is one without, in both executions, and that the other one resumes it and calls nothing. The run's effects."""
    ways = [program.run, lmc.compile(program)]
    CALLS.clear()
    expected, calls = seen(program.run(**arguments, backend=lmc.Mock(), seed=1)), CALLS[:]
    directory.mkdir(exist_ok=True)
    for n, way in enumerate(ways):
        for call, done in ((way, calls), (ways[1 - n], [])):
            CALLS.clear()
            mock = lmc.Mock()
            assert (seen(call(**arguments, backend=mock, seed=1, journal=directory / str(n))), CALLS) == (expected, done)
        assert not mock.call_log
    return effects(directory / "1")


def resumes_anywhere(program: Any, arguments: Mapping[str, Any], directory: Path, backend: Callable[[], Any] = lmc.Mock, *, doubtful: bool = False) -> None:
    """Asserts that a run is what it is without a journal, wherever and however it is resumed, and that nothing known is asked or called again.

    In the unit tier behind each third record, so a test that calls this is marked as a search. The functions that the program calls note it in `CALLS`, and
    their names are those in the journal. `doubtful`: they are not idempotent, so behind the
    intent of one the run raises InDoubtEffect.
    """
    ways = [program.run, lmc.compile(program)]
    CALLS.clear()
    expected, calls = seen(program.run(**arguments, backend=backend(), seed=1)), Counter(CALLS)
    named, path = Counter(name for name, *_ in CALLS), directory / "again"
    for n, way in enumerate(ways):
        whole, asked = directory / str(n), backend()
        CALLS.clear()
        assert (seen(way(**arguments, backend=asked, seed=1, journal=whole)), Counter(CALLS)) == (expected, calls)
        assert Counter({name: done(whole)[name] for name in named}) == named, "calls that are not in the journal are made again"
        for count, data in list(enumerate(prefixes(whole)))[:: 1 if TIMES else 3]:
            lay(path, data)
            known, before = records.read(path).runs[0], done(path)
            again, left = ways[count % 2], [e for e in known.effects.values() if e.outcome is None]
            CALLS.clear()
            mock = backend()
            try:
                assert seen(again(**arguments, backend=mock, journal=path)) == expected, (n, count)
            except lmc.InDoubtEffect:
                assert doubtful and left and Counter(CALLS) <= calls, (n, count)
                continue
            assert Counter(name for name, *_ in CALLS) == Counter({name: times - before[name] for name, times in named.items() if times > before[name]}), (
                n,
                count,
            )
            assert Counter(CALLS) <= calls and (not doubtful or not left), (n, count)
            assert len(mock.call_log) <= len(asked.call_log) - len(known.answers), (n, count)
