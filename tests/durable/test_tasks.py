"""Durable runs of programs that begin tasks: each goes on where it was, and what one of them asked or called is not asked or called again."""

from __future__ import annotations

import asyncio
import gc
import queue
import re
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lmc
from lmc.contexts import having
from lmc.durable import journal, records, viewer
from lmc.durable.own_waits import OwnWaits
from lmc.durable.turns import ThreadTurns
from lmc.frontend.host import RECORDING
from tests.backend.gated import InTurn
from tests.durable.resuming import CALLS, journal_of, lay, prefixes, resumes_anywhere, seen
from tests.searching import TIMES, some


@lmc.host(idempotent=True)
async def fetch(q: str) -> str:
    CALLS.append(("fetch", q))
    await asyncio.sleep(0.001)
    if "missing" in q:
        raise LookupError(q)
    return q[::-1]


async def charge(q: str) -> str:
    CALLS.append(("charge", q))
    await asyncio.sleep(0)
    return q + "!"


@lmc.function
async def group_of_tools(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=3)
    async with asyncio.TaskGroup() as group:
        one, two = group.create_task(fetch(s["a"]), name="one"), group.create_task(fetch("b"))
    s += one.result() + await two + lmc.gen("c", max_tokens=2)
    return s["c"], one.done(), one.get_name(), two.exception()


async def researched(f: Any, q: str) -> str:
    f += q + lmc.gen("x", max_tokens=3)
    f += await fetch(f["x"] + q) + lmc.gen("y", max_tokens=3)
    return f["y"]


@lmc.function
async def group_of_helpers(s: Any) -> Any:
    """The fan-out of an agent: each task asks, calls and asks on its own fork."""
    forks = s.fork(3)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(researched(f, str(n))) for n, f in enumerate(forks)]
    s += "".join(task.result() for task in tasks) + "".join(f["x"] for f in forks) + lmc.gen("end", max_tokens=2)
    return s["end"]


@lmc.function
async def gathers_helpers_and_tools(s: Any) -> Any:
    one, two = s.fork(2)
    found = await asyncio.gather(researched(one, "1"), fetch("beside"), researched(two, "2"), fetch("missing"), return_exceptions=True)
    s += "".join(map(str, found)) + one["x"] + two["x"] + lmc.gen("end", max_tokens=2)
    return [type(x).__name__ for x in found]


@lmc.function
async def helpers_by_themselves(s: Any) -> Any:
    one, two, three, four = s.fork(4)
    task = asyncio.create_task(researched(one, "1"))
    s += lmc.gen("meanwhile", max_tokens=2) + await asyncio.wait_for(researched(two, "2"), 60)
    s += await asyncio.shield(researched(three, "3")) + await task
    later = asyncio.get_running_loop().create_task(researched(four, "4"))
    done, _ = await asyncio.wait([task, later])
    s += later.result() + lmc.gen("end", max_tokens=2)
    return len(done)


@lmc.function
async def expert(s: Any, topic: str) -> Any:
    s += topic + lmc.gen("x", max_tokens=3)
    s += await fetch(s["x"]) + lmc.gen("y", max_tokens=3)
    return s["y"]


@lmc.function
async def group_of_programs(s: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(expert.arun(topic=topic)) for topic in "ab"]
    states = [task.result() for task in tasks] + await asyncio.gather(*[expert.arun(topic=topic) for topic in "cd"])
    s += "".join(state["y"] for state in states) + lmc.gen("end", max_tokens=2)
    return [state.ret_value for state in states]


@lmc.function
async def groups_in_groups(s: Any) -> Any:
    limit, found = asyncio.Semaphore(2), dict[str, str]()

    async def one(topic: str) -> None:
        async with limit, asyncio.TaskGroup() as inner:
            for part in "xy":
                inner.create_task(two(topic + part))

    async def two(topic: str) -> None:
        found[topic] = await fetch(topic)

    async with asyncio.TaskGroup() as group:
        for topic in "abc":
            group.create_task(one(topic))
    s += str(sorted(found.items())) + lmc.gen("end", max_tokens=2)
    return len(found)


@lmc.function
async def a_task_fails(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch("missing"))
    except* LookupError as errors:
        s += str(errors.exceptions)
    s += lmc.gen("b", max_tokens=2)
    return s["b"]


@lmc.function
async def gathers_tools(s: Any) -> Any:
    """Several at once, gathered in one another, one of them twice, two with the same arguments; one fails."""
    s += "q" + lmc.gen("a", max_tokens=3)
    again = fetch("again")
    found = await asyncio.gather(fetch(s["a"]), asyncio.gather(fetch("x"), fetch("x")), again, fetch("missing"), again, return_exceptions=True)
    s += str(found) + await asyncio.shield(fetch("y")) + lmc.gen("b", max_tokens=3)
    try:
        await asyncio.gather(*[fetch(q) for q in (s["b"], "missing", "z")])
    except LookupError as error:
        s += str(error)
    return await fetch("end")


@lmc.function
async def tasks_of_tools(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=3)
    tasks = [asyncio.create_task(fetch(f"{n}"), name=f"{n}") for n in range(3)]
    s += lmc.gen("b", max_tokens=3)
    s += s["b"] + "".join([await task + task.get_name() for task in tasks])
    return await asyncio.wait_for(asyncio.ensure_future(fetch("end")), 60)


async def cancels_the_last(f: Any, tasks: list[asyncio.Task[Any]]) -> None:
    f += "x"
    tasks[-1].cancel()


@lmc.function
async def cancels_one_that_comes(s: Any) -> Any:
    """Its intent is written with that of the first; the same is called again later."""
    (f,) = s.fork(1)
    tasks = list[asyncio.Task[Any]]()
    for awaitable in (fetch("1"), cancels_the_last(f, tasks), fetch("2")):
        tasks.append(asyncio.create_task(awaitable))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    s += str([type(x).__name__ for x in found]) + lmc.gen("b", max_tokens=3)
    return await asyncio.gather(fetch("2"), fetch("3"))


def later(q: str) -> Any:
    return fetch(q)


@lmc.host(idempotent=True)
def later_by_a_tool(q: str) -> Any:
    return later(q)


@lmc.function
async def tries_groups_again(s: Any) -> Any:
    """A group whose task fails, until it does not; tasks that make tasks of their group; and a group that is late."""
    found: list[Any] = []

    async def branch(group: asyncio.TaskGroup, f: Any, n: int) -> Any:
        f += f"{n}" + lmc.gen("x", max_tokens=2)
        return f["x"], [group.create_task(fetch(f"{n} {i}")) for i in range(2)]

    async def late() -> None:
        await asyncio.Event().wait()

    for name in ("missing 1", "missing 2", "there"):
        try:
            async with asyncio.TaskGroup() as group:
                branches = [group.create_task(branch(group, f, n)) for n, f in enumerate(s.fork(2))]
                await asyncio.gather(*branches)
                last = group.create_task(fetch(name))
        except* LookupError as errors:
            s += f"{errors.exceptions}" + lmc.gen("why", max_tokens=2)
        else:
            found += [last.result(), *[(task.result()[0], [inner.result() for inner in task.result()[1]]) for task in branches]]
    try:
        async with asyncio.timeout(0.01), asyncio.TaskGroup() as group:
            group.create_task(late())
    except TimeoutError:
        found.append(await fetch("late"))
    return found


@lmc.function
async def gathers_what_there_is(s: Any) -> Any:
    """Steps that wait for those before them: the first one for none."""
    tasks = dict[str, asyncio.Task[str]]()

    async def step(name: str, before: str) -> str:
        return await fetch(name + "".join(await asyncio.gather(*(tasks[x] for x in before))))

    for name, before in {"a": "", "b": "a", "c": "ab"}.items():
        tasks[name] = asyncio.create_task(step(name, before))
    s += await tasks["c"] + lmc.gen("end", max_tokens=2)
    return s["end"], await asyncio.gather()


PROGRAMS = [
    gathers_what_there_is,
    gathers_tools,
    tries_groups_again,
    tasks_of_tools,
    cancels_one_that_comes,
    group_of_tools,
    group_of_helpers,
    gathers_helpers_and_tools,
    helpers_by_themselves,
    group_of_programs,
    groups_in_groups,
    a_task_fails,
]


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
@some("program", PROGRAMS, 9, ids=lambda p: p.name)
def test_tasks_are_resumed(program: Any, tmp_path: Path) -> None:
    resumes_anywhere(program, {}, tmp_path)


@lmc.function
async def gathers_charges(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    found = await asyncio.gather(charge(s["a"]), charge("b"), charge("c"))
    task = asyncio.create_task(charge("d"))
    s += "".join(found) + lmc.gen("e", max_tokens=2)
    return s["e"] + await task


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
@pytest.mark.search
def test_of_several_tools_only_those_without_a_result_are_in_doubt(tmp_path: Path) -> None:
    resumes_anywhere(gathers_charges, {}, tmp_path, doubtful=True)


@pytest.mark.parametrize("way", range(2))
def test_tools_that_begin_together_wait_for_the_disk_together(way: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited, sync = list[Any](), journal.JournalFile.sync
    monkeypatch.setattr(journal.JournalFile, "sync", lambda self: (waited.append(CALLS[:]), sync(self)))  # type: ignore[misc]
    CALLS.clear()
    run = [gathers_charges.run, lmc.compile(gathers_charges)][way]
    run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    assert len(waited) == 2 and waited[0] == [] and len(waited[1]) == 3, "once for three tools, before any of them, and once for the fourth"
    begun = [record[0].lower() for record in records.read(tmp_path / "j").records[0] if record[0] in "irR"]
    assert "".join(begun) == "iiirrrir"


@lmc.function
async def awaits_what_a_tool_made(s: Any, make: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    s += await make("b")
    return await asyncio.gather(make("c"), make("d"))


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
@some("way", range(2), 2)
def test_a_coroutine_that_a_tool_gave_is_not_awaited_again(way: int, tmp_path: Path) -> None:
    """One that was begun is in doubt, unless the tool may be called again."""
    program, path = awaits_what_a_tool_made, tmp_path / "j"
    ways = [program.run, lmc.compile(program)]
    for make, idempotent in ((later, False), (later_by_a_tool, True)):
        path.unlink(missing_ok=True)
        expected = ways[way](make, backend=lmc.Mock(), seed=1, journal=path).ret_value
        for data in prefixes(path):
            lay(path, data)
            effects = records.read(path).runs[0].effects.values()
            known, begun = [e for e in effects if e.outcome is not None and e.name.startswith("await")], [e for e in effects if e.outcome is None]
            CALLS.clear()
            try:
                assert ways[way - 1](make, backend=lmc.Mock(), journal=path).ret_value == expected
                assert len(CALLS) == 3 - len(known) and (idempotent or not begun)
            except lmc.InDoubtEffect:
                assert begun and not idempotent and not CALLS


async def forever(q: str) -> None:
    CALLS.append(("forever", q))
    await asyncio.Event().wait()


@lmc.function
async def waits_too_long(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    for task in (asyncio.gather(fetch("1"), forever("2")), asyncio.create_task(forever("3"))):
        try:
            await asyncio.wait_for(task, 0.25)  # by then the first has ended, on a busy machine too
        except TimeoutError:
            s += "late"
    s += lmc.gen("b", max_tokens=2)
    return await asyncio.wait_for(asyncio.gather(fetch("1"), charge("4")), 60)


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_tools_that_were_late_are_not_waited_for_again(tmp_path: Path) -> None:
    ways = [waits_too_long.run, lmc.compile(waits_too_long)]
    for n, way in enumerate(ways):
        expected = seen(way(backend=lmc.Mock(), seed=1, journal=tmp_path / str(n)))
        assert "latelate" in expected[0]
        for again in ways:
            CALLS.clear()
            assert seen(again(backend=lmc.Mock(), journal=tmp_path / str(n))) == expected and not CALLS


@lmc.function
async def charges_in_a_group(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(charge(s["a"]))
    s += task.result()
    return s["a"]


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_a_task_of_a_group_that_was_begun_is_in_doubt(tmp_path: Path) -> None:
    expected = seen(charges_in_a_group.run(backend=lmc.Mock(), seed=1))
    for n, way in enumerate((charges_in_a_group.run, lmc.compile(charges_in_a_group))):
        path, doubts = tmp_path / str(n), 0
        way(backend=lmc.Mock(), seed=1, journal=path)
        for data in prefixes(path):
            lay(path, data)
            CALLS.clear()
            try:
                assert seen(way(backend=lmc.Mock(), journal=path)) == expected
            except ExceptionGroup as group:  # as asyncio raises what a task does
                (error,) = group.exceptions
                assert isinstance(error, lmc.InDoubtEffect) and "await charge(" in str(error) and not CALLS
                doubts += 1
        assert doubts == 1


async def charged(f: Any, q: str) -> None:
    f += q + lmc.gen("x", max_tokens=2)
    f += await charge(q)


@lmc.function
async def charges_several(s: Any) -> Any:
    forks = s.fork(2)
    async with asyncio.TaskGroup() as group:
        for q in "abc":
            group.create_task(charge(q))
        for f, q in zip(forks, "de", strict=True):
            group.create_task(charged(f, q))
    s += "".join(f["x"] for f in forks)
    return s.text()


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_a_doubt_puts_nothing_else_in_doubt(tmp_path: Path) -> None:
    """A group is over when one of its tasks is in doubt; until then no other one calls what was not called before."""
    for n, way in enumerate((charges_several.run, lmc.compile(charges_several))):
        path, doubts = tmp_path / str(n), 0
        way(backend=lmc.Mock(), seed=1, journal=path)
        for data in prefixes(path):
            lay(path, data)
            begun = [e for e in records.read(path).runs[0].effects.values() if e.outcome is None]
            for _ in range(2):
                CALLS.clear()
                try:
                    way(backend=lmc.Mock(), journal=path)
                except ExceptionGroup as group:
                    assert len(group.exceptions) == len(begun) > 0 and not CALLS
                    doubts += 1
                else:
                    assert not begun
        assert doubts >= 2


async def pay_later(x: str) -> str:
    await asyncio.sleep(0)
    CALLS.append(("pay_later", x))
    return f"paid {x}"


async def told_by_gather(s: Any) -> str:
    return str(await asyncio.gather(pay_later("x"), return_exceptions=True))


async def told_by_a_task(s: Any) -> str:
    task = asyncio.create_task(pay_later("x"))
    try:
        return await task
    except Exception as error:
        return str(error)


async def told_by_wait(s: Any) -> str:
    task = asyncio.create_task(pay_later("x"))
    await asyncio.wait([task])
    return str(task.exception() or task.result())


async def told_by_a_group(s: Any) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(pay_later("x"))
    except ExceptionGroup as errors:
        return str(errors.exceptions)
    return task.result()


async def told_as_completed(s: Any) -> str:
    for task in asyncio.as_completed([pay_later("x")]):
        try:
            return await task
        except Exception as error:
            return str(error)
    return ""


@pytest.mark.parametrize("told", [told_by_gather, told_by_a_task, told_by_wait, told_by_a_group, told_as_completed])
def test_nothing_begins_behind_the_doubt_of_a_task_that_a_program_takes_for_an_error(told: Any, tmp_path: Path) -> None:
    @lmc.function
    async def agent(s: Any) -> Any:
        s += "q" + lmc.gen("a", max_tokens=2)
        s += await told(s) + lmc.gen("b", max_tokens=2)
        return await pay_later(s["b"])

    path, mock = tmp_path / "j", lmc.Mock()
    expected = agent.run(backend=lmc.Mock(), seed=1, journal=path).ret_value
    lay(path, next(data for data in prefixes(path) if b'["i",' in data))
    CALLS.clear()
    for _ in range(2):
        with pytest.raises(lmc.InDoubtEffect):
            agent.run(backend=mock, journal=path)
    assert not CALLS and not mock.call_log
    lmc.Journal(path).resolve("paid x")
    assert agent.run(backend=mock, journal=path).ret_value == expected and len(CALLS) == 1


async def first_by_wait(*tasks: asyncio.Task[Any]) -> asyncio.Task[Any]:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done.pop()


async def first_as_completed(*tasks: asyncio.Task[Any]) -> asyncio.Task[Any]:
    await next(iter(asyncio.as_completed(tasks)))
    return tasks[0]


@pytest.mark.parametrize("first", [first_by_wait, first_as_completed])
def test_a_task_that_ended_with_a_doubt_has_not_ended_first(first: Any, tmp_path: Path) -> None:
    async def pay_at_once(q: str) -> str:
        return pay_now(q)

    async def wait_for_ever(q: str) -> None:
        await asyncio.Event().wait()

    @lmc.function
    async def race(s: Any) -> Any:
        s += "q" + lmc.gen("a", max_tokens=2)
        one, other = asyncio.create_task(pay_at_once(s["a"])), asyncio.create_task(wait_for_ever("b"))
        result = (await first(one, other)).result()
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        return result

    path = tmp_path / "j"
    expected = race.run(backend=lmc.Mock(), seed=1, journal=path).ret_value
    lay(path, [data for data in prefixes(path) if b'["r",' not in data and b'["R",' not in data][-1])
    for number in range(2):
        with pytest.raises(lmc.InDoubtEffect):
            race.run(backend=lmc.Mock(), journal=path)
        lmc.Journal(path).retry(number=number)
    assert race.run(backend=lmc.Mock(), journal=path).ret_value == expected


def pay_now(q: str) -> str:
    CALLS.append(("pay", q))
    return f"paid {q}"


async def future_of_a_callback(s: Any) -> Any:
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def act() -> None:
        future.set_result(pay_now("x"))

    loop.call_soon(act)
    return await future


async def future_of_a_task(s: Any) -> Any:
    future = asyncio.get_running_loop().create_future()

    async def act() -> None:
        future.set_result(pay_now("x"))

    task = asyncio.create_task(act())
    return await future + str(task.done())


async def event_of_a_callback_beside_a_tool(s: Any) -> Any:
    paid = asyncio.Event()

    def act() -> None:
        pay_now("x")
        paid.set()

    task = asyncio.create_task(fetch("beside"))
    asyncio.get_running_loop().call_soon(act)
    await paid.wait()
    return await task


async def item_of_a_thread(s: Any) -> Any:
    loop = asyncio.get_running_loop()
    items = asyncio.Queue[str]()

    def act() -> None:
        paid = pay_now("x")
        loop.call_soon_threadsafe(items.put_nowait, paid)

    thread = threading.Thread(target=act)
    thread.start()
    item = await items.get()
    thread.join()
    return item


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("waits", [future_of_a_callback, future_of_a_task, event_of_a_callback_beside_a_tool, item_of_a_thread])
def test_what_a_call_in_doubt_was_to_end_is_not_waited_for(waits: Any, tmp_path: Path) -> None:
    @lmc.function
    async def agent(s: Any) -> Any:
        s += "q" + lmc.gen("a", max_tokens=2)
        s += await waits(s) + lmc.gen("b", max_tokens=2)
        return s["b"]

    path, mock = tmp_path / "j", lmc.Mock()
    expected = agent.run(backend=lmc.Mock(), seed=1, journal=path).ret_value
    lay(path, next(data for data in prefixes(path) if b"pay_now" in data))
    CALLS.clear()
    for _ in range(2):
        with pytest.raises(lmc.InDoubtEffect, match="pay_now"):
            agent.run(backend=mock, journal=path)
    assert ("pay", "x") not in CALLS and not mock.call_log
    lmc.Journal(path).resolve("paid x")
    assert agent.run(backend=mock, journal=path).ret_value == expected and ("pay", "x") not in CALLS


@lmc.function
def pays_once(s: Any) -> Any:
    return pay_now("x")


def test_a_call_is_not_in_doubt_whose_turn_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("lmc.durable.known.KnownEffects.take_turn", interrupted)
        pays_once.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    CALLS.clear()
    assert pays_once.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value == "paid x" and not CALLS


@lmc.function
def waits_for_a_thread(s: Any, kind: str, stops: str) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    found, items, simple, event, future = list[str](), queue.Queue[str](), queue.SimpleQueue[str](), threading.Event(), Future[str]()
    lock, semaphore, condition, barrier = threading.Lock(), threading.Semaphore(0), threading.Condition(), threading.Barrier(2)
    lock.acquire()
    full = queue.Queue[str](1)
    full.put("")

    def act() -> None:
        found.append(pay_now("x") if stops == "doubt" else lmc.interrupt("x?"))
        match kind:
            case "put":
                full.get()
            case "queue" | "relay" | "pool":
                items.put(found[0])
            case "simple":
                simple.put(found[0])
            case "event":
                event.set()
            case "future":
                future.set_result(found[0])
            case "lock" | "acquire":
                lock.release()
            case "semaphore":
                semaphore.release()
            case "condition":
                with condition:
                    condition.notify()
            case _:
                barrier.wait()

    with ThreadPoolExecutor(1) as pool, condition:
        if kind != "pool":
            threading.Thread(target=act).start()
        match kind:
            case "put":
                full.put("")
            case "queue":
                items.get()
            case "simple":
                simple.get()
            case "event":
                event.wait()
            case "future":
                future.result()
            case "lock":
                with lock:
                    pass
            case "acquire":
                lock.acquire()
            case "semaphore":
                with semaphore:
                    pass
            case "condition":
                condition.wait()
            case "pool":
                pool.submit(act)
                pool.submit(items.get).result()
            case "relay":
                relay = threading.Thread(target=items.get)
                relay.start()
                relay.join()
            case _:
                barrier.wait()
    s += found[0] + lmc.gen("b", max_tokens=2)
    return s["b"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("stops", ["doubt", "question"])
@pytest.mark.parametrize(
    "kind", ["put", "queue", "simple", "event", "future", "lock", "acquire", "semaphore", "condition", "barrier", "relay", "pool"]
)
def test_what_a_thread_in_doubt_was_to_end_is_not_waited_for(kind: str, stops: str, tmp_path: Path) -> None:
    path, mock = tmp_path / "j", lmc.Mock()
    if stops == "doubt":
        waits_for_a_thread.run(kind, stops, backend=lmc.Mock(), seed=1, journal=path)
        lay(path, next(data for data in prefixes(path) if b"pay_now" in data))
    for _ in range(2):
        with pytest.raises(lmc.InDoubtEffect if stops == "doubt" else lmc.Interrupted):
            waits_for_a_thread.run(kind, stops, backend=mock, seed=1, journal=path)
    lmc.Journal(path).resolve("paid x") if stops == "doubt" else lmc.Journal(path).answer("paid x")
    assert isinstance(waits_for_a_thread.run(kind, stops, backend=lmc.Mock(), journal=path).ret_value, str)


def test_a_wait_that_ends_with_its_run_wakes_nobody_else() -> None:
    """An event would be taken for set, and a future for late."""
    waits, event, found = OwnWaits(SimpleNamespace(busy=0, recalled=0, threads=ThreadTurns())), threading.Event(), list[Any]()
    of_run: Any = SimpleNamespace(journal=SimpleNamespace(effects=SimpleNamespace(waits=waits)))

    def wait() -> None:
        try:
            found.append(event.wait())
        except lmc.InDoubtEffect as error:
            found.append(error)

    def wait_in_run() -> None:
        with having(RECORDING, of_run):
            wait()

    other, own = threading.Thread(target=wait), threading.Thread(target=wait_in_run)
    other.start()
    while not event._cond._waiters:  # type: ignore[attr-defined]
        pass
    waits.ending(event.wait, event)
    own.start()
    waits.end(lmc.InDoubtEffect("doubt"))
    own.join()
    assert [type(x) for x in found] == [lmc.InDoubtEffect] and len(event._cond._waiters) == 1  # type: ignore[attr-defined]
    event.set()
    other.join()
    assert found[1:] == [True]


@pytest.mark.parametrize("turns", range(4))
def test_a_wait_ends_once_however_many_calls_end_meanwhile(turns: int) -> None:
    async def main() -> list[Any]:
        loop, waits, errors = asyncio.get_running_loop(), OwnWaits(SimpleNamespace(busy=0, recalled=0)), list[Any]()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        waiting = asyncio.create_task(waits.wait(loop.create_future()))
        await asyncio.sleep(0)
        waits.end(lmc.InDoubtEffect("doubt"))
        for _ in range(turns):
            await asyncio.sleep(0)
        waits.look()
        with pytest.raises(lmc.InDoubtEffect, match="doubt"):
            await waiting
        return errors

    assert asyncio.run(main()) == []


WHO = ContextVar("who", default="nobody")


def pays_who_it_is() -> str:
    CALLS.append(("pay", WHO.get()))
    return f"receipt of {WHO.get()}"


async def paid(f: Any, who: str) -> str:
    WHO.set(who)
    f += pays_who_it_is() + lmc.gen("x", max_tokens=2)
    return f["x"]


@lmc.function
async def pays_in_tasks(s: Any) -> Any:
    forks = s.fork(2)
    await asyncio.gather(paid(forks[0], "ann"), paid(forks[1], "bob"))
    return [f.text() for f in forks]


def test_a_call_that_was_not_made_is_its_tasks_own_when_it_is_made(tmp_path: Path) -> None:
    """Not one with equal arguments, which another task made meanwhile: that one would be made twice, and this one never."""
    path, expected = tmp_path / "j", seen(pays_in_tasks.run(backend=lmc.Mock(), seed=1))
    pays_in_tasks.run(backend=lmc.Mock(), seed=1, journal=path)
    contents = records.read(path)
    lay(path, journal_of(contents.header, [(0, record) for record in contents.records[0] if record[0] != "e" and record[:2] != ["r", 0]]))
    with pytest.raises(lmc.InDoubtEffect):
        pays_in_tasks.run(backend=lmc.Mock(), journal=path)
    lmc.Journal(path).retry()
    CALLS.clear()
    assert (seen(pays_in_tasks.run(backend=lmc.Mock(), journal=path)), CALLS) == (expected, [("pay", "ann")])
    CALLS.clear()
    assert (seen(pays_in_tasks.run(backend=lmc.Mock(), journal=path)), CALLS) == (expected, [])


@lmc.function
async def cancels_before_it_begins(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(fetch("never"))
        task.cancel()
    s += lmc.gen("b", max_tokens=2)
    return task.cancelled()


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_a_task_that_is_cancelled_before_it_begins_leaves_nothing(tmp_path: Path) -> None:
    ways = [cancels_before_it_begins.run, lmc.compile(cancels_before_it_begins)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)  # of coroutines that were never awaited
        for n, way in enumerate(ways * 2):
            CALLS.clear()
            assert way(backend=lmc.Mock(), seed=1, journal=tmp_path / str(n % 2)).ret_value is True and not CALLS
            gc.collect()
    assert not [w for w in said if w.category is RuntimeWarning]


def test_a_group_is_shown_as_far_as_its_journal_goes(tmp_path: Path) -> None:
    group_of_helpers.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    shown: list[int] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        for data in prefixes(tmp_path / "j"):
            lay(tmp_path / "cut", data)
            (story,) = viewer.replayed(tmp_path / "cut", group_of_helpers, lmc.Mock())
            assert story.whole and re.match(r"stopped: .* (which is not in the journal|it is not known whether it was done)|returned", story.end)
            shown.append(len(story.steps))
            gc.collect()
    assert shown[-1] == 10 and story.end.startswith("returned")
    assert not [w for w in said if w.category is RuntimeWarning]


@lmc.function
def tells(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=4)
    return s["a"]


async def tells_twice(q: str) -> str:
    first = (await tells.arun(q)).ret_value
    return (await tells.arun(f"{q} {await fetch(first)}")).ret_value


@lmc.function
async def gathers_chains(s: Any) -> Any:
    found = await asyncio.gather(*map(tells_twice, "abc"))
    return found, await asyncio.wait_for(tells_twice("d"), 60), tells.run("end").ret_value


@some("order", [[2, 1, 0], [0, 1, 2], [1, 2, 0]], 3)
def test_chains_of_sub_programs_resume_in_another_order(order: list[int], tmp_path: Path) -> None:
    """Which of the second sub-programs is the first one, only the answers decide; and on resuming they come in another order."""
    for n, way in enumerate((gathers_chains.run, lmc.compile(gathers_chains))):
        path, whole = tmp_path / str(n), InTurn(order)
        expected = seen(way(backend=whole, seed=1, journal=path))
        assert seen(gathers_chains.run(backend=lmc.Mock(), seed=1)) == expected
        for data in prefixes(path)[:: 1 if TIMES else 3]:
            lay(path, data)
            known, mock = records.read(path).runs[0], lmc.Mock()
            assert seen(way(backend=mock, journal=path)) == expected
            assert len(mock.call_log) == len(whole.call_log) - len(known.answers)


@lmc.function
async def calls_one_at_a_time(s: Any) -> Any:
    found = [tells.run("a").ret_value, (await tells.arun("b")).ret_value, (await asyncio.wait_for(tells.arun("c"), 60)).ret_value]
    found += [state.ret_value for state in await asyncio.gather(tells.arun("d"), tells.arun("e"))]
    (fork,) = s.fork(1)
    fork += lmc.gen("x", max_tokens=2)
    return found, await asyncio.wait_for(tells_twice("f"), 60), fork["x"]


def test_places_of_programs_without_chains_in_tasks_stay_as_they_are(tmp_path: Path) -> None:
    """Journals that were written before tasks had numbers have these."""
    calls_one_at_a_time.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    assert set(records.read(tmp_path / "j").runs[0].answers) == {*[(f"/c{n}", 0) for n in range(7)], ("/0.0", 0)}


@lmc.host(idempotent=True)
async def consults(q: str) -> str:
    CALLS.append(("consults", q))
    return tells.run(q).ret_value + (await tells.arun(q)).ret_value


@lmc.function
async def awaits_tools_that_run_programs(s: Any) -> Any:
    first = await consults("a")
    return first, tells.run("b").ret_value, await asyncio.gather(consults("c"), consults("d")), tells.run("e").ret_value


def test_programs_that_awaited_tools_run_are_counted_when_resumed(tmp_path: Path) -> None:
    expected = seen(awaits_tools_that_run_programs.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j"))
    assert seen(awaits_tools_that_run_programs.run(backend=lmc.Mock(), seed=1)) == expected
    for data in prefixes(tmp_path / "j"):
        lay(tmp_path / "cut", data)
        assert seen(awaits_tools_that_run_programs.run(backend=lmc.Mock(), journal=tmp_path / "cut")) == expected


@lmc.host(idempotent=True)
async def hang(found: list[str], x: str) -> None:
    CALLS.append(("hang", x))
    found.append(x)
    await asyncio.Event().wait()


@lmc.function
async def cancels_calls(s: Any) -> Any:
    """By time-outs of its own task and of the one that gathers it, by hand, and by a failing sibling."""
    found = list[str]()
    s += "q" + lmc.gen("a", max_tokens=2)
    try:
        async with asyncio.timeout(0.02), asyncio.timeout(60):
            await hang(found, s["a"])
    except TimeoutError:
        s += await fetch("late") + lmc.gen("b", max_tokens=2)
    try:
        async with asyncio.timeout(0.02):
            await asyncio.gather(hang(found, "1"), hang(found, "2"), fetch("3"))
    except TimeoutError:
        s += lmc.gen("c", max_tokens=2)
    winner, loser = asyncio.create_task(fetch("4")), asyncio.create_task(hang(found, "5"))
    await asyncio.wait({winner, loser}, return_when=asyncio.FIRST_COMPLETED)
    loser.cancel()
    s += str(await asyncio.gather(loser, return_exceptions=True)) + lmc.gen("d", max_tokens=2)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(hang(found, "6"))
            group.create_task(fetch("missing"))
    except* LookupError:
        s += lmc.gen("e", max_tokens=2)
    return found, loser.cancelled()


def test_calls_that_a_program_cancelled_are_cancelled_again(tmp_path: Path) -> None:
    resumes_anywhere(cancels_calls, {}, tmp_path)


def test_a_call_that_was_cancelled_with_its_run_is_in_doubt(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def pay(x: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    @lmc.function
    async def pays(s: Any) -> None:
        s += "q" + lmc.gen("a", max_tokens=2)
        await asyncio.gather(pay(s["a"]))

    async def cancelled() -> None:
        running = asyncio.ensure_future(pays.arun(backend=lmc.Mock(), journal=tmp_path / "j"))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    (waiting,) = lmc.Journal(tmp_path / "j").waiting()
    assert "pay(" in waiting.call
    for _ in range(2):
        with pytest.raises(lmc.InDoubtEffect):
            pays.run(backend=lmc.Mock(), journal=tmp_path / "j")
    lmc.Journal(tmp_path / "j").resolve(None)
    assert not pays.run(backend=lmc.Mock(), journal=tmp_path / "j").error()


def test_a_run_that_ended_well_behind_a_call_that_it_cancelled_ends_so_again(tmp_path: Path) -> None:
    async def racing(x: str) -> str:
        while True:
            await pay_later(x)

    @lmc.function
    async def race(s: Any) -> Any:
        loser = asyncio.create_task(racing("slow"))
        s += await pay_later("fast") + lmc.gen("a", max_tokens=2)
        loser.cancel()
        await asyncio.gather(loser, return_exceptions=True)
        return s["a"]

    path = tmp_path / "j"
    expected = race.run(backend=lmc.Mock(), journal=path).ret_value
    CALLS.clear()
    assert race.run(backend=lmc.Mock(), journal=path).ret_value == expected and not CALLS
