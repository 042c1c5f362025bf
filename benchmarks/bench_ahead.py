"""Worth and cost of asking ahead: ten programs written one thing after another, beside an expert's `asyncio.gather`.

    python -m benchmarks.bench_ahead [--temperature 0,default] [--scale 0.1] [--backend engine:PATH]
    python -m benchmarks.bench_ahead --cost [--latencies 1,5,20,200] [--programs 1,48]

The mock of an API takes 0.3 s ± 30 % an answer, by a hash of the prompt, and time for prefill by the prompt's length.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import lmc
from benchmarks import ahead_programs
from benchmarks.ahead_programs import WORKLOADS, Workload, answers
from benchmarks.bench_programs import where
from lmc.backend.usage import Counters, Usage
from lmc.chat import conversation
from lmc.parameters import Origin, make_gen
from lmc.segments import SamplingParams, Text
from lmc.waiting import Signal, is_set

ANSWER_S, SPREAD, PREFILL_S = 0.3, 0.3, 2.5e-5
"""Seconds of an answer of the mock, the share by which they differ, and seconds more for each byte of the prompt (10,000 tokens a second)."""
RETRIEVAL_SHARE = 1 / 3
"""Time of the retriever, as a share of an answer."""
MODES = ("interpreter", "off", "certain", "likely", "expert")


@dataclass(frozen=True)
class Row:
    """The time of one program in one mode. `ratio` is to the expert's time, `more` the share of tokens beyond the interpreter's."""

    workload: str
    mode: str
    temperature: str
    seconds: float
    requests: int
    tokens: int
    asked: int = 0
    used: int = 0
    wasted: int = 0
    ratio: float = math.nan
    speedup: float = math.nan
    more: float = 0.0


def api(scale: float) -> lmc.Mock:
    """A mock of an API whose answers and times depend on the prompt alone."""

    def seconds(ask: Any, prompt: str) -> float:
        k = int.from_bytes(hashlib.blake2b(f"{ask.name}:{prompt}".encode(), digest_size=4).digest()) / 2**32
        return scale * (ANSWER_S * (1 - SPREAD + 2 * SPREAD * k) + PREFILL_S * len(prompt))

    return lmc.Mock(answers, latency=seconds)


def steady(seconds: float) -> lmc.Mock:
    """A mock that takes the same time for each answer."""
    return lmc.Mock(answers, latency=seconds)


def asking(backend: Any, temperature: float | None) -> ahead_programs.Ask:
    """How the expert asks a backend."""
    defaults = SamplingParams() if temperature is None else SamplingParams(temperature=temperature)

    async def ask(messages: Sequence[tuple[str, str]], name: str, max_tokens: int, begun: str = "", regex: str | None = None) -> str:
        text = conversation(backend.chat_template, messages) + ((begun,) if begun else ())
        gen = make_gen(defaults, {"max_tokens": max_tokens} | ({"regex": regex} if regex else {}), Origin(1, 0, repr(messages), len(begun)), name)
        (result,) = backend.submit(None, (Text(text), gen)).results
        there = Signal()
        result.on_change(lambda r: there.set() if r.done else None)
        await is_set(there)
        return result.output().text

    return ask


def runner(workload: Workload, mode: str, temperature: float | None) -> Callable[[Any], Usage | None]:
    """Runs a program once on a backend and gives its usage, but for the expert's."""
    options = {"seed": 1} | ({} if temperature is None else {"temperature": temperature})
    if mode == "interpreter":
        return lambda backend: workload.program.run(**workload.arguments, backend=backend, **options).usage
    if mode == "expert":
        return lambda backend: asyncio.run(workload.expert(asking(backend, temperature), **workload.arguments))  # type: ignore[func-returns-value]
    program = lmc.compile(workload.program, ahead=mode)
    return lambda backend: program(**workload.arguments, backend=backend, **options).usage


def bench(workload: Workload, make: Callable[[float], Any], *, scale: float, temperature: float | None, reps: int, warm: int) -> list[Row]:
    """All modes of one program, each `warm` times at a tenth of the times first."""
    rows: list[Row] = []
    for mode in MODES:
        run = runner(workload, mode, temperature)
        for _ in range(warm):
            ahead_programs.RETRIEVAL = scale / 10 * ANSWER_S * RETRIEVAL_SHARE
            run(make(scale / 10))
        took: list[float] = []
        usage, cost = Usage(), Counters()
        for _ in range(reps):
            backend = make(scale)
            backend.flush_cache()
            ahead_programs.RETRIEVAL = scale * ANSWER_S * RETRIEVAL_SHARE
            before, start = backend.counters(), time.perf_counter()
            usage = run(backend) or Usage()
            took.append(time.perf_counter() - start)
            cost = backend.counters() - before
        rows.append(Row(
            workload.name, mode, "default" if temperature is None else f"{temperature:g}", median(took), cost.calls, cost.prompt_tokens + cost.generated_tokens,
            usage.ahead_asked, usage.ahead_used, usage.ahead_wasted,
        ))  # fmt: skip
    first, expert = rows[0], rows[-1]
    return [
        replace(row, ratio=row.seconds / expert.seconds, speedup=first.seconds / row.seconds, more=row.tokens / first.tokens - 1) for row in rows
    ]


def table(rows: Sequence[Row]) -> str:
    """One line a program and mode, then the geometric means over the interpreter."""
    lines = [
        f"{'program':20} {'mode':12} {'s':>8} {'requests':>8} {'tokens':>8} {'asked':>6} {'used':>5} {'wasted':>6} {'tokens +':>8} {'× expert':>8} "
        f"{'× faster':>8}"
    ]
    lines += [
        f"{r.workload:20} {r.mode:12} {r.seconds:8.3f} {r.requests:8} {r.tokens:8} {r.asked:6} {r.used:5} {r.wasted:6} {r.more:8.1%} {r.ratio:8.2f} "
        f"{r.speedup:8.2f}"
        for r in rows
    ]
    for mode in MODES[1:]:
        found = [r.speedup for r in rows if r.mode == mode]
        lines.append(f"{'geometric mean':20} {mode:12} {'':69} {math.prod(found) ** (1 / len(found)):8.2f}")
    return "\n".join(lines)


GOALS = """Goals: without undecided exits (all but the last two) certain ≤ 1.15 × expert and ≤ 5 % more tokens; self-consistency likely ≤ 1.15 × expert with
no more requests; over the interpreter certain ≥ 2.5 × and likely ≥ 3 ×."""


# -- what it costs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Wall and processor seconds of one run of one kind, with its requests and those asked ahead and used."""

    wall: float
    cpu: float
    requests: int
    used: int


@dataclass(frozen=True)
class Compared:
    """A program interpreted and compiled, in pairs of runs that take turns."""

    workload: str
    latency_ms: float
    programs: int
    cold: bool
    pairs: tuple[tuple[Cost, Cost], ...]

    def ratios(self, part: str) -> list[float]:
        return [getattr(b, part) / max(getattr(a, part), 1e-9) for a, b in self.pairs]

    @property
    def cpu_limit(self) -> float:
        """Processor seconds that a compiled run may take: 1.15 times, or 20 µs a request more, where nothing was used; else twice."""
        cpu = median(a.cpu for a, _ in self.pairs)
        if any(b.used for _, b in self.pairs):
            return 2 * cpu
        return max(1.15 * cpu, cpu + 20e-6 * self.pairs[0][0].requests)

    @property
    def wall_ok(self) -> bool:
        return median(self.ratios("wall")) <= 1.05

    @property
    def cpu_ok(self) -> bool:
        return median(b.cpu for _, b in self.pairs) <= self.cpu_limit


def one_cost(run: Callable[..., Any], programs: int, latency: float, arguments: dict[str, Any]) -> Cost:
    """A program once, or as a batch."""
    backend = steady(latency)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    if programs == 1:
        states = [run(**arguments, backend=backend, temperature=0)]
    else:
        states = run([arguments] * programs, backend=backend, temperature=0)
    backend.counters()  # the mock counts when it is asked, which only a compiled program does
    found = time.perf_counter() - wall, time.process_time() - cpu
    used = sum(state.usage.ahead_used for state in states)
    backend.close()
    return Cost(*found, len(backend.call_log), used)


def both(workload: Workload, programs: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """How a program runs interpreted, and compiled now."""
    compiled = lmc.compile(workload.program)
    return (workload.program.run, compiled) if programs == 1 else (workload.program.run_batch, compiled.batch)


def warm_pairs(workload: Workload, latency: float, programs: int, reps: int, warm: int) -> list[tuple[Cost, Cost]]:
    """Pairs in one process, whose order changes from pair to pair, after runs of each that are not counted."""
    runs = both(workload, programs)
    cost = lambda i: one_cost(runs[i], programs, latency, workload.arguments)
    for _ in range(warm):
        cost(0)
        cost(1)
    pairs: list[tuple[Cost, Cost]] = []
    for k in range(reps):
        second, first = (cost(1), cost(0)) if k % 2 else (cost(0), cost(1))[::-1]
        pairs.append((first, second))
    return pairs


def cold_run(workload: Workload, latency: float, programs: int, kind: int) -> Cost:
    """The first run in a process."""
    return one_cost(both(workload, programs)[kind], programs, latency, workload.arguments)


def forked(call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in a process of its own, which has imported what this one has."""
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, call, args))
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


def _send(pipe: Connection, call: Callable[..., Any], args: Sequence[Any]) -> None:
    pipe.send(call(*args))
    pipe.close()


def compare(workload: Workload, latency_ms: float, programs: int, cold: bool, reps: int, warm: int = 3) -> Compared:
    """Pairs of a program, in processes of their own."""
    latency = latency_ms / 1000
    ahead_programs.RETRIEVAL = latency * RETRIEVAL_SHARE
    if cold:
        found = [tuple(forked(cold_run, workload, latency, programs, kind) for kind in (0, 1)) for _ in range(reps)]
    else:
        found = forked(warm_pairs, workload, latency, programs, reps, warm)
    return Compared(workload.name, latency_ms, programs, cold, tuple(found))


def cost_table(rows: Sequence[Compared]) -> str:
    """One line a case, with the limits; then what is over them."""
    lines = [
        f"{'program':20} {'ms':>4} {'n':>3} {'':5} {'interpreted s':>13} {'compiled s':>10} {'wall × (≤ 1.05)':>22} {'cpu ms':>8} {'compiled':>8} "
        f"{'limit':>8} {'µs/ask':>7}"
    ]
    for r in rows:
        wall = r.ratios("wall")
        cpu = [median(pair[i].cpu for pair in r.pairs) for i in (0, 1)]
        extra = (cpu[1] - cpu[0]) * 1e6 / r.pairs[0][0].requests
        lines.append(
            f"{r.workload:20} {r.latency_ms:4g} {r.programs:3} {'cold' if r.cold else 'warm':5} {median(a.wall for a, _ in r.pairs):13.4f} "
            f"{median(b.wall for _, b in r.pairs):10.4f} {median(wall):6.2f} [{min(wall):5.2f}, {max(wall):5.2f}]{'' if r.wall_ok else ' !':2} "
            f"{cpu[0] * 1e3:8.1f} {cpu[1] * 1e3:8.1f} {r.cpu_limit * 1e3:8.1f}{'' if r.cpu_ok else ' !':2} {extra:6.0f}"
        )
    over = [sum(not ok for ok in found) for found in ([r.wall_ok for r in rows], [r.cpu_ok for r in rows])]
    return "\n".join([*lines, f"over the limits: wall {over[0]}, processor {over[1]}, of {len(rows)}"])


# -- the command ---------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="mock", help="mock, engine (SmolLM2), or engine:PATH")
    parser.add_argument("--only", default="", help="programs whose names contain one of these, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all latencies of the mock")
    parser.add_argument("--temperature", default="0,default")
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--warm", type=int, default=2, help="runs before those that count")
    parser.add_argument("--cost", action="store_true", help="what compiling costs, in pairs of runs")
    parser.add_argument("--latencies", default="1,5,20,200", help="ms an answer, of --cost")
    parser.add_argument("--programs", default="1,48", help="programs at once, of --cost")
    parser.add_argument("--states", default="cold,warm", help="of --cost")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    workloads = [w for w in WORKLOADS if any(part in w.name for part in given.only.split(","))]
    print(" · ".join(where().values()))
    found: list[Any] = []
    if given.cost:
        for latency in map(float, given.latencies.split(",")):
            for programs in map(int, given.programs.split(",")):
                for state in given.states.split(","):
                    found += [compare(w, latency, programs, state == "cold", max(given.reps, 3)) for w in workloads]
        print(cost_table(found))
    else:
        kind, _, path = given.backend.partition(":")
        engine = lmc.Engine(path or "smollm2") if kind == "engine" else None
        make = api if engine is None else lambda scale: engine
        for temperature in given.temperature.split(","):
            rows = [
                row for w in workloads
                for row in bench(w, make, scale=given.scale, temperature=None if temperature == "default" else float(temperature), reps=given.reps,
                    warm=given.warm)
            ]  # fmt: skip
            print(f"\ntemperature {temperature}\n{table(rows)}")
            found += rows
        print(GOALS)
    if given.json is not None:
        given.json.write_text(json.dumps({**where(), "rows": [asdict(row) for row in found]}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
