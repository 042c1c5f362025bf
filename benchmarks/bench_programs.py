"""Times language-model programs, interpreted and compiled, and counts what they cost the model.

    python -m benchmarks.bench_programs --backend mock                       # every workload, in seconds
    python -m benchmarks.bench_programs --backend smollm2 --scale 0.1 --n 4 --workloads judge,tree
    python -m benchmarks.bench_programs --workloads host --reps 7            # what the host costs per program
    python -m benchmarks.bench_programs --backend sglang:http://127.0.0.1:30000 --modes interpreter,compiled
    python -m benchmarks.bench_programs --workloads judge,tree --modes compiled,ablation    # each pass off, and opt=0
    python -m benchmarks.bench_programs --memory 10000                       # the peak memory of a compiled batch

A speed counts only if the answers are right: the texts of both modes are compared in each repetition, and a
difference is printed and makes the exit code 1 (on a real model, batching may flip a near tie: see --allow-diff).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lmc
from benchmarks.pass_workloads import for_passes
from benchmarks.workloads import Size, Workload, figures, host_overhead, pictures, slow_tool
from lmc import named
from lmc.passes.base import Target
from lmc.passes.manager import pipeline_for

MODES = ("interpreter", "compiled")


@dataclass(frozen=True)
class Run:
    """One timed repetition: wall and processor seconds from the call until every item is done, and the backend's counters."""

    seconds: float
    cpu_seconds: float
    counters: Any
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One line of the table: a workload in one mode, over all repetitions. Counters are those of the last one."""

    workload: str
    mode: str
    n: int
    reps: int
    median_s: float
    min_s: float
    max_s: float
    ms_per_program: float
    cpu_ms_per_program: float  # of the process, all threads: what a busy machine does not change
    calls: int
    prompt_tokens: int
    prefilled_tokens: int
    unique_tokens: int
    cached_tokens: int
    generated_tokens: int
    forced_tokens: int
    passes: int
    prefill_optimality: float
    images: int = 0
    towered: int = 0  # of them, those that the vision tower looked at
    tower_s: float = 0.0
    equal_texts: float | None = None  # share of items with the same text as the interpreter's
    speedup: float | None = None  # interpreter's median / this one's
    cpu_ratio: float | None = None  # this one's processor time / the interpreter's
    limit_s: float | None = None  # what the reference machine allows, where this is it
    goal_s: float | None = None


# -- running -------------------------------------------------------------------------------------------------------


def interpreted(workload: Workload, backend: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda items: workload.program.run_batch(items, backend=backend, temperature=0)


def compiled(workload: Workload, backend: Any) -> Callable[[list[Any]], list[Any]]:
    program = lmc.compile(workload.program, backend=backend)
    return lambda items: program.batch(items, temperature=0)


def threaded(workload: Workload, backend: Any) -> Callable[[list[Any]], list[Any]]:
    """The interpreter with a thread for each program."""
    return lambda items: workload.program.run_batch(items, backend=backend, temperature=0, num_threads=len(items))


def ablated(workload: Workload, backend: Any, variant: str) -> Callable[[list[Any]], list[Any]]:
    """Compiled at opt=0 (`opt0`), or without one pass (`without-NAME`)."""
    program = lmc.compile(workload.program, backend=backend, opt=0 if variant == OPT0 else 1)
    skipped = "" if variant == OPT0 else variant.removeprefix(WITHOUT)

    def run(items: list[Any]) -> list[Any]:
        lmc.config(skip_passes=skipped)  # also for what is traced while it runs
        try:
            return program.batch(items, temperature=0)
        finally:
            lmc.config(skip_passes="")

    return run


OPT0, WITHOUT = "opt0", "without-"
RUNNERS = {"interpreter": interpreted, "threads": threaded, "compiled": compiled}
ABLATIONS = (*dict.fromkeys(WITHOUT + p.name for p in pipeline_for(Target()) if p.name != "lower-chat"), OPT0)


POLICIES: Mapping[str, Mapping[str, Any]] = {
    "own": {}, "schedule=lpm": {"schedule": "lpm"}, "schedule=fcfs": {"schedule": "fcfs"}, "schedule=random": {"schedule": "random"},
    "cache=table": {"cache": "table"}, "cache=off": {"cache": "off"}, "eviction=lru": {"eviction": "lru"}, "admission=fit": {"admission": "fit"},
}  # fmt: skip
"""Policies of an engine: its own, and with one thing otherwise (the paper's Figure 8c)."""


def runner(mode: str, workload: Workload, backend: Any) -> Callable[[list[Any]], list[Any]]:
    return ablated(workload, backend, mode) if mode in ABLATIONS else RUNNERS[mode](workload, backend)


def modes_of(names: str) -> list[str]:
    """Modes by name; `ablation` stands for all that leave something out."""
    modes = [mode for name in names.split(",") for mode in (ABLATIONS if name == "ablation" else (name,))]
    modes = list(dict.fromkeys(modes))
    if unknown := [mode for mode in modes if mode not in RUNNERS and mode not in ABLATIONS]:
        raise SystemExit(f"unknown mode {unknown[0]!r}; there are {', '.join([*RUNNERS, 'ablation', *ABLATIONS])}")
    return modes


def measure(run: Callable[[list[Any]], list[Any]], items: list[Any], backend: Any) -> Run:
    """Runs all items on an empty cache; reading every text waits for every answer."""
    backend.flush_cache()
    gc.collect()
    before, start, cpu = backend.counters(), time.perf_counter(), time.process_time()
    states = run(items)
    for state in states:
        state.sync()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return Run(seconds, cpu_seconds, backend.counters() - before, tuple(state.text() for state in states))


def bench(workload: Workload, backend: Any, modes: Sequence[str], n: int, reps: int, seed: int) -> list[Row]:
    """Each mode on the same fresh items in every repetition, in turns the first; an untimed one warms up (and traces)."""
    runners = {mode: runner(mode, workload, backend) for mode in modes}
    runs: dict[str, list[Run]] = {mode: [] for mode in modes}
    for mode in modes:
        measure(runners[mode], workload.items(min(n, 2), seed - 1), backend)
    for rep in range(reps):
        items = workload.items(n, seed + rep)
        for mode in modes if rep % 2 == 0 else reversed(modes):  # texts that were met before are tokenized already
            runs[mode].append(measure(runners[mode], items, backend))
    return [_row(workload, mode, n, runs) for mode in modes]


def where_time_went(workload: Workload, engine: Any, n: int, seed: int) -> str:
    """Return the table of `breakdown` of one compiled run on fresh items."""
    from benchmarks.breakdown import broken_down

    run = runner("compiled", workload, engine)
    measure(run, workload.items(min(n, 2), seed - 1), engine)
    items = workload.items(n, seed)
    with broken_down(engine) as found:
        measure(run, items, engine)
        return "\n".join(found().lines())


def _row(workload: Workload, mode: str, n: int, runs: dict[str, list[Run]]) -> Row:
    mine, reference = runs[mode], runs.get("interpreter")
    times = sorted(run.seconds for run in mine)
    median = statistics.median(times)
    spent = mine[-1].counters
    row = Row(workload.name, mode, n, len(mine), median, times[0], times[-1], 1000 * median / n,
              1000 * statistics.median(run.cpu_seconds for run in mine) / n, spent.calls, spent.prompt_tokens,
              spent.prefilled_tokens, spent.unique_tokens, spent.cached_tokens, spent.generated_tokens, spent.forced_tokens,
              spent.passes, spent.prefill_optimality, spent.images, spent.images - spent.image_hits, spent.tower_seconds)
    if mode == "interpreter" or reference is None:
        return row
    pairs = [(a, b) for one, two in zip(mine, reference) for a, b in zip(one.texts, two.texts)]
    equal = sum(a == b for a, b in pairs) / len(pairs)
    speedup = statistics.median(run.seconds for run in reference) / median
    cpu_ratio = statistics.median(run.cpu_seconds for run in mine) / statistics.median(run.cpu_seconds for run in reference)
    return Row(**{**asdict(row), "equal_texts": equal, "speedup": speedup, "cpu_ratio": cpu_ratio})


# -- backends and workloads by name --------------------------------------------------------------------------------


def open_backend(name: str, **options: Any) -> Any:
    """A backend by its name (lmc/named.py); `options` are those of a model in this process."""
    if not named.is_model(name):
        return named.open_backend(name)
    engine = lmc.Engine(name, **options)
    engine.warm_up()
    return engine


def choose(names: str, size: Size) -> list[Workload]:
    """Workloads by name: `all` are the ten figures, `host` the small programs, `passes` those that passes act on, else a
    comma-separated list (also `slow-tool`, and `pictures` for models that see)."""
    every = {w.name: w for w in (*figures(size), *host_overhead(), *for_passes(size), slow_tool(), pictures(size))}
    groups = {"all": [w.name for w in figures(size)], "host": [w.name for w in host_overhead()], "passes": [w.name for w in for_passes(size)]}
    wanted = [name for part in names.split(",") for name in groups.get(part, [part])]
    unknown = [name for name in wanted if name not in every]
    if unknown:
        raise SystemExit(f"unknown workload {unknown[0]!r}; there are {', '.join([*groups, *every])}")
    return [every[name] for name in wanted]


FIGURES = {
    "few-shot": (0.8, 1.1), "choice": (0.45, 0.9), "react": (1.8, 2.6), "agents": (1.6, 1.75), "tree": (1.0, 1.6),
    "skeleton": (1.6, 2.2), "judge": (2.3, 2.9), "json": (1.25, 1.7), "chat-short": (1.7, 1.95), "chat-long": (5.7, 7.0),
}  # fmt: skip
"""Seconds on one H200 with the 8B shape, all items at full length: what its bandwidth and arithmetic allow, and the goal."""


def beside_figures(row: Row) -> Row:
    """With the limit and the goal of its workload."""
    limit, goal = FIGURES[row.workload]
    return replace(row, limit_s=limit, goal_s=goal)


# -- printing ------------------------------------------------------------------------------------------------------

COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("workload", lambda r: r.workload),
    ("mode", lambda r: r.mode),
    ("n", lambda r: str(r.n)),
    ("median s", lambda r: f"{r.median_s:.3f}"),
    ("range s", lambda r: f"{r.min_s:.3f}-{r.max_s:.3f}"),
    ("ms/program", lambda r: f"{r.ms_per_program:.3f}"),
    ("cpu ms", lambda r: f"{r.cpu_ms_per_program:.3f}"),
    ("calls", lambda r: str(r.calls)),
    ("prompt", lambda r: str(r.prompt_tokens)),
    ("prefilled", lambda r: str(r.prefilled_tokens)),
    ("unique", lambda r: str(r.unique_tokens)),
    ("cached", lambda r: str(r.cached_tokens)),
    ("generated", lambda r: str(r.generated_tokens)),
    ("passes", lambda r: str(r.passes)),
    ("optimality", lambda r: f"{r.prefill_optimality:.4f}"),
    ("images", lambda r: "" if not r.images else str(r.images)),
    ("in tower", lambda r: "" if not r.images else str(r.towered)),
    ("tower s", lambda r: "" if not r.images else f"{r.tower_s:.3f}"),
    ("images/s", lambda r: "" if not r.images else f"{r.n / r.median_s:.2f}"),
    ("equal", lambda r: "" if r.equal_texts is None else f"{r.equal_texts:.0%}"),
    ("speedup", lambda r: "" if r.speedup is None else f"{r.speedup:.2f}x"),
    ("cpu ratio", lambda r: "" if r.cpu_ratio is None else f"{r.cpu_ratio:.2f}"),
    ("limit s", lambda r: "" if r.limit_s is None else f"{r.limit_s:.2f}"),
    ("x limit", lambda r: "" if r.limit_s is None else f"{r.median_s / r.limit_s:.2f}"),
    ("goal s", lambda r: "" if r.goal_s is None else f"{r.goal_s:.2f}"),
)


def table(rows: Sequence[Row]) -> str:
    lines = [[title for title, _ in COLUMNS], *([show(row) for _, show in COLUMNS] for row in rows)]
    used = [i for i in range(len(COLUMNS)) if any(line[i] for line in lines[1:])]
    cells = [[line[i] for i in used] for line in lines]
    widths = [max(len(line[i]) for line in cells) for i in range(len(used))]
    return "\n".join("  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
                     for line in cells)


def where() -> dict[str, str]:
    """Date, machine and commit: what a number means nothing without."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
                         cwd=Path(__file__).parent)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
        "commit": git.stdout.strip() or "unknown",
    }


def _processor() -> str:
    """Return the processor's name; its architecture where the system does not say."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", info.read_text("utf-8"), re.MULTILINE) if info.is_file() else None
    return named[1].strip() if named else platform.processor() or platform.machine()


def peak(name: str, n: int) -> float:
    """MiB that this process held at most, after a compiled batch of `n` items on the mock; for a process of its own."""
    (workload,) = [one for one in host_overhead() if one.name == name]
    states = lmc.compile(workload.program, backend=lmc.Mock()).batch(workload.items(n, 0), temperature=0)
    assert len(states) == n
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def memory(n: int) -> str:
    """A line for each small workload: the memory of a compiled batch, its results and the mock's log of calls included."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return "\n".join([f"{one.name}: {pool.apply(peak, (one.name, n)):.0f} MiB for {n} items" for one in host_overhead()])


def count(given: str) -> Callable[[int], int]:
    """Return how many items a workload has, of its own number."""
    if given.endswith("x"):
        factor = float(given[:-1])
        return lambda own: max(1, round(factor * own))
    number = int(given)
    return lambda own: number


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="mock", help="mock, smollm2, a model's path, or a server: sglang:URL, vllm:URL, openai:MODEL@URL")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"), help="dummy: random weights")
    parser.add_argument("--quantization", choices=("fp8",), help="of the engine's weights")
    parser.add_argument("--kv-dtype", choices=("fp8",), help="of the engine's KV")
    parser.add_argument("--chunk", type=int, help="rows of a pass (default: the engine's)")
    parser.add_argument("--captured", type=int, help="rows of the largest captured pass, from 1024 on, with weights and KV in FP8 (default: the engine's)")
    parser.add_argument("--tp", type=int, default=1, help="GPUs that the model is spread over")
    parser.add_argument("--dp", type=int, default=1, help="replicas of the engine")
    parser.add_argument("--drafts", default="off", help="of the engine: off, auto or a number; on synthetic text and random weights they say nothing")
    parser.add_argument("--workloads", default="all", help="all, host, or names separated by commas")
    parser.add_argument(
        "--modes",
        default=",".join(MODES),
        help="of interpreter, threads (the interpreter with a thread for each program), compiled, opt0, without-PASS, ablation (each pass off, and opt0)",
    )
    parser.add_argument("--ablate", action="store_true", help="compiled, on an engine of each policy: " + ", ".join(POLICIES))
    parser.add_argument("--max-tokens", type=int, help="size of the engine's KV pool (default: its own), to make memory short")
    parser.add_argument("--reference", action="store_true", help="this is the reference machine and model: print limits and goals beside")
    parser.add_argument("--n", type=count, help="items per workload (default: its own), or a factor on its own: 0.25x, 2x")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all lengths of prompts and answers")
    parser.add_argument("--reps", type=int, default=5, help="timed repetitions")
    parser.add_argument("--seed", type=int, default=0, help="of the synthetic text; each repetition has its own")
    parser.add_argument("--allow-diff", type=float, default=0.0, help="share of items that may differ between the modes")
    parser.add_argument("--memory", type=int, metavar="N", help="only: the peak memory of batches of N small programs, each in its own process")
    parser.add_argument("--breakdown", action="store_true", help="also print where the wall time of one more compiled run went, of an engine without replicas")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    if options.memory is not None:
        print(memory(options.memory))
        return 0
    modes = modes_of(options.modes)
    if options.reference and (options.scale != 1 or options.n):
        parser.error("--reference is for all items at full length: leave out --scale and --n")

    if (options.ablate or options.breakdown) and not named.is_model(options.backend):
        parser.error("--ablate and --breakdown are for a model in this process: --backend smollm2, or a model's path")
    if options.breakdown and options.dp > 1:
        parser.error("--breakdown is for one engine: leave out --dp")
    if options.captured:
        from lmc.backend.engine import cuda_runner

        cuda_runner.BUCKETS_OF_FP8 = tuple(rows for rows in cuda_runner.BUCKETS_OF_FP8 if rows <= options.captured)
    rows: list[Row] = []
    for policy, given in POLICIES.items() if options.ablate else [("", {})]:
        backend = open_backend(
            options.backend,
            device=options.device,
            load_format=options.load_format,
            max_tokens=options.max_tokens,
            quantization=options.quantization,
            kv_dtype=options.kv_dtype,
            chunk=options.chunk,
            tp=options.tp,
            dp=options.dp,
            drafts=int(options.drafts) if options.drafts.isdigit() else options.drafts,
            **given,
        )
        try:
            for workload in choose(options.workloads, Size(options.scale)):
                print(f"{policy} {workload.name}: {workload.shape} …".lstrip(), file=sys.stderr, flush=True)
                n = options.n(workload.n) if options.n else workload.n
                found = bench(workload, backend, ["compiled"] if policy else modes, n, options.reps, options.seed)
                rows += [replace(row, mode=policy or row.mode) for row in found]
                if options.breakdown:
                    print(f"{policy} {workload.name} × {n}: {where_time_went(workload, backend, n, options.seed + options.reps)}".lstrip(), flush=True)
        finally:
            backend.close()
    if options.reference:
        rows = [beside_figures(row) if row.workload in FIGURES else row for row in rows]
    info = {**where(), "backend": options.backend, "scale": str(options.scale), "seed": str(options.seed)}
    print("  ".join(f"{k}: {v}" for k, v in info.items()))
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({**info, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    different = [row for row in rows if row.equal_texts is not None and row.equal_texts < 1 - options.allow_diff]
    for row in different:
        print(f"{row.workload}: only {row.equal_texts:.1%} of the texts equal the interpreter's", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
