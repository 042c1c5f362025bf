"""Helpers under decorators, partial functions, methods of objects as programs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lmc
from lmc import gen
from tests.conformance.harness import case, effect


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
