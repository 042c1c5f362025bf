"""Replays agents whose tools take time in a pool that is too small for them: what memory that belongs to programs is worth, beside plain LRU.

    python -m benchmarks.bench_agents --model DIR --load-format dummy --device cuda            # half an hour on one H200
    python -m benchmarks.bench_agents --model DIR --load-format dummy --device cuda --policies own:1:2:4:8,lru:1:4 --window 34 --warm-up 12      # below six
    minutes
    python -m benchmarks.bench_agents --scale 64 --pool 12500 --window 30 --costs h200 --seeds 11,12,13                      # on a clock of its own, no model

A closed loop: so many agents are in flight that their final contexts need `over` times the pool, and when one ends the next begins. Those that fit begin in the
middle of their work, the others at its beginning. After a warm-up, each finished turn within the window counts as its share of a job. *optimality* is
the prompt tokens that are new, of those that were computed. One line is printed as soon as it is known; of several seeds, medians and ranges at the end.

Without --model there is none: tools and passes take place on a clock that nothing really waits for, and the same comes of it each time. Passes cost so much for
each row (`--costs flat`, with `--pass-ms` and `--row-us`), or what was measured on an H200 with an 8B shape (`--costs h200`).
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import lmc
from benchmarks.agent_traces import CONTEXT, Tools, Trace, agent, traces
from benchmarks.bench_programs import where
from benchmarks.stepped import SteppedCore, stepped
from lmc.backend.engine.engine import EngineCore
from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.engine.policy import Policy, host_size
from lmc.backend.engine.runner import PassOutput
from lmc.backend.local import LocalBackend
from lmc.errors import LmcError
from lmc.frontend.fibers import Fibers
from lmc.waiting import Signal

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "own": {}, "device": {"host_memory": 0}, "fit": {"admission": "fit", "host_memory": 0}, "lru": {"schedule": "lpm", "eviction": "lru"},
}  # fmt: skip
"""lmc's own way as on a GPU, the same without a host tier, without one and only with runs that fit, and requests by themselves with plain LRU."""


@dataclass(frozen=True)
class Row:
    """One point: a policy at an over-subscription."""

    policy: str
    over: float
    seed: int
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
    on_host: int  # tokens, at the end
    of_best: float | None = None  # jobs per hour, of the policy's best point with the seed


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

    def row(self, policy: str, over: float, agents: int, seed: int = 0) -> Row:
        (begin, first, then), (end, last, now) = self.marks
        spent, seconds = last - first, end - begin
        jobs = sum(share for at, share in self.events if begin < at <= end)
        more = lambda name: int(now.get(name, 0)) - int(then.get(name, 0))
        return Row(policy, over, seed, agents, seconds, 3600 * jobs / seconds if seconds else 0.0, sum(begin < at <= end for at in self.ended),
            spent.prefill_optimality,
                   spent.prefilled_tokens, spent.unique_tokens, spent.generated_tokens, now["held_back"], more("broken_leases"), more("host_in"),
                   int(now.get("host_tokens", 0)))  # fmt: skip


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

Cost = Callable[[ModelPass], float]
"""Seconds that a pass takes."""


def flat(base: float, per_row: float) -> Cost:
    """Every pass takes `base` seconds, and `per_row` for each of its rows."""
    return lambda work: base + per_row * work.rows


def h200(work: ModelPass) -> float:
    """As measured on one H200 with an 8B shape: decode passes of 4.6, 6.9 and 15.2 ms at batch 1, 64 and 256, some 188 rows that are nearly free, and 45,000
    tokens of prompts a second beyond them (docs/performance.md)."""
    return 4.6e-3 + 41e-6 * len(work.samples) + max(0, work.rows - 188) / 45_000


@dataclass
class NullRunner:
    """A model that answers at once, and says how long it would have taken."""

    cost: Cost
    took: float = 0.0

    def run(self, work: ModelPass) -> PassOutput:
        self.took = self.cost(work)
        return PassOutput([_TOKEN] * len(work.samples), [None] * len(work.samples), [0.0] * len(work.scores), [()] * len(work.scores))


_TOKEN = 42


class NullMover:
    """Copies of nothing, at 20 GB/s of an 8B shape's KV, to memory of which a GB is pinned in a second."""

    token_bytes = 1 << 17
    _RATE, _PINNED = 150_000.0, 8_000.0  # tokens per second

    def __init__(self, capacity: int) -> None:
        self.capacity, self._ready, self._wanted, self._at = capacity, 0.0, 0, 0.0
        self.clock: VirtualCore | None = None

    @property
    def ready(self) -> int:
        now = self.clock.now if self.clock is not None else 0.0
        self._ready = min(max(self._ready, self._wanted), self._ready + self._PINNED * (now - self._at))
        self._at = now
        return int(self._ready)

    @property
    def grows(self) -> bool:
        return self.ready < self._wanted

    def want(self, slots: int) -> None:
        self._wanted = max(self.ready, self._wanted, min(slots, self.capacity))

    def out(self, device: np.ndarray, host: np.ndarray) -> NullCopy:
        assert self.clock is not None
        return NullCopy(self.clock, len(device) / self._RATE)

    back = out

    def settle(self) -> None: ...

    def close(self) -> None: ...


class NullCopy:
    def __init__(self, clock: VirtualCore, seconds: float) -> None:
        self._clock, self.seconds, self._due = clock, seconds, clock.now + seconds

    def done(self) -> bool:
        return self._clock.now >= self._due

    def wait(self) -> None:
        self._clock.now = max(self._clock.now, self._due)


class Over(Exception):
    """The window has ended, and what runs is given up."""


class VirtualCore(SteppedCore):
    """On a clock of its own, which goes on with each pass, and where nothing runs to the next thing that happens. Nothing is measured by any other clock."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.now = 0.0
        self.is_over = False
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = itertools.count()

    def seconds(self) -> float:
        return self.now

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Calls `action` when the clock has come there; those of one moment in the order in which they were given."""
        heapq.heappush(self._due, (seconds, next(self._ties), action))

    def sleep(self, seconds: float) -> None:
        signal = Signal()
        self.at(self.now + seconds, signal.set)
        signal.wait()
        if self.is_over:
            raise Over

    def turn(self) -> bool:
        runner: Any = self._runner
        runner.took = 0.0
        if EngineCore.turn(self):
            self._until(self.now + runner.took)
            return True
        due = [at for at, *_ in self._due[:1]] + ([self.now + pause + 1e-6] if (pause := self._pause) else [])
        if due:
            self._until(min(due))
        return bool(due)

    def _record(self, work: ModelPass, seconds: float, ended: float) -> None:
        runner: Any = self._runner
        EngineCore._record(self, work, runner.took, ended)

    def _until(self, at: float) -> None:
        self.now = max(self.now, at)
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()

    def give_up(self) -> None:
        """Whoever sleeps is woken, and what is asked fails."""
        self.is_over = True
        for _, _, action in self._due:
            action()
        self._due.clear()
        self._fail_all(LmcError("the window has ended"))


def null_engine(pool: int, cost: Cost, *, host_memory: int | str | None = None, **given: Any) -> LocalBackend:
    """A backend with the small model's tokenizer and no model. host_memory: None is room for four times the pool."""
    from lmc.backend.engine.models.loader import load

    words = load("smollm2")
    policy = Policy(**given)
    size = host_size(host_memory, policy)
    host = size // NullMover.token_bytes if size is not None else 4 * pool
    return LocalBackend(
        name="null", vocabulary=words.tokenizer, chat_template=words.chat_template, runner=NullRunner(cost), compiler=None,
        max_tokens=pool, max_context=pool, max_batch=512, chunk=4096, policy=policy, mover=NullMover(host) if host else None,
    )  # fmt: skip


def simulate(engine: LocalBackend, jobs: Iterator[Trace], agents: int, warm_up: float, window: float) -> Log:
    """The same on a clock of its own. All agents are fibers of this thread, so that the same is done in the same order each time."""
    with stepped(engine, VirtualCore) as drain:
        core: Any = engine._core
        mover: Any = engine._scheduler._mover
        if mover is not None:
            mover.clock = core
        log = Log(engine, core.seconds)
        tools = Tools(core.sleep, log.done)

        def one(_: int) -> None:
            trace = next(jobs)
            try:
                agent.run(trace=trace, tools=tools, backend=engine, temperature=0)
            except LmcError as error:
                raise (Over() if core.is_over else error) from None
            log.job_ended()

        def end() -> None:
            log.mark()
            engine.check()
            core.give_up()

        core.at(warm_up, log.mark)
        core.at(warm_up + window, end)
        fibers = Fibers(one, _WITHOUT_END, limit=agents, name="agents", here=True)
        with suppress(Over):
            for _ in fibers.results(lambda: None):
                pass
        drain()
    return log


_WITHOUT_END = 1 << 40


# -- the table -----------------------------------------------------------------------------------------------------

COLUMNS: tuple[tuple[str, int, Callable[[Row], str]], ...] = (
    ("policy", 10, lambda r: r.policy), ("over", 5, lambda r: f"{r.over:g}"), ("seed", 5, lambda r: str(r.seed)), ("agents", 7, lambda r: str(r.agents)),
    ("s", 7, lambda r: f"{r.seconds:.1f}"),
    ("jobs/h", 8, lambda r: f"{r.jobs_per_hour:.0f}"), ("of best", 8, lambda r: "" if r.of_best is None else f"{r.of_best:.0%}"),
    ("ended", 6, lambda r: str(r.ended)),
    ("optimality", 11, lambda r: f"{r.optimality:.4f}"), ("prefilled", 10, lambda r: str(r.prefilled)), ("unique", 10, lambda r: str(r.unique)),
    ("generated", 10, lambda r: str(r.generated)), ("held back", 10, lambda r: str(r.held_back)), ("broken", 7, lambda r: str(r.broken)),
    ("host in", 9, lambda r: str(r.host_in)),
    ("on host", 8, lambda r: str(r.on_host)),
)  # fmt: skip


def line(row: Row) -> str:
    return " ".join(show(row).rjust(width) for _, width, show in COLUMNS)


def beside_best(rows: Sequence[Row]) -> list[Row]:
    key = lambda row: (row.policy, row.seed)
    best = {key(row): max(other.jobs_per_hour for other in rows if key(other) == key(row)) for row in rows}
    return [replace(row, of_best=row.jobs_per_hour / best[key(row)] if best[key(row)] else None) for row in rows]


def medians(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each policy and over-subscription: what its seeds came to."""
    points: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        points.setdefault((row.policy, row.over), []).append(row)
    said = lambda name, found, spec: f"{name} {format(statistics.median(found), spec)} ({format(min(found), spec)}–{format(max(found), spec)})"
    for (policy, over), found in points.items():
        jobs, of_best, optimality = [r.jobs_per_hour for r in found], [r.of_best or 0.0 for r in found], [r.optimality for r in found]
        yield f"{policy:>10} {over:5g}   {said('jobs/h', jobs, '.0f')}   {said('of best', of_best, '.0%')}   {said('optimality', optimality, '.3f')}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model's path, or smollm2 (default: none, on a clock of its own)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"), help="dummy: random weights")
    parser.add_argument("--pool", type=int, default=100_000, help="tokens of the KV pool")
    parser.add_argument("--scale", type=float, default=8.0, help="what tokens and seconds of the traces are divided by")
    parser.add_argument("--over", default="1,2,4,8", help="over-subscriptions, separated by commas")
    parser.add_argument("--policies", default="own,device,fit,lru", help="of " + ", ".join(POLICIES) + "; own:1:4 for other over-subscriptions than --over")
    parser.add_argument("--host-memory", help="of the host tier (default: as on a GPU; without a model, room for four times the pool)")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of a point")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds before it")
    parser.add_argument("--costs", default="flat", choices=("flat", "h200"), help="without a model: what a pass takes")
    parser.add_argument("--pass-ms", type=float, default=8.0, help="of --costs flat: each pass")
    parser.add_argument("--row-us", type=float, default=25.0, help="of --costs flat: and each of its rows")
    parser.add_argument("--seeds", default="0", help="of the traces, separated by commas")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    policies = {name: [float(over) for over in overs or options.over.split(",")] for name, *overs in (one.split(":") for one in options.policies.split(","))}
    if unknown := [name for name in policies if name not in POLICIES]:
        parser.error(f"unknown policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    info = {**where(), "model": options.model or "none", "pool": str(options.pool), "scale": f"{options.scale:g}", "costs": options.costs}
    print("  ".join(f"{k}: {v}" for k, v in info.items()))
    print(" ".join(name.rjust(width) for name, width, _ in COLUMNS), flush=True)
    rows: list[Row] = []
    for policy, overs in policies.items():
        given = {"host_memory": options.host_memory} if policy == "own" else POLICIES[policy]
        if options.model is None:  # each point begins with what nobody has learned from another
            for over, seed in itertools.product(overs, seeds):
                with null_engine(options.pool, h200 if options.costs == "h200" else flat(options.pass_ms / 1e3, options.row_us / 1e6), **given) as engine:
                    rows.append(_point(engine, policy, over, seed, options))
                print(line(rows[-1]), flush=True)
            continue
        began = time.monotonic()
        with lmc.Engine(options.model, device=options.device, load_format=options.load_format, max_tokens=options.pool, **given) as engine:
            print(f"# {policy}: the engine started in {time.monotonic() - began:.1f} s", flush=True)
            for over, seed in itertools.product(overs, seeds):
                rows.append(_point(engine, policy, over, seed, options))
                print(line(rows[-1]), flush=True)
    rows = beside_best(rows)
    print("\n".join(["", " ".join(name.rjust(width) for name, width, _ in COLUMNS), *map(line, rows)]))
    if len(seeds) > 1:
        print("\n".join(["", *medians(rows)]))
    if options.json:
        options.json.write_text(json.dumps({**info, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


def _point(engine: LocalBackend, policy: str, over: float, seed: int, options: argparse.Namespace) -> Row:
    agents, fit = (in_flight(options.pool, options.scale, times) for times in (over, 1.0))
    jobs = begun(traces(seed, options.scale), min(agents, fit))
    engine.flush_cache()
    log = (replay if options.model else simulate)(engine, jobs, agents, options.warm_up, options.window)
    engine.check()
    return log.row(policy, over, agents, seed)


if __name__ == "__main__":
    sys.exit(main())
