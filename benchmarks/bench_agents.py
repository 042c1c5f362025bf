"""Replays agents whose tools take time in a pool that is too small for them: what memory that belongs to programs is worth, beside plain LRU.

    python -m benchmarks.bench_agents --model DIR --load-format dummy --device cuda            # a quarter of an hour on one H200
    python -m benchmarks.bench_agents --model DIR --load-format dummy --device cuda --policies own,lru --window 40 --warm-up 12      # below eight minutes
    python -m benchmarks.bench_agents --scale 64 --pool 12500 --over 1,4                       # on a clock of its own, no model

A closed loop: so many agents are in flight that their final contexts need `over` times the pool, and when one ends the next begins. Those that fit begin in the
middle of their work, the others at its beginning. After a warm-up, each finished turn within the window counts as its share of a job. *optimality* is
the prompt tokens that are new, of those that were computed. One line is printed as soon as it is known.

Without --model there is none: passes cost what they do on an H200 with an 8B shape (`--pass-ms`, `--row-us`), tools and passes take place on a clock
that nothing really waits for, and each policy does the same `--jobs` agents for each that is in flight.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import lmc
from benchmarks.agent_traces import CONTEXT, Tools, Trace, agent, traces
from benchmarks.bench_programs import where
from benchmarks.stepped import SteppedCore, stepped
from lmc.backend.engine.engine import EngineCore, PassOutput
from lmc.backend.engine.policy import Policy
from lmc.backend.engine.work import Pass
from lmc.backend.local import LocalBackend
from lmc.errors import LmcError
from lmc.waiting import Signal

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "own": {}, "own+host": {"host_memory": "16GB"}, "lru": {"schedule": "lpm", "eviction": "lru"},
}  # fmt: skip
"""lmc's own way, the same with a host tier, and requests by themselves with plain LRU."""


@dataclass(frozen=True)
class Row:
    """One point: a policy at an over-subscription."""

    policy: str
    over: float
    agents: int
    seconds: float  # of the window
    jobs_per_hour: float
    ended: int  # jobs that ended in the window
    optimality: float
    prefilled: int
    unique: int
    generated: int
    held_back: int  # requests, at the end
    broken: int  # leases
    host_in: int  # tokens
    of_best: float | None = None  # jobs per hour, of the policy's best point


class Log:
    """When which share of a job was done, and what had been computed by then."""

    def __init__(self, engine: LocalBackend, now: Callable[[], float]) -> None:
        self._engine, self._now, self._lock = engine, now, threading.Lock()
        self.events: list[tuple[float, float]] = []
        self.ended: list[float] = []
        self.marks: list[tuple[float, Any, Mapping[str, Any]]] = []

    def done(self, share: float) -> None:
        with self._lock:
            self.events.append((self._now(), share))

    def job_ended(self) -> None:
        with self._lock:
            self.ended.append(self._now())

    def mark(self) -> None:
        """The window begins, or ends."""
        self.marks.append((self._now(), self._engine.counters(), self._engine.stats()))

    def row(self, policy: str, over: float, agents: int) -> Row:
        (begin, first, then), (end, last, now) = self.marks
        spent, seconds = last - first, end - begin
        jobs = sum(share for at, share in self.events if begin < at <= end)
        more = lambda name: int(now.get(name, 0)) - int(then.get(name, 0))
        return Row(policy, over, agents, seconds, 3600 * jobs / seconds if seconds else 0.0, sum(begin < at <= end for at in self.ended), spent.prefill_optimality,
                   spent.prefilled_tokens, spent.unique_tokens, spent.generated_tokens, now["held_back"], more("broken_leases"), more("host_in"))  # fmt: skip


def in_flight(pool: int, scale: float, over: float) -> int:
    """Agents whose contexts need so many times the pool at their ends."""
    low, high = CONTEXT
    return max(1, round(over * pool * scale / ((high - low) / math.log(high / low))))


def begun(jobs: Iterator[Trace], fit: int) -> Iterator[Trace]:
    """The first ones, those that fit, are somewhere in the middle of their work."""
    for i, trace in enumerate(itertools.islice(jobs, fit)):
        yield trace.rest(i * len(trace.turns) // fit)
    yield from jobs


# -- with a model --------------------------------------------------------------------------------------------------


def replay(engine: LocalBackend, jobs: Iterator[Trace], agents: int, warm_up: float, window: float) -> Log:
    """A closed loop of so many agents, each on a thread of its own; over when the window is."""
    log, lock, began = Log(engine, time.monotonic), threading.Lock(), time.monotonic()
    end = began + warm_up + window
    tools = Tools(lambda seconds: time.sleep(max(0.0, min(seconds, end - time.monotonic()))), log.done)
    failures: list[LmcError] = []

    def loop() -> None:
        while (left := end - time.monotonic()) > 0 and not failures:
            with lock:
                trace = next(jobs)
            try:
                agent.run(trace=trace, tools=tools, backend=engine, temperature=0, timeout=left)
            except lmc.RunTimeout:
                return
            except LmcError as error:
                failures.append(error)
            log.job_ended()

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(agents)]
    for thread in threads:
        thread.start()
    for at in (began + warm_up, end):
        time.sleep(max(0.0, at - time.monotonic()))
        log.mark()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return log


# -- with none -----------------------------------------------------------------------------------------------------


@dataclass
class NullRunner:
    """A model that answers at once, and says how long it would have taken."""

    base: float
    per_row: float
    took: float = 0.0

    def run(self, work: Pass) -> PassOutput:
        self.took = self.base + self.per_row * work.rows
        return PassOutput([_TOKEN] * len(work.samples), [None] * len(work.samples), [0.0] * len(work.scores), [()] * len(work.scores))


_TOKEN = 42


class NullMover:
    """Copies of nothing, at 20 GB/s of an 8B shape's KV."""

    token_bytes = 1 << 17
    _RATE = 150_000.0  # tokens per second

    def __init__(self, capacity: int) -> None:
        self.capacity = self.ready = capacity
        self.clock: VirtualCore | None = None

    def out(self, device: np.ndarray, host: np.ndarray) -> NullCopy:
        assert self.clock is not None
        return NullCopy(self.clock, len(device) / self._RATE)

    back = out

    def settle(self) -> None: ...


class NullCopy:
    seconds = 0.0

    def __init__(self, clock: VirtualCore, seconds: float) -> None:
        self._clock, self._due = clock, clock.now + seconds

    def done(self) -> bool:
        return self._clock.now >= self._due

    def wait(self) -> None:
        self._clock.now = max(self._clock.now, self._due)


class VirtualCore(SteppedCore):
    """On a clock of its own, which goes on with each pass, and where nothing runs to the next thing that happens."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.now = 0.0
        self._sleepers: list[tuple[float, int, Signal]] = []
        self._ties = itertools.count()

    def seconds(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        signal = Signal()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._ties), signal))
        signal.wait()

    def turn(self) -> bool:
        runner: Any = self._runner
        runner.took = 0.0
        if EngineCore.turn(self):
            self._until(self.now + runner.took)
            return True
        due = [at for at, *_ in self._sleepers[:1]] + ([self.now + pause + 1e-6] if (pause := self._pause) else [])
        if due:
            self._until(min(due))
        return bool(due)

    def _until(self, at: float) -> None:
        self.now = max(self.now, at)
        while self._sleepers and self._sleepers[0][0] <= self.now:
            heapq.heappop(self._sleepers)[2].set()


def null_engine(pool: int, pass_seconds: float, row_seconds: float, *, host_memory: object = None, **policy: Any) -> LocalBackend:
    """A backend with the small model's tokenizer and no model."""
    from lmc.backend.engine.models.loader import load

    words = load("smollm2")
    mover = NullMover(8 * pool) if host_memory is not None else None
    return LocalBackend(
        name="null", vocabulary=words.tokenizer, chat_template=words.chat_template, runner=NullRunner(pass_seconds, row_seconds), compiler=None,
        max_tokens=pool, max_context=pool, max_batch=512, chunk=4096, policy=Policy(**policy), mover=mover,
    )  # fmt: skip


def simulate(engine: LocalBackend, jobs: Sequence[Trace], agents: int) -> Log:
    """The same on a clock of its own, until all jobs have ended. The window is over when the last one begins."""
    with stepped(engine, VirtualCore) as drain:
        core: Any = engine._core
        mover: Any = engine._scheduler._mover
        if mover is not None:
            mover.clock = core
        log, left = Log(engine, core.seconds), itertools.count(len(jobs) - 1, -1)
        items = [{"trace": trace, "tools": Tools(core.sleep, log.done)} for trace in jobs]
        log.mark()
        for state in agent.run_batch(items, backend=engine, temperature=0, num_threads=agents, generator_style=True):
            state.sync()
            log.job_ended()
            if next(left) == agents:
                log.mark()
        if len(log.marks) == 1:
            log.mark()
        drain()
    return log


# -- the table -----------------------------------------------------------------------------------------------------

COLUMNS: tuple[tuple[str, int, Callable[[Row], str]], ...] = (
    ("policy", 10, lambda r: r.policy), ("over", 5, lambda r: f"{r.over:g}"), ("agents", 7, lambda r: str(r.agents)), ("s", 7, lambda r: f"{r.seconds:.1f}"),
    ("jobs/h", 8, lambda r: f"{r.jobs_per_hour:.0f}"), ("of best", 8, lambda r: "" if r.of_best is None else f"{r.of_best:.0%}"), ("ended", 6, lambda r: str(r.ended)),
    ("optimality", 11, lambda r: f"{r.optimality:.4f}"), ("prefilled", 10, lambda r: str(r.prefilled)), ("unique", 10, lambda r: str(r.unique)),
    ("generated", 10, lambda r: str(r.generated)), ("held back", 10, lambda r: str(r.held_back)), ("broken", 7, lambda r: str(r.broken)), ("host in", 9, lambda r: str(r.host_in)),
)  # fmt: skip


def line(row: Row) -> str:
    return " ".join(show(row).rjust(width) for _, width, show in COLUMNS)


def beside_best(rows: Sequence[Row]) -> list[Row]:
    best = {row.policy: max(other.jobs_per_hour for other in rows if other.policy == row.policy) for row in rows}
    return [replace(row, of_best=row.jobs_per_hour / best[row.policy] if best[row.policy] else None) for row in rows]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model's path, or smollm2 (default: none, on a clock of its own)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"), help="dummy: random weights")
    parser.add_argument("--pool", type=int, default=100_000, help="tokens of the KV pool")
    parser.add_argument("--scale", type=float, default=8.0, help="what tokens and seconds of the traces are divided by")
    parser.add_argument("--over", default="1,2,4,8", help="over-subscriptions, separated by commas")
    parser.add_argument("--policies", default="own,lru,own+host", help="of " + ", ".join(POLICIES))
    parser.add_argument("--host-memory", default="16GB", help="of the host tier")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of a point")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds before it")
    parser.add_argument("--jobs", type=int, default=3, help="without a model: agents for each that is in flight")
    parser.add_argument("--pass-ms", type=float, default=8.0, help="without a model: what a pass takes")
    parser.add_argument("--row-us", type=float, default=25.0, help="without a model: and each of its rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    policies = options.policies.split(",")
    if unknown := [name for name in policies if name not in POLICIES]:
        parser.error(f"unknown policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    overs = [float(over) for over in options.over.split(",")]
    info = {**where(), "model": options.model or "none", "pool": str(options.pool), "scale": f"{options.scale:g}", "seed": str(options.seed)}
    print("  ".join(f"{k}: {v}" for k, v in info.items()))
    print(" ".join(name.rjust(width) for name, width, _ in COLUMNS), flush=True)
    rows: list[Row] = []
    for policy in policies:
        given = {key: options.host_memory if key == "host_memory" else value for key, value in POLICIES[policy].items()}
        with _open(options, given) as engine:
            for over in overs:
                rows.append(_point(engine, policy, over, options))
                print(line(rows[-1]), flush=True)
    rows = beside_best(rows)
    print("\n".join(["", " ".join(name.rjust(width) for name, width, _ in COLUMNS), *map(line, rows)]))
    if options.json:
        options.json.write_text(json.dumps({**info, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


def _open(options: argparse.Namespace, given: Mapping[str, Any]) -> LocalBackend:
    if options.model is None:
        return null_engine(options.pool, options.pass_ms / 1e3, options.row_us / 1e6, **given)
    return lmc.Engine(options.model, device=options.device, load_format=options.load_format, max_tokens=options.pool, **given)


def _point(engine: LocalBackend, policy: str, over: float, options: argparse.Namespace) -> Row:
    agents, fit = (in_flight(options.pool, options.scale, times) for times in (over, 1.0))
    jobs = begun(traces(options.seed, options.scale), min(agents, fit))
    engine.flush_cache()
    if options.model is None:
        log = simulate(engine, list(itertools.islice(jobs, options.jobs * agents)), agents)
    else:
        log = replay(engine, jobs, agents, options.warm_up, options.window)
    engine.check()
    return log.row(policy, over, agents)


if __name__ == "__main__":
    sys.exit(main())
