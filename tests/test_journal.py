"""Journals: a run that was cut off anywhere goes on to the same end, and nothing is asked or called twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmc
from lmc import journal
from lmc.errors import InDoubtEffect, JournalError, ParameterError

CALLS: list[Any] = []


def look_up(q: str) -> list[Any]:
    CALLS.append(("look_up", q))
    if q.endswith("7"):
        raise LookupError(f"nothing about {q}")
    return [q, {"found": len(CALLS) * 0}]


def note(x: str, into: list[str]) -> None:
    CALLS.append(("note", x))
    into.append(x)


@lmc.function
def agent(s: Any, q: str) -> Any:
    s += q
    notes: list[str] = []
    for _ in range(3):
        s += "\nNext:" + lmc.select("action", [" search", " finish"])
        if s["action"] == " finish":
            break
        try:
            found = look_up(q)
            found.append(len(found))
        except LookupError as error:
            found = [str(error)]
        note(s["action"], notes)
        forks = s.fork(2)
        for f, style in zip(forks, ["short", "long"]):
            f += f"\n{found} {style}:" + lmc.gen("thought", max_tokens=6, temperature=1.0)
        s += "".join(f["thought"] for f in forks)
    s += lmc.gen("end", max_tokens=4)
    return s["end"], notes


def seen(state: lmc.State) -> Any:
    names = [n for n in state.variables if n is not None]
    return state.text(), state.ret_value, {n: state[n] for n in names}, {n: state.get_meta_info(n) for n in names}, state.usage


def ways() -> list[Any]:
    return [agent.run, lmc.compile(agent), lmc.compile(agent, opt=0)]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()


def cut(path: Path, size: int, to: Path) -> Path:
    to.write_bytes(path.read_bytes()[:size])
    return to


def ask_places(path: Path) -> set[Any]:
    return {(item, *place) for item, known in journal.read(path).runs.items() for place in known.answers}


@pytest.mark.parametrize("first", range(3))
def test_a_whole_journal_answers_everything(first: int, tmp_path: Path) -> None:
    for q in ("a", "c7"):
        path = tmp_path / q
        expected = seen(ways()[first](q, backend=lmc.Mock(), seed=3))
        calls = list(CALLS)
        CALLS.clear()
        assert seen(ways()[first](q, backend=lmc.Mock(), seed=3, journal=path)) == expected
        assert calls == CALLS
        CALLS.clear()
        for way in ways():
            mock = lmc.Mock()
            assert seen(way(q, backend=mock, journal=path)) == expected  # the seed is the journal's
            assert not mock.call_log and not CALLS


def test_cut_at_any_byte(tmp_path: Path) -> None:
    path, rest = tmp_path / "journal", tmp_path / "rest"
    expected = seen(agent.run("e", backend=lmc.Mock(), seed=3))
    CALLS.clear()
    lmc.compile(agent)("e", backend=lmc.Mock(), seed=3, journal=path)
    calls, size = list(CALLS), path.stat().st_size
    assert len(calls) > 2
    lines = path.read_bytes().split(b"\n")
    ends = [sum(len(line) + 1 for line in lines[:i]) for i in range(len(lines))]
    program, doubts = lmc.compile(agent), 0
    for at in sorted({*range(0, size, 97), *ends, *[max(0, e - 1) for e in ends]}):
        cut(path, at, rest)
        known = journal.parse(rest.read_bytes(), "x")
        effects = {} if known is None or 0 not in known.runs else known.runs[0].effects
        asked = set() if known is None else ask_places(rest)
        CALLS.clear()
        mock = lmc.Mock()
        try:
            assert seen(program("e", backend=mock, seed=3, journal=rest)) == expected
        except InDoubtEffect as error:
            doubts += 1
            assert error.loc is not None and any(e.outcome is None for e in effects.values())
            continue
        assert all(e.outcome is not None for e in effects.values())
        assert [*calls[: len(effects)], *CALLS] == calls
        assert len(asked) + len(mock.call_log) == len(ask_places(path))
    assert doubts


def test_a_batch_cut_at_random_points(tmp_path: Path) -> None:
    items = [{"q": f"item {i}"} for i in range(30)]
    program = lmc.compile(agent)
    expected = [seen(s) for s in program.batch(items, backend=lmc.Mock(), seed=3)]
    calls = sorted(map(repr, CALLS))
    program.batch(items, backend=lmc.Mock(), seed=3, journal=tmp_path / "whole")
    path, rng = tmp_path / "whole" / "journal", random.Random(1)
    whole = len(ask_places(path))
    for n in range(12):
        directory = tmp_path / str(n)
        directory.mkdir()
        rest = cut(path, rng.randrange(path.stat().st_size), directory / "journal")
        known = journal.parse(rest.read_bytes(), "x")
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


_KILLED = """
import os, sys, threading, time, lmc

def slow(q):
    with open(sys.argv[2], "a") as file:
        file.write(f"call {q}\\n")
    time.sleep(0.003)
    return q.upper()

@lmc.function
def program(s, q):
    s += q + lmc.gen("a", max_tokens=6)
    s += look(s["a"]) + lmc.gen("b", max_tokens=6)
    s += look(s["b"] + q) + lmc.gen("c", max_tokens=6)
    return s["c"]

look = lmc.host(slow, idempotent=True)
backend = lmc.Mock(latency=0.002)
states = lmc.compile(program).batch([{"q": f"q{i}"} for i in range(60)], backend=backend, seed=5, journal=sys.argv[1])
print(len(backend.call_log), "\\x00".join(s.text() for s in states))
"""


@lmc.function
def killed(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=6)
    s += s["a"].upper() + lmc.gen("b", max_tokens=6)
    s += (s["b"] + q).upper() + lmc.gen("c", max_tokens=6)


def _run_killed(tmp_path: Path, directory: Path, after: float | None) -> str | None:
    env = {**os.environ, "PYTHONPATH": str(Path(lmc.__file__).parent.parent)}
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(_KILLED))
    process = subprocess.Popen([sys.executable, str(script), str(directory), str(tmp_path / "calls")], env=env, stdout=subprocess.PIPE, text=True)
    if after is None:
        return process.communicate(timeout=60)[0]
    end = time.monotonic() + 30
    file = directory / "journal"
    while process.poll() is None and time.monotonic() < end and (not file.exists() or file.stat().st_size < after):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    return None


def test_killed_processes(tmp_path: Path) -> None:
    """kill -9 at several points of one batch, one after another; the run that finishes it gives what an undisturbed one gives."""
    directory, before = tmp_path / "journals", 0
    for size in (10_000, 25_000):
        _run_killed(tmp_path, directory, size)
        there = len(ask_places(directory))
        assert there >= before
        before = there
    calls = journal.read(directory)
    done = sum(e.outcome is not None for run in calls.runs.values() for e in run.effects.values())
    assert 0 < before < 180 and done
    made = (tmp_path / "calls").read_text().count("call ")
    last = _run_killed(tmp_path, directory, None)
    assert last is not None
    asked, _, text = last.partition(" ")
    assert text.rstrip("\n") == "\0".join(s.text() for s in killed.run_batch([{"q": f"q{i}"} for i in range(60)], backend=lmc.Mock(), seed=5))
    assert int(asked) == 180 - before  # what has an answer is not asked again
    assert (tmp_path / "calls").read_text().count("call ") - made == 120 - done  # what has a result is not called again


# -- effects ---------------------------------------------------------------------------------------------------------


@lmc.function
def pays(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    try:
        paid = charge(s["a"])
    except InDoubtEffect:
        paid = "in doubt"
    s += lmc.gen("b", max_tokens=3)
    return paid


def charge(x: str) -> str:
    CALLS.append(("charge", x))
    return f"paid {x}"


def _without_result(path: Path) -> None:
    """Cuts a journal behind its first intent."""
    lines = path.read_bytes().split(b"\n")
    cut(path, sum(len(line) + 1 for line in lines[: next(i for i, line in enumerate(lines) if b'"i"' in line) + 1]), path)


@pytest.mark.parametrize("way", range(3))
def test_an_intent_without_a_result(way: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run = [pays.run, lmc.compile(pays), lmc.compile(pays, opt=0)][way]
    assert str(run("q", backend=lmc.Mock(), seed=1, journal=path).ret_value).startswith("paid")
    _without_result(path)
    CALLS.clear()
    for _ in range(2):  # and so it stays
        assert run("q", backend=lmc.Mock(), seed=1, journal=path).ret_value == "in doubt"
    assert not CALLS


def test_an_idempotent_function_is_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "charge", lmc.host(charge, idempotent=True))
    program = lmc.compile(pays)
    program("q", backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    _without_result(tmp_path / "j")
    CALLS.clear()
    assert str(program("q", backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value).startswith("paid") and len(CALLS) == 1
    CALLS.clear()
    assert str(program("q", backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value).startswith("paid") and not CALLS


def test_what_is_not_data_stops_the_run_that_is_taken_up(tmp_path: Path) -> None:
    @lmc.function
    def program(s: Any, q: str) -> Any:
        stream = numbers()
        s += lmc.gen("a", max_tokens=3)
        return sum(stream)

    with pytest.warns(lmc.CaptureWarning, match="numbers\\(\\) gave a generator, and a journal cannot hold a generator"):
        assert program.run("q", backend=lmc.Mock(), journal=tmp_path / "j").ret_value == 3
    with pytest.raises(JournalError, match="idempotent=True"):
        program.run("q", backend=lmc.Mock(), journal=tmp_path / "j")


def numbers() -> Any:
    return (i for i in range(3))


def test_what_tools_do_to_closures_and_arguments_is_done_again(tmp_path: Path) -> None:
    @lmc.function
    def program(s: Any, q: str) -> Any:
        total, kept = 0, []

        def add(n: int) -> int:
            nonlocal total
            charge(str(n))
            total += n
            kept.append(n)
            return total

        rows = [[3], [1]]
        for n in (1, 2):
            add(n)
            s += str(total) + lmc.gen("a", max_tokens=2)
        rows.sort(key=lambda row: add(row[0]))
        return total, kept, rows

    for way in (program.run, lmc.compile(program)):
        path = tmp_path / str(id(way))
        expected = way("q", backend=lmc.Mock(), seed=1, journal=path).ret_value
        CALLS.clear()
        assert way("q", backend=lmc.Mock(), seed=1, journal=path).ret_value == expected == (7, [1, 2, 3, 1], [[3], [1]])
        assert not CALLS


async def fetch(q: str) -> str:
    CALLS.append(("fetch", q))
    await asyncio.sleep(0)
    return q + "!"


@lmc.function
async def gathers(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    one = await fetch(s["a"])
    several = await asyncio.gather(fetch("x"), fetch("y"))
    s += lmc.gen("b", max_tokens=3)
    return one, several, await fetch(s["b"])


def test_awaited_tools(tmp_path: Path) -> None:
    program = lmc.compile(gathers)
    expected = gathers.run("q", backend=lmc.Mock(), seed=1)
    ways = [
        lambda **o: gathers.run("q", seed=1, **o), lambda **o: asyncio.run(gathers.arun("q", seed=1, **o)), lambda **o: program("q", seed=1, **o),
        lambda **o: asyncio.run(program.acall("q", seed=1, **o)),
    ]  # fmt: skip
    for n, way in enumerate(ways):
        path = tmp_path / str(n)
        CALLS.clear()
        assert seen(way(backend=lmc.Mock(), journal=path)) == seen(expected)
        assert len(CALLS) == 4
        whole = path.read_bytes()
        for again in ways:
            CALLS.clear()
            mock = lmc.Mock()
            assert seen(again(backend=mock, journal=path)) == seen(expected)
            assert not CALLS and not mock.call_log
        path.write_bytes(whole)
        _without_result(path)
        with pytest.raises(InDoubtEffect, match="fetch"):
            way(backend=lmc.Mock(), journal=path)


def test_async_batches(tmp_path: Path) -> None:
    items = [{"q": f"q{i}"} for i in range(6)]
    program = lmc.compile(gathers)
    expected = [seen(s) for s in program.batch(items, backend=lmc.Mock(), seed=1)]
    for n, batch in enumerate((program.batch, lambda i, **o: asyncio.run(program.abatch(i, **o)), gathers.run_batch)):
        assert [seen(s) for s in batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / str(n))] == expected
        CALLS.clear()
        mock = lmc.Mock()
        assert [seen(s) for s in batch(items, backend=mock, seed=1, journal=tmp_path / str(n))] == expected
        assert not CALLS and not mock.call_log


def test_a_request_that_failed_is_asked_again(tmp_path: Path) -> None:
    program, path = lmc.compile(agent), tmp_path / "j"
    with pytest.raises(lmc.BackendError):
        program("a", seed=3, journal=path, backend=lmc.Mock(fault=lambda ask, n: lmc.BackendError("down") if n == 2 else None))
    mock = lmc.Mock()
    assert seen(program("a", seed=3, journal=path, backend=mock)) == seen(agent.run("a", seed=3, backend=lmc.Mock()))
    assert len(mock.call_log) == len(ask_places(path)) - 2


def test_budgets_count_what_is_known(tmp_path: Path) -> None:
    program, path = lmc.compile(agent), tmp_path / "j"
    for _ in range(2):
        with pytest.raises(lmc.BudgetExceeded, match="3 calls"):
            program("d", seed=3, journal=path, backend=lmc.Mock(), budget=lmc.Budget(calls=3))


# -- journals of something else --------------------------------------------------------------------------------------


@lmc.function
def small(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)


def _other() -> Any:
    @lmc.function
    def small(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=4)

    return small


@pytest.mark.parametrize("call, message", [
    (lambda p, b: small.run("other", backend=b, journal=p), "other arguments"),
    (lambda p, b: _other().run("q", backend=b, journal=p), "another source"),
    (lambda p, b: pays.run("q", backend=b, journal=p), "the program small, not pays"),
    (lambda p, b: small.run("q", backend=b, journal=p, seed=2), "the seed 1, not 2"),
    (lambda p, b: small.run("q", backend=b, journal=p, temperature=0), "temperature=0.0"),
    (lambda p, b: small.run("q", backend=lmc.Mock(capabilities=lmc.backend.base.Capabilities("other")), journal=p), "the backend mock, not other"),
    (lambda p, b: lmc.compile(small, aggressive=True)("q", backend=b, journal=p), "compiled"),
    (lambda p, b: lmc.compile(small).batch([{"q": "q"}], backend=b, journal=p), "is a directory, and this is a file"),
])  # fmt: skip
def test_a_journal_of_something_else_is_refused(call: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "j"
    small.run("q", backend=lmc.Mock(), journal=path, seed=1)
    before, mock = path.read_bytes(), lmc.Mock()
    with pytest.raises(JournalError, match=message):
        call(path, mock)
    assert path.read_bytes() == before and not mock.call_log


def test_journals_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(JournalError, match="not a journal of lmc"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "text")
    (tmp_path / "new").write_text("lmc-journal 3 0 {}\n")
    with pytest.raises(JournalError, match="format 3; this lmc reads format 2"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "new")
    with pytest.raises(JournalError, match="No such file"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "no" / "where")
    with pytest.raises(JournalError, match="is a directory"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path)
    with pytest.raises(ParameterError, match="stream"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "j", stream=True)
    with pytest.raises(lmc.ArgumentError, match="the path of a file"):
        small.run("q", backend=lmc.Mock(), journal=7)
    source = {"lmc": lmc}
    exec("@lmc.function\ndef made(s): s += lmc.gen('a')", source)
    with pytest.raises(JournalError, match="cannot be journaled"):
        source["made"].run(backend=lmc.Mock(), journal=tmp_path / "made")


def test_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"

    @lmc.function
    def program(s: Any) -> Any:
        again()

    def again() -> Any:
        small.run("q", backend=lmc.Mock(), journal=path)

    with pytest.raises(JournalError, match="in use by another run"):
        program.run(backend=lmc.Mock(), journal=path)


def test_a_changed_byte_is_refused_and_a_cut_is_not(tmp_path: Path) -> None:
    path = tmp_path / "j"
    agent.run("d", backend=lmc.Mock(), seed=3, journal=path)
    data = path.read_bytes()
    for at in range(data.index(b"\n") + 1, data.rindex(b"\n", 0, -1), 31):
        broken = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(JournalError, match="damaged at byte"):
            journal.parse(broken, "x")
    cut_off = journal.parse(data[:-3], "x")
    assert cut_off is not None and cut_off.dropped


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=60), st.lists(st.lists(st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2)), max_size=8), max_size=3))
def test_any_bytes_are_a_journal_or_refused(noise: bytes, records: list[Any]) -> None:
    payload = journal.codec.to_bytes(records)
    head = b"lmc-journal 2 " + journal._checksum(b"{}") + b" {}\n"
    for data in (noise, head + noise, head + journal._checksum(payload) + b" " + payload + b"\n", head[: len(noise)]):
        try:
            journal.parse(data, "x")
        except JournalError:
            pass


def test_a_program_that_changed_its_mind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STYLE", "one")
    path = tmp_path / "j"
    styled.run(backend=lmc.Mock(), seed=1, journal=path)
    monkeypatch.setitem(globals(), "STYLE", "two")
    CALLS.clear()
    for way in (styled.run, lmc.compile(styled)):
        with pytest.raises(JournalError, match="asks something else here"):
            way(backend=lmc.Mock(), journal=path)
    assert not CALLS


STYLE = ""


@lmc.function
def styled(s: Any) -> Any:
    try:
        s += STYLE + lmc.gen("a", max_tokens=2)
        s["a"]
    except Exception:  # a program that swallows everything is stopped all the same
        s += "never mind"
    charge("x")
