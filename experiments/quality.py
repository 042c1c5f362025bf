"""Experiments on real questions: whether answers are right, beside how fast they come. Data sets are read from a folder (--data), none is fetched.

    DATA/gsm8k.jsonl      {"question": …, "answer": "… #### 42"}                                (openai/grade-school-math)
    DATA/mmlu.csv         question, four choices, the letter of the right one; no header         (hendrycks/test)
    DATA/hellaswag.jsonl  {"ctx": …, "endings": [four], "label": 2}                              (rowanz/hellaswag)
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmc
from experiments.core import Opened, Plot, Point, Row, Setup, Unmeasured, experiment, measured
from lmc.measuring import MeasuredMode, compiled, interpreted, measure

SHOTS = 5


@dataclass(frozen=True)
class Question:
    """A question, with worked examples before it, and what the right answer is."""

    arguments: dict[str, Any]
    right: str


@lmc.function
def grade_school(s: Any, shots: str, question: str) -> str:
    s += shots + f"Question: {question}\nAnswer:"
    s += lmc.gen("working", max_tokens=192, stop="\n\n")
    return last_number(s["working"])


def last_number(text: str) -> str:
    """The last number of a text, without commas and a fraction of zeros; "" if there is none."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return re.sub(r",|\.0+$", "", found[-1]) if found else ""


@lmc.function
def multiple_choice(s: Any, shots: str, question: str, choices: list[str]) -> str:
    s += shots + question + lmc.select("choice", choices=choices)
    return s["choice"]


def gsm8k(path: Path) -> list[Question]:
    rows = _objects(path, {"question": _is_text, "answer": _is_text})
    right = lambda row: row["answer"].rsplit("####", 1)[-1].strip().replace(",", "")
    shots = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows[:SHOTS])
    return [Question({"shots": shots, "question": row["question"]}, right(row)) for row in rows[SHOTS:]]


def mmlu(path: Path) -> list[Question]:
    try:
        rows = [row for row in csv.reader(io.StringIO(_text(path), newline="")) if row]
    except csv.Error as error:
        raise Unmeasured(f"{path} is not CSV ({error})") from None
    for number, row in enumerate(rows, 1):
        if len(row) != 6 or row[5] not in ("A", "B", "C", "D"):
            raise Unmeasured(f"{path}, row {number}, is not one of MMLU: a question, four choices, and A, B, C or D are expected")
    asked = lambda row: row[0] + "".join(f"\n{letter}. {text}" for letter, text in zip("ABCD", row[1:5])) + "\nAnswer:"
    shots = "".join(f"{asked(row)} {row[5]}\n\n" for row in rows[:SHOTS])
    return [Question({"shots": shots, "question": asked(row), "choices": [" A", " B", " C", " D"]}, " " + row[5]) for row in rows[SHOTS:]]


def hellaswag(path: Path) -> list[Question]:
    rows = _objects(
        path,
        {
            "ctx": _is_text,
            "endings": lambda x: isinstance(x, list) and len(x) == 4 and all(map(_is_text, x)),
            "label": lambda x: str(x) in ("0", "1", "2", "3"),
        },
    )
    shots = "".join(f"{row['ctx']} {row['endings'][int(row['label'])]}\n\n" for row in rows[:SHOTS])
    return [Question({"shots": shots, "question": row["ctx"] + " ", "choices": row["endings"]}, row["endings"][int(row["label"])]) for row in rows[SHOTS:]]


def _is_text(x: object) -> bool:
    return isinstance(x, str)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise Unmeasured(f"{path} is not UTF-8 ({error.reason} at byte {error.start})") from None


def _objects(path: Path, fields: Mapping[str, Callable[[Any], bool]]) -> list[dict[str, Any]]:
    """Return the objects of a file, one a line, whose fields are as they should be."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise Unmeasured(f"{path}:{number} is not JSON ({error.msg})") from None
        if not isinstance(row, dict) or any(name not in row for name in fields):
            raise Unmeasured(f"{path}:{number} lacks one of {', '.join(fields)}")
        if wrong := [name for name, right in fields.items() if not right(row[name])]:
            raise Unmeasured(f"{path}:{number}: {wrong[0]} is {json.dumps(row[wrong[0]])[:60]}; the formats are in experiments/quality.py")
        found.append(row)
    return found


DATA: dict[str, tuple[str, Callable[[Path], list[Question]], Any]] = {
    "GSM8K": ("gsm8k.jsonl", gsm8k, grade_school), "MMLU": ("mmlu.csv", mmlu, multiple_choice), "HellaSwag": ("hellaswag.jsonl", hellaswag, multiple_choice),
}  # fmt: skip


@experiment(
    "quality", "Are the answers right, and as right when compiled?", Plot("Share of right answers", "data", "accuracy", "system · way"),
    reads="Five worked examples before each question. Accuracy beside the speed of the same run.", paper="Section 6.1: MMLU, HellaSwag and GSM-8K", beside=True,
)  # fmt: skip
def quality(setup: Setup) -> Generator[Point]:
    from experiments.programs import systems

    for system, opened in systems(setup):
        for name, (file, read, program) in DATA.items():
            yield Point(f"{system} {name}", lambda system=system, opened=opened, name=name, file=file, read=read, program=program: list(
                _answered(setup, system, opened, name, file, read, program)))


def _answered(setup: Setup, system: str, opened: Opened, name: str, file: str, read: Callable[[Path], list[Question]], program: Any) -> Iterator[Row]:
    if setup.data is None:
        raise Unmeasured(f"give a folder with {file} by --data (formats: experiments/quality.py)")
    path = Path(setup.data) / file
    if not path.is_file():
        raise Unmeasured(f"there is no {path}")
    questions = read(path)[: setup.count(1000)]
    if not questions:
        raise Unmeasured(f"{path} has no more than the {SHOTS} questions that are shown as examples")
    items: Sequence[dict[str, Any]] = [question.arguments for question in questions]
    reference: list[MeasuredMode] = []
    with opened.using() as backend:
        for way, run in (("interpreted", interpreted(program)), ("compiled", compiled(program))):
            found = measure(run, items, backend)
            reference = reference or [found]
            right = sum(value == repr(question.right) for (_, value), question in zip(found.texts, questions))
            yield {"data": name, "system": system, "way": way, "accuracy": right / len(items), **measured([found], reference),
                "items/s": len(items) / found.seconds, "computed": found.counters.prefilled_tokens}  # fmt: skip
