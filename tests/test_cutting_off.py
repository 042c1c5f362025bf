"""Runs that end early leave nothing behind: no request, no queued host call, no thread, no page of the engine."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.errors import BackendError
from tests.backend.engine_fakes import backend as engine
from tests.backend.gated import Gated
from tests.searching import some
from tests.waiting import PATIENCE, until

ITEMS = [{"q": str(i)} for i in range(8)]


def own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("lmc-host", "lmc-agent"))]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not own_threads(), f"left running: {own_threads()}")


class Tool:
    """Waits at each call until it is let go; counts the calls that began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.go = threading.Event()

    def __call__(self, q: str) -> str:
        self.began.append(q)
        if q == "0":
            return q
        assert self.go.wait(PATIENCE), "nobody let the tool go"
        return q


def with_tool(tool: Tool) -> Any:
    def search(q: str) -> str:
        return tool(q)

    @lmc.function
    def agent(s: Any, q: str) -> Any:
        s += q + lmc.gen("x", max_tokens=4)
        s += search(q) + lmc.gen("y", max_tokens=4)

    return agent


@pytest.fixture
def two_threads() -> Iterator[None]:
    lmc.config(host_threads=2)
    yield
    lmc.config(host_threads=None)


def _waits(innermost: FrameType) -> bool:
    """Whether a thread waits, and not for another that it starts."""
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_stack(innermost)]
    return frames[0] in ("wait", "block") and "start" not in frames


def press_ctrl_c(when: Callable[[], bool]) -> None:
    def press() -> None:
        main = threading.main_thread().ident or 0
        # Between two instructions of lmc, Ctrl-C may lose a request: what was going on is done once the main thread waits for results.
        until(lambda: when() and _waits(sys._current_frames()[main]), "the moment for Ctrl-C did not come")
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


@pytest.mark.usefixtures("two_threads")
def test_ctrl_c_in_a_batch_starts_no_more_host_calls_and_cancels_requests():
    tool, mock = Tool(), Mock()
    press_ctrl_c(lambda: len(tool.began) == 3)
    with pytest.raises(KeyboardInterrupt):
        lmc.compile(with_tool(tool), backend=mock).batch(ITEMS)
    tool.go.set()
    until(lambda: not own_threads(), "threads go on")
    assert len(tool.began) == 3
    assert not mock._pending


def test_ctrl_c_while_answers_are_awaited_cancels_them():
    @lmc.function
    def agent(s: Any, q: str) -> Any:
        s += q + lmc.gen("x", max_tokens=4)
        return s["x"]

    for call in (
        lambda mock: lmc.compile(agent, backend=mock)(q="a"),
        lambda mock: lmc.compile(agent, backend=mock).batch(ITEMS),
        lambda mock: lmc.compile(agent, backend=mock).batch(ITEMS, timeout=100, budget=lmc.Budget(calls=9)),
    ):
        mock = Gated()
        press_ctrl_c(lambda mock=mock: mock.waiting >= 1)
        with pytest.raises(KeyboardInterrupt):
            call(mock)
        assert not mock._pending
        mock.open()  # nothing holds its requests any more, nor by them the runs
        mock.close()


@pytest.mark.usefixtures("two_threads")
def test_an_abandoned_iteration_starts_nothing_more():
    tool, mock = Tool(), Mock()
    results = lmc.compile(with_tool(tool), backend=mock).as_completed(ITEMS)
    next(results)
    results.close()  # type: ignore[attr-defined]  # a generator
    tool.go.set()
    until(lambda: not own_threads(), "threads go on")
    assert len(tool.began) < len(ITEMS)
    assert not mock._pending


def test_one_item_that_fails_takes_no_other_along():
    done: list[str] = []

    def search(q: str) -> str:
        if q == "3":
            raise LookupError(q)
        done.append(q)
        return q

    @lmc.function
    def agent(s: Any, q: str) -> Any:
        s += q + lmc.gen("x", max_tokens=4)
        s += search(q)

    with pytest.raises(LookupError, match="3"):
        lmc.compile(agent, backend=Mock()).batch(ITEMS)
    assert sorted(done) == sorted(item["q"] for item in ITEMS if item["q"] != "3")


def test_a_tool_that_exits_ends_the_batch():
    def opaque(q: str) -> str:
        raise SystemExit(3)

    @lmc.function
    def agent(s: Any, q: str) -> Any:
        s += opaque(q)

    with pytest.raises(SystemExit):
        lmc.compile(agent, backend=Mock()).batch(ITEMS)
    with pytest.raises(SystemExit):
        lmc.compile(agent, backend=Mock())(q="a")


def test_the_engine_has_all_its_pages_back():
    tool = Tool()
    backend, _ = engine()
    press_ctrl_c(lambda: len(tool.began) == 8)
    with pytest.raises(KeyboardInterrupt):
        lmc.compile(with_tool(tool), backend=backend).batch(ITEMS, timeout=100)
    tool.go.set()
    backend.check()
    results = lmc.compile(with_tool(tool), backend=backend).as_completed(ITEMS)
    next(results)
    del results
    backend.check()
    backend.close()


# -- everything at once: random latencies, faults and cuts ----------------------------------------------------------


@lmc.host(ordered=False)
def unordered(q: str, wait: float, fails: bool) -> str:
    time.sleep(wait)
    if fails:
        raise LookupError(f"no {q}")
    return f"<{q}>"


def ordered(q: str, wait: float, fails: bool) -> str:
    time.sleep(wait)
    if fails:
        raise ValueError(f"bad {q}")
    return f"[{q}]"


@lmc.function
def everything(s: Any, q: str, waits: Any, fails: Any) -> Any:
    """Forks with tools, a branch on an answer, a failure that is caught, one that is not, and a fork that nobody reads."""
    s += q + lmc.gen("first", max_tokens=3)
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += unordered(f"{q}{i}", waits[i], fails[i]) + lmc.gen("a", max_tokens=3)
    try:
        s += ordered(s["first"], waits[3], fails[3])
    except ValueError as error:
        s += str(error)
    if "a" in s["first"]:
        s += lmc.gen("more", max_tokens=3)
    s += " ".join(f["a"] for f in forks[:2]) + ordered(q, waits[4], fails[4])
    s += lmc.gen("last", max_tokens=3)
    return s["last"]


def outcome(run: Callable[[], Any]) -> Any:
    try:
        state = run()
    except Exception as error:
        return type(error).__name__, str(error)
    if state.failure is not None:
        return type(state.failure).__name__, str(state.failure)
    return state.ret_value, state.text()


@some("seed", range(6), 3)
def test_random_latencies_faults_and_cuts(seed: int):
    rng = random.Random(seed)
    items = [{"q": f"q{i}", "waits": [rng.choice([0, 1e-3, 4e-3]) for _ in range(5)], "fails": [rng.random() < 0.15 for _ in range(5)]}
             for i in range(6)]  # fmt: skip
    broken = {rng.choice(("first", "a", "last"))} if rng.random() < 0.5 else set()

    def backend() -> Mock:
        return Mock(
            latency=lambda ask: (len(ask.name or "") % 4) * 4e-4,
            fault=lambda ask, _: BackendError(f"{ask.name} broke") if ask.name in broken else None,
        )

    expected = [outcome(lambda item=item: everything.run(**item, backend=backend(), temperature=0)) for item in items]
    fast = lmc.compile(everything)
    got = [outcome(lambda item=item: fast(**item, backend=backend(), temperature=0)) for item in items]
    assert got == expected
    mock = backend()
    states = fast.batch(items, backend=mock, temperature=0, errors="return")
    assert [outcome(lambda s=s: s) for s in states] == expected
    until(lambda: not mock._pending, "requests are left")

    mock = backend()
    results = fast.as_completed(items, backend=mock, temperature=0, timeout=PATIENCE)
    for _, (index, state) in zip(range(rng.randrange(6)), results, strict=False):
        assert outcome(lambda state=state: state) == expected[index]
    results.close()  # type: ignore[attr-defined]  # a generator
    until(lambda: not mock._pending, "requests of the cut batch are left")
