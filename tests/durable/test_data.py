"""Durable runs that make and validate data: that is computed again, waits for no disk and is never in doubt."""

from __future__ import annotations

import ast
import base64
import binascii
import calendar
import codecs
import dataclasses
import datetime
import difflib
import email.utils
import enum
import fnmatch
import functools
import hashlib
import html
import ipaddress
import os
import pprint
import shlex
import statistics
import struct
import textwrap
import threading
import time
import tomllib
import unicodedata
import urllib.parse
import uuid
import zlib
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from xml.sax import saxutils

import jsonschema
import pytest

import lmc
from lmc.durable import records
from tests.durable.resuming import CALLS, recorded, resumes_anywhere

pydantic = pytest.importorskip("pydantic")
np = pytest.importorskip("numpy")


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


def check_ages(ages: Any) -> int:
    CALLS.append(("check_ages", str(ages)))
    jsonschema.validate(ages, {"items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}})
    return len(ages)


@lmc.function
def repairs_ages(s: Any) -> Any:
    ages: list[Any] = ["seven", "eight"]
    while True:
        s += "q" + lmc.gen("a", max_tokens=2)
        try:
            return check_ages(ages), s["a"]
        except jsonschema.ValidationError as error:
            s += f"\nAgain: {error}, at {list(error.path)}: {[each.message for each in error.context]}"
            ages = [*ages[1:], 8]


class Color(enum.Enum):
    RED = "red"


class Mood(enum.Enum):
    SAD = "sad"

    @classmethod
    def _missing_(cls, value: object) -> Mood:
        return cls.SAD if Level("odd") else Mood(value)


class Level(enum.Enum):
    """Names what names it."""

    LOW = 1

    @staticmethod
    def _missing_(value: object) -> Level:
        return Level(1) if Mood("sad") else Level(value)


@dataclasses.dataclass
class Countdown:
    left: int

    def __post_init__(self) -> None:
        self.then = Countdown(self.left - 1) if self.left else None


class Rights(enum.Flag):
    READ, WRITE = 1, 2


class Point(NamedTuple):
    x: int


class Row(TypedDict):
    x: str


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
    found = memo, Color("red"), Mood("odd"), Level(0), Countdown(2), Rights(3), Point(1), Row(x=s["a"]), Counted(s["a"])
    s += str(memo) + lmc.gen("b", max_tokens=2)
    return found


def effects(path: Path) -> list[str]:
    return [effect.name for effect in records.read(path).runs[0].effects.values()]


@pytest.mark.search
def test_an_extractor_that_tries_again(tmp_path: Path) -> None:
    resumes_anywhere(extracts, {}, tmp_path, lambda: lmc.Mock(script))
    assert [effects(tmp_path / str(n)) for n in range(2)] == [["save"] * 4] * 2


@pytest.mark.search
@pytest.mark.parametrize("program", (handles_what_a_tool_refuses, repairs_ages))
def test_what_a_tool_refuses_is_known(program: Any, tmp_path: Path) -> None:
    resumes_anywhere(program, {}, tmp_path, doubtful=True)


@pytest.mark.search
def test_making_data_is_no_effect_unless_it_runs_code(tmp_path: Path) -> None:
    resumes_anywhere(makes_data, {}, tmp_path, doubtful=True)
    assert [effects(tmp_path / str(n)) for n in range(2)] == [["Counted"]] * 2


@lmc.function
def computes(s: Any) -> Any:
    """With functions of Python that only compute."""
    s += "q" + lmc.gen("a", max_tokens=3)
    a = s["a"]
    found: list[Any] = [
        html.escape(a), html.unescape("&lt;" + a), urllib.parse.quote(a), urllib.parse.urlencode({"q": a}), urllib.parse.urlsplit("http://x/" + a).path,
        urllib.parse.urlparse("http://x/" + a).netloc, urllib.parse.parse_qs("q=" + a), urllib.parse.urljoin("http://x/", a),
        textwrap.wrap(a * 3, 4), textwrap.dedent(a), ast.literal_eval(repr([[a]])), statistics.mean([len(a), 2]), statistics.quantiles([1, len(a), 3]),
        os.path.join("x", a), os.path.splitext(a + ".py"), os.path.basename("x/" + a), os.path.normpath("x/../" + a), os.path.commonpath([a, a]),
        difflib.get_close_matches(a, [a + "x", "y"]), base64.b64encode(a.encode()),
        fnmatch.fnmatch(a, "*"), shlex.quote(a), unicodedata.normalize("NFC", a), zlib.crc32(a.encode()), binascii.hexlify(a.encode()),
        datetime.datetime.fromisoformat("2026-11-22"), datetime.date.fromisoformat("2026-11-22"), calendar.monthrange(2026, 2), codecs.encode(a, "rot13"),
        email.utils.parseaddr(f"{a} <a@b.c>"), str(ipaddress.ip_address("10.0.0.1")), pprint.pformat([a]), shlex.split(f"x '{a}'"), struct.pack("<i", len(a)),
        time.strptime("2026", "%Y").tm_year, tomllib.loads("a = 1"), uuid.uuid5(uuid.NAMESPACE_DNS, a), saxutils.escape(a), zlib.compress(a.encode()),
        hashlib.new("md5", a.encode()).hexdigest(), textwrap.TextWrapper(width=4).wrap(a * 3), struct.Struct("<i").unpack(b"abcd"),
        calendar.TextCalendar().formatmonth(2026, 2), threading.current_thread().name[:0],
    ]  # fmt: skip
    s += str(found) + lmc.gen("b", max_tokens=2)
    save(Person(name="x"), "saved")
    return found


@pytest.mark.search
def test_functions_that_only_compute_are_no_effects(tmp_path: Path) -> None:
    resumes_anywhere(computes, {}, tmp_path)
    for n in range(2):
        assert [e.name for e in records.read(tmp_path / str(n)).runs[0].effects.values()] == ["save"]


@lmc.function
def computes_with_others(s: Any) -> Any:
    """Functions of the program that they call, and those only named like them, are effects."""
    s += "q" + lmc.gen("a", max_tokens=3)
    return urllib.parse.urlencode({"q": s["a"]}, quote_via=quoted), escape(s["a"]), os.path.exists("/" + s["a"])


def quoted(x: str, *_: Any) -> str:
    CALLS.append(("quoted", x))
    return x


@lmc.host
def escape(x: str) -> str:
    CALLS.append(("escape", x))
    return x


def test_functions_that_call_others_are_effects(tmp_path: Path) -> None:
    for n, way in enumerate((computes_with_others.run, lmc.compile(computes_with_others))):
        way(backend=lmc.Mock(), seed=1, journal=tmp_path / str(n))
        assert [e.name for e in records.read(tmp_path / str(n)).runs[0].effects.values()] == ["quoted", "quoted", "escape", "exists"]
        CALLS.clear()
        way(backend=lmc.Mock(), journal=tmp_path / str(n))
        assert not CALLS


def measure(q: str) -> Any:
    CALLS.append(("measure", q))
    return np.array([3.0, 1.0, 2.0]) * len(q)


def scale(x: Any, by: Any) -> None:
    CALLS.append(("scale", str(x), int(by)))
    x *= by


def highest(x: Any) -> Any:
    CALLS.append(("highest", str(x)))
    return x.max()


def itself(x: Any) -> Any:
    CALLS.append(("itself", str(x)))
    return x


@lmc.function
def measures(s: Any, weights: Any) -> Any:
    """Arrays of tools, which the program and other tools change, also through views."""
    found = measure("ab")
    column = found.reshape(3, 1)
    column[0, 0] = highest(found) + np.float64(1)
    found.sort()
    scale(found, 2)
    s += f"{found.tolist()} {column.tolist()} {weights.sum()}" + lmc.gen("a", max_tokens=2)
    scale(column, np.int64(3))
    same = itself(found)
    same[0] = -1
    wide = np.concatenate([found, np.zeros(2)])
    np.add(wide, 1, out=wide)
    s += f"{found.tolist()} {np.mean(wide)}" + lmc.gen("b", max_tokens=2)
    return found, wide, same is found


def fill(x: Any) -> None:
    CALLS.append(("fill",))
    x[...] = 2
    x.flags.writeable = False


def widen(x: Any) -> None:
    x.resize(4, refcheck=False)


class Odd:
    """A tool whose name is no text."""

    __name__ = None

    def __call__(self, x: Any) -> int:
        CALLS.append(("Odd",))
        return len(x)


odd = Odd()


@lmc.function
def keeps_arrays(s: Any) -> Any:
    found = np.array([3, 1, 2])
    np.ndarray.sort(found)
    s += f"{found} {odd(found)}" + lmc.gen("a", max_tokens=2)
    fill(found)
    return found.tolist(), found.flags.writeable


@lmc.function
def changes_arrays(s: Any, change: Any, size: int) -> Any:
    found = np.zeros(size)
    change(found)
    s += "x" + lmc.gen("a", max_tokens=2)
    return found.sum()


def test_what_tools_do_to_arrays_is_done_again(tmp_path: Path) -> None:
    assert recorded(keeps_arrays, tmp_path) == ["ndarray.sort", "Odd", "fill"]


@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")  # of the first run
@pytest.mark.parametrize(("change", "size"), ((widen, 2), (fill, 3 << 20)))
def test_what_cannot_be_done_to_arrays_again_is_refused(change: Any, size: int, tmp_path: Path) -> None:
    """Another size, and what is too large for a journal."""
    run = functools.partial(changes_arrays.run, change, size, backend=lmc.Mock(), journal=tmp_path / "j")
    run()
    with pytest.raises(lmc.JournalError, match="a journal cannot hold that or what the call changed"):
        run()


@pytest.mark.search
def test_arrays_of_numpy_are_data(tmp_path: Path) -> None:
    resumes_anywhere(measures, {"weights": np.arange(3)}, tmp_path, doubtful=True)
    assert effects(tmp_path / "0") == ["measure", "highest", "scale", "scale", "itself"]
