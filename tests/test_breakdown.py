"""The breakdown of a run on an engine counts every pass and row, and leaves the engine as it was."""

import json

import pytest

import lmc
from benchmarks.breakdown import broken_down
from tests.backend.engine_fakes import FakeAheadRunner, FakeRunner, backend


@lmc.function
def ask(s, essay, questions):
    s += "An essay: " + essay
    forks = s.fork(len(questions))
    for f, question in zip(forks, questions, strict=True):
        f += "\n" + question + lmc.gen("answer", max_tokens=5, ignore_eos=True)
    return [f["answer"] for f in forks]


ITEMS = [{"essay": f"{i} of them" * 12, "questions": ["how", "why", "when"]} for i in range(4)]


def run(engine) -> list[list[str]]:
    return [state.ret_value for state in ask.run_batch(ITEMS, backend=engine, temperature=0)]


@pytest.mark.parametrize("runs", [FakeRunner, FakeAheadRunner])
def test_it_counts_what_the_engine_counts(runs):
    engine, runner = backend(runs=runs)
    with engine:
        before = engine.counters()
        with broken_down(engine) as found:
            first = run(engine)
            parts = found()
        spent = engine.counters() - before
        assert sum(kind.runs for kind in parts.device.values()) == spent.passes == len(parts.ran)
        assert sum(kind.rows for kind in parts.device.values()) == spent.rows
        assert sum(kind.of_prompts for kind in parts.device.values()) == spent.prefilled_tokens
        assert set(parts.device) <= {"prompts", "answers"} and parts.device["answers"].of_answers > 0
        assert parts.callers["submit"].calls >= len(ITEMS) * 3
        assert 0 < sum(part.seconds for part in parts.loop.values()) <= parts.seconds
        assert json.loads(json.dumps(parts.as_json()))["device"]["answers"]["runs"] == parts.device["answers"].runs
        assert any(line.split()[:2] == ["answers", str(parts.device["answers"].runs)] for line in parts.lines())

        engine.flush_cache()
        assert run(engine) == first
        assert not {"schedule", "commit", "submit", "launch", "run", "_take"} & {*vars(engine._core), *vars(engine._scheduler), *vars(runner)}
        assert len(parts.ran) == spent.passes  # no more of it is counted
