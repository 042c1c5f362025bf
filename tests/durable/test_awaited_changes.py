"""What awaited calls do to objects of the program is done again when a run is resumed, in the order in which they ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmc
from tests.durable.resuming import CALLS, lay, prefixes, resumes_anywhere, seen


@lmc.host(idempotent=True)
async def fill(into: list[Any], x: Any, turns: int = 1) -> list[Any]:
    for _ in range(turns):
        await asyncio.sleep(0)
    if x not in into:
        into.append(x)
    CALLS.append(("fill", x))
    return into


@lmc.host(idempotent=True)
def note(into: Callable[[str], None], x: str) -> None:
    CALLS.append(("note", x))
    into(x)


class Memory:
    def __init__(self) -> None:
        self.items: list[str] = []
        self.last = ""

    @lmc.host(idempotent=True)
    async def add(self, x: str) -> int:
        await asyncio.sleep(0)
        CALLS.append(("Memory.add", x))
        self.last = x
        if x not in self.items:
            self.items.append(x)
        return len(self.items)


@lmc.function
async def changes_lists(s: Any) -> Any:
    found: list[Any] = []
    same = await fill(found, "a")
    s += str(found) + lmc.gen("a", max_tokens=2)
    same.append("own")
    await asyncio.gather(fill(found, "slow", 5), fill(found, "fast"))
    s += str(sorted(found)) + lmc.gen("b", max_tokens=2)
    task = asyncio.create_task(fill(found, "task"))
    await task
    return sorted(found), same is found


@lmc.function
async def changes_objects(s: Any) -> Any:
    memory = Memory()
    await memory.add("a")
    s += str(memory.items) + memory.last + lmc.gen("a", max_tokens=2)
    await asyncio.gather(memory.add("b"), memory.add("c"))
    found: list[str] = []
    await asyncio.to_thread(note, found.append, "thread")
    return memory.items, memory.last, found


@lmc.function
async def goes_on_meanwhile(s: Any) -> Any:
    """What the program does to the list between the tool's steps is its own."""
    found: list[Any] = []
    task = asyncio.create_task(fill(found, "task", 3))
    await asyncio.sleep(0)
    found.append("own")
    await task
    s += lmc.gen("a", max_tokens=2)
    return sorted(found)


@pytest.mark.parametrize("program", [changes_lists, changes_objects, goes_on_meanwhile], ids=lambda p: p.name)
def test_changes_by_awaited_calls_are_made_again(program: Any, tmp_path: Path) -> None:
    resumes_anywhere(program, {}, tmp_path)


def put(into: list[Any], x: str, go_on: threading.Event) -> None:
    into.append(x)
    go_on.wait(60)


@lmc.function
async def goes_on_beside_a_thread(s: Any, go_on: threading.Event) -> Any:
    found: list[Any] = []
    task = asyncio.create_task(asyncio.to_thread(put, found, "task", go_on))
    await asyncio.sleep(0)
    found.append("own")
    go_on.set()
    await task
    s += lmc.gen("a", max_tokens=2)
    return found


def test_a_change_on_a_thread_during_which_the_program_goes_on_warns(tmp_path: Path) -> None:
    with pytest.warns(lmc.JournalWarning, match=r"put\(\) was given what has changed .* Let the function return what it found, or await it alone"):
        goes_on_beside_a_thread.run(threading.Event(), backend=lmc.Mock(), journal=tmp_path / "j")


# -- functions that return awaitables ----------------------------------------------------------------------------------


async def count(into: dict[str, int], x: str) -> str:
    await asyncio.sleep(0)
    CALLS.append(("count", x))
    into[x] = into.get(x, 0) + 1
    return f"{x}{into[x]}"


def counts(into: dict[str, int], x: str) -> Any:
    return count(into, x)


def notes_and_counts(into: dict[str, int], x: str) -> Any:
    CALLS.append(("notes_and_counts", x))
    into["noted"] = into.get("noted", 0) + 1
    return count(into, x)


def begins_to_count(into: dict[str, int], x: str) -> Any:
    return asyncio.ensure_future(count(into, x))


class Counter:
    def __init__(self) -> None:
        self.counted: dict[str, int] = {}

    def __call__(self, x: str) -> Any:
        return count(self.counted, x)

    async def slow(self, x: str) -> str:
        return await count(self.counted, x)

    def later(self, x: str) -> Any:
        return self.slow(x)


@lmc.function
async def awaits_what_functions_return(s: Any) -> Any:
    counted: dict[str, int] = {}
    counter = Counter()
    for _ in range(2):
        s += f"{await counts(counted, 'a')}{await counter('b')}{await counter.later('c')}" + lmc.gen("a", max_tokens=2)
        s += f"{await asyncio.wait_for(counter('d'), 60)}{await begins_to_count(counted, 'e')}"
    found = await asyncio.gather(counter("f"), counts(counted, "f"), asyncio.create_task(counter.later("g")))
    return counted, counter.counted, found


@lmc.function
async def awaits_it_later(s: Any) -> Any:
    counted: dict[str, int] = {}
    counting = notes_and_counts(counted, "a")
    s += f"{counted}" + lmc.gen("a", max_tokens=2)
    return await counting, counted


@lmc.function
async def leaves_tasks_alone(s: Any) -> Any:
    counted: dict[str, int] = {}
    begins_to_count(counted, "a")
    for _ in range(3):
        await asyncio.sleep(0)
    s += f"{counted}" + lmc.gen("a", max_tokens=2)
    return counted


@lmc.function
async def cancels_a_task_of_a_tool(s: Any) -> Any:
    counting = begins_to_count({}, "a")
    counting.cancel()
    try:
        await counting
    except asyncio.CancelledError:
        s += "cancelled" + lmc.gen("a", max_tokens=2)
    return s["a"]


def resumed(program: Any, directory: Path) -> list[str]:
    """How a run ends that is resumed behind each record: as one without a journal, or with an error."""
    expected = seen(program.run(backend=lmc.Mock(), seed=1))
    assert seen(program.run(backend=lmc.Mock(), seed=1, journal=directory / "whole")) == expected
    ends = list[str]()
    for data in prefixes(directory / "whole"):
        lay(directory / "again", data)
        CALLS.clear()
        try:
            assert seen(program.run(backend=lmc.Mock(), journal=directory / "again")) == expected
            ends.append("as before")
        except (lmc.InDoubtEffect, lmc.JournalError) as error:
            ends.append(type(error).__name__)
    return ends


def test_what_returned_coroutines_change_is_changed_again(tmp_path: Path) -> None:
    ends = resumed(awaits_what_functions_return, tmp_path)
    assert not CALLS and {*ends} == {"as before", "InDoubtEffect"}


def test_a_task_of_a_tool_is_cancelled_again_where_its_end_is_known(tmp_path: Path) -> None:
    ends = resumed(cancels_a_task_of_a_tool, tmp_path)
    assert "InDoubtEffect" in ends and ends[-3:] == ["as before"] * 3, "behind its end, the answer, and the end of the run"


def test_a_function_whose_coroutine_is_gone_is_called_again_only_if_it_computes_or_a_person_says_so(tmp_path: Path) -> None:
    ends = resumed(awaits_it_later, tmp_path)
    assert ends == ["as before", "InDoubtEffect", "JournalError", "JournalError", "InDoubtEffect", "as before", "as before"]
    lay(path := tmp_path / "again", prefixes(tmp_path / "whole")[2])
    with pytest.raises(lmc.JournalError, match=r"notes_and_counts\(\{\}, 'a'\) gave a coroutine, .* lmc journal retry .* --effect 0"):
        awaits_it_later.run(backend=lmc.Mock(), journal=path)
    lmc.Journal(path).retry(number=0)
    CALLS.clear()
    assert awaits_it_later.run(backend=lmc.Mock(), journal=path).ret_value == ("a1", {"noted": 1, "a": 1})
    assert CALLS == [("notes_and_counts", "a"), ("count", "a")]


def test_what_a_returned_task_changes_before_it_is_awaited_warns(tmp_path: Path) -> None:
    with pytest.warns(lmc.JournalWarning, match=r"begins_to_count\(\) gave a Task, and what it was given has changed before that was awaited"):
        leaves_tasks_alone.run(backend=lmc.Mock(), journal=tmp_path / "j")
