"""Times the figure workloads over HTTP: compiled by lmc, and in SGLang's own frontend, on one running SGLang server.

    python -m benchmarks.bench_frontends --url http://127.0.0.1:30000                         # all but chat-long, 2 repetitions
    python -m benchmarks.bench_frontends --url URL --workloads choice,react --reps 5 --json out.json
    python -m benchmarks.bench_frontends --url URL --sglang DIR      # a folder with the package `sglang`, if it is not installed

Both run the same Python functions (workloads.py): for SGLang `lmc` means its API there, so that prompts, lengths and forks are the
same. Of SGLang only the frontend is imported, which needs no torch: requests, numpy, ipython, aiohttp, pydantic, tqdm, orjson and
pybase64. Each repetition has fresh text, an empty cache for each of the two, and the other one first; temperature 0. `equal` is the
share of items with the same text: on a real model batching may flip near ties, and SGLang tokenizes its own answers again.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import lmc
from benchmarks import workloads
from benchmarks.bench_programs import choose, count, where
from benchmarks.workloads import Size, Workload

DEFAULT = "few-shot,choice,react,agents,tree,skeleton,judge,json,chat-short"


@dataclass(frozen=True)
class Timed:
    """One repetition of one frontend: wall and processor seconds, and the whole text of each item."""

    seconds: float
    cpu_seconds: float
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A workload: seconds of each repetition, and medians of the client's processor seconds."""

    workload: str
    n: int
    lmc_s: tuple[float, ...]
    sglang_s: tuple[float, ...]
    lmc_cpu_s: float
    sglang_cpu_s: float
    equal: float

    @property
    def ratio(self) -> float:
        return statistics.median(self.lmc_s) / statistics.median(self.sglang_s)


# -- SGLang's frontend -------------------------------------------------------------------------------------------------


def frontend(folder: str | None = None) -> SimpleNamespace:
    """SGLang's API for programs, without the runtime, which its package would import: `function`, `gen`, `select`, `RuntimeEndpoint`."""
    if folder is not None:
        sys.path.append(folder)
    if "sglang" not in sys.modules:
        spec = importlib.util.find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("there is no package sglang: pip install --no-deps sglang==0.5.15, or --sglang DIR")
        package = sys.modules["sglang"] = ModuleType("sglang")
        package.__path__ = list(spec.submodule_search_locations)
    api = importlib.import_module("sglang.lang.api" if importlib.util.find_spec("sglang.lang.api") else "sglang.api")  # before 0.4.7
    endpoint = importlib.import_module("sglang.lang.backend.runtime_endpoint")
    return SimpleNamespace(function=api.function, gen=api.gen, select=api.select, RuntimeEndpoint=endpoint.RuntimeEndpoint)


def in_sglang(workload: Workload, sgl: SimpleNamespace) -> Any:
    """The workload's program as one of SGLang's frontend: the same function, in which `lmc` is SGLang's API."""
    function, helper = workload.program.func, workloads.answer
    there = {**function.__globals__, "lmc": sgl}
    there["answer"] = FunctionType(helper.__code__, there, helper.__name__, helper.__defaults__)
    code = FunctionType(function.__code__, there, function.__name__, function.__defaults__, function.__closure__)
    return sgl.function(functools.update_wrapper(code, function))


# -- timing ------------------------------------------------------------------------------------------------------------


def flush(backend: lmc.SGLang, patience: float = 60.0) -> None:
    """Empty the server's cache; it refuses while a request still runs."""
    end = time.monotonic() + patience
    while True:
        try:
            return backend.flush_cache()
        except lmc.BackendError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def measure(run: Callable[[list[Any]], list[Any]], items: list[Any], backend: lmc.SGLang) -> Timed:
    flush(backend)
    gc.collect()
    start, cpu = time.perf_counter(), time.process_time()
    states = run([dict(item) for item in items])  # SGLang's frontend changes what it is given
    texts = tuple([state.text() for state in states])
    return Timed(time.perf_counter() - start, time.process_time() - cpu, texts)


def runners(workload: Workload, backend: Any, endpoint: Any, sgl: SimpleNamespace, threads: int | str) -> Mapping[str, Callable[[list[Any]], list[Any]]]:
    fast, own = lmc.compile(workload.program, backend=backend), in_sglang(workload, sgl)
    return {
        "lmc": lambda items: fast.batch(items, temperature=0),
        "sglang": lambda items: own.run_batch(items, backend=endpoint, temperature=0, num_threads=threads, progress_bar=False),
    }


def bench(workload: Workload, backend: lmc.SGLang, run: Mapping[str, Callable[[list[Any]], list[Any]]], n: int, reps: int, seed: int) -> Row:
    for one in run.values():
        measure(one, workload.items(min(n, 2), seed - 1), backend)
    found: dict[str, list[Timed]] = {name: [] for name in run}
    for rep in range(reps):
        items = workload.items(n, seed + rep)
        for name in run if rep % 2 == 0 else reversed(list(run)):
            found[name].append(measure(run[name], items, backend))
            print(f"{workload.name}: {name} {found[name][-1].seconds:.2f} s", file=sys.stderr, flush=True)
    mine, theirs = found["lmc"], found["sglang"]
    pairs = [pair for a, b in zip(mine, theirs) for pair in zip(a.texts, b.texts, strict=True)]
    cpu = {name: statistics.median(timed.cpu_seconds for timed in found[name]) for name in run}
    equal = sum(a == b for a, b in pairs) / len(pairs)
    return Row(workload.name, n, tuple(t.seconds for t in mine), tuple(t.seconds for t in theirs), cpu["lmc"], cpu["sglang"], equal)


# -- printing ----------------------------------------------------------------------------------------------------------


def show(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"


def line(row: Row) -> str:
    seconds = f"{row.workload:12}{row.n:5}{show(row.lmc_s):>22}{show(row.sglang_s):>22}{row.ratio:8.2f}"
    return f"{seconds}{row.lmc_cpu_s:9.2f}{row.sglang_cpu_s:12.2f}{row.equal:8.0%}"


HEAD = f"{'workload':12}{'n':>5}{'lmc s':>22}{'sglang s':>22}{'ratio':>8}{'lmc cpu':>9}{'sglang cpu':>12}{'equal':>8}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="of the SGLang server, for both")
    parser.add_argument("--workloads", default=DEFAULT, help="all (the ten), or names separated by commas")
    parser.add_argument("--n", type=count, help="items per workload (default: its own), or a factor on its own: 0.25x")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all lengths of prompts and answers")
    parser.add_argument("--reps", type=int, default=2, help="timed repetitions")
    parser.add_argument("--seed", type=int, default=0, help="of the synthetic text; each repetition has its own")
    parser.add_argument("--threads", default="auto", help="of SGLang's frontend: auto (its default) or a number")
    parser.add_argument("--tokenizer", help="for lmc (default: the server's model path, if it is on this machine)")
    parser.add_argument("--sglang", metavar="DIR", help="folder that holds the package sglang, looked into last")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    sgl = frontend(options.sglang)
    endpoint = sgl.RuntimeEndpoint(options.url)
    threads = int(options.threads) if options.threads.isdigit() else options.threads
    rows: list[Row] = []
    fast = {name: "yes" if importlib.util.find_spec(name) else "no" for name in ("orjson", "uvloop")}  # which lmc uses, if they are there
    print("  ".join(f"{k}: {v}" for k, v in {**where(), **fast}.items()))
    print(HEAD, flush=True)
    backend = lmc.SGLang(options.url, tokenizer=options.tokenizer)
    with backend:
        for workload in choose(options.workloads, Size(options.scale)):
            run = runners(workload, backend, endpoint, sgl, threads)
            rows.append(bench(workload, backend, run, options.n(workload.n) if options.n else workload.n, options.reps, options.seed))
            print(line(rows[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps({**where(), "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
