"""Lines whose guesses are wrong again and again are turned off; those that are of use stay."""

from __future__ import annotations

from typing import Any

import lmc
from lmc import gen
from tests.backend.gated import Gated
from tests.conformance.harness import eager


def asked_ahead(program: Any, runs: int, *args: Any, answers: Any = None) -> list[int]:
    """How many requests each of some runs makes ahead; the first answer waits for them, as long as there are any."""
    found: list[int] = []
    for _ in range(runs):
        backend = Gated(1 if program.profile.off else 2, answers)
        found.append(program(*args, backend=backend, seed=1).usage.ahead_asked)
        backend.open()
    return found


@lmc.function
def returns_at_once(s, q):
    for i in range(4):
        (f,) = s.fork(1)
        f += f"{q}{i}" + gen("a", max_tokens=3)
        if f["a"]:
            return f["a"]
    return None


def test_guesses_that_no_run_uses_end():
    program = eager(lmc.compile(returns_at_once, ahead="likely"))
    found = asked_ahead(program, 5, "q")
    assert all(found[:3]) and found[3:] == [0, 0]
    assert len(program.profile.off) == 1 and "guesses there were wrong too often" in program.explain()


@lmc.function
def ends_early(s, q):
    votes = []
    for i in range(6):
        (f,) = s.fork(1)
        f += f"{q}{i}" + gen("vote", max_tokens=3)
        votes.append(f["vote"])
        if len(votes) > 1 and votes[-1] == votes[-2]:
            break
    return votes


def test_guesses_of_which_each_run_uses_some_go_on():
    program = eager(lmc.compile(ends_early, ahead="likely"))
    assert all(asked_ahead(program, 6, "q", answers={"vote": "yes"})) and not program.profile.off


@lmc.function
def raises_at_once(s, q):
    for i in range(4):
        (f,) = s.fork(1)
        f += f"{q}{i}" + gen("a", max_tokens=3)
        int(f["a"])


def test_what_an_exception_kept_python_from_is_not_wrong():
    program = eager(lmc.compile(raises_at_once))
    for _ in range(5):
        backend = Gated(4, {"a": "no number"})
        try:
            program("q", backend=backend, seed=1)
        except ValueError:
            backend.open()
    assert not program.profile.off and program.profile.wasted == 15


@lmc.function
def asks_once(s, q):
    s += q + gen("a", max_tokens=3)
    return s["a"]


def test_only_every_32nd_run_tries_where_whole_runs_found_nothing():
    program, begun = lmc.compile(asks_once, backend=lmc.Mock()), []
    make = program.make_source
    program.make_source = lambda *given: begun.append(given) or make(*given)
    for _ in range(3):
        program.profile.evaluated(("a line",), 0.001, 0)
    program.batch([("q",)] * 32)
    assert len(begun) == 32
    program.batch([("q",)] * 64)
    assert len(begun) == 34
    program.profile.evaluated(("a line",), 0.001, 1)
    program.batch([("q",)] * 8)
    assert len(begun) == 42


def test_a_line_is_turned_off_for_programs_that_wait_there_already():
    program, backend = lmc.compile(asks_once), Gated()
    profile, evaluated = program.profile, program.profile.evaluated
    profile.cost = 0.0

    def and_open(*given: Any) -> None:
        evaluated(*given)
        profile.cost = 0.0
        if profile.evaluations == 3:
            backend.open()

    profile.evaluated = and_open  # type: ignore[method-assign]
    program.batch([("q",)] * 12, backend=backend)
    assert profile.evaluations == 3


@lmc.pure
def looked_up(q: str) -> str:
    return f"{q}, looked up"


@lmc.function
def looks_up(s: Any, q: str) -> None:
    s += q + lmc.gen("a", max_tokens=2)
    s += s["a"] + looked_up(q) + lmc.gen("b", max_tokens=2)


def test_a_line_at_which_pure_calls_are_begun_is_not_in_vain():
    program, backend = lmc.compile(looks_up), Gated()
    profile, evaluated, begun = program.profile, program.profile.evaluated, []
    profile.cost = 0.0

    def and_open(lines: Any, seconds: float, asked: int, once: float = 0.0) -> None:
        evaluated(lines, seconds, asked, once)
        begun.append(asked)
        backend.open()

    profile.evaluated = and_open  # type: ignore[method-assign]
    program("q", backend=backend)
    assert begun[0] == 1
