"""Sub-programs that an earlier evaluation has followed: not followed again with equal arguments, but wherever anything around them may differ."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.frontend.capture import calls
from lmc.frontend.capture.evaluation import Evaluation
from tests.conformance.harness import eager

SEEN: list[str] = []


@lmc.function
def part(s, x):
    s += x + lmc.gen("a", max_tokens=4)


@lmc.function
def part_that_returns(s, x):
    s += x + lmc.gen("a", max_tokens=4)
    return s["a"]


@lmc.function
def part_with_a_list(s, xs):
    xs.append("!")
    s += " ".join(xs) + lmc.gen("a", max_tokens=4)


@lmc.function
def part_of_a_global(s, x):
    s += f"{x} {len(SEEN)}" + lmc.gen("a", max_tokens=4)


def phases(one: Any) -> Any:
    @lmc.function
    def both(s, q):
        firsts = [one(q + str(i)) for i in range(3)]
        firsts = [each["a"] for each in firsts]
        return [one(first)["a"] for first in firsts]

    return both


@lmc.function
def changing(s, q):
    found = []
    for i in range(3):
        xs = [q, str(i)]
        found.append(part_with_a_list(xs)["a"] + str(xs))
    return found


@lmc.function
def remembering(s, q):
    SEEN.clear()
    found = []
    for i in range(3):
        found.append(part_of_a_global(f"{q}{i}")["a"])
        SEEN.append(found[-1])
    return found


def followed(fn: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int, int]:
    """Run a program; return its state, how often sub-programs were followed, and the number of evaluations."""
    nested, run, times, begun = calls._nested, Evaluation.run, list[Any](), list[Any]()
    monkeypatch.setattr(calls, "_nested", lambda *given: times.append(given) or nested(*given))
    monkeypatch.setattr(Evaluation, "run", lambda self: begun.append(self) or run(self))
    backend = Mock(latency=lambda ask, prompt: 0.02 + len(prompt) % 3 * 0.02)
    state = eager(lmc.compile(fn))("x", backend=backend)
    assert state.ret_value == fn.run("x", backend=Mock()).ret_value
    return state, len(times), len(begun)


@pytest.mark.parametrize("one", (part, part_that_returns))
def test_a_sub_program_is_followed_once_with_equal_arguments(one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six, three are followed twice: before their argument is known, and then. One that reads its answer also when that arrives."""
    state, times, evaluations = followed(phases(one), monkeypatch)
    assert evaluations > 1 and times <= (9 if one is part else 15) and state.usage.ahead_used >= 2


@pytest.mark.parametrize("fn", (changing, remembering))
def test_what_a_sub_program_shares_with_others_is_looked_at_each_time(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _, _ = followed(fn, monkeypatch)
    assert state.usage.ahead_wasted == 0
