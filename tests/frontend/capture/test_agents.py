"""Programs as people write them: what an evaluation asks is what Python asks, and how much of it it finds at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from . import agents
from .comparing import run_evaluation, run_python
from .recording import evaluate


def answers(prompt: Any, ask: Any) -> str:
    return agents.answers(prompt if isinstance(prompt, str) else str(prompt), ask)


@pytest.mark.parametrize("name", agents.CASES)
def test_agents(name: str):
    program, arguments = agents.CASES[name]
    python = run_python(program, copy.deepcopy(arguments), answers)
    assert python.error is None
    asked, outcome = run_evaluation(program, arguments, python.answers)
    assert asked == python.asked and outcome.complete and outcome.entire, (outcome.reason, outcome.stopped_at, outcome.raised)


def certain(name: str) -> int:
    """Requests that are certain before any answer is there, and whose prompts are known."""
    program, arguments = agents.CASES[name]
    asked, _ = evaluate(program, options={"passes": lambda _: 8}, **arguments)
    return sum(a.certain and a.prompt is not None for a in asked)


def test_what_is_certain_before_any_answer():
    found = {name: certain(name) for name in agents.CASES}
    assert found == {
        "map_reduce": 12, "panel": 10, "plan_execute": 1, "extract": 8, "consistent": 2, "react": 2, "tree": 3, "dedup": 6, "forks": 12, "mixed": 5,
        "seeded": 4, "aprog": 4, "failing": 3, "swallow": 1, "debate": 3, "rows": 50,
    }  # fmt: skip
