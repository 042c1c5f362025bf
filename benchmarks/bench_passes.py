"""Counts what each pass is worth: every workload with all passes, without each one, and at opt=0; no times.

    python -m benchmarks.bench_passes                                # on the mock
    python -m benchmarks.bench_passes --backend smollm2 --scale 0.05 --n 3
    python -m benchmarks.bench_passes --backend mock,smollm2 --scale 0.05 --n 3 --output docs/passes_measured.txt

A batch of fresh items runs cold (cache flushed) and is answered at temperature 0. A pass whose absence leaves the planned
graph of a workload as it is has no row there: it did nothing. `optimal` is unique / computed prompt tokens. The last column
is what the row needs more than all passes together, which the missing pass saves; below zero is what that pass costs.
An engine runs a pass when all programs of the batch wait (stepped.py), so the counters are the same in every run. The
workloads `late` and `policy` run item by item, on engines of their own: a small KV pool, few rows a pass.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmc
from benchmarks.bench_programs import choose, open_backend, where
from benchmarks.pass_workloads import LATE_POOL, POLICY_CHUNK
from benchmarks.stepped import stepped
from benchmarks.workloads import Size, Workload
from lmc.backend.local import LocalBackend
from lmc.passes.base import Target
from lmc.passes.manager import pipeline_for

OWN = {"late": {"max_tokens": LATE_POOL}, "policy": {"chunk": POLICY_CHUNK}}
"""Workloads that run item by item, and the engines that they run on."""
ALL, UNOPTIMIZED, AGGRESSIVE = "all passes", "opt=0", "and aggressive"


@dataclass(frozen=True)
class Row:
    """One workload on one backend with one set of passes."""

    backend: str
    workload: str
    passes: str
    calls: int
    groups: int
    prefilled: int
    unique: int
    cached: int
    generated: int
    model_passes: int

    @property
    def optimality(self) -> float:
        return self.unique / self.prefilled if self.prefilled else 1.0


def variants() -> tuple[str, ...]:
    """The sets of passes that are compared, by name."""
    names = dict.fromkeys(p.name for p in pipeline_for(Target()) if p.name != "lower-chat")
    return (ALL, *(f"without {name}" for name in names), UNOPTIMIZED, AGGRESSIVE)


def compiled(workload: Workload, backend: Any, variant: str) -> lmc.Program:
    return lmc.compile(workload.program, backend=backend, opt=0 if variant == UNOPTIMIZED else 1, aggressive=variant == AGGRESSIVE)


def bench(workload: Workload, name: str, backend: Any, n: int, seed: int) -> Iterator[Row]:
    """A row for all passes, and one for each variant whose plan is another."""
    items, plan = workload.items(n, seed), ""
    for variant in variants():
        lmc.config(skip_passes=variant.removeprefix("without ") if variant.startswith("without ") else "")
        try:
            with compiled(workload, backend, variant) as program:
                program.lower(**items[0])
                now = program.dump_ir()
                if variant != ALL and now == plan:
                    continue
                plan = now if variant == ALL else plan
                yield measured(workload, name, variant, program, backend, items)
        finally:
            lmc.config(skip_passes="")


def measured(workload: Workload, name: str, variant: str, program: lmc.Program, backend: Any, items: Sequence[Any]) -> Row:
    backend.flush_cache()
    alone = workload.name in OWN  # each item has the engine for itself
    with stepped(backend) if isinstance(backend, LocalBackend) else nullcontext(lambda: None) as drain:
        before = backend.counters()
        for some in [[item] for item in items] if alone else [items]:
            states = program.batch(some, temperature=0)
            drain()
            for state in states:
                state.sync()
        spent = backend.counters() - before
    return Row(name, workload.name, variant, spent.calls, spent.groups, spent.prefilled_tokens,
               spent.unique_tokens, spent.cached_tokens, spent.generated_tokens, spent.passes)  # fmt: skip


def saves(row: Row, best: Row) -> str:
    """Return the savings of all passes over this row, by counter; "" for nothing."""
    counters = {"calls": "calls", "computed": "prefilled", "generated": "generated", "passes": "model_passes"}
    more = {name: getattr(row, field) - getattr(best, field) for name, field in counters.items()}
    return ", ".join(f"{n:+d} {name}" for name, n in more.items() if n)


def table(rows: Sequence[Row]) -> str:
    """A table in Markdown."""
    head = (
        "backend",
        "workload",
        "passes",
        "calls",
        "groups",
        "computed",
        "unique",
        "optimal",
        "cached",
        "generated",
        "passes of the model",
        "saved by what is missing",
    )
    best = {(r.backend, r.workload): r for r in rows if r.passes == ALL}
    cells = [
        (r.backend, r.workload, r.passes, r.calls, r.groups or "", r.prefilled, r.unique, f"{r.optimality:.4f}", r.cached, r.generated,
         r.model_passes, "" if r.passes == AGGRESSIVE else saves(r, best[r.backend, r.workload]))
        for r in rows
    ]  # fmt: skip
    lines = [head, ("---",) * 3 + ("--:",) * (len(head) - 3), *cells]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="mock", help="mock, smollm2 or a model's path; several by comma")
    parser.add_argument("--workloads", default="all,passes", help="all, host, passes, or names separated by commas")
    parser.add_argument("--n", type=int, default=4, help="items per workload")
    parser.add_argument("--scale", type=float, default=0.1, help="factor on all lengths of prompts and answers")
    parser.add_argument("--seed", type=int, default=0, help="of the synthetic text")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table there instead of printing it")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    for name in options.backend.split(","):
        backend = open_backend(name)
        try:
            for workload in choose(options.workloads, Size(options.scale)):
                print(f"{name} {workload.name} …", file=sys.stderr, flush=True)
                if workload.name in OWN and name != "mock":
                    with open_backend(name, **OWN[workload.name]) as small:
                        rows += bench(workload, name, small, options.n, options.seed)
                else:
                    rows += bench(workload, name, backend, options.n, options.seed)
        finally:
            backend.close()
    info = where()
    said = f"{info['date']}, {info['machine']}, Python {info['python']}, commit {info['commit']}; scale {options.scale}, {options.n} items each"
    text = f"{said}.\n\n{table(rows)}\n"
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
