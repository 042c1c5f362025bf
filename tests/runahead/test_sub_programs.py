"""Sub-programs with a seed of their own: their requests are made ahead, and count once."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc import gen
from tests.backend.gated import Gated
from tests.conformance.harness import conform, eager

USAGES: list[Any] = []


@lmc.function
def drawn(s, text):
    s += text + gen("a", max_tokens=3) + gen("b", max_tokens=3)
    return s["b"]


@lmc.function
def samples(s, q):
    found = []
    for seed in range(4):
        child = drawn.run(q, seed=seed)
        found.append(child.ret_value)
        USAGES.append(child.usage)
    s += " ".join(found) + gen("z", max_tokens=3)
    return found, s["z"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_requests_of_seeded_sub_programs_are_made_ahead(temperature: float):
    USAGES.clear()
    expected = samples.run("q", backend=lmc.Mock(), seed=7, temperature=temperature)
    alone = [usage.calls for usage in USAGES]
    USAGES.clear()
    state = eager(lmc.compile(samples))("q", backend=Gated(4), seed=7, temperature=temperature)
    assert state.ret_value == expected.ret_value and state.usage.calls == expected.usage.calls
    assert (state.usage.ahead_asked, state.usage.ahead_wasted) == (state.usage.ahead_used, 0)
    assert [usage.calls for usage in USAGES] == alone and sum(usage.ahead_asked for usage in USAGES) == 0


def test_seeded_sub_programs_mean_the_same():
    conform(samples, [{"q": "a"}, {"q": "b"}])
    conform(samples, [{"q": "a"}], seed=2)  # one of theirs


# -- sub-programs that Python has finished, which a later evaluation does not follow again


@lmc.function
def named(s, words):
    s += "say " + " ".join(words) + gen("a", max_tokens=3)
    return len(words)


LENGTHS: list[int] = []


@lmc.function
def goes_on(s, q):
    words, said = [q], list[str]()
    for k in range(3):
        one = named(words)
        words.append(f"w{k}")
        one += " and " + gen("b", max_tokens=3)
        one["c"] = k
        said.append(f"{one.text()} {one['a']} {one['b']} {one['c']} {one.ret_value} {'c' in named(words[:1])}")
    s += " ".join(said) + gen("z", max_tokens=3)
    return said


@lmc.function
def keeps_count(s, word):
    LENGTHS.append(len(word))
    s += f"{word} {len(LENGTHS)}" + gen("a", max_tokens=3)


@lmc.function
def changes_what_is_outside(s, q):
    LENGTHS.clear()
    said = [keeps_count(q)["a"] for _ in range(3)]
    s += f"{said} {LENGTHS}" + gen("z", max_tokens=3)
    return said, list(LENGTHS)


@pytest.mark.parametrize("program", [goes_on, changes_what_is_outside])
def test_sub_programs_that_have_ended_mean_the_same(program: Any):
    conform(program, [{"q": "a"}, {"q": "b"}])


def test_states_of_sub_programs_that_have_ended_go_on_as_their_own():
    state = eager(lmc.compile(goes_on))("q", backend=Gated(2), temperature=0)
    assert state.usage.ahead_used >= 3 and state.usage.ahead_wasted == 0
