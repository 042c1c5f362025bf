"""The breakdown of a run on an engine counts every pass and row, and leaves the engine as it was."""

import itertools
import json
import sys
import threading
from types import SimpleNamespace

import pytest

import lmc
from benchmarks.breakdown import broken_down
from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.engine.runner import PassOutput
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


class Event:
    """Of a device on which 10 ms pass from one event to the next."""

    ticks = itertools.count()
    stream = threading.RLock()  # the loop may launch while another thread looks at the time

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        with self.stream:
            self.at = 10.0 * next(self.ticks)

    def elapsed_time(self, other: "Event") -> float:
        return other.at - self.at


class OnAGPU(FakeAheadRunner):
    """Marks begin and end of its passes in the device's stream."""

    _begun = Event(enable_timing=True)

    def launch(self, work: ModelPass) -> SimpleNamespace:
        begun, ended = Event(enable_timing=True), Event(enable_timing=True)
        with Event.stream:
            begun.record()
            flight = super().launch(work)
            ended.record()

        def result() -> PassOutput:
            return flight.result()

        return SimpleNamespace(result=result, seconds=0.0, over=True, begun=begun, ended=ended)


def test_passes_of_a_gpu_are_timed_by_its_events(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(Event=Event, synchronize=lambda: None)))
    with backend(runs=OnAGPU)[0] as engine, broken_down(engine) as found:
        run(engine)
        parts = found()
    assert all(one.ended - one.began == pytest.approx(0.01) for one in parts.ran)
    kinds = parts.device.values()
    assert sum(kind.seconds for kind in kinds) == pytest.approx(0.01 * len(parts.ran)) == pytest.approx(sum(kind.gap for kind in kinds))
    assert parts.ran[0].began == pytest.approx(0.01) and parts.loop["device"].calls == len(parts.ran)
