"""Replicas behind one backend: programs mean the same, work is placed by prefixes and load, and what a lost replica was asked is asked elsewhere."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
import weakref
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lmc
from lmc.backend.api.prefixes import extended, keys_of
from lmc.backend.base import Backend, Hints
from lmc.backend.pipe import wire
from lmc.backend.pipe.client import PipeBackend
from lmc.backend.pipe.server import PipeServer
from lmc.backend.replicas import child
from lmc.backend.replicas import process as processes
from lmc.backend.replicas.backend import Replicas
from lmc.backend.usage import MeteredAccount, Usage
from lmc.errors import BackendError, CancelledError, ConstraintError, ModelLoadError, ParameterError
from lmc.segments import Constraint, Image, Select, Special, Text
from tests.backend import engine_fakes
from tests.backend.engine_fakes import gen
from tests.backend.gated import InPieces
from tests.conformance.harness import differences_through
from tests.conformance.table import CARRIED, carried
from tests.pictures import png
from tests.searching import some
from tests.waiting import until


class Here:
    """A replica's process, which is a thread here: `kill` cuts its line, as the system does for one that ends."""

    device, described, hung = "cpu", "was ended by SIGKILL", False
    id = -1

    def __init__(self, engine: Any, topology: str = "") -> None:
        self.engine, self.topology = engine, [topology]
        ours, its = Pipe()
        self.server, self._ours = PipeServer(engine, its), ours

    def backend(self) -> PipeBackend:
        return PipeBackend(self._ours)

    def close(self, until: float) -> None:
        assert self.server.join(60)

    def kill(self) -> None:
        self.server.close()


@contextmanager
def replicated(*engines: Any):
    processes = [Here(engine) for engine in engines]
    backend = Replicas(processes, engine_fakes.FakeWords())  # type: ignore[arg-type]
    try:
        yield backend, processes
    finally:
        backend.close()
        for process in processes:
            assert not process.server.handles and not process.server.pins
            process.engine.close()


def ask(backend: Any, text: str, most: int = 4, parent: Any = None, **hints: Any):
    return backend.submit(parent, [Text((text,)), gen(most)], Hints(**hints) if hints else None)


@contextmanager
def busy(processes: list[Here]):
    """No pass ends meanwhile: what is asked counts as load, however slow the machine is."""
    end = threading.Event()
    for process in processes:
        process.engine._core.post(end.wait)
    try:
        yield
    finally:
        end.set()


def requests(backend: Replicas) -> list[int]:
    return [each["requests"] for each in backend.server_info()["replicas"]]


# -- meaning -----------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:text contains")
@some("name, compiled", carried(1), 10)
def test_programs_mean_the_same(name, compiled):
    @contextmanager
    def by_two(engine: Any):
        with replicated(engine, engine) as (backend, _):
            yield backend

    found = differences_through(CARRIED[name], by_two, compiled=compiled)
    assert not any(found), found


def test_it_is_a_backend():
    with replicated(lmc.Mock(), lmc.Mock()) as (backend, _):
        assert isinstance(backend, Backend) and backend.capabilities == lmc.Mock().capabilities
        assert backend.count_tokens("abc") > 0 and backend.encode(["abc"]) and backend.health().ready
        ask(backend, "a").results[0].output()
        assert backend.counters().calls == backend.spent().attempts == 1 and len(backend.server_info()["replicas"]) == 2
        with replicated(lmc.Mock()) as (other, _), pytest.raises(BackendError, match="handle of another backend"):
            ask(backend, "b", parent=ask(other, "a"))
    with pytest.raises(BackendError, match="is closed"):
        ask(backend, "a")
    assert backend.health().state == "closed"


def test_what_a_replica_refuses_is_raised_where_it_is_asked():
    with replicated(lmc.Mock(), lmc.Mock()) as (backend, _):
        with pytest.raises(ConstraintError):
            backend.submit(None, [Text(("a",)), gen(constraint=Constraint("regex", "("))])
        assert [target.load for target in backend._placement.targets] == [0, 0]


# -- placement ----------------------------------------------------------------------------------------------------------------


def test_keys_of_growing_prompts_are_those_of_whole_ones():
    text = "".join(chr(33 + i % 90) for i in range(2000))
    keys, rest = (), ""
    for cut in range(0, 2000, 37):
        keys, rest = extended(keys, rest, text[cut : cut + 37])
    assert keys == keys_of(text)


def test_a_batch_spreads_and_its_families_stay_together():
    prefixes = [chr(65 + i) * 1500 for i in range(4)]
    with replicated(*(engine_fakes.backend(8000)[0] for _ in range(2))) as (backend, processes):
        handles = [ask(backend, prefix + str(i)) for i in range(6) for prefix in prefixes]
        for handle in handles:
            handle.results[0].output()
        assert min(requests(backend)) >= 6
        computed = [process.engine.counters().prefilled_tokens for process in processes]
        until(lambda: [(t.load, t.running) for t in backend._placement.targets] == [(0, 0)] * 2)
    assert sum(computed) < 2 * 4 * 1600, "each prefix is computed once, or once a replica"


def test_a_constant_prefix_is_pinned_where_requests_behind_it_go(monkeypatch):
    """It was sent again with each request that went to another replica than it, and nothing kept it there."""
    said, read = [], wire.read_segments
    monkeypatch.setattr(wire, "read_segments", lambda data: (said.append(str(data)), read(data))[1])
    with replicated(*(engine_fakes.backend(8000)[0] for _ in range(2))) as (backend, processes):
        engines = [process.engine for process in processes]
        constant = backend.prefill(None, [Text(("A" * 1500,))], Hints(pin=True))
        with busy(processes):
            handles = [ask(backend, str(i), parent=constant) for i in range(24)]
        for handle in handles:
            handle.results[0].output()
        assert min(requests(backend)) >= 6
        assert [engine.stats()["pinned"] for engine in engines] == [1, 1] and backend.holds(constant)
        assert sum("A" * 1500 in each for each in said) == 2
        backend.flush_cache()
        assert not backend.holds(constant)
        constant = backend.prefill(None, [Text(("A" * 1500,))], Hints(pin=True))
        with busy(processes):
            handles = [ask(backend, str(i), parent=constant) for i in range(24)]
        for handle in handles:
            handle.results[0].output()
        backend.release(constant)
        until(lambda: [engine.stats()["pinned"] for engine in engines] == [0, 0])


def test_a_prefix_is_pinned_nowhere_once_it_is_released():
    """Requests behind it went on being placed, and each further replica kept it for as long as one of their states was there."""
    with replicated(*(engine_fakes.backend(8000)[0] for _ in range(2))) as (backend, processes):
        constant = backend.prefill(None, [Text(("A" * 1500,))], Hints(pin=True))
        backend.release(constant)
        with busy(processes):
            handles = [ask(backend, str(i), parent=constant) for i in range(24)]
        for handle in handles:
            handle.results[0].output()
        assert min(requests(backend)) >= 6
        assert [process.engine.stats()["pinned"] for process in processes] == [0, 0]
        processes[constant.submission.replica.bit].kill()
        until(lambda: constant.submission.replica.backend.lost is not None)
        backend.revive(constant.submission)
        handle = ask(backend, "?", parent=constant)
        assert handle.results[0].output().text and processes[handle.submission.replica.bit].engine.stats()["pinned"] == 0


def test_what_goes_on_stays_where_its_kv_is():
    with replicated(*(engine_fakes.backend(8000)[0] for _ in range(3))) as (backend, processes):
        roots = [ask(backend, chr(65 + i) * 2000) for i in range(3)]
        for root in roots:
            root.results[0].output()
        places = [root.submission.replica for root in roots]
        for _ in range(3):
            roots = [ask(backend, " and then? ", parent=root) for root in roots]
            for root in roots:
                root.results[0].output()
            assert [root.submission.replica for root in roots] == places
        assert sum(process.engine.counters().prefilled_tokens for process in processes) < 3 * 2200


def test_equal_pictures_go_where_they_have_been():
    with replicated(*(lmc.Mock() for _ in range(2))) as (backend, _):
        handles = list[Any]()
        for i in range(4):
            for shade in (1, 2, 3):
                handles.append(backend.submit(None, [Image(bytes(png(shade))), Text((str(i),)), gen()]))
                handles[-1].results[0].output()  # or a replica that has not answered yet counts as busy
        for shade in range(3):
            assert len({handle.submission.replica for handle in handles[shade::3]}) == 1


def test_siblings_go_together(monkeypatch):
    monkeypatch.setattr("lmc.backend.engine.engine._MOMENT", 30.0)  # so long a group waits for its members, however busy the machine is
    with replicated(*(engine_fakes.backend(2000)[0] for _ in range(2))) as (backend, processes):
        root = backend.submit(None, [Text(("abc",))])
        forks = [ask(backend, str(i), parent=root, group=(7,), members=4, has_more=i < 3) for i in range(4)]
        for fork in forks:
            fork.results[0].output()
        assert sorted(process.engine.counters().groups for process in processes) == [0, 1]


@pytest.mark.parametrize("parts", [(), ("the cat",), (Special("<s>"), "the cat")])
def test_they_encode_as_each_of_them(monkeypatch, parts):
    """With the BOS that a vocabulary puts before prompts which do not begin with it."""
    monkeypatch.setattr(engine_fakes.FakeWords, "add_bos", True)
    engine, _ = engine_fakes.backend(2000)
    with replicated(engine) as (backend, _):
        assert backend.encode(parts) == engine.encode(parts)
        assert parts == () or engine.encode(parts)[0] == engine_fakes.BOS
        assert ask(backend, "the cat").results[0].output().usage.prompt_tokens == len(engine.encode(["the cat"]))


def test_nothing_stays_with_replicas_when_nobody_wants_it():
    engine, _ = engine_fakes.backend(2000)
    with replicated(engine) as (backend, (process,)):
        handle = ask(backend, "abc", 900)
        gone = weakref.ref(handle.submission)
        del handle
        gc.collect()
        assert gone() is None
        until(lambda: not process.server.handles)
        kept = backend.prefill(None, [Text(("constant " * 20,))])
        until(partial(backend.holds, kept))
        backend.release(kept)
        until(lambda handle=kept: not backend.holds(handle))
        child = ask(backend, "x", parent=kept)
        del kept
        assert child.results[0].output().text


def test_a_guess_that_is_needed_is_none_any_more():
    engine, _ = engine_fakes.backend(2000)
    with replicated(engine) as (backend, (process,)):
        handle = ask(backend, "abc", 400, guess=True)
        until(lambda: process.server.handles)
        steps = next(iter(process.server.handles.values())).steps
        assert steps[0].hints.guess
        handle.needed()
        until(lambda: not steps[0].hints.guess)


def test_a_cancelled_handle_says_so():
    with replicated(lmc.Mock(latency=60), lmc.Mock(latency=60)) as (backend, _):
        handle = ask(backend, "a")
        handle.cancel()
        with pytest.raises(CancelledError):
            handle.results[0].output()


# -- faults --------------------------------------------------------------------------------------------------------------------


def chain(backend: Any, text: str):
    """A prompt with two answers, of which the second goes on from the first."""
    first = ask(backend, text)
    return first, ask(backend, " so ", parent=first)


def test_what_a_lost_replica_was_asked_is_asked_elsewhere():
    gate = threading.Event()
    slow, _ = engine_fakes.backend(2000)
    with replicated(slow, engine_fakes.backend(2000)[0]) as (backend, processes):
        expected = [each.results[0].output().text for text in ("abc", "def", "ghi") for each in chain(backend, text)]
        slow._core.post(gate.wait)  # its loop stands still
        done = [ask(backend, f"{i}") for i in range(2)]
        chains = [each for text in ("abc", "def", "ghi") for each in chain(backend, text)]
        assert any(each.submission.replica.bit == 0 for each in chains)
        processes[0].kill()
        assert [each.results[0].output().text for each in chains] == expected
        assert all(each.results[0].output() for each in done)
        assert {each.submission.replica.bit for each in chains} == {1}
        found = backend.server_info()["replicas"]
        assert found[0]["ended"] == "was ended by SIGKILL" and backend.health().ready
        again = ask(backend, "and on", parent=chains[0])
        assert again.results[0].output().text
        gate.set()


def test_an_answer_of_which_a_part_was_read_fails_and_says_why():
    mocks = InPieces(), InPieces()
    with replicated(*mocks) as (backend, processes):
        handle = ask(backend, "a", 30, watched=True)
        until(lambda: any(mock.begin() for mock in mocks))
        next(iter(handle.results[0].stream()))
        processes[handle.submission.replica.bit].kill()
        with pytest.raises(BackendError, match=r"replica \d on cpu was ended by SIGKILL while it answered"):
            handle.results[0].output()


def test_without_any_replica_all_fails_at_once_and_says_why():
    with replicated(lmc.Mock(latency=60), lmc.Mock(latency=60)) as (backend, processes):
        handles = [ask(backend, str(i)) for i in range(4)]
        for process in processes:
            process.kill()
        for handle in handles:
            with pytest.raises(BackendError, match="replica 0 was ended by SIGKILL, replica 1"):
                handle.results[0].output()
        until(lambda: backend.health().state == "ended")
        with pytest.raises(BackendError, match="can no longer be used"):
            ask(backend, "x")


def test_what_is_asked_of_all_replicas_is_not_refused_by_those_that_have_ended():
    with replicated(*(engine_fakes.backend(400)[0] for _ in range(2))) as (backend, processes):
        assert backend.submit(None, [Text(("x",)), gen(2)]).results[0].output().text
        before = backend.counters()
        processes[0].kill()
        processes[1].kill()
        assert backend.counters() == before, "what was counted does not go back"
        backend.flush_cache()
        assert {said["replica"] for said in backend.server_info()["replicas"]} == {0, 1}
        assert not backend.health().ready


def test_the_loss_of_an_idle_replica_is_logged(caplog):
    """It was only if a request had been there."""
    with replicated(lmc.Mock(), lmc.Mock()) as (backend, processes):
        processes[0].kill()
        until(lambda: backend._every[0].backend.lost is not None)
        ask(backend, "a").results[0].output()
    assert "replica 0 on cpu was ended by SIGKILL; 1 of 2 are left" in caplog.text


def test_a_program_goes_on_when_a_replica_is_lost():
    @lmc.function
    def program(s, n):
        s += f"Item {n}: "
        for f in s.fork(3):
            f += lmc.gen("a", max_tokens=3, temperature=0)
        s += lmc.select("b", choices=["yes", "no"])
        s += lmc.gen("c", max_tokens=3, temperature=0)

    def results(backend):
        return [(state["b"], state["c"]) for state in lmc.compile(program).batch([{"n": n} for n in range(8)], backend=backend, seed=1)]

    with closing(engine_fakes.backend(4000)[0]) as alone:
        expected = results(alone)
    with replicated(*(engine_fakes.backend(4000)[0] for _ in range(2))) as (backend, processes):
        killer = threading.Timer(0.02, processes[1].kill)
        killer.start()
        assert results(backend) == expected
        killer.join()


def test_usage_is_charged_once_to_its_account():
    spent: list[Usage] = []
    with replicated(lmc.Mock()) as (backend, _):
        ask(backend, "a", account=MeteredAccount("x", spent.append)).results[0].output()
        until(lambda: len(spent) == 1)


def test_a_replica_ends_at_once_when_its_program_does(monkeypatch):
    """Of a process that ends, lines close before its children have another parent."""
    parents, slept, ends = iter([7, 7, 7]), [], []
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(time, "sleep", slept.append)
    ours, its = socket.socketpair()
    ours.close()
    child._end_with(7, child._LineToProgram(its.detach()))
    assert ends == [0] and sum(slept) < 1


MOCKS = """
import json, sys; sys.path[:] = json.loads(sys.argv[1])
from lmc.backend.mock import Mock
from lmc.backend.replicas import child
class Engine(Mock):
    topology = ("a mock",)
child._engine = lambda told, line: Engine()
child.main()
"""


def stop(process: int) -> None:
    """The signal reaches one thread; the others go on until that one runs, which on a busy machine takes a while."""
    os.kill(process, signal.SIGSTOP)
    os.waitid(os.P_PID, process, os.WSTOPPED)


def test_a_replica_that_is_stopped_is_found_and_what_it_was_asked_is_asked_elsewhere(monkeypatch):
    """It answered nothing and nobody looked: requests, `health` and the end of the program waited for it."""
    monkeypatch.setattr(processes, "CODE", MOCKS)
    monkeypatch.setattr(processes, "SILENT", 3.0)
    backend, mock = Replicas([processes.Process(i, {"device": "cpu"}, 1) for i in range(2)]), lmc.Mock()
    try:
        root = ask(backend, "abc")
        assert root.results[0].output().text
        stopped = root.submission.replica
        stop(stopped.process.id)
        handle = ask(backend, " and on", parent=root, group=(1,), members=1)  # siblings go where their parent is
        assert handle.submission.replica is stopped
        assert handle.results[0].output().text == ask(mock, " and on", parent=ask(mock, "abc")).results[0].output().text
        assert handle.submission.replica is not stopped and backend.health().ready
        assert backend.server_info()["replicas"][stopped.bit]["ended"] == "had not been running for 3 s, and was ended"
        assert backend.chat_template.begin("user", None) == mock.chat_template.begin("user", None)
        stop(handle.submission.replica.process.id)
        with pytest.raises(BackendError, match=r"can no longer be used: replica 0 had not been running for 3 s.*, replica 1 had"):
            ask(backend, "x").results[0].output()
        assert backend.health().state == "ended"
    finally:
        backend.close()
    assert not any(Path(f"/proc/{p}").exists() for p in backend.processes)


def test_a_replica_that_is_stopped_while_it_loads_is_an_error_of_loading(monkeypatch):
    monkeypatch.setattr(processes, "CODE", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    monkeypatch.setattr(processes, "SILENT_LOADING", 0.5)
    process = processes.Process(0, {"device": "cpu"}, 1)
    with pytest.raises(ModelLoadError, match="replica 0 had not been running for 1 s, and was ended while it loaded"):
        process.backend()


@pytest.mark.parametrize(("silences", "kills"), [((24, 24), 0), ((1, 25), 1), ((60,), 1)])
def test_a_replica_counts_as_hung_after_six_seconds_in_which_its_program_was_running(silences, kills):
    """Of a program that was stopped itself the first look after that finds what has been said meanwhile."""
    heard, killed = iter([look for silence in silences for look in (*[TimeoutError] * silence, processes.BEAT)]), []

    def recv(_: int) -> bytes:
        if (said := next(heard, b"")) is TimeoutError:
            raise said
        return said

    process = object.__new__(processes.Process)
    process._line = SimpleNamespace(recv=recv, settimeout=lambda _: None, close=lambda: None)  # type: ignore[assignment]
    process._process = SimpleNamespace(kill=lambda: killed.append(1), poll=lambda: None)  # type: ignore[assignment]
    process._hung, process._loaded = 0.0, Future()
    process._loaded.set_result({})
    process._watch()
    assert len(killed) == kills and process._hung == 6.25 * kills


# -- processes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_processes_of_their_own_and_their_end(tiny_smollm2):
    from lmc.backend.local_model import Engine

    options = {"dtype": "float32", "device": "cpu", "max_tokens": 600}
    with Engine(tiny_smollm2, **options) as alone, Engine(tiny_smollm2, dp=2, **options) as pair:
        processes = pair.processes

        def texts(engine):
            handles = [ask(engine, f"The capital of {c} is", 6) for c in ("France", "Italy", "Japan", "Peru")]
            handles += [engine.submit(handles[0], [Text((" Is it nice? ",)), Select(("yes", "no"))])]
            return [result.output().text for handle in handles for result in handle.results]

        expected = texts(alone)
        assert texts(pair) == expected and min(requests(pair)) >= 1
        parts = [Special("<|im_start|>"), "user\nHi"]
        assert pair.encode(parts) == alone.encode(parts) and pair.whole_template.source == alone.whole_template.source
        assert pair.count_tokens("a b c") == alone.count_tokens("a b c")
        assert pair.topology == tuple(f"replica {i} on cpu: a KV pool of 600 tokens" for i in range(2))
        os.kill(processes[0], signal.SIGKILL)
        assert texts(pair) == expected and "SIGKILL" in pair.server_info()["replicas"][0]["ended"]
    until(lambda: not any(Path(f"/proc/{p}").exists() for p in processes))


@pytest.mark.model
def test_what_cannot_start_says_why(tmp_path):
    from lmc.backend.local_model import Engine

    with pytest.raises(ParameterError, match="dp is 0"):
        Engine("smollm2", dp=0)
    with pytest.raises(TypeError, match="no_such"):
        Engine("smollm2", dp=2, no_such=1)
    with pytest.raises(ModelLoadError, match=r"replica 0 on cpu: .*float8"):
        Engine("smollm2", dp=2, dtype="float8", device="cpu")
