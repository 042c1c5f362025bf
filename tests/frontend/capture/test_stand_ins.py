"""The stand-ins for DSPy's modules, without DSPy: what is certain behind agents whose turns only Python can tell."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

import pytest

import lmc
from lmc.code_origin import FOLLOWED, LMC
from tests.frontend.capture.recording import evaluate

FIELDS = ("next_thought", "next_tool_name", "next_tool_args")


def look(town: str) -> str:
    return f"{town} is large."


class Desk:
    """DSPy's part of a request: of a predictor by its number, whose answers have these fields."""

    def __init__(self, *fields: tuple[str, ...]) -> None:
        self.fields = fields
        self.state: Any = None
        self.spec, self.values = lmc.pure(self._spec), lmc.pure(self._values)
        self.trajectory, self.tool = lmc.pure(self._trajectory), lmc.pure(self._tool)

    def _spec(self, number: int, inputs: dict[str, Any], known: dict[str, str]) -> dict[str, Any]:
        fields = [name for name in self.fields[number] if name not in known]
        whole = "next_tool_args" not in fields or "next_tool_name" in known
        given = [{"name": name, "header": f"\n{name}: ", "given": {"max_tokens": 8}} for name in fields if whole or name != "next_tool_args"]
        return {"turns": [("system", f"predictor {number}"), ("user", repr(inputs))], "begun": repr(known), "fields": given, "whole": whole}

    def _values(self, number: int, inputs: dict[str, Any], known: dict[str, str], texts: list[str]) -> dict[str, Any]:
        names = [name for name in self.fields[number] if name not in known]
        return {**known, **dict(zip(names, texts, strict=True))}

    def _trajectory(self, number: int, trajectory: dict[str, Any]) -> str:
        return repr(trajectory)

    def _tool(self, number: int, name: str, arguments: str) -> tuple[int, dict[str, Any]]:
        return 0 if name == "look" else 1, {"town": arguments} if name == "look" else {}


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Any:
    file = f"{LMC}integrations/dspy/followed.py"
    spec = importlib.util.spec_from_file_location("followed", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "followed", module)
    FOLLOWED.add(file)
    spec.loader.exec_module(module)
    return module


def agents(followed: Any, tool: Any) -> tuple[Any, Any]:
    """A plan, then an agent for each question whose answer a predictor sums up."""
    desk = Desk(("plan",), FIELDS, ("answer",), ("short",))
    plan, react, extract, short = [followed.predictor(desk, i, list(names)) for i, names in enumerate(desk.fields)]
    act = followed.agent(desk, 0, react, extract, (tool, lmc.pure(lambda: "Completed.")), 3)

    def forward(questions: list[str]) -> Any:
        found = [plan(goal="all").plan]
        for question in questions:
            given = act(question=question)
            found.append(given.answer + str(given.trajectory))
            found.append(short(answer=given.answer).short)
        return found

    return forward, desk


def asked_of(followed: Any, answers: Any, declared: Any) -> list[str]:
    """Return the names of the certain requests, with the question that each is about."""
    module, desk = agents(followed, declared(look))
    asked, outcome = evaluate(followed.forward, answers, module=module, desk=desk, args=(), inputs={"questions": ["one?", "two?", "six?"]})
    assert outcome.stopped_at is None
    questions = [re.findall(r"'question': '(\w+)", a.prompt or "") for a in asked]
    return [" ".join([str(a.name), *about]) for a, about in zip(asked, questions, strict=True) if a.certain and a.prompt is not None]


def of_each(*fields: str) -> list[str]:
    return ["plan", *(f"{field} {question}" for question in ("one", "two", "six") for field in fields)]


def test_first_turns_of_all_agents_are_certain(followed: Any) -> None:
    assert asked_of(followed, {}, lmc.host) == of_each(*FIELDS[:2])


def test_arguments_of_first_turns_are_certain_once_their_tools_are_known(followed: Any) -> None:
    assert asked_of(followed, {"next_thought": "hm", "next_tool_name": "look"}, lmc.host) == of_each(*FIELDS)


def test_what_follows_a_pure_tool_is_certain(followed: Any) -> None:
    answers = {"next_thought": "hm", "next_tool_name": "look", "next_tool_args": "Porto"}
    assert asked_of(followed, answers, lmc.pure) == of_each(*FIELDS * 3, "answer")
