"""Programs in flight: work on many items, each on a thread of its own while it lasts, of which one runs at a time.

    turn ──► worker runs its item ──waits for an answer──► the turn goes to a worker whose answer is there,
                    │                                       else to a new one for the next item
                    └── blocks in a tool: the watch takes its turn away, and others go on

So an answer that is available at once costs no thread switch, as many items are in flight as `limit` allows, and locks,
thread-locals and connections of the user's code behave as on threads (cf. leader/followers, POSA2).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Generic, TypeVar

from lmc.waiting import Meter, Signal, TurnLimit, is_set, metered, waiting_by

R = TypeVar("R")

LINGER = 0.5
"""Seconds that an abandoned batch waits for its programs to end; one inside a tool ends when the tool returns."""
IN_FLIGHT = 512
"""Programs of a batch that run at once, each on a thread, by default: as many sequences as an engine on a GPU decodes
together."""
MAX_THREADS = 2048
"""Workers in one process; beyond that each batch has one, so that nested batches progress."""


Outcome = tuple[int, R | None, BaseException | None]
"""An item, with what its work gave or raised."""


def outcome_of(work: Callable[[int], R], index: int, context: Context) -> Outcome[R]:
    """Do the work for an item; what it raises is raised where the results are taken."""
    try:
        return index, context.run(work, index), None
    except BaseException as error:
        return index, None, error


def result_of(done: Outcome[R]) -> tuple[int, R]:
    """Return an item with its result, or raise what its work raised."""
    index, result, error = done
    if error is not None:
        raise error
    return index, result  # type: ignore[return-value]  # one of the two


class BatchThread:
    """A thread of a batch. Its turn, its wait and its clock are guarded by the lock of its flights."""

    __slots__ = ("clock", "flights", "parked", "pausing", "seen", "tenure", "turn", "woken")

    def __init__(self, flights: Flights[object]) -> None:
        self.flights = flights
        self.turn = True
        self.pausing = False  # see lmc.waiting.Waiter
        self.tenure = 0  # grows with each turn
        self.parked = 0  # the number of the wait it is parked in, or 0
        self.woken = threading.Lock()
        self.woken.acquire()
        self.clock: int | None = None  # clock of its thread's CPU time, where there is one
        self.seen: tuple[int, float, float] = (-1, 0.0, 0.0)  # last seen by the watch: tenure, time, CPU time

    def wait(self, signal: Signal, timeout: float | None) -> None:
        """Let others go on until a signal is set (lmc.waiting.Waiter)."""
        number = self.flights.parks(self)
        if signal.on_set(lambda: self.flights.wake(self, number)):
            self.parked = 0
            return
        self.flights.give_way(self)
        if not self.woken.acquire(timeout=-1 if timeout is None else timeout):
            self.flights.wake(self, number, spare=True)
            self.woken.acquire()

    def idle(self) -> bool:
        return self.turn and self.flights.idle()

    def spent(self) -> float | None:
        """Return the CPU time of its thread."""
        if self.clock is None:
            return None
        with suppress(OSError):  # the thread is ending
            return time.clock_gettime(self.clock)
        return None


class Flights(Generic[R]):
    """Runs `work(i)` for i < count, at most `limit` at once, in copies of the context in which it was made.

    meter  counts them; None: the meter of the program that makes them, if any
    """

    def __init__(self, work: Callable[[int], R], count: int, *, limit: int, name: str, meter: Meter | None = None) -> None:
        self._work, self._count, self._limit, self._name = work, count, limit, name
        self._context = copy_context()
        self._lock = threading.Lock()  # guards the rest
        self._ready: deque[BatchThread] = deque()  # workers that wait for a turn: to resume, or to take an item
        self._spare: dict[BatchThread, None] = {}  # those whose waits timed out: they come last, the latest first
        self._turns: set[BatchThread] = set()
        self._workers = self._next = self._waits = 0
        self._stopped = self.watched = False
        self._burst = 1  # turns to give out when one is taken away
        self._done: deque[Outcome[R]] = deque()
        self._changed, self._over = Signal(), Signal()
        self._share = TurnLimit(meter or metered.get(), limit, count)

    # -- results

    def results(self, stop: Callable[[], object]) -> Generator[tuple[int, R]]:
        """Yield index and result of each item as soon as it is done; raises the exceptions of `work`.

        When it is abandoned, nothing more begins and `stop` ends whatever can be ended; running tools are not waited
        for.
        """
        self._begin()
        try:
            for _ in range(self._count):
                while not self._is_there():
                    self._changed.wait()
                yield result_of(self._done.popleft())
        except BaseException:
            self._stop(stop)
            self._over.wait(LINGER)
            raise
        self._end()
        self._over.wait()

    async def aresults(self, stop: Callable[[], object]) -> AsyncGenerator[tuple[int, R]]:
        """As `results`, without blocking the running loop."""
        self._begin()
        try:
            for _ in range(self._count):
                while not self._is_there():
                    await is_set(self._changed)
                yield result_of(self._done.popleft())
        except BaseException:
            self._stop(stop)
            raise
        self._end()
        await is_set(self._over)

    def _is_there(self) -> bool:
        if not self._done:
            self._changed.clear()
        return bool(self._done)

    def _begin(self) -> None:
        with self._lock:
            start = self._count > 0 and self._may_start()
        if start:
            self._start()
        else:
            self._over.set()

    def _end(self) -> bool:
        """Begin no further item. Return whether a worker has yet to end: inside an item, or on its way out."""
        self._share.give_up()
        with self._lock:
            self._stopped = True
            return self._workers > 0

    def _stop(self, stop: Callable[[], object]) -> None:
        """Begin no further item and end the running ones."""
        if self._end():
            stop()

    # -- turns

    def _may_start(self) -> bool:
        """Return whether another worker may begin; if so, it counts from now on."""
        if self._next >= self._count or self._stopped or self._workers >= self._limit or not _room.take(self._workers == 0):
            return False
        self._workers += 1
        return True

    def _start(self) -> None:
        worker = BatchThread(self)  # type: ignore[arg-type]
        with self._lock:
            self._turns.add(worker)
        threading.Thread(target=self._serve, args=(worker,), name=f"{self._name}_{self._workers}", daemon=True).start()

    def _serve(self, worker: BatchThread) -> None:
        if hasattr(time, "pthread_getcpuclockid"):
            worker.clock = time.pthread_getcpuclockid(threading.get_ident())
        with waiting_by(worker):
            while (index := self._next_item(worker)) is not None:
                context = self._context.copy()  # held here, `lmc serve` finds by it whose thread this is
                self._done.append(outcome_of(self._work, index, context))
                self._share.done()
                self._changed.set()

    def _next_item(self, worker: BatchThread) -> int | None:
        """Return an item for a worker that has none; workers whose answers arrived go first. None: the worker ends."""
        waited = False  # and has the turn because no worker was ahead of it
        while True:
            with self._lock:
                over = self._stopped or self._next >= self._count
                if not over and worker.turn and (waited or not self._ready):
                    self._next += 1
                    if self._next < self._count:
                        self._watched()
                    return self._next - 1
                if not over:
                    self._queue(worker)
                started = self._pass(worker)
                if over:
                    self._workers -= 1
                    _room.leave()
                last = self._workers == 0
            if started:
                self._start()
            if last:
                self._over.set()
            if over:
                return None
            waited = worker.woken.acquire()

    def parks(self, worker: BatchThread) -> int:
        """Park a worker; return the number of the wait."""
        with self._lock:
            self._waits += 1
            worker.parked = self._waits
            return self._waits

    def give_way(self, worker: BatchThread) -> None:
        """Pass the turn of a waiting worker to another one."""
        with self._lock:
            started = self._pass(worker)
        if started:
            self._start()

    def wake(self, worker: BatchThread, number: int, *, spare: bool = False) -> None:
        """Make a worker ready: its signal is set, or (`spare`) its wait timed out. From any thread."""
        with self._lock:
            if worker.parked == number:
                if spare:  # until its signal is set
                    self._spare[worker] = None
                    self._watched()
                else:
                    worker.parked = 0
                    self._spare.pop(worker, None)
                    self._queue(worker)
                start = not self._turns and self._give()
            else:
                start = False
        if start:
            self._start()

    def idle(self) -> bool:
        """Return whether no worker is ready to run, and no more items may begin."""
        return not self._ready and (self._next >= self._count or self._workers >= self._limit)

    def _queue(self, worker: BatchThread) -> None:
        self._ready.append(worker)
        self._watched()

    def _watched(self) -> None:
        """Let the watch look: another worker could use a turn that is taken."""
        if self._turns and not self.watched:
            self.watched = True
            _watch.over(self)  # type: ignore[arg-type]

    def _pass(self, worker: BatchThread) -> bool:
        """Pass a worker's turn, if it has one, to the first ready worker. Return True if that is a new one, to be
        started."""
        if worker.turn:
            self._leave(worker)
        if self._turns:
            return False
        return self._give()

    def _leave(self, worker: BatchThread) -> None:
        worker.turn = False
        self._turns.discard(worker)

    def _give(self) -> bool:
        """Give a turn to the first ready worker, or to a new one (True: it must be started), or to one whose wait timed
        out."""
        if not self._ready:
            if self._may_start():
                return True
            if not self._spare:
                return False
        worker = self._ready.popleft() if self._ready else self._spare.popitem()[0]
        worker.parked = 0
        worker.turn, worker.tenure = True, worker.tenure + 1
        self._turns.add(worker)
        worker.woken.release()
        return False

    # -- the watch

    def look(self) -> bool:
        """Take turns from workers that block, and give others in their place. Return whether a worker could use a
        turn."""
        with self._lock:
            wanted = bool(self._ready or self._spare) or (self._next < self._count and self._workers < self._limit and not self._stopped)
            seen = [worker for worker in self._turns if worker.seen[0] == worker.tenure]
            blocked = [worker for worker in self._turns if _blocks(worker)] if wanted else []
            if blocked:
                self._burst = min(2 * self._burst, 64)
            elif seen:  # it computes
                self._burst = 1
            for worker in blocked:
                self._leave(worker)
            given = self._burst if blocked else 0
            starting = sum(self._give() for _ in range(given))
            self.watched = wanted
        for _ in range(starting):
            self._start()
        return wanted


def _blocks(worker: BatchThread) -> bool:
    """Return whether a worker has kept its turn since the last look without computing."""
    now, spent, (tenure, then, before) = time.monotonic(), worker.spent(), worker.seen
    worker.seen = worker.tenure, now, spent or 0.0
    return tenure == worker.tenure and not worker.pausing and (spent is None or spent - before < (now - then) / 2)


_LOOKS = 1e-3
"""Seconds between two looks of the watch."""


class _Watch:
    """One thread that looks for blocking workers, while there are any for whom others wait."""

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self._flights: set[Flights[object]] = set()
        self._running = False

    def over(self, flights: Flights[object]) -> None:
        with self._changed:
            self._flights.add(flights)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="lmc-watch", daemon=True).start()

    def _work(self) -> None:
        while True:
            time.sleep(_LOOKS)
            for flights in tuple(self._flights):
                if not flights.look():
                    with self._changed:
                        if not flights.watched:  # nor has been meanwhile
                            self._flights.discard(flights)
            with self._changed:
                if not self._flights:
                    self._running = False
                    return


class _Room:
    """Limits the number of workers in the process."""

    def __init__(self) -> None:
        self._lock, self._taken = threading.Lock(), 0

    def take(self, needed: bool) -> bool:
        with self._lock:
            if self._taken >= MAX_THREADS and not needed:
                return False
            self._taken += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._taken -= 1


_watch, _room = _Watch(), _Room()
