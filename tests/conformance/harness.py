"""One meaning in every execution: runs a program interpreted, compiled, asked ahead, in a batch and by plans that lie, and compares all that can be seen."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any

import lmc
from lmc.backend.mock import Mock
from lmc.runahead.planning import Planner
from lmc.runahead.program import Program
from tests.frontend.capture.comparing import run_evaluation, run_python
from tests.runahead.liars import Liar, Recorder

EFFECTS: list[Any] = []
"""The effects of the programs' tools, in order. Tools append here; nothing else does."""
opaque = id
"""Code that no evaluation understands."""
LATE = 0.0003
"""Seconds that an answer takes where a program is asked ahead."""


def effect(*what: Any) -> None:
    EFFECTS.append(copy.deepcopy(what))


class Case:
    """A program with what it is run on, in one variant or several; `check` holds for each what `conform` says."""

    def __init__(self, program: Any, items: Sequence[dict[str, Any]], options: dict[str, Any]) -> None:
        self.program, self.variants = program, [(items, options)]
        self.tags = frozenset[str]()

    def check(self) -> Program:
        return [conform(self.program, items, **options) for items, options in self.variants][0]


def case(items: Sequence[dict[str, Any]] | None = None, **options: Any) -> Callable[[Any], Case]:
    """Makes a function that takes `q` (or what the items name) a program and a case of a table of tests; of a case, a variant more."""
    given = items or [{"q": "a"}, {"q": "b"}, {"q": "c"}]

    def made(fn: Any) -> Case:
        if not isinstance(fn, Case):
            return Case(lmc.function(fn), given, options)
        fn.variants.insert(0, (given, options))
        return fn

    return made


def cases(names: dict[str, Any]) -> dict[str, Case]:
    """The cases of a module by name, those in its dictionaries, too."""
    found: dict[str, Case] = {}
    for name, value in names.items():
        inside = value.items() if isinstance(value, dict) and not name.startswith("__") else ((name, value),)
        found |= {key: kept for key, kept in inside if isinstance(kept, Case)}
    return found


def scripted(**answers: Any) -> Callable[[], Mock]:
    """Mocks with these answers by name; a list is given in order."""
    return lambda: Mock(answers={k: list(v) if isinstance(v, list) else v for k, v in answers.items()})


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
    arguments: Any = None  # what the program made of them
    outside: Any = None


def observe(state: lmc.State) -> Seen:
    seen = Seen(text=state.text(), messages=state.messages())
    value = state.ret_value
    seen.value = "the state" if value is state else _plain(value)
    for name in state.variables:
        seen.variables[name] = _plain(_or_error(lambda n=name: state[n]))
        seen.metas[name] = _or_error(lambda n=name: _stable(state.get_meta_info(n)))
    return seen


def _plain(value: Any) -> Any:
    if isinstance(value, lmc.State):
        return type(value).__name__, value.text()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return ("iterator", list(value)) if isinstance(value, Iterator) else value


def _or_error(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        return type(error).__name__


def _stable(meta: Any) -> Any:
    if isinstance(meta, list):
        return [_stable(m) for m in meta]
    return {k: v for k, v in meta.items() if k not in ("id", "cached_tokens")}


def run(call: Callable[..., lmc.State], item: dict[str, Any], outside: Callable[[], Any], options: dict[str, Any]) -> Seen:
    EFFECTS.clear()
    item = copy.deepcopy(item)
    try:
        seen = observe(call(**item, **options))
    except (Exception, asyncio.CancelledError) as error:
        seen = Seen(error=(type(error).__name__, str(error)))
    seen.effects = list(EFFECTS)
    seen.arguments, seen.outside = item, copy.deepcopy(outside())
    return seen


def asked(mock: Mock) -> Counter[Any]:
    return Counter((c.prompt, c.params, c.constraint, c.choices, c.seed) for c in mock.call_log)


def differences(seen: Seen, expected: Seen) -> str:
    """The fields that differ, for a failure's message."""
    return "; ".join(
        f"{f.name}: {getattr(seen, f.name)!r}, expected {getattr(expected, f.name)!r}"
        for f in fields(Seen)
        if getattr(seen, f.name) != getattr(expected, f.name)
    )


def differences_through(case: Case, through: Callable[[Any], AbstractContextManager[Any]], *, compiled: bool) -> list[str]:
    """Of each item, what a backend says otherwise than by itself where it is asked `through` another; "" where nothing."""
    found: list[str] = []
    for items, given in case.variants:
        options: dict[str, Any] = {"seed": 3, **given}
        make, outside = options.pop("backend", Mock), options.pop("outside", lambda: None)
        reset = options.pop("reset", lambda: None)
        options = {k: v for k, v in options.items() if k not in MODES}
        for item in items:
            reset()
            expected = run(case.program.run, item, outside, {**options, "backend": make()})
            reset()
            again = make()
            with through(again) as backend:
                call = lmc.compile(case.program, ahead="off" if again.answers_in_order else "certain") if compiled else case.program.run
                found.append(differences(run(call, item, outside, {**options, "backend": backend}), expected))
    return found


MODES = ("batch", "ahead", "journal")
"""Options of a case that leave out executions."""


def conform(
    program: Any,
    items: Sequence[dict[str, Any]],
    *,
    backend: Callable[..., Mock] = Mock,
    reset: Callable[[], None] = lambda: None,
    outside: Callable[[], Any] = lambda: None,
    batch: bool = True,
    ahead: bool = True,
    journal: bool | str = True,
    **options: Any,
) -> Program:
    """Assert that every item gives the same in each execution; return the compiled program for a look at its statistics.

    reset    puts the outside world back before each run
    outside  what the program may have changed outside
    batch    whether items are independent of one another, so that they may run in a batch
    ahead    whether it means the same however long answers take, so that it may be asked ahead
    journal  whether a run that is resumed gives the same (ways.py): not where the outside has changed without the journal; "refused" if it says so
    """
    options.setdefault("seed", 7)
    reference: list[tuple[Seen, Counter[Any]]] = []
    for item in items:
        reset()
        mock = backend()
        reference.append((run(program.run, item, outside, {**options, "backend": mock}), asked(mock)))
    for item in items[:2] if ahead else ():
        reset()
        _evaluate(program, item, {**options, "backend": backend()})
    compiled = lmc.compile(program)
    executions: list[tuple[str, Callable[..., Any]]] = [("compiled", compiled)]
    if ahead and not scripted_in_order(backend()):
        executions += [("compiled again", compiled), *_ahead(compiled, items)]
    for how, call in executions:
        for item, (expected, log) in zip(items, reference, strict=True):
            reset()
            mock = backend()
            if how not in ("compiled", "compiled again") and not program.is_async:  # which of several tasks is first depends on when answers come
                late(mock)
            seen = run(call, item, outside, {**options, "backend": mock})
            assert seen == expected, f"{how}, {item}: {differences(seen, expected)}"
            if how == "compiled" and expected.error is None:
                assert not asked(mock) - log, f"calls added for {item}: {asked(mock) - log}"
            mock.close()
    if batch:
        _batch(program, compiled, items, backend, reset, options)
    compiled.dump_ir()  # raises an IRError for a graph that is not well-formed
    return compiled


def _evaluate(program: Any, item: dict[str, Any], options: dict[str, Any]) -> None:
    """An evaluation that knows all answers goes as far as it can, without a fault, and without touching anything."""
    python = run_python(program, copy.deepcopy(item), **options)
    effects = list(EFFECTS)
    run_evaluation(program, item, python.answers)
    assert effects == EFFECTS


def late(mock: Mock) -> None:
    """Let the answers of a mock take a moment, so that the program waits for them."""
    if mock._instant:
        mock._instant, mock._latency = False, lambda *_: LATE


def scripted_in_order(mock: Mock) -> bool:
    """Whether what a mock answers depends on the order of its calls, or on how many there are."""
    return mock.answers_in_order or mock._fault is not None


def _ahead(compiled: Program, items: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Executions that are asked ahead: as far as what is certain, what is likely, and by a plan that lies. All share the plan of `compiled`."""
    program = compiled.function
    for policy in ("certain", "likely"):
        yield policy, eager(lmc.compile(program, ahead=policy), compiled.planner)
    yield "lies", lying(program, random.Random(f"{program.name} {len(items)}"), compiled.planner)


def eager(program: Program, planner: Planner | None = None, evaluated: Callable[[], object] = lambda: None) -> Program:
    """Let a program evaluate at every wait, at once and wherever it reads; by the plan of `planner`, if given, so that it is not made again.
    `evaluated` is called after each evaluation: such as `Gated.answer`, so that no answer comes before it."""
    program.planner = planner or program.planner
    profile = program.profile
    profile.cost = 0.0
    profile.evaluated = lambda *_: evaluated()  # type: ignore[method-assign]
    profile.fault = program.planner.fault = _raised  # type: ignore[method-assign]
    return program


def _raised(fault: Exception) -> None:
    """Faults of the evaluator and of passes fail a test."""
    raise AssertionError("a fault of the evaluator or of a pass") from fault


def lying(program: Any, choose: random.Random, planner: Planner | None = None) -> Callable[..., Any]:
    """A call of a program whose plan is lies about what the run before it asked."""
    liar = eager(lmc.compile(program, ahead="likely"), planner)
    known: list[Any] = []

    def call(**given: Any) -> Any:
        recorder = Recorder()
        sources = [recorder] if not known else [Liar(known, choose.randrange(1 << 30))]
        liar.make_source = lambda *_: sources[0]
        try:
            return liar(**given)
        finally:
            known.extend(recorder.known)

    return call


def _batch(
    program: Any, fast: Program, items: Sequence[dict[str, Any]], backend: Callable[..., Mock], reset: Callable[[], None], options: dict[str, Any]
) -> None:
    """A batch gives each item what the interpreter's batch gives it; its effects are each item's, each in its order."""
    reset()
    EFFECTS.clear()
    expected = program.run_batch(copy.deepcopy(list(items)), backend=backend(), errors="return", num_threads=1, **options)
    effects = list(EFFECTS)
    want = [_batch_item(s) for s in expected]
    reset()
    EFFECTS.clear()
    mock = backend()
    got = [_batch_item(s) for s in fast.batch(copy.deepcopy(list(items)), backend=mock, errors="return", **options)]
    assert got == want
    assert Counter(map(repr, EFFECTS)) == Counter(map(repr, effects))


def _batch_item(state: lmc.State) -> Seen:
    if state.failure is not None:
        return Seen(error=(type(state.failure).__name__, str(state.failure)))
    return observe(state)
