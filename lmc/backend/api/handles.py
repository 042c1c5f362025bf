"""Handles of API backends: submissions, and what keeps them wanted.

Ownership of objects:

    ApiHandle ──► SubmissionTicket ──► Submission ──► the ticket of its parent (until that has answered)
    HeldResult ──► SubmissionTicket     the task of a submission holds results only weakly: when an answer is no longer
                                       referenced, the ticket is freed, and the request ends
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from lmc.backend.api.loop import LoopThread
from lmc.backend.api.place import ROOT, PromptNode
from lmc.backend.api.spending import AttemptUsage, UsageLedger
from lmc.backend.base import Hints
from lmc.backend.results import HeldResult, Result
from lmc.errors import CancelledError
from lmc.segments import Segment

Feed = Callable[[str], None]


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Submission:
    """A submission in progress: its segments and its results. Belongs to the loop's thread once submitted."""

    __slots__ = ("__weakref__", "abandoned", "after", "hints", "parent", "results", "segments", "tally", "task", "waiting")

    def __init__(self, segments: Sequence[Segment], hints: Hints, parent: SubmissionTicket | None) -> None:
        self.segments, self.hints, self.parent = tuple(segments), hints, parent
        self.results: list[weakref.ref[HeldResult]] = []
        self.after: PromptNode | BaseException | None = None  # the prompt's end, once known
        self.waiting: list[Callable[[], object]] = []  # called once it is
        self.task: Cancellable | None = None
        self.tally: AttemptUsage | None = None  # spending on its answer before its task began
        self.abandoned = False  # no longer wanted

    def complete(self, after: PromptNode | BaseException) -> None:
        if self.after is None:
            self.after, self.parent = after, None
            waiting, self.waiting = self.waiting, []
            for wake in waiting:
                wake()

    def fail(self, error: BaseException) -> None:
        """Fail unfinished parts; everything that waits for them fails with the same error. From any thread."""
        for ref in self.results:
            result = ref()
            if result is not None:
                result.fail(error)

    def end(self, error: BaseException) -> None:
        """Fail it, and let what waits for its end go on."""
        self.fail(error)
        self.complete(error)

    def is_wanted(self) -> bool:
        """Return whether it is still to be answered; end it if it is not."""
        if self.after is None and self.abandoned:
            self.end(CancelledError("the answer is no longer awaited"))
        return self.after is None


class SubmissionTicket:
    """Keeps a submission wanted; when it is freed, the request ends."""

    __slots__ = ("ledger", "loop", "role", "work")

    def __init__(self, loop: LoopThread, work: Submission, role: str | None, ledger: UsageLedger) -> None:
        self.loop, self.work, self.role, self.ledger = loop, work, role, ledger

    def __del__(self) -> None:
        # may run in any thread, at any moment, also inside the garbage collector: must only post
        self.work.abandoned = True
        task = self.work.task
        if self.work.after is None and task is not None:
            self.loop.post_if_running(task.cancel)


class ApiHandle:
    """A prompt submitted to an API, up to and including its submission."""

    __slots__ = ("results", "ticket")

    def __init__(self, ticket: SubmissionTicket, results: Sequence[Result]) -> None:
        self.ticket, self.results = ticket, results

    def cancel(self) -> None:
        """Cancel unfinished parts; their results, and those of everything that depends on them, fail."""
        work = self.ticket.work
        if work.hints.guess:
            self.ticket.ledger.add(wasted=1)
        error = CancelledError("the request was cancelled before its answer was complete")
        work.fail(error)
        self.ticket.loop.post(_cancel, work, error)


def _cancel(work: Submission, error: BaseException) -> None:
    work.complete(error)
    if work.task is not None:
        work.task.cancel()


class SubmissionInbox(deque[Submission]):
    """Submissions that the loop has not seen. `posted`: the loop will read them, and has not begun."""

    posted = False


async def end_of(parent: SubmissionTicket | None) -> PromptNode:
    """Return the end of the parent's prompt: wait for its answers, and raise their errors."""
    if parent is None:
        return ROOT
    work = parent.work
    if work.after is None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        work.waiting.append(lambda: future.done() or future.set_result(None))
        await future
    if isinstance(work.after, BaseException):
        raise work.after
    assert work.after is not None
    return work.after


def feeder(ref: weakref.ref[HeldResult]) -> Feed:
    def feed(delta: str) -> None:
        result = ref()
        if result is not None and not result.done:
            result.feed(delta)

    return feed
