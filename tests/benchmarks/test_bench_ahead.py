"""`benchmarks/bench_ahead.py` in small: the expert asks what the program asks, and the tables say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import ahead_programs, bench_ahead
from benchmarks.ahead_programs import WORKLOADS, Workload, answers
from lmc.backend.mock import Mock
from tests.searching import some

pytestmark = pytest.mark.usefixtures("no_full_collections")


def asked(mode: str, workload: Workload) -> list[tuple[object, ...]]:
    """Return the asks of a program in a mode, without order."""
    mock = Mock(answers)
    bench_ahead.runner(workload, mode, 0.0)(mock)
    return sorted((call.prompt_text, call.ask.name or "", str(call.params), str(call.constraint)) for call in mock.call_log)


@some("workload", [w for w in WORKLOADS if w.name != "self-consistency"], 2, ids=lambda w: w.name)
def test_the_expert_asks_what_the_program_asks(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_programs, "RETRIEVAL", 0.0)
    assert asked("expert", workload) == asked("interpreter", workload) == asked("certain", workload)


def test_the_expert_asks_all_votes() -> None:
    (workload,) = [w for w in WORKLOADS if w.name == "self-consistency"]
    assert set(asked("interpreter", workload)) < set(asked("expert", workload))


def test_a_prompt_takes_the_same_time_whoever_asks() -> None:
    mock = bench_ahead.api(1.0)
    ask = type("Ask", (), {"name": "x"})()
    short, long = (mock._latency(ask, text) for text in ("a", "a" * 100_000))  # type: ignore[arg-type]
    assert 0.2 < short < 0.4 and 2.7 < long < 2.9


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.json"
    assert bench_ahead.main(["--only", "panel,repair", "--scale", "0.001", "--warm", "0", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["mode"] for row in rows] == [*bench_ahead.MODES] * 4
    assert {row["temperature"] for row in rows} == {"0", "default"}
    assert {row["requests"] for row in rows if row["workload"] == "panel of 5"} == {11}
    assert "geometric mean" in capsys.readouterr().out


def test_cost() -> None:
    panel = next(w for w in WORKLOADS if w.name == "panel of 5")
    for programs in (1, 3):
        pairs = bench_ahead.warm_pairs(panel, 0.0, programs, reps=1, warm=0)
        assert [cost.requests for pair in pairs for cost in pair] == [11 * programs] * 2
    row = bench_ahead.Compared("panel of 5", 1.0, 3, False, tuple(pairs))
    assert "panel of 5" in bench_ahead.cost_table([row])


def cost(cpu: float, used: int = 0) -> bench_ahead.Cost:
    return bench_ahead.Cost(1.0, cpu, 100, used)


def test_limits_of_processor_time() -> None:
    limit = lambda *pair: bench_ahead.Compared("x", 1.0, 1, True, (pair,)).cpu_limit
    assert limit(cost(1.0), cost(1.0)) == pytest.approx(1.15)
    assert limit(cost(0.001), cost(1.0)) == pytest.approx(0.003)
    assert limit(cost(1.0), cost(1.0, used=1)) == 2.0
