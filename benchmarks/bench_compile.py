"""Times compiling: import, drawing the graph, each pass, verifying, printing and parsing, the first call and the second.

    python -m benchmarks.bench_compile                       # the three small programs, on the mock
    python -m benchmarks.bench_compile --reps 21 --json out.json

Each repetition compiles the program anew; an untimed one before them pays what a process pays once (Python's own caches,
rewriting the program's source). The mock answers at once, so that a call's time is the host's own.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lmc
from benchmarks.bench_programs import where
from benchmarks.workloads import Workload, host_overhead
from lmc.ir import Graph, parse, print_graph, verify
from lmc.passes.base import Target
from lmc.passes.manager import PassManager, pipeline_for, stage_of

PIPELINE = "all passes, cpu"
LIMITS = {("host-tree", PIPELINE): 50.0}
"""Milliseconds of processor time that a step may take: the pipeline of 39 gens."""

Times = dict[str, list[float]]
"""Milliseconds of each repetition, by step."""


@dataclass(frozen=True)
class Row:
    """One step of one program over all repetitions, in milliseconds."""

    program: str
    gens: int
    step: str
    reps: int
    median_ms: float
    min_ms: float
    max_ms: float


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds that `work` takes, and what it gives."""
    start = time.perf_counter()
    result = work()
    return 1e3 * (time.perf_counter() - start), result


def measure(workload: Workload, seed: int) -> Iterator[tuple[str, float]]:
    """One repetition: the steps of compiling and running a program that nothing has seen."""
    backend = lmc.Mock()
    first, second = workload.items(2, seed)
    program = lmc.compile(workload.program, backend=backend)
    drawing, graph = timed(program.graph)
    yield "drawing the graph", drawing
    yield "first call, with planning", timed(lambda: program(**first).sync())[0]
    yield "second call", timed(lambda: program(**second).sync())[0]
    yield "interpreter", timed(lambda: workload.program.run(backend=backend, **second).sync())[0]
    yield from passes(graph)
    backend.close()


def passes(drawn: Graph) -> Iterator[tuple[str, float]]:
    target = Target()
    began = time.thread_time()
    planned = PassManager(pipeline_for(target)).plan(drawn, target)
    yield PIPELINE, 1e3 * (time.thread_time() - began)
    for i, report in enumerate(planned.reports, 1):
        yield f"pass {i} {report.pass_.name}", 1e3 * report.seconds
    yield "all passes", 1e3 * planned.seconds
    yield "verify", timed(lambda: verify(planned.graph, stage_of(planned.graph)))[0]
    ms, text = timed(lambda: print_graph(planned.graph))
    yield "print", ms
    yield "parse", timed(lambda: parse(text))[0]


def bench(workload: Workload, reps: int, seed: int) -> list[Row]:
    times: Times = {}
    for rep in range(-1, reps):  # the first is a warm-up
        gc.collect()
        for step, ms in measure(workload, seed + rep):
            if rep >= 0:
                times.setdefault(step, []).append(ms)
    return rows_of(workload.name, workload.gens, times)


def bench_import(reps: int) -> list[Row]:
    """`import lmc` in a fresh Python, alone and with what a program on the mock needs."""
    times: Times = {}
    for step, code in (("import lmc", "import lmc"), ("  and its names", "import lmc; lmc.compile, lmc.gen, lmc.Mock")):
        timer = f"import time; start = time.perf_counter(); {code}; print(1e3 * (time.perf_counter() - start))"
        for rep in range(-1, reps):
            done = subprocess.run([sys.executable, "-c", timer], capture_output=True, text=True, check=True,
                                  cwd=Path(lmc.__file__).parent.parent)
            if rep >= 0:
                times.setdefault(step, []).append(float(done.stdout))
    return rows_of("import", 0, times)


def rows_of(program: str, gens: int, times: Times) -> list[Row]:
    return [Row(program, gens, step, len(ms), statistics.median(ms), min(ms), max(ms)) for step, ms in times.items()]


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'program':14}{'gens':>5}  {'step':22}{'median ms':>10}{'range ms':>18}"]
    for row in rows:
        span = f"{row.min_ms:.3f}-{row.max_ms:.3f}"
        limit = LIMITS.get((row.program, row.step))
        said = "" if limit is None else f"  limit {limit:.0f}: {'holds' if row.median_ms < limit else 'EXCEEDED'}"
        lines.append(f"{row.program:14}{row.gens or '':>5}  {row.step:22}{row.median_ms:10.3f}{span:>18}{said}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=9, help="timed repetitions, each compiling anew (default 9)")
    parser.add_argument("--seed", type=int, default=0, help="of the items' text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    options = parser.parse_args(argv)
    if options.reps < 1:
        parser.error(f"--reps {options.reps}: at least 1")
    rows = bench_import(options.reps)
    for workload in host_overhead():
        rows += bench(workload, options.reps, options.seed)
    info = where()
    print("  ".join(f"{k}: {v}" for k, v in info.items()))
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({**info, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
