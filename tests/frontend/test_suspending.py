"""Reads inside of async programs suspend their task: every way in which tasks begin, are cancelled, timed and end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from tests.backend.gated import Gated

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


async def say(f: Any, text: str = "") -> str:
    f += text + lmc.gen("x", max_tokens=2)
    return f["x"]


async def by_gather(s: Any) -> list[str]:
    return list(await asyncio.gather(*[say(f) for f in s.fork(3)]))


async def by_tasks(s: Any) -> list[str]:
    return [await task for task in [asyncio.create_task(say(f)) for f in s.fork(3)]]


async def by_group(s: Any) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(say(f)) for f in s.fork(3)]
    return [task.result() for task in tasks]


async def by_completion(s: Any) -> list[str]:
    found = [await said for said in asyncio.as_completed([say(f) for f in s.fork(3)])]
    return sorted(found)


async def by_wait(s: Any) -> list[str]:
    done, _ = await asyncio.wait([asyncio.ensure_future(say(f)) for f in s.fork(3)])
    return sorted(task.result() for task in done)


async def in_c_code(s: Any) -> list[str]:
    """The read is under `sorted`, in a comprehension, in a plain function."""

    async def least(f: Any) -> str:
        f += lmc.gen("x", max_tokens=2)
        return sorted([f], key=lambda g: g["x"])[0]["x"]

    return list(await asyncio.gather(*[least(f) for f in s.fork(3)]))


async def by_generators(s: Any) -> list[str]:
    async def steps(f: Any) -> AsyncIterator[str]:
        f += lmc.gen("x", max_tokens=2)
        yield f["x"]

    async def all_of(f: Any) -> list[str]:
        return [x async for x in steps(f)]

    return [x for found in await asyncio.gather(*[all_of(f) for f in s.fork(3)]) for x in found]


async def by_sub_programs(s: Any) -> list[str]:
    @lmc.function
    async def child(c: Any, i: int) -> None:
        await say(c, str(i))
        c.text()

    return [c["x"] for c in await asyncio.gather(*[child.arun(i=i) for i in range(3)])]


WAYS = [by_gather, by_tasks, by_group, by_completion, by_wait, in_c_code, by_generators, by_sub_programs]


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_tasks_of_a_program_ask_at_once(way: Any):
    """Each waits at a gate that opens when all three are there: on a loop of our own, and on the caller's."""
    program = lmc.function(way)
    assert len(program.run(backend=Gated(3)).ret_value) == 3
    assert len(asyncio.run(program.arun(backend=Gated(3))).ret_value) == 3
    assert [len(s.ret_value) for s in program.run_batch([{}, {}], backend=Gated(6))] == [3, 3]


@pytest.mark.parametrize("read", [
    lambda s: s["x"], lambda s: s.text(), lambda s: s.messages(), lambda s: s.sync(), lambda s: s.error(), lambda s: s.usage,
    lambda s: s.get_meta_info("x"), lambda s: list(s.text_iter()), lambda s: [*s.text_iter("x")],
], ids=["item", "text", "messages", "sync", "error", "usage", "meta", "text_iter", "variable_iter"])  # fmt: skip
def test_every_read_leaves_the_loop_free(read: Any):
    backend = Gated()

    @lmc.function
    async def program(s: Any) -> Any:
        s += "a" + lmc.gen("x", max_tokens=2)
        asyncio.get_running_loop().call_soon(backend.open)  # nothing else opens it
        return read(s)

    program.run(backend=backend)


def test_a_budget_that_has_to_wait_leaves_the_loop_free():
    backend = Gated()

    @lmc.function
    async def program(s: Any) -> Any:
        s += "a" + lmc.gen("x", max_tokens=30)
        asyncio.get_running_loop().call_soon(backend.open)
        s += "b" + lmc.gen("y", max_tokens=30)
        return s["y"]

    assert program.run(backend=backend, budget=lmc.Budget(tokens=64)).ret_value


def test_context_variables_task_and_frames_are_those_of_the_task():
    @lmc.function
    async def program(s: Any) -> Any:
        async def each(f: Any, i: int) -> Any:
            before, token = asyncio.current_task(), TENANT.set(f"tenant {i}")
            f += lmc.gen("x", max_tokens=2)
            f["x"]
            assert asyncio.current_task() is before
            assert {frame.filename for frame in inspect.stack()[:-1]} == {__file__}  # below is what drives the task, as in asyncio
            found = TENANT.get()
            TENANT.reset(token)
            return found

        TENANT.set("outer")
        found = await asyncio.gather(*[each(f, i) for i, f in enumerate(s.fork(2))])
        return [*found, TENANT.get()]

    async def main() -> Any:
        TENANT.set("caller")
        state = await program.arun(backend=Gated(2))
        return state.ret_value, TENANT.get()

    assert asyncio.run(main()) == (["tenant 0", "tenant 1", "outer"], "outer")


def test_a_task_is_cancelled_where_it_reads():
    backend, seen = Gated(), list[str]()

    @lmc.function
    async def program(s: Any) -> Any:
        async def reads() -> None:
            s.__iadd__(lmc.gen("x", max_tokens=2))
            try:
                s["x"]
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            finally:
                await asyncio.sleep(0)
                seen.append("cleaned")

        task = asyncio.create_task(reads())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        try:
            async with asyncio.timeout(0):
                s["x"]
        except TimeoutError:
            seen.append("timeout")
        backend.open()
        return s["x"]

    assert program.run(backend=backend).ret_value
    assert seen == ["cancelled", "cleaned", "timeout"]


def test_cancelling_the_caller_cancels_what_was_asked():
    backend = Gated()

    @lmc.function
    async def program(s: Any) -> Any:
        s += lmc.gen("x", max_tokens=2)
        return s["x"]

    async def main() -> None:
        task = asyncio.create_task(program.arun(backend=backend))
        while not backend.waiting:
            await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_tasks_of_a_cancelled_run_are_cancelled_with_it():
    """Their requests are; asyncio would report the error of a task that nobody awaits any more."""
    backend, begun = Gated(), list[asyncio.Task[Any]]()

    @lmc.function
    async def program(s: Any) -> Any:
        begun.append(asyncio.create_task(say(s.fork(1)[0])))
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(program.arun(backend=backend))
        while not backend.waiting:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait(begun)

    asyncio.run(main())
    assert begun[0].cancelled()


def test_an_error_of_one_task_has_its_frames_and_ends_the_others():
    backend, ended = Gated(), list[int]()

    @lmc.function
    async def program(s: Any) -> Any:
        async def fails() -> None:
            raise ValueError("here")

        async def reads(f: Any, i: int) -> None:
            f += lmc.gen("x", max_tokens=2)
            try:
                f["x"]
            finally:
                ended.append(i)

        async with asyncio.TaskGroup() as group:
            for i, f in enumerate(s.fork(2)):
                group.create_task(reads(f, i))
            group.create_task(fails())

    with pytest.raises(ExceptionGroup) as caught:
        program.run(backend=backend)
    (error,) = caught.value.exceptions
    names, at = [], error.__traceback__
    while at is not None:
        names.append(at.tb_frame.f_code.co_name)
        at = at.tb_next
    assert names[-1] == "fails"
    assert sorted(ended) == [0, 1]


def test_factories_of_the_callers_loop_go_on_and_tasks_outside_are_left_alone():
    made = list[Any]()

    def own(loop: Any, coroutine: Any, **options: Any) -> Any:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    @lmc.function
    async def program(s: Any) -> Any:
        return await asyncio.gather(*[say(f) for f in s.fork(2)])

    async def outside() -> str:
        return "outside"

    async def main() -> Any:
        asyncio.get_running_loop().set_task_factory(own)
        states = [await program.arun(backend=Gated(2)) for _ in range(2)]
        assert await asyncio.create_task(outside()) == "outside"
        return states[1].ret_value

    assert len(asyncio.run(main())) == 2
    assert [inspect.iscoroutine(c) for c in made[:5]] == [False] * 4 + [True]
    assert [c.__name__ for c in made[:5]] == ["say"] * 4 + ["outside"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are of Python 3.12")
def test_eager_tasks_are_suspended_too():
    @lmc.function
    async def program(s: Any) -> Any:
        return await asyncio.gather(*[say(f) for f in s.fork(2)])

    async def main() -> Any:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        return (await program.arun(backend=Gated(2))).ret_value

    assert len(asyncio.run(main())) == 2


def test_what_is_abandoned_while_it_reads_is_closed():
    closed = list[str]()

    @lmc.function
    async def program(s: Any) -> Any:
        async def reads() -> None:
            s.__iadd__(lmc.gen("x", max_tokens=2))
            try:
                s["x"]
            finally:
                closed.append("closed")

        asyncio.get_running_loop().kept = asyncio.create_task(reads())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    program.run(backend=Gated())  # the loop cancels what is left when it ends
    gc.collect()
    assert closed == ["closed"]


def test_coroutines_driven_by_hand_wait_and_close():
    """No task, no loop: a read blocks the thread, and closing one that reads ends it."""
    from lmc.frontend.suspending import Suspendable

    backend, ended = Mock(latency=1e-3), list[str]()

    @lmc.function
    def program(s: Any) -> Any:
        async def reads() -> str:
            s.__iadd__(lmc.gen("x", max_tokens=2))
            return s["x"]

        try:
            reads().send(None)
        except StopIteration as done:
            return done.value

    assert program.run(backend=backend).ret_value

    async def main() -> None:
        held, state = Gated(), list[Any]()

        async def reads() -> None:
            child = lmc.function(lambda s: state.append(s)).run(backend=held)  # type: ignore[arg-type]
            child += lmc.gen("x", max_tokens=2)
            try:
                child["x"]
            finally:
                ended.append("ended")

        one = Suspendable(reads())
        assert isinstance(one.send(None), asyncio.Future)
        one.close()

    asyncio.run(main())
    assert ended == ["ended"]


def test_threads_of_a_program_block_and_its_tasks_do_not():
    @lmc.function
    async def program(s: Any) -> Any:
        def plain(f: Any) -> tuple[str, bool]:
            f += lmc.gen("x", max_tokens=2)
            return f["x"], threading.current_thread() is threading.main_thread()

        a, b = s.fork(2)
        return await asyncio.gather(asyncio.to_thread(plain, a), say(b))

    (_, on_main), _ = program.run(backend=Gated(2)).ret_value
    assert not on_main


def test_an_async_program_that_is_called_on_a_loop_says_what_to_write() -> None:
    @lmc.function
    async def later(s: Any) -> None:
        s += lmc.gen("x", max_tokens=2)

    async def main(call: Any, instead: str) -> None:
        with pytest.raises(lmc.ProgramError, match=rf"test_suspending.py:\d+: program later.* is async, .*: write `await {instead}\(…\)`"):
            call(backend=lmc.Mock())

    asyncio.run(main(later, "later.arun"))
    asyncio.run(main(lmc.compile(later), "program.acall"))
