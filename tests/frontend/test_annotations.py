"""Annotations whose names are defined later, or only for type checkers: from Python 3.14 on they need no quotes."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import pytest

import lmc
from lmc.userfiles import is_json, parameters

if TYPE_CHECKING:
    from nowhere import Note, Verdict  # pyright: ignore

if sys.version_info < (3, 14):
    pytest.skip("Pythons before 3.14 evaluate annotations at once", allow_module_level=True)


@lmc.function
def judge(s: lmc.State, essay: Essay, note: Note | None = None) -> Verdict:  # noqa: F821
    def kept(x: Verdict) -> Verdict:
        return x

    s += essay.text + lmc.gen("grade")
    s += kept(s["grade"]) + lmc.gen("why")
    return s["why"]


@lmc.function
def lists(s: lmc.State, q: str) -> Any:
    s += q + lmc.gen("entry", dtype=Entry)
    return s["entry"]


@lmc.function
def looks(s: lmc.State, q: str) -> str:
    s += q + lmc.gen("found", tools=[{"name": "look_up", "parameters": {}}])
    s += lmc.call_tool({"name": "look_up", "arguments": {"word": s["found"]}}, [look_up])
    return s.text()


@dataclasses.dataclass
class Essay:
    text: str


@dataclasses.dataclass
class Entry:
    word: str
    note: Note


def look_up(word: str, note: Note = None) -> Verdict:
    return word.upper()


def test_a_program_with_them_is_run_and_compiled() -> None:
    for program in (judge, lmc.compile(judge)):
        assert program(Essay("Tea."), backend=lmc.Mock({"grade": "B", "why": "brief"})).ret_value == "brief"


def test_an_annotation_defined_by_then_is_read() -> None:
    """By the command line, of the program's arguments; the one that is never defined stays as it is."""
    given = parameters(judge)
    assert list(given) == ["essay", "note"] and given["essay"].annotation is Essay and is_json(given["essay"])


def test_a_type_of_answers_with_one_is_refused_as_without_compiling() -> None:
    said = set[str]()
    for program in (lists, lmc.compile(lists)):
        with pytest.raises(lmc.LmcError, match="is not fully defined") as refused:
            program("tea", backend=lmc.Mock())
        said.add(str(refused.value))
    assert len(said) == 1


def test_a_tool_with_them_is_called() -> None:
    assert looks.run("tea", backend=lmc.Mock({"found": "oolong"})).ret_value.endswith("OOLONG")


def test_a_function_that_answers_may_have_them() -> None:
    def answer(prompt: Note, request: Verdict, pictures: list[Note]) -> str:
        return f"{len(pictures)} pictures"

    assert looks.run("tea", backend=lmc.Mock(answer)).ret_value.endswith("0 PICTURES")
