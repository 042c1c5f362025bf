"""Programs and helpers under decorators, as methods and partial functions, on threads of the user's and in processes that were forked or spawned."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import lmc
from lmc import gen
from lmc.backend.mock import Mock
from tests.conformance import elsewhere
from tests.conformance.harness import conform, eager, effect
from tests.conformance.table.decorated import Agent, checked, logged, retried
from tests.searching import some

# -- decorators of users, as packages write them


class Counted:
    """A decorator that is a class."""

    def __init__(self, fn: Any) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.calls = fn, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        effect("call", self.calls)
        return self.fn(*args, **kwargs)


def body(s: Any, q: str, *, n: int = 2) -> Any:
    for i in range(n):
        s += q + gen(f"x{i}", max_tokens=2)
    return s["x0"]


OVER: dict[str, Callable[[Any], Any]] = {
    "wraps": logged, "retry": retried(2, ValueError), "checked": checked, "two": lambda fn: logged(checked(fn)), "class": Counted,
    "partial": lambda fn: functools.wraps(fn)(functools.partial(fn, n=3)),
}  # fmt: skip


def unshared(decorate: Callable[[Any], Any]) -> Any:
    def reset() -> None:
        if isinstance(made, Counted):
            made.calls = 0

    made = decorate(body)
    return made, {"reset": reset, "batch": not isinstance(made, Counted)}


@pytest.mark.parametrize("name", OVER)
def test_a_decorator_under_lmc_function(name: str):
    made, options = unshared(OVER[name])
    conform(lmc.function(made), [{"q": "a"}, {"q": "b", "n": 1}], **options)


@pytest.mark.parametrize("name", ["wraps", "retry", "two", "class"])
def test_a_decorator_over_lmc_function(name: str):
    """Keyword arguments stay keyword arguments; what it does is done in each call."""
    made, options = unshared(OVER[name])
    child = OVER[name](lmc.function(body))

    def program(s: Any, q: str) -> Any:
        one, two = child(q=q, n=1), child(q + "2")
        s += one["x0"] + two.ret_value + gen("y", max_tokens=2)
        return [one.ret_value, two["x1"]]

    def reset() -> None:
        if isinstance(child, Counted):
            child.calls = 0

    conform(lmc.function(program), [{"q": "a"}, {"q": "b"}], **options | {"reset": reset})


# -- methods


def test_a_bound_method_is_a_program():
    agent = Agent("terse")
    conform(lmc.function(agent.program), [{"q": "a"}, {"q": "b"}], reset=agent.seen.clear, outside=lambda: list(agent.seen), batch=False)


# -- threads and processes


def test_threads_of_the_users_call_one_program():
    fast = eager(lmc.compile(lmc.function(body), ahead="likely"))
    backend = Mock(latency=0.0003)
    lmc.set_default_backend(backend)
    expected = {q: fast(q=q, seed=1).text() for q in "abcdefgh"}
    found: dict[str, str] = {}
    threads = [threading.Thread(target=lambda q=q: found.__setitem__(q, fast(q=q, seed=1).text())) for q in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


@lmc.function
def locked(s: Any, q: str) -> Any:
    with LOCK:
        s += q + gen("x", max_tokens=2)
        with LOCK:
            return s["x"], getattr(LOCAL, "value", None)


LOCK, LOCAL = threading.RLock(), threading.local()


@pytest.mark.parametrize("ahead", ["off", "certain", "likely"])
def test_locks_and_thread_locals_in_a_batch_that_is_asked_ahead(ahead: str):
    LOCAL.value = "the caller's"
    states = eager(lmc.compile(locked, ahead=ahead)).batch([{"q": q} for q in "abcdef"], backend=Mock(latency=0.0003), seed=1)
    expected = locked.run_batch([{"q": q} for q in "abcdef"], backend=Mock(), seed=1, num_threads=1)
    assert [s.ret_value[0] for s in states] == [s.ret_value[0] for s in expected]
    assert [s.ret_value[1] for s in states] == [None] * 6  # each on a thread of its own


@some("method", ["fork", "spawn"], 2)
def test_processes(method: str):
    expected = elsewhere.asked("a")  # before: the program has a plan, measurements and threads
    with multiprocessing.get_context(method).Pool(1) as pool:
        pid, text = pool.apply_async(elsewhere.asked, ("a",)).get(120)
    assert text == expected[1] and pid != os.getpid()
