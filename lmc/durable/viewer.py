"""Replay of a journaled run by its program, from the journal, for inspection; and its course under a change from some
step on.

Nothing here writes a journal.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lmc import codec
from lmc.backend.base import Backend
from lmc.backend.results import Output, Result
from lmc.durable import records
from lmc.durable.call_records import ReachedCall
from lmc.durable.checks import since_last
from lmc.durable.cipher import Key
from lmc.durable.groups import Ask, Record
from lmc.durable.journal import JournalFile
from lmc.durable.records import Contents, Effect
from lmc.durable.run import RunJournal
from lmc.durable.steps import RunStep, Story, TakenBranch, numbers_of, outcome_of, shown_arguments
from lmc.errors import JournalError, Loc
from lmc.frontend.interpreter import Function, LiveEmitter, Run
from lmc.frontend.state import State
from lmc.prompt import Excerpt, Piece, Prompt
from lmc.segments import Gen, Given, Image, SamplingParams, Select, plain
from lmc.thumbnails import label, thumbnail


@dataclass(frozen=True)
class WhatIf:
    """A change to the journal: from step `at` on, requests are made again; that step's own answer is `answer`, if one
    is given.

    effects  whether calls after it are made; otherwise the journal answers, and a call it lacks ends the run
    """

    at: int
    answer: str | None = None
    effects: bool = False


def replayed(
    path: str | Path, program: Function, backend: Backend, item: int | None = None, change: WhatIf | None = None, key: Key | None = None
) -> list[Story]:
    """Replay the runs of a journal (or one of them) by the program, with prompts and lines; with `change`, on `backend`
    from there on.

    Raises JournalError if the journal is not the program's.
    """
    contents = records.read(path, key)
    if (contents.header.get("program"), contents.header.get("source")) != (program.name, program.digest):
        raise JournalError(f"{path} is of the program {contents.header.get('program')} with another source than {program.described} has now")
    numbers = numbers_of(contents, item, path)
    if change is not None and len(numbers) > 1:
        raise JournalError(f"{path} has {len(numbers)} runs; say which one to change: --item N")
    if change is not None and change.at < 0:
        raise JournalError(f"there is no step {change.at}; steps are counted from 0")
    return [_replayed(contents, Path(path), program, backend, number, change) for number in numbers]


class _Shelf:
    """A read-only stand-in for a journal."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self.path, self.contents, self.entries = path, contents, list[Any]()
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.left = False

    def held(self) -> AbstractContextManager[None]:
        """Do nothing: there is nothing to keep open."""
        return nullcontext()

    def _nothing(self, *_: Any) -> None:
        """Write nothing."""

    put = add = flush = sync = _nothing

    async def synced(self) -> None:
        """Write nothing."""


class View(RunJournal):
    """The journal of a run replayed for inspection: records each step, and answers as `change` says."""

    deciding = True

    def __init__(self, shelf: _Shelf, item: int, change: WhatIf | None, *, elsewhere: bool) -> None:
        super().__init__(cast(JournalFile, shelf), item)
        self.resumed = True  # also if the run was cut off before any record
        self.change = change
        self.elsewhere = elsewhere  # on a backend other than the journal's
        self.over = False  # the journal has ended
        self.steps: list[RunStep] = []
        self.decided_first: list[TakenBranch] = []
        self.answers: list[tuple[RunStep, Result]] = []
        self.diverges = change is not None

    def decided(self, loc: str, test: str, answer: bool) -> None:
        into = self.steps[-1].decided if self.steps else self.decided_first
        if into and (into[-1].line, into[-1].test, into[-1].answer) == (loc, test, answer):
            into[-1].times += 1
        else:
            into.append(TakenBranch(loc, test, answer))

    def ask(self, before: Prompt, ask: Gen | Select, places: Sequence[Ask], send: Callable[[], Prompt]) -> Prompt:
        since, _ = since_last(before)
        step = RunStep(len(self.steps), "select" if isinstance(ask, Select) else "gen", str(ask.name), _line(ask.loc), "".join(map(_text, since)), "")
        step.pictures = [url for part in since if isinstance(part, Image) and (url := thumbnail(part)) is not None]
        if self.change is not None and step.number >= self.change.at:
            changed = step.number == self.change.at and self.change.answer is not None
            self.go_on()
            step.source = "changed" if changed else "now"
            digest, _ = self.check(before, ask)
            after = self._changed(before, ask, places, digest) if changed else send()
            assert after.result is not None
            after.result.checked = self, digest, places[0]
        else:
            after = super().ask(before, ask, places, lambda: self._missing(f"asks for {ask.name!r}", ask.loc))
        self.steps.append(step)
        assert after.result is not None
        self.answers.append((step, after.result))
        return after

    def find(self, places: Sequence[Ask], digest: int) -> Record | None:
        """Find an answer; elsewhere another template renders the prompts, so a request is matched by its place, if that
        has one answer."""
        found = super().find(places, digest)
        if found is None and self.elsewhere:
            there = [record for place in places for record in self.known.answers.get(place, {}).values()]
            found = there[0] if len(there) == 1 else None
        return found

    def output(self, record: Record) -> Output:
        output = super().output(record)
        return replace(output, ids=()) if self.elsewhere else output  # another model's tokens

    def _changed(self, before: Prompt, ask: Gen | Select, places: Sequence[Ask], digest: int) -> Prompt:
        assert self.change is not None and self.change.answer is not None
        text = self.change.answer
        if isinstance(ask, Select) and text not in ask.choices:
            raise self.lost(f"step {self.change.at} chooses one of {list(ask.choices)}, not {text!r}", ask.loc)
        record = self.find(places, digest)
        old = Output((text,), ({},)) if record is None or record[0] == "f" else self.output(record)
        result = Result()
        result.finish(replace(old, texts=(text, *old.texts[1:]), ids=()))
        return Prompt(before, (), result, before.handle, (*before.tail, Given(text)))

    def begin(self, call: ReachedCall) -> tuple[int, Effect | None]:
        number, known = super().begin(call)
        name, shown, loc = call.name, call.shown, call.loc
        if self.change is not None and self.change.answer is not None and len(self.steps) == self.change.at:
            raise self.lost(f"step {self.change.at} is a call of {name}; only what the model was asked can have another answer", loc)
        if self.change is not None and self.change.effects and len(self.steps) > self.change.at:
            self.steps.append(RunStep(len(self.steps), "effect", name, _line(loc), shown, "called", source="now"))
            return number, None
        if known is None:
            self._missing(f"calls {name}({shown})", loc, "" if self.change is None else "; --run-effects makes such calls")
        assert known is not None
        self.steps.append(RunStep(len(self.steps), "effect", name, _line(loc), shown, outcome_of(known)))
        if known.outcome is None:
            waits = "waits for a person's answer" if known.question is not None else "was begun, and it is not known whether it was done"
            raise self._end(f"{name}({shown}) {waits}", loc)
        return number, known

    def write_outcome(self, number: int, call: ReachedCall, fn: Any, outcome: tuple[bool, Any], *_: Any, **__: Any) -> None:
        """Record a call that was made now."""
        ok, value = outcome
        step = next(s for s in reversed(self.steps) if s.kind == "effect" and s.name == call.name and s.source == "now")
        step.result = f"{value!r:.500}" if ok else f"raised {type(value).__name__}: {value}"

    def _missing(self, what: str, loc: Loc | None, instead: str = "") -> Prompt:
        raise self._end(f"{what}, which is not in the journal{instead}", loc)

    def _end(self, what: str, loc: Loc | None) -> JournalError:
        """End the replay: the journal has no more records, as after a kill or a change."""
        self.over = True
        return self.lost(what, loc)


def _line(loc: Loc | None) -> str:
    return "" if loc is None else str(loc)


def _text(part: Piece) -> str:
    if isinstance(part, Excerpt):
        return part.text()
    return label(part) if isinstance(part, Image) else "" if isinstance(part, Given) else plain((part,))


def _replayed(contents: Contents, path: Path, program: Function, backend: Backend, item: int, change: WhatIf | None) -> Story:
    known = contents.known(item)
    if known.arguments is None:
        raise JournalError(f"{path}: the arguments of run {item} are too large to be in it")
    try:
        given = {name: codec.decode(data) for name, data in known.arguments.items()}
        sampling = {name: codec.decode(data) for name, data in contents.header.get("sampling", {}).items()}
        defaults = replace(SamplingParams(), **sampling)
        bound = program.signature.bind(None, **{k: v for k, v in given.items() if k in program.params})
    except (codec.BadData, TypeError, AttributeError) as error:
        raise JournalError(f"{path}: the arguments of run {item} cannot be read: {error}") from None
    recorded, ours = str(contents.header.get("backend")), backend.capabilities.name
    view = View(_Shelf(path, contents), item, change, elsewhere=recorded != ours)
    state = State(LiveEmitter(Run(backend, defaults, contents.header["seed"], item, journal=view)), name=program.name)
    end = "finished"
    try:
        program._call(state, bound)  # pyright: ignore[reportPrivateUsage]
        state.sync()
        end = f"returned {state.ret_value!r:.500}" if state.ret_value is not None else end
    except (Exception, asyncio.CancelledError) as error:
        end = f"{'stopped' if view.over else type(view.broken or error).__name__}: {str(view.broken or error).partition(chr(10))[0]}"
    if change is not None and view.broken is None and change.at >= len(view.steps):
        raise JournalError(f"{path}: run {item} has no step {change.at}; its {len(view.steps)} steps are counted from 0")
    for step, result in view.answers:
        result.wait()
        if result.error is not None:
            step.result = f"failed: {type(result.error).__name__}: {result.error}"
        else:
            output = result.output()
            step.result, step.tokens = "\n".join(output.texts), (output.usage.prompt_tokens, output.usage.completion_tokens)
    on = recorded if change is None or recorded == ours else f"{recorded}, from step {change.at} on {ours}"
    return Story(
        program.name,
        on,
        item,
        view.steps,
        end,
        shown_arguments(known.arguments),
        view.broken is None or view.over,
        ours if view.elsewhere else "",
        view.decided_first,
    )
