"""Cost of losing objects: it grows with what is lost, and is charged as steps."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

import lmc
from lmc.frontend.capture.flow import Scan
from tests.frontend.capture.comparing import evaluation


class Box:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def add(self, x: Any) -> None:
        self.items.append(x)


@lmc.function
def gives_lost_objects_more_and_more(s, n):
    s += lmc.gen("a")
    box = Box()
    if s["a"] == "y":
        box.add([0])
    for i in range(n):
        box.items.append([[i]])
    s += lmc.gen("b")


@lmc.function
def changes_one_of_many(s, n):
    s += lmc.gen("a")
    lists: dict[Any, Any] = {i: [i] for i in range(4 * n)}
    for i in range(n):
        lists.get(s["a"]).append([i])
    s += lmc.gen("b")


@lmc.function
def loses_objects_that_hold_one_another(s, n):
    s += lmc.gen("a")
    found: list[Any] = []
    for i in range(n):

        class K:
            def __init__(self, x: Any):
                self.x = x

            def __eq__(self, other):
                return True

        k = K(i)
        found.append(k)
        if s["a"] == "y":
            k.x = found
    s += lmc.gen("b")


def first(xs):
    ys = xs if xs else [xs]
    return ys[0]


@lmc.function
def skips_calls_of_a_function(s, n):
    s += lmc.gen("a")
    found: list[Any] = [[]]
    for _ in range(n):
        if s["a"] == "y":
            first(found).append(1)
        [first][len(s["a"])](found)
    s += lmc.gen("b")


def cost(program: Any, n: int) -> tuple[int, int]:
    """Return the steps of an evaluation, and the objects that were looked at by their ids."""
    looked = 0

    def count(_frame: Any, event: str, arg: Any) -> None:
        nonlocal looked
        looked += event == "c_call" and arg is builtins.id

    sys.setprofile(count)
    try:
        _, outcome = evaluation(program, {"n": n}, {})
    finally:
        sys.setprofile(None)
    return outcome.steps, looked


@pytest.mark.parametrize("program", [gives_lost_objects_more_and_more, changes_one_of_many, loses_objects_that_hold_one_another], ids=lambda p: p.name)
def test_losing_objects_again_is_quadratic_at_most_and_charged(program: Any) -> None:
    (_, once), (steps, twice) = cost(program, 40), cost(program, 80)
    assert twice < 5 * once
    assert twice < 64 * steps, (steps, twice)


def test_where_results_come_from_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation(skips_calls_of_a_function, {"n": 3}, {})
    looked: list[Any] = []
    origins = Scan.origins
    monkeypatch.setattr(Scan, "origins", lambda self, *args: looked.append(self) or origins(self, *args))
    asked, _ = evaluation(skips_calls_of_a_function, {"n": 3}, {})
    assert len(asked) == 2
    assert not looked
