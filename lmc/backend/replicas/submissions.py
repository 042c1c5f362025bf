"""Submissions to replicas: what a prompt is made of, where it is, and how its answers arrive from there."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from lmc.backend.api.prefixes import BLOCK, extended
from lmc.backend.base import Hints
from lmc.backend.pipe.client import PipeBackend, PipeHandle
from lmc.backend.placement import PlacementTarget
from lmc.backend.replicas.process import Process
from lmc.backend.results import Output, Result
from lmc.backend.usage import Counters, charge
from lmc.errors import BackendEnded
from lmc.images import digest
from lmc.segments import Gen, Given, Image, Mark, Segment, Select, Special, Text

_CHARACTERS = 4  # of text, for about a token
_PICTURE = 512  # characters that a picture counts


class Owner(Protocol):
    """The backend of a submission, as the submission sees it."""

    def handles(self, submission: ReplicaSubmission) -> list[tuple[Replica, PipeHandle]]: ...

    def leave(self, submission: ReplicaSubmission) -> None: ...

    def answered(self, submission: ReplicaSubmission) -> None: ...

    def move_soon(self, submission: ReplicaSubmission, index: int, error: BaseException) -> None: ...

    def move(self, submission: ReplicaSubmission, index: int, error: BaseException) -> None: ...

    def revive(self, submission: ReplicaSubmission) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Replica(PlacementTarget):
    """One replica."""

    process: Process
    backend: PipeBackend
    counted: Counters = field(default_factory=Counters)  # when they were last asked for

    def counters(self) -> Counters:
        """Return its counters; of one that has ended, the last that are known."""
        with suppress(BackendEnded):
            self.counted = self.backend.counters()
        return self.counted


class ReplicaResult(Result):
    """An answer; keeps its request alive while it may still be read."""

    __slots__ = ("__weakref__", "submission")

    def __init__(self, submission: ReplicaSubmission) -> None:
        super().__init__()
        self.submission: ReplicaSubmission | None = submission


class ReplicaSubmission:
    """A submission: its segments, parent and replica, and its load there until its answers arrive.

    others       of a prefill: its handles in other replicas, for what goes on behind it there
    released     of a prefill: it is pinned no longer, and made nowhere else
    outputs      of its requests, in order; None if not answered yet
    answers      results waiting for these, if still referenced
    keys, rest   keys of the prefixes of the prompt up to here (prefixes.py), and the characters after the last of them
    size, limit  approximate tokens of that prompt, and most of the answers
    """

    __slots__ = (
        "__weakref__", "answers", "cancelled", "cost", "handle", "hints", "keys", "kind", "limit", "moves", "others", "outputs", "owner", "parent", "released",
        "replica", "rest", "segments", "size",
    )  # fmt: skip

    def __init__(self, owner: Owner, kind: str, parent: ReplicaSubmission | None, segments: Sequence[Segment], hints: Hints | None) -> None:
        self.owner, self.kind, self.parent, self.segments, self.hints = owner, kind, parent, tuple(segments), hints
        self.handle: PipeHandle | None = None
        self.replica: Replica | None = None
        self.others: dict[Replica, PipeHandle] = {}
        self.cost, self.moves, self.cancelled, self.released = 0, 0, False, False
        self.keys, self.rest = extended(*(parent.keys, parent.rest) if parent is not None else ((), ""), _text(segments))
        self.size = len(self.keys) * BLOCK + len(self.rest) // _CHARACTERS
        self.limit = sum(s.params.max_new_tokens for s in segments if isinstance(s, Gen))
        self.outputs: list[Output | None] = [None for s in segments if isinstance(s, Gen | Select)]
        self.answers: tuple[weakref.ref[ReplicaResult], ...] = ()

    @property
    def known(self) -> bool:
        """Return whether all its answers have arrived."""
        return None not in self.outputs

    @property
    def written(self) -> list[Segment]:
        """Return its segments, with the answers so far as given."""
        outputs = iter(self.outputs)
        return [
            segment if not isinstance(segment, Gen | Select) or (output := next(outputs)) is None
            else Given(output.text, output.ids if isinstance(segment, Gen) else ())
            for segment in self.segments
        ]  # fmt: skip

    def __del__(self) -> None:
        self.owner.leave(self)


class ReplicaHandle:
    """A prompt in one of the replicas."""

    __slots__ = ("__weakref__", "results", "submission")

    def __init__(self, submission: ReplicaSubmission, results: Sequence[Result]) -> None:
        self.submission, self.results = submission, results

    def cancel(self) -> None:
        """Cancel unfinished parts; their results, and those of everything that depends on them, fail with
        CancelledError."""
        self.submission.cancelled = True
        for _, there in self.submission.owner.handles(self.submission):
            there.cancel()

    def needed(self) -> None:
        """Mark as needed: it was a guess, and is none any longer."""
        submission = self.submission
        if submission.hints is not None:
            submission.hints = submission.hints._replace(guess=False)
        for _, there in submission.owner.handles(submission):
            there.needed()

    def prepared(self) -> None:
        """Wait until the pictures that it adds are prepared, so that requests which these make impossible have failed.
        If a replica ends meanwhile, another prepares them. Raises BackendEnded if none is left."""
        while (handle := self.submission.handle) is not None:
            try:
                return handle.prepared()
            except BackendEnded:
                if not self.submission.cancelled:
                    self.submission.owner.revive(self.submission)
                if self.submission.handle is handle:
                    raise


def fail_answer(answer: ReplicaResult | None, error: BaseException) -> None:
    if answer is not None:
        answer.fail(error)
        answer.submission = None


def history(submission: ReplicaSubmission | None) -> list[Segment]:
    """Return all parts of a prompt, its answers as given."""
    found = list[list[Segment]]()
    while submission is not None:
        found.append(submission.written)
        submission = submission.parent
    return [segment for written in reversed(found) for segment in written]


def is_known(submission: ReplicaSubmission | None) -> bool:
    """Return whether all answers of a prompt have arrived."""
    while submission is not None:
        if not submission.known:
            return False
        submission = submission.parent
    return True


def merged(segments: Sequence[Segment]) -> list[Segment]:
    """Return consecutive texts merged."""
    found = list[Segment]()
    for segment in segments:
        if isinstance(segment, Text) and found and isinstance(before := found[-1], Text):
            found[-1] = Text((*before.parts, *segment.parts))
        else:
            found.append(segment)
    return found


def _text(segments: Sequence[Segment]) -> str:
    """Return the text by which prompts are compared: literal text; an answer only by its position."""
    found = list[str]()
    for segment in segments:
        if isinstance(segment, Text):
            found += [
                p if isinstance(p, str) else p.spelling if isinstance(p, Special) else f"\0{p.role}{p.edge}" if isinstance(p, Mark) else "\0"
                for p in segment.parts
            ]
        elif isinstance(segment, Given):
            found.append(segment.text)
        elif isinstance(segment, Image):
            found.append(f"\0{digest(segment).hex()}".ljust(_PICTURE))
        else:
            found.append(f"\0{segment.seed}")
    return "".join(found)


class Forward:
    """Forwards a remote answer to its local result. On the thread that reads the replica's pipe."""

    __slots__ = ("_index", "_seen", "_submission")

    def __init__(self, submission: ReplicaSubmission, index: int) -> None:
        self._submission, self._index, self._seen = weakref.ref(submission), index, 0

    def __call__(self, result: Result) -> None:
        submission = self._submission()
        if submission is None:
            return
        answer = submission.answers[self._index]()
        if answer is not None:
            for piece in result.pieces(self._seen):
                answer.feed(*piece)
                self._seen += 1
        if not result.done:
            return
        if result.error is None:
            submission.outputs[self._index] = output = result.output()
            if submission.hints is not None:  # accounts are of this process
                charge(submission.hints.owner, output.usage)
        elif submission.replica is not None and submission.replica.backend.lost is not None and not submission.cancelled:
            return submission.owner.move_soon(submission, self._index, result.error)
        submission.owner.answered(submission)
        if answer is None:
            return
        if result.error is not None:
            return fail_answer(answer, result.error)
        answer.finish(result.output())
        answer.submission = None
