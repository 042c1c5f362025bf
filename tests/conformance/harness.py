"""One meaning, three executions: runs a program interpreted, compiled and as a batch on the mock, and compares all that can be seen.

With LMC_TEST_JOURNAL=1 each run has a journal, too, and is taken up again from it; with LMC_TEST_JOURNAL=cuts, from behind its records as well.
With LMC_TEST_SAVE=1 programs are saved and loaded.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import lmc
from lmc.backend.mock import Mock
from lmc.durable.groups import journal_of
from lmc.durable.records import parse, read
from lmc.jit.program import Program
from lmc.jit.traced import Traced

EFFECTS: list[Any] = []
"""What the programs' tools did, in order. Tools append here; nothing else does."""

leave = id
"""Leaves the graph: a compiled run that calls this goes on in the interpreter, since what it gives is of no other run."""
LEFT_ON_PURPOSE = "takes the identity of an object"
"""What is said then."""
ANYHOW = ""
"""As `leaves`, for programs of which nobody knows whether they are captured."""


def effect(*what: Any) -> None:
    EFFECTS.append(copy.deepcopy(what))


class Case:
    """A program with what it is run on; `check` holds for it what `conform` says."""

    def __init__(self, program: Any, items: Sequence[dict[str, Any]], options: dict[str, Any]) -> None:
        self.program, self.items, self.options = program, items, options

    def check(self) -> Program:
        return conform(self.program, self.items, **self.options)


def case(items: Sequence[dict[str, Any]] | None = None, **options: Any) -> Callable[[Callable[..., Any]], Case]:
    """Makes a function that takes `q` (or what the items name) a program and a case of a table of tests."""
    return lambda fn: Case(lmc.function(fn), items or [{"q": "a"}, {"q": "b"}, {"q": "c"}], options)


def cases(names: dict[str, Any]) -> dict[str, Case]:
    """The cases of a module by name."""
    return {name: value for name, value in names.items() if isinstance(value, Case)}


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
    return "; ".join(f"{f.name}: {getattr(seen, f.name)!r}, expected {getattr(expected, f.name)!r}" for f in fields(Seen) if getattr(seen, f.name) != getattr(expected, f.name))


def conform(
    program: Any,
    items: Sequence[dict[str, Any]],
    *,
    backend: Callable[[], Mock] = Mock,
    reset: Callable[[], None] = lambda: None,
    outside: Callable[[], Any] = lambda: None,
    replays: int | None = None,
    leaves: str | None = None,
    batch: bool = True,
    opts: Sequence[int] = (0, 1),
    **options: Any,
) -> Program:
    """Asserts that every item gives the same in each execution; gives the compiled program for a look at its statistics.

    reset    puts the outside world back before each run
    outside  what the program may have changed outside
    replays  how often the compiled program may go on in the interpreter (None: as often as it likes)
    leaves   a regex: why it does, other than by `leave` or by an exception that leaves it. Nothing else may be said, and this has to be, unless
             it matches the empty text as well
    """
    options.setdefault("seed", 7)
    reference: list[Seen] = []
    logs: list[Counter[Any]] = []
    for item in items:
        reset()
        mock = backend()
        reference.append(run(program.run, item, outside, {**options, "backend": mock}))
        logs.append(asked(mock))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lmc.CaptureWarning)  # what was said is looked at below
        compiled = _compiled(program, items, reference, logs, backend, reset, outside, opts, options)
        fast = compiled[opts[-1]]
        if batch:
            _batch(program, fast, items, backend, reset, options)
        if os.environ.get("LMC_TEST_JOURNAL"):
            for item, expected in zip(items, reference, strict=True):
                resumes(program, item, expected, backend=backend, reset=reset, outside=outside, opts=opts, options=options)
                if os.environ["LMC_TEST_JOURNAL"] == "cuts":
                    resumes_from_anywhere(program, item, expected, backend=backend, reset=reset, outside=outside, options=options)
        if os.environ.get("LMC_TEST_SAVE"):
            reset()
            traces = fast.stats.traces
            loads(fast, items, reference, logs, backend=backend, reset=reset, outside=outside, options=options)
            fast.stats.traces = traces
    faults = [said for one in compiled.values() for said in one._notices.said if "internal error" in said]
    assert not faults, faults
    assert all(all(traced.ledger.replayed) for one in compiled.values() for traced in one.traces()), "a replay without a reason"
    if replays is not None:
        assert fast.stats.replays <= replays, f"{fast.stats.replays} replays: {fast._notices.said}"
    said = {why for one in compiled.values() for why in one._notices.said if LEFT_ON_PURPOSE not in why}
    undeclared = {why for why in said if leaves is None or not re.search(leaves, why)}
    assert not undeclared, f"not captured, and the test does not say so: {undeclared}"
    assert said or leaves is None or re.search(leaves, ""), f"captured, though the test says otherwise: {leaves}"
    return fast


def _compiled(
    program: Any, items: Sequence[dict[str, Any]], reference: Sequence[Seen], logs: Sequence[Counter[Any]], backend: Callable[[], Mock],
    reset: Callable[[], None], outside: Callable[[], Any], opts: Sequence[int], options: dict[str, Any],
) -> dict[int, Program]:  # fmt: skip
    """Every item gives in compiled calls what the interpreter gave; the compiled programs by their level.

    A level is of the passes alone, so the lower one begins with the latest trees of the higher one, which are grown already; random programs
    (search.py) trace for each.
    """
    compiled: dict[int, Program] = {}
    traced: dict[Any, list[Traced]] = {}
    for opt in sorted(opts, reverse=True):
        fast = compiled[opt] = lmc.compile(program, opt=opt)
        fast._trees.by_types = {key: [Traced(one.tree, one.arguments) for one in trees[:1]] for key, trees in traced.items()}
        for _ in range(1 if traced else 2):  # the second time on the trees that the first one grew
            for item, expected, log in zip(items, reference, logs, strict=True):
                reset()
                mock = backend()
                seen = run(fast, item, outside, {**options, "backend": mock})
                assert seen == expected, f"opt={opt}, {item}: {differences(seen, expected)}"
                if opt == 0:
                    assert asked(mock) == log, f"other calls for {item}"
                elif expected.error is None:
                    assert not asked(mock) - log, f"calls added for {item}: {asked(mock) - log}"
        traced = fast._trees.by_types
    return compiled


def loads(
    fast: Program, items: Sequence[dict[str, Any]], reference: Sequence[Seen], logs: Sequence[Counter[Any]], *, backend: Callable[[], Mock],
    reset: Callable[[], None], outside: Callable[[], Any], options: dict[str, Any],
) -> None:  # fmt: skip
    """Asserts that a program that was saved and loaded again gives what it gave before, as far as a file can hold it."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "program.lmcp")
        try:
            fast.save(path)
        except lmc.ProgramError as error:
            assert "cannot be saved" in str(error)
            return
        again = lmc.load(path)
        for item, expected, log in [*zip(items, reference, logs, strict=True)] * 2:
            reset()
            mock = backend()
            seen = run(again, item, outside, {**options, "backend": mock})
            if seen.error is not None and seen.error[0] == "ProgramError" and path in seen.error[1]:
                continue  # its source is local to a test
            assert seen == expected, f"saved and loaded, {item}: {differences(seen, expected)}"
            assert expected.error or not asked(mock) - log, f"saved and loaded, {item}: calls added: {asked(mock) - log}"


DONE_AGAIN = {
    "class_that_is_registered": "what the `__init_subclass__` of an outside class does is done again",
    "length_that_is_asked_for": "Python calls `__len__` by itself, and what that does is done again",
    "called_by_python": "so are other methods",
    "keys_with_code": "the `__hash__` of a key too",
    "objects_that_compare_then_left": "so is the `__lt__` of an outside object",
    "models_that_refuse": "and what the validators of models do",
    "exceptions_that_only_their_library_makes": "models again",
    "exceptions_that_only_their_library_makes_leave": "models again",
    "the_current_exception": "an exception that a tool raises again is another object",
    "taken_last": "Python asks a mapping for its keys by itself",
    "numbers_for_unordered_calls_that_were_made_ahead": "a tool changes a global, which is not in the journal",
}
"""Programs that durability.md excepts where they are taken up again."""


def resumes(
    program: Any, item: dict[str, Any], expected: Seen, *, backend: Callable[[], Mock], reset: Callable[[], None], outside: Callable[[], Any],
    opts: Sequence[int], options: dict[str, Any],
) -> None:  # fmt: skip
    """Asserts that a run with a journal is the one without, and that a run taken up again from a whole journal is too, asking and calling nothing."""
    reset()
    before = copy.deepcopy(outside())
    hows = [program.run]  # a compiled program with a journal is that, too
    for n, how in enumerate(hows):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "journal")
            reset()
            try:
                seen = run(how, item, outside, {**options, "backend": backend(), "journal": path})
                if seen.error is not None and seen.error[0] == "JournalError" and any(x in seen.error[1] for x in ("cannot be journaled", "no place in its journal")):
                    continue
                assert seen == expected, f"{n} with a journal, {item}: {differences(seen, expected)}"
                if program.name in DONE_AGAIN:
                    continue
                if seen.outside != before or seen.arguments != item:
                    continue  # what tools did in this process is there already
                for k, again in enumerate((hows[n - 1], how)):
                    reset()
                    mock = backend()
                    seen = run(again, item, outside, {**options, "backend": mock, "journal": path})
                    if seen.error is not None and seen.error[0] == "JournalError" and any(x in seen.error[1] for x in ("which a journal cannot hold", "no place in its journal")):
                        continue
                    seen.outside, seen.arguments = expected.outside, expected.arguments
                    removed = opts[n - 1] if n else 0  # what nobody reads was not asked, and another execution may ask it
                    assert not seen.effects and (expected.error or removed or not mock.call_log), f"{n}/{k} taken up again, {item}: {seen.effects}, {mock.call_log}"
                    seen.effects = expected.effects
                    assert seen == expected, f"{n}/{k} taken up again, {item}: {differences(seen, expected)}"
            except AssertionError as error:
                with open(path) as file:
                    raise AssertionError(f"{error}\n{file.read()[:3000]}") from None


CUTS = 12
"""Behind how many records of a journal a run is taken up again; of a longer one, not behind each."""
NOT_FROM_ANYWHERE = DONE_AGAIN.keys() | {"tracebacks"}  # a traceback names no lines of a tool that is not called


def resumes_from_anywhere(
    program: Any, item: dict[str, Any], expected: Seen, *, backend: Callable[[], Mock], reset: Callable[[], None], outside: Callable[[], Any],
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Asserts that a run that is taken up behind any record of its journal ends as one that was left alone, and calls nothing twice.

    Not of programs that change what is outside, nor on mocks whose answers depend on how often they were asked.
    """
    reset()
    before, hows = copy.deepcopy(outside()), [program.run]
    answers = [cell.cell_contents for cell in getattr(backend, "__closure__", None) or ()]
    if program.name in NOT_FROM_ANYWHERE or any(isinstance(a, list) for x in answers if isinstance(x, dict) for a in x.values()):
        return
    for n, how in enumerate(hows):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "journal")
            reset()
            seen = run(how, item, outside, {**options, "backend": backend(), "journal": path})
            if (seen.error is not None and seen.error[0] == "JournalError") or seen.outside != before or seen.arguments != item:
                return
            header, records = _records(path.read_bytes())
            for k in range(0, len(records), max(1, len(records) // CUTS)):
                path.write_bytes(journal_of(header, records[:k]))
                effects = [] if not k else read(path).runs[0].effects.values()
                doubt = any(e.outcome is None or (e.outcome[0] == "awaitable" and e.outcome[1] != "coroutine") for e in effects)
                reset()
                seen = run(how, item, outside, {**options, "backend": backend(), "journal": path})
                gc.collect()  # what a run left behind ends here, and not in the next one
                if doubt or (seen.error is not None and "which a journal cannot hold" in seen.error[1]):
                    continue
                assert not Counter(map(repr, seen.effects)) - Counter(map(repr, expected.effects)), f"{n}/{k}, {item}: called again: {seen.effects}"
                seen.effects, seen.outside, seen.arguments = expected.effects, expected.outside, expected.arguments
                assert seen == expected, f"{n}, taken up behind record {k} of {len(records)}, {item}: {differences(seen, expected)}"


def _records(data: bytes) -> tuple[dict[str, Any], list[tuple[int, Any]]]:
    """The header of a journal, and its records, each with its run."""
    contents = parse(data, "the journal")
    assert contents is not None
    return contents.header, [(number, record) for number, found in contents.records.items() for record in found]


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
