"""States as return values: a fork, a sub-program's, the own one, some of them in a tuple."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc import Mock, gen, select, user
from tests.conformance.harness import Case, case, cases


@case()
def a_fork(s, q):
    s += q + gen("x", max_tokens=2)
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += str(i) + gen("y", max_tokens=3)
    return max(forks, key=lambda f: len(f["y"]))


@case()
def a_fork_with_an_open_role(s, q):
    f = s.fork(1)[0]
    f += user(q) + lmc.assistant_begin() + gen("y", n=2, max_tokens=2)
    f["z"] = 3
    return f


@lmc.function
def child(s, tip):
    s += tip + gen("x", max_tokens=2)
    return s, tip


@case()
def of_a_sub_program(s, q):
    s += q
    return child(tip=q + "!")


@case()
def some_in_a_tuple(s, q):
    s += q + select("w", ["a", "b"])
    f = s.fork(2)
    f += gen("y", max_tokens=2)
    return (f[0], s, f[1]["y"]) if s["w"] == "a" else (s, (1, f[1]["y"]))


@pytest.mark.parametrize("name", ["a_fork", "a_fork_with_an_open_role", "of_a_sub_program"])
def test_states_are_returned(name):
    found: Case = globals()[name]


def look(state: Any) -> Any:
    """Everything of a state that a caller can see or do, also of those that it returned."""
    value = state.ret_value
    values = value if isinstance(value, tuple) else (value,)
    others = [v for v in values if isinstance(v, lmc.State) and v is not state]
    state += "more" + gen("after", max_tokens=3)
    return (
        state.text(), state.messages(), {name: state[name] for name in state.variables}, state.role, state.stream, state.name,
        state.usage.calls, [v is state for v in values], [look(other) for other in others],
    )  # fmt: skip


@pytest.mark.parametrize("program", [v.program for v in cases(globals()).values()], ids=lambda p: p.name)
def test_they_can_be_read_and_gone_on_with(program):
    expected = look(program.run(q="b", backend=Mock(), seed=3))
    compiled = lmc.compile(program, opt=0)
    assert look(compiled(q="b", backend=Mock(), seed=3)) == expected
    (of_a_batch, _) = compiled.batch([{"q": "b"}, {"q": "c"}], backend=Mock(), seed=3)
    assert look(of_a_batch) == expected
