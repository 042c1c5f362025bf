"""Effects that are made more than once: retries, time-outs, and checks that ask the world whether one in doubt happened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.durable import records
from lmc.errors import ArgumentError, HostTimeout, InDoubtEffect, ParameterError
from tests.durable.resuming import lay, prefixes

WORLD: list[str] = []
FAILS: list[Exception] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    WORLD.clear()
    FAILS.clear()


def happened(x: str) -> Any:
    if x == "nobody knows":
        raise OSError("the shop does not answer")
    return lmc.Done(f"paid {x}") if x in WORLD else None


def pay(x: str) -> str:
    if FAILS and not isinstance(error := FAILS.pop(0), AssertionError):
        raise error
    WORLD.append(x)
    return f"paid {x}"


checked = lmc.host(pay, check=happened)


async def _pay_later(x: str) -> str:
    await asyncio.sleep(0)
    return pay(x)


async def _happened_later(x: str) -> Any:
    await asyncio.sleep(0)
    return happened(x)


checked_later = lmc.host(_pay_later, check=_happened_later)
retried = lmc.host(pay, retry=lmc.Retry(2, wait=0, on=ConnectionError))
retried_later = lmc.host(_pay_later, retry=lmc.Retry(2, wait=0, on=ConnectionError))
both = lmc.host(pay, retry=lmc.Retry(2, wait=0), check=happened)


@lmc.function
def buys(s: Any, x: str) -> Any:
    s += x + lmc.gen("a", max_tokens=2)
    return checked(x), s["a"]


@lmc.function
async def buys_later(s: Any, x: str) -> Any:
    s += x + lmc.gen("a", max_tokens=2)
    return await checked_later(x), s["a"]


class Shop:
    @lmc.host(check=lambda self, x: happened(x))
    def pay(self, x: str) -> str:
        return pay(x)


@lmc.function
def buys_there(s: Any, x: str) -> Any:
    s += x + lmc.gen("a", max_tokens=2)
    return Shop().pay(x), s["a"]


def at_intent(path: Path) -> bytes:
    """A journal as a process leaves it that ends in its call."""
    return next(data for data in prefixes(path) if _last(data, path) == "i")


def _last(data: bytes, path: Path) -> str:
    found = records.parse(data, str(path))
    assert found is not None
    return found.records[0][-1][0]


@pytest.mark.parametrize("program", [buys, buys_later, buys_there], ids=lambda p: p.name)
@pytest.mark.parametrize("done", [True, False])
def test_a_check_says_whether_it_happened(program: Any, done: bool, tmp_path: Path) -> None:
    expected = program.run("tea", backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value
    lay(tmp_path / "cut", at_intent(tmp_path / "j"))
    WORLD[:] = ["tea"] if done else []
    assert lmc.compile(program)("tea", backend=lmc.Mock(), journal=tmp_path / "cut").ret_value == expected
    assert WORLD == ["tea"]
    WORLD.clear()  # now its journal knows, and nobody asks the world
    assert program.run("tea", backend=lmc.Mock(), journal=tmp_path / "cut").ret_value == expected and not WORLD


@pytest.mark.parametrize("program", [buys, buys_later], ids=lambda p: p.name)
def test_a_check_that_cannot_tell_leaves_it_in_doubt(program: Any, tmp_path: Path) -> None:
    program.run("nobody knows", backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    lay(tmp_path / "cut", at_intent(tmp_path / "j"))
    WORLD.clear()
    for _ in range(2):
        with pytest.raises(InDoubtEffect, match="its check could not tell whether it was done: OSError: the shop does not answer") as found:
            program.run("nobody knows", backend=lmc.Mock(), journal=tmp_path / "cut")
        assert isinstance(found.value.__cause__, OSError) and found.value.loc is not None
    assert not WORLD


def test_a_check_that_says_something_else_is_the_programs_mistake(tmp_path: Path) -> None:
    wrong = lmc.host(pay, check=lambda x: True, retry=1)
    FAILS.append(ConnectionError())
    with pytest.raises(ArgumentError, match=r"the check of pay\(\) returned True: lmc.Done\(result\) if the call happened"):
        wrong("x")


@lmc.function
def tries(s: Any, x: str) -> Any:
    s += x + lmc.gen("a", max_tokens=2)
    return retried(x), s["a"]


@lmc.function
async def tries_later(s: Any, x: str) -> Any:
    s += x + lmc.gen("a", max_tokens=2)
    return await retried_later(x), s["a"]


TRY: list[tuple[Any, Callable[..., Any]]] = [(p, way) for p in (tries, tries_later) for way in (p.run, lmc.compile(p))]


@pytest.mark.parametrize("program, way", TRY)
def test_failed_attempts_are_known_wherever_the_run_is_cut_off(program: Any, way: Any, tmp_path: Path) -> None:
    FAILS[:] = [ConnectionError("one"), ConnectionError("two")]
    expected = way("tea", backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value
    assert WORLD == ["tea"]
    kinds = set[str]()
    for data in prefixes(tmp_path / "j"):
        lay(tmp_path / "cut", data)
        kinds.add(kind := _last(data, tmp_path / "j"))
        known = records.read(tmp_path / "cut").runs[0].effects.get(0)
        left = 2 - (known.failed if known is not None else 0)
        WORLD.clear()
        if kind in ("i", "g"):
            with pytest.raises(InDoubtEffect):
                way("tea", backend=lmc.Mock(), journal=tmp_path / "cut")
        elif kind == "t" and left == 0:
            assert way("tea", backend=lmc.Mock(), journal=tmp_path / "cut").ret_value == expected and WORLD == ["tea"]
        elif kind in ("t", "b", "a"):
            FAILS[:] = [ConnectionError("again")] * left
            assert way("tea", backend=lmc.Mock(), journal=tmp_path / "cut").ret_value == expected and WORLD == ["tea"] and not FAILS
            FAILS[:] = [ConnectionError("too often")] * (left + 1)
            lay(tmp_path / "cut", data)
            with pytest.raises(ConnectionError, match="too often"):
                way("tea", backend=lmc.Mock(), journal=tmp_path / "cut")
        else:
            assert way("tea", backend=lmc.Mock(), journal=tmp_path / "cut").ret_value == expected and not WORLD
    assert {"i", "t", "g"} < kinds and kinds & {"r", "R"}


def test_a_failed_attempt_that_happened_after_all_is_not_made_again() -> None:
    def behind(x: str) -> str:
        WORLD.append(x)
        raise ConnectionError("the answer got lost")

    assert lmc.host(behind, retry=1, check=happened)("tea") == "paid tea" and WORLD == ["tea"]


def test_attempts_are_counted_without_a_journal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("lmc.frontend.attempts.time.sleep", pauses.append)
    patient = lmc.host(pay, idempotent=True, retry=lmc.Retry(4, wait=1, factor=3, most=5))
    FAILS[:] = [ConnectionError(), TimeoutError(), ConnectionError(), ConnectionError()]
    assert patient("x") == "paid x" and pauses == [1, 3, 5, 5]
    FAILS[:] = [ValueError("no retry")]
    with pytest.raises(ValueError, match="no retry"):
        patient("x")
    assert lmc.Retry(2000, wait=1).pause(1999) == 60


def test_late_attempts_are_made_again() -> None:
    gate, count = threading.Event(), [0]

    def slow(x: str) -> str:
        count[0] += 1
        if count[0] == 1:
            gate.wait()  # nobody opens it until the second attempt is over
        return x

    assert lmc.host(slow, idempotent=True, timeout=0.05, retry=lmc.Retry(1000, wait=0))("x") == "x"
    gate.set()

    async def late(x: str) -> str:
        await asyncio.sleep(60)
        return x

    with pytest.raises(HostTimeout):
        asyncio.run(lmc.host(late, idempotent=True, timeout=0.01, retry=lmc.Retry(1, wait=0))("x"))


def test_a_retried_function_within_another_has_attempts_of_its_own(tmp_path: Path) -> None:
    FAILS[:] = [ConnectionError("inner"), ConnectionError("inner")]
    assert nests.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value == "paid x"
    (effect,) = records.read(tmp_path / "j").runs[0].effects.values()
    assert effect.failed == 0


outer = lmc.host(lambda: retried("x"), retry=lmc.Retry(1, wait=0, on=OSError))


@lmc.function
def nests(s: Any) -> Any:
    return outer()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ParameterError, match="may have happened all the same"):
        lmc.host(pay, retry=3)
    with pytest.raises(ArgumentError, match="or a number of further attempts"):
        lmc.host(pay, retry="often", idempotent=True)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="must be a function of the same arguments"):
        lmc.host(pay, check=3)  # type: ignore[arg-type]
    for bad in ({"times": 0}, {"wait": -1}, {"factor": 0.5}, {"on": 3}, {"on": (KeyboardInterrupt,)}):
        with pytest.raises(ParameterError):
            lmc.Retry(**bad)  # type: ignore[arg-type]
    assert "retried checked" in repr(both).replace(" host", "") or "checked" in repr(both)
