"""Budgets and time-outs of runs: where they are raised, with what was spent, the same interpreted, compiled and in a batch."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

import lmc
from lmc.backend.base import Prices
from lmc.backend.mock import CAPABILITIES, Mock
from lmc.frontend.interpreter import LiveEmitter
from tests.backend.gated import Gated
from tests.conformance.harness import conform, effect

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


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("budget", [
    lmc.Budget(calls=0), lmc.Budget(calls=1), lmc.Budget(calls=3), lmc.Budget(calls=6), lmc.Budget(tokens=1), lmc.Budget(tokens=15),
    lmc.Budget(tokens=40), lmc.Budget(tokens=70, calls=5), lmc.Budget(tokens=10_000), lmc.Budget(cost=3e-5), lmc.Budget(cost=1),
], ids=str)  # fmt: skip
def test_a_budget_stops_every_execution_at_the_same_place(name: str, budget: lmc.Budget):
    able = replace(CAPABILITIES, prices=Prices(prompt=1, completion=2))
    quick = [lambda: Mock(capabilities=able), lambda: Mock(capabilities=able, latency=lambda ask: 1e-4 * (len(ask.name or "") % 3))]
    for backend in quick:
        conform(PROGRAMS[name], ITEMS, backend=backend, budget=budget, leaves="^$|raises BudgetExceeded" if name == "careful" else None)


def test_the_error_says_where_and_what_was_spent():
    with pytest.raises(lmc.BudgetExceeded, match=r"test_limits.py:\d+: the budget of this run \(calls=2\) is spent: 12 tokens in 2 calls") as raised:
        strict.run(q="a", budget=lmc.Budget(calls=2), backend=Mock(answers=["xyz", "xyz"]))
    assert raised.value.budget == lmc.Budget(calls=2)
    assert (raised.value.spent.tokens, raised.value.spent.calls, raised.value.spent.cost) == (12, 2, None)


@lmc.function
def strict(s: Any, q: str) -> Any:
    for _ in range(3):
        s += q + lmc.gen("x", max_tokens=3)


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
        conform(outer, ITEMS, budget=budget, leaves="with options of its own")
    assert "1 of 1" in outer.run(q="a", backend=Mock(), budget=lmc.Budget(calls=3)).text()


# -- time


@lmc.function
def waits(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    return s["x"]


def runs(program: Any, items: Any, backend: Any, **options: Any) -> list[Any]:
    """What each execution gives or raises."""
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
    until = time.monotonic() + 60
    while mock._pending and time.monotonic() < until:
        time.sleep(0.001)
    assert not mock._pending, "a request was not cancelled"


@pytest.mark.filterwarnings("ignore:late goes on in the interpreter. raises RunTimeout:lmc.CaptureWarning")
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


def test_the_clock_ends_with_the_runs_it_serves():
    waits.run(q="a", backend=Mock(), timeout=0.02)
    until = time.monotonic() + 60
    while any(t.name == "lmc-clock" for t in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.005)
    assert not any(t.name == "lmc-clock" for t in threading.enumerate())


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
