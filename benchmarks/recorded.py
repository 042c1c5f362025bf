"""Programs with recorded answers, to measure drafts with: what is said is what somebody wrote, whatever weights a model has.

The texts are this project's own documents and code, and two speeches and essays that are in the public domain (`texts/`). Each shape is one
that programs have: a chat, a ReAct agent, a tree of thought, JSON out of a table, an edited file. Where an answer's words come from follows
from the shape, as it does in programs: a chat's are its own, JSON and edits repeat what is in the prompt, an agent does both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmc

ROOT = Path(__file__).parent.parent
TEXTS = Path(__file__).parent / "texts"


@dataclass(frozen=True)
class Recorded:
    """A program and items; each item has `answers`, a list of (name, text) in the order in which its gens ask."""

    name: str
    program: Any
    items: Sequence[Mapping[str, Any]]

    def said(self, item: Mapping[str, Any]) -> list[tuple[str, str, str]]:
        """The name, prompt and answer of each gen of an item, in the order in which they are asked: it runs once on a mock that says them."""
        left: dict[str, list[str]] = {}
        for name, text in item["answers"]:
            left.setdefault(name, []).append(text)
        found: list[tuple[str, str, str]] = []

        def say(prompt: str, ask: Any) -> str:
            found.append((ask.name, prompt, left[ask.name].pop(0)))
            return found[-1][2]

        state = self.program.run(**item, backend=lmc.Mock(say))
        state.sync()
        if (error := state.error()) is not None:
            raise error
        return found

    def answers(self) -> dict[str, str]:
        """The recorded answer by its prompt, of all items."""
        found: dict[str, str] = {}
        for item in self.items:
            for _, prompt, text in self.said(item):
                assert found.setdefault(prompt, text) == text, "one prompt, two answers"
        return found


def paragraphs(path: Path, least: int, most: int) -> list[str]:
    """Paragraphs of prose, of so many characters."""
    text = path.read_text(encoding="utf-8")
    found = [re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", text, flags=re.S))]
    return [p for p in found if least <= len(p) <= most and not p.startswith(("#", "|", "*", ">", "!", "<", "-", "    "))]


_MOST = 1024  # tokens; the end is recorded, too


def answer(name: str) -> Any:
    return lmc.gen(name, max_tokens=_MOST)


def chat() -> Recorded:
    """Questions about a document, each answered in prose of its own."""

    @lmc.function
    def talk(s, title, questions, answers):
        s += f"A chat about {title}."
        for question in questions:
            s += f"\nUser: {question}\nAssistant:" + answer("reply")

    said = {
        path.stem: paragraphs(path, 200, 900)[:4]
        for path in (TEXTS / "studies.txt", TEXTS / "gettysburg.txt", ROOT / "docs" / "memory.md", ROOT / "docs" / "run-ahead.md")
    }
    items = [
        {
            "title": title,
            "questions": [f"What does part {i + 1} say, in its own words?" for i in range(len(part))],
            "answers": [("reply", " " + p) for p in part],
        }
        for title, part in said.items()
        if part
    ]
    return Recorded("chat", talk, items)


def react() -> Recorded:
    """An agent that looks words up in the glossary and answers with what it read."""

    @lmc.function
    def agent(s, question, observations, answers):
        s += "Answer by looking words up. Write a thought, then an action such as lookup[word]; at the end, the answer.\nQuestion: " + question
        for i, observation in enumerate(observations):
            s += f"\nThought {i + 1}:" + answer("thought") + f"\nAction {i + 1}:" + answer("action") + f"\nObservation {i + 1}: {observation}"
        s += "\nAnswer:" + answer("answer")

    words = _rows("glossary.md")
    items: list[dict[str, Any]] = []
    for i in range(0, 12, 2):
        (a, of_a), (b, of_b) = words[i], words[i + 1]
        thoughts = [f" I need to find out what {a} means, so I look up {a}.", f" Now I know what {a} is. I need to find out what {b} means, so I look up {b}."]
        items.append({
            "question": f"What are {a} and {b}?",
            "observations": [of_a, of_b],
            "answers": [("thought", thoughts[0]), ("action", f" lookup[{a}]"), ("thought", thoughts[1]), ("action", f" lookup[{b}]"),
                ("answer", f" {a}: {of_a} {b}: {of_b}")],
        })  # fmt: skip
    return Recorded("react", agent, items)


def tree() -> Recorded:
    """Three plans, each with two steps, in prose; then the best plan, word by word."""

    @lmc.function
    def plans(s, task, answers):
        s += task
        forks = s.fork(3)
        for i, plan in enumerate(forks):
            plan += f"\nPlan {i + 1}:" + answer(f"plan{i}")
        for i, plan in enumerate(forks):
            for j, step in enumerate(plan.fork(2)):
                step += f"\nStep {j + 1}:" + answer(f"step{i}{j}")
        s += "\n".join(f"Plan {i + 1}:{plan[f'plan{i}']}" for i, plan in enumerate(forks)) + "\nThe best plan in full:" + answer("best")

    items: list[dict[str, Any]] = []
    for name in ("durability.md", "serving.md", "apis.md"):
        said = [" " + p for p in paragraphs(ROOT / "docs" / name, 120, 600)[:9]]
        if len(said) < 9:
            continue
        answers = [(f"plan{i}", said[i]) for i in range(3)] + [(f"step{i}{j}", said[3 + 2 * i + j]) for i in range(3) for j in range(2)]
        items.append({"task": f"How would you explain {name.removesuffix('.md')}?", "answers": [*answers, ("best", said[1])]})
    return Recorded("tree", plans, items)


def extraction() -> Recorded:
    """Rows of tables as JSON, one object a line."""

    @lmc.function
    def rows(s, table, answers):
        s += "Write each row of the table as a JSON object with the keys file and purpose, one a line.\n\n" + table + "\n\nJSON:\n" + answer("json")

    found = _rows("structures.md")
    items: list[dict[str, Any]] = []
    for i in range(0, 48, 8):
        part = found[i : i + 8]
        table = "| file | purpose |\n|---|---|\n" + "\n".join(f"| {file} | {purpose} |" for file, purpose in part)
        said = "\n".join(json.dumps({"file": file.strip("`"), "purpose": purpose}, ensure_ascii=False) for file, purpose in part)
        items.append({"table": table, "answers": [("json", said)]})
    return Recorded("json", rows, items)


def edit() -> Recorded:
    """A Python file, written again with a name changed."""

    @lmc.function
    def edited(s, code, old, new, answers):
        s += f"Rename {old} to {new} in this file and write the whole of it.\n```python\n{code}```\nThe edited file:\n```python\n" + answer("file")

    renamed = {
        "lengths.py": ("Lengths", "AnswerLengths"),
        "transfer.py": ("to_device", "send"),
        "pace.py": ("Pace", "Tempo"),
        "staging.py": ("Stage", "Staging"),
    }
    items = []
    for name, (old, new) in renamed.items():
        code = (TEXTS / f"{name}.txt").read_text(encoding="utf-8")[:2400]
        items.append({"code": code, "old": old, "new": new, "answers": [("file", re.sub(rf"\b{old}\b", new, code) + "```")]})
    return Recorded("edit", edited, items)


def _rows(name: str) -> list[tuple[str, str]]:
    """Rows of two-column tables of a document."""
    found = re.findall(r"^\| *(.+?) *\| *(.+?) *\|$", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.M)
    return [(a, b) for a, b in found if not set(a) <= set("-: ") and b not in ("", "is")]


SHAPES: Mapping[str, Callable[[], Recorded]] = {"chat": chat, "react": react, "tree": tree, "json": extraction, "edit": edit}


def recorded(names: Sequence[str]) -> Iterator[Recorded]:
    if unknown := [name for name in names if name not in SHAPES]:
        raise SystemExit(f"unknown shape {unknown[0]!r}; there are {', '.join(SHAPES)}")
    yield from (SHAPES[name]() for name in names)
