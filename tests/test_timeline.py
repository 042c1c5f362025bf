"""A trace of a run keeps the rules of the format, and says what happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.backend import recording
from lmc.backend.recording import EventRecorder, RecordedPass, RecordedRun
from lmc.backend.results import Output, Result
from lmc.backend.usage import Usage
from lmc.runahead.ledger import Record
from lmc.segments import Gen, SamplingParams
from lmc.timeline import events

REQUIRED = {"X": {"name", "ts", "dur", "pid", "tid", "args"}, "C": {"name", "ts", "pid", "args"}, "M": {"name", "pid", "args"},
            "s": {"name", "id", "ts", "pid", "tid"}, "f": {"name", "id", "ts", "pid", "tid", "bp"}}  # fmt: skip


def check(found: list[dict[str, Any]]) -> None:
    """The rules of the Trace Event Format that viewers rely on."""
    times = [e["ts"] for e in found if e["ph"] != "M"]
    assert times == sorted(times) and all(t >= 0 for t in times)
    assert [e["ph"] == "M" for e in found] == sorted((e["ph"] == "M" for e in found), reverse=True)
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for e in found:
        assert REQUIRED[e["ph"]] <= e.keys()
        if e["ph"] == "X":
            assert e["dur"] >= 0
            tracks.setdefault((e["pid"], e["tid"]), []).append(e)
        if e["ph"] == "C":
            assert all(isinstance(v, int | float) for v in e["args"].values())
    for track in tracks.values():
        open_until: list[float] = []
        for e in track:
            while open_until and open_until[-1] <= e["ts"] + 1e-6:
                open_until.pop()
            end = e["ts"] + e["dur"]
            assert not open_until or end <= open_until[-1] + 1e-6, "overlaps and is not inside"
            open_until.append(end)
    named = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    assert set(tracks) <= named
    starts, ends = ({e["id"]: e for e in found if e["ph"] == ph} for ph in "sf")
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"]
        for e in (start, ends[number]):
            assert any(x["ts"] - 1e-6 <= e["ts"] <= x["ts"] + x["dur"] + 1e-6 for x in tracks[e["pid"], e["tid"]]), "a flow needs a slice"


def look_up(word: str) -> str:
    return word.upper()


@lmc.function
def panel(s, q):
    s += lmc.user(q) + lmc.assistant(lmc.gen("plan", max_tokens=8))
    forks = s.fork(3)
    for f in forks:
        f += lmc.user("Go on.") + lmc.assistant(lmc.gen("part", max_tokens=8))
    s += lmc.user(look_up("".join(f["part"] for f in forks))) + lmc.assistant(lmc.gen("all", max_tokens=8))
    return s["all"]


def _recorded(path: Path, **options: Any) -> list[dict[str, Any]]:
    with lmc.trace(path):
        lmc.compile(panel, backend=lmc.Mock(**options)).batch([{"q": f"q{i}"} for i in range(3)])
    found = json.loads(path.read_text())["traceEvents"]
    check(found)
    return found


def test_a_batch_is_recorded_by_run_and_branch(tmp_path: Path) -> None:
    found = _recorded(tmp_path / "t.json", latency=0.001)
    slices = [e for e in found if e["ph"] == "X"]
    by: dict[str, list[dict[str, Any]]] = {}
    for e in slices:
        by.setdefault(e["cat"], []).append(e)
    assert len(by["program"]) == 3 and len(by["op"]) == 3 * 5
    assert {e["args"]["name"] for e in found if e["name"] == "process_name"} == {"engine", "panel [0]", "panel [1]", "panel [2]"}
    assert all(e["args"]["ahead"] in ("no", "used") for e in by["op"])
    one = next(e for e in by["op"] if e["name"] == "gen part")
    assert one["args"]["line"].startswith("f += lmc.user") and one["args"]["source"].startswith("test_timeline.py:")
    assert one["args"]["prompt_tokens"] > one["args"]["cached_tokens"] and one["dur"] >= 1000
    assert "q0" not in json.dumps([e["args"] for e in slices]), "no prompts"


def test_forks_are_flows(tmp_path: Path) -> None:
    found = _recorded(tmp_path / "t.json", latency=0.001)
    assert [e["name"] for e in found if e["ph"] == "s"] == ["fork"] * 9


def test_instant_answers_keep_the_rules_too(tmp_path: Path) -> None:
    assert _recorded(tmp_path / "t.json")


def test_what_was_asked_in_vain_has_a_track_of_its_own() -> None:
    def record(ahead: str, ordinal: int) -> Record:
        result = Result()
        result.finish(Output(("x",), ({},), Usage(prompt_tokens=3)))
        return Record((0, 0, "", ordinal), Gen(SamplingParams(), name="x"), result, ahead)

    recorder = EventRecorder()
    records = (record("no", 0), record("wasted", 1), record("used", 1))
    recorder.runs.append(RecordedRun("f", 0, recorder.began, lambda: records))
    found = events(recorder)
    check(found)
    assert {e["args"]["name"] for e in found if e["name"] == "thread_name"} == {"run", "main branch", "asked ahead and not used"}


def test_a_run_that_fails_is_recorded_too(tmp_path: Path) -> None:
    @lmc.function
    def bad(s, q):
        s += q + lmc.gen("a", max_tokens=4)
        raise ValueError(s["a"])

    path = tmp_path / "t.json"
    with pytest.raises(ValueError), lmc.trace(path):
        lmc.compile(bad, backend=lmc.Mock())(q="x")
    found = json.loads(path.read_text())["traceEvents"]
    check(found)
    assert any(e["name"] == "gen a" for e in found)
    assert recording.recorder is None


def test_passes_of_the_model_have_a_track_and_counters() -> None:
    recorder = EventRecorder(began=10.0)
    recorder.batches += [RecordedPass(10.0 + i * 0.001, 10.0015 + i * 0.001, 8, 2, 8 - i, i, 0, 0, 90 - i, 100, 5, 0.0015) for i in range(4)]
    found = events(recorder)
    check(found)
    assert {e["name"] for e in found if e["ph"] == "C"} == {"rows of a pass", "KV slots", "tokens from the cache"}
    assert [e["name"] for e in found if e["ph"] == "X"][:2] == ["pass 0: prefill", "pass 1: mixed"]


def test_one_trace_at_a_time_and_a_path_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lmc.trace(tmp_path / "a.json"), pytest.raises(lmc.ProgramError), lmc.trace(tmp_path / "b.json"):
        pass
    path: Any
    for path, says in (tmp_path / "no" / "a.json", "there is no folder"), (tmp_path, "it is a folder"), ("x" * 300, "too long"), (5, "must be a path"):
        with pytest.raises(lmc.LmcError, match=says), lmc.trace(path):
            raise AssertionError("what is traced has run, and its trace cannot be written")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # to a superuser nothing is forbidden
    with pytest.raises(lmc.ParameterError, match="you may not write there"), lmc.trace(tmp_path / "a.json"):
        raise AssertionError("what is traced has run, and its trace cannot be written")


def test_an_engine_tells_of_its_passes(tmp_path: Path) -> None:
    from tests.backend.engine_fakes import backend

    path = tmp_path / "t.json"
    engine, _ = backend()
    with engine, lmc.trace(path):
        program = lmc.compile(panel, backend=engine)
        program.batch([{"q": f"q{i}"} for i in range(2)])
        program.close()
    found = json.loads(path.read_text())["traceEvents"]
    check(found)
    passes = [e for e in found if e.get("cat") == "pass"]
    assert len(passes) == engine.counters().passes
    assert sum(e["args"]["rows"] for e in passes) == engine.counters().rows
