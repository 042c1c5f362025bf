"""Arms of undecided branches: at `likely` what each of them would ask is asked, and what the other one has asked is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lmc
from lmc import gen
from lmc.backend.usage import Usage
from tests.backend.gated import Gated
from tests.conformance.harness import eager


@lmc.function
def child(s, text):
    s += text + gen("a", max_tokens=4)
    return s["a"]


def one_arm(s, q):
    s += q + gen("kind", max_tokens=3)
    extra = ""
    if s["kind"].startswith("a"):
        extra = child("because " + q).ret_value
    return extra


def both_arms(s, q):
    s += q + gen("kind", max_tokens=3)
    if s["kind"].startswith("a"):
        found = child("long " + q)
    else:
        found = child("short " + q)
    return found["a"]


def on_one_stream(s, q):
    """Both ask at the same address, other prompts."""
    (f,) = s.fork(1)
    f += q + gen("kind", max_tokens=3)
    if f["kind"] == "a":
        s += "yes" + gen("x", max_tokens=3)
    else:
        s += "no" + gen("y", max_tokens=3)
    return s.text()


def that_leaves(s, q):
    s += q + gen("kind", max_tokens=3)
    if s["kind"].startswith("a"):
        return child("early " + q).ret_value
    return child("late " + q).ret_value


def expression(s, q):
    s += q + gen("kind", max_tokens=3)
    return child("x" + q)["a"] if s["kind"].startswith("a") else child("y" + q)["a"]


def arms_in_arms(s, q):
    s += q + gen("kind", max_tokens=3)
    seen = [q]
    if s["kind"].startswith("a"):
        seen.append("deep")
        if child(f"1 {seen}").ret_value == "z":
            seen.append(child(f"2 {seen}").ret_value)
    else:
        seen.append("flat")
        child(f"3 {seen}").ret_value  # noqa: B018
    return seen


def with_changes(s, q):
    """Changes made in one arm are not seen in the other one: lists, variables, prompts."""
    notes, n = ["n"], 0
    (f,) = s.fork(1)
    s += q + gen("kind", max_tokens=3)
    if s["kind"].startswith("a"):
        notes.append("a")
        n += 1
        f += "a"
        f += f"{notes}{n}" + gen("x", max_tokens=2)
    else:
        notes.append("b")
        n += 2
        f += f"{notes}{n}" + gen("x", max_tokens=2)
    return f.text(), notes, n


TABLE: list[tuple[Callable[..., Any], int, int, int]] = [
    (one_arm, 1, 1, 0), (both_arms, 2, 1, 1), (on_one_stream, 2, 1, 1), (that_leaves, 2, 1, 1), (expression, 2, 1, 1), (arms_in_arms, 3, 1, 1),
    (with_changes, 2, 1, 1),
]  # fmt: skip
"""Requests that are asked ahead while the first answer is awaited, and those of them that Python asks then: in the one arm, and in the other."""


def run(body: Callable[..., Any], ahead: str, kind: str, together: int, temperature: float) -> tuple[Usage, Any]:
    """The first answer comes when so many requests are made."""
    backend = Gated(together, lambda _, ask: kind if ask.name == "kind" else "b")
    state = eager(lmc.compile(lmc.function(body), ahead=ahead))(q="q", backend=backend, seed=3, temperature=temperature)
    return state.usage, state.ret_value


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("body", "asked", "one", "other"), TABLE, ids=[body.__name__ for body, *_ in TABLE])
def test_both_arms_are_likely(body: Callable[..., Any], asked: int, one: int, other: int, temperature: float):
    for kind, used in (("a", one), ("b", other)):
        expected, value = run(body, "off", kind, 1, temperature)
        certain, same = run(body, "certain", kind, 1, temperature)
        assert same == value and certain.calls == expected.calls and certain.ahead_wasted == 0
        likely, same = run(body, "likely", kind, 1 + asked, temperature)
        assert same == value and likely.calls == expected.calls
        assert (likely.ahead_asked, likely.ahead_used, likely.ahead_wasted) == (asked, used, asked - used)


def test_an_arm_that_is_never_taken_is_turned_off():
    """Of a site that is always asked ahead in vain nothing more is asked."""
    fast = eager(lmc.compile(lmc.function(on_one_stream), ahead="likely"))
    for i in range(5):
        off = i >= 3
        backend = Gated(2 if off else 3, lambda _, ask: "b" if ask.name == "kind" else "x")
        usage = fast(q="q", backend=backend, seed=i).usage
        assert (usage.ahead_asked, usage.ahead_used) == ((1, 1) if off else (2, 1))
