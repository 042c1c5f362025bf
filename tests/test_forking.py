"""A child of fork() says at once what it cannot use and what to do; journals are the parent's alone."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import lmc
from lmc import images, warning_filters
from lmc.durable.journal import JournalFile
from lmc.fsm import regex
from lmc.segments import Gen, Image, SamplingParams, Text
from lmc.thread_turns import TURN, short_turns
from tests.backend.engine_fakes import backend
from tests.pictures import png

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
FORKED = r"process \d+, of which this one is a fork: start what you use in the process that uses it .*multiprocessing\.get_context\(\"spawn\"\)"


def in_child(work: Callable[[], object]) -> str:
    """Return the result of `work` in a child, or the error that it raises there."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)  # a hang ends
            try:
                said = str(work())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


@lmc.function
def one(s):
    s += "x" + lmc.gen("a", max_tokens=3, temperature=0)


def gen(n: int = 3) -> Gen:
    return Gen(SamplingParams(max_new_tokens=n, temperature=0))


def test_short_turns_of_the_parents_threads_are_none_of_the_childs():
    with short_turns:
        assert sys.getswitchinterval() == pytest.approx(TURN)
        assert in_child(sys.getswitchinterval) == str(short_turns._before)
        with short_turns._lock:  # a thread of the parent's may have it
            assert in_child(lambda: short_turns.__enter__() or short_turns._blocks) == "1"


def test_a_child_waits_for_no_thread_of_the_parents_that_silences_warnings():
    with warning_filters._changing:
        assert in_child(lambda: regex.parse("[[a]") and images.decoded(Image(png())).mode) == "RGB"


def test_an_engine_of_the_parent_is_none_of_the_childs():
    engine, _ = backend()
    expected = one.run(backend=engine).text()
    for use in (
        lambda: one.run(backend=engine).text(),
        lambda: lmc.compile(one)(backend=engine).text(),
        lambda: engine.submit(None, [Text(("x",)), gen()]),
        lambda: engine.flush_cache(),
    ):
        assert re.search("Backend(Error|Ended): .*the engine was started by " + FORKED, in_child(use)), use
    assert in_child(lambda: engine.health().state) == "ended"
    assert in_child(engine.close) == "None", "and closing it holds nobody up"
    assert one.run(backend=engine).text() == expected, "the parent's goes on"
    engine.close()


def test_an_answer_on_its_way_is_none_of_the_childs():
    engine, runner = backend()
    inside, go_on, fine = threading.Event(), threading.Event(), runner.run

    def run(work):
        inside.set()
        assert go_on.wait(60)
        return fine(work)

    runner.run = run
    handle = engine.submit(None, [Text(("x",)), gen(), Text(("y",)), gen()])
    assert inside.wait(60)
    said = [in_child(lambda r=result: r.output()) for result in handle.results]
    go_on.set()
    assert all("of which this one is a fork" in s for s in said), said
    assert [r.output().text for r in handle.results]
    engine.close()


def test_what_waits_for_a_picture_fails_in_a_child():
    pytest.importorskip("PIL")
    from lmc.backend.engine.eyes import Eyes
    from tests.backend.test_eyes import WIDE, Sight, look

    sight = Sight()
    engine, _ = backend(eyes=Eyes(sight, threads=1))  # type: ignore[arg-type]
    waiting = engine.submit(None, [look(WIDE), gen()])
    assert sight.begun.acquire(timeout=60)
    assert re.search(FORKED, in_child(lambda: waiting.results[0].output()))
    assert in_child(engine.close) == "None"
    sight.gate.set()
    assert waiting.results[0].output().text
    engine.close()


def test_an_engine_that_the_child_makes_is_its_own():
    def work():
        engine, _ = backend()
        with engine:
            return one.run(backend=engine).text()

    parents, _ = backend()
    with parents:
        assert in_child(work) == one.run(backend=parents).text()


def test_a_mock_works_in_a_child_and_what_was_asked_before_does_not():
    mock = lmc.Mock(latency=0.001)
    expected = one.run(backend=mock).text()
    assert in_child(lambda: one.run(backend=mock).text()) == expected
    slow = lmc.Mock(latency=60)
    state = one.run(backend=slow)
    assert "of which this one is a fork" in in_child(lambda: state["a"])
    slow.close()
    mock.close()


def test_a_mock_works_in_a_child_of_a_child_too():
    mock, slow = lmc.Mock(latency=0.001), lmc.Mock(latency=60)
    expected = one.run(backend=mock).text()

    def child() -> str:
        state = one.run(backend=slow)
        return one.run(backend=mock).text() + in_child(lambda: one.run(backend=mock).text()) + in_child(lambda: state["a"])

    said = in_child(child)
    assert said.startswith(2 * expected) and re.search(rf"process {os.getpid()}, of which this one is a fork", said), said


def test_a_program_runs_in_a_child_of_a_batchs_tool():
    expected = one.run(backend=lmc.Mock(), seed=1).text()

    @lmc.function
    def forks_a_child(s):
        s += lmc.gen("a", max_tokens=2)
        s["a"]
        return in_child(lambda: one.run(backend=lmc.Mock(latency=0.001), seed=1).text())

    assert [state.ret_value for state in lmc.compile(forks_a_child).batch([{}] * 2, backend=lmc.Mock(latency=0.001))] == [expected] * 2


def test_a_program_runs_in_a_child_of_an_async_program():
    expected = one.run(backend=lmc.Mock(), seed=1).text()

    @lmc.function
    async def forks_a_child(s):
        s += lmc.gen("a", max_tokens=2)
        return in_child(lambda: one.run(backend=lmc.Mock(latency=0.001), seed=1).text())

    assert forks_a_child.run(backend=lmc.Mock(latency=0.001)).ret_value == expected


def test_a_stream_of_the_parent_ends_in_a_child():
    begun, goes_on = threading.Event(), threading.Event()

    @lmc.function
    def waits(s):
        s += lmc.gen("a", max_tokens=2)
        begun.set()
        goes_on.wait()
        s += lmc.gen("b", max_tokens=2)
        return s["b"]

    def says(read: Callable[[], object]) -> str:
        try:
            return str(read())
        except lmc.ProgramError as error:
            return error.message

    state = waits.run(backend=lmc.Mock(), stream=True)
    begun.wait()
    for read in (lambda: "".join(state.text_iter()), lambda: state["b"], lambda: state.ret_value):
        assert re.search("runs in " + FORKED, in_child(lambda: says(read)))  # noqa: B023
    goes_on.set()
    assert state.ret_value == state["b"]


def test_a_child_does_not_keep_a_journals_lock(tmp_path):
    """The parent's run is over, the child still lives: another run may have the journal."""
    path, header = tmp_path / "journal", {"kind": "run", "program": "p", "source": "", "compiled": "", "backend": "b", "sampling": {}, "seed": 1}
    journal = JournalFile.open(path, header, lambda: 1)
    journal.put(0, ["u", 1])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # lives until the parent is done
        os._exit(0)
    os.close(reading)
    try:
        journal.close()
        JournalFile.open(path, header, lambda: 1).close()
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_a_journal_of_the_parent_is_written_by_the_parent_alone(tmp_path):
    path, header = tmp_path / "journal", {"kind": "run", "program": "p", "source": "", "compiled": "", "backend": "b", "sampling": {}, "seed": 1}
    journal = JournalFile.open(path, header, lambda: 1)
    journal.put(0, ["u", 1])

    def work():
        journal.put(0, ["u", 2])
        journal.sync()

    before = Path(path).read_bytes()
    assert "JournalError" in (said := in_child(work)) and "it is written by process" in said and "of which this one is a fork" in said
    assert Path(path).read_bytes().startswith(before)
    journal.close()
    again = JournalFile.open(path, header, lambda: 1)
    assert again.contents.records == {0: [["u", 1]]}
    again.close()
