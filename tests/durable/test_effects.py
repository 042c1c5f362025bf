"""Calls of host code in a journal: made once and in their order, in doubt or called again, in threads, tasks and batches alike."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import random
import threading
import time
import traceback
import types
import typing
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.backend.results import Result
from lmc.durable import files, journal, records
from lmc.durable.effects import only_makes_coroutine
from lmc.errors import InDoubtEffect, JournalError
from tests.durable import journaled
from tests.durable.journaled import CALLS, agent, ask_places, charge, cut, look_up, pays, seen
from tests.durable.resuming import journal_of, lay, prefixes, recorded


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()


def _without_result(path: Path) -> None:
    """Cuts a journal behind its first intent."""
    lines = path.read_bytes().split(b"\n")
    cut(path, sum(len(line) + 1 for line in lines[: next(i for i, line in enumerate(lines) if b'"i"' in line) + 1]), path)


@lmc.function
def heft(s: Any) -> None:
    s += lmc.gen("a", max_tokens=2)


class Parcel:
    heft = 3


def weigh(parcel: Parcel) -> int:
    CALLS.append("weigh")
    return parcel.heft


@lmc.function
def weighs(s: Any) -> int:
    s += f"{weigh(Parcel())} kg" + lmc.gen("b", max_tokens=2)
    return weigh(Parcel())


def test_a_tool_that_reads_an_attribute_named_as_a_program_is_a_tool(tmp_path: Path) -> None:
    for _ in range(2):
        assert weighs.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value == 3
        assert CALLS == ["weigh"] * 2


@pytest.mark.parametrize("way", range(2))
def test_an_intent_without_a_result(way: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run = [pays.run, lmc.compile(pays)][way]
    assert str(run("q", backend=lmc.Mock(), seed=1, journal=path).ret_value).startswith("paid")
    _without_result(path)
    CALLS.clear()
    for _ in range(2):  # and so it stays
        assert run("q", backend=lmc.Mock(), seed=1, journal=path).ret_value == "in doubt"
    assert not CALLS


def test_an_idempotent_function_is_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journaled, "charge", lmc.host(charge, idempotent=True))
    program = lmc.compile(pays)
    program("q", backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    _without_result(tmp_path / "j")
    CALLS.clear()
    assert str(program("q", backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value).startswith("paid") and len(CALLS) == 1
    CALLS.clear()
    assert str(program("q", backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value).startswith("paid") and not CALLS


@lmc.function
def waits(s: Any) -> Any:
    began = time.time()
    time.sleep(1e-3)
    s += lmc.gen("a", max_tokens=2)
    return random.sample([s["a"], s["a"]], 2), time.time() >= began


def test_waiting_and_looking_at_the_clock_are_in_no_doubt(tmp_path: Path) -> None:
    path = tmp_path / "j"
    expected = waits.run(backend=lmc.Mock(), seed=1, journal=path).ret_value
    lines = path.read_bytes().splitlines(keepends=True)
    for whole in range(1, len(lines)):
        lay(path, b"".join(lines[:whole]))
        assert lmc.compile(waits)(backend=lmc.Mock(), seed=1, journal=path).ret_value == expected


def test_what_is_not_data_stops_the_run_that_is_resumed(tmp_path: Path) -> None:
    @lmc.function
    def program(s: Any, q: str) -> Any:
        stream = numbers()
        s += lmc.gen("a", max_tokens=3)
        return sum(stream)

    with pytest.warns(lmc.JournalWarning, match="numbers\\(\\) gave a generator, and a journal cannot hold a generator"):
        assert program.run("q", backend=lmc.Mock(), journal=tmp_path / "j").ret_value == 3
    with pytest.raises(JournalError, match="idempotent=True"):
        program.run("q", backend=lmc.Mock(), journal=tmp_path / "j")


def numbers() -> Any:
    return (i for i in range(3))


async def fetch(q: str) -> str:
    CALLS.append(("fetch", q))
    await asyncio.sleep(0)
    return q + "!"


@lmc.function
async def gathers(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    one = await fetch(s["a"])
    several = await asyncio.gather(fetch("x"), fetch("y"))
    s += lmc.gen("b", max_tokens=3)
    return one, several, await fetch(s["b"])


def test_awaited_tools(tmp_path: Path) -> None:
    program = lmc.compile(gathers)
    expected = gathers.run("q", backend=lmc.Mock(), seed=1)
    ways = [
        lambda **o: gathers.run("q", seed=1, **o), lambda **o: asyncio.run(gathers.arun("q", seed=1, **o)), lambda **o: program("q", seed=1, **o),
        lambda **o: asyncio.run(program.acall("q", seed=1, **o)),
    ]  # fmt: skip
    for n, way in enumerate(ways):
        path = tmp_path / str(n)
        CALLS.clear()
        assert seen(way(backend=lmc.Mock(), journal=path)) == seen(expected)
        assert len(CALLS) == 4
        whole = path.read_bytes()
        for again in ways:
            CALLS.clear()
            mock = lmc.Mock()
            assert seen(again(backend=mock, journal=path)) == seen(expected)
            assert not CALLS and not mock.call_log
        lay(path, whole)
        _without_result(path)
        with pytest.raises(InDoubtEffect, match="fetch"):
            way(backend=lmc.Mock(), journal=path)


def test_async_batches(tmp_path: Path) -> None:
    items = [{"q": f"q{i}"} for i in range(6)]
    program = lmc.compile(gathers)
    expected = [seen(s) for s in program.batch(items, backend=lmc.Mock(), seed=1)]
    for n, batch in enumerate((program.batch, lambda i, **o: asyncio.run(program.abatch(i, **o)), gathers.run_batch)):
        assert [seen(s) for s in batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / str(n))] == expected
        CALLS.clear()
        mock = lmc.Mock()
        assert [seen(s) for s in batch(items, backend=mock, seed=1, journal=tmp_path / str(n))] == expected
        assert not CALLS and not mock.call_log


@lmc.function
async def fetches(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    return await fetch(s["a"])


@pytest.mark.parametrize("way", range(3))
def test_runs_of_a_batch_wait_for_the_disk_together(way: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run holds the loop while the intent of its tool is synced: all others come to their tools meanwhile."""
    items, asked, all_asked = [{"q": f"q{i}"} for i in range(6)], [], threading.Event()

    def fault(ask: Any, number: int) -> None:
        asked.append(ask)
        if len(asked) == len(items):
            all_asked.set()

    def sync(self: Any) -> None:
        assert all_asked.wait(60)
        real(self)

    program, real = lmc.compile(fetches), journal.JournalFile._sync
    monkeypatch.setattr(journal.JournalFile, "_sync", sync)
    batch = [program.batch, lambda i, **o: asyncio.run(program.abatch(i, **o)), partial(fetches.run_batch, num_threads=6)][way]
    assert len(batch(items, backend=lmc.Mock(fault=fault), seed=1, journal=tmp_path / "j")) == len(CALLS) == 6


def test_a_run_that_is_cancelled_before_its_tool_begins_is_not_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callers: list[Any] = []

    async def interrupted(self: Any) -> None:
        callers[0].cancel()
        await asyncio.Event().wait()

    async def main() -> None:
        callers.append(asyncio.current_task())
        await program.abatch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / "j")

    program, items = lmc.compile(fetches), [{"q": "q"}]
    with monkeypatch.context() as patched, pytest.raises(asyncio.CancelledError):
        patched.setattr(journal.JournalFile, "synced", interrupted)
        asyncio.run(main())
    assert not CALLS
    (state,) = asyncio.run(program.abatch(items, backend=(mock := lmc.Mock()), seed=1, journal=tmp_path / "j"))
    assert state.ret_value == CALLS[0][1] + "!" and len(CALLS) == 1 and not mock.call_log


def test_a_task_of_an_earlier_run_that_is_cancelled(tmp_path: Path) -> None:
    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=3)
        task = asyncio.create_task(fetch(s["a"]))
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        s += type(outcome).__name__

    for n in range(3):  # as often as one likes
        assert program.run("q", backend=lmc.Mock(), seed=1, journal=tmp_path / "j").text().endswith("CancelledError"), n


@lmc.host(idempotent=True)
async def fetch_again(q: str) -> str:
    return await fetch(q)


@lmc.function
async def begins_early(s: Any, tool: str, cancels: bool) -> Any:
    task = asyncio.create_task({"fetch": fetch, "fetch_again": fetch_again}[tool]("q"))
    if cancels:
        task.cancel()
    turns = asyncio.Semaphore(1)
    async with turns:
        s += "q" + lmc.gen("a", max_tokens=3)
        s += s["a"]
    try:
        return await asyncio.wait_for(task, 60)
    except asyncio.CancelledError:
        return "cancelled"


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning", "ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("tool, cancels", [("fetch", False), ("fetch_again", False), ("fetch_again", True)])
def test_a_task_that_was_begun_and_not_awaited_is_in_doubt(tool: str, cancels: bool, tmp_path: Path) -> None:
    """It may have done something; one that is idempotent begins again, and is cancelled again."""
    expected = begins_early.run(tool, cancels, backend=lmc.Mock(), seed=1).ret_value
    for n, way in enumerate((begins_early.run, lmc.compile(begins_early))):
        options: dict[str, Any] = {"seed": 1, "journal": tmp_path / str(n)}
        with pytest.raises(lmc.BackendError):
            way(tool, cancels, backend=lmc.Mock(fault=lambda ask, n: lmc.BackendError("down")), **options)
        CALLS.clear()
        if tool == "fetch":
            with pytest.raises(InDoubtEffect, match="create_task"):
                way(tool, cancels, backend=lmc.Mock(), **options)
        else:
            assert way(tool, cancels, backend=lmc.Mock(), **options).ret_value == expected
        assert ([("fetch", "q")] if expected == "q!" and tool == "fetch_again" else []) == CALLS


@lmc.function
async def gathers_again(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=3)
    found = await asyncio.gather(fetch_again(s["a"]), fetch_again("x"))
    return found, await asyncio.wait_for(fetch_again("y"), 60)


def test_what_waits_for_idempotent_calls_alone_is_in_no_doubt(tmp_path: Path) -> None:
    path, program = tmp_path / "j", lmc.compile(gathers_again)
    expected = program(backend=lmc.Mock(), seed=1, journal=path).ret_value
    lines = path.read_bytes().splitlines(keepends=True)
    for whole in range(1, len(lines)):
        lay(path, b"".join(lines[:whole]))
        assert program(backend=lmc.Mock(), seed=1, journal=path).ret_value == expected


@contextlib.asynccontextmanager
async def tagged(s: Any) -> Any:
    s += "<" + await fetch_again("open")
    yield "tag"
    s += ">" + lmc.gen("closed", max_tokens=2)


async def turns_of(s: Any) -> Any:
    while True:
        s += lmc.gen("turn", max_tokens=2)
        yield s["turn"]


@lmc.function
async def by_hand(s: Any) -> Any:
    manager, turns = tagged(s), turns_of(s)
    name = await manager.__aenter__()
    s += name + lmc.gen("a", max_tokens=3)
    told = [await anext(turns), await fetch_again(s["a"]), await turns.asend(None)]
    await manager.__aexit__(None, None, None)
    return told, s.text(), await fetch_again("end")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_managers_and_generators_of_the_program_that_are_moved_on_by_hand_run_again(tmp_path: Path, compiled: bool) -> None:
    path, way = tmp_path / "j", lmc.compile(by_hand) if compiled else by_hand.run
    expected = way(backend=lmc.Mock(), seed=1, journal=path).ret_value
    assert expected == by_hand.run(backend=lmc.Mock(), seed=1).ret_value
    lines = path.read_bytes().splitlines(keepends=True)
    for whole in range(1, len(lines)):
        lay(path, b"".join(lines[:whole]))
        assert way(backend=lmc.Mock(), seed=1, journal=path).ret_value == expected


def marks(f: Any) -> None:
    f.marked = getattr(f, "marked", 0) + 1


def through(add: Any, x: Any) -> None:
    add(x)


def adds(objects: list[Any]) -> None:
    objects.append(object())


def test_what_tools_do_to_objects_that_are_not_data_is_missed_by_nobody(tmp_path: Path) -> None:
    @lmc.function
    def program(s: Any) -> Any:
        objects: list[Any] = []
        try:
            adds(objects)
        except Exception:  # it cannot go on by catching that
            s += "no"
        s += lmc.gen("a", max_tokens=2)
        return len(objects)

    with pytest.warns(lmc.JournalWarning, match="what it did to a list"):
        assert program.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value == 1
    with pytest.raises(JournalError, match="idempotent=True"):
        program.run(backend=lmc.Mock(), journal=tmp_path / "j")


class Hidden:
    """Too deep a place for a state to be found in."""

    def __init__(self, s: Any, depth: int) -> None:
        self.within = Hidden(s, depth - 1) if depth else s

    def ask(self) -> str:
        return asks(self.within) if not isinstance(self.within, Hidden) else self.within.ask()


def asks(s: Any) -> str:
    s.__iadd__(LANGUAGE["gen"]("a", max_tokens=2))
    return s["a"]


def test_a_state_that_a_tool_found_is_missed_by_nobody(tmp_path: Path) -> None:
    @lmc.function
    def program(s: Any) -> Any:
        return Hidden(s, 9).ask()

    with pytest.warns(lmc.JournalWarning, match="what it appended to a state"):
        program.run(backend=lmc.Mock(), journal=tmp_path / "j")
    with pytest.raises(JournalError, match="cannot be resumed"):
        program.run(backend=lmc.Mock(), journal=tmp_path / "j")


LANGUAGE: dict[str, Any] = {"gen": lmc.gen}


def first_of(table: dict[str, list[str]]) -> list[str]:
    return table["rows"]


def puts(table: dict[str, list[str]], rows: list[str]) -> None:
    table["also"] = rows


@lmc.function
def draws(s: Any, q: str) -> Any:
    table: list[dict[str, Any]] = [{"n": n} for n in range(4)]
    first = table[0]
    s += q + lmc.gen("a", max_tokens=2)
    for row in random.sample(table, 3):
        row["seen"] = s["a"]
    random.shuffle(table)
    found = {"best": random.choice(table), "all": random.sample([table, table], 1)}
    s += lmc.gen("b", max_tokens=2)
    return table, first, found, [x is first for x in table], found["best"] in table, found["all"][0] is table


@pytest.mark.parametrize("first", range(2))
def test_parts_of_what_a_call_was_handed_come_back_as_themselves(first: int, tmp_path: Path) -> None:
    runs, path = [draws.run, lmc.compile(draws)], tmp_path / "j"
    expected = runs[first]("q", backend=lmc.Mock(), seed=1, journal=path).ret_value
    for way in runs:
        assert way("q", backend=lmc.Mock(), journal=path).ret_value == expected
    header, found = records.read(path).header, [(n, r) for n, known in records.read(path).records.items() for r in known]
    drawn = max(k for k, (_, record) in enumerate(found) if record[0] in "rR") + 1
    for k in range(1, len(found)):
        lay(path, journal_of(header, found[:k]))
        result = runs[k % 2]("q", backend=lmc.Mock(), journal=path).ret_value
        assert sum(result[3]) == 1 and all(result[4:]) and sum("seen" in row for row in result[0]) == 3
        assert k < drawn or result == expected


class Shop:
    @lmc.host(idempotent=True)
    def look(self, q: str) -> str:
        CALLS.append(("look", q))
        return q + "?"


SHOP = Shop()


@lmc.function
def looks_up(s: Any, q: str) -> Any:
    s += SHOP.look(q) + lmc.gen("x", max_tokens=4)
    return s["x"]


@lmc.function
def draws_states(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(4)
    forks += lambda i: f"{i}" + lmc.gen("a", max_tokens=3)
    chosen = random.sample(list(forks), 2)
    for f in chosen:
        f += " chosen " + lmc.gen("b", max_tokens=3)
    s += chosen[0]["a"] + lmc.gen("c", max_tokens=3)
    return s["c"], [f["b"] for f in chosen]


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_states_that_are_drawn(tmp_path: Path) -> None:
    runs, path = [draws_states.run, lmc.compile(draws_states)], tmp_path / "j"
    expected = seen(runs[0]("q", backend=lmc.Mock(), seed=1, journal=path))
    header, found = records.read(path).header, [(n, r) for n, known in records.read(path).records.items() for r in known]
    drawn = max(k for k, (_, record) in enumerate(found) if record[0] in "rR") + 1
    for k in range(1, len(found)):
        lay(path, journal_of(header, found[:k]))
        result = seen(runs[k % 2]("q", backend=lmc.Mock(), journal=path))  # a draw of which nobody knows is made again
        assert k < drawn or result == expected


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@lmc.function
def chooses(s: Any, q: str) -> Any:
    s += q + lmc.select("colour", choices=list(Colour)) + lmc.gen("other", choices=[Colour.RED, "grey"])
    return s["colour"], type(s["colour"]).__name__, s["other"] == Colour.RED


def test_choices_of_an_enum_are_answered_by_their_text(tmp_path: Path) -> None:
    program = lmc.compile(chooses)
    expected = chooses.run("q", backend=lmc.Mock(), seed=1).ret_value
    assert expected[1] == "str" and expected[0] in list(Colour)
    for way in (chooses.run, program, chooses.run):
        assert way("q", backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value == expected
    program.save(tmp_path / "saved")
    assert lmc.load(tmp_path / "saved")("q", backend=lmc.Mock(), seed=1).ret_value == expected


@pytest.mark.parametrize("way", range(3))
def test_a_full_disk(way: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is called whose intent the disk does not have, whatever the program catches; with room again, the run goes on."""

    @lmc.function
    def program(s: Any) -> Any:
        paid = []
        for i in range(3):
            s += lmc.gen("a", max_tokens=3)
            try:
                paid.append(charge(f"{i}" + s["a"]))
            except Exception:
                s += "failed"
        return paid

    run, path = [program.run, lmc.compile(program), lambda **o: asyncio.run(lmc.compile(program).acall(**o))][way], tmp_path / "j"
    expected, real = run(backend=lmc.Mock(), seed=1).ret_value, files.write_all

    def write(file: Any, data: bytes) -> None:
        if b'"i",0,' in data:
            real(file, data[:20])
            raise OSError(28, "No space left on device")
        real(file, data)

    CALLS.clear()
    monkeypatch.setattr(files, "write_all", write)
    with pytest.raises(JournalError, match=r"No space left on device; the run cannot continue"):
        run(backend=lmc.Mock(), seed=1, journal=path)
    assert not CALLS
    monkeypatch.setattr(files, "write_all", real)
    assert run(backend=lmc.Mock(), journal=path).ret_value == expected and len(CALLS) == 3


def test_a_request_that_failed_is_asked_again(tmp_path: Path) -> None:
    program, path = lmc.compile(agent), tmp_path / "j"
    with pytest.raises(lmc.BackendError):
        program("a", seed=3, journal=path, backend=lmc.Mock(fault=lambda ask, n: lmc.BackendError("down") if n == 2 else None))
    mock = lmc.Mock()
    assert seen(program("a", seed=3, journal=path, backend=mock)) == seen(agent.run("a", seed=3, backend=lmc.Mock()))
    assert len(mock.call_log) == len(ask_places(path)) - 2
    assert records.read(path).runs[0].end == []  # not what it ended with before


@lmc.function
def leaves_answers_unread(s: Any, q: str) -> None:
    forks = s.fork(2)
    for f in forks:
        f += q + lmc.gen("side", max_tokens=2)
    forks.join()
    (tried,) = s.fork(1)
    tried += q + lmc.gen("tried", max_tokens=2) + lmc.gen("more", max_tokens=2)
    try:
        s += tried["tried"]
    except lmc.BackendError:
        s += str(look_up(q))
    s += lmc.gen("last", max_tokens=2)


@pytest.mark.parametrize("name", ("last", "side"))
def test_a_request_that_failed_and_that_nothing_has_read_is_asked_again(name: str, tmp_path: Path) -> None:
    """What the program handled stays, and what followed it."""
    backend = lambda **down: lmc.Mock(fault=lambda ask, n: lmc.BackendError(down[ask.name]) if ask.name in down else None)
    items = [{"q": q} for q in "ab"]
    with contextlib.suppress(lmc.BackendError):
        leaves_answers_unread.run_batch(items, seed=3, journal=tmp_path / "j", backend=backend(tried="overloaded", **{name: "no answer"}))
    assert [run.status for run in lmc.Journal(tmp_path / "j").runs()] == ["failed"] * 2
    mock = lmc.Mock()
    states = leaves_answers_unread.run_batch(items, seed=3, journal=tmp_path / "j", backend=mock)
    whole = leaves_answers_unread.run_batch(items, seed=3, backend=backend(tried="overloaded"))
    assert [seen(state) for state in states] == [seen(state) for state in whole]
    assert [call.name for call in mock.call_log] == [name] * (2 if name == "last" else 4)
    assert [run.status for run in lmc.Journal(tmp_path / "j").runs()] == ["finished"] * 2


@lmc.function
def reads_one_of_two(s: Any, q: str) -> Any:
    forks = s.fork(2)
    for f in forks:
        f += q + lmc.gen("side", max_tokens=2)
    try:
        s += forks[0]["side"]
    except lmc.BackendError:
        s += str(look_up(q))
    s += lmc.gen("last", max_tokens=2)
    return s["last"]


@pytest.mark.parametrize("is_cut", (False, True))
def test_of_equal_failures_the_one_that_nothing_has_read_is_asked_again(is_cut: bool, tmp_path: Path) -> None:
    down = lmc.Mock(fault=lambda ask, n: lmc.BackendError("overloaded") if ask.name == "side" else None)
    expected = reads_one_of_two.run("q", seed=3, journal=tmp_path / "j", backend=down).text()
    if is_cut:  # before it ended
        lay(tmp_path / "j", prefixes(tmp_path / "j")[-2])
        assert reads_one_of_two.run("q", seed=3, journal=tmp_path / "j", backend=down).text() == expected
    for asked in (["side"], []):
        mock = lmc.Mock()
        assert reads_one_of_two.run("q", seed=3, journal=tmp_path / "j", backend=mock).text() == expected
        assert [call.name for call in mock.call_log] == asked


def test_meta_info_that_json_lacks_behind_some_of_the_same_types(tmp_path: Path) -> None:
    """A backend may give any values: what comes back is of the types that came."""
    backend, real = lmc.Mock(), Result.finish
    given: list[Any] = [[1], [(1, 2)], [b"z"], {"a": 1}, {1: 2}, {"a": (1,)}]

    @lmc.function
    def program(s: Any) -> Any:
        for n in range(len(given)):
            s += lmc.gen(f"a{n}", max_tokens=2)
        return [s.get_meta_info(f"a{n}")["more"] for n in range(len(given))]

    left = list(given)

    def finish(result: Any, output: Any) -> None:
        more = left.pop(0)
        real(result, replace(output, metas=tuple({**meta, "more": more} for meta in output.metas)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Result, "finish", finish)
        assert program.run(backend=backend, seed=1, journal=tmp_path / "j").ret_value == given
    back = program.run(backend=backend, seed=1, journal=tmp_path / "j").ret_value
    assert back == given and type(back[1][0]) is type(back[5]["a"]) is tuple


class Service:
    class Down(lmc.BackendError):
        pass


def test_a_request_that_failed_with_an_exception_of_a_class_in_a_class_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with pytest.raises(Service.Down):
        large.run(1, seed=3, journal=path, backend=lmc.Mock(fault=lambda ask, n: Service.Down("down")))
    assert large.run(1, seed=3, journal=path, backend=lmc.Mock()).text() == large.run(1, seed=3, backend=lmc.Mock()).text()


def counts(x: int, more: list[int]) -> int:
    CALLS.append(len(more))
    return x * 10


@lmc.function
def large(s: Any, n: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    return counts(n, [n]) if s["a"] else None


def test_numbers_of_more_digits_than_python_writes(tmp_path: Path) -> None:
    for way in (large.run, lmc.compile(large)):
        assert way(10**5000, seed=1, journal=tmp_path / "j", backend=lmc.Mock()).ret_value == 10**5001
    assert CALLS == [1]


@lmc.function
def given_anything(s: Any, x: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)


@pytest.mark.parametrize("first, then", [(1, True), (1, 1.0), (0.0, -0.0), ([1], [True]), ({"a": 1}, {"a": 1.0})])
def test_arguments_that_are_only_equal_are_other_ones(first: Any, then: Any, tmp_path: Path) -> None:
    given_anything.run(first, backend=lmc.Mock(), journal=tmp_path / "j", seed=1)
    with pytest.raises(JournalError, match="other arguments"):
        given_anything.run(then, backend=lmc.Mock(), journal=tmp_path / "j", seed=1)


def test_arguments_that_are_the_same(tmp_path: Path) -> None:
    for n, (first, then) in enumerate([(float("nan"), float("nan")), ({"a": 1, "b": 2}, {"b": 2, "a": 1})]):
        for x in (first, then):
            given_anything.run(x, backend=lmc.Mock(), journal=tmp_path / str(n), seed=1)


def test_budgets_count_what_is_known(tmp_path: Path) -> None:
    program, path = lmc.compile(agent), tmp_path / "j"
    for _ in range(2):
        with pytest.raises(lmc.BudgetExceeded, match="3 calls"):
            program("d", seed=3, journal=path, backend=lmc.Mock(), budget=lmc.Budget(calls=3))


NAMES = ["x", "y"]


@lmc.host
def in_order(name: str) -> str:
    CALLS.append(("look_up", name))
    return f"<{name}>"


@lmc.host(ordered=False)
def in_any_order(name: str) -> str:
    CALLS.append(("look_up", name))
    return f"<{name}>"


@lmc.function
def looks_up_each(s: Any, ordered: bool) -> Any:
    s += lmc.gen("a", max_tokens=2)
    return sorted((in_order if ordered else in_any_order)(name) for name in NAMES)


def test_calls_that_need_no_order_are_found_behind_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordered ones are another program's, which does something else first."""
    for ordered in (False, True):
        path = tmp_path / str(ordered)
        looks_up_each.run(ordered=ordered, backend=lmc.Mock(), seed=1, journal=path)
        lay(path, prefixes(path)[-2])
        CALLS.clear()
        with monkeypatch.context() as patch, pytest.raises(lmc.JournalError, match="calls in_order") if ordered else contextlib.nullcontext():
            patch.setitem(globals(), "NAMES", ["z", "y", "x"])
            assert looks_up_each.run(ordered=ordered, backend=lmc.Mock(), journal=path).ret_value == ["<x>", "<y>", "<z>"]
        assert ([] if ordered else [("look_up", "z")]) == CALLS


@lmc.function
def keeps_functions(s: Any) -> Any:
    table: dict[str, Any] = {"charge": charge}
    tools: list[Any] = [charge]
    s += lmc.gen("a", max_tokens=2)
    table.setdefault("other", look_up)
    tools.append(look_up)
    tool = table.get(s["a"], charge)
    return type(tool).__name__, callable(tool), isinstance(tool, str), tools.index(look_up), tool(s["a"]), tools.pop() is look_up


class Toolbox:
    def __init__(self) -> None:
        self.tools = {name: tool for name, tool in inspect.getmembers(self, inspect.ismethod) if name.startswith("do_")}

    def do_search(self, x: str) -> str:
        CALLS.append(("do_search", x))
        return x.upper()


@lmc.function
def describes_its_tools(s: Any) -> Any:
    parameters = {name: str(p.default) for name, p in inspect.signature(weight).parameters.items()}
    s += f"{weight.__name__} {inspect.getdoc(weight)} {parameters} {sorted(typing.get_type_hints(weight))}" + lmc.gen("a", max_tokens=2)
    return weight(s["a"]), Toolbox().tools["do_search"](s["a"])


@functools.lru_cache(maxsize=2)
def found(x: str) -> str:
    CALLS.append(("found", x))
    return x.upper()


@lmc.function
def caches_its_tools(s: Any) -> Any:
    again = functools.lru_cache(maxsize=None)(weight)
    s += found("q") + found("q") + lmc.gen("a", max_tokens=2)
    return found(s["a"]), again("bb"), again("bb"), again.__name__


def test_a_tool_with_a_cache_is_a_tool(tmp_path: Path) -> None:
    """It was called again when the run was resumed, and one that the program made a cache of raised."""
    for called in (3, 0):
        CALLS.clear()
        found.cache_clear()  # as in another process
        state = caches_its_tools.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
        assert state.ret_value == (state["a"].upper(), 2, 2, "weight") and len(CALLS) == called


def weight(x: str) -> int:
    """The weight."""
    CALLS.append(("weight", x))
    return len(x)


@lmc.function
def sorts(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    words = f"{s['a']} a bb".split()
    best = max(words, key=weight)
    words.sort(key=lambda w: -weight(w + q))
    return best, sorted(words, key=weight), words


def fail() -> None:
    raise ValueError("no")


def printed() -> str:
    return traceback.format_exc()


def called(*what: Any) -> None:
    CALLS.append(what)


async def works(name: str) -> None:
    called("begins", name)
    await asyncio.sleep(0)
    called("ends", name)


@lmc.function
async def takes_turns(s: Any) -> None:
    task = asyncio.create_task(works("task"))
    await works("program")
    await task


def counted(s: Any) -> Any:
    try:
        s += lmc.gen("x", max_tokens=2)
        yield s["x"]
    finally:
        called("ends")
        s += "|"


@lmc.function
def leaves_loops(s: Any) -> None:
    for _ in enumerate(counted(s)):
        break
    called("behind the loop")
    s += str(any(x for x in counted(s)))
    generators = [counted(s)]
    called(next(generators[0]))
    generators.clear()
    called("cleared")


@lmc.function
def prints_tracebacks(s: Any) -> str:
    def inner() -> None:
        fail()

    try:
        inner()
    except ValueError:
        return printed()
    return ""


class Answers:
    """Says when it is compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        called("eq")
        return self is other

    def __call__(self) -> str:
        called("called")
        return "x"


ANSWERS = Answers()


@lmc.function
def calls_an_object(s: Any) -> None:
    s += ANSWERS()


@lmc.function
def adds_to_closures(s: Any) -> Any:
    total, kept = 0, []

    def add(n: int) -> int:
        nonlocal total
        charge(str(n))
        total += n
        kept.append(n)
        return total

    rows = [[3], [1]]
    for n in (1, 2):
        add(n)
        s += str(total) + lmc.gen("a", max_tokens=2)
    rows.sort(key=lambda row: add(row[0]))
    assert total == 7
    return total, kept, rows


@lmc.function
def marks_its_functions(s: Any) -> Any:
    def own() -> None: ...

    marks(own)
    s += lmc.gen("a", max_tokens=2)
    marks(own)
    kept: list[str] = []
    through(kept.append, "x")
    assert own.marked == 2  # pyright: ignore[reportFunctionMemberAccess]
    return kept, eval("1 + 1", {}, {})


@lmc.function
def shares_containers(s: Any, shared: bool) -> Any:
    """A tool gives one, or puts one into another: they stay the same."""
    rows: list[str] = []
    table = {"rows": rows}
    s += lmc.gen("a", max_tokens=2)
    first_of(table).append(s["a"])
    if shared:
        puts(table, rows)
    assert rows is table["rows"] and (table.get("also") is rows) is shared
    return rows, table


@lmc.function
def calls_in_rare_ways(s: Any) -> Any:
    s += lmc.gen("a", max_tokens=2)
    return types.MethodType(charge, "bound")(), charge.__call__("dunder"), charge.__get__("got")()


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, fn: Any) -> Any:
        def inner(x: str) -> Any:
            self.calls += 1
            return fn(x)

        return inner


@lmc.function
def decorates_by_an_object(s: Any) -> Any:
    counted = Counted()
    s += lmc.gen("a", max_tokens=2)
    paid = counted(charge)
    return paid("x"), paid(s["a"]), counted.calls


@functools.singledispatch
def handle(x: Any, s: Any) -> Any:
    raise TypeError(x)


@handle.register
def _(x: int, s: Any) -> Any:
    return charge(str(x))


@handle.register
def _(x: str, s: Any) -> Any:
    s += x + lmc.gen("b", max_tokens=2)
    return charge(s["b"])


class Quoted:
    """Passes for bytes, as proxies do for what they stand for."""

    @property
    def __class__(self) -> Any:
        return bytes


class Handler:
    @functools.singledispatchmethod
    def handle(self, x: Any, s: Any) -> Any:
        return charge(str(x))

    @handle.register
    def _(self, x: bytes, s: Any) -> Any:
        return handle("x", s)


@lmc.function
def dispatches(s: Any) -> Any:
    s += lmc.gen("a", max_tokens=2)
    return handle(1, s), handle(s["a"], s), Handler().handle(None, s), Handler().handle(b"x", s), Handler().handle(Quoted(), s)


RECORDED: list[tuple[Any, dict[str, Any], str]] = [
    (takes_turns, {}, "await works, await works"), (leaves_loops, {}, ", ".join(["called"] * 6)), (prints_tracebacks, {}, "fail, printed"),
    (calls_an_object, {}, "Answers"), (looks_up, {"q": "q"}, "Shop.look"), (sorts, {"q": "q"}, ", ".join(["weight"] * 9)),
    (keeps_functions, {}, "charge"), (describes_its_tools, {}, "weight, Toolbox.do_search"), (adds_to_closures, {}, "charge, charge, charge, charge"),
    (marks_its_functions, {}, "marks, marks, through, eval"), (shares_containers, {"shared": False}, "first_of"),
    (shares_containers, {"shared": True}, "first_of, puts"), (calls_in_rare_ways, {}, "charge, charge, charge"),
    (decorates_by_an_object, {}, "charge, charge"), (dispatches, {}, ", ".join(["charge"] * 5)),
]  # fmt: skip


@pytest.mark.parametrize(("program", "arguments", "names"), RECORDED, ids=lambda x: getattr(x, "name", ""))
def test_a_journal_changes_nothing_and_has_the_calls(program: Any, arguments: dict[str, Any], names: str, tmp_path: Path) -> None:
    assert ", ".join(recorded(program, tmp_path, **arguments)) == names


log = logging.getLogger("lmc-test")


async def sent(x: Any) -> Any:
    return x


def logs_and_sends(x: Any) -> Any:
    log.info("sends")
    return sent(x)


def tells_and_sends(client: Any, x: Any) -> Any:
    log.info("sends")
    client.log(x)
    return sent(x)


def test_methods_named_like_those_of_a_logger_may_have_effects() -> None:
    assert only_makes_coroutine(logs_and_sends) and not only_makes_coroutine(tells_and_sends)
