"""Streams of compiled runs: what the interpreter's stream shows, piece by piece in the program's order, while it runs."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.backend.results import Output, Scored
from lmc.errors import BackendError
from tests.backend.gated import Gated
from tests.waiting import until


@pytest.fixture(autouse=True)
def leaves_no_thread() -> Iterator[None]:
    gc.collect()  # runs that other tests left in cycles end
    gc.freeze()  # and what else they left need not be walked
    OTHERS[:] = threading.enumerate()
    yield
    gc.collect()
    while MOCKS:
        MOCKS.pop().close()
    until(lambda: not {t for t in threading.enumerate() if t.name != "lmc-mock"} - set(OTHERS), "a thread is left")


MOCKS: list[Mock] = []
OTHERS: list[threading.Thread] = []  # that were there before the test


def mock(**given: Any) -> Mock:
    MOCKS.append(Mock(latency=0.003, **given))
    return MOCKS[-1]


# -- programs ------------------------------------------------------------------------------------------------------------


@lmc.function
def scoped(s: Any, q: str) -> Any:
    s += lmc.system("brief") + lmc.user(q)
    with s.assistant():
        s += "A: " + lmc.gen("a", max_tokens=8)
        with s.var_scope("part"):
            s += " then " + lmc.gen("b", max_tokens=8)
            with s.var_scope("inner"):
                s += "<" + lmc.select("c", ["x", "y"]) + ">"
        s += " end"
    return s["a"]


@lmc.function
def child(s: Any, tip: str) -> None:
    s += tip + lmc.gen("x", max_tokens=4)


@lmc.function
def tools(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=5, n=2)
    s += "|" + str(len(s["a"])) + child(tip="t")["x"]
    s["b"] = "set"
    s += lmc.gen(None, max_tokens=3)
    return s["a"]


async def look(q: str) -> str:
    await asyncio.sleep(0.001)
    return q[::-1]


@lmc.function
async def agent(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=5)
    with s.var_scope("found"):
        s += await look(s["a"])
        s += lmc.gen("b", max_tokens=4)
    return s["b"]


NAMES = {scoped: ["a", "b", "part", "inner"], tools: ["a", "b"], agent: ["a", "found"]}


def seen(state: Any) -> Any:
    value = state.ret_value
    variables = {name: state[name] for name in state.variables}
    return state.text(), state.messages(), variables, "the state" if value is state else value, state.role, state.error()


@pytest.mark.parametrize("program", NAMES, ids=lambda p: p.name)
def test_a_compiled_stream_is_the_interpreters(program: Any) -> None:
    expected = seen(program.run(q="Why?", backend=mock(), seed=3))
    interpreted = program.run(q="Why?", backend=mock(), seed=3, stream=True)
    assert "".join(interpreted.text_iter()) == expected[0]
    fast = lmc.compile(program)
    for _ in range(2):
        state = fast.stream(q="Why?", backend=mock(), seed=3)
        assert "".join(state.text_iter()) == expected[0]
        assert seen(state) == seen(interpreted) == expected
        assert "".join(state.text_iter()) == expected[0]
        for name in NAMES[program]:
            watched, own = (run(q="Why?", backend=mock(), seed=3, stream=True) for run in (fast, program.run))
            assert "".join(watched.text_iter(name)) == "".join(own.text_iter(name))
            watched.sync(), own.sync()
            if name == "a" and program is tools:  # whoever comes late sees what the others saw
                assert "".join(watched.text_iter(name)) == "".join(own.text_iter(name)) == own["a"][0]


@pytest.mark.parametrize("program", [scoped, agent], ids=lambda p: p.name)
def test_an_async_consumer_sees_the_same(program: Any) -> None:
    async def pieces(state: Any, name: str | None) -> list[Any]:
        return [piece async for piece in state.text_async_iter(name, return_meta_data=True)]

    fast = lmc.compile(program)
    for name in (None, "a", "b"):
        found = asyncio.run(pieces(fast.stream(q="Why?", backend=mock(), seed=3), name))
        expected = asyncio.run(pieces(program.run(q="Why?", backend=mock(), seed=3, stream=True), name))
        assert "".join(text for text, _ in found) == "".join(text for text, _ in expected)
        assert found[-1][1].get("completion_tokens") == expected[-1][1].get("completion_tokens")


def test_log_probabilities_come_with_the_text_of_their_tokens() -> None:
    @lmc.function
    def scored(s, q):
        s += q + lmc.gen("a", max_tokens=30, return_logprob=True, return_text_in_logprobs=True, top_logprobs_num=2)

    async def work(run: Any) -> None:
        MOCKS.append(Mock(latency=60))
        state = run(q="Why?", backend=MOCKS[-1], stream=True)
        while not MOCKS[-1]._pending:
            await asyncio.sleep(0.001)
        (handle,) = MOCKS[-1]._pending
        (answer,) = handle.results
        pairs = state.text_async_iter("a", return_meta_data=True)
        tokens = [[-0.5, i, text] for i, text in enumerate(["So", " it", " is", "."])]
        answer.feed("So it", Scored(tuple(tokens[:2])))
        assert await anext(pairs) == ("So it", {"output_token_logprobs": tokens[:2]})
        answer.feed(" i")
        assert await anext(pairs) == (" i", {"output_token_logprobs": tokens[:2]}), "half a token has none yet"
        answer.finish(Output(("So it is.",), ({"output_token_logprobs": tokens, "completion_tokens": 4},)))
        assert await anext(pairs) == ("s.", {"output_token_logprobs": tokens, "completion_tokens": 4})

    asyncio.run(work(lmc.compile(scored)))
    asyncio.run(work(scored.run))


def test_a_stream_is_compiled_and_streams_while_it_runs() -> None:
    backend = Gated(answers={"a": "A", "b": "B", "c": "x"})
    fast = lmc.compile(scoped)
    state = fast.stream(q="Why?", backend=backend, seed=1)
    pieces = state.text_iter()
    shown = ""
    while not shown.endswith("A: "):
        shown += next(pieces)  # the constant text is there before any answer
    backend.open()
    assert "".join(pieces).startswith("A then B<x> end")
    assert state.text().startswith(shown)
    backend.close()


def streamed(program: Any, compiled: bool, **options: Any) -> lmc.State:
    return lmc.compile(program).stream(**options) if compiled else program.run(stream=True, **options)


@pytest.mark.parametrize("compiled", [True, False])
def test_text_after_a_failing_tool_is_not_shown(compiled: bool) -> None:
    """What is asked ahead of the tool, nobody sees."""

    def fails() -> None:
        raise LookupError("mine")

    @lmc.function
    def program(s: Any, q: str) -> None:
        s += q + lmc.gen("a", max_tokens=4)
        s["a"]
        fails()
        s += "never"

    state = streamed(program, compiled, q="Q", backend=mock(), seed=1)
    for _ in range(2):
        pieces: list[str] = []
        with pytest.raises(LookupError, match="mine"):
            for piece in state.text_iter():
                pieces.append(piece)
            pytest.fail("the stream ended without the error")
        assert "".join(pieces) == "Q" + state["a"]
    assert isinstance(state.error(), LookupError)
    for read in (lambda: state["later"], lambda: state.ret_value):
        with pytest.raises(LookupError):
            read()


@pytest.mark.parametrize("compiled", [True, False])
def test_a_backend_error_comes_after_what_was_before_it(compiled: bool) -> None:
    backend = mock(fault=lambda ask, i: BackendError("planted") if ask.name == "b" else None)
    state = streamed(scoped, compiled, q="Q", backend=backend, seed=1)
    pieces: list[str] = []
    with pytest.raises(BackendError, match="planted"):
        for piece in state.text_iter():
            pieces.append(piece)
    assert "".join(pieces).endswith(" then ")


@pytest.mark.parametrize("program", [scoped, agent], ids=lambda p: p.name)
@pytest.mark.parametrize("compiled", [True, False])
def test_an_abandoned_stream_stops_its_run(program: Any, compiled: bool) -> None:
    backend = Gated()
    state = streamed(program, compiled, q="Why?", backend=backend, seed=1)
    next(state.text_iter())
    until(lambda: backend.waiting, "nothing is asked")
    del state
    gc.collect()
    until(lambda: not running(), "its threads do not end")
    asked = len(backend.call_log)
    backend.open()
    assert len(backend.call_log) == asked
    backend.close()


@pytest.mark.parametrize("compiled", [True, False])
def test_an_abandoned_stream_calls_no_more_tools(compiled: bool) -> None:
    """Though the model is quicker than the tools, so that nothing is waited for."""
    calls: list[int] = []
    dropped, called = threading.Event(), threading.Event()

    def tool(i: int) -> str:
        calls.append(i)
        if i == 3:
            called.set()
            dropped.wait(60)
        return str(i)

    @lmc.function
    def program(s: Any) -> None:
        for i in range(20):
            s += tool(i) + lmc.gen("a", max_tokens=1)

    state = streamed(program, compiled, backend=Mock())
    assert called.wait(60)
    before = {*threading.enumerate()}
    del state
    gc.collect()
    until(lambda: {*threading.enumerate()} <= before, "the thread that stops it does not end")
    dropped.set()
    until(lambda: not running(), "its threads do not end")
    assert calls == [0, 1, 2, 3]


def running() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("lmc-") and t.name != "lmc-mock" and t not in OTHERS]


@pytest.mark.parametrize("compiled", [False, True])
def test_an_attribute_error_of_the_program_is_raised_as_it_is(compiled):
    @lmc.function
    def program(s, q):
        s += q + lmc.gen("x", max_tokens=2)
        return object().nothing

    state = streamed(program, compiled, q="a", backend=mock())
    with pytest.raises(AttributeError, match="'object' object has no attribute 'nothing'"):
        state.ret_value  # noqa: B018
