"""Durable runs behind `asyncio.wait` and `asyncio.as_completed`: which task ended first is in the journal."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.durable import records
from tests.durable.resuming import CALLS, journal_of, lay, prefixes, resumes_anywhere, seen


@lmc.host(idempotent=True)
async def fetch(q: str) -> str:
    CALLS.append(("fetch", q))
    await asyncio.sleep(0)
    return q[::-1]


async def charge(q: str) -> str:
    CALLS.append(("charge", q))
    await asyncio.sleep(0)
    return q + "!"


@lmc.function
async def sums_up(s: Any) -> Any:
    """What it asks does not depend on what ended first."""
    found = [await ended for ended in asyncio.as_completed([fetch(q) for q in ("ab", "cd", "ef")])]
    done, pending = await asyncio.wait([asyncio.create_task(fetch(q)) for q in found])
    s += str(sorted(found)) + lmc.gen("a", max_tokens=2)
    return s["a"], sorted(task.result() for task in done), len(pending)


def test_a_run_is_resumed_anywhere(tmp_path: Path) -> None:
    resumes_anywhere(sums_up, {}, tmp_path)


@lmc.function
async def races(s: Any) -> Any:
    tasks = [asyncio.create_task(charge(q)) for q in "abc"]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    first = sorted(task.result() for task in done)
    rest = [await ended for ended in asyncio.as_completed(pending)]
    s += str((first, rest)) + lmc.gen("a", max_tokens=2)
    return first, rest


def test_what_ended_first_is_what_the_journal_says(tmp_path: Path) -> None:
    races.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    found = records.read(tmp_path / "j")
    others = [["R", 3, 8, "value", [2]] if record[:2] == ["R", 3] else record for record in found.records[0] if record[0] not in "ae"]
    lay(tmp_path / "k", journal_of(found.header, [(0, record) for record in others if record[0] == "b" or record[1] < 4]))
    assert races.run(backend=lmc.Mock(), journal=tmp_path / "k").ret_value[0] == ["c!"]
    assert seen(races.run(backend=lmc.Mock(), journal=tmp_path / "k")) == seen(races.run(backend=lmc.Mock(), journal=tmp_path / "k"))
    others[[record[:2] for record in others].index(["R", 3])] = ["R", 3, 8, "value", [7]]
    lay(tmp_path / "k", journal_of(found.header, [(0, record) for record in others]))
    with pytest.raises(lmc.JournalError, match="that lmc did not write"):
        races.run(backend=lmc.Mock(), journal=tmp_path / "k")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_errors_of_tasks_that_a_doubt_ends_are_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    races.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    begun = next(data for data in prefixes(tmp_path / "j") if data.count(b'"await charge"') == 3)
    lay(tmp_path / "k", begun)
    with caplog.at_level(logging.ERROR, "asyncio"):
        with pytest.raises(lmc.InDoubtEffect):
            races.run(backend=lmc.Mock(), journal=tmp_path / "k")
        gc.collect()
    assert not caplog.records


@lmc.function
async def is_told_by_callbacks(s: Any, kind: str) -> Any:
    """Only a callback takes what a task gave, and ends what the program waits for."""
    found, queue, future = list[str](), asyncio.Queue[str](), asyncio.get_running_loop().create_future()
    lock, gate = asyncio.Lock(), asyncio.Semaphore(0)
    await lock.acquire()
    ends = {"queue": queue.put_nowait, "future": future.set_result, "lock": lambda _: lock.release(), "semaphore": lambda _: gate.release()}

    def done(task: asyncio.Task[str]) -> None:
        found.append(task.result())
        ends[kind](found[0])

    asyncio.create_task(charge("q")).add_done_callback(done)
    match kind:
        case "queue":
            await queue.get()
        case "future":
            await future
        case "lock":
            async with lock:
                pass
        case _:
            await gate.acquire()
    s += found[0] + lmc.gen("a", max_tokens=2)
    return found


@pytest.mark.parametrize("kind", ["queue", "future", "lock", "semaphore"])
def test_a_doubt_that_only_a_callback_is_told_of_ends_the_run(kind: str, tmp_path: Path) -> None:
    expected = is_told_by_callbacks.run(kind, backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value
    for data in prefixes(tmp_path / "j"):
        lay(tmp_path / "k", data)
        if records.read(tmp_path / "k").runs[0].open:
            with pytest.raises(lmc.InDoubtEffect):
                is_told_by_callbacks.run(kind, backend=lmc.Mock(), journal=tmp_path / "k")
        else:
            assert is_told_by_callbacks.run(kind, backend=lmc.Mock(), journal=tmp_path / "k").ret_value == expected
