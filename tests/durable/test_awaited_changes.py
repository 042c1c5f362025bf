"""What awaited calls do to objects of the program is done again when a run is resumed, in the order in which they ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmc
from tests.durable.resuming import CALLS, resumes_anywhere


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
