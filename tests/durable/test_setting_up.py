"""Calls that set up the process: recorded, and made again when a run is resumed, in the same process or in another one."""

from __future__ import annotations

import asyncio
import csv
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.durable import records
from lmc.errors import Interrupted
from tests.durable.resuming import CALLS, effects, journal_of, lay, resumes_anywhere

NAME = "LMC_TEST_SET_UP"


@lmc.host(idempotent=True)
def noted(x: Any) -> Any:
    CALLS.append(("noted", repr(x)))
    return x


@lmc.host(idempotent=True)
def as_set_up() -> Any:
    mask = os.umask(0o22)
    os.umask(mask)
    return str(Path.cwd()), os.environ.get(NAME), mask, sys.getrecursionlimit()


@lmc.host(idempotent=True)
def signalled(signals: list[int]) -> int:
    signal.raise_signal(signal.SIGUSR1)
    return len(signals)


@lmc.host(idempotent=True)
def reported(errors: list[str], message: str) -> int:
    asyncio.get_running_loop().call_exception_handler({"message": message})
    return len(errors)


@lmc.function
def sets_up_the_process(s, q):
    signals, before = [], os.getcwd()
    handler = signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
    signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))  # its result is a function
    os.chdir(os.sep)
    sys.setrecursionlimit(3000)
    os.environ.setdefault(NAME, q)
    os.environ.update((name, q) for name in ["LMC_TEST_UPDATED"])
    csv.register_dialect("semicolons", delimiter=";")
    try:
        s += q + lmc.gen("a", max_tokens=4)
        noted(s["a"])
        count = signalled(signals)
        rows = list(csv.reader(["a;b"], dialect="semicolons"))
        return rows, count, signals, as_set_up(), os.environ["LMC_TEST_UPDATED"], os.environ.pop(NAME), os.environ.pop("LMC_TEST_UPDATED")
    finally:
        csv.unregister_dialect("semicolons")
        sys.setrecursionlimit(1000)
        os.chdir(before)
        signal.signal(signal.SIGUSR1, handler)


@lmc.function
async def sets_up_the_loop(s, q):
    loop, errors = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda loop, context: errors.append(context["message"]))
    s += q + lmc.gen("a", max_tokens=4)
    return reported(errors, noted(s["a"])), errors


@pytest.mark.parametrize("program", [sets_up_the_process, sets_up_the_loop])
def test_resumes_behind_what_sets_up_the_process(program: Any, tmp_path: Path):
    resumes_anywhere(program, {"q": "q"}, tmp_path)


@lmc.function
def moves(s):
    os.chdir("sub")
    s += lmc.gen("a", max_tokens=4) + lmc.interrupt("ok?") + lmc.gen("b", max_tokens=4)
    return as_set_up()[0]


@lmc.function
def moves_by_descriptor(s):
    opened = os.open("sub", os.O_RDONLY)
    os.fchdir(opened)
    os.close(opened)
    s += lmc.gen("a", max_tokens=4) + lmc.interrupt("ok?") + lmc.gen("b", max_tokens=4)
    return as_set_up()[0]


@lmc.function
def fails_to_move(s):
    try:
        os.chdir("missing")
        where = "there"
    except OSError:
        where = "nowhere"
    s += where + lmc.gen("a", max_tokens=4) + lmc.interrupt("ok?") + lmc.gen("b", max_tokens=4)
    return where, as_set_up()[0]


@lmc.function
def pops(s):
    token = os.environ.pop(NAME)
    s += token + lmc.gen("a", max_tokens=4) + lmc.interrupt("ok?") + lmc.gen("b", max_tokens=4)
    return token, as_set_up()[1]


@lmc.function
def sets_default(s):
    value = os.environ.setdefault(NAME, "other")
    s += value + lmc.gen("a", max_tokens=4) + lmc.interrupt("ok?") + lmc.gen("b", max_tokens=4)
    return value


@lmc.function
def masks(s):
    before = os.umask(0o77)
    s += f"{before:o}" + lmc.gen("a", max_tokens=4) + lmc.interrupt("ok?") + lmc.gen("b", max_tokens=4)
    return before, as_set_up()[2]


EXPECTED = {
    moves: "{base}/sub", moves_by_descriptor: "{base}/sub", fails_to_move: ("nowhere", "{now}"), pops: ("secret", None), sets_default: "secret",
    masks: (0o22, 0o77),
}  # fmt: skip


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "sub").mkdir()
    (tmp_path / "elsewhere" / "missing").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(NAME, "secret")
    mask = os.umask(0o22)
    yield tmp_path
    os.umask(mask)


def interrupted(program: Any, journal: Path) -> None:
    with pytest.raises(Interrupted):
        program.run(backend=lmc.Mock(), seed=1, journal=journal)
    lmc.Journal(journal).answer("yes")


def in_another_process(base: Path) -> None:
    """What another process, begun elsewhere with another environment, would be."""
    os.chdir(base / "elsewhere")
    os.environ[NAME] = "changed"
    os.umask(0o27)


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("program", EXPECTED, ids=lambda p: p.name)
def test_results_are_those_of_the_journal_and_the_process_is_as_it_was(program: Any, another: bool, base: Path, caplog: pytest.LogCaptureFixture):
    interrupted(program, base / "journal")
    if another:
        in_another_process(base)
    now = Path.cwd()
    result = program.run(backend=lmc.Mock(), journal=base / "journal").ret_value
    filled = [x.format(base=base, now=now) if isinstance(x, str) else x for x in (EXPECTED[program] if isinstance(result, tuple) else [EXPECTED[program]])]
    assert [*(result if isinstance(result, tuple) else [result])] == filled
    failed = program is pops and not another  # nothing is left to pop
    assert [record.getMessage().partition("(")[0] for record in caplog.records if record.name == "lmc.journal"] == ["MutableMapping.pop"] * failed


def test_a_directory_that_is_gone_is_warned_of(base: Path, caplog: pytest.LogCaptureFixture):
    interrupted(moves, base / "journal")
    in_another_process(base)
    (base / "sub").rmdir()
    assert moves.run(backend=lmc.Mock(), journal=base / "journal").ret_value == str(base / "elsewhere")
    (record,) = [record for record in caplog.records if record.name == "lmc.journal"]
    assert record.levelname == "WARNING" and record.getMessage().startswith("chdir('sub') ") and "FileNotFoundError" in record.getMessage()


def test_a_journal_without_the_directory_reached_is_resumed(base: Path):
    """Earlier ones have the result of `os.chdir`, which is None."""
    interrupted(moves, base / "journal")
    assert effects(base / "journal")[0] == "chdir"
    contents = records.read(base / "journal")
    earlier = [["r", 0, "value", None, *record[4:]] if record[:2] == ["r", 0] else record for record in contents.records[0]]
    assert earlier != contents.records[0]
    lay(base / "journal", journal_of(contents.header, [(0, record) for record in earlier]))
    os.chdir(base)
    assert moves.run(backend=lmc.Mock(), journal=base / "journal").ret_value == str(base / "sub")


@lmc.function
def raises_a_signal(s):
    before = signal.signal(signal.SIGUSR1, lambda number, frame: CALLS.append(("signal", number)))
    signal.raise_signal(signal.SIGUSR1)
    s += lmc.gen("a", max_tokens=4) + lmc.interrupt("ok?") + lmc.gen("b", max_tokens=4)
    signal.signal(signal.SIGUSR1, before)


def test_signals_are_not_raised_again(base: Path):
    before = signal.getsignal(signal.SIGUSR1)
    CALLS.clear()
    interrupted(raises_a_signal, base / "journal")
    assert CALLS == [("signal", signal.SIGUSR1)]
    signal.signal(signal.SIGUSR1, before)
    raises_a_signal.run(backend=lmc.Mock(), journal=base / "journal")
    assert CALLS == [("signal", signal.SIGUSR1)] and signal.getsignal(signal.SIGUSR1) == before
