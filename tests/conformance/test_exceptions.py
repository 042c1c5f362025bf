"""Exceptions that programs do not handle, and messages that are open.

PYTEST_DONT_REWRITE: an `assert` of a program says what it says.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

import lmc
from lmc import gen
from lmc.backend.mock import Mock
from tests.conformance.harness import effect
from tests.conformance.table.errors import attributes_that_a_state_lacks, group_joined_inside_of_a_later_message, varied

# ruff: noqa: TRY301, TRY203, B904, RUF100


class ToolError(Exception):
    """Its constructor is not that of an exception."""

    def __init__(self, what: str, *, code: int) -> None:
        super().__init__(f"{what} ({code})")
        self.code = code


class Worse(ToolError):
    pass


def tool(x: str) -> str:
    """Upper case; raises for texts with an e, and worse for those with an a."""
    effect("tool", x)
    if "a" in x:
        raise Worse(x, code=2)
    if "e" in x:
        raise ToolError(x, code=1)
    return x.upper()


# -- tracebacks --------------------------------------------------------------------------------------------------------------


@lmc.function
def uncaught(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)

    def helper(text: str) -> str:
        try:
            return tool(text)
        except ToolError:
            raise LookupError(q)

    return helper(s["x"])


def test_the_traceback_of_an_uncaught_exception_names_the_programs_lines() -> None:
    fast = lmc.compile(uncaught)
    for _ in range(2):
        expected, got = (_traceback(call, backend=Mock(answers={"x": "pie"})) for call in (uncaught.run, fast))
        assert got == expected
        assert [name for _, _, name in got[-1]] == ["uncaught", "helper"]


def _traceback(call: Any, **options: Any) -> list[list[tuple[str, int | None, str]]]:
    """Places of the exception that a call ends with, and of those behind it; lmc's own lines and the test's left out."""
    found = []
    with pytest.raises(LookupError) as raised:
        call("q", **options)
    error: BaseException | None = raised.value
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [(f.filename, f.lineno, f.name) for f in frames if f.filename == __file__ and not f.name.startswith(("test", "_"))]
        found.insert(0, own)
        error = error.__context__
    return found


# -- what a program finds out by asking for it


def test_a_program_that_handles_a_missing_attribute_has_a_graph() -> None:
    case_of: Any = attributes_that_a_state_lacks
    assert lmc.compile(case_of.program).dump_ir().count("gen(") == 2


# -- messages that are open while forks are joined


def test_a_group_joined_inside_of_a_message_leaves_it_open() -> None:
    case_of: Any = group_joined_inside_of_a_later_message
    messages = case_of.program.run(q="a", backend=varied()).messages()
    assert [m["role"] for m in messages[-2:]] == ["user", "assistant"]
    assert messages[-2]["content"].endswith("!")


# -- exceptions that are returned, and those of awaited programs


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
