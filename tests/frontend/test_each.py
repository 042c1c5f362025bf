"""`forks.each`: bodies run at once, with the addresses of their forks, and end together."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.frontend.flights import Flights
from tests.backend.gated import Gated

USER: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


@lmc.function
def helper(c: Any, text: str) -> str:
    c += text + lmc.gen("h", max_tokens=3)
    return c["h"]


def judge(f: Any, dim: str = "") -> str:
    f += dim + lmc.gen("v", max_tokens=3)
    return f"{dim}{f['v']}{helper.run(text=f['v']).ret_value}"


async def ajudge(f: Any, dim: str = "") -> str:
    f += dim + lmc.gen("v", max_tokens=3)
    return f"{dim}{f['v']}{helper.run(text=f['v']).ret_value}"


def both(*args: Any) -> list[lmc.Function]:  # type: ignore[name-defined]
    """The same in a plain and in an async program; a plain body in an async program too."""

    @lmc.function
    def plain(s: Any) -> Any:
        s += "shared"
        return s.fork(3).each(judge, *args)

    @lmc.function
    async def coroutine(s: Any) -> Any:
        s += "shared"
        return await s.fork(3).each(ajudge, *args)

    @lmc.function
    async def mixed(s: Any) -> Any:
        s += "shared"
        return s.fork(3).each(judge, *args)

    return [plain, coroutine, mixed]


@pytest.mark.parametrize("way", range(3))
def test_bodies_ask_at_once_and_give_their_results_in_order(way: int):
    found = both(["a", "b", "c"])[way].run(backend=Gated(3)).ret_value
    assert [text[0] for text in found] == ["a", "b", "c"]


def test_samples_are_those_of_the_forks():
    found = [program.run(backend=Mock(latency=x), seed=5, temperature=1.0) for program in both() for x in (0, 1e-3)]
    assert len({tuple(s.ret_value) for s in found}) == 1
    assert len(set(found[0].ret_value)) == 3
    assert {s.usage.calls for s in found} == {6}


def test_bodies_run_in_copies_of_the_context():
    @lmc.function
    def program(s: Any) -> Any:
        def body(f: Any, i: int) -> str:
            found = USER.get()
            USER.set(str(i))
            f += lmc.gen("x", max_tokens=2)
            f["x"]
            assert USER.get() == str(i)
            return found

        USER.set("caller")
        return s.fork(3).each(body, range(3)), USER.get()

    assert contextvars.copy_context().run(program.run, backend=Mock(latency=1e-3)).ret_value == (["caller"] * 3, "caller")


def raising(log: list[int]) -> Callable[..., None]:
    def body(f: Any, i: int) -> None:
        f += lmc.gen("x", max_tokens=2)
        f["x"]
        log.append(i)
        if i in (1, 3):
            raise ValueError(f"fork {i}")

    return body


@pytest.mark.parametrize("is_async", [False, True])
def test_the_first_error_in_order_is_raised_when_all_have_ended(is_async: bool):
    log = list[int]()
    body = raising(log)

    async def abody(f: Any, i: int) -> None:
        body(f, i)

    @lmc.function
    def plain(s: Any) -> None:
        s.fork(4).each(body, range(4))

    @lmc.function
    async def coroutine(s: Any) -> None:
        await s.fork(4).each(abody, range(4))

    with pytest.raises(ValueError, match="fork 1") as caught:
        (coroutine if is_async else plain).run(backend=Mock(latency=1e-3))
    assert sorted(log) == [0, 1, 2, 3]
    assert caught.value.__notes__ == ["another fork has raised ValueError: fork 3"]


def test_tools_that_block_hold_up_no_other_body():
    events = [threading.Event() for _ in range(4)]

    @lmc.function
    def program(s: Any) -> Any:
        def body(f: Any, i: int) -> str:
            assert i == 3 or events[i + 1].wait(60)
            events[i].set()
            f += lmc.gen("x", max_tokens=2)
            return f["x"]

        return s.fork(4).each(body, range(4))

    assert len(program.run(backend=Mock()).ret_value) == 4


def test_joining_and_batches():
    @lmc.function
    def program(s: Any, i: int) -> Any:
        forks = s.fork(2)
        forks.each(lambda f, d: f.__iadd__(d + lmc.gen("v", max_tokens=2)), ["a", "b"])
        forks.join()
        return s["v"]

    items = [{"i": i} for i in range(3)]
    one, many = (program.run_batch(items, backend=Mock(latency=x), seed=1, num_threads=n) for x, n in ((0, 1), (1e-3, 3)))
    assert [s.ret_value for s in one] == [s.ret_value for s in many]


def test_a_journaled_run_takes_its_answers_again(tmp_path: Any):
    asked = [Mock(), Mock()]
    states = [PLAIN.run(backend=backend, seed=1, journal=tmp_path / "j") for backend in asked]
    assert states[0].ret_value == states[1].ret_value
    assert [len(backend.call_log) for backend in asked] == [3, 0]


@lmc.function
def PLAIN(s: Any) -> Any:
    def body(f: Any, i: int) -> str:
        f += str(i) + lmc.gen("x", max_tokens=2)
        return f["x"]

    return s.fork(3).each(body, range(3))


def test_what_is_refused():
    def program(call: Callable[[Any], Any]) -> lmc.Function:  # type: ignore[name-defined]
        return lmc.function(lambda s: call(s))

    with pytest.raises(lmc.ParameterError, match="2 items for 3 forks"):
        program(lambda s: s.fork(3).each(judge, ["a", "b"])).run(backend=Mock())
    with pytest.raises(lmc.ArgumentError, match="takes a function of a fork"):
        program(lambda s: s.fork(3).each("judge")).run(backend=Mock())
    with pytest.raises(lmc.ProgramError, match="is awaited in an `async def` program"):
        program(lambda s: s.fork(3).each(ajudge)).run(backend=Mock())
    assert program(lambda s: s.fork(0).each(judge)).run(backend=Mock()).ret_value == []


def test_a_time_out_around_it_ends_it_and_not_the_run():
    backend = Gated()

    @lmc.function
    async def program(s: Any) -> Any:
        forks = s.fork(2)
        try:
            async with asyncio.timeout(0):
                await forks.each(ajudge, ["a", "b"])
        except TimeoutError:
            backend.open()
        s += lmc.gen("x", max_tokens=2)
        return s["x"]

    assert program.run(backend=backend).ret_value


def test_workers_that_end_late_do_not_cancel_the_run(monkeypatch: pytest.MonkeyPatch):
    next_item = Flights._next_item

    def late(self: Flights[Any], worker: Any) -> int | None:
        while self._next >= self._count and not self._stopped:  # all results are taken before it sees that there is no more
            time.sleep(0.001)
        return next_item(self, worker)

    monkeypatch.setattr(Flights, "_next_item", late)

    @lmc.function
    def program(s: Any) -> Any:
        found = s.fork(3).each(judge, ["a", "b", "c"])
        s += "after" + lmc.gen("z", max_tokens=3)
        return found, s["z"]

    assert len(program.run(backend=Mock()).ret_value[0]) == 3
