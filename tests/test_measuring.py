"""Measurements of `lmc bench` and the experiments: every way runs every item, counts agree, and times are ordered; no test looks at how long something took."""

import json
from random import Random

import pytest
from typer.testing import CliRunner

import lmc
from lmc.cli.command import app
from lmc.measuring import WAYS, Spread, TimedBackend, arriving, compare, compiled, measure, poisson

pytestmark = pytest.mark.usefixtures("no_full_collections")


@lmc.function
def notes(s, pages):
    found = []
    for page in pages:
        s += lmc.user(page) + lmc.assistant(lmc.gen("note", max_tokens=8))
        found.append(s["note"])
    return found


ITEMS = [{"pages": ["a", "b"]}, {"pages": ["c"]}, {"pages": []}]


def test_every_way_asks_the_same_and_is_compared_with_the_first():
    lines = compare(notes, lambda _: ITEMS, lmc.Mock(), reps=2)
    assert [line.way for line in lines] == list(WAYS)
    assert {(line.items, line.reps, line.requests, line.same) for line in lines} == {(3, 2, 3, 1.0)}
    assert lines[0].speedup == 1.0
    assert all(line.least <= line.seconds <= line.most and line.first.p50 <= line.total.p95 for line in lines)


def test_answers_that_differ_are_seen():
    calls = iter(range(100))
    lines = compare(notes, lambda _: ITEMS[:1], lmc.Mock(lambda prompt, ask: str(next(calls))), ways=["loop", "compiled"], reps=1)
    assert [line.same for line in lines] == [1.0, 0.0]


def test_the_time_of_an_item_that_runs_behind_another_counts_from_the_end_of_that():
    backend = lmc.Mock(latency=0.02)
    found = measure(WAYS["loop"](notes), [{"pages": ["x"]}] * 3, backend, in_turn=True)
    assert len(found.texts) == 3 and found.total.p99 < found.seconds


def test_what_an_item_raises_is_raised():
    @lmc.function
    def fails(s, x):
        raise RuntimeError("of the program")

    with pytest.raises(RuntimeError, match="of the program"):
        compare(fails, lambda _: [{"x": 1}], lmc.Mock(), reps=1)
    with pytest.raises(RuntimeError, match="of the program"):
        arriving(lmc.compile(fails), [{"x": 1}], lmc.Mock(), [0.0])


def test_items_that_arrive_by_themselves_are_told_apart():
    found = arriving(lmc.compile(notes), ITEMS, lmc.Mock(latency=0.01), [0.0, 0.0, 0.01])
    assert [value for _, value in found.texts] == [repr(run.ret_value) for run in lmc.compile(notes).batch(ITEMS, backend=lmc.Mock(), temperature=0, seed=0)]
    assert found.counters.calls == 3 and found.first.p50 <= found.total.p50


def test_a_watched_backend_is_otherwise_the_one_behind_it():
    inner = lmc.Mock()
    watched = TimedBackend(inner)
    compiled(notes)(ITEMS, watched)
    assert watched.capabilities is inner.capabilities or watched.capabilities == inner.capabilities
    assert sorted(len(results) for results in watched.runs.values()) == [1, 2]
    assert len(watched.times()) == 2


@pytest.mark.parametrize("times, expected", [([3.0], (3, 3, 3)), ([float(i) for i in range(1, 101)], (50, 95, 99)), ([1.0, 2.0], (1, 2, 2))])
def test_percentiles_are_times_that_occurred(times, expected):
    assert Spread.of(times) == Spread(*map(float, expected))


FILE = """
import lmc

@lmc.function
def ask(s, temperature, backend):
    s += lmc.user(f"{temperature} of {backend}") + lmc.assistant(lmc.gen("x", max_tokens=4))
    return s["x"]
"""


def test_bench_prints_a_table_and_writes_json(tmp_path):
    """Also where parameters of a program have the names of options."""
    (tmp_path / "own.py").write_text(FILE)
    out = tmp_path / "out.json"
    args = ["bench", f"{tmp_path}/own.py:ask", "-b", "mock", "--arg", "temperature=9", "--arg", "backend=b", "--reps", "1", "--json", str(out)]
    found = CliRunner().invoke(app, args)
    assert found.exit_code == 0, found.output
    assert [line.split("  ")[0] for line in found.output.splitlines()[1:5]] == ["loop", "interpreted", "one by one", "compiled"]
    assert [line["requests"] for line in json.loads(out.read_text())["lines"]] == [1] * 4


COUNTS = """
import lmc

@lmc.function
def count(s, words):
    s += words + lmc.gen("x", max_tokens=4)
    return len(words.split())
"""


def test_bench_lets_items_arrive_and_says_how_many_are_right(tmp_path):
    (tmp_path / "own.py").write_text(COUNTS)
    (tmp_path / "items.csv").write_text("words,right\na b,2\nc,1\nd e f,2\ng,7\n")
    out = tmp_path / "out.json"
    args = [
        "bench",
        f"{tmp_path}/own.py:count",
        "-b",
        "mock",
        "--input",
        f"{tmp_path}/items.csv",
        "--rate",
        "200",
        "--expected",
        "right",
        "--ways",
        "loop,compiled",
        "--json",
        str(out),
    ]
    found = CliRunner().invoke(app, [*args, "--reps", "2"])
    assert found.exit_code == 0 and all(name in found.output for name in ("first p99", "total p50", "accuracy", "50%")), found.output
    assert [line.split()[0] for line in found.output.splitlines()[1:4]] == ["loop", "compiled", "arriving"]
    assert [(line["accuracy"], line["requests"], line["same"], line["speedup"] is None) for line in json.loads(out.read_text())["lines"]] == [
        (0.5, 4, 1.0, False), (0.5, 4, 1.0, False), (0.5, 4, 1.0, True)]
    for wrong, says in ((["--rate", "0"], "--rate 0"), (["--expected", "wrong"], "items.csv:2 has no such field"), (["--rate", "nan"], "--rate nan")):
        found = CliRunner().invoke(app, [*args, *wrong])
        assert found.exit_code != 0 and says in f"{found.output}{found.exception}"


def test_arrivals_are_as_many_a_second_as_asked():
    due = poisson(Random(0), 10.0, 2000)
    assert due[0] == 0.0 and due == sorted(due) and len(due) == 2000 and 180 < due[-1] < 220


@pytest.mark.parametrize("args, says", [
    (["--expected", "x", "--arg", "temperature=1", "--arg", "backend=b"], "--expected names a field of --input"),
    (["--ways", "loop,fast"], "there is no way 'fast'; there are loop, interpreted, one by one, compiled"),
    (["--input", "nowhere.jsonl"], "nowhere.jsonl"),
])  # fmt: skip
def test_bench_refuses_what_it_cannot_do(tmp_path, args, says):
    (tmp_path / "own.py").write_text(FILE)
    found = CliRunner().invoke(app, ["bench", f"{tmp_path}/own.py:ask", "-b", "mock", *args])
    assert found.exit_code != 0 and says in f"{found.output}{found.exception}"


def test_bench_keeps_the_repetitions_before_an_interruption(tmp_path, monkeypatch):
    def until(count):
        left = iter(range(count))

        def interrupted(*given, **options):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return measure(*given, **options)

        monkeypatch.setattr("lmc.measuring.measure", interrupted)

    (tmp_path / "own.py").write_text(FILE)
    out = tmp_path / "out.json"
    args = [
        "bench",
        f"{tmp_path}/own.py:ask",
        "-b",
        "mock",
        "--arg",
        "temperature=9",
        "--arg",
        "backend=b",
        "--reps",
        "5",
        "--ways",
        "loop,compiled,loop",
        "--json",
        str(out),
    ]
    until(2 + 2 * 2 + 1)  # untimed runs, two repetitions, half of the third
    found = CliRunner().invoke(app, args)
    assert found.exit_code != 0 and "these are 2 of 5 repetitions" in found.output and "2 repetitions, medians" in found.output
    kept = json.loads(out.read_text())
    assert [(line["way"], line["reps"]) for line in kept["lines"]] == [("loop", 2), ("compiled", 2)] and all(kept[name] for name in ("date", "machine", "lmc"))
    until(3)
    out.unlink()
    assert CliRunner().invoke(app, args).exit_code != 0 and not out.exists()
