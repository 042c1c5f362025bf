"""Batch APIs: requests that may take a day and cost half. The requests that programs make until all of them wait are
one wave, and a wave is a batch.

    asked ─► waits ─(all programs wait)─► noted ─► submitted ─► noted ─► polled ─► answers ─► the programs resume
                                            └── Submitted: beside the journal ──┘

A request's id identifies its content and its place in a run, so a process that resumes after a kill finds its request
among the submitted ones, and polls that. A batch of which only the intent is noted is searched on the server before it
is submitted again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from lmc.backend.api.batch_api import FULL, BatchApi, BatchedRequest, Item, given_up
from lmc.backend.api.exchange import Fault, HttpRequest, Received, reading
from lmc.backend.api.loop import LoopThread
from lmc.backend.api.submitted import SubmittedWave, SubmittedWaves

said = logging.getLogger("lmc.batches")
T = TypeVar("T")

LINGER = 0.2
"""Seconds between two checks whether all programs wait."""
PATIENCE = 30.0
"""Seconds without a request after which a wave is submitted although a program is still busy, such as with a tool."""
FIRST_POLL, LONGEST_POLL = 5.0, 60.0
"""Seconds between two polls of a batch: longer each time."""
IN_DOUBT = 30.0
"""Seconds after which a batch that may have been submitted appears on the server's list, if it was."""
DAY = 24 * 3600.0
KEPT = 28 * DAY
"""Seconds for which servers keep a batch's answers, at least: OpenAI 30 days, Anthropic 29."""
_LONGEST = 3600.0  # seconds of one exchange, such as sending a batch's file
_TURNS = 64  # turns of a loop within which a request joins its wave
_LATE = 10.0  # seconds to wait for batches to be cancelled on stopping


class Clock:
    """Time, as used by batches."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


clock = Clock()


# -- one call ----------------------------------------------------------------------------------------------------------


class BatchQueue:
    """Queue of the requests of one call with a deadline. Counts the programs that run, and those that wait
    (lmc.waiting.Meter).

    path   of the file of submissions; None: only in this process
    synced waits until the runs' records are on disk
    shows  whether progress is shown to a person; otherwise it is logged ("lmc.batches")
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.synced: Callable[[], object] = lambda: None
        self.shows = False
        self._lock = threading.Lock()
        self._running = self._parked = 0
        self._submitted: SubmittedWaves | None = None
        self._waves: dict[object, Waves] = {}  # by the backend

    # programs

    def begins(self, programs: int) -> None:
        with self._lock:
            self._running += programs

    def ends(self, programs: int) -> None:
        with self._lock:
            self._running -= programs

    def parks(self) -> None:
        with self._lock:
            self._parked += 1

    def wakes(self) -> None:
        with self._lock:
            self._parked -= 1

    @property
    def idle(self) -> bool:
        """Return whether all programs wait."""
        return self._parked >= self._running

    # requests

    @property
    def submitted(self) -> SubmittedWaves:
        """Return the record of submissions; on a backend's loop, once the journal is open: no other process writes."""
        with self._lock:
            if self._submitted is None:
                self._submitted = SubmittedWaves(self.path)
            return self._submitted

    def waves_of(self, backend: object, name: str, api: Callable[[], BatchApi], loop: LoopThread) -> Waves:
        """Return the requests to one backend. On its loop."""
        if backend not in self._waves:
            self._waves[backend] = Waves(api(), self, name, loop)
        return self._waves[backend]

    def tell(self, message: str) -> None:
        said.info(message)
        if self.shows:
            from tqdm.auto import tqdm  # it moves its progress bar out of the way

            tqdm.write(f"lmc: {message}", file=sys.stderr)

    @contextmanager
    def waited_for(self) -> Generator[None]:
        """Mark, in the block, that the answers are waited for. Leaving it early reports what happens to the batches."""
        try:
            yield
        except BaseException as error:
            if (left := self.leave()) and not isinstance(error, Exception | GeneratorExit):
                error.add_note(left)
            raise

    def leave(self) -> str:
        """Stop waiting: without a journal, submitted batches are cancelled. Return a note on what happens to them; ""
        if nothing is open."""
        open_ = [wave.batch for waves in self._waves.values() for wave in waves.open()]
        if not open_:
            return ""
        which = f"{len(open_)} batch{'es' if len(open_) > 1 else ''} ({', '.join(map(str, open_[:3]))}{', …' if len(open_) > 3 else ''})"
        if self.path is None:
            for waves in tuple(self._waves.values()):
                waves.give_up()
            left = f"{which} cancelled: without journal=… the answers could not be collected"
        else:
            left = f"{which} went on at the server; the same call with the same journal= takes the answers, and pays for nothing twice"
        self.tell(left)
        return left


# -- waves -------------------------------------------------------------------------------------------------------------


class Waves:
    """The requests of one call to one server. Belongs to the backend's loop."""

    def __init__(self, api: BatchApi, desk: BatchQueue, name: str, loop: LoopThread) -> None:
        self.api, self.desk, self.name, self._loop = api, desk, name, loop
        self._waiting: dict[str, BatchedRequest] = {}  # requests in no wave yet
        self._open: dict[str, tuple[SubmittedWave, dict[str, BatchedRequest]]] = {}  # waves whose answers are waited for
        self._items: dict[str, dict[str, Item]] = {}  # unclaimed results of waves that are over
        self._counts: dict[str, int] = {}  # counts of equal requests
        self._arrived = 0
        self._reached = False  # the server has answered
        self._closing: asyncio.Task[Any] | None = None

    def open(self) -> list[SubmittedWave]:
        """Return the waves that are on the server, and not over. From any thread."""
        return [wave for wave, _ in tuple(self._open.values()) if wave.batch is not None]

    async def answer(self, request: HttpRequest, identity: str, number: int) -> Received:
        """Return the answer from a batch: from a submitted one if it has the request, else from the next one. Raises
        Fault.

        identity, number  the caller, and the index of this request among its own
        """
        asked = BatchedRequest(self._id(request, identity, number), self.api.sent(request), asyncio.get_running_loop().create_future())
        wave = self.desk.submitted.of(asked.id)
        if wave is None:
            self._wait(asked)
        elif wave.key in self._items:
            asked.settle(self._items[wave.key], old=wave.old)
        elif wave.key in self._open:
            self._open[wave.key][1][asked.id] = asked
        else:
            self._follow(wave, [asked])
        return await asked.answer

    def _id(self, request: HttpRequest, identity: str, number: int) -> str:
        """Return the request's id: a digest of its content and its caller, independent of parameters that the server
        was found to reject."""
        prompt = [request.body.get(key) for key in ("system", "messages", "prompt")]
        said = json.dumps([self.name, prompt, identity, number], sort_keys=True, ensure_ascii=False)
        digest = blake2b(said.encode("utf-8", "surrogatepass"), digest_size=14).hexdigest()
        count = self._counts[digest] = self._counts.get(digest, -1) + 1
        return f"{digest}-{count}"

    # building and submitting a wave

    def _wait(self, asked: BatchedRequest) -> None:
        self._waiting[asked.id] = asked
        self._arrived += 1
        if self._closing is None:
            self._closing = self._loop.spawn(self._close())

    async def _close(self) -> None:
        """Submit waiting requests, once all programs wait."""
        seen, since = -1, 0.0
        while True:
            if seen != self._arrived:
                seen, since = self._arrived, clock.now()
            await clock.sleep(LINGER)
            if seen == self._arrived and ((self.desk.idle and await self._settled(seen)) or clock.now() - since >= PATIENCE):
                break
        self._closing = None
        waiting, self._waiting = self._waiting, {}
        by_path: dict[str, list[BatchedRequest]] = {}
        for asked in waiting.values():
            if not asked.answer.done():  # otherwise it is no longer wanted
                by_path.setdefault(asked.request.path, []).append(asked)
        for path, several in by_path.items():
            for part in self._parts(several):
                self._loop.spawn(self._submit(path, part))

    async def _settled(self, seen: int) -> bool:
        """Return whether no request is still on its way here."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return self._arrived == seen and self.desk.idle

    def _parts(self, several: Sequence[BatchedRequest]) -> list[list[BatchedRequest]]:
        """Split into as many batches as the server's limits need."""
        parts: list[list[BatchedRequest]] = []
        size = 0
        for asked in several:
            length = len(json.dumps(asked.request.body)) + 200
            if not parts or len(parts[-1]) >= self.api.most or size + length > self.api.size:
                parts.append([])
                size = 0
            parts[-1].append(asked)
            size += length
        return parts

    async def _submit(self, path: str, several: Sequence[BatchedRequest]) -> None:
        """Submit a batch, and wait for it. If it is unknown whether the server got it, its list tells."""
        ids, delay, doubtful, failed = [asked.id for asked in several], FIRST_POLL, False, 0
        try:
            await asyncio.to_thread(self.desk.synced)  # the requests' origin is recorded before they can be found again
            wave = self.desk.submitted.intend(self.name, ids, clock.now())
            number = len(self.desk.submitted.waves)
            while wave.batch is None:
                try:
                    found = await _said(self.api.find(wave.key, len(ids), clock.now() - wave.since)) if doubtful else None
                    if found != "later":
                        requests = [(f"{asked.id}-{wave.key}", asked.request.body) for asked in several]
                        self.desk.submitted.submitted(wave, found or await _said(self.api.submit(path, requests, wave.key)))
                        break
                except Fault as fault:
                    failed += fault.status != 429  # the server is busy: submitted again later
                    doubtful = doubtful or fault.status is None or fault.status >= 500
                    if not fault.transient or failed > (_TRIES if self._reached else _FIRST_TRIES) or clock.now() - wave.since > DAY:
                        if not doubtful:
                            self.desk.submitted.gone(wave)
                        raise given_up(fault) from None
                    delay = max(min(2 * delay, LONGEST_POLL), fault.retry_after or 0.0)
                    self.desk.tell(f"{self.name}: a batch was not submitted ({fault.message}); trying again in {delay:.0f} s")
                await clock.sleep(max(delay, IN_DOUBT) if doubtful else delay)
        except Exception as error:  # it belongs to these requests: raised to readers of their answers
            for asked in several:
                asked.fail(error)
            return
        self._reached = True
        self.desk.tell(f"{self.name}: wave {number}: {len(several)} request{'s' if len(several) > 1 else ''}, {wave.batch}")
        self._follow(wave, several)

    # submitted waves

    def _follow(self, wave: SubmittedWave, several: Sequence[BatchedRequest]) -> None:
        self._open[wave.key] = wave, {asked.id: asked for asked in several}
        self._loop.spawn(self._polling(wave))

    async def _polling(self, wave: SubmittedWave) -> None:
        """Poll a batch until it is over, and deliver its answers."""
        try:
            items = await self._ended(wave)
        except Exception as error:  # as above
            _, several = self._open.pop(wave.key)
            if isinstance(error, Fault) and error.code == FULL:
                return await self._again(wave, several, error)
            for asked in several.values():
                asked.fail(error)
            return
        _, several = self._open.pop(wave.key)
        if items is None:
            if wave.key in self.desk.submitted.waves:
                self.desk.submitted.gone(wave)
            for asked in several.values():
                self._wait(asked)
            return
        self._items[wave.key] = items
        failed = sum(isinstance(items.get(id), Fault | None) for id in wave.ids)
        self.desk.submitted.over(wave, failed)
        self.desk.tell(f"{self.name}: {wave.batch} is over: {len(wave.ids) - failed} answered{f', {failed} failed' if failed else ''}")
        for asked in several.values():
            asked.settle(items, old=wave.old)

    async def _ended(self, wave: SubmittedWave) -> dict[str, Item] | None:
        """Return the results of a wave's requests; None for one that was never submitted."""
        delay, since, told = FIRST_POLL, clock.now(), -1
        while True:
            try:
                if wave.batch is None:
                    await clock.sleep(max(0.0, wave.since + IN_DOUBT - clock.now()))
                    found = await _said(self.api.find(wave.key, len(wave.ids), clock.now() - wave.since))
                    if found is None:
                        return None
                    if found != "later":
                        self.desk.submitted.submitted(wave, found)
                if wave.batch is not None:
                    status = await _said(self.api.status(wave.batch))
                    if status.over:
                        return {id.removesuffix(f"-{wave.key}"): item for id, item in (await _said(self.api.results(wave.batch))).items()}
                    if status.done != told:
                        told = status.done
                        self.desk.tell(f"{self.name}: {wave.batch}: {status.done} of {status.total} done")
                since = clock.now()
            except Fault as fault:
                if fault.status == 404 and wave.batch is not None:
                    if clock.now() - wave.since > KEPT:
                        self.desk.tell(f"{self.name}: the server no longer has {wave.batch}; its requests go out again")
                        return None
                    fault.message += self._whose(wave)
                if fault.code == FULL or not fault.transient or clock.now() - since > DAY:
                    raise fault if fault.code == FULL else given_up(fault) from None
                delay = max(delay, fault.retry_after or 0.0)
                self.desk.tell(f"{self.name}: {wave.batch}: no answer ({fault.message}); looking again in {delay:.0f} s")
            await clock.sleep(delay)
            delay = min(1.5 * delay, LONGEST_POLL)

    def _whose(self, wave: SubmittedWave) -> str:
        """Return the remedy for a batch that the server should have, and has not."""
        whose = "; batches are seen with the key, the organization and the project that they were submitted with"
        if self.desk.path is None:
            return whose
        return f"{whose}. To ask, and pay, again for the {len(wave.ids)} requests of {wave.batch}, move away {self.desk.path}"

    async def _again(self, wave: SubmittedWave, several: Mapping[str, BatchedRequest], fault: Fault) -> None:
        """Submit again later a batch for which the server has no room: nothing of it was done."""
        self.desk.submitted.gone(wave)
        if clock.now() - wave.since > DAY:
            for asked in several.values():
                asked.fail(given_up(fault))
            return
        self.desk.tell(f"{self.name}: {wave.batch} was refused ({fault.message}); it is submitted again in {LONGEST_POLL:.0f} s")
        await clock.sleep(LONGEST_POLL)
        for asked in several.values():
            self._wait(asked)

    def give_up(self) -> None:
        """Cancel batches on the server. From any thread, waits a little."""
        done = threading.Event()

        async def cancel() -> None:
            try:
                for wave in self.open():
                    await self.api.cancel(str(wave.batch))
            except Fault as fault:
                self.desk.tell(f"{self.name}: a batch could not be cancelled: {fault.message}")
            finally:
                done.set()

        if self._loop.post(lambda: self._loop.spawn(cancel())):
            done.wait(_LATE)


_TRIES, _FIRST_TRIES = 6, 1
"""Most submissions of a batch to a server that has not answered yet."""


async def _said(call: Coroutine[Any, Any, T]) -> T:
    """Return what a server says of a batch. Raises Fault, also for what is nothing of the kind, or takes hours."""
    try:
        async with asyncio.timeout(_LONGEST):
            with reading():
                return await call
    except TimeoutError:
        raise Fault(f"no answer within {_LONGEST:g} s") from None
