"""Addresses in tasks that go on at the same time: each task numbers what it calls, so no answer that comes first decides about a seed."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmc
from tests.backend.gated import Gated, InTurn
from tests.conformance.harness import eager
from tests.searching import some

CONNECTIONS: list[int] = []
"""How many tasks of its own a library needs before the program's."""


@lmc.function
def child(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=4)
    return s["a"]


async def chain(q: str) -> str:
    first = (await child.arun(q)).ret_value
    return (await child.arun(f"{q} {first}")).ret_value


@lmc.function
async def gathers(s: Any) -> Any:
    return await asyncio.gather(*map(chain, "abc")), child.run("end").ret_value


@lmc.function
async def groups(s: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(chain(q)) for q in "abc"]
    return [task.result() for task in tasks], child.run("end").ret_value


@lmc.function
async def nests(s: Any) -> Any:
    async def within(q: str) -> str:
        return "".join(await asyncio.gather(chain(q)))

    return await asyncio.gather(*map(within, "abc"))


def forked_twice(of: Any, q: str) -> str:
    """Of one state, the second fork after the first one's answer: so which task's it is depends on the order of answers."""
    (one,) = of.fork(1)
    one += q + lmc.gen("a", max_tokens=4)
    (two,) = of.fork(1 if one["a"] else 2)
    two += q + lmc.gen("a", max_tokens=4)
    return one["a"] + two["a"]


async def all_fork_twice(of: Any) -> list[str]:
    async def twice(q: str) -> str:
        return forked_twice(of, q)

    return await asyncio.gather(*map(twice, "abc"))


@lmc.function
async def forks(s: Any) -> Any:
    return await all_fork_twice(s)


@lmc.function
async def shares_a_fork(s: Any) -> Any:
    return await all_fork_twice(s.fork(1)[0])


@lmc.function
def forks_twice(s: Any, shared: Any, q: str) -> Any:
    return forked_twice(shared, q)


@lmc.function
async def hands_a_fork_to_sub_programs(s: Any) -> Any:
    (shared,) = s.fork(1)
    states = await asyncio.gather(*[forks_twice.arun(shared, q) for q in "abc"])
    return [state.ret_value for state in states]


@lmc.function
async def shares_what_a_task_has_made(s: Any) -> Any:
    async def makes() -> list[str]:
        return await all_fork_twice(s.fork(1)[0])

    return await makes()


@lmc.function
def copies_in_turn(s: Any, shared: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=4)
    (copy,) = shared.fork(1 if s["a"] else 2)
    copy += q + lmc.gen("a", max_tokens=4)
    return s["a"] + copy["a"]


@lmc.function
def bodies_share_what_they_copy(s: Any) -> Any:
    (shared,) = s.fork(1)

    def body(f: Any, q: str) -> str:
        f += q + lmc.gen("a", max_tokens=4)
        (of_all,) = s.fork(1 if f["a"] else 2)
        of_all += q + "!" + lmc.gen("a", max_tokens=4)
        (own,) = f.fork(1)
        own += q + "?" + lmc.gen("a", max_tokens=4)
        return of_all["a"] + own["a"] + copies_in_turn.run(shared, q + ".").ret_value

    return s.fork(3).each(body, "abc")


@lmc.function
async def async_bodies_share_what_they_copy(s: Any) -> Any:
    (shared,) = s.fork(1)

    async def body(f: Any, q: str) -> str:
        f += q + lmc.gen("a", max_tokens=4)
        (of_all,) = s.fork(1 if f["a"] else 2)
        of_all += q + "!" + lmc.gen("a", max_tokens=4)
        (own,) = f.fork(1)
        own += q + "?" + lmc.gen("a", max_tokens=4)
        (copy,) = shared.fork(1)
        copy += q + "." + lmc.gen("a", max_tokens=4)
        return of_all["a"] + own["a"] + copy["a"]

    return await s.fork(3).each(body, "abc")


@lmc.function
async def in_one_context(s: Any) -> Any:
    context = contextvars.copy_context()
    return await asyncio.gather(*[asyncio.get_running_loop().create_task(chain(q), context=context) for q in "abc"])


@lmc.function
async def on_threads(s: Any) -> Any:
    def both(q: str) -> str:
        return child.run(q + child.run(q).ret_value).ret_value

    return await asyncio.gather(*[asyncio.to_thread(both, q) for q in "abc"])


@lmc.function
async def shields(s: Any) -> Any:
    return await asyncio.gather(*[asyncio.shield(chain(q)) for q in "abc"])


@lmc.function
async def sub_programs_that_gather(s: Any) -> Any:
    states = await asyncio.gather(*[of_one.arun(q) for q in "abc"])
    return [state.ret_value for state in states]


@lmc.function
async def of_one(s: Any, q: str) -> Any:
    return await asyncio.gather(chain(q))


PROGRAMS = [
    gathers, groups, nests, forks, in_one_context, on_threads, shields, sub_programs_that_gather, shares_a_fork, hands_a_fork_to_sub_programs,
    shares_what_a_task_has_made, bodies_share_what_they_copy, async_bodies_share_what_they_copy,
]  # fmt: skip


def asked(backend: lmc.Mock) -> list[tuple[str, int]]:
    return sorted((call.prompt_text, call.seed) for call in backend.call_log)


@pytest.mark.parametrize("compiled", [False, True])
@some("program", PROGRAMS, 2, ids=lambda p: p.name)
def test_seeds_do_not_depend_on_the_order_of_answers(program: Any, compiled: bool) -> None:
    run: Callable[..., Any] = lmc.compile(program) if compiled else program.run
    found: list[Any] = []
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        backend = InTurn(order)
        found.append((run(backend=backend, seed=1).ret_value, asked(backend)))
    assert found[0] == found[1] == found[2]
    assert len({seed for _, seed in found[0][1]}) == len(found[0][1])


BODIES = [bodies_share_what_they_copy, async_bodies_share_what_they_copy]


@pytest.mark.parametrize("program", BODIES, ids=lambda p: p.name)
def test_an_evaluation_numbers_what_bodies_copy_as_they_do(program: Any) -> None:
    backend, plain = Gated(4), lmc.Mock()  # the bodies ask three at first
    usage = eager(lmc.compile(program))(backend=backend, seed=1).usage
    program.run(backend=plain, seed=1)
    assert usage.ahead_wasted == 0 < usage.ahead_used
    assert asked(backend) == asked(plain)


@pytest.mark.parametrize("program", BODIES, ids=lambda p: p.name)
def test_what_bodies_copy_has_the_same_addresses_in_a_journaled_run(program: Any, tmp_path: Path) -> None:
    backend, plain, again = lmc.Mock(), lmc.Mock(), lmc.Mock()
    program.run(backend=backend, seed=1, journal=tmp_path / "run.journal")
    program.run(backend=plain, seed=1)
    program.run(backend=again, seed=1, journal=tmp_path / "run.journal")
    assert asked(backend) == asked(plain) and asked(again) == []


MADE: list[weakref.ref[Any]] = []


@lmc.function
async def returns_what_tasks_make(s: Any) -> Any:
    async def copies() -> Any:
        return s.fork(1)[0]

    MADE.append(weakref.ref(s))
    return await asyncio.gather(child.arun("a"), copies())


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_task_has_made_does_not_keep_its_program(compiled: bool) -> None:
    run: Callable[..., Any] = lmc.compile(returns_what_tasks_make) if compiled else returns_what_tasks_make.run
    kept = run(backend=lmc.Mock(), seed=1).ret_value
    gc.collect()
    assert len(kept) == 2 and MADE.pop()() is None


@lmc.function
async def calls_in_turn(s: Any) -> Any:
    one = child.run("a").ret_value
    two = (await child.arun("b")).ret_value
    three = await asyncio.wait_for(chain("c"), 60)
    four, five = [state.ret_value for state in await asyncio.gather(child.arun("d"), child.arun("e"))]
    return [one, two, three, four, five, child.run("f").ret_value]


@lmc.function
def calls_in_turn_without_tasks(s: Any) -> Any:
    one, two = child.run("a").ret_value, child.run("b").ret_value
    three = child.run(f"c {child.run('c').ret_value}").ret_value
    four, five = child.run("d").ret_value, child.run("e").ret_value
    return [one, two, three, four, five, child.run("f").ret_value]


def test_what_is_waited_for_at_once_is_numbered_as_without_tasks() -> None:
    """`wait_for` makes a task up to Python 3.11 only; and a task that is nothing but a sub-program has the number of its call."""
    backend, plain = lmc.Mock(), lmc.Mock()
    assert calls_in_turn.run(backend=backend, seed=1).ret_value == calls_in_turn_without_tasks.run(backend=plain, seed=1).ret_value
    assert asked(backend) == asked(plain)


async def connects() -> None:
    pass


@lmc.function
async def beside_a_library(s: Any) -> Any:
    for _ in CONNECTIONS:
        await asyncio.create_task(connects())
    return await asyncio.gather(*map(chain, "ab"))


def test_tasks_of_libraries_do_not_count() -> None:
    found: list[Any] = []
    for connections in (0, 2):
        CONNECTIONS[:] = range(connections)
        found.append(beside_a_library.run(backend=lmc.Mock(), seed=1).ret_value)
    assert found[0] == found[1]
