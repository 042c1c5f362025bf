"""Items of commands: JSONL and CSV, from files and standard input, with what the program does not take kept aside."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import lmc
from lmc.items import read_items
from lmc.userfiles import UsageError, parse_arguments


@lmc.function
def program(s: Any, text: str, times: int = 1, tags: list[str] | None = None) -> None:
    s += text


@lmc.function
def takes_any(s: Any, text: str, **more: Any) -> None:
    s += text


def file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'text,times,source\nhello,3,forum\n\n"two, with\nlines",,\n'),
        ("a.TSV", 'text\ttimes\tsource\nhello\t3\tforum\n\n"two, with\nlines"\t\t\n'),
        ("bom.csv", '\ufefftext,times,source\r\nhello,3,forum\r\n\r\n"two, with\nlines",,\r\n'),
    ],
)
def test_cells_are_text_or_json_as_the_parameter_is_declared(tmp_path, name, text):
    items = read_items(program, file(tmp_path, name, text))
    assert items.arguments == ({"text": "hello", "times": 3}, {"text": "two, with\nlines"})
    assert items.extra == ({"source": "forum"}, {"source": ""})
    assert [place.rpartition(":")[2] for place in items.places] == ["2", "4"] and items.extra_names == ["source"]


@pytest.mark.parametrize("given", [str | bytes, bytes | Path | str, str])
def test_what_may_be_bytes_is_the_text_of_a_path(given):
    @lmc.function
    def look(s: Any, picture: Any) -> None:
        s += lmc.image(picture)

    look.func.__annotations__["picture"] = given
    assert parse_arguments(look, ["picture=a.png"]) == {"picture": "a.png"}
    look.func.__annotations__["picture"] = str | list[str]
    assert parse_arguments(look, ['picture=["a.png"]']) == {"picture": ["a.png"]}


class Mood(Enum):
    GOOD = "good"


class Level(Enum):
    LOW = 1


@dataclass
class Invoice:
    n: int


def test_arguments_are_the_objects_that_a_program_declares(tmp_path):
    @lmc.function
    def bill(s: Any, invoice: Invoice, due: date | None = None, mood: Mood = Mood.GOOD, level: Level | None = None) -> None: ...

    expected = {"invoice": Invoice(3), "due": date(2026, 1, 31), "mood": Mood.GOOD, "level": Level.LOW}
    assert parse_arguments(bill, ['invoice={"n": 3}', "due=2026-01-31", "mood=good", "level=1"]) == expected
    row = '{"invoice": {"n": 3}, "due": "2026-01-31", "mood": "good", "level": 1}\n'
    items = read_items(bill, file(tmp_path, "a.jsonl", row))
    assert items.arguments == (expected,) and items.given == (json.loads(row),)
    assert read_items(bill, file(tmp_path, "a.csv", 'invoice,due,mood,level\n"{""n"": 3}",2026-01-31,good,1\n')).arguments == (expected,)
    with pytest.raises(UsageError, match=r"a.jsonl:2: invoice: n: Input should be a valid integer"):
        read_items(bill, file(tmp_path, "a.jsonl", row + '{"invoice": {"n": "x"}}\n'))
    with pytest.raises(UsageError, match=r"--arg due=today: Input should be a valid date"):
        parse_arguments(bill, ["due=today"])


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (int, "3", "[1]"), (int, "3", "true"), (float | None, "null", '"3"'), (list[int], "[1, 2]", '["a"]'), (dict[str, int], '{"a": 1}', "[1]"),
        (bool, "true", "1"), (Literal["a", "b"], "a", "c"), (tuple[int, int], "[1, 2]", "[1]"),
    ],
)  # fmt: skip
def test_arguments_are_of_the_declared_types_as_those_of_a_server_are(tmp_path, annotation, right, wrong):
    @lmc.function
    def choose(s: Any, x: Any) -> None: ...

    choose.func.__annotations__["x"] = annotation
    value = right if annotation == Literal["a", "b"] else json.loads(right)
    assert parse_arguments(choose, [f"x={right}"]) == {"x": value}
    with pytest.raises(UsageError, match=r"^--arg x=.*: (.*: )?(Input|Field) "):
        parse_arguments(choose, [f"x={wrong}"])
    with pytest.raises(UsageError, match=r"a.jsonl:2: x: (.*: )?(Input|Field) "):
        read_items(choose, file(tmp_path, "a.jsonl", "".join(f'{{"x": {text if text[0] not in "ac" else json.dumps(text)}}}\n' for text in (right, wrong))))


@pytest.mark.parametrize("annotation", [str | None, Literal["a", ""], Literal["a", "b"] | None, Path | str | None, "str | None"])
def test_texts_and_none_are_texts(tmp_path, annotation):
    @lmc.function
    def choose(s: Any, x: Any = None) -> None: ...

    choose.func.__annotations__["x"] = annotation
    assert parse_arguments(choose, ["x=a"]) == {"x": "a"}
    items = read_items(choose, file(tmp_path, "a.csv", 'x,y\na,1\n"",2\n'))
    assert items.arguments == ({"x": "a"}, {}) if annotation != Literal["a", ""] else ({"x": "a"}, {"x": ""})


def test_an_empty_cell_of_a_parameter_that_may_be_none_is_none(tmp_path):
    @lmc.function
    def choose(s: Any, x: str | None, n: int | None, y: str | None = "y") -> None: ...

    assert read_items(choose, file(tmp_path, "a.csv", "x,n,y\n,,\n")).arguments == ({"x": None, "n": None},)


@pytest.mark.parametrize(
    ("annotation", "example"),
    [
        (int | None, "3"),
        (Literal[2, 3], "2"), (Level, "1"), (Invoice, '{"a": 1}'), (dict[str, int], '{"a": 1}'), (Any, '"text"'), (tuple[int, ...], "[1, 2]"),
        (list[str], '["a", "b"]'),
    ],
)
def test_the_example_of_a_value_is_one(annotation, example):
    @lmc.function
    def choose(s: Any, x: Any) -> None: ...

    choose.func.__annotations__["x"] = annotation
    with pytest.raises(UsageError, match=re.escape(f"for example 'x={example}'")):
        parse_arguments(choose, ["x=no JSON"])


def test_a_program_of_any_arguments_takes_every_column(tmp_path):
    items = read_items(takes_any, file(tmp_path, "a.csv", "text,source\nhello,forum\n"))
    assert items.arguments == ({"text": "hello", "source": "forum"},) and items.extra == ({},)


@pytest.mark.parametrize("text", ['{"text": "a", "id": 7}\n{"text": "b", "id": 8}\n', "text,id\na,7\nb,8\n"])
def test_standard_input_is_jsonl_or_csv(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    items = read_items(program, Path("-"))
    assert [a["text"] for a in items.arguments] == ["a", "b"] and [str(e["id"]) for e in items.extra] == ["7", "8"]
    assert items.places[0].startswith("<stdin>:")


@pytest.mark.parametrize("text", ['{"text": "a"}\n{"text": "b"}\n', "text\na\nb\n"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX")
def test_a_named_pipe_is_read_as_standard_input_is_and_said_to_be_waited_for(tmp_path, capsys, text):
    pipe = tmp_path / "rows"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(pipe.write_text, text)
        items = read_items(program, pipe)
        written.result()
    assert [a["text"] for a in items.arguments] == ["a", "b"]
    assert capsys.readouterr().err == f"reading {pipe} until its end\n"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "text,times\nhello,many\n", r"a.csv:2: times=many: program declares 'times: int = 1', so the value is JSON"),
        ("a.csv", "text,times\nhello,3,4\n", r"a.csv:2: 3 cells, and the header has 2; quote a cell that has a comma in it"),
        ("a.tsv", "text\ttimes\nhello\n", r"a.tsv:2: 1 cell, and the header has 2; .* tab"),
        ("a.csv", "text,text\nhello,3\n", r"a.csv:1: the header has the column 'text' twice"),
        ("a.csv", "times\n3\n", r"a.csv:2: program needs the argument 'text'; .*; the item has 'times'"),
        ("a.csv", "text;times\na;3\n", r"a.csv:1: columns are separated by a comma here, and the header has a semicolon instead"),
        ("a.csv", "text\ttimes\n", r"a.csv:1: .* the header has a tab instead; a .tsv file has tabs"),
        ("a.tsv", "text,times\n", r"a.tsv:1: columns are separated by a tab here, and the header has a comma instead"),
        ("a.csv", 'text\n"open\n', r"a.csv:2: not CSV: "),
        ("a.csv", "text\n", r"a.csv has no items: "),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', r"a.jsonl:2: not JSON: "),
        ("a.jsonl", '{"text": ' + "[" * 100_000 + "\n", r"a.jsonl:1: this JSON cannot be read: nested too deeply"),
        ("a.jsonl", '{"times": ' + "1" * 5000 + "}\n", r"a.jsonl:1: this JSON cannot be read: .*4300 digits"),
        ("a.csv", "text,times\nhello," + "[" * 100_000 + "\n", r"a.csv:2: times=\[{1,199}: .*the value is JSON.*nested too deeply"),
        ("a.jsonl", "[1]\n", r"a.jsonl:1: a JSON object .* is expected, not list; write each object of a list on a line of its own .*lines=True"),
        ("a.jsonl", "[" + "1, " * 9000 + "1]\n", r"\n    \[.{159}…\n"),  # not all of a long line
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, text, says):
    with pytest.raises(UsageError, match=says):
        read_items(program, file(tmp_path, name, text))


def test_no_text_and_no_file_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("lmc.items._MOST", 1000)
    (tmp_path / "a.csv").write_bytes(b"text\n\xff\n")
    (tmp_path / "a.parquet").write_bytes(b"PAR1\xff")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    for path, says in (
        (tmp_path / "a.csv", "is not UTF-8 text .*, in UTF-8$"),
        (tmp_path / "a.parquet", "is not UTF-8 text .*df.to_json"),
        (tmp_path / "b.csv", "no such input file"),
        (tmp_path, "is a directory"),
        (Path("/dev/zero"), "zero has more than 0 GiB; split it"),
        (tmp_path / "loop.csv", "loop.csv cannot be read: Too many levels"),
    ):
        with pytest.raises(UsageError, match=says):
            read_items(program, path)


def test_a_cell_may_be_a_book(tmp_path):
    book = "word " * 50_000
    assert read_items(program, file(tmp_path, "a.csv", f'text\n"{book}"\n')).arguments == ({"text": book},)
