"""Where the wall time of a run on an engine goes: what its loop's thread did, what its callers did, what its device did.

    with broken_down(engine) as found:
        run programs
    print("\\n".join(found().lines()))

The loop's seconds are exclusive, so they sum to the whole. On a GPU begin and end of passes and of the tower are events in its stream; on a CPU,
where the loop computes them itself, they are the loop's. A gap is the time without either before a pass or a tower run.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from typing import Any

import numpy as np

from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.engine.token_ids import PICTURE
from lmc.backend.local import LocalBackend

KINDS = ("tower", "pictures", "prompts", "answers")
"""Kinds of work of the device: the vision tower; passes with rows of pictures; with other rows of prompts; with rows of answers alone."""


@dataclass
class Spent:
    """Calls, wall and processor seconds of a thread, and when the first call began and the last ended."""

    calls: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    first: float | None = None
    last: float = 0.0

    def add(self, began: float, ended: float, seconds: float, cpu: float) -> None:
        self.calls, self.seconds, self.cpu = self.calls + 1, self.seconds + seconds, self.cpu + cpu
        self.first, self.last = began if self.first is None else self.first, ended


@dataclass(frozen=True)
class Ran:
    """Something that the device ran, in seconds since the start: a pass, with its rows, or the tower, with its number of pictures in `rows`."""

    kind: str
    began: float
    ended: float
    rows: int
    of_pictures: int = 0
    of_prompts: int = 0
    of_answers: int = 0


@dataclass(frozen=True)
class Kind:
    """All runs of a kind together. gap: seconds that the device did nothing before them."""

    runs: int
    rows: int
    of_pictures: int
    of_prompts: int
    of_answers: int
    seconds: float
    gap: float
    first: float
    last: float


@dataclass(frozen=True)
class Breakdown:
    """Of a run of `seconds`: by what the loop did, by what callers did, and by what the device did."""

    seconds: float
    loop: dict[str, Spent]
    callers: dict[str, Spent]
    device: dict[str, Kind]
    ran: list[Ran] = field(repr=False)

    @property
    def idle(self) -> float:
        """Return the seconds in which the device did nothing."""
        return self.seconds - sum(kind.seconds for kind in self.device.values())

    def lines(self) -> list[str]:
        found = [
            f"{self.seconds:.2f} s, of which the device had nothing to do for {self.idle:.2f}",
            "  device      runs    rows  pictures   prompts   answers  seconds  ms/run  gaps before   from …  to",
        ]
        for name, k in self.device.items():
            rows = f"{k.rows:7d} {k.of_pictures:9d} {k.of_prompts:9d} {k.of_answers:9d}" if name != "tower" else f"{'':7} {k.rows:9d} {'':9} {'':9}"
            found.append(f"  {name:9} {k.runs:6d} {rows} {k.seconds:8.3f} {k.seconds / k.runs * 1e3:7.1f} {k.gap:12.3f} {k.first:8.2f} {k.last:6.2f}")
        for who, parts in (("the loop", self.loop), ("callers", self.callers)):
            found.append(f"  {who:11} calls  seconds      cpu    from …  to")
            for name, s in sorted(parts.items(), key=lambda part: -part[1].seconds):
                found.append(f"  {name:11} {s.calls:5d} {s.seconds:8.3f} {s.cpu:8.3f} {s.first or 0.0:9.2f} {s.last:6.2f}")
        return found

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "idle": self.idle, "ran": [[round(x, 5) if isinstance(x, float) else x for x in asdict(one).values()] for one in self.ran]}


class _Clocks:
    """Exclusive seconds of nested calls on one thread."""

    def __init__(self, start: float) -> None:
        self.spent: dict[str, Spent] = defaultdict(Spent)
        self._start, self._inner = start, list[list[float]]()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._inner.append([0.0, 0.0])
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            ended, used = time.perf_counter(), time.thread_time() - cpu
            seconds, computed = self._inner.pop()
            if self._inner:
                self._inner[-1][0] += ended - began
                self._inner[-1][1] += used
            self.spent[name].add(began - self._start, ended - self._start, ended - began - seconds, used - computed)


class _Inbox:
    """A loop's queue: what the loop waits for it is sleep."""

    def __init__(self, queue: Any, clocks: _Clocks) -> None:
        self.put, self.get_nowait, self._get, self._clocks = queue.put, queue.get_nowait, queue.get, clocks

    def get(self, timeout: float | None = None) -> Any:
        with self._clocks.part("asleep"):
            return self._get(timeout=timeout)


class _Flight:
    def __init__(self, flight: Any, clocks: _Clocks, on_done: Callable[[Any], None]) -> None:
        self._flight, self._clocks, self._on_done = flight, clocks, on_done

    @property
    def over(self) -> bool:
        return self._flight.over

    @property
    def seconds(self) -> float:
        return self._flight.seconds

    def result(self) -> Any:
        with self._clocks.part("device"):
            found = self._flight.result()
        self._on_done(self._flight)
        return found


class _Device:
    """Begin and end of what the device runs, by events in its stream; without one by this clock, as things are computed where they are called."""

    def __init__(self, cuda: Any, start: float) -> None:
        self._cuda, self._start = cuda, start
        self.base = self.mark()

    def mark(self) -> Any:
        if self._cuda is None:
            return time.perf_counter()
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def since(self, mark: Any) -> float:
        """Return the seconds of a mark that the device has come to."""
        return mark - self._start if self._cuda is None else self.base.elapsed_time(mark) / 1e3


def _rows(work: ModelPass) -> tuple[str, int, int, int]:
    """Return the kind of a pass, and its rows of pictures, of other prompt tokens, and of answers."""
    pictures = int((np.concatenate([span.ids for span in work.spans]) >= PICTURE).sum()) if work.spans else 0
    answers = sum([len(span.ids) for span in work.spans if span.branch is None and span.position >= len(span.request.prompt)])
    prompts = work.rows - pictures - answers
    return "pictures" if pictures else "prompts" if prompts else "answers", pictures, prompts, answers


@contextmanager
def broken_down(engine: LocalBackend) -> Iterator[Callable[[], Breakdown]]:
    """While open, what an idle engine of one device does is timed. Gives what returns the breakdown up to that moment."""
    core: Any = engine._core
    eyes, runner, scheduler = engine._builder.eyes, core._runner, core.scheduler
    cuda = None
    if getattr(runner, "_begun", None) is not None:
        import torch

        cuda = torch.cuda
        torch.cuda.synchronize()
    start = time.perf_counter()
    clocks, device = _Clocks(start), _Device(cuda, start)
    callers: dict[str, Spent] = defaultdict(Spent)
    lock = threading.Lock()
    towers = list[tuple[Any, Any, int]]()
    ran, rows = list[Ran](), dict[int, tuple[str, int, int, int]]()
    patched = list[tuple[Any, str]]()

    def put(owner: Any, name: str, method: Any) -> None:
        setattr(owner, name, method)
        patched.append((owner, name))

    def on_loop(owner: Any, name: str, part: str) -> None:
        method = getattr(owner, name)

        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not core.on_thread:
                return method(*args, **kwargs)
            with clocks.part(part):
                return method(*args, **kwargs)

        put(owner, name, timed)

    def on_callers(owner: Any, name: str, part: str) -> None:
        method = getattr(owner, name)

        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                ended, used = time.perf_counter(), time.thread_time() - cpu
                with lock:
                    callers[part].add(began - start, ended - start, ended - began, used)

        put(owner, name, timed)

    def scheduled(schedule: Callable[..., ModelPass | None]) -> Callable[..., ModelPass | None]:
        def timed(*args: Any) -> ModelPass | None:
            with clocks.part("schedule"):
                work = schedule(*args)
            if work is not None:
                with clocks.part("timing"):
                    rows[id(work)] = _rows(work)
            return work

        return timed

    def launched(launch: Callable[[ModelPass], Any]) -> Callable[[ModelPass], Any]:
        def timed(work: ModelPass) -> Any:
            (name, *of), total, began = rows.pop(id(work)), work.rows, time.perf_counter()
            with clocks.part(f"launch {name}"):
                flight = launch(work)

            def on_done(flight: Any) -> None:
                marks = (began, device.mark()) if cuda is None else (flight.begun, flight.ended)
                ran.append(Ran(name, *map(device.since, marks), total, *of))

            return _Flight(flight, clocks, on_done)

        return timed

    def computed(run: Callable[[ModelPass], Any]) -> Callable[[ModelPass], Any]:
        def timed(work: ModelPass) -> Any:
            name, *of = rows.pop(id(work))
            looked, began = len(towers), device.mark()
            with clocks.part("device"):
                output = run(work)
            began = towers[-1][1] if len(towers) > looked else began
            ran.append(Ran(name, device.since(began), device.since(device.mark()), work.rows, *of))
            return output

        return timed

    def looked(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def timed(shown: Any) -> Any:
            began = device.mark()
            with clocks.part("launch tower" if cuda is not None else "tower"):
                found = look(shown)
            towers.append((began, device.mark(), len(shown)))
            return found

        return timed

    inbox, core._inbox = core._inbox, _Inbox(core._inbox, clocks)
    put(scheduler, "schedule", scheduled(scheduler.schedule))
    if hasattr(runner, "launch"):
        put(runner, "launch", launched(runner.launch))
    else:
        put(runner, "run", computed(runner.run))
    for name, part in (("_take", "take in"), ("_rest", "rest"), ("step", "step")):
        on_loop(core, name, part)
    on_loop(core.delivery, "deliver", "deliver")
    on_loop(core.delivery, "emit_deltas", "speak")
    on_loop(scheduler, "commit", "commit")
    on_callers(core, "give_way", "give way")
    on_callers(core, "submit", "submit")
    if eyes is not None:
        on_callers(eyes, "placed", "prepare")
        put(eyes.sight, "look", looked(eyes.sight.look))

    def result() -> Breakdown:
        seconds = time.perf_counter() - start
        everything = [*ran, *(Ran("tower", device.since(began), device.since(ended), n) for began, ended, n in towers)]
        everything.sort(key=lambda one: one.began)
        loop, others = ({name: replace(spent) for name, spent in found.items()} for found in (clocks.spent, callers))
        return Breakdown(seconds, loop, others, _by_kind(everything), everything)

    def restore() -> None:
        core._inbox = inbox
        for owner, name in patched:
            delattr(owner, name)

    core.call(lambda: None)  # the loop, if it slept, has woken in what it had before
    try:
        yield lambda: core.call(result)  # on the loop's thread: passes are complete
    finally:
        core.call(restore)


def _by_kind(ran: list[Ran]) -> dict[str, Kind]:
    """Return all runs by their kind; `ran` in order."""
    found: dict[str, Kind] = {}
    gaps, until = dict.fromkeys(KINDS, 0.0), 0.0
    for one in ran:
        gaps[one.kind] += max(0.0, one.began - until)
        until = max(until, one.ended)
    for kind in KINDS:
        if these := [one for one in ran if one.kind == kind]:
            sums = (sum(getattr(one, name) for one in these) for name in ("rows", "of_pictures", "of_prompts", "of_answers"))
            found[kind] = Kind(len(these), *sums, sum(one.ended - one.began for one in these), gaps[kind], these[0].began, max(one.ended for one in these))
    return found
