"""The outside as Python sees it: containers and globals that programs copy, slice and remember while loops, tools and later calls change them."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

import lmc
from lmc import gen
from tests.conformance.table.outside import CONFIG, KW, NAMES, VIEW, reset


def test_what_is_outside_is_read_anew_for_each_call():
    """Not the first trace's: what a later call is given is what is there then."""

    @lmc.function
    def program(s: Any) -> Any:
        own = dict(CONFIG)
        s += f"{own['style']}|{dict(VIEW)['style']}|{dict(os.environ)['LMC_TEST_STYLE']}|{','.join(['a', *NAMES])}" + gen("x", **dict(KW))
        return s.text()

    fast = lmc.compile(program, backend=lmc.Mock())
    reset()
    fast()
    CONFIG["style"], KW["max_tokens"], os.environ["LMC_TEST_STYLE"] = "epic", 1, "loud"
    NAMES.append("dan")
    state = fast()
    assert state.text().startswith("epic|epic|loud|a,ann,bob,dan") and state.usage.completion_tokens <= 1


# -- from call to call -------------------------------------------------------------------------------------------------

COUNT = 0


@lmc.function
def counts(s: Any, q: str) -> int:
    global COUNT
    COUNT += 1
    s += f"{COUNT}" + gen("x", max_tokens=5)
    COUNT = COUNT + len(s["x"])
    return COUNT


def test_a_global_that_each_run_counts_up():
    global COUNT
    fast, found = lmc.compile(counts, backend=lmc.Mock()), []
    for run in (lambda **given: counts.run(**given, backend=lmc.Mock()), fast, fast):
        COUNT = 0
        found.append([run(q="a", seed=1).ret_value, COUNT])
    assert found[0] == found[1] == found[2]
    assert fast(q="a", seed=1).ret_value > found[0][0]


@lmc.function
def default_mutable(s: Any, q: str, seen: list[str] = []) -> int:  # noqa: B006
    seen.append(q)
    s += q + gen("x", max_tokens=3)
    return len(seen)


def test_a_mutable_default_is_one_object():
    fast = lmc.compile(default_mutable, backend=lmc.Mock())
    n = default_mutable.run(q="a", backend=lmc.Mock()).ret_value
    assert fast(q="a").ret_value == n + 1
    assert fast(q="b").ret_value == n + 2


def test_a_generator_goes_on_where_the_run_before_left_it():
    numbers = itertools.count()

    @lmc.function
    def program(s: Any, q: str) -> Any:
        first = next(numbers)
        s += q + gen("x", max_tokens=3)
        return first, next(numbers)

    fast = lmc.compile(program, backend=lmc.Mock())
    assert [fast(q="a").ret_value for _ in range(3)] == [(0, 1), (2, 3), (4, 5)]


@pytest.fixture(autouse=True)
def clean() -> Any:
    yield
    os.environ.pop("LMC_TEST_STYLE", None)
