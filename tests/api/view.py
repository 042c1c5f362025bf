"""An API backend as the conformance harness wants a mock: with a log of its own of what its server was asked."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import lmc
from tests.api.http import Server
from tests.conformance.harness import differences, run
from tests.conformance.programs import source

_KEPT = (
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "temperature",
    "seed",
    "n",
    "response_format",
    "structured_outputs",
    "echo",
)


class View:
    """A backend under another name, with what was asked since this was made."""

    answers_in_order, _fault = False, None  # as a mock that is not scripted
    _instant = False

    def __init__(self, backend: Any, server: Server, log: bool) -> None:
        self._backend, self._server, self._log, self._start = backend, server, log, len(server.seen)
        self._handles: list[Any] = []  # kept, so that what nobody reads is asked all the same

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def submit(self, *args: Any) -> Any:
        handle = self._backend.submit(*args)
        self._handles.append(handle)
        return handle

    @property
    def call_log(self) -> list[Any]:
        """Requests as the harness compares them. None at all where a request may cover several answers."""
        for handle in self._handles:
            for result in handle.results:
                result.wait(30)
        seen = self._server.seen[self._start :] if self._log else []
        asked = [json.dumps({k: v for k, v in s.body.items() if k in _KEPT}, sort_keys=True) for s in seen]
        return [SimpleNamespace(prompt=text, params=None, constraint=None, choices=None, seed=0) for text in asked]

    def close(self) -> None:
        """The backend lives longer."""


def views(backend: Any, server: Server, *, log: bool = True) -> Callable[[], Any]:
    return lambda: View(backend, server, log)


def greedy(programs: int) -> tuple[int, ...]:
    """Seeds of so many random programs in which nothing is drawn: two backends may draw differently."""
    return tuple(islice((seed for seed in count() if "temperature" not in source(seed)), programs))


def agree_with_the_mock(
    program: Any, items: Sequence[dict[str, Any]], backend: Any, mock: Callable[[], Any],
    reset: Callable[[], None] = lambda: None, outside: Any = lambda: None, **options: Any,
) -> None:  # fmt: skip
    """Interpreted and compiled greedy runs on `backend` give what the interpreter gives on the mock, but for meta info."""
    options = {"temperature": 0, **options}
    for item in items:
        reset()
        expected = run(program.run, item, outside, {**options, "backend": mock()})
        for call in (program.run, lmc.compile(program)):
            reset()
            seen = run(call, copy.deepcopy(item), outside, {**options, "backend": backend})
            seen.metas = expected.metas
            assert seen == expected, differences(seen, expected)


def all_of(error: BaseException | None) -> list[str]:
    """The texts of an error and of those that it came from."""
    found, seen = list[str](), set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        found += [str(error), repr(error), json.dumps(error.__dict__, default=str)]
        error = error.__cause__ or error.__context__
    return found
