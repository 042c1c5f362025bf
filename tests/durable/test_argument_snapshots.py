"""Durable runs whose tools change their arguments: a run that is resumed has them as the tool left them."""

from __future__ import annotations

import dataclasses
import functools
import threading
import types
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lmc
from lmc.durable import mutations
from lmc.durable.call_records import contents_digest
from lmc.durable.snapshots import CallSnapshot
from tests.durable.resuming import CALLS, resumes_anywhere, seen
from tests.searching import some


@lmc.host(idempotent=True)
def labels(error: Exception, label: list[str]) -> None:
    CALLS.append(("labels", str(error)))
    error.add_note(f"seen: {error}")
    error.labels = [*getattr(error, "labels", []), *label]  # type: ignore[attr-defined]


@lmc.function
def explains(s: Any, one: str) -> Any:
    s += lmc.gen("two", max_tokens=3)
    kept = []
    for text in (one, s["two"]):
        try:
            int(text)
        except ValueError as error:
            labels(error, [text])
            labels(error, ["again"])
            kept.append(error)
    s += f"{kept[0].labels} {kept[1].__notes__}" + lmc.gen("why", max_tokens=4)
    return [error.labels for error in kept], s["why"]


@pytest.mark.search
def test_what_a_tool_puts_on_an_exception_is_there_again(tmp_path: Path) -> None:
    resumes_anywhere(explains, {"one": "x"}, tmp_path)


class Notes:
    def __init__(self, owner: str) -> None:
        self.owner, self.kept = owner, list[str]()


class Reader(Notes):
    """Its methods reach the model, so that the run makes it; others of its methods are calls that a journal records as a whole."""

    lock: Any = None

    def __init__(self, owner: str, lock: Any) -> None:
        super().__init__(owner)
        self.reset()
        self.lock = lock

    def reset(self) -> None:
        self.seen: dict[str, list[str]] = {}

    def note(self, text: str) -> None:
        CALLS.append(("note", text))
        self.kept.append(text)
        self.seen.setdefault("all", []).append(text)

    def read(self, s: Any, text: str) -> str:
        s += f"{text} {self.kept} {self.seen}" + lmc.gen("a", max_tokens=3)
        self.note(s["a"])
        return s["a"]


def file_away(reader: Reader) -> None:
    CALLS.append(("file", *reader.kept))
    reader.kept.insert(0, "filed")


def reads(s: Any, lock: Any) -> Any:
    reader = Reader("me", lock)
    for text in "ab":
        reader.read(s, text)
        file_away(reader)
    return reader.kept, reader.seen, reader.owner


@lmc.function
def reads_plainly(s: Any) -> Any:
    return reads(s, None)


@lmc.function
def reads_with_a_lock(s: Any) -> Any:
    return reads(s, threading.Lock())


@pytest.mark.parametrize("program", [reads_plainly, reads_with_a_lock])
def test_what_calls_do_to_an_object_of_the_run_is_there_again(program: Any, tmp_path: Path) -> None:
    expected = seen(program.run(backend=lmc.Mock(), seed=1))
    for way in (program.run, lmc.compile(program)):
        path = tmp_path / str(way is program.run)
        assert seen(way(backend=lmc.Mock(), seed=1, journal=path)) == expected
        CALLS.clear()
        backend = lmc.Mock()
        assert seen(way(backend=backend, seed=1, journal=path)) == expected
        assert CALLS == [] and not backend.call_log


@pytest.mark.parametrize("held", [lambda n: [str(i) for i in range(n)], lambda n: {str(i): i for i in range(n)}, lambda n: [[*range(n)]]])
def test_texts_and_numbers_in_arguments_are_not_looked_at_one_by_one(held: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [0]
    is_object = mutations.is_object

    def counted(x: Any) -> bool:
        looks[0] += 1
        return is_object(x)

    monkeypatch.setattr(mutations, "is_object", counted)

    def looked(n: int) -> int:
        looks[0] = 0
        value = held(n)
        snapshot = CallSnapshot(len, [value], {})
        snapshot.look()
        snapshot.claim()
        assert snapshot.changed(alone=True) == [] and snapshot.places[id(value)] == [0]
        return looks[0]

    assert looked(10) == looked(1000)


@dataclasses.dataclass(frozen=True)
class Tagged:
    tags: frozenset[int]


def test_a_set_is_the_same_in_whatever_order_its_items_are() -> None:
    """Also one within it, which a text of the items shows in the order that it has in this process."""
    one, other = ({Tagged(frozenset(tags)), Tagged(frozenset())} for tags in ([0, 8], [8, 0]))
    assert sorted(map(repr, one)) != sorted(map(repr, other))
    assert contents_digest(one) == contents_digest(other) != contents_digest({Tagged(frozenset())})


def test_items_of_a_set_show_themselves_to_nobody() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise AssertionError("shown")

    assert contents_digest({Shy()}) == contents_digest({Shy()})


# -- what holds what a tool changes


class Pair(NamedTuple):
    number: int
    found: list[int]


def fills(x: Any) -> None:
    CALLS.append(("fills",))
    for one in [x] if callable(x) else x.values() if hasattr(x, "values") else x:
        held = one[-1] if isinstance(one, tuple) else one
        if isinstance(held, list):
            held.append(7)
        elif callable(held) and held is not len:
            held(7)


@lmc.function
def gives_what_holds_a_list(s: Any, how: str) -> Any:
    found, total = list[int](), 0

    def puts(x: int) -> None:
        nonlocal total
        total += x
        found.append(x)

    holders = {
        "a tuple": (1, found), "a named tuple": Pair(1, found), "a tuple in a dict": {"k": (1, found)}, "values": {"k": found}.values(),
        "an iterator": iter([found]), "reversed": reversed([found]), "enumerate": enumerate([found]), "zip": zip([1], [found], strict=True),
        "a proxy": types.MappingProxyType({"k": found}), "a user's dict": UserDict(k=found), "a list with a function": [len, found],
        "a method": found.append, "a partial function": functools.partial(puts), "a function in a list": [puts], "a method in a tuple": (found.append,),
    }  # fmt: skip
    for _ in range(2):
        s += lmc.gen("a", max_tokens=2)
        fills(holders[how])
    s += f"{found} {total}" + lmc.gen("b", max_tokens=2)
    return found, total


HOLDERS = [
    "a tuple", "a named tuple", "a tuple in a dict", "values", "an iterator", "reversed", "enumerate", "zip", "a proxy", "a user's dict",
    "a list with a function", "a method", "a partial function", "a function in a list", "a method in a tuple",
]  # fmt: skip


@some("how", HOLDERS, 3)
def test_what_a_tool_does_to_a_list_is_there_again_whatever_held_it(how: str, tmp_path: Path) -> None:
    resumes_anywhere(gives_what_holds_a_list, {"how": how}, tmp_path, doubtful=True)


@dataclasses.dataclass
class Note:
    text: str


def files(note: Note) -> str:
    return note.text


TEXTS = ["first"]


@lmc.function
def files_what_is_outside(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    return files(Note(TEXTS[-1]))


def test_a_call_with_other_contents_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_what_is_outside.run(backend=lmc.Mock(), journal=tmp_path / "j")
    monkeypatch.setattr("tests.durable.test_argument_snapshots.TEXTS", ["second"])
    says = r"calls files\(<Note>\) where the run of its journal called files\(<Note>\), with other contents of what it was given"
    with pytest.raises(lmc.JournalError, match=says):
        files_what_is_outside.run(backend=lmc.Mock(), journal=tmp_path / "j")
