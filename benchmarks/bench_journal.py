"""What a journal costs: processor time with and without it, the time to take up a finished batch, and the size of its file.

    python benchmarks/bench_journal.py [--programs 1000] [--finished 10000]
"""

from __future__ import annotations

import argparse
import gc
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import lmc


@lmc.function
def judge(s: Any, essay: str) -> Any:
    s += lmc.system("You grade essays.") + lmc.user("Essay: " + essay)
    s += lmc.assistant(lmc.select("related", choices=["yes", "no"]))
    if s["related"] == "no":
        return "off topic"
    forks = s.fork(3)
    for f, dim in zip(forks, ["clarity", "originality", "evidence"], strict=True):
        f += lmc.user(f"Judge its {dim}.") + lmc.assistant(lmc.gen("judgment", max_tokens=64, stop="END"))
    s += lmc.user("Summary:\n" + "\n".join(f["judgment"].strip() for f in forks))
    s += lmc.assistant(lmc.gen("out", regex=r'\{"grade": "[ABCD][+-]?", "why": "[\w ]{1,60}"\}'))
    return s["out"]


def essays(count: int) -> list[dict[str, str]]:
    return [{"essay": f"Essay number {i}. " + f"A sentence of essay {i}. " * 40} for i in range(count)]


def measured(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of processor time of all threads, and of wall time, without the garbage collector, whose passes come by chance."""
    gc.collect()
    gc.disable()
    cpu, wall = time.process_time(), time.perf_counter()
    kept = run()
    found = time.process_time() - cpu, time.perf_counter() - wall
    gc.enable()
    del kept
    return found


def cost(programs: int, rounds: int) -> tuple[float, float, int, int]:
    """Median processor seconds without and with a journal, in turns; bytes of the file; answers in it."""
    program, items = lmc.compile(judge), essays(programs)
    program.batch(items[:50], backend=lmc.Mock(), seed=1)
    without: list[float] = []
    with_journal: list[float] = []
    size = asked = 0
    for _ in range(rounds):
        backend = lmc.Mock()
        without.append(measured(lambda b=backend: program.batch(items, backend=b, seed=1))[0])
        asked = len(backend.call_log)
        with tempfile.TemporaryDirectory() as directory:
            with_journal.append(measured(lambda d=directory: program.batch(items, backend=lmc.Mock(), seed=1, journal=d))[0])
            size = (Path(directory) / "journal").stat().st_size
    return median(without), median(with_journal), size, asked


def finished(programs: int) -> tuple[float, float, int, int]:
    """Processor and wall seconds that taking up a finished batch takes; bytes of its file; what was asked."""
    program, items = lmc.compile(judge), essays(programs)
    with tempfile.TemporaryDirectory() as directory:
        program.batch(items, backend=lmc.Mock(), seed=1, journal=directory)
        size, backend = (Path(directory) / "journal").stat().st_size, lmc.Mock()
        cpu, wall = measured(lambda: program.batch(items, backend=backend, seed=1, journal=directory))
    return cpu, wall, size, len(backend.call_log)


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--finished", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{date.today()} · {platform.processor() or platform.machine()} · Python {platform.python_version()} · {commit()}")
    without, with_journal, size, asked = cost(given.programs, given.rounds)
    print(f"{given.programs} judges, {asked} requests, on the mock: {without:.3f} s of processor time without a journal, {with_journal:.3f} s with one "
          f"(+{(with_journal / without - 1) * 100:.1f} %); {size / given.programs:.0f} bytes a program")  # fmt: skip
    cpu, wall, size, asked = finished(given.finished)
    print(f"a finished batch of {given.finished} taken up again: {cpu:.2f} s of processor time, {wall:.2f} s in all, {asked} requests; "
          f"{size / 1e6:.1f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
