"""One compiled program, called again and again: effects once a run and none while tracing, arms that are taken late, items that fail, tools that call it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from tests.conformance.harness import EFFECTS, conform, scripted
from tests.conformance.table import TABLE
from tests.conformance.table.effects import set_mode


@lmc.function
def prints(s: Any, q: str) -> None:
    print("q", q, sep=":")
    s += q + lmc.gen("x", max_tokens=5)
    print(s["x"], [s["x"], q], {"k": s["x"]})


def test_print(capsys: pytest.CaptureFixture[str]):
    prints.run(q="z", backend=Mock(), seed=1)
    expected = capsys.readouterr().out
    fast = lmc.compile(prints, backend=Mock())
    assert capsys.readouterr().out == ""
    fast(q="z", seed=1)
    assert capsys.readouterr().out == expected
    fast(q="z", seed=1)
    assert capsys.readouterr().out == expected


def test_effects_are_each_once_per_run():
    fast = lmc.compile(TABLE["effects"].program, backend=Mock(), opt=1)
    EFFECTS.clear()
    fast(q="a", seed=3)
    once = list(EFFECTS)
    for _ in range(3):
        EFFECTS.clear()
        fast(q="a", seed=3)
        assert once == EFFECTS


def test_tracing_does_nothing() -> None:
    done: list[str] = []

    @lmc.function
    def program(s: Any, q: str) -> Any:
        done.append("before")
        s += q + lmc.gen("x", max_tokens=2)
        return done.append(s["x"])

    mock = Mock()
    lmc.compile(program, backend=mock).lower(q="a")
    assert not done
    assert not mock.call_log


# -- what later calls find ---------------------------------------------------------------------------------------------


def test_a_branch_that_is_first_taken_late():
    program = TABLE["late_branch"].program
    fast = lmc.compile(program)
    for x in ("a", "b", "c", "d", "e", "f", "rare", "rare"):
        state, want = fast(q="a", backend=scripted(x=x)(), seed=1), program.run(q="a", backend=scripted(x=x)(), seed=1)
        assert (state.ret_value, state.text()) == (want.ret_value, want.text())
    assert state.ret_value != "common"


def test_what_a_tool_has_changed_is_read_in_the_next_run():
    fast = lmc.compile(TABLE["outside_changes"].program, backend=Mock())
    for mode in "ac":
        set_mode(mode)
        assert fast(q="a").text().startswith("mode a") is (mode == "a")


def test_an_item_of_a_batch_that_fails():
    fast = lmc.compile(TABLE["raises_between"].program, backend=Mock(answers={"x": lambda p, a: "1" if "b" in p else "no", "y": "k"}))
    states = fast.batch([{"q": "a"}, {"q": "b"}, {"q": "c"}], errors="return")
    assert [type(s.error()).__name__ for s in states] == ["ValueError", "NoneType", "ValueError"]
    assert states[1].ret_value == "k"
    with pytest.raises(ValueError, match="invalid literal"):
        fast.batch([{"q": "a"}, {"q": "b"}])


# -- what is requested -------------------------------------------------------------------------------------------------


def test_unread_forks_are_not_generated():
    for opt, calls in ((1, 1), (0, 3)):
        mock = Mock()
        lmc.compile(TABLE["unread_forks"].program, backend=mock, opt=opt)(q="a")
        assert len(mock.call_log) == calls


def test_siblings_differ_and_equal_asks_merge_at_0_only() -> None:
    @lmc.function
    def program(s: Any, q: str) -> Any:
        forks = s.fork(4)
        forks += q + lmc.gen("x", max_tokens=8)
        return [f["x"] for f in forks]

    fast = lmc.compile(program)
    for temperature, calls in ((0, 1), (0.9, 4)):
        mock = Mock()
        found = fast(q="a", seed=1, temperature=temperature, backend=mock).ret_value
        assert found == program.run(q="a", seed=1, temperature=temperature, backend=Mock()).ret_value
        assert len(set(found)) == len(mock.call_log) == calls


# -- tools that run the program they belong to -------------------------------------------------------------------------


def recurse(q: str, depth: int) -> str:
    return WITHIN(q=q + "+", depth=depth - 1, backend=Mock(), seed=1).ret_value if depth else "leaf"


async def arecurse(q: str, depth: int) -> str:
    await asyncio.sleep(0)
    return (await AWITHIN.acall(q=q + "+", depth=depth - 1, backend=Mock(), seed=1)).ret_value if depth else "leaf"


@lmc.function
def within(s: Any, q: str, depth: int) -> str:
    s += q + lmc.gen("x", max_tokens=2)
    s += recurse(q, depth)
    return s["x"] + s.text()


@lmc.function
async def awithin(s: Any, q: str, depth: int) -> str:
    s += q + lmc.gen("x", max_tokens=2)
    s += await arecurse(q, depth)
    return s["x"] + s.text()


WITHIN, AWITHIN = lmc.compile(within), lmc.compile(awithin)


@pytest.mark.parametrize("program", [WITHIN, AWITHIN], ids=["sync", "async"])
def test_a_tool_runs_the_program_it_belongs_to(program: lmc.Program) -> None:
    items = [{"q": str(i), "depth": i % 3} for i in range(20)]
    want = program.function.run_batch(items, backend=Mock(), seed=1)
    assert [state.ret_value for state in program.batch(items, backend=Mock(), seed=1)] == [state.ret_value for state in want]
    if program is AWITHIN:
        got = asyncio.run(program.abatch(items, backend=Mock(), seed=1))
        assert [state.ret_value for state in got] == [state.ret_value for state in want]
    conform(program.function, [{"q": "a", "depth": 2}])
