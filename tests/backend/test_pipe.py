"""A backend over a pipe: programs mean the same there, and nothing stays with the engine when their process goes."""

from __future__ import annotations

import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import Pipe
from typing import Any

import pytest

import lmc
from lmc.backend.base import Backend, Hints
from lmc.backend.pipe import wire
from lmc.backend.pipe.client import PipeBackend
from lmc.backend.pipe.server import PipeServer
from lmc.backend.results import Output, Result, Scored
from lmc.backend.usage import Usage
from lmc.chat import CHATML
from lmc.errors import (
    BackendError,
    CancelledError,
    ConstraintError,
    Filtered,
    IncompleteAnswer,
    Loc,
    PromptTooLongError,
    Refused,
)
from lmc.segments import ChoicesMethod, Constraint, Gen, Given, Image, Mark, SamplingParams, Select, Special, Text
from tests.backend import engine_fakes
from tests.backend.engine_fakes import gen
from tests.backend.gated import Gated
from tests.conformance.harness import differences_through
from tests.conformance.table import CARRIED, carried
from tests.searching import size, some
from tests.waiting import until


@contextmanager
def piped(backend: Any):
    """The backend, and the side that serves it. At the end nothing of the connection may be left."""
    here, there = Pipe()
    server, client = PipeServer(backend, there), PipeBackend(here)
    try:
        yield client, server
    finally:
        client.close()
        assert server.join(60)
        assert not server.handles and not server.pins


# -- meaning -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:text contains")
@some("name, compiled", carried(0), 10)  # over replicas, which are behind pipes, in the other way
def test_programs_mean_the_same(name, compiled):
    @contextmanager
    def by_pipe(served: Any):
        with piped(served) as (client, _):
            yield client

    found = differences_through(CARRIED[name], by_pipe, compiled=compiled)
    assert not any(found), found


def test_it_is_a_backend_and_says_what_the_other_is():
    mock = lmc.Mock(chat_template=replace(CHATML, name="other", stop=("<|x|>",)))
    with piped(mock) as (client, _):
        assert isinstance(client, Backend)
        assert client.capabilities == mock.capabilities
        assert (client.chat_template.name, client.chat_template.stop) == ("other", ("<|x|>",))
        for previous in (None, "system", "user"):
            assert client.chat_template.begin("user", previous) == mock.chat_template.begin("user", previous)
        assert client.chat_template.end("user") == mock.chat_template.end("user")
        with pytest.raises(lmc.ProgramError, match="no role 'judge'"):
            client.chat_template.begin("judge", None)
        assert client.count_tokens("four") == 4
        client.submit(None, [Text(("a",)), gen()]).results[0].output()
        assert client.counters() == mock.counters() and client.counters().calls == 1
        assert client.server_info() == mock.server_info()
        assert client.health().ready
        mock.close()
        assert client.health().state == "closed"


def test_text_comes_while_it_grows():
    with piped(lmc.Mock(latency=0.05)) as (client, _):
        watched = client.submit(None, [Text(("a",)), gen(30)], Hints(watched=True)).results[0]
        other = client.submit(None, [Text(("a",)), gen(30)]).results[0]
        pieces = list(watched.stream())
        assert len(pieces) == 3 and "".join(pieces) == watched.output().text == other.output().text
        assert other.deltas == (), "nobody said that it is watched"


SEGMENTS = [
    Text(("plain \udc00 text", Special("<|im_end|>"), Mark("user", "begin"), "")),
    Given("known", (1, 2)),
    Image("https://example.org/a.png", loc=Loc("f.py", 2)),
    Gen(),
    Gen(
        SamplingParams(max_new_tokens=3, stop=("a", "b"), stop_token_ids=(5,), logit_bias=((3, float("-inf")), (4, 1.5)), top_logprobs_num=2, n=2, adapter="x"),
        Constraint("json_schema", '{"type": "object"}'), 7, "x", Loc("f.py", 3, 4), '[{"name": "f"}]',
    ),
    Select(("yes", "no"), ChoicesMethod.GREEDY_TOKEN_SELECTION, 0.5, 9, "y", Loc("f.py", 5), "x"),
]  # fmt: skip


def test_every_kind_of_request_and_answer_crosses_as_it_is():
    def crossed(data: Any) -> Any:
        return wire.from_bytes(wire.to_bytes([[data]]))[0][0]

    found = wire.read_segments(crossed(wire.write_segments(SEGMENTS)))
    assert found == SEGMENTS and [type(s) for s in found] == [type(s) for s in SEGMENTS]
    assert {type(s) for s in SEGMENTS} == set(wire._WRITE), "each kind is tried"
    hints = Hints(
        True,
        (1, 2),
        (3, 4),
        5,
        (1, 2),
        6,
        True,
        lmc.backend.base.Beyond(3, 1, ("x",)),
        True,
        "salt",
        True,
        True,
        None,
        2.0,
        "alice",
        ((-1, 2.0), (1, 0.5)),
        7,
        ("later",),
        (("traceparent", "00-1-2-01"),),
        "x",
    )
    assert [name for name, a, b in zip(Hints._fields, hints, Hints()) if a == b] == ["run"], "each hint is tried"
    of_run = Hints(run=lmc.backend.base.ProgramRun("program", priority=2.0, account="alice"))
    assert wire.read_hints(crossed(wire.write_hints(of_run))) == Hints(priority=2.0, account="alice"), "a run belongs to its process"
    assert wire.read_hints(crossed(wire.write_hints(hints))) == hints
    assert wire.read_hints(crossed(wire.write_hints(None))) is None
    output = Output(
        ("a", "b"), ({"finish_reason": {"type": "stop"}, "logprob": (float("-inf"), 2)}, {}), Usage(1, 2, 3, 4, 5), (6, 7), ((0, 3), (5, 9)), (1.5, 2.25)
    )
    there = wire.read_output(crossed(wire.write_output(output)))
    assert there == output and (there.forced, there.phases) == (output.forced, output.phases), "what equality does not ask"
    scored = Scored(([-0.5, 3, "a"], [-1.5, 4, "b"]), ([[-0.5, 3, "a"]],))
    assert wire.read_scored(crossed(wire.write_scored(scored))) == scored
    for kind in (BackendError, Refused, Filtered, IncompleteAnswer, CancelledError, PromptTooLongError):
        error = kind("what", loc=Loc("f.py", 1))
        error.text = "so far"  # type: ignore[attr-defined]
        there = wire.read_error(crossed(wire.write_error(error)))
        assert (type(there), there.message, there.loc, there.text) == (kind, "what", Loc("f.py", 1), "so far")
    unknown = wire.read_error(crossed(wire.write_error(_Odd(threading.Lock()))))
    assert isinstance(unknown, BackendError) and "_Odd" in unknown.message


class _Odd(Exception):
    pass


# -- errors ------------------------------------------------------------------------------------------------------------


def test_what_a_backend_refuses_at_once_is_raised_where_it_is_asked():
    engine, _ = engine_fakes.backend(compiler=engine_fakes.automata(engine_fakes.FakeWords()))
    with engine, piped(engine) as (client, _):
        for bad in (gen(constraint=Constraint("json_schema", '{"type": "nothing"}')), Gen(SamplingParams(stop_token_ids=(10**6,)))):
            with pytest.raises(lmc.LmcError) as here:
                engine.submit(None, [Text(("a",)), bad])
            with pytest.raises(type(here.value)) as there:
                client.submit(None, [Text(("a",)), bad])
            assert there.value.message == here.value.message
        assert client.submit(None, [Text(("a",)), gen(constraint=Constraint("regex", "a+b"))]).results[0].output().text


def test_what_it_refuses_later_fails_the_answer_and_what_goes_on_from_it():
    def fault(ask, call):
        return Refused("it does not say", loc=Loc("f.py", 1)) if ask.name == "bad" else None

    with piped(lmc.Mock(fault=fault)) as (client, _):
        bad = client.submit(None, [Text(("a",)), gen(name="bad")])
        after = client.submit(bad, [Text(("b",)), gen()])
        for handle in (bad, after):
            with pytest.raises(Refused, match="it does not say"):
                handle.results[0].output()


def test_handles_of_others_are_refused():
    mock = lmc.Mock()
    with piped(mock) as (one, _), piped(mock) as (two, _):
        with pytest.raises(BackendError, match="another backend"):
            one.submit(two.submit(None, [Text(("a",))]), [gen()])
        with pytest.raises(BackendError, match="another backend"):
            one.submit(mock.submit(None, [Text(("a",))]), [gen()])


def test_a_process_that_ends_fails_what_waits_for_it():
    with piped(lmc.Mock(latency=60)) as (client, server):
        waiting = client.submit(None, [Text(("a",)), gen()]).results[0]
        until(lambda: server.handles)
        server.close()
        with pytest.raises(BackendError, match="process that it runs in has ended"):
            waiting.output()
        with pytest.raises(BackendError, match="can no longer be used"):
            client.submit(None, [Text(("a",)), gen()])
        with pytest.raises(BackendError, match="can no longer be used"):
            client.counters()
        assert client.health().state == "ended"


def test_the_health_of_a_process_that_does_not_answer_is_not_waited_for(monkeypatch):
    """Routers ask for it, and would count the program itself as stuck."""
    monkeypatch.setattr("lmc.backend.pipe.client._HEALTH", 0.01)
    go = threading.Event()

    class Stopped(lmc.Mock):
        def counters(self):
            assert go.wait(60)
            return super().counters()

    with piped(Stopped()) as (client, _), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.counters)
        until(lambda: client._calls)
        assert client.health().state == "failed" and "mock has not answered for 0.01 s" in client.health().reason
        go.set()
        assert waiting.result(60) and client.counters()
        assert not client._calls
        monkeypatch.setattr("lmc.backend.pipe.client._HEALTH", 20.0)
        assert client.health().ready


def test_who_is_no_backend_is_said():
    here, there = Pipe()
    there.send_bytes(b'[["hello", 99, {}]]')
    with pytest.raises(BackendError, match="no backend of version"):
        PipeBackend(here)
    there.close()


@pytest.mark.parametrize("frame", (b"", b"\xff\xfe", b"{}", b"[[]]", b'[["submit"]]', b'[["what", 1]]', b'[["submit", 1, 99, [], null, null]]',
                                   b'[["submit", 1, null, [["gen", {"x": 1}, null, 0, null, null, ""]], null, null]]'))  # fmt: skip
def test_what_is_no_message_ends_its_connection_or_its_request_alone(frame):
    mock = lmc.Mock(latency=60)
    here, there = Pipe()
    server = PipeServer(mock, there)
    wire.from_bytes(here.recv_bytes())  # hello
    here.send_bytes(wire.to_bytes([["submit", 7, None, wire.write_segments([Text(("a",)), gen()]), None, None]]))
    until(lambda: mock._pending)
    here.send_bytes(frame)
    if frame.startswith(b'[["submit", 1'):  # a request that cannot be: that alone fails
        assert wire.from_bytes(here.recv_bytes())[0][:3] == ["fail", 1, None]
        here.close()
    assert server.join(60)
    assert not mock._pending and not server.handles
    with piped(mock) as (client, _):
        assert client.server_info()["name"] == "mock", "others are served"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_has_no_right_to_the_connection():
    with piped(lmc.Mock()) as (client, _):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.submit(None, [Text(("a",)), gen()])
            except BackendError as error:
                os.write(writing, error.message.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as said:
            assert "of which this one is a fork" in said.read()
        os.waitpid(child, 0)
        assert client.submit(None, [Text(("a",)), gen()]).results[0].output().text, "the parent goes on"


# -- what is held ------------------------------------------------------------------------------------------------------


def test_what_nobody_here_holds_is_cancelled_there():
    mock = lmc.Mock(latency=60)
    with piped(mock) as (client, server):
        handle = client.submit(None, [Text(("a",)), gen()])
        result = handle.results[0]
        until(lambda: mock._pending)
        del handle
        gc.collect()
        client.server_info()  # what was sent before has arrived
        assert server.handles, "its answer may be read"
        del result
        gc.collect()
        until(lambda: not server.handles)


def test_a_cancelled_request_fails_here_and_ends_there():
    mock = lmc.Mock(latency=60)
    with piped(mock) as (client, _):
        handle = client.submit(None, [Text(("a",)), gen(name="x")])
        child = client.submit(handle, [Text(("b",)), gen()])
        handle.cancel()
        for each in (handle, child):
            with pytest.raises(CancelledError):
                each.results[0].output()
        assert not mock._pending


def test_a_batch_does_not_wait_for_each_look_at_its_pin(monkeypatch):
    """Each of its programs looks whether the pin of their common text is there."""
    engine, _ = engine_fakes.backend()
    with engine, piped(engine) as (client, _):
        pin, asked, ask = client.prefill(None, [Text(("a" * 30,))]), [], client._ask
        until(lambda: engine.stats()["pinned"] == 1)
        monkeypatch.setattr(client, "_ask", lambda *what: (asked.append(what[0]), ask(*what))[1])
        monkeypatch.setattr("lmc.backend.pipe.client._HOLDS", 1e9)
        assert all(client.holds(pin) for _ in range(100)) and asked == ["holds"]
        client.flush_cache()
        assert not client.holds(pin) and not client.holds(pin)
        assert asked == ["holds", "flush_cache", "holds", "holds"]
        monkeypatch.setattr("lmc.backend.pipe.client._HOLDS", 0.0)
        pin = client.prefill(None, [Text(("b" * 30,))])
        assert client.holds(pin) and client.holds(pin) and asked[4:] == ["holds"] * 2


def test_threads_take_short_turns_while_a_connection_is_open():
    """Else what a program posts while it computes leaves once in 5 ms."""
    until(lambda: sys.getswitchinterval() != pytest.approx(0.0005))  # connections of other tests are closed
    before = sys.getswitchinterval()
    with piped(lmc.Mock()) as (client, _):
        client.counters()
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    until(lambda: sys.getswitchinterval() == before)


def test_others_go_on_while_one_waits_until_all_is_compiled():
    begun, compiled = threading.Event(), threading.Event()

    class Compiles(lmc.Mock):
        def warm_up(self) -> None:
            begun.set()
            assert compiled.wait(60)

    with piped(Compiles(lambda prompt, ask: "yes")) as (backend, _), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backend.warm_up)
        assert begun.wait(60)
        assert backend.submit(None, [Text("Go on?"), Gen()]).results[0].output().text == "yes"
        assert not waiting.done()
        compiled.set()
        waiting.result(60)
    with piped(lmc.Mock()) as (backend, _):
        backend.warm_up()  # it compiles nothing


def test_a_program_says_that_others_of_its_batch_are_to_come():
    """Only its process knows; the engine begins its first pass a moment later then."""
    hinted = []
    with piped(Gated(3)) as (client, server):  # a program whose answer has arrived is to come, too
        server._backend.submit = lambda parent, segments, hints, submit=server._backend.submit: (hinted.append(hints), submit(parent, segments, hints))[1]

        @lmc.function
        def program(s, word):
            s += word + lmc.gen("answer", max_tokens=2)

        for state in program.run_batch([{"word": "a"}, {"word": "b"}, {"word": "c"}], backend=client):
            state.sync()  # a request is on its way until then
    assert [hints.has_more for hints in hinted] == [True, True, False]


def test_pins_last_until_they_are_released_or_dropped():
    engine, _ = engine_fakes.backend()
    with engine, piped(engine) as (client, server):
        one, two = (client.prefill(None, [Text((text * 30,))]) for text in "ab")
        until(lambda: engine.stats()["pinned"] == 2)
        assert client.holds(one) and client.holds(two)
        client.release(one)
        until(lambda: engine.stats()["pinned"] == 1)
        assert not client.holds(one)
        del two
        gc.collect()
        until(lambda: engine.stats()["pinned"] == 0)
        assert not server.pins
        engine.check()


def test_an_engine_forgets_a_process_that_has_gone():
    engine, _ = engine_fakes.backend()
    with engine:
        here, there = Pipe()
        server = PipeServer(engine, there)
        client = PipeBackend(here)
        pin = client.prefill(None, [Text(("abc" * 20,))])
        asked = [client.submit(pin, [Text((f"{i}",)), Gen(SamplingParams(max_new_tokens=1500, ignore_eos=True))]) for i in range(3)]
        until(lambda: engine.stats()["pinned"] == 1)
        here.close()  # as the death of a process closes it
        server.close()
        assert server.join(60)
        assert not server.handles
        until(lambda: engine.stats()["pinned"] == engine.stats()["running"] == engine.stats()["waiting"] == 0)
        engine.check()
        assert asked and pin


def test_groups_of_two_processes_are_apart():
    mock = lmc.Mock()
    with piped(mock) as (one, _), piped(mock) as (two, _):
        for client in (one, two):
            client.submit(None, [Text(("a",)), gen()], Hints(group=(1, 2), members=1)).results[0].output()
    assert list(mock.groups.values()) == [1, 1]


def test_asks_do_not_wait_for_the_other_side():
    entered, go = threading.Event(), threading.Event()

    class Slow(lmc.Mock):
        def submit(self, parent, segments, hints=None):
            entered.set()
            assert go.wait(60)
            return super().submit(parent, segments, hints)

    with piped(Slow()) as (client, _):
        handle = client.submit(None, [Text(("a",)), gen()])
        later = client.submit(handle, [Text(("b",)), gen()])
        assert entered.wait(60)
        assert not later.results[0].done
        go.set()
        assert later.results[0].output().text
        assert isinstance(later.results[0], Result)


def test_a_constraint_that_was_accepted_is_not_waited_for_again():
    with piped(lmc.Mock()) as (client, _):
        asked = []
        client._expect = lambda real=client._expect: asked.append(1) or real()  # type: ignore[method-assign]
        for _ in range(3):
            client.submit(None, [Text(("a",)), gen(constraint=Constraint("regex", "ab+"))]).results[0].output()
        assert len(asked) == 1
        with pytest.raises(ConstraintError):
            client.submit(None, [Text(("a",)), gen(constraint=Constraint("regex", "(?=a)b"))])


@pytest.mark.search
def test_a_line_that_ends_does_not_cut_another() -> None:
    """Which may have its file descriptor at once."""

    def often(_: int) -> None:
        for _ in range(size(6, 60)):
            with piped(lmc.Mock()) as (client, _):
                assert client.submit(None, [Text(("a",)), gen(1)]).results[0].output().text

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(often, range(8)))) == 8
