"""Async programs: the same in the interpreter, compiled and in batches, whatever is awaited and however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from tests.backend.gated import Gated
from tests.conformance.table.asynchronous import TENANT, inner_sync, judges, plain, search

pytestmark = pytest.mark.usefixtures("leaves_nothing")


# -- loops, cancellation, context ------------------------------------------------------------------------------------------


@lmc.function
async def two_searches(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=4)
    s += await search(s["a"])
    return s["a"]


@lmc.function
def blocking(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=4)
    time.sleep(0.01)
    s += plain(s["a"])
    return s["a"]


@pytest.mark.parametrize("program", [two_searches, blocking], ids=lambda p: p.name)
def test_acall_and_abatch_give_what_call_and_batch_give(program: Any) -> None:
    fast = lmc.compile(program, backend=(backend := Mock(latency=0.002)))
    items = [{"q": str(i)} for i in range(6)]
    expected = [s.text() for s in program.run_batch(items, backend=Mock(), seed=1)]

    async def main() -> None:
        assert (await fast.acall(q="0", seed=1)).text() == expected[0] == (await program.arun(q="0", backend=Mock(), seed=1)).text()
        states = await fast.abatch(items, seed=1)
        assert [s.text() for s in states] == expected
        assert await fast.abatch([], seed=1) == []
        with pytest.raises(lmc.errors.ArgumentError, match="no parameter 'x'"):
            await fast.acall(x=1)

    asyncio.run(main())
    assert [s.text() for s in fast.batch(items, seed=1)] == expected
    assert sorted(i for i, _ in fast.as_completed(items, seed=1)) == list(range(6))
    backend.close()


def test_the_loop_is_free_while_programs_wait() -> None:
    """A ticker on the same loop goes on, whatever the programs wait for."""
    for program in (two_searches, blocking):
        backend = Gated(together=4)  # all four have to be at the gate at once
        fast = lmc.compile(program, backend=backend)
        order: list[str] = []

        async def main(fast: Any = fast, backend: Gated = backend, order: list[str] = order) -> None:
            async def opener() -> None:
                while backend.waiting < 1 and not backend.opened:
                    await asyncio.sleep(0)
                order.append("free")

            opening = asyncio.create_task(opener())
            await fast.abatch([{"q": str(i)} for i in range(4)])
            order.append("over")
            await opening

        asyncio.run(main())
        assert order == ["free", "over"]
        backend.close()


def test_gathered_tools_run_at_the_same_time() -> None:
    begun, together = 0, 5

    async def tool(i: int) -> str:
        nonlocal begun
        begun += 1
        async with asyncio.timeout(60):
            while begun < together:
                await asyncio.sleep(0)
        return str(i)

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=2)
        return await asyncio.gather(*[tool(i) for i in range(5)])

    fast = lmc.compile(program, backend=Mock())
    assert fast(q="x").ret_value == list("01234")
    begun, together = 0, 15
    fast.batch([{"q": "x"}] * 3)


def test_what_gathered_helpers_ask_is_asked_at_once() -> None:
    @lmc.function
    async def program(s: Any, q: str) -> Any:
        await search(q)
        return await asyncio.gather(*[judges(f, str(i)) for i, f in enumerate(s.fork(3))])

    fast = lmc.compile(program, backend=(backend := Gated(3)))
    assert len(fast(q="x").ret_value) == 3
    backend.close()


@pytest.mark.parametrize("program", [two_searches, blocking, inner_sync], ids=lambda p: p.name)
@pytest.mark.parametrize("way", ["acall", "abatch", "arun"])
def test_cancelling_cancels_what_was_asked(program: Any, way: str) -> None:
    backend = Gated()
    fast = lmc.compile(program, backend=backend)
    name = fast.function.params[0]

    async def main() -> None:
        ways = {
            "acall": lambda: fast.acall(**{name: "x"}), "abatch": lambda: fast.abatch([{name: "x"}, {name: "y"}]),
            "arun": lambda: program.arun(**{name: "x"}, backend=backend),
        }  # fmt: skip
        task = asyncio.ensure_future(ways[way]())
        while not backend.waiting:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    backend.open()
    assert all(call.answer == () or not call.answer for call in backend.call_log) or backend.waiting == 0
    backend.close()


async def failing_tool(begun: asyncio.Event) -> None:
    await begun.wait()
    raise ValueError("the tool")


@lmc.function
async def cancels_itself_later(s: Any, opens: Any) -> Any:
    """By the loop, while it waits for an answer."""
    s += "x" + lmc.gen("a", max_tokens=2)
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel, "by the loop")  # type: ignore[union-attr]
    try:
        s += s["a"]
    except asyncio.CancelledError as error:
        asyncio.current_task().uncancel()  # type: ignore[union-attr]
        s += f" cancelled {error}"
    opens()
    return s.text()


@lmc.function
async def runs_out_of_time(s: Any, opens: Any) -> Any:
    s += "x" + lmc.gen("a", max_tokens=2)
    try:
        async with asyncio.timeout(0.02):
            s += s["a"]
    except TimeoutError:
        s += " late"
    opens()
    return s.text()


@lmc.function
async def has_a_task_that_fails(s: Any, opens: Any) -> Any:
    s += "x" + lmc.gen("a", max_tokens=2)
    begun = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing_tool(begun))
            begun.set()
            s += s["a"]
    except* ValueError as errors:
        s += f" {errors.exceptions[0]}"
    opens()
    return s.text()


@pytest.mark.parametrize("way", ["arun", "acall", "abatch", "call"])
@pytest.mark.parametrize("program", [cancels_itself_later, runs_out_of_time, has_a_task_that_fails], ids=lambda p: p.name)
def test_what_cancels_a_program_while_it_waits_for_an_answer_is_raised_there(program: Any, way: str) -> None:
    expected = {"cancels_itself_later": " cancelled by the loop", "runs_out_of_time": " late", "has_a_task_that_fails": " the tool"}
    fast = lmc.compile(program)

    async def by(way: str, backend: Gated) -> Any:
        if way == "abatch":
            return (await fast.abatch([(backend.open,)], backend=backend))[0]
        return await (fast.acall if way == "acall" else program.arun)(backend.open, backend=backend)

    for _ in range(2):
        backend = Gated()
        state = fast(backend.open, backend=backend) if way == "call" else asyncio.run(by(way, backend))
        assert state.ret_value == "x" + state["a"] + expected[program.name]
        backend.close()


@pytest.mark.parametrize("way", ["acall", "abatch", "arun"])
@pytest.mark.parametrize("awaited", ["tool", "helper", "gather", "items", "manager", "own tasks"])
def test_cancelling_cancels_what_is_awaited(awaited: str, way: str) -> None:
    ended: list[str] = []
    begun: list[asyncio.Event] = []

    async def tool() -> None:
        try:
            begun[0].set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            ended.append("ended")

    async def items() -> AsyncIterator[int]:
        yield 1
        await tool()

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[int]:
        yield 1
        await tool()

    async def helper(s: Any) -> None:
        s += "."
        await tool()

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=2)
        try:
            if awaited == "helper":
                await helper(s)
            elif awaited == "gather":
                await asyncio.gather(tool(), asyncio.sleep(0))
            elif awaited == "items":
                async for _ in items():
                    s += "."
            elif awaited == "manager":
                async with manager():
                    s += "."
            elif awaited == "own tasks":
                await asyncio.gather(*[helper(f) for f in s.fork(1)])
            else:
                await tool()
        except ValueError:
            s += "not this"

    fast = lmc.compile(program, backend=Mock())
    ways = {
        "acall": lambda: fast.acall(q="x"), "abatch": lambda: fast.abatch([{"q": "x"}]), "arun": lambda: program.arun(q="x", backend=Mock()),
    }  # fmt: skip

    async def main() -> None:
        begun.append(asyncio.Event())
        task = asyncio.ensure_future(ways[way]())
        await asyncio.wait_for(begun[0].wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled", "ended"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_an_abandoned_batch_cancels_what_is_awaited() -> None:
    began: list[str] = []
    ended: list[str] = []

    async def tool(q: str) -> None:
        began.append(q)
        try:
            while q != "0" or len(began) < 4:
                await asyncio.sleep(0.001)
        finally:
            ended.append(q)

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=2)
        await tool(q)

    for results in (lmc.compile(program, backend=Mock()).as_completed, lambda items: program.run_batch(items, backend=Mock(), generator_style=True)):
        began.clear(), ended.clear()
        done = results([{"q": str(i)} for i in range(4)])
        next(done)
        done.close()
        assert sorted(ended) == ["0", "1", "2", "3"]


def test_context_variables_of_the_caller_are_seen() -> None:
    seen: list[str] = []

    async def tool() -> str:
        await asyncio.sleep(0)
        seen.append(TENANT.get())
        return TENANT.get()

    def sync_tool() -> str:
        seen.append(TENANT.get())
        return TENANT.get()

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=2)
        return await tool() + sync_tool()

    @lmc.function
    def program_sync(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=2)
        return sync_tool()

    token = TENANT.set("me")
    try:
        for fn in (program, program_sync):
            fast = lmc.compile(fn, backend=Mock())
            expected = fn.run(q="x", backend=Mock()).ret_value
            assert fast(q="x").ret_value == expected
            assert fast.batch([{"q": "x"}])[0].ret_value == expected
            assert asyncio.run(fast.acall(q="x")).ret_value == expected
            assert asyncio.run(fast.abatch([{"q": "x"}]))[0].ret_value == expected
            assert fast.stream(q="x").ret_value == expected
            assert fn.run_batch([{"q": "x"}], backend=Mock())[0].ret_value == expected
    finally:
        TENANT.reset(token)
    assert set(seen) == {"me"}


def test_where_a_loop_is_running_the_message_says_what_to_write() -> None:
    fast = lmc.compile(two_searches, backend=Mock())

    async def main() -> None:
        with pytest.raises(lmc.errors.ProgramError, match=r"await program\.acall"):
            fast(q="x")
        with pytest.raises(lmc.errors.ProgramError, match=r"await two_searches\.arun"):
            two_searches.run(q="x", backend=Mock())
        assert fast.batch([{"q": "x"}])  # on a loop of its own; this one waits for it

    asyncio.run(main())


def test_a_system_exit_of_a_tool_reaches_the_caller() -> None:
    async def leaves() -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=2)
        await leaves()

    fast = lmc.compile(program, backend=Mock())
    for run in (lambda: fast(q="x"), lambda: fast.batch([{"q": "x"}]), lambda: program.run(q="x", backend=Mock())):
        with pytest.raises(SystemExit):
            run()


def test_batches_in_the_interpreter_keep_the_order_of_the_input(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        order.append(q)
        s += q + lmc.gen("a", max_tokens=2)
        await asyncio.sleep(0.02 if q == "0" else 0)
        if q == "1":
            raise ValueError("one")
        return q

    items = [{"q": str(i)} for i in range(4)]
    states = list(program.run_batch(items, backend=Mock(), errors="return", generator_style=True, progress_bar=True))
    assert [s.ret_value if s.failure is None else "failed" for s in states] == ["0", "failed", "2", "3"]
    assert "4/4" in capsys.readouterr().err
    order.clear()
    with pytest.raises(ValueError, match="one"):
        program.run_batch(items, backend=Mock(), num_threads=1)
    assert order == ["0", "1", "2", "3"]
    fast = lmc.compile(program, backend=Mock())
    assert [s.failure is None for s in fast.batch(items, errors="return", progress=True)] == [True, False, True, True]
    assert "4/4" in capsys.readouterr().err
    with pytest.raises(ValueError, match="one"):
        asyncio.run(fast.abatch(items))


def test_wrong_options_are_refused() -> None:
    fast = lmc.compile(inner_sync, backend=Mock())
    for call in (fast, lambda **given: fast.batch([{"tip": "x"}], speculate=True), fast.stream):
        with pytest.raises(lmc.ParameterError, match="'branches'"):
            call(tip="x", speculate=True)
    with pytest.raises(lmc.errors.ArgumentError, match="no option 'sed'"):
        fast.call({"tip": "x"}, sed=1)
    assert fast.call({"tip": "x"}, seed=1).text() == fast(tip="x", seed=1).text()


def test_a_coroutine_that_is_made_while_its_run_is_cancelled_is_closed() -> None:
    running: list[asyncio.Task[Any]] = []

    def tool() -> Any:
        running[0].cancel()
        return search("x")  # nobody will await it

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=2)
        return await tool()

    fast = lmc.compile(program, backend=Mock())

    async def main() -> None:
        running.append(asyncio.create_task(fast.acall(q="x")))
        with pytest.raises(asyncio.CancelledError):
            await running[0]

    unawaited: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, unawaited.append
    try:
        asyncio.run(main())
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert not unawaited


def test_marked_tools_are_awaited_too() -> None:
    @lmc.host(ordered=False)
    async def look(q: str) -> str:
        await asyncio.sleep(0.001)
        return q[::-1]

    @lmc.host(timeout=0.01)
    async def slow() -> None:
        await asyncio.sleep(30)

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=3)
        s += await look(s["a"])
        found = await asyncio.gather(look("ab"), look("cd"))
        try:
            await slow()
        except lmc.HostTimeout as error:
            s += str(error)
        return found

    expected = program.run(q="x", backend=Mock(), seed=1)
    fast = lmc.compile(program, backend=Mock())
    for state in (fast(q="x", seed=1), fast(q="x", seed=1), *fast.batch([{"q": "x"}], seed=1)):
        assert (state.text(), state.ret_value) == (expected.text(), expected.ret_value)
