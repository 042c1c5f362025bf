"""Durable runs of tasks, and of threads, that share something, or have time-outs: they go on in the order in which they did."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.durable import records
from lmc.durable.turns import ThreadTurns
from tests.backend.gated import Gated, InTurn
from tests.durable.resuming import CALLS, done, journal_of, lay, prefixes, seen
from tests.searching import TIMES, some


@lmc.host(idempotent=True)
async def fetch(q: str) -> str:
    CALLS.append(("fetch", q))
    await asyncio.sleep(0)
    return q[::-1]


@lmc.function
async def shares_work(s: Any) -> Any:
    """Which worker takes a piece, and what it sees of the others' work, only the order of the answers says."""
    work, found = asyncio.Queue[int](), list[str]()

    async def works(name: str) -> None:
        while not work.empty():
            n = await work.get()
            (f,) = s.fork(1)
            f += f"{name} does {n} after {len(found)}" + lmc.gen("a", max_tokens=2)
            if n % 2:
                f += await fetch(f["a"]) + f"{len(found)}" + lmc.gen("b", max_tokens=2)
            found.append(f.text())

    for n in range(6):
        work.put_nowait(n)
    async with asyncio.TaskGroup() as group:
        for name in "xyz":
            group.create_task(works(name))
    s += "".join(found) + lmc.gen("c", max_tokens=2)
    return found


@some("order", [[2, 1, 0], [0, 1, 2], [1, 2, 0]], 3)
def test_workers_take_the_same_pieces_again(order: list[int], tmp_path: Path) -> None:
    for n, way in enumerate((shares_work.run, lmc.compile(shares_work))):
        whole, mock = InTurn(order), lmc.Mock()
        expected = seen(way(backend=whole, seed=1, journal=tmp_path / str(n)))
        CALLS.clear()
        assert seen(shares_work.run(backend=mock, journal=tmp_path / str(n))) == expected and not mock.call_log and not CALLS
        for data in prefixes(tmp_path / str(n))[:: 1 if TIMES else 3]:
            lay(tmp_path / "cut", data)
            known, mock = records.read(tmp_path / "cut").runs[0], lmc.Mock()
            shares_work.run(backend=mock, journal=tmp_path / "cut")
            assert len(mock.call_log) == len(whole.call_log) - len(known.answers)


@lmc.function
async def goes_by_time(s: Any) -> Any:
    """Time-outs of a read, and of waits for another task, that expire while no answer comes; then they come."""
    got, found = asyncio.Queue[str](), list[str]()
    f, g = s.fork(2)

    async def reads() -> None:
        nonlocal f
        f += lmc.gen("a", max_tokens=2)
        await got.put(f["a"])

    task = asyncio.create_task(reads())
    g += lmc.gen("b", max_tokens=2)
    try:
        async with asyncio.timeout(0.001):
            found.append(g["b"])
    except TimeoutError:
        found.append("no answer")
    try:
        async with asyncio.timeout(0.001):
            found.append(await got.get())
    except TimeoutError:
        found.append("nothing got")
    try:
        found.append(await asyncio.wait_for(got.get(), 0.001))
    except TimeoutError:
        found.append("nothing yet")
    s += await come() + str(found) + lmc.gen("c", max_tokens=2)
    found += [await asyncio.wait_for(got.get(), 60), g["b"], s["c"]]
    await task
    return found


held: list[Gated] = []


async def come() -> str:
    CALLS.append(("come",))
    held.pop().open()
    return "they come"


def test_time_outs_expire_again_where_they_did(tmp_path: Path) -> None:
    for n, way in enumerate((goes_by_time.run, lmc.compile(goes_by_time))):
        held.append(Gated())
        expected = seen(way(backend=held[0], seed=1, journal=tmp_path / str(n)))
        mock = lmc.Mock()
        assert "nothing yet" in expected[1]
        assert seen(goes_by_time.run(backend=mock, journal=tmp_path / str(n))) == expected and not mock.call_log and not held


patience = 1e-9


async def at_once(q: str) -> str:
    CALLS.append(("at_once", q))
    return q


@lmc.function
async def expires_at_its_end(s: Any) -> Any:
    """A time-out that expires in the turn of the loop in which its task ends, before the program is told."""

    async def works() -> str:
        return await at_once("x")

    task = asyncio.create_task(works())
    try:
        found = await asyncio.wait_for(asyncio.shield(task), patience)
    except TimeoutError:
        found = "late"
    s += found + await task + lmc.gen("a", max_tokens=2)
    return found, s["a"]


async def never(q: str) -> str:
    CALLS.append(("never", q))
    if len(CALLS) == 3:
        expiring.set()
    return await asyncio.Event().wait() and q


@lmc.function
async def expire_together(s: Any) -> Any:
    """Time-outs of several tasks that expire in one turn of the loop."""
    found, limits = list[str](), list[asyncio.Timeout]()

    async def waits(name: str) -> None:
        try:
            async with asyncio.timeout(60) as limit:
                limits.append(limit)
                await never(name)
        except TimeoutError:
            found.append(name)
        (f,) = s.fork(1)
        f += f"{name} after {found}" + lmc.gen("a", max_tokens=2)
        found.append(f["a"])

    async with asyncio.TaskGroup() as group:
        for name in "xyz":
            group.create_task(waits(name))
        await all_wait()
        for limit in reversed(limits):
            limit.reschedule(asyncio.get_running_loop().time())
    s += str(found) + lmc.gen("a", max_tokens=2)
    return found, s["a"]


expiring = asyncio.Event()


async def all_wait() -> None:
    await expiring.wait()


def test_each_call_is_cancelled_by_the_time_out_of_its_task(tmp_path: Path) -> None:
    CALLS.clear()
    expected = seen(expire_together.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j"))
    CALLS.clear()
    effects = records.read(tmp_path / "j").runs[0].effects.values()
    by = [effect.outcome[1][0] for effect in effects if effect.outcome is not None and effect.outcome[0] == "cancelled"]
    assert len(set(by)) == len(by) == 3
    mock = lmc.Mock()
    assert seen(expire_together.run(backend=mock, journal=tmp_path / "j")) == expected and not mock.call_log and not CALLS


@lmc.function
async def expires_late(s: Any) -> Any:
    """A time-out that expires after another call."""
    found, limits = list[str](), list[asyncio.Timeout]()

    async def waits() -> None:
        try:
            async with asyncio.timeout(patience) as limit:
                limits.append(limit)
                await asyncio.Event().wait()
        except TimeoutError:
            found.append("late")

    task = asyncio.create_task(waits())
    found.append(await fetch("q"))
    limits[0].reschedule(asyncio.get_running_loop().time())
    await task
    s += str(found) + lmc.gen("a", max_tokens=2)
    return found, s["a"]


def test_a_known_time_out_does_not_expire_by_the_clock_of_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "patience", 60)
    expected = seen(expires_late.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j"))
    monkeypatch.setattr(sys.modules[__name__], "patience", 1e-9)
    mock = lmc.Mock()
    assert seen(expires_late.run(backend=mock, journal=tmp_path / "j")) == expected and not mock.call_log


limits: list[asyncio.Timeout] = []
told: list[str] = []


async def after_a_time_out() -> str:
    CALLS.append(("after_a_time_out",))
    limits.pop().reschedule(asyncio.get_running_loop().time())
    while not told:
        await asyncio.sleep(0)
    return told.pop()


@lmc.function
async def expires_before(s: Any) -> Any:
    """A time-out that expires before a call ends."""
    found = list[str]()

    async def sleeps() -> None:
        await asyncio.Event().wait()

    async def waits() -> None:
        try:
            async with asyncio.timeout(60) as limit:
                limits.append(limit)
                await asyncio.create_task(sleeps())
        except TimeoutError:
            found.append("late")
        told.append("told")

    async def calls() -> None:
        found.append(await after_a_time_out())

    await asyncio.gather(waits(), calls())
    s += str(found) + lmc.gen("a", max_tokens=2)
    return found, s["a"]


def test_what_a_time_out_has_ended_goes_on_before_what_came_after_it(tmp_path: Path) -> None:
    expected = seen(expires_before.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j"))
    CALLS.clear()
    mock = lmc.Mock()
    assert "late" in expected[1]
    assert seen(expires_before.run(backend=mock, journal=tmp_path / "j")) == expected and not mock.call_log and not CALLS


async def own(q: str) -> str:
    return await fetch(q) + "!"


@lmc.function
async def answers_in_time(s: Any) -> Any:
    """Time-outs around awaits of the program's own, of calls, and of nothing but other tasks."""
    found, given = list[str](), asyncio.Queue[str]()

    async def in_time(name: str) -> None:
        try:
            async with asyncio.timeout(patience):
                found.append(await asyncio.create_task(own(name)))
                given.put_nowait(name)
        except TimeoutError:
            found.append(f"late {name}")

    for name in "ab":
        await in_time(name)
        try:
            found.append(await asyncio.wait_for(given.get(), patience))
        except TimeoutError:
            found.append(f"nothing of {name}")
        (f,) = s.fork(1)
        f += str(found) + lmc.gen("a", max_tokens=2)
    s += str(found) + lmc.gen("a", max_tokens=2)
    return found


def test_the_clock_decides_only_behind_the_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "patience", 60)
    expected = seen(answers_in_time.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j"))
    monkeypatch.setattr(sys.modules[__name__], "patience", 1e-9)
    mock = lmc.Mock()
    assert seen(answers_in_time.run(backend=mock, journal=tmp_path / "j")) == expected and not mock.call_log
    whole = ["a!", "a", "b!", "b"]
    assert expected[1] == str(whole)
    ends = list[list[str]]()
    for data in prefixes(tmp_path / "j"):
        lay(tmp_path / "cut", data)
        ends.append(answers_in_time.run(backend=lmc.Mock(), journal=tmp_path / "cut").ret_value)
        assert seen(answers_in_time.run(backend=lmc.Mock(), journal=tmp_path / "cut"))[1] == str(ends[-1])
    same = [next((n for n, (x, y) in enumerate(zip(end, whole, strict=True)) if x != y), 4) for end in ends]
    assert same == sorted(same) and same[0] == 0 and same[-1] == 4, "the more is known, the more of it is as it was"


@lmc.function
async def goes_on_in_a_time_out(s: Any) -> Any:
    """As `expires_at_its_end`, and the program would go on within the time-out."""
    task = asyncio.create_task(at_once_of("x"))
    try:
        async with asyncio.timeout(patience):
            found = await task
            found += await at_once("never")
    except TimeoutError:
        found = "late"
    s += found + await task + lmc.gen("a", max_tokens=2)
    return found, s["a"]


async def at_once_of(q: str) -> str:
    return await at_once(q) + str(lmc.__name__)


@pytest.mark.parametrize("program", (expires_at_its_end, goes_on_in_a_time_out))
def test_a_time_out_expires_again_where_its_task_or_its_await_was_ending(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = seen(program.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j"))
    CALLS.clear()
    monkeypatch.setattr(sys.modules[__name__], "patience", 60)
    mock = lmc.Mock()
    assert "late" in expected[1]
    assert seen(program.run(backend=mock, journal=tmp_path / "j")) == expected and not mock.call_log and not CALLS


@lmc.host(idempotent=True)
async def once_let(q: str) -> str:
    await asyncio.sleep(0)
    while q not in let:
        await asyncio.sleep(0)
    return q


let: set[str] = set()


@lmc.function
async def two_of_them(s: Any) -> Any:
    found = list[str]()

    async def calls(*names: str) -> None:
        for name in names:
            found.append(await once_let(name))
            let.add({"x": "y", "y": "z", "z": ""}[name])
            (f,) = s.fork(1)
            f += str(found) + lmc.gen("a", max_tokens=2)

    await asyncio.gather(calls("x", "z"), calls("y"))
    return found


def test_what_had_not_ended_ends_behind_what_had(tmp_path: Path) -> None:
    let.add("x")
    expected = seen(two_of_them.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j"))
    for data in prefixes(tmp_path / "j"):
        lay(tmp_path / "cut", data)
        ended = [e for e in records.read(tmp_path / "cut").runs[0].effects.values() if e.outcome is not None]
        found = two_of_them.run(backend=lmc.Mock(), journal=tmp_path / "cut").ret_value
        assert sorted(found) == ["x", "y", "z"] and found[: len(ended)] == ["x", "y", "z"][: len(ended)] and expected[1] == "['x', 'y', 'z']"


@lmc.host(idempotent=True)
async def ticket() -> int:
    CALLS.append(("ticket",))
    return len(CALLS)


@lmc.function
async def draws_tickets(s: Any) -> Any:
    """Two tasks make equal calls, one of them before the other may."""

    async def draws(name: str, then: str) -> str:
        await once_let(name)
        (f,) = s.fork(1)
        f += f"{name} has {await ticket()}" + lmc.gen("a", max_tokens=2)
        let.add(then)
        return f.text()

    found = await asyncio.gather(draws("first", "second"), draws("second", ""))
    s += str(found) + lmc.gen("b", max_tokens=2)
    return found


def test_a_task_takes_the_result_of_its_own_call(tmp_path: Path) -> None:
    let.add("first")
    CALLS.clear()
    expected = draws_tickets.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value
    assert "first has 1" in expected[0] and "second has 2" in expected[1]
    for data in prefixes(tmp_path / "j"):
        lay(tmp_path / "cut", data)
        drawn = sum(e.name == "await ticket" and e.outcome is not None for e in records.read(tmp_path / "cut").runs[0].effects.values())
        CALLS[:] = [("ticket",)] * drawn
        found = draws_tickets.run(backend=lmc.Mock(), journal=tmp_path / "cut").ret_value
        assert len(CALLS) == 2 and (drawn == 0 or found == expected)


@lmc.function
async def sets_its_time_late(s: Any) -> str:
    s += lmc.gen("a", max_tokens=1)
    never = asyncio.Event()
    asyncio.get_running_loop().call_later(30, never.set)
    try:
        async with asyncio.timeout(None) as limit:
            s["a"]
            for _ in range(64):  # until nothing more is expected of the journal
                await asyncio.sleep(0)
            limit.reschedule(0.0)
            await never.wait()
    except TimeoutError:
        return "late"
    return "slept"


def test_a_time_out_expires_though_an_answer_in_the_journal_is_not_asked_for(tmp_path: Path) -> None:
    assert sets_its_time_late.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value == "late"
    contents = records.read(tmp_path / "j")
    (found,) = contents.records.values()
    at = next(i for i, record in enumerate(found) if record[0] == "a")
    unasked = ["a", [["/9.0", 0]], *found[at][2:]]
    lay(tmp_path / "j", journal_of(contents.header, [(0, record) for record in (*found[: at + 1], unasked)]))
    assert sets_its_time_late.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value == "late"


GATE = threading.Event()


@lmc.pure
def open_gate() -> None:
    GATE.set()  # also in a resumed run


@lmc.host(idempotent=True)
def opened(q: str) -> str:
    CALLS.append(("opened", q))
    if q == "first":
        GATE.wait()
    return q


@lmc.function
def threads_in_another_order(s: Any, kind: str) -> Any:
    """What is begun first ends last: it waits until the program has gone on with the other one."""
    found, items, lock, several = list[str](), queue.Queue[str](), threading.Lock(), ["first", "last"]

    def go_on(text: str) -> None:
        nonlocal s
        s += text + lmc.gen("a", max_tokens=2)
        open_gate()

    def put(q: str) -> None:
        items.put(opened(q))

    def add(q: str) -> None:
        x = opened(q)
        with lock:
            found.append(x)
        open_gate()

    def ask(q: str, f: Any) -> None:
        f += q + lmc.gen("b", max_tokens=2)
        items.put(f["b"] + opened(q))

    with ThreadPoolExecutor(2) as pool:
        match kind:
            case "queue":
                for q in several:
                    threading.Thread(target=put, args=(q,)).start()
            case "answers":
                for q, f in zip(several, s.fork(2), strict=True):
                    pool.submit(ask, q, f)
            case "list":
                threads = [threading.Thread(target=add, args=(q,)) for q in several]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                go_on("".join(found))
            case "as_completed":
                for future in as_completed([pool.submit(opened, q) for q in several]):
                    go_on(future.result())
            case _:
                left = {pool.submit(opened, q) for q in several}
                while left:
                    done, left = wait(left, return_when=FIRST_COMPLETED)
                    for future in done:
                        go_on(future.result())
        for _ in several if kind in ("queue", "answers") else ():
            go_on(items.get())
    return s.text()


@pytest.mark.parametrize("kind", ["queue", "answers", "list", "as_completed", "wait"])
def test_threads_go_on_in_the_order_in_which_they_did(kind: str, tmp_path: Path) -> None:
    whole, path = tmp_path / "j", tmp_path / "cut"
    GATE.clear()
    expected = threads_in_another_order.run(kind, backend=lmc.Mock(), seed=1, journal=whole).ret_value
    for data in prefixes(whole):
        lay(path, data)
        known = done(path)["opened"]
        for _ in range(2):
            GATE.clear()
            CALLS.clear()
            assert threads_in_another_order.run(kind, backend=lmc.Mock(), journal=path).ret_value == expected
            assert len(CALLS) == 2 - known
            known = 2


class _TimedOut(threading.Condition):
    """A condition that notes which waits for it have timed out."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[bool]()

    def wait(self, timeout: float | None = None) -> bool:
        self.found.append(not (came := super().wait(timeout)))
        return came


@lmc.function
def threads_that_wait(s: Any, kind: str) -> Any:
    """One that has the turn waits for another one, which waits for its turn."""
    lock, held, found = threading.Lock(), threading.Event(), list[str]()

    def add(q: str) -> None:
        x = opened(q)
        with lock:
            found.append(opened(x + "1"))

    def hold() -> None:
        with lock:
            held.set()
            opened("first")

    with ThreadPoolExecutor(4) as pool:
        match kind:
            case "results":
                for x in pool.map(opened, ["last", "first"]):
                    found.append(opened(x + "1"))
                    open_gate()
            case "join" | "lock":
                thread = threading.Thread(target=hold)
                thread.start()
                held.wait()
                found.append(opened("1"))
                open_gate()
                thread.join(60) if kind == "join" else lock.acquire(timeout=60) and lock.release()
            case _:
                pool.map(add, "abcdefgh")
    return found


@pytest.mark.parametrize("kind", ["results", "join", "lock", "several"])
def test_no_thread_waits_for_the_turn_of_one_that_waits_for_it(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[_TimedOut]()

    class Turns(ThreadTurns):
        def __init__(self) -> None:
            super().__init__()
            self._changed = _TimedOut()
            found.append(self._changed)

    monkeypatch.setattr("lmc.durable.known.ThreadTurns", Turns)
    monkeypatch.setattr("lmc.durable.turns.STILL", 5.0)
    results = []
    for _ in range(2):
        GATE.clear()
        results.append(threads_that_wait.run(kind, backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value)
    assert results[0] == results[1]
    assert not any(late for condition in found for late in condition.found)


DELAYS = [0.05, 0.0]


@lmc.function
async def calls_later(s: Any) -> Any:
    loop, items = asyncio.get_running_loop(), asyncio.Queue[str]()
    handles = [loop.call_later(delay, items.put_nowait, q) for q, delay in zip("ab", DELAYS, strict=True)]
    never = loop.call_later(0, items.put_nowait, "never")
    never.cancel()
    for _ in handles:
        s += await items.get() + lmc.gen("x", max_tokens=2)
    return s.text(), never.cancelled(), [handle.cancelled() for handle in handles]


def test_what_was_called_later_is_called_in_the_same_order_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = tmp_path / "j", tmp_path / "cut"
    expected = calls_later.run(backend=lmc.Mock(), seed=1, journal=whole).ret_value
    assert expected[1:] == (True, [False, False])
    monkeypatch.setattr(sys.modules[__name__], "DELAYS", DELAYS[::-1])  # as if the process were late
    for data in prefixes(whole):
        lay(path, data)
        known = len(records.read(path).runs[0].expiries)
        found = calls_later.run(backend=lmc.Mock(), journal=path).ret_value
        assert known < 2 or found == expected
