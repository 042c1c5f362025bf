"""Durable runs whose tools change what they are handed: a run that is taken up has it as the tool left it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmc
from tests.durable.resuming import CALLS, resumes_anywhere


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
