"""Durable runs that make and validate data: that is computed again, waits for no disk and is never in doubt."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lmc
from lmc import records
from tests.resuming import CALLS, resumes_anywhere

pydantic = pytest.importorskip("pydantic")


class Person(pydantic.BaseModel):
    name: str
    age: int = 1

    @pydantic.field_validator("age")
    @classmethod
    def right(cls, age: int) -> int:
        if age > 99:
            raise ValueError("too old")
        return age


PEOPLE = pydantic.TypeAdapter(list[Person])


@lmc.host(idempotent=True)
def save(person: Person, note: str) -> int:
    CALLS.append(("save", person.name, note))
    return len(person.name)


ANSWERS = ['{"name": 3}', '{"name": "Ada"', '{"name": "Ada", "age": 100}', '{"name": "Ada", "age": 36}']


def script(prompt: str, ask: Any) -> str | None:
    return ANSWERS[min(prompt.count("Again"), 3)] if ask.name == "person" else None


@lmc.function
def extracts(s: Any) -> Any:
    """An extractor that tells the model what was wrong."""
    person = None
    while person is None:
        s += "\nPerson:" + lmc.gen("person", max_tokens=40)
        try:
            person = Person.model_validate_json(s["person"])
        except pydantic.ValidationError as error:
            s += f"\nAgain: {error.error_count()} {error}"
            save(Person(name="none"), str(error.errors()[0]["loc"]))
    try:
        PEOPLE.validate_python([{"age": 3}])
    except pydantic.ValidationError as error:
        s += error.errors()[0]["type"]
    saved = save(person.model_copy(update={"age": 37}), person.model_dump_json())
    s += lmc.gen("end", max_tokens=2)
    return person, saved, person.model_dump()


def refuses(person: Person) -> None:
    CALLS.append(("refuses", person.name))
    Person(name=person.name, age=100)


@lmc.function
def handles_what_a_tool_refuses(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    try:
        refuses(Person(name=s["a"]))
    except pydantic.ValidationError as error:
        s += str(error) + str(error.errors()[0]["ctx"])
    return s["a"]


class Color(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int


@dataclasses.dataclass
class Memo:
    text: str
    lines: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Counted:
    text: str

    def __post_init__(self) -> None:
        CALLS.append(("Counted", self.text))


@lmc.function
def makes_data(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    memo = Memo(s["a"])
    memo.lines.append("x")
    found = memo, Color("red"), Point(1), Counted(s["a"])
    s += str(memo) + lmc.gen("b", max_tokens=2)
    return found


def effects(path: Path) -> list[str]:
    return [effect.name for effect in records.read(path).runs[0].effects.values()]


def test_an_extractor_that_tries_again(tmp_path: Path) -> None:
    resumes_anywhere(extracts, {}, tmp_path, lambda: lmc.Mock(script))
    assert [effects(tmp_path / str(n)) for n in range(3)] == [["save"] * 4] * 3


def test_what_a_tool_refuses_is_known(tmp_path: Path) -> None:
    resumes_anywhere(handles_what_a_tool_refuses, {}, tmp_path, doubtful=True)


def test_making_data_is_no_effect_unless_it_runs_code(tmp_path: Path) -> None:
    resumes_anywhere(makes_data, {}, tmp_path, doubtful=True)
    assert [effects(tmp_path / str(n)) for n in range(3)] == [["Counted"]] * 3
