"""Programs and helpers under decorators, as methods and partial functions, on threads of the user's and in processes that were forked or spawned."""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing
import os
import threading
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import lmc
from lmc import gen
from lmc.backend.mock import Mock
from tests.conformance import elsewhere
from tests.searching import some

from .harness import Case, case, cases, conform, eager, effect

# -- decorators of users, as packages write them


def logged(fn: Callable[..., Any]) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        effect("begin", fn.__name__, sorted(kwargs))
        try:
            return fn(*args, **kwargs)
        finally:
            effect("end", fn.__name__)

    return wrapper


def retried(times: int, *kinds: type[BaseException]) -> Any:
    def decorate(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for left in reversed(range(times)):
                try:
                    return fn(*args, **kwargs)
                except kinds as error:
                    effect("retry", type(error).__name__, left)
                    if not left:
                        raise
            return None

        return wrapper

    return decorate


def checked(fn: Any) -> Any:
    """As beartype: binds the arguments, checks their types and calls the function as it was called."""
    signature, hints = inspect.signature(fn), {k: v for k, v in typing.get_type_hints(fn).items() if isinstance(v, type)}

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in hints and not isinstance(value, hints[name]):
                raise TypeError(f"{fn.__name__}: {name}={value!r} is no {hints[name].__name__}")
        return fn(*args, **kwargs)

    return wrapper


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


@case()
def helpers_under_decorators(s, q):
    tries = []

    @logged
    @retried(3, ValueError, KeyError)
    def ask(text, *, name):
        s.__iadd__(text + gen(name, max_tokens=2))
        tries.append(name)
        if len(tries) < 2:
            raise ValueError(name)
        return s[name]

    @functools.cache
    def once(text):
        effect("once", text)
        s.__iadd__(text + gen("once", max_tokens=2))
        return s["once"]

    @checked
    def number(text: str) -> int:
        return len(text)

    found = [ask(q, name="a"), ask(q, name="b"), once(q), once(q), once("z"), number(q)]
    with contextlib.suppress(TypeError):
        number(3)
        effect("not there")
    return found, tries, once.cache_info().hits


@case()
def single_dispatch_and_partials(s, q):
    @functools.singledispatch
    def show(x):
        return f"?{x}"

    @show.register
    def _(x: int):
        return f"#{x}"

    ask = functools.partial(lambda state, name, text: state.__iadd__(text + gen(name, max_tokens=2)), s, "x")
    ask(show(q))
    ask(text=show(len(s["x"])))
    return s["x"]


# -- methods


@dataclass
class Agent:
    style: str
    seen: list[str] = field(default_factory=list)

    @lmc.function
    def answer(s: Any, self: Any, q: str) -> Any:  # noqa: N805
        s += f"{self.style}: {q}" + gen("x", max_tokens=3)
        self.seen.append(s["x"])
        return s["x"]

    def ask(self, s: Any, q: str) -> str:
        s += self.style + q + gen("y", max_tokens=2)
        self.seen.append(s["y"])
        return s["y"]

    def program(self, s: Any, q: str) -> Any:
        found = [self.ask(s, q), self.ask(s, q + "?")]
        s += "|".join(self.seen[-2:]) + gen("z", max_tokens=2)
        return found, s["z"], len(self.seen)


@case()
def methods_of_objects(s, q):
    one, two = Agent("terse"), Agent(q)
    found = [agent.ask(s, t) for agent in (one, two) for t in "uv"]
    return found, one.seen, two, Agent.answer(one, q).ret_value


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


TABLE = cases(globals())


@some("name", TABLE, 2)
def test_means_the_same(name: str):
    found: Case = TABLE[name]
    found.check()
