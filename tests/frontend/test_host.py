"""Host calls: what `lmc.pure` and `lmc.host` promise, and that it means the same interpreted, compiled and in a batch."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import threading
import time
from contextvars import ContextVar
from typing import Any, get_type_hints

import pytest

import lmc
from lmc.backend.mock import Mock
from tests.conformance.harness import EFFECTS, conform, effect

ITEMS = [{"q": "a"}, {"q": "b"}, {"q": "c"}]
PATIENCE = 60.0  # seconds; only against hangs

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    CALLS.clear()
    EFFECTS.clear()


# -- pure


@lmc.pure
def clean(text: str) -> str:
    CALLS.append(text)
    return text.strip().lower()


@lmc.pure
def words(text: str) -> Any:
    return text.split()


@lmc.pure
def number(text: str) -> int:
    return int(text)


def test_what_a_pure_function_gives_is_not_shared_if_it_can_change():
    @lmc.function
    def changes(s: Any, q: str) -> Any:
        first, second = words(q + " x"), words(q + " x")
        first.append("!")
        s += " ".join(first) + " ".join(second) + lmc.gen("x", max_tokens=4)

    conform(changes, ITEMS)


def test_a_pure_call_that_raises_is_kept():
    @lmc.function
    def unread(s: Any, q: str) -> Any:
        number(q)
        effect("charged")
        s += lmc.gen("x", max_tokens=4)

    conform(unread, [{"q": "1"}, {"q": "one"}])


def test_a_pure_call_on_a_constant_raises_where_the_program_gets_there():
    @lmc.function
    def wrong(s: Any, q: str) -> Any:
        effect("before")
        try:
            number("one")
        except ValueError as error:
            s += str(error)
        s += lmc.gen("x", max_tokens=4)

    conform(wrong, ITEMS)


# -- time-outs


def test_a_late_call_raises_in_the_program():
    release = threading.Event()

    @lmc.host(timeout=0.01)
    def search(q: str) -> str:
        release.wait(PATIENCE)
        return q

    @lmc.function
    def agent(s: Any, q: str) -> Any:
        try:
            s += search(q)
        except TimeoutError as error:
            s += type(error).__name__ + str(error)
        s += lmc.gen("x", max_tokens=4)

    @lmc.function
    def careless(s: Any, q: str) -> Any:
        s += search(q) + lmc.gen("x", max_tokens=4)

    conform(agent, ITEMS[:2])
    conform(careless, ITEMS[:1])
    with pytest.raises(lmc.HostTimeout, match=r"search\(\) gave no answer within 0.01 s"):
        careless.run(q="a", backend=Mock())
    release.set()


def test_a_call_in_time_gives_its_result_and_its_own_errors():
    @lmc.host(timeout=PATIENCE)
    def tool(q: str) -> str:
        if q == "late":
            raise TimeoutError("the server's")
        return q + "!"

    assert tool("a") == "a!"
    with pytest.raises(TimeoutError, match="the server's") as raised:
        tool("late")
    assert not isinstance(raised.value, lmc.HostTimeout)


def test_a_coroutine_function_has_a_time_out_too():
    @lmc.host(timeout=0.02)
    async def slow() -> None:
        await asyncio.sleep(PATIENCE)

    @lmc.host(timeout=PATIENCE)
    async def quick() -> int:
        return 1

    assert asyncio.run(quick()) == 1
    with pytest.raises(lmc.HostTimeout):
        asyncio.run(slow())


def test_awaiting_keeps_its_order():
    done: list[str] = []

    @lmc.host(ordered=False)
    async def tool(q: str) -> str:
        await asyncio.sleep(0.002 if q == "first" else 0)
        done.append(q)
        if q == "second":
            raise LookupError(q)
        return q

    @lmc.function
    async def agent(s: Any, q: str) -> Any:
        s += await tool("first")
        try:
            s += await tool("second")
        except LookupError:
            s += await tool("third")

    assert lmc.compile(agent, backend=Mock())(q="a").text() == agent.run(q="a", backend=Mock()).text() == "firstthird"
    assert done == ["first", "second", "third"] * 2


# -- where calls run


WHO: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.mark.parametrize("promise", [{}, {"ordered": False}, {"timeout": PATIENCE}])
def test_calls_see_the_context_variables_of_the_run(promise: dict[str, Any]):
    @lmc.host(**promise)
    def who() -> str:
        return WHO.get()

    @lmc.function
    def agent(s: Any, q: str) -> Any:
        s += who() + q

    token = WHO.set("me")
    try:
        fast = lmc.compile(agent, backend=Mock())
        assert fast(q="1").text() == "me1"
        assert [s.text() for s in fast.batch([{"q": "1"}, {"q": "2"}])] == ["me1", "me2"]
    finally:
        WHO.reset(token)


class Meeting:
    """A tool whose calls return once `count` of them are there at once."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)

    def __call__(self, q: Any) -> str:
        try:
            self._barrier.wait(PATIENCE)
        except threading.BrokenBarrierError:
            raise AssertionError(f"only {self._barrier.n_waiting} calls were there at once") from None
        return f"<{q}>"


def test_a_slow_tool_of_256_programs_is_called_by_all_of_them_at_once():
    meeting = Meeting(256)

    def search(q: str) -> str:
        return meeting(q)

    @lmc.function
    def react(s: Any, q: str) -> Any:
        s += q + lmc.gen("thought", max_tokens=4)
        s += search(s["thought"]) + lmc.gen("answer", max_tokens=4)

    fast = lmc.compile(react, backend=Mock())
    assert len(fast.batch([{"q": str(i)} for i in range(256)])) == 256


@pytest.fixture
def one_thread() -> Any:
    lmc.config(host_threads=1)
    yield
    lmc.config(host_threads=None)


@pytest.mark.usefixtures("one_thread")
def test_the_number_of_threads_is_a_limit():
    now, most = [0], [0]

    def tool(q: str) -> str:
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.002)
        now[0] -= 1
        return q

    @lmc.function
    def agent(s: Any, q: str) -> Any:
        s += tool(q)

    assert len(lmc.compile(agent, backend=Mock()).batch([{"q": str(i)} for i in range(8)])) == 8
    assert most == [1]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("how", ["call", "batch", "interpreter"])
def test_a_tool_may_run_the_same_program_on_a_full_pool(how: str):
    def deeper(depth: int) -> str:
        if depth == 0:
            return "bottom"
        items = [{"depth": depth - 1}, {"depth": depth - 1}]
        match how:
            case "call":
                return fast(**items[0]).text()
            case "batch":
                return fast.batch(items)[0].text()
            case _:
                return agent.run_batch(items)[0].text()

    @lmc.function
    def agent(s: Any, depth: int) -> Any:
        s += f"{depth}:" + deeper(depth)

    fast = lmc.compile(agent, backend=Mock())
    texts = [s.text() for s in fast.batch([{"depth": 2}] * 4, backend=Mock())]
    assert texts == ["2:1:0:bottom"] * 4


# -- what is refused, and how it looks


def test_marks_are_checked_where_they_are_written():
    with pytest.raises(lmc.ArgumentError, match="takes a function"):
        lmc.pure(3)  # type: ignore[arg-type]
    with pytest.raises(lmc.ParameterError, match="above 0"):
        lmc.host(print, timeout=0)
    with pytest.raises(lmc.ArgumentError, match="number of seconds"):
        lmc.host(print, timeout="soon")  # type: ignore[call-overload]
    with pytest.raises(lmc.ArgumentError, match="True or False"):
        lmc.host(print, ordered="no")  # type: ignore[call-overload]
    with pytest.raises(lmc.ArgumentError, match="already marked"):
        lmc.host(lmc.pure(len))


def test_marked_methods_and_builtins():
    class Shop:
        @lmc.host(idempotent=True)
        def look(self, q: str) -> str:
            effect("look", q)
            return q + "?"

    shop, up = Shop(), lmc.pure(str.upper)

    @lmc.function
    def agent(s: Any, q: str) -> Any:
        s += shop.look(q) + up(q) + lmc.gen("x", max_tokens=4)

    conform(agent, ITEMS)
    assert repr(Shop.__dict__["look"]) == "<host function look idempotent>"


def said(q: str) -> int:
    return q  # type: ignore[return-value]  # the annotation is wrong


def test_a_wrong_annotation_does_not_matter():
    @lmc.function
    def agent(s: Any, q: str) -> Any:
        effect("said", q)
        s += said(q) + lmc.gen("x", max_tokens=4)  # type: ignore[operator]

    conform(agent, ITEMS)


def test_a_host_function_shows_its_parameters_wherever_they_are_read():
    def look(town: str, k: int = 2) -> str:
        return f"{town}{k}"

    for made in (lmc.pure(look), lmc.host(look)):
        for shown in (made, made.__call__, copy.deepcopy(made).__call__):
            assert inspect.signature(shown) == inspect.signature(look)
            assert get_type_hints(shown) == get_type_hints(look) and shown("Porto", k=3) == "Porto3"


class Marked:
    @lmc.host
    def method(self) -> int:
        return 1


def test_a_marked_function_is_pickled_by_its_name():
    for fn in (clean, Marked.method):
        assert pickle.loads(pickle.dumps(fn)) is fn and copy.deepcopy(fn) is fn
    again = pickle.loads(pickle.dumps(lmc.host(len)))  # its name is another object's
    assert (repr(again), again.fn) == ("<host function len>", len)
