"""Checks of what was asked: those of a compiled run's sites, by columns, are those of its prompts, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc import records

TEXTS = ["plain", "", "é😀", "half a surrogate: \ud800", "plain"]


@lmc.function
def program(s: Any, q: str, k: int) -> Any:
    s += lmc.system("Be brief.") + lmc.user("Q: " + q + f" ({k})")
    s += lmc.assistant(lmc.gen("a", max_tokens=4, temperature=0.5 if k == 2 else 0.0))
    s += q + lmc.select("b", choices=["x", "y" + q]) + lmc.select("c", choices=["x", "y"])
    forks = s.fork(2)
    for f in forks:
        f += lmc.user(s["a"] + q) + lmc.gen("d", max_tokens=3)
    s += [1, "of another type"][k % 2] if k == 3 else "always text"
    s += forks[0]["d"] + lmc.gen("e", max_tokens=2) + lmc.gen("f", max_tokens=2)


def checks(path: Path) -> dict[int, dict[Any, set[int]]]:
    """Of each run, by the places of answers."""
    return {item: {place: set(found) for place, found in known.answers.items()} for item, known in records.read(path).runs.items()}


@pytest.mark.parametrize("opt", [0, 1])
def test_checks_of_compiled_runs_are_those_of_the_interpreter(tmp_path: Path, opt: int) -> None:
    items = [{"q": q, "k": k} for q in TEXTS for k in range(4)]
    fast = lmc.compile(program, opt=opt)
    fast.batch(items, backend=lmc.Mock(), seed=1)
    program.run_batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / "slow")
    fast.batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / "fast")
    assert checks(tmp_path / "fast") == checks(tmp_path / "slow")
    assert len(checks(tmp_path / "slow")[0]) == 7
