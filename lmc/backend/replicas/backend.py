"""Several engines of one model behind one `Backend`: placement of submissions, and failover when a replica fails.

A submission goes where the longest prefix of its prompt has been, unless that replica is too busy (placement.py); one
that extends a pending answer, or belongs to a group of siblings, goes where its parent is. When a replica's process
ends, its requests are made again elsewhere, with the answers so far as given, if no part of the answer has been read;
else they fail with the reason.

    handle ──► ReplicaSubmission ──► its parent        segments and answers so far: the prompt, which another replica can resume
                 └──► the replica's handle        submission and answers unreferenced: dropped over there, too
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

from lmc.backend.base import HEALTHY, Capabilities, Handle, Health, Hints, SharedBackend
from lmc.backend.engine.encoding import Encoder
from lmc.backend.engine.memory import closed, opened
from lmc.backend.pipe.client import PipeBackend, PipeHandle
from lmc.backend.placement import Placement
from lmc.backend.replicas.process import GRACE, Process
from lmc.backend.replicas.submissions import Forward, Replica, ReplicaHandle, ReplicaResult, ReplicaSubmission, fail_answer, history, is_known, merged
from lmc.backend.usage import Counters
from lmc.chat import ChatTemplate
from lmc.errors import BackendEnded, BackendError
from lmc.forking import belongs_here
from lmc.segments import Part, Segment

log = logging.getLogger("lmc.engine")


class Replicas(SharedBackend):
    """A backend over replicas, which it owns from now on. `words`: the tokenizer and whole chat template of their
    model."""

    def __init__(self, processes: Sequence[Process], words: Any = None, whole_template: Any = None) -> None:
        self._processes = list(processes)
        self._lock = threading.RLock()  # submissions end in destructors, which may run while it is held
        try:
            every = [Replica(bit=i, process=process, backend=process.backend()) for i, process in enumerate(processes)]
        except BaseException:
            for process in processes:
                process.kill()
            raise
        self._placement = Placement(every)
        self._every, self._closed = every, False
        self.chat_template: ChatTemplate = _AnyTemplate(every)
        self._moving = threading.RLock()  # held while submissions of a lost replica are resubmitted to others
        self._mover: queue.SimpleQueue[tuple[ReplicaSubmission, int, BaseException] | None] | None = None
        self.tokenizer, self.whole_template = words, whole_template
        weakref.finalize(self, _end, [r.backend for r in every], self._processes)
        opened(self, f"{self.capabilities.name} as {len(every)} replicas")
        belongs_here(self)

    def forked(self, parent: int) -> None:
        self._lock, self._moving, self._mover = threading.RLock(), threading.RLock(), None

    # -- the protocol --------------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return self._every[0].backend.capabilities

    def submit(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> ReplicaHandle:
        return self._enter("submit", parent, segments, hints)

    def prefill(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> ReplicaHandle:
        return self._enter("prefill", parent, segments, hints)

    def release(self, handle: Handle) -> None:
        submission = self._own(handle)
        with self._lock:
            submission.released = True
        for replica, there in self.handles(submission):
            if replica.backend.lost is None:
                replica.backend.release(there)

    def holds(self, handle: Handle) -> bool:
        found = self.handles(self._own(handle))
        return bool(found) and all(replica.backend.holds(there) for replica, there in found)

    def counters(self) -> Counters:
        """Return the counters of all replicas, of those that have ended what was last known."""
        return reduce(add, [replica.counters() for replica in self._every], Counters())

    def flush_cache(self) -> None:
        for replica in self._living:
            with suppress(BackendEnded):  # what has ended meanwhile has no cache
                replica.backend.flush_cache()

    def server_info(self) -> dict[str, Any]:
        found = [_said(replica) for replica in self._every]
        first = next((each for each in found if "model" in each), {})
        return {"model": first.get("model", self.capabilities.name), "max_context": self.capabilities.max_context, "replicas": found}

    def health(self) -> Health:
        """Return the health of the worst live replica; ended if none is left."""
        if self._closed:
            return Health("closed", "the engine was closed")
        living = self._living
        if not living:
            return Health("ended", "all replicas have ended")
        worst = next((found for replica in living if not (found := replica.backend.health()).ready), HEALTHY)
        return Health("failed", worst.reason) if worst.state == "ended" and len(living) > 1 else worst

    def close(self) -> None:
        """End the replicas and their processes; idempotent."""
        self._closed = True
        _end([replica.backend for replica in self._every], self._processes)
        closed(self)

    # -- for people and servers ------------------------------------------------------------------------------------------

    @property
    def topology(self) -> tuple[str, ...]:
        """Return the placement, in lines for people."""
        return tuple(f"replica {r.bit} on {r.process.device}{': ' + line if line else ''}" for r in self._every for line in r.process.topology)

    @property
    def processes(self) -> list[int]:
        """Return their ids."""
        return [process.id for process in self._processes]

    def count_tokens(self, text: str) -> int:
        """Return the tokens of a text by itself, for plans and predictions."""
        return len(self.tokenizer.encode((text,), at_start=False)) if text else 0

    def encode(self, parts: Sequence[Any]) -> list[int]:
        """Return the token ids of literal parts at the start of a prompt."""
        return Encoder(self.tokenizer).encode(parts, at_start=True).tolist()

    def warm_up(self) -> None:
        """Wait until everything that later passes would use is compiled, in each replica; see lmc.Engine's."""
        with ThreadPoolExecutor(len(self._every)) as pool:
            list(pool.map(lambda replica: replica.backend.warm_up(), self._living))

    # -- requests ---------------------------------------------------------------------------------------------------------

    @property
    def _living(self) -> list[Replica]:
        return [replica for replica in self._every if replica.backend.lost is None]

    def _own(self, handle: Handle) -> ReplicaSubmission:
        if not (isinstance(handle, ReplicaHandle) and handle.submission.owner is self):
            raise BackendError(f"{self.capabilities.name} was given a handle of another backend")
        return handle.submission

    def handles(self, submission: ReplicaSubmission) -> list[tuple[Replica, PipeHandle]]:
        """Return its handles in all replicas that have one."""
        with self._lock:
            own = [] if submission.replica is None or submission.handle is None else [(submission.replica, submission.handle)]
            return own + list(submission.others.items())

    def _enter(self, kind: str, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None) -> ReplicaHandle:
        if self._closed:
            raise BackendError(f"{self.capabilities.name} is closed")
        submission = ReplicaSubmission(self, kind, None if parent is None else self._own(parent), segments, hints)
        results = tuple([ReplicaResult(submission) for _ in submission.outputs])
        submission.answers = tuple(map(weakref.ref, results))
        self._place(submission)
        return ReplicaHandle(submission, results)

    def _place(self, submission: ReplicaSubmission) -> None:
        """Submit to a replica. Raises the request's errors; if a replica ends meanwhile, another is used."""
        while True:
            before = submission.parent
            if before is not None and not is_known(before):
                self.revive(before)
            with self._lock:
                replica = self._choose(submission)
                if replica is None:
                    raise self._none_left()
                cost = self._placement.give(replica, submission)
            try:
                onto = self._there(before, replica)
                segments = submission.written if onto is not None else [*history(before), *submission.written]
                enter = replica.backend.submit if submission.kind == "submit" else replica.backend.prefill
                handle = enter(onto, merged(segments), submission.hints)
            except BaseException:
                with self._lock:
                    self._placement.leave(replica, cost)
                if replica.backend.lost is None:
                    raise
                self._lost(replica)
                continue
            with self._lock:
                submission.replica, submission.handle, submission.cost = replica, handle, cost
            if not handle.results:
                self.leave(submission)
            open_ = [i for i, output in enumerate(submission.outputs) if output is None]
            for i, result in zip(open_, handle.results, strict=True):
                result.on_change(Forward(submission, i))
            if submission.cancelled:  # meanwhile
                handle.cancel()
            if submission.released:  # before it moved
                replica.backend.release(handle)
            return

    def _there(self, submission: ReplicaSubmission | None, replica: Replica) -> PipeHandle | None:
        """Return a prompt's handle in this replica, where a prefill is made if need be: else each of many requests behind
        it would send its text there, to be tokenized each time. None if there is none."""
        if submission is None or submission.replica is replica:
            return None if submission is None else submission.handle
        if submission.kind != "prefill":
            return None
        with self._lock:
            there, over = submission.others.get(replica), submission.released
        if there is None and not over:
            made = replica.backend.prefill(None, merged(history(submission)), submission.hints)
            with self._lock:
                there, over = submission.others.setdefault(replica, made), submission.released  # another thread may have been first
            if over:  # meanwhile
                replica.backend.release(there)
        return there

    def _choose(self, submission: ReplicaSubmission) -> Replica | None:
        """Return the parent's replica, if it has to be that one; else choose by prefixes and load."""
        for replica in self._placement.targets:
            if replica.backend.lost is not None:
                self._lost(replica)
        if not self._placement.targets:
            return None
        before = submission.parent
        if before is not None and before.replica is not None and before.replica.backend.lost is None:
            grouped = submission.hints is not None and submission.hints.group is not None
            if grouped or not is_known(before):
                return before.replica
        return self._placement.pick(submission)

    def leave(self, submission: ReplicaSubmission) -> None:
        """Release its load: its replica has nothing to do for it any longer. Usable from a destructor."""
        with self._lock:
            replica, cost, submission.cost = submission.replica, submission.cost, 0
            if replica is not None and cost:
                self._placement.leave(replica, cost)

    def _lost(self, replica: Replica) -> None:
        with self._lock:
            news = not replica.dropped
            self._placement.drop(replica)
        if news:
            log.error(
                "replica %d on %s %s; %d of %d are left", replica.bit, replica.process.device, replica.process.described, len(self._living), len(self._every)
            )

    def _none_left(self) -> BackendError:
        ends = ", ".join(f"replica {r.bit} {r.process.described}" for r in self._every)
        return BackendEnded(f"{self.capabilities.name} can no longer be used: {ends}; start it again (lmc serve --restart does)")

    # -- answers ------------------------------------------------------------------------------------------------------------

    def answered(self, submission: ReplicaSubmission) -> None:
        """Record one more of its answers."""
        with self._lock:
            if submission.replica is not None and not submission.replica.dropped:
                self._placement.answered(submission.replica, submission)
        if submission.known:
            self.leave(submission)

    def move_soon(self, submission: ReplicaSubmission, index: int, error: BaseException) -> None:
        """Move a request whose replica has ended. From the reading thread, which must not wait."""
        with self._lock:
            if self._mover is None:
                self._mover = queue.SimpleQueue()
                threading.Thread(target=_move, args=(self._mover,), name="lmc-moves", daemon=True).start()
        self._mover.put((submission, index, error))

    def move(self, submission: ReplicaSubmission, index: int, error: BaseException) -> None:
        """Resubmit to another replica, if no part of the answer has been read; else fail with the reason."""
        answer = submission.answers[index]()
        if answer is None or answer.done or submission.cancelled or self._closed:
            return fail_answer(answer, error)
        replica = submission.replica
        try:
            if replica is not None and replica.backend.lost is not None:
                self._lost(replica)
                if answer.deltas or submission.moves >= (1 if replica.process.hung else len(self._every)):  # the request may be what replicas hang in
                    why = "and a part had been read" if answer.deltas else f"after {submission.moves} others had ended so"
                    raise BackendError(f"replica {replica.bit} on {replica.process.device} {replica.process.described} while it answered, {why}")
            self.revive(submission)
        except Exception as failure:
            fail_answer(answer, failure)

    def revive(self, submission: ReplicaSubmission) -> None:
        """Resubmit its requests to a live replica, if its own has ended."""
        with self._moving:
            if submission.replica is not None:
                if submission.replica.backend.lost is None:
                    return
                self._lost(submission.replica)
            self.leave(submission)
            submission.moves += 1
            self._place(submission)


class _AnyTemplate:
    """The chat template of their model, as the first that is left has it."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self.name, self.stop = replicas[0].backend.chat_template.name, replicas[0].backend.chat_template.stop

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        return self._of_any(lambda template: template.begin(role, previous))

    def end(self, role: str) -> tuple[Part, ...]:
        return self._of_any(lambda template: template.end(role))

    def _of_any(self, rendered: Callable[[ChatTemplate], tuple[Part, ...]]) -> tuple[Part, ...]:
        for replica in self._replicas[:-1]:
            with suppress(BackendEnded):
                return rendered(replica.backend.chat_template)
        return rendered(self._replicas[-1].backend.chat_template)


def _move(moves: queue.SimpleQueue[tuple[ReplicaSubmission, int, BaseException] | None]) -> None:
    """Move submissions one after another, until the backend is garbage."""
    while (each := moves.get()) is not None:
        submission, index, error = each
        submission.owner.move(submission, index, error)
        del submission, each


def _said(replica: Replica) -> dict[str, Any]:
    prompt = {"requests": replica.requests, "running": replica.running, "sent_before": replica.known}
    try:
        found = replica.backend.server_info()
    except BackendEnded:
        found = {"ended": replica.process.described}
    return {"replica": replica.bit, "device": replica.process.device, **found, **prompt}


def _end(backends: Sequence[PipeBackend], processes: Sequence[Process]) -> None:
    for backend in backends:
        backend.close()
    until = time.monotonic() + GRACE
    for process in processes:
        process.close(until)
