"""The client's room: how many requests are on their way at once, and whose turn is next; faults without secrets."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from lmc import gc_tuning
from lmc.backend.api.exchange import Fault, Malformed
from lmc.backend.api.loop import LoopThread
from lmc.backend.api.rates import ConcurrencyLimit

pytestmark = pytest.mark.api


def test_so_many_at_once_in_order_and_those_who_give_up_take_no_place():
    async def scenario() -> None:
        room, entered, inside = ConcurrencyLimit(2), list[int](), 0
        most = 0

        async def one(i: int) -> None:
            nonlocal inside, most
            async with room:
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

    asyncio.run(scenario())


def test_a_turn_that_comes_with_a_cancellation_goes_to_the_next():
    async def scenario() -> None:
        room = ConcurrencyLimit(1)
        await room.__aenter__()
        waits = [asyncio.create_task(room.__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        await room.__aexit__()  # the first has its turn
        waits[0].cancel()  # and gives it up before it runs
        await asyncio.wait_for(waits[1], 30)
        await room.__aexit__()
        assert room._inside == 0 and waits[0].cancelled()

    asyncio.run(scenario())


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
