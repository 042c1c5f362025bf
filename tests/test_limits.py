"""Budgets and time-outs of runs: where they are raised, with what was spent, the same interpreted, compiled and in a batch."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import lmc
from lmc import limits
from lmc.backend.mock import CAPABILITIES, Mock
from lmc.backend.results import Output, Result
from lmc.backend.usage import Prices, Usage
from lmc.frontend.interpreter import LiveEmitter
from lmc.limits import Limits
from lmc.prompt import Prompt
from lmc.segments import Gen, SamplingParams
from tests.backend.gated import Gated
from tests.conformance.harness import conform, effect
from tests.searching import some
from tests.waiting import until

ITEMS = [{"q": "a"}, {"q": "bb"}]


@lmc.function
def forks(s: Any, q: str) -> Any:
    s += q
    group = s.fork(4)
    for i, f in enumerate(group):
        f += str(i) + lmc.gen("a", max_tokens=4)
        f += lmc.select("b", ["yes", "no"])
    s += " ".join(f["a"] + f["b"] for f in group)
    s += lmc.gen("end", max_tokens=4)
    return s["end"]


@lmc.function
def careful(s: Any, q: str) -> Any:
    """Goes on with what it has."""
    s += q
    done = 0
    try:
        for i in range(5):
            s += f"{i}:" + lmc.gen("x", max_tokens=3)
            effect("step", i, s["x"])
            done += 1
    except lmc.BudgetExceeded as error:
        s += f"stopped after {done}: {error.spent.calls} calls"
    return done


@lmc.function
def child(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    return s["x"]


@lmc.function
def parent(s: Any, q: str) -> Any:
    s += q + lmc.gen("y", max_tokens=3)
    helpers = [child(q=f"{q}{i}") for i in range(3)]
    s += " ".join(h["x"] for h in helpers) + lmc.gen("z", max_tokens=3)


def nested(q: str) -> str:
    effect("nested", q)
    return child.run(q=q)["x"]


@lmc.function
def tooled(s: Any, q: str) -> Any:
    s += q + lmc.gen("y", max_tokens=3)
    s += nested(s["y"]) + lmc.gen("z", max_tokens=3)
    try:
        int(s["z"])
    except ValueError:
        s += "again" + lmc.gen("z", max_tokens=3)
    s += nested(q) + lmc.gen("w", max_tokens=3)


PROGRAMS = {p.name: p for p in (forks, careful, parent, tooled)}


@some(("name", "budget"), product(PROGRAMS, [
    lmc.Budget(calls=0), lmc.Budget(calls=1), lmc.Budget(calls=3), lmc.Budget(calls=6), lmc.Budget(tokens=15), lmc.Budget(tokens=1),
    lmc.Budget(tokens=70, calls=5), lmc.Budget(tokens=40), lmc.Budget(cost=3e-5), lmc.Budget(cost=1), lmc.Budget(tokens=10_000),
]), 9, ids=str)  # fmt: skip
def test_a_budget_stops_every_execution_at_the_same_place(name: str, budget: lmc.Budget):
    able = replace(CAPABILITIES, prices=Prices(prompt=1, completion=2))
    conform(PROGRAMS[name], ITEMS, backend=lambda: Mock(capabilities=able), budget=budget)
    if 0 < (budget.calls or 2) < 6 and budget.tokens != 1:  # in the midst of the program, where it may matter when answers come
        late = lambda: Mock(capabilities=able, latency=lambda ask: 1e-4 * (len(ask.name or "") % 3))
        conform(PROGRAMS[name], ITEMS, backend=late, budget=budget)


def test_the_error_says_where_and_what_was_spent():
    with pytest.raises(lmc.BudgetExceeded, match=r"test_limits.py:\d+: the budget of this run \(calls=2\) is spent: 12 tokens in 2 calls") as raised:
        strict.run(q="a", budget=lmc.Budget(calls=2), backend=Mock(answers=["xyz", "xyz"]))
    assert raised.value.budget == lmc.Budget(calls=2)
    assert (raised.value.spent.tokens, raised.value.spent.calls, raised.value.spent.cost) == (12, 2, None)


@lmc.function
def strict(s: Any, q: str) -> Any:
    for _ in range(3):
        s += q + lmc.gen("x", max_tokens=3)


class Coming(Result):
    """Is there from the second look on."""

    looks = 0

    @property
    def done(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_an_answer_that_comes_while_answers_are_added_up_is_counted():
    """One that came between two looks at it was in no sum, and no longer open."""
    limits = Limits(lmc.Budget(calls=2), None, None)
    for answer in (Result(), Coming()):
        answer.finish(Output(("xyz",), ({},), usage=Usage(prompt_tokens=5, completion_tokens=3)))
        limits._enter(Gen(SamplingParams()), Prompt(None, ("q",), result=answer), bound=10)
    assert [limits.spent().tokens for _ in range(2)] == [8, 16]


def test_nothing_is_asked_beyond_the_budget():
    for call in (strict.run, lmc.compile(strict)):
        mock = Mock()
        with pytest.raises(lmc.BudgetExceeded):
            call(q="a", budget=lmc.Budget(calls=2), backend=mock)
        assert len(mock.call_log) == 2


def test_a_budget_far_away_stops_nothing_from_going_out_at_once():
    """8 answers wait at the gate together: none of them was needed to see that the others fit."""

    @lmc.function
    def wide(s: Any, q: str) -> Any:
        group = s.fork(8)
        for i, f in enumerate(group):
            f += f"{q}{i}" + lmc.gen("a", max_tokens=4)
        return [f["a"] for f in group]

    for call in (wide.run, lmc.compile(wide)):
        assert call(q="a", backend=Gated(8), budget=lmc.Budget(tokens=5_000, calls=8)).error() is None


def test_items_of_a_batch_have_budgets_of_their_own():
    items = [{"n": n} for n in range(4)]

    @lmc.function
    def count(s: Any, n: int) -> Any:
        for i in range(n):
            s += f"{i}" + lmc.gen("x", max_tokens=2)
        return n

    for states in (
        count.run_batch(items, budget=lmc.Budget(calls=2), errors="return", backend=Mock()),
        lmc.compile(count).batch(items, budget=lmc.Budget(calls=2), errors="return", backend=Mock()),
    ):
        assert [type(s.failure) for s in states] == [type(None)] * 3 + [lmc.BudgetExceeded]


def test_a_sub_program_may_have_a_smaller_budget():
    @lmc.function
    def outer(s: Any, q: str) -> Any:
        s += q + lmc.gen("y", max_tokens=3)
        try:
            strict.run(q=q, budget=lmc.Budget(calls=1))
        except lmc.BudgetExceeded as error:
            s += f"{error.spent.calls} of {error.budget.calls}"
        s += lmc.gen("z", max_tokens=3)

    for budget in (None, lmc.Budget(calls=2), lmc.Budget(calls=3)):
        conform(outer, ITEMS, budget=budget)
    assert "1 of 1" in outer.run(q="a", backend=Mock(), budget=lmc.Budget(calls=3)).text()


# -- time


@lmc.function
def waits(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    return s["x"]


def runs(program: Any, items: Any, backend: Any, **options: Any) -> list[Any]:
    """Return the result of each execution, or its exception."""
    fast = lmc.compile(program)
    found: list[Any] = []
    for call in (lambda: program.run(**items[0], backend=backend, **options), lambda: fast(**items[0], backend=backend, **options)):
        try:
            found.append(call())
        except lmc.LmcError as error:
            found.append(error)
    found += [s.failure or s for s in program.run_batch(items, backend=backend, errors="return", **options)]
    found += [s.failure or s for s in fast.batch(items, backend=backend, errors="return", **options)]
    return found


def test_what_is_awaited_when_the_time_is_over_fails_and_is_cancelled():
    mock = Gated()
    for error in runs(waits, ITEMS, mock, timeout=0.03):
        assert isinstance(error, lmc.RunTimeout)
        assert isinstance(error, TimeoutError)
        assert "took longer than timeout=0.03 s" in str(error)
        assert error.spent.calls <= 1  # 0: tracing took all of the time
    until(lambda: not mock._pending, "a request was not cancelled")


def test_after_its_time_a_program_may_end_but_not_ask():
    @lmc.function
    def late(s: Any, q: str) -> Any:
        try:
            s += q + lmc.gen("x", max_tokens=4)
            s["x"]
        except TimeoutError:
            effect("late")
        if q == "a":
            return "ended"
        s += lmc.gen("y", max_tokens=4)
        return s["y"]

    mock = Gated()
    found = runs(late, [{"q": "a"}, {"q": "b"}], mock, timeout=0.03)
    assert [getattr(x, "ret_value", type(x)) for x in found] == ["ended"] * 2 + ["ended", lmc.RunTimeout] * 2
    assert {c.name for c in mock.call_log} <= {"x"}


def test_a_run_in_time_is_not_touched():
    for state in runs(waits, ITEMS, Mock(latency=1e-3), timeout=30):
        assert state.error() is None


def test_forks_that_build_on_a_late_answer_say_that_the_time_is_over():
    @lmc.function
    def chain(s: Any, q: str) -> Any:
        s += q + lmc.gen("x", max_tokens=4) + lmc.gen("y", max_tokens=4) + lmc.gen("z", max_tokens=4)
        return s["z"]

    for error in runs(chain, ITEMS, Gated(), timeout=0.03):
        assert isinstance(error, lmc.RunTimeout)


def test_the_clock_ends_with_the_runs_it_serves(monkeypatch: pytest.MonkeyPatch):
    ended = threading.Event()

    class OfThisRun(type(limits._clock)):
        def _work(self) -> None:
            super()._work()
            ended.set()

    monkeypatch.setattr(limits, "_clock", OfThisRun())
    with contextlib.suppress(lmc.RunTimeout):  # on a busy machine
        waits.run(q="a", backend=Mock(), timeout=0.02)
    assert ended.wait(60)


# -- what an async program awaits when its time is over

ENDED: list[str] = []
STRIKES: list[Any] = []  # what ends the time of the runs that go on, once as many tools wait as are to


class Hour:
    """Stands for the clock of all runs: their time is over when `waiting` tools have begun, whatever a real clock says."""

    def __init__(self, waiting: int) -> None:
        self.left, self.limits = waiting, list[Any]()

    def at(self, when: float, limits: Any) -> None:
        self.limits.append(limits)

    def begun(self) -> None:
        self.left -= 1
        if not self.left:
            for limits in self.limits:
                limits.expire()


async def hangs(q: str) -> None:
    try:
        STRIKES[-1].begun()
        await asyncio.Event().wait()
    finally:
        ENDED.append(q)


async def hanging_items(q: str) -> AsyncIterator[str]:
    yield q
    await hangs(q)


@contextlib.asynccontextmanager
async def hanging_manager(q: str) -> AsyncIterator[None]:
    await hangs(q)
    yield


async def cleans_up() -> str:
    await asyncio.sleep(0)
    return "cleaned"


async def helps(s: Any, q: str) -> None:
    s += "."
    await hangs(q)


@lmc.function
async def awaits(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    await hangs(s["x"] and q)  # here


@lmc.function
async def awaits_in_a_helper(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    await helps(s, q)  # here


@lmc.function
async def awaits_items(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    async for i in hanging_items(q):  # here
        s += i


@lmc.function
async def enters(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    async with hanging_manager(q):  # here
        pass


@lmc.function
async def gathers(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    await asyncio.gather(hangs(q), asyncio.sleep(0))  # here


@lmc.function
async def gathers_its_own(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    s["x"]
    await asyncio.gather(*[helps(f, q) for f in s.fork(1)])  # here


@lmc.function
async def waits_for_tasks(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    async with asyncio.TaskGroup() as group:  # here
        group.create_task(hangs(q))


LATE = [awaits, awaits_in_a_helper, awaits_items, enters, gathers, gathers_its_own, waits_for_tasks]


def _ways(program: Any, **options: Any) -> dict[str, Any]:
    """Every way to run an async program, and with how many items."""
    fast = lmc.compile(program, backend=Mock())
    one, two = {"q": "a", **options}, {"errors": "return", **options}
    return {
        "run": (1, lambda: program.run(**one, backend=Mock())),
        "arun": (1, lambda: asyncio.run(program.arun(**one, backend=Mock()))),
        "run_batch": (2, lambda: program.run_batch(ITEMS, backend=Mock(), **two)),
        "compiled": (1, lambda: fast(**one)),
        "acall": (1, lambda: asyncio.run(fast.acall(**one))),
        "batch": (2, lambda: fast.batch(ITEMS, **two)),
        "abatch": (2, lambda: asyncio.run(fast.abatch(ITEMS, **two))),
        "stream": (1, lambda: fast.stream(**one)),
    }


def _ended(call: Any) -> list[Any]:
    try:
        found = call()
    except lmc.LmcError as error:
        return [error]
    return [s.error() or s for s in found] if isinstance(found, list) else [found.error() or found]


@pytest.mark.parametrize("program", LATE, ids=lambda p: p.name)
def test_what_is_awaited_when_the_time_is_over_is_cancelled(program: Any, monkeypatch: pytest.MonkeyPatch):
    lines = {helps.__code__.co_firstlineno + 2} if program is awaits_in_a_helper else set[int]()  # which a compiled run says
    source = inspect.getsourcelines(program.func)
    lines.add(source[1] + next(i for i, text in enumerate(source[0]) if "# here" in text))
    for way, (runs, call) in _ways(program, timeout=3600).items():
        if program is not awaits and way not in ("run", "acall", "batch"):
            continue
        ENDED.clear()
        monkeypatch.setattr(limits, "_clock", hour := Hour(runs))
        STRIKES.append(hour)
        errors = _ended(call)
        assert [type(e) for e in errors] == [lmc.RunTimeout] * runs, way
        for error in errors:
            assert error.loc.line in lines, way
            assert error.spent.calls == 1, way
            assert f"test_limits.py:{error.loc.line}: the run took longer than timeout=3600 s" in str(error)
        assert sorted(ENDED) == ["a", "bb"][:runs], way


def test_a_program_that_knows_that_its_time_is_over_may_await_but_not_ask(monkeypatch: pytest.MonkeyPatch):
    @lmc.function
    async def careful_too(s: Any, q: str) -> Any:
        s += q + lmc.gen("x", max_tokens=2)
        try:
            await hangs(s["x"] and q)
        except (asyncio.CancelledError, TimeoutError):  # Python's own run is cancelled, as by `asyncio.timeout`
            s += await cleans_up()
        try:
            s += lmc.gen("y", max_tokens=2)
        except lmc.RunTimeout:
            s += await cleans_up()
        return s.text()[-14:]

    for way, (runs, call) in _ways(careful_too, timeout=3600).items():
        monkeypatch.setattr(limits, "_clock", hour := Hour(runs))
        STRIKES.append(hour)
        assert [s.ret_value for s in _ended(call)] == ["cleanedcleaned"] * runs, way


def test_the_next_await_that_waits_is_cancelled_when_the_time_went_by_before(monkeypatch: pytest.MonkeyPatch):
    """No matter who says so first: here a tool that blocks has used up the time."""

    def blocks() -> None:
        STRIKES[-1].begun()

    @lmc.function
    async def late(s: Any, q: str) -> Any:
        s += q
        blocks()
        await forever()

    async def forever() -> None:
        await asyncio.Event().wait()

    for way, (runs, call) in _ways(late, timeout=3600).items():
        monkeypatch.setattr(limits, "_clock", hour := Hour(runs))
        STRIKES.append(hour)
        assert [type(e) for e in _ended(call)] == [lmc.RunTimeout] * runs, way


def test_a_sub_program_may_have_less_time(monkeypatch: pytest.MonkeyPatch):
    """Its time is over, the caller's is not."""

    @lmc.function
    async def outer(s: Any, q: str) -> Any:
        s += q + lmc.gen("y", max_tokens=2)
        try:
            await awaits.arun(q=q, timeout=5)
        except lmc.RunTimeout as error:
            s += await cleans_up() + str(error).partition("longer than ")[2][:11]
        s += lmc.gen("z", max_tokens=2)
        return s.text().endswith(s["z"]) and "cleanedtimeout=5 s" in s.text()

    class Inner(Hour):
        def at(self, when: float, limits: Any) -> None:
            if limits.timeout == 5:
                super().at(when, limits)

    for way, (runs, call) in _ways(outer, timeout=3600).items():
        monkeypatch.setattr(limits, "_clock", hour := Inner(runs))
        STRIKES.append(hour)
        assert [s.ret_value for s in _ended(call)] == [True] * runs, way


def test_the_clock_ends_what_is_awaited():
    """The real one."""

    async def forever() -> None:
        await asyncio.Event().wait()

    @lmc.function
    async def program(s: Any, q: str) -> Any:
        s += q
        await forever()

    for error in runs(program, ITEMS, Mock(), timeout=0.03):
        assert isinstance(error, lmc.RunTimeout)
        assert "took longer than timeout=0.03 s" in str(error)


# -- what is refused


def test_limits_are_checked_before_the_run():
    for make, kind, match in (
        (lambda: lmc.Budget(), lmc.ParameterError, "give tokens="),
        (lambda: lmc.Budget(tokens=-1), lmc.ParameterError, "at least 0"),
        (lambda: lmc.Budget(calls=1.5), lmc.ArgumentError, "whole number"),  # type: ignore[arg-type]
        (lambda: waits.run(q="a", budget=100), lmc.ArgumentError, r"lmc\.Budget\("),
        (lambda: waits.run(q="a", timeout=0), lmc.ParameterError, "above 0"),
        (lambda: lmc.compile(waits)(q="a", timeout="1"), lmc.ArgumentError, "number of seconds"),
        (lambda: waits.run(q="a", backend=Mock(), budget=lmc.Budget(cost=1)), lmc.ParameterError, "mock has no prices"),
        (lambda: lmc.compile(waits).batch(ITEMS, backend=Mock(), budget=lmc.Budget(cost=1)), lmc.ParameterError, "no prices"),
    ):
        with pytest.raises(kind, match=match):
            make()


def test_a_parameter_may_be_called_timeout():
    @lmc.function
    def own(s: Any, timeout: str) -> Any:
        s += timeout

    state = own.run(timeout="x", backend=Mock())
    assert state.text() == "x"
    assert isinstance(state.emitter, LiveEmitter)
    assert state.emitter.run.limits is None
