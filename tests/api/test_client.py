"""The client's room: how many requests are on their way at once, and whose turn is next; faults without secrets."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

import lmc
from lmc import gc_tuning
from lmc.backend.api.exchange import Fault, Malformed
from lmc.backend.api.loop import LoopThread
from lmc.backend.api.rates import ConcurrencyLimit
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api


async def test_so_many_at_once_in_order_and_those_who_give_up_take_no_place():
    room, entered, inside = ConcurrencyLimit(2), list[int](), 0
    most = 0

    async def one(i: int) -> None:
        nonlocal inside, most
        async with room.turn(None, 0):
            entered.append(i)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    tasks = [asyncio.create_task(one(i)) for i in range(20)]
    await asyncio.sleep(0)
    for i in (3, 4, 9):  # while they wait
        tasks[i].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 2 and entered == [i for i in range(20) if i not in (3, 4, 9)]
    assert room._inside == 0


async def test_a_turn_that_comes_with_a_cancellation_goes_to_the_next():
    room = ConcurrencyLimit(1)

    async def one() -> None:
        async with room.turn(None, 0):
            pass

    async with room.turn(None, 0):
        waits = [asyncio.create_task(one()) for _ in range(2)]
        await asyncio.sleep(0)
    waits[0].cancel()  # it has its turn, and gives it up before it runs
    await asyncio.wait_for(waits[1], 30)
    assert room._inside == 0 and waits[0].cancelled()


async def test_batches_take_turns_and_of_a_batch_the_run_that_began_first():
    room, entered = ConcurrencyLimit(1), list[str]()

    async def one(batch: str, run: int, name: str) -> None:
        async with room.turn(batch, run):
            entered.append(f"{batch}{run}{name}")

    asked = [("a", 2, "x"), ("a", 3, "x"), ("a", 1, "x"), ("a", 1, "y"), ("b", 9, "x"), ("b", 8, "x"), ("c", 7, "x")]
    async with room.turn("a", 1):
        tasks = [asyncio.create_task(one(*ask)) for ask in asked]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert entered == ["a1x", "b8x", "c7x", "a1y", "b9x", "a2x", "a3x"] and room._inside == 0


@lmc.function
def two(s, q):
    s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=4)) + lmc.user("And?") + lmc.assistant(lmc.gen("b", max_tokens=4))


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_requests_wait_as_those_of_their_batch_and_run(api, request, monkeypatch):
    waited, turn = list[tuple[object, int]](), ConcurrencyLimit.turn
    monkeypatch.setattr(ConcurrencyLimit, "turn", lambda room, *whose: waited.append(whose) or turn(room, *whose))
    backend, _ = request.getfixturevalue(api)(TextModel())
    for _ in range(2):
        two.run_batch([{"q": q} for q in "xyz"], backend=backend, temperature=0)
    first, second = waited[:6], waited[6:]
    assert len(set(first)) == len(set(second)) == 3 and max(run for _, run in first) < min(run for _, run in second)
    assert len({batch for batch, _ in first}) == len({batch for batch, _ in second}) == 1 and first[0][0] != second[0][0]


@pytest.mark.parametrize("kind", [Fault, Malformed])
def test_a_fault_without_secrets_is_otherwise_the_same(kind):
    fault = kind("no sk-0123456789", status=503, retry_after=2.0, param="p", code="c-sk-0123456789")
    fault.elsewhere = True
    fault.__cause__ = ValueError("sk-0123456789")
    found = fault.redacted(["sk-0123456789"])
    assert type(found) is kind and str(found) == found.message == "no [redacted]" and found.code == "c-[redacted]"
    assert (found.status, found.retry_after, found.param, found.elsewhere) == (503, 2.0, "p", True)
    assert found.__cause__ is None and found.__context__ is None and "sk-" not in repr(found)


def test_while_requests_are_on_their_way_garbage_is_seldom_looked_for_in_all_objects():
    before, during, done = gc.get_threshold(), list[tuple[int, int, int]](), threading.Event()
    loop = LoopThread("lmc-test")

    async def work(more: int) -> None:
        if more:
            loop.spawn(work(more - 1))
        during.append(gc.get_threshold())

    async def ended() -> None:
        while loop.tasks > 1:
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(done.set))

    loop.post(lambda: loop.spawn(work(2)))
    loop.post(lambda: loop.spawn(ended()))
    assert done.wait(60)
    loop.close()
    assert during == 3 * [gc_tuning._shortened(*before, 1000)]
    assert gc.get_threshold() == before
