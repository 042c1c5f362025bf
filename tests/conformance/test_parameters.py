"""Arguments of a gen are read where it is written: lists that change before and after, what no run could accept, and answers that are asked once."""

from __future__ import annotations

from typing import Any

import lmc
from lmc.backend.mock import Mock
from tests.conformance.outside import STEPS
from tests.conformance.table.parameters import list_of_the_outside


def test_siblings_that_are_given_the_same_list_are_one_request() -> None:
    @lmc.function
    def siblings(s: Any, q: str, xs: list[str]) -> Any:
        s += q
        forks = s.fork(3)
        forks += lmc.gen("x", max_tokens=9, stop=xs)
        return [f["x"] for f in forks]

    program = lmc.compile(siblings, backend=Mock())
    program(q="a", xs=["e"], temperature=0.8)
    assert program.dump_ir().count("ways = ") == 3


def test_guards_of_lists_of_the_outside() -> None:
    program = list_of_the_outside.program
    fast = lmc.compile(program, backend=Mock())
    for stops in (["one"], ["e"], ["a", "e"], ["one"]):
        STEPS[:] = stops
        want = program.run(q="a", backend=Mock(), seed=1).text()
        for _ in range(2):
            STEPS[:] = stops
            assert fast(q="a", seed=1).text() == want


