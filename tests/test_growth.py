"""A trace tree whose items never repeat a path is traced a bounded number of times; one that serves its runs may grow."""

from __future__ import annotations

from typing import Any

import lmc
from lmc.backend.mock import Mock
from lmc.jit.growth import FIRST, PATIENCE, Growth, Start


@lmc.function
def decides(s: Any, q: str) -> None:
    s += q
    for i in range(9):
        s += f"{i}" + lmc.gen("x", max_tokens=4)
        if "a" in s["x"]:
            s += "yes"


def test_paths_that_never_repeat_are_traced_on_credit_only() -> None:
    fast = lmc.compile(decides, backend=Mock())
    fast.batch([{"q": f"item {i}"} for i in range(80)])
    few = fast.stats.traces
    fast.batch([{"q": f"item {i}"} for i in range(80, 240)])
    assert few <= 3 * FIRST
    assert fast.stats.traces - few <= FIRST  # twice as many items more, and hardly any trace


def test_without_credit_most_runs_begin_in_the_interpreter() -> None:
    growth = Growth()
    for _ in range(FIRST):
        growth.traced()
    assert not growth.affordable
    starts: list[Start] = []
    for _ in range(400):
        starts.append(growth.begin())
        if starts[-1] is not Start.INTERPRETER:
            growth.left()
    assert starts[:PATIENCE] == [Start.GRAPH] * PATIENCE
    assert starts.count(Start.INTERPRETER) > 300
    assert 1 <= starts.count(Start.TRIAL) <= 3


def test_runs_that_the_tree_carries_earn_credit() -> None:
    growth = Growth()
    for _ in range(FIRST):
        growth.traced()
    while not growth.affordable:
        growth.carried()
    assert growth.missed == 0
    for _ in range(10 * FIRST):
        growth.carried()
    assert growth.credit == FIRST


def test_a_tree_that_grew_is_planned_as_one_when_runs_take_its_paths_again() -> None:
    fast = lmc.compile(decides, backend=Mock())
    fast("item", seed=1)
    (traced,) = fast.traces()
    (first,) = traced.plans.values()
    for seed in range(2, 5):
        fast("item", seed=seed)
    assert traced.tree.size > 2 * first.size  # each took a path of its own
    assert [*traced.plans.values()] == [first]
    grown = traced.tree.size
    for _ in range(2):
        fast("item", seed=1)  # the path that was traced for it
    (again,) = traced.plans.values()
    assert again.size == grown


def test_the_longer_no_run_is_carried_the_fewer_try() -> None:
    growth = Growth()
    for _ in range(FIRST):
        growth.traced()
    tried: list[int] = []
    for begun in range(20_000):
        if growth.begin() is not Start.INTERPRETER:
            tried.append(begun)
            growth.left()
    assert len([begun for begun in tried if begun < 1000]) > 2 * len([begun for begun in tried if begun >= 19_000])


@lmc.function
def many_decisions(s: Any, q: str) -> int:
    total = 0
    for i in range(40):
        if i % 10 == 0:
            s += f"{i}" + lmc.gen("a", max_tokens=2)
        total += len(s["a"]) * i
        if total > 10**6:
            break
    return total


def test_one_run_does_not_wait_for_all_of_a_long_path() -> None:
    fast, expected = lmc.compile(many_decisions, backend=Mock()), many_decisions.run("a", backend=Mock(), seed=7).ret_value
    assert [fast("a", seed=7).ret_value for _ in range(6)] == [expected] * 6
    assert 1 <= fast.stats.replays <= 3  # the later runs find all of it
