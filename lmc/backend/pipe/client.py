"""The program's side: a `Backend` whose engine is in another process.

handle (dropped) ─╌─► "drop"    Handle ──► _RemoteSubmission ◄── Result    the table of answers holds results weakly:
                                                                           unreachable ones are dropped over there, too
"""

from __future__ import annotations

import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

from lmc import codec
from lmc.backend.base import Capabilities, Handle, Health, Hints, SharedBackend, check_supported
from lmc.backend.pipe import wire
from lmc.backend.pipe.posting import Postbox, frames
from lmc.backend.results import HeldResult, Result
from lmc.backend.usage import Counters
from lmc.errors import BackendEnded, BackendError
from lmc.forking import REMEDY, belongs_here
from lmc.segments import Constraint, Gen, Image, Part, SamplingParams, Segment, Select
from lmc.waiting import idle

_KNOWN = 1024  # constraints that are remembered as accepted
_HEALTH = 4.0  # seconds for the other process to report its health
_HOLDS = 0.05  # seconds for which a pin that was there is taken to be there


class _RemoteSubmission:
    """A remote submission, while it can be read or extended here."""

    __slots__ = ("__weakref__", "backend", "id")

    def __init__(self, backend: PipeBackend, number: int) -> None:
        self.backend, self.id = backend, number

    def __del__(self) -> None:
        # may run in any thread, at any moment: must only post
        self.backend.forget(self.id)


class PipeHandle:
    """A prompt in the engine of another process."""

    __slots__ = ("__weakref__", "_pictured", "held", "results")

    def __init__(self, held: _RemoteSubmission, results: Sequence[Result], pictured: bool) -> None:
        self.held, self.results, self._pictured = held, results, pictured

    def cancel(self) -> None:
        """Cancel unfinished parts; their results, and those of everything that depends on them, fail with
        CancelledError."""
        self.held.backend.post(["cancel", self.held.id])

    def needed(self) -> None:
        """Mark as needed: it was a guess, and is none any longer."""
        self.held.backend.post(["needed", self.held.id])

    def prepared(self) -> None:
        """Wait until the pictures that it adds are prepared, so that requests which these make impossible have failed.
        Raises BackendEnded if their process ends first."""
        if self._pictured:
            self.held.backend.prepared(self.held.id)


class PipeTemplate:
    """The chat template of the remote backend, queried once for each role and its predecessor."""

    def __init__(self, name: str, stop: tuple[str, ...], ask: Callable[..., Any]) -> None:
        self.name, self.stop, self._ask = name, stop, ask
        self._known: dict[tuple[str | None, ...], tuple[Part, ...]] = {}

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        return self._once("begin", role, previous)

    def end(self, role: str) -> tuple[Part, ...]:
        return self._once("end", role)

    def _once(self, *what: str | None) -> tuple[Part, ...]:
        found = self._known.get(what)
        if found is None:
            found = self._known[what] = wire.read_parts(self._ask(*what))
        return found


class _Reply:
    """The pending return value of a call."""

    __slots__ = ("error", "there", "value")

    def __init__(self) -> None:
        self.there = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def __call__(self, within: float | None = None) -> Any:
        """Return it. Raises TimeoutError."""
        if not self.there.wait(within):
            raise TimeoutError
        if self.error is not None:
            raise self.error
        return self.value


class PipeBackend(SharedBackend):
    """The backend at the other end of a connection, which belongs to this from now on.

    Requests are sent without waiting, except those that a backend may refuse at once (a constraint that it has not
    seen): refusals are raised at the request, as in one process. Raises BackendError when the other side is not a
    PipeServer.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._results: dict[int, tuple[weakref.ref[HeldResult], ...]] = {}  # by handle, until its answers have arrived
        self._calls: dict[int, _Reply] = {}
        self._accepted: set[Constraint] = set()
        self._pins: dict[int, float] = {}  # handles whose pin was there, and when, by time.monotonic()
        self._lost: BackendError | None = None
        first = frames(connection)
        if not first or first[0][:2] != ["hello", wire.VERSION]:
            connection.close()
            raise BackendError(f"there is no backend of version {wire.VERSION} at the other end of the pipe")
        about = first[0][2]
        self.capabilities: Capabilities = codec.decode(about["capabilities"])
        self.chat_template = PipeTemplate(about["template"], tuple(about["stop"]), self._ask)
        if about["counts_tokens"]:
            self.count_tokens: Callable[[str], int] = lru_cache(4096)(lambda text: self._ask("count_tokens", text))
        box = Postbox(connection, "lmc-pipe-out")
        self._box: Postbox | _Nowhere = box
        threading.Thread(target=_receive, args=(weakref.ref(self), connection, box), name="lmc-pipe-in", daemon=True).start()
        weakref.finalize(self, box.close)
        belongs_here(self)

    def forked(self, parent: int) -> None:
        self._lost = BackendError(f"its connection belongs to process {parent}, of which this one is a fork: {REMEDY}")
        self._box = _Nowhere()
        self._connection.close()  # this process's end of the connection
        self._fail_all()

    @property
    def lost(self) -> BackendError | None:
        """Return why it cannot be used any longer; None if it can."""
        return self._lost

    # -- the protocol --------------------------------------------------------------------------------------------------

    def submit(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> PipeHandle:
        return self._enter("submit", parent, segments, hints)

    def prefill(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> PipeHandle:
        return self._enter("prefill", parent, segments, hints)

    def release(self, handle: Handle) -> None:
        number = self._own(handle).id
        self._pins.pop(number, None)
        self.post(["release", number])

    def holds(self, handle: Handle) -> bool:
        """See Backend. Each program of a batch asks for the same pin, and would wait for the other process: for a moment
        the last answer holds. A pin that has gone meanwhile costs its prompt once more, at most."""
        number = self._own(handle).id
        if self._lost is None and time.monotonic() - self._pins.get(number, -math.inf) < _HOLDS:
            return True
        try:
            found: bool = self._ask("holds", number)
        except BackendEnded:
            return False
        if found:
            self._pins[number] = time.monotonic()
        return found

    def counters(self) -> Counters:
        return codec.decode(self._ask("counters"))

    def flush_cache(self) -> None:
        self._ask("flush_cache")
        self._pins.clear()

    def server_info(self) -> dict[str, Any]:
        return codec.decode(self._ask("server_info"))

    def warm_up(self) -> None:
        """Wait until the remote backend has what later passes would compile, if it compiles anything."""
        self._ask("warm_up")

    def health(self) -> Health:
        """Return the remote backend's health; ended if its process has, and failed while that does not answer."""
        number, reply = self._call("health")
        try:
            return codec.decode(reply(_HEALTH))
        except BackendError as error:
            return Health("ended", error.message)
        except TimeoutError:
            self._calls.pop(number, None)
            return Health("failed", f"{self.capabilities.name} has not answered for {_HEALTH:g} s")

    def close(self) -> None:
        """End the connection, and with it all its requests. The remote backend continues."""
        self._end("it was closed")

    # -- requests ------------------------------------------------------------------------------------------------------

    def _enter(self, what: str, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None) -> PipeHandle:
        if self._lost is not None:
            raise self._error()
        check_supported(self.capabilities, segments)
        before = None if parent is None else self._own(parent)
        if not idle():  # which only this process knows
            hints = (hints or Hints())._replace(has_more=True)
        written = wire.write_segments(segments)
        held = _RemoteSubmission(self, next(self._numbers))
        results = tuple([HeldResult(held) for segment in segments if isinstance(segment, Gen | Select)])
        if results:
            self._results[held.id] = tuple(map(weakref.ref, results))
        unseen = self._unseen(segments)
        accepted = self._expect() if unseen is not None else None
        self.post([what, held.id, None if before is None else before.id, written, wire.write_hints(hints), None if accepted is None else accepted[0]])
        if accepted is not None and unseen is not None:
            accepted[1]()
            if len(self._accepted) < _KNOWN:
                self._accepted |= unseen
        if self._lost is not None:  # lost meanwhile: no error would be delivered
            self._fail_all()
        return PipeHandle(held, results, any(isinstance(segment, Image) for segment in segments))

    def _unseen(self, segments: Sequence[Segment]) -> set[Constraint] | None:
        """Return constraints that the backend has not accepted yet; None if there is nothing that it could refuse at
        once."""
        found = {s.constraint for s in segments if isinstance(s, Gen) and s.constraint is not None and s.constraint not in self._accepted}
        return found if found or any(map(_may_be_refused, segments)) else None

    def _own(self, handle: Handle) -> _RemoteSubmission:
        if not (isinstance(handle, PipeHandle) and handle.held.backend is self):
            raise BackendError(f"{self.capabilities.name} was given a handle of another backend")
        return handle.held

    def post(self, message: wire.Message) -> None:
        self._box.post(message)

    def prepared(self, number: int) -> None:
        """Wait until the pictures of a handle are prepared. Raises BackendEnded if the other process ends first."""
        self._ask("prepared", number)

    def forget(self, number: int) -> None:
        """Drop a handle that is no longer referenced here. Usable from a destructor."""
        self._results.pop(number, None)
        self._pins.pop(number, None)
        self._box.post(["drop", number])

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, *args: Any) -> Any:
        return self._call(method, *args)[1]()

    def _call(self, method: str, *args: Any) -> tuple[int, _Reply]:
        number, reply = self._expect()
        self.post(["call", number, method, *args])
        if self._lost is not None:
            self._fail_all()
        return number, reply

    def _expect(self) -> tuple[int, _Reply]:
        number, reply = next(self._numbers), _Reply()
        self._calls[number] = reply
        return number, reply

    # -- receiving -----------------------------------------------------------------------------------------------

    def _take(self, kind: str, number: int, *rest: Any) -> None:
        if kind in ("return", "raise"):
            reply = self._calls.pop(number, None)
            if reply is not None:
                reply.value, reply.error = (rest[0], None) if kind == "return" else (None, wire.read_error(rest[0]))
                reply.there.set()
            return
        results = self._results.get(number, ())
        if kind == "fail" and rest[0] is None:
            error = wire.read_error(rest[1])
            for each in results:
                if (result := each()) is not None:
                    result.fail(error)
            return
        result = results[rest[0]]() if rest[0] < len(results) else None
        if result is None:
            return
        if kind == "feed":
            result.feed(rest[1], wire.read_scored(rest[2]))
        elif kind == "done":
            result.finish(wire.read_output(rest[1]))
        elif kind == "fail":
            result.fail(wire.read_error(rest[1]))
        else:
            raise ValueError(f"an unknown message {kind!r:.40}")

    def _end(self, why: str) -> None:
        if self._lost is None:
            self._lost = BackendEnded(f"{self.capabilities.name} can no longer be used: {why}")
            self._box.close()
        self._fail_all()

    def _error(self) -> BackendError:
        assert self._lost is not None
        return type(self._lost)(self._lost.message)

    def _fail_all(self) -> None:
        """Fail everything that waits for a process that is gone."""
        for number in list(self._calls):
            if (reply := self._calls.pop(number, None)) is not None:
                reply.error = self._error()
                reply.there.set()
        for number in list(self._results):
            for each in self._results.pop(number, ()):
                if (result := each()) is not None:
                    result.fail(self._error())


class _Nowhere:
    """Replaces a postbox in a fork, which has no right to the connection."""

    def post(self, message: wire.Message) -> None:
        pass

    def close(self) -> None:
        pass


def _receive(backend: weakref.ref[PipeBackend], connection: Connection, box: Postbox) -> None:
    """Complete answers as they arrive, until the connection or the backend ends."""
    while (messages := frames(connection)) is not None:
        here = backend()
        if here is None:
            break
        try:
            for message in messages:
                here._take(*message)
        except Exception as error:  # an invalid message: nothing after it can be trusted
            here._end(f"its message cannot be decoded ({type(error).__name__}: {error})")
            break
        del here, messages
    box.end()
    here = backend()
    if here is not None:
        here._end("the process that it runs in has ended")


def _may_be_refused(segment: Segment) -> bool:
    """Return whether a backend may refuse this at once, apart from its constraint."""
    if isinstance(segment, Select):
        return not all(segment.choices)
    if not isinstance(segment, Gen) or segment.params is _USUAL:
        return False
    p = segment.params
    return bool(p.stop_token_ids or p.logit_bias or p.stop_regex or p.top_logprobs_num)


_USUAL = SamplingParams()
