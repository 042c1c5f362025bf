"""Journal inspection: the steps of a run, from the file alone, and their rendering. lmc.durable.viewer makes them by
the program."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from lmc import codec, json_data, pages
from lmc.durable import call_records, records
from lmc.durable.cipher import Key
from lmc.durable.groups import Record, output_of
from lmc.durable.records import Contents, Effect
from lmc.errors import JournalError
from lmc.pages import quoted, several


@dataclass
class TakenBranch:
    """The outcome of a test in a run: of `if`, `while`, `assert`, a `case`, a comprehension. Consecutive equal ones are
    merged.

    line  its source line;  test  its source text;  answer  its outcome;  times  how often
    """

    line: str
    test: str
    answer: bool
    times: int = 1


@dataclass
class RunStep:
    """One request or one effect of a run.

    kind     "gen", "select", "effect" or "ask" (if the program is not available to tell which)
    line     its source line;  name  of the variable, or of the callee
    prompt   the prompt's text since the last answer; of an effect its arguments
    result   the answer, or the call's result or exception;  tokens  of prompt and answer
    source   "journal", "changed" or "now"
    decided  outcomes of tests from there to the next step
    pictures thumbnails of the prompt's pictures, as data URLs; in `prompt` they are named by their hash
    """

    number: int
    kind: str
    name: str
    line: str
    prompt: str
    result: str
    tokens: tuple[int, int] | None = None
    source: str = "journal"
    decided: list[TakenBranch] = field(default_factory=list[TakenBranch])
    pictures: list[str] = field(default_factory=list[str])


@dataclass
class Story:
    """The steps of one run, and its end.

    given    its arguments, for people
    whole    False if the program diverges from its journal, or a change cannot be made
    written  backend that renders the shown prompts, if not the journal's: another chat template, other prompts
    decided  outcomes of tests before the first step
    """

    program: str
    backend: str
    item: int
    steps: list[RunStep]
    end: str
    given: str = ""
    whole: bool = True
    written: str = ""
    decided: list[TakenBranch] = field(default_factory=list[TakenBranch])

    @property
    def title(self) -> str:
        return f"run {self.item} of {self.program}({self.given}) on {self.backend}: {self.end}"

    @property
    def totals(self) -> str:
        """Return totals of the requests and calls."""
        tokens = [step.tokens for step in self.steps if step.tokens is not None]
        calls = sum(step.kind == "effect" for step in self.steps)
        now = sum(step.source == "now" for step in self.steps)
        return (
            f"{several(len(self.steps) - calls, 'answer')} "
            f"({several(sum(t[0] for t in tokens), 'prompt token')}, {several(sum(t[1] for t in tokens), 'token')} generated), "
            f"{several(calls, 'call')} of host code{f'; {now} of these steps now' if now else ''}"
            f"{f'; prompts as {self.written} writes them' if self.written else ''}"
        )


def listed(path: str | Path, item: int | None = None, key: Key | None = None) -> list[Story]:
    """Return the runs of a journal (or one of them) from the file alone: no prompts. Raises JournalError."""
    return listed_in(records.read(path, key), item, path)


def listed_in(contents: Contents, item: int | None, path: str | Path) -> list[Story]:
    """As `listed`, for a journal that was read."""
    return [_listed(contents, number) for number in numbers_of(contents, item, path)]


def numbers_of(contents: Contents, item: int | None, path: str | Path) -> list[int]:
    if item is None:
        return sorted(contents.records)
    if item not in contents.records:
        raise JournalError(f"{path} has no run {item}; it has {len(contents.records)}, from 0 on")
    return [item]


# -- from the file alone ---------------------------------------------------------------------------------------------


def _listed(contents: Contents, item: int) -> Story:
    known = contents.known(item)
    steps: list[RunStep] = []
    for entry in known.order:
        number = len(steps)
        if isinstance(entry, Effect):
            steps.append(RunStep(number, "effect", entry.name, entry.line, entry.shown, outcome_of(entry)))
        elif entry[0] == "f":
            steps.append(RunStep(number, "ask", _place(entry), "", "", f"failed: {_failure(entry[3])}"))
        else:
            output = output_of(entry)
            tokens = output.usage.prompt_tokens, output.usage.completion_tokens
            steps.append(RunStep(number, "ask", _place(entry), "", "", "\n".join(output.texts), tokens))
    waiting = bool(steps) and steps[-1].result == _WAITS
    end = _WAITS if known.end is None and waiting else "cut off" if known.cut_off else "finished" if not known.end else ": ".join(known.end[0])
    return Story(str(contents.header.get("program")), str(contents.header.get("backend")), item, steps, end, shown_arguments(known.arguments))


def shown_arguments(arguments: Any) -> str:
    """Return the arguments of a run, as far as they are data."""
    try:
        return call_records.shown_call((), {str(name): codec.decode(x) for name, x in arguments.items()}) if isinstance(arguments, dict) else "…"
    except codec.BadData:
        return "…"


def _place(record: Record) -> str:
    stream, ordinal = record[1][0]
    return f"{stream}#{ordinal}"


_WAITS = "waits for a person's answer"


def outcome_of(effect: Effect) -> str:
    match effect.outcome:
        case None if effect.question is not None:
            return _WAITS
        case None if not effect.begun:
            return f"failed {effect.failed} times, and not made again yet"
        case None:
            return "in doubt: begun, and not known to be done"
        case ["value", {codec.TAG: ["bytes", str(file)]}, *_]:  # of an image or a video: megabytes, if shown
            data = base64.b64decode(file)
            return f"{len(data)} bytes, {hashlib.blake2b(data, digest_size=16).hexdigest()[:8]}"
        case ["value", data, *_]:
            return json_data.dumps(data)
        case ["raised", data, *_]:
            return f"raised {_failure(data)}"
        case ["cancelled", *_]:
            return "cancelled by the program"
        case ["opaque", str(cls), *_]:
            return f"{call_records.a_result(cls)}, and it or what the call changed is not in the journal"
        case [kind, what, *_]:
            return f"{kind} {what}"
        case _:
            return "?"


def _failure(data: Any) -> str:
    found = data.get(codec.TAG) if isinstance(data, dict) else None
    return f"{str(found[1]).partition(':')[2]}: {found[4]}" if isinstance(found, list) and len(found) > 4 else json_data.dumps(data)


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
    """Return text that can be encoded in UTF-8: lone surrogates, which Python's text may have, are spelled \\udxxx, as
    JSON does."""
    return text.encode("utf-8", "backslashreplace").decode()


def _ways(decided: Sequence[TakenBranch]) -> list[str]:
    return [f"        ? {d.test}: {d.answer}{f', {d.times} times' if d.times > 1 else ''}  ({_near(d.line)})" for d in decided]


def _near(line: str) -> str:
    """Return a file and line, relative to the working directory if that is shorter."""
    file, colon, number = line.rpartition(":")
    try:
        return min(line, os.path.relpath(file) + colon + number, key=len) if file else line
    except ValueError:  # another drive
        return line


def to_html(stories: Sequence[Story], title: str) -> str:
    """Render one page that loads nothing else and runs no script; text from a run is escaped."""
    body = "".join(
        f"<details{' open' if len(stories) == 1 else ''}><summary>{escape(story.title)}</summary><p class=quiet>{escape(story.totals)}</p>"
        f"{_listed_ways(story.decided)}{''.join(map(_shown, story.steps))}</details>"
        for story in stories
    )
    colours = pages.legend(("decode", "asked the model"), ("tool", "called host code"), ("a", "answer"))
    return _written(pages.page(title, f"<h1>{escape(title)}</h1>{colours}{body}"))


def _shown(step: RunStep) -> str:
    """Render a step: its location, its prompt, its result, the outcomes of the tests after it."""
    tokens = "" if step.tokens is None else f"<span class=quiet>{several(step.tokens[0], 'token')} in, {step.tokens[1]} out</span>"
    tag = f'<span class="tag {escape(step.source)}">{escape(step.source)}</span>' if step.source != "journal" else ""
    given = f"<pre class=given>{escape(step.prompt)}</pre>" if step.prompt else ""
    given += "".join(f"<img class=thumb alt=picture src={quoted(url)}>" for url in step.pictures)
    return (
        f'<div class="step {escape(step.kind)}" tabindex=0><header><span class=quiet>{step.number}</span> '
        f"<b class=code>{escape(f'{step.kind} {step.name}'.strip())}</b> {tag}<span class=quiet>{escape(_near(step.line))}</span> {tokens}</header>"
        f"{given}<pre><span class=got>{escape(step.result)}</span></pre>{_listed_ways(step.decided)}</div>"
    )


def _listed_ways(decided: Sequence[TakenBranch]) -> str:
    return f"<pre class=ways>{escape(chr(10).join(way.strip() for way in _ways(decided)))}</pre>" if decided else ""
