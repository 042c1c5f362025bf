"""Nested targets and star arguments: what the host made is taken apart once, and what cannot be taken is refused."""

from __future__ import annotations

import json
from typing import Any

from lmc import gen
from tests.conformance.harness import case, effect, scripted


@case([{"q": "a"}], backend=scripted(x="[]"))
@case([{"q": "a"}], backend=scripted(x="[[1, 2], 5]"))
@case([{"q": "a"}], backend=scripted(x="[[1, 2], [3]]"))
def that_do_not_fit(s, q):
    s += q + gen("x")
    for i, (a, b) in enumerate(json.loads(s["x"])):
        effect("fits", i)
        s += f"{a} {b}"


@case([{"q": "a"}, {"q": "b"}], backend=scripted(x='{"a": 1, "b": [2]}'))
@case([{"q": "a"}, {"q": "b"}], backend=scripted(x='{}'))
@case([{"q": "a"}, {"q": "b"}], backend=scripted(x='{"q": "z"}'))
def named(s, q):
    s += q + gen("x")
    mapping = json.loads(s["x"])
    s += effect_of(**mapping)
    s += str(sorted({"z": 0, **mapping})) + gen("y", **{"max_tokens": 3})
    return mapping


class Shelf:
    """A mapping that runs code, with methods to call."""

    def keys(self) -> Any:
        effect("keys")
        return ["x", "y"]

    def __getitem__(self, key: str) -> str:
        effect("item", key)
        return key

    def method(self, *args: Any, **kwargs: Any) -> str:
        effect("method", args, sorted(kwargs))
        return f"{args} {sorted(kwargs)}"


SHELF = Shelf()


def counted(n: int) -> Any:
    for i in range(n):
        effect("counted", i)
        yield i


def bad(x: Any) -> Any:
    effect("bad", x)
    return 5


@case([{"q": "a", "which": which} for which in range(4)])
def refused_in_a_run(s, q, which):
    s += q + gen("x", max_tokens=2)
    try:
        if which == 0:
            return effect_of(**bad(s["x"]))
        if which == 1:
            return SHELF.method(*bad(s["x"]), k=effect_of())
        if which == 2:
            return SHELF.method(**{"k": s["x"]}, **bad(s["x"]))
        return SHELF.method(*SHELF.keys)
    except TypeError as error:
        if which < 3:
            return str(error)
        raise


@case([{"q": "a"}, {"q": "b"}])
def taken_last(s, q):
    s += q + gen("x", max_tokens=2)
    many = SHELF.method(*counted(2), k=effect_of(a=q), self_=1)
    return many, SHELF.method(**SHELF), SHELF.method(q=s["x"], **SHELF, z=1), effect_of(self=q)


def effect_of(**given: Any) -> str:
    effect("called", given)
    return str(given)
