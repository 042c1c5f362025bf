"""A trace of runs for Perfetto or chrome://tracing: when each request and pass of the model happened, side by side.

A process for each run, in it a track for each branch of the program and one for what was asked ahead and not used; a process for the
engine. Events of a track never overlap unless one is inside of the other, because viewers do not show that.
Format: "Trace Event Format" of Chromium (JSON object form); times in microseconds.
"""

from __future__ import annotations

import json
import linecache
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from lmc import arguments
from lmc.backend import recording
from lmc.backend.recording import EventRecorder, RecordedPass, RecordedRun
from lmc.errors import Loc, ParameterError, ProgramError

Event = dict[str, Any]
ENGINE = 1
"""The process of the engine; those of runs follow."""


@contextmanager
def trace(path: str | os.PathLike[str] | TextIO) -> Iterator[EventRecorder]:
    """Record all compiled runs in this block, of any thread, and write them to `path`, a file's name or an open text
    file, as a Chrome trace (JSON).

    Open it at ui.perfetto.dev or chrome://tracing. It holds times, token counts and source lines, no prompts and no
    answers. The interpreter's requests appear in the engine's batches only. Written even if the block raises. Raises
    ProgramError inside of another `trace`, ParameterError when the file cannot be written, as far as can be before the block runs.
    """
    target: Any = path if hasattr(path, "write") else _writable(arguments.path("path", path))
    if recording.recorder is not None:
        raise ProgramError("lmc.trace(…) inside another one: only one can record at a time")
    recorder = recording.recorder = EventRecorder()
    try:
        yield recorder
    finally:
        recording.recorder = None
        text = to_json(recorder)
        try:
            if isinstance(target, Path):
                target.write_text(text, encoding="utf-8")
            else:
                target.write(text)
        except OSError as error:
            raise ParameterError(f"cannot write {path}: {error.strerror}") from None


def _writable(path: Path) -> Path:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ParameterError(f"cannot write {path}: {'it is a folder' if path.is_dir() else f'there is no folder {path.parent}'}")
    if not arguments.may_write(path):
        raise ParameterError(f"cannot write {path}: you may not write there")
    return path


def to_json(recorder: EventRecorder) -> str:
    """Return the trace as text, one event a line."""
    lines = ",\n".join(json.dumps(event) for event in events(recorder))
    return f'{{"displayTimeUnit": "ms", "otherData": {{"producer": "lmc"}}, "traceEvents": [\n{lines}\n]}}\n'


def events(recorder: EventRecorder) -> list[Event]:
    """Return all events: names of processes and tracks first, then by time."""
    names: list[Event] = []
    found: list[Event] = []
    clock = _TraceClock(recorder.began)
    names += _named(ENGINE, "engine", 0)
    found += _batches(recorder.batches, clock, names)
    found += _in_flight(recorder.runs, clock)
    flows = iter(range(1, 1 << 60))
    for order, run in enumerate(sorted(recorder.runs, key=lambda r: (r.began, r.item)), 1):
        found += _run(run, ENGINE + order, clock, names, flows)
    return names + sorted(found, key=lambda e: e["ts"])


class _TraceClock:
    """Microseconds since the start, to the nanosecond."""

    def __init__(self, zero: float) -> None:
        self._zero = zero

    def __call__(self, at: float) -> float:
        return max(0.0, round((at - self._zero) * 1e6, 3))

    def span(self, began: float, ended: float) -> dict[str, float]:
        start, end = self(began), self(ended)
        return {"ts": start, "dur": round(max(0.0, end - start), 3)}


def _named(pid: int, name: str, order: int) -> list[Event]:
    return [
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": order}},
    ]


def _track(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


# -- the engine ----------------------------------------------------------------------------------------------------


def _batches(batches: Sequence[RecordedPass], clock: _TraceClock, names: list[Event]) -> Iterator[Event]:
    if not batches:
        return
    names.append(_track(ENGINE, 1, "passes on the device"))
    end = 0.0
    for number, b in enumerate(sorted(batches, key=lambda b: b.ended)):
        began = max(b.began, end)  # a pass launched ahead begins on the device when the one before it ends
        end = b.ended
        at = {"pid": ENGINE, "tid": 0, "ts": clock(began)}
        args = {"rows": b.rows, "requests": b.requests, "prefill": b.prefill, "decode": b.decode, "scores": b.scored,
                "waiting": b.waiting, "free_slots": b.free, "device_ms": round(b.device * 1e3, 3)}  # fmt: skip
        kind = "mixed" if b.prefill and b.decode else "prefill" if b.prefill else "decode"
        yield {"ph": "X", "cat": "pass", "name": f"pass {number}: {kind}", "pid": ENGINE, "tid": 1, **clock.span(began, end), "args": args}
        yield {"ph": "C", "name": "rows of a pass", **at, "args": {"prefill": b.prefill, "decode": b.decode}}
        yield {"ph": "C", "name": "KV slots", **at, "args": {"used": b.slots - b.free}}
        yield {"ph": "C", "name": "tokens from the cache", **at, "args": {"tokens": b.cached}}


def _in_flight(runs: Iterable[RecordedRun], clock: _TraceClock) -> Iterator[Event]:
    """Yield the number of answers being waited for, also for backends that report no passes."""
    changes: list[tuple[float, int]] = []
    for run in runs:
        for _, began, ended in _times(run):
            changes += [(clock(began), 1), (clock(ended), -1)]
    now = 0
    for at, change in sorted(changes):
        now += change
        yield {"ph": "C", "name": "answers awaited", "pid": ENGINE, "tid": 0, "ts": at, "args": {"answers": max(0, now)}}


# -- a run ---------------------------------------------------------------------------------------------------------


def _times(run: RecordedRun) -> list[tuple[Any, float, float]]:
    """Return the records of arrived answers, with request and arrival times; in that order."""
    found = [(record, spent[1], spent[2]) for record in run.records() if (spent := record.result.spent) is not None]
    return sorted(found, key=lambda timed: timed[1:])


def _run(run: RecordedRun, pid: int, clock: _TraceClock, names: list[Event], flows: Iterator[int]) -> Iterator[Event]:
    times = _times(run)
    end = max([run.began, *(ended for _, _, ended in times)])
    names += _named(pid, f"{run.name} [{run.item}]", pid)
    names.append(_track(pid, 0, "run"))
    failure = run.failure()
    ended = {"requests": len(times), **({} if failure is None else {"ended": f"raised {type(failure).__name__}"})}
    yield {"ph": "X", "cat": "program", "name": run.name, "pid": pid, "tid": 0, **clock.span(run.began, end), "args": ended}
    lanes = _Lanes(pid, names)
    latest: dict[str, tuple[Event, float]] = {}  # by branch, the last request and the arrival of its answer
    for record, began, ended in times:
        stream, usage = record.address[2], record.result.usage
        if stream in latest and record.ahead != "wasted":  # its prompt ends with that answer
            began = min(max(began, latest[stream][1]), ended)
        span = clock.span(began, ended)
        args = {**_source(record.loc), "prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens,
                "generated_tokens": usage.completion_tokens, "forced_tokens": usage.forced_tokens, "passes": usage.passes, "ahead": record.ahead}  # fmt: skip
        track = "asked ahead and not used" if record.ahead == "wasted" else f"branch {stream}" if stream else "main branch"
        event = {"ph": "X", "cat": "op", "name": f"{record.kind} {record.name or ''}".strip(), "pid": pid, "tid": lanes.of(track, span), **span, "args": args}
        yield event
        if record.ahead == "wasted":
            continue
        if stream not in latest and (above := latest.get(stream.rpartition("/")[0])) is not None and stream:
            yield from _flow("fork", above[0], event, flows)
        latest[stream] = event, ended


def _source(loc: Loc | None) -> dict[str, str]:
    if loc is None:
        return {}
    return {"source": loc.short, "line": linecache.getline(loc.file, loc.line).strip()}


def _flow(name: str, start: Event, end: Event, flows: Iterator[int]) -> Iterator[Event]:
    """Return an arrow from the end of one event to the beginning of another."""
    number = next(flows)
    tie = {"cat": "flow", "name": name, "id": number}
    yield {"ph": "s", **tie, "pid": start["pid"], "tid": start["tid"], "ts": min(round(start["ts"] + start["dur"], 3), end["ts"])}
    yield {"ph": "f", "bp": "e", **tie, "pid": end["pid"], "tid": end["tid"], "ts": end["ts"]}


class _Lanes:
    """Tracks by name; a further one where an event would overlap another. Events of a name must come in order of their
    beginnings, or more lanes than needed are made."""

    def __init__(self, pid: int, names: list[Event]) -> None:
        self._pid, self._names = pid, names
        self._tracks: dict[str, list[tuple[int, list[tuple[float, float]]]]] = {}
        self._next = 1

    def of(self, name: str, span: dict[str, float]) -> int:
        start, end = span["ts"], span["ts"] + span["dur"]
        lanes = self._tracks.setdefault(name, [])
        for tid, taken in lanes:
            if all(end <= a or b <= start for a, b in reversed(taken)):
                taken.append((start, end))
                return tid
        tid, self._next = self._next, self._next + 1
        lanes.append((tid, [(start, end)]))
        self._names.append(_track(self._pid, tid, name if len(lanes) == 1 else f"{name} ({len(lanes)})"))
        return tid
