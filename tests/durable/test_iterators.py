"""Durable runs whose tools are handed generators and other iterators that the program made."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator
from functools import cmp_to_key
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.durable import records
from tests.durable.resuming import CALLS, resumes_anywhere
from tests.searching import some


@lmc.host(idempotent=True)
def save(rows: Iterable[Any]) -> int:
    found = list(rows)
    CALLS.append(("save", *found))
    return len(found)


@lmc.host(idempotent=True)
def first_two(rows: Iterator[Any], sep: str = "") -> list[Any]:
    found = [next(rows), next(rows)]
    CALLS.append(("first_two", *found))
    return found


@lmc.host(idempotent=True)
def look_up(q: str) -> str:
    CALLS.append(("look_up", q))
    return q[::-1]


@lmc.function
def hands_iterators(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=4)
    counts = [save(c for c in s["a"]), save(map(str.upper, s["a"])), save(rows=zip(s["a"], "abc")), save(reversed(s["a"])), save(iter(s["a"]))]
    s += str(counts) + lmc.gen("b", max_tokens=2)
    return counts


@lmc.function
def goes_on_in_iterators(s: Any) -> Any:
    """An item taken in one call is not there in the next."""
    s += "q" + lmc.gen("a", max_tokens=4)
    endless, letters, numbered = (n * 2 for n in count(1)), iter("abcdef"), enumerate("uvwxyz")
    found: list[Any] = []
    for rows in (endless, letters, numbered):
        found += [first_two(rows), first_two(rows, sep=s["a"])]
        s += str(found) + lmc.gen("b", max_tokens=2)
    return found, list(islice(endless, 1)), list(letters), list(numbered)


def asked(s: Any, times: int) -> Iterator[str]:
    try:
        for n in range(times):
            s += str(n) + lmc.gen("c", max_tokens=2)
            yield look_up(s["c"] + str(n))
    finally:
        s += "." + look_up("last")


@lmc.function
def asks_in_generators(s: Any) -> Any:
    """Their bodies are the program's: what they ask and call is in the journal by itself, also in the middle of a call."""
    found = [save(asked(s, 2)), first_two(asked(s, 3)), save(look_up(c) for c in "xy")]
    rest = asked(s, 3)
    found += [first_two(rest), list(rest)]
    s += lmc.gen("end", max_tokens=2)
    return found


@lmc.host(idempotent=True)
def check(n: int) -> int:
    CALLS.append(("check", n))
    if n > 1:
        raise LookupError("no more")
    return n


@lmc.function
def fails_in_generators(s: Any) -> Any:
    rows = (check(n) for n in (1, 2, 3))
    try:
        save(rows)
    except LookupError as error:
        s += str(error)
    s += lmc.gen("a", max_tokens=2)
    return list(rows)


def primed(rows: Any) -> Any:
    CALLS.append(("primed", 0))
    next(rows)
    return rows


@lmc.function
def goes_on_with_what_a_tool_gives_back(s: Any) -> Any:
    def answers(state: Any) -> Any:
        found = "none"
        while True:
            state += (yield found) + lmc.gen("a", max_tokens=2)
            found = state["a"]

    turns, letters = primed(answers(s)), primed(iter("abc"))
    return [turns.send(x) for x in letters], inspect.isgenerator(turns), next(letters, "end")


@lmc.function
def compares_keys(s: Any) -> Any:
    """A key that refuses to be compared with what is none, journaled or not."""
    s += "q" + lmc.gen("a", max_tokens=4)
    return sorted(s["a"], key=cmp_to_key(lambda one, other: (one > other) - (one < other)))


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_objects_are_not_compared_by_a_journal(tmp_path: Path) -> None:
    expected = compares_keys.run(backend=lmc.Mock(), seed=1).ret_value
    for n, way in enumerate((compares_keys.run, lmc.compile(compares_keys))):
        assert way(backend=lmc.Mock(), seed=1, journal=tmp_path / str(n)).ret_value == expected


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
@some("program", [hands_iterators, goes_on_in_iterators, asks_in_generators, fails_in_generators], 3, ids=lambda p: p.name)
def test_calls_that_are_handed_iterators_are_made_once(program: Any, tmp_path: Path) -> None:
    resumes_anywhere(program, {}, tmp_path)


def test_iterators_that_tools_give_back_are_the_programs(tmp_path: Path) -> None:
    resumes_anywhere(goes_on_with_what_a_tool_gives_back, {}, tmp_path, doubtful=True)


@lmc.host(idempotent=True)
def ends(rows: Any) -> str:
    CALLS.append(("ends", 0))
    rows.close()
    return "closed"


@lmc.function
def closes(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    return ends(c for c in s["a"])


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_an_iterator_is_shown_by_its_type(tmp_path: Path) -> None:
    hands_iterators.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    shown = [effect.shown for effect in records.read(tmp_path / "j").runs[0].effects.values()]
    assert shown[:4] == ["<generator>", "<map>", "rows=<zip>", "<reversed>"]


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_what_a_tool_did_to_a_generator_is_done_again(tmp_path: Path) -> None:
    for n, way in enumerate((closes.run, lmc.compile(closes))):
        for times in (1, 2):
            CALLS.clear()
            assert way(backend=lmc.Mock(), seed=1, journal=tmp_path / str(n)).ret_value == "closed" and len(CALLS) == 1, times


@lmc.host(idempotent=True)
def rows_of(q: str) -> Iterator[str]:
    CALLS.append(("rows_of", q))
    return (q[i:] + "." for i in range(5))


@lmc.function
def hands_iterators_of_tools(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=4)
    rows = rows_of(s["a"] + "abcde")
    first = first_two(rows)
    s += "".join(first) + lmc.gen("b", max_tokens=4)
    return first, list(rows), s["b"]


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_iterators_that_tools_made_stand_where_they_stood(tmp_path: Path) -> None:
    expected = hands_iterators_of_tools.run(backend=lmc.Mock(), seed=1).ret_value
    ways = [hands_iterators_of_tools.run, lmc.compile(hands_iterators_of_tools)]
    for n, way in enumerate(ways):
        path = tmp_path / str(n)
        assert way(backend=lmc.Mock(), seed=1, journal=path).ret_value == expected
        for again in ways:
            CALLS.clear()
            assert again(backend=lmc.Mock(), journal=path).ret_value == expected
            assert [name for name, *_ in CALLS] == ["rows_of"]


@lmc.function
async def takes_items_by_hand(s: Any) -> Any:
    async def asked(times: int) -> Any:
        for n in range(times):
            s.__iadd__(f"{n}" + lmc.gen("a", max_tokens=2))
            yield look_up(s["a"])
        s.__iadd__("no more")

    several = asked(1)
    found = [await anext(several, "none"), await anext(several, "none"), await anext(asked(0), "none")]
    return found, await asyncio.wait_for(anext(asked(0), "late"), 60)


def test_items_of_the_programs_own_generators_are_made_again(tmp_path: Path) -> None:
    resumes_anywhere(takes_items_by_hand, {}, tmp_path)
