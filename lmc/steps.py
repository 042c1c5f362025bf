"""Journals looked at: what a run asked, called and got, step by step; and what it would have done from a step on.

Nothing here writes a journal. With the program, its run is made again from the journal, which gives prompts and source lines.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (what a program handles is Any by nature)

from __future__ import annotations

import asyncio
import json
import linecache
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, cast

from lmc import codec, records
from lmc.backend.base import Backend, Output, Result
from lmc.checks import since_last
from lmc.errors import JournalError, Loc
from lmc.frontend import durable, effects
from lmc.frontend.counting import program_frame
from lmc.frontend.interpreter import Function, LiveEmitter, Run
from lmc.frontend.state import State
from lmc.groups import Ask, Record, output_of
from lmc.journal import Journal
from lmc.prompt import Excerpt, Gen, Given, Prompt, SamplingParams, Select, plain
from lmc.records import Contents, Effect


@dataclass
class Decision:
    """Which way a run went at a test: of `if`, `while`, `assert`, a `case`, a comprehension. Several in a row that are alike are one.

    line  where the program has it;  test  as it is there;  answer  how it turned out;  times  how often
    """

    line: str
    test: str
    answer: bool
    times: int = 1


@dataclass
class Step:
    """One ask or one effect of a run.

    kind     "gen", "select", "effect" or "ask" (where the program is not there to say which)
    line     where the program has it;  name  of the variable, or of what is called
    prompt   what the prompt has before it since the last answer; of an effect its arguments
    result   the answer, or what the call gave or raised;  tokens  of prompt and answer
    source   "journal", "changed" or "now"
    decided  which way the program went from there to the next step
    """

    number: int
    kind: str
    name: str
    line: str
    prompt: str
    result: str
    tokens: tuple[int, int] | None = None
    source: str = "journal"
    decided: list[Decision] = field(default_factory=list[Decision])


@dataclass
class Story:
    """The steps of one run, and how it ended.

    given    its arguments, for people
    whole    False where the program does something else than its journal, or a change cannot be made
    written  who writes the prompts that are shown, if that is not the journal's backend: another chat template, other prompts
    decided  which way the program went before the first step
    """

    program: str
    backend: str
    item: int
    steps: list[Step]
    end: str
    given: str = ""
    whole: bool = True
    written: str = ""
    decided: list[Decision] = field(default_factory=list[Decision])

    @property
    def title(self) -> str:
        return f"run {self.item} of {self.program}({self.given}) on {self.backend}: {self.end}"

    @property
    def totals(self) -> str:
        """How much was asked and called."""
        tokens = [step.tokens for step in self.steps if step.tokens is not None]
        calls = sum(step.kind == "effect" for step in self.steps)
        now = sum(step.source == "now" for step in self.steps)
        return (f"{_several(len(self.steps) - calls, 'answer')} ({sum(t[0] for t in tokens)} tokens of prompts, {sum(t[1] for t in tokens)} of answers), "
                f"{_several(calls, 'call')} of host code{f'; {now} of these steps now' if now else ''}"
                f"{f'; prompts as {self.written} writes them' if self.written else ''}")  # fmt: skip


@dataclass(frozen=True)
class WhatIf:
    """What is otherwise than in the journal: from step `at` on, answers are asked anew; that step's own is `answer`, if one is given.

    effects  whether calls behind it are made; otherwise the journal answers, and what it does not have ends the run
    """

    at: int
    answer: str | None = None
    effects: bool = False


def listed(path: str | Path, item: int | None = None) -> list[Story]:
    """The runs of a journal (or one of them) from the file alone: no prompts. Raises JournalError."""
    contents = records.read(path)
    return [_listed(contents, number) for number in _numbers(contents, item, path)]


def replayed(path: str | Path, program: Function, backend: Backend, item: int | None = None, change: WhatIf | None = None) -> list[Story]:
    """The runs of a journal (or one of them) made again by the program, with prompts and lines; with `change`, on `backend` from there on.

    Raises JournalError if the journal is not the program's.
    """
    contents = records.read(path)
    found = {"program": program.name, "source": program.digest}
    for name, ours in found.items():
        if contents.header.get(name) != ours:
            raise JournalError(f"{path} is of the program {contents.header.get('program')} with another source than {program.described} has now")
    numbers = _numbers(contents, item, path)
    if change is not None and len(numbers) > 1:
        raise JournalError(f"{path} has {len(numbers)} runs; say which one to change: --item N")
    if change is not None and change.at < 0:
        raise JournalError(f"there is no step {change.at}; steps are counted from 0")
    return [_replayed(contents, Path(path), program, backend, number, change) for number in numbers]


def _numbers(contents: Contents, item: int | None, path: str | Path) -> list[int]:
    if item is None:
        return sorted(contents.records)
    if item not in contents.records:
        raise JournalError(f"{path} has no run {item}; it has {len(contents.records)}, from 0 on")
    return [item]


# -- from the file alone ---------------------------------------------------------------------------------------------


def _listed(contents: Contents, item: int) -> Story:
    known = contents.known(item)
    steps: list[Step] = []
    for entry in known.order:
        number = len(steps)
        if isinstance(entry, Effect):
            steps.append(Step(number, "effect", entry.name, entry.line, entry.shown, _outcome(entry)))
        elif entry[0] == "f":
            steps.append(Step(number, "ask", _place(entry), "", "", f"failed: {_failure(entry[3])}"))
        else:
            steps.append(_answered(number, _place(entry), output_of(entry)))
    end = "cut off" if known.end is None else "finished" if not known.end else ": ".join(known.end[0])
    return Story(str(contents.header.get("program")), str(contents.header.get("backend")), item, steps, end, _given(known.arguments))


def _given(arguments: Any) -> str:
    """The arguments of a run, as far as they are data."""
    try:
        return effects.shown_call((), {str(name): codec.decode(x) for name, x in arguments.items()}) if isinstance(arguments, dict) else "…"
    except codec.BadData:
        return "…"


def _place(record: Record) -> str:
    stream, ordinal = record[1][0]
    return f"{stream}#{ordinal}"


def _answered(number: int, name: str, output: Output) -> Step:
    tokens = output.usage.prompt_tokens, output.usage.completion_tokens
    return Step(number, "ask", name, "", "", "\n".join(output.texts), tokens)


def _outcome(effect: Effect) -> str:
    match effect.outcome:
        case None:
            return "in doubt: begun, and not known to be done"
        case ["value", data, *_]:
            return codec.dumps(data)
        case ["raised", data, *_]:
            return f"raised {_failure(data)}"
        case [kind, what, *_]:
            return f"{kind} {what}"
        case _:
            return "?"


def _failure(data: Any) -> str:
    found = data.get(codec.TAG) if isinstance(data, dict) else None
    return f"{str(found[1]).partition(':')[2]}: {found[4]}" if isinstance(found, list) and len(found) > 4 else codec.dumps(data)


# -- by the program --------------------------------------------------------------------------------------------------


class _Shelf:
    """Stands for a journal that is only read."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self.path, self.contents = path, contents
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    def put(self, item: int, record: Any) -> None:
        """Nothing is written."""

    def add(self, entry: Any) -> None:
        """Nothing is written."""

    def gather(self) -> None:
        """Nothing is written."""

    def sync(self) -> None:
        """Nothing is written."""

    async def synced(self) -> None:
        """Nothing is written."""


class View(durable.RunJournal):
    """The journal of a run that is made again to be looked at: notes each step, and answers as `change` says."""

    def __init__(self, shelf: _Shelf, item: int, change: WhatIf | None, *, elsewhere: bool) -> None:
        super().__init__(cast(Journal, shelf), item)
        self.resumed = True  # also where the run was cut off before anything of it was known
        self.change = change
        self.elsewhere = elsewhere  # on a backend that is not the journal's
        self.over = False  # the journal goes no further
        self.steps: list[Step] = []
        self.decided_first: list[Decision] = []
        self.answers: list[tuple[Step, Result]] = []
        if change is not None:
            self.effects.left = {}

    def decided(self, answer: bool) -> None:
        line, test = _test()
        into = self.steps[-1].decided if self.steps else self.decided_first
        if into and (into[-1].line, into[-1].test, into[-1].answer) == (line, test, answer):
            into[-1].times += 1
        else:
            into.append(Decision(line, test, answer))

    def _is_now(self) -> bool:
        return self.change is not None and (len(self.steps) > self.change.at or (len(self.steps) == self.change.at and self.change.answer is None))

    def ask(self, before: Prompt, ask: Gen | Select, places: Sequence[Ask], send: Callable[[], Prompt], *, other: bool = False) -> Prompt:
        step = Step(len(self.steps), "select" if isinstance(ask, Select) else "gen", str(ask.name), _line(ask.loc), _since(before), "")
        changed = self.change is not None and step.number == self.change.at and self.change.answer is not None
        if changed or self._is_now():
            self._go_on()
            step.source = "changed" if changed else "now"
            text, last = since_last(before)
            after = self._changed(before, ask, places, self.check(text, last, ask, Result())) if changed else send()
            assert after.result is not None
            self.check(text, last, ask, after.result)
        else:
            after = super().ask(before, ask, places, lambda: self._missing(f"asks for {ask.name!r}", ask.loc), other=other)
        self.steps.append(step)
        assert after.result is not None
        self.answers.append((step, after.result))
        return after

    def _find(self, places: Sequence[Ask], digest: int) -> Record | None:
        """Elsewhere another template writes the prompts, so that what was asked is known by its place, if that has one answer."""
        found = super()._find(places, digest)
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
            raise self._stop(f"step {self.change.at} chooses one of {list(ask.choices)}, not {text!r}", ask.loc)
        record = self._find(places, digest)
        old = Output((text,), ({},)) if record is None or record[0] == "f" else self.output(record)
        result = Result()
        result.finish(replace(old, texts=(text, *old.texts[1:]), ids=()))
        return Prompt(before, (), result, before.handle, (*before.tail, Given(text)))

    def _begin(
        self, stream: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], loc: Loc | None, *, ordered: bool
    ) -> tuple[int, Effect | None]:
        number, known = super()._begin(stream, name, args, kwargs, loc, ordered=ordered)
        shown = effects.shown_call(args, kwargs)
        if self.change is not None and self.change.answer is not None and len(self.steps) == self.change.at:
            raise self._stop(f"step {self.change.at} is a call of {name}; only what the model was asked can have another answer", loc)
        if self.change is not None and self.change.effects and len(self.steps) > self.change.at:
            self.steps.append(Step(len(self.steps), "effect", name, _line(loc), shown, "called", source="now"))
            return number, None
        if known is None:
            self._missing(f"calls {name}({shown})", loc, "" if self.change is None else "; --run-effects makes such calls")
        assert known is not None
        self.steps.append(Step(len(self.steps), "effect", name, _line(loc), shown, _outcome(known)))
        if known.outcome is None:
            raise self._end(f"{name}({shown}) was begun, and nobody knows whether it was done", loc)
        return number, known

    def _write_outcome(
        self, number: int, fn: Any, name: str, args: Sequence[Any], reached: Any, outcome: tuple[bool, Any], loc: Loc | None
    ) -> None:
        """A call that was made now."""
        ok, value = outcome
        step = next(s for s in reversed(self.steps) if s.kind == "effect" and s.name == name and s.source == "now")
        step.result = f"{value!r:.500}" if ok else f"raised {type(value).__name__}: {value}"

    def _missing(self, what: str, loc: Loc | None, instead: str = "") -> Prompt:
        raise self._end(f"{what}, which is not in the journal{instead}", loc)

    def _end(self, what: str, loc: Loc | None) -> JournalError:
        """The journal goes no further, as that of a run that was killed or of a change."""
        self.over = True
        return self._stop(what, loc)

    def _stop(self, what: str, loc: Loc | None) -> JournalError:
        error = JournalError(what, loc=loc)
        self.broken = self.broken or error
        return error


def _line(loc: Loc | None) -> str:
    return "" if loc is None else str(loc)


def _test() -> tuple[str, str]:
    """File and line of the test that the program has come to, and its source in one line."""
    frame = program_frame()
    file, at = frame.f_code.co_filename, frame.f_lineno
    first, last, begin, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None))
    if first is None or last is None or begin is None or end is None:
        return f"{file}:{at}", linecache.getline(file, at).strip()
    lines = [linecache.getline(file, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]  # columns count bytes
    case = "case " if lines[0].lstrip().startswith(b"case ") else ""
    lines[0] = lines[0][begin:]
    return f"{file}:{first}", case + " ".join(line.decode().strip() for line in lines)


def _since(before: Prompt) -> str:
    """What a prompt has behind its last answer."""
    parts: list[str] = []
    node: Prompt | None = before
    while node is not None and node.result is None:
        parts.append("".join([p.text() if isinstance(p, Excerpt) else plain((p,)) for p in node.parts if not _is_picture(p)]))  # type: ignore[arg-type]
        node = node.parent
    return "".join(reversed(parts))


def _is_picture(part: Any) -> bool:
    return type(part).__name__ in ("Image", "Given")


def _replayed(contents: Contents, path: Path, program: Function, backend: Backend, item: int, change: WhatIf | None) -> Story:
    known = contents.known(item)
    if known.arguments is None:
        raise JournalError(f"{path}: the arguments of run {item} are too large to be in it")
    try:
        given = {name: codec.decode(data) for name, data in known.arguments.items()}
        sampling = {name: codec.decode(data) for name, data in contents.header.get("sampling", {}).items()}
        defaults = replace(SamplingParams(), **sampling)
    except (codec.BadData, TypeError) as error:
        raise JournalError(f"{path}: the arguments of run {item} are not data: {error}") from None
    recorded, ours = str(contents.header.get("backend")), backend.capabilities.name
    view = View(_Shelf(path, contents), item, change, elsewhere=recorded != ours)
    state = State(LiveEmitter(Run(backend, defaults, contents.header["seed"], item, journal=view)), name=program.name)
    bound = program.signature.bind(None, **{k: v for k, v in given.items() if k in program.params})
    end = "finished"
    try:
        program._call(state, bound)
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
    return Story(program.name, on, item, view.steps, end, _given(known.arguments), view.broken is None or view.over, ours if view.elsewhere else "", view.decided_first)


# -- for people and programs -----------------------------------------------------------------------------------------


def to_json(stories: Sequence[Story]) -> str:
    return _written("\n".join(json.dumps(asdict(story), ensure_ascii=False) for story in stories))


def to_text(stories: Sequence[Story]) -> str:
    lines: list[str] = []
    for story in stories:
        lines += [story.title, f"      {story.totals}", *_ways(story.decided)]
        for step in story.steps:
            tokens = "" if step.tokens is None else f"  [{step.tokens[0]}+{step.tokens[1]} tokens]"
            source = "" if step.source == "journal" else f"  ({step.source})"
            call = f"{step.name}({step.prompt})" if step.kind == "effect" else f"{step.kind} {step.name}"
            lines.append(f"{step.number:4}  {_near(step.line) or '-'}  {call}{tokens}{source}")
            if step.kind != "effect" and step.prompt:
                lines += [f"        | {line}" for line in step.prompt.splitlines()]
            lines += [f"        > {line}" for line in (step.result.splitlines() or [""])]
            lines += _ways(step.decided)
    return _written("\n".join(lines))


def _written(text: str) -> str:
    """Text that can be written in UTF-8: lone surrogates, which Python's text may have, are spelled \\udxxx, as JSON does."""
    return text.encode("utf-8", "backslashreplace").decode()


def _ways(decided: Sequence[Decision]) -> list[str]:
    return [f"        ? {d.test}: {d.answer}{f', {d.times} times' if d.times > 1 else ''}  ({_near(d.line)})" for d in decided]


def _near(line: str) -> str:
    """A file and line, from here if that is shorter."""
    file, colon, number = line.rpartition(":")
    try:
        return min(line, os.path.relpath(file) + colon + number, key=len) if file else line
    except ValueError:  # another drive
        return line


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def to_html(stories: Sequence[Story], title: str) -> str:
    """One page that asks nobody for anything and runs no script; whatever comes from a run is escaped."""
    parts: list[str] = []
    for story in stories:
        rows = "".join(
            f"<tr class={step.kind}><td class=n>{step.number}<td>{escape(_near(step.line))}<td>{escape(step.kind)}<td>{escape(step.name)}"
            f"<td><pre>{escape(step.prompt)}</pre><td><pre>{escape(step.result)}</pre>"
            f"<td>{_listed_ways(step.decided)}<td class=n>{'' if step.tokens is None else f'{step.tokens[0]}+{step.tokens[1]}'}<td>{escape(step.source)}"
            for step in story.steps
        )
        parts.append(
            f"<details{' open' if len(stories) == 1 else ''}><summary>{escape(story.title)}</summary><p>{escape(story.totals)}</p>{_listed_ways(story.decided)}<table>"
            f"<tr><th>step<th>line<th>kind<th>name<th>prompt, or arguments<th>answer, or result<th>decided then<th>tokens"
            f"<th>from{rows}</table></details>")
    return _written(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'unsafe-inline'; img-src data:\"><title>{escape(title)}</title><link rel=\"icon\" href=\"data:,\"><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n")


def _listed_ways(decided: Sequence[Decision]) -> str:
    return f"<pre>{escape(chr(10).join(way.strip() for way in _ways(decided)))}</pre>" if decided else ""


_STYLE = """:root{color-scheme:light dark}body{margin:0;padding:1.2rem 1.5rem;background:light-dark(#fff,#16181c);color:light-dark(#1b1b1b,#e4e4e4);
font:14px/1.45 system-ui,sans-serif}h1{font-size:1.3rem}summary{cursor:pointer;margin:.6rem 0}table{border-collapse:collapse}
td,th{padding:2px 12px 2px 0;text-align:left;vertical-align:top;border-bottom:1px solid light-dark(#d4d4d8,#42454c)}.n{text-align:right}
pre{margin:0;white-space:pre-wrap;max-width:46ch;font:12px/1.4 ui-monospace,monospace}tr.gen,tr.select,tr.ask{background:light-dark(#fff1d6,#4a3a14)}
tr.effect{background:light-dark(#ffe3e3,#4d2020)}"""
