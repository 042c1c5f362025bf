"""The command: `python -m experiments --help`."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import experiments
from docs import make_pictures
from experiments.core import EXPERIMENTS, NotAResult, Setup, listed, run, table
from experiments.page import page
from experiments.results import PAGE, report
from lmc.pages import several

for module in experiments.MODULES:
    importlib.import_module(f"experiments.{module}")


def main(argv: Sequence[str] | None = None) -> int:
    own = Setup()
    parser = argparse.ArgumentParser(prog="python -m experiments", description=experiments.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, or all; without any they are listed")
    parser.add_argument("--backend", default=own.backend, help="smollm2, a model's path, or a name as of lmc run -b")
    parser.add_argument("--device", default=own.device, help="cpu, cuda, cuda:1")
    parser.add_argument("--load-format", default=own.load_format, choices=("auto", "dummy"), help="dummy: random weights")
    parser.add_argument("--n", type=int, default=own.n, help=f"items of a workload at most; 0: as many as it has (default {own.n})")
    parser.add_argument("--scale", type=float, default=own.scale, help=f"factor on lengths of prompts and answers (default {own.scale})")
    parser.add_argument("--pool", type=int, metavar="TOKENS", help="size of an engine's KV pool (default: a part of the free memory)")
    parser.add_argument("--reps", type=int, default=own.reps, help=f"repetitions (default {own.reps})")
    parser.add_argument("--seed", type=int, default=own.seed, help="of the synthetic text")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME",
        help="a backend that runs the same programs beside, such as sglang:http://127.0.0.1:30000; repeatable",
    )
    parser.add_argument("--data", metavar="FOLDER", help="data sets of `quality`")
    parser.add_argument(
        "--out", type=Path, default=Path("build/experiments"), help="where JSON and pages go; what is there is not measured again (default build/experiments)"
    )
    parser.add_argument("--note", default="", help="what a reader should know of the circumstances, such as what else the machine does")
    parser.add_argument("--fresh", action="store_true", help="measure again")
    parser.add_argument("--report", action="store_true", help="write docs/results.md, and the pictures of the README, from docs/results/*.json")
    given = parser.parse_args(argv)
    names = [e.name for e in listed()] if given.names == ["all"] else given.names
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        parser.error(f"there is no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    if given.n < 0 or given.reps < 1 or not 0 < given.scale < math.inf:
        parser.error("--n is 0 or more, --reps 1 or more, --scale more than 0")
    if not names and not given.report:
        for experiment in listed():
            print(f"{experiment.name:16} {experiment.question}")
    setup = Setup(given.backend, given.device, given.load_format, given.n, given.scale, given.reps, given.seed, tuple(given.peer), given.data, given.pool)
    failed = 0
    for name in names:
        try:
            if not _measured(name, setup, given):
                print(f"{name}: nothing was measured", file=sys.stderr)
                failed = 1
        except (NotAResult, OSError) as error:  # of the files that results go to; what a point meets is noted in them
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
        except KeyboardInterrupt:
            print(f"\n{name}: interrupted. What was measured is kept in {given.out}; the same command goes on", file=sys.stderr)
            return 130
    if given.report:  # last: of what was measured now, too, where --out is docs/results
        try:
            PAGE.write_text(report(), "utf-8")
        except NotAResult as error:
            parser.exit(1, f"{error}\n")
        make_pictures.write()
        print(PAGE)
    return failed


def _measured(name: str, setup: Setup, given: argparse.Namespace) -> bool:
    """Run an experiment, print its figures and write its page. Return whether there are any."""
    found = run(EXPERIMENTS[name], setup, given.out, fresh=given.fresh, note=given.note)
    columns, lines = table(found.all())
    widths = [max(map(len, column)) for column in zip(columns, *lines)]
    print("\n".join("  ".join(value.ljust(w) for value, w in zip(line, widths)).rstrip() for line in ([columns, *lines] if lines else [])))
    path = given.out / f"{name}.html"
    path.write_text(page(EXPERIMENTS[name], found), "utf-8")
    absent = f"; {several(len(found.unmeasured), 'point')} not measured" if found.unmeasured else ""
    print(f"{path}{absent}\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
