"""Searches for a program that means something else when it is compiled.

    python -m tests.conformance --programs 20000 --seed 0         # what runs every night: all cores, an hour or two
    python -m tests.conformance --programs 20000 --done night.log # the same, going on where an interrupted search stopped
    python -m tests.conformance --programs 1 --seed 4711          # one program, shrunk if it fails
    python -m tests.conformance --show 4711                       # its text
    python -m tests.conformance --file failing.py                 # a program that was written down

Seeds are whole tests: the text of the program and what it is run with follow from them. A failure is shrunk, printed with
the command that shows it again, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.programs import source
from tests.conformance.search import Failure, Setting, examined, look_at, problem


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed; the others' follow it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--done", type=Path, metavar="FILE", help="keep there which parts were looked at, and leave out those that were")
    parser.add_argument("--failures", type=int, default=3, help="stop after that many")
    parser.add_argument("--show", type=int, metavar="SEED", help="print a program and what it is run with, and do nothing")
    parser.add_argument("--file", type=Path, help="look at the `program(s, q, xs, flag=False)` of this file, in every setting")
    options = parser.parse_args(argv)
    if options.show is not None:
        print(f"# {Setting.of(options.show)}\n{source(options.show)}")
        return 0
    if options.file is not None:
        return _file(options.file)
    failures: list[Failure] = []
    for part in _parts(range(options.seed, options.seed + options.programs), options.done):
        failures += (found := _search(part, options.jobs, options.failures - len(failures)))
        if len(failures) >= options.failures:
            break
        if options.done is not None and not found:  # a part with a failure is looked at again
            options.done.parent.mkdir(parents=True, exist_ok=True)
            with options.done.open("a") as log:
                log.write(f"{part.start} {part.stop} {time.strftime('%Y-%m-%d %H:%M')}\n")
    return 1 if failures else 0


PART = 500
"""Programs that are looked at, or not, as one."""


def _parts(seeds: range, done: Path | None) -> list[range]:
    """The seeds in parts, without those that a file says were looked at."""
    if done is None:
        return [seeds] if seeds else []
    lines = done.read_text().splitlines() if done.exists() else []
    known = {tuple(map(int, line.split()[:2])) for line in lines}
    parts = [range(first, min(first + PART, seeds.stop)) for first in range(seeds.start, seeds.stop, PART)]
    left = [part for part in parts if (part.start, part.stop) not in known]
    print(f"{len(parts) - len(left)} of {len(parts)} parts were looked at before", file=sys.stderr, flush=True)
    return left


def _search(seeds: range, jobs: int, most: int) -> list[Failure]:
    started, failures = time.monotonic(), []
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(seeds))) as pool:
        for done, (seed, said) in enumerate(pool.imap_unordered(look_at, seeds, chunksize=8), 1):
            if said is not None:
                failures.append(failure := examined(seed, said))
                _report(failure)
            if done % 200 == 0 or done == len(seeds):
                spent = time.monotonic() - started
                print(f"{done} of {len(seeds)} programs from {seeds.start} in {spent:.0f} s, {len(failures)} failures", file=sys.stderr, flush=True)
            if len(failures) >= most:
                break
        pool.terminate()
    return failures


def _report(failure: Failure) -> None:
    print(f"\n== seed {failure.seed}: {failure.problem}\n   {failure.setting}\n\n{failure.text}")
    print(f"# again: python -m tests.conformance --programs 1 --seed {failure.seed}\n", flush=True)


def _file(file: Path) -> int:
    text, settings, failed = file.read_text(), 0, 0
    for ahead in ("off", "certain", "likely", "lies"):
        for temperature in (0, 0.8):
            for faults in (0, 7):
                setting = Setting(ahead, temperature, faults, latency=True, threads=True)
                said = problem(text, setting)
                settings += 1
                if said is not None:
                    failed += 1
                    print(f"{said}\n   {setting}")
    print(f"{settings} settings, {failed} failures")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
