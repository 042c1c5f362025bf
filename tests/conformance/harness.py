"""One meaning, three executions: runs a program interpreted, compiled and as a batch on the mock, and compares all that can be seen."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import lmc
from lmc.backend.mock import Mock
from lmc.jit import Program

EFFECTS: list[Any] = []
"""What the programs' tools did, in order. Tools append here; nothing else does."""


def effect(*what: Any) -> None:
    EFFECTS.append(what)


@dataclass
class Seen:
    """Everything observable of one run."""

    value: Any = None
    text: str = ""
    messages: Any = None
    variables: dict[Any, Any] = field(default_factory=dict[Any, Any])
    metas: dict[Any, Any] = field(default_factory=dict[Any, Any])
    error: tuple[str, str] | None = None
    effects: list[Any] = field(default_factory=list[Any])


def observe(state: lmc.State) -> Seen:
    seen = Seen(text=state.text(), messages=state.messages())
    value = state.ret_value
    seen.value = "the state" if value is state else _plain(value)
    for name in state.variables:
        seen.variables[name] = _plain(_or_error(lambda n=name: state[n]))
        seen.metas[name] = _or_error(lambda n=name: _stable(state.get_meta_info(n)))
    return seen


def _plain(value: Any) -> Any:
    return (type(value).__name__, value.text()) if isinstance(value, lmc.State) else value


def _or_error(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        return type(error).__name__


def _stable(meta: Any) -> Any:
    if isinstance(meta, list):
        return [_stable(m) for m in meta]
    return {k: v for k, v in meta.items() if k not in ("id", "cached_tokens")}


def run(call: Callable[[], lmc.State]) -> Seen:
    EFFECTS.clear()
    try:
        seen = observe(call())
    except Exception as error:
        seen = Seen(error=(type(error).__name__, str(error)))
    seen.effects = list(EFFECTS)
    return seen


def asked(mock: Mock) -> Counter[Any]:
    return Counter((c.prompt, c.params, c.constraint, c.choices, c.seed) for c in mock.call_log)


def conform(
    program: Any,
    items: Sequence[dict[str, Any]],
    *,
    backend: Callable[[], Mock] = Mock,
    reset: Callable[[], None] = lambda: None,
    replays: int | None = None,
    batch: bool = True,
    **options: Any,
) -> Program:
    """Asserts that every item gives the same in each execution; gives the compiled program for a look at its statistics.

    reset    puts the outside world back before each run
    replays  how often the compiled program may go on in the interpreter (None: as often as it likes)
    """
    options.setdefault("seed", 7)
    reference: list[Seen] = []
    logs: list[Counter[Any]] = []
    for item in items:
        reset()
        mock = backend()
        reference.append(run(lambda item=item, mock=mock: program.run(**copy.deepcopy(item), backend=mock, **options)))
        logs.append(asked(mock))
    compiled = {}
    for opt in (0, 1):
        fast = compiled[opt] = lmc.compile(program, opt=opt)
        for _ in range(2):  # the second time on the trees that the first one grew
            for item, expected, log in zip(items, reference, logs, strict=True):
                reset()
                mock = backend()
                seen = run(lambda item=item, mock=mock, fast=fast: fast(**copy.deepcopy(item), backend=mock, **options))
                assert seen == expected, f"opt={opt}, {item}: {fast.graph and ''}"
                if opt == 0:
                    assert asked(mock) == log, f"other calls for {item}"
                elif expected.error is None:
                    assert not asked(mock) - log, f"calls added for {item}: {asked(mock) - log}"
    if batch:
        _batch(program, compiled[1], items, backend, reset, options)
    if replays is not None:
        assert compiled[1].stats.replays <= replays, f"{compiled[1].stats.replays} replays: {compiled[1]._said}"
    return compiled[1]


def _batch(
    program: Any, fast: Program, items: Sequence[dict[str, Any]], backend: Callable[[], Mock], reset: Callable[[], None], options: dict[str, Any]
) -> None:
    """A batch gives each item what the interpreter's batch gives it; its effects are each item's, each in its order."""
    reset()
    EFFECTS.clear()
    expected = program.run_batch(copy.deepcopy(list(items)), backend=backend(), errors="return", num_threads=1, **options)
    effects = list(EFFECTS)
    want = [_batch_item(s) for s in expected]
    reset()
    EFFECTS.clear()
    got = [_batch_item(s) for s in fast.batch(copy.deepcopy(list(items)), backend=backend(), errors="return", **options)]
    assert got == want
    assert Counter(map(repr, EFFECTS)) == Counter(map(repr, effects))


def _batch_item(state: lmc.State) -> Seen:
    if state.failure is not None:
        return Seen(error=(type(state.failure).__name__, str(state.failure)))
    return observe(state)
