"""Async programs: the same in the interpreter, compiled and in batches, whatever is awaited and however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import json
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from tests.backend.gated import Gated
from tests.conformance.harness import Case, case, cases, effect, opaque, scripted
from tests.searching import some

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """No thread, task or un-awaited coroutine is left by any test here."""
    before = _threads()
    gc.freeze()  # what other tests left need not be walked
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # such as "coroutine … was never awaited"
        yield
        gc.collect()
    deadline = time.monotonic() + 60
    while (left := _threads() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def _threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name not in ("tqdm_monitor", "lmc-mock")}  # one for all, as long as Python runs


# -- tools ---------------------------------------------------------------------------------------------------------------


async def search(q: str) -> str:
    effect("search", q)
    await asyncio.sleep(0)
    return f"found {q}"


async def broken(q: str) -> str:
    effect("broken", q)
    await asyncio.sleep(0)
    raise ValueError(f"no {q}")


async def numbers(n: int) -> AsyncIterator[int]:
    for i in range(n):
        await asyncio.sleep(0)
        effect("number", i)
        yield i


async def pairs(n: int) -> AsyncIterator[tuple[str, int]]:
    for i in range(n):
        yield f"p{i}", i


@contextlib.asynccontextmanager
async def session(name: str) -> AsyncIterator[str]:
    effect("open", name)
    try:
        yield f"session {name}"
    finally:
        effect("close", name)


def plain(q: str) -> str:
    effect("plain", q)
    return q.upper()


# -- programs: compiled ----------------------------------------------------------------------------------------------------


@case()
async def unpacks_what_its_own_generator_gives(s: Any, q: str) -> Any:
    async def steps(n: int) -> AsyncIterator[Any]:
        for i in range(n):
            s.__iadd__(f"{i}" + lmc.gen("x", max_tokens=2))
            yield s["x"].split() + [i], i

    out = []
    async for (*words, last), i in steps(2):
        out.append((words, last, i))
    return out, [x async for x, i in steps(2) if i], {i: x async for x, i in steps(1)}


@case()
async def unpacks_what_its_own_generator_gives_then_left(s: Any, q: str) -> Any:
    async def steps(n: int) -> AsyncIterator[Any]:
        for i in range(n):
            s.__iadd__(f"{i}" + lmc.gen("x", max_tokens=2))
            yield (row := [s["x"], plain(q)])
            row.append("more")

    out = [(x, y) async for x, y in steps(2)]
    opaque(s)
    try:
        async for _, _, _ in steps(1):
            out.append("never")
    except ValueError as error:
        out.append(str(error))
    return out


@case([{"q": "Search"}], backend=scripted(action=["Search", "Search", "Finish"] * 9), batch=False)
async def react(s: Any, q: str) -> Any:
    seen = []
    for _ in range(3):
        s += q + lmc.select("action", ["Search", "Finish"])
        if s["action"] == "Finish":
            break
        s += await search(q)
        seen.append(s["action"])
    return seen


async def turn(s: Any, text: str) -> str:
    s += text + lmc.gen("t", max_tokens=6)
    effect("turn", s["t"])
    return await search(s["t"])


@case()
async def helpers_are_traced_through(s: Any, q: str) -> Any:
    first = await turn(s, q)
    forks = s.fork(2)
    rest = [await turn(f, str(i)) for i, f in enumerate(forks)]
    return first, rest


@case()
async def gathers_tools(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=4)
    found = await asyncio.gather(search(q), search(s["a"]), asyncio.sleep(0, "slept"))
    s += " ".join(found)
    return found


@case()
async def tasks_of_tools(s: Any, q: str) -> Any:
    task = asyncio.create_task(search(q))
    s += lmc.gen("a", max_tokens=4)
    s += await task
    return await asyncio.wait_for(search(s["a"]), timeout=60)


@case()
async def async_for(s: Any, q: str) -> Any:
    total = 0
    async for i in numbers(3):
        s += f"{q}{i} "
        total += i
    async for name, i in pairs(2):
        s += f"{name}={i}"
    else:
        s += "."
    return total


@case()
async def async_comprehensions(s: Any, q: str) -> Any:
    squares = [i * i async for i in numbers(3) if i != 1]
    texts = {k: await search(v) for k, v in (("x", q), ("y", "z"))}
    s += "".join([await search(str(i)) async for i in numbers(2)]) + texts["y"]
    return squares, sorted({len(t) async for t in named(2)})


async def named(n: int) -> AsyncIterator[str]:
    for i in range(n):
        yield "n" * i


async def asked(s: Any, n: int) -> AsyncIterator[str]:
    for i in range(n):
        s += f"{i}:" + lmc.gen("x", max_tokens=3)
        yield s["x"]


@case()
async def async_generator_of_the_program(s: Any, q: str) -> Any:
    s += q
    return [x async for x in asked(s, 2)]


@lmc.function
async def inner(s: Any, tip: str) -> Any:
    s += "tip " + tip + lmc.gen("x", max_tokens=5)
    return await search(s["x"])


@lmc.function
def inner_sync(s: Any, tip: str) -> Any:
    s += "tip " + tip + lmc.gen("x", max_tokens=5)
    return s["x"]


@case()
async def sub_programs(s: Any, q: str) -> Any:
    child = await inner.arun(tip=q, temperature=0.4)
    other = inner_sync(tip=q)
    s += child["x"] + other["x"]
    return child.ret_value, other.ret_value


@case()
async def nested_async_function(s: Any, q: str) -> Any:
    log = []

    async def ask(text: str) -> None:
        nonlocal s
        s += text + lmc.gen("x", max_tokens=4)
        log.append(await search(s["x"]))

    await ask(q)
    await ask("again")
    return log


class Tools:
    async def look(self, q: str) -> str:
        effect("look", q)
        await asyncio.sleep(0)
        return q[::-1]


TOOLS = Tools()


@case()
async def methods_and_roles(s: Any, q: str) -> Any:
    with s.user():
        s += q
        s += await TOOLS.look(q)
    with s.assistant():
        s += lmc.gen("a", max_tokens=4)
    found = f"{await search(s['a'])!r:>30}"
    return found, s.messages()[0]["content"], s.get_meta_info("a")["finish_reason"]


@case()
async def awaits_on_one_side_of_or(s: Any, q: str) -> Any:
    s += q
    return (q == "a" and await search("x")) or await search("y"), 1 < len(await search(q)) < 100


async def steps(name: str) -> str:
    effect("first", name)
    await asyncio.sleep(0)
    effect("second", name)
    return name


@case()
async def tasks_take_turns_where_the_program_awaits(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    task = asyncio.create_task(steps(s["a"]))
    effect("the task has not begun")
    s += await steps(q) + await task + lmc.gen("b", max_tokens=2)
    later = asyncio.gather(steps("one"), steps(s["b"]))
    effect("nor have these", len(s["b"]))
    s += "".join(await later)


@case()
async def cancels_what_has_not_begun(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    task = asyncio.create_task(steps(s["a"]))
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    s += type(outcome).__name__


async def judges(s: Any, name: str) -> str:
    s += f"judge {name}:" + lmc.gen("v", max_tokens=4)
    return s["v"].strip().upper()


async def branches(s: Any, n: int) -> str:
    s += f"{n}" + lmc.gen("v", max_tokens=4)
    loaded = json.loads(f"[{n}]")
    if "a" in s["v"]:
        s += " more" + lmc.gen("w", max_tokens=3)
        effect("more", n, s["w"])
    return f"{s['v']}{loaded}"


async def counts(s: Any, seen: list[str]) -> int:
    s += lmc.gen("n", max_tokens=3)
    seen.append(s["n"])
    return len(json.loads(f"[{len(seen)}, 2]"))


async def nothing_to_ask(q: str) -> None:
    pass


@case()
async def gathers_helpers_that_only_ask(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(3)
    verdicts = await asyncio.gather(*[judges(f, str(i)) for i, f in enumerate(forks)])
    first, second = await asyncio.gather(judges(s, "a"), judges(s, verdicts[0]))
    s += " ".join(verdicts) + first + second
    verdicts.append("own")
    return verdicts, await search(q)


@case()
async def gathers_helpers_between_tools(s: Any, q: str) -> Any:
    """The task of a tool goes on while the helpers are gathered, and what is done after them comes after its turns."""
    s += await search(q)
    seen: list[str] = []

    async def asks(text: str) -> str:
        nonlocal s
        s += text + lmc.gen("t", max_tokens=3)
        return s["t"]

    task = asyncio.create_task(steps("beside"))
    found = await asyncio.gather(asks("x"), counts(s, seen), asks("y"), return_exceptions=True)
    effect("after", len(found))
    s += await task + await search(s["t"])
    return found, seen


@lmc.function
async def inner_asks(s: Any, tip: str) -> Any:
    s += "tip " + tip + lmc.gen("x", max_tokens=5)
    return s["x"]


@case()
async def gathers_sub_programs(s: Any, q: str) -> Any:
    children = await asyncio.gather(*[inner_asks.arun(tip=q + str(i)) for i in range(3)])
    s += "|".join(c["x"] for c in children) + lmc.gen("z", max_tokens=2)
    return [c.ret_value for c in children]


@case()
async def leaves_after_gathering(s: Any, q: str) -> Any:
    """The interpreter goes on after, and within, what was gathered: nothing is done twice."""
    s += q + await search(q)
    seen: list[str] = []
    found = await asyncio.gather(*[counts(f, seen) for f in s.fork(2)])
    effect("gathered", found)
    opaque(q)
    found += await asyncio.gather(*[counts(f, seen) for f in s.fork(2)])
    return found, seen, await search("end")


@case()
async def fails_while_gathering(s: Any, q: str) -> Any:
    async def fails(f: Any, i: int) -> Any:
        f += f"{i}" + lmc.gen("n", max_tokens=3)
        loaded = json.loads(f"[{i}]")
        loaded.append({"a": len, "b": int}[q](f["n"] + "x"))
        return loaded

    forks = s.fork(3)
    both = await asyncio.gather(fails(forks[0], 1), judges(forks[1], "1"), return_exceptions=True)
    s += str(both[1])
    try:
        return await asyncio.gather(judges(forks[0], "2"), fails(forks[1], 2), fails(forks[2], 3)), len(both)
    except ValueError as error:
        s += f"{error}"[:12] + "".join(f.text() for f in forks)
    return await asyncio.gather(fails(s, 4))


# -- programs: what the interpreter goes on with ---------------------------------------------------------------------------


@case()
async def raises(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=4)
    await search(q)
    await broken(s["a"])


@case()
async def catches(s: Any, q: str) -> Any:
    s += lmc.gen("a", max_tokens=4)
    try:
        await search("before")
        await broken(q)
    except ValueError as error:
        s += str(error)
    finally:
        effect("finally")
    return await search("after")


@case()
async def gather_raises(s: Any, q: str) -> Any:
    s += q
    found = await asyncio.gather(search(q), broken(q), return_exceptions=True)
    s += lmc.gen("a", max_tokens=3)
    return found[0], str(found[1])


@case()
async def gather_of_helpers(s: Any, q: str) -> Any:
    """Tasks of the program itself: their order is asyncio's."""
    s += q
    forks = s.fork(3)
    return await asyncio.gather(*[turn(f, str(i)) for i, f in enumerate(forks)])


async def notes(s: Any, q: str) -> str:
    s += lmc.gen("a", max_tokens=3)
    effect("note", s["a"])
    TENANT.set(q)
    return TENANT.get()


@case()
async def gather_of_helpers_with_effects(s: Any, q: str) -> Any:
    """They come in the tasks' order, and context variables are each task's own."""
    s += q + await search(q)
    found = await asyncio.gather(*[notes(f, q + str(i)) for i, f in enumerate(s.fork(2))])
    return found, TENANT.get(), await search("x")


@case()
async def gather_of_helpers_that_branch(s: Any, q: str) -> Any:
    s += q
    found = await asyncio.gather(*[branches(f, i) for i, f in enumerate(s.fork(4))])
    return found, await search("x")


@case()
async def gathers_inside_of_try(s: Any, q: str) -> Any:
    s += q
    try:
        return await asyncio.gather(*[branches(f, i) for i, f in enumerate(s.fork(3))])
    except ValueError:
        return await search("x")


@case()
async def gathers_and_awaits_later(s: Any, q: str) -> Any:
    s += q + await search(q)
    later = asyncio.gather(judges(s, "a"), judges(s, "b"))
    s += "before"
    return await search(s.text()), await later


@case()
async def gathers_helpers_and_tools(s: Any, q: str) -> Any:
    s += q
    return await asyncio.gather(judges(s, q), search(q), nothing_to_ask(q))


@case()
async def helpers_that_wait_for_each_other(s: Any, q: str) -> Any:
    """One after the other, they would wait for ever."""
    ready = asyncio.Event()

    async def first() -> str:
        await ready.wait()
        s.set_var("first", "done")
        return "first"

    async def second() -> str:
        await search(q)
        s.set_var("second", "done")
        ready.set()
        return "second"

    return await asyncio.wait_for(asyncio.gather(first(), second()), 60)


@case()
async def host_async_with(s: Any, q: str) -> Any:
    s += lmc.gen("a", max_tokens=3)
    async with session(q) as name:
        s += name + await search(q)
        s += lmc.gen("b", max_tokens=3)
    return s["b"]


@case()
async def times_out(s: Any, q: str) -> Any:
    s += lmc.gen("a", max_tokens=3)
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)
    except TimeoutError:
        s += "late"
    try:
        await asyncio.wait_for(asyncio.sleep(30), timeout=0.01)
    except TimeoutError:
        s += " again"
    return await search(q)


@case()
async def task_group(s: Any, q: str) -> Any:
    async with asyncio.TaskGroup() as group:
        one = group.create_task(search(q))
        two = group.create_task(turn(s, q))
    return one.result(), two.result()


@case()
async def cancels_its_own_tool(s: Any, q: str) -> Any:
    task = asyncio.create_task(asyncio.sleep(30))
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        s += "cancelled"
    return q


@case()
async def is_cancelled_by_its_own_tool(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    if q != "b":
        task = asyncio.create_task(asyncio.sleep(30))
        await asyncio.sleep(0)
        task.cancel("by the program")
        await task
    return s["a"]


@case()
async def forgets_to_await(s: Any, q: str) -> Any:
    inner.run(tip=q)


@case()
async def forgets_to_await_later(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    await search(s["a"])
    inner(tip=q)


@case()
async def awaits_a_program_that_is_not_async(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    await search(s["a"])
    s += (await inner_sync.arun(tip=q))["x"]


@some("name", cases(globals()), 5)
def test_means_the_same_in_every_execution(name: str) -> None:
    one: Case = cases(globals())[name]
    one.check()


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
    """A ticker on the same loop goes on, whatever the programs wait for; also where the interpreter goes on with them."""

    @lmc.function
    async def replayed(s: Any, q: str) -> Any:
        opaque(q)
        s += q + lmc.gen("a", max_tokens=4)
        return s["a"] + s.text() + str(s.get_meta_info("a"))

    for program in (two_searches, blocking, replayed):
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
    at_once = 0
    most = 0

    async def tool(i: int) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return str(i)

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=2)
        return await asyncio.gather(*[tool(i) for i in range(5)])

    fast = lmc.compile(program, backend=Mock())
    assert fast(q="x").ret_value == list("01234")
    assert most == 5
    fast.batch([{"q": "x"}] * 3)
    assert most == 15


def test_what_gathered_helpers_ask_is_asked_at_once() -> None:
    @lmc.function
    async def program(s: Any, q: str) -> Any:
        await search(q)
        return await asyncio.gather(*[judges(f, str(i)) for i, f in enumerate(s.fork(3))])

    @lmc.function
    async def left(s: Any, q: str) -> Any:
        await search(q)
        return await asyncio.gather(*[branches(f, i) for i, f in enumerate(s.fork(3))])

    for one, replays in ((program, 0), (left, 1)):
        fast = lmc.compile(one, backend=(backend := Gated(3)))
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
@pytest.mark.parametrize("awaited", ["tool", "helper", "gather", "items", "manager", "own tasks", "replayed"])
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
        if s["a"] and awaited == "replayed":
            opaque(q)
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
        with pytest.raises(lmc.errors.ProgramError, match=r"await two_searches\.acall"):
            fast(q="x")
        with pytest.raises(lmc.errors.ProgramError, match=r"await two_searches\.arun"):
            two_searches.run(q="x", backend=Mock())
        assert fast.batch([{"q": "x"}])  # on a loop of its own; this one waits for it

    asyncio.run(main())


def test_a_tool_may_run_another_program() -> None:
    fast = lmc.compile(two_searches, backend=Mock())

    async def tool(q: str) -> str:
        return (await fast.acall(q=q)).ret_value

    def sync_tool(q: str) -> str:
        return fast(q=q).ret_value

    @lmc.function
    async def outer(s: Any, q: str) -> Any:
        s += q + lmc.gen("b", max_tokens=2)
        return await tool(s["b"])

    @lmc.function
    def outer_sync(s: Any, q: str) -> Any:
        s += q + lmc.gen("b", max_tokens=2)
        return sync_tool(s["b"])

    for program in (outer, outer_sync):
        expected = program.run(q="x", backend=Mock(), seed=1).ret_value
        assert lmc.compile(program)(q="x", backend=Mock(), seed=1).ret_value == expected
        assert [s.ret_value for s in lmc.compile(program).batch([{"q": "x"}] * 3, backend=Mock(), seed=1)][0] == expected


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
    for given in ({"speculate": True},):
        with pytest.raises(lmc.ParameterError, match="'branches'"):
            fast(tip="x", **given)
        with pytest.raises(lmc.ParameterError, match="'branches'"):
            fast.batch([{"tip": "x"}], **given)
        with pytest.raises(lmc.ParameterError, match="'branches'"):
            fast.stream(tip="x", **given)
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
