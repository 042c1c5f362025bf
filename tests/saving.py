"""Runs saved programs in a process that has imported nothing of them: `python -m tests.saving JOBS RESULTS`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import lmc
from tests.conformance.harness import EFFECTS, asked, run


def results(program: Any, items: Sequence[dict[str, Any]]) -> Any:
    """What calls, a batch and a stream of a program give, and what they cost, as JSON."""
    found: list[Any] = []
    for item in items:
        mock = lmc.Mock()
        seen = run(program, item, lambda: None, {"seed": 3, "backend": mock})
        found.append([repr(seen), sorted(map(repr, asked(mock))), repr(mock.counters())])
    mock = lmc.Mock()
    states = program.batch(items, seed=5, backend=mock, errors="return")
    found.append([[s.text() if s.failure is None else repr(s.failure) for s in states], len(mock.call_log)])
    try:
        stream = program.stream(**items[0], seed=3, backend=lmc.Mock())
        found.append(["".join(stream.text_iter()), stream.text()])
    except Exception as error:
        found.append(repr(error))
    EFFECTS.clear()
    return found


def main(jobs: str, into: str) -> None:
    found: list[Any] = []
    imported: list[str] = []
    with open(jobs) as file:
        for path, items in json.load(file):
            program = lmc.load(path)
            program.dump_ir()
            there = [name for name in sys.modules if name.startswith(("benchmarks.", "tests.conformance.test_"))]
            assert there == imported, "loading imported a program"
            found.append([results(program, items), program.stats.traces])
            imported = [name for name in sys.modules if name.startswith(("benchmarks.", "tests.conformance.test_"))]
    with open(into, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
