"""Chat templates in this process, by the code of their worker: to start one takes longer than what most tests of templates do.

The worker itself, and what ends it: tests/backend/engine/test_hostile_templates.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lmc.backend.engine import template_worker
from lmc.backend.engine.template_sandbox import Sandbox


class _Worker:
    """A process as a sandbox sees it: requests are lines written to it, and answers lines read from it."""

    def __init__(self) -> None:
        self._state, self._answer = dict[str, Any](), ""
        self.stdin = self.stdout = self

    def write(self, line: str) -> None:
        request = json.loads(line)
        if "seconds" in request and "env" in self._state:
            self._state["env"].steps = 0
        self._answer = json.dumps(template_worker.answered(self._state, request, len(line)))

    def flush(self) -> None: ...

    def readline(self) -> str:
        return self._answer + "\n"

    def poll(self) -> None:
        return None


@pytest.fixture
def templates_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "_spawn", lambda self: setattr(self, "_process", _Worker()))
