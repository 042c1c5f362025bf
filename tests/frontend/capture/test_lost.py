"""The cost of what objects may hold of which nothing is known: it grows with their number, and is charged as steps."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import lmc
from tests.frontend.capture.comparing import evaluation


def ask(s: Any, q: str) -> str:
    (f,) = s.fork(1)
    f += q + lmc.gen("a", max_tokens=4)
    return f["a"]


@lmc.function
def gives_a_lost_object_more_and_more(s, n):
    answer = ask(s, "q")
    box: Any = {"items": [[0]]}
    if answer:
        box["more"] = box
    for i in range(n):
        box["items"].append([[i]])
    ask(s, "end")


@lmc.function
def changes_one_of_many(s, n):
    answer = ask(s, "q")
    lists: Any = {str(i): [i] for i in range(4 * n)}
    for i in range(n):
        lists.get(answer).append([i])
    ask(s, "end")


@lmc.function
def keeps_what_may_be_kept_already(s, n):
    answer, kept = ask(s, "q"), []
    for i in range(3 * n):
        item = [[i]]
        if answer:
            kept.append(item)
        kept[0].append(2)
    ask(s, "end")


def calls_and_steps(program: Any, n: int) -> tuple[int, int]:
    """Return how often an evaluation asks for an object's id, and its steps."""
    calls = 0

    def count(_frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "c_call" and arg is id

    sys.setprofile(count)
    try:
        asked, outcome = evaluation(program, {"n": n}, {})
    finally:
        sys.setprofile(None)
    assert asked[-1].prompt == "end" and asked[-1].certain
    return calls, outcome.steps


@pytest.mark.parametrize("program", [gives_a_lost_object_more_and_more, changes_one_of_many, keeps_what_may_be_kept_already], ids=lambda p: p.name)
def test_what_lost_objects_may_hold_is_shared_and_charged(program: Any) -> None:
    once, twice = calls_and_steps(program, 40), calls_and_steps(program, 80)
    assert twice[0] < 5 * once[0]
    assert twice[0] < 200 * twice[1]
