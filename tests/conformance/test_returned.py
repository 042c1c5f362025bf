"""States as return values: a fork, a sub-program's, the own one, some of them in a tuple."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc import Mock, gen
from tests.conformance.table import tagged


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


@pytest.mark.parametrize("program", [case.program for case in tagged("returned").values()], ids=lambda p: p.name)
def test_they_can_be_read_and_gone_on_with(program):
    expected = look(program.run(q="b", backend=Mock(), seed=3))
    compiled = lmc.compile(program, opt=0)
    assert look(compiled(q="b", backend=Mock(), seed=3)) == expected
    (of_a_batch, _) = compiled.batch([{"q": "b"}, {"q": "c"}], backend=Mock(), seed=3)
    assert look(of_a_batch) == expected
