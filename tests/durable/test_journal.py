"""Journals: a run that was cut off anywhere goes on to the same end, and nothing is asked or called twice."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc import gc_tuning
from lmc.durable import records
from lmc.errors import InDoubtEffect
from tests import searching
from tests.backend.gated import Gated
from tests.durable.journaled import CALLS, agent, ask_places, charge, cut, look_up, note, seen, ways
from tests.durable.resuming import lay
from tests.waiting import until


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()


@pytest.mark.parametrize("first", range(2))
def test_a_whole_journal_answers_everything(first: int, tmp_path: Path) -> None:
    written, read = ways()[first], ways()
    for q in ("a", "c7"):
        path = tmp_path / q
        expected = seen(written(q, backend=lmc.Mock(), seed=3))
        calls = list(CALLS)
        CALLS.clear()
        assert seen(written(q, backend=lmc.Mock(), seed=3, journal=path)) == expected
        assert calls == CALLS
        CALLS.clear()
        for way in read:
            mock = lmc.Mock()
            assert seen(way(q, backend=mock, journal=path)) == expected  # the seed is the journal's
            assert not mock.call_log and not CALLS


@pytest.mark.search
def test_a_batch_cut_at_random_points(tmp_path: Path) -> None:
    items = [{"q": f"item {i}"} for i in range(searching.size(10, 30))]
    program = lmc.compile(agent)
    expected = [seen(s) for s in program.batch(items, backend=lmc.Mock(), seed=3)]
    calls = sorted(map(repr, CALLS))
    program.batch(items, backend=lmc.Mock(), seed=3, journal=tmp_path / "whole")
    path, rng = tmp_path / "whole" / "journal", random.Random(1)
    whole = len(ask_places(path))
    for n in range(searching.size(6, 12)):
        directory = tmp_path / str(n)
        directory.mkdir()
        rest = cut(path, rng.randrange(path.stat().st_size), directory / "journal")
        known = records.parse(rest.read_bytes(), "x")
        asked = 0 if known is None else len(ask_places(rest))
        done = [] if known is None else [e for run in known.runs.values() for e in run.effects.values()]
        doubts = sum(e.outcome is None for e in done)
        CALLS.clear()
        mock = lmc.Mock()
        states = program.batch(items, backend=mock, seed=3, journal=directory, errors="return")
        failed = [s for s in states if s.failure is not None]
        assert len(failed) == doubts and all(isinstance(s.failure, InDoubtEffect) for s in failed)
        for state, what in zip(states, expected, strict=True):
            assert state.failure is not None or seen(state) == what
        if not doubts:
            assert len(CALLS) + len(done) == len(calls) and asked + len(mock.call_log) == whole


def again(x: str) -> str:
    CALLS.append(("again", x))
    return f"\ud800{x}"


@lmc.function
def cheap(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2) + lmc.select("b", choices=["x", "yé"])
    return [charge(s["a"]), again(s["b"])]


def _cheap_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, bytes]:
    """Return the result of `cheap`, and its journal."""
    monkeypatch.setitem(globals(), "again", lmc.host(again, idempotent=True))
    expected = seen(cheap.run("é", backend=lmc.Mock(), seed=1, journal=path))
    return expected, path.read_bytes()


def test_every_cut_is_read_as_that_behind_the_last_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that cutting behind each line, below, is cutting at any byte."""
    _, data = _cheap_journal(tmp_path / "j", monkeypatch)
    first = data.index(b"\n") + 1
    for size in range(len(data) + 1):
        found = records.parse(data[:size], "x")
        whole = data.rfind(b"\n", 0, size) + 1
        assert (found is None) == (size < first)
        if found is not None:
            at_line = records.parse(data[:whole], "x")
            assert at_line is not None and (found.size, found.dropped) == (whole, size - whole)
            assert found.records == at_line.records


@lmc.function
def part(s: Any, of: str) -> Any:
    s += of + lmc.gen("p", max_tokens=3)
    return look_up(s["p"])


@lmc.function
def mixed(s: Any, q: str) -> Any:
    s += lmc.system("Be brief.") + lmc.user(q) + lmc.assistant(lmc.gen("some", max_tokens=3, n=2, temperature=1.0))
    inner = part(of=s["some"][1])
    s += lmc.user(lmc.select("which", choices=["a", "b"])) + lmc.gen("number", dtype=int, max_tokens=3, return_logprob=True, top_logprobs_num=2)
    try:
        look_up("7")
    except LookupError as error:
        s += str(error)
    with s.copy() as other:
        other += lmc.gen("aside", max_tokens=2, regex="[a-c]+")
        note(other["aside"], seen_by := [])
    forks = s.fork(2)
    forks += lambda i: f"{i}" + lmc.gen("f", max_tokens=2)
    forks.join()
    return inner.ret_value, seen_by, s["f"], s.get_meta_info("number")["finish_reason"]


def test_cut_behind_any_record(tmp_path: Path) -> None:
    """Every kind of answer, and runs in runs, in every execution."""
    program = lmc.compile(mixed)
    expected = seen(mixed.run("e", backend=lmc.Mock(), seed=3))
    calls, runs = list(CALLS), [mixed.run, program]
    for n, way in enumerate(runs):
        path = tmp_path / str(n)
        assert seen(way("e", backend=lmc.Mock(), seed=3, journal=path)) == expected
        whole = path.read_bytes().split(b"\n")
        for lines in range(1, len(whole)):
            lay(path, b"\n".join(whole[:lines]) + b"\n")
            effects = records.read(path).runs[0].effects.values() if lines > 1 else []
            CALLS.clear()
            try:
                assert seen(runs[1 - n]("e", backend=lmc.Mock(), journal=path)) == expected
                assert len(CALLS) + len(effects) == len(calls) and calls[len(effects) :] == CALLS
            except InDoubtEffect:
                assert sum(e.outcome is None for e in effects) == 1 and not CALLS


THRESHOLDS: list[tuple[int, int, int]] = []


@lmc.pure
def looks(x: str) -> str:
    THRESHOLDS.append(gc.get_threshold())
    return x


@lmc.function
def looked(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    s += looks(s["a"])
    if q == "bad":
        raise ValueError(q)


def test_full_collections_are_put_off_while_a_finished_batch_is_resumed(tmp_path: Path) -> None:
    before, program = gc.get_threshold(), lmc.compile(looked)

    def seen(items: list[str], name: str) -> set[tuple[int, int, int]]:
        THRESHOLDS.clear()
        program.batch([(q,) for q in items], backend=lmc.Mock(), seed=1, journal=tmp_path / name, errors="return")
        assert gc.get_threshold() == before
        return set(THRESHOLDS)

    put_off = {gc_tuning._shortened(*before, 1000)}
    assert seen(["a", "b"], "j") == {before} and seen(["a", "b"], "j") == put_off
    assert seen(["a", "b", "c"], "j") == {before} and seen(["a", "b", "c"], "j") == put_off  # one was not there
    assert seen(["a", "bad"], "k") == seen(["a", "bad"], "k") == {before}


def test_an_abandoned_batch_makes_no_further_call(tmp_path: Path) -> None:
    backend, ended = Gated(), list[int]()

    def first() -> None:
        CALLS.append(("first",))
        until(lambda: 2 in ended, "the last one is not cancelled")

    def second() -> None:
        CALLS.append(("second",))

    @lmc.function
    def program(s: Any, i: int) -> int:
        try:
            if i == 1:
                first()
                second()
            if i == 2:
                s += lmc.gen("x", max_tokens=2)
                s["x"]
        finally:
            ended.append(i)
        return i

    items = [{"i": i} for i in range(3)]
    CALLS.clear()
    states: Any = program.run_batch(items, backend=backend, num_threads=3, generator_style=True, journal=tmp_path / "j")
    assert next(states).ret_value == 0
    until(lambda: backend.waiting and CALLS, "nothing is asked or called")
    states.close()
    until(lambda: sorted(ended) == [0, 1, 2], "an item goes on")
    assert CALLS == [("first",)]
    backend.open()
    assert [s.ret_value for s in program.run_batch(items, backend=backend, journal=tmp_path / "j")] == [0, 1, 2]
    assert CALLS == [("first",), ("second",)]
