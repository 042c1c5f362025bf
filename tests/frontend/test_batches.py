"""Batches: what users' code means on threads holds in each program of a batch, many are in flight, and none holds up the others."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.frontend import flights
from lmc.frontend.batches import PendingBatch
from lmc.frontend.beginning import states_of_batch
from tests.backend.gated import Gated
from tests.conformance.harness import eager
from tests.searching import some
from tests.waiting import until

PATIENCE = 60.0  # seconds; only against hangs


@pytest.fixture(autouse=True)
def leaves_no_thread() -> Iterator[None]:
    before = {*threading.enumerate()}
    yield
    for thread in {*threading.enumerate()} - before:
        if thread.name not in ("tqdm_monitor", "lmc-mock", "lmc-clock"):
            thread.join(PATIENCE)
            assert not thread.is_alive(), thread


def ask(s: Any, text: str = "") -> str:
    s += text + lmc.gen("x", max_tokens=2)
    return s["x"]


# -- what users' code means on threads


class Shared:
    """State that the programs of one batch share."""

    def __init__(self) -> None:
        self.lock, self.rlock, self.condition = threading.Lock(), threading.RLock(), threading.Condition()
        self.semaphore, self.local, self.inside, self.order = threading.BoundedSemaphore(2), threading.local(), 0, list[int]()
        self.barrier = threading.Barrier(4)
        self.events = [threading.Event() for _ in range(5)]


def alone(shared: Shared, most: int, s: Any, i: int) -> None:
    """A part of which at most so many are in at once, that reads an answer inside."""
    shared.inside += 1
    assert shared.inside <= most
    ask(s, str(i))
    assert shared.inside <= most
    shared.inside -= 1


def in_lock(shared: Shared, s: Any, i: int) -> None:
    with shared.lock:
        alone(shared, 1, s, i)


def in_rlock(shared: Shared, s: Any, i: int) -> None:
    with shared.rlock:
        ask(s)
        with shared.rlock:
            alone(shared, 1, s, i)


def in_semaphore(shared: Shared, s: Any, i: int) -> None:
    with shared.semaphore:
        alone(shared, 2, s, i)


def in_condition(shared: Shared, s: Any, i: int) -> None:
    """In the order of their numbers, the other way round."""
    with shared.condition:
        shared.condition.wait_for(lambda: len(shared.order) == 3 - i, PATIENCE)
        ask(s)
        shared.order.append(i)
        shared.condition.notify_all()
    assert shared.order.index(i) == 3 - i


def at_barrier(shared: Shared, s: Any, i: int) -> None:
    ask(s)
    shared.barrier.wait(PATIENCE)
    ask(s)


def thread_local(shared: Shared, s: Any, i: int) -> None:
    shared.local.number = i
    ask(s)
    assert shared.local.number == i


def own_connection(shared: Shared, s: Any, i: int) -> None:
    connection = sqlite3.connect(":memory:")  # refuses other threads
    connection.execute("create table t (x)")
    connection.execute("insert into t values (?)", (ask(s, str(i)),))
    assert connection.execute("select x from t").fetchall() == [(s["x"],)]
    connection.close()


def same_thread(shared: Shared, s: Any, i: int) -> None:
    before = threading.get_ident()
    ask(s)
    assert threading.get_ident() == before


def tools_that_wait_for_one_another(shared: Shared, s: Any, i: int) -> None:
    """Each blocks until the one behind it has got as far: no turn may be held meanwhile."""
    ask(s)
    if i < 3:
        assert shared.events[i + 1].wait(PATIENCE)
    shared.events[i].set()
    ask(s)


def other_program(shared: Shared, s: Any, i: int) -> None:
    @lmc.function
    def child(c: Any, text: str) -> str:
        return ask(c, text)

    assert child.run(text=str(i)).ret_value
    assert [c.ret_value for c in child.run_batch([{"text": "a"}, {"text": "b"}])]


def loop_of_its_own(shared: Shared, s: Any, i: int) -> None:
    async def main() -> str:
        return await asyncio.to_thread(ask, s)

    assert asyncio.run(main())


TABLE: list[Callable[..., None]] = [
    in_lock, in_rlock, in_semaphore, in_condition, at_barrier, thread_local, own_connection, same_thread, tools_that_wait_for_one_another,
    other_program, loop_of_its_own,
]  # fmt: skip


@some("body", TABLE, 3, ids=lambda f: f.__name__)
@pytest.mark.parametrize("latency", [0.0, 2e-3], ids=["at once", "later"])
@pytest.mark.parametrize("ahead", [None, "certain", "likely"])
def test_code_of_threads_means_what_it_means(body: Callable[..., None], latency: float, ahead: str | None):
    shared = Shared()

    @lmc.function
    def program(s: Any, i: int) -> int:
        body(shared, s, i)
        return i

    batch = program.run_batch if ahead is None else eager(lmc.compile(program, ahead=ahead)).batch
    states = batch([{"i": i} for i in range(4)], backend=Mock(latency=latency))
    assert [s.ret_value for s in states] == [0, 1, 2, 3]


# -- how many, and on which threads


def test_all_programs_are_in_flight_at_once():
    @lmc.function
    def program(s: Any, i: int) -> str:
        return ask(s, str(i))

    assert len(program.run_batch([{"i": i} for i in range(200)], backend=Gated(200))) == 200


def test_answers_that_are_there_at_once_cost_no_change_of_threads(monkeypatch: pytest.MonkeyPatch):
    """But where the watch takes a turn away, as it may on a busy machine: here it does not look."""
    monkeypatch.setattr(flights.Flights, "look", lambda self: False)
    threads = set[int]()

    @lmc.function
    def program(s: Any, i: int) -> str:
        threads.add(threading.get_ident())
        return ask(s, str(i))

    program.run_batch([{"i": i} for i in range(50)], backend=Mock())
    assert len(threads) == 1


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("is_async", [False, True])
def test_num_threads_bounds_what_is_in_flight(limit: int, is_async: bool):
    inside, most = 0, 0

    def begin(step: int) -> None:
        nonlocal inside, most
        inside += step
        most = max(most, inside)

    @lmc.function
    def plain(s: Any, i: int) -> None:
        begin(1)
        ask(s, str(i))
        begin(-1)

    @lmc.function
    async def coroutine(s: Any, i: int) -> None:
        begin(1)
        ask(s, str(i))
        begin(-1)

    (coroutine if is_async else plain).run_batch([{"i": i} for i in range(12)], backend=Gated(limit), num_threads=limit)
    assert most == limit


def test_with_one_thread_a_plain_program_runs_on_the_callers():
    @lmc.function
    def program(s: Any) -> bool:
        return threading.current_thread() is threading.main_thread()

    assert [s.ret_value for s in program.run_batch([{}, {}], num_threads=1, backend=Mock())] == [True, True]


def test_items_that_have_not_begun_are_arguments_only(monkeypatch: pytest.MonkeyPatch):
    made, began = list[int](), list[int]()

    def counting(*args: Any) -> Any:
        make = states_of_batch(*args)
        return lambda place: made.append(place) or make(place)

    monkeypatch.setattr("lmc.frontend.interpreter.states_of_batch", counting)

    @lmc.function
    def program(s: Any, i: int) -> None:
        began.append(i)
        assert len(made) - len(began) <= 8
        ask(s, str(i))

    for _ in program.run_batch([{"i": i} for i in range(300)], backend=Mock(), num_threads=8, generator_style=True):
        pass
    assert sorted(made) == sorted(began) == [*range(300)]


def test_states_that_a_consumer_drops_are_freed():
    @lmc.function
    def program(s: Any, i: int) -> str:
        return ask(s, str(i))

    seen, state = list[Any](), None
    for state in program.run_batch([{"i": i} for i in range(20)], backend=Mock(), generator_style=True, num_threads=2):
        seen.append(weakref.ref(state))
    del state
    gc.collect()
    assert [ref() for ref in seen] == [None] * 20


def test_nested_batches_get_on_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flights, "MAX_THREADS", 2)

    @lmc.function
    def leaf(s: Any, i: int) -> str:
        return ask(s, str(i))

    @lmc.function
    def inner(s: Any, i: int) -> int:
        return len(leaf.run_batch([{"i": j} for j in range(3)]))

    @lmc.function
    def outer(s: Any, i: int) -> int:
        return sum(c.ret_value for c in inner.run_batch([{"i": j} for j in range(3)]))

    assert [s.ret_value for s in outer.run_batch([{"i": i} for i in range(4)], backend=Mock(latency=1e-3))] == [9] * 4


def test_completed_gives_each_as_soon_as_it_is_done():
    events = [threading.Event() for _ in range(3)]

    @lmc.function
    def program(s: Any, i: int) -> None:
        ask(s, str(i))
        assert events[i].wait(PATIENCE)

    def batch() -> PendingBatch:
        bound = [program.arguments((), {"i": i}) for i in range(3)]
        return PendingBatch(program, bound, states_of_batch(program, range(3), lmc.frontend.options.Options.of({"backend": Mock()})))  # type: ignore[attr-defined]

    events[2].set()
    found = list[int]()
    for place, _ in batch().completed():
        found.append(place)
        if place:
            events[place - 1].set()
    assert found == [2, 1, 0]

    async def main() -> list[int]:
        for event in events:
            event.clear()
        events[2].set()
        found = list[int]()
        async for place, _ in batch().acompleted():
            found.append(place)
            if place:
                events[place - 1].set()
        return found

    assert asyncio.run(main()) == [2, 1, 0]


# -- context variables, addresses, errors, abandoning


USER: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


def test_each_program_has_a_copy_of_the_callers_context():
    @lmc.function
    def program(s: Any, i: int) -> str:
        found = USER.get()
        USER.set(f"changed {i}")
        ask(s)
        assert USER.get() == f"changed {i}"
        return found

    token = USER.set("caller")
    try:
        assert [s.ret_value for s in program.run_batch([{"i": i} for i in range(5)], backend=Mock(latency=1e-3))] == ["caller"] * 5
        assert USER.get() == "caller"
    finally:
        USER.reset(token)


def test_samples_do_not_depend_on_how_many_run_at_once():
    @lmc.function
    def program(s: Any, i: int) -> str:
        return ask(s, str(i)) + ask(s)

    items = [{"i": i} for i in range(9)]
    found = [
        [s.ret_value for s in program.run_batch(items, backend=Mock(latency=latency), seed=3, num_threads=threads)]
        for latency, threads in ((0, 1), (1e-3, 2), (1e-3, "auto"))
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("threads", [1, 2, "auto"])
def test_errors_are_raised_after_all_have_run_or_returned(threads: Any):
    ran = list[int]()

    @lmc.function
    def program(s: Any, i: int) -> int:
        ask(s, str(i))
        if i == 1:
            raise LookupError(f"item {i}")
        ran.append(i)
        return i

    items = [{"i": i} for i in range(4)]
    with pytest.raises(LookupError, match="item 1"):
        program.run_batch(items, backend=Mock(latency=1e-3), num_threads=threads)
    assert sorted(ran) == [0, 2, 3]
    states = program.run_batch(items, backend=Mock(latency=1e-3), num_threads=threads, errors="return")
    assert [s.ret_value for s in states] == [0, None, 2, 3]
    assert [type(s.error()) for s in states] == [type(None), LookupError, type(None), type(None)]
    assert states[1]["x"], "what it had before the error is there"
    assert repr(states[1]).endswith("; variables: 'x'; failed with LookupError('item 1')>"), "and not as if its text were the error's"
    with pytest.raises(LookupError, match="item 1"):
        states[1]["later"]


def test_an_exception_that_has_its_state_or_no_text_is_shown_with_it():
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise TypeError

    @lmc.function
    def program(s: Any, printable: bool):
        raise ValueError(s) if printable else Unprintable

    shown = [repr(state) for state in program.run_batch([{"printable": True}, {"printable": False}], backend=Mock(), errors="return")]
    assert shown == [
        "<program: ''; variables: none; failed with ValueError('...')>", "<program: ''; variables: none; failed with Unprintable('<unprintable Unprintable>')>",
    ]  # fmt: skip


@pytest.mark.parametrize("is_async", [False, True])
def test_abandoning_a_batch_cancels_what_is_left(is_async: bool):
    backend, began, cancelled = Gated(), list[int](), list[int]()

    def body(s: Any, i: int) -> str:
        began.append(i)
        try:
            return ask(s) if i else "at once"
        except (lmc.CancelledError, asyncio.CancelledError):
            cancelled.append(i)
            raise

    @lmc.function
    def plain(s: Any, i: int) -> str:
        return body(s, i)

    @lmc.function
    async def coroutine(s: Any, i: int) -> str:
        return body(s, i)

    states = (coroutine if is_async else plain).run_batch([{"i": i} for i in range(20)], backend=backend, num_threads=4, generator_style=True)
    assert next(states).ret_value == "at once"
    states.close()  # type: ignore[attr-defined]
    assert len(began) <= 5
    until(lambda: sorted(cancelled) == sorted(began)[1:], "what had begun is not cancelled")
    backend.open()


def test_an_interrupt_in_the_callers_thread_ends_the_batch():
    """As Ctrl-C raises it, while the caller waits."""
    backend = Gated()

    @lmc.function
    def program(s: Any, i: int) -> str:
        if i == 2:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
        return ask(s, str(i))

    with pytest.raises(KeyboardInterrupt):
        program.run_batch([{"i": i} for i in range(3)], backend=backend)
    backend.open()


@pytest.mark.parametrize("compiled", [False, True])
def test_an_item_raises_stop_iteration_as_it_is(compiled: bool):
    @lmc.function
    def program(s: Any) -> Any:
        s += lmc.gen("x", max_tokens=2)
        return next(iter(s["x"][:0]))

    with pytest.raises(StopIteration):
        lmc.compile(program, backend=Mock()).batch([{}]) if compiled else program.run_batch([{}], backend=Mock())


def test_an_interrupt_in_a_program_is_raised_where_the_states_are_taken():
    @lmc.function
    def program(s: Any, i: int) -> None:
        ask(s, str(i))
        if i == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program.run_batch([{"i": i} for i in range(4)], backend=Mock(latency=1e-3))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_progress_bar_counts_all(is_async: bool, capsys: pytest.CaptureFixture[str]):
    @lmc.function
    def plain(s: Any, i: int) -> str:
        return ask(s, str(i))

    @lmc.function
    async def coroutine(s: Any, i: int) -> str:
        return ask(s, str(i))

    (coroutine if is_async else plain).run_batch([{"i": i} for i in range(7)], backend=Mock(), progress_bar=True)
    assert "7/7" in capsys.readouterr().err


def test_without_standard_error_there_is_no_bar(monkeypatch: pytest.MonkeyPatch):
    """As in a program with windows alone."""
    @lmc.function
    def plain(s: Any, i: int) -> int:
        s += lmc.gen("x", max_tokens=2)
        return i

    monkeypatch.setattr("sys.stderr", None)
    assert [s.ret_value for s in lmc.compile(plain, backend=Mock()).batch([(1,), (2,)], progress=True)] == [1, 2]


def test_a_batch_inside_of_an_async_program_leaves_the_loop_free():
    backend = Gated()

    @lmc.function
    def child(s: Any, i: int) -> str:
        return ask(s, str(i))

    @lmc.function
    async def program(s: Any) -> int:
        asyncio.get_running_loop().call_later(1e-3, backend.open)
        return len(child.run_batch([{"i": i} for i in range(3)]))

    assert program.run(backend=backend).ret_value == 3


@lmc.function
def two_answers(s, q):
    s += q + lmc.gen("a", max_tokens=2) + "," + lmc.gen("b", max_tokens=2)


def test_an_ended_item_keeps_nothing_to_cancel_its_requests_by() -> None:
    """A batch keeps the states of thousands."""
    states = two_answers.run_batch([{"q": "x"}, {"q": "y"}], backend=lmc.Mock())
    assert [weakref.getweakrefcount(node) for state in states for node in state.ctx.nodes()] == [0] * sum(len(s.ctx.nodes()) for s in states)
