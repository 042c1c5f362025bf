"""Measure a program in the ways in which it can be run: times of each item, requests, tokens, money. `lmc bench`, and the project's experiments.

loop          one item after another, interpreted: like plain code
interpreted   all items as a batch, interpreted
one by one    one item after another, compiled
compiled      all items as a batch, compiled
arriving      each at a time of its own, compiled
"""

from __future__ import annotations

import gc
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any

import lmc
from lmc.backend.base import Backend, Handle, Hints
from lmc.backend.results import Result
from lmc.backend.usage import Counters, Prices, Usage
from lmc.segments import Segment

Items = Sequence[Mapping[str, Any]]
Way = Callable[[Items, Any], list[Any]]
"""Runs a program's items on a backend; returns their states in order."""


class TimedBackend:
    """A backend that records when the answers of each run arrived. Overhead: a list append per request, none per
    answer.

    streams  let answers arrive as they grow, so that the time of a first token is known; without, it is that of a first answer
    """

    def __init__(self, backend: Backend, *, streams: bool = False) -> None:
        self.backend, self._streams = backend, streams
        self.runs: dict[object, list[Result]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def submit(self, parent: Any, segments: Sequence[Segment], hints: Hints | None = None) -> Handle:
        given = hints or Hints()
        handle = self.backend.submit(parent, segments, given._replace(watched=True) if self._streams else given)
        self.runs.setdefault(_item.get() or (given.run and given.run.number), []).extend(handle.results)
        return handle

    def times(self) -> dict[object, tuple[float, float]]:
        """Return, by run, the times of its first text and its last answer, by `time.perf_counter()`, for runs with an
        answer."""
        found: dict[object, tuple[float, float]] = {}
        for run, results in self.runs.items():
            ended = [(r.first or r.ended, r.ended) for r in results if r.answer is not None]
            if ended:
                found[run] = min(first for first, _ in ended), max(end for _, end in ended)
        return found


_item: ContextVar[str] = ContextVar("item", default="")
"""The item that a thread runs, where each has a thread of its own."""


@dataclass(frozen=True)
class Spread:
    """Percentiles of times, in seconds."""

    p50: float
    p95: float
    p99: float

    @staticmethod
    def of(times: Sequence[float]) -> Spread:
        """Compute percentiles of at least one time by the nearest rank: a percentile is a time that occurred."""
        found = sorted(times)
        at = lambda share: found[max(0, math.ceil(share * len(found)) - 1)]
        return Spread(at(0.5), at(0.95), at(0.99))


@dataclass(frozen=True)
class MeasuredMode:
    """All items once, in one mode.

    seconds   wall time until every item is done
    cpu       CPU seconds that this process spent meanwhile, on all its threads: less moved by other work on the machine than wall time
    first, total  from the start (of an item, where one runs after another; else of all) to its first text, and to its last answer
    texts     what each item's conversation was, and what it returned
    """

    seconds: float
    cpu: float
    counters: Counters
    usage: Usage
    first: Spread
    total: Spread
    texts: tuple[tuple[str, str], ...]


def loop(program: Any) -> Way:
    """Run the interpreter, one item after another."""
    return lambda items, backend: [_ended(program.run_batch([dict(item)], backend=backend, **GREEDY)[0]) for item in items]


def interpreted(program: Any) -> Way:
    return lambda items, backend: program.run_batch([dict(item) for item in items], backend=backend, **GREEDY)


def one_by_one(program: Any) -> Way:
    """Run compiled, one item after another."""
    made = lmc.compile(program)
    return lambda items, backend: [_ended(made.call(item, backend=backend, **GREEDY)) for item in items]


def compiled(program: Any, **options: Any) -> Way:
    """Run compiled with these options, as a batch."""
    made = lmc.compile(program, **options)
    return lambda items, backend: made.batch(items, backend=backend, **GREEDY)


GREEDY: Mapping[str, Any] = {"temperature": 0, "seed": 0}
"""Options of all runs. A gen with a temperature of its own has the same seed in every mode."""
WAYS: Mapping[str, Callable[[Any], Way]] = {"loop": loop, "interpreted": interpreted, "one by one": one_by_one, "compiled": compiled}
ONE_AFTER_ANOTHER = ("loop", "one by one")
ARRIVING = "arriving"
"""A line of items that arrive by themselves."""


def _ended(state: Any) -> Any:
    state.sync()
    return state


def measure(way: Way, items: Items, backend: Any, *, in_turn: bool = False, streams: bool = False) -> MeasuredMode:
    """Run all items once, with an empty cache.

    in_turn  items run one after another, so that the time of each counts from the end of the one before
    Raises what an item raises: the speed of a failing program means nothing.
    """
    backend.flush_cache()
    gc.collect()
    watched = TimedBackend(backend, streams=streams)
    before, began, cpu = backend.counters(), time.perf_counter(), time.process_time()
    states = way(items, watched)
    for state in states:
        state.sync()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    times = sorted(watched.times().values(), key=lambda t: t[1])
    starts = [began, *(end for _, end in times[:-1])] if in_turn else [began] * len(times)
    answered = [(first - start, end - start) for start, (first, end) in zip(starts, times)]
    return _mode(seconds, cpu, backend.counters() - before, answered, states)


def _mode(seconds: float, cpu: float, counters: Counters, times: Sequence[tuple[float, float]], states: Sequence[Any]) -> MeasuredMode:
    firsts, totals = zip(*(times or [(seconds, seconds)]))  # possibly no request
    usage, texts = sum((state.usage for state in states), Usage()), tuple((state.text(), repr(state.ret_value)) for state in states)
    return MeasuredMode(seconds, cpu, counters, usage, Spread.of(firsts), Spread.of(totals), texts)


def poisson(rng: Random, rate: float, count: int) -> list[float]:
    """Draw times of arrivals at random, so many a second, the first at 0."""
    return [0.0, *accumulate(rng.expovariate(rate) for _ in range(count - 1))]


def arriving(program: Any, items: Items, backend: Any, at: Sequence[float], *, streams: bool = True) -> MeasuredMode:
    """Run each item at its arrival time, on a thread of its own, like users of a service.

    at  seconds from the start, of each item, in order
    `first` and `total` count from an item's arrival. Raises what an item raises, after all have ended.
    """
    backend.flush_cache()
    watched = TimedBackend(backend, streams=streams)
    states: list[Any] = [None] * len(items)
    failures: list[BaseException] = []

    def run(i: int) -> None:
        _item.set(str(i))
        try:
            states[i] = _ended(program.call(items[i], backend=watched, **GREEDY))
        except BaseException as error:  # raised below, in the thread that waits
            failures.append(error)

    before, began, cpu = backend.counters(), time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(items))]
    for thread, due in zip(threads, at):
        time.sleep(max(0.0, began + due - time.perf_counter()))
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    seen = watched.times()
    times = [(seen[str(i)][0] - began - due, seen[str(i)][1] - began - due) for i, due in enumerate(at) if str(i) in seen]
    return _mode(seconds, cpu, backend.counters() - before, times, states)


@dataclass(frozen=True)
class Line:
    """One mode of running a program, over all repetitions. Counters and percentiles are those of the repetition whose
    time is the median.

    same      share of items with the text and return value of the first way's, over all repetitions
    accuracy  share of items that returned what was expected, over all repetitions; None if nothing was expected
    speedup   the first way's time over this one's; None for items that arrive by themselves
    cost  in the unit of the backend's prices; None if it has none
    """

    way: str
    items: int
    reps: int
    seconds: float
    least: float
    most: float
    cpu: float
    first: Spread
    total: Spread
    requests: int
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    forced_tokens: int
    passes: int
    ahead_asked: int
    ahead_used: int
    cost: float | None
    same: float
    accuracy: float | None
    speedup: float | None


def compare(program: Any, draw: Callable[[int], Items], backend: Any, *, ways: Sequence[str] = tuple(WAYS), reps: int = 3, streams: bool = False) -> list[Line]:
    """Run a program in several modes, in turns, after an untimed run of each; the others are compared with the first.

    draw  the items of a repetition; -1: of the untimed run
    """
    *_, lines = comparing(program, draw, backend, ways=ways, reps=reps, streams=streams)
    return lines


def comparing(
    program: Any, draw: Callable[[int], Items], backend: Any, *, ways: Sequence[str] = tuple(WAYS), reps: int = 3, streams: bool = False,
    rate: float | None = None, expected: Sequence[Any] | None = None,
) -> Iterator[list[Line]]:  # fmt: skip
    """As `compare`, but yield after each repetition what is known by then.

    rate      also let the items of each repetition arrive at random, so many a second; the last line
    expected  what each item should return
    """
    made: dict[str, Callable[[Items, Any], MeasuredMode]] = {
        name: partial(measure, WAYS[name](program), in_turn=name in ONE_AFTER_ANOTHER, streams=streams) for name in ways
    }
    for way in made.values():
        way(draw(-1)[:2], backend)
    if rate is not None:
        arrives = lmc.compile(program)
        made[ARRIVING] = lambda items, backend: arriving(arrives, items, backend, poisson(Random(0), rate, len(items)), streams=streams)
    runs: dict[str, list[MeasuredMode]] = {name: [] for name in made}
    for rep in range(reps):
        items = draw(rep)
        for name in made if rep % 2 == 0 else reversed(made):  # texts seen before are tokenized already
            runs[name].append(made[name](items, backend))
        yield [_line(name, runs[name], runs[ways[0]], backend.capabilities.prices, expected) for name in made]


def _line(name: str, runs: Sequence[MeasuredMode], reference: Sequence[MeasuredMode], prices: Prices | None, expected: Sequence[Any] | None) -> Line:
    times = [run.seconds for run in runs]
    middle = statistics.median_low(times)
    run = runs[times.index(middle)]
    pairs = [(a, b) for one, other in zip(runs, reference) for a, b in zip(one.texts, other.texts)]
    right = [value in (repr(wanted), str(wanted)) for one in runs for (_, value), wanted in zip(one.texts, expected or ())]  # of a CSV, "3" stands for 3
    return Line(
        name, len(run.texts), len(runs), middle, min(times), max(times), run.cpu, run.first, run.total, run.counters.calls, run.counters.prompt_tokens,
        run.counters.prefilled_tokens, run.counters.generated_tokens, run.counters.forced_tokens, run.counters.passes,
        run.usage.ahead_asked, run.usage.ahead_used, None if prices is None else prices.of(run.usage), sum(a == b for a, b in pairs) / len(pairs),
        sum(right) / len(right) if right else None,
        None if name == ARRIVING else statistics.median_low([r.seconds for r in reference]) / middle,
    )  # fmt: skip
