"""What the passes do to whole programs on the mock: the same answers, and as many calls as are needed."""

from __future__ import annotations

import lmc
from tests.conformance.harness import conform


def calls(program: lmc.Program, **arguments: object) -> int:
    """Requests of one call on a fresh mock."""
    mock = lmc.Mock()
    program(**arguments, backend=mock, seed=3).sync()
    return len(mock.call_log)


# -- cse -------------------------------------------------------------------------------------------------------------


@lmc.function
def twice_greedy(s, q):
    s += "Q: " + q
    forks = s.fork(3)
    for f in forks:
        f += lmc.gen("a", max_tokens=4, temperature=0) + " so " + lmc.select("b", choices=["yes", "no"])
    return [f["a"] + f["b"] for f in forks]


@lmc.function
def twice_sampled(s, q):
    s += "Q: " + q
    forks = s.fork(3)
    for f in forks:
        f += lmc.gen("a", max_tokens=4)
    return [f["a"] for f in forks]


def test_equal_asks_at_temperature_0_are_made_once() -> None:
    program = conform(twice_greedy, [{"q": "x"}, {"q": "y"}], replays=0)
    assert calls(program, q="x") == 2
    assert calls(lmc.compile(twice_greedy, opt=0), q="x") == 6
    assert calls(conform(twice_sampled, [{"q": "x"}], replays=0), q="x") == 3


def test_a_merged_ask_is_one_in_the_usage() -> None:
    state = lmc.compile(twice_greedy, backend=lmc.Mock())(q="x")
    assert state.usage.calls == 2


def test_the_interpreter_that_takes_over_knows_merged_answers() -> None:
    @lmc.function
    def left(s, q):
        s += "Q: " + q
        a, b = s.fork(2)
        for f in (a, b):
            f += lmc.gen("a", max_tokens=4, temperature=0)
        first, second = a["a"], b["a"]
        return first, second, hash(first) * 0

    program = conform(left, [{"q": "x"}, {"q": "y"}])
    assert program.stats.replays > 0
    assert calls(program, q="x") == 1
