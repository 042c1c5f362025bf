"""Tools that run at the same time and change one object of the program: wherever the run is resumed, and in whatever order it then reaches them, each is
called once, and the object has what all of them did."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmc
from lmc.durable import records
from tests.backend.gated import InTurn
from tests.durable.resuming import lay, prefixes
from tests.searching import TIMES, search

CALLS: list[tuple[str, Any]] = []


def add(x: str, into: list[str]) -> int:
    CALLS.append(("add", x))
    into.append(x)
    return len(into)


async def aadd(x: str, into: list[str]) -> int:
    CALLS.append(("aadd", x))
    into.append(x)
    await asyncio.sleep(0)
    return len(into)


def save(notes: list[str], by: str) -> str:
    CALLS.append(("save", by))
    return f"saved for {by}"


def store(where: list[str]) -> None:
    CALLS.append(("store", ""))


async def astore(where: list[str]) -> None:
    CALLS.append(("astore", ""))
    await asyncio.sleep(0)


def put(memory: dict[str, Any], key: str) -> None:
    CALLS.append(("put", key))
    memory[key] = [key]
    memory["seen"].add(key)
    memory["by"]["all"].append(key)
    memory["spent"] += len(key)


@dataclass
class Budget:
    spent: int = 0
    of: dict[str, int] = field(default_factory=dict)

    def spend(self, who: str) -> None:
        CALLS.append(("spend", who))
        self.spent += 2
        self.of[who] = 2


class Board:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last: set[str] = set()

    def write(self, line: str) -> None:
        CALLS.append(("write", line))
        self.lines.append(line)
        self.last.add(line)


# -- programs: each has three workers, which begin in order and go on as their answers come -----------------------------


def asked(f: Any, x: str) -> str:
    f += x + lmc.gen("a", max_tokens=3)
    return f["a"]


def on_threads(s: Any, work: Callable[[Any, str], Any]) -> list[Any]:
    forks, found, errors = s.fork(3), dict[int, Any](), list[Exception]()

    def one(i: int) -> None:
        try:
            found[i] = work(forks[i], f"{i}"), asked(forks[i], "then")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[i] for i in range(3)]


@lmc.function
def appends_on_threads(s: Any) -> Any:
    notes: list[str] = []

    def work(f: Any, x: str) -> None:
        add(x + asked(f, x), notes)

    on_threads(s, work)
    s += lmc.gen("end", max_tokens=2)
    return sorted(notes)


@lmc.function
def appends_in_a_pool(s: Any) -> Any:
    notes: list[str] = []

    def work(f: Any, x: str) -> None:
        add(x + asked(f, x), notes)
        asked(f, "then")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, s.fork(3), "012"))
    return sorted(notes)


@lmc.function
def saves_what_grows_on_threads(s: Any) -> Any:
    """The tool changes nothing; the program does, before each call."""
    notes: list[str] = []

    def work(f: Any, x: str) -> str:
        notes.append(x + asked(f, x))
        return save(notes, x)

    return on_threads(s, work), sorted(notes)


@lmc.function
def remembers_on_threads(s: Any) -> Any:
    memory: dict[str, Any] = {"seen": set(), "by": {"all": []}, "spent": 0}

    def work(f: Any, x: str) -> None:
        put(memory, x + asked(f, x))

    on_threads(s, work)
    memory["by"]["all"].sort()
    s += lmc.gen("end", max_tokens=2)
    return dict(sorted(memory.items())), sorted(memory.pop("seen"))


@lmc.function
def spends_on_threads(s: Any) -> Any:
    budget, board = Budget(), Board()

    def work(f: Any, x: str) -> None:
        budget.spend(asked(f, x) + x)
        board.write(x)

    on_threads(s, work)
    return budget.spent, dict(sorted(budget.of.items())), sorted(board.lines), sorted(board.last)


@lmc.function
def spends_behind_a_lock(s: Any) -> Any:
    """Nothing else can be called while one of them waits."""
    budget, notes, lock = Budget(), list[str](), threading.Lock()

    def work(f: Any, x: str) -> None:
        answer = asked(f, x)
        with lock:
            budget.spend(x)
            add(x + answer, notes)

    on_threads(s, work)
    return budget.spent, sorted(budget.of), sorted(notes)


@lmc.function
async def appends_in_tasks(s: Any) -> Any:
    notes: list[str] = []

    async def work(f: Any, x: str) -> None:
        f += x + lmc.gen("a", max_tokens=3)
        await aadd(x + f["a"], notes)
        add(f["a"], notes)
        f += lmc.gen("b", max_tokens=3)

    await asyncio.gather(*map(work, s.fork(3), "012"))
    s += lmc.gen("end", max_tokens=2)
    return sorted(notes)


@lmc.function
async def appends_in_a_group(s: Any) -> Any:
    notes: list[str] = []

    async def work(f: Any, x: str) -> None:
        f += x + lmc.gen("a", max_tokens=3)
        await asyncio.to_thread(add, x + f["a"], notes)
        f += lmc.gen("b", max_tokens=3)

    async with asyncio.TaskGroup() as group:
        for f, x in zip(s.fork(3), "012", strict=True):
            group.create_task(work(f, x))
    return sorted(notes)


@lmc.function
async def gathers_changes(s: Any) -> Any:
    notes: list[str] = []
    s += lmc.gen("a", max_tokens=3)
    await asyncio.gather(*[aadd(f"{i}", notes) for i in range(3)])
    s += str(sorted(notes)) + lmc.gen("b", max_tokens=3)
    await asyncio.gather(aadd("x", notes), asyncio.to_thread(add, "y", notes))
    return sorted(notes)


@lmc.function
async def stores_what_grows(s: Any) -> Any:
    """Calls with nothing but what all of them change."""
    notes: list[str] = []

    async def work(f: Any, x: str) -> None:
        f += x + lmc.gen("a", max_tokens=3)
        notes.append(x + f["a"])
        store(notes)
        f += lmc.gen("b", max_tokens=3)
        await astore(notes)

    await asyncio.gather(*map(work, s.fork(3), "012"))
    return sorted(notes)


async def look(job: dict[str, str], notes: list[str]) -> None:
    CALLS.append(("look", job["q"]))
    await asyncio.sleep(0)
    notes.append("looked " + job["q"])


@lmc.function
async def takes_jobs(s: Any) -> Any:
    """Whose job is whose depends on the order of answers."""
    jobs, lock, notes, memory = asyncio.Queue[Any](), asyncio.Lock(), list[str](), dict[str, Any](seen=set(), by={"all": []}, spent=0)
    for i in range(6):
        jobs.put_nowait({"q": f"{i}"})

    async def work(f: Any) -> None:
        f += lmc.gen("a", max_tokens=2)
        for _ in range(2):
            job = await jobs.get()
            async with lock:
                await look(job, notes)
            put(memory, job["q"])
            store(notes)
        f += lmc.gen("b", max_tokens=2)

    async with asyncio.TaskGroup() as group:
        for f in s.fork(3):
            group.create_task(work(f))
    return sorted(notes), sorted(memory["seen"]), sorted(memory["by"]["all"]), memory["spent"]


def ended(program: Any, arguments: dict[str, Any], path: Path) -> Any:
    """The result of a run that is resumed; None if a call is in doubt, which is to be made then: it had not begun when the journal was cut."""
    try:
        return program.run(**arguments, backend=lmc.Mock(), journal=path).ret_value
    except (lmc.InDoubtEffect, BaseExceptionGroup):
        opened = lmc.Journal(path)
        doubts = opened.waiting()
        assert doubts
        for waiting in doubts:
            opened.retry(waiting.item, waiting.number)


PROGRAMS = [
    appends_on_threads, appends_in_a_pool, saves_what_grows_on_threads, remembers_on_threads, spends_on_threads, spends_behind_a_lock, appends_in_tasks,
    appends_in_a_group, gathers_changes, stores_what_grows,
    takes_jobs,
]  # fmt: skip
ORDERS = [[2, 1, 0], [1, 0, 2]]


def once(program: Any, arguments: dict[str, Any], first: Any, every: int, directory: Path) -> None:
    """Asserts that a run whose answers come in some order, and is cut behind its records and resumed in another order, calls each tool once and has
    the result of a run without a journal."""
    whole, path = directory / "j", directory / "cut"
    CALLS.clear()
    expected, calls = program.run(**arguments, backend=lmc.Mock(), seed=1).ret_value, Counter(CALLS)
    named = Counter(name for name, _ in CALLS)
    CALLS.clear()
    assert program.run(**arguments, backend=first, seed=1, journal=whole).ret_value == expected and Counter(CALLS) == calls
    for n, data in list(enumerate(prefixes(whole)))[::every]:
        lay(path, data)
        known = list(records.read(path).runs[0].effects.values())
        CALLS.clear()
        while (found := ended(program, arguments, path)) is None:
            pass
        done = Counter(effect.name.removeprefix("await ").rpartition(".")[2] for effect in known if effect.outcome is not None)
        assert found == expected, n
        assert Counter(name for name, _ in CALLS) == named - done, n


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
@pytest.mark.parametrize("order", ORDERS[: 2 if TIMES else 1], ids=lambda x: "".join(map(str, x)))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_each_is_called_once(program: Any, order: list[int], tmp_path: Path) -> None:
    first = InTurn(order) if program is not gathers_changes else lmc.Mock()  # which asks one at a time
    once(program, {}, first, 1 if TIMES else 3, tmp_path)


@lmc.function
async def mixes(s: Any, steps: list[str], grouped: bool) -> Any:
    """Three tasks that do the same, to the same objects."""
    notes, memory, budget, board, lock = list[str](), dict[str, Any](seen=set(), by={"all": []}, spent=0), Budget(), Board(), asyncio.Lock()

    async def work(f: Any, x: str) -> None:
        f += x + lmc.gen("a", max_tokens=2)
        for n, step in enumerate(steps):
            y = f"{x}{n}"
            match step:
                case "ask":
                    f += lmc.gen("b", max_tokens=2)
                case "own":
                    notes.append(y)
                case "turn":
                    await asyncio.sleep(0)
                case "add":
                    add(y, notes)
                    await aadd(y, notes)
                case "store":
                    store(notes)
                    await astore(notes)
                case "objects":
                    budget.spend(y)
                    board.write(y)
                case "table":
                    put(memory, y)
                case "lock":
                    async with lock:
                        await aadd(y, notes)
                        await look({"q": y}, notes)
                case _:
                    await asyncio.gather(aadd(y, notes), look({"q": y}, notes))
        f += lmc.gen("c", max_tokens=2)

    if grouped:
        async with asyncio.TaskGroup() as group:
            for f, x in zip(s.fork(3), "abc", strict=True):
                group.create_task(work(f, x))
    else:
        await asyncio.gather(*map(work, s.fork(3), "abc"))
    return sorted(notes), sorted(memory.pop("seen")), sorted(memory.pop("by")["all"]), dict(sorted(memory.items())), budget.spent, sorted(board.lines)


STEPS = ["ask", "own", "turn", "add", "store", "objects", "table", "lock", "gather"]


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
@search(2, 40)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4), st.booleans(), st.permutations(range(3)))
def test_tasks_that_do_anything_call_once(steps: list[str], grouped: bool, order: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        once(mixes, {"steps": steps, "grouped": grouped}, InTurn(order), 5, Path(directory))


# -- the program's own thread and another one -----------------------------------------------------------------------------

FIRST: list[str] = []
"""The call that is made first."""


def size(notes: list[str]) -> int:
    CALLS.append(("size", len(notes)))
    return len(notes)


@lmc.function
def looks_on_a_thread(s: Any) -> Any:
    notes, looked, added = list[str](), threading.Event(), threading.Event()
    s += lmc.gen("a", max_tokens=3)

    def look_at_them() -> None:
        if FIRST != ["size"]:
            added.wait()
        try:
            size(notes)
        finally:
            looked.set()

    thread = threading.Thread(target=look_at_them)
    thread.start()
    if FIRST == ["size"]:
        looked.wait()
    try:
        add("x", notes)
    finally:
        added.set()
        thread.join()
    s += lmc.gen("b", max_tokens=3)
    return notes


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning", "ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("orders", [("add", "size"), ("size", "add")], ids="-".join)
def test_a_thread_and_the_program_itself_may_share_an_object(orders: tuple[str, str], tmp_path: Path) -> None:
    whole, path = tmp_path / "j", tmp_path / "cut"
    FIRST[:] = orders[:1]
    assert looks_on_a_thread.run(backend=lmc.Mock(), seed=1, journal=whole).ret_value == ["x"]
    FIRST[:] = orders[1:]
    resumed = 0
    for data in prefixes(whole):
        lay(path, data)
        known = records.read(path).runs[0]
        if known.end is None and sum(effect.outcome is not None for effect in known.effects.values()) == 2:
            CALLS.clear()
            assert looks_on_a_thread.run(backend=lmc.Mock(), journal=path).ret_value == ["x"] and CALLS == []
            resumed += 1
    assert resumed
