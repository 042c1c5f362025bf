"""The engine: one thread that admits, runs and delivers; token ids in, token ids out.

    take submissions ─► scheduler.schedule ─► runner.run ─► scheduler.commit ─► deliver tokens ─► again

On a device that works by itself the loop is one step ahead: while a pass runs, the tokens of the one before it are
delivered and the next one is planned, with places for the tokens that are not known yet. An answer that ends in a pass
may then have one more row in the next pass, whose token is discarded. So may one whose last token is followed by forced
tokens, which run in the pass after that: if that is likely for many answers, the pass is waited for, and the forced
tokens have their rows one pass earlier. An answer whose next sample depends on the host's processing of the last one (a
grammar, penalties beside a constraint) has no row in the next pass; if that leaves little to do, the pass is waited
for.

Answers of programs of one shape end together. Whoever waits for them is told, and asks for more, while a pass computes;
if none does, until there are prompts for one. Its rows are then few enough to be launched at once.

It sleeps when idle. All other threads communicate with it through one queue.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_future
from dataclasses import asdict, fields
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from lmc import config
from lmc.backend import recording
from lmc.backend.base import HEALTHY, Health
from lmc.backend.engine.delivery import Delivery, tell
from lmc.backend.engine.device_errors import ended_by
from lmc.backend.engine.forward_batch import Foreseen, ModelPass
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.runner import EagerRunner, Flight, PassOutput, Runner
from lmc.backend.engine.scheduler import Scheduler
from lmc.backend.usage import Counters
from lmc.errors import BackendError, CancelledError, LmcError
from lmc.forking import REMEDY
from lmc.gc_tuning import few_full_collections
from lmc.thread_turns import TURN, short_turns
from lmc.waiting import pause

log = logging.getLogger("lmc.engine")


_MOMENT = 0.005
"""Seconds that an idle engine waits for requests on their way, and again for those behind each that arrives."""
_MOMENTS = 10
"""How many of these waits follow each other at most."""
_SURELY = 0.8
"""Part of the time that a long pass took, by the last one, in which the next will not have ended."""
_LOOK = 0.1
"""Seconds after which `close` checks whether a pass is still computing."""
_MOST_FORCED = 0.5
"""Share of answers that may lose a pass to forced tokens before a pass is waited for (measured;
docs/performance.md)."""
_FULL = 2048
"""Rows beyond which larger passes are hardly more efficient: no pass waits for more to arrive (measured;
docs/performance.md)."""
_AT_ONCE = 8
"""Answers reported before the loop checks whether the device has nothing to do."""
_IN_ANY_CASE = 4
"""1/n of the answers that have ended are reported before the next pass, even if the device waits for it."""
_COLLECTIONS = 100
"""GC passes through younger objects per full one, which stops every thread for 0.1 s: a mask, and the device."""
_T = TypeVar("_T")


STUCK_AFTER = 300.0
"""Seconds after which a pass counts as stuck: the longest take some ten, on a CPU."""


class _Released:
    """Replaces a released runner."""

    def run(self, work: ModelPass) -> PassOutput:
        raise BackendError("the engine was closed")


class EngineCore:
    """The loop and its thread. Methods are thread-safe; callbacks of requests run on the loop's thread."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler, self._runner = scheduler, runner
        self.delivery = Delivery(scheduler, at_once=self._launch is None)
        self._full = min(scheduler.chunk, _FULL)
        self._quick: int = min(scheduler.chunk, getattr(runner, "quick_rows", scheduler.chunk))  # rows that are launched at once
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # reentrant: usable from destructors
        self.has_more = False  # the last submitter has more; a hint, set from any thread
        self._resting = threading.Event()  # not set while the loop works for an asynchronous device
        self._resting.set()
        self._held = False  # a thread gave way since the loop last rested
        self._posted = 0  # tokens of prompts since the last pass began
        self._asleep = False  # the loop has nothing to do, or is about to wake up
        self._computing = False  # the loop is in a pass, which may be native code for long
        self._computing_since = 0.0  # by time.monotonic()
        self.failure = ""  # of the last pass; "" once one went through
        self.broken: LmcError | None = None  # the device can no longer be used, and the loop has ended with that
        self.closed = self._ended = False
        self._recorded = self._blocked = 0.0  # end of the last pass (0: the loop has slept since), and seconds waited for the device since
        self._busy_seconds = 0.0
        self._flying: tuple[ModelPass, Flight] | None = None
        # seconds of the recorded passes; the last pass, and its end, until it is recorded. One object: other threads read it
        self._timed: tuple[float, tuple[ModelPass, Flight, float] | None] = 0.0, None
        self._busy_until = self._row_seconds = 0.0  # by time.perf_counter(), if it is long; seconds a row of the last long pass
        self._thread = threading.Thread(target=self._loop, name="lmc-engine", daemon=True)
        self.launch()

    def forked(self, parent: int) -> None:
        """Mark as broken in a child of fork(): the loop's thread is not here, nor is the device for this process."""
        self.broken = BackendError(f"the engine was started by process {parent}, of which this one is a fork: {REMEDY}")
        self._ended, self._computing, self._resting = True, False, threading.Event()
        self._resting.set()
        self._flying, self._timed = None, (self._timed[0], None)  # first: passes of a device cannot be looked at here
        self.delivery.report()
        self._take(wait=0.0, closing=True)  # posted actions fail, as do running requests
        self._inbox = SimpleQueue()
        self.delivery.fail(self.broken)

    def launch(self) -> None:
        """Start the loop; a subclass may run `turn` itself instead."""
        self._thread.start()

    def turn(self) -> bool:
        """Take submissions and run one pass; return False when nothing is left to do."""
        self._take(wait=0.0)
        if self._idle or self._pause:
            return False
        self.step()
        return True

    @property
    def _idle(self) -> bool:
        return self.scheduler.idle and self._flying is None and not self.delivery.unreported

    @property
    def _pause(self) -> float:
        """Return the seconds that the loop may sleep although requests wait: for runs that are expected back."""
        return self.scheduler.patience if self._flying is None and not self.delivery.unreported else 0.0

    # -- from other threads ------------------------------------------------------------------------------------

    def speak(self, requests: Sequence[Request]) -> None:
        """Emit the text so far of requests, from any thread."""

        def act() -> None:
            for req in requests:
                if not req.done and req.answer is not None:
                    self.delivery.guarded(req, req.answer.speak)

        self.call(act)

    def submit(self, req: Request) -> None:
        self.post(lambda: self.start(req))
        self._posted += req.prompt_len
        if self._asleep and self._posted >= self._full and self._launch is not None:
            self._resting.clear()  # there is enough for a pass

    def give_way(self) -> None:
        """Wait until the loop waits: computing beside it in Python would stall the device, since threads take turns of
        milliseconds, and a thread that releases the interpreter's lock briefly, as the loop does in every copy and
        launch, loses a turn each time. Not on the loop's thread."""
        if self._resting.is_set() or self.on_thread:
            return
        self._held = True
        if not pause(lambda: self._resting.wait(_MOMENT * 50)):
            self._resting.set()

    def warm_up(self) -> None:
        """Wait until everything that passes will use is compiled and, if nothing runs, loaded. Raises the error that
        ended the loop."""
        _call(self._runner, "wait_compiled")
        self.call(self._take_kernels)

    def cancel(self, req: Request) -> None:
        req.cancelled = True
        self.post(lambda: self._cancel(req))

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop's thread, before the next pass. After the loop's end: here."""
        self._inbox.put(action)
        if self._ended:
            self._take(wait=0.0, closing=True)

    def fail(self, error: BackendError) -> None:
        """End the loop with an error from outside a pass, such as the death of a rank. From any thread."""

        def end() -> None:
            if self.broken is None and not self._ended:  # else it has met the same in a pass, or was closed
                raise error

        self.post(end)

    def call(self, action: Callable[[], Any]) -> Any:
        """Run `action` on the loop's thread; return its result or raise its error."""
        if self.broken is not None and self._ended:
            raise self.broken
        if self.on_thread or not self._thread.is_alive():
            return action()
        outcome = Future[Any]()

        def act() -> None:
            try:
                outcome.set_result(action())
            except BaseException as error:  # raised in the caller
                outcome.set_exception(error)

        self.post(act)
        while not wait_future([outcome], 0.2).done:
            if not self._thread.is_alive() and not outcome.done():
                return action()
        return outcome.result()

    @property
    def on_thread(self) -> bool:
        return threading.current_thread() is self._thread

    @property
    def health(self) -> Health:
        if self.broken is not None:
            return Health("ended", self.broken.message)
        if self.closed:
            return Health("closed", "the engine was closed")
        since = time.monotonic() - self._computing_since
        if self._computing and since > STUCK_AFTER:
            return Health("stuck", f"a pass has taken {since:.0f} s and does not end")
        return Health("failed", self.failure) if self.failure else HEALTHY

    def close(self, timeout: float = 10.0) -> None:
        """Fail unfinished requests and end the thread; idempotent. Waits for the running pass, and at most so many
        seconds more (0: for nothing): a thread that comes back from native code to an interpreter that has ended aborts
        the process."""
        self.closed = True
        self._inbox.put(None)
        while timeout > 0 and self._thread.is_alive() and not self.on_thread:
            self._thread.join(min(timeout, _LOOK))
            timeout -= 0.0 if self._computing else _LOOK

    @property
    def _device_seconds(self) -> float:
        """Return the seconds of all passes whose answers have been delivered. From any thread."""
        earlier, completed = self._timed
        return earlier if completed is None else earlier + completed[1].seconds

    def counters(self) -> Counters:
        counted = asdict(self.scheduler.tally)
        return Counters(device_seconds=self._device_seconds, **{f.name: counted[f.name] for f in fields(Counters) if f.name in counted})

    def stats(self) -> dict[str, Any]:
        s, waiting = self.scheduler, list(self.scheduler.waiting)
        return {
            "waiting": len(waiting),
            "running": len(s.running),
            "pinned": len(s.pins),
            "slots": s.pool.num_slots,
            "free_slots": s.pool.free_count,
            "cached_tokens": s.tree.size,
            "open_runs": s.runs.count,
            "programs": s.runs.held_by_program(),
            "held_back": s.waiting.held_back,
            "leases": s.runs.leased,
            "broken_leases": s.runs.broken,
            "lapsed_leases": s.runs.lapsed,
            **s.host_stats(),
            "split_groups": s.tally.split_groups,
            "riders": s.tally.riders,
            "riders_used": s.tally.riders_used,
            "preempted": sum(req.preempted > 0 for req in waiting),
            "recomputed_tokens": s.tally.recomputed_tokens,
            "evictable_tokens": s.tree.evictable,
            "device_seconds": self._device_seconds,
            "host_seconds": self._busy_seconds - self._device_seconds,
        }

    # -- the loop ----------------------------------------------------------------------------------------------

    @property
    def _launch(self) -> Callable[[ModelPass], Flight] | None:
        """The `launch` of an asynchronous runner. Read several times a pass, for which `isinstance` is too slow."""
        return getattr(self._runner, "launch", None)

    def _loop(self) -> None:
        with few_full_collections(_COLLECTIONS):
            if self._launch is None:
                return self._work()
            _call(self._runner, "attach")
            with short_turns:
                self._work()

    def _work(self) -> None:
        while True:
            try:
                self._take_kernels()
                if not self._take(wait=None if self._idle else self._pause) or not self._gather():
                    break
                began = time.perf_counter()
                self.step()
                self._busy_seconds += time.perf_counter() - began
                if self._held:
                    self._rest(lambda: time.sleep(TURN))
            except BaseException as error:  # nothing may hang on a dead loop: all requests fail
                log.exception("the engine failed; everything outstanding fails with it")
                traceback.clear_frames(error.__traceback__)  # or the error would keep the pass's tensors alive
                self.failure = f"{type(error).__name__}: {error}"
                self.broken = ended_by(error)
                if self.broken is not None:
                    break
                self._fail_all(error)
        self._fail_all(self.broken)
        self._ended = True  # set before the last check: an action posted later is run by its poster
        self._take(wait=0.0, closing=True)
        self._release()

    def _release(self) -> None:
        """Free weights, KV and graphs even while the engine object is still referenced, for other processes, too: each is owned
        by a runner, and the host tier by the scheduler's mover, whatever else refers to them."""
        runner, freed = self._runner, getattr(self._runner, "freed", None)
        self._runner, self._flying, self.delivery.at_once = _Released(), None, True
        self.scheduler.drafts.close()
        if self.broken is None:  # else the device answers nothing
            self.scheduler.close()
        _call(runner, "close")
        del runner
        if freed is not None:
            freed()

    def _take_kernels(self) -> None:
        """Adopt kernels compiled meanwhile, if nothing runs. Running requests keep those they began with."""
        if self._idle:
            _call(self._runner, "settle")

    def _gather(self) -> bool:
        """Give requests on their way a moment to arrive: those that a prefill is for, so that it shares their pass, and
        the rest of a group or of a batch. Return False when it is time to end."""
        s, arrived, began = self.scheduler, self.scheduler.tally.calls, time.perf_counter()
        until, last = began + _MOMENT, began + _MOMENTS * _MOMENT
        if self._flying is not None:
            until = last = self._busy_until - _MOMENT
        while self._has_time and (self.has_more or s.waiting.expects_more):
            now = time.perf_counter()
            if s.tally.calls != arrived:
                arrived, until = s.tally.calls, max(until, min(now + _MOMENT, last))
            if now >= until or s.has_prompts(self._full):
                break
            if not self._take(wait=until - now):
                return False
        return True

    @property
    def _has_time(self) -> bool:
        """Return whether the next pass may begin a moment later: nothing runs yet, or the device has a long pass to
        do, with time to launch the next one before it ends."""
        if self._flying is None:
            return self.scheduler.waiting.ready > 0 and not self.scheduler.running
        return self.has_more and self._flying[0].rows >= self._full // 2 and time.perf_counter() < self._busy_until - _MOMENT

    def _take(self, *, wait: float | None, closing: bool = False) -> bool:
        """Run posted actions, after waiting so many seconds (None: without limit) for one; return False when it is time
        to end."""
        self._report_beside()
        try:
            if wait == 0.0 or self.delivery.unreported:
                action = self._inbox.get_nowait()
            else:
                self._asleep, self._recorded = True, 0.0
                self._resting.set()
                action = self._inbox.get(timeout=wait)
                self._asleep = False
            self._keep_turn()
            while True:
                if action is None and not closing:
                    return False
                if action is not None:
                    action()
                action = None  # drop what it holds before sleeping on the next
                action = self._inbox.get_nowait()
        except Empty:
            self._asleep = False
            if closing:
                self.delivery.report()
            return True

    def _report_beside(self) -> None:
        """Report answers that have ended while the device works, but a part of them in any case; the rest once it has a
        pass again. Answers that end together are as many chains that continue, each with a prompt to encode and to match."""
        unreported = self.delivery.unreported
        least = len(unreported) // _IN_ANY_CASE
        while unreported:
            self.delivery.report_some(_AT_ONCE)
            least -= _AT_ONCE
            if least <= 0 and self._has_pass:
                return

    @property
    def _has_pass(self) -> bool:
        """Return whether the device has nothing to do, and there is a pass for it: a full one, or answers that go on."""
        if self._flying is None:
            return self.scheduler.has_prompts(min(self._full, self._quick))
        work, flight = self._flying
        return bool(work.samples) and flight.over

    def _keep_turn(self) -> None:
        """Keep the turn: submitters give way from now until the loop rests."""
        if (self._posted or self.has_more) and self._launch is not None:
            self._resting.clear()

    def _rest(self, wait: Callable[[], _T]) -> _T:
        """Wait; threads that gave way get a turn if that takes long enough."""
        self._resting.set()
        began = time.perf_counter()
        found = wait()
        if time.perf_counter() - began >= TURN:
            self._held = False
        self._keep_turn()
        return found

    def step(self) -> None:
        """Run one pass."""
        self._keep_turn()
        self._posted = 0
        if self._flying is not None and (self.scheduler.may_preempt or not self._can_go_on(self._flying[0])):
            self._complete_pass(waits=True)  # requests in flight cannot be preempted
        try:
            work, flight = self._begin()
        finally:
            self._catch_up()
        if work is None:
            if self._flying is not None:
                self._complete_pass()
            else:
                self._compute(self.scheduler.wait_for_copies)
                self.delivery.finish_ready(())
            return self._catch_up()
        if flight is not None:
            self.scheduler.commit(work)
            self._complete_pass()
            self._flying, self._busy_until = (work, flight), time.perf_counter() + _SURELY * self._row_seconds * work.rows
            return self._catch_up()
        began = time.perf_counter()
        output = self._compute(lambda: self._runner.run(work))
        ended = time.perf_counter()
        self._timed = self._timed[0] + ended - began, None
        self._blocked += ended - began
        self._record(work, ended - began, ended)
        self.scheduler.commit(work)
        self._complete_pass()
        self.failure = ""
        self.delivery.deliver(work, output)
        self._catch_up()

    def _catch_up(self) -> None:
        """Do what no plan needs, while the device computes."""
        self.delivery.emit_deltas()
        self.scheduler.drafts.learn()
        earlier, completed = self._timed
        if completed is not None:
            work, flight, ended = completed
            seconds = flight.seconds
            self._timed = earlier + seconds, None
            if work.rows >= self._full // 2:
                self._row_seconds = seconds / work.rows
            self._record(work, seconds, ended)

    def _begin(self) -> tuple[ModelPass | None, Flight | None]:
        """Begin the next pass, if there is one; return its flight, if the device is asynchronous."""
        work = self.scheduler.schedule(self._quick if self._hurries else None, self.delivery.unreported)
        if work is None:
            return None, None
        if config.logs("engine"):
            s = self.scheduler
            counts = f"{work.rows} rows, {len(work.spans)} spans, {len(work.samples)} samples, {len(work.scores)} scores"
            left = f"{len(s.waiting)} wait, {s.pool.free_count} slots free"
            config.log("engine", f"pass {s.tally.passes}: {counts}; {left}")
        for req in work.requests:
            req.in_flight += 1
        launch = self._launch
        return work, None if launch is None else self._compute(lambda: launch(work))

    @property
    def _hurries(self) -> bool:
        """Return whether the device has little to do, or nothing, and answers that ended have prompts for it. Not while a
        batch arrives, since its passes would be small ones."""
        return bool(self.delivery.unreported) if self._flying is None else self._flying[0].rows < self._quick // 2

    def _compute(self, act: Callable[[], _T]) -> _T:
        """Run part of a pass, for which `close` waits."""
        self._computing, self._computing_since = True, time.monotonic()
        try:
            return act()
        finally:
            self._computing = False

    def _can_go_on(self, flying: ModelPass) -> bool:
        """Return whether a pass without the answers that must wait for this one is worthwhile, or none must and most
        will gain."""
        samples = flying.samples
        bound = [req for _, req in samples if not req.is_plain or req.draft]
        free = all(req.runs_free for req in bound) and not self.scheduler.drafts.is_promising(req for _, req in samples)
        if free and sum(req.forced_chance for req in bound) <= _MOST_FORCED * len(samples):
            return True
        return self.scheduler.has_prompts(self._full // 2)

    @property
    def _eager(self) -> EagerRunner | None:
        """Return the runner, if the next pass can be begun before it is planned."""
        return cast(EagerRunner, self._runner) if getattr(self._runner, "prepare", None) is not None and not self.scheduler.may_preempt else None

    def _prepared(self, foresee: Callable[[], Foreseen | None]) -> Foreseen | None:
        """Return the next pass, prepared to be begun before it is planned, if it can be foreseen."""
        runner = self._eager
        found = None if runner is None else foresee()
        return found if runner is not None and found is not None and runner.prepare(found.work) else None

    def _complete_pass(self, *, waits: bool = False) -> None:
        """Deliver the pass in flight, if there is one. waits: the device has nothing to do behind it, so that the next one begins as soon as it can: once
        the tokens in flight are known, if these are what was foreseen, or if the next pass is of a lone answer alone, once they are delivered."""
        if self._flying is None:
            return
        (work, flight), self._flying = self._flying, None
        began = time.perf_counter()
        foreseen = self._prepared(lambda: self.scheduler.foresee(work)) if waits else None
        output = self._rest(lambda: self._compute(flight.result))
        right = foreseen is not None and output.tokens == foreseen.tokens
        if foreseen is not None and right:
            cast(EagerRunner, self._runner).begin()
            for req, draft in foreseen.work.drafts.items():
                self.scheduler.drafts.expect(req, draft.ids, is_proposed=False)
        ended = time.perf_counter()
        self._blocked += ended - began
        self._timed = self._timed[0], (work, flight, ended)
        self.failure = ""
        self.delivery.deliver(work, output)
        if waits and not right and not self.delivery.unreported and self._prepared(self.scheduler.following) is not None:
            cast(EagerRunner, self._runner).begin()

    def _record(self, work: ModelPass, seconds: float, ended: float) -> None:
        """Record the last pass, which has ended on the device, for the pace of the next ones, and for a trace if one is
        being recorded."""
        self.scheduler.learn(work.rows, seconds)
        if self._recorded and work.rows == len(work.samples) + work.checked and not work.first:
            since = ended - self._recorded
            host, gap = max(0.0, since - self._blocked), max(0.0, since - seconds)
            self.scheduler.drafts.costs.learn(len(work.samples), work.checked, seconds, host, gap)
        self._recorded, self._blocked = ended, 0.0
        if recording.recorder is None:
            return
        s = self.scheduler
        sampled = {req for _, req in work.samples}
        decode = sum(len(span.ids) == 1 and span.request in sampled for span in work.spans)
        recording.recorder.batches.append(
            recording.RecordedPass(
                ended - seconds, ended, work.rows, len({span.request for span in work.spans}), work.rows - decode, decode,
                len(work.scores), len(s.waiting), s.pool.free_count, s.pool.num_slots, s.tally.cached_tokens, seconds,
            )
        )  # fmt: skip

    # -- on the loop's thread ----------------------------------------------------------------------------------

    def start(self, req: Request) -> None:
        """Take a request in; on the loop's thread."""
        if self.broken is not None:
            req.error, req.done = self.broken, True
            return tell(req)
        self.delivery.live[req] = None
        if self.closed:
            return self.delivery.drop(req, BackendError("the engine was closed"))
        if req.cancelled:
            return self._cancel(req)
        self.scheduler.tally.calls += req.kind is not RequestKind.PREFILL
        if req.max_new > 0:
            self.delivery.guarded(req, lambda: self._open(req))
        if req.done:
            return
        if req.needs_no_model or req.rider is not None:
            return self.post(lambda: self._settle(req))  # not at once: chains of such answers would recurse
        if self.scheduler.add(req):
            assert req.run is not None
            req.run.on_end(partial(_run_ended, weakref.ref(self), req.run.number))

    def _open(self, req: Request) -> None:
        """Add the tokens forced from the start to the head: they need no pass of their own."""
        req.ending = self.delivery.force(req)
        req.head_len = req.wanted_len
        if req.answer is not None:
            req.answer.speak()

    def _settle(self, req: Request) -> None:
        if req in self.delivery.live:
            if req.rider is not None:
                self.scheduler.riders.use(req)
                assert req.choose is not None
                req.choose(req)
            req.done = True
            self.delivery.done(req)

    def _cancel(self, req: Request) -> None:
        if req in self.delivery.live and not req.done:  # a prefill in flight may be done without its listener knowing
            self.delivery.drop(req, CancelledError("the request was cancelled before its answer was complete"))

    def _fail_all(self, error: BaseException | None) -> None:
        """Fail every request and start with an empty pool: after an exception its contents cannot be trusted."""
        self.delivery.emit_deltas()
        self.delivery.report()
        self._flying, self._timed = None, (self._timed[0], None)
        if self.broken is None:  # otherwise its contents are on a device that refuses everything
            self.scheduler.reset()
        self.delivery.fail(error)


def _call(runner: Runner, name: str) -> None:
    """Call a method that not every runner has."""
    method: Callable[[], None] | None = getattr(runner, name, None)
    if method is not None:
        method()


def _run_ended(core: weakref.ref[EngineCore], number: int) -> None:
    """Record a run's end. From any thread, at any moment."""
    found = core()
    if found is not None:
        found.post(lambda: found.scheduler.runs.end(number))
