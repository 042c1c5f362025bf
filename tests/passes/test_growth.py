"""The most that a run's prompts grow behind each ask, by its graph."""

from __future__ import annotations

import lmc
from lmc.frontend.tracing import graph_of
from lmc.ir.ops import trait
from lmc.passes.base import Measure
from lmc.passes.predict import growth

WORDS = Measure("tokens", lambda text: len(text.split()), 1, 50, 1)


@lmc.function
def arms(s, task):
    s += task + lmc.select("kind", ["short", "long"])
    if s["kind"] == "long":
        s += "a b c" + lmc.gen("plan", max_tokens=100)
        s += "d e" + lmc.gen("more", max_tokens=50)
    else:
        s += "f" + lmc.gen("brief", max_tokens=7)
    s += "g h" + lmc.gen("end", max_tokens=5)


@lmc.function
def forked(s, task):
    s += task + lmc.gen("first", max_tokens=9)
    for fork in s.fork(2):
        fork += "a b" + lmc.gen("x", max_tokens=10)


@lmc.function
def looped(s, task, n):
    s += task + lmc.gen("first", max_tokens=9)
    for _ in range(n):
        s += "again" + lmc.gen("x", max_tokens=10)
    s += "end" + lmc.gen("last", max_tokens=3)


@lmc.function
def told(s, task, found):
    s += task + lmc.gen("first", max_tokens=9)
    s += found + lmc.gen("second", max_tokens=4)
    s += "so" + lmc.gen("last")


def behind(program) -> dict[str, int | None]:
    graph = graph_of(program)
    found = growth(graph, WORDS)
    return {op.attr("name"): found.get(i) for i, op in enumerate(graph.ops()) if trait(op) == "samples"}


def test_of_arms_the_longest_counts_and_in_an_arm_its_own():
    assert behind(arms) == {"kind": 3 + 100 + 2 + 50 + 2 + 5, "plan": 2 + 50 + 2 + 5, "more": 2 + 5, "brief": 2 + 5, "end": 0}


def test_forks_add_up():
    found = behind(forked)
    assert found["first"] == 2 * (2 + 10)


def test_what_nobody_can_tell_is_left_out():
    assert behind(looped) == {"first": None, "x": None, "last": 0}
    assert behind(told) == {"first": None, "second": None, "last": 0}


def test_a_programs_requests_say_so():
    program = lmc.compile(arms, backend=lmc.Mock())
    table = program.planner.annotations(lmc.Mock(), True).by_address
    known = {annotation.name: annotation.growth for found in table.values() for annotation in found}
    assert known["kind"] > known["plan"] > known["more"] > 0 and known["brief"] == known["more"]
