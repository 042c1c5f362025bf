"""Objects that can change or are told apart by identity, where the interpreter goes on and where calls need no order."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

import lmc
from lmc import gen
from lmc.backend.mock import Mock

from .harness import Case, case, cases, effect, opaque


@lmc.host(ordered=False)
def size(rows: list[Any]) -> int:
    effect("size", len(rows))
    return len(rows)


@lmc.host(ordered=False)
def same(x: Any) -> Any:
    return x


@case()
def unordered_calls_see_what_was_changed_before(s, q):
    s += q + gen("x", max_tokens=2)
    rows = [1]
    first = size(rows)
    rows.append(s["x"])
    second = size(rows)
    held = {"rows": rows}
    held["rows"].append(q)
    return first, second, size(rows)


@case()
def unordered_calls_of_equal_objects_then_left(s, q):
    s += q + gen("x", max_tokens=2)
    one, two = [s["x"]], [s["x"]]
    a, b, c = same(one), same(two), same(one)
    opaque(s)
    a.append("a")
    return a is one, b is two, a is c, one, two


CASES: dict[str, Case] = cases(globals())


@pytest.mark.parametrize("name", CASES)
def test_means_the_same(name: str) -> None:
    CASES[name].check()


@lmc.function
def gives_its_exceptions(s, q):
    s += q + gen("x", max_tokens=2)
    kept = []
    for text in (s["x"], q):
        try:
            int(text)
        except ValueError as error:
            kept.append(error)
    return kept


def test_exceptions_that_a_program_returns_have_their_places():
    def lines(error: BaseException) -> list[int | None]:
        return [entry.lineno for entry in traceback.extract_tb(error.__traceback__)]

    expected = [lines(error) for error in gives_its_exceptions.run(q="a", backend=Mock(), seed=7).ret_value]
    compiled = lmc.compile(gives_its_exceptions)
    assert [lines(error) for error in compiled(q="a", backend=Mock(), seed=7).ret_value] == expected


async def refuses(x: str) -> str:
    await asyncio.sleep(0)
    raise LookupError(x)


@lmc.function
async def asks_one_that_refuses(s, q):
    s += q
    return await refuses(q)


def test_an_async_program_raises_in_no_other_exceptions_context():
    with pytest.raises(LookupError) as raised:
        asks_one_that_refuses.run(q="a", backend=Mock())
    assert raised.value.__context__ is None
