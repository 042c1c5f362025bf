"""Programs as people write them: what an evaluation asks is what Python asks, and how much of it it finds at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks import ahead_programs
from tests.frontend.capture import agents
from tests.frontend.capture.comparing import run_evaluation, run_python
from tests.frontend.capture.recording import evaluate

CASES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    **{w.name: (w.program, w.arguments, ahead_programs.answers) for w in ahead_programs.WORKLOADS},
    **{name: (program, arguments, agents.answers) for name, (program, arguments) in agents.CASES.items()},
}
UNKNOWN = {"code repair"}
"""With a tool that no evaluation understands."""


@pytest.mark.parametrize("name", CASES)
def test_agents(name: str):
    program, arguments, answers = CASES[name]
    python = run_python(program, copy.deepcopy(arguments), lambda prompt, ask: answers(str(prompt), ask))
    assert python.error is None
    asked, outcome = run_evaluation(program, arguments, python.answers)
    if name in UNKNOWN:
        assert all(a in python.asked for a in asked if a[2] is not None)
    else:
        assert asked == python.asked and outcome.stopped_at is None, (outcome.reason, outcome.stopped_at, outcome.raised)


def certain(name: str) -> int:
    """Requests that are certain before any answer is there, and whose prompts are known."""
    program, arguments, _ = CASES[name]
    asked, _ = evaluate(program, options={"passes": lambda _: 8}, **arguments)
    return sum(a.certain and a.prompt is not None for a in asked)


def test_what_is_certain_before_any_answer():
    found = {name: certain(name) for name in CASES}
    assert found == {
        "map-reduce of 12": 12, "evaluation of 50": 50, "panel of 5": 10, "8 fields": 8, "retrieval of 6": 6, "plan and execute": 1,
        "tree search 3 × 3": 3, "debate 3 × 3": 3, "self-consistency": 2, "code repair": 1, "react": 2, "dedup": 6, "forks": 12, "mixed": 5,
        "seeded": 4, "aprog": 4, "failing": 3, "swallow": 1,
    }  # fmt: skip
