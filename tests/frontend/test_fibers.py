"""Programs in flight on one thread: which programs, and what a batch of them means."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import enum
import json
import logging
import math
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.frontend.closed import is_closed
from lmc.frontend.fibers import Fibers
from lmc.frontend.interpreter import Function
from lmc.waiting import Signal

# -- which programs are closed


class Grade(enum.Enum):
    GOOD = "good"


@dataclass
class Row:
    name: str
    grade: Grade = Grade.GOOD


@dataclass
class Checked:
    name: str

    def __post_init__(self) -> None:
        LOCK.acquire()


LOCK, LOCAL, QUEUE, LOG = threading.Lock(), threading.local(), queue.Queue[int](), logging.getLogger("test")
CONNECTION = sqlite3.connect(":memory:", check_same_thread=False)
TOOLS = {"now": time.time}
LIMIT, NAMES, WORD = 3, ["a", "b"], re.compile(r"\w+")
late: Any = None


def helper(s: Any, text: str) -> str:
    s += text.strip() + lmc.gen("helped", max_tokens=4)
    return s["helped"].upper()


def sleeping(text: str) -> str:
    time.sleep(0)
    return text


def recursive(n: int) -> int:
    return n if n <= 0 else recursive(n - 1)


@lmc.function
def part(s: Any, text: str) -> str:
    s += text
    s += lmc.gen("part", max_tokens=4)
    return s["part"]


@lmc.host
def tool(text: str) -> str:
    return text


def judge(s: Any, essay: str) -> dict[str, Any]:
    s += lmc.system("You judge.") + lmc.user(f"Essay: {essay}")
    forks = s.fork(len(NAMES))
    for f, name in zip(forks, NAMES):
        with f.assistant():
            f += name + lmc.gen("judgment", max_tokens=8)
    found = [f["judgment"].strip() for f in forks]
    best = max(found, key=lambda x: len(WORD.findall(x)))
    return {"best": best, "scores": [math.sqrt(len(x)) for x in found], "row": Row(best), "json": json.dumps(found)}


def helped(s: Any, text: str) -> Any:
    def twice(x: str) -> str:
        return x + x

    counts = collections.Counter(twice(helper(s, text)))
    return counts.most_common(1), part(s, text), part.run(text=text), recursive(2)


def of_a_lock(s: Any) -> None:
    with LOCK:
        s += lmc.gen("x", max_tokens=4)


def of_acquire(s: Any) -> None:
    LOCK.acquire()


def of_a_local(s: Any) -> Any:
    LOCAL.x = 1
    s += lmc.gen("x", max_tokens=4)
    return LOCAL.x


def of_a_queue(s: Any) -> Any:
    return QUEUE.get()


def of_a_log(s: Any) -> None:
    LOG.info("here")


def of_a_connection(s: Any) -> Any:
    return CONNECTION.execute("select 1").fetchone()


def of_sleep(s: Any) -> None:
    time.sleep(0)


def of_a_helper_that_sleeps(s: Any) -> str:
    return sleeping("x")


def of_a_table_of_tools(s: Any, name: str) -> Any:
    return TOOLS[name]()


def of_an_argument(s: Any, act: Any) -> Any:
    return act("x")


def of_a_method(s: Any, agent: Any) -> Any:
    return agent.act("x")


def of_a_host_function(s: Any) -> str:
    return tool("x")


def of_a_class(s: Any) -> Any:
    return Checked("x")


def of_an_import(s: Any) -> Any:
    import os

    return os.getpid()


def of_what_is_not_there(s: Any) -> Any:
    return nowhere("x")  # noqa: F821


def of_what_comes_later(s: Any) -> Any:
    return late("x")


def of_an_alias(s: Any) -> None:
    rest = time.sleep
    rest(0)


CLOSED = [judge, helped]
OPEN = [fn for name, fn in [*globals().items()] if name.startswith("of_")]


@pytest.mark.parametrize("fn", CLOSED, ids=lambda fn: fn.__name__)
def test_what_only_computes_and_asks_is_closed(fn: Callable[..., Any]):
    assert is_closed(lmc.function(fn), [{"text": "x", "row": Row("x"), "list": [1]}], Function)


@pytest.mark.parametrize("fn", OPEN, ids=lambda fn: fn.__name__)
def test_what_calls_something_unknown_is_not_closed(fn: Callable[..., Any]):
    assert len(OPEN) == 17
    assert not is_closed(lmc.function(fn), [], Function)


@pytest.mark.parametrize("argument", [LOCK, QUEUE, print, object()])
def test_an_argument_that_is_no_data_opens_a_program(argument: Any):
    assert not is_closed(part, [{"text": "x"}, {"text": argument}], Function)


def test_what_a_name_stands_for_counts_when_the_batch_begins(monkeypatch: pytest.MonkeyPatch):
    program = lmc.function(of_what_comes_later)
    assert not is_closed(program, [], Function)
    monkeypatch.setitem(globals(), "late", str)
    assert is_closed(program, [], Function)


# -- what runs on fibers


def on_threads(items: int, **options: Any) -> tuple[set[int], list[Any]]:
    """The threads that made the requests of a batch, and its return values."""
    threads = set[int]()

    class Noting(Mock):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            threads.add(threading.get_ident())
            return super().submit(*args, **kwargs)

    states = part.run_batch([{"text": str(i)} for i in range(items)], backend=Noting(latency=1e-3), temperature=0, **options)
    return threads, [s.ret_value for s in states]


def test_a_closed_program_runs_on_the_thread_that_waits_for_all_of_it():
    threads, values = on_threads(300)
    assert threads == {threading.get_ident()}
    assert values == [part.run(text=str(i), backend=Mock(), temperature=0).ret_value for i in range(300)]


def test_a_tracer_of_all_threads_sees_one_stack_on_each(monkeypatch: pytest.MonkeyPatch):
    stacks, mixed = collections.defaultdict[int, list[Any]](list), list[str]()

    def trace(frame: Any, event: str, _: Any) -> Any:
        stack = stacks[threading.get_ident()]
        if event == "call":
            stack.append(frame)
        elif event == "return" and stack.pop() is not frame:  # as coverage, which then gives lines to another file
            mixed.append(frame.f_code.co_name)
        return trace

    monkeypatch.setattr(threading, "_trace_hook", trace)  # threading.settrace, undone at the end
    states = part.run_batch([{"text": c} for c in "abc"], backend=Mock(latency=1e-3), generator_style=True)
    assert len({s.text() for s in states}) == 3 and stacks and not mixed


def test_a_consumer_that_takes_one_after_another_does_not_run_them():
    threads, values = on_threads(300, generator_style=True)
    assert len(threads) == 1 and threads != {threading.get_ident()}
    assert len(values) == 300


def test_a_compiled_batch_and_as_completed():
    program = lmc.compile(part, backend=Mock(latency=1e-3))
    items = [{"text": str(i)} for i in range(50)]
    expected = [part.run(text=str(i), backend=Mock(), temperature=0).ret_value for i in range(50)]
    assert [s.ret_value for s in program.batch(items, temperature=0)] == expected
    assert [s.ret_value for _, s in sorted(program.as_completed(items, temperature=0), key=lambda x: x[0])] == expected
    assert [s.ret_value for s in asyncio.run(program.abatch(items, temperature=0))] == expected


def test_a_batch_inside_of_an_async_function():
    async def outer() -> list[Any]:
        return [s.ret_value for s in part.run_batch([{"text": str(i)} for i in range(20)], backend=Mock(latency=1e-3))]

    assert len(asyncio.run(outer())) == 20


def test_a_failure_is_its_items_own():
    @lmc.function
    def program(s: Any, i: int) -> int:
        s += "x" + lmc.gen("a", max_tokens=4)
        return 10 // (i if s["a"] is not None else 1)

    states = program.run_batch([{"i": i} for i in range(4)], backend=Mock(latency=1e-3), errors="return")
    assert isinstance(states[0].error(), ZeroDivisionError)
    assert [s.ret_value for s in states[1:]] == [10, 5, 3]
    with pytest.raises(ZeroDivisionError):
        program.run_batch([{"i": i} for i in range(4)], backend=Mock(latency=1e-3))


# -- the driver


def test_fibers_have_contexts_of_their_own():
    var: contextvars.ContextVar[int] = contextvars.ContextVar("var", default=-1)
    gate, found = Signal(), list[tuple[int, int]]()

    def work(i: int) -> None:
        assert var.get() == 7
        var.set(i)
        gate.set() if i == 2 else gate.wait(0.0)
        found.append((i, var.get()))

    var.set(7)
    list(Fibers(work, 3, limit=3, name="test", here=True).results(lambda: None))
    assert sorted(found) == [(0, 0), (1, 1), (2, 2)] and var.get() == 7


@pytest.mark.parametrize("here", [True, False])
def test_what_is_abandoned_is_stopped(here: bool):
    gates, began, ended = [Signal() for _ in range(4)], list[int](), list[int]()

    def work(i: int) -> int:
        began.append(i)
        gates[i].wait()
        ended.append(i)
        return i

    def stop() -> None:
        for gate in gates:
            gate.set()

    results = Fibers(work, 4, limit=3, name="test", here=here).results(stop)
    gates[1].set()
    assert next(results) == (1, 1)
    results.close()
    assert sorted(ended) == sorted(began) and {0, 1} <= set(ended)


def test_answers_from_other_threads_wake_them():
    def work(i: int) -> int:
        signal = Signal()
        threading.Thread(target=signal.set).start()
        signal.wait()
        return i

    assert sorted(Fibers(work, 100, limit=40, name="test", here=True).results(lambda: None)) == [(i, i) for i in range(100)]
