"""Nested targets: what the host made is taken apart once, also when the interpreter goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

import lmc
from lmc import gen
from tests.conformance.harness import Case, case, cases, conform, effect, scripted

PAIRS = scripted(x="[[1, [2, 3]], [4, [5, 6]]]")


def rows(text: str) -> Any:
    """An iterator: it can be gone through once."""
    effect("rows")
    return (iter(row) for row in json.loads(text))


@case(backend=PAIRS)
def in_a_loop_over_zip(s, q):
    s += q + gen("x")
    for f, (a, (b, c)) in zip(s.fork(2), json.loads(s["x"])):
        f += f"{a} {b} {c}" + gen("y", max_tokens=2)
        s += f["y"]


@case(backend=PAIRS)
def of_iterators(s, q):
    s += q + gen("x")
    for i, (a, rest) in enumerate(rows(s["x"])):
        s += f"{i} {a} {rest}" + gen("y", max_tokens=2)


@case(backend=PAIRS)
def in_an_assignment(s, q):
    s += q + gen("x")
    n, (a, *more), (first, _) = 7, iter(json.loads(s["x"])), rows(s["x"])
    s += f"{n} {a} {more} {next(first)}" + gen("y", max_tokens=2)
    return more


@case(backend=PAIRS)
def and_then_left(s, q):
    s += q + gen("x")
    n, (first, second) = 7, rows(s["x"])
    for i, (a, (b, c)) in enumerate([first, second]):
        s += f"{n} {i} {a} {b} {c}" + gen("y", max_tokens=2)
        effect("round", i)
    s += str({s: 1}[s])  # not captured: the interpreter goes on


@case(backend=scripted(x=["[[1, 2], [3]]", "[[1, 2], 5]", "[]"]), batch=False)
def that_do_not_fit(s, q):
    s += q + gen("x")
    for i, (a, b) in enumerate(json.loads(s["x"])):
        effect("fits", i)
        s += f"{a} {b}"


@case()
def what_is_no_mapping(s, q):
    found = []
    for make in (lambda: rows("[]"), lambda: [("a", 1)], lambda: q.split(), lambda: {"k": q}):
        try:
            found.append({**make(), "m": q})
        except TypeError as error:
            found.append(str(error))
    s += q + gen("x", max_tokens=2)
    return found


@pytest.mark.parametrize("name", cases(globals()))
def test_nested_targets(name):
    found: Case = globals()[name]
    program = found.check()
    if name in ("in_a_loop_over_zip", "of_iterators", "in_an_assignment"):
        assert program.stats.replays == 0, program._said


@lmc.function
def named(s, q):
    s += q + gen("x")
    mapping = json.loads(s["x"])
    s += effect_of(**mapping)
    s += str(sorted({"z": 0, **mapping})) + gen("y", **{"max_tokens": 3})
    return mapping


def effect_of(**given: Any) -> str:
    effect("called", given)
    return str(given)


@pytest.mark.parametrize("x", ('{"a": 1, "b": [2]}', "{}", '{"q": "z"}'))
def test_a_mapping_of_the_host_as_keyword_arguments(x):
    conform(named, [{"q": "a"}, {"q": "b"}], backend=scripted(x=x), replays=0)
