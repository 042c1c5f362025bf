"""`lmc.Journal`: a journal as passed to a program (path, key, retention), and what a person does with one. The command
line prints this."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from lmc import codec
from lmc.backend.api.submitted import SubmittedWaves
from lmc.durable import records, rewriting, steps
from lmc.durable.call_records import arguments_digest
from lmc.durable.cipher import Key, check_key
from lmc.durable.groups import Record
from lmc.durable.opening import batches_of
from lmc.durable.records import Contents, Effect, Known
from lmc.errors import ArgumentError, JournalError, ParameterError
from lmc.fsm.json_schema import why_invalid
from lmc.tracebacks import users_frames


@dataclass(frozen=True)
class PendingQuestion:
    """An open point that waits for a person: a question of the program, or a call not known to have been made.

    item      number of the run;  number  among its effects
    question  "" for a call in doubt;  schema  JSON schema of the answer, "" for a text
    call      the call, for people;  line  where the program makes it;  since  when it was asked, in seconds since 1970; 0 for a call
    """

    item: int
    number: int
    question: str
    schema: str
    call: str
    line: str
    since: int


@dataclass(frozen=True)
class RunStatus:
    """One run of a journal.

    status   "finished", "failed", "waiting" (for an answer), "in doubt", "cut off" (interrupted, cancelled, killed, or running), "deleted"
    error    what it failed with;  ended  when it was over, in seconds since 1970, else 0
    waiting  questions, and calls in doubt
    """

    item: int
    program: str
    status: str
    answers: int
    effects: int
    error: str
    ended: int
    waiting: tuple[PendingQuestion, ...]


@dataclass(frozen=True)
class Wave:
    """Requests submitted to a batch API together.

    backend  its name;  requests: how many;  since: when they were submitted, in seconds since 1970
    batch    the server's id; None: about to be submitted, not known whether it was
    failed   how many got no answer; None: the process that waited for it ended first
    """

    backend: str
    requests: int
    batch: str | None
    since: float
    failed: int | None


class Journal:
    """A journal: `program(…, journal=lmc.Journal(path, key=…, keep=…, with_media=…))`, and its inspection and editing
    between two runs.

    path  of a file, for a batch of a directory
    key   the journal is encrypted with it: 32 random bytes, or a passphrase. Needs the extra `journals`
    keep  how long the contents of runs that ended well are kept (seconds, or a timedelta): older ones are deleted when a run opens the journal. None: for ever
    with_media  whether files of pictures and videos that the program gives by path go into the journal, so that the run can be resumed and
          replayed where they are gone; otherwise it has their hashes alone, and notices that they have changed
    """

    def __init__(self, path: str | os.PathLike[str], *, key: Key | None = None, keep: float | timedelta | None = None, with_media: bool = False) -> None:
        if not (isinstance(path, str | os.PathLike) and path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"lmc.Journal({path!r}): must be the path of a file (for a batch, of a directory)")
        self.path = Path(path)
        self._key = None if key is None else check_key(key)
        self.with_media = with_media
        self.keep = keep.total_seconds() if isinstance(keep, timedelta) else keep
        if self.keep is not None and not self.keep >= 0:
            raise ParameterError(f"keep={keep!r}: must be seconds or a timedelta")

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __repr__(self) -> str:
        return f"lmc.Journal({str(self.path)!r}{', key=…' if self._key is not None else ''}{f', keep={self.keep:g}' if self.keep is not None else ''})"

    @property
    def options(self) -> Mapping[str, Any]:
        """Return a run's journal options besides the path."""
        return {"key": self._key, "keep": self.keep, "with_media": self.with_media}

    def read(self) -> Contents:
        """Read the file. Raises JournalError."""
        return records.read(self.path, self._key)

    def waves(self) -> list[Wave]:
        """Return the waves submitted to batch APIs (`deadline="24h"`), oldest first. Raises JournalError."""
        waves = SubmittedWaves(batches_of(records.find(self.path))).waves.values()
        return [Wave(wave.name, len(wave.ids), wave.batch, wave.since, wave.over) for wave in waves]

    def runs(self) -> list[RunStatus]:
        """Return each run, with its open points. Raises JournalError."""
        contents = self.read()
        return [_status(contents, item) for item in sorted(contents.records)]

    def waiting(self) -> list[PendingQuestion]:
        """Return questions without an answer, and calls in doubt. Raises JournalError."""
        return [each for run in self.runs() for each in run.waiting]

    # -- what a person decides

    @users_frames
    def answer(self, answer: Any, item: int | None = None, number: int | None = None) -> PendingQuestion:
        """Answer a question of `lmc.interrupt`: the next call with this journal goes on with it. `item` and `number`
        select one of several.

        Returns the answer. Raises JournalError; ArgumentError for an answer that its schema does not allow.
        """
        return self._decide(item, number, "question", lambda w: [["r", w.number, "value", _checked(answer, w)]])

    @users_frames
    def resolve(self, result: Any = None, item: int | None = None, number: int | None = None, *, error: BaseException | None = None) -> PendingQuestion:
        """Record that a call in doubt happened: it gave `result`, or raised `error`. The run continues after it.

        item, number  of the call, as `lmc journal list` shows them; may be left out if only one is in doubt

        Raises JournalError; ArgumentError for a result that is not data.
        """

        def outcome(w: PendingQuestion) -> list[Record]:
            try:
                return [["r", w.number, "value" if error is None else "raised", codec.encode(result if error is None else error)]]
            except codec.NotData as what:
                raise ArgumentError(f"a journal cannot hold {what}") from None

        return self._decide(item, number, "doubt", outcome)

    @users_frames
    def retry(self, item: int | None = None, number: int | None = None) -> PendingQuestion:
        """Record that a call in doubt did not happen, or that one that raised is to be repeated: the run makes it when
        it is resumed. `item` and `number` are those of `resolve`. Raises JournalError."""
        return self._decide(item, number, "retry", lambda w: [["u", w.number]])

    def _decide(self, item: int | None, number: int | None, what: str, make: Any) -> PendingQuestion:
        found: list[PendingQuestion] = []

        def chosen(contents: Contents) -> list[tuple[int, Record]]:
            items = sorted(contents.records) if item is None else steps.numbers_of(contents, item, self.path)
            may = [_waiting(i, effect) for i in items for effect in _candidates(contents.known(i), what) if number is None or effect.number == number]
            if len(may) != 1:
                raise JournalError(f"{self.path}: {_NOTHING[what] if not may else 'say which: ' + '; '.join(_which(w) for w in may[:5])}")
            found.extend(may)
            return [(may[0].item, record) for record in make(may[0])]

        rewriting.append(self.path, self._key, chosen)
        return found[0]

    # -- the file

    @users_frames
    def compact(self, keep: float | timedelta | None = None, *, new_key: Key | None = None) -> tuple[int, int, int]:
        """Rewrite the file without records that no run needs, and without the contents of runs that ended well more
        than `keep` ago.

        `new_key`: encrypt it with this key from now on. Returns bytes before, bytes after, and how many runs were
        deleted. Raises JournalError.
        """
        seconds = keep.total_seconds() if isinstance(keep, timedelta) else keep
        return rewriting.compact(self.path, self._key, self.keep if seconds is None else seconds, new_key=None if new_key is None else check_key(new_key))

    @users_frames
    def export(self, item: int | None = None) -> Iterator[dict[str, Any]]:
        """Return each run, or that of one `item`, as data for other programs: arguments, answers, effects and end. Values
        that JSON lacks are encoded as in the journal. Raises JournalError."""
        contents = self.read()
        for number in steps.numbers_of(contents, item, self.path):
            yield _exported(contents, number)


def _status(contents: Contents, item: int) -> RunStatus:
    known = contents.known(item)
    waiting = tuple(_waiting(item, effect) for effect in known.open)
    status = ("deleted" if known.deleted else "waiting" if any(w.question for w in waiting) else "in doubt" if waiting else "cut off" if known.cut_off
              else "failed" if known.end else "finished")  # fmt: skip
    error = ": ".join(known.end[0]) if known.end and status == "failed" else ""
    asked = sum(not isinstance(entry, Effect) for entry in known.order)
    return RunStatus(item, str(contents.header.get("program")), status, asked, len(known.effects), error, known.ended, waiting)


def _candidates(known: Known, what: str) -> list[Effect]:
    """Return the effects that a person may decide about."""
    if what == "question":
        return [effect for effect in known.open if effect.question is not None]
    doubtful = [effect for effect in known.open if effect.doubtful]
    if what == "retry" and known.end and known.end[0][0] == JournalError.__name__ and (made := _not_awaited(known)):
        return [*made, *doubtful]
    if what == "doubt" or doubtful:
        return doubtful
    if not known.end:
        return []
    raised = [effect for effect in known.effects.values() if effect.outcome is not None and effect.outcome[0] == "raised"]
    return raised[-1:]


def _not_awaited(known: Known) -> list[Effect]:
    """Return the effects that have given a coroutine of which there is no result, unless something else has awaited it."""
    ended = [(effect, effect.outcome) for effect in known.effects.values() if effect.outcome is not None]
    awaited = {(effect.call.name, effect.call.digest) for effect, _ in ended}
    made = [effect for effect, outcome in ended if [*outcome[:2]] == ["awaitable", "coroutine"]]
    return [effect for effect in made if (f"await {effect.name}", arguments_digest((effect.number,), {}, [])) not in awaited]


_NOTHING = {
    "question": "no question waits for an answer",
    "doubt": "no call is in doubt",
    "retry": "no call is in doubt, and no run failed after a call that raised; a run that failed otherwise resumes when it is called again",
}


def _waiting(item: int, effect: Effect) -> PendingQuestion:
    question, schema, since = effect.question or ("", "", 0)
    return PendingQuestion(item, effect.number, question, schema, f"{effect.name}({effect.shown})", effect.line, since)


def _which(waiting: PendingQuestion) -> str:
    return f"item {waiting.item}, effect {waiting.number}: {waiting.question or waiting.call}"


def _checked(answer: Any, waiting: PendingQuestion) -> Any:
    """Return an answer as JSON. Raises ArgumentError."""
    if not waiting.schema:
        if not isinstance(answer, str):
            raise ArgumentError(f"the answer to {waiting.question!r} must be text, not {answer!r:.80}")
        return answer
    try:
        text = json.dumps(answer, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"the answer to {waiting.question!r} is JSON: {error}") from None
    if (why := why_invalid(waiting.schema, text)) is not None:
        raise ArgumentError(f"{text:.80} is not an answer to {waiting.question!r}: {why}")
    return codec.encode(json.loads(text))


def _exported(contents: Contents, item: int) -> dict[str, Any]:
    known, status = contents.known(item), _status(contents, item)
    found: list[dict[str, Any]] = []
    for entry in known.order:
        if isinstance(entry, Effect):
            kind, *outcome = entry.outcome or ("waiting" if entry.question is not None else "in doubt" if entry.begun else "not begun",)
            found.append({"kind": "effect", "number": entry.number, "name": entry.name, "arguments": entry.shown, "line": entry.line, "outcome": kind,
                          "result": outcome[0] if outcome else None, "failed_attempts": entry.failed,
                          **({"question": entry.question[0]} if entry.question is not None else {})})  # fmt: skip
        elif entry[0] == "f":
            found.append({"kind": "failure", "places": entry[1], "error": entry[3]})
        else:
            found.append({"kind": "answer", "places": entry[1], "texts": entry[3], "meta_infos": entry[4], "usage": entry[5]})
    return {
        "item": item, "program": status.program, "source": contents.header.get("source"), "backend": contents.header.get("backend"),
        "seed": contents.header["seed"], "status": status.status, "error": status.error, "ended": status.ended, "arguments": known.arguments, "steps": found,
    }  # fmt: skip
